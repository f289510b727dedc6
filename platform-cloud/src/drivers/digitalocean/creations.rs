//! Creations that fail after they were accepted: the answer "does not indicate the success or failure of the operation"
//! (<https://docs.digitalocean.com/reference/api/reference/droplets/#droplets_create>). The droplet disappears, and only
//! the action that was to create it says that it has failed.

use std::collections::{HashMap, HashSet};

use drover_proto::platform::v1::NodePhase;
use parking_lot::Mutex;
use serde_json::Value;

use super::{DigitalOcean, list::fits};
use crate::cloud::{Filter, Machine};

/// Actions read with each list, so that none is held up.
const AT_ONCE: usize = 3;

/// Droplets that this process has asked for, by id, until they run. Those that failed are kept until they are deleted.
#[derive(Default)]
pub(super) struct Creations(Mutex<HashMap<String, Creation>>);

struct Creation {
    machine: Machine,
    action: u64,
}

impl Creations {
    pub(super) fn begin(&self, machine: &Machine, action: u64) {
        let machine = machine.clone();
        let id = machine.id.clone();
        self.0.lock().insert(id, Creation { machine, action });
    }

    pub(super) fn end(&self, id: &str) {
        self.0.lock().remove(id);
    }

    /// Those that should be listed and are not, with their actions.
    fn missing(&self, filter: &Filter, listed: &[Machine]) -> Vec<(String, u64)> {
        let mut creations = self.0.lock();
        for machine in listed {
            if machine.phase != NodePhase::Pending {
                creations.remove(&machine.id);
            }
        }
        // A list by tag lacks all that have no tags yet.
        if !matches!(filter, Filter::All | Filter::Id(_)) {
            return Vec::new();
        }
        let listed = ids(listed);
        let missing = creations.iter().filter(|(id, creation)| {
            let machine = &creation.machine;
            machine.phase != NodePhase::Failed
                && fits(filter, machine)
                && !listed.contains(id.as_str())
        });
        missing
            .map(|(id, creation)| (id.clone(), creation.action))
            .take(AT_ONCE)
            .collect()
    }

    /// Takes in what the API says of the action that creates a droplet.
    fn heard(&self, id: &str, body: &Value) {
        let action = &body["action"];
        let resource = action["resource_id"].as_u64();
        let is_of_it = resource.is_some_and(|resource| resource.to_string() == id);
        let mut creations = self.0.lock();
        let Some(creation) = creations.get_mut(id) else {
            return;
        };
        match action["status"].as_str() {
            Some("in-progress") => {}
            Some("errored") if is_of_it => {
                creation.machine.phase = NodePhase::Failed;
                creation.machine.message = format!(
                    "DigitalOcean accepted the droplet and then failed to create it (action {})",
                    creation.action
                );
            }
            // It was deleted, or is not listed yet.
            _ => {
                creations.remove(id);
            }
        }
    }

    fn failed(&self, filter: &Filter, listed: &[Machine]) -> Vec<Machine> {
        let listed = ids(listed);
        let creations = self.0.lock();
        let machines = creations.values().map(|creation| &creation.machine);
        machines
            .filter(|machine| {
                machine.phase == NodePhase::Failed
                    && fits(filter, machine)
                    && !listed.contains(machine.id.as_str())
            })
            .cloned()
            .collect()
    }
}

impl DigitalOcean {
    /// Adds the droplets whose creation has failed.
    pub(super) async fn add_failed(&self, filter: &Filter, listed: &mut Vec<Machine>) {
        for (id, action) in self.creations.missing(filter, listed) {
            let action = action.to_string();
            // Without an answer it is asked for again with the next list.
            if let Ok(body) = self.client.get(&["actions", &action], &[]).await {
                self.creations.heard(&id, &body.unwrap_or_default());
            }
        }
        let failed = self.creations.failed(filter, listed);
        listed.extend(failed);
    }
}

fn ids(machines: &[Machine]) -> HashSet<&str> {
    let machines = machines.iter();
    machines.map(|machine| machine.id.as_str()).collect()
}
