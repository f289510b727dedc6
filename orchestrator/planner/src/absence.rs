//! Absence: complete reads that find out whether nodes are gone.

use drover_core::{Millis, Node};

use crate::{Call, Planner};

/// Time in which a platform may report by itself that a node is gone, before a complete read is made to find out.
const REMOVAL_PATIENCE: Millis = 2_000;
/// Time beyond the visibility delay in which a node may still appear in a list before a complete read is made: one or
/// two heartbeats.
const LISTING_PATIENCE: Millis = 5_000;
/// Interval of reads for a node that complete reads lack although its agent responds.
const GHOST_INTERVAL: Millis = 10_000;

impl Planner<'_> {
    /// Whether a node that only responses to calls have shown should have been listed by now.
    fn is_overdue(&mut self, node: &Node) -> bool {
        let Some(view) = self
            .input
            .platforms
            .get(&node.platform)
            .filter(|_| node.seen.unproven)
        else {
            return false;
        };
        let due = node.seen.last + view.limits.visibility_delay + LISTING_PATIENCE;
        if self.input.now < due {
            self.wake(due);
        }
        self.input.now >= due
    }

    /// Requests complete reads of the platforms on which slots may be absent.
    pub(crate) fn confirm_absence(&mut self) {
        let mut platforms: Vec<&drover_core::Sym> = Vec::new();
        for at in 0..self.state.nodes.len() {
            let (node, mark) = (&self.state.nodes[at], self.marks[at]);
            let waits = mark.forgotten || mark.draining || !mark.visible;
            if waits || self.is_open(node.request) || node.settled == 0 {
                continue;
            }
            // Nodes that were never seen, are to be removed, or are not or no longer listed; all others are known to
            // exist.
            let doubtful = mark.leaving
                || self.is_overdue(node)
                || node.node_id.is_none()
                || node.seen.unlisted
                || !node.is_adopting() && node.seen.missing_from >= node.seen.last
                || node.is_adopting() && !self.shows_foreign(node);
            let Some(view) = self
                .input
                .platforms
                .get(&node.platform)
                .filter(|_| doubtful)
            else {
                continue;
            };
            let mut from = crate::observe::absence_from(node, view, self.input.process_start);
            if let Some(removal) = node.removal {
                from = from.max(removal.since + REMOVAL_PATIENCE);
            }
            if node.seen.missing_from >= from
                && !node.seen.silent
                && !mark.leaving
                && node.node_id.is_some()
            {
                // Complete reads lack it, but its agent responds: read again later.
                let next = node.seen.missing_from + GHOST_INTERVAL;
                if self.input.now < next {
                    self.wake(next);
                    continue;
                }
            }
            let call = self
                .state
                .confirms
                .get(&node.platform)
                .copied()
                .unwrap_or_default();
            if call.in_flight || platforms.contains(&&node.platform) {
                continue;
            }
            let next = from.max(call.next);
            if self.input.now < next {
                self.wake(next);
                self.note_until(
                    &node.group,
                    Some(node.slot),
                    false,
                    "Absence",
                    Some(next),
                    || format!("{} may still show it; looked for again then", node.platform),
                );
                continue;
            }
            platforms.push(&node.platform);
        }
        for platform in platforms {
            self.plan.calls.push(Call::Confirm {
                platform: platform.clone(),
            });
        }
    }
}
