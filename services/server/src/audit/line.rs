//! What a line says.

use std::{
    net::SocketAddr,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

use super::digest::{Command, Digest};

/// Who writes of the log itself.
const OWN: &str = "server";
/// What such lines are about.
const LOG: &str = "audit log";

#[derive(Default, Serialize)]
pub(super) struct Line<'a> {
    pub(super) time: String,
    pub(super) who: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<SocketAddr>,
    pub(super) what: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) object: Option<&'a str>,
    /// Generation that the object has by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) generation: Option<u64>,
    /// What the request contained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request: Option<Digest>,
    /// What is run in a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<&'a Command>,
    pub(super) code: &'a str,
    pub(super) denied: bool,
    /// Why, where there is no call that would say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trace_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) elapsed_ms: Option<u64>,
    /// Refusals before this one that were not written, because they were too many.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) omitted: u64,
    /// Number of the line that was durable before the call began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) asked: Option<u64>,
    /// Lines before this one that could not be written.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) lost: u64,
    /// Lines before this one that were written and are not there any more.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) missing: u64,
    /// Bytes of the line before, which has no end: whoever wrote it died meanwhile.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) torn: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What the log says of itself.
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
        // Nothing in it can fail to be written as JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Now, as RFC 3339 with milliseconds.
pub(super) fn time() -> String {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(0);
    let text = drover_tls::explain::utc(seconds);
    let text = text.trim_end_matches(" UTC").replacen(' ', "T", 1);
    format!("{text}.{:03}Z", since.subsec_millis())
}
