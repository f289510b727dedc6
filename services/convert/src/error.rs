//! Exhaustive mapping between errors and gRPC statuses.

use std::{collections::HashMap, time::Duration};

use drover_core::{Error, Reason, error::Violation};
use drover_proto::common::v1::ErrorReason;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, ErrorInfo, FieldViolation, StatusExt};

/// Domain of every `ErrorInfo` that Drover creates.
pub const DOMAIN: &str = "drover.dev";

/// Maximum length of a message in bytes, percent-encoded as on the wire. Most HTTP/2 peers limit all response headers
/// together to 16 KiB, and the message is sent twice: on its own and within the details.
const MAX_MESSAGE: usize = 4 * 1024;
/// Maximum length of a name, a value, or a field description, in bytes.
const MAX_TEXT: usize = 512;
/// Maximum size of all field violations together, in bytes; details are sent as base64.
const MAX_FIELDS: usize = 3 * 1024;

/// Truncates a text so that it costs at most `most` bytes.
fn clipped(text: &str, most: usize, cost: impl Fn(char) -> usize) -> String {
    if text.chars().map(&cost).sum::<usize>() <= most {
        return text.to_owned();
    }
    let mut room = most.saturating_sub(cost('…'));
    let whole = text.chars().take_while(|&c| {
        let fits = cost(c) <= room;
        room = room.saturating_sub(cost(c));
        fits
    });
    whole.chain(['…']).collect()
}

fn short(text: &str) -> String {
    clipped(text, MAX_TEXT, char::len_utf8)
}

fn message(text: &str) -> String {
    // Characters that are allowed in a header cost one byte; every byte of any other character costs three.
    clipped(text, MAX_MESSAGE, |c| match c {
        '%' => 3,
        ' '..='~' => 1,
        _ => 3 * c.len_utf8(),
    })
}

/// Returns as many field violations as fit, and the number of omitted ones.
fn violations(fields: &[Violation]) -> Vec<FieldViolation> {
    let mut room = MAX_FIELDS;
    let mut out = Vec::new();
    for (index, violation) in fields.iter().enumerate() {
        let (field, description) = (short(&violation.field), short(&violation.description));
        let cost = field.len() + description.len() + 8;
        if cost > room {
            let more = fields.len() - index;
            out.push(FieldViolation::new("", format!("and {more} more")));
            break;
        }
        room -= cost;
        out.push(FieldViolation::new(field, description));
    }
    out
}

/// Converts an error to a status. Long texts and lists are truncated so that they fit into the response headers.
#[must_use]
pub fn to_status(error: &Error) -> Status {
    let (code, reason) = wire(error.reason());
    let mut details = ErrorDetails::new();
    if let Some(reason) = reason {
        let metadata: HashMap<String, String> = error
            .metadata()
            .iter()
            .map(|(key, value)| (short(key), short(value)))
            .collect();
        details.set_error_info(name(reason), DOMAIN, metadata);
    }
    if !error.fields().is_empty() {
        details.set_bad_request(violations(error.fields()));
    }
    if let Some((kind, name)) = error.resource() {
        details.set_resource_info(short(kind), short(name), "", "");
    }
    if error.reason() == Reason::QuotaExceeded {
        let subject = error.metadata().get("subject").map_or("", String::as_str);
        details.add_quota_failure_violation(short(subject), short(error.message()));
    }
    if let Some(after) = error.retry_after() {
        details.set_retry_info(Some(after));
    }
    Status::with_error_details(code, message(error.message()), details)
}

/// Converts a status to an error: by its reason if it is a known one, otherwise by its code.
#[must_use]
pub fn from_status(status: &Status) -> Error {
    let details = status.get_error_details();
    let info = details.error_info();
    let reason = info
        .and_then(stated)
        .unwrap_or_else(|| by_code(status.code()));
    let mut error = Error::new(reason, status.message());
    if let Some(bad) = details.bad_request() {
        for v in &bad.field_violations {
            let Violation { field, description } = Violation {
                field: v.field.clone(),
                description: v.description.clone(),
            };
            error = error.with_violation(field, description);
        }
    }
    if let Some(resource) = details.resource_info() {
        error = error.with_resource(&resource.resource_type, &resource.resource_name);
    }
    if let Some(info) = info {
        for (key, value) in &info.metadata {
            error = error.with_metadata(key, value);
        }
    }
    if let Some(after) = details.retry_info().and_then(|info| info.retry_delay) {
        error = error.with_retry_after(after.min(MAX_RETRY_AFTER));
    }
    error
}

