//! Errors of this crate, other than the diagnostics of a document.

/// Why something is not read, written or explained at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source of this name has bytes that are no UTF-8.
    #[error("{0} is not UTF-8 text")]
    NotText(String),
    /// The source of this name seems to be UTF-16.
    #[error("{0} is not UTF-8 text (is it UTF-16? save it as UTF-8)")]
    Wide(String),
    /// No field or kind has this path; a sentence that names the part that does not exist.
    #[error("{0}")]
    NoField(String),
    /// This program was built without a message of this name.
    #[error("the protos have no message {0}")]
    NoMessage(String),
    /// A message is not one of the protos that this program was built with.
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
}
