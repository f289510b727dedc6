//! Tracing spans for cloud calls.

use drover_core::Result;
use drover_telemetry::{Span, span};

/// Runs one attempt of a call in a span of the current trace. `service` is the API; `operation` must have low
/// cardinality, so no ids.
pub async fn traced<T>(
    service: &'static str,
    operation: &str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut traced = Span::client(format!("{service}/{operation}"));
    if let Some(traced) = &mut traced {
        traced.set(
            "rpc.system",
            if service == "EC2" { "aws-api" } else { "http" },
        );
        traced.set("rpc.service", service);
        traced.set("rpc.method", operation.to_owned());
    }
    let answer = span::within(traced.as_ref(), Box::pin(call)).await;
    if let (Some(traced), Err(error)) = (&mut traced, &answer) {
        // A cloud may echo the request in its error, including user data.
        traced.fail(drover_convert::error::reason_name(error.reason()), "");
    }
    answer
}