/// Returns the reason in the details of a status, if it is one of ours. Nothing else of the status is repeated.
#[must_use]
pub fn stated_reason(status: &Status) -> Option<Reason> {
    stated(status.get_error_details().error_info()?)
}

fn stated(info: &ErrorInfo) -> Option<Reason> {
    if info.domain != DOMAIN {
        return None;
    }
    ErrorReason::from_str_name(&format!("ERROR_REASON_{}", info.reason)).and_then(domain)
}

/// Converts a status embedded in a response (`google.rpc.Status`) to an error.
#[must_use]
pub fn from_rpc_status(status: &tonic_types::pb::Status) -> Error {
    let mut bytes = Vec::new();
    // Cannot fail, because a vector grows as needed.
    let _ = prost::Message::encode(status, &mut bytes);
    from_status(&Status::with_details(
        Code::from_i32(status.code),
        status.message.clone(),
        bytes.into(),
    ))
}

/// Converts an error to a status that is embedded in a response (`google.rpc.Status`).
#[must_use]
pub fn to_rpc_status(error: &Error) -> tonic_types::pb::Status {
    let status = to_status(error);
    prost::Message::decode(status.details()).unwrap_or_else(|_| tonic_types::pb::Status {
        code: status.code() as i32,
        message: status.message().to_owned(),
        details: Vec::new(),
    })
}

/// Upper bound for a retry delay requested by a peer.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// The name of a reason in traces and logs: the wire name (`NO_CAPACITY`), or else the name of its code
/// (`UNAVAILABLE`).
#[must_use]
pub fn reason_name(reason: Reason) -> &'static str {
    let (code, reason) = wire(reason);
    reason.map_or_else(|| code_name(code), name)
}

fn code_name(code: Code) -> &'static str {
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

fn name(reason: ErrorReason) -> &'static str {
    let name = reason.as_str_name();
    name.strip_prefix("ERROR_REASON_").unwrap_or(name)
}

fn by_code(code: Code) -> Reason {
    match code {
        Code::InvalidArgument => Reason::Invalid,
        Code::NotFound => Reason::NotFound,
        Code::AlreadyExists => Reason::AlreadyExists,
        Code::FailedPrecondition => Reason::Precondition,
        Code::Aborted => Reason::Conflict,
        Code::OutOfRange => Reason::OutOfRange,
        Code::PermissionDenied => Reason::PermissionDenied,
        Code::Unauthenticated => Reason::Unauthenticated,
        Code::ResourceExhausted => Reason::Exhausted,
        Code::Unavailable => Reason::Unavailable,
        Code::DeadlineExceeded => Reason::DeadlineExceeded,
        Code::Cancelled => Reason::Cancelled,
        Code::Unimplemented => Reason::Unimplemented,
        // OK is not an error; converting it is a bug of the caller.
        Code::Ok | Code::Unknown | Code::Internal | Code::DataLoss => Reason::Internal,
    }
}

macro_rules! reasons {
    ($($reason:ident => $code:ident $(, $wire:ident)?;)*) => {
        fn wire(reason: Reason) -> (Code, Option<ErrorReason>) {
            match reason {
                $(Reason::$reason => (Code::$code, reasons!(@wire $($wire)?)),)*
            }
        }

        /// All reasons, so that tests cannot miss one.
        #[cfg(test)]
        const ALL: &[Reason] = &[$(Reason::$reason),*];
    };
    (@wire $wire:ident) => { Some(ErrorReason::$wire) };
    (@wire) => { None };
}

