//! Canonical protobuf JSON, including default values and empty lists.

use drover_manifest::{
    schema,
    yaml::{self, Yaml},
};
use prost::{Message, Name};
use prost_reflect::{DynamicMessage, SerializeOptions};
use serde_json::Value;

/// A message as JSON.
pub(crate) fn value<M: Message + Name>(message: &M) -> anyhow::Result<Value> {
    let mut dynamic = DynamicMessage::new(schema::message(&M::full_name())?);
    dynamic.transcode_from(message)?;
    let options = SerializeOptions::new().skip_default_fields(false);
    Ok(dynamic.serialize_with_options(serde_json::value::Serializer, &options)?)
}

/// A message as indented JSON text.
pub(crate) fn pretty<M: Message + Name>(message: &M) -> anyhow::Result<String> {
    Ok(format!(
        "{}\n",
        serde_json::to_string_pretty(&value(message)?)?
    ))
}

/// A message as one line of JSON, for streams.
pub(crate) fn line<M: Message + Name>(message: &M) -> anyhow::Result<String> {
    Ok(format!("{}\n", serde_json::to_string(&value(message)?)?))
}

/// A message as one of several documents of YAML.
pub(crate) fn document<M: Message + Name>(message: &M) -> anyhow::Result<String> {
    let document = yaml::write(&to_yaml(&value(message)?));
    Ok(format!("---\n{document}"))
}

/// JSON as YAML.
pub(crate) fn to_yaml(value: &Value) -> Yaml {
    match value {
        Value::Null => Yaml::Null,
        Value::Bool(value) => Yaml::Bool(*value),
        Value::Number(number) => Yaml::Number(number.to_string()),
        Value::String(text) => Yaml::text(text),
        Value::Array(items) => Yaml::List(items.iter().map(to_yaml).collect()),
        Value::Object(fields) => Yaml::Map(
            fields
                .iter()
                .map(|(key, value)| (key.clone(), to_yaml(value)))
                .collect(),
        ),
    }
}
