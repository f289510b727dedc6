//! The fields of a log line.

use std::{
    net::SocketAddr,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

use super::digest::{Command, Digest};

/// Author of entries about the log itself.
const OWN: &str = "server";
/// Object of entries about the log itself.
const LOG: &str = "audit log";

#[derive(Default, Serialize)]
pub(super) struct Line<'a> {
    pub(super) time: String,
    pub(super) who: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<SocketAddr>,
    /// Replica that has forwarded the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) via: Option<&'a str>,
    pub(super) what: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) object: Option<&'a str>,
    /// Generation of the object that the call has created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) generation: Option<u64>,
    /// Digest of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request: Option<Digest>,
    /// Command that is run in a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<&'a Command>,
    pub(super) code: &'a str,
    pub(super) denied: bool,
    /// Reason of a refusal that happened before there was a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trace_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) elapsed_ms: Option<u64>,
    /// Number of preceding refusals that were not written because of the rate limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) omitted: u64,
    /// Sequence number of the line that was durable before the call began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) asked: Option<u64>,
    /// Number of preceding lines that could not be written.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) lost: u64,
    /// Number of preceding lines that were written but no longer exist.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) missing: u64,
    /// Length of the preceding incomplete line in bytes: its writer died while writing it.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) torn: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// An entry about the log itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    Lost(u64),
    Missing(u64),
    Torn(usize),
}

impl Line<'_> {
    pub(super) fn note(note: Note) -> Self {
        let line = Self {
            time: time(),
            who: OWN,
            what: LOG,
            ..Self::default()
        };
        match note {
            Note::Lost(lost) => Self {
                code: "LOST",
                lost,
                why: Some("lines could not be written: the queue or the disk was full"),
                ..line
            },
            Note::Missing(missing) => Self {
                code: "MISSING",
                missing,
                why: Some("the file ends before the last line that was written to it"),
                ..line
            },
            Note::Torn(bytes) => Self {
                code: "TORN",
                torn: bytes as u64,
                why: Some("the line before has no end"),
                ..line
            },
        }
    }

    pub(super) fn text(&self) -> String {
        // Cannot fail, because all fields can be represented in JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The current time in RFC 3339 with milliseconds.
pub(super) fn time() -> String {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(0);
    let text = drover_tls::explain::utc(seconds);
    let text = text.trim_end_matches(" UTC").replacen(' ', "T", 1);
    format!("{text}.{:03}Z", since.subsec_millis())
}