reasons! {
    Invalid => InvalidArgument;
    NotFound => NotFound;
    AlreadyExists => AlreadyExists;
    Precondition => FailedPrecondition;
    Conflict => Aborted;
    OutOfRange => OutOfRange;
    PermissionDenied => PermissionDenied;
    Unauthenticated => Unauthenticated;
    Exhausted => ResourceExhausted;
    Unavailable => Unavailable;
    NotSent => Unavailable;
    DeadlineExceeded => DeadlineExceeded;
    Cancelled => Cancelled;
    Unimplemented => Unimplemented;
    Internal => Internal;
    NoCapacity => ResourceExhausted, NoCapacity;
    QuotaExceeded => ResourceExhausted, QuotaExceeded;
    RateLimited => ResourceExhausted, RateLimited;
    Overloaded => ResourceExhausted, Overloaded;
    NotLeader => Unavailable, NotLeader;
    CapabilityMissing => FailedPrecondition, CapabilityMissing;
    WatchTooSlow => Aborted, WatchTooSlow;
    PageTokenExpired => Aborted, PageTokenExpired;
    CredentialsRefused => PermissionDenied, CredentialsRefused;
    PlatformMismatch => FailedPrecondition, PlatformMismatch;
    RequestIdReused => AlreadyExists, RequestIdReused;
    NodeNotInCluster => FailedPrecondition, NodeNotInCluster;
    SlotMismatch => FailedPrecondition, SlotMismatch;
    TemplateNotFound => NotFound, TemplateNotFound;
    NodeClassNotFound => NotFound, NodeClassNotFound;
    HostNotFound => NotFound, HostNotFound;
    HostClaimed => FailedPrecondition, HostClaimed;
    Immutable => FailedPrecondition, Immutable;
    NotOwned => FailedPrecondition, NotOwned;
    GenerationMismatch => Aborted, GenerationMismatch;
    ClusterExists => FailedPrecondition, ClusterExists;
    ClusterDeleting => FailedPrecondition, ClusterDeleting;
    ClusterPaused => FailedPrecondition, ClusterPaused;
    GroupHasNodes => FailedPrecondition, GroupHasNodes;
    Protected => FailedPrecondition, Protected;
    PlatformInUse => FailedPrecondition, PlatformInUse;
    PlatformUidTaken => AlreadyExists, PlatformUidTaken;
    PlatformReachable => FailedPrecondition, PlatformReachable;
    LossChanged => FailedPrecondition, LossChanged;
    EventsTrimmed => OutOfRange, EventsTrimmed;
    RevisionMismatch => Aborted, RevisionMismatch;
    NamespaceNotServed => PermissionDenied, NamespaceNotServed;
    NothingMatches => NotFound, NothingMatches;
    WaitImpossible => FailedPrecondition, WaitImpossible;
    ContainerNotFound => NotFound, ContainerNotFound;
    ContainerNotRunning => FailedPrecondition, ContainerNotRunning;
    FileNotFound => NotFound, FileNotFound;
    NotAFile => FailedPrecondition, NotAFile;
    RuleNotFound => NotFound, RuleNotFound;
    IngressHostTaken => FailedPrecondition, IngressHostTaken;
    IngressBackendMissing => FailedPrecondition, IngressBackendMissing;
    Fenced => Aborted, Fenced;
    PlatformRestarted => Aborted, PlatformRestarted;
    StorageFull => ResourceExhausted, StorageFull;
    StoreRestored => OutOfRange, StoreRestored;
    NodeNotRunning => FailedPrecondition, NodeNotRunning;
    DigestNotStored => FailedPrecondition, DigestNotStored;
    SecretNotFound => NotFound, SecretNotFound;
    SecretInUse => FailedPrecondition, SecretInUse;
    IngressUpstreamMissing => FailedPrecondition, IngressUpstreamMissing;
}

