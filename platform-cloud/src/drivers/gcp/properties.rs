//! The Compute Engine properties of a group.

use drover_core::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Properties of a group or template. Absent ones default to the settings.
#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Properties {
    pub(super) instance_type: Option<String>,
    pub(super) cpus: Option<u32>,
    pub(super) memory: Option<f64>,
    pub(super) image: Option<String>,
    pub(super) key: Option<String>,
    pub(super) ssh_key: Option<String>,
    pub(super) capacity_type: CapacityType,
    pub(super) network: Option<String>,
    pub(super) subnetwork: Option<String>,
    pub(super) external_address: Option<bool>,
    pub(super) tags: Option<Vec<String>>,
    pub(super) service_account: Option<String>,
    pub(super) disk_size: Option<u32>,
    pub(super) disk_type: Option<String>,
    pub(super) user_data_key: Option<UserDataKey>,
}

/// Provisioning model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CapacityType {
    #[default]
    OnDemand,
    Spot,
    Preemptible,
}

/// Metadata key of the user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum UserDataKey {
    UserData,
    StartupScript,
}

impl UserDataKey {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::UserData => "user-data",
            Self::StartupScript => "startup-script",
        }
    }
}

impl Properties {
    /// # Errors
    /// `Invalid` for values that pass the schema but cannot be parsed.
    pub(super) fn read(properties: &Map<String, Value>) -> Result<Self> {
        serde_json::from_value(Value::Object(properties.clone()))
            .map_err(|error| Error::invalid("group.properties", error.to_string()))
    }
}

pub(super) fn schema() -> Value {
    let text =
        |description: &str| json!({ "type": "string", "minLength": 1, "description": description });
    let size = |description: &str| json!({ "type": "string", "minLength": 1, "description": description, "x-drover-node-class": true });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "instanceType": size("Machine type (e2-small, n2-standard-4, e2-custom-2-4096), or a name that the platform's \
                settings map to one. The same as the group's nodeClass; both may be given if they agree."),
            "cpus": {
                "x-drover-node-class": true, "type": "integer", "minimum": 1, "maximum": 32,
                "description": "vCPUs, instead of instanceType: the smallest E2 machine type with as many and with the memory."
            },
            "memory": {
                "x-drover-node-class": true, "type": "number", "exclusiveMinimum": 0, "maximum": 128,
                "description": "Memory in GiB, instead of instanceType: the smallest E2 machine type with as much."
            },
            "image": text("Image: debian, ubuntu, rocky, centos, cos, fedora-coreos, a name that the platform's settings map, \
                PROJECT/FAMILY, a path (projects/P/global/images/N), or the name of an image of the own project."),
            "key": text("Name of a public key in the platform's settings (ssh_keys), or `USER:ssh-ed25519 AAAA…` itself."),
            "sshKey": text("The same as key."),
            "capacityType": {
                "type": "string", "enum": ["on-demand", "spot", "preemptible"],
                "description": "How machines are bought. Those of spot and preemptible may be stopped by Google at any time. \
                    Default: on-demand."
            },
            "network": text("Network, by name or path."),
            "subnetwork": text("Subnetwork of the region, by name or path."),
            "externalAddress": { "type": "boolean", "description": "Whether the machine gets an external IPv4 address." },
            "tags": {
                "type": "array", "maxItems": 64, "items": { "type": "string", "pattern": "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$" },
                "description": "Network tags beside those of the settings; firewall rules go by them."
            },
            "serviceAccount": text("E-mail of the service account that the machine runs as."),
            "diskSize": { "type": "integer", "minimum": 1, "maximum": 65536, "description": "Size of the boot disk in GiB." },
            "diskType": text("Type of the boot disk (pd-standard, pd-balanced, pd-ssd)."),
            "userDataKey": {
                "type": "string", "enum": ["user-data", "startup-script"],
                "description": "Metadata key that user data is given under. `user-data` is for images with cloud-init or \
                    Ignition (ubuntu, cos, fedora-coreos), `startup-script` for those with the Google guest agent only \
                    (debian, rocky, centos): a script that begins with `#!` and runs at every start. Default: the key that \
                    the image reads; user-data for images of the platform's own project. For images of projects that \
                    are not known it has to be said. User data that the image would not run is refused."
            }
        }
    })
}

pub(super) fn example() -> Value {
    json!({ "instanceType": "e2-small", "image": "debian", "diskSize": 20 })
}
