//! Rendering of responses, and the catalogue.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    fail,
    world::{Host, Ip, Kind, Network, State, World, text},
};
use crate::server::Answer;

const GIB: u64 = 1 << 30;

impl World {
    pub(super) fn ip(&self, ip: &Ip) -> Value {
        json!({
            "ipaddress": ip.address.to_string(),
            "allocationuuid": ip.uuid,
            "name": ip.name,
            "description": ip.description,
            "networkid": ip.network,
            "projectid": ip.project,
            "type": if ip.fixed { "static" } else { "ephemeral" },
            "tags": ip.tags,
            "created": self.clock.at(ip.at).to_string(),
            "changed": self.clock.at(ip.at).to_string(),
        })
    }

    pub(super) fn network(&self, state: &State, network: &Network) -> Value {
        let used = state
            .ips
            .values()
            .filter(|ip| ip.network == network.id)
            .count();
        let usage = json!({
            "available_ips": network.prefix.size(),
            "available_prefixes": 0,
            "used_ips": used + 2,
            "used_prefixes": 0,
        });
        let mut shown = json!({
            "id": network.id,
            "name": network.name,
            "description": network.description,
            "labels": network.labels,
            "prefixes": [network.prefix.to_string()],
            "destinationprefixes": network.destinations,
            "privatesuper": network.kind == Kind::Super,
            "underlay": network.kind == Kind::Underlay,
            "networktype": match network.kind {
                Kind::External => "external",
                Kind::Underlay => "underlay",
                Kind::Super => "super",
                Kind::Child if network.shared => "child-shared",
                Kind::Child => "child",
            },
            "nat": network.nat,
            "nattype": if network.nat { "ipv4-masquerade" } else { "none" },
            "shared": network.shared,
            "vrf": network.vrf,
            "usage": usage,
            "consumption": { "ipv4": usage },
            "created": self.clock.at(network.at).to_string(),
            "changed": self.clock.at(network.at).to_string(),
        });
        let given = [
            ("parentnetworkid", &network.parent),
            ("partitionid", &network.partition),
            ("projectid", &network.project),
        ];
        for (key, value) in given {
            if let Some(value) = value {
                shown[key] = json!(value);
            }
        }
        if network.kind == Kind::Super {
            shown["defaultchildprefixlength"] = json!({ "IPv4": 22 });
        }
        shown
    }

    /// `shown`: includes the allocation, if there is one.
    pub(super) fn machine(&self, state: &State, host: &Host, ipmi: bool, shown: bool) -> Value {
        let (events, succeeded) = self.events(host);
        let size = self
            .settings
            .sizes
            .iter()
            .find(|(name, ..)| *name == host.size);
        let (cores, memory) = size.map_or((0, 0), |(_, cores, gib)| (*cores, gib * GIB));
        let start = self.clock.at(Instant::now());
        let last = events
            .first()
            .map_or(json!(start.to_string()), |event| event["time"].clone());
        let mut machine = json!({
            "id": host.id,
            "name": "",
            "description": "",
            "bios": { "date": "01/01/2026", "vendor": "emulator", "version": "1" },
            "events": {
                "crash_loop": host.crash_loop,
                "failed_machine_reclaim": false,
                "last_event_time": last,
                "log": events,
            },
            "hardware": {
                "cpu_cores": cores, "memory": memory,
                "disks": [{ "name": "/dev/nvme0n1", "size": 960_197_124_096_u64 }],
                "nics": [], "cpus": [], "gpus": [],
            },
            "ledstate": { "value": "LED-OFF", "description": "" },
            "liveliness": if host.alive { "Alive" } else { "Dead" },
            "partition": self.partition(&host.partition).unwrap_or_default(),
            "rackid": host.rack,
            "size": self.size(&host.size).unwrap_or_default(),
            "state": {
                "value": if host.locked { "LOCKED" } else { "" },
                "description": "", "issuer": "", "metal_hammer_version": "",
            },
            "tags": if shown { host.tags.clone() } else { Vec::new() },
        });
        if let Some(allocation) = host.allocation.as_ref().filter(|_| shown) {
            let networks: Vec<Value> = allocation
                .networks
                .iter()
                .filter_map(|(id, ips)| Some((state.networks.get(id)?, ips)))
                .map(|(network, ips)| machine_network(network, ips, allocation.asn))
                .collect();
            machine["allocation"] = json!({
                "allocationuuid": allocation.uuid,
                "created": self.clock.at(allocation.at).to_string(),
                "creator": "metal-edit@metal-stack.io",
                "name": allocation.name,
                "hostname": allocation.hostname,
                "description": allocation.description,
                "project": allocation.project,
                "image": self.image(&allocation.image).unwrap_or_default(),
                "networks": networks,
                "reinstall": false,
                "role": if allocation.firewall { "firewall" } else { "machine" },
                "ssh_pub_keys": allocation.ssh_pub_keys,
                "succeeded": succeeded,
            });
            if !allocation.rules.is_null() {
                machine["allocation"]["firewall_rules"] = allocation.rules.clone();
            }
            if let Some(data) = &allocation.user_data {
                machine["allocation"]["user_data"] = json!(data);
            }
        }
        if ipmi {
            machine["ipmi"] = json!({
                "address": "10.255.0.1:623", "bmcversion": "1", "interface": "lanplus",
                "mac": "00:00:00:00:00:01", "user": "metal", "password": "emulated-bmc-password",
                "powerstate": if host.powered { "ON" } else { "OFF" },
                "last_updated": start.to_string(),
                "fru": {}, "powersupplies": [],
                "powermetric": {
                    "averageconsumedwatts": 0.0, "intervalinmin": 0.0,
                    "maxconsumedwatts": 0.0, "minconsumedwatts": 0.0,
                },
            });
        }
        machine
    }

