//! The metal-stack properties of a group.

use std::{collections::BTreeMap, net::IpAddr};

use drover_core::{Error, Result};
use drover_proto::platform::v1::{InfrastructureOutputs, NodeClass};
use prost_types::value::Kind;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Settings;
use crate::cloud::Launch;

/// Value of the infrastructure property `endpointBy`: the software on the machines announces the address by BGP, as
/// kube-vip does.
pub(super) const ANNOUNCED: &str = "software";

/// Properties of a group, valid against the schema.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Said {
    image: String,
    size: String,
    instance_type: String,
    memory: Option<f64>,
    project: String,
    partition: String,
    private_network: String,
    networks: Option<Vec<String>>,
    ssh_keys: Vec<String>,
    ssh_key: String,
    key: String,
    tags: Vec<String>,
    filesystem_layout: String,
}

/// The desired machine.
pub(super) struct WantedAllocation {
    pub image: String,
    /// Empty for the size of the named machine.
    pub size: String,
    /// Empty for the partition of the named machine.
    pub partition: String,
    pub private_network: String,
    /// Additional networks.
    pub networks: Vec<String>,
    /// Network of the control-plane address.
    public_network: String,
    /// Existing addresses to attach.
    pub ips: Vec<String>,
    /// Address of the control plane, if the machine may have it.
    pub endpoint: Option<Endpoint>,
    pub ssh_keys: Vec<String>,
    /// In addition to Drover's tags.
    pub tags: BTreeMap<String, String>,
    pub filesystem_layout: Option<String>,
}

/// The outputs of this driver's infrastructure for nodes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Offer {
    pub network: String,
    pub partition: String,
    pub public_network: String,
    /// `None` if there is none, or if the software on the machines announces it.
    pub endpoint: Option<Endpoint>,
}

/// Address of the control plane that metal-stack announces for a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub address: String,
    /// The groups whose first machine gets it. Without groups, that of every group.
    targets: Vec<String>,
}

