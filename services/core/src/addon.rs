//! Addons: services around a cluster, such as a load balancer over its nodes.

use std::{collections::HashSet, net::IpAddr};

use crate::{
    error::Violation,
    infrastructure::has_group,
    name::{self, Sym},
    node::SeenAddress,
    resource::{Wanted, hash},
    spec::{GroupSpec, Object, Port, Selector},
};

/// Maximum number of addons of a cluster. Each is a row of its own in the store, and several change in one step when a
/// node goes.
pub const MAX_ADDONS: usize = 32;
/// Maximum length of an image, an interface, an issuer and of ids.
const MAX_TEXT: usize = 512;
/// Maximum number of port mappings, authorised keys, clients and connectors of an addon.
const MAX_ENTRIES: usize = 128;
/// Highest port.
const MAX_PORT: u32 = u16::MAX as u32;

/// An addon as the user wants it.
#[derive(Clone, Debug, PartialEq)]
pub struct AddonSpec {
    /// Name, unique in the cluster over all kinds.
    pub name: String,
    /// Name of the platform that makes it.
    pub platform: String,
    /// Paths of the groups whose nodes it serves.
    pub targets: Vec<String>,
    /// Port that it listens on. `None` to let the platform choose.
    pub port: Option<u32>,
    /// Its kind and the settings of that kind. `None` if not specified, which validation rejects.
    pub kind: Option<Kind>,
    /// Image. Empty for the platform's default.
    pub image: String,
    /// Network interface by which targets are reached. Empty for their first internal address.
    pub interface: String,
    /// Backend nodes that it may run on. `None` for any.
    pub node_selector: Option<Selector>,
    /// Fixed address inside the backend's network. Empty to let the platform choose.
    pub cluster_ip: String,
    /// Free-form properties for the platform.
    pub properties: Object,
}

/// Kinds of addons, with the settings that only they have.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A load balancer over the targets.
    LoadBalancer {
        /// Port of the targets for the port of the addon. `None` for the same number.
        target_port: Option<Port>,
        /// Further ports.
        ports: Vec<PortMapping>,
    },
    /// A host to reach the targets by ssh.
    JumpHost(JumpHost),
    /// An OIDC provider.
    OidcProvider(OidcProvider),
    /// Anything in the platform's template catalogue.
    Template {
        /// Name of the template.
        template: String,
    },
}

/// Ports of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMapping {
    /// First port that it listens on. `None` to let the platform choose.
    pub listen: Option<u32>,
    /// First port of the targets. `None` if not specified, which validation rejects.
    pub target: Option<Port>,
    /// Number of consecutive ports, from both on. 0 means 1.
    pub count: u32,
}

/// Settings of a jump host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JumpHost {
    /// Public keys that may log in.
    pub authorized_keys: Vec<String>,
    /// Secret with the private keys for the targets. Empty for none.
    pub private_keys_secret: String,
    /// Whether it has power actions on the hosts of the targets, and then whether these go through a proxy.
    pub bmc: Option<bool>,
    /// Secret with a kubeconfig of the cluster. Empty for none.
    pub kubeconfig_secret: String,
}

/// Settings of an OIDC provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OidcProvider {
    /// Issuer URL. Empty to derive it from the address.
    pub issuer: String,
    /// Clients known from the start.
    pub clients: Vec<OidcClient>,
    /// Sources of users. Empty for the platform's default.
    pub connectors: Vec<OidcConnector>,
    /// Secret with its certificate. Empty for plain HTTP.
    pub tls_secret: String,
}

/// A client of an OIDC provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OidcClient {
    /// Client id.
    pub id: String,
    /// Where it may be redirected to.
    pub redirect_uris: Vec<String>,
    /// Secret with the client's secret. Empty for a public client.
    pub secret: String,
}

/// A source of users of an OIDC provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OidcConnector {
    /// Type, in the provider's terms.
    pub kind: String,
    /// Id, unique in the addon.
    pub id: String,
    /// Free-form settings.
    pub config: Object,
    /// Secret with the secret settings. Empty for none.
    pub secret: String,
}

/// A secret that an addon names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSecret {
    /// Name of the secret.
    pub name: String,
    /// Field that names it, below the addon.
    pub field: String,
    /// Sets of keys of which the secret must have at least one completely. Empty if any keys will do.
    pub keys: &'static [&'static [&'static str]],
}

/// A desired addon, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedAddon {
    /// Name of the addon.
    pub name: Sym,
    /// The encoded spec as sent to its platform.
    pub wanted: Wanted,
    /// Paths of the groups whose nodes it serves.
    pub targets: Vec<Sym>,
    /// The secrets that it names.
    pub secrets: Vec<NamedSecret>,
    /// Fields of the port mappings that are sent, below the addon.
    pub ports: Vec<String>,
}

