//! Validation and execution of inserts.

use std::collections::BTreeMap;

use serde_json::Value;

use super::World;
use super::json::Problem;
use super::labels;
use super::route::{Route, Verb, route};
use super::state::{New, State};
use crate::server::{Answer, Call};

/// Maximum size of a metadata value, in bytes.
const MAX_METADATA_VALUE: usize = 256 << 10;
/// Maximum total size of metadata, in bytes.
const MAX_METADATA: usize = 512 << 10;

impl World {
    pub(super) fn insert(
        &self,
        state: &mut State,
        call: &Call,
        route: &Route,
    ) -> Result<Value, Problem> {
        let request_id = call.query("requestId");
        if let Some(done) = state.replayed(&self.settings, request_id).cloned() {
            return Ok(self.operation_json(&done, done.is_done()));
        }
        let body = body(call)?;
        let new = self.check(state, &body, route)?;
        let in_zone = state
            .instances
            .values()
            .filter(|instance| instance.zone == route.zone)
            .count();
        let settings = &self.settings;
        let full = settings
            .common
            .capacity
            .get(&route.zone)
            .is_some_and(|room| in_zone >= *room);
        let spent = settings
            .common
            .quota
            .filter(|quota| state.instances.len() >= *quota);
        let error = match (full, spent) {
            (true, _) => Some((
                "ZONE_RESOURCE_POOL_EXHAUSTED",
                no_capacity(&route.project, &route.zone),
            )),
            (false, Some(quota)) => {
                let region = settings.region_of(&route.zone).unwrap_or_default();
                Some((
                    "QUOTA_EXCEEDED",
                    format!("Quota 'INSTANCES' exceeded.  Limit: {quota}.0 in region {region}."),
                ))
            }
            (false, None) => None,
        };
        let name = new.name.clone();
        let id = if error.is_none() {
            state.add(&self.clock, new, request_id, false)
        } else {
            0
        };
        let target = (route.zone.as_str(), name.as_str(), id);
        let operation = state.operate(settings, &self.clock, request_id, "insert", target, error);
        Ok(self.operation_json(&operation, false))
    }

    /// Accepts a call whose operation fails, by default for lack of capacity.
    pub(super) fn operation_that_fails(
        &self,
        state: &mut State,
        call: &Call,
        error: Option<(&str, String)>,
    ) -> Result<Value, Problem> {
        self.authenticate(state, call)?;
        let segments = call.segments();
        let route = route(&call.method, &segments).ok_or_else(|| Problem::not_found(&call.path))?;
        let (name, id) = if route.verb == Verb::Insert {
            let body = body(call)?;
            let name = body.get("name").and_then(Value::as_str);
            (name.unwrap_or_default().to_owned(), 0)
        } else {
            let instance = state.named(&route.zone, &route.name);
            let instance = instance.ok_or_else(|| Problem::not_found(&call.path))?;
            (instance.name.clone(), instance.id)
        };
        let error = error.unwrap_or_else(|| {
            let why = no_capacity(&route.project, &route.zone);
            ("ZONE_RESOURCE_POOL_EXHAUSTED", why)
        });
        let kind = route.operation().rsplit('.').next().unwrap_or_default();
        let (target, request_id) = ((&*route.zone, &*name, id), call.query("requestId"));
        let (settings, clock) = (&self.settings, &self.clock);
        let operation = state.operate(settings, clock, request_id, kind, target, Some(error));
        Ok(self.operation_json(&operation, false))
    }

    pub(super) fn fails_later(&self, call: &Call, error: Option<(&str, String)>) -> Answer {
        let mut state = self.state.lock();
        state.settle();
        match self.operation_that_fails(&mut state, call, error) {
            Ok(value) => Answer::json(200, &value),
            Err(problem) => problem.answer(),
        }
    }

    fn check(&self, state: &mut State, body: &Value, route: &Route) -> Result<New, Problem> {
        let text = |pointer: &str| {
            body.pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (project, zone) = (&route.project, &route.zone);
        let name = text("/name");
        if !labels::is_name(name) {
            return Err(Problem::field(
                "resource.name",
                name,
                "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'",
            ));
        }
        if state.named(zone, name).is_some() {
            let resource = format!("projects/{project}/zones/{zone}/instances/{name}");
            return Err(Problem::new(
                409,
                "alreadyExists",
                format!("The resource '{resource}' already exists"),
            ));
        }
        let machine_type = text("/machineType");
        let short = machine_type.rsplit('/').next().unwrap_or_default();
        if !self.settings.has_machine_type(short) {
            let why = format!("Machine type with name '{short}' does not exist in zone '{zone}'.");
            return Err(Problem::field("resource.machineType", machine_type, &why));
        }
        let image = text("/disks/0/initializeParams/sourceImage");
        if !self.settings.has_image(image) {
            let link = image.find("projects/").map_or(image, |at| &image[at..]);
            return Err(Problem::not_found(link));
        }
        let interfaces = body.get("networkInterfaces").and_then(Value::as_array);
        for interface in interfaces.into_iter().flatten() {
            for kind in ["network", "subnetwork"] {
                let Some(link) = interface.get(kind).and_then(Value::as_str) else {
                    continue;
                };
                let short = link.rsplit('/').next().unwrap_or_default();
                if !self.settings.networks.contains(short) {
                    return Err(Problem::not_found(link));
                }
            }
        }
        if interfaces.is_none_or(Vec::is_empty) {
            return Err(Problem::field(
                "resource.networkInterfaces",
                "",
                "At least one network interface is required.",
            ));
        }
        let labels = labels::read(body.get("labels"), "resource.labels")?;
        let metadata = metadata(body.get("metadata"))?;
        let mut kept = body.clone();
        if let Some(kept) = kept.as_object_mut() {
            kept.remove("labels");
            kept.remove("metadata");
        }
        Ok(New {
            name: name.to_owned(),
            zone: zone.clone(),
            body: kept,
            labels,
            metadata,
        })
    }
}

fn no_capacity(project: &str, zone: &str) -> String {
    format!(
        "The zone 'projects/{project}/zones/{zone}' does not have enough resources available to fulfill the request.  \
         Try a different zone, or try again later."
    )
}

pub(super) fn body(call: &Call) -> Result<Value, Problem> {
    call.json()
        .map_err(|error| Problem::new(400, "parseError", format!("Parse Error: {error}")))
}

pub(super) fn metadata(value: Option<&Value>) -> Result<BTreeMap<String, String>, Problem> {
    let mut read = BTreeMap::new();
    let items = value
        .and_then(|value| value.get("items"))
        .and_then(Value::as_array);
    for item in items.into_iter().flatten() {
        let text = |name: &str| {
            item.get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let (key, value) = (text("key"), text("value"));
        if value.len() > MAX_METADATA_VALUE {
            let why = format!(
                "Value for field is too large: maximum size {MAX_METADATA_VALUE} character(s); actual size {}.",
                value.len()
            );
            return Err(Problem::field("resource.metadata.items.value", &key, &why));
        }
        read.insert(key, value);
    }
    if read
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum::<usize>()
        > MAX_METADATA
    {
        return Err(Problem::field(
            "resource.metadata",
            "",
            "The total size of all metadata is too large.",
        ));
    }
    Ok(read)
}
