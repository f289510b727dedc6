//! Elastic IP addresses.

use tokio::time::Instant;

use crate::ec2::World;
use crate::ec2::lifecycle::bad_state;
use crate::ec2::model::{Address, Phase, State, new_id};
use crate::ec2::params::{Filters, Outcome, Params, Wrong, wrong};
use crate::ec2::xml::Xml;

impl World {
    pub(crate) fn allocate_address(&self, state: &mut State, params: &Params) -> Outcome<Xml> {
        let tags = params.tags_for("elastic-ip")?;
        if state.addresses.len() >= self.settings.address_quota {
            return Err(too_many());
        }
        let id = new_id("eipalloc");
        let ip = state.public_address();
        self.made("elastic-ip", &id, None, &tags, false);
        state
            .addresses
            .insert(id.clone(), Address { ip, bound: None });
        state.tags.insert(id.clone(), tags);
        let mut xml = Xml::new();
        xml.value("publicIp", ip);
        xml.text("domain", "vpc");
        xml.text("allocationId", &id);
        xml.text("publicIpv4Pool", "amazon");
        xml.text("networkBorderGroup", &self.settings.region);
        Ok(xml)
    }

    pub(crate) fn release_address(&self, state: &mut State, params: &Params) -> Outcome<Xml> {
        let id = params.need("AllocationId")?;
        let address = state.addresses.get(id).ok_or_else(|| no_address(id))?;
        if address.bound.is_some() {
            return Err(wrong(
                "InvalidIPAddress.InUse",
                format!("Address {} is in use.", address.ip),
            ));
        }
        state.addresses.remove(id);
        state.tags.remove(id);
        self.ledger.gone(id);
        Ok(Xml::done())
    }

    pub(crate) fn associate_address(
        &self,
        state: &mut State,
        params: &Params,
        now: Instant,
    ) -> Outcome<Xml> {
        let id = params.need("AllocationId")?.to_owned();
        let number = self.target(state, params, now)?;
        let address = state.addresses.get(&id).ok_or_else(|| no_address(&id))?;
        let ip = address.ip;
        let Some(instance) = state.instances.get(&number) else {
            return Err(no_address(&id));
        };
        let instance_id = instance.id.clone();
        match instance.phase(now, &self.delays) {
            Phase::Running | Phase::Stopped | Phase::Stopping => {}
            Phase::Pending => {
                let message =
                    "The pending instance '{}' is not in a valid state for this operation.";
                return Err(wrong(
                    "InvalidInstanceID",
                    message.replace("{}", &instance_id),
                ));
            }
            Phase::ShuttingDown | Phase::Terminated => {
                return Err(bad_state(&instance_id, "associated"));
            }
        }
        if !state
            .gateways
            .values()
            .flatten()
            .any(|vpc| *vpc == instance.vpc)
        {
            let message = format!(
                "Network {} is not attached to any internet gateway",
                instance.vpc
            );
            return Err(wrong("Gateway.NotAttached", message));
        }
        if let Some((association, bound)) = &address.bound {
            if *bound == instance_id {
                let mut xml = Xml::done();
                xml.text("associationId", association);
                return Ok(xml);
            }
            if params.bool("AllowReassociation")? == Some(false) {
                let message =
                    format!("resource {id} is already associated with associate-id {association}");
                return Err(wrong("Resource.AlreadyAssociated", message));
            }
        }
        unbind(state, &id);
        // The instance's previous address is disassociated.
        if let Some((before, _, _)) = state
            .instances
            .get(&number)
            .and_then(|instance| instance.elastic.clone())
        {
            unbind(state, &before);
        }
        let association = new_id("eipassoc");
        if let Some(instance) = state.instances.get_mut(&number) {
            instance.elastic = Some((id.clone(), association.clone(), ip));
            instance.drawn = None;
        }
        if let Some(address) = state.addresses.get_mut(&id) {
            address.bound = Some((association.clone(), instance_id));
        }
        let mut xml = Xml::done();
        xml.text("associationId", &association);
        Ok(xml)
    }