/// A node that an addon serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddonTarget {
    /// Slot of the node.
    pub slot: u64,
    /// Platform of the node.
    pub platform: Sym,
    /// The platform's id of the node.
    pub node_id: Box<str>,
    /// Name of the node.
    pub name: Box<str>,
    /// Path of its group.
    pub group: Sym,
    /// Its addresses.
    pub addresses: Box<[SeenAddress]>,
    /// Its named ports as (name, `host:port`).
    pub endpoints: Box<[(Sym, Box<str>)]>,
    /// Whether it is about to go: it gets no new connections.
    pub draining: bool,
    /// Whether it only stands by: it gets no connections until it is promoted.
    pub standby: bool,
}

/// Hash of a target list. Equal exactly if platforms would be sent the same list.
#[must_use]
pub fn targets_hash(targets: &[AddonTarget]) -> Sym {
    let mut texts: Vec<u8> = Vec::new();
    let mut add = |text: &[u8]| {
        texts.extend_from_slice(&(text.len() as u64).to_be_bytes());
        texts.extend_from_slice(text);
    };
    for target in targets {
        add(target.platform.as_bytes());
        add(target.node_id.as_bytes());
        add(target.name.as_bytes());
        add(target.group.as_bytes());
        add(&[u8::from(target.draining), u8::from(target.standby)]);
        add(&(target.addresses.len() as u64).to_be_bytes());
        for address in &target.addresses {
            add(&address.kind.to_be_bytes());
            add(address.value.as_bytes());
            add(address.interface.as_bytes());
        }
        add(&(target.endpoints.len() as u64).to_be_bytes());
        for (name, at) in &target.endpoints {
            add(name.as_bytes());
            add(at.as_bytes());
        }
    }
    hash(&texts)
}

/// Hash of the versions of secrets, by their names and keys.
#[must_use]
pub fn secrets_hash<'a>(versions: impl IntoIterator<Item = (&'a str, &'a str, &'a [u8])>) -> Sym {
    let mut texts: Vec<u8> = Vec::new();
    for (name, key, version) in versions {
        for text in [name.as_bytes(), key.as_bytes(), version] {
            texts.extend_from_slice(&(text.len() as u64).to_be_bytes());
            texts.extend_from_slice(text);
        }
    }
    if texts.is_empty() {
        return Sym::default();
    }
    hash(&texts)
}

