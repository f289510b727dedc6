//! Numbers of nodes over all steps of a plan, and what becomes of their data, as plans and questions show them.

use std::collections::BTreeSet;

use drover_proto::orchestrator::v1::{ActionKind, Plan, PlanTotals, StorageRetention};

use crate::output::count;

/// Maximum number of nodes that are named.
const MAX_NAMED: usize = 5;

/// Reasons of actions that do not replace a node, where the plan does not say whether they do.
const NOT_REPLACING: [&str; 4] = ["ScaleUp", "ScaleDown", "Delete", "Orphan"];

/// How many nodes a plan creates, replaces and deletes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    totals: PlanTotals,
    /// Names of nodes whose data are deleted, in the order of the plan.
    losing: Vec<String>,
}

impl Tally {
    pub(crate) fn of(plan: &Plan) -> Self {
        Self {
            totals: plan.totals.unwrap_or_else(|| counted(plan)),
            losing: losing(plan),
        }
    }

    /// Whether nodes are deleted or replaced.
    pub(crate) fn removes(&self) -> bool {
        self.totals.replace_count + self.totals.delete_count > 0
    }

    /// `8 to create (1 now), 0 to replace, 0 to delete`.
    pub(crate) fn words(&self) -> String {
        let of = |all: u32, now: u32, what: &str| match now {
            now if now == all => format!("{all} to {what}"),
            0 => format!("{all} to {what} (none now)"),
            now => format!("{all} to {what} ({now} now)"),
        };
        let it = &self.totals;
        let mut words = format!(
            "{}, {}, {}",
            of(it.create_count, it.create_now_count, "create"),
            of(it.replace_count, it.replace_now_count, "replace"),
            of(it.delete_count, it.delete_now_count, "delete")
        );
        if it.grow_count > 0 {
            words.push_str(&format!(", storage of {} to grow", it.grow_count));
        }
        words
    }

    /// What becomes of the data of nodes that go: `data of 2 nodes DELETED: db-0, db-1`. Empty if none of them has any.
    pub(crate) fn data(&self) -> Vec<String> {
        let nodes = |number: u32| count(number as usize, "node");
        let mut lines = Vec::new();
        let deleted = self.totals.storage_deleted_count;
        if deleted > 0 {
            let named = &self.losing[..self.losing.len().min(MAX_NAMED)];
            let mut line = format!("data of {} DELETED", nodes(deleted));
            if !named.is_empty() {
                line.push_str(&format!(": {}", named.join(", ")));
                let more = (deleted as usize).saturating_sub(named.len());
                if more > 0 {
                    line.push_str(&format!(" and {more} more"));
                }
            }
            lines.push(line);
        }
        let kept = self.totals.storage_kept_count;
        if kept > 0 {
            lines.push(format!("data of {} kept", nodes(kept)));
        }
        lines
    }

    /// What a question about a cluster says before it asks, with a line end.
    pub(crate) fn stakes(&self, cluster: &str) -> String {
        let mut text = format!("cluster/{cluster}: {}\n", self.words());
        for line in self.data() {
            text.push_str(&format!("  {line}\n"));
        }
        text
    }
}

