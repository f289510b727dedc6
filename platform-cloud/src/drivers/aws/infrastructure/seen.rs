//! The existing infrastructure as read from EC2.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::{Filter, Tag};
use drover_core::{Error, Result};
use drover_proto::platform::v1::{Resource, ResourcePhase};

use super::{
    super::{NAME, api::Api, catalogue::filter, machines::escape},
    cidr::Cidr,
    rules::Rule,
};
use drover_platform::infrastructure::Owner;

pub(super) const OWNER: &str = "drover.dev/owner";
pub(super) const CLUSTER: &str = "drover.dev/cluster";
pub(super) const SEQUENCE: &str = "drover.dev/sequence";
pub(super) const KIND: &str = "drover.dev/kind";
pub(super) const RESOURCE: &str = "drover.dev/name";
/// On the address: the groups whose nodes it points to.
pub(super) const TARGETS: &str = "drover.dev/targets";
/// On the address: port of the endpoint.
pub(super) const PORT: &str = "drover.dev/port";
/// On an address that the user provided: it is never released.
pub(super) const BORROWED: &str = "drover.dev/borrowed";
/// On the security group of a network that the user provided: its subnets.
pub(super) const SUBNETS: &str = "drover.dev/subnets";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    Network,
    Gateway,
    Subnet,
    Firewall,
    Endpoint,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Gateway => "gateway",
            Self::Subnet => "subnet",
            Self::Firewall => "firewall",
            Self::Endpoint => "endpoint",
        }
    }
}

