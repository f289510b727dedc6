//! Rules of security groups in a flat, comparable form.

use std::net::Ipv6Addr;

use aws_sdk_ec2::types::{IpPermission, IpRange, Ipv6Range, UserIdGroupPair};

use super::cidr::Cidr;

/// All protocols.
const ANY: &str = "-1";

/// A rule with a single peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rule {
    pub egress: bool,
    protocol: String,
    ports: Option<(u32, u32)>,
    pub peer: Peer,
    comment: String,
}

/// The remote side of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peer {
    V4(String),
    V6(String),
    Group(String),
}

impl Peer {
    /// A range in its canonical form.
    pub(super) fn range(text: &str) -> Option<Self> {
        if let Ok(cidr) = text.parse::<Cidr>() {
            return Some(Self::V4(cidr.to_string()));
        }
        let (address, length) = text.split_once('/')?;
        let address: Ipv6Addr = address.parse().ok()?;
        let length: u32 = length.parse().ok().filter(|length| *length <= 128)?;
        let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
        let network = Ipv6Addr::from(u128::from(address) & mask);
        Some(Self::V6(format!("{network}/{length}")))
    }

    pub(super) fn world() -> Self {
        Self::V4("0.0.0.0/0".to_owned())
    }
}

impl Rule {
    pub(super) fn new(egress: bool, protocol: &str, ports: Option<(u32, u32)>, peer: Peer) -> Self {
        Self {
            egress,
            protocol: protocol.to_owned(),
            ports: ports.filter(|_| protocol != ANY),
            peer,
            comment: String::new(),
        }
    }

    /// Allows all outgoing traffic, the default of new security groups.
    pub(super) fn everywhere() -> Self {
        Self::new(true, ANY, None, Peer::world())
    }

    /// Allows all traffic within the cluster, in one direction.
    pub(super) fn within(egress: bool, group: &str) -> Self {
        Self::new(egress, ANY, None, Peer::Group(group.to_owned()))
    }

    /// Adds a description, reduced to the characters that EC2 accepts.
    pub(super) fn comment(mut self, comment: &str) -> Self {
        self.comment = comment
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || " ._-:/()#,@[]+=&;{}!$*".contains(*c))
            .take(255)
            .collect();
        self
    }

    /// Whether the rule lets TCP traffic to this port through.
    pub(super) fn covers(&self, port: u32) -> bool {
        (self.protocol == "tcp" || self.protocol == ANY)
            && self
                .ports
                .is_none_or(|(first, last)| (first..=last).contains(&port))
    }

    /// Whether two rules allow the same traffic, regardless of their descriptions.
    pub(super) fn same(&self, other: &Self) -> bool {
        (self.egress, &self.protocol, self.ports, &self.peer)
            == (other.egress, &other.protocol, other.ports, &other.peer)
    }

    /// The rules of an `IpPermission`.
    pub(super) fn of(egress: bool, permission: &IpPermission) -> Vec<Self> {
        let protocol = permission.ip_protocol().unwrap_or(ANY);
        let port = |port: Option<i32>| port.and_then(|port| u32::try_from(port).ok());
        let ports = port(permission.from_port()).zip(port(permission.to_port()));
        let v4 = permission
            .ip_ranges()
            .iter()
            .filter_map(|range| Some(Peer::V4(range.cidr_ip()?.to_owned())));
        let v6 = permission
            .ipv6_ranges()
            .iter()
            .filter_map(|range| Peer::range(range.cidr_ipv6()?));
        let groups = permission
            .user_id_group_pairs()
            .iter()
            .filter_map(|pair| Some(Peer::Group(pair.group_id()?.to_owned())));
        v4.chain(v6)
            .chain(groups)
            .map(|peer| Self::new(egress, protocol, ports, peer))
            .collect()
    }

    pub(super) fn permission(&self) -> IpPermission {
        let number = |port: u32| i32::try_from(port).unwrap_or_default();
        let comment = (!self.comment.is_empty()).then(|| self.comment.clone());
        let builder = IpPermission::builder()
            .ip_protocol(&self.protocol)
            .set_from_port(self.ports.map(|(first, _)| number(first)))
            .set_to_port(self.ports.map(|(_, last)| number(last)));
        match &self.peer {
            Peer::V4(cidr) => builder.ip_ranges(
                IpRange::builder()
                    .cidr_ip(cidr)
                    .set_description(comment)
                    .build(),
            ),
            Peer::V6(cidr) => builder.ipv6_ranges(
                Ipv6Range::builder()
                    .cidr_ipv6(cidr)
                    .set_description(comment)
                    .build(),
            ),
            Peer::Group(id) => {
                builder.user_id_group_pairs(UserIdGroupPair::builder().group_id(id).build())
            }
        }
        .build()
    }
}

/// Rules of one list that the other one lacks.
pub(super) fn missing<'a>(wanted: &'a [Rule], there: &[Rule], egress: bool) -> Vec<&'a Rule> {
    wanted
        .iter()
        .filter(|rule| rule.egress == egress && !there.iter().any(|known| known.same(rule)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_comes_back_from_the_api_as_it_was() {
        for rule in [
            Rule::everywhere(),
            Rule::within(false, "sg-1"),
            Rule::new(false, "tcp", Some((80, 443)), Peer::world()),
            Rule::new(
                true,
                "udp",
                Some((53, 53)),
                Peer::range("2001:db8::1/32").unwrap(),
            ),
        ] {
            let back = Rule::of(rule.egress, &rule.permission());
            assert!(back.len() == 1 && back[0].same(&rule), "{rule:?} {back:?}");
            assert!(missing(&back, std::slice::from_ref(&rule), rule.egress).is_empty());
        }
    }

    #[test]
    fn ranges_are_compared_in_their_canonical_form() {
        assert_eq!(Peer::range("10.1.2.3/8"), Peer::range("10.0.0.0/8"));
        assert_eq!(Peer::range("2001:DB8:0::/32"), Peer::range("2001:db8::/32"));
        assert_eq!(Peer::range("10.0.0.0"), None);
    }
}
