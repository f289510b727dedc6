//! The desired infrastructure, validated and with the platform's defaults.

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{
    FirewallDirection, FirewallRule, FirewallSpec, InfrastructureSpec, PortRange,
};
use prost_types::value::Kind;
use sha2::{Digest, Sha256};

use super::{
    super::{
        Metal,
        documents::{Network, Rule, Rules},
        machine::fits,
        properties::{ANNOUNCED, host, is_ip},
    },
    FIELDS,
    found::Found,
};
use drover_platform::identity::hex;

/// Maximum number of ports that the ranges of one rule may expand to: the API only accepts single ports.
const MAX_PORTS: usize = 256;
/// Default port of the control plane.
const API_PORT: u32 = 6443;

pub(super) struct Plan {
    pub project: String,
    pub partition: String,
    pub network: Option<NetworkPlan>,
    /// Id of the public network. Empty for none.
    pub public: String,
    pub endpoint: Option<EndpointPlan>,
    pub firewall: Option<FirewallPlan>,
}

pub(super) enum NetworkPlan {
    /// Provided by the user.
    Given(String),
    /// To be created with this prefix length. `None` for the partition's default.
    New(Option<u32>),
}

pub(super) struct EndpointPlan {
    /// Empty for any address.
    pub host: String,
    pub port: u32,
    pub targets: Vec<String>,
    /// Whether the software on the machines announces the address, so that none has it from metal-stack.
    pub announced: bool,
}

/// The properties of the infrastructure.
#[derive(Default)]
struct Said {
    partition: String,
    /// Whether [`default_egress`] is let out.
    egress: bool,
    announced: bool,
}

pub(super) struct FirewallPlan {
    pub image: String,
    pub size: String,
    /// Id of the machine. `None` for any.
    pub host: Option<String>,
    pub rules: Option<Rules>,
    /// Hash of the rules as specified. Empty if none were.
    pub rules_hash: String,
}

impl Metal {
    /// The plan for a spec. Makes no calls, except to read a network that the user provided.
    pub(super) async fn plan(&self, spec: &InfrastructureSpec) -> Result<Plan> {
        let said = self.properties(spec)?;
        let mut partition = said.partition;
        let network = spec.network.as_ref();
        let given = network.map_or("", |network| &network.id);
        if !given.is_empty() {
            let found = self.given(given).await?;
            if partition.is_empty() {
                partition.clone_from(&found.partitionid);
            }
            if !found.partitionid.is_empty() && found.partitionid != partition {
                return Err(Error::invalid(
                    "spec.network.id",
                    format!(
                        "network {given:?} is in partition {}, not in {partition}",
                        found.partitionid
                    ),
                ));
            }
        }
        if let Some(network) = network.filter(|network| !network.cidr.is_empty()) {
            return Err(Error::invalid(
                "spec.network.cidr",
                format!(
                    "metal-stack chooses the range itself, so {} cannot be had; say prefix_length, or the id of a network that exists",
                    network.cidr
                ),
            ));
        }
        if network
            .and_then(|network| network.prefix_length)
            .is_some_and(|length| !(1..=30).contains(&length))
        {
            return Err(Error::invalid(
                "spec.network.prefix_length",
                "expected 1 to 30",
            ));
        }
        let partition = self.partition(partition)?;
        let public = match network.map(|network| network.public.as_str()) {
            None | Some("") => self.settings.public_network.clone(),
            Some(public) => public.to_owned(),
        };
        let plan = Plan {
            project: self.settings.project.clone(),
            network: network.map(|network| match given {
                "" => NetworkPlan::New(network.prefix_length),
                id => NetworkPlan::Given(id.to_owned()),
            }),
            endpoint: self.endpoint_plan(spec, &public, said.announced)?,
            firewall: spec
                .firewall
                .as_ref()
                .map(|firewall| self.firewall_plan(firewall, said.egress))
                .transpose()?,
            partition,
            public,
        };
        if plan.firewall.is_some() && plan.network.is_none() {
            return Err(Error::invalid(
                "spec.network",
                "is required: a firewall needs a private network",
            ));
        }
        Ok(plan)
    }

