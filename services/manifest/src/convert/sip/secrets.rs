//! Kubernetes Secrets that SIPCluster documents name.

use std::collections::BTreeMap;

use drover_core::name::cluster_in_namespace;

use super::KIND;
use crate::{
    convert::build::{entry, field, map, text},
    decode::Decoder,
    path,
    tree::{Entry, Node, Value},
};

/// Keys of a certificate authority in a Secret of Kubernetes, and here.
const AUTHORITY: [(&str, &str); 2] = [("tls.crt", "ca.crt"), ("tls.key", "ca.key")];
const SECTIONS: [&str; 2] = ["stringData", "data"];

/// What a Secret is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Keys,
    /// The authority from which an OIDC provider gets its certificate.
    Authority,
}

/// The Secrets that documents name, by namespace and name.
#[derive(Debug, Default)]
pub(crate) struct Named {
    uses: BTreeMap<(String, String), Use>,
    /// Whether there is any document.
    any: bool,
}

impl Named {
    /// Adds what a document names, wherever in it.
    pub(crate) fn add(&mut self, root: &Node) {
        if root.get("kind").and_then(Node::text) != Some(KIND) {
            return;
        }
        self.any = true;
        let (namespace, _) = names(root);
        self.walk(&namespace, root);
    }

    fn walk(&mut self, namespace: &str, node: &Node) {
        match &node.value {
            Value::Scalar { .. } => {}
            Value::List(items) => items.iter().for_each(|item| self.walk(namespace, item)),
            Value::Map(entries) => {
                for entry in entries {
                    let used = match entry.key.as_str() {
                        "nodeSSHPrivateKeys" => Use::Keys,
                        "caSecret" => Use::Authority,
                        _ => {
                            self.walk(namespace, &entry.value);
                            continue;
                        }
                    };
                    if let Some(name) = entry.value.text() {
                        let key = (namespace.to_owned(), name.to_owned());
                        self.uses.insert(key, used);
                    }
                }
            }
        }
    }

    /// Whether there is any document.
    pub(crate) fn any(&self) -> bool {
        self.any
    }

    /// What a Secret is for. `None` if no document names it.
    pub(crate) fn used(&self, root: &Node) -> Option<Use> {
        let is_secret = root.get("kind").and_then(Node::text) == Some("Secret");
        let used = is_secret.then(|| self.uses.get(&names(root)))?;
        used.copied()
    }
}

/// Namespace and name of an object of Kubernetes.
fn names(root: &Node) -> (String, String) {
    let metadata = root.get("metadata");
    let word = |key: &str| metadata.and_then(|metadata| metadata.get(key)?.text());
    let namespace = word("namespace").unwrap_or("default");
    (
        namespace.to_owned(),
        word("name").unwrap_or_default().to_owned(),
    )
}

/// How messages call an object of Kubernetes.
pub(crate) fn title(root: &Node) -> String {
    let kind = root.get("kind").and_then(Node::text).unwrap_or_default();
    let (namespace, name) = names(root);
    format!("{kind} {namespace}/{name}")
}

/// Converts a Secret to a secret of Drover, called `NAMESPACE.NAME` as a cluster is. No message repeats its content.
pub(crate) fn convert(decoder: &mut Decoder<'_>, root: &Node, used: Use) -> Node {
    decoder.hide(root);
    let known = [
        "apiVersion",
        "kind",
        "metadata",
        "type",
        "immutable",
        "data",
        "stringData",
    ];
    for entry in root.map().unwrap_or_default() {
        if !known.contains(&entry.key.as_str()) {
            let known = known.map(|key| (key, "a field of a Secret".to_owned()));
            decoder.unknown(entry, "", &known);
        }
    }
    let (namespace, name) = names(root);
    let at = path::first_line(root);
    let span = path::locate(root, "metadata.name").0;
    let name = text(span, &cluster_in_namespace(&namespace, &name));
    let mut fields = vec![
        entry("apiVersion", at, text(at, crate::API_VERSION)),
        entry("kind", at, text(at, "Secret")),
        entry("metadata", span, map(span, vec![field("name", name)])),
    ];
    let mut seen: Vec<String> = Vec::new();
    // What stands in both is what stringData says, as the API server has it.
    for section in SECTIONS {
        let Some(found) = root.entry(section).filter(|found| !found.value.is_null()) else {
            continue;
        };
        let Value::Map(entries) = &found.value.value else {
            decoder.error(
                found.span,
                section,
                "wrong value",
                "expected a map of strings",
            );
            continue;
        };
        let mut kept: Vec<Entry> = Vec::new();
        for given in entries {
            let Some(key) = called(&given.key, used, root) else {
                continue;
            };
            if !seen.contains(&key) {
                kept.push(entry(&key, given.span, given.value.clone()));
                seen.push(key);
            }
        }
        fields.push(entry(section, found.span, map(found.value.span, kept)));
    }
    map(root.span, fields)
}

/// The key of a value here. `None` for the certificate of whoever has issued that of the authority, which cert-manager
/// adds: it belongs to another key.
fn called(key: &str, used: Use, root: &Node) -> Option<String> {
    let has = |key: &str| {
        SECTIONS
            .iter()
            .any(|section| root.get(section).is_some_and(|it| it.get(key).is_some()))
    };
    let [(certificate, _), (private, to)] = AUTHORITY;
    // An authority under the names here is taken as it is.
    if used != Use::Authority || has(to) || !has(certificate) || !has(private) {
        return Some(key.to_owned());
    }
    if let Some((_, to)) = AUTHORITY.iter().find(|(from, _)| *from == key) {
        return Some((*to).to_owned());
    }
    let issuer = AUTHORITY.iter().any(|(_, to)| *to == key);
    (!issuer).then(|| key.to_owned())
}

/// What is said of an object that no document names.
pub(crate) fn left_out(title: &str) -> String {
    format!("{title} is left out: no {KIND} names it")
}
