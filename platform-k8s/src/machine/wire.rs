//! A Kubernetes node in protobuf. Field numbers are those of `generated.proto` in `k8s.io/api` (`core/v1`).

use prost::Message;

use super::{Condition, Machine, Spec, Status, Taint};
use crate::client::{Readable, WireMeta, WireTime};

impl Readable for Machine {
    type Wire = WireMachine;
}

#[derive(Clone, PartialEq, Message)]
pub struct WireMachine {
    #[prost(message, optional, tag = "1")]
    metadata: Option<WireMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<WireSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<WireStatus>,
}

impl From<WireMachine> for Machine {
    fn from(from: WireMachine) -> Self {
        let taints = from.spec.unwrap_or_default().taints.into_iter();
        let conditions = from.status.unwrap_or_default().conditions.into_iter();
        Self {
            metadata: from.metadata.unwrap_or_default().into(),
            spec: Spec {
                taints: taints.map(|it| Taint { key: it.key }).collect(),
            },
            status: Status {
                conditions: conditions.map(Condition::from).collect(),
            },
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct WireSpec {
    #[prost(message, repeated, tag = "5")]
    taints: Vec<WireTaint>,
}

#[derive(Clone, PartialEq, Message)]
struct WireTaint {
    #[prost(string, tag = "1")]
    key: String,
}

#[derive(Clone, PartialEq, Message)]
struct WireStatus {
    #[prost(message, repeated, tag = "4")]
    conditions: Vec<WireCondition>,
}

#[derive(Clone, PartialEq, Message)]
struct WireCondition {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    status: String,
    #[prost(message, optional, tag = "4")]
    last_transition_time: Option<WireTime>,
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
            last_transition_time: from.last_transition_time.and_then(WireTime::time),
            reason: from.reason,
            message: from.message,
        }
    }
}
