//! Nodes that serve, but lack something that their probe names: nobody is replaced for it, and people are told.

use crate::{ConditionKey, ConditionKind, Planner};

impl Planner<'_> {
    /// Reports for each group what its nodes lack.
    pub(crate) fn state_impairments(&mut self) {
        for group in 0..self.input.groups.len() {
            self.state_impairments_of(group);
        }
    }

    fn state_impairments_of(&mut self, group: usize) {
        let probe = &self.health(group as u16).probe;
        if probe.impairments().is_empty() {
            return;
        }
        let mut reason = None;
        let mut words = Vec::new();
        for at in self.own(group).filter(|&at| !self.marks[at].dead) {
            let node = &self.state.nodes[at];
            for one in probe.impaired(node.probe.impaired) {
                reason = reason.or(Some(&one.reason));
                words.push(format!("{}: {}", node.name(), one.words()));
            }
        }
        if let Some(reason) = reason {
            let key = ConditionKey {
                group: self.input.groups[group].path.clone(),
                kind: ConditionKind::Impaired,
            };
            self.hold(key, reason, &words.join("; "));
        }
    }
}
