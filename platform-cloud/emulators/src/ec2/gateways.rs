//! Internet gateways, and the main route table of each VPC.

use tokio::time::Instant;

use crate::ec2::ACCOUNT;
use crate::ec2::World;
use crate::ec2::model::{Cidr, Phase, Route, RouteTable, State, new_id};
use crate::ec2::network::{depends, find_vpc};
use crate::ec2::params::{Filters, Outcome, Params, Wrong, invalid_value, wrong};
use crate::ec2::xml::Xml;

impl World {
    pub(crate) fn create_internet_gateway(
        &self,
        state: &mut State,
        params: &Params,
    ) -> Outcome<Xml> {
        let tags = params.tags_for("internet-gateway")?;
        let id = new_id("igw");
        self.made("internet-gateway", &id, None, &tags, false);
        state.gateways.insert(id.clone(), None);
        state.tags.insert(id.clone(), tags);
        let mut xml = Xml::new();
        xml.nest("internetGateway", |xml| draw_gateway(xml, state, &id));
        Ok(xml)
    }

    pub(crate) fn attach_internet_gateway(
        &self,
        state: &mut State,
        params: &Params,
    ) -> Outcome<Xml> {
        let (id, vpc) = (params.need("InternetGatewayId")?, params.need("VpcId")?);
        find_vpc(state, vpc)?;
        let attached = state.gateways.get(id).ok_or_else(|| no_gateway(id))?;
        if attached.is_some() {
            return Err(wrong(
                "Resource.AlreadyAssociated",
                format!("resource {id} is already attached to a network"),
            ));
        }
        if state.gateways.values().flatten().any(|other| other == vpc) {
            let message = format!("Network {vpc} already has an internet gateway attached");
            return Err(wrong("InvalidParameterValue", message));
        }
        state.gateways.insert(id.to_owned(), Some(vpc.to_owned()));
        Ok(Xml::done())
    }

    pub(crate) fn detach_internet_gateway(
        &self,
        state: &mut State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let (id, vpc) = (params.need("InternetGatewayId")?, params.need("VpcId")?);
        find_vpc(state, vpc)?;
        let attached = state.gateways.get(id).ok_or_else(|| no_gateway(id))?;
        if attached.as_deref() != Some(vpc) {
            return Err(wrong(
                "Gateway.NotAttached",
                format!("resource {id} is not attached to network {vpc}"),
            ));
        }
        let mapped = state.instances.values().any(|instance| {
            let phase = instance.phase(now, &self.delays);
            let has_public =
                instance.public.is_some() && !matches!(phase, Phase::Stopped | Phase::Terminated);
            instance.vpc == vpc && (has_public || instance.elastic.is_some())
        });
        if mapped {
            return Err(depends(&format!(
                "Network {vpc} has some mapped public address(es). Please unmap those public address(es) before detaching \
                 the gateway."
            )));
        }
        state.gateways.insert(id.to_owned(), None);
        Ok(Xml::done())
    }

    pub(crate) fn delete_internet_gateway(
        &self,
        state: &mut State,
        params: &Params,
    ) -> Outcome<Xml> {
        let id = params.need("InternetGatewayId")?;
        match state.gateways.get(id) {
            None => return Err(no_gateway(id)),
            Some(Some(_)) => {
                let message =
                    format!("The internetGateway '{id}' has dependencies and cannot be deleted.");
                return Err(depends(&message));
            }
            Some(None) => {}
        }
        state.gateways.remove(id);
        state.tags.remove(id);
        self.ledger.gone(id);
        Ok(Xml::done())
    }

    pub(crate) fn describe_internet_gateways(
        &self,
        state: &State,
        params: &Params,
    ) -> Outcome<Xml> {
        let known = [
            "attachment.state",
            "attachment.vpc-id",
            "internet-gateway-id",
            "owner-id",
        ];
        let filters = Filters::new(params, &known)?;
        let ids = params.list("InternetGatewayId");
        if let Some(id) = ids.iter().find(|id| !state.gateways.contains_key(*id)) {
            return Err(no_gateway(id));
        }
        let shown = state.gateways.iter().filter(|(id, vpc)| {
            (ids.is_empty() || ids.contains(id))
                && filters.hold(state.tags_of(id), |name| match name {
                    "attachment.state" => vpc.iter().map(|_| "available".to_owned()).collect(),
                    "attachment.vpc-id" => vpc.iter().cloned().collect(),
                    "owner-id" => vec![ACCOUNT.to_owned()],
                    _ => vec![(*id).clone()],
                })
        });
        let (page, next) = self.page(params, shown.map(|(id, _)| id).collect())?;
        let mut xml = Xml::new();
        xml.list("internetGatewaySet", page, |xml, id| {
            draw_gateway(xml, state, id);
        });
        xml.maybe("nextToken", next.as_deref());
        Ok(xml)
    }

