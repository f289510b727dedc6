//! SIPCluster documents of Airship, of every revision: hosts of a tenant cluster, and the services beside it.
//!
//! What a document says of its cluster becomes groups of hosts (`nodes`) and add-ons (`services`). Fields of former
//! revisions are read beside those of the last one.

mod nodes;
pub(crate) mod secrets;
mod services;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use drover_core::{
    name::{check_cluster_name, cluster_in_namespace},
    sip::{CLUSTER_NAME, CLUSTER_NAMESPACE},
};

use super::{
    build::{entry, field, list, map, text},
    fields::{PLATFORM, Word, given, is_empty, is_label_value, lost},
};
use crate::{
    decode::Decoder,
    path::{self, join},
    tree::{Entry, Node, Scalar, Span},
};

/// Kind of the documents.
pub(super) const KIND: &str = "SIPCluster";
const API: &str = "airship.airshipit.org/v1";
/// The usual name of the platform.
const USUAL_PLATFORM: &str = "metal3";
const SPEC: &[(&str, &str)] = &[
    ("nodes", "a map of ControlPlane and Worker"),
    (
        "services",
        "a map of jumpHost, loadBalancerControlPlane, loadBalancerWorker",
    ),
    ("infra", "the services of former revisions"),
    ("cluster-name", "a string of former revisions"),
    ("clusterName", "a string of former revisions"),
    ("config", "a map of former revisions"),
];

/// Converts a document. Answers warnings, too.
pub(super) fn convert(decoder: &mut Decoder<'_>, root: &Node) -> (Option<Node>, Vec<String>) {
    let before = decoder.diagnostics.count();
    let Some(mut reader) = Reader::new(decoder, root) else {
        return (None, Vec::new());
    };
    let cluster = reader.cluster(root);
    let warnings = reader.warnings;
    // The errors in an invalid cluster would be reported again by later steps.
    let valid = decoder.diagnostics.count() == before;
    (valid.then_some(cluster), warnings)
}

/// Reads one document.
struct Reader<'a, 'd> {
    decoder: &'a mut Decoder<'d>,
    warnings: Vec<String>,
    namespace: String,
    name: Word,
    platform: Word,
    /// Ports of the infrastructure cluster's nodes that are taken: the first, the last, and where it says so.
    ports: Vec<(u64, u64, Span)>,
    /// Names of the add-ons.
    addons: BTreeSet<String>,
}

impl<'a, 'd> Reader<'a, 'd> {
    fn new(decoder: &'a mut Decoder<'d>, root: &Node) -> Option<Self> {
        if root.get("apiVersion").and_then(Node::text) != Some(API) {
            let (span, _) = path::locate(root, "apiVersion");
            let message = format!("this apiVersion of {KIND} is not supported");
            decoder.error(span, "apiVersion", message, &format!("expected {API}"));
            return None;
        }
        let Some(metadata) = root.get("metadata") else {
            let span = path::first_line(root);
            let message = "`metadata` is missing";
            decoder.error(span, "metadata", message, "expected a map with a name");
            return None;
        };
        let (name, namespace) = decoder.names(root, metadata)?;
        let (span, _) = path::locate(root, "metadata.name");
        let annotations = metadata.get("annotations");
        let platform = annotations
            .and_then(|annotations| decoder.word(annotations, "metadata.annotations", PLATFORM));
        Some(Self {
            decoder,
            warnings: Vec::new(),
            namespace,
            platform: platform.unwrap_or_else(|| Word {
                text: USUAL_PLATFORM.to_owned(),
                span: path::locate(root, "kind").0,
            }),
            name: Word { text: name, span },
            ports: Vec::new(),
            addons: BTreeSet::new(),
        })
    }

    /// Name of the document in messages.
    fn title(&self) -> String {
        format!("{KIND} {}/{}", self.namespace, self.name.text)
    }

    fn cluster(&mut self, root: &Node) -> Node {
        // The status will be observed again.
        self.decoder.fields(
            root,
            "",
            &[
                ("apiVersion", API),
                ("kind", KIND),
                ("metadata", "a map with a name"),
                ("spec", "a map"),
                ("status", "what SIP writes"),
            ],
            &[],
        );
        let metadata = self.metadata(root);
        let at = path::first_line(root);
        let spec = match root.get("spec") {
            Some(spec) => self.spec(spec),
            None => {
                self.decoder.missing(root, "", "spec", "a map with nodes");
                Vec::new()
            }
        };
        map(
            at,
            vec![
                entry("apiVersion", at, text(at, crate::API_VERSION)),
                entry("kind", at, text(at, "Cluster")),
                entry("metadata", self.name.span, map(self.name.span, metadata)),
                entry("spec", at, map(at, spec)),
            ],
        )
    }

