//! VPCs and subnets.

use std::net::Ipv6Addr;

use tokio::time::Instant;

use crate::ec2::model::{Cidr, Phase, State, Subnet, Vpc, new_id};
use crate::ec2::params::{Filters, Outcome, Params, Wrong, invalid_value, wrong};
use crate::ec2::run::no_subnet;
use crate::ec2::xml::Xml;
use crate::ec2::{ACCOUNT, World};

impl World {
    pub(crate) fn create_vpc(&self, state: &mut State, params: &Params) -> Outcome<Xml> {
        let tags = params.tags_for("vpc")?;
        let cidr = cidr(params)?;
        if !(16..=28).contains(&cidr.bits) {
            return Err(wrong(
                "InvalidVpc.Range",
                format!("The CIDR '{cidr}' is invalid."),
            ));
        }
        if state.vpcs.len() >= self.settings.vpc_quota {
            return Err(too_many());
        }
        let ipv6 = params.bool("AmazonProvidedIpv6CidrBlock")? == Some(true);
        let tenancy = params.get("InstanceTenancy").unwrap_or("default");
        let id = self.add_vpc(state, cidr, false, ipv6, tenancy, &tags);
        let mut xml = Xml::new();
        xml.nest("vpc", |xml| draw_vpc(xml, state, &id));
        Ok(xml)
    }

    pub(crate) fn delete_vpc(&self, state: &mut State, params: &Params) -> Outcome<Xml> {
        let id = params.need("VpcId")?.to_owned();
        let vpc = find_vpc(state, &id)?;
        let table = vpc.route_table.clone();
        let subnets = state.subnets.values().any(|subnet| subnet.vpc == id);
        let gateway = state.gateways.values().flatten().any(|vpc| *vpc == id);
        let groups = state
            .groups
            .values()
            .any(|group| group.vpc == id && group.name != "default");
        if subnets || gateway || groups {
            return Err(depends(&format!(
                "The vpc '{id}' has dependencies and cannot be deleted."
            )));
        }
        state.vpcs.remove(&id);
        state.route_tables.remove(&table);
        state.groups.retain(|_, group| group.vpc != id);
        state.tags.remove(&id);
        self.ledger.gone(&id);
        Ok(Xml::done())
    }

    pub(crate) fn describe_vpcs(&self, state: &State, params: &Params) -> Outcome<Xml> {
        let known = [
            "cidr",
            "cidr-block-association.cidr-block",
            "is-default",
            "isDefault",
            "owner-id",
            "state",
            "vpc-id",
        ];
        let filters = Filters::new(params, &known)?;
        let ids = params.list("VpcId");
        for id in &ids {
            find_vpc(state, id)?;
        }
        let shown = state.vpcs.iter().filter(|(id, vpc)| {
            (ids.is_empty() || ids.contains(id))
                && filters.hold(state.tags_of(id), |name| match name {
                    "cidr" | "cidr-block-association.cidr-block" => vec![vpc.cidr.to_string()],
                    "is-default" | "isDefault" => vec![vpc.is_default.to_string()],
                    "owner-id" => vec![ACCOUNT.to_owned()],
                    "state" => vec!["available".to_owned()],
                    _ => vec![(*id).clone()],
                })
        });
        let (page, next) = self.page(params, shown.map(|(id, _)| id).collect())?;
        let mut xml = Xml::new();
        xml.list("vpcSet", page, |xml, id| draw_vpc(xml, state, id));
        xml.maybe("nextToken", next.as_deref());
        Ok(xml)
    }

