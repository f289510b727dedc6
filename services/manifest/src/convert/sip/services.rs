//! Services beside the cluster, which become add-ons.

use drover_core::{
    name::cluster_in_namespace,
    sip::{CONTROL_PLANE, WORKER},
    ssh,
};

use super::Reader;
use crate::{
    convert::{
        build::{entry, field, list, map, number, renamed, text},
        fields::{Word, given, is_empty},
    },
    path::{index, join},
    tree::{Entry, Node, Span, Value},
};

/// Port of the tenant's Kubernetes API on its hosts.
const API_PORT: u64 = 6443;
/// Ports that a Kubernetes Service of type NodePort can have.
const NODE_PORTS: (u64, u64) = (30_000, 32_767);

/// What a service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    JumpHost,
    ApiBalancer,
    WorkerBalancer,
    Oidc,
}

/// Keys of `services`.
const SERVICES: [(&str, Kind); 5] = [
    ("jumpHost", Kind::JumpHost),
    ("loadBalancerControlPlane", Kind::ApiBalancer),
    ("loadBalancerWorker", Kind::WorkerBalancer),
    ("loadBalancer", Kind::ApiBalancer),
    ("auth", Kind::Oidc),
];
/// Keys of `infra`, and the words for `serviceType` where it is a list.
const INFRA: [(&str, Kind); 5] = [
    ("loadbalancer", Kind::ApiBalancer),
    ("jumppod", Kind::JumpHost),
    ("authpod", Kind::Oidc),
    ("jumphost", Kind::JumpHost),
    ("auth", Kind::Oidc),
];

const COMMON: [(&str, &str); 8] = [
    ("image", "an image"),
    (
        "nodeLabels",
        "a map of strings, or a list of keys of labels",
    ),
    (
        "nodelabels",
        "a map of strings, or a list of keys of labels",
    ),
    ("nodePort", "a port from 30000 to 32767"),
    ("nodePorts", "a list of ports from 30000 to 32767"),
    ("nodeInterfaceId", "the id of a network"),
    ("clusterIP", "an IP address"),
    ("optional", "a map with clusterIP and sshKey"),
];
const CLUSTER_IP: [&str; 2] = ["clusterIP", "clusterIp"];
const SSH_KEY: [&str; 2] = ["sshKey", "sshkey"];

impl Kind {
    fn fields(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::JumpHost => &[
                ("bmc", "a map with proxy"),
                ("sshAuthorizedKeys", "a list of public keys"),
                ("nodeSSHPrivateKeys", "the name of a Secret"),
                ("sshkey", "a public key"),
            ],
            Self::WorkerBalancer => &[("nodePortRange", "a map with start and end")],
            Self::Oidc => &[("caSecret", "the name of a Secret")],
            Self::ApiBalancer => &[],
        }
    }

    /// The kind of add-on, and its name.
    fn addon(self, alone: bool) -> (&'static str, &'static str) {
        match self {
            Self::JumpHost => ("JumpHost", "jump-host"),
            Self::ApiBalancer if alone => ("LoadBalancer", "load-balancer"),
            Self::ApiBalancer => ("LoadBalancer", "load-balancer-control-plane"),
            Self::WorkerBalancer => ("LoadBalancer", "load-balancer-worker"),
            Self::Oidc => ("OidcProvider", "oidc-provider"),
        }
    }
}

/// A service of a document.
pub(super) struct Service<'n> {
    kind: Kind,
    /// Whether its document has one kind of load balancer only.
    alone: bool,
    node: &'n Node,
    at: String,
    span: Span,
    pub(super) interface: Option<Word>,
    /// Whether it switches hosts on and off.
    pub(super) powers: bool,
}

impl Service<'_> {
    /// Whether it is for the hosts of a group.
    pub(super) fn serves(&self, group: &str) -> bool {
        match self.kind {
            Kind::JumpHost => true,
            Kind::ApiBalancer | Kind::Oidc => group == CONTROL_PLANE,
            Kind::WorkerBalancer => group == WORKER,
        }
    }
}

