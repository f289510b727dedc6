//! Settings and description of the local platform.

use std::{
    net::{IpAddr, Ipv4Addr},
    ops::RangeInclusive,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{Capability, FailureDomain, Limits};
use drover_templates::{EmbeddedFile, embedded, stores};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Shared, cgroup::ClusterLimits, make::text, place};
use drover_platform::driver::Description;

/// The embedded templates: `agent` for clusters that name no store, `etcd`, `postgresql` and `redis`.
pub const CATALOGUE: &[EmbeddedFile] = &[
    embedded!("../../../catalogue/local/", "index.yaml"),
    embedded!("../../../catalogue/local/", "agent.yaml"),
    stores::NODE,
    embedded!("../../../catalogue/local/", "etcd.yaml"),
    stores::ETCD,
    embedded!("../../../catalogue/local/", "postgresql.yaml"),
    stores::POSTGRESQL,
    stores::POSTGRESQL_QUORUM,
    stores::POSTGRESQL_APPLICATION,
    embedded!("../../../catalogue/local/", "redis.yaml"),
    stores::REDIS,
];

/// Default port range of nodes: below the ephemeral ports of Linux.
const PORTS: (u16, u16) = (20_000, 29_999);

/// Default uid range of clusters: above regular accounts, and above the ranges usually reserved for containers.
pub const USERS: (u32, u32) = (700_000, 765_535);

/// Lowest uid that a cluster may have: lower ones are system users.
const LOWEST_USER: u32 = 1000;

/// Default grace period of a node.
const GRACE_PERIOD: Duration = Duration::from_secs(10);

/// Maximum number of slots per request.
const MAX_BATCH: u32 = 100;

/// Whether the nodes of each cluster run as a user of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Where possible: as root, with a state directory and a program that other users can access. Otherwise the
    /// platform warns.
    #[default]
    Auto,
    /// Always. The platform does not start where it is not possible.
    Required,
    /// Never. Nodes run as the user of the platform.
    None,
}

/// Settings of the local platform.
#[derive(Clone, Debug)]
pub struct Settings {
    /// State directory; created if it does not exist. Used by one platform at a time.
    pub state_dir: PathBuf,
    /// Program with the hidden subcommands `launch` (see [`launch_main`]) and `agent`. Default: this program.
    pub launcher: PathBuf,
    /// Listen address of nodes. Default: 127.0.0.1.
    pub host: IpAddr,
    /// Host name or address by which others reach nodes. `None` (default): `host`.
    pub advertise: Option<String>,
    /// Whether nodes may listen on non-loopback addresses although their protocols are not encrypted. Default: false.
    pub insecure: bool,
    /// First and last port for nodes. Default: 20000 to 29999.
    pub port_range: (u16, u16),
    /// Maximum number of nodes. `None` (default) for no limit.
    pub max_nodes: Option<usize>,
    /// Names of simulated failure domains (topology key `zone`) over which nodes are spread, to test spreading on a
    /// single machine. Default: none.
    pub failure_domains: Vec<String>,
    /// Whether each cluster has its own user. Default: where that is possible.
    pub isolation: Isolation,
    /// First and last uid for clusters. Default: 700000 to 765535.
    pub user_range: (u32, u32),
    /// Resource limits for all nodes of a cluster together. Only applied to clusters with their own user.
    pub cluster_limits: ClusterLimits,
    /// Grace period of a node if a call does not specify one. Default: 10 s.
    pub grace_period: Duration,
}

impl Settings {
    /// The defaults for a state directory.
    ///
    /// # Errors
    /// `Precondition` if the path of this program cannot be determined.
    pub fn new(state_dir: impl Into<PathBuf>) -> Result<Self> {
        let launcher = std::env::current_exe().map_err(|error| {
            Error::new(
                Reason::Precondition,
                format!("the path of this program is not known: {error}"),
            )
        })?;
        Ok(Self {
            state_dir: state_dir.into(),
            launcher,
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            advertise: None,
            insecure: false,
            port_range: PORTS,
            max_nodes: None,
            failure_domains: Vec::new(),
            isolation: Isolation::default(),
            user_range: USERS,
            cluster_limits: ClusterLimits::default(),
            grace_period: GRACE_PERIOD,
        })
    }

