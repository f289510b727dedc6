//! Maps the errors of the EC2 API to Drover errors.

use std::{error::Error as StdError, fmt::Write as _};

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_ec2::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
};
use drover_core::{Error, Reason};

/// Metadata key of the API's own error code.
pub(super) const CODE: &str = "code";

/// Maps a failed call.
pub(super) fn map<E>(operation: &str, error: &SdkError<E, HttpResponse>) -> Error
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    match error {
        SdkError::ServiceError(service) => match service.err().code() {
            Some(code) => {
                let message = service.err().message().unwrap_or_default();
                let error = from_code(operation, code, message);
                made_nothing(error, service.raw().status().as_u16())
            }
            // A response that cannot be decoded, or an error without a code (a proxy, a server crash).
            None => {
                let status = service.raw().status().as_u16();
                Error::unavailable(format!(
                    "{operation}: the answer (HTTP {status}) cannot be understood: {}",
                    chain(service.err())
                ))
            }
        },
        SdkError::TimeoutError(timeout) => Error::new(
            Reason::DeadlineExceeded,
            format!(
                "{operation}: no answer in time ({})",
                chain(error_of(timeout, error))
            ),
        ),
        other => not_answered(operation, other),
    }
}

/// Returns the outer error: a timeout itself has no useful message, the error around it has.
fn error_of<'a, T, E>(_: &T, error: &'a SdkError<E, HttpResponse>) -> &'a (dyn StdError + 'static)
where
    E: StdError + 'static,
{
    error
}

fn not_answered<E>(operation: &str, error: &SdkError<E, HttpResponse>) -> Error
where
    E: StdError + 'static,
{
    if let Some(why) = not_admitted(error) {
        // That they cannot be checked now says nothing about them.
        let text = format!("{operation}: {}", why.message());
        return Error::new(why.reason(), text);
    }
    if has_credentials_error(error) {
        return Error::new(
            Reason::CredentialsRefused,
            format!(
                "no usable AWS credentials ({}). Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a `profile` \
                 or `credentials_file` in the settings of the platform",
                chain(error)
            ),
        );
    }
    if let SdkError::ConstructionFailure(_) = error {
        // Never sent: the SDK itself rejects a setting or parameter.
        return Error::new(
            Reason::Precondition,
            format!("{operation}: the request cannot be made: {}", chain(error)),
        );
    }
    Error::unavailable(format!("{operation}: {}", chain(error)))
}

/// An error that this module does not know, of a request that the API refuses: it made nothing, and the same request
/// would be refused again. Throttling and conflicts between requests have codes of their own.
fn made_nothing(error: Error, status: u16) -> Error {
    let is_refusal = (400..500).contains(&status) && ![408, 409, 429].contains(&status);
    if is_refusal && error.reason() == Reason::Unavailable {
        let refused = Error::new(Reason::Precondition, error.message());
        return refused.with_metadata(CODE, code(&error));
    }
    error
}

fn has_credentials_error(error: &(dyn StdError + 'static)) -> bool {
    causes(error).any(<dyn StdError>::is::<CredentialsError>)
}

/// The error for which credentials were not admitted.
fn not_admitted<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Error> {
    causes(error).find_map(|error| error.downcast_ref::<Error>())
}

fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// The error and its causes, without repetitions.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.ends_with(&part) {
            // Writing to a `String` cannot fail.
            let _ = write!(text, ": {part}");
        }
        cause = error.source();
    }
    text
}

/// Maps an error code of the EC2 API
/// (<https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html>).
pub(super) fn from_code(operation: &str, code: &str, message: &str) -> Error {
    let text = format!("{operation}: {code}: {message}");
    judge(operation, code, message, text).with_metadata(CODE, code)
}

