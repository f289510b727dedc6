//! What the account is and can do.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drover_core::{Error, Result};
use drover_proto::platform::v1::{Capability, FailureDomain, Limits, NodeClass};
use serde_json::Value;

use super::{Settings, catalogue::Size, properties};
use crate::cloud::{Facts, TagLimits};

/// Droplets of one call.
const MAX_LAUNCH: usize = 10;
/// Calls that create at a time.
const MAX_LAUNCHES: usize = 4;
/// Nodes of one Provision request.
const MAX_BATCH: u32 = 100;
/// Largest user data in bytes.
const MAX_USER_DATA: u32 = 64 << 10;
/// Longest value of a tag before it is encoded. It is cut into parts where it gets too long; this bounds how many.
const MAX_TAG_VALUE: usize = 200;
/// Most tags of a droplet. DigitalOcean names no limit; a creation with this many works.
const MAX_TAGS: usize = 60;

pub(super) fn check_regions(wanted: &[String], regions: &[Value]) -> Result<()> {
    let slugs: Vec<&str> = regions
        .iter()
        .filter_map(|region| region["slug"].as_str())
        .collect();
    match wanted
        .iter()
        .find(|region| !slugs.contains(&region.as_str()))
    {
        None => Ok(()),
        Some(region) => Err(Error::invalid(
            "digitalocean.regions",
            format!(
                "DigitalOcean has no region {region:?}; it has {}",
                slugs.join(", ")
            ),
        )),
    }
}

pub(super) fn facts(
    settings: &Settings,
    account: &Value,
    regions: &[Value],
    sizes: &[Size],
) -> Result<Facts> {
    // Droplets belong to the team that the token is for; one person may be in several.
    let team = &account["team"];
    let owner = team["uuid"].as_str().or(account["uuid"].as_str());
    let owner = owner.ok_or_else(|| {
        Error::unavailable("the account of DigitalOcean cannot be read: it has no uuid")
    })?;
    let mut chosen = settings.regions.clone();
    chosen.sort();
    chosen.dedup();
    let mut scope = BTreeMap::from([("account".to_owned(), owner.to_owned())]);
    if let Some(name) = team["name"].as_str() {
        scope.insert("team".to_owned(), name.to_owned());
    }
    let mut uid = format!("digitalocean:{owner}");
    if !chosen.is_empty() {
        let list = chosen.join(",");
        uid = format!("{uid}:{list}");
        scope.insert("regions".to_owned(), list);
    }
    let domain = |name: &String| FailureDomain {
        name: name.clone(),
        labels: ["region", "zone"]
            .map(|key| (key.to_owned(), name.clone()))
            .into(),
        control_plane: true,
    };
    Ok(Facts {
        uid,
        name: "digitalocean".to_owned(),
        kind: "cloud",
        driver: "digitalocean",
        backend_version: "v2".to_owned(),
        scope,
        capabilities: vec![
            Capability::Bootstrap,
            Capability::BootstrapRender,
            Capability::UpdateNode,
            Capability::Adopt,
        ],
        limits: limits(settings),
        max_launch: MAX_LAUNCH,
        max_concurrent_launches: MAX_LAUNCHES,
        failure_domains: settings.regions.iter().map(domain).collect(),
        node_classes: node_classes(settings, sizes),
        properties_schema: Arc::new(properties::schema()),
        properties_example: Arc::new(properties::example()),
        tag_limits: TagLimits {
            max_value: MAX_TAG_VALUE,
            max_tags: MAX_TAGS,
        },
        warnings: warnings(settings, account, regions),
    })
}

fn limits(settings: &Settings) -> Limits {
    let span = |duration: Duration| duration.try_into().ok();
    let common = &settings.common;
    Limits {
        max_batch: Some(MAX_BATCH),
        calls_per_second: None,
        max_concurrent_calls: Some(16),
        max_bootstrap_bytes: Some(MAX_USER_DATA),
        min_poll_interval: span(common.poll_interval()),
        // A request that was taken in and not answered may still be worked on.
        max_creation_time: span(4 * common.call_timeout() + Duration::from_secs(60)),
        request_memory: span(Duration::from_secs(3600)),
        visibility_delay: span(common.visibility_delay()),
        // There is no token, so nothing is sent again before what was made is surely found, also by a call that was
        // given up and is still worked on.
        replay_delay: span(common.visibility_delay() + common.call_timeout()),
        provision_timeout: span(Duration::from_secs(120)),
    }
}

fn warnings(settings: &Settings, account: &Value, regions: &[Value]) -> Vec<String> {
    let mut warnings = Vec::new();
    let status = account["status"].as_str().unwrap_or("active");
    if status != "active" {
        let message = account["status_message"].as_str().unwrap_or_default();
        warnings.push(format!("the account is in status {status}: {message}"));
    }
    let closed = |region: &&Value| {
        region["available"] == false
            && settings
                .regions
                .iter()
                .any(|name| region["slug"] == name.as_str())
    };
    for region in regions.iter().filter(closed) {
        let name = region["slug"].as_str().unwrap_or_default();
        warnings.push(format!("region {name} takes no new droplets"));
    }
    warnings
}

/// The sizes that are sold where the platform makes droplets.
pub(super) fn node_classes(settings: &Settings, sizes: &[Size]) -> Vec<NodeClass> {
    let regions = &settings.regions;
    let sold = |size: &&Size| {
        (settings.gpus || !size.has_gpus())
            && (regions.is_empty() && size.is_sold_in("")
                || regions.iter().any(|region| size.is_sold_in(region)))
    };
    sizes.iter().filter(sold).map(Size::node_class).collect()
}
