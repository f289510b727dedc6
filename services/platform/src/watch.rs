//! Watches: a snapshot, followed by all changes. Each is pulled by its own stream, so it is paced by flow control
//! alone.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime},
};

use drover_convert::value::to_duration;
use drover_core::{Error, Result};
use drover_proto::platform::v1::{
    NodeRemovals, NodeRemoved, NodeUpserts, WatchMark, WatchNodesRequest, WatchNodesResponse,
    WatchStarted, WatchWarnings, watch_nodes_response::Event,
};
use futures::{Stream, stream};
use prost::Message;
use tokio::{sync::watch, time::Instant};

use crate::{
    changelog::{Entry, Key},
    check::Checker,
    clock::timestamp,
    limits::{MAX_PAGE_BYTES, MAX_WATCH_NODES},
    platform::Platform,
};

/// Default heartbeat interval.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Minimum and maximum heartbeat interval.
const HEARTBEATS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Average time between two change messages: creating many nodes causes one message for many of them instead of several
/// for each. No longer than that, because a death may be among what waits.
const PAUSE: Duration = Duration::from_millis(1);
/// How much of that pause may be taken in advance, so that isolated changes are sent immediately.
const BURST: Duration = Duration::from_millis(25);

struct Watcher {
    platform: Arc<Platform>,
    cluster: Option<String>,
    heartbeat: Duration,
    next_heartbeat: Instant,
    /// End of the accumulated pauses of all change messages so far.
    paused_until: Instant,
    stage: Stage,
    /// Position in the log up to which everything was sent.
    position: u64,
    /// As of when everything sent so far was complete.
    fresh: SystemTime,
    ready: VecDeque<Event>,
    changes: watch::Receiver<u64>,
    warnings: watch::Receiver<(u64, Vec<drover_proto::platform::v1::Warning>)>,
    warnings_sent: u64,
}

enum Stage {
    /// Continues after this node.
    Snapshot(Option<Arc<Key>>),
    Changes,
    Ended,
}

impl Platform {
    /// Handles a WatchNodes call.
    pub(crate) async fn watch(
        self: &Arc<Self>,
        request: WatchNodesRequest,
    ) -> Result<impl Stream<Item = Result<WatchNodesResponse>> + use<>> {
        self.meant(
            &request.expected_platform_uid,
            false,
            &request.expected_instance_id,
        )?;
        let mut check = Checker::default();
        if !request.cluster_id.is_empty() {
            check.cluster("cluster_id", &request.cluster_id);
        }
        check.grace("heartbeat_interval", request.heartbeat_interval.as_ref());
        check.finish()?;
        let heartbeat = request
            .heartbeat_interval
            .and_then(|interval| Duration::try_from(interval).ok())
            .map_or(HEARTBEAT, |interval| {
                interval.clamp(HEARTBEATS.0, HEARTBEATS.1)
            });
        self.observer.prepare().await?;
        let log = self.observer.log();
        let watcher = Watcher {
            cluster: (!request.cluster_id.is_empty()).then_some(request.cluster_id),
            heartbeat,
            next_heartbeat: Instant::now() + heartbeat,
            paused_until: Instant::now(),
            stage: Stage::Snapshot(None),
            fresh: self.observer.observe_time(),
            ready: VecDeque::from([Event::Started(WatchStarted {
                heartbeat_interval: Some(to_duration(heartbeat)),
                instance_id: self.instance_id().to_owned(),
                platform_etag: self.etag(),
            })]),
            changes: log.subscribe(),
            // Taken before the snapshot begins, so that concurrent changes are sent after it.
            position: log.last(),
            warnings: self.observer.warnings(),
            warnings_sent: 0,
            platform: Arc::clone(self),
        };
        Ok(stream::unfold(watcher, |mut watcher| async move {
            let event = watcher.next().await?;
            let answer = match event {
                Ok(event) => Ok(WatchNodesResponse { event: Some(event) }),
                Err(error) => {
                    watcher.stage = Stage::Ended;
                    watcher.ready.clear();
                    Err(error)
                }
            };
            Some((answer, watcher))
        }))
    }
}