fn judge(operation: &str, code: &str, message: &str, text: String) -> Error {
    match code {
        "RequestLimitExceeded"
        | "Throttling"
        | "ThrottlingException"
        | "ThrottledException"
        | "RequestThrottled"
        | "RequestThrottledException"
        | "EC2ThrottledException"
        | "TooManyRequestsException"
        | "SlowDown" => Error::new(Reason::RateLimited, text),
        "InsufficientInstanceCapacity"
        | "InsufficientHostCapacity"
        | "InsufficientReservedInstanceCapacity"
        | "InsufficientCapacity"
        | "InsufficientCapacityOnHost"
        | "InsufficientFreeAddressesInSubnet"
        | "InsufficientAddressCapacity"
        | "SpotMaxPriceTooLow"
        | "UnfulfillableCapacity" => no_capacity(message, text),
        "Unsupported" if message.contains("Availability Zone") => no_capacity(message, text),
        "IdempotentParameterMismatch" => Error::new(Reason::Conflict, text),
        "AuthFailure"
        | "InvalidClientTokenId"
        | "SignatureDoesNotMatch"
        | "IncompleteSignature"
        | "MissingAuthenticationToken"
        | "UnrecognizedClientException"
        | "InvalidAccessKeyId"
        | "InvalidSecurityToken"
        | "InvalidSecurity" => refused(
            text,
            "AWS does not accept the access key; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or \
             the profile that the platform uses",
        ),
        "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" => refused(
            text,
            "the session of these credentials has ended; log in again (aws sso login) or write new ones into the \
             environment or the credentials file, which is read again",
        ),
        "RequestExpired" | "RequestTimeTooSkewed" | "RequestInTheFuture" => refused(
            text,
            "the clock of this machine and that of AWS differ by too much (or the session has ended); check the time, \
             NTP and the credentials",
        ),
        "UnauthorizedOperation" | "AccessDenied" | "AccessDeniedException" => {
            let lacking =
                permission(message).map_or_else(|| format!("ec2:{operation}"), str::to_owned);
            refused(
                text,
                &format!("the account may not do this; grant {lacking} to it"),
            )
        }
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted" => refused(
            text,
            "the first spot request of an account makes a role; grant iam:CreateServiceLinkedRole to it, or make the \
             role once: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
        ),
        "OptInRequired" | "Blocked" | "PendingVerification" | "InvalidOptInStatus" => refused(
            text,
            "the account is not enabled for this region or service; see its AWS console",
        ),
        "OperationNotPermitted" => Error::new(Reason::Protected, text),
        "DependencyViolation" | "ResourceInUse" | "IncorrectState" | "IncorrectInstanceState" => {
            Error::new(Reason::Precondition, text)
        }
        _ => by_field(code, message, text),
    }
}

fn by_field(code: &str, message: &str, text: String) -> Error {
    if let Some(field) = field(code, message) {
        return Error::invalid(field, text);
    }
    if code.ends_with("LimitExceeded")
        || code.ends_with("CountExceeded")
        || code.ends_with("QuotaExceeded")
    {
        return Error::new(
            Reason::QuotaExceeded,
            format!("{text} (ask AWS for a higher quota, or use less)"),
        );
    }
    if code.ends_with(".NotFound") || code.ends_with("NotFoundException") {
        return Error::new(Reason::NotFound, text);
    }
    if code.starts_with("Invalid")
        || code.starts_with("Missing")
        || code.starts_with("Malformed")
        || matches!(
            code,
            "UnknownParameter"
                | "UnsupportedOperation"
                | "Unsupported"
                | "ValidationError"
                | "VPCIdNotSpecified"
                | "VPCResourceNotSpecified"
                | "TagLimitExceeded"
                | "OperationNotSupported"
                | "UnknownOperation"
                | "InstanceTypeNotSupported"
        )
    {
        return Error::new(Reason::Precondition, text);
    }
    // InternalError, Unavailable, ServiceUnavailable, InternalFailure, and unknown codes.
    Error::unavailable(text)
}

/// The permission that a message names: it may be another one than that of the call itself, such as iam:PassRole.
fn permission(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("is not authorized to perform: ")?;
    let name = rest.split_whitespace().next()?;
    name.contains(':').then_some(name)
}

/// The field of a group that an error is about.
fn field(code: &str, message: &str) -> Option<&'static str> {
    let says = |word: &str| message.to_ascii_lowercase().contains(word);
    Some(match code {
        _ if code.starts_with("InvalidAMI") => "group.properties.image",
        "InvalidInstanceType" | "InstanceTypeNotSupported" | "InvalidInstanceAttributeValue" => {
            "group.node_class"
        }
        "InvalidParameterValue" if says("instance type") || says("instancetype") => {
            "group.node_class"
        }
        "Unsupported" if says("instance type") || says("architecture") => "group.node_class",
        "InvalidKeyPair.NotFound" | "InvalidKeyPair.Format" => "group.properties.key",
        "InvalidGroup.NotFound"
        | "InvalidSecurityGroupID.NotFound"
        | "InvalidGroupId.Malformed"
        | "InvalidSecurityGroupId.Malformed"
        | "InvalidSecurityGroupID.Malformed"
        | "SecurityGroupsPerInstanceLimitExceeded"
        | "SecurityGroupsPerInterfaceLimitExceeded" => "group.properties.securityGroups",
        "InvalidSubnetID.NotFound"
        | "InvalidSubnetID.Malformed"
        | "InvalidSubnet"
        | "InvalidSubnetId.Malformed" => "group.properties.subnet",
        _ if code.starts_with("InvalidLaunchTemplate") => "group.properties.launchTemplate",
        "InvalidIamInstanceProfileArn.Malformed" => "group.properties.iamInstanceProfile",
        "InvalidParameterValue" if says("iaminstanceprofile") || says("iam instance profile") => {
            "group.properties.iamInstanceProfile"
        }
        "InvalidParameterValue" if says("volume") || says("iops") || says("snapshot") => {
            "group.properties.rootVolume"
        }
        "InvalidBlockDeviceMapping" => "group.properties.rootVolume",
        "InvalidParameterValue" if says("price") => "group.properties.maxPrice",
        "InvalidUserData.Malformed" => "bootstrap",
        _ => return None,
    })
}

