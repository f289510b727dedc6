//! How far objects are that run pods.

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::v1::Job,
    core::v1::Pod,
};
use kube::core::ObjectMeta;

use crate::client::Meta as _;

/// An object that runs pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Workload {
    pub(super) meta: ObjectMeta,
    /// Pods that are to be ready now.
    wanted: i32,
    pub(super) available: i32,
    /// Whether its controller has seen what was last applied, and its pods are of that.
    current: bool,
    /// Why it can make no pods: quotas, admission.
    pub(super) refused: Option<String>,
    /// Why it runs no pods any more, though they have not done what they were for.
    pub(super) failed: Option<String>,
}

impl Workload {
    /// Why it is not complete. `None` if it is.
    pub(super) fn behind(&self) -> Option<String> {
        let (available, wanted) = (self.available, self.wanted);
        (!self.current || available < wanted)
            .then(|| format!("{available} of {wanted} pods are ready"))
    }

    /// Whether none of its pods is ready.
    pub(super) fn is_down(&self) -> bool {
        self.available == 0
    }
}

/// The message of a condition, if it holds.
macro_rules! held {
    ($status:expr, $kind:literal) => {{
        let conditions = $status.conditions.iter().flatten();
        let mut held = conditions.filter(|it| it.type_ == $kind && it.status == "True");
        held.next()
            .map(|it| it.message.clone().unwrap_or_else(|| $kind.to_owned()))
    }};
}

impl From<Deployment> for Workload {
    fn from(it: Deployment) -> Self {
        let wanted = it.spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let status = it.status.unwrap_or_default();
        Self {
            wanted,
            available: status.available_replicas.unwrap_or(0),
            current: status.observed_generation >= it.metadata.generation
                && status.updated_replicas.unwrap_or(0) >= wanted
                && status.replicas.unwrap_or(0) <= wanted,
            refused: held!(status, "ReplicaFailure"),
            failed: None,
            meta: it.metadata,
        }
    }
}

impl From<ReplicaSet> for Workload {
    fn from(it: ReplicaSet) -> Self {
        let wanted = it.spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let status = it.status.unwrap_or_default();
        Self {
            wanted,
            available: status.available_replicas.unwrap_or(0),
            current: status.observed_generation >= it.metadata.generation
                && status.replicas <= wanted,
            refused: held!(status, "ReplicaFailure"),
            failed: None,
            meta: it.metadata,
        }
    }
}

impl From<StatefulSet> for Workload {
    fn from(it: StatefulSet) -> Self {
        let spec = it.spec.unwrap_or_default();
        let wanted = spec.replicas.unwrap_or(1);
        let strategy = spec.update_strategy.unwrap_or_default();
        let partition = strategy.rolling_update.and_then(|it| it.partition);
        // Otherwise pods keep their revision until somebody wants another one.
        let rolls = strategy.type_.as_deref() != Some("OnDelete") && partition.unwrap_or(0) == 0;
        let status = it.status.unwrap_or_default();
        let available = status.available_replicas.or(status.ready_replicas);
        Self {
            wanted,
            available: available.unwrap_or(0),
            current: status.observed_generation >= it.metadata.generation
                && (!rolls || status.updated_replicas.unwrap_or(0) >= wanted)
                && status.replicas <= wanted,
            refused: None,
            failed: None,
            meta: it.metadata,
        }
    }
}

impl From<DaemonSet> for Workload {
    fn from(it: DaemonSet) -> Self {
        let strategy = it.spec.and_then(|spec| spec.update_strategy);
        let on_delete = strategy.and_then(|it| it.type_).as_deref() == Some("OnDelete");
        let status = it.status.unwrap_or_default();
        let wanted = status.desired_number_scheduled;
        Self {
            wanted,
            available: status.number_available.unwrap_or(0),
            current: status.observed_generation >= it.metadata.generation
                && (on_delete || status.updated_number_scheduled.unwrap_or(0) >= wanted),
            refused: None,
            failed: None,
            meta: it.metadata,
        }
    }
}

impl From<Job> for Workload {
    fn from(it: Job) -> Self {
        let spec = it.spec.unwrap_or_default();
        let status = it.status.unwrap_or_default();
        let at_once = spec.parallelism.unwrap_or(1);
        let succeeded = status.succeeded.unwrap_or(0);
        let left = match spec.completions {
            Some(all) => (all - succeeded).max(0),
            // The first that succeeds is the last that is begun.
            None if succeeded > 0 => status.active.unwrap_or(0),
            None => at_once,
        };
        let over = held!(status, "Complete").is_some() || spec.suspend == Some(true);
        let name = it.metadata.name();
        let failed = held!(status, "Failed").map(|words| format!("job {name} has failed: {words}"));
        Self {
            wanted: if over { 0 } else { at_once.min(left) },
            available: status.ready.unwrap_or(0),
            current: true,
            refused: None,
            failed,
            meta: it.metadata,
        }
    }
}

