//! Images, instance types and zones by user-facing name, resolved by the API and cached.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use aws_sdk_ec2::types::{BlockDeviceMapping, EbsBlockDevice, Filter, InstanceType};
use drover_core::{Error, Reason, Result};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    api::Api,
    errors,
    properties::CapacityType,
    settings::{ImagePattern, Settings},
};

mod template;
mod types;

pub(super) use template::TemplateData;
use types::Type;

/// Time to live of a cached lookup. Images and types are published every few weeks.
const MEMORY: Duration = Duration::from_secs(3600);
/// Maximum number of cached lookups of each kind.
const MAX_REMEMBERED: usize = 1024;

/// Well-known images by name (name, owner, patterns in order of preference).
const BUILT_IN: [(&str, &str, &[&str]); 3] = [
    // https://wiki.debian.org/Cloud/AmazonEC2Image
    (
        "debian",
        "136693071363",
        &["debian-13-{deb_arch}-*", "debian-12-{deb_arch}-*"],
    ),
    (
        "ubuntu",
        "099720109477",
        &[
            "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-{deb_arch}-server-*",
            "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-{deb_arch}-server-*",
        ],
    ),
    ("amazonlinux", "amazon", &["al2023-ami-2023.*-{arch}"]),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Arch {
    #[default]
    X86,
    Arm,
}

impl Arch {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::X86 => "x86_64",
            Self::Arm => "arm64",
        }
    }

    fn debian(self) -> &'static str {
        match self {
            Self::X86 => "amd64",
            Self::Arm => "arm64",
        }
    }
}

/// A resolved image.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Image {
    pub id: String,
    pub arch: Arch,
    /// Device name of the root volume (/dev/xvda).
    pub root_device: String,
    /// The volumes that would outlive the instance, so that they go with it.
    pub kept: Vec<BlockDeviceMapping>,
}

/// Cached lookups.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    images: Memory<(ImageName, Arch), Image>,
    types: Memory<String, Type>,
    all_types: Memory<(), Arc<Vec<Type>>>,
    default_subnets: Memory<(), Arc<BTreeMap<String, String>>>,
    /// Zone and network, by subnet.
    subnets: Memory<String, (String, String)>,
    groups: Memory<(Option<String>, String), String>,
    templates: Memory<(String, String), Arc<TemplateData>>,
}

/// A parsed image name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ImageName {
    Id(String),
    /// The newest image that matches the first pattern with any match.
    Newest(Vec<ImagePattern>),
}

impl ImageName {
    /// Parses a name: an alias of the settings, an id, or a catalogue entry.
    pub(super) fn of(name: &str, settings: &Settings) -> Result<Self> {
        let name = settings.common.image(name);
        if name.starts_with("ami-") || name.starts_with("resolve:ssm:") {
            return Ok(Self::Id(name.to_owned()));
        }
        if let Some(pattern) = settings.catalogue.get(name) {
            return Ok(Self::Newest(vec![pattern.clone()]));
        }
        BUILT_IN
            .iter()
            .find(|(known, ..)| *known == name)
            .map(|(_, owner, patterns)| {
                let pattern = |name: &&str| ImagePattern {
                    owner: (*owner).to_owned(),
                    name: (*name).to_owned(),
                };
                Self::Newest(patterns.iter().map(pattern).collect())
            })
            .ok_or_else(|| {
                let known: Vec<&str> = settings
                    .common
                    .images
                    .keys()
                    .chain(settings.catalogue.keys())
                    .map(String::as_str)
                    .chain(BUILT_IN.map(|(known, ..)| known))
                    .collect();
                Error::invalid(
                    "group.properties.image",
                    format!(
                        "there is no image {name:?}; expected an id (ami-…), owner and name, or one of {}",
                        known.join(", ")
                    ),
                )
            })
    }
}

impl Catalogue {
    /// Resolves an image. The architecture selects among images with the same name.
    pub(super) async fn image(&self, api: &Api, name: &ImageName, arch: Arch) -> Result<Image> {
        let key = (name.clone(), arch);
        if let Some(image) = self.images.get(&key) {
            return Ok(image);
        }
        let image = match name {
            // Only RunInstances itself can resolve an SSM parameter, so what such an image would keep is not known.
            ImageName::Id(id) if !id.starts_with("ami-") => Image {
                id: id.clone(),
                arch,
                root_device: String::new(),
                kept: Vec::new(),
            },
            ImageName::Id(id) => image_by_id(api, id).await?,
            ImageName::Newest(patterns) => {
                let mut found = Err(no_image(api, "image"));
                for pattern in patterns {
                    found = newest_image(api, pattern, arch).await;
                    if !matches!(&found, Err(error) if error.reason() == Reason::Invalid) {
                        break;
                    }
                }
                found?
            }
        };
        self.images.put(key, image.clone());
        Ok(image)
    }

