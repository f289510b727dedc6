//! Maps the errors of Compute Engine to Drover errors.

use std::{error::Error as _, time::Duration};

use drover_core::{Error, Reason};
use google_cloud_auth::errors::CredentialsError;
use google_cloud_compute_v1::model::Operation;
use google_cloud_gax::error::rpc::StatusDetails;

/// Metadata key of the failure domain.
const FAILURE_DOMAIN: &str = "failure_domain";

/// Maps the error of a call; `what` is the method (`instances.insert`).
pub(super) fn of_call(what: &str, error: &google_cloud_gax::error::Error) -> Error {
    if let Some(credentials) = error
        .source()
        .and_then(|source| source.downcast_ref::<CredentialsError>())
    {
        return of_credentials(credentials).context(what);
    }
    if error.is_timeout() {
        return Error::new(
            Reason::DeadlineExceeded,
            "Compute Engine did not answer in time",
        )
        .context(what);
    }
    let Some(status) = error.http_status_code() else {
        // Refused connections, lost or truncated responses, and unparsable ones: the call may have taken effect.
        return Error::unavailable(format!(
            "no usable answer of Compute Engine: {}",
            chain(error)
        ))
        .context(what);
    };
    let (reason, message) = said(error);
    of_answer(status, &reason, &message, retry_after(error)).context(what)
}

/// Maps a failed operation. One that was to create something has created nothing.
pub(super) fn of_operation(operation: &Operation, zone: &str) -> Option<Error> {
    let first = operation
        .error
        .as_ref()
        .and_then(|error| error.errors.first());
    let status = operation.http_error_status_code;
    if first.is_none() && status.is_none_or(|status| status < 400) {
        return None;
    }
    let code = first
        .and_then(|error| error.code.as_deref())
        .unwrap_or_default();
    let message = first
        .and_then(|error| error.message.as_deref())
        .or(operation.http_error_message.as_deref())
        .unwrap_or("the operation failed");
    let status = status
        .and_then(|status| u16::try_from(status).ok())
        .unwrap_or(400);
    let error = if is_no_capacity(code, message) {
        Error::new(Reason::NoCapacity, message)
    } else if code.contains("QUOTA") {
        quota(message)
    } else if status >= 500 || code == "INTERNAL_ERROR" {
        let message = format!("{code}: {message}");
        if operation.operation_type.as_deref() == Some("insert") {
            // The operation reports its failure, so it is final, and another time or zone may work.
            Error::new(Reason::NoCapacity, message)
        } else {
            Error::unavailable(message)
        }
    } else {
        of_answer(status, code, message, None)
    };
    Some(error.with_metadata(FAILURE_DOMAIN, zone))
}

/// Adds the zone to a capacity error.
pub(super) fn in_zone(error: Error, zone: &str) -> Error {
    if error.reason() == Reason::NoCapacity {
        error.with_metadata(FAILURE_DOMAIN, zone)
    } else {
        error
    }
}

fn of_credentials(error: &CredentialsError) -> Error {
    if error.is_transient() {
        return Error::unavailable(format!("no access token could be had: {}", chain(error)));
    }
    Error::new(
        Reason::CredentialsRefused,
        format!(
            "no access token could be had: {}. Look at GOOGLE_APPLICATION_CREDENTIALS, credentials_file or \
             access_token_file of the platform",
            chain(error)
        ),
    )
}

fn of_answer(status: u16, reason: &str, message: &str, retry_after: Option<Duration>) -> Error {
    if is_no_capacity(reason, message) {
        return Error::new(Reason::NoCapacity, message);
    }
    let limited = [
        "rateLimitExceeded",
        "userRateLimitExceeded",
        "RATE_LIMIT_EXCEEDED",
    ];
    if status == 429 || limited.contains(&reason) {
        let error = Error::new(Reason::RateLimited, message);
        return match retry_after {
            Some(after) => error.with_retry_after(after),
            None => error,
        };
    }
    match status {
        401 => Error::new(
            Reason::CredentialsRefused,
            format!(
                "Compute Engine refuses the credentials: {message} They are wrong or expired: renew what \
                 GOOGLE_APPLICATION_CREDENTIALS, credentials_file or access_token_file of the platform names, or run \
                 `gcloud auth application-default login`"
            ),
        ),
        403 if reason.to_ascii_lowercase().contains("quota") => quota(message),
        403 if reason == "accessNotConfigured" || reason == "SERVICE_DISABLED" => Error::new(
            Reason::PermissionDenied,
            format!("{message} Enable it: `gcloud services enable compute.googleapis.com`"),
        ),
        403 => Error::new(
            Reason::PermissionDenied,
            format!(
                "{message} Give the account of the platform the role roles/compute.instanceAdmin.v1 in the project, and \
                     roles/iam.serviceAccountUser on the service account that machines run as"
            ),
        ),
        404 => not_found(message),
        409 => Error::new(Reason::AlreadyExists, message),
        412 if message.contains("deletionProtection") => Error::new(
            Reason::Protected,
            format!(
                "{message} Somebody has protected the machine: `gcloud compute instances update NAME \
                     --no-deletion-protection` takes that away"
            ),
        ),
        412 => Error::new(Reason::Conflict, message),
        408 | 500.. => Error::unavailable(format!("Compute Engine answers {status}: {message}")),
        _ if message.contains("deletionProtection") => Error::new(Reason::Protected, message),
        _ => invalid(message),
    }
}

