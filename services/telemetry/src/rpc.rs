//! Span attributes of gRPC calls according to OpenTelemetry's semantic conventions.

use tonic::Code;

use crate::Span;

/// Sets the attributes that identify a call. `path` is `/package.Service/Method`.
pub fn describe(span: &mut Span, path: &str) {
    let (service, method) = split(path);
    span.set("rpc.system", "grpc");
    span.set("rpc.service", service.to_owned());
    span.set("rpc.method", method.to_owned());
}

/// Splits a path into service and method.
#[must_use]
pub fn split(path: &str) -> (&str, &str) {
    let path = path.trim_start_matches('/');
    path.rsplit_once('/').unwrap_or((path, ""))
}

/// Records the result of an outgoing call. `why` is from a fixed set of words (`NO_CAPACITY`), never a message of the
/// server, which may repeat a secret.
pub fn end_client(span: &mut Span, code: Code, why: &'static str) {
    span.set("rpc.grpc.status_code", i64::from(i32::from(code)));
    if code != Code::Ok {
        span.fail(code_name(code), why);
    }
}

/// Records the result of an incoming call; `why` as in [`end_client`]. Errors of the caller do not count as failures of
/// the server.
pub fn end_server(span: &mut Span, code: Code, why: &'static str) {
    span.set("rpc.grpc.status_code", i64::from(i32::from(code)));
    if matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    ) {
        span.fail(code_name(code), why);
    }
}

/// The name of a code in metrics, audit logs and spans.
#[must_use]
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
