//! The firewall of a cluster: inline in its `MetalStackCluster`, or a document of its own.

use super::{
    document::{CLUSTER_NAME, Doc, Kind},
    reader::{Reader, given},
};
use crate::{
    convert::build::{entry, field, map, text},
    path::join,
    tree::{Entry, Node, Span},
};

const FIREWALL: &[(&str, &str)] = &[
    ("image", "the name of an image"),
    ("machineType", "a size of machine"),
    ("providerID", "metalstack://UUID"),
];
const REFUSED: &[(&str, &str)] = &[(
    "sshKeys",
    "leave it out: a firewall takes no keys from a manifest",
)];

impl<'r> Reader<'_, 'r> {
    /// Builds `firewall` of the infrastructure.
    pub(super) fn firewall(&mut self, cluster: &Doc, infrastructure: &Doc) -> Option<Entry> {
        let inline = infrastructure
            .root
            .get("spec")
            .and_then(|spec| given(spec, "firewallSpec"));
        let own = self.own_firewall(cluster, infrastructure);
        let spec = own.and_then(|doc| Some((doc, self.spec(doc)?)));
        match (inline, spec) {
            (None, None) => None,
            (Some(inline), None) => {
                Some(self.firewall_spec(&inline.value, "spec.firewallSpec", inline.span))
            }
            (None, Some((doc, spec))) => Some(self.firewall_spec(spec, "spec", doc.name_span())),
            // The controller has created one from the other.
            (Some(inline), Some((doc, spec))) => {
                for (key, _) in FIREWALL {
                    let says = |node: &Node| given(node, key)?.value.text().map(str::to_owned);
                    let (here, there) = (says(spec), says(&inline.value));
                    if here != there && here.is_some() && there.is_some() {
                        let message = format!(
                            "`{key}` of {} is not that of spec.firewallSpec of {}",
                            doc.title(),
                            infrastructure.title()
                        );
                        let advice = "expected one firewall; leave one of the two out";
                        self.decoder
                            .error(doc.name_span(), &join("spec", key), message, advice);
                    }
                }
                let known = given(spec, "providerID").is_some();
                let (node, path) = if known {
                    (spec, "spec")
                } else {
                    (&inline.value, "spec.firewallSpec")
                };
                Some(self.firewall_spec(node, path, inline.span))
            }
        }
    }

    /// The firewall with a document of its own.
    fn own_firewall(&mut self, cluster: &Doc, infrastructure: &Doc) -> Option<&'r Doc> {
        let documents = self.documents;
        let mut found: Option<&'r Doc> = None;
        for doc in documents.of(Kind::MetalStackFirewall) {
            let of = doc.label(CLUSTER_NAME).and_then(|label| label.value.text());
            // Controllers write either of the two names.
            let is_own = doc.namespace == cluster.namespace
                && of.is_some_and(|of| of == cluster.name || of == infrastructure.name);
            if !is_own {
                continue;
            }
            doc.used.set(true);
            if let Some(first) = found {
                let message = format!(
                    "Cluster {} has two firewalls: {} and {}",
                    cluster.name, first.name, doc.name
                );
                let advice = "expected one; leave one of the two out";
                self.decoder
                    .error(doc.name_span(), "metadata.name", message, advice);
            } else {
                found = Some(doc);
            }
        }
        found
    }

    fn firewall_spec(&mut self, spec: &Node, path: &str, span: Span) -> Entry {
        self.fields(spec, path, FIREWALL, REFUSED);
        let mut fields = Vec::new();
        if let Some(image) = self.text(spec, path, "image") {
            fields.push(field("image", text(image.span, &image.text)));
        }
        if let Some(size) = self.text(spec, path, "machineType") {
            fields.push(field("nodeClass", text(size.span, &size.text)));
        }
        if let Some(id) = self.text(spec, path, "providerID")
            && let Some(host) = self.host(&id, &join(path, "providerID"))
        {
            fields.push(field("host", text(host.span, &host.text)));
        }
        entry("firewall", span, map(span, fields))
    }
}
