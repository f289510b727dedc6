//! Maps failures of the API server to domain errors. The class tells the effect of a call: `Cannot`, `NoCapacity` and
//! `Credentials` guarantee that it created nothing, everything else leaves that open. No error contains the request
//! body.

pub(crate) mod redact;
mod request;

pub use crate::client::Call;
pub(crate) use request::Fields;
pub use request::of;

use std::time::Duration;

use drover_core::{Error, Reason};
use http::{HeaderMap, StatusCode, header};
use kube::core::{
    Status,
    response::{StatusDetails, reason},
};

use serde_json::Value;

/// Maximum size of an error response.
pub(crate) const MAX_STATUS: usize = 64 * 1024;
/// Characters of a plain text answer that are repeated.
const MAX_LINE: usize = 256;
/// Metadata of an error about a right that is missing.
const VERB: &str = "verb";

/// What a response without success says, whoever has answered it: with its code, a message, and when to try again.
pub(crate) fn told(
    code: StatusCode,
    headers: &HeaderMap,
    mut status: Status,
    line: &str,
) -> Status {
    if status.message.is_empty() {
        let reason = code.canonical_reason().unwrap_or("an error");
        let said: String = line.chars().take(MAX_LINE).collect();
        status.message = if said.is_empty() {
            reason.to_owned()
        } else {
            said
        };
    }
    status.code = code.as_u16();
    let retry_after = headers
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok());
    if let Some(seconds) = retry_after {
        status
            .details
            .get_or_insert_with(no_details)
            .retry_after_seconds = seconds;
    }
    status
}

fn no_details() -> StatusDetails {
    StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: Vec::new(),
        retry_after_seconds: 0,
    }
}

/// A proxy may have answered in plain text, of which at most one line is useful.
pub(crate) fn line(body: &[u8]) -> &str {
    let text = std::str::from_utf8(body).unwrap_or_default();
    let line = text.lines().next().unwrap_or_default().trim();
    if line.starts_with(['<', '{']) {
        ""
    } else {
        line
    }
}

/// A failure in JSON. Admission webhooks and gateways write what they like beside what is read here, so that no field may
/// hide the others.
#[must_use]
pub fn read(status: &Value) -> Status {
    let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
    let mut details = status["details"].clone();
    if let Some(fields) = details.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    Status {
        code: status["code"]
            .as_u64()
            .map_or(0, |code| u16::try_from(code).unwrap_or(0)),
        message: text("message"),
        reason: text("reason"),
        details: serde_json::from_value(details).ok(),
        ..Status::default()
    }
}

/// The error for a status that has not passed the layer of limits: one of a watch.
#[must_use]
pub fn of_status(call: &Call, status: &Status, retry_after: Option<Duration>) -> Error {
    of_redacted(call, &redact::status(status.clone()), retry_after)
}

/// The error for a status without values of the request.
fn of_redacted(call: &Call, status: &Status, retry_after: Option<Duration>) -> Error {
    let details = status.details.as_ref();
    let retry_after = retry_after.or_else(|| {
        let seconds = details.map_or(0, |details| details.retry_after_seconds);
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    });
    let words = &*status.message;
    let error = match status.code {
        401 => Error::new(
            Reason::CredentialsRefused,
            format!("{call}: the API server refuses the credentials: {words}"),
        ),
        403 => forbidden(call, words, details),
        404 => not_found(call, words, details),
        409 if status.reason == reason::ALREADY_EXISTS => {
            Error::new(Reason::AlreadyExists, format!("{call}: {words}"))
                .with_resource(&call.kind, &call.name)
        }
        409 if is_terminating(words, details) => terminating(call, words),
        409 => Error::new(Reason::Conflict, format!("{call}: {words}")),
        410 => Error::new(Reason::PageTokenExpired, format!("{call}: {words}")),
        405 | 406 => Error::new(Reason::Unimplemented, format!("{call}: {words}")),
        413 => invalid(call, "the object is too large for the API server", details),
        429 => Error::new(Reason::RateLimited, format!("{call}: {words}")),
        // A webhook may return any code.
        400..=499 if is_admission(words) => {
            Error::new(Reason::Precondition, format!("{call}: {words}"))
        }
        408 => Error::new(Reason::DeadlineExceeded, format!("{call}: {words}")),
        400..=499 => invalid(call, words, details),
        504 => Error::new(Reason::DeadlineExceeded, format!("{call}: {words}")),
        // The store behind the API server rejected it for its size alone.
        500 if words.contains("request is too large") => invalid(
            call,
            "the object is too large for the API server's store",
            details,
        ),
        _ => Error::unavailable(format!("{call}: {words}")),
    };
    match retry_after {
        Some(after) => error.with_retry_after(after),
        None => error,
    }
}

/// Whether the API server knows this server and does not grant it the right: 403, and not 401.
#[must_use]
pub fn is_forbidden(error: &Error) -> bool {
    error.reason() == Reason::CredentialsRefused && error.metadata().contains_key(VERB)
}

/// The error for a right that this server lacks.
#[must_use]
pub fn lacks_right(call: &Call, message: impl Into<String>) -> Error {
    Error::new(Reason::CredentialsRefused, message)
        .with_metadata(VERB, call.verb)
        .with_metadata("kind", &call.kind)
        .with_metadata("namespace", &call.namespace)
}

