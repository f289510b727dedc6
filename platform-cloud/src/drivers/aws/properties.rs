//! The EC2 properties of a group.

use std::collections::BTreeMap;

use drover_core::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::settings::ImagePattern;

/// Maximum size of user data in bytes, before encoding
/// (<https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html>).
pub(super) const MAX_USER_DATA: usize = 16 * 1024;

/// The properties of a group, valid against the JSON Schema. Fields that only templates add are ignored.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Properties {
    pub image: Option<Image>,
    pub instance_type: Option<String>,
    pub memory: Option<f64>,
    pub key: Option<String>,
    pub ssh_key: Option<String>,
    pub capacity_type: CapacityType,
    pub max_price: Option<Price>,
    pub security_groups: Vec<String>,
    pub subnet: Option<String>,
    pub launch_template: Option<Template>,
    pub iam_instance_profile: Option<String>,
    pub root_volume: Option<RootVolume>,
    pub public_address: Option<bool>,
    pub ipv6: bool,
    pub termination_protection: bool,
    pub tags: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum Image {
    Name(String),
    Pattern(ImagePattern),
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum Price {
    Text(String),
    Number(f64),
}

impl Price {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CapacityType {
    #[default]
    OnDemand,
    Spot,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Template {
    pub id: Option<String>,
    pub name: Option<String>,
    pub version: Option<Version>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum Version {
    Text(String),
    Number(u64),
}

impl Version {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RootVolume {
    pub size: Option<i32>,
    pub r#type: Option<String>,
    pub encrypted: Option<bool>,
}

impl Properties {
    /// Parses properties and checks constraints that the schema cannot express.
    pub(super) fn read(properties: &Map<String, Value>) -> Result<Self> {
        let read: Self = serde_json::from_value(Value::Object(properties.clone()))
            .map_err(|error| Error::invalid("group.properties", error.to_string()))?;
        if let (Some(key), Some(ssh_key)) = (&read.key, &read.ssh_key)
            && key != ssh_key
        {
            return Err(Error::invalid(
                "group.properties.sshKey",
                "is another word for `key`; give one of them, or the same in both",
            ));
        }
        if read.max_price.is_some() && read.capacity_type == CapacityType::OnDemand {
            return Err(Error::invalid(
                "group.properties.maxPrice",
                "goes with `capacityType: spot` only",
            ));
        }
        if let Some(Price::Text(text)) = &read.max_price
            && !text.parse::<f64>().is_ok_and(|price| price > 0.0)
        {
            return Err(Error::invalid(
                "group.properties.maxPrice",
                format!("{text:?} is not a price; expected US dollars an hour (0.05)"),
            ));
        }
        if let Some(template) = &read.launch_template
            && template.id.is_some() == template.name.is_some()
        {
            return Err(Error::invalid(
                "group.properties.launchTemplate",
                "needs `id` or `name`, and not both",
            ));
        }
        for key in read.tags.keys() {
            if key.starts_with(crate::cloud::PREFIX)
                || key.starts_with("aws:")
                || key == super::NAME
            {
                return Err(Error::invalid(
                    format!("group.properties.tags.{key}"),
                    "is reserved",
                ));
            }
        }
        Ok(read)
    }

    /// Name of the key pair.
    pub(super) fn key(&self) -> Option<&str> {
        self.key.as_deref().or(self.ssh_key.as_deref())
    }
}

pub(super) fn schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "image": image(),
            "instanceType": {
                "type": "string", "minLength": 1, "x-drover-node-class": true,
                "description": "Instance type (t3.small), or an alias of the platform. The same as the group's nodeClass."
            },
            "memory": {
                "type": "number", "exclusiveMinimum": 0, "x-drover-node-class": true,
                "description": "Memory in GiB. Without an instance type: the cheapest current one without accelerators that has as much."
            },
            "key": {
                "type": "string", "minLength": 1,
                "description": "Name of the key pair for SSH. Default: the platform's, otherwise none."
            },
            "sshKey": { "type": "string", "minLength": 1, "description": "Another word for key." },
            "capacityType": {
                "enum": ["on-demand", "spot"],
                "description": "How capacity is bought. Spot instances may be taken away by AWS. Default: on-demand."
            },
            "maxPrice": {
                "type": ["string", "number"],
                "description": "Highest price of a spot instance in US dollars an hour. Default: the on-demand price."
            },
            "securityGroups": {
                "type": "array", "uniqueItems": true, "items": { "type": "string", "minLength": 1 },
                "description": "Security groups by id or name, besides that of the cluster's infrastructure. Default: the \
                                platform's, otherwise the default one of the network."
            },
            "subnet": {
                "type": "string", "pattern": "^subnet-",
                "description": "Subnet for all nodes of the group. Default: one for each zone, from the platform's \
                                settings, the cluster's infrastructure or the default subnets."
            },
            "launchTemplate": launch_template(),
            "iamInstanceProfile": {
                "type": "string", "minLength": 1,
                "description": "Instance profile by name or ARN. Default: none."
            },
            "rootVolume": root_volume(),
            "publicAddress": {
                "type": "boolean",
                "description": "Whether nodes get a public IPv4 address. Default: what the subnet says."
            },
            "ipv6": { "type": "boolean", "description": "Whether nodes get an IPv6 address. Default: false." },
            "terminationProtection": {
                "type": "boolean",
                "description": "Whether AWS refuses to terminate nodes until a person lifts it. Drover never does. \
                                Default: false."
            },
            "tags": {
                "type": "object", "maxProperties": 30,
                "propertyNames": { "minLength": 1, "maxLength": 128 },
                "additionalProperties": { "type": "string", "maxLength": 256 },
                "description": "Further tags for instances and volumes. Default: none."
            }
        }
    })
}

fn image() -> Value {
    json!({
        "description": "Image: an alias of the platform, a built-in name (debian, ubuntu, amazonlinux), an id (ami-…), \
                        or owner and name of which the newest is taken. Default: the platform's.",
        "oneOf": [
            { "type": "string", "minLength": 1 },
            {
                "type": "object", "additionalProperties": false, "required": ["owner", "name"],
                "properties": {
                    "owner": { "type": "string", "minLength": 1, "description": "Account id, `amazon` or `self`." },
                    "name": {
                        "type": "string", "minLength": 1,
                        "description": "Name, with * and ?; {arch} stands for x86_64 or arm64, {deb_arch} for amd64 or \
                                        arm64."
                    }
                }
            }
        ]
    })
}

fn launch_template() -> Value {
    json!({
        "type": "object", "additionalProperties": false,
        "description": "Launch template that says what is not said here. Default: none.",
        "properties": {
            "id": { "type": "string", "pattern": "^lt-", "description": "Its id. Either this or the name." },
            "name": { "type": "string", "minLength": 3, "description": "Its name." },
            "version": {
                "type": ["string", "integer"],
                "description": "Version: a number, $Latest or $Default. Default: $Default."
            }
        }
    })
}

fn root_volume() -> Value {
    json!({
        "type": "object", "additionalProperties": false,
        "description": "Root volume. It goes with the node. Default: what the image says.",
        "properties": {
            "size": {
                "type": "integer", "minimum": 1, "maximum": 65536,
                "description": "Size in GiB. Default: that of the image."
            },
            "type": {
                "enum": ["gp2", "gp3", "io1", "io2", "st1", "sc1", "standard"],
                "description": "Type of the volume. Default: that of the image."
            },
            "encrypted": { "type": "boolean", "description": "Whether it is encrypted. Default: what the account says." }
        }
    })
}

pub(super) fn example() -> Value {
    json!({ "image": "debian", "instanceType": "t3.small", "key": "my-key-pair", "rootVolume": { "size": 20, "type": "gp3" } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> Result<Properties> {
        let Value::Object(map) = value else {
            panic!("an object")
        };
        let validator = jsonschema::validator_for(&schema()).unwrap();
        assert!(validator.is_valid(&Value::Object(map.clone())), "{map:?}");
        Properties::read(&map)
    }

    #[test]
    fn everything_that_the_schema_lets_through_is_read() {
        let all = read(json!({
            "image": { "owner": "self", "name": "base-*" },
            "instanceType": "m7g.large", "memory": 1, "key": "k", "sshKey": "k",
            "capacityType": "spot", "maxPrice": 0.05, "securityGroups": ["sg-1", "web"], "subnet": "subnet-1",
            "launchTemplate": { "name": "base", "version": 3 }, "iamInstanceProfile": "p",
            "rootVolume": { "size": 20, "type": "gp3", "encrypted": true },
            "publicAddress": false, "ipv6": true, "terminationProtection": true, "tags": { "team": "a" }
        }))
        .unwrap();
        assert_eq!(all.capacity_type, CapacityType::Spot);
        assert_eq!(all.max_price.unwrap().text(), "0.05");
        assert_eq!(all.launch_template.unwrap().version.unwrap().text(), "3");
        assert_eq!(all.root_volume.unwrap().size, Some(20));
        assert!(read(example()).is_ok());
    }

    #[test]
    fn the_words_of_kadende_are_understood() {
        let properties =
            read(json!({ "key": "mwas", "instanceType": "t2.small", "image": "debian" })).unwrap();
        assert_eq!(properties.key(), Some("mwas"));
        let properties =
            read(json!({ "instanceType": "standard", "memory": 1, "sshKey": "mwas" })).unwrap();
        assert_eq!(
            (properties.key(), properties.memory),
            (Some("mwas"), Some(1.0))
        );
    }

    #[test]
    fn contradictions_are_refused_with_their_field() {
        for (value, field) in [
            (json!({ "key": "a", "sshKey": "b" }), "sshKey"),
            (json!({ "maxPrice": "0.1" }), "maxPrice"),
            (
                json!({ "capacityType": "spot", "maxPrice": "cheap" }),
                "maxPrice",
            ),
            (json!({ "launchTemplate": {} }), "launchTemplate"),
            (
                json!({ "launchTemplate": { "id": "lt-1", "name": "abc" } }),
                "launchTemplate",
            ),
            (
                json!({ "tags": { "drover.dev/owner": "me" } }),
                "tags.drover.dev/owner",
            ),
            (json!({ "tags": { "Name": "me" } }), "tags.Name"),
        ] {
            let error = read(value.clone()).unwrap_err();
            assert_eq!(
                error.fields()[0].field,
                format!("group.properties.{field}"),
                "{value}"
            );
        }
    }
}
