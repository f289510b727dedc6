use drover_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::labels;

/// Where addons are made, and of what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AddonsSettings {
    /// Namespace of all addons. `None`: that of the context, or of this pod. Addons are offered where the credentials may
    /// make Deployments in it.
    pub namespace: Option<String>,
    /// Kinds of objects that addons may have, in the order of their removal: `plural`, `plural.group` or
    /// `plural.version.group`. Each is checked at start; one that the API server does not serve is refused. Empty: addons are not offered.
    pub kinds: Vec<String>,
    /// First and last node port of this Kubernetes (`--service-node-port-range` of its API server), which a dry run does
    /// not check.
    pub node_ports: [u16; 2],
}

/// Default of [`AddonsSettings::kinds`].
const DEFAULT_KINDS: &[&str] = &[
    "deployments.apps",
    "poddisruptionbudgets.policy",
    "services",
    "rolebindings.rbac.authorization.k8s.io",
    "roles.rbac.authorization.k8s.io",
    "serviceaccounts",
    "configmaps",
    "secrets",
];

impl Default for AddonsSettings {
    fn default() -> Self {
        Self {
            namespace: None,
            kinds: DEFAULT_KINDS.iter().map(|&kind| kind.to_owned()).collect(),
            node_ports: [30_000, 32_767],
        }
    }
}

impl AddonsSettings {
    /// Validates the settings without contacting anything.
    ///
    /// # Errors
    /// `Invalid` with the setting.
    pub fn check(&self) -> Result<()> {
        if self.node_ports[0] > self.node_ports[1] {
            return Err(Error::invalid("addons.node_ports", "is no range"));
        }
        match &self.namespace {
            Some(name) if name.is_empty() || !labels::is_value(name) => Err(Error::invalid(
                "addons.namespace",
                format!("{name:?} is no name of a namespace"),
            )),
            _ => Ok(()),
        }
    }
}
