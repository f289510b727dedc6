//! Settings that all clouds share.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

/// Settings that all clouds share, as `common` in the settings of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct CloudSettings {
    /// Images by the names that people write (`debian: ami-0abc…`). A name that is not there is passed on as it is.
    pub images: BTreeMap<String, String>,
    /// Node classes by the names that people write (`small: t3.small`). A name that is not there is passed on.
    pub node_classes: BTreeMap<String, String>,
    /// How the agent address of a node is found.
    pub agent: AgentSettings,
    /// Calls a second to the API, over all operations. Throttling lowers it for a while.
    pub calls_per_second: f64,
    /// Seconds between two readings of everything.
    pub poll_interval_seconds: f64,
    /// Seconds between two readings while a node is on its way to another phase.
    pub pending_poll_interval_seconds: f64,
    /// Seconds after which what was made is surely listed.
    pub visibility_delay_seconds: f64,
    /// Longest time for one call to the API, in seconds.
    pub call_timeout_seconds: f64,
}

impl Default for CloudSettings {
    fn default() -> Self {
        Self {
            images: BTreeMap::new(),
            node_classes: BTreeMap::new(),
            agent: AgentSettings::default(),
            calls_per_second: 20.0,
            poll_interval_seconds: 10.0,
            pending_poll_interval_seconds: 2.0,
            visibility_delay_seconds: 60.0,
            call_timeout_seconds: 30.0,
        }
    }
}

impl CloudSettings {
    /// The name of an image at the cloud.
    #[must_use]
    pub fn image<'a>(&'a self, name: &'a str) -> &'a str {
        self.images.get(name).map_or(name, String::as_str)
    }

    /// The name of a node class at the cloud.
    #[must_use]
    pub fn node_class<'a>(&'a self, name: &'a str) -> &'a str {
        self.node_classes.get(name).map_or(name, String::as_str)
    }

    /// Time between two readings of everything.
    #[must_use]
    pub fn poll_interval(&self) -> Duration {
        seconds(self.poll_interval_seconds, 10.0)
    }

    /// Time between two readings while a node is on its way to another phase.
    #[must_use]
    pub fn pending_poll_interval(&self) -> Duration {
        seconds(self.pending_poll_interval_seconds, 2.0)
    }

    /// Time after which what was made is surely listed.
    #[must_use]
    pub fn visibility_delay(&self) -> Duration {
        seconds(self.visibility_delay_seconds, 60.0)
    }

    /// Longest time for one call to the API.
    #[must_use]
    pub fn call_timeout(&self) -> Duration {
        seconds(self.call_timeout_seconds, 30.0)
    }
}

fn seconds(value: f64, default: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::from_secs_f64(default))
}

/// How the agent address of a node is found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct AgentSettings {
    /// Which address of the machine.
    pub address: AddressSource,
    /// Scheme: grpc, grpcs, http, https or tcp. A tag `drover.dev/agent-scheme` of the machine wins.
    pub scheme: String,
    /// Port. A tag `drover.dev/agent-port` of the machine wins, and the template's `agent` over this. `None`: nodes
    /// have no agent address unless one of those says a port.
    pub port: Option<u16>,
}

impl Default for AgentSettings {
    fn default() -> Self {
        Self {
            address: AddressSource::Private,
            scheme: "grpc".to_owned(),
            port: None,
        }
    }
}

/// Which address of a machine others use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AddressSource {
    /// First IPv4 address inside the network.
    #[default]
    Private,
    /// First IPv4 address reachable from outside.
    Public,
    /// Name inside the network.
    Dns,
    /// Name reachable from outside.
    PublicDns,
    /// First IPv6 address.
    Ipv6,
}
