//! The settings of this platform.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use drover_core::{Error, Result};
use drover_replicante::ReplicanteSettings;
use drover_resources_kubernetes::client::ClientSettings;
use serde::{Deserialize, Serialize};

use crate::{
    addons::AddonsSettings,
    hosts::HostsSettings,
    labels::{self, LabelKeys},
    objects::PodPolicySettings,
    resources::ResourcesSettings,
};

/// A replacement may be held up for long (no room, a quota, an orchestrator that is away), and a drain must not take the
/// rest of the group meanwhile.
const SMALLER_BUDGET_AFTER: Duration = Duration::from_secs(3600);

/// The settings of this platform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What nodes are.
    pub driver: DriverKind,
    /// Kubeconfig file. `None`: `KUBECONFIG`, `~/.kube/config`, or the service account of the pod that this runs in.
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. `None`: its current one.
    pub context: Option<String>,
    /// Namespaces that nodes are found and made in. The first is where nodes go whose properties name none. Empty: all
    /// are read, and nodes go to the namespace of the context, or of this pod.
    pub namespaces: Vec<String>,
    /// Namespaces that no node is made in where all are read, such as that of this server: what runs beside it reaches it.
    pub excluded_namespaces: Vec<String>,
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
    /// Kinds of objects that nodes may have, in the order of their removal, but claims last: `plural`, `plural.group` or
    /// `plural.version.group`. Each is checked at start; one that the API server does not serve is refused.
    pub kinds: Vec<String>,
    /// Node classes by the names that people write.
    pub node_classes: BTreeMap<String, ClassSettings>,
    /// What callers may set, and what nodes may be.
    pub policy: PodPolicySettings,
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
    /// How long a group has to be smaller before its disruption budget is. Only tests change it.
    #[serde(skip)]
    pub smaller_budget_after: Duration,
    /// Calls to the API server in flight at once, of platform and resources together; watches, logs and commands
    /// excepted.
    pub max_concurrent_calls: usize,
    /// Objects in one page of a list.
    pub page_size: usize,
    /// The resources of this Kubernetes, one by one (`drover.kubernetes.v1`).
    pub resources: ResourcesSettings,
    /// How hosts are read, with driver `hosts`.
    pub hosts: HostsSettings,
    /// Where addons are made, and of what.
    pub addons: AddonsSettings,
    /// Serves a Kubernetes in memory and no platform, for tests of callers.
    pub fake: bool,
}

/// What nodes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum DriverKind {
    /// Pods, made from templates.
    #[default]
    Pods,
    /// Hosts of metal3 (BareMetalHost), claimed.
    Hosts,
}

/// Default of [`Settings::kinds`], in the order of their removal.
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
            driver: DriverKind::default(),
            kubeconfig: None,
            context: None,
            namespaces: Vec::new(),
            excluded_namespaces: Vec::new(),
            selector: String::new(),
            labels: LabelKeys::default(),
            plain_labels: Vec::new(),
            agent: AgentSettings::default(),
            kinds: DEFAULT_KINDS.iter().map(|&kind| kind.to_owned()).collect(),
            node_classes: BTreeMap::new(),
            policy: PodPolicySettings::default(),
            replicante: ReplicanteSettings::default(),
            templates: None,
            field_manager: "drover-platform-k8s".to_owned(),
            failure_domain_label: "topology.kubernetes.io/zone".to_owned(),
            call_timeout_seconds: 30.0,
            watch_timeout_seconds: 90.0,
            unschedulable_timeout_seconds: 300.0,
            smaller_budget_after: SMALLER_BUDGET_AFTER,
            max_concurrent_calls: 32,
            page_size: 500,
            resources: ResourcesSettings::default(),
            hosts: HostsSettings::default(),
            addons: AddonsSettings::default(),
            fake: false,
        }
    }
}

impl Settings {
    /// Validates the settings without contacting anything.
    ///
    /// # Errors
    /// `Invalid` with the setting.
    pub fn check(&self) -> Result<()> {
        let keys = [
            ("labels.cluster", &self.labels.cluster),
            ("labels.node", &self.labels.node),
            ("failure_domain_label", &self.failure_domain_label),
        ];
        for (field, key) in keys {
            if !labels::is_key(key) {
                return Err(Error::invalid(
                    field,
                    format!("{key:?} is not a key of a label"),
                ));
            }
        }
        for (at, key) in self.plain_labels.iter().enumerate() {
            if let Some(why) = labels::declared::refusal(key, &self.labels) {
                return Err(Error::invalid(
                    format!("plain_labels[{at}]"),
                    format!("{key:?} {why}"),
                ));
            }
        }
        if self.labels.cluster == self.labels.node {
            return Err(Error::invalid(
                "labels",
                "cluster and node must have keys of their own",
            ));
        }
        if self.field_manager.is_empty() || self.field_manager.len() > 128 {
            return Err(Error::invalid(
                "field_manager",
                "must have 1 to 128 characters",
            ));
        }
        self.policy.check()?;
        self.addons.check()?;
        self.check_namespaces()
    }

