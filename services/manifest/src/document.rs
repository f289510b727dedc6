//! Drover documents, and the parts that all of them have.

use drover_core::name;
use drover_proto::orchestrator::v1::{
    ApplySecretRequest, Cluster, Platform, PlatformSpec, SecretPurpose, SecretValue,
    secret_value::Value as SecretContent,
};
use prost_reflect::DynamicMessage;

use super::{
    API_VERSION,
    decode::Decoder,
    path::{self, join},
    scalar, schema,
    tree::{Entry, Node, Value},
};

/// Kinds of manifests.
const KINDS: [&str; 3] = ["Cluster", "Platform", "Secret"];

/// The kind of a Drover document.
pub(super) fn kind(decoder: &mut Decoder<'_>, root: &Node) -> Option<&'static str> {
    if root.map().is_none() {
        decoder.mismatch(root, "", "a map with apiVersion, kind and metadata");
        return None;
    }
    let expected = schema::one_of(&KINDS.map(str::to_owned));
    let kind = match root.get("kind") {
        Some(node) => {
            let text = decoder.text(node, "kind", &expected)?;
            let known = KINDS.into_iter().find(|kind| *kind == text);
            if known.is_none() {
                let message = match drover_core::name::closest(&text, KINDS) {
                    Some(kind) => format!("unknown kind `{text}`, did you mean `{kind}`?"),
                    None if text == "BareMetalHost" => {
                        "a BareMetalHost is not applied; to try it: drover dev --simulate-hosts FILE".into()
                    }
                    None => format!("unknown kind `{text}`"),
                };
                decoder.error(node.span, "kind", message, &format!("expected {expected}"));
            }
            known?
        }
        None => {
            decoder.error(
                path::first_line(root),
                "kind",
                "`kind` is missing",
                &format!("expected {expected}"),
            );
            return None;
        }
    };
    let expected = format!("expected {API_VERSION}");
    match root.get("apiVersion") {
        Some(node) if node.text() == Some(API_VERSION) => {}
        Some(node) => {
            let found = node.describe();
            decoder.error(
                node.span,
                "apiVersion",
                format!("wrong apiVersion: {found}"),
                &expected,
            );
        }
        None => decoder.error(
            path::first_line(root),
            "apiVersion",
            "`apiVersion` is missing",
            &expected,
        ),
    }
    Some(kind)
}

/// Reads name and labels; the other keys of the document are checked against `keys`.
fn metadata(
    decoder: &mut Decoder<'_>,
    root: &Node,
    keys: &[(&str, &str)],
    labels: bool,
) -> (String, Vec<(String, String)>) {
    let known: Vec<(&str, String)> = [
        ("apiVersion", API_VERSION),
        ("kind", "the kind"),
        ("metadata", "a map with a name"),
    ]
    .iter()
    .chain(keys)
    .map(|(key, expected)| (*key, (*expected).to_owned()))
    .collect();
    for entry in root.map().unwrap_or_default() {
        if !known.iter().any(|(key, _)| *key == entry.key) {
            decoder.unknown(entry, "", &known);
        }
    }
    let Some(metadata) = root.get("metadata") else {
        let at = path::first_line(root);
        decoder.lacks(root, at, "metadata", "expected a map with a name");
        return (String::new(), Vec::new());
    };
    let mut name = None;
    let mut found = Vec::new();
    for entry in decoder.map(metadata, "metadata", "a map with a name") {
        match entry.key.as_str() {
            "name" => {
                let text = decoder.text(&entry.value, "metadata.name", "a name");
                name = Some(text.unwrap_or_default());
            }
            "labels" if labels => {
                for label in decoder.map(&entry.value, "metadata.labels", "a map of strings") {
                    let path = join("metadata.labels", &label.key);
                    if let Some(value) = decoder.text(&label.value, &path, "a string") {
                        found.push((label.key.clone(), value));
                    }
                }
            }
            _ => {
                let mut known = vec![("name", "a name".to_owned())];
                if labels {
                    known.push(("labels", "a map of strings".to_owned()));
                }
                decoder.unknown(entry, "metadata", &known);
            }
        }
    }
    if name.is_none() && metadata.map().is_some() {
        let at = path::locate(root, "metadata").0;
        decoder.lacks(root, at, "metadata.name", "expected a name");
    }
    (name.unwrap_or_default(), found)
}

pub(super) fn cluster(decoder: &mut Decoder<'_>, root: &Node) -> Option<Cluster> {
    let (name, labels) = metadata(decoder, root, &[("spec", "a map")], true);
    let spec = spec(decoder, root, "drover.orchestrator.v1.ClusterSpec")?;
    Some(Cluster {
        name,
        labels: labels.into_iter().collect(),
        spec: spec.transcode_to().ok(),
        ..Default::default()
    })
}

pub(super) fn platform(decoder: &mut Decoder<'_>, root: &Node) -> Option<Platform> {
    let (name, _) = metadata(decoder, root, &[("spec", "a map with an endpoint")], false);
    let spec = spec(decoder, root, "drover.orchestrator.v1.PlatformSpec")?;
    let spec: PlatformSpec = spec.transcode_to().ok()?;
    if spec.endpoint.is_empty()
        && root
            .get("spec")
            .is_some_and(|spec| spec.get("endpoint").is_none())
    {
        let expected = "expected scheme://host:port with scheme http or https";
        let at = path::locate(root, "spec").0;
        decoder.lacks(root, at, "spec.endpoint", expected);
    }
    Some(Platform {
        name,
        spec: Some(spec),
        ..Default::default()
    })
}

fn spec(decoder: &mut Decoder<'_>, root: &Node, message: &str) -> Option<DynamicMessage> {
    let descriptor = schema::message(message).ok()?;
    let Some(spec) = root.get("spec") else {
        decoder.lacks(root, path::first_line(root), "spec", "expected a map");
        return None;
    };
    Some(decoder.message(&descriptor, spec, "spec"))
}

pub(super) fn secret(decoder: &mut Decoder<'_>, root: &Node) -> Option<ApplySecretRequest> {
    let keys = [
        ("stringData", "a map of strings"),
        ("data", "a map of bytes in base64"),
        ("dataFrom", "a map of {file: PATH}"),
        ("sha256", "a map of digests of stored values that are kept"),
    ];
    let mut known = keys.to_vec();
    known.push(("purpose", PURPOSES));
    let (name, _) = metadata(decoder, root, &known, false);
    let mut secret = ApplySecretRequest {
        name,
        ..Default::default()
    };
    if let Some(node) = root.get("purpose")
        && let Some(word) = decoder.text(node, "purpose", PURPOSES)
    {
        match purpose(&word) {
            Some(purpose) => secret.set_purpose(purpose),
            None => decoder.error(
                node.span,
                "purpose",
                "wrong value",
                "expected workload, probe or platform",
            ),
        }
    }
    for (section, expected) in keys {
        let Some(values) = root.get(section) else {
            continue;
        };
        for entry in decoder.map(values, section, expected) {
            // A value without a key is found in the place of the key.
            let is_key =
                !matches!(&entry.value.value, Value::Scalar { .. }) || entry.value.text().is_some();
            let key = name::shown_secret_key(&entry.key).filter(|_| is_key);
            let path = key.map_or_else(|| section.to_owned(), |key| join(section, key));
            let Some(content) = secret_value(decoder, section, entry, &path) else {
                continue;
            };
            if secret
                .data
                .insert(
                    entry.key.clone(),
                    SecretValue {
                        value: Some(content),
                    },
                )
                .is_some()
            {
                decoder.error(
                    entry.span,
                    &path,
                    "a key is defined twice",
                    "expected it once",
                );
            }
        }
    }
    Some(secret)
}

/// Purposes of a secret, for messages.
const PURPOSES: &str = "workload, probe or platform";

fn purpose(word: &str) -> Option<SecretPurpose> {
    Some(match word {
        "workload" => SecretPurpose::Workload,
        "probe" => SecretPurpose::Probe,
        "platform" => SecretPurpose::Platform,
        _ => return None,
    })
}

/// One value of a secret. No message contains its content.
fn secret_value(
    decoder: &mut Decoder<'_>,
    section: &str,
    entry: &Entry,
    path: &str,
) -> Option<SecretContent> {
    if section == "dataFrom" {
        return decoder
            .file(&entry.value, path)
            .map(|content| match String::from_utf8(content) {
                Ok(text) => SecretContent::Text(text),
                Err(error) => SecretContent::Binary(error.into_bytes()),
            });
    }
    let Value::Scalar { .. } = entry.value.value else {
        decoder.error(entry.span, path, "wrong value", "expected a string");
        return None;
    };
    let Some(text) = entry.value.text() else {
        decoder.error(
            entry.value.span,
            path,
            "wrong value",
            "expected a string; quote it",
        );
        return None;
    };
    match section {
        "stringData" => Some(SecretContent::Text(text.to_owned())),
        "data" => match scalar::from_base64(text) {
            Some(bytes) => Some(SecretContent::Binary(bytes)),
            None => {
                decoder.error(
                    entry.value.span,
                    path,
                    "wrong value",
                    "expected bytes in base64",
                );
                None
            }
        },
        _ => Some(SecretContent::Sha256(text.to_owned())),
    }
}
