//! Evaluation of responses about resources.

use std::sync::Arc;

use drover_core::{
    Class, Error, Millis, Sym, back_off,
    resource::{Asked, Observed, Resource, ResourceAnswer, ResourcePhase, ResourceRecord},
};

use super::{Draft, ResourceChange};
use crate::{Limits, SLOW_CADENCE, observe::millis};

/// Poll interval if the platform does not request one.
const POLL: Millis = 2_000;
/// Bounds of the poll interval that a platform may request.
const POLL_LIMITS: (Millis, Millis) = (100, SLOW_CADENCE);
/// Back-off after the second consecutive failure; it doubles.
const FIRST_BACK_OFF: Millis = 2_000;
/// Consecutive failures after which the slow cadence begins.
const MAX_FAILURES: u32 = 3;
/// Back-off after the backend rejected the platform's credentials.
const CREDENTIALS_BACK_OFF: Millis = 60_000;
/// First back-off for lack of capacity; it doubles.
const CAPACITY_FIRST: Millis = 5_000;
/// Maximum back-off for lack of capacity.
const CAPACITY_MOST: Millis = 300_000;
/// First back-off after a call of unknown outcome; it doubles.
const RETRY_FIRST: Millis = 500;
/// Maximum back-off after a call of unknown outcome, and after a failed release.
const RETRY_MOST: Millis = 60_000;
/// Wait before a call is repeated that the platform refused as stale.
const STALE_RETRY: Millis = 100;

/// Evaluates a response. Returns true if the platform has proven that nothing is left.
pub(super) fn take_in(
    draft: &mut Draft<'_>,
    answer: &ResourceAnswer,
    limits: &Limits,
    etag: &Sym,
) -> bool {
    match (answer.asked, &answer.outcome) {
        (Asked::Read, Ok(observed)) => take_read(draft, answer.began, observed),
        // The caller of the read has recorded when it may be repeated.
        (Asked::Read, Err(_)) => {}
        (Asked::Ensure, Ok(observed)) => take_ensured(draft, answer.at, observed),
        (Asked::Release, Ok(observed)) => {
            if observed.phase == ResourcePhase::Gone
                && answer.began >= draft.record.unsettled + limits.visibility_delay
            {
                return true;
            }
            take_released(draft, answer.at, observed, limits);
        }
        (asked, Err(error)) => take_failure(draft, asked, answer.at, error, limits, etag),
    }
    false
}

pub(super) fn clear_trouble(record: &mut ResourceRecord) {
    record.reason = Sym::default();
    record.message = Box::default();
    record.etag = Sym::default();
}

fn take_read(draft: &mut Draft<'_>, began: Millis, seen: &Observed) {
    let record = &mut draft.record;
    if !record.is_ready() || seen.phase == ResourcePhase::Unknown {
        return;
    }
    let ready = seen.phase == ResourcePhase::Ready || is_nothing(seen);
    let complete = ready
        && record.resources.iter().all(|own| {
            let same = |one: &&Resource| (&one.kind, &one.name) == (&own.kind, &own.name);
            seen.resources.iter().any(|one| same(&one))
        });
    let before = (record.doubt, record.phase);
    if complete {
        record.doubt = 0;
        let same = record.resources == seen.resources && record.outputs == seen.outputs;
        if !same {
            record.resources.clone_from(&seen.resources);
            record.outputs = Arc::clone(&seen.outputs);
        }
        if same && before.0 == 0 {
            return;
        }
    } else if record.doubt == 0 {
        // It may be visible late: a deficit is believed only when a second read shows it too.
        record.doubt = began.max(1);
    } else if began > record.doubt {
        record.phase = match seen.phase {
            ResourcePhase::Ready | ResourcePhase::Unknown => ResourcePhase::Pending,
            other => other,
        };
        record.resources.clone_from(&seen.resources);
        record.next = 0;
    } else {
        return;
    }
    draft.change = Some(ResourceChange::Learn);
}

fn take_ensured(draft: &mut Draft<'_>, at: Millis, seen: &Observed) {
    let is_addon = draft.key.is_addon();
    let record = &mut draft.record;
    settle(record, at);
    record.in_flight.ensured = at;
    record.phase = match (seen.phase, seen.poll_after) {
        // Nothing is as desired if no part was asked for.
        (_, None) if is_nothing(seen) && !is_addon => ResourcePhase::Ready,
        // The parts that exist are ready, and more are to come.
        (ResourcePhase::Ready, Some(_)) => ResourcePhase::Pending,
        (phase, _) => phase,
    };
    record.resources.clone_from(&seen.resources);
    record.outputs = Arc::clone(&seen.outputs);
    draft.change = Some(ResourceChange::Learn);
    let poll = poll_after(seen);
    match record.phase {
        ResourcePhase::Ready => {
            (record.failures, record.next, record.doubt) = (0, 0, 0);
            clear_trouble(record);
            if is_addon {
                record.in_flight.served = Some(Arc::clone(&record.in_flight.targets));
                record.in_flight.announced.clear();
                record.in_flight.follows = false;
            }
        }
        ResourcePhase::Failed => {
            record.failures = record.failures.saturating_add(1);
            record.next = at + ensure_wait(record.failures).max(poll);
            record.reason = "Failed".into();
            record.message = failure(seen).into();
        }
        ResourcePhase::Pending
        | ResourcePhase::Releasing
        | ResourcePhase::Gone
        | ResourcePhase::Unknown => {
            record.next = at + poll;
            clear_trouble(record);
        }
    }
}