fn domain(reason: ErrorReason) -> Option<Reason> {
    Some(match reason {
        ErrorReason::Unspecified => return None,
        ErrorReason::NoCapacity => Reason::NoCapacity,
        ErrorReason::QuotaExceeded => Reason::QuotaExceeded,
        ErrorReason::RateLimited => Reason::RateLimited,
        ErrorReason::Overloaded => Reason::Overloaded,
        ErrorReason::NotLeader => Reason::NotLeader,
        ErrorReason::CapabilityMissing => Reason::CapabilityMissing,
        ErrorReason::WatchTooSlow => Reason::WatchTooSlow,
        ErrorReason::PageTokenExpired => Reason::PageTokenExpired,
        ErrorReason::CredentialsRefused => Reason::CredentialsRefused,
        ErrorReason::PlatformMismatch => Reason::PlatformMismatch,
        ErrorReason::RequestIdReused => Reason::RequestIdReused,
        ErrorReason::NodeNotInCluster => Reason::NodeNotInCluster,
        ErrorReason::SlotMismatch => Reason::SlotMismatch,
        ErrorReason::TemplateNotFound => Reason::TemplateNotFound,
        ErrorReason::NodeClassNotFound => Reason::NodeClassNotFound,
        ErrorReason::HostNotFound => Reason::HostNotFound,
        ErrorReason::HostClaimed => Reason::HostClaimed,
        ErrorReason::Immutable => Reason::Immutable,
        ErrorReason::NotOwned => Reason::NotOwned,
        ErrorReason::GenerationMismatch => Reason::GenerationMismatch,
        ErrorReason::ClusterExists => Reason::ClusterExists,
        ErrorReason::ClusterDeleting => Reason::ClusterDeleting,
        ErrorReason::ClusterPaused => Reason::ClusterPaused,
        ErrorReason::GroupHasNodes => Reason::GroupHasNodes,
        ErrorReason::Protected => Reason::Protected,
        ErrorReason::PlatformInUse => Reason::PlatformInUse,
        ErrorReason::PlatformUidTaken => Reason::PlatformUidTaken,
        ErrorReason::PlatformReachable => Reason::PlatformReachable,
        ErrorReason::LossChanged => Reason::LossChanged,
        ErrorReason::EventsTrimmed => Reason::EventsTrimmed,
        ErrorReason::RevisionMismatch => Reason::RevisionMismatch,
        ErrorReason::NamespaceNotServed => Reason::NamespaceNotServed,
        ErrorReason::NothingMatches => Reason::NothingMatches,
        ErrorReason::WaitImpossible => Reason::WaitImpossible,
        ErrorReason::ContainerNotFound => Reason::ContainerNotFound,
        ErrorReason::ContainerNotRunning => Reason::ContainerNotRunning,
        ErrorReason::FileNotFound => Reason::FileNotFound,
        ErrorReason::NotAFile => Reason::NotAFile,
        ErrorReason::RuleNotFound => Reason::RuleNotFound,
        ErrorReason::IngressHostTaken => Reason::IngressHostTaken,
        ErrorReason::IngressBackendMissing => Reason::IngressBackendMissing,
        ErrorReason::Fenced => Reason::Fenced,
        ErrorReason::PlatformRestarted => Reason::PlatformRestarted,
        ErrorReason::StorageFull => Reason::StorageFull,
        ErrorReason::StoreRestored => Reason::StoreRestored,
        ErrorReason::NodeNotRunning => Reason::NodeNotRunning,
        ErrorReason::DigestNotStored => Reason::DigestNotStored,
        ErrorReason::SecretNotFound => Reason::SecretNotFound,
        ErrorReason::SecretInUse => Reason::SecretInUse,
        ErrorReason::IngressUpstreamMissing => Reason::IngressUpstreamMissing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_survives_the_wire_with_all_its_details() {
        // `NotSent` is never received, because the call did not reach a server.
        for &reason in ALL.iter().filter(|reason| **reason != Reason::NotSent) {
            let error = Error::new(reason, "why")
                .with_violation("spec.groups[0].size", "is negative")
                .with_resource("cluster", "orders")
                .with_retry_after(Duration::from_secs(7));
            let back = from_status(&to_status(&error));
            assert_eq!(back, error, "{reason:?}");
            assert_eq!(from_rpc_status(&to_rpc_status(&error)), error, "{reason:?}");
        }
    }

    #[test]
    fn long_errors_fit_into_headers_and_keep_their_reason() {
        let long = "\u{1f980}".repeat(10_000);
        let mut error = Error::new(Reason::Invalid, &long)
            .with_resource("cluster", &long)
            .with_metadata("subject", &long);
        for index in 0..1_000 {
            error = error.with_violation(format!("labels[{index}]"), &long);
        }
        let status = to_status(&error);
        let answer = status.clone().into_http::<()>();
        let size: usize = answer
            .headers()
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + 32)
            .sum();
        assert!(size < 16 * 1024, "{size} bytes");
        let back = from_status(&status);
        assert_eq!(back.reason(), Reason::Invalid);
        let last = back.fields().last().unwrap();
        assert!(last.description.ends_with(" more"), "{last:?}");
    }

    #[test]
    fn an_unknown_reason_is_judged_by_its_code() {
        let mut details = ErrorDetails::new();
        details.set_error_info("INVENTED_LATER", DOMAIN, HashMap::new());
        let status = Status::with_error_details(Code::Unavailable, "later", details);
        assert_eq!(from_status(&status).reason(), Reason::Unavailable);
        assert_eq!(stated_reason(&status), None);
    }

    #[test]
    fn a_reason_of_another_domain_is_not_ours() {
        let mut details = ErrorDetails::new();
        details.set_error_info("NO_CAPACITY", "example.com", HashMap::new());
        let status = Status::with_error_details(Code::Internal, "x", details);
        assert_eq!(from_status(&status).reason(), Reason::Internal);
        assert_eq!(stated_reason(&status), None);
    }

    #[test]
    fn a_status_states_the_reason_that_its_code_leaves_open_and_every_reason_has_a_name() {
        let stated = |reason| stated_reason(&to_status(&Error::new(reason, "why")));
        assert_eq!(stated(Reason::NoCapacity), Some(Reason::NoCapacity));
        assert_eq!(stated(Reason::Unavailable), None);
        assert_eq!(stated_reason(&Status::unavailable("why")), None);
        assert_eq!(reason_name(Reason::NoCapacity), "NO_CAPACITY");
        assert_eq!(reason_name(Reason::Unavailable), "UNAVAILABLE");
        for &reason in ALL {
            assert_ne!(reason_name(reason), "UNKNOWN", "{reason:?}");
        }
    }
}
