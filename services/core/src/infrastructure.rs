//! Infrastructure: what a cluster wants before its nodes, and the record of what was asked for and seen.

use std::{collections::HashSet, net::IpAddr, sync::Arc};

use sha2::{Digest, Sha256};

use crate::{
    error::Error,
    name::{self, Sym},
    node::{Call, Millis},
    spec::{GroupSpec, MAX_CHOICES, Object},
};

/// Most rules of a firewall.
pub const MAX_RULES: usize = 256;
/// Longest host name, as DNS has it.
const MAX_HOST: usize = 253;
/// Raised when what is hashed changes, so that a changed formula never looks like a changed spec.
const HASH_VERSION: u8 = 1;

/// What nodes need first on one platform. An absent part is not made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InfrastructureSpec {
    /// Name of the platform that makes it.
    pub platform: String,
    /// For the platform.
    pub properties: Object,
    /// Private network.
    pub network: Option<Network>,
    /// Stable address of the control plane.
    pub endpoint: Option<Endpoint>,
    /// Firewall in front of the network.
    pub firewall: Option<Firewall>,
}

/// A private network; at most one of `cidr`, `prefix_length` and `id` is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Range to use. Empty: not said.
    pub cidr: String,
    /// Size of a range that the backend chooses.
    pub prefix_length: Option<u32>,
    /// The backend's id of a network that exists; it is never released. Empty: not said.
    pub id: String,
    /// The backend's network that leads outside. Empty: none.
    pub public: String,
}

/// Stable address of the control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Fixed address. Empty: one is allocated.
    pub host: String,
    /// TCP port. 0: the platform's default.
    pub port: u32,
    /// Paths of the groups that it leads to. Empty: all.
    pub targets: Vec<String>,
}

/// A firewall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewall {
    /// Image. Empty: the platform's default.
    pub image: String,
    /// Node class. Empty: the platform's default.
    pub node_class: String,
    /// Rules. Empty: the platform's default rules.
    pub rules: Vec<Rule>,
    /// Machine to use. Empty: any.
    pub host: String,
}

/// Lets traffic through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Direction, seen from the cluster. Absent: not said, which is refused.
    pub direction: Option<Direction>,
    /// `tcp` or `udp`. Empty: tcp.
    pub protocol: String,
    /// Far ends.
    pub cidrs: Vec<String>,
    /// Ports, first and last; last 0: the same as first. Empty: all.
    pub ports: Vec<(u32, u32)>,
    /// For people.
    pub comment: String,
}

/// Direction of traffic, seen from the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From outside to the cluster.
    Ingress,
    /// From the cluster to outside.
    Egress,
}

/// Checks what can be known without asking anybody.
pub(crate) fn check(
    specs: &[InfrastructureSpec],
    groups: &[GroupSpec],
    refuse: &mut dyn FnMut(String, String),
) {
    if specs.len() > MAX_CHOICES {
        refuse(
            "spec.infrastructure".to_owned(),
            format!("at most {MAX_CHOICES} entries are possible"),
        );
    }
    let mut platforms = HashSet::new();
    for (index, spec) in specs.iter().enumerate() {
        let at = format!("spec.infrastructure[{index}]");
        if let Err(why) = name::check_name(&spec.platform) {
            refuse(format!("{at}.platform"), why);
        } else if !platforms.insert(spec.platform.as_str()) {
            refuse(
                format!("{at}.platform"),
                format!(
                    "{:?} stands there twice; one entry a platform is possible",
                    spec.platform
                ),
            );
        }
        if spec.network.is_none()
            && spec.endpoint.is_none()
            && spec.firewall.is_none()
            && spec.properties.is_empty()
        {
            refuse(
                at.clone(),
                "asks for nothing; expected a network, an endpoint or a firewall".to_owned(),
            );
        }
        if let Some(network) = &spec.network {
            check_network(&format!("{at}.network"), network, refuse);
        }
        if let Some(endpoint) = &spec.endpoint {
            check_endpoint(&format!("{at}.endpoint"), endpoint, groups, refuse);
        }
        if let Some(firewall) = &spec.firewall {
            check_firewall(&format!("{at}.firewall"), firewall, refuse);
        }
    }
}

