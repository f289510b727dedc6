//! What is read of a pod. Everything else is skipped while it is decoded.

mod wire;

use serde::Deserialize;

use crate::client::{Meta, nullable};

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name, labels, …
    pub metadata: Meta,
    /// What it should be.
    pub spec: Spec,
    /// What it is.
    pub status: Status,
}

/// What a pod should be.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    /// Kubernetes node that it was given to. `None`: not yet.
    pub node_name: Option<String>,
    /// Containers that run side by side.
    #[serde(deserialize_with = "nullable")]
    pub containers: Vec<Container>,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Container {
    /// Name.
    pub name: String,
    /// Ports that it says it has.
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<Port>,
}

/// A port of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Port {
    /// Name. Empty: none.
    pub name: String,
    /// Port at the pod's address.
    pub container_port: u16,
    /// Port at the Kubernetes node's address. `None`: it has none there.
    pub host_port: Option<u16>,
}

/// What a pod is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    /// Pending, Running, Succeeded, Failed or Unknown.
    pub phase: String,
    /// Why, in one word (Evicted).
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// First address of the Kubernetes node.
    #[serde(rename = "hostIP")]
    pub host_ip: String,
    /// First address.
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    /// All addresses.
    #[serde(rename = "podIPs", deserialize_with = "nullable")]
    pub pod_ips: Vec<Ip>,
    /// Ready, PodScheduled, …
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<Condition>,
    /// Its containers.
    #[serde(deserialize_with = "nullable")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Containers that run before.
    #[serde(deserialize_with = "nullable")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// An address.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Ip {
    /// IPv4 or IPv6.
    pub ip: String,
}

/// A condition of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// Ready, PodScheduled, …
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
}

/// How a container is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerStatus {
    /// Its name.
    pub name: String,
    /// How often it was started again.
    pub restart_count: u32,
    /// How it is.
    #[serde(deserialize_with = "nullable")]
    pub state: State,
    /// How it was before.
    #[serde(deserialize_with = "nullable")]
    pub last_state: State,
}

/// One of these, or none: it waits.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct State {
    /// It does not run yet, or again.
    pub waiting: Option<Waiting>,
    /// It runs.
    pub running: Option<Running>,
    /// It has ended.
    pub terminated: Option<Terminated>,
}

/// A container that does not run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Waiting {
    /// Why, in one word (CrashLoopBackOff).
    pub reason: String,
    /// Why, for people.
    pub message: String,
}

/// A container that runs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Running {}

/// A container that has ended.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Terminated {
    /// Why, in one word (OOMKilled, Error, Completed).
    pub reason: String,
    /// What the runtime, or the container itself, says.
    pub message: String,
    /// Its exit code.
    pub exit_code: i32,
    /// Signal that ended it. 0: none.
    pub signal: i32,
}

impl Pod {
    /// A condition.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|it| it.kind == kind)
    }

    /// Whether the scheduler has looked for a place and found none.
    #[must_use]
    pub fn is_unschedulable(&self) -> bool {
        !self.metadata.is_deleting()
            && self.status.phase == "Pending"
            && self
                .condition("PodScheduled")
                .is_some_and(|it| it.status == "False" && it.reason == "Unschedulable")
    }

    /// Its addresses, the first one first.
    pub fn ips(&self) -> impl Iterator<Item = &str> {
        let first = self.status.pod_ip.as_str();
        let others = self.status.pod_ips.iter().map(|it| it.ip.as_str());
        std::iter::once(first)
            .chain(others.filter(move |ip| *ip != first))
            .filter(|ip| !ip.is_empty())
    }
}