    /// Accepts one attribute per call, like the API.
    pub(crate) fn modify_vpc_attribute(&self, state: &mut State, params: &Params) -> Outcome<Xml> {
        let id = params.need("VpcId")?.to_owned();
        find_vpc(state, &id)?;
        let names = params.bool("EnableDnsHostnames.Value")?;
        let support = params.bool("EnableDnsSupport.Value")?;
        let metrics = params.bool("EnableNetworkAddressUsageMetrics.Value")?;
        if [names, support, metrics].iter().flatten().count() != 1 {
            let message = "Only one attribute can be modified at a time";
            return Err(wrong("InvalidParameterCombination", message));
        }
        if let Some(vpc) = state.vpcs.get_mut(&id) {
            vpc.dns_hostnames = names.unwrap_or(vpc.dns_hostnames);
            vpc.dns_support = support.unwrap_or(vpc.dns_support);
        }
        for instance in state
            .instances
            .values_mut()
            .filter(|instance| instance.vpc == id)
        {
            instance.drawn = None;
        }
        Ok(Xml::done())
    }

    pub(crate) fn describe_vpc_attribute(&self, state: &State, params: &Params) -> Outcome<Xml> {
        let id = params.need("VpcId")?;
        let vpc = find_vpc(state, id)?;
        let name = params.need("Attribute")?;
        let value = match name {
            "enableDnsHostnames" => vpc.dns_hostnames,
            "enableDnsSupport" => vpc.dns_support,
            "enableNetworkAddressUsageMetrics" => false,
            _ => return Err(invalid_value("attribute", name, "Unknown attribute.")),
        };
        let mut xml = Xml::new();
        xml.text("vpcId", id);
        xml.nest(name, |xml| xml.value("value", value));
        Ok(xml)
    }

    pub(crate) fn create_subnet(&self, state: &mut State, params: &Params) -> Outcome<Xml> {
        let vpc_id = params.need("VpcId")?.to_owned();
        let tags = params.tags_for("subnet")?;
        let block = cidr(params)?;
        let vpc = find_vpc(state, &vpc_id)?;
        if !vpc.cidr.holds(block) || !(16..=28).contains(&block.bits) {
            return Err(wrong(
                "InvalidSubnet.Range",
                format!("The CIDR '{block}' is invalid."),
            ));
        }
        if state
            .subnets
            .values()
            .any(|subnet| subnet.vpc == vpc_id && subnet.cidr.meets(block))
        {
            let message = format!("The CIDR '{block}' conflicts with another subnet");
            return Err(wrong("InvalidSubnet.Conflict", message));
        }
        let ipv6 = params
            .get("Ipv6CidrBlock")
            .map(|text| subnet6(text, vpc))
            .transpose()?;
        let zone = self.zone(params)?;
        let id = new_id("subnet");
        self.made("subnet", &id, None, &tags, false);
        state
            .subnets
            .insert(id.clone(), Subnet::new(&vpc_id, &zone, block, ipv6));
        state.tags.insert(id.clone(), tags);
        let mut xml = Xml::new();
        xml.nest("subnet", |xml| self.draw_subnet(xml, state, &id));
        Ok(xml)
    }

    /// Resolves the zone that a call names by its name or its id; the first zone if none is named.
    fn zone(&self, params: &Params) -> Outcome<String> {
        let [first, ..] = self.zones();
        let Some(asked) = params
            .get("AvailabilityZone")
            .or(params.get("AvailabilityZoneId"))
        else {
            return Ok(first);
        };
        let ids = (1..).map(|number| super::offers::zone_id(&self.settings.region, number));
        let found = self
            .zones()
            .into_iter()
            .zip(ids)
            .find(|(name, id)| name == asked || id == asked);
        let message = format!(
            "Value ({asked}) for parameter availabilityZone is invalid. Subnets can currently only be created in the \
             following availability zones: {}.",
            self.zones().join(", ")
        );
        found
            .map(|(name, _)| name)
            .ok_or_else(|| wrong("InvalidParameterValue", message))
    }

