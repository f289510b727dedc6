//! Documentation of fields: `drover explain` and the JSON Schema, both from the comments in the protos.

use prost_reflect::MessageDescriptor;
use serde_json::{Map, Value, json};

use super::{
    Error,
    schema::{self, Field, Shape},
};

/// Kinds that can be explained, with the message of their spec.
const KINDS: [(&str, &str, &str); 2] = [
    ("cluster", "Cluster", "drover.orchestrator.v1.ClusterSpec"),
    (
        "platform",
        "Platform",
        "drover.orchestrator.v1.PlatformSpec",
    ),
];

/// Maximum line width of an explanation.
const WIDTH: usize = 110;

/// Explains a path such as `cluster.spec.groups.health`. The error names the part that does not exist.
pub fn explain(path: &str) -> Result<String, Error> {
    let mut words = path.split('.').filter(|word| !word.is_empty());
    let kind = words.next().unwrap_or("cluster").to_lowercase();
    let Some((word, name, message)) = KINDS
        .iter()
        .find(|(word, ..)| *word == kind || format!("{word}s") == kind)
    else {
        return other(&kind, words.next());
    };
    let kind = (*word).to_owned();
    let mut message = schema::message(message)?;
    let mut done = vec![kind.clone()];
    let mut field: Option<Field> = None;
    match words.next() {
        None => {
            let about = plain(&schema::comment(&message.parent_file(), message.path()));
            return Ok(format!(
                "{kind}  a document with apiVersion: drover.dev/v1, kind: {name}, metadata and spec\n\nmetadata  {}\nspec      {about}\n\nMore: drover explain {kind}.spec\n",
                if kind == "cluster" {
                    "name, labels"
                } else {
                    "name"
                }
            ));
        }
        Some("spec") => done.push("spec".into()),
        Some("metadata") => return Ok(metadata(&kind)),
        Some(other) => {
            return Err(Error::NoField(format!(
                "{kind} has no field `{other}` to explain; try {kind}.spec"
            )));
        }
    }
    let mut group = false;
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        // Notation of messages and plans: `cluster.spec.groups.web.size`, `platforms[0].name`.
        let word = word.split('[').next().unwrap_or(word);
        let named = std::mem::take(&mut group);
        let fields = schema::fields(&message);
        let keys = || fields.iter().map(|field| field.key.as_str());
        let is_name = !keys().any(|key| key == word)
            && (words.peek().is_some() || drover_core::name::closest(word, keys()).is_none());
        if named && is_name {
            continue;
        }
        group = word == "groups";
        let Some(found) = fields.iter().find(|field| field.key == word) else {
            let suggestion =
                drover_core::name::closest(word, fields.iter().map(|field| field.key.as_str()));
            let suggestion = suggestion
                .map(|name| format!(", did you mean `{name}`?"))
                .unwrap_or_default();
            return Err(Error::NoField(format!(
                "{} has no field `{word}`{suggestion}",
                done.join(".")
            )));
        };
        done.push(word.to_owned());
        if let Some(inner) = inner(&found.shape) {
            message = inner;
        }
        field = Some(found.clone());
    }
    let path = done.join(".");
    let Some(field) = field else {
        return Ok(format!("{path}\n\n{}", listing(&path, &message)));
    };
    let mut out = format!("{path}  ({})\n", schema::expectation(&field));
    out.push_str(&wrap(&about(&field), ""));
    if inner(&field.shape).is_some() {
        out.push('\n');
        out.push_str(&listing(&path, &message));
    }
    Ok(out)
}

