//! Sources of a machine: its `Machine` or machine template, its `MetalStackMachine` or the template of that, and the
//! `Secret` with its user data.

use super::{
    document::{Doc, Kind},
    reader::{Reader, Word, given, is_empty},
};
use crate::{
    convert::build::{entry, field, list, map, text},
    path::join,
    scalar,
    tree::{Entry, Node, Span, Value},
};

const MACHINE: &[(&str, &str)] = &[
    ("clusterName", "the name of the Cluster"),
    ("bootstrap", "a map with dataSecretName"),
    ("infrastructureRef", "a reference"),
    ("version", "a version"),
    ("providerID", "metalstack://UUID"),
    ("failureDomain", "the name of a failure domain"),
];
const MACHINE_REFUSED: &[(&str, &str)] = &[
    (
        "nodeDrainTimeout",
        "leave it out; terminationGracePeriod of a group is the time that its nodes get to stop",
    ),
    (
        "nodeVolumeDetachTimeout",
        "leave it out; volumes are not detached by Drover",
    ),
    (
        "nodeDeletionTimeout",
        "leave it out; a removal goes on until it is done",
    ),
    (
        "deletion",
        "leave it out; terminationGracePeriod of a group is the time that its nodes get to stop",
    ),
    (
        "readinessGates",
        "leave it out; `health` of a group says when its nodes are ready",
    ),
];
const BOOTSTRAP: &[(&str, &str)] = &[
    ("dataSecretName", "the name of a Secret"),
    ("configRef", "a reference"),
    ("data", "user data in base64"),
];
const METAL: &[(&str, &str)] = &[
    ("image", "the name of an image"),
    ("machineType", "a size of machine"),
    ("providerID", "metalstack://UUID"),
    ("sshKeys", "a list of public keys"),
    ("tags", "a list of strings"),
    ("partition", "the name of a partition"),
    ("projectID", "the id of a project"),
    ("userData", "what the controller wrote"),
];
/// Fields of the maintained provider.
const MAINTAINED: &[(&str, &str)] = &[
    ("image", "the name of an image"),
    ("size", "a size of machine"),
    ("providerID", "metal://PARTITION/UUID"),
];
const TEMPLATE: &[(&str, &str)] = &[("template", "a map with a spec")];
const TEMPLATE_INNER: &[(&str, &str)] = &[
    ("metadata", "a map"),
    ("spec", "a map"),
    ("apiVersion", "the version of its API"),
    ("kind", "its kind"),
    ("status", "what the controller wrote"),
];

/// Location of the machines of a cluster that specify none themselves.
#[derive(Debug, Default)]
pub(super) struct Site {
    pub(super) project: Option<Word>,
    pub(super) partition: Option<Word>,
}

/// How machines are created.
#[derive(Debug, Default)]
pub(super) struct Recipe {
    pub(super) version: Option<Word>,
    pub(super) node_class: Option<Word>,
    pub(super) labels: Vec<Entry>,
    pub(super) properties: Vec<Entry>,
    pub(super) domain: Option<Word>,
    /// The machine, if the recipe is for a single one.
    pub(super) host: Option<Word>,
    /// `userData` or `userDataBase64`.
    pub(super) user_data: Option<Entry>,
}

impl Recipe {
    /// Whether machines with these recipes differ only by their names.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let word = |a: &Option<Word>, b: &Option<Word>| {
            a.as_ref().map(|word| &word.text) == b.as_ref().map(|word| &word.text)
        };
        let entries = |a: &[Entry], b: &[Entry]| a.len() == b.len() && a.iter().zip(b).all(same);
        let user_data = match (&self.user_data, &other.user_data) {
            (Some(a), Some(b)) => same((a, b)),
            (a, b) => a.is_none() && b.is_none(),
        };
        user_data
            && self.host.is_some() == other.host.is_some()
            && word(&self.version, &other.version)
            && word(&self.node_class, &other.node_class)
            && word(&self.domain, &other.domain)
            && entries(&self.labels, &other.labels)
            && entries(&self.properties, &other.properties)
    }
}

fn same((a, b): (&Entry, &Entry)) -> bool {
    a.key == b.key && same_value(&a.value, &b.value)
}

fn same_value(a: &Node, b: &Node) -> bool {
    match (&a.value, &b.value) {
        (Value::Scalar { text: a, .. }, Value::Scalar { text: b, .. }) => a == b,
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_value(a, b))
        }
        (Value::Map(a), Value::Map(b)) => a.len() == b.len() && a.iter().zip(b).all(same),
        _ => false,
    }
}

