//! Errors as they are returned to callers.

use drover_convert::error::to_status;
use drover_core::{Error, error::Violation, words};
use tonic::Status;

use crate::fenced::of_a_former_leader;

/// Maximum length of a message. It is sent twice in the trailers, once with every space percent-encoded as three
/// characters, and clients limit trailers to 16 KiB.
const MAX_MESSAGE: usize = 2048;
/// Maximum total text of field violations, for the same reason.
const MAX_FIELDS: usize = 5 * 1024;
/// Maximum text of a field violation, and of a name that the caller supplied.
const MAX_TEXT: usize = 512;

/// Converts an error to a status that is small enough for trailers.
pub(super) fn refusal(error: Error) -> Status {
    to_status(&bounded(of_a_former_leader(error)))
}

fn bounded(error: Error) -> Error {
    let (given, mut fields, mut bytes) = (error.fields(), Vec::new(), 0);
    for one in given {
        let one = Violation {
            field: cut(&one.field, MAX_TEXT),
            description: cut(&one.description, MAX_TEXT),
        };
        bytes += one.field.len() + one.description.len() + 8;
        if bytes > MAX_FIELDS {
            let more = given.len() - fields.len();
            let description = format!(
                "{} {} wrong",
                words::count(more, "more field"),
                words::are(more)
            );
            fields.push(Violation {
                field: String::new(),
                description,
            });
            break;
        }
        fields.push(one);
    }
    let mut small = Error::new(error.reason(), cut(error.message(), MAX_MESSAGE));
    for one in fields {
        small = small.with_violation(one.field, one.description);
    }
    if let Some((kind, name)) = error.resource() {
        small = small.with_resource(kind, cut(name, MAX_TEXT));
    }
    for (key, value) in error.metadata() {
        small = small.with_metadata(key, cut(value, MAX_TEXT));
    }
    match error.retry_after() {
        Some(after) => small.with_retry_after(after),
        None => small,
    }
}

fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most - '…'.len_utf8())
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use drover_core::Reason;
    use drover_store::backend::CommitError;

    use super::*;

    #[test]
    fn a_caller_of_a_former_leader_is_sent_to_the_present_one() {
        let reason = |error| drover_convert::error::from_status(&refusal(error)).reason();
        assert_eq!(reason(CommitError::Fenced.into()), Reason::NotLeader);
        let platform = Error::new(Reason::Fenced, "shard 3 has epoch 9 by now");
        assert_eq!(reason(platform), Reason::Fenced);
    }

    #[test]
    fn an_answer_fits_into_trailers_whatever_went_wrong() {
        let long = "ä \"{} ".repeat(100_000);
        let wrong = |n| Violation {
            field: format!("spec.groups[{n}].{long}"),
            description: long.clone(),
        };
        for error in [
            Error::not_found("cluster", long.as_str()).with_metadata("key", &long),
            Error::violations((0..1000).map(wrong).collect()),
            Error::violations(
                (0..1000)
                    .map(|n| Violation {
                        field: format!("labels[{n}]"),
                        description: "is bad".into(),
                    })
                    .collect(),
            ),
        ] {
            let reason = error.reason();
            let status = refusal(error);
            let mut trailers = tonic::metadata::MetadataMap::new().into_headers();
            status.add_header(&mut trailers).unwrap();
            let bytes: usize = trailers
                .iter()
                .map(|(name, value)| name.as_str().len() + value.len() + 32)
                .sum();
            assert!(bytes < 16 * 1024, "{bytes}");
            assert_eq!(drover_convert::error::from_status(&status).reason(), reason);
        }
    }

    #[test]
    fn a_small_error_is_answered_as_it_is() {
        let error = Error::new(Reason::GenerationMismatch, "it has 3")
            .with_metadata("generation", 3)
            .with_violation("a", "b")
            .with_resource("cluster", "orders");
        assert_eq!(bounded(error.clone()), error);
    }
}
