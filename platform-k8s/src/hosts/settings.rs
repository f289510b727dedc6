use std::{collections::BTreeMap, time::Duration};

use drover_core::{Error, Result};
use drover_platform::inventory::metal3;
use serde::{Deserialize, Serialize};

use crate::labels;

/// How hosts of metal3 are read, with driver `hosts`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostsSettings {
    /// Topology keys, and the labels of hosts that may have their values: the first that a host has. The domains of `rack`
    /// are the failure domains. Any other label of a host is a topology key, too.
    pub topology: BTreeMap<String, Vec<String>>,
    /// How long a host may be off though it should be on, in seconds, before its node counts as stopped. Longer than a
    /// restart takes.
    pub power_timeout_seconds: f64,
}

impl Default for HostsSettings {
    fn default() -> Self {
        Self {
            topology: metal3::topology(),
            power_timeout_seconds: 300.0,
        }
    }
}

impl HostsSettings {
    /// Validates the settings without contacting anything.
    ///
    /// # Errors
    /// `Invalid` with the setting.
    pub fn check(&self) -> Result<()> {
        for (word, keys) in &self.topology {
            let wrong = [word]
                .into_iter()
                .chain(keys)
                .find(|key| !labels::is_key(key));
            if let Some(key) = wrong {
                return Err(Error::invalid(
                    format!("hosts.topology.{word}"),
                    format!("{key:?} is not a key of a label"),
                ));
            }
        }
        if !(self.power_timeout_seconds.is_finite() && self.power_timeout_seconds >= 0.0) {
            return Err(Error::invalid(
                "hosts.power_timeout_seconds",
                "must be 0 or more",
            ));
        }
        Ok(())
    }

    pub(super) fn power_timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.power_timeout_seconds).unwrap_or(Duration::MAX)
    }
}