    pub(crate) fn describe_route_tables(&self, state: &State, params: &Params) -> Outcome<Xml> {
        let known = ["association.main", "owner-id", "route-table-id", "vpc-id"];
        let filters = Filters::new(params, &known)?;
        let ids = params.list("RouteTableId");
        if let Some(id) = ids.iter().find(|id| !state.route_tables.contains_key(*id)) {
            return Err(no_table(id));
        }
        let shown = state.route_tables.iter().filter(|(id, table)| {
            (ids.is_empty() || ids.contains(id))
                && filters.hold(state.tags_of(id), |name| match name {
                    "association.main" => vec!["true".to_owned()],
                    "owner-id" => vec![ACCOUNT.to_owned()],
                    "route-table-id" => vec![(*id).clone()],
                    _ => vec![table.vpc.clone()],
                })
        });
        let (page, next) = self.page(params, shown.collect())?;
        let mut xml = Xml::new();
        xml.list("routeTableSet", page, |xml, (id, table)| {
            xml.text("routeTableId", id);
            xml.text("vpcId", &table.vpc);
            xml.text("ownerId", ACCOUNT);
            xml.list("routeSet", &table.routes, |xml, route| {
                let v6 = route.destination.contains(':');
                let destination = if v6 {
                    "destinationIpv6CidrBlock"
                } else {
                    "destinationCidrBlock"
                };
                xml.text(destination, &route.destination);
                xml.text("gatewayId", &route.target);
                let there = route.target == "local"
                    || state
                        .gateways
                        .get(&route.target)
                        .is_some_and(|vpc| vpc.as_ref() == Some(&table.vpc));
                xml.text("state", if there { "active" } else { "blackhole" });
                let origin = if route.target == "local" {
                    "CreateRouteTable"
                } else {
                    "CreateRoute"
                };
                xml.text("origin", origin);
            });
            xml.list("associationSet", Some(table), |xml, table| {
                xml.text("routeTableAssociationId", &table.association);
                xml.text("routeTableId", id);
                xml.text("main", "true");
                xml.nest("associationState", |xml| xml.text("state", "associated"));
            });
            xml.nest("propagatingVgwSet", |_| {});
            xml.tags(state.tags_of(id));
        });
        xml.maybe("nextToken", next.as_deref());
        Ok(xml)
    }

    /// Supports only routes to internet gateways.
    pub(crate) fn create_route(&self, state: &mut State, params: &Params) -> Outcome<Xml> {
        let id = params.need("RouteTableId")?;
        let destination = destination(params)?;
        let gateway = params.need("GatewayId")?;
        let table = table_that_reaches(state, id, gateway)?;
        match table
            .routes
            .iter()
            .find(|route| route.destination == destination)
        {
            // Creating an identical route again is not an error.
            Some(route) if route.target == gateway => {}
            Some(_) => {
                let message = format!("The route identified by {destination} already exists.");
                return Err(wrong("RouteAlreadyExists", message));
            }
            None => table.routes.push(Route {
                destination,
                target: gateway.to_owned(),
            }),
        }
        Ok(Xml::done())
    }

    /// The route may lead to a gateway that does not exist any more.
    pub(crate) fn replace_route(&self, state: &mut State, params: &Params) -> Outcome<Xml> {
        let id = params.need("RouteTableId")?;
        let destination = destination(params)?;
        let gateway = params.need("GatewayId")?;
        let table = table_that_reaches(state, id, gateway)?;
        let is_wanted =
            |route: &&mut Route| route.destination == destination && route.target != "local";
        let Some(route) = table.routes.iter_mut().find(is_wanted) else {
            let message = format!(
                "There is no route defined for '{destination}' in the route table. Use CreateRoute instead."
            );
            return Err(wrong("InvalidParameterValue", message));
        };
        gateway.clone_into(&mut route.target);
        Ok(Xml::done())
    }

    pub(crate) fn delete_route(&self, state: &mut State, params: &Params) -> Outcome<Xml> {
        let id = params.need("RouteTableId")?;
        let destination = destination(params)?;
        let table = state.route_tables.get_mut(id).ok_or_else(|| no_table(id))?;
        let found = table
            .routes
            .iter()
            .position(|route| route.destination == destination && route.target != "local");
        let Some(index) = found else {
            let message =
                format!("no route with destination-cidr-block {destination} in route table {id}");
            return Err(wrong("InvalidRoute.NotFound", message));
        };
        table.routes.remove(index);
        Ok(Xml::done())
    }
}

/// The route table, if the gateway is attached to its network.
fn table_that_reaches<'a>(
    state: &'a mut State,
    id: &str,
    gateway: &str,
) -> Outcome<&'a mut RouteTable> {
    let attached = state.gateways.get(gateway).cloned();
    let table = state.route_tables.get_mut(id).ok_or_else(|| no_table(id))?;
    let Some(attached) = attached else {
        let message = format!("The gateway ID '{gateway}' does not exist");
        return Err(wrong("InvalidGatewayID.NotFound", message));
    };
    if attached.as_ref() != Some(&table.vpc) {
        let message =
            format!("route table {id} and network gateway {gateway} belong to different networks");
        return Err(wrong("InvalidParameterValue", message));
    }
    Ok(table)
}

fn destination(params: &Params) -> Outcome<String> {
    if let Some(block) = params.get("DestinationIpv6CidrBlock") {
        return Ok(block.to_owned());
    }
    let text = params.need("DestinationCidrBlock")?;
    let cidr = Cidr::parse(text);
    let invalid = || {
        invalid_value(
            "destinationCidrBlock",
            text,
            "This is not a valid CIDR block.",
        )
    };
    cidr.map(|cidr| cidr.to_string()).ok_or_else(invalid)
}

fn draw_gateway(xml: &mut Xml, state: &State, id: &str) {
    xml.text("internetGatewayId", id);
    xml.text("ownerId", ACCOUNT);
    xml.list(
        "attachmentSet",
        state.gateways.get(id).into_iter().flatten(),
        |xml, vpc| {
            xml.text("vpcId", vpc);
            xml.text("state", "available");
        },
    );
    xml.tags(state.tags_of(id));
}

fn no_gateway(id: &str) -> Wrong {
    wrong(
        "InvalidInternetGatewayID.NotFound",
        format!("The internetGateway ID '{id}' does not exist"),
    )
}

fn no_table(id: &str) -> Wrong {
    wrong(
        "InvalidRouteTableID.NotFound",
        format!("The routeTable ID '{id}' does not exist"),
    )
}
