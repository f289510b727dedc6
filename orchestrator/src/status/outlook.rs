//! What a plan leaves for later, and the numbers over all its steps.

use std::collections::BTreeSet;

use drover_convert::spec::to_retention;
use drover_core::{Node, storage::Retention};
use drover_planner::{Outlook, Plan, Removal, State};
use drover_proto::orchestrator::v1 as pb;

/// Maximum number of nodes of a group that are listed.
const MAX_NAMED: usize = 1_000;

pub(super) fn outlooks(plan: &Plan, state: &State) -> Vec<pb::GroupOutlook> {
    let moves = |one: &&Outlook| one.creations + one.unnamed.nodes > 0 || !one.removals.is_empty();
    let moving = plan.outlook.iter().filter(moves);
    moving.map(|one| outlook(one, state)).collect()
}

fn outlook(from: &Outlook, state: &State) -> pb::GroupOutlook {
    let removals = from.removals.iter().take(MAX_NAMED);
    pb::GroupOutlook {
        group: from.group.to_string(),
        create_count: from.creations,
        removals: removals.filter_map(|one| removal(*one, state)).collect(),
        removal_count: number(from.removals.len()).saturating_add(from.unnamed.nodes),
    }
}

fn removal(from: Removal, state: &State) -> Option<pb::NodeRemoval> {
    let node = state.node(from.slot)?;
    let fate = node.storage.then(|| Retention::of(from.retain));
    Some(pb::NodeRemoval {
        node: node.id(state.uid),
        node_name: node.name(),
        platform: node.platform.to_string(),
        storage: to_retention(fate).into(),
    })
}

/// Counts the actions of now, and what follows.
pub(super) fn totals(plan: &Plan, actions: &[pb::Action], state: &State) -> pb::PlanTotals {
    let mut totals = pb::PlanTotals::default();
    let mut going = BTreeSet::new();
    for action in actions {
        let nodes = action.count.max(1);
        match action.kind() {
            pb::ActionKind::Provision if !action.replaces => totals.create_now_count += nodes,
            pb::ActionKind::Deprovision => {
                going.extend(action.node.clone());
                add_storage(&mut totals, action.storage(), nodes);
                if action.replaces {
                    totals.replace_now_count += nodes;
                } else {
                    totals.delete_now_count += nodes;
                }
            }
            _ => {}
        }
    }
    totals.create_count = totals.create_now_count;
    totals.replace_count = totals.replace_now_count;
    totals.delete_count = totals.delete_now_count;
    // A node that goes without a replacement is not replaced, although it was to be at first.
    let later = plan.outlook.iter().flat_map(|outlook| &outlook.removals);
    let later = later.filter_map(|one| state.node(one.slot));
    going.extend(later.map(|node| node.id(state.uid)));
    for renewal in &plan.renewals {
        let policy = state.storage.get(&*renewal.group);
        let unnamed = (plan.outlook.iter()).find(|outlook| outlook.group == renewal.group);
        let unnamed = unnamed.map_or(0, |outlook| outlook.unnamed.nodes as usize);
        let stays = |node: &&Node| node.removal.is_none() && !going.contains(&node.id(state.uid));
        let own = (state.nodes.iter()).filter(|node| node.group == renewal.group);
        let most = own.filter(stays).count().saturating_sub(unnamed);
        let renewed = renewal.order.iter().filter_map(|slot| state.node(*slot));
        for node in renewed.filter(stays).take(most) {
            totals.replace_count += 1;
            let fate = policy.filter(|_| node.storage).map(|it| it.replaced);
            add_storage(&mut totals, to_retention(fate), 1);
        }
    }
    for outlook in &plan.outlook {
        totals.create_count += outlook.creations;
        totals.grow_count += outlook.growths;
        let unnamed = outlook.unnamed;
        totals.delete_count += number(outlook.removals.len()) + unnamed.nodes;
        totals.storage_deleted_count += unnamed.losing;
        totals.storage_kept_count += unnamed.keeping;
        for one in &outlook.removals {
            let stored = state.node(one.slot).is_some_and(|node| node.storage);
            let fate = stored.then(|| Retention::of(one.retain));
            add_storage(&mut totals, to_retention(fate), 1);
        }
    }
    totals
}

fn add_storage(totals: &mut pb::PlanTotals, fate: pb::StorageRetention, nodes: u32) {
    match fate {
        pb::StorageRetention::Delete => totals.storage_deleted_count += nodes,
        pb::StorageRetention::Retain => totals.storage_kept_count += nodes,
        pb::StorageRetention::Unspecified => {}
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
