//! How far an addon is, from what the API server says of its objects and pods.

use std::collections::BTreeSet;

use drover_proto::platform::v1::{AddonKind, AddonState, Endpoint, Resource, ResourcePhase};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, Service};

use super::{
    Backend,
    apply::is_due,
    live::{self, Live},
    loaded::{self, Answer},
    mark::Mark,
    read::{Slot, Things},
    workloads::Workload,
};
use crate::{client::Meta as _, delete::Item, discover::timestamp};

/// Message while pods load something, which takes less than a second.
pub(super) const LOADING: &str = "its pods have not loaded the last change yet";

/// Reasons for which a container waits that do not pass by themselves.
const STUCK: &[&str] = &[
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
];

impl Backend {
    /// The state of an addon that consists of these things.
    pub(super) async fn state(&self, live: &Live, slot: &Slot, things: &Things) -> AddonState {
        let marks: Vec<(&Item, Mark)> = things
            .all()
            .filter_map(|item| Some((item, Mark::of(&item.meta)?)))
            .collect();
        let kind = marks
            .first()
            .map_or(AddonKind::Unspecified, |(_, mark)| mark.kind());
        let is_map = |item: &&(&Item, Mark)| item.0.kind.resource.kind == "ConfigMap";
        let mark = marks.iter().find(is_map).or(marks.first());
        let (phase, mut message) = self.judge(live, kind, things).await;
        if let Some((_, mark)) = mark.filter(|(_, mark)| !mark.note.is_empty()) {
            if !message.is_empty() {
                message.push_str("; ");
            }
            message.push_str(&mark.note);
        }
        AddonState {
            cluster_id: slot.cluster_id.clone(),
            owner: slot.owner.clone(),
            kind: kind.into(),
            name: slot.name.clone(),
            phase: phase.into(),
            message,
            endpoints: endpoints(&things.services, &things.pods),
            target_count: mark.map_or(0, |(_, mark)| mark.targets),
            resources: things.all().map(|item| resource(slot, item)).collect(),
        }
    }

    async fn judge(
        &self,
        live: &Live,
        kind: AddonKind,
        things: &Things,
    ) -> (ResourcePhase, String) {
        if things.is_empty() {
            return (ResourcePhase::Gone, String::new());
        }
        if things.all().all(|item| item.meta.is_deleting()) {
            return (ResourcePhase::Releasing, left(things));
        }
        let pending = |message: String| (ResourcePhase::Pending, message);
        if let Some(item) = things.all().find(|item| item.meta.is_deleting()) {
            return pending(format!("{} is being deleted", item.label()));
        }
        if kind != AddonKind::Template && things.workloads.is_empty() {
            return pending("its Deployment is missing".to_owned());
        }
        if let Some(behind) = self.behind(live, things).await {
            return behind;
        }
        if kind != AddonKind::Template && things.pods_are_older() {
            return pending("its pods are just getting ready".to_owned());
        }
        for pod in things.pods.iter().filter(|pod| speaks(pod)) {
            let Some(content) = live.wanted(&pod.metadata) else {
                return pending(LOADING.to_owned());
            };
            let name = pod.metadata.name();
            match self.answer(pod, &content).await {
                Ok(Answer::Loaded) => {}
                Ok(Answer::Pending) => return pending(LOADING.to_owned()),
                Ok(Answer::Refused(words)) => {
                    let message = format!("pod {name} keeps its last good configuration: {words}");
                    return (ResourcePhase::Failed, message);
                }
                Err(error) => {
                    let message = format!(
                        "what pod {name} has loaded is not known: {}",
                        error.message()
                    );
                    return (ResourcePhase::Unknown, message);
                }
            }
        }
        if things.all().any(|item| is_due(&item.meta)) {
            return pending("its certificate is due; the next request renews it".to_owned());
        }
        (ResourcePhase::Ready, String::new())
    }

    /// How it is with what runs pods, if that is not complete.
    async fn behind(&self, live: &Live, things: &Things) -> Option<(ResourcePhase, String)> {
        let workloads = &things.workloads;
        if let Some(words) = workloads.iter().find_map(|it| it.failed.clone()) {
            return Some((ResourcePhase::Failed, words));
        }
        let behind: Vec<String> = workloads.iter().filter_map(Workload::behind).collect();
        if behind.is_empty() {
            return None;
        }
        let words = things.pods.iter().find_map(stuck);
        let words = words.or_else(|| workloads.iter().find_map(|it| it.refused.clone()));
        let words = match words {
            None => self.refused_first(live, things).await,
            words => words,
        };
        let phase = match words.is_some() && workloads.iter().all(Workload::is_down) {
            true => ResourcePhase::Failed,
            false => ResourcePhase::Pending,
        };
        let words = words.or_else(|| things.pods.iter().find_map(unscheduled));
        let all = behind.into_iter().chain(words);
        Some((phase, all.collect::<Vec<_>>().join("; ")))
    }

