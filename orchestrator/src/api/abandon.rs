//! Giving up what was recorded on a backend that will never answer again.

use std::collections::BTreeMap;

use drover_core::{Error, Millis, Reason, Result, Sym};
use drover_planner::{Op, Plan};
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Lane, NewEvent, Step};

use super::Api;
use crate::{
    cluster::{Cluster, Inner},
    infrastructure,
    queue::Urgency,
    step,
};

/// Nodes in one step of the store. More than a request has, so that the nodes of one stay together.
const MAX_NODES: usize = drover_planner::MAX_ROWS;
/// How often a step is made anew because a pass was quicker.
const MAX_TURNS: usize = 64;

/// What is given up of a cluster.
type Backend = (Sym, Sym);

impl Api {
    pub(super) async fn abandon(
        &self,
        request: pb::AbandonPlatformRequest,
    ) -> Result<pb::AbandonPlatformResponse> {
        let cluster = self.find_to_change(&request.cluster)?;
        let _change = cluster.change.lock().await;
        let Some(backend) = chosen(&cluster.inner.lock(), &request)? else {
            // It was abandoned before, or is proven free of the cluster.
            self.shared.require_platform(&request.platform)?;
            let revision = self.shared.revision();
            return Ok(pb::AbandonPlatformResponse {
                cluster: Some(self.shown(&cluster)),
                nodes: Vec::new(),
                revision,
            });
        };
        self.refuse_reachable(&backend)?;
        let mut nodes = Vec::new();
        let mut turns = 0;
        loop {
            let now = self.shared.now();
            let (step, plan, ids, last) =
                next_step(&cluster, &mut cluster.inner.lock(), &backend, now);
            match self
                .shared
                .store
                .step(self.shared.shards.of(cluster.uid), step, Lane::Bulk)
                .await
            {
                Ok(done) => {
                    step::take_over(&self.shared, &cluster, &plan, Vec::new(), done, now);
                    nodes.extend(ids);
                }
                // A pass was quicker, and memory is about to show what it did.
                Err(error) if error.reason() == Reason::Conflict && turns < MAX_TURNS => {
                    turns += 1;
                    self.refuse_reachable(&backend)?;
                    tokio::time::sleep(super::SHORT_WAIT).await;
                    continue;
                }
                Err(error) => return Err(error),
            }
            if last {
                break;
            }
        }
        {
            let mut inner = cluster.inner.lock();
            inner.state.used.remove(&backend);
            self.shared.changed(&cluster, &mut inner);
        }
        self.shared.queue.push(cluster.uid, Urgency::Bulk);
        let revision = self.shared.revision();
        Ok(pb::AbandonPlatformResponse {
            cluster: Some(self.shown(&cluster)),
            nodes,
            revision,
        })
    }

    fn refuse_reachable(&self, (platform, uid): &Backend) -> Result<()> {
        let Some(registered) = self.shared.platform(platform) else {
            return Ok(());
        };
        if registered.platform.registration().uid == **uid
            && registered.platform.is_visible(self.shared.now())
        {
            let message = format!(
                "{platform} answers; delete or change what is there instead of abandoning it"
            );
            return Err(Error::new(Reason::PlatformReachable, message));
        }
        Ok(())
    }
}

/// The backend that is meant. None: the cluster has nothing there.
fn chosen(inner: &Inner, request: &pb::AbandonPlatformRequest) -> Result<Option<Backend>> {
    let used: Vec<&Backend> = inner
        .state
        .used
        .iter()
        .filter(|(name, _)| **name == *request.platform)
        .collect();
    match &request.platform_uid {
        Some(uid) => match used.iter().find(|(_, own)| **own == **uid) {
            Some(backend) => Ok(Some((*backend).clone())),
            None => Err(Error::not_found("backend", uid.as_str())),
        },
        None if used.len() > 1 => {
            let uids: Vec<&str> = used.iter().map(|(_, uid)| &**uid).collect();
            Err(Error::invalid(
                "platform_uid",
                format!("is missing; expected one of {}", uids.join(", ")),
            ))
        }
        None => Ok(used.first().map(|backend| (*backend).clone())),
    }
}

/// The next step, what it does, the nodes that it drops, and whether it is the last one.
fn next_step(
    cluster: &Cluster,
    inner: &mut Inner,
    backend: &Backend,
    now: Millis,
) -> (Step, Plan, Vec<String>, bool) {
    let (platform, uid) = backend;
    let mut by_request: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    for node in inner
        .state
        .nodes
        .iter()
        .filter(|node| node.platform == *platform && node.platform_uid == *uid)
    {
        by_request.entry(node.request).or_default().push(node.slot);
    }
    for request in inner
        .state
        .requests
        .values()
        .filter(|r| r.platform == *platform && r.platform_uid == *uid)
    {
        by_request.entry(request.id).or_default();
    }
    let (mut ops, mut events, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    let (mut rows, mut last) = (0, true);
    for (request, slots) in by_request {
        if rows > 0 && rows + slots.len() > MAX_NODES {
            last = false;
            break;
        }
        rows += slots.len() + 1;
        if inner.state.requests.contains_key(&request) {
            ops.push(Op::Close {
                request,
                maybe_until: now.max(1),
                settled: now,
            });
        }
        for slot in slots {
            let Some(node) = inner.state.node(slot) else {
                continue;
            };
            let id = node.id(cluster.uid);
            events.push(NewEvent {
                time_ms: i64::try_from(now).unwrap_or(i64::MAX),
                severity: pb::EventSeverity::Warning.into(),
                reason: "NodeAbandoned".to_owned(),
                message: format!(
                    "its record is dropped; what {platform} ({uid}) knows as {:?} may still be there",
                    node.node_id.as_deref().unwrap_or("not known")
                ),
                group: Some(node.group.to_string()),
                node: Some(id.clone()),
                platform: Some(platform.to_string()),
                count: 1,
                ..NewEvent::default()
            });
            ids.push(id);
            ops.push(Op::Forget {
                slot,
                reason: "Abandoned",
                message: Box::default(),
                lost: false,
            });
        }
    }
    if let Some((op, told)) = last
        .then(|| infrastructure::show::abandon(&inner.state, backend, now))
        .flatten()
    {
        ops.push(op);
        events.extend(told);
    }
    // The last step also says that nothing of the cluster is there any more.
    let used = last && inner.state.used.remove(backend);
    let mut step = step::encode_step(inner, &ops, &[], now);
    if used {
        inner.state.used.insert(backend.clone());
    }
    step.uid = cluster.uid;
    step.expect_desired = None;
    step.events = events;
    (
        step,
        Plan {
            ops,
            ..Plan::default()
        },
        ids,
        last,
    )
}
