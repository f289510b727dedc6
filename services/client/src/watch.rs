//! Watches of an orchestrator that survive lost connections and server restarts, and go on with another server if there are
//! several.

use std::{
    collections::BTreeSet,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use drover_core::{Error, Reason, Result};
use drover_proto::orchestrator::v1::{
    Cluster, Event, ListEventsRequest, Node, WatchClustersRequest, WatchClustersResponse,
    WatchEventsRequest, WatchEventsResponse, WatchNodesRequest, WatchNodesResponse,
    watch_clusters_response, watch_events_response, watch_nodes_response,
};
use futures::{Stream, StreamExt};
use prost_types::Timestamp;
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    alive::Alive,
    call::within,
    orchestrator::OrchestratorClient,
    retry::{is_brief, is_transient},
};

/// Number of updates buffered for the consumer; flow control holds back the rest at the server.
const BUFFER: usize = 16;
/// Page size when seeking the newest event: the largest that servers return.
const EVENT_PAGE: i32 = 1000;

/// An update of a watch of clusters or nodes.
#[derive(Clone, Debug, PartialEq)]
pub enum Update<T> {
    /// Added or changed objects, each with its complete state.
    Upserts(Vec<T>),
    /// Removed objects. For clusters, their names; for nodes, cluster name, a slash, and node id.
    Removals(Vec<String>),
    /// All changes up to this store revision were delivered. Sent once after the first snapshot, and after every
    /// snapshot that follows a lost connection. Objects that vanished in between were delivered as removals before.
    Synced {
        /// Store revision.
        revision: u64,
    },
    /// The connection was lost and is being re-established.
    Reconnecting(Error),
}

/// An update of a watch of events.
#[derive(Clone, Debug, PartialEq)]
pub enum EventUpdate {
    /// The next event. No event is lost or duplicated, even across lost connections.
    Event(Box<Event>),
    /// The cluster was deleted at this time. The watch ends.
    Closed(Timestamp),
    /// The connection was lost and is being re-established.
    Reconnecting(Error),
}

/// A watch that reconnects automatically until it is dropped. It ends after an error that retries cannot fix.
#[derive(Debug)]
pub struct Watch<T> {
    updates: mpsc::Receiver<Result<T>>,
    /// Owns the watching task, which is aborted on drop.
    _task: JoinSet<()>,
}

impl<T> Stream for Watch<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        self.updates.poll_recv(cx)
    }
}

impl<T: Send + 'static> Watch<T> {
    fn of<F>(run: impl FnOnce(mpsc::Sender<Result<T>>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, updates) = mpsc::channel(BUFFER);
        let mut task = JoinSet::new();
        task.spawn(run(sender));
        Self {
            updates,
            _task: task,
        }
    }
}

impl OrchestratorClient {
    /// Watches clusters. `deadline` applies to each opening of the stream; returns an error if the first one fails.
    pub async fn watch_clusters(
        &self,
        message: WatchClustersRequest,
        deadline: Duration,
    ) -> Result<Watch<Update<Cluster>>> {
        let this = self.clone();
        let open = move |revision: Option<u64>| {
            let mut client = this.clusters.clone();
            let mut message = message.clone();
            message.min_revision = message.min_revision.max(revision);
            async move {
                let interval = message.heartbeat_interval;
                let inner = within(deadline, client.watch_clusters(message)).await?;
                let alive = Alive::new(
                    inner,
                    interval.as_ref(),
                    |message: &WatchClustersResponse| {
                        use watch_clusters_response::Event::Started;
                        let Some(Started(started)) = &message.event else {
                            return None;
                        };
                        started.heartbeat_interval.as_ref()
                    },
                );
                Ok(alive.map(|message| message.map(cluster_message)).boxed())
            }
        };
        let first = self.policy.run(deadline, |_| open(None)).await?;
        let policy = self.policy;
        Ok(Watch::of(|updates| {
            let mut snapshots = Snapshots {
                open,
                policy,
                updates,
                known: BTreeSet::new(),
                revision: None,
            };
            async move { snapshots.run(first, |cluster| cluster.name.clone()).await }
        }))
    }

    /// Watches nodes. `deadline` applies to each opening of the stream; returns an error if the first one fails.
    pub async fn watch_nodes(
        &self,
        message: WatchNodesRequest,
        deadline: Duration,
    ) -> Result<Watch<Update<Node>>> {
        let this = self.clone();
        let open = move |revision: Option<u64>| {
            let mut client = this.clusters.clone();
            let mut message = message.clone();
            message.min_revision = message.min_revision.max(revision);
            async move {
                let interval = message.heartbeat_interval;
                let inner = within(deadline, client.watch_nodes(message)).await?;
                let alive = Alive::new(inner, interval.as_ref(), |message: &WatchNodesResponse| {
                    use watch_nodes_response::Event::Started;
                    let Some(Started(started)) = &message.event else {
                        return None;
                    };
                    started.heartbeat_interval.as_ref()
                });
                Ok(alive.map(|message| message.map(node_message)).boxed())
            }
        };
        let first = self.policy.run(deadline, |_| open(None)).await?;
        let policy = self.policy;
        Ok(Watch::of(|updates| {
            let mut snapshots = Snapshots {
                open,
                policy,
                updates,
                known: BTreeSet::new(),
                revision: None,
            };
            async move {
                snapshots
                    .run(first, |node| format!("{}/{}", node.cluster, node.id))
                    .await;
            }
        }))
    }

