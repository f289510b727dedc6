//! Placement of a new node: capacity, failure domain, storage and ports, reserved for one node at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{Placement, Spread, SpreadScope, UnsatisfiableAction};

use super::{
    Settings,
    ports::{self, PortNumbers},
};

/// The resources of a node, or those reserved for it until it exists.
#[derive(Clone, Debug)]
pub(super) struct NodePlacement {
    pub(super) cluster_id: String,
    pub(super) group: String,
    pub(super) failure_domain: String,
    pub(super) ports: BTreeSet<u16>,
    pub(super) storage: Option<String>,
}

/// The requirements of a node on its placement.
pub(super) struct PlacementRequest<'a> {
    pub(super) cluster_id: &'a str,
    pub(super) group: &'a str,
    pub(super) placement: Option<&'a Placement>,
    pub(super) port_names: &'a [String],
    pub(super) storage: Option<String>,
}

/// Topology key of the configured failure domains.
pub(super) const ZONE: &str = "zone";

/// Finds a placement that does not conflict with `taken`.
///
/// # Errors
/// `NoCapacity` if the node limit, the ports or the limits of the spread are exhausted; `Precondition` if the storage
/// is in use.
pub(super) fn find(
    settings: &Settings,
    host: IpAddr,
    taken: &BTreeMap<String, NodePlacement>,
    request: PlacementRequest<'_>,
) -> Result<(NodePlacement, PortNumbers)> {
    if settings.max_nodes.is_some_and(|most| taken.len() >= most) {
        let most = settings.max_nodes.unwrap_or_default();
        return Err(Error::new(
            Reason::NoCapacity,
            format!("there is room for {most} nodes and all of it is used"),
        ));
    }
    if let Some(key) = &request.storage
        && let Some((node, _)) = taken
            .iter()
            .find(|(_, placement)| placement.storage.as_ref() == Some(key))
    {
        return Err(Error::new(
            Reason::Precondition,
            format!("its storage is still in use by node {node}"),
        ));
    }
    let failure_domain = domain(&settings.failure_domains, taken, &request)?;
    let used = taken
        .values()
        .flat_map(|placement| placement.ports.iter().copied())
        .collect();
    let numbers = ports::choose(request.port_names, settings.ports(), host, &used)?;
    let placement = NodePlacement {
        cluster_id: request.cluster_id.to_owned(),
        group: request.group.to_owned(),
        failure_domain,
        ports: numbers.values().copied().collect(),
        storage: request.storage,
    };
    Ok((placement, numbers))
}

/// The allowed failure domain with the fewest nodes of the group, which minimizes every skew.
fn domain(
    all: &[String],
    taken: &BTreeMap<String, NodePlacement>,
    request: &PlacementRequest<'_>,
) -> Result<String> {
    let spreads = request
        .placement
        .map_or(&[][..], |placement| &placement.spread);
    let wanted = request
        .placement
        .map_or(&[][..], |placement| &placement.failure_domains);
    let none = |why: String| Err(Error::new(Reason::NoCapacity, why));
    let count = |domain: Option<&String>, scope: SpreadScope| {
        let counts = |placement: &&NodePlacement| {
            placement.cluster_id == request.cluster_id
                && (scope == SpreadScope::Cluster || placement.group == request.group)
                && domain.is_none_or(|domain| placement.failure_domain == *domain)
        };
        u32::try_from(taken.values().filter(counts).count()).unwrap_or(u32::MAX)
    };
    let required =
        |spread: &&Spread| spread.when_unsatisfiable() == UnsatisfiableAction::DoNotSchedule;
    // For any other topology key this machine is a single domain, which can limit the count but has no skew.
    let has_zones = !all.is_empty();
    for spread in spreads
        .iter()
        .filter(required)
        .filter(|spread| !has_zones || spread.topology_key != ZONE)
    {
        if spread
            .max_per_domain
            .is_some_and(|most| count(None, spread.scope()) >= most)
        {
            return none(format!(
                "one more node would be too many for one {}",
                spread.topology_key
            ));
        }
    }
    if !has_zones {
        return Ok(String::new());
    }
    let allowed = all
        .iter()
        .filter(|domain| wanted.is_empty() || wanted.contains(domain))
        .collect::<Vec<_>>();
    let zones = spreads
        .iter()
        .filter(required)
        .filter(|spread| spread.topology_key == ZONE)
        .collect::<Vec<_>>();
    let fits = |domain: &&&String| {
        zones.iter().all(|spread| {
            let here = count(Some(domain), spread.scope());
            let least = allowed
                .iter()
                .map(|other| count(Some(other), spread.scope()))
                .min()
                .unwrap_or_default();
            here < spread.max_per_domain.unwrap_or(u32::MAX)
                && here + 1 - least.min(here + 1) <= spread.max_skew.unwrap_or(1)
        })
    };
    let scope = spreads
        .iter()
        .find(|spread| spread.topology_key == ZONE)
        .map_or(SpreadScope::Group, Spread::scope);
    match allowed
        .iter()
        .filter(fits)
        .min_by_key(|domain| count(Some(domain), scope))
    {
        Some(domain) => Ok((*domain).clone()),
        None => none("no failure domain may take one more node".to_owned()),
    }
}
