//! The settings of this platform.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use drover_platform::ReplicanteSettings;
use serde::{Deserialize, Serialize};

use crate::labels::LabelKeys;

/// The settings of this platform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Kubeconfig file. `None`: `KUBECONFIG`, `~/.kube/config`, or the service account of the pod that this runs in.
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. `None`: its current one.
    pub context: Option<String>,
    /// Namespaces that nodes are found and made in. The first is where nodes go whose properties name none. Empty: all
    /// are read, and nodes go to the namespace of the context, or of this pod.
    pub namespaces: Vec<String>,
    /// Label selector that the pods must match besides. Empty: every pod with a cluster label is a node. What is made
    /// must match it, or is refused.
    pub selector: String,
    /// Keys of the labels that say cluster and node.
    pub labels: LabelKeys,
    /// Keys of labels of clusters that objects have under their own names, as services, network policies and bills of other
    /// people select by them. All others have the prefix `drover.dev/label.`, and these too where the template has set the
    /// key, or a service or network policy where nodes may be selects by it. Not `kubernetes.io`, `k8s.io` and what ends so.
    pub plain_labels: Vec<String>,
    /// How the agent address of a pod is found where its annotations do not say.
    pub agent: AgentSettings,
    /// Kinds of objects that nodes may have, in the order of their removal after the pod: `plural`, `plural.group` or
    /// `plural.version.group`. Each is checked at start; one that the API server does not serve is refused.
    pub kinds: Vec<String>,
    /// Node classes by the names that people write.
    pub node_classes: BTreeMap<String, ClassSettings>,
    /// The Replicante API, and what it may remove.
    pub replicante: ReplicanteSettings,
    /// Directory of a template catalogue, before the built-in one. `None`: only the built-in one.
    pub templates: Option<PathBuf>,
    /// Name under which fields are owned (server-side apply).
    pub field_manager: String,
    /// Label of Kubernetes nodes whose value is the failure domain of their pods.
    pub failure_domain_label: String,
    /// Longest time for one call to the API server, in seconds; watches, logs and commands excepted.
    pub call_timeout_seconds: f64,
    /// Longest silence of a watch, in seconds. The API server sends something every minute.
    pub watch_timeout_seconds: f64,
    /// How long a pod may wait for a place before its node counts as failed, in seconds. Longer than a cluster
    /// autoscaler takes to bring a new one.
    pub unschedulable_timeout_seconds: f64,
    /// Calls to the API server in flight at once; watches, logs and commands excepted.
    pub max_concurrent_calls: usize,
    /// Objects in one page of a list.
    pub page_size: usize,
}

/// Kinds in the order of their removal.
pub const DEFAULT_KINDS: &[&str] = &[
    "pods",
    "statefulsets.apps",
    "deployments.apps",
    "replicasets.apps",
    "daemonsets.apps",
    "cronjobs.batch",
    "jobs.batch",
    "poddisruptionbudgets.policy",
    "horizontalpodautoscalers.autoscaling",
    "ingresses.networking.k8s.io",
    "services",
    "networkpolicies.networking.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "roles.rbac.authorization.k8s.io",
    "serviceaccounts",
    "configmaps",
    "secrets",
    "persistentvolumeclaims",
];

impl Default for Settings {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            namespaces: Vec::new(),
            selector: String::new(),
            labels: LabelKeys::default(),
            plain_labels: Vec::new(),
            agent: AgentSettings::default(),
            kinds: DEFAULT_KINDS.iter().map(|&kind| kind.to_owned()).collect(),
            node_classes: BTreeMap::new(),
            replicante: ReplicanteSettings::default(),
            templates: None,
            field_manager: "drover-platform-k8s".to_owned(),
            failure_domain_label: "topology.kubernetes.io/zone".to_owned(),
            call_timeout_seconds: 30.0,
            watch_timeout_seconds: 90.0,
            unschedulable_timeout_seconds: 300.0,
            max_concurrent_calls: 32,
            page_size: 500,
        }
    }
}

impl Settings {
    /// Longest time for one call.
    #[must_use]
    pub fn call_timeout(&self) -> Duration {
        seconds(self.call_timeout_seconds, 30.0)
    }

    /// Longest silence of a watch.
    #[must_use]
    pub fn watch_timeout(&self) -> Duration {
        seconds(self.watch_timeout_seconds, 90.0)
    }

    /// How long a pod may wait for a place.
    #[must_use]
    pub fn unschedulable_timeout(&self) -> Duration {
        seconds(self.unschedulable_timeout_seconds, 300.0)
    }

    /// Whether nodes may be in this namespace.
    #[must_use]
    pub fn serves(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|served| served == namespace)
    }

    /// What is read, one reading each: a namespace, or `None` for all of them.
    pub fn scopes(&self) -> impl Iterator<Item = Option<&str>> {
        let all = self.namespaces.is_empty().then_some(None);
        all.into_iter().chain(
            self.namespaces
                .iter()
                .map(|namespace| Some(namespace.as_str())),
        )
    }
}

fn seconds(value: f64, default: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::from_secs_f64(default))
}

/// How the agent address of a pod is found where its annotations do not say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentSettings {
    /// Whose IP address it is.
    pub ip_from: IpFrom,
    /// Scheme: grpc, grpcs, http, https or tcp.
    pub scheme: String,
    /// Port. `None`: pods whose annotations do not say it have no agent address.
    pub port: Option<u16>,
}

impl Default for AgentSettings {
    fn default() -> Self {
        Self {
            ip_from: IpFrom::Pod,
            scheme: "grpc".to_owned(),
            port: None,
        }
    }
}

/// Whose IP address an agent has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IpFrom {
    /// The pod's.
    #[default]
    Pod,
    /// The Kubernetes node's.
    Node,
}

/// What a node class stands for. Values are put into every pod of a node of this class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClassSettings {
    /// For people.
    pub description: String,
    /// Requests of the first container, by resource (`cpu: "2"`).
    pub requests: BTreeMap<String, String>,
    /// Limits of the first container.
    pub limits: BTreeMap<String, String>,
    /// Labels that the Kubernetes node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations, as in a pod.
    pub tolerations: Vec<serde_json::Value>,
    /// Storage class of volume claims that name none.
    pub storage_class: Option<String>,
    /// Priority class of the pods.
    pub priority_class: Option<String>,
}
