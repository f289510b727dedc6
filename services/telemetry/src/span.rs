//! Spans: what took how long, as a part of what.

use std::{borrow::Cow, future::Future, time::SystemTime};

use tokio::time::Instant;

use crate::{
    context::{self, Context, Scope, current},
    export,
};

/// Most attributes of a span, links apart.
const MAX_ATTRIBUTES: usize = 32;
/// Longest text in a span, bytes: an error says what it has to say in that.
const MAX_TEXT: usize = 512;
/// Most links of a span.
const MAX_LINKS: usize = 8;

/// Which side of what a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Work in this process.
    Internal,
    /// A request that was received.
    Server,
    /// A request that was made.
    Client,
}

/// What an attribute says.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text.
    Text(Cow<'static, str>),
    /// A number.
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

/// Something that takes time. It ends when it is dropped, at the latest. Without an exporter, and in traces that are
/// not sampled, it only carries the context of whatever asked for it.
///
/// Never put into one: secrets, user data, rendered templates, or what somebody else has said, which may repeat them.
#[derive(Debug)]
pub struct Span {
    context: Context,
    recorded: Option<Box<Recorded>>,
}

/// What is sent of a span.
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
    /// Why it failed.
    pub(crate) error: Option<String>,
}

impl Span {
    /// Begins one as a part of what a request came with; without that, as a trace of its own.
    #[must_use]
    pub fn server(name: impl Into<Cow<'static, str>>, parent: Option<Context>) -> Self {
        Self::start(Kind::Server, name.into(), parent)
    }

    /// Begins one for a request to somebody else, as a part of what runs now. None: nothing that belongs to a trace.
    #[must_use]
    pub fn client(name: impl Into<Cow<'static, str>>) -> Option<Self> {
        current().map(|parent| Self::start(Kind::Client, name.into(), Some(parent)))
    }

    /// Begins one for a part of what runs now. None: nothing that belongs to a trace.
    #[must_use]
    pub fn internal(name: impl Into<Cow<'static, str>>) -> Option<Self> {
        current().map(|parent| Self::start(Kind::Internal, name.into(), Some(parent)))
    }

    /// Begins one below a parent; without one, as a trace of its own.
    #[must_use]
    pub fn start(kind: Kind, name: Cow<'static, str>, parent: Option<Context>) -> Self {
        let ratio = export::sample_ratio();
        let sampled = ratio.map(|ratio| fastrand::f64() < ratio);
        let (context, parent) = match (parent, sampled) {
            (Some(parent), Some(_)) if parent.is_sampled() => (parent.child(), Some(parent)),
            (Some(parent), Some(sampled)) if parent.is_open() => (parent.decided(sampled), None),
            // Nobody will ever see this span: what follows belongs to the one above it.
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

    /// The same, begun when something else began.
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

    /// What whatever it causes is a part of.
    #[must_use]
    pub fn context(&self) -> Context {
        self.context
    }

    /// Whether anybody will see it: what is costly to say may be left out otherwise.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.recorded.is_some()
    }

    /// Runs something as a part of it.
    pub fn scope<F: Future>(&self, work: F) -> Scope<F> {
        context::scope(Some(self.context), work)
    }

    /// Says something of it. The last word counts.
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

    /// It has to do with a span of another trace, too.
    pub fn link(&mut self, other: Context) {
        if let Some(recorded) = &mut self.recorded
            && recorded.links.len() < MAX_LINKS
        {
            recorded.links.push(other);
        }
    }

    /// It failed, for this reason: each one of few words, which nobody has said but this program. `why` may be empty.
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

/// As much of a text as a span takes.
fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_TEXT))
        .unwrap_or_default()
}

/// Runs something as a part of a span, if there is one.
pub fn within<F: Future>(span: Option<&Span>, work: F) -> Scope<F> {
    context::scope(span.map(Span::context), work)
}
