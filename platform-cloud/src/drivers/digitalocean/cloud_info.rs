//! Identity and capabilities of the account.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drover_core::{Error, Result};
use drover_proto::platform::v1::{Capability, FailureDomain, Limits, NodeClass};
use serde_json::Value;

use super::{Settings, catalogue::Size, properties};
use crate::cloud::{CloudInfo, TagLimits};

/// Maximum number of droplets per call.
const MAX_LAUNCH: usize = 10;
/// Maximum number of concurrent create calls.
const MAX_LAUNCHES: usize = 4;
/// Maximum number of nodes per Provision request.
const MAX_BATCH: u32 = 100;
/// Maximum size of user data in bytes.
const MAX_USER_DATA: u32 = 64 << 10;
/// Maximum length of a tag value before encoding. A longer encoded value is split; this bounds the number of parts.
const MAX_TAG_VALUE: usize = 200;
/// Maximum number of tags per droplet. DigitalOcean documents no limit; creation works with this many.
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

/// Whose droplets a token shows: its team's, as a person may be in several.
pub(super) fn owner(account: &Value) -> Option<&str> {
    account["team"]["uuid"]
        .as_str()
        .or(account["uuid"].as_str())
}

pub(super) fn cloud_info(
    settings: &Settings,
    account: &Value,
    regions: &[Value],
    sizes: &[Size],
) -> Result<CloudInfo> {
    let team = &account["team"];
    let owner = owner(account).ok_or_else(|| {
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
    Ok(CloudInfo {
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
        max_creation_time: span(creation_time(settings)),
        request_memory: span(Duration::from_secs(3600)),
        visibility_delay: span(common.visibility_delay()),
        // There is no idempotency token, so nothing is retried before the previous droplets are guaranteed to be found,
        // including those of a call that has timed out but is still being processed.
        replay_delay: span(common.visibility_delay() + common.call_timeout()),
        provision_timeout: span(Duration::from_secs(120)),
    }
}

/// Longest time from the begin of a creation until its droplets exist: what was accepted but not answered may still be
/// processed.
fn creation_time(settings: &Settings) -> Duration {
    4 * settings.common.call_timeout() + Duration::from_secs(60)
}

/// How long lists may lack the droplets of a creation, from its begin.
pub(super) fn settles_after(settings: &Settings) -> Duration {
    creation_time(settings) + settings.common.visibility_delay()
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

/// The sizes that are available in the platform's regions.
pub(super) fn node_classes(settings: &Settings, sizes: &[Size]) -> Vec<NodeClass> {
    let regions = &settings.regions;
    let sold = |size: &&Size| {
        (settings.gpus || !size.has_gpus())
            && (regions.is_empty() && size.is_sold_in("")
                || regions.iter().any(|region| size.is_sold_in(region)))
    };
    sizes.iter().filter(sold).map(Size::node_class).collect()
}