impl Reader<'_, '_> {
    /// The services of all revisions.
    pub(super) fn services<'n>(&mut self, spec: &'n Node) -> Vec<Service<'n>> {
        let mut found = Vec::new();
        if let Some(services) = given(spec, "services") {
            let at = "spec.services";
            let expected = "a map of jumpHost, loadBalancerControlPlane and loadBalancerWorker";
            for service in self.decoder.map(&services.value, at, expected) {
                let Some((_, kind)) = SERVICES.iter().find(|(key, _)| *key == service.key) else {
                    let known = SERVICES.map(|(key, _)| (key, "a list of services".to_owned()));
                    self.decoder.unknown(service, at, &known);
                    continue;
                };
                let at = join(at, &service.key);
                match &service.value.value {
                    Value::List(items) => {
                        for (position, item) in items.iter().enumerate() {
                            let at = index(&at, position);
                            let alone = service.key == "loadBalancer";
                            found.extend(self.service(*kind, alone, item, at, item.span));
                        }
                    }
                    _ if is_empty(&service.value) => {}
                    _ => {
                        let expected = "a list of services";
                        self.decoder.mismatch(&service.value, &at, expected);
                    }
                }
            }
        }
        if let Some(infra) = given(spec, "infra") {
            self.infra(infra, &mut found);
        }
        found
    }

    /// The services of former revisions: a map, or a list with their types.
    fn infra<'n>(&mut self, infra: &'n Entry, found: &mut Vec<Service<'n>>) {
        let at = "spec.infra";
        if let Value::List(items) = &infra.value.value {
            for (position, item) in items.iter().enumerate() {
                let at = index(at, position);
                let expected = "loadbalancer, jumphost or auth";
                let Some(word) = self.decoder.required(item, &at, "serviceType", expected) else {
                    continue;
                };
                match INFRA.iter().find(|(key, _)| *key == word.text) {
                    Some((_, kind)) => found.extend(self.service(*kind, true, item, at, item.span)),
                    None => {
                        let message = format!("there is no service `{}`", word.text);
                        let at = join(&at, "serviceType");
                        self.decoder.error(
                            word.span,
                            &at,
                            message,
                            &format!("expected {expected}"),
                        );
                    }
                }
            }
            return;
        }
        let expected = "a map of loadbalancer, jumppod and authpod, or a list of services";
        for service in self.decoder.map(&infra.value, at, expected) {
            let Some((_, kind)) = INFRA.iter().find(|(key, _)| *key == service.key) else {
                let known = INFRA.map(|(key, _)| (key, "a service".to_owned()));
                self.decoder.unknown(service, at, &known);
                continue;
            };
            let at = join(at, &service.key);
            found.extend(self.service(*kind, true, &service.value, at, service.span));
        }
    }

    fn service<'n>(
        &mut self,
        kind: Kind,
        alone: bool,
        node: &'n Node,
        at: String,
        span: Span,
    ) -> Option<Service<'n>> {
        if node.map().is_none() {
            self.decoder.mismatch(node, &at, "a map");
            return None;
        }
        let typed = ("serviceType", "loadbalancer, jumphost or auth");
        let typed = [typed]
            .into_iter()
            .filter(|_| at.starts_with("spec.infra["));
        let known: Vec<(&str, &str)> = COMMON
            .into_iter()
            .chain(kind.fields().iter().copied())
            .chain([("clusterIp", "an IP address")])
            .chain(typed)
            .collect();
        self.decoder.fields(node, &at, &known, &[]);
        let interface = self.decoder.word(node, &at, "nodeInterfaceId");
        let bmc = node.entry("bmc").filter(|bmc| !bmc.value.is_null());
        if let Some(bmc) = bmc {
            let known = [("proxy", "true or false")];
            self.decoder
                .fields(&bmc.value, &join(&at, "bmc"), &known, &[]);
        }
        Some(Service {
            kind,
            alone,
            node,
            at,
            span,
            interface,
            powers: kind == Kind::JumpHost && bmc.is_some(),
        })
    }

    /// The add-ons that the services become.
    pub(super) fn served(&mut self, services: &[Service<'_>], groups: &[Entry]) -> Vec<Node> {
        services
            .iter()
            .map(|service| self.addon(service, groups))
            .collect()
    }

    fn addon(&mut self, service: &Service<'_>, groups: &[Entry]) -> Node {
        let Service { node, at, span, .. } = service;
        let (kind, name) = service.kind.addon(service.alone);
        let name = self.unused(name);
        let served: Vec<Node> = groups
            .iter()
            .filter(|group| service.serves(&group.key))
            .map(|group| text(group.span, &group.key))
            .collect();
        if served.is_empty() && !groups.is_empty() {
            let message = "there are no nodes that this service is for";
            let expected = "expected them in `nodes`";
            self.decoder.error(*span, at, message, expected);
        }
        let mut fields = vec![
            entry("name", *span, text(*span, &name)),
            entry("type", *span, text(*span, kind)),
            entry(
                "platform",
                self.platform.span,
                text(self.platform.span, &self.platform.text),
            ),
            entry("targets", *span, list(*span, served)),
        ];
        fields.extend(self.ports_of(service));
        if let Some(image) = self.decoder.word(node, at, "image") {
            fields.push(field("image", text(image.span, &image.text)));
        }
        if let Some(interface) = &service.interface {
            fields.push(field("interface", text(interface.span, &interface.text)));
        }
        fields.extend(self.node_selector(node, at));
        fields.extend(self.cluster_ip(service));
        match service.kind {
            Kind::JumpHost => fields.push(self.jump_host(service)),
            Kind::Oidc => fields.extend(self.oidc(service)),
            Kind::ApiBalancer | Kind::WorkerBalancer => {}
        }
        map(*span, fields)
    }

    /// A name that no add-on before has.
    fn unused(&mut self, name: &str) -> String {
        let mut own = name.to_owned();
        let mut number = 2;
        while !self.addons.insert(own.clone()) {
            own = format!("{name}-{number}");
            number += 1;
        }
        own
    }

    fn ports_of(&mut self, service: &Service<'_>) -> Vec<Entry> {
        let Service { node, at, .. } = service;
        let mut single: Vec<(u64, Span)> = Vec::new();
        if let Some(port) = given(node, "nodePort") {
            single.extend(self.port(&port.value, &join(at, "nodePort")));
        }
        if let Some(ports) = given(node, "nodePorts") {
            let at = join(at, "nodePorts");
            if let Value::List(items) = &ports.value.value {
                for (position, item) in items.iter().enumerate() {
                    single.extend(self.port(item, &index(&at, position)));
                }
            } else {
                self.decoder.mismatch(&ports.value, &at, "a list of ports");
            }
        }
        let range = self.range(service);
        let balances = matches!(service.kind, Kind::ApiBalancer | Kind::WorkerBalancer);
        if !balances {
            if let Some((_, span)) = single.get(1) {
                let message = "this service has one port";
                self.decoder.error(*span, at, message, "leave it out");
            }
            let port = single.first();
            return port
                .map(|(port, span)| entry("port", *span, digits(*span, *port)))
                .into_iter()
                .collect();
        }
        let target = |listen: u64| match service.kind {
            Kind::ApiBalancer => API_PORT,
            _ => listen,
        };
        let mut mappings: Vec<(u64, u64, Span)> = single
            .into_iter()
            .map(|(port, span)| (port, 1, span))
            .collect();
        mappings.extend(range);
        let mut fields = Vec::new();
        match mappings.first() {
            Some((port, 1, span)) => {
                fields.push(entry("port", *span, digits(*span, *port)));
                fields.push(entry("targetPort", *span, digits(*span, target(*port))));
                mappings.remove(0);
            }
            Some(_) => {}
            None if service.kind == Kind::ApiBalancer => {
                let span = service.span;
                fields.push(entry("targetPort", span, digits(span, API_PORT)));
            }
            None => {
                let expected = "a map with start and end";
                self.decoder.missing(node, at, "nodePortRange", expected);
            }
        }
        let mappings: Vec<Node> = mappings
            .into_iter()
            .map(|(port, count, span)| {
                let target = digits(span, target(port));
                let mut fields = vec![
                    entry("listen", span, digits(span, port)),
                    entry("target", span, target),
                ];
                if count > 1 {
                    fields.push(entry("count", span, digits(span, count)));
                }
                map(span, fields)
            })
            .collect();
        if let Some(first) = mappings.first() {
            fields.push(entry("ports", first.span, list(first.span, mappings)));
        }
        fields
    }

    /// First port, number of ports and place of a range.
    fn range(&mut self, service: &Service<'_>) -> Option<(u64, u64, Span)> {
        let range = given(service.node, "nodePortRange")?;
        let at = join(&service.at, "nodePortRange");
        let known = [("start", "a port"), ("end", "a port, included")];
        self.decoder.fields(&range.value, &at, &known, &[]);
        let mut bound = |key: &str| {
            let Some(found) = range.value.get(key) else {
                self.decoder
                    .missing(&range.value, &at, key, "a port from 30000 to 32767");
                return None;
            };
            self.number(found, &join(&at, key), NODE_PORTS)
        };
        let (first, last) = (bound("start"), bound("end"));
        let (first, last) = (first?, last?);
        if first > last {
            let message = "the range ends before it starts";
            let expected = "expected start not above end";
            self.decoder.error(range.span, &at, message, expected);
            return None;
        }
        self.take(first, last, range.span, &at);
        Some((first, last - first + 1, range.span))
    }

    fn port(&mut self, node: &Node, at: &str) -> Option<(u64, Span)> {
        // Even one outside of the range must not be there twice.
        let number = self.number(node, at, (1, 65_535))?;
        let (min, max) = NODE_PORTS;
        self.take(number, number, node.span, at);
        if !(min..=max).contains(&number) {
            let message = format!("port {number} is outside of the range for node ports");
            let expected = format!("expected a port from {min} to {max}");
            self.decoder.error(node.span, at, message, &expected);
            return None;
        }
        Some((number, node.span))
    }

    /// Records ports as taken. Reported if one of them already is.
    fn take(&mut self, first: u64, last: u64, span: Span, at: &str) {
        let taken = self
            .ports
            .iter()
            .find(|(from, to, _)| first <= *to && *from <= last);
        if let Some((from, _, other)) = taken {
            let port = first.max(*from);
            let message = format!("port {port} is defined twice");
            let expected = format!("first on line {}; expected each port once", other.line);
            self.decoder.error(span, at, message, &expected);
        }
        self.ports.push((first, last, span));
    }

    /// Which nodes of the infrastructure cluster it may run on.
    fn node_selector(&mut self, node: &Node, at: &str) -> Option<Entry> {
        let labels = given(node, "nodeLabels").or_else(|| given(node, "nodelabels"))?;
        let at = join(at, &labels.key);
        let Value::List(items) = &labels.value.value else {
            let exact = self.text_map(&labels.value, &at).to_vec();
            let exact = entry("matchLabels", labels.span, map(labels.span, exact));
            return Some(entry(
                "nodeSelector",
                labels.span,
                map(labels.span, vec![exact]),
            ));
        };
        let mut requirements = Vec::new();
        for (position, item) in items.iter().enumerate() {
            let at = index(&at, position);
            let Some(key) = self.decoder.text(item, &at, "the key of a label") else {
                continue;
            };
            requirements.push(map(
                item.span,
                vec![
                    entry("key", item.span, text(item.span, &key)),
                    entry("operator", item.span, text(item.span, "Exists")),
                ],
            ));
        }
        let span = labels.span;
        let requirements = entry("matchExpressions", span, list(span, requirements));
        Some(entry("nodeSelector", span, map(span, vec![requirements])))
    }

    fn cluster_ip(&mut self, service: &Service<'_>) -> Option<Entry> {
        let mut places = vec![(service.node, service.at.clone())];
        if let Some((optional, at)) = optional(service) {
            let known: &[(&str, &str)] = &[
                ("clusterIP", "an IP address"),
                ("clusterIp", "an IP address"),
                ("sshKey", "a public key"),
                ("sshkey", "a public key"),
            ];
            let (known, refused): (&[(&str, &str)], _) = match service.kind {
                Kind::JumpHost => (known, &[][..]),
                _ => (&known[..2], &known[2..]),
            };
            let refused: Vec<(&str, &str)> = refused
                .iter()
                .map(|(key, _)| (*key, "only a jump host has keys; leave it out"))
                .collect();
            self.decoder.fields(optional, &at, known, &refused);
            places.push((optional, at));
        }
        let mut found: Option<Entry> = None;
        for (node, at) in &places {
            for key in CLUSTER_IP {
                let Some(word) = self.decoder.word(node, at, key) else {
                    continue;
                };
                let at = join(at, key);
                if word.text.parse::<std::net::IpAddr>().is_err() {
                    let message = format!("`{}` is not an IP address", word.text);
                    self.decoder
                        .error(word.span, &at, message, "expected one like 1.2.3.4");
                }
                if found.is_some() {
                    let message = "the address is defined twice";
                    self.decoder
                        .error(word.span, &at, message, "expected it once");
                }
                found = Some(field("clusterIp", text(word.span, &word.text)));
            }
        }
        found
    }

    fn jump_host(&mut self, service: &Service<'_>) -> Entry {
        let Service { node, at, span, .. } = service;
        let mut fields = Vec::new();
        let mut keys: Vec<Node> = Vec::new();
        if let Some(list) = given(node, "sshAuthorizedKeys") {
            let at = join(at, "sshAuthorizedKeys");
            match &list.value.value {
                Value::List(items) => {
                    for (position, item) in items.iter().enumerate() {
                        keys.extend(self.public_key(item, &index(&at, position)));
                    }
                }
                _ => self
                    .decoder
                    .mismatch(&list.value, &at, "a list of public keys"),
            }
        }
        let optional = optional(service);
        let single = [Some((*node, at.clone())), optional];
        for (node, at) in single.into_iter().flatten() {
            for key in SSH_KEY {
                if let Some(found) = given(node, key) {
                    keys.extend(self.public_key(&found.value, &join(&at, key)));
                }
            }
        }
        if let Some(first) = keys.first() {
            fields.push(entry("authorizedKeys", first.span, list(first.span, keys)));
        }
        fields.extend(self.secret(service, "nodeSSHPrivateKeys", "privateKeysSecret"));
        if let Some(bmc) = node.entry("bmc").filter(|bmc| !bmc.value.is_null()) {
            fields.push(renamed("bmc", bmc));
        }
        entry("jumpHost", *span, map(*span, fields))
    }

    /// A public key. One that is only an example is left out.
    fn public_key(&mut self, node: &Node, at: &str) -> Option<Node> {
        let line = self.decoder.text(node, at, "a public key")?;
        let line = line.trim();
        let Err(why) = ssh::check_authorized_key(line) else {
            return Some(text(node.span, line));
        };
        if ssh::has_form(line) {
            let file = &self.decoder.source_of(node.span).name;
            self.warnings.push(format!(
                "{at} ({file}:{}) {why}: it is left out",
                node.span.line
            ));
            return None;
        }
        if line.contains("PRIVATE") {
            self.decoder.hide(node);
        }
        let message = format!("this public key {why}");
        let expected = "expected TYPE KEY COMMENT, as in id_ed25519.pub";
        self.decoder.error(node.span, at, message, expected);
        None
    }

    fn oidc(&mut self, service: &Service<'_>) -> Option<Entry> {
        let secret = self.secret(service, "caSecret", "tlsSecret")?;
        let span = service.span;
        Some(entry("oidcProvider", span, map(span, vec![secret])))
    }

    /// The secret that a service names, as it is called here.
    fn secret(&mut self, service: &Service<'_>, key: &str, to: &str) -> Option<Entry> {
        let name = self.decoder.word(service.node, &service.at, key)?;
        let called = cluster_in_namespace(&self.namespace, &name.text);
        if let Err(why) = drover_core::name::check_secret_name(&called) {
            let message = format!("the name of a secret {why}");
            self.decoder
                .error(name.span, &join(&service.at, key), message, "");
        }
        Some(field(to, text(name.span, &called)))
    }
}

fn digits(span: Span, value: u64) -> Node {
    number(span, usize::try_from(value).unwrap_or(usize::MAX))
}

/// The optional settings of former revisions.
fn optional<'n>(service: &Service<'n>) -> Option<(&'n Node, String)> {
    let optional = given(service.node, "optional")?;
    Some((&optional.value, join(&service.at, "optional")))
}
