//! A call to a cloud as a span.

use drover_core::Result;
use drover_telemetry::{Span, span};

/// Makes one attempt of a call, as a part of whatever trace it belongs to. `service` is the API, `operation` one of few
/// names of it: no ids in there.
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
        // A cloud may repeat what it was sent, user data for one.
        traced.fail(drover_convert::error::reason_name(error.reason()), "");
    }
    answer
}
