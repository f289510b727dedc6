//! The Kubernetes nodes under pods: their failure domains, and whether anybody there still answers for the pods.

mod wire;

use std::fmt::Write as _;

use drover_proto::platform::v1::{NodeHost, NodeHostState};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ObjectMeta;
use serde::Deserialize;

use crate::client::{Meta as _, nullable};

/// Taint of a person: the machine is off, and what was there may go.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Taint of Kubernetes: the kubelet is silent.
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Maximum number of characters quoted from a condition.
const MAX_WORDS: usize = 512;

/// A Kubernetes node, reduced to the fields that are read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Object metadata.
    pub metadata: ObjectMeta,
    /// Desired state.
    pub spec: Spec,
    /// Observed state.
    pub status: Status,
}

/// Desired state of a Kubernetes node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Spec {
    /// Its taints.
    #[serde(deserialize_with = "nullable")]
    pub taints: Vec<Taint>,
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Key.
    pub key: String,
}

/// Observed state of a Kubernetes node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Its conditions: Ready, DiskPressure, …
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<Condition>,
}

/// A condition of a Kubernetes node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    /// Type: Ready, DiskPressure, …
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// Since when it has this status.
    pub last_transition_time: Option<Time>,
    /// Machine-readable reason.
    pub reason: String,
    /// Message for people.
    pub message: String,
}

/// What is kept of a Kubernetes node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Failure domain. `None` if it has none.
    pub(crate) zone: Option<Box<str>>,
    state: State,
}

/// Whether its kubelet answers for the pods that are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Ready,
    /// With what Kubernetes says about it.
    Silent(Box<str>),
    /// A person has given it up.
    OutOfService,
}

impl Machine {
    /// What is kept of it. `zone` is the label of its failure domain.
    pub(crate) fn known(&self, zone: &str) -> Known {
        let zone = self.metadata.labels().get(zone);
        Known {
            zone: zone
                .filter(|zone| !zone.is_empty())
                .map(|zone| zone.as_str().into()),
            state: self.state(),
        }
    }

    fn state(&self) -> State {
        let tainted = |key: &str| self.spec.taints.iter().any(|taint| taint.key == key);
        let mut conditions = self.status.conditions.iter();
        let ready = conditions.find(|it| it.kind == "Ready");
        // One that has just registered has no condition yet.
        let silent = ready.is_some_and(|it| it.status != "True");
        match ready {
            // As Kubernetes judges it: the taint on a machine that answers gives up nothing.
            Some(_) if silent && tainted(OUT_OF_SERVICE) => State::OutOfService,
            Some(ready) if silent => State::Silent(words(ready).into()),
            _ if tainted(UNREACHABLE) => State::Silent("its kubelet is silent".into()),
            _ => State::Ready,
        }
    }
}

/// What the condition Ready says, and since when.
fn words(ready: &Condition) -> String {
    let mut text = format!("Ready is {}", ready.status);
    if let Some(Time(since)) = &ready.last_transition_time {
        // A String takes every write.
        let _ = write!(text, " since {since}");
    }
    let message: String = ready.message.chars().take(MAX_WORDS).collect();
    let said = [ready.reason.trim(), message.trim().trim_end_matches('.')];
    let said: Vec<&str> = said.into_iter().filter(|it| !it.is_empty()).collect();
    if !said.is_empty() {
        let _ = write!(text, " ({})", said.join(": "));
    }
    text
}

/// The machine as platforms report it. `known` is `None` if it is no longer there.
pub(crate) fn host(name: &str, known: Option<&Known>) -> NodeHost {
    let host = |state: NodeHostState, message: &str, way_out: String| NodeHost {
        name: name.to_owned(),
        state: state.into(),
        message: message.to_owned(),
        way_out,
    };
    let taken = || {
        "Kubernetes takes its pods away within two minutes; if not, `kubectl get pods -A -o wide` shows what keeps them"
            .to_owned()
    };
    match known.map(|known| &known.state) {
        Some(State::Ready) => host(NodeHostState::Ready, "", String::new()),
        Some(State::Silent(words)) => host(
            NodeHostState::Unreachable,
            words,
            format!(
                "only when the machine is off: `kubectl taint node {name} {OUT_OF_SERVICE}=nodeshutdown:NoExecute`, or, if it never comes back, `kubectl delete node {name}`"
            ),
        ),
        Some(State::OutOfService) => host(
            NodeHostState::Gone,
            &format!("has the taint {OUT_OF_SERVICE}"),
            taken(),
        ),
        None => host(NodeHostState::Gone, "its Node object is gone", taken()),
    }
}

#[cfg(test)]
mod tests;
