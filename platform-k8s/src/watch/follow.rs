//! One watch: a list, then events from its version on, for ever. After a break it goes on where it was; only when the
//! API server has forgotten that version, or has said nothing for too long, it lists again, and what the list does not
//! show is gone.

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason};
use drover_proto::platform::v1::RemovalEvidence;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::known::Known;
use crate::{
    client::{Api, EventType, Kind, Meta, Object, Readable, Shape},
    discover::{self, Reader},
    group::uid,
    pod::Pod,
};

/// First wait after a failure.
const MIN_WAIT: Duration = Duration::from_millis(50);
/// Longest wait after a failure.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// A watch that lasted so long has worked: what comes after it is not tried for the second time.
const LASTED: Duration = Duration::from_secs(1);
/// Wait after the credentials were found to be too weak: they may get stronger.
const REFUSED_WAIT: Duration = Duration::from_secs(60);

/// An object that is watched.
pub(super) trait Watched: Readable {
    fn meta(&self) -> &Meta;
}

impl Watched for Pod {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Watched for Object {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// What is done with what a watch says.
pub(super) trait Sink: Send {
    type Item: Watched;
    /// What it is told to, and which watch it is there.
    fn known(&self) -> (&Known, u16);
    fn put(&mut self, item: Self::Item);
    fn delete(&mut self, item: Self::Item);

    fn begin(&mut self) {
        let (known, watch) = self.known();
        known.list_begins(watch);
    }

    fn end(&mut self) {
        let (known, watch) = self.known();
        known.list_ends(watch);
    }

    fn heard(&self) {
        let (known, watch) = self.known();
        known.heard(watch);
    }

    fn failed(&self, error: Error) {
        let (known, watch) = self.known();
        known.failed(watch, error);
    }
}

/// What is watched.
pub(super) struct Follow {
    pub(super) api: Api,
    pub(super) kind: Arc<Kind>,
    pub(super) namespace: String,
    pub(super) labels: String,
    pub(super) shape: Shape,
    /// Longest silence.
    pub(super) silence: Duration,
}

impl Follow {
    /// Runs until it is dropped.
    pub(super) async fn run<S: Sink>(self, mut sink: S) {
        let mut wait = Wait::default();
        loop {
            let query = discover::query(&self.kind, &self.namespace, &self.labels, "", self.shape);
            sink.begin();
            let listed = self
                .api
                .list(&query, |page: Vec<S::Item>| {
                    page.into_iter().for_each(|item| sink.put(item));
                })
                .await;
            let mut version = match listed {
                Ok(version) => version,
                Err(error) => {
                    self.pause(&mut wait, &sink, error).await;
                    continue;
                }
            };
            sink.end();
            sink.heard();
            // Until its version is forgotten.
            while let Err(error) = self.events(&mut sink, &mut version, &mut wait).await {
                if error.reason() == Reason::PageTokenExpired {
                    tracing::debug!(kind = %self.kind, namespace = self.namespace, "a watch begins anew");
                    break;
                }
                let silent = error.reason() == Reason::DeadlineExceeded;
                self.pause(&mut wait, &sink, error).await;
                if silent {
                    // That it opens again proves nothing; only a list does.
                    break;
                }
            }
        }
    }

    /// Reads events as long as the API server lets it. Never answers `Ok`.
    async fn events<S: Sink>(
        &self,
        sink: &mut S,
        version: &mut String,
        wait: &mut Wait,
    ) -> Result<(), Error> {
        loop {
            let query = discover::query(&self.kind, &self.namespace, &self.labels, "", self.shape);
            let mut events = self.api.watch::<S::Item>(&query, version).await?;
            sink.heard();
            let mut any = false;
            let opened = Instant::now();
            loop {
                let next = events.next(self.silence).await;
                if opened.elapsed() >= LASTED {
                    *wait = Wait::default();
                }
                let Some(event) = next? else {
                    break;
                };
                any = true;
                *wait = Wait::default();
                let seen = &event.object.meta().resource_version;
                if !seen.is_empty() {
                    version.clone_from(seen);
                }
                match event.kind {
                    EventType::Added | EventType::Modified => sink.put(event.object),
                    EventType::Deleted => sink.delete(event.object),
                    EventType::Bookmark | EventType::Error => {}
                }
                sink.heard();
            }
            if !any {
                // A server that ends every watch at once must not be asked without a pause.
                tokio::time::sleep(wait.next(MAX_WAIT)).await;
            }
        }
    }

