//! DigitalOcean's catalogue: a selection of the real regions, sizes and public images.

use serde_json::{Value, json};

/// Slug and name.
pub(super) const REGIONS: &[(&str, &str)] = &[
    ("ams3", "Amsterdam 3"),
    ("blr1", "Bangalore 1"),
    ("fra1", "Frankfurt 1"),
    ("lon1", "London 1"),
    ("nyc1", "New York 1"),
    ("nyc3", "New York 3"),
    ("sfo3", "San Francisco 3"),
    ("sgp1", "Singapore 1"),
    ("syd1", "Sydney 1"),
    ("tor1", "Toronto 1"),
];

pub(super) struct Size {
    pub(super) slug: &'static str,
    pub(super) description: &'static str,
    /// MiB.
    pub(super) memory: u32,
    pub(super) vcpus: u32,
    /// GiB.
    pub(super) disk: u32,
    /// TB a month.
    pub(super) transfer: f64,
    /// Dollars a month.
    pub(super) price: f64,
    /// Regions in which it is available. Empty: all.
    pub(super) regions: &'static [&'static str],
    pub(super) gpus: u32,
}

const fn size(
    slug: &'static str,
    description: &'static str,
    (vcpus, memory, disk): (u32, u32, u32),
    transfer: f64,
    price: f64,
) -> Size {
    Size {
        slug,
        description,
        memory,
        vcpus,
        disk,
        transfer,
        price,
        regions: &[],
        gpus: 0,
    }
}

pub(super) const SIZES: &[Size] = &[
    size("s-1vcpu-512mb-10gb", "Basic", (1, 512, 10), 0.5, 4.0),
    size("s-1vcpu-1gb", "Basic", (1, 1024, 25), 1.0, 6.0),
    size("s-1vcpu-1gb-amd", "Basic AMD", (1, 1024, 25), 1.0, 7.0),
    size("s-1vcpu-1gb-intel", "Basic Intel", (1, 1024, 25), 1.0, 7.0),
    size("s-1vcpu-2gb", "Basic", (1, 2048, 50), 2.0, 12.0),
    size("s-2vcpu-2gb", "Basic", (2, 2048, 60), 3.0, 18.0),
    size("s-2vcpu-4gb", "Basic", (2, 4096, 80), 4.0, 24.0),
    size("s-4vcpu-8gb", "Basic", (4, 8192, 160), 5.0, 48.0),
    size("s-8vcpu-16gb", "Basic", (8, 16384, 320), 6.0, 96.0),
    size("c-2", "CPU-Optimized", (2, 4096, 25), 4.0, 42.0),
    size("c-4", "CPU-Optimized", (4, 8192, 50), 5.0, 84.0),
    Size {
        regions: &["ams3", "fra1", "nyc1", "nyc3", "sfo3"],
        ..size("g-2vcpu-8gb", "General Purpose", (2, 8192, 25), 4.0, 63.0)
    },
    size(
        "m-2vcpu-16gb",
        "Memory-Optimized",
        (2, 16384, 50),
        4.0,
        84.0,
    ),
    Size {
        regions: &["nyc3", "tor1"],
        gpus: 1,
        ..size(
            "gpu-h100x1-80gb",
            "H100 GPU - 1X",
            (20, 245_760, 720),
            15.0,
            2522.0,
        )
    },
];

/// Public images: id, slug, distribution, name, minimum disk size in GiB.
pub(super) const IMAGES: &[(u64, &str, &str, &str, u32)] = &[
    (129_211_873, "debian-11-x64", "Debian", "11 x64", 7),
    (153_590_520, "debian-12-x64", "Debian", "12 x64", 7),
    (195_932_981, "debian-13-x64", "Debian", "13 x64", 7),
    (
        159_651_797,
        "ubuntu-22-04-x64",
        "Ubuntu",
        "22.04 (LTS) x64",
        7,
    ),
    (
        155_133_621,
        "ubuntu-24-04-x64",
        "Ubuntu",
        "24.04 (LTS) x64",
        7,
    ),
    (169_859_010, "fedora-41-x64", "Fedora", "41 x64", 15),
    (162_110_302, "rockylinux-9-x64", "Rocky Linux", "9 x64", 10),
];

impl Size {
    pub(super) fn find(slug: &str) -> Option<&'static Self> {
        SIZES.iter().find(|size| size.slug == slug)
    }

    pub(super) fn sold_in(&self, region: &str) -> bool {
        self.regions.is_empty() || self.regions.contains(&region)
    }

    pub(super) fn json(&self) -> Value {
        let regions: Vec<&str> = REGIONS
            .iter()
            .map(|(slug, _)| *slug)
            .filter(|region| self.sold_in(region))
            .collect();
        let mut value = json!({
            "slug": self.slug,
            "memory": self.memory,
            "vcpus": self.vcpus,
            "disk": self.disk,
            "transfer": self.transfer,
            "price_monthly": self.price,
            "price_hourly": (self.price / 672.0 * 100_000.0).round() / 100_000.0,
            "regions": regions,
            "available": true,
            "description": self.description,
            "disk_info": [{"type": "local", "size": {"amount": self.disk, "unit": "gib"}}],
        });
        if self.gpus > 0 {
            value["gpu_info"] = json!({
                "count": self.gpus, "model": "nvidia_h100", "vram": {"amount": 80, "unit": "gib"},
            });
        }
        value
    }
}

pub(super) fn region(slug: &str) -> Option<Value> {
    let (slug, name) = REGIONS.iter().find(|(known, _)| *known == slug)?;
    let sizes: Vec<&str> = SIZES
        .iter()
        .filter(|size| size.sold_in(slug))
        .map(|size| size.slug)
        .collect();
    Some(json!({
        "slug": slug,
        "name": name,
        "sizes": sizes,
        "available": true,
        "features": ["backups", "ipv6", "metadata", "install_agent", "storage", "image_transfer"],
    }))
}

/// An image in the API's format. `slug` is set for public images.
pub(super) fn image(
    id: u64,
    slug: Option<&str>,
    distribution: &str,
    name: &str,
    disk: u32,
) -> Value {
    let regions: Vec<&str> = REGIONS.iter().map(|(slug, _)| *slug).collect();
    json!({
        "id": id,
        "slug": slug,
        "name": name,
        "distribution": distribution,
        "type": if slug.is_some() { "base" } else { "snapshot" },
        "public": slug.is_some(),
        "regions": regions,
        "created_at": "2025-08-12T08:00:00Z",
        "min_disk_size": disk,
        "size_gigabytes": 1.5,
        "description": name,
        "tags": [],
        "status": "available",
        "error_message": "",
    })
}

pub(super) fn public_images() -> Vec<Value> {
    IMAGES
        .iter()
        .map(|(id, slug, distribution, name, disk)| {
            image(*id, Some(slug), distribution, name, *disk)
        })
        .collect()
}
