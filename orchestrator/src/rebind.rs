//! Moves records to the new uid of a backend that the user has confirmed to be the same backend.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use drover_cluster::{Cluster, ClusterState, Interner, request};
use drover_core::{
    Error, Millis, Reason, Result, Sym, Urgency, node::Call as Attempt, resource::ResourceKey,
};
use drover_planner::{MAX_BYTES, MAX_ROWS, Op, Plan, ResourceChange, State};
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Clock, NewEvent, Step};
use uuid::Uuid;

use crate::{commit::Committer, fenced::of_a_part, queue::Queue, records::Records};

/// Maximum number of retries of a step that conflicted with a reconcile pass.
const MAX_TURNS: usize = 64;
/// Wait after a conflict until the pass has updated memory.
const SHORT_WAIT: std::time::Duration = std::time::Duration::from_millis(5);

/// One step of moving a cluster's records to another uid.
struct Move {
    step: Step,
    plan: Plan,
    bodies: Vec<(Uuid, Bytes)>,
    last: bool,
}

/// Moves the records of all clusters.
pub(crate) struct Rebinder {
    pub(crate) records: Arc<Records>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) interner: Arc<Interner>,
    pub(crate) queue: Queue,
    pub(crate) clock: Arc<Clock>,
}

impl Rebinder {
    /// Moves all records of a backend to its new uid. Resumable: when repeated after an interruption, it continues where it
    /// stopped. Records with the new uid count as unknown until the registration has that uid, too. Returns whether there
    /// were any records.
    ///
    /// # Errors
    /// Those of the store; `Conflict` if a cluster keeps changing meanwhile.
    async fn move_from(&self, name: &str, old: &str, new: &str) -> Result<bool> {
        let (name, old, new) = (
            self.interner.get(name),
            self.interner.get(old),
            self.interner.get(new),
        );
        let mut moved = false;
        for cluster in self.records.clusters().all() {
            let mut turns = 0;
            while let Some(next) = next_step(&cluster, &name, &old, &new, self.clock.now())? {
                let now = self.clock.now();
                let Move {
                    step,
                    plan,
                    bodies,
                    last,
                } = next;
                match self
                    .committer
                    .commit(&cluster, step, &plan, bodies, now)
                    .await
                {
                    Ok(()) => {
                        moved = true;
                        if last {
                            break;
                        }
                    }
                    Err(error) if error.reason() == Reason::Conflict && turns < MAX_TURNS => {
                        turns += 1;
                        tokio::time::sleep(SHORT_WAIT).await;
                    }
                    Err(error) if moved => return Err(of_a_part(error)),
                    Err(error) => return Err(error),
                }
            }
            self.queue.push(cluster.uid(), Urgency::Bulk);
        }
        Ok(moved)
    }

    /// Moves all records of a platform to one uid: those under its previous uid, and those under others that an interrupted
    /// move left behind. Returns whether there were any.
    ///
    /// # Errors
    /// As for [`Self::move_from`].
    pub(crate) async fn move_all(&self, name: &str, before: &str, uid: &str) -> Result<bool> {
        let mut others = BTreeSet::from([self.interner.get(before)]);
        for cluster in self.records.clusters().all() {
            let inner = cluster.lock();
            let state = &inner.state();
            let nodes = state.nodes.iter();
            let nodes = nodes.map(|it| (&it.platform, &it.platform_uid));
            let requests = (state.requests.values()).map(|it| (&it.platform, &it.platform_uid));
            let resources = state.resources.keys().map(|key| (&key.platform, &key.uid));
            others.extend(
                (nodes.chain(requests).chain(resources))
                    .filter(|(platform, _)| ***platform == *name)
                    .map(|(_, other)| other.clone()),
            );
        }
        others.retain(|other| **other != *uid);
        let mut moved = false;
        for other in others {
            let of_other = self.move_from(name, &other, uid).await;
            moved |= of_other.map_err(|error| if moved { of_a_part(error) } else { error })?;
        }
        Ok(moved)
    }
}