/// The totals of a plan of an orchestrator that does not send any.
fn counted(plan: &Plan) -> PlanTotals {
    let mut totals = PlanTotals::default();
    let mut going = BTreeSet::new();
    for action in &plan.actions {
        let nodes = action.count.max(1);
        let replaces = !NOT_REPLACING.contains(&&*action.reason);
        match action.kind() {
            ActionKind::Provision if !replaces => totals.create_now_count += nodes,
            ActionKind::Deprovision => {
                going.extend(action.node.as_deref());
                add_storage(&mut totals, action.storage(), nodes);
                if replaces {
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
    for renewal in &plan.renewals {
        let (begun, later): (Vec<_>, Vec<_>) =
            (renewal.nodes.iter()).partition(|node| going.contains(&*node.node));
        let begun = u32::try_from(begun.len()).unwrap_or(u32::MAX);
        totals.replace_count += renewal.node_count.saturating_sub(begun);
        for node in later {
            add_storage(&mut totals, node.storage(), 1);
        }
    }
    totals
}

fn add_storage(totals: &mut PlanTotals, fate: StorageRetention, nodes: u32) {
    match fate {
        StorageRetention::Delete => totals.storage_deleted_count += nodes,
        StorageRetention::Retain => totals.storage_kept_count += nodes,
        StorageRetention::Unspecified => {}
    }
}

fn losing(plan: &Plan) -> Vec<String> {
    let lost = |storage: StorageRetention| storage == StorageRetention::Delete;
    let now = (plan.actions.iter())
        .filter(|it| it.kind() == ActionKind::Deprovision && lost(it.storage()))
        .filter_map(|it| it.node_name.clone());
    let gone = plan.outlooks.iter().flat_map(|it| &it.removals);
    let gone: BTreeSet<&str> = gone.map(|it| &*it.node).collect();
    let renewed = plan.renewals.iter().flat_map(|it| &it.nodes);
    let renewed = renewed.filter(|it| !gone.contains(&*it.node));
    let renewed = (renewed.filter(|it| lost(it.storage()))).map(|it| it.node_name.clone());
    let later = plan.outlooks.iter().flat_map(|it| &it.removals);
    let later = (later.filter(|it| lost(it.storage()))).map(|it| it.node_name.clone());
    let mut names: Vec<String> = Vec::new();
    for name in now.chain(renewed).chain(later) {
        if !names.contains(&name) {
            names.push(name);
        }
        if names.len() > MAX_NAMED {
            break;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use drover_proto::orchestrator::v1::{
        Action, GroupOutlook, GroupRenewal, NodeRemoval, NodeRenewal,
    };

    use super::*;

    fn plan() -> Plan {
        let removal = |name: &str| NodeRemoval {
            node_name: name.into(),
            storage: StorageRetention::Delete.into(),
            ..Default::default()
        };
        Plan {
            actions: vec![Action {
                kind: ActionKind::Deprovision.into(),
                node_name: Some("db-8".into()),
                storage: StorageRetention::Delete.into(),
                ..Default::default()
            }],
            outlooks: vec![GroupOutlook {
                removals: ["db-7", "db-6", "db-5", "db-4", "db-3", "db-2"]
                    .map(removal)
                    .into(),
                removal_count: 7,
                ..Default::default()
            }],
            totals: Some(PlanTotals {
                create_count: 8,
                create_now_count: 0,
                delete_count: 9,
                delete_now_count: 1,
                storage_deleted_count: 8,
                storage_kept_count: 1,
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn all_steps_are_counted_and_those_of_now_told_apart() {
        let tally = Tally::of(&plan());
        assert_eq!(
            tally.words(),
            "8 to create (none now), 0 to replace, 9 to delete (1 now)"
        );
        assert!(tally.removes());
        assert!(!Tally::default().removes());
    }

    #[test]
    fn a_plan_without_totals_is_counted_by_its_steps() {
        let act = |kind: ActionKind, node: &str, reason: &str, storage: StorageRetention| Action {
            kind: kind.into(),
            node: Some(node.into()),
            node_name: Some(node.into()),
            count: 1,
            reason: reason.into(),
            storage: storage.into(),
            ..Default::default()
        };
        let none = StorageRetention::Unspecified;
        let renewed = |node: &str| NodeRenewal {
            node: node.into(),
            node_name: node.into(),
            storage: StorageRetention::Retain.into(),
            ..Default::default()
        };
        let older = Plan {
            actions: vec![
                act(ActionKind::Provision, "db-9", "ScaleUp", none),
                act(ActionKind::Provision, "db-8", "Update", none),
                act(
                    ActionKind::Deprovision,
                    "db-1",
                    "Outdated",
                    StorageRetention::Retain,
                ),
                act(
                    ActionKind::Deprovision,
                    "app-1",
                    "ScaleDown",
                    StorageRetention::Delete,
                ),
            ],
            renewals: vec![GroupRenewal {
                nodes: vec![renewed("db-1"), renewed("db-0")],
                node_count: 3,
                ..Default::default()
            }],
            totals: None,
            ..Default::default()
        };
        let tally = Tally::of(&older);
        assert!(tally.removes());
        assert_eq!(
            tally.stakes("shop"),
            "cluster/shop: 1 to create, 3 to replace (1 now), 1 to delete\n  \
             data of 1 node DELETED: app-1\n  data of 2 nodes kept\n"
        );
        assert!(!Tally::of(&Plan::default()).removes());
    }

    #[test]
    fn data_are_deleted_although_it_is_not_known_yet_whose() {
        let blind = Plan {
            totals: Some(PlanTotals {
                delete_count: 2,
                storage_deleted_count: 2,
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(Tally::of(&blind).data(), ["data of 2 nodes DELETED"]);
    }

    #[test]
    fn a_question_names_whose_data_are_lost() {
        assert_eq!(
            Tally::of(&plan()).stakes("shop"),
            "cluster/shop: 8 to create (none now), 0 to replace, 9 to delete (1 now)\n  \
             data of 8 nodes DELETED: db-8, db-7, db-6, db-5, db-4 and 3 more\n  \
             data of 1 node kept\n"
        );
    }
}
