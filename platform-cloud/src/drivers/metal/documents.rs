//! The subset of metal-api's documents used here. BMC passwords and user data in responses are never read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A machine or firewall.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Machine {
    pub id: String,
    pub allocation: Option<Allocation>,
    #[serde(default)]
    pub events: Events,
    #[serde(default)]
    pub liveliness: String,
    pub partition: Option<Named>,
    pub size: Option<Named>,
    #[serde(default)]
    pub state: State,
    #[serde(default)]
    pub tags: Vec<String>,
    pub ipmi: Option<Ipmi>,
}

impl Machine {
    pub(super) fn partition(&self) -> &str {
        self.partition
            .as_ref()
            .map_or("", |partition| &partition.id)
    }

    pub(super) fn size(&self) -> &str {
        self.size.as_ref().map_or("", |size| &size.id)
    }

    pub(super) fn is_locked(&self) -> bool {
        self.state.value == "LOCKED"
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Named {
    pub id: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct State {
    #[serde(default)]
    pub value: String,
    #[serde(default)]
    pub description: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Ipmi {
    #[serde(default)]
    pub powerstate: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Allocation {
    pub allocationuuid: String,
    pub created: String,
    #[serde(default)]
    pub name: String,
    pub hostname: String,
    #[serde(default)]
    pub description: String,
    pub project: String,
    pub role: String,
    pub image: Option<Named>,
    #[serde(default)]
    pub networks: Vec<MachineNetwork>,
    pub succeeded: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct MachineNetwork {
    #[serde(default)]
    pub ips: Vec<String>,
    #[serde(default)]
    pub private: bool,
    #[serde(default)]
    pub underlay: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Events {
    #[serde(default)]
    pub crash_loop: bool,
    /// Latest first.
    #[serde(default)]
    pub log: Vec<Event>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Event {
    #[serde(default)]
    pub event: String,
    #[serde(default)]
    pub message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Network {
    pub id: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub partitionid: String,
    #[serde(default)]
    pub projectid: String,
    #[serde(default)]
    pub prefixes: Vec<String>,
    #[serde(default)]
    pub privatesuper: bool,
    #[serde(default)]
    pub underlay: bool,
    #[serde(default)]
    pub shared: bool,
    #[serde(default)]
    pub created: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Ip {
    pub ipaddress: String,
    pub networkid: String,
    pub projectid: String,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub tags: Vec<String>,
    #[serde(default)]
    pub created: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Size {
    pub id: String,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub constraints: Vec<Constraint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Constraint {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub min: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Partition {
    pub id: String,
    pub labels: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Image {
    #[serde(default)]
    pub features: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Version {
    #[serde(default)]
    pub version: String,
}

/// Request for a machine or a firewall. Not `Debug`, as it contains user data.
#[derive(Clone, Default, Serialize)]
pub(super) struct AllocateMachine {
    pub name: String,
    pub hostname: String,
    pub description: String,
    pub projectid: String,
    pub partitionid: String,
    pub sizeid: String,
    pub imageid: String,
    pub networks: Vec<AllocateNetwork>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    pub tags: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub placement_tags: Vec<String>,
    pub ssh_pub_keys: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystemlayoutid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firewall_rules: Option<Rules>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct AllocateNetwork {
    pub networkid: String,
    pub autoacquire: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Rules {
    pub egress: Vec<Rule>,
    pub ingress: Vec<Rule>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Rule {
    pub protocol: String,
    pub ports: Vec<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub comment: String,
}

/// Splits tags into keys and values, as metal-api does.
pub(super) fn pairs(tags: &[String]) -> BTreeMap<String, String> {
    tags.iter()
        .map(|tag| {
            let (key, value) = tag.split_once('=').unwrap_or((tag, ""));
            (key.to_owned(), value.to_owned())
        })
        .collect()
}

/// Joins keys and values to tags.
pub(super) fn tags(pairs: &BTreeMap<String, String>) -> Vec<String> {
    pairs
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect()
}