/// Authorization, quotas and all admission plugins return Forbidden.
fn forbidden(call: &Call, words: &str, details: Option<&StatusDetails>) -> Error {
    if words.contains("exceeded quota") || words.contains("insufficient quota") {
        return Error::new(Reason::QuotaExceeded, format!("{call}: {words}"));
    }
    if is_terminating(words, details) {
        return terminating(call, words);
    }
    let by_rules = words.contains(&format!(" cannot {} ", call.verb))
        || (words.contains(" cannot ") && words.contains(" resource \""));
    if by_rules || words == "Forbidden" {
        return lacks_right(call, format!("may not {call}: {words}"));
    }
    Error::new(Reason::Precondition, format!("{call}: {words}"))
}

fn not_found(call: &Call, words: &str, details: Option<&StatusDetails>) -> Error {
    if let Some(details) = details.filter(|it| it.kind == "namespaces")
        && call.kind != "namespaces"
    {
        return Error::new(
            Reason::Precondition,
            format!("{call}: there is no namespace {:?}", details.name),
        )
        .with_resource("namespace", &details.name);
    }
    if call.changes() && call.verb == "create" {
        // A create call looks up no object: the kind itself is not served (any more).
        return Error::new(Reason::Precondition, format!("{call}: {words}"));
    }
    Error::new(Reason::NotFound, format!("{call}: {words}")).with_resource(&call.kind, &call.name)
}

fn is_terminating(words: &str, details: Option<&StatusDetails>) -> bool {
    details
        .into_iter()
        .flat_map(|details| &details.causes)
        .any(|cause| cause.reason == "NamespaceTerminating")
        || words.contains("because it is being terminated")
}

fn terminating(call: &Call, words: &str) -> Error {
    Error::new(
        Reason::Precondition,
        format!("{call}: the namespace is being deleted: {words}"),
    )
    .with_resource("namespace", &call.namespace)
}

fn is_admission(words: &str) -> bool {
    words.contains("admission webhook ") || words.contains("ValidatingAdmissionPolicy ")
}

fn invalid(call: &Call, words: &str, details: Option<&StatusDetails>) -> Error {
    let error = Error::new(Reason::Invalid, format!("{call}: {words}"));
    details
        .into_iter()
        .flat_map(|details| &details.causes)
        .filter(|cause| !cause.field.is_empty())
        .fold(error, |error, cause| {
            let field = format!("{}.{}", call.object(), cause.field);
            error.with_violation(field, &cause.message)
        })
}

/// The error for a call without a response. Its outcome is unknown.
fn transport(call: &Call, error: &kube::Error) -> Error {
    match error {
        kube::Error::Auth(error) => Error::new(
            Reason::CredentialsRefused,
            format!("{call}: the credentials cannot be read: {}", chain(error)),
        ),
        error => Error::unavailable(format!(
            "{call}: the API server cannot be reached: {}",
            chain(error)
        )),
    }
}

/// The error for a truncated response.
#[must_use]
pub fn cut_off(call: &Call, error: &kube::Error) -> Error {
    Error::unavailable(format!("{call}: the answer was cut off: {}", chain(error)))
}

/// The error for a call that timed out.
#[must_use]
pub fn timeout(call: &Call, limit: Duration) -> Error {
    Error::new(
        Reason::DeadlineExceeded,
        format!("{call}: no answer within {} s", limit.as_secs_f64()),
    )
}

/// The error for a malformed response. Contains the position, never the content.
#[must_use]
pub fn unreadable(call: &Call, error: &serde_json::Error) -> Error {
    unreadable_at(call, error.line(), error.column())
}

fn unreadable_at(call: &Call, line: usize, column: usize) -> Error {
    Error::unavailable(format!(
        "{call}: the answer cannot be read (line {line}, column {column})"
    ))
}

/// An error with its sources, without repetitions.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let words = error.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(code: u16, body: &Value) -> Error {
        let call = Call::path("create", "/api/v1/namespaces/n/pods");
        let code = StatusCode::from_u16(code).unwrap();
        of_status(&call, &told(code, &HeaderMap::new(), read(body), ""), None)
    }

    #[test]
    fn what_a_webhook_writes_beside_its_message_hides_nothing() {
        let message = "admission webhook \"images.example\" denied the request: no :latest images";
        for beside in [
            json!({"status": "Denied"}),
            json!({"metadata": "none"}),
            json!({"details": {"causes": null, "kind": "pods"}}),
            json!({"details": "see the handbook"}),
        ] {
            let mut body = json!({"kind": "Status", "code": 403, "message": message});
            body.as_object_mut()
                .unwrap()
                .extend(beside.as_object().unwrap().clone());
            let error = refused(403, &body);
            assert_eq!(error.reason(), Reason::Precondition, "{beside}: {error}");
            assert!(error.message().contains("no :latest images"), "{error}");
        }
    }

    #[test]
    fn a_gateway_is_quoted() {
        let error = refused(503, &json!({"status": 503, "message": "no upstream"}));
        assert!(error.message().contains("no upstream"), "{error}");
    }
}