    fn partition(&self, partition: String) -> Result<String> {
        let domains = &self.info.failure_domains;
        let partition = match (partition.is_empty(), domains.as_slice()) {
            (true, [only]) => only.name.clone(),
            _ => partition,
        };
        if partition.is_empty() {
            let known: Vec<&str> = domains.iter().map(|domain| domain.name.as_str()).collect();
            return Err(Error::invalid(
                "spec.properties.partition",
                format!("is required: one of {}", known.join(", ")),
            ));
        }
        self.check_partition("spec.properties.partition", &partition)?;
        Ok(partition)
    }

    /// The properties, with the partition of the settings if there is none.
    fn properties(&self, spec: &InfrastructureSpec) -> Result<Said> {
        let mut said = Said {
            partition: self.settings.partition.clone(),
            ..Said::default()
        };
        for (key, value) in spec.properties.iter().flat_map(|said| &said.fields) {
            let field = format!("spec.properties.{key}");
            let Some(Kind::StringValue(text)) = &value.kind else {
                return Err(Error::invalid(field, "expected text"));
            };
            match key.as_str() {
                "partition" => said.partition.clone_from(text),
                "egress" if text == "default" => said.egress = true,
                "egress" => return Err(Error::invalid(field, "expected default, or nothing")),
                "endpointBy" if text == ANNOUNCED => said.announced = true,
                "endpointBy" if text == "machine" => {}
                "endpointBy" => {
                    return Err(Error::invalid(
                        field,
                        format!("expected machine or {ANNOUNCED}"),
                    ));
                }
                "project" if *text == self.settings.project => {}
                "project" => {
                    return Err(Error::invalid(
                        field,
                        format!(
                            "this platform works in project {}; register another one for project {text}",
                            self.settings.project
                        ),
                    ));
                }
                _ => {
                    return Err(Error::invalid(
                        field,
                        "is not known; expected project, partition, egress or endpointBy",
                    ));
                }
            }
        }
        Ok(said)
    }

    fn endpoint_plan(
        &self,
        spec: &InfrastructureSpec,
        public: &str,
        announced: bool,
    ) -> Result<Option<EndpointPlan>> {
        let Some(endpoint) = &spec.endpoint else {
            return Ok(None);
        };
        if public.is_empty() {
            return Err(Error::invalid(
                "spec.network.public",
                "is required: the address of the control plane is one of the network that leads outside, and the platform has no default",
            ));
        }
        if !endpoint.host.is_empty() && !is_ip(&endpoint.host) {
            return Err(Error::invalid(
                "spec.endpoint.host",
                format!(
                    "{:?} is not an IP address, and metal-stack has only these",
                    endpoint.host
                ),
            ));
        }
        Ok(Some(EndpointPlan {
            host: endpoint.host.clone(),
            port: if endpoint.port == 0 {
                API_PORT
            } else {
                endpoint.port
            },
            targets: endpoint.targets.clone(),
            announced,
        }))
    }

    fn firewall_plan(&self, firewall: &FirewallSpec, egress: bool) -> Result<FirewallPlan> {
        let common = &self.settings.common;
        let defaults = &self.settings.firewall;
        let or = |word: &str, default: &str| {
            if word.is_empty() {
                default.to_owned()
            } else {
                word.to_owned()
            }
        };
        let image = common
            .image(&or(&firewall.image, &defaults.image))
            .to_owned();
        let size = common
            .node_class(&or(&firewall.node_class, &defaults.node_class))
            .to_owned();
        if image.is_empty() {
            return Err(Error::invalid(
                FIELDS.image,
                "is required: the platform has no default",
            ));
        }
        let host = match firewall.host.as_str() {
            "" => None,
            id => Some(host("spec.firewall.host", id)?),
        };
        if size.is_empty() && host.is_none() {
            return Err(Error::invalid(
                FIELDS.size,
                "is required: the platform has no default",
            ));
        }
        if !size.is_empty() {
            self.check_size(FIELDS.size, &size)?;
        }
        let mut wanted = firewall.rules.clone();
        if egress {
            wanted.extend(default_egress());
        }
        Ok(FirewallPlan {
            image,
            size,
            host,
            rules: rules(&wanted)?,
            rules_hash: rules_hash(&wanted),
        })
    }

    /// A network that the user provided, if it can be used.
    async fn given(&self, id: &str) -> Result<Network> {
        let Some(network) = self.api.network(id).await? else {
            return Err(Error::invalid(
                "spec.network.id",
                format!("there is no network {id:?}"),
            ));
        };
        if network.privatesuper || network.underlay || network.projectid.is_empty() {
            return Err(Error::invalid(
                "spec.network.id",
                format!("{id:?} is not a private network of a project"),
            ));
        }
        if network.projectid != self.settings.project && !network.shared {
            return Err(Error::new(
                Reason::NotOwned,
                format!("network {id:?} belongs to project {}", network.projectid),
            ));
        }
        Ok(network)
    }

