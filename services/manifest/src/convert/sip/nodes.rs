//! Groups of hosts.

use drover_core::sip::{NODE_TYPE, NODE_TYPES, group};

use super::{Reader, services::Service};
use crate::{
    convert::{
        build::{entry, list, map, number, text},
        fields::{Word, given},
    },
    path::{self, index, join},
    tree::{Entry, Node, Span, Value},
};

const NODE_SET: &[(&str, &str)] = &[
    (
        "labelSelector",
        "a map with matchLabels and matchExpressions",
    ),
    ("topologyKey", "the key of a label"),
    ("count", "a map with active and standby"),
    ("vmFlavor", "a string KEY=VALUE of former revisions"),
    ("vm-flavor", "a string KEY=VALUE of former revisions"),
    (
        "spreadTopology",
        "per-rack or per-node, of former revisions",
    ),
    (
        "scheduling-constraints",
        "a list of per-rack and per-node, of former revisions",
    ),
];
/// Words for topology keys, which the platform knows the labels of.
const CONSTRAINTS: [(&str, &str); 2] = [("per-rack", "rack"), ("per-node", "host")];
/// Most nodes of a group.
const MAX_NODES: u64 = 10_000;

impl Reader<'_, '_> {
    pub(super) fn groups(&mut self, nodes: &Node, services: &[Service<'_>]) -> Vec<Entry> {
        let mut groups: Vec<Entry> = Vec::new();
        let kinds = self
            .decoder
            .map(nodes, "spec.nodes", "a map of ControlPlane and Worker");
        for kind in kinds {
            let Some(name) = group(&kind.key) else {
                let known = NODE_TYPES
                    .map(|(key, _)| (key, "a map with labelSelector and count".to_owned()));
                self.decoder.unknown(kind, "spec.nodes", &known);
                continue;
            };
            let at = join("spec.nodes", &kind.key);
            if groups.iter().any(|group| group.key == name) {
                let message = format!("the {name} nodes are given twice");
                self.decoder
                    .error(kind.span, &at, message, "expected them once");
                continue;
            }
            let group = self.group(kind, name, &at, services);
            groups.push(entry(name, kind.span, group));
        }
        groups
    }

    fn group(&mut self, kind: &Entry, name: &str, at: &str, services: &[Service<'_>]) -> Node {
        let node = &kind.value;
        self.decoder.fields(node, at, NODE_SET, &[]);
        let mut fields = self.count(node, at);
        fields.push(entry("role", kind.span, text(kind.span, name)));
        let placement = self.placement(node, at);
        if let Some(first) = placement.first() {
            let span = first.span;
            fields.push(entry("placement", span, map(span, placement)));
        }
        fields.push(self.properties(kind, name, services));
        map(kind.span, fields)
    }

    fn count(&mut self, node: &Node, at: &str) -> Vec<Entry> {
        let path = join(at, "count");
        let Some(count) = node.entry("count").filter(|count| !count.value.is_null()) else {
            self.decoder
                .missing(node, at, "count", "a map with active and standby");
            return Vec::new();
        };
        let known = [("active", "a whole number"), ("standby", "a whole number")];
        self.decoder.fields(&count.value, &path, &known, &[]);
        let mut fields = Vec::new();
        for (key, to) in [("active", "size"), ("standby", "standby")] {
            let found = count.value.entry(key);
            let value = found
                .and_then(|found| self.number(&found.value, &join(&path, key), (0, MAX_NODES)));
            let span = found.map_or(count.span, |found| found.value.span);
            // What Go reads as zero is written out: another default would make nodes.
            let value = usize::try_from(value.unwrap_or_default()).unwrap_or_default();
            fields.push(entry(to, span, number(span, value)));
        }
        fields
    }

    fn placement(&mut self, node: &Node, at: &str) -> Vec<Entry> {
        let mut fields = Vec::new();
        fields.extend(self.selector(node, at));
        let mut keys: Vec<Word> = Vec::new();
        if let Some(constraints) = given(node, "scheduling-constraints") {
            let at = join(at, "scheduling-constraints");
            let Value::List(items) = &constraints.value.value else {
                let expected = "a list of per-rack and per-node";
                self.decoder.mismatch(&constraints.value, &at, expected);
                return fields;
            };
            for (position, item) in items.iter().enumerate() {
                keys.extend(self.constraint(item, &index(&at, position)));
            }
        }
        if let Some(spread) = given(node, "spreadTopology") {
            keys.extend(self.constraint(&spread.value, &join(at, "spreadTopology")));
        }
        keys.extend(self.decoder.word(node, at, "topologyKey"));
        let mut spreads: Vec<Node> = Vec::new();
        let mut seen = Vec::new();
        for key in keys {
            if !seen.contains(&key.text) {
                spreads.push(spread(&key));
                seen.push(key.text);
            }
        }
        if let Some(first) = spreads.first() {
            fields.push(entry("spread", first.span, list(first.span, spreads)));
        }
        fields
    }

    /// The topology key that a word of former revisions stands for.
    fn constraint(&mut self, node: &Node, at: &str) -> Option<Word> {
        let expected = "per-rack or per-node";
        let word = self.decoder.text(node, at, expected)?;
        let Some((_, key)) = CONSTRAINTS.iter().find(|(known, _)| *known == word) else {
            self.decoder.mismatch(node, at, expected);
            return None;
        };
        Some(Word {
            text: (*key).to_owned(),
            span: node.span,
        })
    }

    /// Which hosts can be chosen.
    fn selector(&mut self, node: &Node, at: &str) -> Option<Entry> {
        let mut exact: Vec<Entry> = Vec::new();
        let mut parts = Vec::new();
        let mut span = None;
        if let Some(selector) = given(node, "labelSelector") {
            let at = join(at, "labelSelector");
            let known = [
                ("matchLabels", "a map of strings"),
                ("matchExpressions", "a list of {key, operator, values}"),
            ];
            self.decoder.fields(&selector.value, &at, &known, &[]);
            span = Some(selector.span);
            if let Some(labels) = given(&selector.value, "matchLabels") {
                let at = join(&at, "matchLabels");
                exact.extend(self.text_map(&labels.value, &at).to_vec());
            }
            parts.extend(given(&selector.value, "matchExpressions").cloned());
        }
        for key in ["vm-flavor", "vmFlavor"] {
            let Some(flavor) = self.decoder.word(node, at, key) else {
                continue;
            };
            let Some((label, value)) = flavor.text.split_once('=') else {
                let message = format!("`{}` is not a label with a value", flavor.text);
                self.decoder
                    .error(flavor.span, &join(at, key), message, "expected KEY=VALUE");
                continue;
            };
            span = span.or(Some(flavor.span));
            exact.retain(|label_of| label_of.key != label);
            exact.push(entry(label, flavor.span, text(flavor.span, value)));
        }
        let span = span?;
        if !exact.is_empty() {
            parts.insert(0, entry("matchLabels", span, map(span, exact)));
        }
        Some(entry("selector", span, map(span, parts)))
    }

    /// What each host must have for the services, and the labels that it gets.
    fn properties(&self, kind: &Entry, name: &str, services: &[Service<'_>]) -> Entry {
        let span = kind.span;
        let serving = services.iter().filter(|service| service.serves(name));
        let mut interfaces: Vec<Node> = Vec::new();
        let mut seen: Vec<&str> = Vec::new();
        let mut powers = false;
        for service in serving {
            powers |= service.powers;
            let Some(word) = &service.interface else {
                continue;
            };
            if !seen.contains(&word.text.as_str()) {
                seen.push(&word.text);
                interfaces.push(text(word.span, &word.text));
            }
        }
        let mut fields = Vec::new();
        if let Some(first) = interfaces.first() {
            let span: Span = first.span;
            fields.push(entry("interfaces", span, list(span, interfaces)));
        }
        if powers {
            let yes = Node {
                span,
                value: Value::Scalar {
                    text: "true".to_owned(),
                    plain: true,
                },
            };
            fields.push(entry("requireBmcCredentials", span, yes));
        }
        let mut labels = self.whose();
        labels.push(entry(NODE_TYPE, span, text(span, &kind.key)));
        fields.push(entry("hostLabels", span, map(span, labels)));
        entry(
            "properties",
            path::first_line(&kind.value),
            map(span, fields),
        )
    }
}

/// At most one host in each domain of a key.
fn spread(key: &Word) -> Node {
    let span = key.span;
    map(
        span,
        vec![
            entry("topologyKey", span, text(span, &key.text)),
            entry("whenUnsatisfiable", span, text(span, "DoNotSchedule")),
            entry("maxPerDomain", span, number(span, 1)),
        ],
    )
}
