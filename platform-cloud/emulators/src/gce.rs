//! Compute Engine v1: instances, their operations, zones, machine types and images of one project.
//!
//! `requestId` is honoured as documented: the same id within the window returns the operation of the first call, even
//! if it failed. Lists omit instances younger than the visibility delay; reads by name or id do not.

mod calls;
mod fields;
mod filter;
mod guest;
mod insert;
mod json;
mod labels;
mod page;
mod route;
mod settings;
mod state;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::server::{Answer, Api, Call, Emulator, Refusal};
use crate::world::{Clock, Hand, Machine, Made};

pub use settings::GceSettings;

use json::Problem;
use state::State;

/// A running emulator of Compute Engine.
pub type Gce = Emulator<World>;

/// State of the emulated API.
pub struct World {
    settings: GceSettings,
    clock: Arc<Clock>,
    state: Mutex<State>,
}

impl Emulator<World> {
    /// Serves Compute Engine on the settings' port of 127.0.0.1. Must be called within a tokio runtime.
    pub async fn start(settings: GceSettings) -> io::Result<Gce> {
        let clock = Arc::new(Clock::default());
        let common = settings.common.clone();
        let world = World {
            state: Mutex::new(State::new(&settings)),
            settings,
            clock: clock.clone(),
        };
        Emulator::serve(Arc::new(world), clock, &common).await
    }

    /// Adds running machines of another owner, spread over the zones of the first region.
    pub fn add_foreign(&self, n: usize) {
        let world = self.api();
        let zones: Vec<String> = world.settings.zones().map(str::to_owned).collect();
        let mut state = world.state.lock();
        for (at, zone) in (0..n).zip(zones.iter().cycle()) {
            state.add_foreign(&world.settings, &world.clock, zone, at);
        }
    }

    /// Rejects all access tokens that were valid as expired.
    pub fn expire_credentials(&self) {
        let mut state = self.api().state.lock();
        state.tokens.clear();
        state.any_token = false;
    }

    /// Makes this access token valid.
    pub fn accept_token(&self, token: &str) {
        self.api().state.lock().tokens.insert(token.to_owned());
    }

    /// Sets whether the control plane of a zone responds.
    pub fn set_reachable(&self, zone: &str, reachable: bool) {
        let mut state = self.api().state.lock();
        if reachable {
            state.unreachable.remove(zone);
        } else {
            state.unreachable.insert(zone.to_owned());
        }
    }

    /// Sets whether calls about a zone are never answered.
    pub fn set_hanging(&self, zone: &str, hanging: bool) {
        let mut state = self.api().state.lock();
        if hanging {
            state.hanging.insert(zone.to_owned());
        } else {
            state.hanging.remove(zone);
        }
    }

    /// Lets each page of machines begin with the last one of the page before it, as where something moves between two
    /// reads.
    pub fn repeat_between_pages(&self) {
        self.api().state.lock().repeats = true;
    }

    /// Returns the user data that a machine runs at its start, given its image. `None` if it runs none.
    pub fn runs(&self, id: &str) -> Option<String> {
        let state = self.api().state.lock();
        state.instances.get(&id.parse().ok()?)?.runs()
    }

    /// Returns a machine in the API's format, by id or name. `None` if there is no such machine.
    pub fn instance(&self, id: &str) -> Option<serde_json::Value> {
        let world = self.api();
        let state = world.state.lock();
        let mut instances = state.instances.values();
        let instance =
            instances.find(|instance| instance.id.to_string() == id || instance.name == id)?;
        Some(world.instance_json(instance))
    }

    /// Sets a field of a machine in the API's format, as Google would. Returns false if there is no such machine.
    pub fn set_field(&self, id: &str, field: &str, value: serde_json::Value) -> bool {
        let mut state = self.api().state.lock();
        state.find(id).is_some_and(|instance| {
            instance.body[field] = value;
            true
        })
    }