impl Reader<'_, '_> {
    /// Reads the recipe from the spec of a `Machine` at `path` of a document. `infrastructure` is the kind that it
    /// refers to.
    pub(super) fn machine(
        &mut self,
        doc: &Doc,
        spec: &Node,
        path: &str,
        infrastructure: Kind,
        site: &Site,
    ) -> Recipe {
        self.fields(spec, path, MACHINE, MACHINE_REFUSED);
        let mut recipe = Recipe {
            version: self.text(spec, path, "version"),
            domain: self.text(spec, path, "failureDomain"),
            ..Recipe::default()
        };
        let mut written = None;
        match spec.entry("infrastructureRef") {
            Some(reference) => {
                let at = join(path, "infrastructureRef");
                if let Some(metal) = self.reference(reference, &at, &doc.namespace, infrastructure)
                {
                    written = self.metal(metal, site, &mut recipe);
                }
            }
            None => self.missing(spec, path, "infrastructureRef", "a reference"),
        }
        // The controller also writes it into the Machine.
        if let Some(id) = self.text(spec, path, "providerID") {
            let at = join(path, "providerID");
            match &recipe.host {
                None => recipe.host = self.host(&id, &at),
                Some(host) if id.text.to_lowercase().ends_with(&host.text) => {}
                Some(_) => {
                    let message = format!("`{}` is not that of {}", id.text, infrastructure.name());
                    let advice = "expected the same machine in both";
                    self.decoder.error(id.span, &at, message, advice);
                }
            }
        }
        recipe.user_data = self.bootstrap(doc, spec, path, written);
        recipe
    }

    /// Reads a `MetalStackMachine`, or the template of one. Returns the secret that its controller wrote into it.
    fn metal(&mut self, doc: &Doc, site: &Site, recipe: &mut Recipe) -> Option<Word> {
        let mut spec = self.spec(doc)?;
        let mut path = "spec".to_owned();
        if doc.kind == Kind::MetalStackMachineTemplate {
            self.fields(spec, "spec", TEMPLATE, &[]);
            let Some(template) = spec.get("template") else {
                self.missing(spec, "spec", "template", "a map with a spec");
                return None;
            };
            self.fields(template, "spec.template", TEMPLATE_INNER, &[]);
            let Some(inner) = template.get("spec") else {
                self.missing(template, "spec.template", "spec", "a map");
                return None;
            };
            spec = inner;
            path = "spec.template.spec".into();
        }
        let path = &path;
        let (known, size) = if doc.is_maintained() {
            (MAINTAINED, "size")
        } else {
            (METAL, "machineType")
        };
        self.fields(spec, path, known, &[]);
        recipe.node_class = self.required(spec, path, size, "a size of machine");
        if let Some(image) = self.required(spec, path, "image", "the name of an image") {
            let value = text(image.span, &image.text);
            recipe.properties.push(field("image", value));
        }
        for (key, at) in [("project", "projectID"), ("partition", "partition")] {
            let usual = match key {
                "project" => &site.project,
                _ => &site.partition,
            };
            let word = self.text(spec, path, at);
            if let Some(word) =
                word.filter(|word| usual.as_ref().is_none_or(|usual| usual.text != word.text))
            {
                recipe
                    .properties
                    .push(field(key, text(word.span, &word.text)));
            }
        }
        for key in ["sshKeys", "tags"] {
            recipe.properties.extend(self.texts(spec, path, key));
        }
        if doc.is_maintained() {
            // Its controller puts machines into the network of the nodes, and no other.
            let span = doc.name_span();
            recipe
                .properties
                .push(entry("networks", span, list(span, Vec::new())));
        }
        if let Some(id) = self.text(spec, path, "providerID") {
            // A template is read once for each group that uses it.
            let at = join(path, "providerID");
            recipe.host = self.host(&id, &at);
        }
        let secret = given(spec, "userData")?;
        self.text(&secret.value, &join(path, "userData"), "name")
    }

