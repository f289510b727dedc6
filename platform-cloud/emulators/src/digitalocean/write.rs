//! Update and delete operations.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    World, catalogue, create::is_tag, droplet::Droplet, not_found, read::tag_json, unprocessable,
};
use crate::{
    server::{Answer, Call},
    world::Hand,
};

const PENDING: &str = "Droplet already has a pending event.";

impl World {
    pub(super) fn delete(&self, id: &str) -> Result<Answer, Answer> {
        let number = self.find(id)?;
        let now = Instant::now();
        let takes = self.settings.common.stopping_delay;
        let mut state = self.state.lock();
        let droplet = state.droplets.get_mut(&number).ok_or_else(not_found)?;
        if droplet.locked {
            return Err(unprocessable("Droplet is locked."));
        }
        if droplet.is_busy(now) {
            return Err(unprocessable(PENDING));
        }
        droplet.gone = Some(now + takes);
        let region = droplet.region.clone();
        state.act("destroy", number, &region, now, takes);
        drop(state);
        self.settle();
        Ok(Answer::empty(204))
    }

    pub(super) fn act(&self, id: &str, call: &Call) -> Result<Answer, Answer> {
        let number = self.find(id)?;
        let body = call.json().unwrap_or_default();
        let kind = body["type"].as_str().unwrap_or_default();
        let now = Instant::now();
        let mut state = self.state.lock();
        let droplet = state.droplets.get_mut(&number).ok_or_else(not_found)?;
        if droplet.is_busy(now) {
            return Err(unprocessable(PENDING));
        }
        let takes = match kind {
            "power_off" | "shutdown" => {
                let takes = self.settings.common.stopping_delay;
                droplet.off = Some(now + takes);
                takes
            }
            "power_on" => {
                droplet.off = None;
                Duration::ZERO
            }
            _ => return Err(unprocessable("The action is not known to this emulator.")),
        };
        let region = droplet.region.clone();
        let action = state.act(kind, number, &region, now, takes);
        let action = state.actions.get(&action).ok_or_else(not_found)?;
        let shown = self.action_json(action, now);
        Ok(Answer::json(201, &json!({"action": shown})))
    }

    pub(super) fn create_tag(&self, call: &Call) -> Result<Answer, Answer> {
        let body = call.json().unwrap_or_default();
        let name = body["name"].as_str().unwrap_or_default();
        if !is_tag(name) {
            let cause = format!(
                "Error validating resource tag: tag-name {name:?} contains invalid characters"
            );
            return Err(Answer::json(
                400,
                &json!({"error": cause, "messages": null, "root_causes": [cause]}),
            ));
        }
        let name = self.state.lock().tag(name);
        let tags = self.tags_with_counts();
        let count = tags
            .iter()
            .find(|(known, _)| *known == name)
            .map_or(0, |(_, count)| *count);
        Ok(Answer::json(201, &json!({"tag": tag_json(&name, count)})))
    }

    /// Deletes a tag, which takes it from every resource that has it.
    pub(super) fn delete_tag(&self, name: &str) -> Result<Answer, Answer> {
        self.settle();
        let mut state = self.state.lock();
        if !state.tags.values().any(|known| known == name) {
            return Err(not_found());
        }
        state.tags.remove(&name.to_ascii_lowercase());
        for droplet in state.droplets.values_mut() {
            retag(droplet, name, false);
        }
        Ok(Answer::empty(204))
    }

    /// Adds a tag to droplets or removes it.
    pub(super) fn tag_resources(
        &self,
        name: &str,
        call: &Call,
        put: bool,
    ) -> Result<Answer, Answer> {
        self.settle();
        let body = call.json().unwrap_or_default();
        let resources = body["resources"].as_array().cloned().unwrap_or_default();
        let mut state = self.state.lock();
        // Case-sensitive: the spelling must be the account's.
        if !state.tags.values().any(|known| known == name) {
            return Err(not_found());
        }
        let mut ids = Vec::new();
        for resource in &resources {
            let id = resource["resource_id"]
                .as_str()
                .and_then(|id| id.parse::<u64>().ok());
            match id.filter(|id| state.droplets.contains_key(id)) {
                Some(id) if resource["resource_type"] == "droplet" => ids.push(id),
                _ => return Err(not_found()),
            }
        }
        for id in ids {
            if let Some(droplet) = state.droplets.get_mut(&id) {
                retag(droplet, name, put);
            }
        }
        Ok(Answer::empty(204))
    }

    pub(super) fn act_by_hand(&self, id: &str, hand: &Hand) -> bool {
        let Ok(number) = self.find(id) else {
            return false;
        };
        let now = Instant::now();
        let mut state = self.state.lock();
        let names: Vec<(String, bool)> = match hand {
            Hand::Retag(tags) => tags
                .iter()
                .map(|(name, value)| match value.as_deref() {
                    None => (name.clone(), false),
                    Some("") => (state.tag(name), true),
                    Some(value) => (state.tag(&format!("{name}:{value}")), true),
                })
                .collect(),
            Hand::Terminate | Hand::Stop => Vec::new(),
        };
        let Some(droplet) = state.droplets.get_mut(&number) else {
            return false;
        };
        match hand {
            Hand::Terminate => droplet.gone = Some(now),
            Hand::Stop if droplet.status(now) != "active" => return false,
            Hand::Stop => droplet.off = Some(now),
            Hand::Retag(_) => {
                for (name, put) in names {
                    retag(droplet, &name, put);
                }
            }
        }
        drop(state);
        self.settle();
        true
    }

    pub(super) fn lock(&self, id: &str, locked: bool) -> bool {
        let Ok(number) = self.find(id) else {
            return false;
        };
        let mut state = self.state.lock();
        let droplet = state.droplets.get_mut(&number);
        droplet.map(|droplet| droplet.locked = locked).is_some()
    }

    pub(super) fn add_foreign(&self, count: usize) {
        let now = Instant::now();
        let image = self.find_image("debian-12-x64").unwrap_or(Value::Null);
        let mut state = self.state.lock();
        let tag = state.tag("Somebody:elses");
        for at in 0..count {
            let (region, _) = catalogue::REGIONS[at % catalogue::REGIONS.len()];
            let droplet = Droplet {
                id: state.next_droplet(),
                name: format!("foreign-{at}"),
                tags: if at % 2 == 0 {
                    vec![tag.clone()]
                } else {
                    Vec::new()
                },
                tagged: now,
                region: region.to_owned(),
                size: "s-1vcpu-1gb",
                image: image.clone(),
                vpc: state.default_vpc(region).unwrap_or_default(),
                made: now,
                visible: now,
                active: now,
                off: None,
                gone: None,
                locked: false,
                ipv6: false,
                backups: false,
                monitoring: false,
                public: true,
                foreign: true,
            };
            self.record(&droplet);
            state.droplets.insert(droplet.id, droplet);
        }
    }
}

fn retag(droplet: &mut Droplet, name: &str, put: bool) {
    droplet.tags.retain(|tag| !tag.eq_ignore_ascii_case(name));
    if put {
        droplet.tags.push(name.to_owned());
    }
}
