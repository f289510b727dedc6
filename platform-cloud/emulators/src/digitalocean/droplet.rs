//! Droplets and their state at a point in time.

use std::{collections::BTreeMap, net::Ipv4Addr};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{World, catalogue, state::Action};

#[derive(Clone, Debug)]
pub(super) struct Droplet {
    pub(super) id: u64,
    pub(super) name: String,
    /// Spelled as in the account's list of tags.
    pub(super) tags: Vec<String>,
    /// When the droplet has its tags.
    pub(super) tagged: Instant,
    pub(super) region: String,
    pub(super) size: &'static str,
    pub(super) image: Value,
    pub(super) vpc: String,
    pub(super) made: Instant,
    pub(super) visible: Instant,
    /// When the droplet becomes active.
    pub(super) active: Instant,
    /// When the droplet is powered off.
    pub(super) off: Option<Instant>,
    /// When the droplet is deleted.
    pub(super) gone: Option<Instant>,
    /// Locked by an administrator of the provider.
    pub(super) locked: bool,
    pub(super) ipv6: bool,
    pub(super) backups: bool,
    pub(super) monitoring: bool,
    pub(super) public: bool,
    pub(super) foreign: bool,
}

impl Droplet {
    pub(super) fn status(&self, now: Instant) -> &'static str {
        if now < self.active {
            "new"
        } else if self.off.is_some_and(|off| off <= now) {
            "off"
        } else {
            "active"
        }
    }

    pub(super) fn tags(&self, now: Instant) -> &[String] {
        if now < self.tagged { &[] } else { &self.tags }
    }

    /// Whether an event is pending.
    pub(super) fn is_busy(&self, now: Instant) -> bool {
        now < self.active || self.gone.is_some() || self.off.is_some_and(|off| off > now)
    }

    pub(super) fn is_gpu(&self) -> bool {
        catalogue::Size::find(self.size).is_some_and(|size| size.gpus > 0)
    }

    pub(super) fn tag_map(&self) -> BTreeMap<String, String> {
        let plain = |tag: &String| (tag.clone(), String::new());
        self.tags.iter().map(plain).collect()
    }

    fn networks(&self, now: Instant) -> Value {
        if now < self.active {
            return json!({"v4": [], "v6": []});
        }
        let at = self.id as u32;
        let private = Ipv4Addr::from(0x0a00_0000 | (at & 0x00ff_ffff));
        let mut v4 = vec![json!({
            "ip_address": private, "netmask": "255.255.240.0", "gateway": "10.10.0.1", "type": "private",
        })];
        if self.public {
            // 198.18.0.0/15, reserved for benchmarks (RFC 2544).
            let public = Ipv4Addr::from(0xc612_0000 | (at & 0x0001_ffff));
            v4.push(json!({
                "ip_address": public, "netmask": "255.255.240.0", "gateway": "198.18.0.1", "type": "public",
            }));
        }
        let mut v6 = Vec::new();
        if self.ipv6 {
            v6.push(json!({
                "ip_address": format!("2001:db8::{:x}:{:x}", at >> 16, at & 0xffff),
                "netmask": 64, "gateway": "2001:db8::1", "type": "public",
            }));
        }
        json!({"v4": v4, "v6": v6})
    }

    fn features(&self) -> Vec<&'static str> {
        let all = [
            ("backups", self.backups),
            ("ipv6", self.ipv6),
            ("monitoring", self.monitoring),
            ("private_networking", true),
        ];
        all.into_iter()
            .filter_map(|(name, has)| has.then_some(name))
            .collect()
    }
}

impl World {
    pub(super) fn droplet_json(&self, droplet: &Droplet, now: Instant) -> Value {
        let size = catalogue::Size::find(droplet.size);
        json!({
            "id": droplet.id,
            "name": droplet.name,
            "memory": size.map_or(0, |size| size.memory),
            "vcpus": size.map_or(0, |size| size.vcpus),
            "disk": size.map_or(0, |size| size.disk),
            "disk_info": [],
            "locked": droplet.locked,
            "status": droplet.status(now),
            "kernel": null,
            "created_at": self.second(droplet.made),
            "features": droplet.features(),
            "backup_ids": [],
            "next_backup_window": null,
            "snapshot_ids": [],
            "image": droplet.image,
            "volume_ids": [],
            "size": size.map(catalogue::Size::json),
            "size_slug": droplet.size,
            "networks": droplet.networks(now),
            "region": catalogue::region(&droplet.region),
            "tags": droplet.tags(now),
            "vpc_uuid": droplet.vpc,
        })
    }

    pub(super) fn action_json(&self, action: &Action, now: Instant) -> Value {
        let done = action.ends <= now;
        json!({
            "id": action.id,
            "status": match (done, action.errs) {
                (false, _) => "in-progress",
                (true, false) => "completed",
                (true, true) => "errored",
            },
            "type": action.kind,
            "started_at": self.second(action.began),
            "completed_at": done.then(|| self.second(action.ends)),
            "resource_id": action.droplet,
            "resource_type": "droplet",
            "region": catalogue::region(&action.region),
            "region_slug": action.region,
        })
    }

    /// A timestamp in the API's format.
    fn second(&self, at: Instant) -> String {
        self.clock.at(at).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}
