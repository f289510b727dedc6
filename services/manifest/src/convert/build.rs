//! Builds parts of manifests that refer to the lines that they came from.

use crate::tree::{Entry, Node, Span, Value};

pub(super) fn entry(key: &str, span: Span, value: Node) -> Entry {
    Entry {
        key: key.to_owned(),
        span,
        value,
    }
}

/// An unchanged entry under another key.
pub(super) fn renamed(key: &str, from: &Entry) -> Entry {
    entry(key, from.span, from.value.clone())
}

/// An entry that refers to its value.
pub(super) fn field(key: &str, value: Node) -> Entry {
    entry(key, value.span, value)
}

pub(super) fn map(span: Span, entries: Vec<Entry>) -> Node {
    Node {
        span,
        value: Value::Map(entries),
    }
}

pub(super) fn list(span: Span, items: Vec<Node>) -> Node {
    Node {
        span,
        value: Value::List(items),
    }
}

pub(super) fn text(span: Span, text: &str) -> Node {
    Node {
        span,
        value: Value::Scalar {
            text: text.to_owned(),
            plain: false,
        },
    }
}

pub(super) fn number(span: Span, number: usize) -> Node {
    Node {
        span,
        value: Value::Scalar {
            text: number.to_string(),
            plain: true,
        },
    }
}