/// All fields below a path, one a line, with what each expects. A group in a group is shown once.
pub fn tree(path: &str) -> Result<String, Error> {
    let about = explain(path)?;
    let mut words = path.split('.').filter(|word| !word.is_empty());
    let kind = words.next().unwrap_or("cluster").to_lowercase();
    let found = KINDS
        .iter()
        .find(|(word, ..)| *word == kind || format!("{word}s") == kind);
    let Some((word, _, message)) = found else {
        return Ok(about);
    };
    let mut message = schema::message(message)?;
    let mut start = (*word).to_owned();
    for word in words {
        if word == "metadata" {
            return Ok(about);
        }
        start = format!("{start}.{word}");
        let word = word.split('[').next().unwrap_or(word);
        let fields = schema::fields(&message);
        // A word that is no field is the name of a group.
        let field = fields.iter().find(|field| field.key == word);
        match field.map(|field| inner(&field.shape)) {
            Some(Some(within)) => message = within,
            Some(None) => return Ok(about),
            None => {}
        }
    }
    if start == *word {
        start.push_str(".spec");
    }
    let mut out = format!("{start}\n");
    branches(&message, 1, &mut Vec::new(), &mut out);
    Ok(out)
}

fn branches(message: &MessageDescriptor, depth: usize, above: &mut Vec<String>, out: &mut String) {
    above.push(message.full_name().to_owned());
    let fields = schema::fields(message);
    let width = fields.iter().map(|field| field.key.len()).max();
    let (width, indent) = (width.unwrap_or_default(), "  ".repeat(depth));
    for field in &fields {
        let expected = schema::expectation(field);
        out.push_str(&format!("{indent}{:width$}  {expected}\n", field.key));
        let below = inner(&field.shape);
        if let Some(below) = below.filter(|it| !above.contains(&it.full_name().to_owned())) {
            branches(&below, depth + 1, above, out);
        }
    }
    above.pop();
}

/// Explains the kind Secret, which has no proto.
fn other(kind: &str, field: Option<&str>) -> Result<String, Error> {
    if !["secret", "secrets"].contains(&kind) {
        return Err(Error::NoField(format!(
            "there is no kind `{kind}` (kinds: cluster, platform, secret); a path begins with one: drover explain cluster.spec"
        )));
    }
    match field {
        None => Ok(SECRET.to_owned()),
        Some("metadata") => Ok(metadata("secret")),
        Some(name) if SECRET.contains(&format!("\n{name} ")) => Ok(SECRET.to_owned()),
        Some(name) => Err(Error::NoField(format!("secret has no field `{name}`"))),
    }
}

const SECRET: &str = "\
secret  a document with apiVersion: drover.dev/v1, kind: Secret, metadata and at least one of the others. What it holds
is never shown again: it is read back as names of keys and their digests.

metadata    name
purpose     (a string) What it is for: workload (user data and templates, the default), probe or platform.
stringData  (a map of strings) Keys and what they hold.
data        (a map of strings) The same in base64.
dataFrom    (a map of maps {file: PATH}) The same from files; paths are relative to the manifest.
sha256      (a map of strings) Keys that stay as they are stored, by the digest that is read back.
";

fn metadata(kind: &str) -> String {
    let labels = if kind == "cluster" {
        "  labels  (a map of strings) Words to select clusters by, as in Kubernetes; 64 at most.\n"
    } else {
        ""
    };
    let most = match kind {
        "cluster" => drover_core::name::MAX_CLUSTER_NAME,
        _ => drover_core::name::MAX_NAME,
    };
    format!(
        "{kind}.metadata  (a map)\n\nFields:\n  name    (a string) Name of the {kind}, unique among its kind. Required.\n          \
         1 to {most} of a-z, A-Z, 0-9, hyphen, underscore and dot, beginning and ending with a letter or digit.\n{labels}"
    )
}

fn listing(path: &str, message: &MessageDescriptor) -> String {
    let fields = schema::fields(message);
    let width = fields
        .iter()
        .map(|field| field.key.len())
        .max()
        .unwrap_or_default();
    let mut out = String::from("Fields:\n");
    for field in &fields {
        let text = format!("({}) {}", schema::expectation(field), about(field));
        let indent = " ".repeat(width + 4);
        let wrapped = wrap(&text, &indent);
        out.push_str(&format!("  {:width$}  {}", field.key, wrapped.trim_start()));
    }
    out.push_str(&format!("\nMore: drover explain {path}.FIELD\n"));
    out
}