    pub(crate) fn delete_subnet(
        &self,
        state: &mut State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let id = params.need("SubnetId")?.to_owned();
        if !state.subnets.contains_key(&id) {
            return Err(no_subnet(&id));
        }
        let used = state.instances.values().any(|instance| {
            instance.subnet == id && instance.phase(now, &self.delays) != Phase::Terminated
        });
        if used {
            return Err(depends(&format!(
                "The subnet '{id}' has dependencies and cannot be deleted."
            )));
        }
        state.subnets.remove(&id);
        state.tags.remove(&id);
        self.ledger.gone(&id);
        Ok(Xml::done())
    }

    pub(crate) fn describe_subnets(&self, state: &State, params: &Params) -> Outcome<Xml> {
        let known = [
            "availability-zone",
            "availabilityZone",
            "cidr-block",
            "default-for-az",
            "map-public-ip-on-launch",
            "owner-id",
            "state",
            "subnet-id",
            "vpc-id",
        ];
        let filters = Filters::new(params, &known)?;
        let ids = params.list("SubnetId");
        if let Some(id) = ids.iter().find(|id| !state.subnets.contains_key(*id)) {
            return Err(no_subnet(id));
        }
        let shown = state.subnets.iter().filter(|(id, subnet)| {
            (ids.is_empty() || ids.contains(id))
                && filters.hold(state.tags_of(id), |name| match name {
                    "availability-zone" | "availabilityZone" => vec![subnet.zone.clone()],
                    "cidr-block" => vec![subnet.cidr.to_string()],
                    "default-for-az" => vec![subnet.is_default.to_string()],
                    "map-public-ip-on-launch" => vec![subnet.public.to_string()],
                    "owner-id" => vec![ACCOUNT.to_owned()],
                    "state" => vec!["available".to_owned()],
                    "subnet-id" => vec![(*id).clone()],
                    _ => vec![subnet.vpc.clone()],
                })
        });
        let (page, next) = self.page(params, shown.map(|(id, _)| id).collect())?;
        let mut xml = Xml::new();
        xml.list("subnetSet", page, |xml, id| {
            self.draw_subnet(xml, state, id);
        });
        xml.maybe("nextToken", next.as_deref());
        Ok(xml)
    }

    pub(crate) fn modify_subnet_attribute(
        &self,
        state: &mut State,
        params: &Params,
    ) -> Outcome<Xml> {
        let id = params.need("SubnetId")?.to_owned();
        let public = params.bool("MapPublicIpOnLaunch.Value")?;
        let on_creation = params.bool("AssignIpv6AddressOnCreation.Value")?;
        let subnet = state.subnets.get_mut(&id).ok_or_else(|| no_subnet(&id))?;
        if on_creation == Some(true) && subnet.ipv6.is_none() {
            let message = format!("The subnet '{id}' does not have an IPv6 CIDR block associated.");
            return Err(wrong("InvalidParameterValue", message));
        }
        subnet.public = public.unwrap_or(subnet.public);
        subnet.ipv6_on_creation = on_creation.unwrap_or(subnet.ipv6_on_creation);
        Ok(Xml::done())
    }

    fn draw_subnet(&self, xml: &mut Xml, state: &State, id: &str) {
        let Some(subnet) = state.subnets.get(id) else {
            return;
        };
        let number = self
            .zones()
            .iter()
            .position(|zone| *zone == subnet.zone)
            .unwrap_or(0)
            + 1;
        xml.text("subnetId", id);
        xml.value(
            "subnetArn",
            format_args!("arn:aws:ec2:{}:{ACCOUNT}:subnet/{id}", self.settings.region),
        );
        xml.text("state", "available");
        xml.text("ownerId", ACCOUNT);
        xml.text("vpcId", &subnet.vpc);
        xml.value("cidrBlock", subnet.cidr);
        associations6(xml, subnet.ipv6.as_deref(), id, "subnet-cidr-assoc-");
        xml.value("availableIpAddressCount", subnet.left());
        xml.text("availabilityZone", &subnet.zone);
        xml.text(
            "availabilityZoneId",
            &super::offers::zone_id(&self.settings.region, number),
        );
        xml.value("defaultForAz", subnet.is_default);
        xml.value("mapPublicIpOnLaunch", subnet.public);
        xml.value("assignIpv6AddressOnCreation", subnet.ipv6_on_creation);
        xml.text("mapCustomerOwnedIpOnLaunch", "false");
        xml.text("enableDns64", "false");
        xml.text("ipv6Native", "false");
        xml.tags(state.tags_of(id));
    }
}

