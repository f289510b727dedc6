//! Hosts on which nobody answers: what is to go from there is not known to be dead, and only a person can say so.

use std::collections::BTreeMap;

use drover_core::{Phase, node::LostHost};

use crate::{ConditionKey, ConditionKind, NO_GROUP, Planner};

/// Nodes that are to go, by their lost hosts.
type ByHost<'a> = BTreeMap<&'a str, (&'a LostHost, Vec<String>)>;

impl Planner<'_> {
    /// Reports the nodes that are to go and whose end nobody confirms, because their hosts are lost.
    pub(crate) fn state_lost_hosts(&mut self) {
        for group in 0..self.input.groups.len() {
            self.state_lost_hosts_of(group);
        }
    }

    fn state_lost_hosts_of(&mut self, group: usize) {
        let spec = &self.input.groups[group];
        let hosts = self.lost_hosts(self.own(group));
        if hosts.is_empty() {
            return;
        }
        let may_act = |at| self.lost_host(at).is_some() && self.marks[at].role.may_act();
        let acting = spec.standby > 0 && self.own(group).any(may_act);
        let is_sole = |at: usize| {
            let sole = self.sole(group);
            sole.is_some_and(|sole| sole.slot == self.state.nodes[at].slot)
        };
        let alone = (self.own(group)).any(|at| self.lost_host(at).is_some() && is_sole(at));
        let fences = spec.fences() && !alone;
        let consequence = if fences && spec.hands_on_storage() {
            "a standby takes over, and nothing is made instead"
        } else if fences {
            "it is kept out, and others take its place"
        } else if acting {
            "no standby takes over and nothing is made instead"
        } else if self.creates_first(group) {
            "its successor is one node more than wanted"
        } else {
            "nothing is made instead"
        };
        let reason = if hosts.values().all(|(host, _)| host.gone) {
            "Gone"
        } else {
            "Unreachable"
        };
        let message = describe(&hosts, consequence).join(". ");
        let key = ConditionKey {
            group: spec.path.clone(),
            kind: ConditionKind::HostLost,
        };
        self.hold(key, reason, &message);
        self.note(&spec.path, None, false, "HostLost", || message);
    }

    /// The same of nodes whose groups, or whose cluster, are deleted.
    pub(crate) fn deletions_on_lost_hosts(&self) -> Vec<String> {
        let unwanted = (0..self.marks.len()).filter(|&at| {
            let mark = &self.marks[at];
            mark.group == NO_GROUP && !mark.forgotten
        });
        describe(&self.lost_hosts(unwanted), "the deletion waits")
    }

    fn lost_hosts(&self, nodes: impl Iterator<Item = usize>) -> ByHost<'_> {
        let mut hosts = ByHost::new();
        for at in nodes {
            if let Some(host) = self.lost_host(at) {
                let (_, names) = hosts.entry(&host.name).or_insert((host, Vec::new()));
                names.push(self.state.nodes[at].name());
            }
        }
        hosts
    }

    /// The lost host of a node that is to go and may still run there.
    fn lost_host(&self, at: usize) -> Option<&LostHost> {
        let (mark, node) = (&self.marks[at], &self.state.nodes[at]);
        let ended = mark.fresh && matches!(node.seen.phase, Phase::Failed | Phase::Terminated);
        let awaited = mark.visible && !mark.dead && !ended && (mark.leaving || mark.sick);
        node.seen.host.lost.as_deref().filter(|_| awaited)
    }
}

fn describe(hosts: &ByHost<'_>, consequence: &str) -> Vec<String> {
    let hosts = hosts.values();
    hosts
        .map(|(host, names)| describe_one(host, names, consequence))
        .collect()
}

fn describe_one(host: &LostHost, names: &[String], consequence: &str) -> String {
    let LostHost {
        name,
        gone,
        message,
        way_out,
    } = host;
    let (verb, they_are) = match names {
        [_] => ("is", "it is"),
        _ => ("are", "they are"),
    };
    let state = if *gone {
        "is given up"
    } else {
        "does not answer"
    };
    let names = names.join(", ");
    let mut text = format!("{names} {verb} on {name}, which {state}");
    if !message.is_empty() {
        text.push_str(&format!(" ({message})"));
    }
    text.push_str(&format!(
        ", and may still run: until {they_are} proven dead {consequence}"
    ));
    if !way_out.is_empty() {
        text.push_str(&format!("; {way_out}"));
    }
    text
}
