//! Trace contexts according to W3C Trace Context.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    str::FromStr,
    task::{Context as TaskContext, Poll},
};

use http::{HeaderMap, HeaderValue};

/// Header and gRPC metadata key of the trace context.
pub const TRACEPARENT: &str = "traceparent";
/// Header of vendor-specific trace data.
const TRACESTATE: &str = "tracestate";
/// Value of `tracestate` if the sampling decision is still open, because the caller has no exporter.
const OPEN: &str = "drover=open";
/// Flag of sampled traces.
const SAMPLED: u8 = 1;

/// A trace, and a span in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Context {
    trace: u128,
    span: u64,
    flags: u8,
    /// Whether the sampling decision is left to the next process with an exporter.
    open: bool,
}

tokio::task_local! {
    static CURRENT: Context;
}

/// The context of the running code. `None` if it does not belong to a trace.
#[must_use]
pub fn current() -> Option<Context> {
    CURRENT.try_with(|context| *context).ok()
}

/// Runs a future within a trace context, or outside of any. Spawned tasks do not inherit the context.
pub fn scope<F: Future>(context: Option<Context>, work: F) -> Scope<F> {
    Scope { context, work }
}

pin_project_lite::pin_project! {
    /// A future that runs within a trace context. Adds as little size as possible, because futures here are large and
    /// stacks are not.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Scope<F> {
        context: Option<Context>,
        #[pin]
        work: F,
    }
}

impl<F: Future> Future for Scope<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<F::Output> {
        let this = self.project();
        match *this.context {
            Some(context) => CURRENT.sync_scope(context, || this.work.poll(cx)),
            None => this.work.poll(cx),
        }
    }
}

impl Context {
    /// Creates the context of a new trace. `sampled` is the sampling decision; `None` leaves it to others.
    #[must_use]
    pub fn root(sampled: Option<bool>) -> Self {
        Self {
            // Zero is the invalid id.
            trace: fastrand::u128(1..),
            span: fastrand::u64(1..),
            flags: if sampled == Some(true) { SAMPLED } else { 0 },
            open: sampled.is_none(),
        }
    }

    /// The same trace with a sampling decision.
    #[must_use]
    pub(crate) fn decided(self, sampled: bool) -> Self {
        Self {
            trace: self.trace,
            ..Self::root(Some(sampled))
        }
    }

    /// Whether the sampling decision is still open.
    #[must_use]
    pub(crate) fn is_open(self) -> bool {
        self.open
    }

    /// Creates the context of another span of the same trace.
    #[must_use]
    pub(crate) fn child(self) -> Self {
        Self {
            span: fastrand::u64(1..),
            ..self
        }
    }

    /// The trace id, 16 bytes.
    #[must_use]
    pub fn trace_id(self) -> u128 {
        self.trace
    }

    /// The span id, 8 bytes.
    #[must_use]
    pub fn span_id(self) -> u64 {
        self.span
    }

    /// Whether the trace is sampled.
    #[must_use]
    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    pub(crate) fn flags(self) -> u8 {
        self.flags
    }

    /// Reads the context from the headers of a request. `None` if it is missing or invalid.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut context: Self = headers.get(TRACEPARENT)?.to_str().ok()?.parse().ok()?;
        let open = headers.get(TRACESTATE).is_some_and(|state| state == OPEN);
        context.open = open && !context.is_sampled();
        Some(context)
    }

    /// Writes the context to the headers of a request.
    pub fn put(self, headers: &mut HeaderMap) {
        // Cannot fail: digits and hyphens are valid in headers.
        if let Ok(value) = HeaderValue::from_str(&self.to_string()) {
            headers.insert(TRACEPARENT, value);
        }
        if self.open {
            headers.insert(TRACESTATE, HeaderValue::from_static(OPEN));
        }
    }
}

/// `00-<trace id>-<span id>-<flags>`, hexadecimal.
impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trace, span, flags, ..
        } = self;
        write!(f, "00-{trace:032x}-{span:016x}-{flags:02x}")
    }
}

/// An invalid `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no traceparent")]
pub struct NoContext;

impl FromStr for Context {
    type Err = NoContext;

    fn from_str(text: &str) -> Result<Self, NoContext> {
        let hex = |part: Option<&str>, length: usize| {
            let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            part.filter(|part| part.len() == length && part.bytes().all(lower))
                .and_then(|part| u128::from_str_radix(part, 16).ok())
                .ok_or(NoContext)
        };
        let mut parts = text.split('-');
        let version = hex(parts.next(), 2)?;
        let trace = hex(parts.next(), 32)?;
        let span = hex(parts.next(), 16)?;
        let flags = hex(parts.next(), 2)?;
        // Later versions may append further fields; version 0 has none.
        let more = parts.next().is_some();
        if version == 0xff || (version == 0 && more) || trace == 0 || span == 0 {
            return Err(NoContext);
        }
        Ok(Self {
            trace,
            span: u64::try_from(span).map_err(|_| NoContext)?,
            // Unknown flags are not propagated.
            flags: u8::try_from(flags).map_err(|_| NoContext)? & SAMPLED,
            open: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_written_as_it_is_read() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context: Context = text.parse().unwrap();
        assert_eq!(context.to_string(), text);
        assert!(context.is_sampled());
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more";
        assert!(!later.parse::<Context>().unwrap().is_sampled());
    }

    #[test]
    fn what_is_no_traceparent_is_no_context() {
        for wrong in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(wrong.parse::<Context>(), Err(NoContext), "{wrong}");
        }
    }

    #[test]
    fn what_nobody_decided_stays_open_on_its_way() {
        for sampled in [None, Some(false), Some(true)] {
            let context = Context::root(sampled);
            let mut headers = HeaderMap::new();
            context.put(&mut headers);
            assert_eq!(Context::of(&headers), Some(context));
            assert_eq!(context.is_open(), sampled.is_none());
        }
        let decided = Context::root(None).decided(true);
        assert!(decided.is_sampled() && !decided.is_open());
    }

    #[tokio::test]
    async fn only_what_runs_in_a_scope_belongs_to_it() {
        let context = Context::root(Some(true));
        assert_eq!(current(), None);
        assert_eq!(
            scope(Some(context), async { current() }).await,
            Some(context)
        );
        let spawned = scope(Some(context), async {
            tokio::spawn(async { current() }).await
        });
        assert_eq!(spawned.await.unwrap(), None);
    }
}
