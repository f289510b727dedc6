//! Content that nobody may read: what stands for it where it may not go, and how a text is kept from repeating it.

mod hidden;
mod placeholder;
mod views;

pub use hidden::{HIDDEN, Hidden};
pub use placeholder::placeholder;
