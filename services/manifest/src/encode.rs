//! Encodes messages as manifests, the inverse of `decode`.

use drover_proto::orchestrator::v1::{Cluster, Platform};
use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor, Value};
use prost_types::{Struct, Value as Free, value::Kind as FreeKind};

use super::{
    API_VERSION, Error, scalar,
    schema::{self, Field, Shape},
    yaml::Yaml,
};

/// The manifest of a cluster: the desired state, without fields that the server added.
pub fn cluster(cluster: &Cluster) -> Result<Yaml, Error> {
    let mut metadata = vec![("name".to_owned(), Yaml::text(&cluster.name))];
    if !cluster.labels.is_empty() {
        let labels = cluster
            .labels
            .iter()
            .map(|(key, value)| (key.clone(), Yaml::text(value)))
            .collect();
        metadata.push(("labels".to_owned(), Yaml::Map(labels)));
    }
    let spec = cluster.spec.clone().unwrap_or_default();
    document(
        "Cluster",
        metadata,
        &spec,
        "drover.orchestrator.v1.ClusterSpec",
    )
}

/// The manifest of a platform.
pub fn platform(platform: &Platform) -> Result<Yaml, Error> {
    let metadata = vec![("name".to_owned(), Yaml::text(&platform.name))];
    let spec = platform.spec.clone().unwrap_or_default();
    document(
        "Platform",
        metadata,
        &spec,
        "drover.orchestrator.v1.PlatformSpec",
    )
}

fn document(
    kind: &str,
    metadata: Vec<(String, Yaml)>,
    spec: &impl Message,
    name: &str,
) -> Result<Yaml, Error> {
    let descriptor = schema::message(name)?;
    let mut dynamic = DynamicMessage::new(descriptor.clone());
    dynamic.transcode_from(spec)?;
    Ok(Yaml::Map(vec![
        ("apiVersion".to_owned(), Yaml::text(API_VERSION)),
        ("kind".to_owned(), Yaml::text(kind)),
        ("metadata".to_owned(), Yaml::Map(metadata)),
        ("spec".to_owned(), message(&descriptor, &dynamic)),
    ]))
}

fn message(descriptor: &MessageDescriptor, message: &DynamicMessage) -> Yaml {
    let mut entries = Vec::new();
    for field in schema::fields(descriptor) {
        // The field itself writes the long form.
        if matches!(
            field.shape,
            Shape::PlatformName | Shape::File | Shape::FileOrSecret
        ) || !message.has_field(&field.descriptor)
        {
            continue;
        }
        let found = message.get_field(&field.descriptor);
        if let Some(name) = single_platform(&field, &found) {
            entries.push(("platform".to_owned(), Yaml::Text(name)));
        } else if let Some(value) = value(&field.shape, &found) {
            entries.push((field.key, value));
        }
    }
    Yaml::Map(entries)
}

/// The name of the only platform, if it has no settings.
fn single_platform(field: &Field, value: &Value) -> Option<String> {
    let (Shape::Platforms(_), Value::List(choices)) = (&field.shape, value) else {
        return None;
    };
    let [Value::Message(choice)] = choices.as_slice() else {
        return None;
    };
    let named = choice.fields().all(|(field, _)| field.name() == "name");
    named.then(|| text_of(choice, "name"))
}

fn text_of(message: &DynamicMessage, field: &str) -> String {
    message
        .get_field_by_name(field)
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn value(shape: &Shape, found: &Value) -> Option<Yaml> {
    Some(match (shape, found) {
        (Shape::Duration, Value::Message(duration)) => {
            Yaml::Text(scalar::format_duration(&duration.transcode_to().ok()?))
        }
        (Shape::Free, Value::Message(fields)) => free_map(&fields.transcode_to().ok()?),
        (Shape::Amount, Value::Message(amount)) => {
            let (field, value) = amount.fields().next()?;
            match field.name() {
                "percent" => Yaml::Text(format!("{}%", value.as_u32()?)),
                _ => Yaml::Number(value.as_u32()?.to_string()),
            }
        }
        (Shape::Port, Value::Message(port)) => match port.fields().next()?.1 {
            Value::U32(number) => Yaml::Number(number.to_string()),
            name => Yaml::text(name.as_str()?),
        },
        (Shape::Enum(descriptor), Value::EnumNumber(number)) => {
            let values = schema::enum_values(descriptor);
            Yaml::Text(values.into_iter().find(|(_, known)| known == number)?.0)
        }
        (Shape::Groups(descriptor), Value::List(groups)) => Yaml::Map(
            groups
                .iter()
                .filter_map(Value::as_message)
                .map(|group| (text_of(group, "name"), message(descriptor, group)))
                .collect(),
        ),
        (Shape::List(item), Value::List(items)) => Yaml::List(
            items
                .iter()
                .filter_map(|found| value(item, found))
                .collect(),
        ),
        (Shape::Message(descriptor), Value::Message(found)) => message(descriptor, found),
        (Shape::Platforms(descriptor), Value::List(choices)) => Yaml::List(
            choices
                .iter()
                .filter_map(Value::as_message)
                .map(|choice| message(descriptor, choice))
                .collect(),
        ),
        (Shape::TextMap, Value::Map(entries)) => {
            let mut entries: Vec<(String, Yaml)> = entries
                .iter()
                .filter_map(|(key, value)| {
                    Some((key.as_str()?.to_owned(), Yaml::text(value.as_str()?)))
                })
                .collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Yaml::Map(entries)
        }
        (_, Value::Bool(value)) => Yaml::Bool(*value),
        (_, Value::U32(number)) => Yaml::Number(number.to_string()),
        (_, Value::U64(number)) => Yaml::Number(number.to_string()),
        (_, Value::I32(number)) => Yaml::Number(number.to_string()),
        (_, Value::I64(number)) => Yaml::Number(number.to_string()),
        (_, Value::String(text)) => Yaml::text(text),
        (_, Value::Bytes(bytes)) => Yaml::Text(scalar::to_base64(bytes)),
        _ => return None,
    })
}

fn free_map(fields: &Struct) -> Yaml {
    Yaml::Map(
        fields
            .fields
            .iter()
            .map(|(key, value)| (key.clone(), free(value)))
            .collect(),
    )
}

/// Encodes a free-form value.
pub(crate) fn free(value: &Free) -> Yaml {
    match &value.kind {
        None | Some(FreeKind::NullValue(_)) => Yaml::Null,
        Some(FreeKind::BoolValue(value)) => Yaml::Bool(*value),
        Some(FreeKind::NumberValue(number)) => Yaml::Number(format_number(*number)),
        Some(FreeKind::StringValue(text)) => Yaml::text(text),
        Some(FreeKind::ListValue(list)) => Yaml::List(list.values.iter().map(free).collect()),
        Some(FreeKind::StructValue(fields)) => free_map(fields),
    }
}

/// Formats a number; whole numbers have no fraction.
fn format_number(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0 {
        return format!("{number:.0}");
    }
    let text = format!("{number:?}");
    // YAML readers take `1e300` for text.
    if text.contains('e') && !text.contains('.') {
        text.replacen('e', ".0e", 1)
    } else {
        text
    }
}
