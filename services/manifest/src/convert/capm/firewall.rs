//! The firewall of a cluster: inline in its `MetalStackCluster`, a document of its own, or a deployment with a template.

use super::{
    document::{CLUSTER_NAME, Doc, Kind},
    reader::{Reader, Word, given},
};
use crate::{
    convert::{
        build::{entry, field, list, map, text},
        fields::lost,
    },
    path::join,
    tree::{Entry, Node, Span, Value},
};

const FIREWALL: &[(&str, &str)] = &[
    ("image", "the name of an image"),
    ("machineType", "a size of machine"),
    ("providerID", "metalstack://UUID"),
];
const NO_KEYS: &str = "leave it out: a firewall takes no keys from a manifest";
const NO_CONTROLLER: &str = "leave it out: no firewall-controller runs on a firewall of Drover";
const REFUSED: &[(&str, &str)] = &[("sshKeys", NO_KEYS)];
const DEPLOYMENT: &[(&str, &str)] = &[
    ("firewallTemplateRef", "a map with a name"),
    ("managedResourceRef", "a map with the id of a firewall"),
    ("autoUpdate", "a map"),
];
const NAME: &[(&str, &str)] = &[("name", "a name")];
const TEMPLATE: &[(&str, &str)] = &[
    ("image", "the name of an image"),
    ("size", "a size of machine"),
    ("networks", "a list of networks"),
    ("partition", "the name of a partition"),
    ("project", "the id of a project"),
    ("initialRuleSet", "a map with egress and ingress"),
];
const TEMPLATE_REFUSED: &[(&str, &str)] = &[
    ("sshPublicKeys", NO_KEYS),
    ("userdata", NO_CONTROLLER),
    ("controllerURL", NO_CONTROLLER),
    ("controllerVersion", NO_CONTROLLER),
    ("interval", NO_CONTROLLER),
    ("rateLimits", NO_CONTROLLER),
    ("egressRules", NO_CONTROLLER),
    ("internalPrefixes", NO_CONTROLLER),
    ("allowedNetworks", NO_CONTROLLER),
];

/// The firewall of a cluster.
#[derive(Debug)]
pub(super) struct Firewall {
    /// `firewall` of the infrastructure.
    pub(super) entry: Entry,
    /// The network that leads outside, if the firewall's document names it.
    pub(super) public: Option<Word>,
    /// Whether it has rules.
    pub(super) has_rules: bool,
}

impl<'r> Reader<'_, 'r> {
    pub(super) fn firewall(&mut self, cluster: &Doc, infrastructure: &Doc) -> Option<Firewall> {
        if infrastructure.is_maintained() {
            return self.deployed_firewall(infrastructure);
        }
        let entry = self.plain_firewall(cluster, infrastructure)?;
        Some(Firewall {
            entry,
            public: None,
            has_rules: false,
        })
    }

    /// The firewall of a `MetalStackFirewallDeployment`.
    fn deployed_firewall(&mut self, infrastructure: &Doc) -> Option<Firewall> {
        let spec = infrastructure.root.get("spec")?;
        let kind = Kind::MetalStackFirewallDeployment;
        let deployment = self.named(infrastructure, spec, "firewallDeploymentRef", kind)?;
        let spec = self.spec(deployment)?;
        self.fields(spec, "spec", DEPLOYMENT, &[]);
        if let Some(update) = given(spec, "autoUpdate") {
            let update = std::slice::from_ref(update);
            lost(&mut self.warnings, &deployment.title(), "fields", update);
        }
        let kind = Kind::MetalStackFirewallTemplate;
        if spec.entry("firewallTemplateRef").is_none() {
            self.missing(spec, "spec", "firewallTemplateRef", "a map with a name");
        }
        let template = self.named(deployment, spec, "firewallTemplateRef", kind)?;
        let host = given(spec, "managedResourceRef").and_then(|managed| {
            let at = "spec.managedResourceRef";
            self.fields(&managed.value, at, NAME, &[]);
            self.text(&managed.value, at, "name")
        });
        self.firewall_template(template, host)
    }

    /// `host` is the machine that is the firewall already.
    fn firewall_template(&mut self, template: &Doc, host: Option<Word>) -> Option<Firewall> {
        let spec = self.spec(template)?;
        if let Some(secret) = given(spec, "userdata") {
            self.decoder.hide(&secret.value);
        }
        self.fields(spec, "spec", TEMPLATE, TEMPLATE_REFUSED);
        let mut fields = Vec::new();
        for (from, to) in [("image", "image"), ("size", "nodeClass")] {
            if let Some(word) = self.text(spec, "spec", from) {
                fields.push(field(to, text(word.span, &word.text)));
            }
        }
        if let Some(host) = host {
            fields.push(field("host", text(host.span, &host.text)));
        }
        let rules = self.rules(spec);
        let has_rules = !rules.is_empty();
        let span = template.name_span();
        if has_rules {
            fields.push(entry("rules", span, list(span, rules)));
        }
        Some(Firewall {
            entry: entry("firewall", span, map(span, fields)),
            public: self.public_network(spec),
            has_rules,
        })
    }

    /// The only network of a firewall besides that of the nodes.
    fn public_network(&mut self, spec: &Node) -> Option<Word> {
        let networks = self.texts(spec, "spec", "networks")?;
        let Value::List(items) = &networks.value.value else {
            return None;
        };
        if items.len() > 1 {
            let message = "a firewall of Drover has one network that leads outside";
            let advice = "expected one, the one with the address of the control plane";
            self.decoder
                .error(networks.span, "spec.networks", message, advice);
        }
        let first = items.first()?;
        Some(Word {
            text: first.text()?.to_owned(),
            span: first.span,
        })
    }

    /// The document that a field names. Reported if it is missing.
    fn named(&mut self, doc: &Doc, spec: &Node, key: &str, kind: Kind) -> Option<&'r Doc> {
        let documents = self.documents;
        let reference = given(spec, key)?;
        let path = join("spec", key);
        self.fields(&reference.value, &path, NAME, &[]);
        let name = self.required(&reference.value, &path, "name", "a name")?;
        let found = documents.find(kind, &doc.namespace, &name.text);
        match found {
            Some(found) => found.used.set(true),
            None => self.dangling(kind, &doc.namespace, &name, &join(&path, "name")),
        }
        found
    }

    fn plain_firewall(&mut self, cluster: &Doc, infrastructure: &Doc) -> Option<Entry> {
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