/// The comment in the proto, without the parts that only concern the wire.
fn about(field: &Field) -> String {
    match field.shape {
        Shape::PlatformName => "The only platform; short for platforms with one name.".into(),
        Shape::File | Shape::FileOrSecret => {
            "Where the content is read from; paths are relative to the manifest.".into()
        }
        _ => {
            let text = schema::comment(
                &field.descriptor.parent_message().parent_file(),
                field.descriptor.path(),
            );
            plain(&text)
        }
    }
}

/// Names of the API that have other ones in manifests.
const NAMES: [(&str, &str); 8] = [
    ("Unset:", "Absent:"),
    ("Empty:", "Absent:"),
    ("SecretService", "kind Secret"),
    ("DeleteCluster", "`drover delete cluster`"),
    ("GroupSpec", "a group"),
    ("NOT_IN", "NotIn"),
    ("SCHEDULE_ANYWAY", "ScheduleAnyway"),
    ("DO_NOT_SCHEDULE", "DoNotSchedule"),
];

/// A comment in the words of manifests.
fn plain(text: &str) -> String {
    let mut text = text.to_owned();
    for (api, manifest) in NAMES {
        text = text.replace(api, manifest);
    }
    let mut out = String::with_capacity(text.len());
    let mut word = String::new();
    for c in text.chars().chain(['\0']) {
        if c.is_ascii_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        match word.strip_prefix("CAPABILITY_") {
            Some(name) => out.push_str(&format!("capability {}", schema::pascal(name))),
            // The name of a file of ssh.
            None if word == "authorized_keys" => out.push_str(&word),
            None if word.contains('_') && word.starts_with(|c: char| c.is_ascii_lowercase()) => {
                out.push_str(&super::path::camel(&word));
            }
            None => out.push_str(&word),
        }
        word.clear();
        if c != '\0' {
            out.push(c);
        }
    }
    out
}

fn wrap(text: &str, indent: &str) -> String {
    let mut out = String::new();
    let mut line = indent.to_owned();
    for word in text.split_whitespace() {
        if line.chars().count() + word.chars().count() + 1 > WIDTH && line.trim() != "" {
            out.push_str(line.trim_end());
            out.push('\n');
            indent.clone_into(&mut line);
        }
        line.push_str(word);
        line.push(' ');
    }
    out.push_str(line.trim_end());
    out.push('\n');
    out
}

/// The message with the fields of a shape.
fn inner(shape: &Shape) -> Option<MessageDescriptor> {
    match shape {
        Shape::Message(message) | Shape::Groups(message) | Shape::Platforms(message) => {
            Some(message.clone())
        }
        Shape::List(item) => inner(item),
        _ => None,
    }
}

/// The JSON Schema (2020-12) of one document.
pub fn json_schema() -> Result<Value, Error> {
    let mut definitions = Map::new();
    let mut kinds = Vec::new();
    for (_, name, message) in KINDS {
        let message = schema::message(message)?;
        define(&message, &mut definitions);
        let labels = json!({"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 64});
        let mut metadata = json!({"name": {"type": "string", "minLength": 1}});
        if name == "Cluster" {
            metadata["labels"] = labels;
        }
        kinds.push(document(
            name,
            json!({"$ref": reference(&message)}),
            metadata,
        ));
    }
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let file = json!({"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"], "additionalProperties": false});
    kinds.push(json!({
        "type": "object",
        "properties": {
            "apiVersion": {"const": super::API_VERSION},
            "kind": {"const": "Secret"},
            "metadata": metadata_schema(json!({"name": {"type": "string", "minLength": 1}})),
            "stringData": texts,
            "data": texts,
            "dataFrom": {"type": "object", "additionalProperties": file},
            "sha256": texts,
            "purpose": {"enum": ["workload", "probe", "platform"]},
        },
        "required": ["apiVersion", "kind", "metadata"],
        "additionalProperties": false,
    }));
    Ok(json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A Drover manifest",
        "oneOf": kinds,
        "$defs": definitions,
    }))
}