    /// Checks that the resources that a plan refers to exist.
    pub(super) async fn check_plan(&self, plan: &Plan) -> Result<()> {
        if !plan.public.is_empty() && self.api.network(&plan.public).await?.is_none() {
            return Err(Error::invalid(
                "spec.network.public",
                format!("there is no network {:?}", plan.public),
            ));
        }
        if let Some(firewall) = &plan.firewall {
            self.check_image(FIELDS.image, &firewall.image, "firewall")
                .await?;
        }
        Ok(())
    }
}

impl Plan {
    /// Checks that a new firewall forwards anything: the installer of metal-stack has nftables drop what no rule lets
    /// through (`chain forward { policy drop }`,
    /// <https://github.com/metal-stack/os-installer/blob/main/pkg/nftables/nftrules.tpl>), and machines behind a firewall
    /// without rules would reach no package, image or time server.
    pub(super) fn lets_through(&self, found: &Found) -> Result<()> {
        let rules = self.firewall.as_ref().map(|plan| plan.rules.as_ref());
        if !matches!(rules, Some(None)) || !found.firewalls.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(
            "spec.firewall.rules",
            "are required: a firewall of metal-stack lets nothing through by itself, so no machine behind it could load a \
             package or an image. Give rules, or `egress: default` in the properties of this infrastructure, which lets \
             out DNS (53), HTTP (80), NTP (123) and HTTPS (443)",
        ))
    }

    /// Checks that the existing resources match the plan.
    ///
    /// # Errors
    /// `Immutable` with the field.
    pub(super) fn agrees(&self, found: &Found) -> Result<()> {
        let differs = |field: &str, is: &str, wanted: &str| {
            Err(Error::new(
                Reason::Immutable,
                format!("{field} cannot be changed from {is} to {wanted}: delete the cluster and make it again"),
            )
            .with_violation(field, format!("is {is} and cannot be changed to {wanted}")))
        };
        if let (Some(network), Some(plan)) = (found.networks.first(), &self.network) {
            if network.partitionid != self.partition {
                return differs(
                    "spec.properties.partition",
                    &network.partitionid,
                    &self.partition,
                );
            }
            let length = network
                .prefixes
                .first()
                .and_then(|prefix| prefix.rsplit('/').next());
            let length = length.unwrap_or_default();
            match plan {
                NetworkPlan::Given(id) => return differs("spec.network.id", &network.id, id),
                NetworkPlan::New(Some(wanted)) if *length != wanted.to_string() => {
                    return differs("spec.network.prefix_length", length, &wanted.to_string());
                }
                NetworkPlan::New(_) => {}
            }
        }
        if let (Some(ip), Some(plan)) = (found.ips.first(), &self.endpoint)
            && !plan.host.is_empty()
            && ip.ipaddress != plan.host
        {
            return differs("spec.endpoint.host", &ip.ipaddress, &plan.host);
        }
        if let (Some(ip), Some(_)) = (found.ips.first(), &self.endpoint)
            && ip.networkid != self.public
        {
            return differs("spec.network.public", &ip.networkid, &self.public);
        }
        if let (Some(firewall), Some(plan)) = (found.firewalls.first(), &self.firewall) {
            fits(firewall, &plan.size, &self.partition, &FIELDS)
                .or_else(|_| differs(FIELDS.size, firewall.size(), &plan.size))?;
            let image = firewall
                .allocation
                .as_ref()
                .and_then(|allocation| allocation.image.as_ref());
            let image = image.map_or("", |image| &image.id);
            let is_image = image == plan.image
                || image
                    .strip_prefix(&plan.image)
                    .is_some_and(|rest| rest.starts_with('.'));
            if !is_image {
                return differs(FIELDS.image, image, &plan.image);
            }
            if let Some(host) = &plan.host
                && *host != firewall.id
            {
                return differs("spec.firewall.host", &firewall.id, host);
            }
            if found.rules_hash() != plan.rules_hash {
                return differs(
                    "spec.firewall.rules",
                    "those that it was made with",
                    "others",
                );
            }
        }
        Ok(())
    }
}

