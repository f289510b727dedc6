//! Changes as the API server reports them: one watch per kind (and namespace), whose objects are grouped into nodes.
//! Nothing is polled or delayed: an event is passed on as soon as it is read.

mod follow;
mod node_cache;
mod unscheduled;

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result};
use drover_platform::driver::{Changes, Live};
use drover_proto::platform::v1::Node;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    client::{Api, Kind, Shape},
    discover::{self, Reader},
    peers,
    settings::Settings,
};

pub use node_cache::{NodeCache, UnderWayGuard};

use follow::{Follow, Machines, Parts, Pods};

/// How long a shutdown waits for the watches, which can be dropped at any point.
const MAX_SHUTDOWN: Duration = Duration::from_secs(2);

/// The watches of one platform. Dropping it stops them.
pub struct Watches {
    cache: Arc<NodeCache>,
    stop: CancellationToken,
    tasks: parking_lot::Mutex<Vec<JoinHandle<()>>>,
}

impl Watches {
    /// Starts a watch for every kind and namespace.
    ///
    /// # Errors
    /// `Invalid` for a kind that the API server does not serve, or that cannot be listed and watched.
    pub async fn start(api: &Api, settings: &Arc<Settings>) -> Result<Self> {
        let kinds = resolve(api, settings).await?;
        let machines = api.kinds().await?.named("nodes")?;
        let cache = Arc::new(NodeCache::new(kinds, settings));
        let stop = CancellationToken::new();
        let mut tasks = Vec::new();
        let follower = |kind: &Arc<Kind>, namespace: &str, labels: String, shape: Shape| Follow {
            api: api.clone(),
            kind: Arc::clone(kind),
            namespace: namespace.to_owned(),
            labels,
            shape,
            silence: settings.watch_timeout(),
        };
        let machines = follower(&machines, "", String::new(), Shape::Full);
        let watch = cache.watch(None, &machines.kind, "");
        let sink = Machines::new(
            Arc::clone(&cache),
            watch,
            settings.failure_domain_label.clone(),
        );
        tasks.push(tokio::spawn(
            stop.clone()
                .run_until_cancelled_owned(machines.run(sink))
                .into_unit(),
        ));
        for (at, kind) in cache.kinds().iter().enumerate() {
            let index = u16::try_from(at).unwrap_or(u16::MAX);
            let is_pod = discover::is_pod(kind);
            let shape = if is_pod { Shape::Full } else { Shape::Metadata };
            let scopes = settings.scopes().map(Option::unwrap_or_default);
            let scopes: Vec<&str> = if kind.namespaced {
                scopes.collect()
            } else {
                vec![""]
            };
            for namespace in scopes {
                let labels = discover::selector(settings, is_pod);
                let follow = follower(kind, namespace, labels, shape);
                let watch = cache.watch(Some(index), kind, namespace);
                let reader = Reader::new(settings);
                let stop = stop.clone();
                let cache = Arc::clone(&cache);
                let task = if is_pod {
                    let sink = Pods::new(api.clone(), cache, reader, watch, index, stop.clone());
                    tokio::spawn(stop.run_until_cancelled_owned(follow.run(sink)).into_unit())
                } else {
                    let sink = Parts::new(cache, reader, watch, index);
                    tokio::spawn(stop.run_until_cancelled_owned(follow.run(sink)).into_unit())
                };
                tasks.push(task);
            }
        }
        let (expiring, patience) = (Arc::clone(&cache), settings.unschedulable_timeout());
        let expiring = async move { expiring.give_up_unscheduled(patience).await };
        tasks.push(tokio::spawn(
            stop.clone().run_until_cancelled_owned(expiring).into_unit(),
        ));
        let (told, telling) = (Arc::clone(&cache), api.clone());
        let as_set = Arc::clone(settings);
        let telling = async move { peers::keep(telling, told, as_set).await };
        tasks.push(tokio::spawn(
            stop.clone().run_until_cancelled_owned(telling).into_unit(),
        ));
        Ok(Self {
            cache,
            stop,
            tasks: parking_lot::Mutex::new(tasks),
        })
    }

    /// The cache that the watches maintain.
    #[must_use]
    pub fn cache(&self) -> &Arc<NodeCache> {
        &self.cache
    }

    /// Stops all watches.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        let ended = futures::future::join_all(tasks);
        if tokio::time::timeout(MAX_SHUTDOWN, ended).await.is_err() {
            tracing::warn!("watches do not end");
        }
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Resolves the kinds of the settings through discovery.
async fn resolve(api: &Api, settings: &Settings) -> Result<Vec<Arc<Kind>>> {
    let served = api.kinds().await?;
    let mut kinds: Vec<Arc<Kind>> = Vec::new();
    for name in &settings.kinds {
        let kind = served.named(name)?;
        if let Some(verb) = ["list", "watch", "delete"]
            .into_iter()
            .find(|verb| !kind.can(verb))
        {
            return Err(Error::invalid(
                "kinds",
                format!("{name:?} cannot be used: the API server offers no {verb} for it"),
            ));
        }
        if kinds.contains(&kind) {
            return Err(Error::invalid("kinds", format!("{name:?} is there twice")));
        }
        kinds.push(kind);
    }
    if !kinds.iter().any(|kind| discover::is_pod(kind)) {
        return Err(Error::new(
            Reason::Invalid,
            "kinds: pods are missing; a node is a pod",
        ));
    }
    Ok(kinds)
}

impl Live for NodeCache {
    fn connect(&self, changes: Changes) {
        self.tell(changes);
    }

    fn node(&self, cluster_id: &str, node_id: &str) -> Option<Node> {
        self.read(cluster_id, node_id).map(|found| found.node)
    }

    fn is_current(&self) -> bool {
        self.current()
    }
}

/// Discards the output of a task.
trait IntoUnit: Future + Sized {
    fn into_unit(self) -> impl Future<Output = ()> + Send
    where
        Self: Send,
    {
        async move {
            let _ = self.await;
        }
    }
}

impl<F: Future> IntoUnit for F {}