fn is_no_capacity(code: &str, message: &str) -> bool {
    code.starts_with("ZONE_RESOURCE_POOL_EXHAUSTED")
        || code == "RESOURCE_POOL_EXHAUSTED"
        || message.contains("does not have enough resources available")
}

fn quota(message: &str) -> Error {
    Error::new(
        Reason::QuotaExceeded,
        format!(
            "{message} Remove machines that are not needed, or ask for more under IAM & Admin, Quotas"
        ),
    )
}

/// The message contains the path of the missing resource.
fn not_found(message: &str) -> Error {
    let has = |part: &str| message.contains(part);
    if has("/machineTypes/") {
        node_class(message)
    } else if has("/images/") {
        Error::invalid(
            "group.properties.image",
            format!(
                "{message}. `gcloud compute images list` shows what there is; names of your own go into common.images"
            ),
        )
    } else if has("/subnetworks/") {
        Error::invalid("group.properties.subnetwork", message)
    } else if has("/networks/") {
        Error::invalid("group.properties.network", message)
    } else if has("/diskTypes/") {
        Error::invalid("group.properties.diskType", message)
    } else {
        Error::new(
            Reason::NotFound,
            format!("{message} (project and region of the platform's settings?)"),
        )
    }
}

fn invalid(message: &str) -> Error {
    let has = |part: &str| message.contains(part);
    let property = if has("resource.machineType") {
        return node_class(message);
    } else if has("sourceImage") {
        "image"
    } else if has("diskSizeGb") {
        "diskSize"
    } else if has("diskType") {
        "diskType"
    } else if has("resource.networkInterfaces") && has("subnetwork") {
        "subnetwork"
    } else if has("resource.networkInterfaces") {
        "network"
    } else if has("resource.serviceAccounts") {
        "serviceAccount"
    } else if has("resource.tags") {
        "tags"
    } else {
        return Error::new(Reason::Precondition, message);
    };
    Error::invalid(format!("group.properties.{property}"), message)
}

fn node_class(message: &str) -> Error {
    Error::new(
        Reason::NodeClassNotFound,
        format!(
            "{message}. `gcloud compute machine-types list` shows what there is; names of your own go into \
             common.node_classes"
        ),
    )
    .with_violation("group.node_class", message)
}

/// The API's own reason and message.
fn said(error: &google_cloud_gax::error::Error) -> (String, String) {
    if let Some(status) = error.status() {
        let reason = status.details.iter().find_map(|detail| match detail {
            StatusDetails::ErrorInfo(info) => Some(info.reason.clone()),
            _ => None,
        });
        return (reason.unwrap_or_default(), status.message.clone());
    }
    let text = error
        .http_payload()
        .map(|payload| String::from_utf8_lossy(payload).into_owned())
        .unwrap_or_default();
    (String::new(), text)
}

fn retry_after(error: &google_cloud_gax::error::Error) -> Option<Duration> {
    let value = error.http_headers()?.get(http::header::RETRY_AFTER)?;
    value.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

/// The error with its causes, since the outermost message is often generic.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use google_cloud_compute_v1::model::{Operation, operation};

    use super::*;

    #[test]
    fn an_operation_that_fails_inside_says_nothing_of_capacity_unless_it_was_to_create_something() {
        let inner = operation::error::Errors::new().set_code("INTERNAL_ERROR");
        let error = operation::Error::new().set_errors([inner]);
        for (kind, reason) in [
            ("insert", Reason::NoCapacity),
            ("setLabels", Reason::Unavailable),
            ("delete", Reason::Unavailable),
        ] {
            let operation = Operation::new()
                .set_operation_type(kind)
                .set_error(error.clone());
            let found = of_operation(&operation, "zone-a").map(|error| error.reason());
            assert_eq!(found, Some(reason), "{kind}");
        }
    }
}