    /// Validates the combination of all values.
    pub(super) fn check(&self) -> Result<()> {
        if self.port_range.0 == 0 || self.ports().is_empty() {
            return Err(Error::invalid(
                "port_range",
                "expected a first port from 1 and a last one that is not smaller",
            ));
        }
        if self.user_range.0 < LOWEST_USER
            || self.users().is_empty()
            || self.user_range.1 == u32::MAX
        {
            return Err(Error::invalid(
                "local.user_range",
                format!(
                    "expected a first user from {LOWEST_USER} and a last one that is not smaller"
                ),
            ));
        }
        self.cluster_limits.check()?;
        if !self.host.is_loopback() && !self.insecure {
            return Err(Error::invalid(
                "local.host",
                format!(
                    "others can reach {}, and nodes serve plaintext there; with local.insecure they do",
                    self.host
                ),
            ));
        }
        match self.advertise.as_deref() {
            None if self.host.is_unspecified() => Err(Error::invalid(
                "local.advertise",
                format!(
                    "nobody reaches a node by {}; expected a name or an address",
                    self.host
                ),
            )),
            Some(name) if !is_host(name) => Err(Error::invalid(
                "local.advertise",
                "expected a host name or an address, without a port",
            )),
            _ => Ok(()),
        }
    }

    /// Host name or address by which others reach nodes.
    pub(super) fn advertised(&self) -> String {
        self.advertise
            .clone()
            .unwrap_or_else(|| self.host.to_string())
    }

    pub(super) fn users(&self) -> RangeInclusive<u32> {
        self.user_range.0..=self.user_range.1
    }

    pub(super) fn ports(&self) -> RangeInclusive<u16> {
        self.port_range.0..=self.port_range.1
    }
}

fn is_host(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    name.parse::<IpAddr>().is_ok() || (name.len() <= 253 && name.split('.').all(label))
}

impl Shared {
    pub(super) fn describe(&self) -> Description {
        let Shared {
            settings,
            state,
            host_name,
            tenancy,
            ..
        } = self;
        let domains = &settings.failure_domains;
        let mut capabilities = vec![
            Capability::Adopt,
            Capability::SpreadPreferred,
            Capability::SpreadRequired,
            Capability::Bootstrap,
            Capability::BootstrapRender,
            Capability::GracePeriod,
            Capability::Storage,
            Capability::GrowStorage,
            Capability::RetainStorage,
            Capability::UpdateNode,
            Capability::NodeLogs,
            Capability::NodeExec,
        ];
        if !domains.is_empty() {
            capabilities.push(Capability::FailureDomains);
        }
        let span = |span: Duration| prost_types::Duration::try_from(span).ok();
        Description {
            uid: format!("local/{host_name}/{}", state.uuid()),
            name: "local".to_owned(),
            kind: "process".to_owned(),
            driver: "local".to_owned(),
            scope: [
                ("host", host_name.clone()),
                ("state_directory", text(state.root())),
            ]
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
            capabilities,
            limits: Limits {
                max_batch: Some(MAX_BATCH),
                min_poll_interval: span(Duration::from_millis(200)),
                max_creation_time: span(Duration::from_secs(10)),
                visibility_delay: span(Duration::ZERO),
                replay_delay: span(Duration::from_millis(100)),
                provision_timeout: span(Duration::from_secs(30)),
                ..Limits::default()
            },
            failure_domains: domains
                .iter()
                .map(|name| FailureDomain {
                    name: name.clone(),
                    labels: [(place::ZONE.to_owned(), name.clone())].into(),
                    control_plane: true,
                })
                .collect(),
            properties_schema: Some(Arc::new(json!({
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "env": {
                        "type": "object",
                        "description": "environment variables, over those of the template",
                        "additionalProperties": {"type": "string"},
                    },
                },
            }))),
            properties_example: Some(Arc::new(json!({"env": {"TZ": "Europe/Berlin"}}))),
            warnings: tenancy.warnings(&self.unconfined.lock()),
            ..Description::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(host: &str, advertise: Option<&str>, insecure: bool) -> Settings {
        Settings {
            host: host.parse().unwrap(),
            advertise: advertise.map(ToOwned::to_owned),
            insecure,
            ..Settings::new("state").unwrap()
        }
    }

    #[test]
    fn nodes_listen_where_others_reach_them_only_if_that_is_said_and_under_a_name() {
        for good in [
            settings("127.0.0.1", None, false),
            settings("127.0.0.1", Some("localhost"), false),
            settings("10.0.0.7", None, true),
            settings("0.0.0.0", Some("platform-local"), true),
            settings("::", Some("fd00::7"), true),
        ] {
            good.check()
                .unwrap_or_else(|error| panic!("{good:?}: {error}"));
        }
        for (bad, field) in [
            (settings("10.0.0.7", None, false), "local.host"),
            (settings("0.0.0.0", Some("x"), false), "local.host"),
            (settings("0.0.0.0", None, true), "local.advertise"),
            (settings("127.0.0.1", Some("x:1"), false), "local.advertise"),
            (settings("127.0.0.1", Some(""), false), "local.advertise"),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.contains(field), "{bad:?}: {error}");
        }
    }
}