    async fn pause<S: Sink>(&self, wait: &mut Wait, sink: &S, error: Error) {
        if error.reason() == Reason::PageTokenExpired {
            // A list that took too long begins again.
            return tokio::time::sleep(wait.next(MAX_WAIT)).await;
        }
        let refused = error.reason() == Reason::PermissionDenied;
        let pause = if refused {
            REFUSED_WAIT
        } else {
            wait.next(MAX_WAIT)
        };
        if wait.is_first() || refused {
            tracing::warn!(kind = %self.kind, namespace = self.namespace, error = error.message(), "a watch is interrupted");
        }
        sink.failed(error);
        tokio::time::sleep(pause).await;
    }
}

/// Waits that grow, with a random part so that the watches of a server that comes back do not come at once.
#[derive(Default)]
struct Wait(u32);

impl Wait {
    fn next(&mut self, max: Duration) -> Duration {
        let longest = MIN_WAIT.saturating_mul(1 << self.0.min(16)).min(max);
        self.0 = self.0.saturating_add(1);
        longest.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    fn is_first(&self) -> bool {
        self.0 == 1
    }
}

/// Pods.
pub(super) struct Pods {
    api: Api,
    known: Arc<Known>,
    reader: Reader,
    watch: u16,
    kind: u16,
    stop: CancellationToken,
}

impl Pods {
    pub(super) fn new(
        api: Api,
        known: Arc<Known>,
        reader: Reader,
        watch: u16,
        kind: u16,
        stop: CancellationToken,
    ) -> Self {
        Self {
            api,
            known,
            reader,
            watch,
            kind,
            stop,
        }
    }
}

impl Sink for Pods {
    type Item = Pod;

    fn known(&self) -> (&Known, u16) {
        (&self.known, self.watch)
    }

    fn put(&mut self, pod: Pod) {
        match self.reader.pod(self.kind, &pod) {
            Some(seen) => self.known.put(self.watch, seen),
            None => self
                .known
                .gone(uid(&pod.metadata.uid), RemovalEvidence::NotListed),
        }
    }

