//! Implementation of the calls.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::World;
use super::fields::Mask;
use super::filter::Filter;
use super::insert::{body, metadata};
use super::json::Problem;
use super::labels;
use super::page::{after, list, page};
use super::route::{Route, Verb, route};
use super::state::{Instance, MAX_WAIT, Operation, State};
use crate::server::Call;

/// Instances with their zones, and the token of the next page.
type Page = (Vec<(String, Value)>, Option<String>);

impl World {
    pub(super) fn answer(&self, state: &mut State, call: &Call) -> Result<Value, Problem> {
        self.authenticate(state, call)?;
        let route = route(&call.method, &call.segments()).ok_or_else(|| {
            Problem::new(
                404,
                "notFound",
                "The requested URL was not found on this server.".into(),
            )
        })?;
        self.authorize(state, &route)?;
        let mask = Mask::of(call, route.verb)?;
        let mut answer = self.full_answer(state, call, &route)?;
        if let Some(mask) = mask {
            mask.apply(&mut answer);
        }
        Ok(answer)
    }

    fn full_answer(&self, state: &mut State, call: &Call, route: &Route) -> Result<Value, Problem> {
        match route.verb {
            Verb::Insert => self.insert(state, call, route),
            Verb::List => {
                let (instances, next) = self.instances(state, call, Some(&route.zone))?;
                let items = instances.into_iter().map(|(_, instance)| instance);
                Ok(list("compute#instanceList", items.collect(), next))
            }
            Verb::AggregatedList => self.aggregated(state, call),
            Verb::Get
            | Verb::Delete
            | Verb::Stop
            | Verb::SetLabels
            | Verb::SetMetadata
            | Verb::SerialPort => self.of_instance(state, call, route),
            Verb::OperationGet => operation(state, route)
                .map(|operation| self.operation_json(operation, operation.is_done())),
            // Answered at the end of the operation, see `answers_after`.
            Verb::OperationWait => operation(state, route)
                .map(|operation| self.operation_json(operation, operation.is_done_by(MAX_WAIT))),
            Verb::OperationList => {
                let of_zone = |operation: &&Operation| operation.zone == route.zone;
                let all = state.operations.values().filter(of_zone).map(|operation| {
                    let shown = self.operation_json(operation, operation.is_done());
                    (operation.id, shown)
                });
                let (items, next) = page(&self.settings, call, all.collect())?;
                Ok(list("compute#operationList", items.into(), next))
            }
            Verb::ZoneList
            | Verb::ZoneGet
            | Verb::MachineTypeGet
            | Verb::MachineTypeList
            | Verb::ImageGet
            | Verb::FamilyGet => self.of_catalogue(state, call, route),
        }
    }

    /// Operations on a single instance.
    fn of_instance(&self, state: &mut State, call: &Call, route: &Route) -> Result<Value, Problem> {
        let replayed = state.replayed(&self.settings, call.query("requestId"));
        if let Some(done) = replayed.cloned() {
            return Ok(self.operation_json(&done, done.is_done()));
        }
        let path = format!(
            "projects/{}/zones/{}/instances/{}",
            route.project, route.zone, route.name
        );
        let instance = state
            .named(&route.zone, &route.name)
            .ok_or_else(|| Problem::not_found(&path))?;
        let kind = match route.verb {
            Verb::SerialPort => return Ok(serial_port(&self.console(instance), call)),
            Verb::Delete if instance.protected => {
                return Err(Problem::new(
                    412,
                    "conditionNotMet",
                    "Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion. \
                     deletionProtection must be set to false before the resource can be deleted.'."
                        .into(),
                ));
            }
            Verb::Delete => {
                instance.delete(&self.settings);
                "delete"
            }
            Verb::Stop => {
                instance.stop(&self.settings);
                "stop"
            }
            Verb::SetLabels => {
                let body = body(call)?;
                let new = labels::read(body.get("labels"), "labels")?;
                matches_fingerprint(&body, "labelFingerprint", &instance.label_fingerprint())?;
                instance.set_labels(new);
                "setLabels"
            }
            Verb::SetMetadata => {
                let body = body(call)?;
                let new = metadata(Some(&body))?;
                matches_fingerprint(&body, "fingerprint", &instance.metadata_fingerprint())?;
                instance.metadata = new;
                instance.changes += 1;
                "setMetadata"
            }
            _ => return Ok(self.instance_json(instance)),
        };
        let (name, id) = (instance.name.clone(), instance.id);
        let target = (route.zone.as_str(), name.as_str(), id);
        let request_id = call.query("requestId");
        let operation = state.operate(&self.settings, &self.clock, request_id, kind, target, None);
        Ok(self.operation_json(&operation, false))
    }