    /// Resolves an instance type.
    pub(super) async fn instance_type(&self, api: &Api, name: &str) -> Result<Type> {
        if let Some(found) = self.types.get(&name.to_owned()) {
            return Ok(found);
        }
        let unknown = |said: &str| {
            Error::new(
                Reason::NodeClassNotFound,
                format!(
                    "AWS has no instance type {name:?} in {} ({said})",
                    api.region()
                ),
            )
            .with_resource("node class", name)
        };
        let answer = api
            .send("DescribeInstanceTypes", |ec2| {
                ec2.describe_instance_types()
                    .instance_types(InstanceType::from(name))
                    .send()
            })
            .await
            .map_err(|error| match errors::code(&error) {
                "InvalidInstanceType" | "InvalidParameterValue" => unknown(error.message()),
                _ => error,
            })?;
        let found = answer
            .instance_types()
            .iter()
            .find_map(Type::of)
            .ok_or_else(|| unknown("the answer is empty"))?;
        self.types.put(name.to_owned(), found.clone());
        Ok(found)
    }

    /// The instance type with at least this much memory in GiB that costs least.
    pub(super) async fn smallest(
        &self,
        api: &Api,
        memory: f64,
        arch: Arch,
        capacity: CapacityType,
    ) -> Result<Type> {
        let types = match self.all_types.get(&()) {
            Some(types) => types,
            None => {
                let types = Arc::new(types::all(api).await?);
                self.all_types.put((), Arc::clone(&types));
                types
            }
        };
        types::smallest(&types, memory, arch, capacity).ok_or_else(|| {
            Error::invalid(
                "group.properties.memory",
                format!("no instance type has {memory} GiB of memory"),
            )
        })
    }

    /// The default subnets, by zone.
    pub(super) async fn default_subnets(&self, api: &Api) -> Result<Arc<BTreeMap<String, String>>> {
        if let Some(subnets) = self.default_subnets.get(&()) {
            return Ok(subnets);
        }
        let filter = filter("default-for-az", ["true"]);
        let mut subnets = BTreeMap::new();
        let mut token = None;
        loop {
            let answer = api
                .send("DescribeSubnets", |ec2| {
                    ec2.describe_subnets()
                        .filters(filter.clone())
                        .set_next_token(token.clone())
                        .send()
                })
                .await?;
            for subnet in answer.subnets() {
                if let (Some(zone), Some(id), Some(true)) = (
                    subnet.availability_zone(),
                    subnet.subnet_id(),
                    subnet.default_for_az(),
                ) {
                    subnets.insert(zone.to_owned(), id.to_owned());
                }
            }
            match answer.next_token {
                Some(next) if !next.is_empty() => token = Some(next),
                _ => break,
            }
        }
        let subnets = Arc::new(subnets);
        self.default_subnets.put((), Arc::clone(&subnets));
        Ok(subnets)
    }

    /// Zone and network of a subnet.
    pub(super) async fn subnet(&self, api: &Api, id: &str) -> Result<(String, String)> {
        if let Some(found) = self.subnets.get(&id.to_owned()) {
            return Ok(found);
        }
        let answer = api
            .send("DescribeSubnets", |ec2| {
                ec2.describe_subnets().subnet_ids(id).send()
            })
            .await?;
        let found = answer
            .subnets()
            .iter()
            .find(|subnet| subnet.subnet_id() == Some(id))
            .ok_or_else(|| {
                Error::invalid(
                    "group.properties.subnet",
                    format!("there is no subnet {id:?}"),
                )
            })?;
        let found = (
            found.availability_zone().unwrap_or_default().to_owned(),
            found.vpc_id().unwrap_or_default().to_owned(),
        );
        self.subnets.put(id.to_owned(), found.clone());
        Ok(found)
    }

