//! Indexes the documents, and reads the parts that all have in common.

use std::{cell::Cell, collections::BTreeMap};

use super::machine;

use crate::{
    convert::fields::lost,
    decode::Decoder,
    path, schema,
    tree::{Entry, Node, Span},
};

/// Kinds of documents that make up a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Cluster,
    Machine,
    MachineSet,
    MachineDeployment,
    MetalStackCluster,
    MetalStackMachine,
    MetalStackMachineTemplate,
    MetalStackFirewall,
    MetalStackFirewallDeployment,
    MetalStackFirewallTemplate,
    KubeadmControlPlane,
    KubeadmConfig,
    KubeadmConfigTemplate,
    Secret,
}

const CORE: &str = "cluster.x-k8s.io";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// Kinds with their names and API groups.
const KINDS: [(Kind, &str, &str); 14] = [
    (Kind::Cluster, "Cluster", CORE),
    (Kind::Machine, "Machine", CORE),
    (Kind::MachineSet, "MachineSet", CORE),
    (Kind::MachineDeployment, "MachineDeployment", CORE),
    (Kind::MetalStackCluster, "MetalStackCluster", INFRASTRUCTURE),
    (Kind::MetalStackMachine, "MetalStackMachine", INFRASTRUCTURE),
    (
        Kind::MetalStackMachineTemplate,
        "MetalStackMachineTemplate",
        INFRASTRUCTURE,
    ),
    (
        Kind::MetalStackFirewall,
        "MetalStackFirewall",
        INFRASTRUCTURE,
    ),
    (
        Kind::MetalStackFirewallDeployment,
        "MetalStackFirewallDeployment",
        INFRASTRUCTURE,
    ),
    (
        Kind::MetalStackFirewallTemplate,
        "MetalStackFirewallTemplate",
        INFRASTRUCTURE,
    ),
    (
        Kind::KubeadmControlPlane,
        "KubeadmControlPlane",
        "controlplane.cluster.x-k8s.io",
    ),
    (
        Kind::KubeadmConfig,
        "KubeadmConfig",
        "bootstrap.cluster.x-k8s.io",
    ),
    (
        Kind::KubeadmConfigTemplate,
        "KubeadmConfigTemplate",
        "bootstrap.cluster.x-k8s.io",
    ),
    (Kind::Secret, "Secret", ""),
];

/// Versions of the Cluster API.
const VERSIONS: &[&str] = &["v1alpha3", "v1alpha4", "v1beta1", "v1beta2"];
/// Version of the maintained provider for metal-stack.
const MAINTAINED: &str = "v1alpha1";
/// Versions of the archived one.
const ARCHIVED: &[&str] = &["v1alpha3", "v1alpha4"];

/// Kinds without a counterpart, with advice.
const FOREIGN: [(&str, &str); 4] = [
    (
        "MachineHealthCheck",
        "leave it out: `health` and `remediation` of a group say when its nodes are replaced",
    ),
    ("MachinePool", "write it as a MachineDeployment"),
    (
        "ClusterClass",
        "export the Cluster, Machines and MachineDeployments that it made",
    ),
    (
        "ClusterResourceSet",
        "leave it out and apply its resources to the finished cluster",
    ),
];

/// Label that names the cluster of an object.
pub(super) const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
/// Label of control plane machines, with any value.
pub(super) const CONTROL_PLANE: &str = "cluster.x-k8s.io/control-plane";

impl Kind {
    pub(super) fn name(self) -> &'static str {
        KINDS
            .iter()
            .find(|(kind, ..)| *kind == self)
            .map_or("", |(_, name, _)| *name)
    }

    pub(super) fn of(name: &str) -> Option<Self> {
        KINDS
            .iter()
            .find(|(_, known, _)| *known == name)
            .map(|(kind, ..)| *kind)
    }

    /// Supported versions. `None`: any, as documents that are referred to but not read may have.
    fn versions(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Cluster | Self::Machine | Self::MachineSet | Self::MachineDeployment => {
                Some(VERSIONS)
            }
            Self::MetalStackFirewall => Some(ARCHIVED),
            Self::MetalStackFirewallDeployment | Self::MetalStackFirewallTemplate => {
                Some(&[MAINTAINED])
            }
            Self::MetalStackCluster | Self::MetalStackMachine | Self::MetalStackMachineTemplate => {
                Some(&["v1alpha3", "v1alpha4", MAINTAINED])
            }
            Self::KubeadmControlPlane
            | Self::KubeadmConfig
            | Self::KubeadmConfigTemplate
            | Self::Secret => None,
        }
    }

    /// Whether its content is read, not only its existence.
    fn is_read(self) -> bool {
        !matches!(
            self,
            Self::Secret
                | Self::KubeadmControlPlane
                | Self::KubeadmConfig
                | Self::KubeadmConfigTemplate
        )
    }
}