    /// Watches the events of a cluster after a sequence (0: from the oldest retained event; `None`: from now on).
    /// `deadline` applies to each opening of the stream; returns an error if the first one fails. Ends with
    /// `EventsTrimmed` if events are permanently lost.
    pub async fn watch_events(
        &self,
        cluster: &str,
        after: Option<u64>,
        deadline: Duration,
    ) -> Result<Watch<EventUpdate>> {
        let mut events = Events {
            client: self.clone(),
            cluster: cluster.to_owned(),
            uid: String::new(),
            after: after.unwrap_or_default(),
            deadline,
        };
        if after.is_none() {
            // "From now on" is resolved to a position, so that events during a reconnect are not lost.
            events.skip_all().await?;
        }
        let first = self.policy.run(deadline, |_| events.open()).await?;
        Ok(Watch::of(|updates| events.run(first, updates)))
    }
}

/// Common form of the messages of both snapshot watches.
enum Message<T> {
    Upserts(Vec<T>),
    Removals(Vec<String>),
    SnapshotComplete(u64),
    Heartbeat(u64),
    Nothing,
}

fn cluster_message(message: WatchClustersResponse) -> Message<Cluster> {
    use watch_clusters_response::Event;
    match message.event {
        Some(Event::Upserts(upserts)) => Message::Upserts(upserts.clusters),
        Some(Event::Removals(removals)) => Message::Removals(removals.names),
        Some(Event::SnapshotComplete(mark)) => Message::SnapshotComplete(mark.revision),
        Some(Event::Heartbeat(mark)) => Message::Heartbeat(mark.revision),
        Some(Event::Started(_)) | None => Message::Nothing,
    }
}

fn node_message(message: WatchNodesResponse) -> Message<Node> {
    use watch_nodes_response::Event;
    match message.event {
        Some(Event::Upserts(upserts)) => Message::Upserts(upserts.nodes),
        Some(Event::Removals(removals)) => Message::Removals(removals.names),
        Some(Event::SnapshotComplete(mark)) => Message::SnapshotComplete(mark.revision),
        Some(Event::Heartbeat(mark)) => Message::Heartbeat(mark.revision),
        Some(Event::Started(_)) | None => Message::Nothing,
    }
}

type Messages<T> = futures::stream::BoxStream<'static, Result<Message<T>>>;

struct Snapshots<O, T> {
    open: O,
    policy: crate::retry::Policy,
    updates: mpsc::Sender<Result<Update<T>>>,
    /// Names of all objects that the consumer currently knows about.
    known: BTreeSet<String>,
    /// Minimum revision of a new snapshot, so that it does not go back in time.
    revision: Option<u64>,
}

/// The consumer is gone, or the watch has ended.
struct Over;

impl<O, F, T> Snapshots<O, T>
where
    O: Fn(Option<u64>) -> F,
    F: Future<Output = Result<Messages<T>>>,
{
    async fn run(&mut self, first: Messages<T>, name: fn(&T) -> String) {
        let mut attempts = 0;
        let mut messages = Ok(first);
        loop {
            let error = match messages {
                Ok(messages) => match self.connection(messages, name, &mut attempts).await {
                    Ok(error) => error,
                    Err(Over) => return,
                },
                Err(error) => error,
            };
            if error.reason() == Reason::StoreRestored {
                // The store was restored, so that an older revision is current now.
                self.revision = None;
            } else if !is_transient(&error) {
                // Either the consumer is gone, or it learns why the watch ends.
                let _ = self.updates.send(Err(error)).await;
                return;
            }
            let wait = self.policy.wait_after(&mut attempts, &error);
            if !is_brief(&error) && self.say(Update::Reconnecting(error)).await.is_err() {
                return;
            }
            tokio::time::sleep(wait).await;
            messages = (self.open)(self.revision).await;
        }
    }

    /// Follows a connection until it fails.
    async fn connection(
        &mut self,
        mut messages: Messages<T>,
        name: fn(&T) -> String,
        attempts: &mut u32,
    ) -> Result<Error, Over> {
        // Objects that the snapshot does not list vanished while there was no connection.
        let mut unseen = self.known.clone();
        while let Some(message) = messages.next().await {
            match message {
                Err(error) => return Ok(error),
                Ok(Message::Upserts(objects)) => {
                    for object in &objects {
                        let name = name(object);
                        unseen.remove(&name);
                        self.known.insert(name);
                    }
                    self.say(Update::Upserts(objects)).await?;
                }
                Ok(Message::Removals(names)) => {
                    for name in &names {
                        unseen.remove(name);
                        self.known.remove(name);
                    }
                    self.say(Update::Removals(names)).await?;
                }
                Ok(Message::SnapshotComplete(revision)) => {
                    *attempts = 0;
                    let gone: Vec<String> = std::mem::take(&mut unseen).into_iter().collect();
                    if !gone.is_empty() {
                        for name in &gone {
                            self.known.remove(name);
                        }
                        self.say(Update::Removals(gone)).await?;
                    }
                    self.revision = Some(revision);
                    self.say(Update::Synced { revision }).await?;
                }
                Ok(Message::Heartbeat(revision)) => {
                    self.revision = self.revision.max(Some(revision));
                }
                Ok(Message::Nothing) => {}
            }
        }
        Ok(Error::unavailable("the server ended the watch"))
    }

    async fn say(&self, update: Update<T>) -> Result<(), Over> {
        self.updates.send(Ok(update)).await.map_err(|_| Over)
    }
}

