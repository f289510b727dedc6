//! Documents of the metal-stack providers for Cluster API (CAPM), the archived and the maintained one, and of the
//! Cluster API around them.
//!
//! Unlike other documents they only make sense together: a `Cluster` names a `MetalStackCluster`, machines name their
//! cluster, their `MetalStackMachine` and the `Secret` with their user data. All documents of a command form one
//! [`Bundle`], in any order and from any number of files; every `Cluster` in it becomes a Drover manifest.

mod cluster;
mod document;
mod firewall;
mod group;
mod machine;
mod reader;
mod rules;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use self::{
    document::{Documents, Kind},
    reader::Reader,
};
use crate::{
    decode::Decoder,
    diagnostic::Diagnostics,
    path,
    tree::{Node, Source, Value},
};

/// Whether a document belongs to the Cluster API or to its metal-stack provider.
pub(super) fn is_one(api_version: &str, kind: &str) -> bool {
    let group = api_version.split('/').next().unwrap_or_default();
    group == "cluster.x-k8s.io"
        || group.ends_with(".cluster.x-k8s.io")
        || kind.starts_with("MetalStack")
}

/// The items of a `List`, as `kubectl get -o yaml` writes it.
pub(super) fn items(root: &Node) -> &[Node] {
    match root.get("items").map(|items| &items.value) {
        Some(Value::List(items)) => items,
        _ => &[],
    }
}

/// Documents that have to be read together.
#[derive(Debug, Default)]
pub(crate) struct Bundle {
    files: Vec<Arc<Source>>,
    roots: Vec<Node>,
}

/// A cluster as a Drover manifest, whose parts refer to the documents that they came from.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) root: Node,
}

/// Result of a conversion.
#[derive(Debug, Default)]
pub(crate) struct Converted {
    pub(crate) clusters: Vec<Cluster>,
    /// Files of the documents, indexed by spans.
    pub(crate) files: Arc<[Arc<Source>]>,
    /// Names of unregistered platforms, each already reported.
    pub(crate) unresolved: BTreeSet<String>,
    /// Warnings, each a sentence.
    pub(crate) warnings: Vec<String>,
}

impl Bundle {
    /// Adds a document, or all items of a `List`.
    pub(crate) fn add(&mut self, source: &Arc<Source>, root: &Node) {
        let known = self.files.iter().position(|file| Arc::ptr_eq(file, source));
        let file = known.unwrap_or_else(|| {
            self.files.push(source.clone());
            self.files.len() - 1
        });
        let mut root = root.clone();
        root.in_file(file + 1);
        self.unfold(root);
    }

    fn unfold(&mut self, root: Node) {
        if root.get("kind").and_then(Node::text) == Some("List") {
            for item in items(&root) {
                self.unfold(item.clone());
            }
        } else {
            self.roots.push(root);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }

    /// Converts every cluster. `registered` are the platforms that will exist, if known.
    pub(crate) fn convert(
        self,
        diagnostics: &mut Diagnostics,
        registered: Option<&BTreeSet<String>>,
    ) -> Converted {
        let files: Arc<[Arc<Source>]> = self.files.into();
        let Some(first) = files.first() else {
            return Converted::default();
        };
        let mut decoder = Decoder {
            source: first,
            files: &files,
            base: PathBuf::new(),
            diagnostics,
            kind: None,
        };
        let mut warnings = Vec::new();
        let documents = Documents::read(&mut decoder, self.roots, &mut warnings);
        let mut reader = Reader {
            decoder,
            documents: &documents,
            registered,
            warnings,
            unresolved: BTreeSet::new(),
            hosts: BTreeMap::new(),
            missed: BTreeSet::new(),
        };
        let clusters = reader.clusters();
        let Reader {
            warnings,
            unresolved,
            ..
        } = reader;
        Converted {
            clusters,
            unresolved,
            warnings,
            files: files.clone(),
        }
    }
}

impl Reader<'_, '_> {
    fn clusters(&mut self) -> Vec<Cluster> {
        let documents = self.documents;
        let mut names: BTreeMap<&str, &document::Doc> = BTreeMap::new();
        let mut clusters = Vec::new();
        for doc in documents.of(Kind::Cluster) {
            let before = self.decoder.diagnostics.count();
            if let Some(other) = names.insert(&doc.name, doc) {
                let place = self.place(other.name_span());
                let message = format!("there is a Cluster `{}` in two namespaces", doc.name);
                let advice = format!("expected different names; the other is at {place}");
                self.decoder
                    .error(doc.name_span(), "metadata.name", message, &advice);
            }
            let root = self.cluster(doc);
            // The errors in an invalid cluster would be reported again by later steps.
            if self.decoder.diagnostics.count() == before {
                clusters.push(Cluster { root });
            }
        }
        self.belonging();
        self.leftovers();
        clusters
    }

