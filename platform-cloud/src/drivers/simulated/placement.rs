//! Placement in the simulated world.

use drover_core::Result;
use drover_proto::platform::v1::{FailureDomain, Placement, ProvisionRequest};

use super::world::World;
use crate::placement::{self, Placer};

/// A placer that knows what is there.
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

/// Tells the placer which domains have no room by now.
pub(super) fn fill(world: &World, placer: &mut Placer<'_>) {
    for room in world.domains.iter().filter(|room| room.is_full()) {
        placer.full(&room.name);
    }
}

/// Checks that the placement can be understood by this backend.
pub(super) fn check(world: &World, request: &ProvisionRequest) -> Result<()> {
    placement::check(&world.failure_domains(), placement(request), &[])
}

fn placement(request: &ProvisionRequest) -> Option<&Placement> {
    request.group.as_ref()?.placement.as_ref()
}