/// Attributes that all resources have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Thing {
    pub id: String,
    pub tags: BTreeMap<String, String>,
    /// Not usable yet.
    pub pending: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Vpc {
    pub thing: Thing,
    pub cidr: Option<Cidr>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Gateway {
    pub thing: Thing,
    pub vpc: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Subnet {
    pub thing: Thing,
    pub vpc: String,
    pub zone: String,
    pub cidr: Option<Cidr>,
    pub public: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Group {
    pub thing: Thing,
    pub vpc: String,
    pub rules: Vec<Rule>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Address {
    pub thing: Thing,
    pub ip: String,
    pub association: Option<String>,
    pub instance: Option<String>,
    /// Attached to another network interface.
    pub in_use: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    pub vpcs: Vec<Vpc>,
    pub gateways: Vec<Gateway>,
    pub subnets: Vec<Subnet>,
    pub groups: Vec<Group>,
    pub addresses: Vec<Address>,
}

/// Reads all pages of a Describe call.
macro_rules! pages {
    ($api:expr, $operation:literal, $call:ident, $filters:expr, $items:ident, $read:expr) => {{
        let mut found = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let page = $api
                .send($operation, |ec2| {
                    ec2.$call()
                        .set_filters($filters.clone())
                        .set_next_token(token.clone())
                        .send()
                })
                .await?;
            found.extend(page.$items().iter().filter_map($read));
            match page.next_token {
                // A repeated page token means that the list is incomplete.
                Some(next) if token.as_ref() == Some(&next) => {
                    return Err(Error::unavailable(concat!(
                        $operation,
                        ": the API repeats a page"
                    )));
                }
                Some(next) if !next.is_empty() => token = Some(next),
                _ => break,
            }
        }
        found
    }};
}

impl Seen {
    /// The resources of an owner.
    pub(super) async fn of(api: &Api, owner: &Owner) -> Result<Self> {
        let tag = |key: &str, value: &str| filter(&format!("tag:{key}"), [escape(value)]);
        Self::read(
            api,
            Some(vec![
                tag(OWNER, &owner.owner),
                tag(CLUSTER, &owner.cluster_id),
            ]),
        )
        .await
        .map(|mut seen| {
            // A server that does not support the filter would return foreign resources.
            seen.retain(|thing| {
                thing.tag(OWNER) == owner.owner && thing.tag(CLUSTER) == owner.cluster_id
            });
            seen
        })
    }

    /// All resources of all owners.
    pub(super) async fn all(api: &Api) -> Result<Self> {
        Self::read(api, None).await
    }

    async fn read(api: &Api, filters: Option<Vec<Filter>>) -> Result<Self> {
        Ok(Self {
            vpcs: pages!(api, "DescribeVpcs", describe_vpcs, filters, vpcs, Vpc::of),
            gateways: pages!(
                api,
                "DescribeInternetGateways",
                describe_internet_gateways,
                filters,
                internet_gateways,
                Gateway::of
            ),
            subnets: subnets(api, filters.clone()).await?,
            groups: pages!(
                api,
                "DescribeSecurityGroups",
                describe_security_groups,
                filters,
                security_groups,
                Group::of
            ),
            addresses: addresses(api, filters).await?,
        })
    }

    fn retain(&mut self, keep: impl Fn(&Thing) -> bool) {
        self.vpcs.retain(|vpc| keep(&vpc.thing));
        self.gateways.retain(|gateway| keep(&gateway.thing));
        self.subnets.retain(|subnet| keep(&subnet.thing));
        self.groups.retain(|group| keep(&group.thing));
        self.addresses.retain(|address| keep(&address.thing));
    }

    /// All resources with their kind, in creation order.
    pub(super) fn things(&self) -> impl Iterator<Item = (Kind, &Thing)> {
        let vpcs = self.vpcs.iter().map(|vpc| (Kind::Network, &vpc.thing));
        let gateways = self
            .gateways
            .iter()
            .map(|gateway| (Kind::Gateway, &gateway.thing));
        let subnets = self
            .subnets
            .iter()
            .map(|subnet| (Kind::Subnet, &subnet.thing));
        let groups = self
            .groups
            .iter()
            .map(|group| (Kind::Firewall, &group.thing));
        let addresses = self
            .addresses
            .iter()
            .map(|address| (Kind::Endpoint, &address.thing));
        vpcs.chain(gateways)
            .chain(subnets)
            .chain(groups)
            .chain(addresses)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.things().next().is_none()
    }

    /// Removes and returns the duplicates, which result from creations with an unknown outcome; one per name is kept.
    pub(super) fn take_surplus(&mut self) -> Self {
        let mut surplus = Self::default();
        self.vpcs
            .sort_by_key(|vpc| (vpc.thing.pending, vpc.thing.id.clone()));
        // Prefer the network that already contains more resources.
        let used = |vpc: &Vpc| {
            let id = &vpc.thing.id;
            self.subnets
                .iter()
                .filter(|subnet| subnet.vpc == *id)
                .count()
                + self.groups.iter().filter(|group| group.vpc == *id).count()
                + self
                    .gateways
                    .iter()
                    .filter(|gateway| gateway.vpc.as_ref() == Some(id))
                    .count()
        };
        let kept = (0..self.vpcs.len())
            .rev()
            .max_by_key(|at| used(&self.vpcs[*at]));
        let vpc = kept.map(|at| self.vpcs[at].thing.id.clone());
        let wrong = |id: &str| vpc.as_deref().is_some_and(|vpc| vpc != id);
        surplus.vpcs = split(&mut self.vpcs, |v| &v.thing, |v| wrong(&v.thing.id));
        surplus.gateways = split(&mut self.gateways, |g| &g.thing, |g| g.vpc.is_none());
        surplus.subnets = split(&mut self.subnets, |s| &s.thing, |s| wrong(&s.vpc));
        surplus.groups = split(&mut self.groups, |g| &g.thing, |g| wrong(&g.vpc));
        surplus.addresses = split(
            &mut self.addresses,
            |a| &a.thing,
            |a| a.thing.tag(BORROWED).is_empty() && a.association.is_none(),
        );
        surplus
    }
}

/// Keeps the first of each name; items that are `worse` come last.
fn split<T>(all: &mut Vec<T>, thing: impl Fn(&T) -> &Thing, worse: impl Fn(&T) -> bool) -> Vec<T> {
    all.sort_by_key(|item| (worse(item), thing(item).id.clone()));
    let mut names: Vec<String> = Vec::new();
    let (mut kept, mut surplus) = (Vec::new(), Vec::new());
    for item in all.drain(..) {
        let name = thing(&item).tag(RESOURCE).to_owned();
        if names.contains(&name) {
            surplus.push(item);
        } else {
            names.push(name);
            kept.push(item);
        }
    }
    *all = kept;
    surplus
}

/// Subnets that match the filters.
pub(super) async fn subnets(api: &Api, filters: Option<Vec<Filter>>) -> Result<Vec<Subnet>> {
    Ok(pages!(
        api,
        "DescribeSubnets",
        describe_subnets,
        filters,
        subnets,
        Subnet::of
    ))
}

/// Addresses that match the filters. The API returns them in a single page.
pub(super) async fn addresses(api: &Api, filters: Option<Vec<Filter>>) -> Result<Vec<Address>> {
    let answer = api
        .send("DescribeAddresses", |ec2| {
            ec2.describe_addresses().set_filters(filters.clone()).send()
        })
        .await?;
    Ok(answer.addresses().iter().filter_map(Address::of).collect())
}

impl Thing {
    fn new(id: Option<&str>, tags: &[Tag], pending: bool) -> Option<Self> {
        Some(Self {
            id: id?.to_owned(),
            tags: tags
                .iter()
                .filter_map(|tag| {
                    Some((
                        tag.key()?.to_owned(),
                        tag.value().unwrap_or_default().to_owned(),
                    ))
                })
                .collect(),
            pending,
        })
    }

    pub(super) fn tag(&self, key: &str) -> &str {
        self.tags.get(key).map_or("", String::as_str)
    }

    pub(super) fn resource(&self, kind: Kind, phase: ResourcePhase, message: &str) -> Resource {
        let named = match self.tag(RESOURCE) {
            "" => self.tag(NAME),
            name => name,
        };
        Resource {
            cluster_id: self.tag(CLUSTER).to_owned(),
            owner: self.tag(OWNER).to_owned(),
            kind: kind.name().to_owned(),
            name: if named.is_empty() { &self.id } else { named }.to_owned(),
            id: self.id.clone(),
            phase: phase.into(),
            message: drover_core::error::cut(message.to_owned()),
            sequence: self.tag(SEQUENCE).parse().unwrap_or_default(),
            create_time: None,
        }
    }

    pub(super) fn phase(&self) -> ResourcePhase {
        if self.pending {
            ResourcePhase::Pending
        } else {
            ResourcePhase::Ready
        }
    }
}

impl Vpc {
    fn of(vpc: &aws_sdk_ec2::types::Vpc) -> Option<Self> {
        let pending = vpc.state().is_some_and(|state| state.as_str() == "pending");
        Some(Self {
            thing: Thing::new(vpc.vpc_id(), vpc.tags(), pending)?,
            cidr: vpc.cidr_block().and_then(|cidr| cidr.parse().ok()),
        })
    }
}

impl Gateway {
    fn of(gateway: &aws_sdk_ec2::types::InternetGateway) -> Option<Self> {
        let attached = gateway
            .attachments()
            .iter()
            .find_map(|attachment| attachment.vpc_id());
        Some(Self {
            thing: Thing::new(
                gateway.internet_gateway_id(),
                gateway.tags(),
                attached.is_none(),
            )?,
            vpc: attached.map(str::to_owned),
        })
    }
}

impl Subnet {
    fn of(subnet: &aws_sdk_ec2::types::Subnet) -> Option<Self> {
        let pending = subnet
            .state()
            .is_some_and(|state| state.as_str() == "pending");
        Some(Self {
            thing: Thing::new(subnet.subnet_id(), subnet.tags(), pending)?,
            vpc: subnet.vpc_id().unwrap_or_default().to_owned(),
            zone: subnet.availability_zone().unwrap_or_default().to_owned(),
            cidr: subnet.cidr_block().and_then(|cidr| cidr.parse().ok()),
            public: subnet.map_public_ip_on_launch().unwrap_or_default(),
        })
    }
}

impl Group {
    fn of(group: &aws_sdk_ec2::types::SecurityGroup) -> Option<Self> {
        let ingress = group
            .ip_permissions()
            .iter()
            .flat_map(|p| Rule::of(false, p));
        let egress = group
            .ip_permissions_egress()
            .iter()
            .flat_map(|p| Rule::of(true, p));
        Some(Self {
            thing: Thing::new(group.group_id(), group.tags(), false)?,
            vpc: group.vpc_id().unwrap_or_default().to_owned(),
            rules: ingress.chain(egress).collect(),
        })
    }
}

impl Address {
    fn of(address: &aws_sdk_ec2::types::Address) -> Option<Self> {
        let said = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        let instance = said(address.instance_id());
        let in_use = instance.is_none() && said(address.network_interface_id()).is_some();
        // Lists show by it that it leads nowhere yet.
        let pending = instance.is_none() && !in_use;
        Some(Self {
            thing: Thing::new(address.allocation_id(), address.tags(), pending)?,
            ip: address.public_ip().unwrap_or_default().to_owned(),
            association: said(address.association_id()),
            in_use,
            instance,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thing(id: &str, name: &str) -> Thing {
        Thing {
            id: id.to_owned(),
            tags: [(RESOURCE.to_owned(), name.to_owned())].into(),
            pending: false,
        }
    }

    #[test]
    fn of_two_networks_the_one_in_use_is_kept() {
        let vpc = |id: &str| Vpc {
            thing: thing(id, "main"),
            cidr: None,
        };
        let subnet = |id: &str, vpc: &str| Subnet {
            thing: thing(id, "zone-a"),
            vpc: vpc.to_owned(),
            ..Subnet::default()
        };
        let mut seen = Seen {
            vpcs: vec![vpc("vpc-1"), vpc("vpc-2")],
            subnets: vec![subnet("subnet-2", "vpc-2")],
            ..Seen::default()
        };
        let surplus = seen.take_surplus();
        assert_eq!(seen.vpcs[0].thing.id, "vpc-2");
        assert_eq!(seen.subnets.len(), 1);
        assert_eq!(surplus.vpcs[0].thing.id, "vpc-1");
        assert_eq!(surplus.things().count(), 1);
    }

    #[test]
    fn of_two_addresses_the_one_that_leads_somewhere_is_kept() {
        let address = |id: &str, association: Option<&str>| Address {
            thing: thing(id, "control-plane"),
            association: association.map(str::to_owned),
            ..Address::default()
        };
        let mut seen = Seen {
            addresses: vec![
                address("eipalloc-1", None),
                address("eipalloc-2", Some("a")),
            ],
            ..Seen::default()
        };
        let surplus = seen.take_surplus();
        assert_eq!(seen.addresses[0].thing.id, "eipalloc-2");
        assert_eq!(surplus.addresses[0].thing.id, "eipalloc-1");
    }
}