impl Endpoint {
    /// Whether machines of a group may have it.
    pub(super) fn is_for(&self, group: &str) -> bool {
        let within = |target: &String| {
            group
                .strip_prefix(target)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.targets.is_empty() || self.targets.iter().any(within)
    }
}

impl Offer {
    /// The outputs of this project among those of all infrastructure of the cluster.
    pub(super) fn of(outputs: &[InfrastructureOutputs], project: &str) -> Self {
        let text = |outputs: &InfrastructureOutputs, key: &str| {
            let value = outputs
                .properties
                .as_ref()
                .and_then(|said| said.fields.get(key));
            match value.and_then(|value| value.kind.as_ref()) {
                Some(Kind::StringValue(text)) => text.clone(),
                _ => String::new(),
            }
        };
        let Some(ours) = outputs
            .iter()
            .find(|outputs| text(outputs, "project") == project)
        else {
            return Self::default();
        };
        let targets = ours
            .properties
            .as_ref()
            .and_then(|said| said.fields.get("endpoint_targets"))
            .and_then(|value| value.kind.as_ref());
        let targets = match targets {
            Some(Kind::ListValue(list)) => list
                .values
                .iter()
                .filter_map(|value| match &value.kind {
                    Some(Kind::StringValue(text)) => Some(text.clone()),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        };
        Self {
            network: ours.network_id.clone(),
            partition: text(ours, "partition"),
            public_network: text(ours, "public_network"),
            endpoint: ours
                .endpoint
                .as_ref()
                .filter(|_| text(ours, "endpoint_by") != ANNOUNCED)
                .map(|endpoint| Endpoint {
                    address: endpoint.host.clone(),
                    targets,
                }),
        }
    }
}

impl WantedAllocation {
    /// The desired machine of a launch, as far as it can be determined without a call.
    ///
    /// # Errors
    /// `Invalid` with the field of the group.
    pub(super) fn of(launch: &Launch, settings: &Settings, classes: &[NodeClass]) -> Result<Self> {
        let said: Said = serde_json::from_value(Value::Object(launch.properties.clone()))
            .map_err(|error| Error::invalid("group.properties", error.to_string()))?;
        let named = launch.slots.iter().any(|slot| slot.host_id.is_some());
        if !said.project.is_empty() && said.project != settings.project {
            return Err(Error::invalid(
                "group.properties.project",
                format!(
                    "this platform works in project {}; register another one for project {}",
                    settings.project, said.project
                ),
            ));
        }
        let offer = Offer::of(&launch.infrastructure, &settings.project);
        let image = first(&[&said.image, &settings.image]);
        if image.is_empty() {
            return Err(Error::invalid(
                "group.properties.image",
                "is required: the platform has no default image",
            ));
        }
        let partition = partition(launch, &said, settings, &offer, named)?;
        let private_network = first(&[
            &said.private_network,
            &offer.network,
            &settings.private_network,
        ]);
        if private_network.is_empty() && !is_announced(&launch.infrastructure) {
            return Err(Error::invalid(
                "group.properties.privateNetwork",
                "is required: the cluster has no infrastructure with a network on this platform, and the platform no default",
            ));
        }
        let mut networks = said.networks.clone().unwrap_or_else(|| {
            let public = first(&[&offer.public_network, &settings.public_network]);
            if public.is_empty() {
                Vec::new()
            } else {
                vec![public]
            }
        });
        let slot = launch.slots.first();
        networks.retain(|network| *network != private_network);
        networks.dedup();
        let is_for =
            |endpoint: &Endpoint| slot.is_some_and(|slot| endpoint.is_for(&slot.identity.group));
        let mut wanted = Self {
            size: size(launch, &said, settings, classes, named)?,
            image: settings.common.image(&image).to_owned(),
            partition,
            private_network,
            networks,
            ips: Vec::new(),
            endpoint: offer.endpoint.clone().filter(is_for),
            public_network: offer.public_network.clone(),
            ssh_keys: keys(&said, settings)?,
            tags: super::documents::pairs(&said.tags),
            filesystem_layout: Some(said.filesystem_layout).filter(|layout| !layout.is_empty()),
        };
        if slot.is_some_and(|slot| slot.identity.ordinal == 0) {
            wanted.attach();
        }
        Ok(wanted)
    }

    /// Attaches the address of the control plane. While a cluster is made, only its first machine has it: metal-stack puts
    /// the addresses of a machine on its loopback interface
    /// (<https://github.com/metal-stack/metal-networker/blob/master/pkg/netconf/interfaces.go>), so that any other machine
    /// with the address would reach itself where it means to join the first one.
    pub(super) fn attach(&mut self) {
        let Some(endpoint) = &self.endpoint else {
            return;
        };
        self.ips = vec![endpoint.address.clone()];
        let network = &self.public_network;
        if *network != self.private_network && !self.networks.contains(network) {
            self.networks.push(network.clone());
        }
    }
}

/// Whether infrastructure is planned whose outputs are not known yet, which is the case only for dry runs.
pub(super) fn is_announced(outputs: &[InfrastructureOutputs]) -> bool {
    outputs
        .iter()
        .any(|outputs| outputs.network_id.is_empty() && outputs.properties.is_none())
}

fn first(words: &[&str]) -> String {
    let word = words.iter().find(|word| !word.is_empty());
    word.copied().unwrap_or_default().to_owned()
}

/// The partition: the group's, the network's, that of the placement, or the default, in this order.
fn partition(
    launch: &Launch,
    said: &Said,
    settings: &Settings,
    offer: &Offer,
    named: bool,
) -> Result<String> {
    if !said.partition.is_empty()
        && !offer.partition.is_empty()
        && said.partition != offer.partition
    {
        return Err(Error::invalid(
            "group.properties.partition",
            format!(
                "the network of the cluster is in partition {}; a network does not reach into another",
                offer.partition
            ),
        ));
    }
    let placed = launch.failure_domain.as_deref().unwrap_or_default();
    let partition = first(&[
        &said.partition,
        &offer.partition,
        placed,
        &settings.partition,
    ]);
    if partition.is_empty() && !named {
        return Err(Error::invalid(
            "group.properties.partition",
            "is required: the platform has no default partition",
        ));
    }
    Ok(partition)
}

fn size(
    launch: &Launch,
    said: &Said,
    settings: &Settings,
    classes: &[NodeClass],
    named: bool,
) -> Result<String> {
    let mut size = launch.node_class.clone();
    for (field, word) in [("size", &said.size), ("instanceType", &said.instance_type)] {
        let word = settings.common.node_class(word);
        if word.is_empty() || word == size {
            continue;
        }
        if !size.is_empty() {
            return Err(Error::invalid(
                "group.node_class",
                format!("{size} is not the {word} of properties.{field}; say it once"),
            ));
        }
        word.clone_into(&mut size);
    }
    if size.is_empty()
        && let Some(gib) = said.memory
    {
        size = smallest(classes, gib)?;
    }
    if size.is_empty() && !named {
        settings
            .common
            .node_class(&settings.node_class)
            .clone_into(&mut size);
        if size.is_empty() {
            return Err(Error::invalid(
                "group.node_class",
                "is required: the platform has no default size",
            ));
        }
    }
    Ok(size)
}

/// The smallest size with at least this much memory.
fn smallest(classes: &[NodeClass], gib: f64) -> Result<String> {
    const GIB: f64 = (1_u64 << 30) as f64;
    let enough = classes.iter().filter(|class| {
        class
            .memory_bytes
            .is_some_and(|bytes| bytes as f64 >= gib * GIB)
    });
    enough
        .min_by_key(|class| (class.memory_bytes, class.name.clone()))
        .map(|class| class.name.clone())
        .ok_or_else(|| {
            Error::invalid(
                "group.properties.memory",
                format!("no size has {gib} GiB of memory"),
            )
        })
}

/// Public keys; values without a space are names of keys in the settings.
fn keys(said: &Said, settings: &Settings) -> Result<Vec<String>> {
    let given = [("sshKey", &said.ssh_key), ("key", &said.key)];
    let mut all: Vec<(String, &String)> = said
        .ssh_keys
        .iter()
        .enumerate()
        .map(|(at, key)| (format!("group.properties.sshKeys[{at}]"), key))
        .collect();
    all.extend(
        given
            .into_iter()
            .filter(|(_, key)| !key.is_empty())
            .map(|(field, key)| (format!("group.properties.{field}"), key)),
    );
    if all.is_empty() {
        return Ok(settings.default_ssh_keys());
    }
    all.into_iter()
        .map(|(field, key)| settings.ssh_key(&field, key))
        .collect()
}

impl Settings {
    /// The public keys of machines that specify none.
    pub(super) fn default_ssh_keys(&self) -> Vec<String> {
        self.default_ssh_keys
            .iter()
            .map(|key| self.ssh_keys.get(key).unwrap_or(key).clone())
            .collect()
    }

    fn ssh_key(&self, field: &str, key: &str) -> Result<String> {
        if let Some(known) = self.ssh_keys.get(key) {
            return Ok(known.clone());
        }
        let mut words = key.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let is_kind = ["ssh-", "ecdsa-", "sk-"]
            .iter()
            .any(|prefix| kind.starts_with(prefix));
        if is_kind && words.next().is_some_and(|data| data.starts_with("AAAA")) {
            return Ok(key.to_owned());
        }
        let known: Vec<&str> = self.ssh_keys.keys().map(String::as_str).collect();
        Err(Error::invalid(
            field,
            format!(
                "is neither a public key in the form of an authorized_keys file nor the name of one in the settings ({})",
                known.join(", ")
            ),
        ))
    }
}

/// Parses a machine id: bare, or as a provider id with or without the partition.
///
/// # Errors
/// `Invalid` with this field.
pub(super) fn host(field: &str, text: &str) -> Result<String> {
    let id = ["metalstack://", "metal://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme))
        .unwrap_or(text);
    let id = id.rsplit('/').next().unwrap_or_default();
    match uuid::Uuid::try_parse(id) {
        Ok(id) => Ok(id.to_string()),
        Err(_) => Err(Error::invalid(
            field,
            format!(
                "{text:?} is not an id of a machine; expected its uuid, metalstack://UUID or metal://PARTITION/UUID"
            ),
        )),
    }
}

pub(super) fn is_ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

pub(super) fn schema() -> Value {
    let word =
        |description: &str| json!({ "type": "string", "minLength": 1, "description": description });
    let size = |description: &str| json!({ "type": "string", "minLength": 1, "description": description, "x-drover-node-class": true });
    let words = |description: &str| json!({ "type": "array", "items": { "type": "string", "minLength": 1 }, "description": description });
    let mut properties = Map::new();
    let mut add = |name: &str, schema: Value| properties.insert(name.to_owned(), schema);
    add(
        "image",
        word(
            "Image: its id, its short name (ubuntu-24.4), or a name from the platform's settings. Default: that of the platform.",
        ),
    );
    add(
        "size",
        size("Size of the machine, where nodeClass does not say it."),
    );
    add("instanceType", size("The same as size."));
    add(
        "memory",
        json!({
            "x-drover-node-class": true, "type": "number", "exclusiveMinimum": 0,
            "description": "Memory in GiB: the smallest size that has it, where nothing else says the size.",
        }),
    );
    add("project", word("Project. It must be that of the platform."));
    add(
        "partition",
        word("Partition. Default: that of the cluster's network, else where the node is placed."),
    );
    add(
        "privateNetwork",
        word(
            "Id of the private network. Default: that of the cluster's infrastructure, else that of the platform.",
        ),
    );
    add(
        "networks",
        words(
            "Ids of further networks. Default: the network that leads outside. An empty list: none.",
        ),
    );
    add(
        "sshKeys",
        words(
            "Public keys, or names of keys in the platform's settings. Default: those of the platform.",
        ),
    );
    add("sshKey", word("One more of sshKeys."));
    add("key", word("One more of sshKeys."));
    add(
        "tags",
        words("Tags of the machine: plain words, or key=value."),
    );
    add(
        "filesystemLayout",
        word("Id of the filesystem layout. Default: metal-stack's choice for size and image."),
    );
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

pub(super) fn example() -> Value {
    json!({
        "image": "ubuntu-24.4",
        "partition": "fra-1",
        "sshKeys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEmulatedKeyForTheExampleOnly0000000000000000 me@example"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_named_by_uuid_or_provider_id() {
        let id = "e0ab02d2-27cd-5a5e-8efc-080ba80cf258";
        for text in [
            id,
            "metalstack://e0ab02d2-27cd-5a5e-8efc-080ba80cf258",
            "metalstack://vagrant/E0AB02D2-27cd-5a5e-8efc-080ba80cf258",
            "metal://fra-1/e0ab02d2-27cd-5a5e-8efc-080ba80cf258",
        ] {
            assert_eq!(host("f", text).unwrap(), id);
        }
        for text in ["", "metalstack://", "node-1", "aws:///x/i-1"] {
            assert_eq!(
                host("slots[0].host_id", text).unwrap_err().fields()[0].field,
                "slots[0].host_id"
            );
        }
    }

    #[test]
    fn the_address_is_for_the_groups_that_are_meant() {
        let endpoint = |targets: &[&str]| Endpoint {
            address: "1.2.3.4".to_owned(),
            targets: targets.iter().map(|t| (*t).to_owned()).collect(),
        };
        assert!(endpoint(&[]).is_for("workers"));
        let some = endpoint(&["control-plane", "data/hot"]);
        for (group, has) in [
            ("control-plane", true),
            ("control-plane/a", true),
            ("control-plane-2", false),
            ("data", false),
            ("data/hot/x", true),
        ] {
            assert_eq!(some.is_for(group), has, "{group}");
        }
    }
}
