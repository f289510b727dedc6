//! Sizes, images and SSH keys of the account by user-facing name.

use std::{collections::HashMap, time::Duration};

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::NodeClass;
use parking_lot::Mutex;
use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::{client::Client, properties::Properties};

/// Time to live of a cached name.
const KEEP: Duration = Duration::from_secs(600);
/// Maximum number of cached names; the cache is cleared when it is full.
const NAMES: usize = 1000;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const MIB_IN_GIB: f64 = 1024.0;

/// Product lines of sizes by user-facing name, with the slug prefixes of each.
const LINES: &[(&str, &[&str])] = &[
    ("standard", &["s"]),
    ("basic", &["s"]),
    ("cpu-optimized", &["c", "c2"]),
    ("general-purpose", &["g", "gd"]),
    ("memory-optimized", &["m", "m3", "m6"]),
    ("storage-optimized", &["so", "so1_5"]),
];

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Size {
    pub(super) slug: String,
    /// MiB.
    pub(super) memory: u64,
    pub(super) vcpus: u32,
    /// GiB.
    disk: u64,
    price_monthly: f64,
    regions: Vec<String>,
    available: bool,
    #[serde(default)]
    description: String,
    #[serde(default)]
    gpu_info: Option<Value>,
}

impl Size {
    pub(super) fn is_sold_in(&self, region: &str) -> bool {
        self.available && (region.is_empty() || self.regions.iter().any(|known| known == region))
    }

    pub(super) fn has_gpus(&self) -> bool {
        self.gpu_info.is_some() || self.slug.starts_with("gpu-")
    }

    pub(super) fn regions(&self) -> String {
        if self.available {
            self.regions.join(", ")
        } else {
            String::new()
        }
    }

    fn is_enough(&self, memory: Option<f64>, vcpus: Option<u32>) -> bool {
        memory.is_none_or(|gib| self.memory as f64 >= gib * MIB_IN_GIB)
            && vcpus.is_none_or(|vcpus| self.vcpus >= vcpus)
    }

    pub(super) fn node_class(&self) -> NodeClass {
        NodeClass {
            name: self.slug.clone(),
            description: format!("{}, ${}/month", self.description, self.price_monthly),
            cpus: Some(f64::from(self.vcpus)),
            memory_bytes: Some(self.memory * MIB),
            disk_bytes: Some(self.disk * GIB),
        }
    }
}

/// Lists all sizes.
///
/// # Errors
/// API errors.
pub(super) async fn sizes(client: &Client) -> Result<Vec<Size>> {
    let list = client.list(&["sizes"], &[]).await?;
    // A new kind of size that cannot be parsed is not a node class; the others still are.
    let read = |value| serde_json::from_value::<Size>(value).ok();
    Ok(list.items.into_iter().filter_map(read).collect())
}

/// Selects the size for a launch: `class` is the group's node class, `default` the size of the settings, both with
/// aliases resolved.
///
/// # Errors
/// `Invalid` with the field; `NodeClassNotFound`.
pub(super) fn choose<'a>(
    sizes: &'a [Size],
    class: &str,
    wanted: &Properties,
    default: &str,
    region: &str,
) -> Result<&'a Size> {
    let named = |name: &str| by_name(sizes, name, wanted, region);
    let typed = wanted.instance_type.as_deref().unwrap_or_default();
    let sized = wanted.memory.is_some() || wanted.vcpus.is_some();
    let size = match (class, typed) {
        ("", "") if sized => named("standard")?,
        ("", "") if default.is_empty() => {
            return Err(Error::invalid(
                "group.properties.instanceType",
                "is required here: a size (s-1vcpu-1gb), or a line (standard) with memory; or name a nodeClass",
            ));
        }
        ("", "") => named(default)?,
        ("", name) | (name, "") => named(name)?,
        (class, typed) => {
            let (class, typed) = (named(class)?, named(typed)?);
            if class.slug != typed.slug {
                return Err(Error::invalid(
                    "group.node_class",
                    format!(
                        "is {}, but the properties ask for {}; leave one of them out",
                        class.slug, typed.slug
                    ),
                ));
            }
            class
        }
    };
    if !size.is_enough(wanted.memory, wanted.vcpus) {
        return Err(Error::invalid(
            "group.properties.memory",
            format!(
                "{} has {} GiB and {} CPUs, less than is asked for",
                size.slug,
                size.memory as f64 / MIB_IN_GIB,
                size.vcpus
            ),
        ));
    }
    Ok(size)
}

