//! Maps refusals of the API to Drover errors.

use std::error::Error as _;

use drover_core::{Error, Reason};

use super::client::Reply;

/// Page on which an account's droplet limit is raised.
const RAISE: &str = "https://cloud.digitalocean.com/account/team/droplet_limit_increase";

/// Maps a connection failure. The request may have taken effect.
pub(super) fn transport(error: &reqwest::Error) -> Error {
    let reason = if error.is_timeout() {
        Reason::DeadlineExceeded
    } else {
        Reason::Unavailable
    };
    Error::new(
        reason,
        format!("no answer from DigitalOcean: {}", causes(error)),
    )
}

/// The error without its URL, and its causes.
pub(super) fn causes(error: &reqwest::Error) -> String {
    let mut text = match error {
        error if error.is_connect() => "cannot connect".to_owned(),
        error if error.is_timeout() => "it took too long".to_owned(),
        error if error.is_body() || error.is_decode() => "the answer was cut off".to_owned(),
        _ => "the connection failed".to_owned(),
    };
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Maps a generic refusal of a call.
pub(super) fn refused(reply: &Reply, what: &str) -> Error {
    let message = format!("DigitalOcean refuses {what}: {}", reply.message());
    match reply.status {
        404 => Error::new(Reason::NotFound, message),
        408 => Error::new(Reason::DeadlineExceeded, message),
        409 => Error::new(Reason::Conflict, message),
        400..=499 => Error::new(Reason::Precondition, message),
        status => Error::unavailable(format!("{message} (status {status})")),
    }
}

/// Maps the refusal of a creation. The API uses one status and one id for all of them, so the message decides.
pub(super) fn create(reply: &Reply, region: &str) -> Error {
    if !(400..=499).contains(&reply.status) || matches!(reply.status, 408 | 409) {
        return refused(reply, "the creation of droplets");
    }
    let message = reply.message();
    let said = format!("DigitalOcean: {message}");
    let words = message.to_lowercase();
    let has = |word: &str| words.contains(word);
    let any = |all: &[&str]| all.iter().any(|word| has(word));
    if has("droplet limit") {
        return Error::new(
            Reason::QuotaExceeded,
            format!("{said}. Delete droplets, or ask for a higher limit: {RAISE}"),
        );
    }
    let field = if has("image") {
        "group.properties.image"
    } else if any(&["key identifier", "ssh key"]) {
        "group.properties.sshKey"
    } else if has("vpc") {
        "group.properties.vpcUuid"
    } else if any(&["user data", "user_data"]) {
        "bootstrap"
    } else if has("invalid size") {
        return Error::new(Reason::NodeClassNotFound, said);
    } else if has("invalid region") {
        "group.properties.region"
    } else if any(&["size", "region", "capacity"])
        && any(&[
            "available",
            "restricted",
            "disabled",
            "capacity",
            "sold out",
        ])
    {
        let error = Error::new(Reason::NoCapacity, said);
        return if region.is_empty() {
            error
        } else {
            error.with_metadata("failure_domain", region)
        };
    } else if any(&["hostname", "name can't"]) {
        "slots"
    } else {
        "group.properties"
    };
    Error::invalid(field, said)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(status: u16, message: &str) -> Error {
        let body = json!({"id": "unprocessable_entity", "message": message});
        create(&Reply { status, body }, "fra1")
    }

    #[test]
    fn refusals_of_creations_are_told_apart_by_their_words() {
        for (message, reason, field) in [
            (
                "creating this/these droplet(s) will exceed your droplet limit",
                Reason::QuotaExceeded,
                "",
            ),
            (
                "Size is not available in this region.",
                Reason::NoCapacity,
                "",
            ),
            ("Region is not available", Reason::NoCapacity, ""),
            (
                "You specified an invalid size for Droplet creation.",
                Reason::NodeClassNotFound,
                "",
            ),
            (
                "You specified an invalid image for Droplet creation.",
                Reason::Invalid,
                "group.properties.image",
            ),
            (
                "The image you specified is not available in the selected region",
                Reason::Invalid,
                "group.properties.image",
            ),
            (
                "aa:bb are invalid key identifiers for Droplet creation.",
                Reason::Invalid,
                "group.properties.sshKey",
            ),
            ("VPC not found", Reason::Invalid, "group.properties.vpcUuid"),
            ("User data is too long", Reason::Invalid, "bootstrap"),
            ("something new", Reason::Invalid, "group.properties"),
        ] {
            let error = error(422, message);
            assert_eq!(error.reason(), reason, "{message}");
            assert!(error.message().contains(message));
            let found = error
                .fields()
                .first()
                .map_or("", |violation| &violation.field);
            assert_eq!(found, field, "{message}");
        }
    }

    #[test]
    fn only_refusals_promise_that_nothing_was_made() {
        use drover_core::Class;
        for status in [500, 502, 503, 504, 408, 409] {
            assert_eq!(error(status, "x").class(), Class::Unknown, "{status}");
        }
        assert_eq!(error(400, "x").class(), Class::Cannot);
    }
}
