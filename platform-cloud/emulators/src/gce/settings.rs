//! Settings of an emulated project.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::world::Settings;

/// Settings of the emulator of Compute Engine.
#[derive(Clone, Debug)]
pub struct GceSettings {
    /// Port, delays, capacity, quota and rate limit.
    pub common: Settings,
    /// The only project.
    pub project: String,
    /// Regions with their zones.
    pub regions: BTreeMap<String, Vec<String>>,
    /// Machine types available in every zone. Custom types (`e2-custom-2-4096`) are always available.
    pub machine_types: BTreeSet<String>,
    /// Images as `PROJECT/NAME` and families as `PROJECT/family/NAME`.
    pub images: BTreeSet<String>,
    /// Networks; each has a subnetwork of the same name.
    pub networks: BTreeSet<String>,
    /// Valid access tokens. Empty: any token or none is accepted.
    pub tokens: BTreeSet<String>,
    /// Time from the response of a mutating call to the end of its operation.
    pub operation_delay: Duration,
    /// How long a `requestId` is remembered.
    pub request_window: Duration,
}

impl Default for GceSettings {
    fn default() -> GceSettings {
        let region = |name: &str| {
            let zones = ["a", "b", "c"].map(|zone| format!("{name}-{zone}"));
            (name.to_owned(), zones.to_vec())
        };
        GceSettings {
            common: Settings::default(),
            project: "drover-emulated".into(),
            regions: BTreeMap::from(["europe-west3", "us-central1"].map(region)),
            machine_types: set(&[
                "e2-micro",
                "e2-small",
                "e2-medium",
                "e2-standard-2",
                "e2-standard-4",
                "e2-standard-8",
                "e2-standard-16",
                "e2-standard-32",
                "e2-highmem-2",
                "e2-highmem-4",
                "e2-highmem-8",
                "e2-highmem-16",
                "n2-standard-2",
                "n2-standard-4",
                "n2-standard-8",
                "c3-standard-4",
                "c3-standard-8",
            ]),
            images: set(&[
                "debian-cloud/family/debian-11",
                "debian-cloud/family/debian-12",
                "debian-cloud/family/debian-13",
                "debian-cloud/debian-12-bookworm-v20260915",
                "ubuntu-os-cloud/family/ubuntu-2204-lts",
                "ubuntu-os-cloud/family/ubuntu-2404-lts-amd64",
                "rocky-linux-cloud/family/rocky-linux-9",
                "centos-cloud/family/centos-stream-9",
                "cos-cloud/family/cos-stable",
                "fedora-coreos-cloud/family/fedora-coreos-stable",
                "suse-cloud/family/sles-15",
            ]),
            networks: set(&["default"]),
            tokens: BTreeSet::new(),
            operation_delay: Duration::ZERO,
            request_window: Duration::from_secs(3600),
        }
    }
}

impl GceSettings {
    /// All zones.
    pub(super) fn zones(&self) -> impl Iterator<Item = &str> {
        self.regions.values().flatten().map(String::as_str)
    }

    /// Returns the region of a zone. `None` if there is no such zone.
    pub(super) fn region_of(&self, zone: &str) -> Option<&str> {
        self.regions
            .iter()
            .find(|(_, zones)| zones.iter().any(|name| name == zone))
            .map(|(region, _)| region.as_str())
    }

    pub(super) fn has_machine_type(&self, name: &str) -> bool {
        self.machine_types.contains(name) || name.contains("-custom-")
    }

    /// Whether the image exists that a path or URL names (`projects/P/global/images/[family/]NAME`).
    pub(super) fn has_image(&self, link: &str) -> bool {
        let Some((_, rest)) = link.rsplit_once("projects/") else {
            return false;
        };
        rest.split_once("/global/images/")
            .is_some_and(|(project, image)| self.images.contains(&format!("{project}/{image}")))
    }
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