/// A size by its slug, or the smallest sufficient one of a product line.
fn by_name<'a>(
    sizes: &'a [Size],
    name: &str,
    wanted: &Properties,
    region: &str,
) -> Result<&'a Size> {
    if let Some(size) = sizes.iter().find(|size| size.slug == name) {
        return Ok(size);
    }
    let line = name.to_lowercase().replace([' ', '_'], "-");
    let Some((_, prefixes)) = LINES.iter().find(|(known, _)| *known == line) else {
        return Err(Error::new(
            Reason::NodeClassNotFound,
            format!(
                "DigitalOcean has no size {name:?}; its sizes are called like s-1vcpu-1gb, and its lines {}",
                LINES
                    .iter()
                    .map(|(line, _)| *line)
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        ));
    };
    let of_line = |size: &&Size| {
        let prefix = size.slug.split('-').next().unwrap_or_default();
        prefixes.contains(&prefix) && size.is_enough(wanted.memory, wanted.vcpus)
    };
    let fitting = sizes.iter().filter(of_line);
    let smallest = |a: &&Size, b: &&Size| {
        let by = |size: &Size| (size.memory, size.vcpus);
        let price = a.price_monthly.total_cmp(&b.price_monthly);
        by(a).cmp(&by(b)).then(price).then(a.slug.cmp(&b.slug))
    };
    // Prefer one that is available in this region; otherwise the refusal names an unavailable one.
    fitting
        .clone()
        .filter(|size| size.is_sold_in(region))
        .min_by(smallest)
        .or_else(|| fitting.min_by(smallest))
        .ok_or_else(|| {
            Error::new(
                Reason::NodeClassNotFound,
                format!(
                    "no size of the line {name:?} has {} GiB of memory and {} CPUs",
                    wanted.memory.unwrap_or_default(),
                    wanted.vcpus.unwrap_or_default()
                ),
            )
        })
}

/// Cached name lookups.
#[derive(Default)]
pub(super) struct Names(Mutex<LookupCache>);

/// By kind and name: the value for the API, and when it was looked up.
type LookupCache = HashMap<(&'static str, String), (Value, Instant)>;

impl Names {
    fn get(&self, kind: &'static str, name: &str) -> Option<Value> {
        let known = self.0.lock();
        let (value, at) = known.get(&(kind, name.to_owned()))?;
        (at.elapsed() < KEEP).then(|| value.clone())
    }

    fn put(&self, kind: &'static str, name: &str, value: &Value) {
        let mut known = self.0.lock();
        if known.len() >= NAMES {
            known.clear();
        }
        known.insert((kind, name.to_owned()), (value.clone(), Instant::now()));
    }

    /// Clears the cache after the API has rejected a looked-up value.
    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }

    /// Resolves an image to the value for a create request: its slug or id.
    ///
    /// # Errors
    /// `Invalid` if it does not exist; API errors.
    pub(super) async fn image(&self, client: &Client, name: &str) -> Result<Value> {
        if let Some(known) = self.get("image", name) {
            return Ok(known);
        }
        let value = look_up_image(client, name).await?.ok_or_else(|| {
            Error::invalid(
                "group.properties.image",
                format!(
                    "DigitalOcean has no image {name:?}, public or of this account; it may be a slug (debian-12-x64), an \
                     id, a distribution (debian) or an alias of the platform's settings"
                ),
            )
        })?;
        self.put("image", name, &value);
        Ok(value)
    }

    /// Resolves an SSH key to the value for a create request: its id or fingerprint.
    ///
    /// # Errors
    /// `Invalid` if it does not exist; API errors.
    pub(super) async fn key(&self, client: &Client, name: &str) -> Result<Value> {
        if let Some(known) = self.get("key", name) {
            return Ok(known);
        }
        let list = client.list(&["account", "keys"], &[]).await?;
        let is = |key: &&Value| {
            ["name", "fingerprint"]
                .iter()
                .any(|field| key[field].as_str() == Some(name))
                || name.parse::<u64>().is_ok_and(|id| key["id"] == id)
        };
        let mut found = list.items.iter().filter(is);
        let (Some(key), more) = (found.next(), found.next()) else {
            return Err(Error::invalid(
                "group.properties.sshKey",
                format!(
                    "the account has no SSH key with the name, id or fingerprint {name:?}; add it at \
                     https://cloud.digitalocean.com/account/security"
                ),
            ));
        };
        if more.is_some() {
            return Err(Error::invalid(
                "group.properties.sshKey",
                format!("the account has several SSH keys called {name:?}; name its id"),
            ));
        }
        self.put("key", name, &key["id"]);
        Ok(key["id"].clone())
    }
}

async fn look_up_image(client: &Client, name: &str) -> Result<Option<Value>> {
    if let Some(found) = get_image(client, name).await? {
        return Ok(Some(found));
    }
    let distribution = [("type", "distribution".to_owned())];
    let public = client.list(&["images"], &distribution).await?.items;
    if let Some(image) = newest(&public, name) {
        return Ok(Some(image["slug"].clone()));
    }
    let private = [("private", "true".to_owned())];
    let private = client.list(&["images"], &private).await?.items;
    let mut named = private.iter().filter(|image| {
        image["name"].as_str() == Some(name) && image["status"].as_str() == Some("available")
    });
    match (named.next(), named.next()) {
        (Some(_), Some(_)) => Err(Error::invalid(
            "group.properties.image",
            format!("the account has several images called {name:?}; name the id of one"),
        )),
        (image, _) => Ok(image.map(|image| image["id"].clone())),
    }
}

