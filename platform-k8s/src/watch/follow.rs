//! One watch: a list, then events from its resourceVersion on, forever. After an interruption it continues where it
//! was; only if the API server no longer has that version, or was silent for too long, it lists again, and objects
//! missing from the list are gone.

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason, back_off_for};
use drover_proto::platform::v1::RemovalEvidence;
use kube::core::ObjectMeta;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::node_cache::NodeCache;
use crate::{
    client::{Api, Kind, Meta as _, Object, Readable, Shape, WatchEvent},
    discover::{self, Reader},
    errors,
    group::uid,
    machine::Machine,
    pod::Pod,
};

/// Initial backoff.
const MIN_WAIT: Duration = Duration::from_millis(50);
/// Maximum backoff.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// A watch that lasted this long has worked, which resets the backoff.
const LASTED: Duration = Duration::from_secs(1);
/// Delay after missing permissions, which may be granted later.
const REFUSED_WAIT: Duration = Duration::from_secs(60);

pub(super) trait Watched: Readable {
    fn meta(&self) -> &ObjectMeta;
}

impl Watched for Pod {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl Watched for Machine {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl Watched for Object {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// Receives the objects that a watch reports.
pub(super) trait Sink: Send {
    type Item: Watched;
    /// The cache to update, and the index of this watch in it.
    fn cache(&self) -> (&NodeCache, u16);
    fn put(&mut self, item: Self::Item);
    fn delete(&mut self, item: Self::Item);

    fn begin(&mut self) {
        let (cache, watch) = self.cache();
        cache.list_begins(watch);
    }

    fn end(&mut self) {
        let (cache, watch) = self.cache();
        cache.list_ends(watch);
    }

    fn heard(&self) {
        let (cache, watch) = self.cache();
        cache.heard(watch);
    }

    fn failed(&self, error: Error) {
        let (cache, watch) = self.cache();
        cache.failed(watch, error);
    }
}

// Not kube's `watcher`: it reads JSON only, and limits no event in size.
/// Parameters of a watch.
pub(super) struct Follow {
    pub(super) api: Api,
    pub(super) kind: Arc<Kind>,
    pub(super) namespace: String,
    pub(super) labels: String,
    pub(super) shape: Shape,
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
            // Until its version has expired.
            while let Err(error) = self.events(&mut sink, &mut version, &mut wait).await {
                if error.reason() == Reason::PageTokenExpired {
                    tracing::debug!(kind = %self.kind, namespace = self.namespace, "a watch begins anew");
                    break;
                }
                let silent = error.reason() == Reason::DeadlineExceeded;
                self.pause(&mut wait, &sink, error).await;
                if silent {
                    // Reopening the watch is not enough after a silence: only a list shows what was missed.
                    break;
                }
            }
        }
    }

