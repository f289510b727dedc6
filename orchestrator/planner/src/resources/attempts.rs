//! Calls to platforms: what is recorded of one before it is made, and when the next one may be.

use std::sync::Arc;

use drover_core::{
    Millis, Sym,
    resource::{Asked, ResourceRecord},
};

use super::{Draft, Told};
use crate::{Limits, PlatformView};

/// Deadline of a Release call: the platform responds once the release has started.
pub const RELEASE_TIMEOUT: Millis = 30_000;

/// From when on no earlier call can change anything.
pub(super) fn settled_from(record: &ResourceRecord, view: &PlatformView) -> Millis {
    // A platform that has ended the calls of earlier processes starts nothing for them any more.
    if record.deadline == 0 || (view.fenced && !record.in_flight.sent) {
        0
    } else {
        record.deadline
    }
}

pub(super) fn next_attempt(record: &ResourceRecord, limits: &Limits, etag: &Sym) -> Millis {
    if record.deadline > 0 {
        // Nothing is in flight and there is no response: an earlier process may have made the call.
        let timeout = if record.releasing {
            RELEASE_TIMEOUT
        } else {
            limits.call_timeout
        };
        return record.deadline.saturating_sub(timeout) + limits.replay_delay;
    }
    if !record.etag.is_empty() && record.etag != *etag {
        return 0;
    }
    record.next
}

/// Until when a failure that other targets do not end holds back calls. A refusal, or a resource that does not come up, may
/// well be about the targets.
pub(super) fn trouble_until(record: &ResourceRecord) -> Millis {
    if record.failures == 0 || is_about_content(record) {
        0
    } else {
        record.next
    }
}

pub(super) fn is_about_content(record: &ResourceRecord) -> bool {
    matches!(&*record.reason, "Rejected" | "Failed")
}

/// Adds an attempt, whose intent becomes durable with the record.
pub(super) fn attempt(
    draft: &mut Draft<'_>,
    asked: Asked,
    told: Option<&Told>,
    now: Millis,
    limits: &Limits,
) {
    let record = &mut draft.record;
    if let Some(told) = told {
        if record.in_flight.served.as_ref() != Some(&record.in_flight.targets) {
            let announced = record
                .in_flight
                .targets
                .iter()
                .filter(|target| !target.draining);
            record
                .in_flight
                .announced
                .extend(announced.map(|target| target.slot));
            record.in_flight.announced.sort_unstable();
            record.in_flight.announced.dedup();
        }
        record.in_flight.targets = Arc::clone(&told.targets);
        record.targets_hash = told.targets_hash.clone();
        record.secrets_hash = told.secrets_hash.clone();
    }
    if record.deadline > 0 {
        // The outcome of the previous attempt is not known, and never will be.
        let begun = record.deadline + limits.max_creation_time;
        record.unsettled = record.unsettled.max(begun);
    }
    record.deadline = now
        + match asked {
            Asked::Release => RELEASE_TIMEOUT,
            Asked::Ensure | Asked::Read => limits.call_timeout,
        };
    record.in_flight.call.in_flight = true;
    record.in_flight.sent = true;
    record.in_flight.answer = None;
    draft.asks = Some(asked);
}