    fn check_namespaces(&self) -> Result<()> {
        for (at, name) in self.excluded_namespaces.iter().enumerate() {
            let field = || format!("excluded_namespaces[{at}]");
            if name.is_empty() || !labels::is_value(name) {
                return Err(Error::invalid(
                    field(),
                    format!("{name:?} is not a valid name of a namespace"),
                ));
            }
            if self.namespaces.contains(name) {
                return Err(Error::invalid(
                    field(),
                    format!("{name:?} is among namespaces, too"),
                ));
            }
        }
        let mut names = self.namespaces.clone();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid("namespaces", "one is there twice"));
        }
        if let Some(name) = names
            .iter()
            .find(|name| name.is_empty() || !labels::is_value(name))
        {
            return Err(Error::invalid(
                "namespaces",
                format!("{name:?} is not a valid name of a namespace"),
            ));
        }
        Ok(())
    }

    /// The client of the API server.
    #[must_use]
    pub fn client(&self) -> ClientSettings {
        ClientSettings {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            max_concurrent_calls: self.max_concurrent_calls,
            call_timeout: self.call_timeout(),
        }
    }

    /// Timeout of one call.
    #[must_use]
    pub fn call_timeout(&self) -> Duration {
        seconds(self.call_timeout_seconds, 30.0)
    }

    /// Maximum silence of a watch.
    #[must_use]
    pub fn watch_timeout(&self) -> Duration {
        seconds(self.watch_timeout_seconds, 90.0)
    }

    /// How long a pod may be unschedulable.
    #[must_use]
    pub fn unschedulable_timeout(&self) -> Duration {
        seconds(self.unschedulable_timeout_seconds, 300.0)
    }

    /// Whether nodes may be created in this namespace.
    #[must_use]
    pub fn serves(&self, namespace: &str) -> bool {
        let named = |all: &[String]| all.iter().any(|one| one == namespace);
        (self.namespaces.is_empty() || named(&self.namespaces)) && !named(&self.excluded_namespaces)
    }

    /// The namespaces in which nodes may be created, for people.
    #[must_use]
    pub fn served(&self) -> String {
        match (&self.namespaces[..], &self.excluded_namespaces[..]) {
            ([], excluded) => format!("all but {}", excluded.join(", ")),
            (named, _) => named.join(", "),
        }
    }

    /// The scopes that are read, one read each: a namespace, or `None` for all.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_settings_are_named() {
        type Change = fn(&mut Settings);
        let wrong: &[(&str, Change)] = &[
            ("labels.cluster", |it| it.labels.cluster = "a b".into()),
            ("labels.node", |it| it.labels.node = String::new()),
            ("labels", |it| it.labels.node = it.labels.cluster.clone()),
            ("failure_domain_label", |it| {
                it.failure_domain_label = "/".into();
            }),
            ("field_manager", |it| it.field_manager = String::new()),
            ("namespaces", |it| {
                it.namespaces = vec!["a".into(), "a".into()];
            }),
            ("namespaces", |it| it.namespaces = vec!["a/b".into()]),
            ("excluded_namespaces[0]", |it| {
                it.excluded_namespaces = vec!["a/b".into()];
            }),
            ("excluded_namespaces[0]", |it| {
                it.namespaces = vec!["a".into()];
                it.excluded_namespaces = vec!["a".into()];
            }),
            ("plain_labels[1]", |it| {
                it.plain_labels = vec!["team".into(), "app.kubernetes.io/name".into()];
            }),
            ("plain_labels[0]", |it| {
                it.plain_labels = vec!["drover.dev/role".into()];
            }),
            ("plain_labels[0]", |it| it.plain_labels = vec!["Ü".into()]),
        ];
        assert!(Settings::default().check().is_ok());
        for (field, change) in wrong {
            let mut settings = Settings::default();
            change(&mut settings);
            let error = settings.check().unwrap_err();
            assert_eq!(error.fields()[0].field, *field);
        }
    }
}