fn check_network(at: &str, network: &Network, refuse: &mut dyn FnMut(String, String)) {
    let given = [
        ("cidr", !network.cidr.is_empty()),
        ("prefix_length", network.prefix_length.is_some()),
        ("id", !network.id.is_empty()),
    ];
    let given: Vec<&str> = given
        .iter()
        .filter(|(_, given)| *given)
        .map(|(name, _)| *name)
        .collect();
    if given.len() > 1 {
        refuse(
            at.to_owned(),
            format!(
                "has {}; at most one of cidr, prefix_length and id is possible",
                given.join(" and ")
            ),
        );
    }
    if !network.cidr.is_empty() {
        match parse_cidr(&network.cidr) {
            Err(why) => refuse(format!("{at}.cidr"), why),
            Ok((ip, length)) if has_host_bits(ip, length) => refuse(
                format!("{at}.cidr"),
                format!(
                    "{:?} has bits behind its first {length} that are not 0",
                    network.cidr
                ),
            ),
            Ok(_) => {}
        }
    }
    if network
        .prefix_length
        .is_some_and(|length| !(1..=128).contains(&length))
    {
        refuse(
            format!("{at}.prefix_length"),
            "expected 1 to 128".to_owned(),
        );
    }
}

fn check_endpoint(
    at: &str,
    endpoint: &Endpoint,
    groups: &[GroupSpec],
    refuse: &mut dyn FnMut(String, String),
) {
    if !endpoint.host.is_empty() && !is_host(&endpoint.host) {
        refuse(
            format!("{at}.host"),
            format!("{:?} is neither an IP address nor a name", endpoint.host),
        );
    }
    if endpoint.port > u32::from(u16::MAX) {
        refuse(format!("{at}.port"), "expected 1 to 65535".to_owned());
    }
    let mut seen = HashSet::new();
    for (index, target) in endpoint.targets.iter().enumerate() {
        if !has_group(groups, target) {
            refuse(
                format!("{at}.targets[{index}]"),
                format!("the spec has no group {target:?}"),
            );
        } else if !seen.insert(target) {
            refuse(
                format!("{at}.targets[{index}]"),
                format!("{target:?} stands there twice"),
            );
        }
    }
}

fn check_firewall(at: &str, firewall: &Firewall, refuse: &mut dyn FnMut(String, String)) {
    if firewall.rules.len() > MAX_RULES {
        refuse(
            format!("{at}.rules"),
            format!("at most {MAX_RULES} rules are possible"),
        );
    }
    for (index, rule) in firewall.rules.iter().take(MAX_RULES).enumerate() {
        let at = format!("{at}.rules[{index}]");
        if rule.direction.is_none() {
            refuse(
                format!("{at}.direction"),
                "is missing; expected ingress or egress".to_owned(),
            );
        }
        if !matches!(rule.protocol.as_str(), "" | "tcp" | "udp") {
            refuse(format!("{at}.protocol"), "expected tcp or udp".to_owned());
        }
        if rule.cidrs.is_empty() {
            refuse(
                format!("{at}.cidrs"),
                "is empty; expected at least one range (0.0.0.0/0 for all)".to_owned(),
            );
        }
        for (number, cidr) in rule.cidrs.iter().enumerate() {
            if let Err(why) = parse_cidr(cidr) {
                refuse(format!("{at}.cidrs[{number}]"), why);
            }
        }
        for (number, (first, last)) in rule.ports.iter().enumerate() {
            let at = format!("{at}.ports[{number}]");
            if !(1..=u32::from(u16::MAX)).contains(first) {
                refuse(format!("{at}.first"), "expected 1 to 65535".to_owned());
            } else if *last != 0 && !(*first..=u32::from(u16::MAX)).contains(last) {
                refuse(format!("{at}.last"), format!("expected {first} to 65535"));
            }
        }
    }
}

fn parse_cidr(text: &str) -> Result<(IpAddr, u32), String> {
    let wrong = || format!("{text:?} is no range; expected an address and a length (10.0.16.0/22)");
    let (ip, length) = text.split_once('/').ok_or_else(wrong)?;
    let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    // Only digits: `u32` alone would take a sign too.
    let length = length
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| length.parse::<u32>().ok())
        .flatten()
        .filter(|length| *length <= most)
        .ok_or_else(wrong)?;
    Ok((ip, length))
}

fn has_host_bits(ip: IpAddr, length: u32) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().checked_shl(length).unwrap_or(0) != 0,
        IpAddr::V6(ip) => ip.to_bits().checked_shl(length).unwrap_or(0) != 0,
    }
}

fn is_host(host: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    host.parse::<IpAddr>().is_ok()
        || (host.len() <= MAX_HOST && host.trim_end_matches('.').split('.').all(label))
}

fn has_group(groups: &[GroupSpec], path: &str) -> bool {
    let (first, rest) = path
        .split_once('/')
        .map_or((path, None), |(first, rest)| (first, Some(rest)));
    groups
        .iter()
        .find(|group| group.name == first)
        .is_some_and(|group| rest.is_none_or(|rest| has_group(&group.groups, rest)))
}

