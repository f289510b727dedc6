//! Spans of calls to platforms.

use drover_convert::error::reason_name;
use drover_core::{Error, Sym};
use drover_telemetry::Span;

/// Starts the span of a call to a platform, with the wait for its turn unless that is over.
pub(crate) fn call(name: &'static str, platform: &Sym) -> Option<Span> {
    let mut span = Span::internal(name)?;
    span.set("drover.platform.name", platform.to_string());
    Some(span)
}

/// Ends the span of a [`call`].
pub(crate) fn called(span: Option<Span>, error: Option<&Error>) {
    if let (Some(mut span), Some(error)) = (span, error) {
        span.fail(reason_name(error.reason()), "");
    }
}