    fn metadata(&mut self, root: &Node) -> Vec<Entry> {
        let span = self.name.span;
        let name = cluster_in_namespace(&self.namespace, &self.name.text);
        if let Err(why) = check_cluster_name(&name) {
            let message = format!("the name of a cluster {why}");
            self.decoder.error(span, "metadata.name", message, "");
        }
        let namespace = path::locate(root, "metadata.namespace").0;
        for (value, span, at) in [
            (&self.namespace, namespace, "metadata.namespace"),
            (&self.name.text, span, "metadata.name"),
        ] {
            if !is_label_value(value) {
                let message = format!("`{at}` cannot be kept as a label");
                let advice = "expected at most 63 letters, digits, hyphens, underscores and dots, which the labels of hosts repeat";
                self.decoder.error(span, at, message, advice);
            }
        }
        if self.namespace.contains(|c: char| c.is_ascii_uppercase()) {
            self.warnings.push(format!(
                "{}: Kubernetes refuses capital letters in a namespace, so there is none that is called {}",
                self.title(),
                self.namespace
            ));
        }
        let metadata = root.get("metadata");
        let entries = |key: &str| {
            let found = metadata.and_then(|metadata| metadata.get(key)?.map());
            found.unwrap_or_default()
        };
        let title = self.title();
        lost(
            &mut self.warnings,
            &title,
            "annotations",
            entries("annotations"),
        );
        let own = self.whose();
        let mut labels: Vec<Entry> = entries("labels").to_vec();
        labels.retain(|label| own.iter().all(|own| own.key != label.key));
        labels.extend(own);
        vec![
            field("name", text(span, &name)),
            entry("labels", span, map(span, labels)),
        ]
    }

    /// The labels that say which document a cluster or host belongs to.
    fn whose(&self) -> Vec<Entry> {
        let span = self.name.span;
        vec![
            entry(CLUSTER_NAMESPACE, span, text(span, &self.namespace)),
            entry(CLUSTER_NAME, span, text(span, &self.name.text)),
        ]
    }

    fn spec(&mut self, spec: &Node) -> Vec<Entry> {
        self.decoder.fields(spec, "spec", SPEC, &[]);
        self.former_name(spec);
        let services = self.services(spec);
        let groups = match given(spec, "nodes") {
            Some(nodes) => self.groups(&nodes.value, &services),
            None => {
                let expected = "a map of ControlPlane and Worker";
                self.decoder.missing(spec, "spec", "nodes", expected);
                Vec::new()
            }
        };
        let addons = self.served(&services, &groups);
        let span = self.platform.span;
        let mut fields = vec![
            entry("platform", span, text(span, &self.platform.text)),
            entry("groups", spec.span, map(spec.span, groups)),
        ];
        if let Some(first) = addons.first() {
            fields.push(entry("addons", first.span, list(first.span, addons)));
        }
        fields
    }

    /// The name that former revisions gave the tenant's cluster. It only named a namespace for its services.
    fn former_name(&mut self, spec: &Node) {
        let config = spec.get("config").filter(|config| !is_empty(config));
        if let Some(config) = config {
            let known = [("cluster-name", "a string")];
            self.decoder.fields(config, "spec.config", &known, &[]);
        }
        let in_config = config.and_then(|config| config.get("cluster-name"));
        let named = ["cluster-name", "clusterName"]
            .into_iter()
            .filter_map(|key| spec.get(key))
            .chain(in_config);
        for node in named.filter(|node| !is_empty(node)) {
            if let Some(text) = self.decoder.text(node, "spec.cluster-name", "a string") {
                let title = self.title();
                let name = cluster_in_namespace(&self.namespace, &self.name.text);
                self.warnings
                    .push(format!("{title}: its cluster is called {name}, not {text}"));
            }
        }
    }

    /// A whole number. Reported if it is none or too large.
    fn number(&mut self, node: &Node, path: &str, range: (u64, u64)) -> Option<u64> {
        let number = match node.scalar() {
            Some(Scalar::Integer(number)) => u64::try_from(number).ok(),
            _ => None,
        };
        let (min, max) = range;
        let number = number.filter(|number| (min..=max).contains(number));
        if number.is_none() {
            let expected = format!("a whole number from {min} to {max}");
            self.decoder.mismatch(node, path, &expected);
        }
        number
    }

    /// A map of texts as it is. Reported if it is none.
    fn text_map<'n>(&mut self, node: &'n Node, path: &str) -> &'n [Entry] {
        let entries = self.decoder.map(node, path, "a map of strings");
        for pair in entries {
            self.decoder
                .text(&pair.value, &join(path, &pair.key), "a string");
        }
        entries
    }
}
