//! Turns the slots of a request into launches: merges template output and group properties, and groups equal slots.

use std::{collections::BTreeMap, sync::Arc};

use drover_convert::value::object;
use drover_core::{Error, Result, error::Violation};
use drover_proto::platform::v1::Slot;
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{CloudInfo, CloudSettings, Launch, LaunchSlot, address, tags};
use drover_platform::{
    driver::{Batch, Place},
    identity::hex,
};

/// Template output besides properties.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    user_data: Option<String>,
    ports: BTreeMap<String, u16>,
    agent: Option<Agent>,
    private: bool,
    #[serde(flatten)]
    properties: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Agent {
    port: u16,
    scheme: Option<String>,
}

/// The desired machine of one slot.
struct WantedMachine {
    properties: Map<String, Value>,
    user_data: Option<Vec<u8>>,
    tags: BTreeMap<String, String>,
    private: bool,
}

/// The launches for these slots in one failure domain.
///
/// # Errors
/// `Precondition` if the template output does not fit, `Invalid` for a field of the group.
pub(super) async fn launches(
    batch: &Batch,
    slots: &[&Slot],
    domain: Option<&str>,
    info: &CloudInfo,
    settings: &CloudSettings,
    validator: &jsonschema::Validator,
) -> Result<Vec<Launch>> {
    let mut launches: Vec<(Vec<u8>, Launch)> = Vec::new();
    for slot in slots {
        let wanted = wanted(batch, slot, domain, info, validator).await?;
        let node_class = batch
            .request
            .group
            .as_ref()
            .map(|group| settings.node_class(&group.node_class).to_owned())
            .unwrap_or_default();
        let batch_key = batch_key(&wanted);
        let entry = LaunchSlot {
            identity: batch.identity(slot),
            host_id: slot.host_id.clone(),
        };
        let same = launches.iter_mut().find(|(known, launch)| {
            *known == batch_key
                && entry.host_id.is_none()
                && launch.slots.len() < info.max_launch
                && launch.slots.iter().all(|slot| slot.host_id.is_none())
        });
        match same {
            Some((_, launch)) => launch.slots.push(entry),
            None => launches.push((
                batch_key,
                Launch {
                    slots: vec![entry],
                    tags: wanted.tags,
                    token: String::new(),
                    failure_domain: domain.map(str::to_owned),
                    node_class,
                    properties: wanted.properties,
                    user_data: wanted.user_data.map(Arc::new),
                    private: wanted.private,
                    infrastructure: batch.request.infrastructure.clone(),
                },
            )),
        }
    }
    launches
        .into_iter()
        .map(|(_, mut launch)| {
            let nodes: Vec<_> = launch
                .slots
                .iter()
                .map(|slot| slot.identity.clone())
                .collect();
            launch.tags.extend(tags::encode(&nodes, info.tag_limits)?);
            launch.token = token(&batch.request.request_id, &launch);
            Ok(launch)
        })
        .collect()
}

async fn wanted(
    batch: &Batch,
    slot: &Slot,
    domain: Option<&str>,
    info: &CloudInfo,
    validator: &jsonschema::Validator,
) -> Result<WantedMachine> {
    let place = Place {
        failure_domain: domain.unwrap_or_default().to_owned(),
        platform: Map::from_iter([("dryRun".to_owned(), batch.request.validate_only.into())]),
        ..Place::default()
    };
    let rendered = batch.render(slot, place).await?;
    let document: Document = if rendered.document.expose().trim().is_empty() {
        Document::default()
    } else {
        rendered.document.parse()?
    };
    let group = batch.request.group.as_ref();
    let said = group
        .and_then(|group| group.properties.as_ref())
        .map_or(Ok(Map::new()), |said| object("group.properties", said))?;
    let mut properties = document.properties;
    properties.extend(said);
    let whole = Value::Object(properties);
    let violations: Vec<Violation> = validator
        .iter_errors(&whole)
        .map(|error| Violation {
            field: format!(
                "template{}",
                error.instance_path().as_str().replace('/', ".")
            ),
            description: error.masked().to_string(),
        })
        .collect();
    if !violations.is_empty() {
        return Err(Error::violations(violations)
            .context("what the template makes does not fit the platform"));
    }
    if let Some(path) = control(&whole) {
        return Err(Error::invalid(
            format!("group.properties{path}"),
            "has a control character",
        ));
    }
    let Value::Object(properties) = whole else {
        return Err(Error::internal("properties are an object"));
    };
    let user_data = document
        .user_data
        .map(String::into_bytes)
        .or(rendered.bootstrap);
    let max = info.limits.max_bootstrap_bytes.unwrap_or(u32::MAX) as usize;
    if let Some(size) = user_data.as_ref().map(Vec::len).filter(|size| *size > max) {
        return Err(Error::invalid(
            "bootstrap",
            format!(
                "the user data of {} is {size} bytes large; {} takes {max} at most. Let it fetch the rest, or compress it",
                slot.name, info.driver
            ),
        ));
    }
    let mut tags = BTreeMap::new();
    if !document.ports.is_empty() {
        tags.insert(
            address::PORTS.to_owned(),
            address::ports_tag(&document.ports),
        );
    }
    if let Some(agent) = document.agent {
        tags.insert(address::PORT.to_owned(), agent.port.to_string());
        if let Some(scheme) = agent.scheme {
            tags.insert(address::SCHEME.to_owned(), scheme);
        }
    }
    Ok(WantedMachine {
        properties,
        user_data,
        tags,
        private: document.private,
    })
}

/// The path of a text with a control character other than a line break or tab; APIs return malformed documents for
/// these.
fn control(value: &Value) -> Option<String> {
    let wrong = |text: &str| {
        text.chars()
            .any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t'))
    };
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
        Value::String(text) => wrong(text).then(String::new),
        Value::Array(values) => values
            .iter()
            .enumerate()
            .find_map(|(at, value)| Some(format!("[{at}]{}", control(value)?))),
        Value::Object(values) => values.iter().find_map(|(key, value)| {
            if wrong(key) {
                return Some(String::new());
            }
            Some(format!(".{key}{}", control(value)?))
        }),
    }
}

/// A hash that is equal for slots that can be created by the same call.
fn batch_key(wanted: &WantedMachine) -> Vec<u8> {
    let mut hash = Sha256::new();
    for part in [
        Value::Object(wanted.properties.clone())
            .to_string()
            .as_bytes(),
        wanted.user_data.as_deref().unwrap_or_default(),
        format!("{:?}", wanted.tags).as_bytes(),
        &[u8::from(wanted.private)],
    ] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().to_vec()
}

/// An idempotency token: equal for the same slots of the same request in the same domain, and for nothing else.
fn token(request_id: &str, launch: &Launch) -> String {
    let mut hash = Sha256::new();
    hash.update(request_id.as_bytes());
    hash.update([0]);
    hash.update(
        launch
            .failure_domain
            .as_deref()
            .unwrap_or_default()
            .as_bytes(),
    );
    for slot in &launch.slots {
        hash.update([0]);
        hash.update(slot.identity.index.to_be_bytes());
    }
    hex(&hash.finalize()[..16])
}
