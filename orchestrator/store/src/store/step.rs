//! Writes of the owner of a cluster: one step is one transaction.

use bytes::Bytes;
use drover_core::{Error, Reason, Result};
use uuid::Uuid;

use super::{Owned, Store, commit::Marker, events};
use crate::{
    backend::{Expect, Lane, Op, Range, Revision, Txn},
    keys::{self, Name},
    value::{Head, NewEvent, Tombstone, marked, new_txn_id},
};

/// Maximum number of node records that one step writes or deletes; a larger request is split into several.
pub const MAX_STEP_NODES: usize = 90;

/// One durable step of a cluster. A cluster has one step in flight at a time.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Uid of the cluster.
    pub uid: Uuid,
    /// Revision of the head that `head` is based on, 0 if there was none.
    pub expect_head: Revision,
    /// Revision of the desired state that the plan is based on. `None` if the step does not depend on it.
    pub expect_desired: Option<Revision>,
    /// The new head, based on the one at `expect_head`.
    pub head: Head,
    /// Node records to write, by slot.
    pub put_nodes: Vec<(u64, Bytes)>,
    /// Slots whose records are deleted.
    pub delete_nodes: Vec<u64>,
    /// Provision requests to store, by id, byte for byte as they are sent.
    pub put_requests: Vec<(String, Bytes)>,
    /// Ids of closed provision requests.
    pub delete_requests: Vec<String>,
    /// Records of infrastructure and addons to write: kind, name, record.
    pub put_resources: Vec<(String, String, Bytes)>,
    /// Kinds and names of those to delete.
    pub delete_resources: Vec<(String, String)>,
    /// Events in order; the store numbers them.
    pub events: Vec<NewEvent>,
}

/// Result of a durable step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepDone {
    /// Revision of everything that it wrote, and `expect_head` of the next step.
    pub revision: Revision,
    /// Number of the newest event.
    pub last_seq: u64,
    /// The head as it was stored, for the next step.
    pub head: Head,
}

/// The end of a cluster. None of its node, request or resource records may be left.
#[derive(Clone, Debug, Default)]
pub struct Finish {
    /// Uid of the cluster.
    pub uid: Uuid,
    /// Name of the cluster.
    pub name: String,
    /// Revision of its head, 0 if it has none.
    pub expect_head: Revision,
    /// Revision of its desired state, so that an apply in the meantime wins.
    pub expect_desired: Revision,
    /// The head at `expect_head`.
    pub head: Head,
    /// Its last events, in order.
    pub events: Vec<NewEvent>,
    /// When its deletion was finished, in ms since 1970.
    pub delete_time_ms: i64,
    /// All platforms that it ever used, encoded by the orchestrator.
    pub platforms: Bytes,
}

impl Store {
    /// Makes a step durable.
    ///
    /// `FENCED` if the shard was lost. `CONFLICT` if the head or desired state was changed in the meantime; the
    /// metadata `changed` says which (`head` or `desired`). `UNAVAILABLE` after a lost response that could not be
    /// resolved: load the cluster again. In all other cases nothing was written.
    pub async fn step(&self, owned: &Owned, step: Step, lane: Lane) -> Result<StepDone> {
        let fence = owned.fence(step.uid)?;
        let marker = Marker {
            key: Name::Head(step.uid).into(),
            txn: new_txn_id(),
        };
        let (txn, head) = transaction(step, &marker)?;
        let revision = self.commit_owned(fence, txn, lane, &marker).await?;
        Ok(StepDone {
            revision,
            last_seq: head.last_seq,
            head,
        })
    }

