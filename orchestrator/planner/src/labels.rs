//! Labels of hosts: a change reaches the hosts of existing nodes through their platforms, and replaces nothing.

use drover_core::{Phase, Sym, node::CHANGING};

use crate::{Call, ConditionKey, ConditionKind, Op, Planner};

impl Planner<'_> {
    /// Has platforms change the labels of hosts that have others than their group wants.
    pub(crate) fn relabel(&mut self, group: usize) {
        let due: Vec<(usize, Sym)> = self
            .own(group)
            .filter_map(|at| Some((at, self.due_labels(group, at)?)))
            .collect();
        for (at, wanted) in due {
            if self.full() {
                return;
            }
            self.relabel_host(group, at, &wanted);
        }
    }

    /// Hash of the labels that the host of a node is to get. `None` if it has them, and as long as they do not matter: an
    /// outdated node gets them with its replacement.
    fn due_labels(&self, group: usize, at: usize) -> Option<Sym> {
        let (mark, node) = (&self.marks[at], &self.state.nodes[at]);
        if mark.leaving || mark.dead || node.is_adopting() || node.node_id.is_none() {
            return None;
        }
        let group = &self.input.groups[group];
        let growing = || Some(group.growth_of(node).filter(|_| self.grows(at))?.0);
        let choice = group.choice_for(node).or_else(growing)?;
        let (wanted, recorded) = (&choice.labels_hash, choice.labels_of(node));
        // Hosts that have none and never will are not asked about them.
        let may_differ = **recorded != *CHANGING || !wanted.is_empty() || self.relabels(at);
        (recorded != wanted && may_differ).then(|| wanted.clone())
    }

    /// Whether the platform of a node changes the labels of its host in place, as far as is known.
    fn relabels(&self, at: usize) -> bool {
        let view = self.input.platforms.get(&self.state.nodes[at].platform);
        view.is_some_and(|view| view.relabels)
    }

    fn relabel_host(&mut self, group: usize, at: usize, wanted: &Sym) {
        let path = &self.input.groups[group].path;
        let node = &self.state.nodes[at];
        let (slot, platform) = (node.slot, &node.platform);
        let change = node.in_flight.changes.relabel.as_deref();
        if let Some(change) = change.filter(|change| change.call.failures > 0) {
            let message = format!("labels of {}: {}", node.name(), change.message);
            let key = ConditionKey {
                group: path.clone(),
                kind: ConditionKind::UpdateBlocked,
            };
            self.hold(key, "HostLabels", &message);
        }
        if change.is_some_and(|change| change.call.in_flight) {
            self.note(path, Some(slot), false, "HostLabels", || {
                "the labels of its host are being changed".into()
            });
            return;
        }
        let confirmed = change.and_then(|change| change.done.clone());
        if let Some(hash) = confirmed.filter(|hash| *hash != node.labels_hash) {
            self.op(Op::HostLabels { slot, hash });
            return;
        }
        let view = self.input.platforms.get(platform);
        // A request that is sent once more would write the labels that it was made with.
        let callable = view.is_some_and(|view| view.callable) && !self.is_open(node.request);
        if !self.marks[at].fresh || node.seen.phase == Phase::Unseen || !callable {
            self.note(path, Some(slot), false, "HostLabels", || {
                format!("the labels of its host are changed when {platform} shows it")
            });
            return;
        }
        if !self.relabels(at) {
            let message = format!(
                "labels of {}: {platform} cannot change them in place (capability RelabelHosts); a node that replaces it \
                 gets those of the group",
                node.name()
            );
            let key = ConditionKey {
                group: path.clone(),
                kind: ConditionKind::UpdateBlocked,
            };
            self.hold(key, "HostLabels", &message);
            self.note(path, Some(slot), false, "HostLabels", || message);
            return;
        }
        let next = change.map_or(0, |change| change.call.next);
        if self.input.now < next {
            self.wake(next);
            self.note_until(path, Some(slot), false, "BackOff", Some(next), || {
                "the change of its host's labels is tried again then".into()
            });
            return;
        }
        self.note(path, Some(slot), true, "HostLabels", || {
            if wanted.is_empty() {
                "the labels of its host are taken off".into()
            } else {
                "the labels of its host are changed".into()
            }
        });
        if *node.labels_hash != *CHANGING {
            self.op(Op::HostLabels {
                slot,
                hash: CHANGING.into(),
            });
        }
        self.plan.calls.push(Call::Relabel { slot });
    }

    /// Whether all hosts of a group have the labels that it wants, as far as is recorded.
    pub(crate) fn is_labelled(&self, group: usize) -> bool {
        self.own(group)
            .all(|at| self.due_labels(group, at).is_none())
    }
}