/// What is wanted on one platform, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Name of the platform.
    pub platform: Sym,
    /// Hash of `body`.
    pub spec_hash: Sym,
    /// The spec as platforms are told it, encoded.
    pub body: Arc<[u8]>,
}

impl Wanted {
    /// Of an encoded spec.
    #[must_use]
    pub fn new(platform: &str, body: &[u8]) -> Self {
        let hex: String = Sha256::digest(body)
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Self {
            platform: name::sym(platform),
            spec_hash: format!("i{HASH_VERSION}-{hex}").into(),
            body: body.into(),
        }
    }
}

/// How far a resource, or all of them, is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResourcePhase {
    /// Being made.
    #[default]
    Pending,
    /// There and usable.
    Ready,
    /// Not usable.
    Failed,
    /// Being removed.
    Releasing,
    /// The backend says that it is gone.
    Gone,
    /// Known to be there, and not readable now.
    Unknown,
}

/// One thing that a platform made for a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// What it is, in the platform's words.
    pub kind: Sym,
    /// Its name among those of its kind.
    pub name: Box<str>,
    /// The backend's id. Empty: it has none yet.
    pub id: Box<str>,
    /// How far it is.
    pub phase: ResourcePhase,
    /// Why, in the backend's words.
    pub message: Box<str>,
    /// Sequence of the request that made it. 0: not recorded.
    pub sequence: u64,
    /// When it was made. 0: not known.
    pub create_time: Millis,
}

/// What a platform said of the infrastructure of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The worst phase of the resources; `Gone` when there is none.
    pub phase: ResourcePhase,
    /// The resources, by kind and name.
    pub resources: Vec<Resource>,
    /// What it offers to nodes, encoded as it travels.
    pub outputs: Arc<[u8]>,
    /// When to ask again. Absent: not said.
    pub poll_after: Option<Millis>,
}

/// What a call about infrastructure was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To make or complete it.
    Ensure,
    /// What there is.
    Read,
    /// To free it.
    Release,
}

/// What a call about infrastructure answered.
#[derive(Clone, Debug, PartialEq)]
pub struct InfrastructureAnswer {
    /// What was asked.
    pub asked: Asked,
    /// When the call began.
    pub began: Millis,
    /// When it ended.
    pub at: Millis,
    /// What it said.
    pub outcome: Result<Observed, Error>,
}

/// The infrastructure of a cluster on one backend: a slot, from its intent until the platform says that it is gone.
///
/// The upper part is durable; `sent`, `call` and `answer` are what this process knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Infrastructure {
    /// Sequence of the request.
    pub sequence: u64,
    /// Hash of what was asked for.
    pub spec_hash: Sym,
    /// What was asked for, as it is sent.
    pub body: Arc<[u8]>,
    /// It is being released; irrevocable.
    pub releasing: bool,
    /// How far it is, as last seen.
    pub phase: ResourcePhase,
    /// Since when.
    pub phase_time: Millis,
    /// Its resources, as last seen.
    pub resources: Vec<Resource>,
    /// What it offers to nodes, encoded as it travels.
    pub outputs: Arc<[u8]>,
    /// Deadline of the last Ensure or Release; 0: it was answered.
    pub deadline: Millis,
    /// Until when what was asked for with an unknown outcome, or was half-made, may still come into being.
    pub unsettled: Millis,
    /// Failures in a row.
    pub failures: u32,
    /// Not asked again before then.
    pub next: Millis,
    /// Why it is in trouble, one word. Empty: it is not.
    pub reason: Sym,
    /// Why, in the platform's words.
    pub message: Box<str>,
    /// Etag of the platform when it refused; it is asked again when that changes.
    pub etag: Sym,
    /// Beginning of the first read that lacked something of it. 0: none does.
    pub doubt: Millis,

    /// Whether this process has ever sent it.
    pub sent: bool,
    /// A call that is under way, and when the next read may be.
    pub call: Call,
    /// What the last call answered, until it is taken in.
    pub answer: Option<InfrastructureAnswer>,
}

impl Infrastructure {
    /// Whether it is as it was asked for.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == ResourcePhase::Ready && !self.releasing
    }

    /// Its resources, for people: `network n1, endpoint e1`.
    #[must_use]
    pub fn named(&self) -> String {
        let names: Vec<String> = self
            .resources
            .iter()
            .map(|resource| format!("{} {}", resource.kind, resource.name))
            .collect();
        names.join(", ")
    }
}

#[cfg(test)]
mod tests;
