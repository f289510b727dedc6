//! Drift: ready resources are compared with what is there from time to time.

use drover_core::{
    Millis,
    resource::{Asked, ENDPOINT, ResourceKey, ResourcePhase, ResourceRecord},
};

use super::{
    Draft, ResourceChange, Told,
    attempts::{attempt, next_attempt},
};
use crate::{Limits, Planner, PlatformView};

/// Interval of drift checks of ready resources; jittered by 10 %.
pub const DRIFT_INTERVAL: Millis = 10 * 60 * 1000;
/// Interval of drift checks if the platform could not read all of it, or a part of it waits for nodes.
const UNREAD_INTERVAL: Millis = 60_000;
/// How long after a change of a node it is read where an endpoint leads.
const FOLLOWED: Millis = 5_000;
/// Minimum wait before a second read of what a first one lacked.
const SECOND_LOOK: Millis = 1_000;

impl Planner<'_> {
    /// Compares a ready resource with its actual state from time to time.
    pub(super) fn look(
        &mut self,
        draft: &mut Draft<'_>,
        told: &Told,
        view: Option<&PlatformView>,
        limits: &Limits,
    ) {
        let record = &draft.record;
        let now = self.input.now;
        let Some(view) = view.filter(|view| view.callable && view.visible) else {
            return;
        };
        let interval = jittered(self.state.uid.as_u128(), record.sequence);
        if draft.key.is_addon() {
            // Only an Ensure finds what was edited by hand, and restores it.
            let last = record.in_flight.ensured.max(record.phase_time);
            let due = match record.failures {
                0 => last.max(self.input.process_start) + interval,
                _ => next_attempt(record, limits, &view.etag),
            };
            if self.lacks_nodes() {
                // It would be set back to what it was when the store was copied.
            } else if now < due {
                self.wake(due);
            } else {
                attempt(draft, Asked::Ensure, Some(told), now, limits);
                draft.change = Some(ResourceChange::Again);
            }
            return;
        }
        let read = record
            .in_flight
            .answer
            .as_ref()
            .filter(|a| a.asked == Asked::Read);
        let unread = read.is_some_and(
            |answer| matches!(&answer.outcome, Ok(seen) if seen.phase == ResourcePhase::Unknown),
        );
        let last = read.map_or(0, |answer| answer.at).max(record.phase_time);
        let due = if record.doubt > 0 {
            record.doubt + limits.visibility_delay.max(SECOND_LOOK)
        } else if unread {
            last + UNREAD_INTERVAL
        } else {
            let last = last.max(self.input.process_start);
            (last + interval).min(self.endpoint_due(draft.key, record, last))
        };
        let due = due
            .max(record.in_flight.call.next)
            .max(if record.doubt > 0 {
                view.visible_since
            } else {
                0
            });
        if now < due {
            self.wake(due);
            return;
        }
        draft.record.in_flight.call.in_flight = true;
        draft.asks = Some(Asked::Read);
    }

    /// When it is read again where an endpoint leads: soon after a node has changed, since it may lead to that now, or no
    /// more, and then less and less often, since that may take a while.
    fn endpoint_due(&self, key: &ResourceKey, record: &ResourceRecord, last: Millis) -> Millis {
        if !record.resources.iter().any(|it| &*it.kind == ENDPOINT) {
            return Millis::MAX;
        }
        let nodes = self.state.nodes.iter();
        let nodes = nodes.filter(|node| key.is_on(&node.platform, &node.platform_uid));
        let times = nodes.map(|node| node.state_time);
        let times = times.chain([record.in_flight.node_dropped]);
        let (mut first, mut latest) = (Millis::MAX, 0);
        for time in times {
            latest = latest.max(time);
            if time > last {
                first = first.min(time);
            }
        }
        match first {
            Millis::MAX => last + last.saturating_sub(latest).max(UNREAD_INTERVAL),
            changed => changed + FOLLOWED,
        }
    }
}

/// Interval of drift checks, spread so that clusters are not checked all at once; constant for each cluster.
fn jittered(uid: u128, sequence: u64) -> Millis {
    let seed = (uid ^ u128::from(sequence)).wrapping_mul(0x2545_f491_4f6c_dd1d);
    let share = (seed >> 40) as u64 % 200;
    DRIFT_INTERVAL * (900 + share) / 1000
}
