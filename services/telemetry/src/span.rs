//! Spans: timed operations and their relationships.

use std::{borrow::Cow, future::Future, time::SystemTime};

use tokio::time::Instant;

use crate::{
    context::{self, Context, Scope, current},
    export,
};

/// Maximum number of attributes of a span, not counting links.
const MAX_ATTRIBUTES: usize = 32;
/// Maximum length of a text in a span, in bytes; enough for error messages.
const MAX_TEXT: usize = 512;
/// Maximum number of links of a span.
const MAX_LINKS: usize = 8;

/// The role of a span in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Work within this process.
    Internal,
    /// A received request.
    Server,
    /// A sent request.
    Client,
}

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A string.
    Text(Cow<'static, str>),
    /// An integer.
    Number(i64),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// A timed operation. It ends when it is dropped at the latest. Without an exporter, and in traces that are not
/// sampled, it only propagates the context.
///
/// Spans must never contain secrets, user data, rendered templates, or messages from elsewhere, which may repeat them.
#[derive(Debug)]
pub struct Span {
    context: Context,
    recorded: Option<Box<Recorded>>,
}

/// The recorded data of a span.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) context: Context,
    pub(crate) parent: Option<u64>,
    pub(crate) name: Cow<'static, str>,
    pub(crate) kind: Kind,
    pub(crate) start: SystemTime,
    pub(crate) began: Instant,
    pub(crate) end: SystemTime,
    pub(crate) attributes: Vec<(&'static str, Value)>,
    pub(crate) links: Vec<Context>,
    /// Cause of the failure.
    pub(crate) error: Option<String>,
}

impl Span {
    /// Starts a span for a received request, within the trace of the request or else as a new trace.
    #[must_use]
    pub fn server(name: impl Into<Cow<'static, str>>, parent: Option<Context>) -> Self {
        Self::start(Kind::Server, name.into(), parent)
    }

    /// Starts a span for an outgoing request, within the current trace. `None` if there is no current trace.
    #[must_use]
    pub fn client(name: impl Into<Cow<'static, str>>) -> Option<Self> {
        current().map(|parent| Self::start(Kind::Client, name.into(), Some(parent)))
    }

    /// Starts a span for an internal operation, within the current trace. `None` if there is no current trace.
    #[must_use]
    pub fn internal(name: impl Into<Cow<'static, str>>) -> Option<Self> {
        current().map(|parent| Self::start(Kind::Internal, name.into(), Some(parent)))
    }

    /// Starts a span below a parent, or else as a new trace.
    #[must_use]
    pub fn start(kind: Kind, name: Cow<'static, str>, parent: Option<Context>) -> Self {
        let ratio = export::sample_ratio();
        let sampled = ratio.map(|ratio| fastrand::f64() < ratio);
        let (context, parent) = match (parent, sampled) {
            (Some(parent), Some(_)) if parent.is_sampled() => (parent.child(), Some(parent)),
            (Some(parent), Some(sampled)) if parent.is_open() => (parent.decided(sampled), None),
            // This span is not recorded anywhere, so its children refer to the parent instead.
            (Some(parent), _) => (parent, None),
            (None, sampled) => (Context::root(sampled), None),
        };
        let recorded = (ratio.is_some() && context.is_sampled()).then(|| {
            let start = SystemTime::now();
            Box::new(Recorded {
                context,
                parent: parent.map(Context::span_id),
                name,
                kind,
                start,
                began: Instant::now(),
                end: start,
                attributes: Vec::new(),
                links: Vec::new(),
                error: None,
            })
        });
        Self { context, recorded }
    }

    /// Backdates the start of the span.
    #[must_use]
    pub fn since(mut self, began: Instant) -> Self {
        if let Some(recorded) = &mut self.recorded {
            let earlier = recorded.began.saturating_duration_since(began);
            recorded.start = recorded
                .start
                .checked_sub(earlier)
                .unwrap_or(recorded.start);
            recorded.began = began;
        }
        self
    }

    /// The context for operations that this span causes.
    #[must_use]
    pub fn context(&self) -> Context {
        self.context
    }

    /// Whether the span is recorded. Costly attributes can be skipped if it is not.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.recorded.is_some()
    }

    /// Runs a future within the context of the span.
    pub fn scope<F: Future>(&self, work: F) -> Scope<F> {
        context::scope(Some(self.context), work)
    }

    /// Sets an attribute. The last value counts.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        let Some(recorded) = &mut self.recorded else {
            return;
        };
        let value = match value.into() {
            Value::Text(text) if text.len() > MAX_TEXT => Value::Text(cut(&text).to_owned().into()),
            value => value,
        };
        let attributes = &mut recorded.attributes;
        match attributes.iter().position(|(own, _)| *own == key) {
            Some(at) => attributes[at].1 = value,
            None if attributes.len() < MAX_ATTRIBUTES => attributes.push((key, value)),
            None => {}
        }
    }

    /// Links the span to a span of another trace.
    pub fn link(&mut self, other: Context) {
        if let Some(recorded) = &mut self.recorded
            && recorded.links.len() < MAX_LINKS
        {
            recorded.links.push(other);
        }
    }

    /// Marks the span as failed. Both texts come from a fixed set of this program, never from elsewhere. `why` may be
    /// empty.
    pub fn fail(&mut self, kind: &'static str, why: &'static str) {
        self.set("error.type", kind);
        if let Some(recorded) = &mut self.recorded {
            recorded.error = Some(cut(why).to_owned());
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(mut recorded) = self.recorded.take() {
            recorded.end = recorded.start + recorded.began.elapsed();
            export::send(recorded);
        }
    }
}

/// Truncates a text to the maximum length in spans.
fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_TEXT))
        .unwrap_or_default()
}

/// Runs a future within the context of a span, if there is one.
pub fn within<F: Future>(span: Option<&Span>, work: F) -> Scope<F> {
    context::scope(span.map(Span::context), work)
}
