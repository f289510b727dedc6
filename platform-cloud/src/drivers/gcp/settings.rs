//! Settings of a platform on Compute Engine: access to the project and defaults for new machines.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use drover_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::cloud::CloudSettings;

/// Settings of a platform on Compute Engine. A platform is one region of one project.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct Settings {
    /// Settings shared by all clouds. `images` and `node_classes` map user-facing names to those of Compute Engine
    /// (`amazonlinux: rocky`, `t2.micro: e2-micro`). An image can be given by a built-in name (debian, ubuntu, rocky,
    /// centos, cos, fedora-coreos), as `PROJECT/FAMILY`, by its path (`projects/P/global/images/…`), or by the name of
    /// an image of the project.
    pub common: CloudSettings,
    /// Project id. If empty (default), the environment variable `GOOGLE_CLOUD_PROJECT`.
    pub project: String,
    /// Region. Required.
    pub region: String,
    /// Zones of the region in which nodes are placed. If empty (default), all zones that are up. Existing machines are
    /// always found in all zones of the region.
    pub zones: Vec<String>,
    /// Base URL of the API. `None` (default): `https://compute.googleapis.com`.
    pub endpoint: Option<String>,
    /// JSON file with credentials (of a service account, a user, workload identity federation or impersonation); read again
    /// when it changes. `None` (default): the application default credentials in their usual
    /// order: `GOOGLE_APPLICATION_CREDENTIALS`, `gcloud auth application-default login`, the metadata server.
    pub credentials_file: Option<PathBuf>,
    /// File with an OAuth access token that is renewed externally; read for every call. Takes precedence over
    /// `credentials_file`.
    pub access_token_file: Option<PathBuf>,
    /// Sends no credentials, for an emulator. Default: false.
    pub anonymous: bool,
    /// Machine type for groups that specify none. Default: e2-small.
    pub machine_type: String,
    /// Image for groups that specify none. Default: debian.
    pub image: String,
    /// Network, by name or path. Default: default.
    pub network: String,
    /// Subnetwork of the region, by name or path. `None` (default): the automatic subnetwork of the network, if it has
    /// one.
    pub subnetwork: Option<String>,
    /// Whether machines get an external IPv4 address. Default: false; without one they need Cloud NAT for outgoing
    /// traffic.
    pub external_address: bool,
    /// Network tags, which firewall rules select by.
    pub network_tags: Vec<String>,
    /// E-mail of the service account that machines run as. `None` (default): no service account.
    pub service_account: Option<String>,
    /// Access scopes of the service account. Default: cloud-platform, so that its roles decide.
    pub scopes: Vec<String>,
    /// Size of the boot disk in GiB. `None` (default): the size of the image.
    pub disk_size: Option<u32>,
    /// Type of the boot disk (pd-standard, pd-balanced, pd-ssd). Default: pd-balanced.
    pub disk_type: String,
    /// Public keys by the names used in the properties `key` and `sshKey`: `USER:ssh-ed25519 AAAA… NAME`. Compute
    /// Engine itself has no named keys, so unknown names are rejected.
    pub ssh_keys: BTreeMap<String, String>,
    /// Timeout of one operation (the creation of a machine), in seconds. Default: 180.
    pub operation_timeout_seconds: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            common: CloudSettings::default(),
            project: String::new(),
            region: String::new(),
            zones: Vec::new(),
            endpoint: None,
            credentials_file: None,
            access_token_file: None,
            anonymous: false,
            machine_type: "e2-small".to_owned(),
            image: "debian".to_owned(),
            network: "default".to_owned(),
            subnetwork: None,
            external_address: false,
            network_tags: Vec::new(),
            service_account: None,
            scopes: vec!["https://www.googleapis.com/auth/cloud-platform".to_owned()],
            disk_size: None,
            disk_type: "pd-balanced".to_owned(),
            ssh_keys: BTreeMap::new(),
            operation_timeout_seconds: 180.0,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("project", &self.project)
            .field("region", &self.region)
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// Settings for the emulator at this URL, with aliases for the names of the Kadende sample.
    #[must_use]
    pub fn emulated(endpoint: impl Into<String>) -> Self {
        let map = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        let mut settings = Self {
            project: "drover-emulated".to_owned(),
            region: "europe-west3".to_owned(),
            endpoint: Some(endpoint.into()),
            anonymous: true,
            ssh_keys: map(&[(
                "mwas",
                "mwas:ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEmulatedEmulatedEmulatedEmulatedEmulatedEmu mwas",
            )]),
            ..Self::default()
        };
        settings.common.images = map(&[("amazonlinux", "rocky")]);
        settings.common.node_classes = map(&[
            ("t2.micro", "e2-micro"),
            ("t2.small", "e2-small"),
            ("t2.medium", "e2-medium"),
        ]);
        settings.common.calls_per_second = 200.0;
        settings.common.poll_interval_seconds = 1.0;
        settings.common.visibility_delay_seconds = 5.0;
        settings
    }

    /// Applies defaults from the environment and validates the settings.
    ///
    /// # Errors
    /// `Invalid` with the setting.
    pub(super) fn checked(mut self) -> Result<Self> {
        if self.project.is_empty() {
            self.project = std::env::var("GOOGLE_CLOUD_PROJECT").unwrap_or_default();
        }
        if self.project.is_empty() {
            return Err(Error::invalid(
                "project",
                "the id of the project is missing; say it here or in GOOGLE_CLOUD_PROJECT",
            ));
        }
        if self.region.is_empty() {
            return Err(Error::invalid(
                "region",
                "the region is missing (europe-west3, us-central1, …)",
            ));
        }
        for (name, key) in &self.ssh_keys {
            if !is_ssh_key(key) {
                return Err(Error::invalid(
                    format!("ssh_keys.{name}"),
                    "this is no `USER:ssh-ed25519 AAAA…`",
                ));
            }
        }
        Ok(self)
    }

    /// Timeout of one operation.
    pub(super) fn operation_timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.operation_timeout_seconds)
            .unwrap_or(Duration::from_secs(180))
    }
}

/// Whether the text is `USER:TYPE KEY` on a single line.
pub(super) fn is_ssh_key(text: &str) -> bool {
    text.split_once(':').is_some_and(|(user, key)| {
        !user.is_empty()
            && !user.contains(char::is_whitespace)
            && key.trim_start().contains(' ')
            && !key.contains('\n')
    })
}