fn no_capacity(message: &str, text: String) -> Error {
    let error = Error::new(Reason::NoCapacity, text);
    match zone(message) {
        Some(zone) => error.with_metadata("failure_domain", zone),
        None => error,
    }
}

/// The zone that a message is about: the first one mentioned, which is the one that was requested.
fn zone(message: &str) -> Option<&str> {
    message
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
        .find(|word| {
            word.strip_suffix(|c: char| c.is_ascii_lowercase())
                .is_some_and(super::settings::is_region)
        })
}

fn refused(text: String, way_out: &str) -> Error {
    Error::new(Reason::CredentialsRefused, format!("{text} ({way_out})"))
}

/// The API's own error code. Empty if there is none.
pub(super) fn code(error: &Error) -> &str {
    error.metadata().get(CODE).map_or("", String::as_str)
}

/// Whether the API reports that the named resource does not exist (any more).
pub(super) fn is_absent(error: &Error) -> bool {
    let code = code(error);
    code.ends_with(".NotFound")
        || code.ends_with("ID.Malformed")
        || code.ends_with("Id.Malformed")
        || code == "Gateway.NotAttached"
}

/// Whether the call fails only because another resource still depends on this one.
pub(super) fn is_in_use(error: &Error) -> bool {
    matches!(
        code(error),
        "DependencyViolation" | "ResourceInUse" | "InvalidIPAddress.InUse" | "IncorrectState"
    )
}

#[cfg(test)]
mod tests {
    use drover_core::Class;

    use super::*;

    #[test]
    fn each_kind_of_error_has_its_class() {
        for (code, message, class) in [
            (
                "RequestLimitExceeded",
                "Request limit exceeded.",
                Class::Unknown,
            ),
            ("InsufficientInstanceCapacity", "none", Class::NoCapacity),
            ("InstanceLimitExceeded", "none", Class::NoCapacity),
            ("VcpuLimitExceeded", "none", Class::NoCapacity),
            ("MaxSpotInstanceCountExceeded", "none", Class::NoCapacity),
            ("AddressLimitExceeded", "none", Class::NoCapacity),
            ("AuthFailure", "no", Class::Credentials),
            ("ExpiredToken", "no", Class::Credentials),
            ("UnauthorizedOperation", "no", Class::Credentials),
            ("InvalidAMIID.NotFound", "no", Class::Cannot),
            ("InvalidParameterValue", "anything", Class::Cannot),
            ("InternalError", "oops", Class::Unknown),
            ("Unavailable", "oops", Class::Unknown),
            ("SomethingNew", "oops", Class::Unknown),
            ("IdempotentParameterMismatch", "oops", Class::Unknown),
            ("OperationNotPermitted", "protected", Class::Cannot),
        ] {
            let error = from_code("RunInstances", code, message);
            assert_eq!(error.class(), class, "{code}: {error:?}");
            assert!(error.message().contains(code), "{error:?}");
        }
        assert_eq!(
            from_code("RunInstances", "RequestLimitExceeded", "").reason(),
            Reason::RateLimited
        );
    }

    #[test]
    fn the_zone_without_capacity_is_named() {
        let error = from_code(
            "RunInstances",
            "InsufficientInstanceCapacity",
            "We currently do not have sufficient m5.large capacity in the Availability Zone you requested (us-east-1a). \
             You can get it by choosing us-east-1b, us-east-1c.",
        );
        assert_eq!(error.metadata()["failure_domain"], "us-east-1a");
        let error = from_code(
            "RunInstances",
            "InsufficientInstanceCapacity",
            "nothing left",
        );
        assert!(!error.metadata().contains_key("failure_domain"));
    }

    #[test]
    fn errors_of_fields_name_them() {
        for (code, message, field) in [
            (
                "InvalidAMIID.NotFound",
                "The image id '[ami-0]' does not exist",
                "group.properties.image",
            ),
            (
                "InvalidKeyPair.NotFound",
                "The key pair 'x' does not exist",
                "group.properties.key",
            ),
            (
                "InvalidParameterValue",
                "Invalid value 'm9.huge' for InstanceType.",
                "group.node_class",
            ),
            ("InvalidSubnetID.NotFound", "no", "group.properties.subnet"),
            (
                "InvalidGroup.NotFound",
                "no",
                "group.properties.securityGroups",
            ),
        ] {
            let error = from_code("RunInstances", code, message);
            assert_eq!(error.fields()[0].field, field, "{code}");
        }
    }
}
