//! The desired infrastructure of a spec in EC2 terms.

use std::{collections::BTreeMap, net::Ipv4Addr};

use drover_core::{Error, Result};
use drover_proto::platform::v1::{
    FirewallDirection, FirewallRule, FirewallSpec, InfrastructureSpec, NetworkSpec,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    cidr::Cidr,
    rules::{Peer, Rule},
};
use crate::drivers::aws::settings;

/// Default range of a network.
const DEFAULT_NETWORK: (Ipv4Addr, u32) = (Ipv4Addr::new(10, 0, 0, 0), 16);
/// Prefix lengths of networks and subnets that EC2 accepts
/// (<https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html>).
const LARGEST: u32 = 16;
const SMALLEST: u32 = 28;
/// The only supported external network.
const INTERNET: &str = "internet";
/// Default port of an endpoint.
const DEFAULT_PORT: u32 = 6443;
/// Maximum length of a tag value; targets and subnets are stored in tags.
const MAX_TAG: usize = 256;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct WantedInfrastructure {
    pub network: Option<Network>,
    pub endpoint: Option<Endpoint>,
    /// Traffic that the security group allows in addition to that within the cluster. Only with a network.
    pub rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Network {
    pub source: Source,
    /// Whether a range was requested. Otherwise any existing range is accepted.
    pub said: bool,
    /// Whether nodes get public addresses.
    pub public: bool,
    /// Whether the network has outside connectivity at all.
    pub gateway: bool,
    pub zones: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// Created with this range, split into subnets of this prefix length.
    Made { cidr: Cidr, subnet_length: u32 },
    /// Provided by the user, with existing subnets and others to create in it.
    Given {
        id: String,
        subnets: BTreeMap<String, String>,
        cidrs: BTreeMap<String, Cidr>,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Endpoint {
    pub host: Option<Ipv4Addr>,
    pub port: u32,
    pub targets: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Properties {
    /// Zones that get a subnet. Empty for all.
    zones: Vec<String>,
    /// Existing subnets of a provided network, by zone.
    subnets: BTreeMap<String, String>,
    /// Ranges of subnets to create in a provided network, by zone.
    subnet_cidrs: BTreeMap<String, String>,
}

impl WantedInfrastructure {
    /// Parses a spec. `all` is the list of zones of the platform.
    pub(super) fn read(spec: &InfrastructureSpec, all: &[String]) -> Result<Self> {
        let said = match &spec.properties {
            Some(said) => drover_convert::value::object("spec.properties", said)?,
            None => Map::new(),
        };
        let properties: Properties = serde_json::from_value(Value::Object(said))
            .map_err(|error| Error::invalid("spec.properties", error.to_string()))?;
        let zones = zones(&properties, all)?;
        let endpoint = endpoint(spec)?;
        let network = match &spec.network {
            Some(network) => Some(self::network(
                network,
                &properties,
                zones,
                all,
                endpoint.is_some(),
            )?),
            None => None,
        };
        if let Some(firewall) = &spec.firewall {
            no_machine(firewall)?;
            if network.is_none() {
                return Err(Error::invalid(
                    "spec.firewall",
                    "needs `network`: its rules become a security group there",
                ));
            }
        }
        Ok(Self {
            rules: rules(spec, endpoint.as_ref())?,
            network,
            endpoint,
        })
    }
}

fn zones(properties: &Properties, all: &[String]) -> Result<Vec<String>> {
    for (at, zone) in properties.zones.iter().enumerate() {
        known(&format!("spec.properties.zones[{at}]"), zone, all)?;
    }
    for zone in properties.subnets.keys() {
        known(&format!("spec.properties.subnets.{zone}"), zone, all)?;
    }
    for zone in properties.subnet_cidrs.keys() {
        known(&format!("spec.properties.subnetCidrs.{zone}"), zone, all)?;
    }
    let mut zones = if properties.zones.is_empty() {
        all.to_vec()
    } else {
        properties.zones.clone()
    };
    zones.sort();
    zones.dedup();
    Ok(zones)
}

fn known(field: &str, zone: &str, all: &[String]) -> Result<()> {
    if all.iter().any(|known| known == zone) {
        return Ok(());
    }
    Err(Error::invalid(
        field,
        format!("there is no zone {zone:?}; there are: {}", all.join(", ")),
    ))
}

fn network(
    spec: &NetworkSpec,
    properties: &Properties,
    zones: Vec<String>,
    all: &[String],
    endpoint: bool,
) -> Result<Network> {
    let public = match spec.public.as_str() {
        "" => false,
        INTERNET => true,
        other => {
            return Err(Error::invalid(
                "spec.network.public",
                format!(
                    "{other:?} is nothing that an EC2 network leads to; expected `{INTERNET}`, or nothing"
                ),
            ));
        }
    };
    let source = if spec.id.is_empty() {
        for (field, said) in [
            ("subnets", !properties.subnets.is_empty()),
            ("subnetCidrs", !properties.subnet_cidrs.is_empty()),
        ] {
            if said {
                return Err(Error::invalid(
                    format!("spec.properties.{field}"),
                    "goes with a given network (`network.id`) only",
                ));
            }
        }
        made(spec, zones.len(), all.len())?
    } else {
        given(spec, properties)?
    };
    Ok(Network {
        source,
        said: !spec.cidr.is_empty() || spec.prefix_length.is_some(),
        public,
        // An elastic IP address can only be associated if the network has a gateway.
        gateway: public || endpoint,
        zones,
    })
}

fn made(spec: &NetworkSpec, wanted: usize, all: usize) -> Result<Source> {
    let (field, cidr) = match spec.prefix_length {
        Some(length) => (
            "spec.network.prefix_length",
            Cidr::new(DEFAULT_NETWORK.0, length),
        ),
        None if spec.cidr.is_empty() => (
            "spec.network",
            Cidr::new(DEFAULT_NETWORK.0, DEFAULT_NETWORK.1),
        ),
        None => ("spec.network.cidr", spec.cidr.parse().ok()),
    };
    let cidr = cidr
        .filter(|cidr| (LARGEST..=SMALLEST).contains(&cidr.length()))
        .ok_or_else(|| {
            Error::invalid(
                field,
                format!("expected an IPv4 range from /{LARGEST} to /{SMALLEST}"),
            )
        })?;
    // Leave room for every zone of the region, so that zones can be added later.
    let parts = all.max(4).next_power_of_two().trailing_zeros();
    let subnet_length = (cidr.length() + parts).min(SMALLEST);
    if cidr.split(subnet_length).count() < wanted {
        return Err(Error::invalid(
            field,
            format!(
                "{cidr} is too small for subnets in {wanted} zones; give a larger one, or fewer `zones` in `properties`"
            ),
        ));
    }
    Ok(Source::Made {
        cidr,
        subnet_length,
    })
}

fn given(spec: &NetworkSpec, properties: &Properties) -> Result<Source> {
    if !spec.id.starts_with("vpc-") {
        return Err(Error::invalid(
            "spec.network.id",
            format!("{:?} is not an id of a VPC; expected vpc-…", spec.id),
        ));
    }
    let mut cidrs = BTreeMap::new();
    for (zone, text) in &properties.subnet_cidrs {
        let field = format!("spec.properties.subnetCidrs.{zone}");
        let cidr: Cidr = text
            .parse()
            .ok()
            .filter(|cidr: &Cidr| (LARGEST..=SMALLEST).contains(&cidr.length()))
            .ok_or_else(|| {
                Error::invalid(
                    &*field,
                    format!("expected an IPv4 range from /{LARGEST} to /{SMALLEST}"),
                )
            })?;
        if properties.subnets.contains_key(zone) {
            return Err(Error::invalid(
                field,
                "the zone has a subnet in `subnets` already",
            ));
        }
        cidrs.insert(zone.clone(), cidr);
    }
    let remembered: usize = properties
        .subnets
        .iter()
        .map(|(zone, id)| zone.len() + id.len() + 2)
        .sum();
    if remembered > MAX_TAG {
        return Err(Error::invalid(
            "spec.properties.subnets",
            "are too many to be remembered in a tag",
        ));
    }
    Ok(Source::Given {
        id: spec.id.clone(),
        subnets: properties.subnets.clone(),
        cidrs,
    })
}

fn endpoint(spec: &InfrastructureSpec) -> Result<Option<Endpoint>> {
    let Some(endpoint) = &spec.endpoint else {
        return Ok(None);
    };
    let host = match endpoint.host.as_str() {
        "" => None,
        host => Some(host.parse().map_err(|_| {
            Error::invalid(
                "spec.endpoint.host",
                format!("{host:?} is not an IPv4 address; expected an elastic address of the account, or nothing"),
            )
        })?),
    };
    let remembered: usize = endpoint.targets.iter().map(|target| target.len() + 1).sum();
    if remembered > MAX_TAG {
        return Err(Error::invalid(
            "spec.endpoint.targets",
            "are too many to be remembered in a tag; name an outer group",
        ));
    }
    Ok(Some(Endpoint {
        host,
        port: if endpoint.port == 0 {
            DEFAULT_PORT
        } else {
            endpoint.port
        },
        targets: endpoint.targets.clone(),
    }))
}

fn no_machine(firewall: &FirewallSpec) -> Result<()> {
    for (field, said) in [
        ("image", &firewall.image),
        ("node_class", &firewall.node_class),
        ("host", &firewall.host),
    ] {
        if !said.is_empty() {
            return Err(Error::invalid(
                format!("spec.firewall.{field}"),
                "there is no firewall machine on EC2, only rules",
            ));
        }
    }
    Ok(())
}

fn rules(spec: &InfrastructureSpec, endpoint: Option<&Endpoint>) -> Result<Vec<Rule>> {
    let given: Vec<(usize, &FirewallRule)> = spec
        .firewall
        .iter()
        .flat_map(|firewall| firewall.rules.iter().enumerate())
        .collect();
    let mut rules = Vec::new();
    for (at, rule) in &given {
        let egress = rule.direction() == FirewallDirection::Egress;
        let protocol = if rule.protocol.is_empty() {
            "tcp"
        } else {
            &rule.protocol
        };
        let all = [(0, 65535)];
        let some: Vec<(u32, u32)> = rule
            .ports
            .iter()
            .map(|range| (range.first, range.last.max(range.first)))
            .collect();
        for cidr in &rule.cidrs {
            let peer = Peer::range(cidr).ok_or_else(|| {
                Error::invalid(
                    format!("spec.firewall.rules[{at}].cidrs"),
                    format!("{cidr:?} is not a range"),
                )
            })?;
            for &(first, last) in if some.is_empty() { &all[..] } else { &some } {
                rules.push(
                    Rule::new(egress, protocol, Some((first, last)), peer.clone())
                        .comment(&rule.comment),
                );
            }
        }
    }
    if !rules.iter().any(|rule| rule.egress) {
        rules.push(Rule::everywhere());
    }
    if let Some(endpoint) = endpoint {
        let port = endpoint.port;
        // Explicit rules for the port replace the default of opening it to the world.
        if !rules.iter().any(|rule| !rule.egress && rule.covers(port)) {
            let world = Peer::world();
            rules.push(Rule::new(false, "tcp", Some((port, port)), world).comment("endpoint"));
        }
    }
    rules.sort();
    rules.dedup_by(|a, b| a.same(b));
    Ok(rules)
}

/// Encodes zone and id pairs as a tag value.
pub(super) fn to_tag(subnets: &BTreeMap<String, String>) -> String {
    let parts: Vec<String> = subnets
        .iter()
        .map(|(zone, id)| format!("{zone}={id}"))
        .collect();
    parts.join(",")
}

/// Decodes the output of [`to_tag`].
pub(super) fn from_tag(value: &str) -> BTreeMap<String, String> {
    value
        .split(',')
        .filter_map(|part| part.split_once('='))
        .filter(|(zone, id)| {
            id.starts_with("subnet-")
                && zone
                    .strip_suffix(|c: char| c.is_ascii_lowercase())
                    .is_some_and(settings::is_region)
        })
        .map(|(zone, id)| (zone.to_owned(), id.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use drover_proto::platform::v1::{EndpointSpec, PortRange};

    use super::*;

    fn all() -> Vec<String> {
        ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
            .map(str::to_owned)
            .into()
    }

    fn network_of(spec: NetworkSpec) -> Result<Network> {
        let spec = InfrastructureSpec {
            network: Some(spec),
            ..InfrastructureSpec::default()
        };
        WantedInfrastructure::read(&spec, &all()).map(|wanted| wanted.network.unwrap())
    }

    #[test]
    fn ranges_leave_room_for_every_zone() {
        let network = network_of(NetworkSpec {
            cidr: "10.7.0.0/22".to_owned(),
            ..NetworkSpec::default()
        })
        .unwrap();
        let Source::Made {
            cidr,
            subnet_length,
        } = network.source
        else {
            panic!("made")
        };
        assert_eq!(
            (cidr.to_string().as_str(), subnet_length),
            ("10.7.0.0/22", 24)
        );
        for wrong in ["10.0.0.0/8", "10.0.0.0/28", "fd00::/56"] {
            let error = network_of(NetworkSpec {
                cidr: wrong.to_owned(),
                ..NetworkSpec::default()
            })
            .unwrap_err();
            assert_eq!(error.fields()[0].field, "spec.network.cidr", "{wrong}");
        }
    }

    #[test]
    fn the_endpoint_is_open_to_all_unless_a_rule_says_otherwise() {
        let spec = |rules: Vec<FirewallRule>| InfrastructureSpec {
            network: Some(NetworkSpec::default()),
            endpoint: Some(EndpointSpec::default()),
            firewall: Some(FirewallSpec {
                rules,
                ..FirewallSpec::default()
            }),
            properties: None,
        };
        let open = WantedInfrastructure::read(&spec(Vec::new()), &all()).unwrap();
        assert!(
            open.network.unwrap().gateway,
            "an elastic address needs a way outside"
        );
        let ingress: Vec<&Rule> = open.rules.iter().filter(|rule| !rule.egress).collect();
        assert!(ingress.len() == 1 && ingress[0].covers(6443), "{ingress:?}");
        let narrow = WantedInfrastructure::read(
            &spec(vec![FirewallRule {
                direction: FirewallDirection::Ingress.into(),
                cidrs: vec!["203.0.113.0/24".to_owned()],
                ports: vec![PortRange {
                    first: 6443,
                    last: 0,
                }],
                ..FirewallRule::default()
            }]),
            &all(),
        )
        .unwrap();
        assert!(
            !narrow
                .rules
                .iter()
                .any(|rule| !rule.egress && rule.peer == Peer::world())
        );
    }

    #[test]
    fn what_ec2_does_not_have_is_refused() {
        let refused = |spec: InfrastructureSpec| {
            WantedInfrastructure::read(&spec, &all())
                .unwrap_err()
                .fields()[0]
                .field
                .clone()
        };
        let firewall = FirewallSpec {
            image: "firewall".to_owned(),
            ..FirewallSpec::default()
        };
        assert_eq!(
            refused(InfrastructureSpec {
                firewall: Some(firewall),
                ..InfrastructureSpec::default()
            }),
            "spec.firewall.image"
        );
        assert_eq!(
            refused(InfrastructureSpec {
                endpoint: Some(EndpointSpec {
                    host: "api.example.org".to_owned(),
                    ..EndpointSpec::default()
                }),
                ..InfrastructureSpec::default()
            }),
            "spec.endpoint.host"
        );
    }

    #[test]
    fn subnets_are_remembered_in_a_tag() {
        let subnets = BTreeMap::from([
            ("eu-central-1a".to_owned(), "subnet-1".to_owned()),
            ("eu-central-1b".to_owned(), "subnet-2".to_owned()),
        ]);
        assert_eq!(from_tag(&to_tag(&subnets)), subnets);
        assert!(from_tag("nonsense,a=b").is_empty());
    }
}
