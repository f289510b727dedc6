//! A fake orchestrator whose state outlives its servers.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
    sync::Arc,
};

use drover_convert::error::to_status;
use drover_core::{Error, Reason};
use drover_proto::orchestrator::v1::{
    self as pb, Cluster, Event, Node,
    cluster_service_server::{ClusterService, ClusterServiceServer},
};
use futures::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use prost_types::Timestamp;
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};

#[derive(Default)]
struct State {
    events: Vec<Event>,
    closed: bool,
    clusters: BTreeMap<String, Cluster>,
    revision: u64,
    failures: VecDeque<Error>,
    last_watch: pb::WatchEventsRequest,
    last_min_revision: Option<u64>,
    broken: Option<Error>,
}

#[derive(Clone)]
pub(crate) struct Fake {
    state: Arc<Mutex<State>>,
    changed: Arc<watch::Sender<()>>,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            changed: Arc::new(watch::channel(()).0),
        }
    }
}

impl Fake {
    pub(crate) fn server(&self) -> ClusterServiceServer<Self> {
        ClusterServiceServer::new(self.clone())
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        state.revision += 1;
        change(&mut state);
        drop(state);
        self.changed.send_replace(());
    }

    pub(crate) fn add_events(&self, count: usize) {
        self.change(|state| {
            for _ in 0..count {
                let sequence = state.events.last().map_or(0, |event| event.sequence) + 1;
                state.events.push(Event {
                    sequence,
                    cluster_uid: "uid-1".to_owned(),
                    ..Default::default()
                });
            }
        });
    }

    pub(crate) fn trim(&self, oldest: u64) {
        self.change(|state| state.events.retain(|event| event.sequence >= oldest));
    }

    pub(crate) fn close(&self) {
        self.change(|state| state.closed = true);
    }

    pub(crate) fn put(&self, name: &str) {
        let cluster = Cluster {
            name: name.to_owned(),
            ..Default::default()
        };
        self.change(|state| drop(state.clusters.insert(name.to_owned(), cluster)));
    }

    pub(crate) fn remove(&self, name: &str) {
        self.change(|state| drop(state.clusters.remove(name)));
    }

    pub(crate) fn fail(&self, errors: impl IntoIterator<Item = Error>) {
        self.state.lock().failures.extend(errors);
    }

    /// Ends all watches with this error, those under way and later ones.
    pub(crate) fn break_watches(&self, error: Error) {
        self.change(|state| state.broken = Some(error));
    }

    pub(crate) fn last_watch(&self) -> pb::WatchEventsRequest {
        self.state.lock().last_watch.clone()
    }

    pub(crate) fn last_min_revision(&self) -> Option<u64> {
        self.state.lock().last_min_revision
    }

    /// Streams messages derived from the state, again after each change. `step` receives what it returned before.
    fn follow<M, S>(
        &self,
        start: S,
        step: impl Fn(&State, S) -> (Vec<M>, S) + Send + 'static,
    ) -> Messages<M>
    where
        M: Send + 'static,
        S: Send + 'static,
    {
        let state = self.state.clone();
        let mut changes = self.changed.subscribe();
        changes.mark_changed();
        stream::unfold((start, changes, step), move |(said, mut changes, step)| {
            let state = state.clone();
            async move {
                changes.changed().await.ok()?;
                let broken = state.lock().broken.as_ref().map(to_status);
                let (messages, said) = step(&state.lock(), said);
                let messages = match broken {
                    Some(status) => vec![Err(status)],
                    None => messages.into_iter().map(Ok).collect(),
                };
                Some((stream::iter(messages), (said, changes, step)))
            }
        })
        .flatten()
        .boxed()
    }
}

type Messages<M> = Pin<Box<dyn Stream<Item = Result<M, Status>> + Send>>;
type Answer<M> = Result<Response<M>, Status>;

fn started() -> pb::WatchStarted {
    pb::WatchStarted {
        heartbeat_interval: Some(prost_types::Duration {
            seconds: 10,
            nanos: 0,
        }),
    }
}

