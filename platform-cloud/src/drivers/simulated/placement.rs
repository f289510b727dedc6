//! Placement in the simulated backend.

use std::collections::BTreeMap;

use drover_core::{Error, Result};
use drover_platform::{
    driver::{Batch, index},
    inventory::properties::Properties,
    placement::{
        domains::{self, Placer},
        hosts::{self, Availability, Candidate, Placed},
    },
};
use drover_proto::platform::v1::{FailureDomain, Placement, ProvisionRequest, Slot};

use super::world::{Host, World, unusable};

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

/// Checks that this backend supports the placement. A spread of hosts is over their labels, of which not all need be
/// there.
pub(super) fn check(world: &World, request: &ProvisionRequest, inventory: bool) -> Result<()> {
    let keys: Vec<&str> = world
        .hosts
        .iter()
        .filter(|_| inventory)
        .flat_map(|host| host.labels.keys().map(String::as_str))
        .collect();
    domains::check(&world.failure_domains(), placement(request), &keys)
}

/// The hosts of those slots that get one, by index: which name one, or whose placement selects by labels, or all of
/// them where every node is a host. These get all of their hosts or none.
pub(super) fn hosts(
    world: &World,
    batch: &Batch,
    inventory: bool,
    properties: &Properties,
) -> BTreeMap<u32, Result<usize>> {
    let domain = world.domains.first();
    let key = domain.and_then(|domain| domain.labels.keys().next());
    let key = key.map_or("zone", String::as_str);
    let placement = &hosts::spread_by_default(placement(&batch.request), key);
    let (named, others): (Vec<&Slot>, Vec<&Slot>) =
        batch.slots().partition(|slot| slot.host_id.is_some());
    let others = if inventory || placement.selector.is_some() {
        others
    } else {
        Vec::new()
    };
    if named.is_empty() && others.is_empty() {
        return BTreeMap::new();
    }
    let lacking: Vec<Option<String>> = world
        .hosts
        .iter()
        .map(|host| lacking(host, properties))
        .collect();
    let mut free = Free::new(world, &batch.request, &lacking);
    let mut found = BTreeMap::new();
    for slot in named {
        let id = slot.host_id.as_deref().unwrap_or_default();
        let host = world.host(id).and_then(|at| free.named(at, placement));
        found.insert(index(slot), host);
    }
    let mut chosen = free.choose(placement, others.len());
    if inventory && let Err((_, error)) = &chosen {
        chosen = Err((Vec::new(), error.clone()));
    }
    let (chosen, error) = match chosen {
        Ok(chosen) => (chosen, None),
        Err((chosen, error)) => (chosen, Some(error)),
    };
    let mut chosen = chosen.into_iter();
    for slot in others {
        let host = chosen.next().ok_or_else(|| {
            let none = || Error::internal("fewer hosts were chosen than slots");
            error.clone().unwrap_or_else(none)
        });
        found.insert(index(slot), host);
    }
    let refused = found.values().find_map(|host| host.as_ref().err()).cloned();
    if inventory && let Some(error) = refused {
        let all = found.values_mut().filter(|host| host.is_ok());
        all.for_each(|host| *host = Err(error.clone()));
    }
    found
}

/// What a host lacks of what the group asks for, for people. `None`: nothing.
fn lacking(host: &Host, properties: &Properties) -> Option<String> {
    let network = properties.lacking(&host.addresses(), &host.labels);
    let credentials = &host.without_credentials;
    network.or_else(|| {
        let wanted = properties.require_bmc_credentials && !credentials.is_empty();
        wanted.then(|| credentials.clone())
    })
}

/// The hosts, and the nodes that count.
struct Free<'a> {
    hosts: Vec<Candidate<'a>>,
    placed: Vec<Placed<'a>>,
}

impl<'a> Free<'a> {
    fn new(world: &'a World, request: &ProvisionRequest, lacking: &'a [Option<String>]) -> Self {
        let cluster = request.cluster.as_ref().map_or("", |cluster| &cluster.id);
        let path = request.group.as_ref().map_or("", |group| &group.path);
        let placed = world.in_cluster(cluster).filter(|node| node.is_placed());
        let placed = placed.filter_map(|node| {
            Some(Placed {
                labels: &world.hosts.get(node.host()?)?.labels,
                same_group: node.group() == path,
            })
        });
        let domain = |at: Option<usize>| at.map_or("", |at| world.domains[at].name.as_str());
        let hosts = world.hosts.iter().zip(lacking);
        let hosts = hosts.map(|(host, lacking)| Candidate {
            id: &host.id,
            labels: &host.labels,
            failure_domain: domain(host.domain),
            availability: match (world.availability(host), lacking) {
                (Availability::Free, Some(why)) => Availability::Unusable(why),
                (availability, _) => availability,
            },
        });
        Self {
            hosts: hosts.collect(),
            placed: placed.collect(),
        }
    }

    fn named(&mut self, at: usize, placement: &Placement) -> Result<usize> {
        if let Availability::Unusable(why) = self.hosts[at].availability {
            return Err(unusable(self.hosts[at].id, why));
        }
        hosts::check_named(&self.hosts[at], &self.hosts, &self.placed, placement)?;
        self.take(at);
        Ok(at)
    }

    fn take(&mut self, at: usize) {
        self.hosts[at].availability = Availability::Claimed;
        self.placed.push(Placed {
            labels: self.hosts[at].labels,
            same_group: true,
        });
    }

    /// So many hosts, or those that there are and why not more.
    fn choose(
        &self,
        placement: &Placement,
        count: usize,
    ) -> std::result::Result<Vec<usize>, (Vec<usize>, Error)> {
        let choose = |count| hosts::choose(&self.hosts, &self.placed, placement, count);
        choose(count).map_err(|shortage| {
            let fewer = choose(shortage.fits).unwrap_or_default();
            (fewer, shortage.into())
        })
    }
}

fn placement(request: &ProvisionRequest) -> Option<&Placement> {
    request.group.as_ref()?.placement.as_ref()
}
