//! Things of ours that no record knows: swept after a grace, unless the store itself may be behind.

use drover_core::{
    Node, NodeState, Sym,
    node::{Call, ProbeResult, Removal, RemovalReason, Seen},
    spec::OrphanPolicy,
};

use crate::{ConditionKey, ConditionKind, Op, Orphan, Planner};

impl Planner<'_> {
    /// Conditions that freeze a cluster; found before anything else is decided.
    pub(crate) fn freeze(&mut self) {
        let behind = self
            .state
            .orphans
            .iter()
            .find(|(_, orphan)| orphan.sequence >= self.state.next_sequence);
        self.behind = behind.is_some();
        self.adopting = self.state.adopts()
            && !(self.state.orphans.is_empty() && self.state.foreign.is_empty());
        if let Some(((platform, _), orphan)) = behind {
            let message = format!(
                "{platform} shows request number {} of this cluster, and this store never gave out more than {}: the \
                 store is older than reality, and nothing is made or deleted. Restore a newer backup, or keep what is \
                 there: drover apply --adopt",
                orphan.sequence,
                self.state.next_sequence.saturating_sub(1),
            );
            self.hold(
                ConditionKey {
                    group: "".into(),
                    kind: ConditionKind::StoreBehind,
                },
                "StoreBehind",
                &message,
            );
        }
        if !self.state.foreign.is_empty() {
            let mut platforms: Vec<&str> =
                self.state.foreign.keys().map(|(name, _)| &**name).collect();
            let count = platforms.len();
            platforms.dedup();
            let message = format!(
                "others have nodes of this cluster id on {}: {count}; nothing is made until they are gone. Take them \
                 over: drover apply --adopt; or choose another name",
                platforms.join(", ")
            );
            self.hold(
                ConditionKey {
                    group: "".into(),
                    kind: ConditionKind::ForeignNodes,
                },
                "ForeignNodes",
                &message,
            );
        }
    }

    pub(crate) fn sweep_orphans(&mut self) {
        if self.state.orphans.is_empty() {
            return;
        }
        // Who deletes the cluster means everything that is its own.
        let held =
            self.input.orphan_hold || self.state.adopts() || (self.behind && !self.state.deleting);
        let ignored = self.input.orphans == OrphanPolicy::Ignore && !self.state.deleting;
        let orphans: Vec<(&(Sym, Box<str>), &Orphan)> = self.state.orphans.iter().collect();
        for ((platform, node_id), orphan) in orphans {
            let why = format!("{node_id} on {platform} is ours and has no record");
            if held || ignored {
                let reason = if held { "StoreBehind" } else { "Orphan" };
                self.note(&orphan.group, None, false, reason, || why);
                continue;
            }
            let due = orphan.since + self.input.orphan_grace;
            if self.input.now < due {
                self.wake(due);
                self.note_until(&orphan.group, None, false, "Grace", Some(due), || why);
                continue;
            }
            let visible = self
                .input
                .platforms
                .get(platform)
                .is_some_and(|view| view.sees(&orphan.platform_uid));
            if !visible || self.full() {
                continue;
            }
            let adopted = self.input.orphans == OrphanPolicy::Adopt && !self.state.deleting;
            if adopted && self.paths.contains_key(&*orphan.group) {
                self.keep_orphan(platform, node_id, orphan);
                continue;
            }
            let node = self.record(platform, node_id, orphan);
            self.next_slot += 1;
            self.op(Op::TakeOrphan {
                node: Box::new(node),
            });
            self.plan.again = true;
        }
    }

    fn record(&self, platform: &Sym, node_id: &str, orphan: &Orphan) -> Node {
        let now = self.input.now;
        let (storage, retain) = self.orphan_storage(&orphan.group);
        let mut node = Node {
            slot: self.next_slot,
            request: orphan.request,
            index: orphan.index,
            ordinal: orphan.ordinal,
            sequence: orphan.sequence,
            group: orphan.group.clone(),
            platform: platform.clone(),
            platform_uid: orphan.platform_uid.clone(),
            class: Sym::default(),
            host: Sym::default(),
            version: Sym::default(),
            spec_hash: Sym::default(),
            template: Sym::default(),
            attempts: 0,
            create_time: now,
            state: NodeState::Draining,
            state_time: now,
            reason: RemovalReason::Orphan.as_str().into(),
            message: "is ours and had no record".into(),
            marked: false,
            stable: false,
            role: drover_core::node::Role::Active,
            storage,
            node_id: Some(node_id.into()),
            removal: Some(Removal {
                reason: RemovalReason::Orphan,
                since: now,
                retain,
                drain: 0,
            }),
            settled: now,
            maybe_until: now,
            given_id: None,
            adoption: None,
            seen: Seen {
                last: now,
                ..Seen::default()
            },
            probe: ProbeResult::default(),
            call: Call::default(),
            turn: None,
            hook: None,
        };
        node.keep_id(&orphan.id, self.state.uid);
        node
    }
}
