//! Drain: before its removal, addons let go of a node and its hook runs inside of it; how long the removal waits for both.

use drover_core::{Millis, NodeState, Phase, node::RemovalReason};

use crate::{Call, NO_GROUP, Op, Planner, observe::millis};

impl Planner<'_> {
    /// How long the hook of a node may run. 0 if it has none.
    fn hook_span(&self, at: usize) -> Millis {
        let mark = &self.marks[at];
        let (hook, grace) = if mark.group == NO_GROUP {
            let Some(one) = self.leaving(&self.state.nodes[at].group) else {
                return 0;
            };
            (one.pre_stop.as_ref(), one.grace)
        } else {
            let group = &self.input.groups[usize::from(mark.group)];
            let hook = group.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref());
            (hook, group.grace)
        };
        hook.map_or(0, |hook| millis(hook.timeout.min(grace)))
    }

    /// Starts the drain of a node that is to be removed, if it runs as far as is known.
    pub(crate) fn begin_drain(&mut self, at: usize, reason: RemovalReason) {
        let node = &self.state.nodes[at];
        let ran = matches!(
            node.state,
            NodeState::Starting | NodeState::Ready | NodeState::Unhealthy
        );
        let may = matches!(
            node.seen.phase,
            Phase::Running | Phase::Unseen | Phase::Unknown
        );
        // Nothing is run inside a node that is not ours yet.
        let dead = self.marks[at].dead
            || node.is_adopting()
            || node.seen.gone
            || matches!(reason, RemovalReason::Dead | RemovalReason::Orphan);
        if dead || !ran || !may || node.node_id.is_none() {
            return;
        }
        // A hook mostly ends the service, so it comes after the addons, with its own time.
        let span = self.hook_span(at) + self.release_span(at);
        if span > 0 {
            self.marks[at].draining = true;
            self.op(Op::Drain {
                slot: node.slot,
                until: self.input.now + span,
                failed: None,
            });
        }
    }

    /// Waits for addons, runs hooks, and ends drains that are over.
    pub(crate) fn drain(&mut self) {
        for at in 0..self.state.nodes.len() {
            let node = &self.state.nodes[at];
            let until = node.removal.map_or(0, |removal| removal.drain);
            if until == 0 || self.marks[at].forgotten {
                continue;
            }
            if self.full() {
                return;
            }
            // The hook keeps its time, however long addons take.
            let hook_from = until.saturating_sub(self.hook_span(at));
            let served = self.input.now < hook_from && self.is_served(at);
            let hooked = self.hook_span(at) > 0;
            let runs = matches!(
                node.seen.phase,
                Phase::Running | Phase::Unseen | Phase::Unknown
            ) && !node.seen.gone;
            let over: Option<Option<Box<str>>> = match &node.in_flight.changes.hook {
                Some(ended) => Some((**ended).clone().err()),
                None if !runs => Some(hooked.then(|| "the node ended".into())),
                // A hook that is in flight ends with its call.
                None if served || node.in_flight.call.in_flight => None,
                None if !hooked => Some(None),
                None if self.input.now >= until => Some(Some("its time was over".into())),
                None => None,
            };
            if let Some(failed) = over {
                self.op(Op::Drain {
                    slot: node.slot,
                    until: 0,
                    failed,
                });
                continue;
            }
            if served {
                self.wake(hook_from);
                let slot = node.slot;
                self.note_until("", Some(slot), false, "Draining", Some(hook_from), || {
                    "its addons let go of it before it goes".into()
                });
                continue;
            }
            if self.input.now < until {
                self.wake(until);
            }
            let view = self.input.platforms.get(&node.platform);
            let callable =
                view.is_some_and(|view| view.callable && *view.uid == *node.platform_uid);
            if node.in_flight.call.in_flight || !callable {
                continue;
            }
            if self.input.now < node.in_flight.call.next {
                self.wake(node.in_flight.call.next);
                continue;
            }
            let slot = node.slot;
            self.note("", Some(slot), true, "Draining", || {
                "its preStop hook runs before it goes".into()
            });
            self.plan.calls.push(Call::Drain { slot, until });
        }
    }
}