    /// Returns the provisioning events, latest first, and whether the allocation has succeeded.
    fn events(&self, host: &Host) -> (Vec<Value>, bool) {
        let event = |at: Instant, event: &str, message: &str| json!({ "event": event, "message": message, "time": self.clock.at(at).to_string() });
        let Some(allocation) = &host.allocation else {
            let now = Instant::now();
            return match host.reclaim_until {
                Some(_) => (
                    vec![event(now, "Machine Reclaim", "free machine called")],
                    false,
                ),
                None => (vec![event(now, "Waiting", "waiting for allocation")], false),
            };
        };
        let delay = self.settings.common.pending_delay;
        let steps = [
            (Duration::ZERO, "Waiting", "waiting for allocation"),
            (delay / 3, "Installing", "start installation"),
            (
                delay * 2 / 3,
                "Booting New Kernel",
                "booting into distro kernel",
            ),
            (delay, "Phoned Home", "phoned home"),
        ];
        let now = Instant::now();
        let mut done: Vec<Value> = steps
            .iter()
            .filter(|(after, ..)| allocation.at + *after <= now)
            .map(|(after, name, message)| event(allocation.at + *after, name, message))
            .collect();
        let succeeded = done.len() >= 3 && !host.crash_loop;
        done.reverse();
        if host.crash_loop {
            done.insert(0, event(now, "Crashed", "the installer crashed"));
        }
        (done, succeeded)
    }

    pub(super) fn catalogue(
        &self,
        operation: &str,
        id: &str,
        body: &Value,
    ) -> Result<Answer, Answer> {
        let all = |values: Vec<Value>| Answer::json(200, &Value::Array(values));
        let one = |value: Value| Answer::json(200, &value);
        let settings = &self.settings;
        Ok(match operation {
            "size.list" => all(settings
                .sizes
                .iter()
                .filter_map(|(id, ..)| self.size(id).ok())
                .collect()),
            "size.get" => one(self.size(id)?),
            "partition.list" => all(settings
                .partitions
                .iter()
                .filter_map(|p| self.partition(&p.id).ok())
                .collect()),
            "partition.get" => one(self.partition(id)?),
            "image.list" => all(settings
                .images
                .iter()
                .filter_map(|(id, _)| self.image(id).ok())
                .collect()),
            "image.get" => one(self.image(id)?),
            "image.latest" => one(self.image(&self.latest(id)?)?),
            "project.list" => all(settings
                .projects
                .iter()
                .filter_map(|id| self.project(id).ok())
                .collect()),
            "project.find" => {
                let wanted = text(body, "id");
                let found = settings
                    .projects
                    .iter()
                    .filter(|id| wanted.is_empty() || *id == wanted);
                all(found.filter_map(|id| self.project(id).ok()).collect())
            }
            "project.get" => one(self.project(id)?),
            "version" => one(json!({
                "name": "metal-api", "version": "v0.43.2", "release_version": "v0.22.0",
                "builddate": "2026-06-23T15:48:03+02:00", "gitsha1": "a405f46d", "revision": "emulator",
                "min_client_version": "v0.15.0",
            })),
            "health" => one(json!({ "status": "healthy", "message": "", "services": {} })),
            _ => {
                return Err(Answer::text(404, "text/plain", "404: Page Not Found"));
            }
        })
    }

