//! Placement in the simulated backend.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result};
use drover_proto::{
    common::v1::{LabelOperator, LabelRequirement, LabelSelector},
    platform::v1::{FailureDomain, Placement, ProvisionRequest},
};

use super::world::{Host, World};
use crate::placement::{self, Placer};

/// A placer that knows the existing nodes.
pub(super) fn placer<'a>(
    world: &World,
    domains: &'a [FailureDomain],
    request: &'a ProvisionRequest,
) -> Placer<'a> {
    let mut placer = Placer::new(domains, placement(request));
    if domains.is_empty() {
        return placer;
    }
    let cluster = request.cluster.as_ref().map_or("", |cluster| &cluster.id);
    let path = request.group.as_ref().map_or("", |group| &group.path);
    for node in world.in_cluster(cluster).filter(|node| node.is_placed()) {
        if let Some(at) = node.domain() {
            placer.count(&world.domains[at].name, node.group() == path);
        }
    }
    fill(world, &mut placer);
    placer
}

/// Tells the placer which domains are full by now.
pub(super) fn fill(world: &World, placer: &mut Placer<'_>) {
    for room in world.domains.iter().filter(|room| room.is_full()) {
        placer.full(&room.name);
    }
}

/// Checks that this backend supports the placement.
pub(super) fn check(world: &World, request: &ProvisionRequest) -> Result<()> {
    placement::check(&world.failure_domains(), placement(request), &[])
}

/// The labels that the hosts of a request must have. `None` if no host is selected by labels.
pub(super) fn selector(request: &ProvisionRequest) -> Option<&LabelSelector> {
    placement(request)?.selector.as_ref()
}

/// The failure domain and host of the next node: a free host with these labels, in the domain with the fewest nodes of
/// its group.
///
/// # Errors
/// `NoCapacity` if the placement allows no free host.
pub(super) fn labelled(
    world: &World,
    placer: &Placer<'_>,
    selector: &LabelSelector,
) -> Result<(Option<usize>, Option<usize>)> {
    let fits = |host: &Host| {
        let domain = host.domain.map(|at| world.domains[at].name.as_str());
        selects(selector, &host.labels) && domain.is_none_or(|name| placer.check(name).is_ok())
    };
    let free = world.free_hosts().filter(|(_, host)| fits(host));
    let emptiest = free.min_by_key(|(at, host)| {
        let domain = host.domain.map(|at| world.domains[at].name.as_str());
        (domain.map_or(0, |name| placer.of_group(name)), *at)
    });
    let (at, host) = emptiest.ok_or_else(|| {
        Error::new(
            Reason::NoCapacity,
            "no free machine has the labels of placement.selector",
        )
    })?;
    Ok((host.domain, Some(at)))
}

fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut exact = selector.match_labels.iter();
    let meets = |one: &LabelRequirement| {
        let value = labels.get(&one.key);
        match one.operator() {
            LabelOperator::In => value.is_some_and(|value| one.values.contains(value)),
            LabelOperator::NotIn => value.is_none_or(|value| !one.values.contains(value)),
            LabelOperator::Exists => value.is_some(),
            LabelOperator::NotExists => value.is_none(),
            LabelOperator::Unspecified => false,
        }
    };
    exact.all(|(key, value)| labels.get(key) == Some(value))
        && selector.match_expressions.iter().all(meets)
}

fn placement(request: &ProvisionRequest) -> Option<&Placement> {
    request.group.as_ref()?.placement.as_ref()
}
