//! How far pods are, and why they are not further.

use drover_proto::kubernetes::v1 as api;
use k8s_openapi::{
    api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{all, condition, named, time, words};

/// Reasons of containers that are on their way.
const ON_ITS_WAY: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Why a pod is as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Why {
    /// One word.
    pub(crate) reason: String,
    /// In the words of Kubernetes.
    pub(crate) message: String,
}

impl Why {
    pub(crate) fn new(reason: &str, message: impl Into<Option<String>>) -> Self {
        Self {
            reason: reason.to_owned(),
            message: words(message.into()),
        }
    }
}

pub(super) fn pod_status(pod: &Pod) -> api::PodStatus {
    let empty = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&empty);
    let why = trouble(status).unwrap_or_default();
    let ips = status.pod_ips.iter().flatten();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    api::PodStatus {
        phase: phase(status.phase.as_deref()).into(),
        ready: ready(status).is_some_and(|it| it.status == "True"),
        reason: why.reason,
        message: why.message,
        ip: status.pod_ip.clone().unwrap_or_default(),
        ips: ips.map(|it| it.ip.clone()).collect(),
        node: node.unwrap_or_default(),
        host_ip: status.host_ip.clone().unwrap_or_default(),
        start_time: time(status.start_time.as_ref()),
        conditions: all(status.conditions.clone(), |it| {
            let since = it.last_transition_time;
            condition(it.type_, &it.status, it.reason, it.message, since.as_ref())
        }),
        containers: all(status.container_statuses.clone(), container_status),
        init_containers: all(status.init_container_statuses.clone(), container_status),
    }
}

/// The phase of a pod.
pub(crate) fn phase(word: Option<&str>) -> api::PodPhase {
    let all = [
        ("Pending", api::PodPhase::Pending),
        ("Running", api::PodPhase::Running),
        ("Succeeded", api::PodPhase::Succeeded),
        ("Failed", api::PodPhase::Failed),
        ("Unknown", api::PodPhase::Unknown),
    ];
    named(&all, word).unwrap_or_default()
}

fn ready(status: &PodStatus) -> Option<&PodCondition> {
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|it| it.type_ == "Ready")
}

/// What keeps a pod from being ready, in any state of it.
pub(crate) fn why(pod: &Pod) -> Why {
    if pod.metadata.deletion_timestamp.is_some() {
        let finalizers = pod.metadata.finalizers.as_deref().unwrap_or_default();
        let held = (!finalizers.is_empty()).then(|| format!("held by {}", finalizers.join(", ")));
        return Why::new("Terminating", held);
    }
    let empty = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&empty);
    if let Some(why) = trouble(status) {
        return why;
    }
    let waiting = containers(status).filter_map(|it| it.state.as_ref()?.waiting.as_ref());
    let mut waiting = waiting.filter_map(|it| it.reason.as_ref().map(|reason| (reason, it)));
    if let Some((reason, waiting)) = waiting.next() {
        return Why::new(reason, waiting.message.clone());
    }
    match ready(status).filter(|it| it.status != "True") {
        Some(ready) => Why::new("NotReady", ready.message.clone()),
        None => Why::new(status.phase.as_deref().unwrap_or("Pending"), None),
    }
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten())
}

/// What is worth saying about a pod: who evicted it, why it has no node, or what is wrong with a container.
fn trouble(status: &PodStatus) -> Option<Why> {
    if let Some(reason) = status.reason.as_deref().filter(|it| !it.is_empty()) {
        return Some(Why::new(reason, status.message.clone()));
    }
    let mut conditions = status.conditions.iter().flatten();
    let unplaced = conditions.find(|it| it.type_ == "PodScheduled" && it.status == "False");
    if let Some(unplaced) = unplaced {
        let reason = unplaced.reason.as_deref().unwrap_or("Unschedulable");
        return Some(Why::new(reason, unplaced.message.clone()));
    }
    for container in containers(status) {
        let Some(state) = &container.state else {
            continue;
        };
        if let Some(waiting) = &state.waiting
            && let Some(reason) = waiting.reason.as_deref()
            && !ON_ITS_WAY.contains(&reason)
        {
            return Some(Why::new(reason, waiting.message.clone()));
        }
        if let Some(ended) = &state.terminated
            && ended.exit_code != 0
        {
            let reason = ended.reason.as_deref().unwrap_or("Error");
            let message = format!(
                "container {:?} ended with exit code {}",
                container.name, ended.exit_code
            );
            return Some(Why::new(reason, message));
        }
    }
    None
}

fn container_status(from: ContainerStatus) -> api::ContainerStatus {
    let last = from.last_state.unwrap_or_default().terminated;
    let mut status = api::ContainerStatus {
        name: from.name,
        ready: from.ready,
        restart_count: u32::try_from(from.restart_count).unwrap_or(0),
        ..api::ContainerStatus::default()
    };
    let mut started: Option<Time> = None;
    let mut ended = last;
    let state = from.state.unwrap_or_default();
    if let Some(running) = state.running {
        status.set_state(api::ContainerState::Running);
        started = running.started_at;
    } else if let Some(terminated) = state.terminated {
        status.set_state(api::ContainerState::Terminated);
        status.reason = terminated.reason.clone().unwrap_or_default();
        status.message = words(terminated.message.clone());
        ended = Some(terminated);
    } else {
        status.set_state(api::ContainerState::Waiting);
        let waiting = state.waiting.unwrap_or_default();
        status.reason = waiting.reason.unwrap_or_default();
        status.message = words(waiting.message);
    }
    if let Some(ended) = ended {
        status.exit_code = Some(ended.exit_code);
        status.end_time = time(ended.finished_at.as_ref());
        started = started.or(ended.started_at);
    }
    status.start_time = time(started.as_ref());
    status
}