impl Watcher {
    async fn next(&mut self) -> Option<Result<Event>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            match &self.stage {
                Stage::Ended => return None,
                Stage::Snapshot(after) => {
                    let after = after.clone();
                    self.snapshot(after.as_ref());
                }
                Stage::Changes => {
                    if let Err(error) = self.changes().await {
                        return Some(Err(error));
                    }
                }
            }
            if self.ready.is_empty() {
                // A long run of nodes of other clusters must not block the thread.
                tokio::task::consume_budget().await;
            }
        }
    }

    fn snapshot(&mut self, after: Option<&Arc<Key>>) {
        let keys = self.platform.observer.log().nodes_after(
            after,
            self.cluster.as_deref(),
            MAX_WATCH_NODES,
        );
        let Some(last) = keys.last() else {
            self.push_warnings();
            self.ready.push_back(Event::SnapshotComplete(self.mark()));
            self.stage = Stage::Changes;
            return;
        };
        self.stage = Stage::Snapshot(Some(Arc::clone(last)));
        self.push_upserts(keys);
    }

    /// Moves new changes to `ready`, or waits for some.
    async fn changes(&mut self) -> Result<()> {
        let platform = Arc::clone(&self.platform);
        let ended = || Error::unavailable("the platform server shuts down");
        tokio::select! {
            biased;
            () = platform.shutdown.cancelled() => return Err(ended()),
            () = self.pause() => {}
        }
        let observed = platform.observer.observe_time();
        self.changes.mark_unchanged();
        let log = platform.observer.log();
        let (entries, reached) =
            log.after(self.position, self.cluster.as_deref(), MAX_WATCH_NODES)?;
        self.position = reached;
        let due = Instant::now() >= self.next_heartbeat;
        if entries.is_empty() {
            self.fresh = observed;
        } else {
            self.push_entries(entries);
            self.paused_until = self.paused_until.max(Instant::now()) + PAUSE;
        }
        self.push_warnings();
        if due {
            self.next_heartbeat = Instant::now() + self.heartbeat;
            self.ready.push_back(Event::Heartbeat(self.mark()));
        }
        if !self.ready.is_empty() {
            return Ok(());
        }
        let wait = async {
            tokio::select! {
                _ = self.changes.changed() => {}
                _ = self.warnings.changed() => {}
                () = tokio::time::sleep_until(self.next_heartbeat) => {}
            }
        };
        tokio::select! {
            () = platform.shutdown.cancelled() => Err(ended()),
            () = wait => Ok(()),
        }
    }

    async fn pause(&self) {
        let ahead = self.paused_until - Instant::now();
        if ahead > BURST {
            tokio::time::sleep(ahead - BURST).await;
        }
    }

    fn push_entries(&mut self, entries: Vec<Entry>) {
        let mut changed = Vec::with_capacity(entries.len());
        let mut removed = Vec::new();
        // Node ids are never reused, so the order across nodes does not matter.
        for entry in entries {
            match entry {
                Entry::Changed(key) => changed.push(key),
                Entry::Removed(key, evidence) => removed.push(NodeRemoved {
                    cluster_id: key.cluster_id.to_string(),
                    node_id: key.node_id.to_string(),
                    evidence: evidence.into(),
                    // Not needed, because an id is never reused before its removal was sent.
                    slot: None,
                }),
            }
        }
        if !removed.is_empty() {
            self.ready
                .push_back(Event::Removals(NodeRemovals { nodes: removed }));
        }
        self.push_upserts(changed);
    }

    fn push_upserts(&mut self, keys: Vec<Arc<Key>>) {
        let mut nodes = Vec::with_capacity(keys.len());
        let mut bytes = 0;
        // If a node is gone by now, its removal is in the log.
        for node in keys
            .iter()
            .filter_map(|key| self.platform.observer.node(key))
        {
            bytes += node.encoded_len();
            if bytes > MAX_PAGE_BYTES && !nodes.is_empty() {
                bytes = node.encoded_len();
                self.ready.push_back(Event::Upserts(NodeUpserts {
                    nodes: std::mem::take(&mut nodes),
                }));
            }
            nodes.push(node);
        }
        if !nodes.is_empty() {
            self.ready.push_back(Event::Upserts(NodeUpserts { nodes }));
        }
    }

    fn push_warnings(&mut self) {
        let (count, warnings) = &*self.warnings.borrow_and_update();
        if *count == self.warnings_sent {
            return;
        }
        self.warnings_sent = *count;
        let concerns = |cluster: &Option<String>| {
            self.cluster.is_none() || cluster.is_none() || *cluster == self.cluster
        };
        let warnings = warnings
            .iter()
            .filter(|warning| concerns(&warning.cluster_id))
            .cloned()
            .collect();
        self.ready
            .push_back(Event::Warnings(WatchWarnings { warnings }));
    }

    fn mark(&self) -> WatchMark {
        WatchMark {
            observe_time: Some(timestamp(self.fresh)),
            platform_etag: self.platform.etag(),
        }
    }
}
