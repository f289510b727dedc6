//! Absence: looking for what may be gone.

use drover_core::{Millis, Node};

use crate::{Call, Planner};

/// How long a platform may take to say by itself that a node is gone, before it is read completely to find out.
const REMOVAL_PATIENCE: Millis = 2_000;
/// How long after its visibility delay a node may still come up in a list before it is looked for: a heartbeat or two.
const LISTING_PATIENCE: Millis = 5_000;
/// How often a node is looked for that complete reads lack and whose agent answers.
const GHOST_INTERVAL: Millis = 10_000;

impl Planner<'_> {
    /// Whether a node that an answer showed should have been listed by now.
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

    /// Reads platforms completely on which slots may be absent.
    pub(crate) fn confirm_absence(&mut self) {
        let mut platforms: Vec<&drover_core::Sym> = Vec::new();
        for at in 0..self.state.nodes.len() {
            let (node, mark) = (&self.state.nodes[at], self.marks[at]);
            let waits = mark.forgotten || mark.draining || !mark.visible;
            if waits || self.is_open(node.request) || node.settled == 0 {
                continue;
            }
            // Unseen, removal asked for, no longer or never listed: whatever else is known to be there.
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
                // Complete reads lack it and its agent answers: asked again later.
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