    pub(super) fn size(&self, id: &str) -> Result<Value, Answer> {
        let Some((_, cores, gib)) = self.settings.sizes.iter().find(|(name, ..)| name == id) else {
            return Err(fail(404, format!("no size with id {id:?} found")));
        };
        Ok(json!({
            "id": id, "name": id, "description": format!("{cores} cores, {gib} GiB"), "labels": {},
            "constraints": [
                { "type": "cores", "min": cores, "max": cores },
                { "type": "memory", "min": gib * GIB, "max": gib * GIB },
                { "type": "storage", "min": 0, "max": 1_000_000_000_000_u64 },
            ],
        }))
    }

    pub(super) fn partition(&self, id: &str) -> Result<Value, Answer> {
        if !self
            .settings
            .partitions
            .iter()
            .any(|partition| partition.id == id)
        {
            return Err(fail(404, format!("no partition with id {id:?} found")));
        }
        Ok(json!({ "id": id, "name": id, "description": "", "bootconfig": {}, "labels": {} }))
    }

    pub(super) fn project(&self, id: &str) -> Result<Value, Answer> {
        if !self.settings.projects.iter().any(|project| project == id) {
            return Err(fail(404, format!("no project with id {id:?} found")));
        }
        Ok(json!({
            "name": "a-project", "description": "", "tenant_id": "a-tenant",
            "meta": { "id": id, "kind": "Project", "apiversion": "v1", "version": 0 },
        }))
    }

    pub(super) fn image(&self, id: &str) -> Result<Value, Answer> {
        let Some((_, firewall)) = self.settings.images.iter().find(|(name, _)| name == id) else {
            return Err(fail(404, format!("no image with id {id:?} found")));
        };
        Ok(json!({
            "id": id, "name": id, "description": "", "classification": "supported",
            "features": [if *firewall { "firewall" } else { "machine" }],
            "expirationDate": "2036-01-01T00:00:00Z",
            "url": format!("https://images.example/{id}/img.tar.lz4"),
        }))
    }

    /// Resolves a short image name (`ubuntu-24.4`).
    fn latest(&self, id: &str) -> Result<String, Answer> {
        let images = self.settings.images.iter().map(|(name, _)| name);
        images
            .filter(|name| {
                *name == id
                    || name
                        .strip_prefix(id)
                        .is_some_and(|rest| rest.starts_with('.'))
            })
            .max()
            .cloned()
            .ok_or_else(|| fail(404, format!("no image for id:{id} found")))
    }

    pub(super) fn image_for(&self, id: &str, firewall: bool) -> Result<String, Answer> {
        let found = self
            .latest(id)
            .map_err(|_| fail(400, format!("no image for id:{id} found")))?;
        let is_for = |(name, kind): &(String, bool)| *name == found && *kind == firewall;
        if !self.settings.images.iter().any(is_for) {
            let role = if firewall { "firewall" } else { "machine" };
            return Err(fail(
                400,
                format!("given image is not usable for a {role}, features: "),
            ));
        }
        Ok(found)
    }
}

fn machine_network(network: &Network, ips: &[std::net::Ipv4Addr], asn: u64) -> Value {
    let ips: Vec<String> = ips.iter().map(ToString::to_string).collect();
    let private = network.kind == Kind::Child;
    json!({
        "networkid": network.id,
        "networktype": match network.kind {
            Kind::Child => "privateprimaryunshared",
            Kind::Underlay => "underlay",
            Kind::External | Kind::Super => "external",
        },
        "networktypev2": match network.kind {
            Kind::Child => "child",
            Kind::Underlay => "underlay",
            Kind::External | Kind::Super => "external",
        },
        "nattypev2": if network.nat { "ipv4-masquerade" } else { "none" },
        "asn": asn,
        "ips": ips,
        "prefixes": [network.prefix.to_string()],
        "destinationprefixes": network.destinations,
        "nat": network.nat,
        "private": private,
        "underlay": network.kind == Kind::Underlay,
        "vrf": network.vrf,
        "projectid": network.project.clone().unwrap_or_default(),
    })
}