fn take_released(draft: &mut Draft<'_>, at: Millis, seen: &Observed, limits: &Limits) {
    let record = &mut draft.record;
    // A release creates nothing, so it does not postpone the time from which on a response is a proof.
    record.deadline = 0;
    record.in_flight.answer = None;
    record.phase = seen.phase;
    record.resources.clone_from(&seen.resources);
    draft.change = Some(ResourceChange::Learn);
    match seen.phase {
        // Too early to be a proof: what was requested before may still appear.
        ResourcePhase::Gone => {
            record.failures = 0;
            clear_trouble(record);
            record.next = record.unsettled + limits.visibility_delay;
        }
        ResourcePhase::Failed => {
            record.failures = record.failures.saturating_add(1);
            let wait = back_off(RETRY_FIRST, RETRY_MOST, record.failures);
            record.next = at + wait.max(poll_after(seen));
            record.reason = "Failed".into();
            record.message = failure(seen).into();
        }
        ResourcePhase::Pending
        | ResourcePhase::Ready
        | ResourcePhase::Releasing
        | ResourcePhase::Unknown => {
            record.failures = 0;
            clear_trouble(record);
            // What it waits for. Only if that takes long is it trouble.
            record.message.clone_from(&seen.message);
            record.next = at + poll_after(seen);
        }
    }
}

fn take_failure(
    draft: &mut Draft<'_>,
    asked: Asked,
    at: Millis,
    error: &Error,
    limits: &Limits,
    etag: &Sym,
) {
    let record = &mut draft.record;
    let class = error.class();
    let unknown = matches!(class, Class::Unknown | Class::Reused);
    if unknown {
        let begun = record.deadline.max(at)
            + if asked == Asked::Release {
                0
            } else {
                limits.max_creation_time
            };
        record.unsettled = record.unsettled.max(begun);
    } else if asked == Asked::Ensure && class != Class::Stale {
        // Parts that were created before it failed remain.
        record.unsettled = record.unsettled.max(at);
    }
    record.deadline = 0;
    record.in_flight.answer = None;
    draft.change = Some(ResourceChange::Learn);
    if class == Class::Stale {
        record.next = at + STALE_RETRY;
        return;
    }
    record.failures = record.failures.saturating_add(1);
    let failures = record.failures - 1;
    let said = error.retry_after().map(millis);
    let wait = match class {
        _ if asked == Asked::Release => said
            .unwrap_or_else(|| back_off(RETRY_FIRST, RETRY_MOST, failures))
            .min(RETRY_MOST),
        Class::Cannot => SLOW_CADENCE,
        Class::Credentials => CREDENTIALS_BACK_OFF,
        Class::NoCapacity => said
            .unwrap_or_else(|| back_off(CAPACITY_FIRST, CAPACITY_MOST, failures))
            .min(CAPACITY_MOST),
        Class::Stale | Class::Reused | Class::Unknown => said
            .unwrap_or_else(|| back_off(RETRY_FIRST, RETRY_MOST, failures))
            .max(limits.replay_delay)
            .min(SLOW_CADENCE),
    };
    record.next = at + wait;
    record.etag = if class == Class::Cannot {
        etag.clone()
    } else {
        Sym::default()
    };
    if !unknown || record.failures >= MAX_FAILURES {
        record.reason = match class {
            Class::Cannot => "Rejected",
            Class::Credentials => "CREDENTIALS_REFUSED",
            Class::NoCapacity => "NoCapacity",
            Class::Stale | Class::Reused | Class::Unknown => "PlatformFailed",
        }
        .into();
        record.message = drover_core::error::cut(error.message().to_owned()).into();
    }
}

/// An Ensure or Release was answered: no attempt is in flight.
fn settle(record: &mut ResourceRecord, at: Millis) {
    record.deadline = 0;
    record.in_flight.answer = None;
    // Resources may have been created just before the response, and be visible late.
    record.unsettled = record.unsettled.max(at);
}

/// Whether nothing exists, which is the desired state of a spec without parts.
fn is_nothing(seen: &Observed) -> bool {
    seen.phase == ResourcePhase::Gone && seen.resources.is_empty()
}

fn poll_after(seen: &Observed) -> Millis {
    seen.poll_after
        .unwrap_or(POLL)
        .clamp(POLL_LIMITS.0, POLL_LIMITS.1)
}

/// The first failure is retried immediately; after many, the slow cadence applies.
fn ensure_wait(failures: u32) -> Millis {
    match failures {
        0 | 1 => 0,
        MAX_FAILURES.. => SLOW_CADENCE,
        more => back_off(FIRST_BACK_OFF, SLOW_CADENCE, more - 2),
    }
}

fn failure(seen: &Observed) -> String {
    if !seen.message.is_empty() {
        return seen.message.to_string();
    }
    let failed = seen
        .resources
        .iter()
        .filter(|one| one.phase == ResourcePhase::Failed);
    let words: Vec<String> = failed
        .map(|one| format!("{} {}: {}", one.kind, one.name, one.message))
        .collect();
    drover_core::error::cut(words.join("; "))
}
