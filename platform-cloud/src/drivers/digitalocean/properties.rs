//! The DigitalOcean properties of a group.

use drover_core::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Settings;
use crate::cloud::Launch;

/// Properties of a group and its template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Properties {
    pub(super) instance_type: Option<String>,
    /// GiB.
    pub(super) memory: Option<f64>,
    pub(super) vcpus: Option<u32>,
    image: Option<Value>,
    region: Option<String>,
    vpc_uuid: Option<String>,
    key: Option<Value>,
    ssh_key: Option<Value>,
    ssh_keys: Vec<Value>,
    tags: Vec<String>,
    pub(super) backups: bool,
    pub(super) monitoring: bool,
    pub(super) ipv6: bool,
    pub(super) public_networking: Option<bool>,
    firewall: Option<bool>,
}

/// The desired droplet, with defaults from the settings.
#[derive(Clone, Debug)]
pub(super) struct WantedDroplet {
    pub(super) properties: Properties,
    /// With aliases resolved.
    pub(super) image: String,
    pub(super) keys: Vec<String>,
    pub(super) region: String,
    pub(super) vpc: Option<String>,
    /// In addition to those of the identity.
    pub(super) tags: Vec<String>,
    pub(super) firewall: bool,
}

impl WantedDroplet {
    /// # Errors
    /// `Invalid` with the field.
    pub(super) fn of(launch: &Launch, settings: &Settings) -> Result<Self> {
        let said = Value::Object(launch.properties.clone());
        let mut properties: Properties = serde_json::from_value(said)
            // The schema has validated them already; a parser message could leak a value.
            .map_err(|_| Error::invalid("group.properties", "does not fit the schema"))?;
        if let Some(name) = &mut properties.instance_type {
            *name = settings.common.node_class(name).to_owned();
        }
        let image = properties.image.as_ref().map(text).unwrap_or_default();
        let image = if image.is_empty() {
            &settings.image
        } else {
            &image
        };
        let region = region(launch, &properties, settings)?;
        let vpc = properties.vpc_uuid.clone();
        let vpc = vpc.or_else(|| settings.vpcs.get(&region).cloned());
        if properties.public_networking == Some(false) && properties.ipv6 {
            return Err(Error::invalid(
                "group.properties.ipv6",
                "needs publicNetworking: IPv6 addresses are public",
            ));
        }
        Ok(Self {
            image: settings.common.image(image).to_owned(),
            keys: keys(&properties, settings)?,
            region,
            vpc,
            tags: properties.tags.clone(),
            firewall: properties
                .firewall
                .unwrap_or(settings.firewall && launch.private),
            properties,
        })
    }
}

/// Converts an id, fingerprint or name to text.
fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn region(launch: &Launch, properties: &Properties, settings: &Settings) -> Result<String> {
    let field = "group.properties.region";
    match (&launch.failure_domain, &properties.region) {
        (Some(domain), None) => Ok(domain.clone()),
        (Some(domain), Some(region)) if settings.regions.len() == 1 && domain == region => {
            Ok(region.clone())
        }
        (Some(_), Some(_)) => Err(Error::invalid(
            field,
            format!(
                "this platform places nodes in {}; say which of them by the group's placement (failureDomains)",
                settings.regions.join(", ")
            ),
        )),
        (None, Some(region)) => Ok(region.clone()),
        (None, None) => Err(Error::invalid(
            field,
            "is required here: fra1, nyc3, …; or give the platform its regions in its settings",
        )),
    }
}

fn keys(properties: &Properties, settings: &Settings) -> Result<Vec<String>> {
    let [key, ssh_key] = [&properties.key, &properties.ssh_key].map(|key| key.as_ref().map(text));
    if let (Some(key), Some(ssh_key)) = (&key, &ssh_key)
        && key != ssh_key
    {
        return Err(Error::invalid(
            "group.properties.key",
            "key and sshKey are the same property and differ; use sshKeys for several",
        ));
    }
    let mut keys = settings.ssh_keys.clone();
    let more = properties.ssh_keys.iter().map(text);
    for key in ssh_key.or(key).into_iter().chain(more) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    Ok(keys)
}

pub(super) fn schema() -> Value {
    let key =
        |description: &str| json!({"type": ["string", "integer"], "description": description});
    let flag = |description: &str| json!({"type": "boolean", "default": false, "description": description});
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "instanceType": {
                "x-drover-node-class": true,
                "type": "string",
                "minLength": 1,
                "description": "Size by its slug (s-1vcpu-1gb), or a line of sizes (standard, cpu-optimized, \
                    general-purpose, memory-optimized, storage-optimized), of which the smallest with `memory` and `vcpus` \
                    is taken. nodeClass says the same.",
            },
            "memory": {
                "x-drover-node-class": true,
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "Memory in GiB that a droplet must have at least.",
            },
            "vcpus": {
                "x-drover-node-class": true,
                "type": "integer",
                "minimum": 1,
                "maximum": 1024,
                "description": "CPUs that a droplet must have at least.",
            },
            "image": {
                "type": ["string", "integer"],
                "description": "Image: an alias of the platform's settings, a slug (debian-12-x64), an id, a distribution \
                    (debian: its newest release) or the name of a private image. Default: the platform's.",
            },
            "region": {
                "type": "string",
                "pattern": "^[a-z]{3}[0-9]+$",
                "description": "Region (fra1), for platforms that have none in their settings.",
            },
            "vpcUuid": {
                "type": "string",
                "format": "uuid",
                "pattern": "^[0-9a-fA-F-]{36}$",
                "description": "UUID of the VPC. Default: the platform's for the region, or the region's own.",
            },
            "key": key("The same as sshKey."),
            "sshKey": key("SSH key of root by its name, id or fingerprint, beside those of the platform's settings."),
            "sshKeys": {
                "type": "array",
                "maxItems": 50,
                "items": {"type": ["string", "integer"]},
                "description": "More of them.",
            },
            "tags": {
                "type": "array",
                "maxItems": 20,
                "items": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,255}$"},
                "description": "Plain tags for the droplets, as firewalls and load balancers use them. A tag with a colon \
                    would be a label.",
            },
        },
    });
    let flags = [
        (
            "backups",
            "Whether DigitalOcean makes backups of the droplet.",
        ),
        (
            "monitoring",
            "Whether DigitalOcean's monitoring agent is installed.",
        ),
        ("ipv6", "Whether the droplet gets an IPv6 address."),
    ];
    for (name, description) in flags {
        schema["properties"][name] = flag(description);
    }
    schema["properties"]["firewall"] = json!({
        "type": "boolean",
        "description": "Whether the droplet gets the firewall drover-private, which lets in SSH, ICMP and what comes from \
            private networks. Without, all of its ports can be reached, but for other firewalls of its tags. Default: with \
            it where a template installs the store, unless the platform's settings turn it off, and without elsewhere.",
    });
    schema["properties"]["publicNetworking"] = json!({
        "type": "boolean",
        "default": true,
        "description": "Whether the droplet gets public addresses. Without, it cannot get them later.",
    });
    schema
}

pub(super) fn example() -> Value {
    let example: Map<String, Value> = [
        ("instanceType", json!("standard")),
        ("memory", json!(1)),
        ("image", json!("debian")),
        ("sshKey", json!("ops")),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect();
    Value::Object(example)
}