fn not_here<M>() -> Answer<M> {
    Err(to_status(&Error::new(
        Reason::Unimplemented,
        "not in this fake",
    )))
}

macro_rules! absent {
    ($($name:ident($request:ident) -> $response:ident;)*) => { $(
        fn $name<'a: 'c, 'c>(
            &'a self,
            _: Request<pb::$request>,
        ) -> Pin<Box<dyn Future<Output = Answer<pb::$response>> + Send + 'c>>
        where
            Self: 'c,
        {
            Box::pin(std::future::ready(not_here()))
        }
    )* };
}

/// State of both snapshot watches: the names sent before, if the snapshot was sent.
type Said = Option<Vec<String>>;

#[tonic::async_trait]
impl ClusterService for Fake {
    type WatchClustersStream = Messages<pb::WatchClustersResponse>;
    type WatchNodesStream = Messages<pb::WatchNodesResponse>;
    type WatchEventsStream = Messages<pb::WatchEventsResponse>;
    type StreamNodeLogsStream = Messages<pb::StreamNodeLogsResponse>;
    type ExecNodeStream = Messages<pb::ExecNodeResponse>;

    async fn get_cluster(
        &self,
        request: Request<pb::GetClusterRequest>,
    ) -> Answer<pb::GetClusterResponse> {
        let mut state = self.state.lock();
        if let Some(error) = state.failures.pop_front() {
            return Err(to_status(&error));
        }
        let cluster = state.clusters.get(&request.get_ref().name).cloned();
        Ok(Response::new(pb::GetClusterResponse {
            cluster,
            revision: state.revision,
        }))
    }

    async fn watch_clusters(
        &self,
        request: Request<pb::WatchClustersRequest>,
    ) -> Answer<Self::WatchClustersStream> {
        use pb::watch_clusters_response::Event;
        self.state.lock().last_min_revision = request.get_ref().min_revision;
        let messages = self.follow(None, |state, said: Said| {
            let first = said.is_none();
            let now: Vec<String> = state.clusters.keys().cloned().collect();
            let removed = gone(said, &now);
            let mark = pb::WatchMark {
                revision: state.revision,
                ..Default::default()
            };
            let mut events = Vec::new();
            if first {
                let clusters = state.clusters.values().cloned().collect();
                events.push(Event::Started(started()));
                events.push(Event::Upserts(pb::ClusterUpserts { clusters }));
                events.push(Event::SnapshotComplete(mark));
            } else if !removed.is_empty() {
                events.push(Event::Removals(pb::Removals { names: removed }));
            }
            (
                events
                    .into_iter()
                    .map(|event| pb::WatchClustersResponse { event: Some(event) })
                    .collect(),
                Some(now),
            )
        });
        Ok(Response::new(messages))
    }

    async fn watch_nodes(
        &self,
        _: Request<pb::WatchNodesRequest>,
    ) -> Answer<Self::WatchNodesStream> {
        use pb::watch_nodes_response::Event;
        let messages = self.follow(None, |state, said: Said| {
            let first = said.is_none();
            let now: Vec<String> = state
                .clusters
                .keys()
                .map(|name| format!("{name}/{name}-0"))
                .collect();
            let removed = gone(said, &now);
            let mut events = Vec::new();
            if first {
                let nodes = state.clusters.keys().map(|name| Node {
                    id: format!("{name}-0"),
                    cluster: name.clone(),
                    ..Default::default()
                });
                events.push(Event::Started(started()));
                events.push(Event::Upserts(pb::NodeUpserts {
                    nodes: nodes.collect(),
                }));
                events.push(Event::SnapshotComplete(pb::WatchMark::default()));
            } else if !removed.is_empty() {
                events.push(Event::Removals(pb::Removals { names: removed }));
            }
            (
                events
                    .into_iter()
                    .map(|event| pb::WatchNodesResponse { event: Some(event) })
                    .collect(),
                Some(now),
            )
        });
        Ok(Response::new(messages))
    }

