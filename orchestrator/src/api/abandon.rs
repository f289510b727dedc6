//! AbandonPlatform: drops the records of a backend that will never respond again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use drover_cluster::{Cluster, ClusterState, Interner, events::sign};
use drover_core::{Error, Millis, Reason, Result, Sym, Urgency, resource::ResourceKey};
use drover_planner::{Op, Plan};
use drover_platforms::Platforms;
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Clock, NewEvent, Step};

use super::access::{Access, per_call};
use crate::{
    commit::Committer, fenced::of_a_part, locks::Locks, queue::Queue, records::Records, resources,
    status::Viewer,
};

/// Maximum number of nodes per step of the store. Larger than a request, so that the nodes of a request stay together.
const MAX_NODES: usize = drover_planner::MAX_ROWS;
/// Maximum number of retries of a step that conflicted with a reconcile pass.
const MAX_TURNS: usize = 64;

/// The backend of a cluster to give up: platform name and backend uid.
type Backend = (Sym, Sym);

/// Gives up backends.
#[derive(Clone)]
pub(crate) struct Abandonment {
    pub(crate) access: Access,
    pub(crate) changing: Arc<Locks>,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) records: Arc<Records>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) interner: Arc<Interner>,
    pub(crate) viewer: Viewer,
    pub(crate) queue: Queue,
    pub(crate) clock: Arc<Clock>,
}

per_call!(Abandonment: access);

impl Abandonment {
    pub(super) async fn abandon(
        &self,
        request: pb::AbandonPlatformRequest,
    ) -> Result<pb::AbandonPlatformResponse> {
        let cluster = self.access.find_to_change(&request.cluster)?;
        let _change = self.changing.lock(cluster.uid()).await;
        let Some(backend) = chosen(&cluster.lock(), &request)? else {
            // The backend was abandoned before, or is proven to have nothing of the cluster.
            let registered = self.platforms.get(&request.platform);
            let shown = registered.map(|it| it.platform.registration().uid);
            let given_up = |(name, _): &Backend| **name == *request.platform;
            if shown.is_none() && !cluster.lock().state().abandoned.iter().any(given_up) {
                return Err(Error::not_found("platform", request.platform.as_str()));
            }
            let unknown = shown.as_ref().is_some_and(String::is_empty);
            let given_up = !cluster.lock().state().abandoned.is_empty();
            if request.delete_nodes && request.platform_uid.is_none() && unknown && given_up {
                let message = format!(
                    "{} has not said yet which backend it is, so nobody knows what was given up there",
                    request.platform
                );
                return Err(Error::unavailable(message));
            }
            let shown = shown.map(|uid| self.interner.get(&uid));
            self.sweep_after_all(&cluster, &request, shown.as_ref())
                .await?;
            let revision = self.records.revision();
            return Ok(pb::AbandonPlatformResponse {
                cluster: Some(self.viewer.shown(&cluster)),
                nodes: Vec::new(),
                revision,
            });
        };
        let reachable = self.refuse_reachable(&cluster, &backend);
        let again = (cluster.lock().state()).may_be_abandoned(&backend.1);
        if reachable.is_err() && again && request.delete_nodes {
            self.sweep_after_all(&cluster, &request, Some(&backend.1))
                .await?;
            let revision = self.records.revision();
            return Ok(pb::AbandonPlatformResponse {
                cluster: Some(self.viewer.shown(&cluster)),
                nodes: Vec::new(),
                revision,
            });
        }
        reachable?;
        let keep = !request.delete_nodes;
        let author = self.access.record.author();
        let mut nodes = Vec::new();
        let (mut turns, mut is_begun) = (0, false);
        loop {
            let now = self.clock.now();
            let (mut step, plan, ids, last) =
                next_step(&cluster, &cluster.lock(), &backend, keep, now);
            for event in &mut step.events {
                sign(event, author);
            }
            let committer = &self.committer;
            match committer
                .commit(&cluster, step, &plan, Vec::new(), now)
                .await
            {
                Ok(()) => {
                    nodes.extend(ids);
                    is_begun = true;
                }
                // A reconcile pass won the conflict, and memory is about to show its result.
                Err(error) if error.reason() == Reason::Conflict && turns < MAX_TURNS => {
                    turns += 1;
                    self.refuse_reachable(&cluster, &backend)?;
                    tokio::time::sleep(super::SHORT_WAIT).await;
                    continue;
                }
                Err(error) if is_begun => return Err(of_a_part(error)),
                Err(error) => return Err(error),
            }
            if last {
                break;
            }
        }
        self.queue.push(cluster.uid(), Urgency::Bulk);
        let revision = self.records.revision();
        Ok(pb::AbandonPlatformResponse {
            cluster: Some(self.viewer.shown(&cluster)),
            nodes,
            revision,
        })
    }