/// The next step of a cluster. `None` if it has no records under the old uid.
fn next_step(
    cluster: &Cluster,
    name: &Sym,
    old: &Sym,
    new: &Sym,
    now: Millis,
) -> Result<Option<Move>> {
    let inner = cluster.lock();
    let state = &inner.state();
    let key = (name.clone(), old.clone());
    let promised = state.is_abandoned(old) && !state.is_abandoned(new);
    if inner.is_finished() || !(promised || state.used.contains(&key)) {
        return Ok(None);
    }
    let mut slots: Vec<u64> = (state.nodes.iter())
        .filter(|node| node.platform == *name && node.platform_uid == *old)
        .map(|node| node.slot)
        .collect();
    let mut requests: Vec<Uuid> = (state.requests.values())
        .filter(|request| request.platform == *name && request.platform_uid == *old)
        .map(|request| request.id)
        .collect();
    let resources: Vec<&ResourceKey> = (state.resources.keys())
        .filter(|key| key.is_on(name, old))
        .collect();
    let all = slots.len() + requests.len();
    slots.truncate(MAX_ROWS);
    requests.truncate(MAX_ROWS - slots.len());
    let (mut bodies, mut bytes) = (Vec::new(), 0);
    for id in &requests {
        if bytes >= MAX_BYTES {
            break;
        }
        let body = rebound(&inner, id, new)?;
        bytes += body.len();
        bodies.push((*id, body));
    }
    requests.truncate(bodies.len());
    let nodes_are_last = slots.len() + requests.len() == all;
    let moved = if nodes_are_last {
        resources_that_fit(state, &resources, slots.len() + requests.len(), bytes)
    } else {
        &[]
    };
    let last = nodes_are_last && moved.len() == resources.len();
    let mut ops = vec![Op::Rebind {
        platform: name.clone(),
        from: old.clone(),
        to: new.clone(),
        slots,
        requests,
        last,
    }];
    ops.extend(moved.iter().flat_map(|key| resource_ops(state, key, new)));
    let mut step = inner.encode_step(&ops, &bodies, now);
    step.uid = cluster.uid();
    step.expect_desired = None;
    if last && state.used.contains(&(name.clone(), old.clone())) {
        step.events = vec![event(name, old, new, now)];
    }
    let plan = Plan {
        ops,
        ..Plan::default()
    };
    Ok(Some(Move {
        step,
        plan,
        bodies,
        last,
    }))
}

/// The first resources that a step has room for beside so many rows and bytes.
fn resources_that_fit<'k, 'r>(
    state: &State,
    resources: &'r [&'k ResourceKey],
    mut rows: usize,
    mut bytes: usize,
) -> &'r [&'k ResourceKey] {
    // One that is larger than all is moved alone.
    let least = usize::from(rows == 0).min(resources.len());
    let fit = resources.iter().take_while(|key| {
        // A row is put and another one deleted.
        rows += 2;
        bytes += state.resources[**key].body.len();
        rows <= MAX_ROWS && bytes < MAX_BYTES
    });
    &resources[..fit.count().max(least)]
}

/// Puts the record of a resource under the new uid, and deletes that under the old one.
fn resource_ops(state: &State, key: &ResourceKey, new: &Sym) -> [Op; 2] {
    let change = ResourceChange::Learn;
    // Calls in progress are under the old uid, under which nobody will look for their results: they are repeated.
    let mut record = state.resources[key].clone();
    record.in_flight.call = Attempt::default();
    let put = Op::Resource {
        key: ResourceKey {
            uid: new.clone(),
            ..key.clone()
        },
        to: Some(Box::new(record)),
        change,
    };
    let delete = Op::Resource {
        key: key.clone(),
        to: None,
        change,
    };
    [put, delete]
}

/// Re-encodes an open request for the backend's new uid.
fn rebound(inner: &ClusterState, id: &Uuid, uid: &str) -> Result<Bytes> {
    let body = inner
        .body(id)
        .ok_or_else(|| Error::internal("an open request is not there"))?;
    request::for_backend(body, uid)
}

fn event(platform: &str, old: &str, new: &str, now: Millis) -> NewEvent {
    NewEvent {
        time_ms: i64::try_from(now).unwrap_or(i64::MAX),
        severity: pb::EventSeverity::Warning.into(),
        reason: "PlatformRebound".to_owned(),
        message: format!("what is recorded on {platform} is kept under uid {new} instead of {old}"),
        platform: Some(platform.to_owned()),
        count: 1,
        ..NewEvent::default()
    }
}

#[cfg(test)]
mod tests;
