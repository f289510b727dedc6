//! The network: gateway, route and subnets.

use aws_sdk_ec2::types::{AttributeBooleanValue, ResourceType};
use drover_core::{Error, Result};

use super::{MAIN, Work, already, thing};
use crate::drivers::aws::{
    catalogue::filter,
    errors,
    infrastructure::{
        Kind, Network, Source,
        cidr::Cidr,
        seen::{Gateway, Subnet, Vpc},
    },
    launch::tagged,
};

const EVERYWHERE: &str = "0.0.0.0/0";

impl Work<'_> {
    /// Returns the id of the network. `None` while it is not visible yet.
    pub(super) async fn network(&mut self, network: &Network) -> Result<Option<String>> {
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

    /// Ensures outside connectivity: an attached gateway and the route to it.
    pub(super) async fn gateway(&mut self, vpc: &str) -> Result<()> {
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

    /// Ensures the default route in the network's main table, which is deleted together with the network.
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
            // The route points to a former gateway. It is not deleted and made again: a deletion that EC2 executes late
            // would take the new one.
            Some(_) => {
                return api
                    .send("ReplaceRoute", |ec2| {
                        ec2.replace_route()
                            .route_table_id(id)
                            .destination_cidr_block(EVERYWHERE)
                            .gateway_id(gateway)
                            .send()
                    })
                    .await
                    .map(drop);
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

    pub(super) async fn subnets(&mut self, network: &Network, vpc: &str) -> Result<()> {
        if matches!(network.source, Source::Made { .. }) && self.seen.subnets.is_empty() {
            // Nodes get resolvable names. Done before the first subnet exists, so that it is repeated after a crash.
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
}