fn associations6(xml: &mut Xml, block: Option<&str>, id: &str, prefix: &str) {
    xml.list("ipv6CidrBlockAssociationSet", block, |xml, block| {
        xml.text("ipv6CidrBlock", block);
        let digits = id.rsplit('-').next().unwrap_or_default();
        xml.value("associationId", format_args!("{prefix}{digits}"));
        xml.nest("ipv6CidrBlockState", |xml| xml.text("state", "associated"));
    });
}

fn draw_vpc(xml: &mut Xml, state: &State, id: &str) {
    let Some(vpc) = state.vpcs.get(id) else {
        return;
    };
    let digits = id.rsplit('-').next().unwrap_or_default();
    xml.text("vpcId", id);
    xml.text("ownerId", ACCOUNT);
    xml.text("state", "available");
    xml.value("cidrBlock", vpc.cidr);
    xml.list("cidrBlockAssociationSet", Some(vpc), |xml, vpc| {
        xml.value("cidrBlock", vpc.cidr);
        xml.value("associationId", format_args!("vpc-cidr-assoc-{digits}"));
        xml.nest("cidrBlockState", |xml| xml.text("state", "associated"));
    });
    associations6(xml, vpc.ipv6.as_deref(), id, "vpc-cidr-assoc-");
    xml.value("dhcpOptionsId", format_args!("dopt-{digits}"));
    xml.text("instanceTenancy", &vpc.tenancy);
    xml.value("isDefault", vpc.is_default);
    xml.tags(state.tags_of(id));
}

fn cidr(params: &Params) -> Outcome<Cidr> {
    let text = params.need("CidrBlock")?;
    Cidr::parse(text)
        .ok_or_else(|| invalid_value("cidrBlock", text, "This is not a valid CIDR block."))
}

/// Expands a subnet's IPv6 block, a /64, to all its digit groups, because addresses are derived from it.
fn subnet6(text: &str, vpc: &Vpc) -> Outcome<String> {
    let invalid = |why| invalid_value("ipv6CidrBlock", text, why);
    let address = text
        .strip_suffix("/64")
        .and_then(|address| address.parse::<Ipv6Addr>().ok());
    let [a, b, c, d, ..] = address
        .ok_or_else(|| invalid("It must be a block of 64 bits."))?
        .segments();
    let within = vpc
        .ipv6
        .as_ref()
        .and_then(|block| block.split_once('/')?.0.parse::<Ipv6Addr>().ok());
    let [va, vb, vc, vd, ..] = within
        .ok_or_else(|| invalid("The network has no IPv6 block."))?
        .segments();
    if [a, b, c, d & 0xff00] != [va, vb, vc, vd & 0xff00] {
        return Err(invalid("It is not in the block of the network."));
    }
    Ok(format!("{a:x}:{b:x}:{c:x}:{d:x}::/64"))
}

pub(crate) fn find_vpc<'a>(state: &'a State, id: &str) -> Outcome<&'a Vpc> {
    let none = || {
        wrong(
            "InvalidVpcID.NotFound",
            format!("The vpc ID '{id}' does not exist"),
        )
    };
    state.vpcs.get(id).ok_or_else(none)
}

pub(crate) fn depends(message: &str) -> Wrong {
    wrong("DependencyViolation", message)
}

pub(crate) fn too_many() -> Wrong {
    wrong(
        "VpcLimitExceeded",
        "The maximum number of VPCs has been reached.",
    )
}
