//! Content that pods must have at once: the ConfigMap that they name is copied into an annotation of each of them, and
//! handed to those that take it.
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

use super::{Backend, hand::Hand, read::Things};
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
    hand: Hand,
    /// Content by ConfigMap, as it was read last.
    known: Mutex<HashMap<String, Known>>,
    /// Held from the read of a ConfigMap until pods have it: an older one must not come last.
    telling: tokio::sync::Mutex<()>,
}

/// Content of a ConfigMap.
#[derive(Clone)]
struct Known {
    /// The version of the ConfigMap, where versions are numbers that grow.
    version: Option<u64>,
    content: Arc<str>,
}

/// The first line of content for pods that compare its version with that of what was handed to them. A comment in the
/// configurations of HAProxy and ssh.
const MARK: &str = "# drover ";

impl Known {
    /// What a pod has in its annotation.
    fn told(&self, pod: &ObjectMeta) -> Arc<str> {
        match self.version.filter(|_| is_handed(pod)) {
            Some(version) => format!("{MARK}{version}\n{}", self.content).into(),
            None => Arc::clone(&self.content),
        }
    }
}

fn is_handed(pod: &ObjectMeta) -> bool {
    let asked = pod.annotations().get(labels::LIVE_HANDED);
    asked.is_some_and(|asked| asked == "true")
}

/// The content that a pod has in its annotation, without its version.
fn content_of(pod: &ObjectMeta) -> Option<&str> {
    let told = pod.annotations().get(labels::LIVE)?.as_str();
    let marked = told.strip_prefix(MARK).filter(|_| is_handed(pod));
    let unmarked = marked.and_then(|marked| marked.split_once('\n'));
    Some(unmarked.map_or(told, |(_, content)| content))
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
            hand: Hand::new(Arc::clone(&backend)),
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
        let known = known.map(|known| known.content);
        known.or_else(|| Some(content_of(pod)?.into()))
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
        let mut untold: Vec<(&ObjectMeta, Known)> = Vec::new();
        for pod in pods.iter().filter(|pod| !pod.is_deleting()) {
            let Some(from) = source(pod) else { continue };
            let has = content_of(pod);
            let known = self.known.lock().get(from).cloned();
            if known.as_ref().is_some_and(|it| Some(&*it.content) == has) {
                continue;
            }
            let fresh = untold.iter().any(|(of, _)| source(of) == Some(from));
            let known = match known.filter(|_| fresh) {
                Some(known) => Some(known),
                None => self.read(from).await?,
            };
            if let Some(known) = known.filter(|it| Some(&*it.content) != has) {
                untold.push((pod, known));
            }
        }
        let lists = untold.iter().map(|(pod, known)| Untold {
            namespace: pod.namespace().into(),
            name: pod.name().into(),
            list: known.told(pod),
        });
        let lists: Vec<Untold> = lists.collect();
        annotated::tell(&backend.api, &backend.pods, labels::LIVE, &lists).await?;
        // Only now: of what the annotation never said, it would not be seen that the pod has to be told something else.
        for (pod, known) in untold.iter().filter(|(pod, _)| is_handed(pod)) {
            if let Some(version) = known.version {
                (self.hand).give(pod.name(), version, Arc::clone(&known.content));
            }
        }
        Ok(())
    }

    /// Reads a ConfigMap. `None` if there is none, or no content in it.
    async fn read(&self, source: &str) -> Result<Option<Known>> {
        let (backend, namespace) = (&self.backend, &self.backend.namespace);
        let kind = &backend.config_maps;
        let Some(mut map) = backend
            .api
            .get::<ConfigMap>(kind, namespace, source)
            .await?
        else {
            return Ok(None);
        };
        let Some(content) = map.data.as_mut().and_then(|data| data.remove(KEY)) else {
            return Ok(None);
        };
        let known = Known {
            version: (map.metadata.resource_version).and_then(|it| it.parse().ok()),
            content: content.into(),
        };
        self.known.lock().insert(source.to_owned(), known.clone());
        Ok(Some(known))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(handed: bool, told: Option<&str>) -> ObjectMeta {
        let handed = handed.then(|| (labels::LIVE_HANDED.to_owned(), "true".to_owned()));
        let told = told.map(|told| (labels::LIVE.to_owned(), told.to_owned()));
        ObjectMeta {
            annotations: Some(handed.into_iter().chain(told).collect()),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn the_version_is_no_part_of_the_content() {
        let known = Known {
            version: Some(812),
            content: "global\n".into(),
        };
        assert_eq!(&*known.told(&pod(true, None)), "# drover 812\nglobal\n");
        assert_eq!(&*known.told(&pod(false, None)), "global\n");
        for handed in [true, false] {
            let told = known.told(&pod(handed, None));
            assert_eq!(content_of(&pod(handed, Some(&told))), Some("global\n"));
        }
        // As another program may leave it.
        for told in ["", "global\n", "# drover 812"] {
            assert_eq!(content_of(&pod(true, Some(told))), Some(told));
        }
        let own = "# drover 1\n";
        assert_eq!(
            content_of(&pod(false, Some(own))),
            Some(own),
            "its own words"
        );
    }
}
