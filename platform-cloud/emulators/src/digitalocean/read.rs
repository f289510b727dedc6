//! Read operations.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{World, catalogue, not_found, unprocessable};
use crate::{
    server::{Answer, Call},
    world::Machine,
};

impl World {
    pub(super) fn account(&self) -> Answer {
        Answer::json(
            200,
            &json!({"account": {
                "droplet_limit": self.droplet_limit(),
                "floating_ip_limit": 5,
                "email": "sammy@example.com",
                "name": "Sammy the Shark",
                "uuid": "b6fr89dbf6d9156cace5f3c78dc9851d957381ef",
                "email_verified": true,
                "status": "active",
                "status_message": "",
                "team": {"uuid": self.settings.team, "name": "My Team"},
            }}),
        )
    }

    pub(super) fn droplet_limit(&self) -> usize {
        self.settings.common.quota.unwrap_or(10_000)
    }

    pub(super) fn list(&self, operation: &str, call: &Call, id: &str) -> Result<Answer, Answer> {
        match operation {
            "keys.list" => self.page(call, "ssh_keys", &self.settings.keys, super::SshKey::json),
            "images.list" => self.page(call, "images", &self.images(call), Value::clone),
            "regions.list" => {
                let regions = catalogue::REGIONS.iter();
                let all: Vec<Value> = regions
                    .filter_map(|(slug, _)| catalogue::region(slug))
                    .collect();
                self.page(call, "regions", &all, Value::clone)
            }
            "sizes.list" => self.page(call, "sizes", catalogue::SIZES, catalogue::Size::json),
            "tags.list" => self.page(call, "tags", &self.tags_with_counts(), |(name, count)| {
                tag_json(name, *count)
            }),
            "vpcs.list" => {
                let state = self.state.lock();
                self.page(call, "vpcs", &state.vpcs, super::state::Vpc::json)
            }
            "firewalls.list" => {
                let firewalls = self.state.lock().firewalls.clone();
                self.page(call, "firewalls", &firewalls, Value::clone)
            }
            "droplets.actions" => {
                let number = self.find(id)?;
                let now = Instant::now();
                let state = self.state.lock();
                let all: Vec<_> = state
                    .actions
                    .values()
                    .rev()
                    .filter(|action| action.droplet == number)
                    .collect();
                self.page(call, "actions", &all, |action| {
                    self.action_json(action, now)
                })
            }
            _ => self.droplets(call),
        }
    }

    fn droplets(&self, call: &Call) -> Result<Answer, Answer> {
        let (tag, name, kind) = (
            call.query("tag_name"),
            call.query("name"),
            call.query("type"),
        );
        if tag.is_some() && (name.is_some() || kind.is_some()) {
            return Err(unprocessable(
                "tag_name can not be combined with name or type",
            ));
        }
        self.settle();
        let now = Instant::now();
        let state = self.state.lock();
        // Case-sensitive: a different spelling does not match any tag.
        let wanted = |droplet: &&super::droplet::Droplet| {
            droplet.visible <= now
                && match tag {
                    Some(tag) => droplet.tags(now).iter().any(|has| has == tag),
                    // Droplets with GPUs are only listed on explicit request.
                    None => droplet.is_gpu() == (kind == Some("gpus")),
                }
                && name.is_none_or(|name| droplet.name.eq_ignore_ascii_case(name))
        };
        let all: Vec<_> = state.droplets.values().filter(wanted).collect();
        self.page(call, "droplets", &all, |droplet| {
            self.droplet_json(droplet, now)
        })
    }

    /// Returns the number of an existing droplet, whether lists show it yet or not.
    pub(super) fn find(&self, id: &str) -> Result<u64, Answer> {
        self.settle();
        let number: u64 = id.parse().map_err(|_| not_found())?;
        let known = self.state.lock().droplets.contains_key(&number);
        if known { Ok(number) } else { Err(not_found()) }
    }

    pub(super) fn droplet(&self, id: &str) -> Result<Answer, Answer> {
        let number = self.find(id)?;
        let state = self.state.lock();
        let droplet = state.droplets.get(&number).ok_or_else(not_found)?;
        let shown = self.droplet_json(droplet, Instant::now());
        Ok(Answer::json(200, &json!({"droplet": shown})))
    }

    pub(super) fn action(&self, id: &str) -> Result<Answer, Answer> {
        let number: u64 = id.parse().map_err(|_| not_found())?;
        let state = self.state.lock();
        let action = state.actions.get(&number).ok_or_else(not_found)?;
        let shown = self.action_json(action, Instant::now());
        Ok(Answer::json(200, &json!({"action": shown})))
    }

    pub(super) fn key(&self, identifier: &str) -> Result<Answer, Answer> {
        let is = |key: &&super::SshKey| {
            key.fingerprint == identifier || key.id.to_string() == identifier
        };
        let key = self.settings.keys.iter().find(is).ok_or_else(not_found)?;
        Ok(Answer::json(200, &json!({"ssh_key": key.json()})))
    }

    pub(super) fn tag(&self, name: &str) -> Result<Answer, Answer> {
        let tags = self.tags_with_counts();
        let found = tags.iter().find(|(known, _)| known == name);
        let (name, count) = found.ok_or_else(not_found)?;
        Ok(Answer::json(200, &json!({"tag": tag_json(name, *count)})))
    }

    pub(super) fn vpc(&self, id: &str) -> Result<Answer, Answer> {
        let state = self.state.lock();
        let vpc = state
            .vpcs
            .iter()
            .find(|vpc| vpc.id == id)
            .ok_or_else(not_found)?;
        Ok(Answer::json(200, &json!({"vpc": vpc.json()})))
    }

    fn images(&self, call: &Call) -> Vec<Value> {
        let private = self.settings.snapshots.iter();
        let private = private.map(|(id, name)| catalogue::image(*id, None, "Debian", name, 10));
        match (call.query("private"), call.query("type")) {
            (Some("true"), _) => private.collect(),
            (_, Some("distribution")) => catalogue::public_images(),
            (_, Some(_)) => Vec::new(),
            (_, None) => catalogue::public_images()
                .into_iter()
                .chain(private)
                .collect(),
        }
    }

    /// Finds an image by id, or by slug if it is public.
    pub(super) fn find_image(&self, name: &str) -> Option<Value> {
        let public = catalogue::public_images();
        let private = self.settings.snapshots.iter();
        let private = private.map(|(id, name)| catalogue::image(*id, None, "Debian", name, 10));
        let id: Option<u64> = name.parse().ok();
        public.into_iter().chain(private).find(|image| {
            image["slug"].as_str() == Some(name) || id.is_some() && image["id"].as_u64() == id
        })
    }

    pub(super) fn image(&self, name: &str) -> Result<Answer, Answer> {
        let image = self.find_image(name).ok_or_else(not_found)?;
        Ok(Answer::json(200, &json!({"image": image})))
    }

    pub(super) fn all_machines(&self) -> Vec<Machine> {
        self.settle();
        let now = Instant::now();
        let state = self.state.lock();
        let machine = |droplet: &super::droplet::Droplet| Machine {
            id: droplet.id.to_string(),
            state: droplet.status(now).to_owned(),
            tags: droplet.tag_map(),
            zone: droplet.region.clone(),
        };
        state.droplets.values().map(machine).collect()
    }
}

pub(super) fn tag_json(name: &str, count: usize) -> Value {
    json!({
        "name": name,
        "resources": {
            "count": count,
            "droplets": {"count": count},
            "images": {"count": 0},
            "volumes": {"count": 0},
            "volume_snapshots": {"count": 0},
            "databases": {"count": 0},
        },
    })
}