    /// `userData` or `userDataBase64` of a machine. `written` is the secret that a controller wrote elsewhere.
    fn bootstrap(
        &mut self,
        doc: &Doc,
        spec: &Node,
        path: &str,
        written: Option<Word>,
    ) -> Option<Entry> {
        let at = join(path, "bootstrap");
        let Some(bootstrap) = given(spec, "bootstrap") else {
            return match written {
                Some(name) => self.secret(doc, &name, &at),
                None => {
                    self.missing(spec, path, "bootstrap", "a map with dataSecretName");
                    None
                }
            };
        };
        let inline = given(&bootstrap.value, "data");
        if let Some(inline) = inline {
            self.decoder.hide(&inline.value);
        }
        self.fields(&bootstrap.value, &at, BOOTSTRAP, &[]);
        let name = self.text(&bootstrap.value, &at, "dataSecretName");
        let reference = given(&bootstrap.value, "configRef");
        if let Some(reference) = reference
            && let Some((kind, name, namespace)) =
                self.referred(reference, &join(&at, "configRef"), &doc.namespace)
            && let Some(kind) = Kind::of(&kind.text)
            && let Some(config) = self.documents.find(kind, &namespace, &name.text)
        {
            // Its content is not needed: the secret is its result.
            config.used.set(true);
        }
        if let Some(name) = name.or(written) {
            return self.secret(doc, &name, &join(&at, "dataSecretName"));
        }
        if let Some(inline) = inline {
            return self.user_data(&inline.value, &join(&at, "data"), true);
        }
        match reference {
            Some(reference) => {
                let kind = reference.value.get("kind").and_then(Node::text);
                let message = format!(
                    "user data of {} would have to be generated from a {}, which Drover does not do",
                    doc.title(),
                    kind.unwrap_or("configRef")
                );
                let advice = "name a Secret with the finished user data in dataSecretName";
                let at = join(&at, "configRef");
                self.decoder.error(reference.span, &at, message, advice);
            }
            None => {
                let expected = "the name of the Secret with the user data";
                self.missing(&bootstrap.value, &at, "dataSecretName", expected);
            }
        }
        None
    }

    /// The entry `value` of a bootstrap secret.
    fn secret(&mut self, doc: &Doc, name: &Word, path: &str) -> Option<Entry> {
        let documents = self.documents;
        let Some(secret) = documents.find(Kind::Secret, &doc.namespace, &name.text) else {
            self.dangling(Kind::Secret, &doc.namespace, name, path);
            return None;
        };
        secret.used.set(true);
        // As on the API server, stringData takes precedence.
        for (section, encoded) in [("stringData", false), ("data", true)] {
            if let Some(value) = secret.root.get(section).and_then(|data| data.get("value")) {
                return self.user_data(value, &join(section, "value"), encoded);
            }
        }
        let message = format!("{} has no key `value`", secret.title());
        let advice = "expected user data in stringData.value, or in data.value as base64";
        self.decoder
            .error(secret.name_span(), "data.value", message, advice);
        None
    }

    /// User data in the notation of the manifest. No message contains its content.
    fn user_data(&mut self, node: &Node, path: &str, encoded: bool) -> Option<Entry> {
        let content = match &node.value {
            Value::Scalar { text, .. } if encoded => scalar::from_base64(text),
            Value::Scalar { text, .. } if node.text().is_some() || is_empty(node) => {
                Some(text.clone().into_bytes())
            }
            _ => None,
        };
        let Some(content) = content else {
            let advice = if encoded {
                "expected bytes in base64"
            } else {
                "expected a string; quote it"
            };
            self.decoder.error(node.span, path, "wrong value", advice);
            return None;
        };
        let (key, written) = match String::from_utf8(content) {
            Ok(text) => ("userData", text),
            Err(error) => ("userDataBase64", scalar::to_base64(error.as_bytes())),
        };
        Some(field(key, text(node.span, &written)))
    }
}

/// `properties` of a group.
pub(super) fn properties(recipe: &Recipe) -> Option<Entry> {
    let span = recipe.properties.first()?.span;
    Some(entry(
        "properties",
        span,
        map(span, recipe.properties.clone()),
    ))
}

/// `placement` of a group: its failure domain, and its machines if they are named.
pub(super) fn placement(recipe: &Recipe, hosts: &[&Word]) -> Option<Entry> {
    let mut fields = Vec::new();
    let names = |key: &str, words: &[&Word], span: Span| {
        let items = words.iter().map(|word| text(word.span, &word.text));
        entry(key, span, list(span, items.collect()))
    };
    if let Some(domain) = &recipe.domain {
        fields.push(names("failureDomains", &[domain], domain.span));
    }
    if let Some(first) = hosts.first() {
        fields.push(names("hosts", hosts, first.span));
    }
    let span = fields.first()?.span;
    Some(entry("placement", span, map(span, fields)))
}

/// Labels that a group keeps: those that describe its machines.
pub(super) fn labels(labels: &[Entry]) -> Vec<Entry> {
    let own = |key: &str| {
        key.split_once('/').map_or(
            matches!(key, "machine-template-hash" | "cluster-name"),
            |(prefix, _)| {
                matches!(
                    prefix,
                    "cluster.x-k8s.io"
                        | "controlplane.cluster.x-k8s.io"
                        | "topology.cluster.x-k8s.io"
                )
            },
        )
    };
    let mut kept: Vec<Entry> = labels
        .iter()
        .filter(|label| !own(&label.key))
        .cloned()
        .collect();
    kept.sort_by(|a, b| a.key.cmp(&b.key));
    kept
}
