//! Settings of the simulated backend.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use drover_core::{Error, Result, name::RESERVED_PREFIX};
use drover_platform::{
    driver::Batch,
    inventory::{
        metal3,
        properties::{self, HostLabels, Properties},
    },
};
use drover_server::settings::duration;
use serde::{Deserialize, Serialize};

use super::faults::Death;

/// Settings of the simulated backend. By default it is fast, never fails, and accepts everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimulatedSettings {
    /// Suggested name of the platform. Default `simulated`.
    pub name: String,
    /// Uid of the backend. Absent: derived from the name and the state file, or random at each start without one.
    pub uid: Option<String>,
    /// Seed of all randomness. Absent: a different one at each start.
    pub seed: Option<u64>,
    /// File that persists nodes across restarts. Not synced. Absent: nodes are lost when the process ends.
    pub state_file: Option<PathBuf>,
    /// Divisor of all durations here. Default 1.
    pub time_scale: f64,
    /// Latency of a call to the backend. Default 0.
    #[serde(with = "duration")]
    pub latency: Duration,
    /// Maximum random addition to `latency`. Default 0.
    #[serde(with = "duration")]
    pub jitter: Duration,
    /// Time from created to running. Default 25 ms.
    #[serde(with = "duration")]
    pub boot_delay: Duration,
    /// Time from running to ready. Default 25 ms.
    #[serde(with = "duration")]
    pub ready_delay: Duration,
    /// Maximum random addition to `boot_delay` and `ready_delay`. Default 0.
    #[serde(with = "duration")]
    pub boot_jitter: Duration,
    /// Time from deleted to gone, if the grace period allows. Default 20 ms.
    #[serde(with = "duration")]
    pub stop_delay: Duration,
    /// How long a new node is invisible to lists and watches. Default 0.
    #[serde(with = "duration")]
    pub visibility_delay: Duration,
    /// Whether a new node appears in every second list during the visibility delay, as with several replicas. Default
    /// false: in none.
    pub flickering: bool,
    /// Maximum number of nodes. Absent: no limit.
    pub capacity: Option<u32>,
    /// Failure domains. Default: none.
    pub failure_domains: Vec<DomainSettings>,
    /// Maximum size of user data in bytes. Absent: no limit of its own.
    pub max_bootstrap_bytes: Option<u32>,
    /// Rate of calls per second that callers are asked to respect. Absent: no limit.
    pub calls_per_second: Option<f64>,
    /// Hosts that can be requested by name, or by labels if they have some. Default: none. They are not used for other
    /// nodes, except with `inventory`.
    pub hosts: Vec<HostSettings>,
    /// Whether every node is one of the hosts, of which a request gets all that it needs or none. Without a schema of
    /// their own, properties are then those of hosts: `interfaces`, `networks`, `requireBmcCredentials` and `hostLabels`.
    /// Default false.
    pub inventory: bool,
    /// Addons.
    pub addons: AddonSettings,
    /// Node classes. If empty, every name is accepted.
    pub node_classes: Vec<ClassSettings>,
    /// Fraction of failing calls, by operation. Default: none.
    pub errors: ErrorRates,
    /// Fraction of nodes that fail instead of starting to run. Default 0.
    pub boot_failure: f64,
    /// Deaths per node and hour. Default 0.
    pub deaths_per_hour: f64,
    /// How nodes die on their own. Default `failed`.
    pub death: Death,
    /// JSON Schema of properties. Absent: all properties are accepted.
    pub properties_schema: Option<serde_json::Value>,
    /// Maximum number of slots per request. Default 100, for which the response stays below the maximum message size
    /// with any labels.
    pub max_batch: u32,
    /// Whether changes are pushed. If false, the backend is polled. Default true.
    pub push: bool,
    /// Whether to record how often nodes were created for each slot, about 40 B per slot. Default true.
    pub ledger: bool,
}