    fn refuse_reachable(&self, cluster: &Cluster, backend: &Backend) -> Result<()> {
        let (platform, uid) = backend;
        let Some(registered) = self.platforms.get(platform) else {
            return Ok(());
        };
        let bound = registered.platform.registration().uid;
        let (unseen, wait) = registered.platform.unseen(self.clock.now());
        if unseen >= wait {
            return Ok(());
        }
        if bound != **uid {
            if !is_recorded(&cluster.lock(), backend) {
                return Ok(());
            }
            // The backend may be the one on which everything was recorded under the other uid.
            let message = format!(
                "its records are under uid {uid}, as a move to it was interrupted; all of them stay under one: drover rebind \
                 {platform} {bound}"
            );
            return Err(Error::new(Reason::PlatformReachable, message));
        }
        let left = Duration::from_millis(wait - unseen);
        let message = if registered.platform.vanished_count() > 0 {
            format!(
                "{platform} answers, and lost many nodes at once; confirm the loss instead of abandoning it"
            )
        } else if registered.platform.is_visible(self.clock.now()) {
            format!("{platform} answers; delete or change what is there instead of abandoning it")
        } else {
            format!(
                "{platform} was looked for in vain for {} only, and may answer again; it can be abandoned in {}",
                seconds(unseen),
                seconds(wait - unseen)
            )
        };
        Err(Error::new(Reason::PlatformReachable, message).with_retry_after(left))
    }

