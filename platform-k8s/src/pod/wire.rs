//! A pod in protobuf. Field numbers are those of `generated.proto` in `k8s.io/api` (`core/v1`).
// Ours, as k8s-openapi reads JSON only, which is four times as large and decoded with every field.

use prost::Message;

use super::{
    Condition, Container, ContainerState, ContainerStatus, Ip, Pod, Port, Running, Spec, Status,
    Terminated, Waiting,
};
use crate::client::{Readable, WireMeta};

impl Readable for Pod {
    type Wire = WirePod;
}

#[derive(Clone, PartialEq, Message)]
pub struct WirePod {
    #[prost(message, optional, tag = "1")]
    metadata: Option<WireMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<WireSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<WireStatus>,
}

impl From<WirePod> for Pod {
    fn from(from: WirePod) -> Self {
        Self {
            metadata: from.metadata.unwrap_or_default().into(),
            spec: from.spec.unwrap_or_default().into(),
            status: from.status.unwrap_or_default().into(),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct WireSpec {
    #[prost(message, repeated, tag = "2")]
    containers: Vec<WireContainer>,
    #[prost(string, tag = "10")]
    node_name: String,
}

impl From<WireSpec> for Spec {
    fn from(from: WireSpec) -> Self {
        Self {
            node_name: Some(from.node_name).filter(|name| !name.is_empty()),
            containers: all(from.containers),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct WireContainer {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "6")]
    ports: Vec<WirePort>,
}

impl From<WireContainer> for Container {
    fn from(from: WireContainer) -> Self {
        Self {
            name: from.name,
            ports: all(from.ports),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct WirePort {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "2")]
    host_port: i32,
    #[prost(int32, tag = "3")]
    container_port: i32,
}

impl From<WirePort> for Port {
    fn from(from: WirePort) -> Self {
        Self {
            name: from.name,
            // The API server rejects any other numbers.
            container_port: u16::try_from(from.container_port).unwrap_or_default(),
            host_port: u16::try_from(from.host_port).ok().filter(|port| *port > 0),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct WireStatus {
    #[prost(string, tag = "1")]
    phase: String,
    #[prost(message, repeated, tag = "2")]
    conditions: Vec<WireCondition>,
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(string, tag = "5")]
    host_ip: String,
    #[prost(string, tag = "6")]
    pod_ip: String,
    #[prost(message, repeated, tag = "8")]
    container_statuses: Vec<WireContainerStatus>,
    #[prost(message, repeated, tag = "10")]
    init_container_statuses: Vec<WireContainerStatus>,
    #[prost(message, repeated, tag = "12")]
    pod_ips: Vec<WireIp>,
}

impl From<WireStatus> for Status {
    fn from(from: WireStatus) -> Self {
        Self {
            phase: from.phase,
            reason: from.reason,
            message: from.message,
            host_ip: from.host_ip,
            pod_ip: from.pod_ip,
            pod_ips: all(from.pod_ips),
            conditions: all(from.conditions),
            container_statuses: all(from.container_statuses),
            init_container_statuses: all(from.init_container_statuses),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct WireIp {
    #[prost(string, tag = "1")]
    ip: String,
}

impl From<WireIp> for Ip {
    fn from(from: WireIp) -> Self {
        Self { ip: from.ip }
    }
}

#[derive(Clone, PartialEq, Message)]
struct WireCondition {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    status: String,
    #[prost(string, tag = "5")]
    reason: String,
    #[prost(string, tag = "6")]
    message: String,
}

impl From<WireCondition> for Condition {
    fn from(from: WireCondition) -> Self {
        Self {
            kind: from.kind,
            status: from.status,
            reason: from.reason,
            message: from.message,
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct WireContainerStatus {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    state: Option<WireState>,
    #[prost(message, optional, tag = "3")]
    last_state: Option<WireState>,
    #[prost(int32, tag = "5")]
    restart_count: i32,
}

impl From<WireContainerStatus> for ContainerStatus {
    fn from(from: WireContainerStatus) -> Self {
        Self {
            name: from.name,
            restart_count: u32::try_from(from.restart_count).unwrap_or_default(),
            state: from.state.unwrap_or_default().into(),
            last_state: from.last_state.unwrap_or_default().into(),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct WireState {
    #[prost(message, optional, tag = "1")]
    waiting: Option<WireWaiting>,
    #[prost(message, optional, tag = "2")]
    running: Option<WireRunning>,
    #[prost(message, optional, tag = "3")]
    terminated: Option<WireTerminated>,
}

impl From<WireState> for ContainerState {
    fn from(from: WireState) -> Self {
        Self {
            waiting: from.waiting.map(|it| Waiting {
                reason: it.reason,
                message: it.message,
            }),
            running: from.running.map(|_| Running {}),
            terminated: from.terminated.map(|it| Terminated {
                reason: it.reason,
                message: it.message,
                exit_code: it.exit_code,
                signal: it.signal,
            }),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct WireWaiting {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    message: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct WireRunning {}

#[derive(Clone, PartialEq, Message)]
struct WireTerminated {
    #[prost(int32, tag = "1")]
    exit_code: i32,
    #[prost(int32, tag = "2")]
    signal: i32,
    #[prost(string, tag = "3")]
    reason: String,
    #[prost(string, tag = "4")]
    message: String,
}

fn all<T, U: From<T>>(from: Vec<T>) -> Vec<U> {
    from.into_iter().map(Into::into).collect()
}