    /// Reads events as long as the API server lets it. Never returns `Ok`.
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
                let seen = match &event {
                    WatchEvent::Added(item)
                    | WatchEvent::Modified(item)
                    | WatchEvent::Deleted(item) => item.meta().version(),
                    WatchEvent::Bookmark(mark) => &mark.metadata.resource_version,
                    WatchEvent::Error(_) => continue,
                };
                if !seen.is_empty() {
                    seen.clone_into(version);
                }
                match event {
                    WatchEvent::Added(item) | WatchEvent::Modified(item) => sink.put(item),
                    WatchEvent::Deleted(item) => sink.delete(item),
                    WatchEvent::Bookmark(_) | WatchEvent::Error(_) => {}
                }
                sink.heard();
            }
            if !any {
                // A server that ends every watch immediately must not be called without a pause.
                tokio::time::sleep(wait.next(MAX_WAIT)).await;
            }
        }
    }

    async fn pause<S: Sink>(&self, wait: &mut Wait, sink: &S, error: Error) {
        if error.reason() == Reason::PageTokenExpired {
            // The list took too long and its version has expired: list again.
            return tokio::time::sleep(wait.next(MAX_WAIT)).await;
        }
        let refused = errors::is_forbidden(&error);
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

/// Backoff with jitter, so that the watches do not all return at once when a server comes back.
#[derive(Default)]
struct Wait(u32);

impl Wait {
    fn next(&mut self, max: Duration) -> Duration {
        let longest = back_off_for(MIN_WAIT, max, self.0);
        self.0 = self.0.saturating_add(1);
        longest.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    fn is_first(&self) -> bool {
        self.0 == 1
    }
}

pub(super) struct Pods {
    api: Api,
    cache: Arc<NodeCache>,
    reader: Reader,
    watch: u16,
    kind: u16,
    stop: CancellationToken,
}

impl Pods {
    pub(super) fn new(
        api: Api,
        cache: Arc<NodeCache>,
        reader: Reader,
        watch: u16,
        kind: u16,
        stop: CancellationToken,
    ) -> Self {
        Self {
            api,
            cache,
            reader,
            watch,
            kind,
            stop,
        }
    }
}

impl Sink for Pods {
    type Item = Pod;

    fn cache(&self) -> (&NodeCache, u16) {
        (&self.cache, self.watch)
    }

    fn put(&mut self, pod: Pod) {
        match self.reader.pod(self.kind, &pod) {
            Some(seen) => self.cache.put(self.watch, seen),
            None => self
                .cache
                .gone(uid(pod.metadata.uid()), RemovalEvidence::NotListed),
        }
    }

    fn delete(&mut self, pod: Pod) {
        let uid = uid(pod.metadata.uid());
        let version = pod.metadata.version().parse().unwrap_or(0);
        // The API server sets the deletion timestamp of a pod before it deletes it. A pod without it has only left the
        // selection.
        if pod.metadata.is_deleting() {
            self.cache.gone(uid, RemovalEvidence::Confirmed);
        } else if self.cache.lose(uid, version) {
            let lost = lost(
                self.api.clone(),
                Arc::clone(&self.cache),
                self.kind,
                pod.metadata,
                self.reader.clone(),
            );
            tokio::spawn(self.stop.clone().run_until_cancelled_owned(lost));
        }
    }
}

/// Follows one pod by its name until it is gone or has its label back.
async fn lost(api: Api, cache: Arc<NodeCache>, kind: u16, meta: ObjectMeta, reader: Reader) {
    let Some(kind) = cache.kinds().get(usize::from(kind)).cloned() else {
        return;
    };
    let id = uid(meta.uid());
    let fields = format!("metadata.name={}", meta.name());
    let query = discover::query(&kind, meta.namespace(), "", &fields, Shape::Full);
    let mut wait = Wait::default();
    while cache.is_lost(id) {
        let gone = follow_one(&api, &query, id, &reader).await;
        match gone {
            Ok(true) => cache.gone(id, RemovalEvidence::Confirmed),
            // Its own watch reports it again.
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

/// Returns whether the pod is gone; otherwise it has its label back.
async fn follow_one(
    api: &Api,
    query: &crate::client::ListQuery<'_>,
    id: u128,
    reader: &Reader,
) -> Result<bool, Error> {
    let ours = |pod: &Pod| uid(pod.metadata.uid()) == id;
    let labelled = |pod: &Pod| pod.metadata.labels().contains_key(&reader.keys.cluster);
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
        match event {
            WatchEvent::Deleted(pod) if ours(&pod) => return Ok(true),
            WatchEvent::Modified(pod) if ours(&pod) && labelled(&pod) => return Ok(false),
            _ => {}
        }
    }
    Err(Error::unavailable("the watch has ended"))
}

/// All other objects of nodes.
pub(super) struct Parts {
    cache: Arc<NodeCache>,
    reader: Reader,
    watch: u16,
    kind: u16,
}

impl Parts {
    pub(super) fn new(cache: Arc<NodeCache>, reader: Reader, watch: u16, kind: u16) -> Self {
        Self {
            cache,
            reader,
            watch,
            kind,
        }
    }
}

impl Sink for Parts {
    type Item = Object;

    fn cache(&self) -> (&NodeCache, u16) {
        (&self.cache, self.watch)
    }

    fn put(&mut self, object: Object) {
        match self.reader.part(self.kind, &object) {
            Some(seen) => self.cache.put(self.watch, seen),
            None => {
                let meta = &object.metadata;
                let at = (self.watch, self.kind);
                self.cache.of_group(at, meta, &self.reader.keys);
                self.cache.gone(uid(meta.uid()), RemovalEvidence::NotListed);
            }
        }
    }

    fn delete(&mut self, object: Object) {
        let meta = &object.metadata;
        let keys = &self.reader.keys;
        if let Some(cluster) = meta.labels().get(&keys.cluster)
            && !meta.labels().contains_key(&keys.node)
        {
            self.cache.gone_of_group(self.kind, cluster, meta);
        }
        self.cache.gone(uid(meta.uid()), RemovalEvidence::Confirmed);
    }
}

/// Kubernetes nodes: failure domains, and hosts that are lost.
pub(super) struct Machines {
    cache: Arc<NodeCache>,
    watch: u16,
    /// Label of the failure domain.
    zone: String,
    /// Those that the current list has not contained so far.
    unseen: Vec<Arc<str>>,
}

impl Machines {
    pub(super) fn new(cache: Arc<NodeCache>, watch: u16, zone: String) -> Self {
        Self {
            cache,
            watch,
            zone,
            unseen: Vec::new(),
        }
    }
}

impl Sink for Machines {
    type Item = Machine;

    fn cache(&self) -> (&NodeCache, u16) {
        (&self.cache, self.watch)
    }

    fn begin(&mut self) {
        self.unseen = self.cache.hosts();
    }

    fn put(&mut self, machine: Machine) {
        let name = machine.metadata.name();
        self.unseen.retain(|host| **host != *name);
        self.cache.host(name, Some(machine.known(&self.zone)));
    }

    fn delete(&mut self, machine: Machine) {
        self.cache.host(machine.metadata.name(), None);
    }

    fn end(&mut self) {
        for host in std::mem::take(&mut self.unseen) {
            self.cache.host(&host, None);
        }
        self.cache.hosts_are_listed(self.watch);
    }
}