    /// If requested, orders sweeping what a previously abandoned backend shows after all: the backend that is visible
    /// now, or else those that had the name of this platform.
    async fn sweep_after_all(
        &self,
        cluster: &Cluster,
        request: &pb::AbandonPlatformRequest,
        shown: Option<&Sym>,
    ) -> Result<()> {
        for _ in 0..MAX_TURNS {
            let now = self.clock.now();
            let bound = self.platforms.bound();
            let (step, plan) = {
                let inner = cluster.lock();
                if !request.delete_nodes {
                    return Ok(());
                }
                let ops = swept(&inner, request, shown, &bound);
                if ops.is_empty() {
                    return Ok(());
                }
                let mut step = inner.encode_step(&ops, &[], now);
                (step.uid, step.expect_desired) = (cluster.uid(), None);
                let plan = Plan {
                    ops,
                    ..Plan::default()
                };
                (step, plan)
            };
            let committer = &self.committer;
            match committer
                .commit(cluster, step, &plan, Vec::new(), now)
                .await
            {
                Ok(()) => {
                    self.queue.push(cluster.uid(), Urgency::Bulk);
                    return Ok(());
                }
                Err(error) if error.reason() == Reason::Conflict => {
                    tokio::time::sleep(super::SHORT_WAIT).await;
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::unavailable(
            "the cluster changes too fast; try again",
        ))
    }
}

/// Whether a cluster has records on a backend, beyond the mere fact that it once used it.
fn is_recorded(inner: &ClusterState, (platform, uid): &Backend) -> bool {
    let state = &inner.state();
    let is_it = |name: &Sym, own: &Sym| name == platform && own == uid;
    (state.nodes.iter()).any(|node| is_it(&node.platform, &node.platform_uid))
        || (state.requests.values()).any(|one| is_it(&one.platform, &one.platform_uid))
        || (state.resources.keys()).any(|key| key.is_on(platform, uid))
}

/// The operations that order sweeping of abandoned backends, selected by platform name or by backend uid. A backend may
/// have another name by now, or another uid.
fn swept(
    inner: &ClusterState,
    request: &pb::AbandonPlatformRequest,
    shown: Option<&Sym>,
    bound: &BTreeMap<String, Sym>,
) -> Vec<Op> {
    let state = &inner.state();
    let meant = |(name, uid): &&Backend| match &request.platform_uid {
        Some(own) => **uid == **own,
        None => **name == *request.platform || shown == Some(uid),
    };
    let uids: BTreeSet<&Sym> = (state.abandoned.iter().filter(meant))
        .map(|(_, uid)| uid)
        .chain(shown.filter(|uid| {
            let named = request.platform_uid.as_ref();
            named.is_none_or(|own| **own == ***uid) && state.may_be_abandoned(uid)
        }))
        .collect();
    (uids.into_iter())
        .map(|uid| Op::Sweep {
            uid: uid.clone(),
            shown_by: (bound.get(&**uid).cloned())
                .or_else(|| (shown == Some(uid)).then(|| request.platform.as_str().into())),
        })
        .collect()
}

/// The backend that the request selects. `None` if the cluster has nothing there.
fn chosen(inner: &ClusterState, request: &pb::AbandonPlatformRequest) -> Result<Option<Backend>> {
    // Orphans block the removal of a platform just like recorded nodes.
    let orphans = inner.state().orphans.iter();
    let mut used: BTreeSet<Backend> = orphans
        .map(|((name, _), one)| (name.clone(), one.platform_uid.clone()))
        .collect();
    used.extend(
        inner
            .state()
            .resource_orphans
            .keys()
            .map(ResourceKey::backend),
    );
    used.extend(inner.state().used.iter().cloned());
    used.retain(|(name, _)| **name == *request.platform);
    match &request.platform_uid {
        Some(uid) => match used.iter().find(|(_, own)| **own == **uid) {
            Some(backend) => Ok(Some(backend.clone())),
            None if inner
                .state()
                .abandoned
                .iter()
                .any(|(_, own)| **own == **uid) =>
            {
                Ok(None)
            }
            None => Err(Error::not_found("backend", uid.as_str())),
        },
        None if used.len() > 1 => {
            let uids: Vec<&str> = used.iter().map(|(_, uid)| &**uid).collect();
            Err(Error::invalid(
                "platform_uid",
                format!("is missing; expected one of {}", uids.join(", ")),
            ))
        }
        None => Ok(used.first().cloned()),
    }
}

/// The next step, its operations, the nodes that it drops, and whether it is the last step.
fn next_step(
    cluster: &Cluster,
    inner: &ClusterState,
    backend: &Backend,
    keep: bool,
    now: Millis,
) -> (Step, Plan, Vec<String>, bool) {
    let (platform, uid) = backend;
    let mut by_request: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    for node in inner
        .state()
        .nodes
        .iter()
        .filter(|node| node.platform == *platform && node.platform_uid == *uid)
    {
        by_request.entry(node.request).or_default().push(node.slot);
    }
    for request in inner
        .state()
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
        if inner.state().requests.contains_key(&request) {
            ops.push(Op::Close {
                request,
                maybe_until: now.max(1),
                settled: now,
            });
        }
        for slot in slots {
            let Some(node) = inner.state().node(slot) else {
                continue;
            };
            let id = node.id(cluster.uid());
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
            ops.push(Op::RecordDropped {
                slot,
                reason: "Abandoned",
                message: Box::default(),
                lost: false,
            });
        }
    }
    let records = inner.state().resources.iter();
    let records = records.filter(|(key, _)| last && key.is_on(platform, uid));
    for (key, record) in records {
        let (op, told) = resources::show::abandon(key, record, now);
        ops.push(op);
        events.extend(told);
    }
    ops.push(Op::Abandon {
        platform: platform.clone(),
        uid: uid.clone(),
        keep: keep && !inner.state().deleting,
        last,
    });
    let mut step = inner.encode_step(&ops, &[], now);
    step.uid = cluster.uid();
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

/// Formats a duration, rounded up to full seconds.
fn seconds(span: Millis) -> String {
    format!("{} s", span.div_ceil(1000))
}