#[derive(Debug)]
pub(super) struct Doc {
    pub(super) kind: Kind,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) root: Node,
    /// Whether a cluster uses it.
    pub(super) used: Cell<bool>,
}

impl Doc {
    fn metadata(&self) -> Option<&Node> {
        self.root.get("metadata")
    }

    pub(super) fn labels(&self) -> &[Entry] {
        self.metadata()
            .and_then(|metadata| metadata.get("labels")?.map())
            .unwrap_or_default()
    }

    /// Whether it is of the maintained provider for metal-stack, whose fields differ from those of the archived one.
    pub(super) fn is_maintained(&self) -> bool {
        let api = self.root.get("apiVersion").and_then(Node::text);
        api.and_then(|api| api.strip_prefix(INFRASTRUCTURE)?.strip_prefix('/')) == Some(MAINTAINED)
    }

    pub(super) fn label(&self, key: &str) -> Option<&Entry> {
        self.labels().iter().find(|label| label.key == key)
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&Entry> {
        self.metadata()?.get("annotations")?.entry(key)
    }

    /// Name of its owner of a kind.
    pub(super) fn owner(&self, kind: Kind) -> Option<&str> {
        let owners = self.metadata()?.get("ownerReferences")?;
        let crate::tree::Value::List(owners) = &owners.value else {
            return None;
        };
        owners
            .iter()
            .find(|owner| owner.get("kind").and_then(Node::text) == Some(kind.name()))?
            .get("name")?
            .text()
    }

    pub(super) fn name_span(&self) -> Span {
        path::locate(&self.root, "metadata.name").0
    }

    /// Name in messages.
    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.kind.name(), self.name)
    }
}

/// All documents, with an index.
#[derive(Debug, Default)]
pub(super) struct Documents {
    docs: Vec<Doc>,
    /// Whether all documents could be read. Otherwise their relations are unknown.
    pub(super) complete: bool,
    index: BTreeMap<(Kind, String, String), usize>,
}