async fn get_image(client: &Client, name: &str) -> Result<Option<Value>> {
    let reply = client
        .call(Method::GET, &["images", name], &[], None)
        .await?;
    match reply.status {
        200 => {
            let image = &reply.body["image"];
            if image["id"].is_null() {
                return Err(Error::unavailable(
                    "an image of DigitalOcean cannot be read",
                ));
            }
            let public = image["slug"].as_str() == Some(name);
            Ok(Some(image[if public { "slug" } else { "id" }].clone()))
        }
        // A name with a space or the like is not a slug.
        400 | 404 | 422 => Ok(None),
        _ => Err(reply.error(&format!("to say what the image {name:?} is"))),
    }
}

/// The newest 64-bit release of a distribution.
fn newest<'a>(images: &'a [Value], distribution: &str) -> Option<&'a Value> {
    let wanted = |image: &&Value| {
        let slug = image["slug"].as_str().unwrap_or_default();
        slug.ends_with("-x64")
            && image["distribution"]
                .as_str()
                .is_some_and(|known| known.eq_ignore_ascii_case(distribution))
            && image["status"].as_str() == Some("available")
    };
    let version = |image: &&Value| -> Vec<u64> {
        let slug = image["slug"].as_str().unwrap_or_default();
        slug.split('-')
            .filter_map(|part| part.parse().ok())
            .collect()
    };
    images.iter().filter(wanted).max_by_key(version)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn size(slug: &str, memory: u64, vcpus: u32, price: f64) -> Size {
        serde_json::from_value(json!({
            "slug": slug, "memory": memory, "vcpus": vcpus, "disk": 25, "price_monthly": price,
            "regions": ["fra1"], "available": true, "description": "Basic",
        }))
        .unwrap()
    }

    fn sizes() -> Vec<Size> {
        vec![
            size("s-1vcpu-1gb-amd", 1024, 1, 7.0),
            size("s-1vcpu-1gb", 1024, 1, 6.0),
            size("s-2vcpu-4gb", 4096, 2, 24.0),
            size("s-1vcpu-512mb-10gb", 512, 1, 4.0),
            size("c-2", 4096, 2, 42.0),
        ]
    }

    fn wanted(value: Value) -> Properties {
        serde_json::from_value(value).unwrap()
    }

    fn chosen(class: &str, properties: Value) -> Result<String> {
        choose(&sizes(), class, &wanted(properties), "", "fra1").map(|size| size.slug.clone())
    }

    #[test]
    fn a_line_with_memory_is_the_smallest_and_cheapest_that_is_enough() {
        for (properties, expected) in [
            (
                json!({"instanceType": "standard", "memory": 1}),
                "s-1vcpu-1gb",
            ),
            (
                json!({"instanceType": "Standard", "memory": 0.5}),
                "s-1vcpu-512mb-10gb",
            ),
            (
                json!({"instanceType": "standard", "memory": 3}),
                "s-2vcpu-4gb",
            ),
            (json!({"memory": 1, "vcpus": 2}), "s-2vcpu-4gb"),
            (json!({"instanceType": "cpu-optimized"}), "c-2"),
            (
                json!({"instanceType": "s-2vcpu-4gb", "memory": 4}),
                "s-2vcpu-4gb",
            ),
        ] {
            assert_eq!(
                chosen("", properties.clone()).unwrap(),
                expected,
                "{properties}"
            );
        }
        assert_eq!(chosen("c-2", json!({})).unwrap(), "c-2");
    }

    #[test]
    fn contradictions_and_unknown_names_are_refused_with_the_field() {
        let field = |class: &str, properties: Value| {
            let error = chosen(class, properties).unwrap_err();
            let field = error.fields().first().map(|field| field.field.clone());
            (error.reason(), field.unwrap_or_default())
        };
        assert_eq!(
            field("c-2", json!({"instanceType": "s-1vcpu-1gb"})),
            (Reason::Invalid, "group.node_class".to_owned())
        );
        assert_eq!(
            field("", json!({"instanceType": "s-1vcpu-1gb", "memory": 64})),
            (Reason::Invalid, "group.properties.memory".to_owned())
        );
        assert_eq!(
            field("", json!({})),
            (Reason::Invalid, "group.properties.instanceType".to_owned())
        );
        assert_eq!(field("t2.micro", json!({})).0, Reason::NodeClassNotFound);
        let large = json!({"instanceType": "standard", "memory": 999});
        assert_eq!(field("", large).0, Reason::NodeClassNotFound);
    }

    #[test]
    fn a_distribution_is_its_newest_release() {
        let image = |slug: &str, status: &str| json!({"slug": slug, "distribution": "Debian", "status": status});
        let images = [
            image("debian-9-x64", "available"),
            image("debian-12-x64", "available"),
            image("debian-13-x64", "retired"),
            image("debian-11-x32", "available"),
        ];
        assert_eq!(newest(&images, "debian").unwrap()["slug"], "debian-12-x64");
        assert_eq!(newest(&images, "ubuntu"), None);
    }
}