    fn console(&self, instance: &Instance) -> String {
        match instance.status(&self.settings) {
            "PROVISIONING" | "STAGING" => String::new(),
            _ => format!(
                "SeaBIOS\r\nBooting from Hard Disk...\r\n{} login: \r\n",
                instance.name
            ),
        }
    }

    /// Reads of zones, machine types and images.
    fn of_catalogue(&self, state: &State, call: &Call, route: &Route) -> Result<Value, Problem> {
        let (settings, project, name) = (&self.settings, &route.project, &route.name);
        match route.verb {
            Verb::ZoneList => {
                let all = (0..).zip(settings.zones());
                let all = all.map(|(at, zone)| (at, self.zone_json(state, zone)));
                let (items, next) = page(settings, call, all.collect())?;
                Ok(list("compute#zoneList", items.into(), next))
            }
            Verb::ZoneGet => Ok(self.zone_json(state, &route.zone)),
            Verb::MachineTypeList => {
                let all = (0..).zip(&settings.machine_types);
                let all = all.map(|(at, name)| (at, self.machine_type_json(&route.zone, name)));
                let (items, next) = page(settings, call, all.collect())?;
                Ok(list("compute#machineTypeList", items.into(), next))
            }
            Verb::MachineTypeGet if settings.has_machine_type(name) => {
                Ok(self.machine_type_json(&route.zone, name))
            }
            Verb::MachineTypeGet => {
                let zone = &route.zone;
                let path = format!("projects/{project}/zones/{zone}/machineTypes/{name}");
                Err(Problem::not_found(&path))
            }
            _ => {
                let family = if route.verb == Verb::FamilyGet {
                    "family/"
                } else {
                    ""
                };
                let path = format!("projects/{project}/global/images/{family}{name}");
                if !settings.has_image(&path) {
                    return Err(Problem::not_found(&path));
                }
                let link = format!("https://www.googleapis.com/compute/v1/{path}");
                Ok(
                    json!({ "kind": "compute#image", "name": name, "selfLink": link, "status": "READY" }),
                )
            }
        }
    }

    pub(super) fn authenticate(&self, state: &State, call: &Call) -> Result<(), Problem> {
        let token = call
            .header("authorization")
            .and_then(|value| value.strip_prefix("Bearer "));
        if state.any_token || token.is_some_and(|token| state.tokens.contains(token)) {
            return Ok(());
        }
        Err(Problem::new(
            401,
            "authError",
            "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid \
             authentication credential."
                .into(),
        ))
    }

    fn authorize(&self, state: &State, route: &Route) -> Result<(), Problem> {
        let images = matches!(route.verb, Verb::ImageGet | Verb::FamilyGet);
        if route.project != self.settings.project && !images {
            return Err(Problem::not_found(&format!("projects/{}", route.project)));
        }
        if !route.zone.is_empty() && self.settings.region_of(&route.zone).is_none() {
            return Err(Problem::field("zone", &route.zone, "Unknown zone."));
        }
        if state.unreachable.contains(&route.zone) {
            return Err(unreachable_zone(&route.zone));
        }
        Ok(())
    }

