//! Network attachment of instances: subnet and security groups.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::InfrastructureOutputs;

use crate::{
    cloud::Launch,
    drivers::aws::{api::Api, catalogue::Catalogue, properties::Properties, settings::Settings},
};

/// Network attachment of an instance.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Network {
    pub(super) subnet: Option<String>,
    pub(super) groups: Vec<String>,
}

pub(super) async fn network(
    launch: &Launch,
    properties: &Properties,
    api: &Api,
    catalogue: &Catalogue,
    settings: &Settings,
    placed: bool,
) -> Result<Network> {
    let zone = launch.failure_domain.as_deref().filter(|_| placed);
    let offered = Offered::of(&launch.infrastructure);
    let subnet = subnet(zone, properties, &offered, api, catalogue, settings).await?;
    let mut names = offered.groups.clone();
    names.extend(if properties.security_groups.is_empty() {
        settings.security_groups.clone()
    } else {
        properties.security_groups.clone()
    });
    let by_name = names.iter().any(|name| !name.starts_with("sg-"));
    let vpc = match &subnet {
        Some(subnet) if by_name => Some(catalogue.subnet(api, subnet).await?.1),
        _ => None,
    };
    let groups = catalogue
        .security_groups(api, vpc.as_deref(), &names)
        .await?;
    Ok(Network { subnet, groups })
}

async fn subnet(
    zone: Option<&str>,
    properties: &Properties,
    offered: &Offered,
    api: &Api,
    catalogue: &Catalogue,
    settings: &Settings,
) -> Result<Option<String>> {
    if let Some(subnet) = &properties.subnet {
        let (of, _) = catalogue.subnet(api, subnet).await?;
        return match zone {
            Some(zone) if zone != of => Err(elsewhere(
                zone,
                &format!("the group's subnet {subnet} is in zone {of}"),
            )),
            _ => Ok(Some(subnet.clone())),
        };
    }
    let Some(zone) = zone else {
        let any = settings.subnets.values().next();
        return Ok(any.or(offered.subnets.values().next()).cloned());
    };
    if let Some(subnet) = settings
        .subnets
        .get(zone)
        .or_else(|| offered.subnets.get(zone))
    {
        return Ok(Some(subnet.clone()));
    }
    if !offered.subnets.is_empty() {
        return Err(elsewhere(zone, "the cluster's network has no subnet there"));
    }
    let defaults = catalogue.default_subnets(api).await?;
    defaults.get(zone).cloned().map(Some).ok_or_else(|| {
        elsewhere(
            zone,
            "the account has no default subnet there; give `subnet` in the group or `subnets` in the settings of the \
             platform",
        )
    })
}

/// No instance can be placed in this zone, but perhaps in another one.
fn elsewhere(zone: &str, why: &str) -> Error {
    Error::new(
        Reason::NoCapacity,
        format!("no instance can be placed in zone {zone}: {why}"),
    )
    .with_metadata("failure_domain", zone)
}

/// The network resources that the infrastructure of a cluster offers to its instances.
#[derive(Debug, Default)]
struct Offered {
    subnets: BTreeMap<String, String>,
    groups: Vec<String>,
}

impl Offered {
    /// Reads the first outputs that belong to this kind of cloud.
    fn of(infrastructure: &[InfrastructureOutputs]) -> Self {
        let Some(properties) = infrastructure
            .iter()
            .find(|outputs| outputs.network_id.starts_with("vpc-"))
            .and_then(|outputs| outputs.properties.as_ref())
            .and_then(|properties| {
                drover_convert::value::object("infrastructure.properties", properties).ok()
            })
        else {
            return Self::default();
        };
        let subnets = properties
            .get("subnets")
            .and_then(|subnets| subnets.as_object())
            .into_iter()
            .flatten()
            .filter_map(|(zone, id)| Some((zone.clone(), id.as_str()?.to_owned())))
            .collect();
        let groups = properties
            .get("security_groups")
            .and_then(|groups| groups.as_array())
            .into_iter()
            .flatten()
            .filter_map(|id| Some(id.as_str()?.to_owned()))
            .collect();
        Self { subnets, groups }
    }
}