impl From<Pod> for Workload {
    fn from(it: Pod) -> Self {
        let ready = super::state::is_ready(&it);
        let status = it.status.unwrap_or_default();
        let is = |phase: &str| status.phase.as_deref() == Some(phase);
        let words = status.message.as_deref().or(status.reason.as_deref());
        let name = it.metadata.name();
        let failed = is("Failed").then(|| match words {
            Some(words) => format!("pod {name} has failed: {words}"),
            None => format!("pod {name} has failed"),
        });
        Self {
            wanted: i32::from(!is("Succeeded")),
            available: i32::from(ready),
            current: true,
            refused: None,
            failed,
            meta: it.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn read<T: serde::de::DeserializeOwned + Into<Workload>>(
        spec: Value,
        status: Value,
    ) -> Workload {
        let metadata = json!({"name": "one", "generation": 2});
        let object = json!({"metadata": metadata, "spec": spec, "status": status});
        from_value::<T>(object).unwrap().into()
    }

    #[test]
    fn a_job_is_ready_while_its_pods_are_and_when_they_have_succeeded() {
        let job = |status: Value| {
            let spec = json!({"completions": 3, "parallelism": 2, "template": {}});
            read::<Job>(spec, status)
        };
        let held = |kind: &str| json!({"conditions": [{"type": kind, "status": "True", "message": "BackoffLimit"}]});
        for (status, behind) in [
            (json!({}), Some("0 of 2 pods are ready")),
            (
                json!({"active": 2, "ready": 1}),
                Some("1 of 2 pods are ready"),
            ),
            (json!({"active": 2, "ready": 2}), None),
            (json!({"active": 1, "ready": 1, "succeeded": 2}), None),
            (
                json!({"active": 1, "ready": 0, "succeeded": 2}),
                Some("0 of 1 pods are ready"),
            ),
            (held("Complete"), None),
        ] {
            assert_eq!(job(status.clone()).behind().as_deref(), behind, "{status}");
        }
        let failed = job(held("Failed")).failed;
        assert_eq!(failed.unwrap(), "job one has failed: BackoffLimit");
        let suspended = json!({"suspend": true, "template": {}});
        assert_eq!(read::<Job>(suspended, json!({})).behind(), None);
    }

    #[test]
    fn a_set_is_ready_when_its_controller_has_seen_it_and_all_its_pods_are_of_its_revision() {
        let spec = json!({"replicas": 2, "serviceName": "", "selector": {}, "template": {}});
        let status = |generation: u32, updated: u32| json!({"observedGeneration": generation, "replicas": 2, "availableReplicas": 2, "updatedReplicas": updated});
        let behind = |status: Value| read::<StatefulSet>(spec.clone(), status).behind();
        assert!(behind(status(1, 2)).is_some() && behind(status(2, 1)).is_some());
        assert_eq!(behind(status(2, 2)), None);
        let mut manual = spec.clone();
        manual["updateStrategy"] = json!({"type": "OnDelete"});
        assert_eq!(read::<StatefulSet>(manual, status(2, 0)).behind(), None);

        let daemons = |generation: u32, available: u32| {
            let spec = json!({"selector": {}, "template": {}});
            let status = json!({
                "observedGeneration": generation, "desiredNumberScheduled": 3, "numberAvailable": available,
                "updatedNumberScheduled": 3, "currentNumberScheduled": 3, "numberMisscheduled": 0, "numberReady": available,
            });
            read::<DaemonSet>(spec, status).behind()
        };
        assert!(daemons(1, 3).is_some());
        assert_eq!(daemons(2, 1).unwrap(), "1 of 3 pods are ready");
        assert_eq!(daemons(2, 3), None);
    }

    #[test]
    fn a_pod_alone_is_ready_when_it_is_or_has_succeeded() {
        let pod = |status: Value| read::<Pod>(json!({"containers": []}), status);
        assert!(pod(json!({"phase": "Running"})).behind().is_some());
        let ready =
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        assert_eq!(pod(ready).behind(), None);
        assert_eq!(pod(json!({"phase": "Succeeded"})).behind(), None);
        let failed = pod(json!({"phase": "Failed", "reason": "Evicted"})).failed;
        assert_eq!(failed.unwrap(), "pod one has failed: Evicted");
    }
}