impl WantedAddon {
    /// Whether it serves the nodes of a group; an outer group stands for all inside.
    #[must_use]
    pub fn serves(&self, group: &str) -> bool {
        self.targets.iter().any(|path| {
            group
                .strip_prefix(&**path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

impl AddonSpec {
    /// The secrets that it names, in the order of the fields.
    #[must_use]
    pub fn secrets(&self) -> Vec<NamedSecret> {
        let mut found = Vec::new();
        let mut add = |field: String, name: &str, keys| {
            if !name.is_empty() {
                found.push(NamedSecret {
                    name: name.to_owned(),
                    field,
                    keys,
                });
            }
        };
        match &self.kind {
            Some(Kind::JumpHost(host)) => {
                let field = |name: &str| format!("jump_host.{name}");
                add(field("private_keys_secret"), &host.private_keys_secret, &[]);
                add(
                    field("kubeconfig_secret"),
                    &host.kubeconfig_secret,
                    &[&["kubeconfig"]],
                );
            }
            Some(Kind::OidcProvider(oidc)) => {
                for (index, client) in oidc.clients.iter().enumerate() {
                    let field = format!("oidc_provider.clients[{index}].secret");
                    add(field, &client.secret, &[&["secret"]]);
                }
                for (index, connector) in oidc.connectors.iter().enumerate() {
                    let field = format!("oidc_provider.connectors[{index}].secret");
                    add(field, &connector.secret, &[]);
                }
                add(
                    "oidc_provider.tls_secret".to_owned(),
                    &oidc.tls_secret,
                    &[&["tls.crt", "tls.key"], &["ca.crt", "ca.key"]],
                );
            }
            Some(Kind::LoadBalancer { .. } | Kind::Template { .. }) | None => {}
        }
        found
    }

    /// The ports of a load balancer: that of the addon itself, then the further ones, each with its field.
    #[must_use]
    pub fn port_mappings(&self) -> Vec<(String, PortMapping)> {
        let Some(Kind::LoadBalancer { target_port, ports }) = &self.kind else {
            return Vec::new();
        };
        let same = || {
            let port = u16::try_from(self.port?).ok()?;
            (port > 0).then_some(port)
        };
        let own = (self.port.is_some() || target_port.is_some()).then(|| PortMapping {
            listen: self.port,
            target: target_port.clone().or_else(|| same().map(Port::Number)),
            count: 1,
        });
        let further = ports.iter().enumerate();
        let further = further.map(|(index, one)| (format!("ports[{index}]"), one.clone()));
        own.map(|own| ("port".to_owned(), own))
            .into_iter()
            .chain(further)
            .collect()
    }
}

/// Validates everything that needs no external lookup.
pub(crate) fn check(
    addons: &[AddonSpec],
    groups: &[GroupSpec],
    refuse: &mut dyn FnMut(String, String),
) {
    if addons.len() > MAX_ADDONS {
        refuse(
            "spec.addons".to_owned(),
            format!(
                "has {} entries; at most {MAX_ADDONS} are possible",
                addons.len()
            ),
        );
        return;
    }
    let mut names = HashSet::new();
    for (index, addon) in addons.iter().enumerate() {
        let at = format!("spec.addons[{index}]");
        if let Err(why) = name::check_addon_name(&addon.name) {
            refuse(format!("{at}.name"), why);
        } else if !names.insert(addon.name.as_str()) {
            refuse(
                format!("{at}.name"),
                format!("{:?} appears twice", addon.name),
            );
        }
        check_addon(&at, addon, groups, refuse);
    }
}

fn check_addon(
    at: &str,
    addon: &AddonSpec,
    groups: &[GroupSpec],
    refuse: &mut dyn FnMut(String, String),
) {
    if let Err(why) = name::check_name(&addon.platform) {
        refuse(format!("{at}.platform"), why);
    }
    let mut seen = HashSet::new();
    for (index, target) in addon.targets.iter().enumerate() {
        let field = format!("{at}.targets[{index}]");
        if !has_group(groups, target) {
            refuse(field, format!("the spec has no group {target:?}"));
        } else if !seen.insert(target) {
            refuse(field, format!("{target:?} appears twice"));
        }
    }
    if addon.port.is_some_and(|port| !is_port(port)) {
        refuse(format!("{at}.port"), PORT.to_owned());
    }
    for (field, text) in [("image", &addon.image), ("interface", &addon.interface)] {
        if let Some(why) = wrong_text(text) {
            refuse(format!("{at}.{field}"), why);
        }
    }
    if !addon.cluster_ip.is_empty() && addon.cluster_ip.parse::<IpAddr>().is_err() {
        refuse(
            format!("{at}.cluster_ip"),
            format!("{:?} is not an IP address", addon.cluster_ip),
        );
    }
    if let Some(selector) = &addon.node_selector {
        let mut wrong: Vec<Violation> = Vec::new();
        selector.check(&format!("{at}.node_selector"), &mut wrong);
        for one in wrong {
            refuse(one.field, one.description);
        }
    }
    for secret in addon.secrets() {
        if let Err(why) = name::check_secret_name(&secret.name) {
            refuse(format!("{at}.{}", secret.field), why);
        }
    }
    match &addon.kind {
        None => refuse(
            format!("{at}.type"),
            "is missing; expected LoadBalancer, JumpHost, OidcProvider or Template".to_owned(),
        ),
        Some(Kind::LoadBalancer { .. }) => check_balancer(at, addon, refuse),
        Some(Kind::JumpHost(host)) => check_keys(at, host, refuse),
        Some(Kind::OidcProvider(oidc)) => check_oidc(at, oidc, refuse),
        Some(Kind::Template { template }) if template.is_empty() => refuse(
            format!("{at}.template"),
            "is empty; expected the name of a template of the platform".to_owned(),
        ),
        Some(Kind::Template { template }) => {
            if let Some(why) = wrong_text(template) {
                refuse(format!("{at}.template"), why);
            }
            if addon.port.is_some() {
                refuse(
                    format!("{at}.port"),
                    "is not for addons of a template, which says itself what it listens on"
                        .to_owned(),
                );
            }
        }
    }
}

const PORT: &str = "expected 1 to 65535";

fn is_port(port: u32) -> bool {
    (1..=MAX_PORT).contains(&port)
}

fn wrong_text(text: &str) -> Option<String> {
    if text.len() > MAX_TEXT {
        Some(format!("expected at most {MAX_TEXT} bytes"))
    } else {
        let wrong = |c: char| c.is_whitespace() || c.is_control();
        text.contains(wrong)
            .then(|| "contains whitespace or control characters".to_owned())
    }
}

fn too_many(count: usize) -> Option<String> {
    (count > MAX_ENTRIES)
        .then(|| format!("has {count} entries; at most {MAX_ENTRIES} are possible"))
}

fn check_balancer(at: &str, addon: &AddonSpec, refuse: &mut dyn FnMut(String, String)) {
    if addon.targets.is_empty() {
        refuse(
            format!("{at}.targets"),
            "is empty; expected the paths of the groups that it balances over".to_owned(),
        );
    }
    let mappings = addon.port_mappings();
    if mappings.is_empty() {
        refuse(
            format!("{at}.port"),
            "is missing; a load balancer has at least one port, here or in ports".to_owned(),
        );
    }
    if let Some(why) = too_many(mappings.len()) {
        refuse(format!("{at}.ports"), why);
        return;
    }
    let mut taken: Vec<(u32, u32)> = Vec::new();
    for (field, mapping) in mappings {
        let at = format!("{at}.{field}");
        // The port of the addon itself is checked for every kind.
        let own = field == "port";
        let within = |name: &str| {
            if own {
                at.clone()
            } else {
                format!("{at}.{name}")
            }
        };
        let more = mapping.count.max(1) - 1;
        let fits = |first: u32| is_port(first) && first.saturating_add(more) <= MAX_PORT;
        match &mapping.target {
            None if own => {}
            None => refuse(
                within("target"),
                "is missing; expected a name or a number".to_owned(),
            ),
            Some(Port::Name(_)) if more > 0 => refuse(
                within("count"),
                "is more than 1, which needs a number as target".to_owned(),
            ),
            Some(Port::Name(_)) => {}
            Some(Port::Number(first)) => {
                if !fits(u32::from(*first)) {
                    refuse(
                        within("target"),
                        format!("{first} and {more} more are not within 1 to 65535"),
                    );
                }
            }
        }
        let Some(first) = mapping.listen else {
            continue;
        };
        if !fits(first) {
            if !own {
                refuse(
                    within("listen"),
                    format!("{first} and {more} more are not within 1 to 65535"),
                );
            }
            continue;
        }
        let last = first + more;
        if let Some((from, to)) = taken
            .iter()
            .find(|(from, to)| first <= *to && *from <= last)
        {
            let other = if from == to {
                from.to_string()
            } else {
                format!("{from}-{to}")
            };
            refuse(
                within("listen"),
                format!("overlaps with port {other} of the same addon"),
            );
        }
        taken.push((first, last));
    }
}

fn check_keys(at: &str, host: &JumpHost, refuse: &mut dyn FnMut(String, String)) {
    let at = format!("{at}.jump_host.authorized_keys");
    if let Some(why) = too_many(host.authorized_keys.len()) {
        refuse(at, why);
        return;
    }
    for (index, key) in host.authorized_keys.iter().enumerate() {
        if key.trim().is_empty() || key.contains(|c: char| c.is_control()) {
            refuse(
                format!("{at}[{index}]"),
                "expected one line in the form of authorized_keys".to_owned(),
            );
        }
    }
}

fn check_oidc(at: &str, oidc: &OidcProvider, refuse: &mut dyn FnMut(String, String)) {
    let at = format!("{at}.oidc_provider");
    let issuer = &oidc.issuer;
    let is_url = issuer.starts_with("https://") || issuer.starts_with("http://");
    if !issuer.is_empty() && (!is_url || wrong_text(issuer).is_some()) {
        refuse(
            format!("{at}.issuer"),
            "expected a URL that begins with https:// or http://".to_owned(),
        );
    }
    for (field, count) in [
        ("clients", oidc.clients.len()),
        ("connectors", oidc.connectors.len()),
    ] {
        if let Some(why) = too_many(count) {
            refuse(format!("{at}.{field}"), why);
            return;
        }
    }
    let ids = |list: &str, ids: Vec<&str>, refuse: &mut dyn FnMut(String, String)| {
        let mut seen = HashSet::new();
        for (index, id) in ids.into_iter().enumerate() {
            let field = format!("{at}.{list}[{index}].id");
            if id.is_empty() {
                refuse(field, "is empty".to_owned());
            } else if let Some(why) = wrong_text(id) {
                refuse(field, why);
            } else if !seen.insert(id) {
                refuse(field, format!("{id:?} appears twice"));
            }
        }
    };
    let clients = oidc.clients.iter().map(|one| one.id.as_str()).collect();
    ids("clients", clients, refuse);
    let connectors = oidc.connectors.iter().map(|one| one.id.as_str()).collect();
    ids("connectors", connectors, refuse);
    for (index, connector) in oidc.connectors.iter().enumerate() {
        if connector.kind.is_empty() {
            refuse(
                format!("{at}.connectors[{index}].type"),
                "is empty; expected a type of the provider, such as ldap".to_owned(),
            );
        }
    }
}

#[cfg(test)]
mod tests;
