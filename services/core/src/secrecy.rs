//! Secret content: placeholders for it, and redaction of texts that repeat it.

mod hidden;
mod placeholder;
mod views;

pub use hidden::{HIDDEN, Hidden};
pub use placeholder::placeholder;
