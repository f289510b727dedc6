//! Orphans: our nodes without a record, swept after a grace period, unless the store itself may be behind.

use std::{collections::BTreeMap, sync::Arc};

use drover_core::{
    Node, NodeState, Rare, Sym,
    node::{Origin, Record, Removal, RemovalReason, Seen},
    spec::OrphanPolicy,
};

use crate::{ConditionKey, ConditionKind, Op, Orphan, Planner};

/// Names of orphans that stay where they are, by platform and cause.
#[derive(Default)]
pub(crate) struct Kept<'a>(BTreeMap<(&'a Sym, &'static str), Vec<String>>);

impl<'a> Kept<'a> {
    pub(crate) fn add(&mut self, platform: &'a Sym, why: &'static str, name: String) {
        self.0.entry((platform, why)).or_default().push(name);
    }
}

/// Maximum number of orphans that a message names.
const NAMED: usize = 3;
const RESTORED: &str = "the store was restored; they are swept once a person says so: \
                        drover-orchestrator store confirm-restore";
const ABANDONED: &str = "its platform was abandoned; drover abandon --delete-nodes deletes them, drover apply --adopt \
                         takes them in";
const IGNORED: &str = "the spec ignores orphans; with orphans: Delete they are swept, drover apply --adopt takes them in";
pub(crate) const OUT_OF_SIGHT: &str =
    "it cannot be seen, so they cannot be swept; bring it back, or drover abandon gives it up";

impl<'a> Planner<'a> {
    /// Detects the conditions that freeze a cluster, before anything else is decided.
    pub(crate) fn freeze(&mut self) {
        let behind = self.behind_by();
        self.behind = behind.is_some();
        // Nodes created while a platform is not visible would be too many once it shows the ones to adopt.
        self.adopting = self.state.adopts()
            && !(self.state.orphans.is_empty()
                && self.state.resource_orphans.is_empty()
                && self.state.foreign.is_empty()
                && self.hidden().is_none());
        if let Some((platform, sequence)) = behind {
            let message = format!(
                "{platform} shows request number {sequence} of this cluster, and this store never gave it out: the store is \
                 older than reality, and nothing is made or deleted. Restore a newer backup, or keep what is there: drover \
                 apply --adopt, with a spec that names it",
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

    /// A request that this record never gave out, and the platform that shows it.
    fn behind_by(&self) -> Option<(&'a Sym, u64)> {
        let nodes = self.state.orphans.iter();
        let nodes = nodes.map(|((platform, _), orphan)| (platform, orphan.sequence));
        let resources = self.state.resource_orphans.iter();
        let resources = resources.filter_map(|(key, one)| Some((&key.platform, one.sequence?)));
        let mut shown = nodes.chain(resources);
        shown.find(|(_, sequence)| !self.state.gave_out(*sequence))
    }

    pub(crate) fn sweep_orphans(&mut self) {
        let state = self.state;
        if state.orphans.is_empty() && state.resource_orphans.is_empty() {
            return;
        }
        let mut kept = Kept::default();
        for ((platform, node_id), orphan) in &state.orphans {
            let why = format!("{node_id} on {platform} is ours and has no record");
            if let Some((reason, stays)) = self.keeps_orphan(&orphan.platform_uid) {
                self.note(&orphan.group, None, false, reason, || why);
                if !stays.is_empty() {
                    kept.add(platform, stays, node_id.to_string());
                }
                continue;
            }
            let due = orphan.since + self.input.orphan_grace;
            if self.input.now < due {
                self.wake(due);
                self.note_until(&orphan.group, None, false, "Grace", Some(due), || why);
                continue;
            }
            if !self.sees_orphan(platform, orphan) {
                kept.add(platform, OUT_OF_SIGHT, node_id.to_string());
                continue;
            }
            if self.full() {
                continue;
            }
            let adopted = self.input.orphans == OrphanPolicy::Adopt && !state.deleting;
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
        self.sweep_resources(&mut kept);
        self.state_orphans(&kept.0);
    }

    pub(crate) fn sees_orphan(&self, platform: &Sym, orphan: &Orphan) -> bool {
        let view = self.input.platforms.get(platform);
        view.is_some_and(|view| view.sees(&orphan.platform_uid))
    }

    /// Why an orphan is not swept, however old it is: as a single word, and for people. The deletion of a cluster
    /// includes its orphans.
    pub(crate) fn keeps_orphan(&self, uid: &str) -> Option<(&'static str, &'static str)> {
        if self.input.orphan_hold {
            return Some(("StoreBehind", RESTORED));
        }
        // The order, or the condition of a store that is behind, already reports it.
        if self.state.adopts() || (self.behind && !self.state.deleting) {
            return Some(("StoreBehind", ""));
        }
        if self.state.deleting {
            return None;
        }
        if self.state.may_be_abandoned(uid) {
            return Some(("Abandoned", ABANDONED));
        }
        (self.input.orphans == OrphanPolicy::Ignore).then_some(("Orphan", IGNORED))
    }

    fn state_orphans(&mut self, kept: &BTreeMap<(&Sym, &'static str), Vec<String>>) {
        if kept.is_empty() {
            return;
        }
        let words: Vec<String> = kept
            .iter()
            .map(|((platform, why), ids)| {
                let more = if ids.len() > NAMED { ", …" } else { "" };
                let named = ids[..ids.len().min(NAMED)].join(", ");
                format!(
                    "{} of ours without a record on {platform} ({named}{more}): {why}",
                    ids.len()
                )
            })
            .collect();
        let key = ConditionKey {
            group: "".into(),
            kind: ConditionKind::Orphans,
        };
        self.hold(key, "Kept", &words.join("; "));
    }

    /// The record of an orphan that is to be swept: it is created with its removal already intended.
    fn record(&self, platform: &Sym, node_id: &str, orphan: &Orphan) -> Node {
        let now = self.input.now;
        let (storage, retain) = self.orphan_storage(&orphan.group);
        let mut node = Node {
            seen: Seen {
                last: now,
                ..Seen::default()
            },
            ..Node::new(Record {
                origin: Arc::new(Origin {
                    request: orphan.request,
                    sequence: orphan.sequence,
                    group: orphan.group.clone(),
                    platform: platform.clone(),
                    platform_uid: orphan.platform_uid.clone(),
                    class: Sym::default(),
                    version: Sym::default(),
                    spec_hash: Sym::default(),
                    storage_size: None,
                    storage,
                }),
                slot: self.next_slot,
                index: orphan.index,
                ordinal: orphan.ordinal,
                host: Sym::default(),
                template: Sym::default(),
                labels_hash: Sym::default(),
                attempts: 0,
                create_time: now,
                state: NodeState::Draining,
                state_time: now,
                reason: RemovalReason::Orphan.as_str().into(),
                message: "is ours and had no record".into(),
                marked: false,
                stable: false,
                role: drover_core::node::Role::Active,
                node_id: Some(node_id.into()),
                removal: Some(Removal {
                    reason: RemovalReason::Orphan,
                    since: now,
                    retain,
                    drain: 0,
                }),
                settled: now,
                maybe_until: now,
                reached: None,
                adopted: Rare::default(),
            })
        };
        node.keep_id(&orphan.id, self.state.uid);
        node
    }
}
