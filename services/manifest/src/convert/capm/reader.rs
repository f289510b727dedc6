//! Reads fields of documents, and follows references.

use std::collections::{BTreeMap, BTreeSet};

use super::document::{Doc, Documents, Kind};
pub(super) use crate::convert::fields::{Word, given, is_empty};
use crate::{
    decode::Decoder,
    path::{self, join},
    tree::{Entry, Node, Span, Value},
};

/// Schemes of the ids of metal-stack machines in the Cluster API: of the archived provider, and of the maintained one,
/// which writes the partition before the id.
const PROVIDERS: [&str; 2] = ["metalstack://", "metal://"];

/// Fields of a reference.
const REFERENCE: &[(&str, &str)] = &[
    ("kind", "a kind"),
    ("name", "a name"),
    (
        "namespace",
        "the namespace, default the one of the document",
    ),
    ("apiVersion", "the version of its API"),
    ("apiGroup", "the group of its API"),
    ("uid", "what the server wrote"),
    ("resourceVersion", "what the server wrote"),
    ("fieldPath", "what the server wrote"),
];

pub(super) struct Reader<'d, 'r> {
    pub(super) decoder: Decoder<'d>,
    pub(super) documents: &'r Documents,
    /// Platforms that will exist, if known.
    pub(super) registered: Option<&'r BTreeSet<String>>,
    pub(super) warnings: Vec<String>,
    pub(super) unresolved: BTreeSet<String>,
    /// Machines that are named, with their positions.
    pub(super) hosts: BTreeMap<String, Span>,
    /// Kinds of documents to which there are dangling references.
    pub(super) missed: BTreeSet<Kind>,
}

impl<'r> Reader<'_, 'r> {
    /// Checks that a map only has known fields. `refused` are fields that are not supported.
    pub(super) fn fields(
        &mut self,
        node: &Node,
        path: &str,
        known: &[(&'static str, &'static str)],
        refused: &[(&'static str, &'static str)],
    ) {
        self.decoder.fields(node, path, known, refused);
    }

    /// A text, if the field exists and is not empty.
    pub(super) fn text(&mut self, node: &Node, path: &str, key: &str) -> Option<Word> {
        self.decoder.word(node, path, key)
    }

    /// A required text.
    pub(super) fn required(
        &mut self,
        node: &Node,
        path: &str,
        key: &str,
        expected: &str,
    ) -> Option<Word> {
        self.decoder.required(node, path, key, expected)
    }

    pub(super) fn missing(&mut self, node: &Node, path: &str, key: &str, expected: &str) {
        self.decoder.missing(node, path, key, expected);
    }

    /// An unchanged list of texts.
    pub(super) fn texts(&mut self, node: &Node, path: &str, key: &str) -> Option<Entry> {
        let entry = given(node, key)?;
        let at = join(path, key);
        let Value::List(items) = &entry.value.value else {
            self.decoder
                .mismatch(&entry.value, &at, "a list of strings");
            return None;
        };
        for (position, item) in items.iter().enumerate() {
            self.decoder
                .text(item, &path::index(&at, position), "a string");
        }
        Some(entry.clone())
    }

    /// The document that a field refers to, which must have one of these kinds. Reported if it is missing.
    pub(super) fn reference(
        &mut self,
        entry: &Entry,
        path: &str,
        namespace: &str,
        kind: Kind,
    ) -> Option<&'r Doc> {
        let (found, name, namespace) = self.referred(entry, path, namespace)?;
        if found.text != kind.name() {
            let message = format!("{} cannot be converted", found.text);
            let advice = format!("expected {}", kind.name());
            self.decoder
                .error(found.span, &join(path, "kind"), message, &advice);
            return None;
        }
        let doc = self.documents.find(kind, &namespace, &name.text);
        match doc {
            Some(doc) => doc.used.set(true),
            None => self.dangling(kind, &namespace, &name, &join(path, "name")),
        }
        doc
    }

    /// Kind, name and namespace in a reference.
    pub(super) fn referred(
        &mut self,
        entry: &Entry,
        path: &str,
        namespace: &str,
    ) -> Option<(Word, Word, String)> {
        self.fields(&entry.value, path, REFERENCE, &[]);
        entry.value.map()?;
        let kind = self.required(&entry.value, path, "kind", "a kind");
        let name = self.required(&entry.value, path, "name", "a name");
        let elsewhere = self.text(&entry.value, path, "namespace");
        let namespace = elsewhere.map_or_else(|| namespace.to_owned(), |word| word.text);
        Some((kind?, name?, namespace))
    }

    /// Reports a dangling reference.
    pub(super) fn dangling(&mut self, kind: Kind, namespace: &str, name: &Word, path: &str) {
        self.missed.insert(kind);
        let documents = self.documents;
        let elsewhere = documents
            .of(kind)
            .find(|doc| doc.name == name.text && doc.namespace != namespace);
        let near = documents
            .of(kind)
            .filter(|doc| doc.namespace == namespace)
            .map(|doc| doc.name.as_str());
        let advice = match (elsewhere, drover_core::name::closest(&name.text, near)) {
            (Some(doc), _) => format!("there is one in namespace {}", doc.namespace),
            (None, Some(near)) => format!("did you mean `{near}`?"),
            (None, None) => format!(
                "add it: kubectl get {} {} -n {namespace} -o yaml",
                kind.name().to_lowercase(),
                name.text
            ),
        };
        let message = format!(
            "there is no {} `{}` in namespace {namespace} among the documents",
            kind.name(),
            name.text
        );
        self.decoder.error(name.span, path, message, &advice);
    }

    /// The machine that a `providerID` names. No other document may name it.
    pub(super) fn host(&mut self, word: &Word, path: &str) -> Option<Word> {
        let mut rests = PROVIDERS
            .iter()
            .filter_map(|scheme| word.text.strip_prefix(scheme));
        let id = rests.next().and_then(|rest| {
            let id = rest.rsplit('/').next().unwrap_or_default();
            let plain = |c: char| c.is_ascii_hexdigit() || c == '-';
            (id.len() == 36 && id.chars().all(plain)).then(|| id.to_lowercase())
        });
        let Some(id) = id else {
            let message = format!("`{}` is not an id of a metal-stack machine", word.text);
            let advice = "expected metalstack://UUID or metal://PARTITION/UUID";
            self.decoder.error(word.span, path, message, advice);
            return None;
        };
        if let Some(first) = self.hosts.insert(id.clone(), word.span) {
            let file = &self.decoder.source_of(first).name;
            let advice = format!(
                "first at {file}:{}:{}; expected each machine once",
                first.line, first.column
            );
            let message = format!("machine {id} is named twice");
            self.decoder.error(word.span, path, message, &advice);
        }
        Some(Word {
            text: id,
            span: word.span,
        })
    }
}