    /// Returns one page of instances with their zones.
    fn instances(&self, state: &State, call: &Call, zone: Option<&str>) -> Result<Page, Problem> {
        let filter = Filter::parse(call.query("filter").unwrap_or_default())?;
        let settings = &self.settings;
        let all = state
            .instances
            .values()
            .filter(|instance| zone.is_none_or(|zone| instance.zone == zone))
            .filter(|instance| instance.listed(settings) && filter.lets_through(settings, instance))
            .map(|instance| (instance.id, instance))
            .collect();
        let (instances, mut next) = page(settings, call, all)?;
        if let ([.., before, _], true) = (instances.as_slice(), state.repeats) {
            next = next.map(|_| after(before.id));
        }
        let instances = instances
            .into_iter()
            .map(|instance| (instance.zone.clone(), self.instance_json(instance)))
            .collect();
        Ok((instances, next))
    }

    fn aggregated(&self, state: &State, call: &Call) -> Result<Value, Problem> {
        let partial = call.query("returnPartialSuccess") == Some("true");
        if let Some(zone) = state.unreachable.first().filter(|_| !partial) {
            return Err(unreachable_zone(zone));
        }
        let (instances, next) = self.instances(state, call, None)?;
        let mut scopes: BTreeMap<String, Value> = BTreeMap::new();
        for zone in self.settings.zones() {
            let code = if state.unreachable.contains(zone) {
                "UNREACHABLE"
            } else {
                "NO_RESULTS_ON_PAGE"
            };
            let scope = format!("zones/{zone}");
            let warning = json!({
                "code": code,
                "message": format!("There are no results for scope '{scope}' on this page."),
                "data": [{ "key": "scope", "value": scope }],
            });
            scopes.insert(scope, json!({ "warning": warning }));
        }
        for (zone, instance) in instances {
            let scope = scopes.entry(format!("zones/{zone}")).or_default();
            match scope.get_mut("instances").and_then(Value::as_array_mut) {
                Some(instances) => instances.push(instance),
                None => *scope = json!({ "instances": [instance] }),
            }
        }
        Ok(list("compute#instanceAggregatedList", json!(scopes), next))
    }

    fn zone_json(&self, state: &State, zone: &str) -> Value {
        let region = self.settings.region_of(zone).unwrap_or_default();
        json!({
            "kind": "compute#zone",
            "name": zone,
            "region": self.link(&format!("regions/{region}")),
            "status": if state.unreachable.contains(zone) { "DOWN" } else { "UP" },
            "selfLink": self.link(&format!("zones/{zone}")),
        })
    }

    fn machine_type_json(&self, zone: &str, name: &str) -> Value {
        json!({
            "kind": "compute#machineType",
            "name": name,
            "zone": zone,
            "selfLink": self.link(&format!("zones/{zone}/machineTypes/{name}")),
        })
    }
}

pub(super) fn operation<'a>(state: &'a State, route: &Route) -> Result<&'a Operation, Problem> {
    let (project, zone, name) = (&route.project, &route.zone, &route.name);
    name.strip_prefix("operation-")
        .and_then(|id| state.operations.get(&id.parse().ok()?))
        .filter(|operation| operation.zone == *zone)
        .ok_or_else(|| {
            Problem::not_found(&format!(
                "projects/{project}/zones/{zone}/operations/{name}"
            ))
        })
}

fn unreachable_zone(zone: &str) -> Problem {
    Problem::new(
        503,
        "backendError",
        format!("The zone '{zone}' is not reachable."),
    )
}

fn matches_fingerprint(body: &Value, field: &str, now: &str) -> Result<(), Problem> {
    if body.get(field).and_then(Value::as_str) == Some(now) {
        return Ok(());
    }
    Err(Problem::new(
        412,
        "conditionNotMet",
        "Supplied fingerprint does not match current metadata or label fingerprint.".into(),
    ))
}

/// Returns the output from `start` on.
fn serial_port(contents: &str, call: &Call) -> Value {
    let start = call
        .query("start")
        .and_then(|text| text.parse::<usize>().ok())
        .unwrap_or(0);
    json!({
        "kind": "compute#serialPortOutput",
        "contents": contents.get(start..).unwrap_or_default(),
        "start": start.to_string(),
        "next": contents.len().to_string(),
    })
}
