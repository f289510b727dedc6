//! Converts droplets to machines.

use drover_proto::{
    common::v1::{Address, AddressType},
    platform::v1::NodePhase,
};
use serde::Deserialize;
use serde_json::Value;

use super::tags;
use crate::cloud::Machine;

/// The fields of a droplet that the driver reads.
#[derive(Debug, Deserialize)]
pub(super) struct Droplet {
    pub(super) id: u64,
    pub(super) name: String,
    status: String,
    #[serde(default)]
    locked: bool,
    #[serde(default)]
    created_at: String,
    #[serde(default)]
    networks: Networks,
    #[serde(default)]
    region: Region,
    #[serde(default)]
    size_slug: String,
    #[serde(default)]
    pub(super) tags: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Networks {
    v4: Vec<Network>,
    v6: Vec<Network>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Network {
    ip_address: String,
    r#type: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Region {
    slug: String,
}

/// The reason why a list item is not a machine.
#[derive(Debug)]
pub(super) struct Unreadable {
    /// Empty if not even the id can be read.
    pub(super) id: String,
    pub(super) message: String,
}

impl Droplet {
    pub(super) fn read(value: &Value) -> Result<Self, Unreadable> {
        Self::deserialize(value).map_err(|error| Unreadable {
            id: value["id"]
                .as_u64()
                .map_or_else(String::new, |id| id.to_string()),
            message: format!("a droplet of DigitalOcean cannot be read: {error}"),
        })
    }

    pub(super) fn region(&self) -> &str {
        &self.region.slug
    }

    pub(super) fn machine(&self) -> Machine {
        let names = self.tags.as_deref().unwrap_or_default();
        let decoded = tags::decode(names.iter().map(String::as_str));
        let (phase, mut message) = match self.status.as_str() {
            "new" => (NodePhase::Pending, String::new()),
            "active" => (NodePhase::Running, String::new()),
            "off" => (NodePhase::Stopped, "the droplet is powered off".to_owned()),
            "archive" => (NodePhase::Stopped, "the droplet is archived".to_owned()),
            other => (NodePhase::Unknown, format!("the droplet is {other:?}")),
        };
        let mut also = |text: String| {
            message = if message.is_empty() {
                text
            } else {
                format!("{message}; {text}")
            };
        };
        if self.locked {
            also("the droplet is locked by DigitalOcean".to_owned());
        }
        if !decoded.doubled.is_empty() {
            also(format!(
                "tags with two values: {}",
                decoded.doubled.join(", ")
            ));
        }
        Machine {
            id: self.id.to_string(),
            provider_id: format!("digitalocean://{}", self.id),
            name: self.name.clone(),
            tags: decoded.tags,
            launch_index: None,
            phase,
            ready: None,
            message,
            maintenance: None,
            failure_domain: self.region.slug.clone(),
            node_class: self.size_slug.clone(),
            host_id: None,
            addresses: self.addresses(),
            create_time: self.created_at.parse().ok(),
            location: self.region.slug.clone(),
        }
    }

    fn addresses(&self) -> Vec<Address> {
        let address = |kind: AddressType, network: &Network| Address {
            r#type: kind.into(),
            value: network.ip_address.clone(),
            interface: String::new(),
        };
        let of = |public: bool| {
            let networks = self.networks.v4.iter().chain(&self.networks.v6);
            networks.filter(move |network| (network.r#type == "public") == public)
        };
        let private = of(false).map(|network| address(AddressType::InternalIp, network));
        let public = of(true).map(|network| address(AddressType::ExternalIp, network));
        let mut addresses: Vec<Address> = private.chain(public).collect();
        if !addresses.is_empty() {
            addresses.push(Address {
                r#type: AddressType::Hostname.into(),
                value: self.name.clone(),
                interface: String::new(),
            });
        }
        addresses
    }
}
