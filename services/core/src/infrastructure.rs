//! Infrastructure that a cluster needs before its nodes: the specs.

use std::{collections::HashSet, net::IpAddr};

use crate::{
    name,
    spec::{GroupSpec, MAX_CHOICES, Object},
};

/// Maximum number of rules of a firewall.
pub const MAX_RULES: usize = 256;
/// Maximum length of a host name in DNS.
const MAX_HOST: usize = 253;

/// Infrastructure that nodes need on one platform. Absent parts are not created.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InfrastructureSpec {
    /// Name of the platform that creates it.
    pub platform: String,
    /// Free-form properties for the platform.
    pub properties: Object,
    /// Private network.
    pub network: Option<Network>,
    /// Stable address of the control plane.
    pub endpoint: Option<Endpoint>,
    /// Firewall in front of the network.
    pub firewall: Option<Firewall>,
}

/// A private network; at most one of `cidr`, `prefix_length` and `id` is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Address range to use. Empty if not specified.
    pub cidr: String,
    /// Size of a range that the backend chooses.
    pub prefix_length: Option<u32>,
    /// The backend's id of an existing network, which is never released. Empty if not specified.
    pub id: String,
    /// The backend's id of the network that provides external connectivity. Empty if none.
    pub public: String,
}

/// Stable address of the control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Fixed address. If empty, one is allocated.
    pub host: String,
    /// TCP port. 0 for the platform's default.
    pub port: u32,
    /// Paths of the groups that it routes to. Empty for all groups.
    pub targets: Vec<String>,
}

/// A firewall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewall {
    /// Image. Empty for the platform's default.
    pub image: String,
    /// Node class. Empty for the platform's default.
    pub node_class: String,
    /// Rules. Empty for the platform's default rules.
    pub rules: Vec<Rule>,
    /// Machine to use. Empty for any.
    pub host: String,
}

/// A rule that allows traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Direction as seen from the cluster. `None` if not specified, which validation rejects.
    pub direction: Option<Direction>,
    /// `tcp` or `udp`. Empty means `tcp`.
    pub protocol: String,
    /// Address ranges of the remote side.
    pub cidrs: Vec<String>,
    /// First and last port of each range; a last port of 0 means the same as the first. Empty for all ports.
    pub ports: Vec<(u32, u32)>,
    /// Human-readable note.
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

/// Validates everything that needs no external lookup.
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
                    "{:?} appears twice; one entry a platform is possible",
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
        ("prefixLength", network.prefix_length.is_some()),
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
                "has {}; at most one of cidr, prefixLength and id is possible",
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
                format!("{target:?} appears twice"),
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

/// Parses an address and the length of its prefix: `203.0.113.0/24`.
///
/// # Errors
///
/// A description of the problem, phrased to follow the field name.
pub fn parse_cidr(text: &str) -> Result<(IpAddr, u32), String> {
    let wrong =
        || format!("{text:?} is not a range; expected an address and a length (10.0.16.0/22)");
    let (ip, length) = text.split_once('/').ok_or_else(wrong)?;
    let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    // Digits only, because `u32::parse` also accepts a sign.
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

pub(crate) fn has_group(groups: &[GroupSpec], path: &str) -> bool {
    let (first, rest) = path
        .split_once('/')
        .map_or((path, None), |(first, rest)| (first, Some(rest)));
    groups
        .iter()
        .find(|group| group.name == first)
        .is_some_and(|group| rest.is_none_or(|rest| has_group(&group.groups, rest)))
}

#[cfg(test)]
mod tests;
