//! Settings of a platform on DigitalOcean.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Map, Value};

use crate::cloud::CloudSettings;

/// Default rate of calls per second: DigitalOcean allows 250 per minute and 5,000 per hour
/// (<https://docs.digitalocean.com/reference/api/reference/#rate-limit>).
const CALLS_PER_SECOND: f64 = 4.0;

/// Settings of a platform on DigitalOcean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Settings {
    /// Settings shared by all clouds. `calls_per_second` defaults to 4.
    #[serde(deserialize_with = "common")]
    pub common: CloudSettings,
    /// Base URL of the API. If empty, `https://api.digitalocean.com`. Plain http is allowed only to the local host.
    pub endpoint: String,
    /// File with the token, reloaded when the token is refused. `None`: the environment variable `DIGITALOCEAN_TOKEN`,
    /// then `DIGITALOCEAN_ACCESS_TOKEN`.
    pub token_file: Option<PathBuf>,
    /// Regions (fra1, ams3) in which nodes are placed: the failure domains. Droplets in other regions are ignored. If
    /// empty, droplets of all regions are managed and groups specify their region. The list is part of the platform's
    /// uid, so changing it makes a different platform.
    pub regions: Vec<String>,
    /// Image for groups that specify none: an alias, a slug, an id, a distribution (its newest release) or the name of
    /// a private image. Default: debian.
    pub image: String,
    /// Size for groups that specify none, as `instanceType`. If empty, groups must specify one.
    pub instance_type: String,
    /// SSH keys of every droplet, by id, fingerprint or name.
    pub ssh_keys: Vec<String>,
    /// VPC UUID by region. Regions without an entry use the region's default VPC.
    pub vpcs: BTreeMap<String, String>,
    /// Whether droplets with GPUs can be created. Listing them takes an additional call each time, as the API does not
    /// return them with the others.
    pub gpus: bool,
    /// Whether droplets whose store is installed by a template get the tag and the firewall `drover-private`, which lets
    /// in SSH, ICMP and all that comes from private networks, and lets out everything. It is made when it is first
    /// needed; one of this name that exists already is used as it is. A group can do with or without it by its property
    /// `firewall`.
    pub firewall: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            common: CloudSettings {
                calls_per_second: CALLS_PER_SECOND,
                ..CloudSettings::default()
            },
            endpoint: String::new(),
            token_file: None,
            regions: Vec::new(),
            image: "debian".to_owned(),
            instance_type: String::new(),
            ssh_keys: Vec::new(),
            vpcs: BTreeMap::new(),
            gpus: false,
            firewall: true,
        }
    }
}

fn common<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CloudSettings, D::Error> {
    let mut given = Map::deserialize(deserializer)?;
    given
        .entry("calls_per_second")
        .or_insert_with(|| Value::from(CALLS_PER_SECOND));
    serde_json::from_value(Value::Object(given)).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_rate_is_digitaloceans_unless_it_is_given() {
        let settings = |value: Value| {
            serde_json::from_value::<Settings>(value).map(|settings| settings.common)
        };
        let images = json!({"common": {"images": {"debian": "debian-12-x64"}}});
        assert_eq!(settings(json!({})).unwrap().calls_per_second, 4.0);
        assert_eq!(settings(images).unwrap().calls_per_second, 4.0);
        let fast = json!({"common": {"calls_per_second": 9}});
        assert_eq!(settings(fast).unwrap().calls_per_second, 9.0);
        assert!(settings(json!({"common": {"calls": 9}})).is_err());
    }
}