    async fn list_events(
        &self,
        request: Request<pb::ListEventsRequest>,
    ) -> Answer<pb::ListEventsResponse> {
        // Two per page, so that there are several pages.
        let from: usize = request.get_ref().page_token.parse().unwrap_or(0);
        let state = self.state.lock();
        let events: Vec<Event> = state.events.iter().skip(from).take(2).cloned().collect();
        let more = from + events.len() < state.events.len();
        Ok(Response::new(pb::ListEventsResponse {
            next_page_token: if more {
                (from + events.len()).to_string()
            } else {
                String::new()
            },
            oldest_sequence: state.events.first().map_or(1, |event| event.sequence),
            events,
            revision: state.revision,
        }))
    }

    async fn watch_events(
        &self,
        request: Request<pb::WatchEventsRequest>,
    ) -> Answer<Self::WatchEventsStream> {
        use pb::watch_events_response::Item;
        let request = request.into_inner();
        let after = request.after_sequence.unwrap_or(u64::MAX);
        {
            let mut state = self.state.lock();
            state.last_watch = request;
            if state
                .events
                .first()
                .is_some_and(|oldest| oldest.sequence > after + 1)
            {
                return Err(to_status(&Error::new(Reason::EventsTrimmed, "too late")));
            }
        }
        let first = stream::once(async {
            Ok(pb::WatchEventsResponse {
                item: Some(Item::Started(started())),
            })
        });
        let messages = self.follow(after, |state, after| {
            let mut items: Vec<Item> = state
                .events
                .iter()
                .filter(|event| event.sequence > after)
                .cloned()
                .map(Item::Event)
                .collect();
            let after = state
                .events
                .last()
                .map_or(after, |event| event.sequence.max(after));
            if state.closed {
                items.push(Item::Closed(Timestamp::default()));
            }
            (
                items
                    .into_iter()
                    .map(|item| pb::WatchEventsResponse { item: Some(item) })
                    .collect(),
                after,
            )
        });
        Ok(Response::new(first.chain(messages).boxed()))
    }

    async fn stream_node_logs(
        &self,
        _: Request<pb::StreamNodeLogsRequest>,
    ) -> Answer<Self::StreamNodeLogsStream> {
        not_here()
    }

    async fn exec_node(
        &self,
        _: Request<Streaming<pb::ExecNodeRequest>>,
    ) -> Answer<Self::ExecNodeStream> {
        not_here()
    }

    absent! {
        apply_cluster(ApplyClusterRequest) -> ApplyClusterResponse;
        plan_cluster(PlanClusterRequest) -> PlanClusterResponse;
        list_clusters(ListClustersRequest) -> ListClustersResponse;
        delete_cluster(DeleteClusterRequest) -> DeleteClusterResponse;
        reconcile_cluster(ReconcileClusterRequest) -> ReconcileClusterResponse;
        pause_cluster(PauseClusterRequest) -> PauseClusterResponse;
        resume_cluster(ResumeClusterRequest) -> ResumeClusterResponse;
        scale_group(ScaleGroupRequest) -> ScaleGroupResponse;
        replace_node(ReplaceNodeRequest) -> ReplaceNodeResponse;
        fail_over_group(FailOverGroupRequest) -> FailOverGroupResponse;
        set_node_repair(SetNodeRepairRequest) -> SetNodeRepairResponse;
        restart_group(RestartGroupRequest) -> RestartGroupResponse;
        list_revisions(ListRevisionsRequest) -> ListRevisionsResponse;
        undo_cluster(UndoClusterRequest) -> UndoClusterResponse;
        abandon_platform(AbandonPlatformRequest) -> AbandonPlatformResponse;
        get_node(GetNodeRequest) -> GetNodeResponse;
        list_nodes(ListNodesRequest) -> ListNodesResponse;
    }
}

fn gone(said: Said, now: &[String]) -> Vec<String> {
    said.unwrap_or_default()
        .into_iter()
        .filter(|name| !now.contains(name))
        .collect()
}
