//! Settings of a platform on EC2.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use drover_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::cloud::CloudSettings;

/// Settings of a platform on EC2.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Settings {
    /// Settings shared by all clouds.
    pub common: CloudSettings,
    /// Region (eu-central-1). If empty, `AWS_REGION`, then the region of the profile.
    pub region: String,
    /// Base URL of the EC2 API. If empty, Amazon's for the region.
    pub endpoint: String,
    /// Base URL of the STS API. If empty, `endpoint` if set, otherwise Amazon's for the region.
    pub sts_endpoint: String,
    /// Profile with the credentials, in `~/.aws` or in `credentials_file`. If empty, the default chain of the SDK
    /// (environment, default profile, web identity, container, instance).
    pub profile: String,
    /// File in the format of `~/.aws/credentials`, reloaded when its credentials are refused. `None`: that file.
    pub credentials_file: Option<PathBuf>,
    /// Zones in which nodes are placed. If empty, all available zones of the region.
    pub zones: Vec<String>,
    /// Subnet by zone (`eu-central-1a: subnet-0abc…`), for groups that specify none. Zones without an entry use the
    /// cluster's infrastructure, then the default subnet of the zone.
    pub subnets: BTreeMap<String, String>,
    /// Security groups of all nodes, by id or name. If empty, the default group of the network.
    pub security_groups: Vec<String>,
    /// Image for groups that specify none: an alias, an id, or the name of a catalogue entry. If empty, groups must
    /// specify one.
    pub image: String,
    /// Instance type for groups that specify none. If empty, groups must specify one.
    pub instance_type: String,
    /// Key pair for groups that specify none. Empty for no key pair.
    pub key: String,
    /// Additional images that are looked up by name, newest first: name to owner and pattern. They take precedence over
    /// the built-in ones (debian, ubuntu, amazonlinux).
    pub catalogue: BTreeMap<String, ImagePattern>,
    /// Maximum number of instances per create call.
    pub max_launch: u32,
    /// Whether a zone with capacity for only some instances of a call creates those. If false, a call is all or
    /// nothing, for servers that only create the minimum count of a request, as moto does.
    pub partial_launches: bool,
}

/// Images by owner and name pattern; the newest match is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct ImagePattern {
    /// Account id, or `amazon` or `self`.
    pub owner: String,
    /// Name pattern with `*` and `?`; `{arch}` is replaced by the architecture (x86_64, arm64) and `{deb_arch}` by
    /// Debian's name of it (amd64, arm64).
    pub name: String,
}

/// Maximum number of instances per call. Each instance carries the identities of all of them, and 50 tags hold no more.
const MAX_LAUNCH: u32 = 250;

impl Default for Settings {
    fn default() -> Self {
        Self {
            common: CloudSettings::default(),
            region: String::new(),
            endpoint: String::new(),
            sts_endpoint: String::new(),
            profile: String::new(),
            credentials_file: None,
            zones: Vec::new(),
            subnets: BTreeMap::new(),
            security_groups: Vec::new(),
            image: String::new(),
            instance_type: String::new(),
            key: String::new(),
            catalogue: BTreeMap::new(),
            max_launch: MAX_LAUNCH,
            partial_launches: true,
        }
    }
}

impl Settings {
    /// Checks the settings that can be validated without a call.
    pub(super) fn check(&self) -> Result<()> {
        for (field, url) in [
            ("endpoint", &self.endpoint),
            ("sts_endpoint", &self.sts_endpoint),
        ] {
            if !url.is_empty() && !url.starts_with("http://") && !url.starts_with("https://") {
                return Err(Error::invalid(
                    field,
                    format!("{url:?} is not a URL; expected http://… or https://…"),
                ));
            }
        }
        if self.max_launch == 0 || self.max_launch > MAX_LAUNCH {
            return Err(Error::invalid(
                "max_launch",
                format!("must be from 1 to {MAX_LAUNCH}"),
            ));
        }
        if let Some(file) = &self.credentials_file {
            readable(file)?;
        }
        for (zone, subnet) in &self.subnets {
            if !subnet.starts_with("subnet-") {
                return Err(Error::invalid(
                    format!("subnets.{zone}"),
                    format!("{subnet:?} is not an id of a subnet; expected subnet-…"),
                ));
            }
        }
        Ok(())
    }
}

fn readable(file: &Path) -> Result<()> {
    std::fs::File::open(file).map(|_| ()).map_err(|error| {
        Error::invalid(
            "credentials_file",
            format!("cannot read {}: {error}", file.display()),
        )
    })
}

/// Whether a name has the form of a region (eu-central-1, us-gov-west-1).
pub(super) fn is_region(name: &str) -> bool {
    let mut parts = name.split('-').rev();
    let number = parts.next().unwrap_or_default();
    let words: Vec<&str> = parts.collect();
    !number.is_empty()
        && number.bytes().all(|b| b.is_ascii_digit())
        && words.len() >= 2
        && words
            .iter()
            .all(|word| word.len() >= 2 && word.bytes().all(|b| b.is_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_told_from_zones_and_typos() {
        for name in ["eu-central-1", "us-gov-west-1", "ap-southeast-2"] {
            assert!(is_region(name), "{name}");
        }
        for name in [
            "",
            "eu-central",
            "eu-central-1a",
            "EU-central-1",
            "frankfurt",
            "-1",
            "eu--1",
        ] {
            assert!(!is_region(name), "{name}");
        }
    }

    #[test]
    fn settings_that_cannot_work_are_named() {
        let with = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings
                .check()
                .map_err(|error| error.fields()[0].field.clone())
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(
            with(|s| s.endpoint = "localhost:5000".to_owned()),
            Err("endpoint".to_owned())
        );
        assert_eq!(with(|s| s.max_launch = 251), Err("max_launch".to_owned()));
        assert_eq!(
            with(|s| s.credentials_file = Some("/no/such/file".into())),
            Err("credentials_file".to_owned())
        );
        assert_eq!(
            with(|s| _ = s
                .subnets
                .insert("eu-central-1a".to_owned(), "vpc-1".to_owned())),
            Err("subnets.eu-central-1a".to_owned())
        );
    }
}