fn metadata_schema(properties: Value) -> Value {
    json!({"type": "object", "properties": properties, "required": ["name"], "additionalProperties": false})
}

fn document(kind: &str, spec: Value, metadata: Value) -> Value {
    json!({
        "type": "object",
        "properties": {
            "apiVersion": {"const": super::API_VERSION},
            "kind": {"const": kind},
            "metadata": metadata_schema(metadata),
            "spec": spec,
        },
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": false,
    })
}

fn reference(message: &MessageDescriptor) -> String {
    format!("#/$defs/{}", message.name())
}

fn define(message: &MessageDescriptor, definitions: &mut Map<String, Value>) {
    if definitions.contains_key(message.name()) {
        return;
    }
    definitions.insert(message.name().to_owned(), Value::Null);
    let mut properties = Map::new();
    for field in schema::fields(message) {
        if let Some(inner) = inner(&field.shape) {
            define(&inner, definitions);
        }
        let mut value = of(&field.shape);
        if let Some((min, max)) = schema::range(&field) {
            value["minimum"] = min.into();
            value["maximum"] = max.into();
        }
        value["description"] = about(&field).into();
        properties.insert(field.key, value);
    }
    let about = plain(&schema::comment(&message.parent_file(), message.path()));
    let definition = json!({"type": "object", "description": about, "properties": properties, "additionalProperties": false});
    definitions.insert(message.name().to_owned(), definition);
}

fn of(shape: &Shape) -> Value {
    match shape {
        Shape::Text => json!({"type": "string"}),
        Shape::Bool => json!({"type": "boolean"}),
        Shape::Integer { max } => json!({"type": "integer", "minimum": 0, "maximum": max}),
        Shape::Duration => {
            json!({"type": "string", "pattern": "^([0-9]+(\\.[0-9]+)?(d|h|m|s|ms))+$"})
        }
        Shape::Free => json!({"type": "object"}),
        Shape::Amount => {
            json!({"oneOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^(100|[0-9]{1,2})%$"}]})
        }
        Shape::Port => {
            json!({"oneOf": [{"type": "integer", "minimum": 1, "maximum": 65_535}, {"type": "string"}]})
        }
        Shape::Quantity => json!({"type": ["string", "integer"]}),
        Shape::Base64 => json!({"type": "string", "contentEncoding": "base64"}),
        Shape::Enum(descriptor) => {
            let names: Vec<String> = schema::enum_values(descriptor)
                .into_iter()
                .map(|(name, _)| name)
                .collect();
            json!({"enum": names})
        }
        Shape::Message(message) => json!({"$ref": reference(message)}),
        Shape::List(item) => json!({"type": "array", "items": of(item)}),
        Shape::TextMap => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        Shape::Groups(message) => {
            json!({"type": "object", "additionalProperties": {"oneOf": [{"$ref": reference(message)}, {"type": "null"}]}})
        }
        Shape::Platforms(message) => {
            json!({"type": "array", "items": {"oneOf": [{"type": "string"}, {"$ref": reference(message)}]}})
        }
        Shape::PlatformName => json!({"type": "string"}),
        Shape::File => file(),
        Shape::FileOrSecret => {
            let key = json!({"$ref": "#/$defs/SecretKeyRef"});
            json!({"oneOf": [file(), {"type": "object", "properties": {"secretKeyRef": key}, "required": ["secretKeyRef"], "additionalProperties": false}]})
        }
    }
}

