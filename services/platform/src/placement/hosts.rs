//! Chooses hosts of an inventory for the nodes of one request: all of them or none.
//!
//! At most two topology keys with a number per domain: the choice is exact, because both together are a bipartite
//! graph whose edges are the hosts, and an augmenting path finds the next host or shows that there is none. With more
//! keys, or with a skew that could be exceeded, hosts are chosen one after the other, and where that ends too early all
//! combinations are tried, as long as [`MAX_TRIED`] of them suffice.

mod axis;
mod search;
mod shortage;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use drover_convert::selector::selects;
use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{Placement, Spread};

use self::{axis::Axis, search::Search};
use super::is_required;

pub use shortage::Shortage;

/// Combinations that are tried at most.
const MAX_TRIED: usize = 50_000;

/// A host of the inventory.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its labels, among them the topology keys.
    pub labels: &'a BTreeMap<String, String>,
    /// Name of its failure domain. Empty: it has none.
    pub failure_domain: &'a str,
    /// Whether it can be claimed.
    pub availability: Availability<'a>,
}

/// Whether a host can be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability<'a> {
    /// It can.
    Free,
    /// Somebody has claimed it.
    Claimed,
    /// It cannot, for this reason (which secret is missing).
    Unusable(&'a str),
}

/// A node of the cluster that has its host already, active or standby.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    /// Labels of its host.
    pub labels: &'a BTreeMap<String, String>,
    /// Whether it is of the group that hosts are chosen for.
    pub same_group: bool,
}

/// Chooses hosts. Answers their positions among the candidates, in the order of choice: the emptiest domain by the first
/// spread first, then by the others, then by the order of the candidates.
///
/// # Errors
/// [`Shortage`] if they do not suffice.
pub fn choose(
    candidates: &[Candidate<'_>],
    placed: &[Placed<'_>],
    placement: &Placement,
    count: usize,
) -> std::result::Result<Vec<usize>, Shortage> {
    let problem = Problem {
        candidates,
        placed,
        placement,
    };
    let chosen = problem.choose(count, None);
    if chosen.len() == count {
        return Ok(chosen);
    }
    Err(shortage::explain(&problem, count, chosen.len()))
}

/// Chooses among the first hosts of an inventory as [`choose`] would among all of them. `None` if these do not say what the
/// choice among all is: then it is to be made among all.
#[must_use]
pub fn choose_among_first(
    first: &[Candidate<'_>],
    placed: &[Placed<'_>],
    placement: &Placement,
    count: usize,
) -> Option<Vec<usize>> {
    let problem = Problem {
        candidates: first,
        placed,
        placement,
    };
    let (search, allowed) = problem.search(count, None);
    // How far a domain may exceed the others is measured over all.
    if search.is_skewed() {
        return None;
    }
    let chosen = search.run_among_empty()?;
    Some(chosen.into_iter().map(|at| allowed[at]).collect())
}

/// A placement as it is meant: where it says nothing of a spread, over the domains of this key as well as possible.
#[must_use]
pub fn spread_by_default(placement: Option<&Placement>, key: &str) -> Placement {
    let mut placement = placement.cloned().unwrap_or_default();
    if placement.spread.is_empty() {
        placement.spread.push(Spread {
            topology_key: key.to_owned(),
            ..Spread::default()
        });
    }
    placement
}

/// Checks that a host that a slot names may be taken beside the nodes that are placed.
///
/// # Errors
/// `NoCapacity` with the spread or failure domain that it would break. Labels and availability are not looked at: who
/// names a host means this one.
pub fn check_named(
    host: &Candidate<'_>,
    candidates: &[Candidate<'_>],
    placed: &[Placed<'_>],
    placement: &Placement,
) -> Result<()> {
    let refused = |what: &str| {
        let message = format!(
            "host {:?} is where {what} allows no other node of the group",
            host.id
        );
        Err(Error::new(Reason::NoCapacity, message))
    };
    if !in_domains(placement, host) {
        return refused("placement.failure_domains");
    }
    let problem = Problem {
        candidates,
        placed,
        placement,
    };
    // Domains are those that the placement allows, and that of the host.
    let counted = (0..candidates.len())
        .filter(|at| problem.is_allowed(*at, None) || candidates[*at].id == host.id);
    let counted: Vec<Candidate<'_>> = counted.map(|at| candidates[at].clone()).collect();
    let at = counted.iter().position(|it| it.id == host.id);
    for (at_spread, spread) in placement.spread.iter().enumerate() {
        if !is_required(spread) {
            continue;
        }
        let axis = Axis::new(spread, &counted, placed);
        if !at.is_some_and(|at| axis.has_room(at)) {
            return refused(&format!("placement.spread[{at_spread}]"));
        }
    }
    Ok(())
}

/// What is asked of hosts; one of it may be left out to see whether it is what there are too few hosts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requirement {
    Selector,
    FailureDomains,
    Free,
    Usable,
    /// The spread of this position.
    Spread(usize),
}

#[derive(Clone, Copy)]
struct Problem<'a> {
    candidates: &'a [Candidate<'a>],
    placed: &'a [Placed<'a>],
    placement: &'a Placement,
}

impl Problem<'_> {
    fn choose(&self, count: usize, without: Option<Requirement>) -> Vec<usize> {
        let (search, allowed) = self.search(count, without);
        search.run().into_iter().map(|at| allowed[at]).collect()
    }

    /// The search among the hosts that the placement allows, and their positions among the candidates.
    fn search(&self, count: usize, without: Option<Requirement>) -> (Search, Vec<usize>) {
        // Domains are those of all hosts that the placement allows, free or not: a skew is measured over them.
        let allowed: Vec<usize> = (0..self.candidates.len())
            .filter(|at| self.is_allowed(*at, without))
            .collect();
        let hosts: Vec<Candidate<'_>> = allowed
            .iter()
            .map(|at| self.candidates[*at].clone())
            .collect();
        let axes: Vec<Axis> = (self.placement.spread.iter().enumerate())
            .filter(|(at, _)| without != Some(Requirement::Spread(*at)))
            .map(|(_, spread)| Axis::new(spread, &hosts, self.placed))
            .collect();
        let open: Vec<usize> = (0..hosts.len())
            .filter(|at| self.is_open(allowed[*at], without))
            .filter(|at| axes.iter().all(|axis| axis.knows(*at)))
            .collect();
        (Search::new(axes, open, count), allowed)
    }

    fn is_allowed(&self, at: usize, without: Option<Requirement>) -> bool {
        let host = &self.candidates[at];
        let selected = self.placement.selector.as_ref();
        (without == Some(Requirement::Selector)
            || selected.is_none_or(|selector| selects(selector, host.labels)))
            && (without == Some(Requirement::FailureDomains) || in_domains(self.placement, host))
    }

    fn is_open(&self, at: usize, without: Option<Requirement>) -> bool {
        match self.candidates[at].availability {
            Availability::Free => true,
            Availability::Claimed => without == Some(Requirement::Free),
            Availability::Unusable(_) => without == Some(Requirement::Usable),
        }
    }
}

fn in_domains(placement: &Placement, host: &Candidate<'_>) -> bool {
    let named = &placement.failure_domains;
    named.is_empty() || named.iter().any(|name| name == host.failure_domain)
}
