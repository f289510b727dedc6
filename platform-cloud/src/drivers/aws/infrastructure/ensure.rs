//! Making what is missing, one step after the other.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::{AttributeBooleanValue, DomainType, IpPermission, ResourceType, Tag};
use drover_core::{Class, Error, Result};
use drover_proto::platform::v1::{InfrastructureState, Resource, ResourcePhase};

use super::{
    super::{Aws, NAME, catalogue::filter, errors, launch::tagged},
    BORROWED, CLUSTER, Kind, Network, OWNER, PORT, SOON, SUBNETS, Seen, Source, TARGETS, Wanted,
    cidr::Cidr,
    outputs, resources,
    rules::{Rule, missing},
    seen::{Address, Gateway, Group, KIND, RESOURCE, SEQUENCE, Subnet, Thing, Vpc},
    wanted::{Endpoint, to_tag},
};
use drover_platform::infrastructure::{Owner, Progress};

/// Names of the resources there is one of.
const MAIN: &str = "main";
const CLUSTER_GROUP: &str = "cluster";
const CONTROL_PLANE: &str = "control-plane";
const EVERYWHERE: &str = "0.0.0.0/0";

/// One pass over everything that is wanted.
pub(super) struct Work<'a> {
    aws: &'a Aws,
    owner: &'a Owner,
    sequence: u64,
    wanted: &'a Wanted,
    seen: Seen,
    waiting: Vec<Resource>,
    endpoint: Option<(ResourcePhase, String)>,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        aws: &'a Aws,
        owner: &'a Owner,
        sequence: u64,
        wanted: &'a Wanted,
        seen: Seen,
    ) -> Self {
        Self {
            aws,
            owner,
            sequence,
            wanted,
            seen,
            waiting: Vec::new(),
            endpoint: None,
        }
    }

    /// Goes as far as possible.
    pub(super) async fn run(&mut self) -> Result<()> {
        match self.steps().await {
            // What was made a moment ago is not known everywhere at EC2.
            Err(error)
                if errors::is_absent(&error) && !self.aws.recent.of(self.owner).is_empty() =>
            {
                self.wait(Kind::Network, MAIN, error.message());
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// The state after the pass.
    pub(super) fn progress(self) -> Progress {
        let mut resources = resources(&self.seen, self.endpoint);
        resources.extend(self.waiting);
        let done = resources
            .iter()
            .all(|resource| resource.phase() == ResourcePhase::Ready);
        Progress {
            poll_after: (!done).then_some(SOON),
            state: InfrastructureState {
                phase: ResourcePhase::Unspecified.into(),
                outputs: Some(outputs(&self.seen)),
                resources,
            },
        }
    }

    async fn steps(&mut self) -> Result<()> {
        if let Some(network) = &self.wanted.network {
            let given = self.aws.given_subnets(network, self.owner).await?;
            let Some(vpc) = self.network(network).await? else {
                return Ok(());
            };
            if matches!(network.source, Source::Made { .. }) && network.gateway {
                self.gateway(&vpc).await?;
            }
            self.subnets(network, &vpc).await?;
            self.group(network, &vpc, &given).await?;
        }
        if let Some(endpoint) = &self.wanted.endpoint {
            self.address(endpoint).await?;
            self.endpoint = self.aws.follow(self.owner, &mut self.seen).await;
        }
        Ok(())
    }

    /// Id of the network. `None`: it has to be waited for.
    async fn network(&mut self, network: &Network) -> Result<Option<String>> {
        let cidr = match &network.source {
            Source::Given { id, .. } => return Ok(Some(id.clone())),
            Source::Made { cidr, .. } => *cidr,
        };
        if let Some(vpc) = self.seen.vpcs.first() {
            return Ok(Some(vpc.thing.id.clone()));
        }
        if !self.begin(Kind::Network, MAIN) {
            return Ok(None);
        }
        let tags = self.tags(Kind::Network, MAIN);
        let outcome = self
            .aws
            .api
            .send("CreateVpc", |ec2| {
                ec2.create_vpc()
                    .cidr_block(cidr.to_string())
                    .tag_specifications(tagged(ResourceType::Vpc, &tags))
                    .send()
            })
            .await
            .map(|answer| answer.vpc.and_then(|vpc| vpc.vpc_id));
        let id = self.end(Kind::Network, MAIN, outcome)?;
        self.seen.vpcs.push(Vpc {
            thing: thing(&id, tags),
            cidr: Some(cidr),
        });
        Ok(Some(id))
    }

    /// The way outside: gateway, attached, and the route to it.
    async fn gateway(&mut self, vpc: &str) -> Result<()> {
        if self.seen.gateways.is_empty() {
            if !self.begin(Kind::Gateway, MAIN) {
                return Ok(());
            }
            let tags = self.tags(Kind::Gateway, MAIN);
            let outcome = self
                .aws
                .api
                .send("CreateInternetGateway", |ec2| {
                    ec2.create_internet_gateway()
                        .tag_specifications(tagged(ResourceType::InternetGateway, &tags))
                        .send()
                })
                .await
                .map(|answer| {
                    answer
                        .internet_gateway
                        .and_then(|gateway| gateway.internet_gateway_id)
                });
            let id = self.end(Kind::Gateway, MAIN, outcome)?;
            self.seen.gateways.push(Gateway {
                thing: thing(&id, tags),
                vpc: None,
            });
        }
        let Some(gateway) = self.seen.gateways.first_mut() else {
            return Ok(());
        };
        let id = gateway.thing.id.clone();
        if gateway.vpc.is_none() {
            let outcome = self
                .aws
                .api
                .send("AttachInternetGateway", |ec2| {
                    ec2.attach_internet_gateway()
                        .internet_gateway_id(&id)
                        .vpc_id(vpc)
                        .send()
                })
                .await;
            match outcome {
                Err(error) if errors::code(&error) != "Resource.AlreadyAssociated" => {
                    return Err(error);
                }
                _ => {}
            }
            gateway.vpc = Some(vpc.to_owned());
            gateway.thing.pending = false;
        }
        self.route(vpc, &id).await
    }

    /// The default route of the network's main table, which goes with the network.
    async fn route(&self, vpc: &str, gateway: &str) -> Result<()> {
        let api = &self.aws.api;
        let filters = vec![
            filter("vpc-id", [vpc]),
            filter("association.main", ["true"]),
        ];
        let answer = api
            .send("DescribeRouteTables", |ec2| {
                ec2.describe_route_tables()
                    .set_filters(Some(filters.clone()))
                    .send()
            })
            .await?;
        let Some(table) = answer
            .route_tables()
            .iter()
            .find(|table| table.vpc_id() == Some(vpc))
        else {
            return Err(Error::unavailable(format!(
                "the network {vpc} has no route table yet"
            )));
        };
        let id = table.route_table_id().unwrap_or_default();
        let default = table
            .routes()
            .iter()
            .find(|route| route.destination_cidr_block() == Some(EVERYWHERE));
        match default {
            Some(route) if route.gateway_id() == Some(gateway) => return Ok(()),
            // One that leads to a gateway of former times.
            Some(_) => {
                api.send("DeleteRoute", |ec2| {
                    ec2.delete_route()
                        .route_table_id(id)
                        .destination_cidr_block(EVERYWHERE)
                        .send()
                })
                .await?;
            }
            None => {}
        }
        let outcome = api
            .send("CreateRoute", |ec2| {
                ec2.create_route()
                    .route_table_id(id)
                    .destination_cidr_block(EVERYWHERE)
                    .gateway_id(gateway)
                    .send()
            })
            .await
            .map(drop);
        already(outcome, "RouteAlreadyExists")
    }

    async fn subnets(&mut self, network: &Network, vpc: &str) -> Result<()> {
        if matches!(network.source, Source::Made { .. }) && self.seen.subnets.is_empty() {
            // Nodes get names that resolve. Before the first subnet, so that it is repeated after a crash.
            let on = AttributeBooleanValue::builder().value(true).build();
            self.aws
                .api
                .send("ModifyVpcAttribute", |ec2| {
                    ec2.modify_vpc_attribute()
                        .vpc_id(vpc)
                        .enable_dns_hostnames(on.clone())
                        .send()
                })
                .await?;
        }
        let zones: Vec<String> = match &network.source {
            Source::Made { .. } => network.zones.clone(),
            Source::Given { cidrs, .. } => cidrs.keys().cloned().collect(),
        };
        for zone in zones {
            if self.seen.subnets.iter().any(|subnet| subnet.zone == zone) {
                continue;
            }
            let Some(cidr) = self.free_range(network, &zone) else {
                return Err(Error::invalid(
                    "spec.network.cidr",
                    format!("the network has no room for a subnet in zone {zone}"),
                ));
            };
            self.subnet(vpc, &zone, cidr).await?;
        }
        for at in 0..self.seen.subnets.len() {
            if self.seen.subnets[at].public != network.public {
                self.publish(at, network.public).await?;
            }
        }
        Ok(())
    }

    fn free_range(&self, network: &Network, zone: &str) -> Option<Cidr> {
        match &network.source {
            Source::Given { cidrs, .. } => cidrs.get(zone).copied(),
            Source::Made {
                cidr,
                subnet_length,
            } => {
                let whole = self
                    .seen
                    .vpcs
                    .first()
                    .and_then(|vpc| vpc.cidr)
                    .unwrap_or(*cidr);
                let length = if whole == *cidr {
                    *subnet_length
                } else {
                    self.seen.subnets.first()?.cidr?.length()
                };
                whole.split(length).find(|range| {
                    let used = self.seen.subnets.iter().filter_map(|subnet| subnet.cidr);
                    whole.contains(*range) && !used.into_iter().any(|used| used.overlaps(*range))
                })
            }
        }
    }

    async fn subnet(&mut self, vpc: &str, zone: &str, cidr: Cidr) -> Result<()> {
        if !self.begin(Kind::Subnet, zone) {
            return Ok(());
        }
        let tags = self.tags(Kind::Subnet, zone);
        let outcome = self
            .aws
            .api
            .send("CreateSubnet", |ec2| {
                ec2.create_subnet()
                    .vpc_id(vpc)
                    .availability_zone(zone)
                    .cidr_block(cidr.to_string())
                    .tag_specifications(tagged(ResourceType::Subnet, &tags))
                    .send()
            })
            .await
            .map(|answer| answer.subnet.and_then(|subnet| subnet.subnet_id));
        let id = self.end(Kind::Subnet, zone, outcome)?;
        self.seen.subnets.push(Subnet {
            thing: thing(&id, tags),
            vpc: vpc.to_owned(),
            zone: zone.to_owned(),
            cidr: Some(cidr),
            public: false,
        });
        Ok(())
    }

    async fn publish(&mut self, at: usize, public: bool) -> Result<()> {
        let subnet = &mut self.seen.subnets[at];
        let value = AttributeBooleanValue::builder().value(public).build();
        self.aws
            .api
            .send("ModifySubnetAttribute", |ec2| {
                ec2.modify_subnet_attribute()
                    .subnet_id(&subnet.thing.id)
                    .map_public_ip_on_launch(value.clone())
                    .send()
            })
            .await?;
        subnet.public = public;
        Ok(())
    }

    /// The security group and its rules.
    async fn group(
        &mut self,
        network: &Network,
        vpc: &str,
        given: &BTreeMap<String, String>,
    ) -> Result<()> {
        if self.seen.groups.is_empty() {
            if !self.begin(Kind::Firewall, CLUSTER_GROUP) {
                return Ok(());
            }
            let mut tags = self.tags(Kind::Firewall, CLUSTER_GROUP);
            if matches!(network.source, Source::Given { .. }) {
                tags.insert(SUBNETS.to_owned(), to_tag(given));
            }
            // The name is unique in a network, which is a second guard against another one.
            let name = format!(
                "drover-{}-{}",
                self.owner.cluster_id,
                short(&self.owner.owner)
            );
            let outcome = self
                .aws
                .api
                .send("CreateSecurityGroup", |ec2| {
                    ec2.create_security_group()
                        .group_name(&name)
                        .description(format!("Nodes of cluster {}", self.owner.cluster_id))
                        .vpc_id(vpc)
                        .tag_specifications(tagged(ResourceType::SecurityGroup, &tags))
                        .send()
                })
                .await
                .map(|answer| answer.group_id);
            let id = self.end(Kind::Firewall, CLUSTER_GROUP, outcome)?;
            self.seen.groups.push(Group {
                thing: Thing {
                    id,
                    tags,
                    pending: false,
                },
                vpc: vpc.to_owned(),
                rules: vec![Rule::everywhere()],
            });
        }
        if let (Source::Given { .. }, Some(group)) = (&network.source, self.seen.groups.first_mut())
        {
            let wanted = BTreeMap::from([(SUBNETS.to_owned(), to_tag(given))]);
            retag(self.aws, &mut group.thing, wanted).await?;
        }
        self.rules().await
    }

    async fn rules(&mut self) -> Result<()> {
        let Some(group) = self.seen.groups.first_mut() else {
            return Ok(());
        };
        let id = group.thing.id.clone();
        let mut wanted = self.wanted.rules.clone();
        wanted.push(Rule::within(false, &id));
        if !wanted.iter().any(|rule| rule.same(&Rule::everywhere())) {
            wanted.push(Rule::within(true, &id));
        }
        let api = &self.aws.api;
        for egress in [false, true] {
            let add = permissions(missing(&wanted, &group.rules, egress));
            let remove = permissions(missing(&group.rules, &wanted, egress));
            if let Some(add) = add {
                let outcome = if egress {
                    api.send("AuthorizeSecurityGroupEgress", |ec2| {
                        ec2.authorize_security_group_egress()
                            .group_id(&id)
                            .set_ip_permissions(Some(add.clone()))
                            .send()
                    })
                    .await
                    .map(drop)
                } else {
                    api.send("AuthorizeSecurityGroupIngress", |ec2| {
                        ec2.authorize_security_group_ingress()
                            .group_id(&id)
                            .set_ip_permissions(Some(add.clone()))
                            .send()
                    })
                    .await
                    .map(drop)
                };
                already(outcome, "InvalidPermission.Duplicate")?;
            }
            if let Some(remove) = remove {
                let outcome = if egress {
                    api.send("RevokeSecurityGroupEgress", |ec2| {
                        ec2.revoke_security_group_egress()
                            .group_id(&id)
                            .set_ip_permissions(Some(remove.clone()))
                            .send()
                    })
                    .await
                    .map(drop)
                } else {
                    api.send("RevokeSecurityGroupIngress", |ec2| {
                        ec2.revoke_security_group_ingress()
                            .group_id(&id)
                            .set_ip_permissions(Some(remove.clone()))
                            .send()
                    })
                    .await
                    .map(drop)
                };
                already(outcome, "InvalidPermission.NotFound")?;
            }
        }
        group.rules = wanted;
        Ok(())
    }

    /// The elastic address, and what it shall lead to.
    async fn address(&mut self, endpoint: &Endpoint) -> Result<()> {
        let about = BTreeMap::from([
            (TARGETS.to_owned(), endpoint.targets.join(",")),
            (PORT.to_owned(), endpoint.port.to_string()),
        ]);
        if let Some(address) = self.seen.addresses.first_mut() {
            return retag(self.aws, &mut address.thing, about).await;
        }
        let mut tags = self.tags(Kind::Endpoint, CONTROL_PLANE);
        tags.extend(about);
        if let Some(host) = endpoint.host {
            let mut address = self.aws.free_address_of(host, self.owner).await?;
            tags.insert(BORROWED.to_owned(), "true".to_owned());
            // The name is the user's.
            tags.remove(NAME);
            retag(self.aws, &mut address.thing, tags).await?;
            self.seen.addresses.push(address);
            return Ok(());
        }
        if !self.begin(Kind::Endpoint, CONTROL_PLANE) {
            return Ok(());
        }
        let mut ip = String::new();
        let outcome = self
            .aws
            .api
            .send("AllocateAddress", |ec2| {
                ec2.allocate_address()
                    .domain(DomainType::Vpc)
                    .tag_specifications(tagged(ResourceType::ElasticIp, &tags))
                    .send()
            })
            .await
            .map(|answer| {
                ip = answer.public_ip.unwrap_or_default();
                answer.allocation_id
            });
        let id = self.end(Kind::Endpoint, CONTROL_PLANE, outcome)?;
        self.seen.addresses.push(Address {
            thing: Thing {
                id,
                tags,
                pending: false,
            },
            ip,
            ..Address::default()
        });
        Ok(())
    }

    /// The tags of a new resource.
    fn tags(&self, kind: Kind, name: &str) -> BTreeMap<String, String> {
        let shown = format!("{}-{}", self.owner.cluster_id, name);
        [
            (OWNER, self.owner.owner.clone()),
            (CLUSTER, self.owner.cluster_id.clone()),
            (SEQUENCE, self.sequence.to_string()),
            (KIND, kind.name().to_owned()),
            (RESOURCE, name.to_owned()),
            (NAME, shown.chars().take(256).collect()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    /// Whether something may be made now. Otherwise it may exist already and has to show first.
    fn begin(&mut self, kind: Kind, name: &str) -> bool {
        let recent = self.aws.recent.of(self.owner);
        if recent
            .iter()
            .any(|(of, known, _)| *of == kind && known == name)
        {
            self.wait(
                kind,
                name,
                "was asked for a short while ago; waiting until EC2 shows it",
            );
            return false;
        }
        self.aws.recent.begin(self.owner, kind, name);
        true
    }

    /// Notes what became of it.
    fn end(&self, kind: Kind, name: &str, outcome: Result<Option<String>>) -> Result<String> {
        let recent = &self.aws.recent;
        match outcome {
            Ok(Some(id)) => {
                recent.made(self.owner, kind, name, &id);
                Ok(id)
            }
            Ok(None) => Err(Error::unavailable(format!(
                "the answer of EC2 names no {}",
                kind.name()
            ))),
            Err(error) => {
                if error.class() != Class::Unknown {
                    recent.failed(self.owner, kind, name);
                }
                Err(error)
            }
        }
    }

    fn wait(&mut self, kind: Kind, name: &str, message: &str) {
        self.waiting.push(Resource {
            cluster_id: self.owner.cluster_id.clone(),
            owner: self.owner.owner.clone(),
            kind: kind.name().to_owned(),
            name: name.to_owned(),
            phase: ResourcePhase::Pending.into(),
            message: drover_core::error::cut(message.to_owned()),
            sequence: self.sequence,
            ..Resource::default()
        });
    }
}

/// Something that was made just now.
fn thing(id: &str, tags: BTreeMap<String, String>) -> Thing {
    Thing {
        id: id.to_owned(),
        tags,
        pending: true,
    }
}

fn short(owner: &str) -> &str {
    owner.get(..8).unwrap_or(owner)
}

fn permissions(rules: Vec<&Rule>) -> Option<Vec<IpPermission>> {
    (!rules.is_empty()).then(|| rules.into_iter().map(Rule::permission).collect())
}

fn already(outcome: Result<()>, code: &str) -> Result<()> {
    match outcome {
        Err(error) if errors::code(&error) == code => Ok(()),
        outcome => outcome,
    }
}

/// Sets the tags that differ.
async fn retag(aws: &Aws, thing: &mut Thing, wanted: BTreeMap<String, String>) -> Result<()> {
    let tags: Vec<Tag> = wanted
        .iter()
        .filter(|(key, value)| thing.tags.get(*key) != Some(value))
        .map(|(key, value)| Tag::builder().key(key).value(value).build())
        .collect();
    if tags.is_empty() {
        return Ok(());
    }
    aws.api
        .send("CreateTags", |ec2| {
            ec2.create_tags()
                .resources(&thing.id)
                .set_tags(Some(tags.clone()))
                .send()
        })
        .await?;
    thing.tags.extend(wanted);
    Ok(())
}
