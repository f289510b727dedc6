//! The fields of a pod that are read. Decoding skips all others.

mod wire;

use kube::core::ObjectMeta;
use serde::Deserialize;

use crate::client::{Meta as _, nullable};

/// A pod, reduced to the fields that are read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Object metadata.
    pub metadata: ObjectMeta,
    /// Desired state.
    pub spec: Spec,
    /// Observed state.
    pub status: Status,
}

/// Desired state of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    /// Kubernetes node that it is scheduled to. `None` if not yet.
    pub node_name: Option<String>,
    /// Containers that run side by side, without init containers.
    #[serde(deserialize_with = "nullable")]
    pub containers: Vec<Container>,
}

/// A container in the spec of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Container {
    /// Name.
    pub name: String,
    /// Declared ports.
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<Port>,
}

/// A port of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Port {
    /// Name. Empty if it has none.
    pub name: String,
    /// Port at the pod's address.
    pub container_port: u16,
    /// Port at the Kubernetes node's address. `None` if it has none there.
    pub host_port: Option<u16>,
}

/// Observed state of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    /// Pending, Running, Succeeded, Failed or Unknown.
    pub phase: String,
    /// Machine-readable reason (Evicted).
    pub reason: String,
    /// Message for people.
    pub message: String,
    /// First address of the Kubernetes node.
    #[serde(rename = "hostIP")]
    pub host_ip: String,
    /// First address of the pod.
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    /// All addresses of the pod.
    #[serde(rename = "podIPs", deserialize_with = "nullable")]
    pub pod_ips: Vec<Ip>,
    /// Conditions: Ready, PodScheduled, …
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<Condition>,
    /// Status of the containers.
    #[serde(deserialize_with = "nullable")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Status of the init containers.
    #[serde(deserialize_with = "nullable")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// An IP address.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Ip {
    /// IPv4 or IPv6 address.
    pub ip: String,
}

/// A condition of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// Type: Ready, PodScheduled, …
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// Machine-readable reason.
    pub reason: String,
    /// Message for people.
    pub message: String,
}

/// Status of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerStatus {
    /// Name of the container.
    pub name: String,
    /// Number of restarts.
    pub restart_count: u32,
    /// Current state.
    #[serde(deserialize_with = "nullable")]
    pub state: ContainerState,
    /// Previous state.
    #[serde(deserialize_with = "nullable")]
    pub last_state: ContainerState,
}

/// State of a container. At most one of these; if none, it is waiting.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// It is not running yet, or not running again yet.
    pub waiting: Option<Waiting>,
    /// It is running.
    pub running: Option<Running>,
    /// It has ended.
    pub terminated: Option<Terminated>,
}

/// Details of a container that is not running.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Waiting {
    /// Machine-readable reason (CrashLoopBackOff).
    pub reason: String,
    /// Message for people.
    pub message: String,
}

/// Details of a running container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Running {}

/// Details of a container that has ended.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Terminated {
    /// Machine-readable reason (OOMKilled, Error, Completed).
    pub reason: String,
    /// Message of the runtime, or of the container itself.
    pub message: String,
    /// Exit code of the container.
    pub exit_code: i32,
    /// Signal that ended it. 0 if none.
    pub signal: i32,
}

impl Pod {
    /// The condition of a type.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|it| it.kind == kind)
    }

    /// Whether the scheduler has looked for a Kubernetes node and found none.
    #[must_use]
    pub fn is_unschedulable(&self) -> bool {
        !self.metadata.is_deleting()
            && self.status.phase == "Pending"
            && self
                .condition("PodScheduled")
                .is_some_and(|it| it.status == "False" && it.reason == "Unschedulable")
    }

    /// All addresses, beginning with `podIP`.
    pub fn ips(&self) -> impl Iterator<Item = &str> {
        let first = self.status.pod_ip.as_str();
        let others = self.status.pod_ips.iter().map(|it| it.ip.as_str());
        std::iter::once(first)
            .chain(others.filter(move |ip| *ip != first))
            .filter(|ip| !ip.is_empty())
    }
}
