//! Content that pods must have at once: the ConfigMap that they name is copied into an annotation of each of them.
//!
//! The ConfigMap is mounted, too: a pod that starts while nobody is here has what was known last, and later the
//! annotation, which its kubelet exposes as soon as it changes. The annotation is not in the pod template, or each
//! change would roll out all pods.

use std::{collections::HashMap, sync::Arc, time::Duration};

use drover_core::{Error, Result, back_off_for};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::core::{ObjectMeta, WatchEvent};
use parking_lot::Mutex;
use tokio::time::sleep;

use super::{Backend, read::Things};
use crate::{
    annotated::{self, MAX_LIST, Untold},
    client::{ListQuery, Meta as _, Object, Shape},
    labels,
    objects::Object as Rendered,
};

/// Key of the ConfigMap.
const KEY: &str = "live";
/// Pods that are not over.
const RUNS: &str = "status.phase!=Failed,status.phase!=Succeeded";
/// Initial and maximum backoff after a failure.
const WAITS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

pub(super) struct Live {
    backend: Arc<Backend>,
    /// Content by ConfigMap, as it was read last.
    known: Mutex<HashMap<String, Arc<str>>>,
    /// Held from the read of a ConfigMap until pods have it: an older one must not come last.
    telling: tokio::sync::Mutex<()>,
}

/// Checks that the content of a ConfigMap fits into an annotation.
///
/// # Errors
/// `Invalid` with the targets, of which it consists.
pub(super) fn check(object: &Rendered) -> Result<()> {
    let data = object.body.get("data").and_then(|data| data.get(KEY));
    let bytes = data.and_then(|it| it.as_str()).map_or(0, str::len);
    if object.kind == "ConfigMap" && bytes > MAX_LIST {
        let why = format!(
            "all of them on all ports need {} KiB; at most {} KiB reach a pod",
            bytes.div_ceil(1024),
            MAX_LIST / 1024
        );
        return Err(Error::invalid("targets", why));
    }
    Ok(())
}

/// Whether a pod has ended and stays as a record, as one that was evicted does: it says and loads nothing any more.
pub(super) fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

/// The ConfigMap whose content a pod asks for.
pub(super) fn source(pod: &ObjectMeta) -> Option<&str> {
    pod.annotations().get(labels::LIVE_FROM).map(String::as_str)
}

impl Live {
    pub(super) fn new(backend: Arc<Backend>) -> Self {
        Self {
            backend,
            known: Mutex::default(),
            telling: tokio::sync::Mutex::default(),
        }
    }

    /// Tells the pods of an addon whose objects have just been applied.
    pub(super) async fn tell(&self, things: &Things) -> Result<()> {
        let pods = things.pods.iter().filter(|pod| !is_over(pod));
        let pods: Vec<&ObjectMeta> = pods.map(|pod| &pod.metadata).collect();
        self.update(&pods, true).await
    }

    /// The content that a pod should have, as far as it is known. `None` if it asks for none.
    pub(super) fn wanted(&self, pod: &ObjectMeta) -> Option<Arc<str>> {
        let known = self.known.lock().get(source(pod)?).cloned();
        known.or_else(|| Some(pod.annotations().get(labels::LIVE)?.as_str().into()))
    }

    /// Writes what these pods lack. Only a ConfigMap that was read after a difference was seen decides: another server
    /// may have told them more than is known here.
    async fn update(&self, pods: &[&ObjectMeta], afresh: bool) -> Result<()> {
        let backend = &self.backend;
        let _telling = self.telling.lock().await;
        if afresh {
            let mut known = self.known.lock();
            for source in pods.iter().filter_map(|pod| source(pod)) {
                known.remove(source);
            }
        }
        let mut untold = Vec::new();
        for pod in pods.iter().filter(|pod| !pod.is_deleting()) {
            let Some(source) = source(pod) else { continue };
            let has = pod.annotations().get(labels::LIVE).map(String::as_str);
            let known = self.known.lock().get(source).cloned();
            if known.is_some() && known.as_deref() == has {
                continue;
            }
            let fresh = untold.iter().any(|(of, _): &(&str, Untold)| *of == source);
            let content = match known.filter(|_| fresh) {
                Some(content) => content,
                None => {
                    let (kind, namespace) = (&backend.config_maps, &backend.namespace);
                    let map = backend
                        .api
                        .get::<ConfigMap>(kind, namespace, source)
                        .await?;
                    let data = map.and_then(|map| map.data?.remove(KEY));
                    let Some(content) = data else { continue };
                    let content: Arc<str> = content.into();
                    self.known
                        .lock()
                        .insert(source.to_owned(), Arc::clone(&content));
                    content
                }
            };
            if has != Some(&*content) {
                untold.push((
                    source,
                    Untold {
                        namespace: pod.namespace().into(),
                        name: pod.name().into(),
                        list: content,
                    },
                ));
            }
        }
        let untold: Vec<Untold> = untold.into_iter().map(|(_, untold)| untold).collect();
        annotated::tell(&backend.api, &backend.pods, labels::LIVE, &untold).await
    }

    /// Tells pods as they appear, for ever.
    pub(super) async fn keep(&self) {
        let mut failures = 0;
        loop {
            if let Err(error) = self.follow(&mut failures).await {
                // The words may quote the data that were sent.
                let reason = drover_convert::error::reason_name(error.reason());
                tracing::warn!(reason, "pods of addons cannot be told of their targets");
            }
            sleep(back_off_for(WAITS.0, WAITS.1, failures)).await;
            failures = failures.saturating_add(1);
        }
    }

    async fn follow(&self, failures: &mut u32) -> Result<()> {
        let backend = &self.backend;
        let query = ListQuery {
            kind: &backend.pods,
            namespace: &backend.namespace,
            labels: labels::ADDON,
            fields: RUNS,
            shape: Shape::Metadata,
        };
        let mut pods: Vec<Object> = Vec::new();
        let version = backend.api.list(&query, |page| pods.extend(page)).await?;
        let metas: Vec<&ObjectMeta> = pods.iter().map(|pod| &pod.metadata).collect();
        self.update(&metas, true).await?;
        let mut events = backend.api.watch::<Object>(&query, &version).await?;
        *failures = 0;
        while let Some(event) = events.next(backend.settings.watch_timeout()).await? {
            if let WatchEvent::Added(pod) | WatchEvent::Modified(pod) = event {
                self.update(&[&pod.metadata], false).await?;
            }
        }
        Ok(())
    }
}
