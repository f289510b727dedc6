//! Content that nobody may read: what stands for it where it may not go.

mod placeholder;

pub use placeholder::placeholder;