    /// Ends a cluster: its name becomes free, its tombstone and events stay.
    ///
    /// Errors as for [`Store::step`]; `FAILED_PRECONDITION` if records of it are left.
    pub async fn finish_cluster(&self, owned: &Owned, finish: Finish) -> Result<StepDone> {
        let Finish {
            uid,
            name,
            expect_head,
            expect_desired,
            mut head,
            events,
            delete_time_ms,
            platforms,
        } = finish;
        let fence = owned.fence(uid)?;
        self.refuse_leftovers(uid).await?;
        let marker = Marker {
            key: Name::Tombstone(uid).into(),
            txn: new_txn_id(),
        };
        let (desired, head_key) = (Name::Desired(uid).into(), Name::Head(uid).into());
        let mut txn = Txn::default()
            .expect(Clone::clone(&head_key), Expect::at(expect_head))
            .expect(Clone::clone(&desired), Expect::Revision(expect_desired))
            .delete(desired)
            .delete(head_key)
            .delete(Name::ClusterName(name.clone()).into());
        events::append(uid, &mut head, events, &mut txn.ops);
        let tombstone = Tombstone {
            name,
            delete_time_ms,
            next_sequence: head.next_sequence,
            platforms,
            last_seq: head.last_seq,
            first_seq: head.first_seq,
        };
        let txn = txn.put(marker.key.clone(), marked(&tombstone, &marker.txn));
        let revision = self.commit_owned(fence, txn, Lane::Bulk, &marker).await?;
        Ok(StepDone {
            revision,
            last_seq: head.last_seq,
            head,
        })
    }

    /// All writes of the owner change the head, so this read is still valid if the head is as expected.
    async fn refuse_leftovers(&self, uid: Uuid) -> Result<()> {
        let range = Range {
            limit: Some(3),
            ..Range::prefix(&keys::cluster(uid))
        };
        let entries = self.backend.scan(range, 3).await?.collect().await?;
        let left = |name: &Name| !matches!(name, Name::Desired(_) | Name::Head(_));
        match entries
            .iter()
            .find(|entry| entry.key.parse().as_ref().is_none_or(left))
        {
            Some(entry) => Err(Error::new(
                Reason::Precondition,
                format!(
                    "{} is left of the cluster, so it is not finished",
                    entry.key
                ),
            )),
            None => Ok(()),
        }
    }
}

fn transaction(step: Step, marker: &Marker) -> Result<(Txn, Head)> {
    let uid = step.uid;
    let nodes = step.put_nodes.len() + step.delete_nodes.len();
    if nodes > MAX_STEP_NODES {
        return Err(Error::internal(format!(
            "a step holds {nodes} nodes, at most {MAX_STEP_NODES} are possible"
        )));
    }
    let mut head = step.head;
    let mut txn = Txn::default().expect(marker.key.clone(), Expect::at(step.expect_head));
    if let Some(revision) = step.expect_desired {
        txn = txn.expect(Name::Desired(uid).into(), Expect::at(revision));
    }
    let put = |name: Name, value: Bytes| Op::Put {
        key: name.into(),
        value,
    };
    let delete = |name: Name| Op::Delete { key: name.into() };
    txn.ops.reserve(nodes + 4);
    txn.ops.extend(
        step.put_nodes
            .into_iter()
            .map(|(slot, value)| put(Name::Node(uid, slot), value)),
    );
    txn.ops.extend(
        step.delete_nodes
            .into_iter()
            .map(|slot| delete(Name::Node(uid, slot))),
    );
    txn.ops.extend(
        step.put_requests
            .into_iter()
            .map(|(id, value)| put(Name::Request(uid, id), value)),
    );
    txn.ops.extend(
        step.delete_requests
            .into_iter()
            .map(|id| delete(Name::Request(uid, id))),
    );
    for (kind, name, value) in step.put_resources {
        check_kind(&kind)?;
        txn.ops.push(put(Name::Resource(uid, kind, name), value));
    }
    txn.ops.extend(
        step.delete_resources
            .into_iter()
            .map(|(kind, name)| delete(Name::Resource(uid, kind, name))),
    );
    events::append(uid, &mut head, step.events, &mut txn.ops);
    events::trim_by_number(uid, &mut head, &mut txn.ops);
    Ok((
        txn.put(marker.key.clone(), marked(&head, &marker.txn)),
        head,
    ))
}

fn check_kind(kind: &str) -> Result<()> {
    if kind.contains('/') {
        return Err(Error::internal(format!(
            "the kind of resource {kind:?} has a slash"
        )));
    }
    Ok(())
}