    /// Why a pod that runs is not ready: it has refused the first content that it was given.
    async fn refused_first(&self, live: &Live, things: &Things) -> Option<String> {
        let runs = |pod: &&Pod| {
            let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
            speaks(pod) && phase == Some("Running") && !is_ready(pod)
        };
        for pod in things.pods.iter().filter(runs) {
            let Some(content) = live.wanted(&pod.metadata) else {
                continue;
            };
            if let Ok(Answer::Refused(words)) = self.answer(pod, &content).await {
                let name = pod.metadata.name();
                return Some(format!("pod {name} has no good configuration: {words}"));
            }
        }
        None
    }
}

/// Whether a pod says what it has loaded, and is to stay.
fn speaks(pod: &Pod) -> bool {
    loaded::says(pod) && !pod.metadata.is_deleting() && !live::is_over(pod)
}

/// What a removal waits for.
pub(super) fn left(things: &Things) -> String {
    // A finalizer of the garbage collector waits for pods, which are named then.
    let holds = |name: &&String| !matches!(name.as_str(), "foregroundDeletion" | "orphan");
    let held = things.all().find_map(|item| {
        let finalizer = item.meta.finalizers().iter().find(holds)?;
        let label = item.label();
        let is_deleting = item.meta.is_deleting();
        is_deleting.then(|| format!("{label} waits for its finalizer {finalizer}"))
    });
    let pod = || {
        let name = things.pods.first()?.metadata.name();
        Some(format!("pod/{name} is still there"))
    };
    let item = || Some(format!("{} is still there", things.all().next()?.label()));
    held.or_else(pod).or_else(item).unwrap_or_default()
}

/// Why the scheduler finds no place for a pod.
fn unscheduled(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let refused = conditions
        .iter()
        .find(|it| it.type_ == "PodScheduled" && it.status == "False");
    refused?.message.clone()
}

/// What the kubelet says of a container that does not start.
fn stuck(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let containers = [&status.init_container_statuses, &status.container_statuses];
    let mut containers = containers.into_iter().flatten().flatten();
    let stuck = containers.find_map(waiting)?;
    Some(format!("pod {}: {stuck}", pod.metadata.name()))
}

fn waiting(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|it| STUCK.contains(it))?;
    let message = waiting.message.as_deref().unwrap_or_default();
    Some(format!("{reason}: {message}"))
}

pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|it| it.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|it| it.type_ == "Ready" && it.status == "True")
}

/// Where its services can be reached: from outside first.
fn endpoints(services: &[Service], pods: &[Pod]) -> Vec<Endpoint> {
    let ready = pods.iter().filter(|pod| is_ready(pod));
    let hosts: BTreeSet<String> = ready
        .filter_map(|pod| pod.status.as_ref()?.host_ip.clone())
        .collect();
    let mut endpoints = Vec::new();
    for service in services {
        let Some(spec) = &service.spec else { continue };
        let balancer = service
            .status
            .as_ref()
            .and_then(|it| it.load_balancer.as_ref());
        let ingress = balancer
            .and_then(|it| it.ingress.as_ref())
            .into_iter()
            .flatten();
        let outer = ingress.filter_map(|it| it.ip.clone().or_else(|| it.hostname.clone()));
        let outer = outer.chain(spec.external_ips.clone().unwrap_or_default());
        let inner = spec
            .cluster_ip
            .iter()
            .filter(|ip| !ip.is_empty() && *ip != "None");
        let ports = spec.ports.as_deref().unwrap_or_default();
        let mut add = |host: &String, port: Option<i32>| {
            let port = port.and_then(|port| u32::try_from(port).ok());
            endpoints.extend(port.map(|port| Endpoint {
                host: host.clone(),
                port,
            }));
        };
        for host in outer {
            ports.iter().for_each(|port| add(&host, Some(port.port)));
        }
        for host in &hosts {
            ports.iter().for_each(|port| add(host, port.node_port));
        }
        for host in inner {
            ports.iter().for_each(|port| add(host, Some(port.port)));
        }
    }
    endpoints
}

fn resource(slot: &Slot, item: &Item) -> Resource {
    let mark = Mark::of(&item.meta);
    let created = item.meta.creation_timestamp.as_ref();
    let phase = match item.meta.is_deleting() {
        true => ResourcePhase::Releasing,
        false => ResourcePhase::Ready,
    };
    Resource {
        cluster_id: slot.cluster_id.clone(),
        owner: slot.owner.clone(),
        kind: item.kind.resource.kind.to_ascii_lowercase(),
        name: item.meta.name().to_owned(),
        id: item.meta.uid().to_owned(),
        phase: phase.into(),
        message: String::new(),
        sequence: mark.map_or(0, |mark| mark.sequence),
        create_time: created.map(timestamp),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn a_pod_that_was_evicted_or_is_going_is_not_waited_for() {
        let pod = |phase: &str, deleted: Option<&str>| -> Pod {
            let annotations = json!({"drover.dev/live-confirmed": "true"});
            let metadata = json!({"annotations": annotations, "deletionTimestamp": deleted});
            from_value(json!({"metadata": metadata, "status": {"phase": phase}})).unwrap()
        };
        assert!(speaks(&pod("Running", None)));
        assert!(speaks(&pod("Pending", None)));
        assert!(!speaks(&pod("Failed", None)));
        assert!(!speaks(&pod("Succeeded", None)));
        assert!(!speaks(&pod("Running", Some("2026-01-01T00:00:00Z"))));
    }
}
