//! Which container a request means, and what stands in the way of entering it.

use drover_core::{Error, Reason, Result};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kube::{Api, ResourceExt as _};

use crate::{
    client::{ApiClient, Call, escape},
    errors,
    objects::Objects,
    pods::KIND,
};

/// Annotation that names the container kubectl uses by default.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// A container of a pod.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
}

impl Place {
    /// The container of a pod, and the pod as it is. An empty name means the default container.
    pub(crate) async fn find(
        client: &ApiClient,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> Result<(Self, Pod)> {
        let found = Objects::<Pod>::new(client.clone(), &KIND)
            .get(namespace, pod)
            .await?;
        let chosen = if container.is_empty() {
            default(&found)
        } else {
            names(&found).find(|name| *name == container)
        };
        let Some(chosen) = chosen.map(str::to_owned) else {
            let message = format!("pod {pod:?} has no container {container:?}");
            return Err(Error::new(Reason::ContainerNotFound, message)
                .with_resource("container", format!("{namespace}/{pod}/{container}")));
        };
        let place = Self {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container: chosen,
        };
        Ok((place, found))
    }

    pub(crate) fn call(&self, verb: &'static str, what: &str) -> Call {
        Call::new(verb, what, &self.namespace, &self.pod)
    }

    pub(crate) fn api(&self, client: &ApiClient) -> Api<Pod> {
        Api::namespaced(client.kube(), &escape(&self.namespace))
    }

    pub(crate) fn not_running(&self, why: &str) -> Error {
        let (pod, container) = (&self.pod, &self.container);
        let message = format!("container {container:?} of pod {pod:?} {why}");
        Error::new(Reason::ContainerNotRunning, message)
    }

    /// The error for a call into the container that the API server or the kubelet refused.
    pub(crate) fn refused(&self, call: &Call, pod: &Pod, error: kube::Error) -> Error {
        let kube::Error::Api(status) = &error else {
            return errors::of(call, &error);
        };
        let says = |words: &str| status.message.contains(words);
        let not_running = says("container not found")
            || says("does not have a host assigned")
            || says("cannot exec into a container in a completed pod")
            || says("is not running")
            || says("is waiting to start");
        if not_running || (status.code >= 500 && self.is_stopped(pod)) {
            return self.not_running(state(self.status(pod)));
        }
        match status.code {
            404 => KIND.missing(&self.namespace, &self.pod),
            _ => errors::of(call, &error),
        }
    }

    pub(crate) fn status<'a>(&self, pod: &'a Pod) -> Option<&'a ContainerStatus> {
        let status = pod.status.as_ref()?;
        statuses(status).find(|it| it.name == self.container)
    }

    fn is_stopped(&self, pod: &Pod) -> bool {
        let state = self.status(pod).and_then(|it| it.state.as_ref());
        state.is_none_or(|state| state.running.is_none())
    }
}

/// What a container that does not run does.
fn state(status: Option<&ContainerStatus>) -> &'static str {
    let state = status.and_then(|it| it.state.as_ref());
    if state.is_some_and(|it| it.terminated.is_some()) {
        "has ended"
    } else if status.is_some_and(|it| it.restart_count > 0) {
        "is about to be started again"
    } else if state.is_some_and(|it| it.running.is_some()) {
        "does not run any more"
    } else {
        "has not started"
    }
}

fn statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let main = status.container_statuses.iter().flatten();
    main.chain(status.init_container_statuses.iter().flatten())
        .chain(status.ephemeral_container_statuses.iter().flatten())
}

fn names(pod: &Pod) -> impl Iterator<Item = &str> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| {
        let main = spec.containers.iter();
        let init = spec.init_containers.iter().flatten();
        let ephemeral = spec.ephemeral_containers.iter().flatten();
        let main = main.chain(init).map(|it| it.name.as_str());
        main.chain(ephemeral.map(|it| it.name.as_str()))
    })
}

fn default(pod: &Pod) -> Option<&str> {
    let named = pod.annotations().get(DEFAULT_CONTAINER);
    let named = named.and_then(|wanted| names(pod).find(|name| name == wanted));
    named.or_else(|| names(pod).next())
}