    /// Resolves security groups given by id or by name; names are looked up in one network.
    pub(super) async fn security_groups(
        &self,
        api: &Api,
        network: Option<&str>,
        names: &[String],
    ) -> Result<Vec<String>> {
        let mut ids = Vec::new();
        for name in names {
            let id = if name.starts_with("sg-") {
                name.clone()
            } else {
                self.security_group(api, network, name).await?
            };
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        Ok(ids)
    }

    async fn security_group(&self, api: &Api, network: Option<&str>, name: &str) -> Result<String> {
        let key = (network.map(str::to_owned), name.to_owned());
        if let Some(id) = self.groups.get(&key) {
            return Ok(id);
        }
        let mut filters = vec![filter("group-name", [name])];
        filters.extend(network.map(|id| filter("vpc-id", [id])));
        let answer = api
            .send("DescribeSecurityGroups", |ec2| {
                ec2.describe_security_groups()
                    .set_filters(Some(filters.clone()))
                    .send()
            })
            .await?;
        let found: Vec<&str> = answer
            .security_groups()
            .iter()
            .filter_map(|group| group.group_id())
            .collect();
        let [id] = found.as_slice() else {
            return Err(Error::invalid(
                "group.properties.securityGroups",
                format!(
                    "{} security groups are called {name:?} there; expected one, or give its id (sg-…)",
                    found.len()
                ),
            ));
        };
        let id = (*id).to_owned();
        self.groups.put(key, id.clone());
        Ok(id)
    }

    /// Drops the cached lookups after the API has rejected one of them.
    pub(super) fn forget(&self) {
        self.images.clear();
        self.types.clear();
        self.default_subnets.clear();
        self.subnets.clear();
        self.groups.clear();
        self.templates.clear();
    }
}

pub(super) fn filter<I, V>(name: &str, values: I) -> Filter
where
    I: IntoIterator<Item = V>,
    V: Into<String>,
{
    Filter::builder()
        .name(name)
        .set_values(Some(values.into_iter().map(Into::into).collect()))
        .build()
}

async fn image_by_id(api: &Api, id: &str) -> Result<Image> {
    let answer = api
        .send("DescribeImages", |ec2| {
            ec2.describe_images().image_ids(id).send()
        })
        .await?;
    answer
        .images()
        .iter()
        .find(|image| image.image_id() == Some(id))
        .and_then(Image::of)
        .ok_or_else(|| no_image(api, &format!("image {id:?}")))
}

async fn newest_image(api: &Api, pattern: &ImagePattern, arch: Arch) -> Result<Image> {
    let name = pattern
        .name
        .replace("{arch}", arch.name())
        .replace("{deb_arch}", arch.debian());
    let filters = [
        filter("name", [name.as_str()]),
        filter("state", ["available"]),
        filter("architecture", [arch.name()]),
    ];
    let answer = api
        .send("DescribeImages", |ec2| {
            ec2.describe_images()
                .owners(&pattern.owner)
                .set_filters(Some(filters.to_vec()))
                .send()
        })
        .await?;
    answer
        .images()
        .iter()
        // ISO 8601 dates sort as text. The id breaks ties, so that every launch selects the same image.
        .max_by_key(|image| {
            (
                image.creation_date().unwrap_or_default(),
                image.image_id().unwrap_or_default(),
            )
        })
        .and_then(Image::of)
        .ok_or_else(|| {
            no_image(
                api,
                &format!("image of owner {} named {name:?}", pattern.owner),
            )
        })
}

/// What is not said here stays as the image says.
fn deleted_with_the_node(device: &str, ebs: &EbsBlockDevice) -> BlockDeviceMapping {
    let ebs = EbsBlockDevice::builder()
        .delete_on_termination(true)
        .set_volume_size(ebs.volume_size());
    BlockDeviceMapping::builder()
        .device_name(device)
        .ebs(ebs.build())
        .build()
}

fn no_image(api: &Api, what: &str) -> Error {
    Error::invalid(
        "group.properties.image",
        format!(
            "there is no {what} in {} that this account may use",
            api.region()
        ),
    )
}

impl Image {
    fn of(image: &aws_sdk_ec2::types::Image) -> Option<Self> {
        Some(Self {
            id: image.image_id()?.to_owned(),
            arch: match image
                .architecture()
                .map(aws_sdk_ec2::types::ArchitectureValues::as_str)
            {
                Some("arm64" | "arm64_mac") => Arch::Arm,
                _ => Arch::X86,
            },
            root_device: image.root_device_name().unwrap_or_default().to_owned(),
            kept: image
                .block_device_mappings()
                .iter()
                .filter_map(|mapping| Some((mapping.device_name()?, mapping.ebs()?)))
                .filter(|(_, ebs)| ebs.delete_on_termination() == Some(false))
                .map(|(device, ebs)| deleted_with_the_node(device, ebs))
                .collect(),
        })
    }
}

/// A cache whose entries expire.
#[derive(Debug)]
struct Memory<K, V>(Mutex<HashMap<K, (Instant, V)>>);

impl<K, V> Default for Memory<K, V> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Eq + std::hash::Hash, V: Clone> Memory<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let known = self.0.lock();
        let (at, value) = known.get(key)?;
        (at.elapsed() < MEMORY).then(|| value.clone())
    }

    fn put(&self, key: K, value: V) {
        let mut known = self.0.lock();
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        known.insert(key, (Instant::now(), value));
    }

    fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_are_understood() {
        let mut settings = Settings::default();
        settings
            .common
            .images
            .insert("base".to_owned(), "ami-1".to_owned());
        let of = |name: &str| ImageName::of(name, &settings);
        assert_eq!(of("base").unwrap(), ImageName::Id("ami-1".to_owned()));
        assert_eq!(of("ami-2").unwrap(), ImageName::Id("ami-2".to_owned()));
        for (name, ..) in BUILT_IN {
            assert!(matches!(of(name).unwrap(), ImageName::Newest(_)), "{name}");
        }
        let error = of("debain").unwrap_err();
        assert_eq!(error.fields()[0].field, "group.properties.image");
        assert!(error.message().contains("amazonlinux"), "{error}");
        assert!(error.message().contains("base"), "{error}");
    }
}
