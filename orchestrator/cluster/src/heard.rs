//! Redacted observations: nodes as platforms show them, without the secrets that their texts may repeat. All
//! observations of nodes pass through here.

use std::{borrow::Cow, ops::Deref};

use drover_core::{Error, secrecy::Hidden};
use drover_proto::platform::v1 as wire;

/// Replaces a text if it is unknown what to redact in it.
const UNREADABLE: &str = "[hidden: what this may not repeat cannot be read]";

/// What to redact in texts about nodes.
#[derive(Debug)]
pub enum Unsaid {
    /// These contents.
    Contents(Hidden),
    /// Unknown, so that nothing of the text is shown.
    Everything,
}

impl Unsaid {
    /// Redacts a text.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self {
            Self::Contents(hidden) => hidden.text(text),
            Self::Everything if text.is_empty() => Cow::Borrowed(text),
            Self::Everything => Cow::Borrowed(UNREADABLE),
        }
    }

    /// Redacts all texts of an error.
    #[must_use]
    pub fn error(&self, error: Error) -> Error {
        match self {
            Self::Contents(hidden) => hidden.error(error),
            Self::Everything => {
                let clean = Error::new(error.reason(), UNREADABLE);
                match error.retry_after() {
                    Some(after) => clean.with_retry_after(after),
                    None => clean,
                }
            }
        }
    }
}

/// A node whose texts do not repeat anything that its group was given.
#[derive(Clone, Debug)]
pub struct Heard(wire::Node);

impl Deref for Heard {
    type Target = wire::Node;

    fn deref(&self) -> &wire::Node {
        &self.0
    }
}

impl Heard {
    /// Redacts the texts of a node. `unsaid` is `None` if nothing is known to be secret for it.
    #[must_use]
    pub fn of(mut node: wire::Node, unsaid: Option<&Unsaid>) -> Self {
        if let Some(unsaid) = unsaid {
            node.message = unsaid.text(&node.message).into_owned();
        }
        Self(node)
    }
}
