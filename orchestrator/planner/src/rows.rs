//! Which rows of the store an operation concerns: the one place that classifies operations by what they write.

use std::collections::BTreeSet;

use drover_core::{Node, resource::ResourceKey};
use uuid::Uuid;

use crate::Op;

/// Rows that operations write or delete, besides the head of the cluster, which every step writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Nodes, by slot.
    pub nodes: BTreeSet<u64>,
    /// Requests.
    pub requests: BTreeSet<Uuid>,
    /// Records of infrastructure and addons.
    pub resources: BTreeSet<ResourceKey>,
}

impl Rows {
    /// The rows of several operations. `nodes` are those that the cluster has before them.
    #[must_use]
    pub fn of(ops: &[Op], nodes: &[Node]) -> Self {
        let mut rows = Self::default();
        for op in ops {
            rows.add(op, nodes);
        }
        rows
    }

    /// Number of rows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.nodes.len() + self.requests.len() + self.resources.len()
    }

    /// Adds the rows of one operation. `nodes` are those that the cluster has before it.
    pub fn add(&mut self, op: &Op, nodes: &[Node]) {
        match op {
            Op::StateChanged { slot, .. }
            | Op::Own { slot }
            | Op::NodeIdAssigned { slot, .. }
            | Op::Remove { slot, .. }
            | Op::Drain { slot, .. }
            | Op::Restamp { slot, .. }
            | Op::Template { slot, .. }
            | Op::RoleChange { slot, .. }
            | Op::HostLabels { slot, .. }
            | Op::Grown { slot, .. }
            | Op::Reached { slot, .. }
            | Op::RecordDropped { slot, .. } => {
                self.nodes.insert(*slot);
            }
            Op::TakeOrphan { node } => {
                self.nodes.insert(node.slot);
            }
            Op::Request { request, nodes, .. } => {
                self.requests.insert(request.id);
                self.nodes.extend(nodes.iter().map(|node| node.slot));
            }
            Op::Attempt { request, .. } | Op::MadeNothing { request } => {
                self.requests.insert(*request);
            }
            Op::Close { request, .. } => {
                self.requests.insert(*request);
                // Its nodes remember until when they may still show up.
                let own = nodes.iter().filter(|node| node.request == *request);
                self.nodes.extend(own.map(|node| node.slot));
            }
            Op::Rebind {
                slots, requests, ..
            } => {
                self.nodes.extend(slots);
                self.requests.extend(requests);
            }
            Op::Resource { key, .. } => {
                self.resources.insert(key.clone());
            }
            Op::Adopted { .. }
            | Op::BackOff { .. }
            | Op::Condition { .. }
            | Op::Rollout { .. }
            | Op::PeakSizeChanged { .. }
            | Op::Vacated { .. }
            | Op::Sole { .. }
            | Op::Abandon { .. }
            | Op::Sweep { .. }
            | Op::Observed { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(request: u128) -> Op {
        Op::Close {
            request: Uuid::from_u128(request),
            maybe_until: 1,
            settled: 1,
        }
    }

    #[test]
    fn rows_are_counted_once_however_many_operations_concern_them() {
        let id = Uuid::from_u128(1);
        let attempt = Op::Attempt {
            request: id,
            deadline: 1,
        };
        let own = Op::Own { slot: 4 };
        let drain = Op::Drain {
            slot: 4,
            until: 0,
            failed: None,
        };
        let rows = Rows::of(&[attempt, close(1), own, drain], &[]);
        assert_eq!(rows.nodes, [4].into());
        assert_eq!(rows.requests, [id].into());
        assert_eq!(rows.count(), 2);
    }

    #[test]
    fn what_stands_in_the_head_takes_no_row() {
        let ops = [
            Op::Observed { generation: 1 },
            Op::Adopted { order: 1 },
            Op::Sweep {
                uid: "u".into(),
                shown_by: None,
            },
        ];
        assert_eq!(Rows::of(&ops, &[]).count(), 0);
    }

    #[test]
    fn records_are_told_apart_by_backend_and_by_addon() {
        let infrastructure = |uid: &str| Op::Resource {
            key: ResourceKey::infrastructure("p", uid),
            to: None,
            change: crate::ResourceChange::Learn,
        };
        let addon = |name: &str| Op::Resource {
            key: ResourceKey::addon(name, "p", "u"),
            to: None,
            change: crate::ResourceChange::Learn,
        };
        let ops = [
            infrastructure("u"),
            infrastructure("v"),
            infrastructure("u"),
            addon("a"),
            addon("b"),
        ];
        assert_eq!(Rows::of(&ops, &[]).resources.len(), 4);
    }
}