fn file() -> Value {
    json!({"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"], "additionalProperties": false})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &str) -> String {
        explain(path).unwrap_err().to_string()
    }

    #[test]
    fn a_whole_tree_is_shown_and_groups_within_groups_once() {
        let text = tree("cluster").unwrap();
        let (head, rest) = text.split_once('\n').unwrap();
        assert_eq!(head, "cluster.spec");
        let groups = rest
            .lines()
            .filter(|line| line.trim_start().starts_with("groups "));
        assert!(groups.count() >= 2, "{text}");
        assert!(text.len() < 100_000, "it ends");
        let size = "a whole number, 0 to 10000, default 1";
        // Storage has a size, too.
        let is_size = |line: &str| line.trim_start().starts_with("size ") && line.ends_with(size);
        assert!(rest.lines().any(is_size), "{text}");
        let of = tree("cluster.spec.groups.db.health").unwrap();
        assert!(of.starts_with("cluster.spec.groups.db.health\n"), "{of}");
        assert!(of.contains("interval") && !of.contains("standby"), "{of}");
        assert!(tree("cluster.spec.sise").is_err());
    }

    #[test]
    fn explanations_have_the_names_of_manifests_and_none_of_the_api() {
        let schema = json_schema().unwrap().to_string();
        for name in [
            "CAPABILITY_",
            "SecretService",
            "GroupSpec says",
            "NOT_IN",
            "DeleteCluster",
        ] {
            let at = schema.find(name);
            assert_eq!(
                at,
                None,
                "{:?}",
                at.map(|at| &schema[at.saturating_sub(60)..at + 30])
            );
        }
        assert_eq!(
            plain("`tls_settings` of authorized_keys"),
            "`tlsSettings` of authorized_keys"
        );
        assert_eq!(
            plain("Needs CAPABILITY_BOOTSTRAP_RENDER."),
            "Needs capability BootstrapRender."
        );
    }

    #[test]
    fn fields_are_explained_with_what_is_expected_and_the_comment_of_the_protos() {
        let text = explain("cluster.spec.groups.size").unwrap();
        assert!(
            text.starts_with(
                "cluster.spec.groups.size  (a whole number, 0 to 10000, default 1)\nActive nodes"
            ),
            "{text}"
        );
        let text = explain("cluster.spec.groups").unwrap();
        assert!(
            text.contains("\n  size ")
                && text.contains("\n  health ")
                && text.contains("\n  platform "),
            "{text}"
        );
        let text = explain("platform.spec.tls").unwrap();
        assert!(text.contains("caFrom"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH),
            "{text}"
        );
    }

    #[test]
    fn what_does_not_exist_is_named() {
        assert_eq!(
            refusal("cluster.spec.groups.sise"),
            "cluster.spec.groups has no field `sise`, did you mean `size`?"
        );
        assert!(refusal("pod").contains("no kind `pod`"));
        assert!(refusal("secret.spec").contains("no field `spec`"));
    }

    #[test]
    fn paths_are_understood_as_messages_write_them() {
        let groups = explain("cluster.spec.groups").unwrap();
        assert_eq!(explain("cluster.spec.groups.web").unwrap(), groups);
        assert_eq!(
            explain("cluster.spec.groups.web.platforms[0].name").unwrap(),
            explain("cluster.spec.groups.platforms.name").unwrap()
        );
    }

    #[test]
    fn every_kind_and_its_metadata_are_explained() {
        assert!(explain("cluster.metadata").unwrap().contains("\n  labels "));
        for path in ["platform.metadata", "secret.metadata", "platform"] {
            let text = explain(path).unwrap();
            assert!(text.contains("name") && !text.contains("labels"), "{text}");
        }
        let secret = explain("secret").unwrap();
        assert!(secret.contains("stringData"), "{secret}");
        assert_eq!(explain("secrets.stringData").unwrap(), secret);
    }

    #[test]
    fn every_reference_of_the_schema_leads_somewhere() {
        fn references(value: &Value, out: &mut Vec<String>) {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(target)) = fields.get("$ref") {
                        out.push(target.clone());
                    }
                    fields.values().for_each(|value| references(value, out));
                }
                Value::Array(items) => items.iter().for_each(|value| references(value, out)),
                _ => {}
            }
        }
        let schema = json_schema().unwrap();
        let mut found = Vec::new();
        references(&schema, &mut found);
        assert!(found.len() > 10);
        for target in found {
            assert!(
                schema
                    .pointer(target.trim_start_matches('#'))
                    .is_some_and(Value::is_object),
                "{target}"
            );
        }
    }
}