impl Documents {
    pub(super) fn read(
        decoder: &mut Decoder<'_>,
        roots: Vec<Node>,
        warnings: &mut Vec<String>,
    ) -> Self {
        // Before the first diagnostic, whose line may also contain user data.
        for root in &roots {
            if root.get("kind").and_then(Node::text) == Some(Kind::Secret.name()) {
                decoder.hide(root);
            }
        }
        let mut documents = Self::default();
        let before = decoder.diagnostics.count();
        for root in roots {
            let Some(doc) = document(decoder, root, warnings) else {
                continue;
            };
            let key = (doc.kind, doc.namespace.clone(), doc.name.clone());
            if let Some(first) = documents.index.get(&key) {
                let first = documents.docs[*first].name_span();
                let place = format!("{}:{}", decoder.source_of(first).name, first.line);
                let message = format!("{} is defined twice", doc.title());
                let advice = format!("first at {place}; expected it once");
                decoder.error(doc.name_span(), "metadata.name", message, &advice);
            } else {
                documents.index.insert(key, documents.docs.len());
                documents.docs.push(doc);
            }
        }
        documents.complete = decoder.diagnostics.count() == before;
        documents
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Doc> {
        self.docs.iter()
    }

    pub(super) fn of(&self, kind: Kind) -> impl Iterator<Item = &Doc> {
        self.docs.iter().filter(move |doc| doc.kind == kind)
    }

    pub(super) fn find(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Doc> {
        let key = (kind, namespace.to_owned(), name.to_owned());
        self.index.get(&key).map(|at| &self.docs[*at])
    }
}

/// Reads the parts that all documents have. `None` for one that is not part of a cluster, which is reported.
fn document(decoder: &mut Decoder<'_>, root: Node, warnings: &mut Vec<String>) -> Option<Doc> {
    let kind = kind(decoder, &root, warnings)?;
    let Some(metadata) = root.get("metadata") else {
        let span = path::first_line(&root);
        let message = "`metadata` is missing";
        decoder.error(span, "metadata", message, "expected a map with a name");
        return None;
    };
    if kind.is_read() {
        let known = [
            ("apiVersion", "the version of its API".to_owned()),
            ("kind", "its kind".to_owned()),
            ("metadata", "a map with a name".to_owned()),
            ("spec", "a map".to_owned()),
        ];
        for entry in root.map().unwrap_or_default() {
            // The status will be observed again.
            if entry.key != "status" && !known.iter().any(|(key, _)| *key == entry.key) {
                decoder.unknown(entry, "", &known);
            }
        }
    }
    let (name, namespace) = decoder.names(&root, metadata)?;
    let doc = Doc {
        kind,
        namespace,
        name,
        root,
        used: Cell::new(false),
    };
    if kind.is_read() {
        annotations(decoder, &doc, warnings);
    }
    Some(doc)
}

/// Annotations have no effect, but their author should know that they are dropped.
fn annotations(decoder: &mut Decoder<'_>, doc: &Doc, warnings: &mut Vec<String>) {
    if let Some(paused) = doc.annotation("cluster.x-k8s.io/paused") {
        let message = format!("{} is paused, which cannot be carried over", doc.title());
        let advice = "leave it out; drover pause CLUSTER does the same once it is applied";
        decoder.error(paused.span, "metadata.annotations", message, advice);
    }
    let annotations = doc
        .metadata()
        .and_then(|metadata| metadata.get("annotations"))
        .and_then(Node::map)
        .unwrap_or_default();
    lost(warnings, &doc.title(), "annotations", annotations);
    // Labels of clusters and machines are kept, as are those of sets if their machines have them too.
    if !matches!(doc.kind, Kind::Cluster | Kind::Machine) {
        let template = doc.root.get("spec").and_then(|spec| spec.get("template"));
        let kept = template
            .and_then(|template| template.get("metadata")?.get("labels")?.map())
            .unwrap_or_default();
        let labels: Vec<Entry> = machine::labels(doc.labels())
            .into_iter()
            .filter(|label| !kept.iter().any(|kept| kept.key == label.key))
            .collect();
        lost(warnings, &doc.title(), "labels", &labels);
    }
}

fn kind(decoder: &mut Decoder<'_>, root: &Node, warnings: &mut Vec<String>) -> Option<Kind> {
    let word = |key: &str| root.get(key).and_then(Node::text).unwrap_or_default();
    let (api, name) = (word("apiVersion"), word("kind"));
    let (group, version) = api.rsplit_once('/').unwrap_or(("", api));
    let span = |key: &str| path::locate(root, key).0;
    if (api, name) == ("v1", "Namespace") {
        let called = root
            .get("metadata")
            .and_then(|metadata| metadata.get("name"));
        let called = called.and_then(Node::text).unwrap_or_default();
        warnings.push(format!(
            "Namespace/{called} is left out: clusters here have none"
        ));
        return None;
    }
    let Some(kind) = Kind::of(name) else {
        let advice = FOREIGN.iter().find(|(kind, _)| *kind == name);
        let advice = advice.map_or_else(
            || {
                let names: Vec<String> = KINDS.iter().map(|(_, name, _)| (*name).into()).collect();
                format!("expected {}", schema::one_of(&names))
            },
            |(_, advice)| (*advice).to_owned(),
        );
        let message = format!("{name} ({api}) cannot be converted");
        decoder.error(span("kind"), "kind", message, &advice);
        return None;
    };
    let expected = KINDS
        .iter()
        .find(|(known, ..)| *known == kind)
        .map_or("", |(.., group)| *group);
    let versions = kind.versions();
    let known = group == expected && versions.is_none_or(|versions| versions.contains(&version));
    if !known {
        let any: &[&str] = if expected.is_empty() {
            &["v1"]
        } else {
            &["v1alpha4"]
        };
        let versions: Vec<String> = versions
            .unwrap_or(any)
            .iter()
            .map(|version| {
                format!("{expected}/{version}")
                    .trim_start_matches('/')
                    .to_owned()
            })
            .collect();
        let message = format!("`{api}` of {name} is not supported");
        let advice = format!("expected {}", schema::one_of(&versions));
        decoder.error(span("apiVersion"), "apiVersion", message, &advice);
        return None;
    }
    Some(kind)
}
