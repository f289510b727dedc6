//! Rules of a firewall: `initialRuleSet` of a `MetalStackFirewallTemplate`.

use super::reader::{Reader, Word, given};
use crate::{
    convert::build::{entry, field, list, map, text},
    path::{self, join},
    tree::{Entry, Node, Value},
};

const SETS: &[(&str, &str)] = &[
    ("egress", "a list of rules"),
    ("ingress", "a list of rules"),
];
const EGRESS: &[(&str, &str)] = &[
    ("comment", "text"),
    ("ports", "a list of ports"),
    ("protocol", "TCP or UDP"),
    ("to", "a list of CIDR ranges"),
];
const INGRESS: &[(&str, &str)] = &[
    ("comment", "text"),
    ("ports", "a list of ports"),
    ("protocol", "TCP or UDP"),
    ("from", "a list of CIDR ranges"),
    ("to", "a list of CIDR ranges"),
];
/// Ranges that restrict nothing.
const EVERYWHERE: [&str; 2] = ["0.0.0.0/0", "::/0"];

impl Reader<'_, '_> {
    /// The rules in the notation of the manifest.
    pub(super) fn rules(&mut self, spec: &Node) -> Vec<Node> {
        let Some(set) = given(spec, "initialRuleSet") else {
            return Vec::new();
        };
        let at = "spec.initialRuleSet";
        self.fields(&set.value, at, SETS, &[]);
        let mut rules = Vec::new();
        for (key, direction) in [("egress", "Egress"), ("ingress", "Ingress")] {
            let Some(given) = given(&set.value, key) else {
                continue;
            };
            let at = join(at, key);
            let Value::List(items) = &given.value.value else {
                self.decoder.mismatch(&given.value, &at, "a list of rules");
                continue;
            };
            for (position, item) in items.iter().enumerate() {
                rules.push(self.rule(item, &path::index(&at, position), direction));
            }
        }
        rules
    }

    fn rule(&mut self, rule: &Node, at: &str, direction: &str) -> Node {
        let is_egress = direction == "Egress";
        self.fields(rule, at, if is_egress { EGRESS } else { INGRESS }, &[]);
        let mut fields = vec![entry("direction", rule.span, text(rule.span, direction))];
        if let Some(protocol) = self.text(rule, at, "protocol") {
            let written = text(protocol.span, &protocol.text.to_lowercase());
            fields.push(field("protocol", written));
        }
        let far = if is_egress { "to" } else { "from" };
        match self.texts(rule, at, far) {
            Some(ranges) => fields.push(entry("cidrs", ranges.span, ranges.value)),
            None => self.missing(rule, at, far, "a list of CIDR ranges"),
        }
        if !is_egress && let Some(narrow) = self.narrow(rule, at) {
            let message = format!(
                "a rule of Drover opens all machines behind the firewall, and not only `{}`",
                narrow.text
            );
            let advice = "leave `to` out if that is meant";
            self.decoder
                .error(narrow.span, &join(at, "to"), message, advice);
        }
        fields.extend(self.ports(rule, at));
        if let Some(comment) = self.text(rule, at, "comment") {
            fields.push(field("comment", text(comment.span, &comment.text)));
        }
        map(rule.span, fields)
    }

    /// A range in `to` of an ingress rule that is not everywhere.
    fn narrow(&mut self, rule: &Node, at: &str) -> Option<Word> {
        let ranges = self.texts(rule, at, "to")?;
        let Value::List(items) = &ranges.value.value else {
            return None;
        };
        let mut words = items.iter().filter_map(|item| {
            Some(Word {
                text: item.text()?.to_owned(),
                span: item.span,
            })
        });
        words.find(|word| !EVERYWHERE.contains(&word.text.as_str()))
    }

    fn ports(&mut self, rule: &Node, at: &str) -> Option<Entry> {
        let ports = given(rule, "ports")?;
        let Value::List(items) = &ports.value.value else {
            let at = join(at, "ports");
            self.decoder.mismatch(&ports.value, &at, "a list of ports");
            return None;
        };
        let single = |port: &Node| map(port.span, vec![field("first", port.clone())]);
        let ports_of = items.iter().map(single).collect();
        Some(entry("ports", ports.span, list(ports.value.span, ports_of)))
    }
}
