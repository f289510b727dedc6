//! What a group asks of the hosts of an inventory by its properties.

use std::collections::BTreeMap;

use drover_core::{Error, Result, name::check_label, sip};
use drover_proto::common::v1::Address;
use serde::Deserialize;
use serde_json::{Value, json};

use super::metal3::PREFIX;
use crate::driver::Batch;

/// The property with the labels of hosts, which also a change of nodes brings.
pub const HOST_LABELS: &str = "hostLabels";

/// Labels of a claimed host beside those of the platform, by key.
pub type HostLabels = BTreeMap<String, String>;

/// Properties of a group.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Properties {
    /// Networks in which each host must have an address.
    pub interfaces: Vec<String>,
    /// Networks in which each host must be.
    pub networks: Vec<String>,
    /// Whether the management controller of each host must have user name and password.
    pub require_bmc_credentials: bool,
    /// Labels that a host has while it is claimed.
    pub host_labels: HostLabels,
}

impl Properties {
    /// Those of the group that hosts are claimed for.
    ///
    /// # Errors
    /// `Invalid` for what [`schema`] refuses.
    pub fn of(batch: &Batch) -> Result<Self> {
        let group = batch.request.group.as_ref();
        let Some(properties) = group.and_then(|group| group.properties.as_ref()) else {
            return Ok(Self::default());
        };
        let value = drover_convert::value::object("group.properties", properties)?;
        serde_json::from_value(value.into())
            .map_err(|error| Error::invalid("group.properties", error.to_string()))
    }

    /// Which network that is asked for a host lacks, for people. `None`: none.
    #[must_use]
    pub fn lacking(
        &self,
        addresses: &[Address],
        labels: &BTreeMap<String, String>,
    ) -> Option<String> {
        for interface in &self.interfaces {
            let found = addresses.iter().filter(|it| it.interface == *interface);
            match found.count() {
                0 => return Some(format!("it has no address on interface {interface}")),
                1 => {}
                _ => return Some(format!("it has two addresses on interface {interface}")),
            }
        }
        let absent = |network: &&String| !labels.contains_key(&format!("{PREFIX}{network}"));
        let network = self.networks.iter().find(absent)?;
        Some(format!("it is not in network {network}"))
    }
}

/// Checks labels that the group of a cluster wants on its hosts. `refused` says why a platform does not set one.
///
/// # Errors
/// `Invalid` with the key.
pub fn check_host_labels(
    field: &str,
    wanted: &HostLabels,
    cluster: &str,
    refused: impl Fn(&str) -> Option<&'static str>,
) -> Result<()> {
    let claimed = sip::claimed(wanted);
    let is_own = claimed.is_some_and(|claimed| claimed.cluster == cluster);
    for (key, value) in wanted {
        let why = match (check_label(key, value), refused(key)) {
            (Err(why), _) => why,
            (Ok(()), Some(why)) => why.to_owned(),
            (Ok(()), None) if sip::is_cluster(key) && !is_own => "names another cluster".to_owned(),
            (Ok(()), None) => continue,
        };
        return Err(Error::invalid(format!("{field}[{key:?}]"), why));
    }
    Ok(())
}

/// JSON Schema of the properties.
#[must_use]
pub fn schema() -> Value {
    let names = |what: &str| {
        json!({
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": 253},
            "maxItems": 64,
            "description": what
        })
    };
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "interfaces": names("Networks in which each host must have an address, by their ids in its network data."),
            "networks": names("Networks in which each host must be."),
            "requireBmcCredentials": {
                "type": "boolean",
                "description": "Whether a host must have user name and password of its management controller. Default false."
            },
            HOST_LABELS: {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "maxProperties": 64,
                "description": "Labels that a host has while it is claimed."
            }
        }
    })
}

/// Properties that are valid, as an example.
#[must_use]
pub fn example() -> Value {
    json!({
        "interfaces": ["oam-ipv4"],
        "requireBmcCredentials": true,
        HOST_LABELS: {"tenant": "blue"}
    })
}