struct Events {
    client: OrchestratorClient,
    cluster: String,
    /// Set by the first event: a later cluster with the same name counts from 1 again.
    uid: String,
    after: u64,
    deadline: Duration,
}

impl Events {
    fn open(&self) -> impl Future<Output = Result<Alive<WatchEventsResponse>>> + Send + use<> {
        let mut client = self.client.clusters.clone();
        let message = WatchEventsRequest {
            cluster: self.cluster.clone(),
            after_sequence: Some(self.after),
            cluster_uid: self.uid.clone(),
            ..Default::default()
        };
        let deadline = self.deadline;
        async move {
            let inner = within(deadline, client.watch_events(message)).await?;
            Ok(Alive::new(inner, None, |message: &WatchEventsResponse| {
                use watch_events_response::Item::Started;
                let Some(Started(started)) = &message.item else {
                    return None;
                };
                started.heartbeat_interval.as_ref()
            }))
        }
    }

    fn pass(&mut self, event: &Event) {
        // A different uid means a new log.
        let same = self.uid == event.cluster_uid;
        self.after = if same {
            self.after.max(event.sequence)
        } else {
            event.sequence
        };
        self.uid.clone_from(&event.cluster_uid);
    }

    async fn skip_all(&mut self) -> Result<()> {
        let mut message = ListEventsRequest {
            cluster: self.cluster.clone(),
            page_size: EVENT_PAGE,
            ..Default::default()
        };
        loop {
            let page = self
                .client
                .list_events(message.clone(), self.deadline)
                .await?;
            if let Some(last) = page.events.last() {
                self.pass(last);
            }
            // All events may have been trimmed; the next one is then the oldest available.
            self.after = self.after.max(page.oldest_sequence.saturating_sub(1));
            if page.next_page_token.is_empty() {
                return Ok(());
            }
            message.page_token = page.next_page_token;
        }
    }

    async fn run(
        mut self,
        first: Alive<WatchEventsResponse>,
        updates: mpsc::Sender<Result<EventUpdate>>,
    ) {
        let mut attempts = 0;
        let mut messages = Ok(first);
        loop {
            let error = match messages {
                Ok(messages) => match self.connection(messages, &updates, &mut attempts).await {
                    Ok(error) => error,
                    Err(Over) => return,
                },
                Err(error) => error,
            };
            if !is_transient(&error) {
                // Either the consumer is gone, or it learns why the watch ends.
                let _ = updates.send(Err(error)).await;
                return;
            }
            let wait = self.client.policy.wait_after(&mut attempts, &error);
            if !is_brief(&error) {
                let lost = updates.send(Ok(EventUpdate::Reconnecting(error))).await;
                if lost.is_err() {
                    return;
                }
            }
            tokio::time::sleep(wait).await;
            messages = self.open().await;
        }
    }

    async fn connection(
        &mut self,
        mut messages: Alive<WatchEventsResponse>,
        updates: &mpsc::Sender<Result<EventUpdate>>,
        attempts: &mut u32,
    ) -> Result<Error, Over> {
        use watch_events_response::Item;
        while let Some(message) = messages.next().await {
            let update = match message {
                Err(error) => return Ok(error),
                Ok(WatchEventsResponse {
                    item: Some(Item::Event(event)),
                }) => {
                    let repeated = event.sequence <= self.after && event.cluster_uid == self.uid;
                    if repeated {
                        continue;
                    }
                    self.pass(&event);
                    EventUpdate::Event(Box::new(event))
                }
                Ok(WatchEventsResponse {
                    item: Some(Item::Closed(at)),
                }) => {
                    // The watch has ended, whether or not the consumer is still there.
                    let _ = updates.send(Ok(EventUpdate::Closed(at))).await;
                    return Err(Over);
                }
                Ok(WatchEventsResponse {
                    item: Some(Item::Started(_) | Item::Heartbeat(_)) | None,
                }) => {
                    *attempts = 0;
                    continue;
                }
            };
            *attempts = 0;
            updates.send(Ok(update)).await.map_err(|_| Over)?;
        }
        Ok(Error::unavailable("the server ended the watch"))
    }
}
