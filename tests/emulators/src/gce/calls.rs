//! What the calls do.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::World;
use super::filter::Filter;
use super::json::Problem;
use super::labels;
use super::page::{list, page};
use super::route::{Route, Verb, route};
use super::state::{New, State};
use crate::server::Call;

/// Longest value of metadata, in bytes.
const MAX_METADATA_VALUE: usize = 256 << 10;
/// Longest metadata in all.
const MAX_METADATA: usize = 512 << 10;

/// Instances with their zones, and the token of the page after them.
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
        let not_there = || {
            Problem::not_found(&format!(
                "projects/{}/zones/{}/instances/{}",
                route.project, route.zone, route.name
            ))
        };
        match route.verb {
            Verb::Insert => self.insert(state, call, &route),
            Verb::Get => {
                let instance = state
                    .named(&route.zone, &route.name)
                    .ok_or_else(not_there)?;
                Ok(self.instance_json(instance))
            }
            Verb::List => {
                let (instances, next) = self.instances(state, call, Some(&route.zone))?;
                let items = instances
                    .into_iter()
                    .map(|(_, instance)| instance)
                    .collect();
                Ok(list("compute#instanceList", items, next))
            }
            Verb::AggregatedList => self.aggregated(state, call),
            Verb::Delete => {
                if let Some(done) = state
                    .replayed(&self.settings, call.query("requestId"))
                    .cloned()
                {
                    return Ok(self.operation_json(&done, done.is_done()));
                }
                let instance = state
                    .named(&route.zone, &route.name)
                    .ok_or_else(not_there)?;
                if instance.protected {
                    return Err(Problem::new(
                        412,
                        "conditionNotMet",
                        "Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion. \
                         deletionProtection must be set to false before the resource can be deleted.'."
                            .into(),
                    ));
                }
                instance.delete(&self.settings);
                Ok(self.done(state, call, &route, "delete"))
            }
            Verb::Stop => {
                let instance = state
                    .named(&route.zone, &route.name)
                    .ok_or_else(not_there)?;
                instance.stop(&self.settings);
                Ok(self.done(state, call, &route, "stop"))
            }
            Verb::SetLabels => {
                let body = body(call)?;
                let instance = state
                    .named(&route.zone, &route.name)
                    .ok_or_else(not_there)?;
                let new = labels::read(body.get("labels"), "labels")?;
                matches_fingerprint(&body, "labelFingerprint", &instance.label_fingerprint())?;
                instance.set_labels(new);
                Ok(self.done(state, call, &route, "setLabels"))
            }
            Verb::SetMetadata => {
                let body = body(call)?;
                let instance = state
                    .named(&route.zone, &route.name)
                    .ok_or_else(not_there)?;
                let new = metadata(Some(&body))?;
                matches_fingerprint(&body, "fingerprint", &instance.metadata_fingerprint())?;
                instance.metadata = new;
                instance.changes += 1;
                Ok(self.done(state, call, &route, "setMetadata"))
            }
            Verb::SerialPort => {
                let instance = state
                    .named(&route.zone, &route.name)
                    .ok_or_else(not_there)?;
                let contents = match instance.status(&self.settings) {
                    "PROVISIONING" | "STAGING" => String::new(),
                    _ => format!(
                        "SeaBIOS\r\nBooting from Hard Disk...\r\n{} login: \r\n",
                        instance.name
                    ),
                };
                Ok(serial_port(&contents, call))
            }
            Verb::OperationGet | Verb::OperationWait => {
                let operation = route
                    .name
                    .strip_prefix("operation-")
                    .and_then(|id| state.operations.get(&id.parse().ok()?))
                    .filter(|operation| operation.zone == route.zone)
                    .ok_or_else(|| {
                        Problem::not_found(&format!(
                            "projects/{}/zones/{}/operations/{}",
                            route.project, route.zone, route.name
                        ))
                    })?;
                Ok(self.operation_json(operation, operation.is_done()))
            }
            Verb::OperationList => {
                let all = state
                    .operations
                    .values()
                    .filter(|operation| operation.zone == route.zone);
                let all = all.map(|operation| {
                    (
                        operation.id,
                        self.operation_json(operation, operation.is_done()),
                    )
                });
                let (items, next) = page(&self.settings, call, all.collect())?;
                Ok(list("compute#operationList", items.into(), next))
            }
            Verb::ZoneList => {
                let all = (0..)
                    .zip(self.settings.zones())
                    .map(|(at, zone)| (at, self.zone_json(state, zone)));
                let (items, next) = page(&self.settings, call, all.collect())?;
                Ok(list("compute#zoneList", items.into(), next))
            }
            Verb::ZoneGet => Ok(self.zone_json(state, &route.zone)),
            Verb::MachineTypeGet if self.settings.has_machine_type(&route.name) => {
                Ok(self.machine_type_json(&route.zone, &route.name))
            }
            Verb::MachineTypeGet => Err(Problem::not_found(&format!(
                "projects/{}/zones/{}/machineTypes/{}",
                route.project, route.zone, route.name
            ))),
            Verb::MachineTypeList => {
                let all = (0..).zip(&self.settings.machine_types);
                let all = all.map(|(at, name)| (at, self.machine_type_json(&route.zone, name)));
                let (items, next) = page(&self.settings, call, all.collect())?;
                Ok(list("compute#machineTypeList", items.into(), next))
            }
            Verb::ImageGet | Verb::FamilyGet => {
                let family = if route.verb == Verb::FamilyGet {
                    "family/"
                } else {
                    ""
                };
                let link = format!(
                    "projects/{}/global/images/{family}{}",
                    route.project, route.name
                );
                if self.settings.has_image(&link) {
                    let link = format!("https://www.googleapis.com/compute/v1/{link}");
                    Ok(
                        json!({ "kind": "compute#image", "name": route.name, "selfLink": link, "status": "READY" }),
                    )
                } else {
                    Err(Problem::not_found(&link))
                }
            }
        }
    }

    fn authenticate(&self, state: &State, call: &Call) -> Result<(), Problem> {
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

    /// An operation that is under way for something that there is.
    fn done(&self, state: &mut State, call: &Call, route: &Route, kind: &'static str) -> Value {
        let (name, id) = state
            .named(&route.zone, &route.name)
            .map_or((String::new(), 0), |instance| {
                (instance.name.clone(), instance.id)
            });
        let target = (route.zone.as_str(), name.as_str(), id);
        let operation = state.operate(
            &self.settings,
            &self.clock,
            call.query("requestId"),
            kind,
            target,
            None,
        );
        self.operation_json(&operation, false)
    }

    fn insert(&self, state: &mut State, call: &Call, route: &Route) -> Result<Value, Problem> {
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

    /// An insert that fails with its operation.
    pub(super) fn insert_without_capacity(
        &self,
        state: &mut State,
        call: &Call,
    ) -> Result<Value, Problem> {
        self.authenticate(state, call)?;
        let segments = call.segments();
        let route = route(&call.method, &segments).ok_or_else(|| Problem::not_found(&call.path))?;
        let body = body(call)?;
        let name = body.get("name").and_then(Value::as_str).unwrap_or_default();
        let error = (
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            no_capacity(&route.project, &route.zone),
        );
        let target = (route.zone.as_str(), name, 0);
        let request_id = call.query("requestId");
        let operation = state.operate(
            &self.settings,
            &self.clock,
            request_id,
            "insert",
            target,
            Some(error),
        );
        Ok(self.operation_json(&operation, false))
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

    /// One page of instances with their zones.
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
        let (instances, next) = page(settings, call, all)?;
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

fn unreachable_zone(zone: &str) -> Problem {
    Problem::new(
        503,
        "backendError",
        format!("The zone '{zone}' is not reachable."),
    )
}

fn no_capacity(project: &str, zone: &str) -> String {
    format!(
        "The zone 'projects/{project}/zones/{zone}' does not have enough resources available to fulfill the request.  \
         Try a different zone, or try again later."
    )
}

fn body(call: &Call) -> Result<Value, Problem> {
    call.json()
        .map_err(|error| Problem::new(400, "parseError", format!("Parse Error: {error}")))
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

fn metadata(value: Option<&Value>) -> Result<BTreeMap<String, String>, Problem> {
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

/// The output from `start` on.
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
