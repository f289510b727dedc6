//! What the simulated backend is like.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use drover_core::{Error, Result};
use drover_server::settings::duration;
use serde::{Deserialize, Serialize};

use super::faults::Death;

/// What the simulated backend is like. The default is a fast and faultless one that accepts everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimulatedSettings {
    /// Suggested name of the platform. Default `simulated`.
    pub name: String,
    /// Uid of the backend. Absent: from the name and the state file, or random at each start without one.
    pub uid: Option<String>,
    /// Seed of everything random. Absent: another one at each start.
    pub seed: Option<u64>,
    /// File in which nodes outlive the process. It is not synced. Absent: they do not.
    pub state_file: Option<PathBuf>,
    /// All durations here are divided by this. Default 1.
    pub time_scale: f64,
    /// Time that a call to the backend takes. Default 0.
    #[serde(with = "duration")]
    pub latency: Duration,
    /// Most that is added to it, by chance. Default 0.
    #[serde(with = "duration")]
    pub jitter: Duration,
    /// From created to running. Default 25 ms.
    #[serde(with = "duration")]
    pub boot_delay: Duration,
    /// From running to ready. Default 25 ms.
    #[serde(with = "duration")]
    pub ready_delay: Duration,
    /// Most that is added to the delays of a node, by chance. Default 0.
    #[serde(with = "duration")]
    pub boot_jitter: Duration,
    /// From deleted to gone, if the grace period allows. Default 20 ms.
    #[serde(with = "duration")]
    pub stop_delay: Duration,
    /// How long lists and watches do not show a new node. Default 0.
    #[serde(with = "duration")]
    pub visibility_delay: Duration,
    /// Whether for so long a new node is in every second list, as where several replicas answer. Default false: in none.
    pub flickering: bool,
    /// Most nodes. Absent: no limit.
    pub capacity: Option<u32>,
    /// Failure domains. Default: none.
    pub failure_domains: Vec<DomainSettings>,
    /// Most bytes of user data. Absent: no limit of its own.
    pub max_bootstrap_bytes: Option<u32>,
    /// Calls per second that callers are asked to keep to. Absent: no limit.
    pub calls_per_second: Option<f64>,
    /// Machines that can be asked for by name, or by labels if one has some. Default: none. Other nodes do not take them.
    pub hosts: Vec<HostSettings>,
    /// Node classes. Empty: every name is accepted.
    pub node_classes: Vec<ClassSettings>,
    /// Share of calls that fail, by operation. Default: none.
    pub errors: ErrorRates,
    /// Share of nodes that never run and fail instead. Default 0.
    pub boot_failure: f64,
    /// Deaths of each node in an hour. Default 0.
    pub deaths_per_hour: f64,
    /// How nodes die by themselves. Default `failed`.
    pub death: Death,
    /// JSON Schema of properties. Absent: anything goes.
    pub properties_schema: Option<serde_json::Value>,
    /// Most slots of a request. Default 100, with which the answer stays below the largest message whatever the labels.
    pub max_batch: u32,
    /// Whether changes are pushed. Otherwise the backend is polled. Default true.
    pub push: bool,
    /// Whether it is written down how often each slot was made, some 40 B each. Default true.
    pub ledger: bool,
}

/// A failure domain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DomainSettings {
    /// Name (zone-a).
    pub name: String,
    /// Topology key to value. Empty: `zone` with the name.
    pub labels: BTreeMap<String, String>,
    /// Most nodes in it. Absent: no limit.
    pub capacity: Option<u32>,
}

/// A machine that can be asked for by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostSettings {
    /// Id (rack1-u7), unique.
    pub id: String,
    /// Failure domain that it is in. Empty: none.
    pub failure_domain: String,
    /// Who has it, beside the nodes here. Empty: nobody.
    pub claimed_by: String,
    /// Labels by which it can be chosen. Default: none.
    pub labels: BTreeMap<String, String>,
}

/// A node class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClassSettings {
    /// Name (large).
    pub name: String,
    /// CPUs.
    pub cpus: Option<f64>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Most nodes of it. Absent: no limit.
    pub capacity: Option<u32>,
}

/// Share of calls that fail, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ErrorRate {
    /// Fail before anything is done.
    pub before: f64,
    /// Fail after it was done: the answer is lost.
    pub after: f64,
}

/// Share of calls that fail, by operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ErrorRates {
    /// Lists.
    pub list: ErrorRate,
    /// Creations.
    pub create: ErrorRate,
    /// Deletions.
    pub delete: ErrorRate,
    /// Updates and adoptions.
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

    /// A duration in the time of this backend.
    pub(super) fn scaled(&self, duration: Duration) -> Duration {
        duration.div_f64(self.time_scale)
    }

    /// A duration with up to `jitter` more, in the time of this backend.
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
