//! Fields that documents of Kubernetes have in common, and how they are read.

use crate::{
    decode::Decoder,
    path::{self, join},
    tree::{Entry, Node, Scalar, Span, Value},
};

/// Fields of `metadata` in a Kubernetes API server; most of them mean nothing elsewhere.
const METADATA: [&str; 16] = [
    "name",
    "namespace",
    "labels",
    "annotations",
    "ownerReferences",
    "generateName",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "finalizers",
    "managedFields",
    "selfLink",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "clusterName",
];

/// Annotations that controllers and tools set for themselves.
const OWN_ANNOTATIONS: [&str; 6] = [
    "kubectl.kubernetes.io/",
    "cluster.x-k8s.io/",
    "machinedeployment.clusters.x-k8s.io/",
    "controlplane.cluster.x-k8s.io/",
    "deployment.kubernetes.io/",
    PLATFORM,
];

/// Annotation that names the platform of a cluster.
pub(super) const PLATFORM: &str = "drover.dev/platform";

/// A text and its position.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) span: Span,
}

/// Whether a field is empty, like the zero values that Go writes for unset fields.
pub(super) fn is_empty(node: &Node) -> bool {
    match &node.value {
        Value::Map(entries) => entries.is_empty(),
        Value::List(items) => items.is_empty(),
        Value::Scalar { text, .. } => {
            text.is_empty()
                || matches!(
                    node.scalar(),
                    Some(Scalar::Null | Scalar::Bool(false) | Scalar::Integer(0))
                )
        }
    }
}

/// A field that is not empty.
pub(super) fn given<'n>(node: &'n Node, key: &str) -> Option<&'n Entry> {
    node.entry(key).filter(|entry| !is_empty(&entry.value))
}

impl Decoder<'_> {
    /// Checks that a map only has known fields. `refused` are fields that are not supported.
    pub(super) fn fields(
        &mut self,
        node: &Node,
        path: &str,
        known: &[(&'static str, &'static str)],
        refused: &[(&'static str, &'static str)],
    ) {
        for entry in self.map(node, path, "a map") {
            if known.iter().any(|(key, _)| *key == entry.key) {
                continue;
            }
            let Some((_, advice)) = refused.iter().find(|(key, _)| *key == entry.key) else {
                let known: Vec<(&str, String)> = known
                    .iter()
                    .map(|(key, expected)| (*key, (*expected).to_owned()))
                    .collect();
                self.unknown(entry, path, &known);
                continue;
            };
            if !is_empty(&entry.value) {
                let message = format!("`{}` cannot be carried over", entry.key);
                let path = join(path, &entry.key);
                self.error(entry.span, &path, message, advice);
            }
        }
    }

    /// A text, if the field exists and is not empty.
    pub(super) fn word(&mut self, node: &Node, path: &str, key: &str) -> Option<Word> {
        let entry = given(node, key)?;
        let text = self.text(&entry.value, &join(path, key), "a string")?;
        let span = entry.value.span;
        Some(Word { text, span })
    }

    /// A required text.
    pub(super) fn required(
        &mut self,
        node: &Node,
        path: &str,
        key: &str,
        expected: &str,
    ) -> Option<Word> {
        if given(node, key).is_none() {
            self.missing(node, path, key, expected);
        }
        self.word(node, path, key)
    }

    pub(super) fn missing(&mut self, node: &Node, path: &str, key: &str, expected: &str) {
        let at = join(path, key);
        let span = path::first_line(node);
        let message = format!("`{at}` is missing");
        self.error(span, &at, message, &format!("expected {expected}"));
    }

    /// Reads name and namespace. `None`, with a diagnostic, if they are invalid.
    pub(super) fn names(&mut self, root: &Node, metadata: &Node) -> Option<(String, String)> {
        let mut name = String::new();
        let mut namespace = "default".to_owned();
        for entry in self.map(metadata, "metadata", "a map with a name") {
            let at = join("metadata", &entry.key);
            match entry.key.as_str() {
                "name" => name = self.text(&entry.value, &at, "a name")?,
                "namespace" if !entry.value.is_null() => {
                    namespace = self.text(&entry.value, &at, "a name")?;
                }
                "labels" | "annotations" if !entry.value.is_null() => {
                    for pair in self.map(&entry.value, &at, "a map of strings") {
                        self.text(&pair.value, &join(&at, &pair.key), "a string");
                    }
                }
                key if METADATA.contains(&key) => {}
                _ => {
                    let known = METADATA.map(|key| (key, "what the server writes".to_owned()));
                    self.unknown(entry, "metadata", &known);
                }
            }
        }
        if name.is_empty() {
            let (span, _) = path::locate(root, "metadata");
            let message = "`metadata.name` is missing";
            self.error(span, "metadata.name", message, "expected a name");
            return None;
        }
        Some((name, namespace))
    }
}

/// Warns about labels or annotations that are dropped.
pub(super) fn lost(warnings: &mut Vec<String>, title: &str, what: &str, entries: &[Entry]) {
    let keys: Vec<&str> = entries
        .iter()
        .map(|entry| entry.key.as_str())
        .filter(|key| !OWN_ANNOTATIONS.iter().any(|own| key.starts_with(own)))
        .collect();
    if !keys.is_empty() {
        let keys = keys.join(", ");
        warnings.push(format!("{what} of {title} are left out: {keys}"));
    }
}

/// Whether a text can be the value of a label.
pub(super) fn is_label_value(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && edge(text.chars().next())
        && edge(text.chars().last())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}
