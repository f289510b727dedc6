//! Whether pods and nodes are as wanted, and whether they can still become so.

use drover_core::{Error, Result};
use drover_proto::kubernetes::v1 as api;
use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod, PodStatus};
use kube::{Resource, ResourceExt as _};

use super::{Seen, Verdict};
use crate::convert::{Why, phase, why};

/// What pods can be waited for: any of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodConditions {
    pub(crate) ready: bool,
    pub(crate) succeeded: bool,
    pub(crate) failed: bool,
    pub(crate) has_ip: bool,
    pub(crate) gone: bool,
}

impl PodConditions {
    pub(crate) fn of(conditions: &[i32]) -> Result<Self> {
        let mut all = Self::default();
        for (at, value) in conditions.iter().enumerate() {
            let field = || format!("conditions[{at}]");
            let condition = api::PodWaitCondition::try_from(*value);
            let condition = condition
                .map_err(|_| Error::invalid(field(), format!("{value} is not a known value")))?;
            match condition {
                api::PodWaitCondition::Unspecified => {
                    return Err(Error::invalid(field(), "is required"));
                }
                api::PodWaitCondition::Ready => all.ready = true,
                api::PodWaitCondition::Succeeded => all.succeeded = true,
                api::PodWaitCondition::Failed => all.failed = true,
                api::PodWaitCondition::HasIp => all.has_ip = true,
                api::PodWaitCondition::Gone => all.gone = true,
            }
        }
        if all == Self::default() {
            all.ready = true;
        }
        Ok(all)
    }
}

/// An object with what was found of it.
pub(crate) fn seen<K: Resource>(object: &K, verdict: Verdict) -> Seen {
    Seen {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        verdict,
    }
}

/// Whether a pod meets any of the conditions.
pub(crate) fn pod_verdict(pod: &Pod, wanted: PodConditions) -> Verdict {
    let empty = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&empty);
    let leaving = pod.metadata.deletion_timestamp.is_some();
    let is = phase(status.phase.as_deref());
    let mut conditions = status.conditions.iter().flatten();
    let ready = conditions.any(|it| it.type_ == "Ready" && it.status == "True");
    let has_ip = status.pod_ip.as_ref().is_some_and(|ip| !ip.is_empty());
    let met = (wanted.ready && ready && !leaving)
        || (wanted.succeeded && is == api::PodPhase::Succeeded)
        || (wanted.failed && is == api::PodPhase::Failed)
        || (wanted.has_ip && has_ip);
    if met {
        return Verdict::Met;
    }
    // Whoever deletes a pod may put another one in its place.
    if wanted.gone || leaving {
        return Verdict::Pending(why(pod));
    }
    let ended = matches!(is, api::PodPhase::Succeeded | api::PodPhase::Failed);
    let ends = Ends::of(pod, status);
    let possible = !ended
        && ((wanted.ready && !ends.unready)
            || (wanted.succeeded && !ends.unsuccessful)
            || wanted.failed
            || wanted.has_ip);
    if possible {
        return Verdict::Pending(why(pod));
    }
    Verdict::Impossible(never(pod, status, ended))
}

fn never(pod: &Pod, status: &PodStatus, ended: bool) -> Why {
    let mut why = why(pod);
    if ended {
        let word = status.phase.clone().unwrap_or_default();
        let said = if why.reason == word { "" } else { &why.reason };
        why.message = match (said, why.message.as_str()) {
            ("", message) => message.to_owned(),
            (said, "") => said.to_owned(),
            (said, message) => format!("{said}: {message}"),
        };
        why.reason = word;
    } else if restart_policy(pod) == "Always" {
        why = Why::new(
            "RestartPolicy",
            "a pod whose containers are always started again does not succeed".to_owned(),
        );
    }
    why
}

/// What containers that have ended for good leave impossible.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    unready: bool,
    unsuccessful: bool,
}

impl Ends {
    fn of(pod: &Pod, status: &PodStatus) -> Self {
        let policy = restart_policy(pod);
        let code = |it: &ContainerStatus| Some(it.state.as_ref()?.terminated.as_ref()?.exit_code);
        let main = status.container_statuses.iter().flatten();
        let main: Vec<i32> = main.filter_map(code).collect();
        let init = status.init_container_statuses.iter().flatten();
        let mut init = init
            .filter(|it| !is_sidecar(pod, &it.name))
            .filter_map(code);
        match policy {
            "Never" => {
                let failed = main.iter().any(|it| *it != 0) || init.any(|it| it != 0);
                Self {
                    unready: failed || !main.is_empty(),
                    unsuccessful: failed,
                }
            }
            "OnFailure" => Self {
                unready: main.contains(&0),
                unsuccessful: false,
            },
            _ => Self {
                unready: false,
                unsuccessful: true,
            },
        }
    }
}

/// Whether an init container runs beside the others, and is started again however it ends.
fn is_sidecar(pod: &Pod, name: &str) -> bool {
    let spec = pod.spec.iter();
    let mut init = spec.flat_map(|spec| spec.init_containers.iter().flatten());
    init.any(|it| it.name == name && it.restart_policy.as_deref() == Some("Always"))
}

fn restart_policy(pod: &Pod) -> &str {
    let policy = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.restart_policy.as_deref());
    policy.unwrap_or("Always")
}

/// Whether a condition of a node holds, or does not.
pub(crate) fn node_verdict(node: &Node, condition: &str, wanted: bool) -> Verdict {
    let conditions = node.status.as_ref().and_then(|it| it.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let Some(found) = conditions.find(|it| it.type_ == condition) else {
        let message = format!("the node has no condition {condition:?}");
        return Verdict::Pending(Why::new("ConditionMissing", message));
    };
    let word = if wanted { "True" } else { "False" };
    if found.status == word {
        return Verdict::Met;
    }
    let reason = match (condition, found.reason.as_deref()) {
        ("Ready", _) if wanted => "NotReady",
        (_, Some(reason)) if !reason.is_empty() => reason,
        (_, Some(_) | None) => "NotMet",
    };
    Verdict::Pending(Why::new(reason, found.message.clone()))
}