/// What a machine needs to be installed and to stay up to date.
fn default_egress() -> Vec<FirewallRule> {
    let open = |protocol: &str, ports: &[u32], comment: &str| FirewallRule {
        direction: FirewallDirection::Egress.into(),
        protocol: protocol.to_owned(),
        cidrs: vec!["0.0.0.0/0".to_owned()],
        ports: ports
            .iter()
            .map(|port| PortRange {
                first: *port,
                last: 0,
            })
            .collect(),
        comment: comment.to_owned(),
    };
    vec![
        open("tcp", &[53, 80, 443], "DNS and HTTP and HTTPS"),
        open("udp", &[53, 123], "DNS and NTP"),
    ]
}

/// The rules in the API's form. `None` if there are none: then the firewall forwards nothing.
fn rules(rules: &[FirewallRule]) -> Result<Option<Rules>> {
    if rules.is_empty() {
        return Ok(None);
    }
    let mut all = Rules::default();
    for (at, rule) in rules.iter().enumerate() {
        let field = format!("spec.firewall.rules[{at}]");
        let mut ports = Vec::new();
        for range in &rule.ports {
            ports.extend(range.first..=range.last.max(range.first));
            if ports.len() > MAX_PORTS {
                return Err(Error::invalid(
                    format!("{field}.ports"),
                    format!(
                        "are more than {MAX_PORTS}; metal-stack takes single ports only. None at all: every port"
                    ),
                ));
            }
        }
        if rule.cidrs.iter().any(|cidr| cidr.contains(':'))
            && rule.cidrs.iter().any(|cidr| !cidr.contains(':'))
        {
            return Err(Error::invalid(
                format!("{field}.cidrs"),
                "are of IPv4 and of IPv6; metal-stack takes one kind in a rule",
            ));
        }
        let made = Rule {
            protocol: if rule.protocol.is_empty() {
                "tcp".to_owned()
            } else {
                rule.protocol.clone()
            },
            ports,
            comment: comment(&rule.comment),
            ..Rule::default()
        };
        let cidrs = rule.cidrs.clone();
        if rule.direction() == FirewallDirection::Egress {
            all.egress.push(Rule { to: cidrs, ..made });
        } else {
            all.ingress.push(Rule {
                from: cidrs,
                ..made
            });
        }
    }
    Ok(Some(all))
}

/// A comment reduced to the characters that the API accepts, at most 100.
fn comment(text: &str) -> String {
    let fits = |c: char| {
        if c.is_ascii_alphabetic() || c == '_' {
            c
        } else if c == ' ' {
            ' '
        } else {
            '-'
        }
    };
    text.chars().map(fits).take(100).collect()
}

fn rules_hash(rules: &[FirewallRule]) -> String {
    if rules.is_empty() {
        return String::new();
    }
    let mut hash = Sha256::new();
    for rule in rules {
        let bytes = prost::Message::encode_to_vec(rule);
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    }
    hex(&hash.finalize()[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_what_the_api_takes() {
        let rule = FirewallRule {
            direction: FirewallDirection::Ingress.into(),
            cidrs: vec!["0.0.0.0/0".to_owned()],
            ports: vec![
                PortRange {
                    first: 80,
                    last: 82,
                },
                PortRange {
                    first: 443,
                    last: 0,
                },
            ],
            comment: "web: 80+443".to_owned(),
            ..FirewallRule::default()
        };
        let made = rules(std::slice::from_ref(&rule)).unwrap().unwrap();
        assert_eq!(made.ingress[0].ports, [80, 81, 82, 443]);
        assert_eq!(
            (
                made.ingress[0].protocol.as_str(),
                made.ingress[0].comment.as_str()
            ),
            ("tcp", "web- -------"[..].get(..11).unwrap())
        );
        let wide = FirewallRule {
            ports: vec![PortRange {
                first: 1,
                last: 65535,
            }],
            ..rule.clone()
        };
        assert_eq!(
            rules(&[wide]).unwrap_err().fields()[0].field,
            "spec.firewall.rules[0].ports"
        );
        let mixed = FirewallRule {
            cidrs: vec!["::/0".to_owned(), "0.0.0.0/0".to_owned()],
            ..rule
        };
        assert_eq!(
            rules(&[mixed]).unwrap_err().fields()[0].field,
            "spec.firewall.rules[0].cidrs"
        );
    }
}
