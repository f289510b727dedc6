//! Settings shared by all clouds.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

/// Settings shared by all clouds, as `common` in the settings of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct CloudSettings {
    /// Aliases of images (`debian: ami-0abc…`). A name without an alias is passed through.
    pub images: BTreeMap<String, String>,
    /// Aliases of node classes (`small: t3.small`). A name without an alias is passed through.
    pub node_classes: BTreeMap<String, String>,
    /// Derivation of a node's agent address.
    pub agent: AgentSettings,
    /// Maximum rate of API calls per second, over all operations. Throttling lowers it temporarily.
    pub calls_per_second: f64,
    /// Seconds between two complete lists.
    pub poll_interval_seconds: f64,
    /// Seconds between two polls while a node is in transition to another phase.
    pub pending_poll_interval_seconds: f64,
    /// Seconds after which a created machine is guaranteed to be listed.
    pub visibility_delay_seconds: f64,
    /// Timeout of one API call, in seconds.
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
    /// Resolves the alias of an image.
    #[must_use]
    pub fn image<'a>(&'a self, name: &'a str) -> &'a str {
        self.images.get(name).map_or(name, String::as_str)
    }

    /// Resolves the alias of a node class.
    #[must_use]
    pub fn node_class<'a>(&'a self, name: &'a str) -> &'a str {
        self.node_classes.get(name).map_or(name, String::as_str)
    }

    /// Time between two complete lists.
    #[must_use]
    pub fn poll_interval(&self) -> Duration {
        seconds(self.poll_interval_seconds, 10.0)
    }

    /// Time between two polls while a node is in transition to another phase.
    #[must_use]
    pub fn pending_poll_interval(&self) -> Duration {
        seconds(self.pending_poll_interval_seconds, 2.0)
    }

    /// Time after which a created machine is guaranteed to be listed.
    #[must_use]
    pub fn visibility_delay(&self) -> Duration {
        seconds(self.visibility_delay_seconds, 60.0)
    }

    /// Timeout of one API call.
    #[must_use]
    pub fn call_timeout(&self) -> Duration {
        seconds(self.call_timeout_seconds, 30.0)
    }
}

fn seconds(value: f64, default: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::from_secs_f64(default))
}

/// Derivation of a node's agent address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct AgentSettings {
    /// Which address of the machine is used.
    pub address: AddressSource,
    /// Scheme: grpc, grpcs, http, https or tcp. The machine's tag `drover.dev/agent-scheme` takes precedence.
    pub scheme: String,
    /// Port. The template's `agent` takes precedence over it, and the machine's tag `drover.dev/agent-port` over both.
    /// `None`: nodes have no agent address unless one of those specifies a port.
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

/// Selects the address of a machine that others use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AddressSource {
    /// First IPv4 address inside the network.
    #[default]
    Private,
    /// First IPv4 address reachable from outside.
    Public,
    /// DNS name inside the network.
    Dns,
    /// DNS name reachable from outside.
    PublicDns,
    /// First IPv6 address.
    Ipv6,
}