    /// Protects a machine from deletion, as a person at the console would. Returns false if there is no such machine.
    pub fn protect_by_hand(&self, id: &str) -> bool {
        let mut state = self.api().state.lock();
        state.find(id).is_some_and(|instance| {
            instance.protected = true;
            true
        })
    }
}

impl Api for World {
    fn name(&self, call: &Call) -> (String, Vec<(String, String)>) {
        let segments = call.segments();
        let (operation, mut parameters) = match route::route(&call.method, &segments) {
            Some(route) => (route.operation(), route.parameters()),
            None => ("?", Vec::new()),
        };
        parameters.extend(
            call.query
                .iter()
                .filter(|(key, _)| !key.starts_with('$') && key != "fields")
                .cloned(),
        );
        parameters.extend(fields::asked(call).map(|mask| ("fields".to_owned(), mask.to_owned())));
        (operation.to_owned(), parameters)
    }

    fn change(&self, operation: &str, call: &Call) -> Option<String> {
        let reads = call.method == http::Method::GET || operation.starts_with("zoneOperations.");
        (!reads && operation != "?").then(|| operation.to_owned())
    }

    fn handle(&self, _operation: &str, call: &Call) -> Answer {
        let mut state = self.state.lock();
        state.settle();
        if call.path == "/token" {
            return state.token(call);
        }
        let answer = match self.answer(&mut state, call) {
            Ok(value) => Answer::json(200, &value),
            Err(problem) => problem.answer(),
        };
        answer.after(state.answers_after(call))
    }

    fn refuse(&self, operation: &str, call: &Call, refusal: &Refusal) -> Answer {
        match refusal {
            Refusal::Error {
                status,
                code,
                message,
            } => Problem::new(*status, code, message.clone()).answer(),
            Refusal::Throttle { retry_after: None } => {
                Problem::new(403, "rateLimitExceeded", "Rate Limit Exceeded".into()).answer()
            }
            Refusal::Throttle {
                retry_after: Some(wait),
            } => {
                let wait = wait.as_secs_f64().ceil().max(1.0).to_string();
                Problem::new(
                    429,
                    "rateLimitExceeded",
                    "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute'"
                        .into(),
                )
                .answer()
                .header("retry-after", wait)
            }
            Refusal::Quota => Problem::new(
                403,
                "quotaExceeded",
                "Quota 'INSTANCES' exceeded.  Limit: 0.0 in region.".into(),
            )
            .answer(),
            Refusal::NoCapacity if operation == "instances.insert" => self.fails_later(call, None),
            Refusal::Later { code, message } => {
                self.fails_later(call, Some((code.as_str(), message.clone())))
            }
            Refusal::NoCapacity => {
                Problem::new(503, "backendError", "The zone has no resources.".into()).answer()
            }
        }
    }

    fn machines(&self) -> Vec<Machine> {
        let mut state = self.state.lock();
        state.settle();
        let machine = |instance: &state::Instance| Machine {
            id: instance.id.to_string(),
            state: instance.status(&self.settings).to_owned(),
            tags: instance.labels.clone(),
            zone: instance.zone.clone(),
        };
        state.instances.values().map(machine).collect()
    }

    fn ledger(&self) -> Vec<Made> {
        let mut state = self.state.lock();
        state.settle();
        state.ledger.all()
    }

    fn by_hand(&self, id: &str, hand: &Hand) -> bool {
        let mut state = self.state.lock();
        state.settle();
        let settings = &self.settings;
        let Some(instance) = state.find(id) else {
            return false;
        };
        match hand {
            Hand::Terminate => instance.delete(settings),
            Hand::Stop => return instance.stop(settings),
            Hand::Retag(tags) => retag(instance, tags),
        }
        true
    }
}

fn retag(instance: &mut state::Instance, tags: &BTreeMap<String, Option<String>>) {
    let mut labels = instance.labels.clone();
    for (key, value) in tags {
        match value {
            Some(value) => labels.insert(key.clone(), value.clone()),
            None => labels.remove(key),
        };
    }
    instance.set_labels(labels);
}

#[cfg(test)]
mod tests;