/// Settings of addons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AddonSettings {
    /// Kinds that can be made. Default: all. Empty: the platform has no addons.
    pub kinds: Vec<AddonWord>,
    /// Time from made or changed to ready. Default 25 ms.
    #[serde(with = "duration")]
    pub ready_delay: Duration,
    /// Time until a change of targets or secrets is in use. Default 0.
    #[serde(with = "duration")]
    pub apply_delay: Duration,
    /// Time from removed to gone. Default 20 ms.
    #[serde(with = "duration")]
    pub remove_delay: Duration,
    /// First port on which addons can listen. Default 30000.
    pub first_port: u16,
    /// Last port on which addons can listen. Default 32767. All addons share these ports.
    pub last_port: u16,
    /// Whether each call makes or removes only one object. Default false.
    pub steps: bool,
}

/// Kinds of addons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AddonWord {
    /// Load balancer.
    LoadBalancer,
    /// Jump host.
    JumpHost,
    /// OIDC provider.
    OidcProvider,
    /// Anything in the template catalogue.
    Template,
}

impl Default for AddonSettings {
    fn default() -> Self {
        Self {
            kinds: vec![
                AddonWord::LoadBalancer,
                AddonWord::JumpHost,
                AddonWord::OidcProvider,
                AddonWord::Template,
            ],
            ready_delay: Duration::from_millis(25),
            apply_delay: Duration::ZERO,
            remove_delay: Duration::from_millis(20),
            first_port: 30_000,
            last_port: 32_767,
            steps: false,
        }
    }
}

/// A failure domain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DomainSettings {
    /// Name (zone-a).
    pub name: String,
    /// Topology keys and values. If empty, `zone` with the name.
    pub labels: BTreeMap<String, String>,
    /// Maximum number of nodes. Absent: no limit.
    pub capacity: Option<u32>,
}

/// A host that can be requested by name or by its labels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostSettings {
    /// Unique id (rack1-u7).
    pub id: String,
    /// Failure domain of the host. Empty for none.
    pub failure_domain: String,
    /// Claimant outside of this platform. Empty if the host is free.
    pub claimed_by: String,
    /// Labels by which it can be selected. Default: none. Those of its failure domain are added.
    pub labels: BTreeMap<String, String>,
    /// Why it cannot be claimed (its secret is missing). Empty if it can.
    pub unusable: String,
    /// Why its management controller has no user name and password, which a group may require. Empty if it has.
    pub without_credentials: String,
    /// Its addresses by interface. Default: none; then its node gets one as nodes do that are no host.
    pub addresses: BTreeMap<String, String>,
}

/// A node class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClassSettings {
    /// Name (large).
    pub name: String,
    /// Number of CPUs.
    pub cpus: Option<f64>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Maximum number of nodes. Absent: no limit.
    pub capacity: Option<u32>,
}

/// Fractions of failing calls, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ErrorRate {
    /// Fails before the call takes effect.
    pub before: f64,
    /// Fails after the call took effect: the response is lost.
    pub after: f64,
}

/// Fractions of failing calls, by operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ErrorRates {
    /// Failures of lists.
    pub list: ErrorRate,
    /// Failures of creations.
    pub create: ErrorRate,
    /// Failures of deletions.
    pub delete: ErrorRate,
    /// Failures of updates and adoptions.
    pub update: ErrorRate,
}

impl Default for SimulatedSettings {
    fn default() -> Self {
        Self {
            name: "simulated".to_owned(),
            uid: None,
            seed: None,
            state_file: None,
            time_scale: 1.0,
            latency: Duration::ZERO,
            jitter: Duration::ZERO,
            boot_delay: Duration::from_millis(25),
            ready_delay: Duration::from_millis(25),
            boot_jitter: Duration::ZERO,
            stop_delay: Duration::from_millis(20),
            visibility_delay: Duration::ZERO,
            flickering: false,
            capacity: None,
            failure_domains: Vec::new(),
            max_bootstrap_bytes: None,
            calls_per_second: None,
            hosts: Vec::new(),
            inventory: false,
            addons: AddonSettings::default(),
            node_classes: Vec::new(),
            errors: ErrorRates::default(),
            boot_failure: 0.0,
            deaths_per_hour: 0.0,
            death: Death::Failed,
            properties_schema: None,
            max_batch: 100,
            push: true,
            ledger: true,
        }
    }
}