    fn delete(&mut self, pod: Pod) {
        let uid = uid(&pod.metadata.uid);
        // The API server marks every pod before it deletes it. One without the mark has only left the selection.
        if pod.metadata.is_deleting() {
            self.known.gone(uid, RemovalEvidence::Confirmed);
        } else if self.known.lose(uid) {
            let lost = lost(
                self.api.clone(),
                Arc::clone(&self.known),
                self.kind,
                pod.metadata,
                self.reader.clone(),
            );
            tokio::spawn(self.stop.clone().run_until_cancelled_owned(lost));
        }
    }
}

/// Follows one pod by its name until it is gone or has its label again.
async fn lost(api: Api, known: Arc<Known>, kind: u16, meta: Meta, reader: Reader) {
    let Some(kind) = known.kinds().get(usize::from(kind)).cloned() else {
        return;
    };
    let id = uid(&meta.uid);
    let fields = format!("metadata.name={}", meta.name);
    let query = discover::query(&kind, &meta.namespace, "", &fields, Shape::Full);
    let mut wait = Wait::default();
    while known.is_lost(id) {
        let gone = follow_one(&api, &query, id, &reader).await;
        match gone {
            Ok(true) => known.gone(id, RemovalEvidence::Confirmed),
            // It is told by its own watch again.
            Ok(false) => return,
            Err(error) => {
                tracing::debug!(
                    error = error.message(),
                    "a pod without its label is not followed"
                );
                tokio::time::sleep(wait.next(MAX_WAIT)).await;
            }
        }
    }
}

/// Answers whether the pod is gone, or else has its label back.
async fn follow_one(
    api: &Api,
    query: &crate::client::ListQuery<'_>,
    id: u128,
    reader: &Reader,
) -> Result<bool, Error> {
    let ours = |pod: &Pod| uid(&pod.metadata.uid) == id;
    let labelled = |pod: &Pod| pod.metadata.labels.contains_key(&reader.keys.cluster);
    let mut found = None;
    let version = api
        .list(query, |page: Vec<Pod>| {
            found = page.into_iter().find(|pod| ours(pod));
        })
        .await?;
    match found {
        None => return Ok(true),
        Some(pod) if labelled(&pod) => return Ok(false),
        Some(_) => {}
    }
    let mut events = api.watch::<Pod>(query, &version).await?;
    while let Some(event) = events.next(Duration::from_secs(600)).await? {
        match event.kind {
            EventType::Deleted if ours(&event.object) => return Ok(true),
            EventType::Modified if ours(&event.object) && labelled(&event.object) => {
                return Ok(false);
            }
            _ => {}
        }
    }
    Err(Error::unavailable("the watch has ended"))
}

/// Everything else that nodes are made of.
pub(super) struct Parts {
    known: Arc<Known>,
    reader: Reader,
    watch: u16,
    kind: u16,
}

impl Parts {
    pub(super) fn new(known: Arc<Known>, reader: Reader, watch: u16, kind: u16) -> Self {
        Self {
            known,
            reader,
            watch,
            kind,
        }
    }
}

impl Sink for Parts {
    type Item = Object;

    fn known(&self) -> (&Known, u16) {
        (&self.known, self.watch)
    }

    fn put(&mut self, object: Object) {
        match self.reader.part(self.kind, &object) {
            Some(seen) => self.known.put(self.watch, seen),
            None => self
                .known
                .gone(uid(&object.metadata.uid), RemovalEvidence::NotListed),
        }
    }

    fn delete(&mut self, object: Object) {
        let meta = &object.metadata;
        let keys = &self.reader.keys;
        if let Some(cluster) = meta.labels.get(&keys.cluster)
            && !meta.labels.contains_key(&keys.node)
        {
            self.known
                .gone_of_group(cluster, &meta.namespace, &meta.name);
        }
        self.known.gone(uid(&meta.uid), RemovalEvidence::Confirmed);
    }
}

/// Kubernetes nodes, for their failure domains.
pub(super) struct Zones {
    known: Arc<Known>,
    watch: u16,
    label: String,
    /// Those that the list under way has not shown.
    unseen: Vec<Arc<str>>,
}

impl Zones {
    pub(super) fn new(known: Arc<Known>, watch: u16, label: String) -> Self {
        Self {
            known,
            watch,
            label,
            unseen: Vec::new(),
        }
    }
}

impl Sink for Zones {
    type Item = Object;

    fn known(&self) -> (&Known, u16) {
        (&self.known, self.watch)
    }

    fn begin(&mut self) {
        self.unseen = self.known.hosts();
    }

    fn put(&mut self, node: Object) {
        let name = &node.metadata.name;
        self.unseen.retain(|host| **host != **name);
        let zone = node.metadata.labels.get(&self.label).map(String::as_str);
        self.known.zone(name, zone.filter(|zone| !zone.is_empty()));
    }

    fn delete(&mut self, node: Object) {
        self.known.zone(&node.metadata.name, None);
    }

    fn end(&mut self) {
        for host in std::mem::take(&mut self.unseen) {
            self.known.zone(&host, None);
        }
        self.known.list_ends(self.watch);
    }
}
