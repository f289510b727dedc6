//! In which failure domain the next node of a group goes.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{ProvisionRequest, Spread, SpreadScope, UnsatisfiableAction};

use super::world::World;

/// Chooses failure domains for the nodes of one request.
pub(super) struct Placer<'a> {
    spreads: &'a [Spread],
    allowed: Vec<usize>,
    /// Nodes already placed, by failure domain.
    group: Vec<u32>,
    cluster: Vec<u32>,
}

impl<'a> Placer<'a> {
    pub(super) fn new(world: &World, request: &'a ProvisionRequest) -> Self {
        let group = request.group.as_ref();
        let placement = group.and_then(|group| group.placement.as_ref());
        let named = placement
            .map(|placement| placement.failure_domains.as_slice())
            .unwrap_or_default();
        let is_allowed = |at: &usize| named.is_empty() || named.contains(&world.domains[*at].name);
        let mut placer = Self {
            spreads: placement
                .map(|placement| placement.spread.as_slice())
                .unwrap_or_default(),
            allowed: (0..world.domains.len()).filter(is_allowed).collect(),
            group: vec![0; world.domains.len()],
            cluster: vec![0; world.domains.len()],
        };
        if !placer.allowed.is_empty() {
            let cluster = request
                .cluster
                .as_ref()
                .map(|cluster| cluster.id.as_str())
                .unwrap_or_default();
            let path = group.map(|group| group.path.as_str()).unwrap_or_default();
            for node in world.in_cluster(cluster).filter(|node| node.is_placed()) {
                if let Some(at) = node.domain() {
                    placer.cluster[at] += 1;
                    placer.group[at] += u32::from(node.group() == path);
                }
            }
        }
        placer
    }

    /// The failure domain of the next node; `None` if there are none at all.
    ///
    /// # Errors
    /// `NoCapacity` when no domain has room or satisfies a required spread.
    pub(super) fn choose(&self, world: &World) -> Result<Option<usize>> {
        if world.domains.is_empty() {
            return Ok(None);
        }
        let fits = |at: &usize| !world.domains[*at].is_full() && self.is_spread(world, *at);
        // The emptiest by the first spread, then by the others, then by nodes of the group, then by name order.
        let order = |at: &usize| {
            let by_spread: Vec<u32> = self
                .spreads
                .iter()
                .map(|spread| self.count(world, spread, *at))
                .collect();
            (by_spread, self.group[*at], self.cluster[*at], *at)
        };
        self.allowed
            .iter()
            .copied()
            .filter(fits)
            .min_by_key(order)
            .map(Some)
            .ok_or_else(|| {
                let error = Error::new(
                    Reason::NoCapacity,
                    "no failure domain has room for another node under the required spread",
                );
                match self.allowed[..] {
                    // Only this one is full: who may use others need not wait.
                    [only] if world.domains[only].is_full() => {
                        error.with_metadata("failure_domain", &world.domains[only].name)
                    }
                    _ => error,
                }
            })
    }

    fn is_spread(&self, world: &World, domain: usize) -> bool {
        let mut required = self.spreads.iter().filter(|spread| is_required(spread));
        required.all(|spread| self.satisfies(world, spread, domain))
    }

    /// Whether the next node may be where its named machine is.
    ///
    /// # Errors
    /// `NoCapacity` when that failure domain is not allowed or breaks a required spread.
    pub(super) fn check(&self, world: &World, domain: Option<usize>) -> Result<()> {
        let fits = match domain {
            Some(at) => self.allowed.contains(&at) && self.is_spread(world, at),
            // Nothing is known of where it is.
            None => true,
        };
        if fits {
            Ok(())
        } else {
            Err(Error::new(
                Reason::NoCapacity,
                "the named machine is where the placement allows no other node",
            ))
        }
    }

    pub(super) fn placed(&mut self, domain: Option<usize>) {
        if let Some(at) = domain {
            self.group[at] += 1;
            self.cluster[at] += 1;
        }
    }

    /// Nodes that share the value of the topology key with a domain.
    fn count(&self, world: &World, spread: &Spread, domain: usize) -> u32 {
        self.counts(world, spread)
            .get(value(world, spread, domain))
            .copied()
            .unwrap_or_default()
    }

    fn counts<'w>(&self, world: &'w World, spread: &Spread) -> BTreeMap<&'w str, u32> {
        let nodes = if spread.scope() == SpreadScope::Cluster {
            &self.cluster
        } else {
            &self.group
        };
        let mut counts = BTreeMap::new();
        for &at in &self.allowed {
            *counts.entry(value(world, spread, at)).or_default() += nodes[at];
        }
        counts
    }

    fn satisfies(&self, world: &World, spread: &Spread, domain: usize) -> bool {
        let counts = self.counts(world, spread);
        let emptiest = counts.values().min().copied().unwrap_or_default();
        let next = counts
            .get(value(world, spread, domain))
            .copied()
            .unwrap_or_default()
            + 1;
        next - emptiest <= spread.max_skew.unwrap_or(1)
            && spread.max_per_domain.is_none_or(|max| next <= max)
    }
}

fn is_required(spread: &Spread) -> bool {
    spread.when_unsatisfiable() == UnsatisfiableAction::DoNotSchedule
        || spread.max_per_domain.is_some()
}

fn value<'w>(world: &'w World, spread: &Spread, domain: usize) -> &'w str {
    world.domains[domain]
        .labels
        .get(&spread.topology_key)
        .map_or("", String::as_str)
}

/// Checks that the placement can be understood by this backend.
pub(super) fn check(world: &World, request: &ProvisionRequest) -> Result<()> {
    let Some(placement) = request
        .group
        .as_ref()
        .and_then(|group| group.placement.as_ref())
    else {
        return Ok(());
    };
    for (at, name) in placement.failure_domains.iter().enumerate() {
        if !world.domains.iter().any(|domain| domain.name == *name) {
            let field = format!("group.placement.failure_domains[{at}]");
            return Err(Error::invalid(
                field,
                format!("there is no failure domain {name:?}"),
            ));
        }
    }
    for (at, spread) in placement.spread.iter().enumerate() {
        let known = world
            .domains
            .iter()
            .any(|domain| domain.labels.contains_key(&spread.topology_key));
        if is_required(spread) && !known {
            let field = format!("group.placement.spread[{at}].topology_key");
            return Err(Error::invalid(
                field,
                format!("no failure domain has {:?}", spread.topology_key),
            ));
        }
    }
    Ok(())
}