impl SimulatedSettings {
    pub(super) fn check(&self) -> Result<()> {
        if !(self.time_scale.is_finite() && self.time_scale > 0.0) {
            return Err(Error::invalid("time_scale", "must be above 0"));
        }
        let rate = self.calls_per_second;
        if rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return Err(Error::invalid("calls_per_second", "must be above 0"));
        }
        if self.max_batch == 0 {
            return Err(Error::invalid("max_batch", "must be at least 1"));
        }
        if self.failure_domains.len() > usize::from(u16::MAX) {
            return Err(Error::invalid("failure_domains", "are too many"));
        }
        for domain in &self.failure_domains {
            if domain.name.is_empty() {
                return Err(Error::invalid("failure_domains", "each needs a name"));
            }
        }
        if self.addons.first_port == 0 || self.addons.last_port < self.addons.first_port {
            return Err(Error::invalid(
                "addons.first_port",
                "expected 1 to 65535, not after last_port",
            ));
        }
        if self.hosts.len() >= usize::from(u16::MAX) {
            return Err(Error::invalid("hosts", "are too many"));
        }
        for (at, host) in self.hosts.iter().enumerate() {
            let domains = &self.failure_domains;
            let placed = host.failure_domain.is_empty()
                || domains.iter().any(|d| d.name == host.failure_domain);
            if host.id.is_empty() || self.hosts[..at].iter().any(|other| other.id == host.id) {
                return Err(Error::invalid(
                    "hosts",
                    "each needs an id that no other has",
                ));
            }
            if !placed {
                let why = format!("{} is in no failure domain of the settings", host.id);
                return Err(Error::invalid("hosts", why));
            }
        }
        if let Some(schema) = &self.properties_schema {
            jsonschema::validator_for(schema)
                .map_err(|error| Error::invalid("properties_schema", error.to_string()))?;
        }
        Ok(())
    }

    /// JSON Schema of properties.
    pub(super) fn schema(&self) -> Option<serde_json::Value> {
        let own = self.properties_schema.clone();
        own.or_else(|| self.inventory.then(properties::schema))
    }

    /// What a group asks of hosts, where its properties are those of hosts.
    pub(super) fn properties(&self, batch: &Batch) -> Result<Properties> {
        if !self.inventory || self.properties_schema.is_some() {
            return Ok(Properties::default());
        }
        let properties = Properties::of(batch)?;
        let cluster = batch.request.cluster.as_ref();
        let cluster = cluster.map_or("", |cluster| &cluster.id);
        self.check_host_labels(
            "group.properties.hostLabels",
            &properties.host_labels,
            cluster,
        )?;
        Ok(properties)
    }

    /// Checks labels that the group of a cluster wants on its hosts.
    pub(super) fn check_host_labels(
        &self,
        field: &str,
        wanted: &HostLabels,
        cluster: &str,
    ) -> Result<()> {
        let domains = self.failure_domains.iter();
        let keys: BTreeSet<&String> = domains.flat_map(|it| it.labels.keys()).collect();
        let topology = metal3::topology();
        properties::check_host_labels(field, wanted, cluster, |key| {
            let is_place = key.starts_with(metal3::PREFIX)
                || keys.iter().any(|own| *own == key)
                || topology.contains_key(key)
                || topology.values().flatten().any(|own| own == key);
            if is_place {
                Some("says where the host is")
            } else if key.starts_with(RESERVED_PREFIX) {
                Some("is written by this platform")
            } else {
                None
            }
        })
    }

    /// Converts a duration to the time scale of this backend.
    pub(super) fn scaled(&self, duration: Duration) -> Duration {
        duration.div_f64(self.time_scale)
    }

    /// Adds a random duration of up to `jitter` and converts the sum to the time scale of this backend.
    pub(super) fn jittered(
        &self,
        duration: Duration,
        jitter: Duration,
        random: &mut fastrand::Rng,
    ) -> Duration {
        self.scaled(if jitter.is_zero() {
            duration
        } else {
            duration + jitter.mul_f64(random.f64())
        })
    }
}