    /// Reports machines whose cluster is missing.
    fn belonging(&mut self) {
        let documents = self.documents;
        for kind in [Kind::Machine, Kind::MachineSet, Kind::MachineDeployment] {
            for doc in documents.of(kind) {
                let Some(spec) = self.spec(doc) else { continue };
                let expected = "the name of the Cluster";
                let Some(name) = self.required(spec, "spec", "clusterName", expected) else {
                    continue;
                };
                if documents
                    .find(Kind::Cluster, &doc.namespace, &name.text)
                    .is_none()
                {
                    self.dangling(Kind::Cluster, &doc.namespace, &name, "spec.clusterName");
                }
            }
        }
    }

    /// Reports documents that no cluster uses.
    fn leftovers(&mut self) {
        let documents = self.documents;
        let mut secrets = Vec::new();
        for doc in documents.all().filter(|doc| !doc.used.get()) {
            let way_out = match doc.kind {
                Kind::MetalStackCluster => {
                    "expected a Cluster whose spec.infrastructureRef names it"
                }
                Kind::MetalStackMachine => {
                    "expected a Machine whose spec.infrastructureRef names it"
                }
                Kind::MetalStackFirewall => {
                    "expected the label cluster.x-k8s.io/cluster-name with the name of a Cluster here"
                }
                Kind::MetalStackFirewallDeployment => {
                    "expected a MetalStackCluster whose spec.firewallDeploymentRef names it"
                }
                Kind::MetalStackFirewallTemplate => {
                    "expected a MetalStackFirewallDeployment whose spec.firewallTemplateRef names it"
                }
                Kind::Secret => {
                    secrets.push(doc.title());
                    continue;
                }
                Kind::MetalStackMachineTemplate
                | Kind::KubeadmConfig
                | Kind::KubeadmConfigTemplate
                | Kind::KubeadmControlPlane => {
                    self.warnings
                        .push(format!("{} is left out: nothing here uses it", doc.title()));
                    continue;
                }
                // Reported while looking for their cluster.
                Kind::Cluster | Kind::Machine | Kind::MachineSet | Kind::MachineDeployment => {
                    continue;
                }
            };
            // A dangling reference may be a misspelling of this name.
            if self.missed.contains(&doc.kind) || !documents.complete {
                continue;
            }
            let message = format!("{} belongs to no cluster", doc.title());
            self.decoder
                .error(doc.name_span(), "metadata.name", message, way_out);
        }
        if !secrets.is_empty() {
            let names = secrets.join(", ");
            self.warnings
                .push(format!("left out, since no machine names it: {names}"));
        }
    }

    /// Formats a position.
    fn place(&self, span: crate::tree::Span) -> String {
        let file = &self.decoder.source_of(span).name;
        format!("{file}:{}:{}", span.line, span.column)
    }

    /// The spec of a document. Reported if it is missing.
    fn spec<'n>(&mut self, doc: &'n document::Doc) -> Option<&'n Node> {
        let spec = doc.root.get("spec").filter(|spec| spec.map().is_some());
        if spec.is_none() {
            let span = path::first_line(&doc.root);
            let message = format!("`spec` of {} is missing", doc.title());
            self.decoder.error(span, "spec", message, "expected a map");
        }
        spec
    }
}