    /// Resolves the instance that a call names directly or by its network interface.
    fn target(&self, state: &State, params: &Params, now: Instant) -> Outcome<u64> {
        let Some(interface) = params.get("NetworkInterfaceId") else {
            let id = params.need("InstanceId")?.to_owned();
            let numbers = self.numbers(state, &[id], now)?;
            return numbers
                .first()
                .copied()
                .ok_or_else(|| wrong("InternalError", "An internal error has occurred"));
        };
        let found = state
            .instances
            .iter()
            .find(|(_, instance)| instance.interface == interface);
        let message = format!("The networkInterface ID '{interface}' does not exist");
        found
            .map(|(number, _)| *number)
            .ok_or_else(|| wrong("InvalidNetworkInterfaceID.NotFound", message))
    }

    pub(crate) fn disassociate_address(&self, state: &mut State, params: &Params) -> Outcome<Xml> {
        let asked = params.need("AssociationId")?;
        let bound = |address: &Address| {
            address
                .bound
                .as_ref()
                .is_some_and(|(association, _)| association == asked)
        };
        let found = state
            .addresses
            .iter()
            .find(|(_, address)| bound(address))
            .map(|(id, _)| id.clone());
        let message = format!("The association ID '{asked}' does not exist");
        let id = found.ok_or_else(|| wrong("InvalidAssociationID.NotFound", message))?;
        unbind(state, &id);
        Ok(Xml::done())
    }

    pub(crate) fn describe_addresses(&self, state: &State, params: &Params) -> Outcome<Xml> {
        let known = [
            "allocation-id",
            "association-id",
            "domain",
            "instance-id",
            "network-border-group",
            "public-ip",
        ];
        let filters = Filters::new(params, &known)?;
        let (ids, ips) = (params.list("AllocationId"), params.list("PublicIp"));
        if let Some(id) = ids.iter().find(|id| !state.addresses.contains_key(*id)) {
            return Err(no_address(id));
        }
        if let Some(ip) = ips.iter().find(|ip| {
            !state
                .addresses
                .values()
                .any(|known| known.ip.to_string() == **ip)
        }) {
            return Err(wrong(
                "InvalidAddress.NotFound",
                format!("Address '{ip}' not found."),
            ));
        }
        let shown = state.addresses.iter().filter(|(id, address)| {
            let named = ids.contains(id) || ips.contains(&address.ip.to_string());
            (ids.is_empty() && ips.is_empty() || named)
                && filters.hold(state.tags_of(id), |name| match name {
                    "allocation-id" => vec![(*id).clone()],
                    "association-id" => address
                        .bound
                        .iter()
                        .map(|(association, _)| association.clone())
                        .collect(),
                    "domain" => vec!["vpc".to_owned()],
                    "instance-id" => address
                        .bound
                        .iter()
                        .map(|(_, instance)| instance.clone())
                        .collect(),
                    "network-border-group" => vec![self.settings.region.clone()],
                    _ => vec![address.ip.to_string()],
                })
        });
        let mut xml = Xml::new();
        xml.list("addressesSet", shown, |xml, (id, address)| {
            xml.value("publicIp", address.ip);
            xml.text("allocationId", id);
            xml.text("domain", "vpc");
            if let Some((association, instance)) = &address.bound {
                xml.text("instanceId", instance);
                xml.text("associationId", association);
                let known = state
                    .by_id
                    .get(instance)
                    .and_then(|number| state.instances.get(number));
                if let Some(instance) = known {
                    xml.text("networkInterfaceId", &instance.interface);
                    xml.text("networkInterfaceOwnerId", crate::ec2::ACCOUNT);
                    xml.value("privateIpAddress", instance.private);
                }
            }
            xml.tags(state.tags_of(id));
            xml.text("publicIpv4Pool", "amazon");
            xml.text("networkBorderGroup", &self.settings.region);
        });
        Ok(xml)
    }
}

/// Disassociates an address from its instance.
fn unbind(state: &mut State, id: &str) {
    let Some((_, instance)) = state
        .addresses
        .get_mut(id)
        .and_then(|address| address.bound.take())
    else {
        return;
    };
    let number = state.by_id.get(&instance).copied();
    if let Some(instance) = number.and_then(|number| state.instances.get_mut(&number)) {
        instance.elastic = None;
        instance.drawn = None;
    }
}

fn no_address(id: &str) -> Wrong {
    wrong(
        "InvalidAllocationID.NotFound",
        format!("The allocation ID '{id}' does not exist"),
    )
}

pub(crate) fn too_many() -> Wrong {
    wrong(
        "AddressLimitExceeded",
        "The maximum number of addresses has been reached.",
    )
}
