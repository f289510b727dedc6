//! Chooses failure domains for the nodes of a group according to its spread.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{
    FailureDomain, Placement, Spread, SpreadScope, UnsatisfiableAction,
};

/// Topology key of the host that a node runs on.
pub(crate) const HOST: &str = "host";

/// Chooses failure domains for the nodes of one request.
pub(crate) struct Placer<'a> {
    domains: &'a [FailureDomain],
    spreads: &'a [Spread],
    allowed: Vec<usize>,
    full: Vec<bool>,
    /// Number of nodes by failure domain, including those about to be created.
    group: Vec<u32>,
    cluster: Vec<u32>,
    /// Number of nodes that certainly exist: a required spread must hold even if none of the others is created.
    sure_group: Vec<u32>,
    sure_cluster: Vec<u32>,
}

impl<'a> Placer<'a> {
    /// A placer without any nodes.
    #[must_use]
    pub(crate) fn new(domains: &'a [FailureDomain], placement: Option<&'a Placement>) -> Self {
        let named = placement.map_or(&[][..], |placement| &placement.failure_domains);
        let is_allowed = |at: &usize| named.is_empty() || named.contains(&domains[*at].name);
        Self {
            domains,
            spreads: placement.map_or(&[][..], |placement| &placement.spread),
            allowed: (0..domains.len()).filter(is_allowed).collect(),
            full: vec![false; domains.len()],
            group: vec![0; domains.len()],
            cluster: vec![0; domains.len()],
            sure_group: vec![0; domains.len()],
            sure_cluster: vec![0; domains.len()],
        }
    }

    /// Counts an existing node of the cluster.
    pub(crate) fn count(&mut self, domain: &str, same_group: bool) {
        if let Some(at) = self.domains.iter().position(|known| known.name == domain) {
            for cluster in [&mut self.cluster, &mut self.sure_cluster] {
                cluster[at] += 1;
            }
            for group in [&mut self.group, &mut self.sure_group] {
                group[at] += u32::from(same_group);
            }
        }
    }

    /// Number of nodes of the group in a domain.
    pub(crate) fn of_group(&self, domain: &str) -> u32 {
        let at = self.domains.iter().position(|known| known.name == domain);
        at.map_or(0, |at| self.group[at])
    }

    /// Confirms that all nodes that were chosen and not taken back exist.
    pub(crate) fn confirm(&mut self) {
        self.sure_group.clone_from(&self.group);
        self.sure_cluster.clone_from(&self.cluster);
    }

    /// Marks a domain as full.
    pub(crate) fn full(&mut self, domain: &str) {
        if let Some(at) = self.domains.iter().position(|known| known.name == domain) {
            self.full[at] = true;
        }
    }

    /// Uncounts a node that was not created after all.
    pub(crate) fn take_back(&mut self, domain: &str) {
        if let Some(at) = self.domains.iter().position(|known| known.name == domain) {
            self.cluster[at] = self.cluster[at].saturating_sub(1);
            self.group[at] = self.group[at].saturating_sub(1);
        }
    }

    /// Chooses the failure domain of the next node and counts it. `None` if there are no failure domains.
    ///
    /// # Errors
    /// `NoCapacity` if no domain has capacity and satisfies the required spreads; a [`Placer::confirm`] may change
    /// that.
    pub(crate) fn choose(&mut self) -> Result<Option<&'a str>> {
        if self.domains.is_empty() {
            return Ok(None);
        }
        let fits = |at: &usize| !self.full[*at] && self.is_spread(*at);
        // The least loaded by the first spread, then by the others, then by nodes of the group, then by order of the
        // domains.
        let order = |at: &usize| {
            let by_spread: Vec<u32> = self
                .spreads
                .iter()
                .map(|spread| self.of_value(spread, *at))
                .collect();
            (by_spread, self.group[*at], self.cluster[*at], *at)
        };
        let Some(at) = self.allowed.iter().copied().filter(fits).min_by_key(order) else {
            let error = Error::new(
                Reason::NoCapacity,
                "no failure domain has room for another node under the required spread",
            );
            return Err(match self.allowed[..] {
                // Only this domain is full, so requests that may use others need not back off.
                [only] if self.full[only] => {
                    error.with_metadata("failure_domain", &self.domains[only].name)
                }
                _ => error,
            });
        };
        self.cluster[at] += 1;
        self.group[at] += 1;
        Ok(Some(&self.domains[at].name))
    }

    /// Checks that the next node may be in this domain, which is that of its named host.
    ///
    /// # Errors
    /// `NoCapacity` if the domain is not allowed or violates a required spread.
    pub(crate) fn check(&self, domain: &str) -> Result<()> {
        let at = self.domains.iter().position(|known| known.name == domain);
        if at.is_none_or(|at| self.allowed.contains(&at) && self.is_spread(at)) {
            return Ok(());
        }
        Err(Error::new(
            Reason::NoCapacity,
            "the named machine is where the placement allows no other node",
        ))
    }

    fn is_spread(&self, domain: usize) -> bool {
        let mut required = self.spreads.iter().filter(|spread| is_required(spread));
        required.all(|spread| self.satisfies(spread, domain))
    }

    /// Number of nodes that share the domain's value of the topology key.
    fn of_value(&self, spread: &Spread, domain: usize) -> u32 {
        if spread.topology_key == HOST {
            return 0;
        }
        self.counts(spread, false)
            .get(self.value(spread, domain))
            .copied()
            .unwrap_or_default()
    }

    fn counts(&self, spread: &Spread, sure: bool) -> BTreeMap<&str, u32> {
        let nodes = match (spread.scope() == SpreadScope::Cluster, sure) {
            (true, false) => &self.cluster,
            (true, true) => &self.sure_cluster,
            (false, false) => &self.group,
            (false, true) => &self.sure_group,
        };
        let mut counts = BTreeMap::new();
        for &at in &self.allowed {
            *counts.entry(self.value(spread, at)).or_default() += nodes[at];
        }
        counts
    }

    fn satisfies(&self, spread: &Spread, domain: usize) -> bool {
        if spread.topology_key == HOST {
            return true;
        }
        let sure = self.counts(spread, true);
        let emptiest = sure.values().min().copied().unwrap_or_default();
        let next = self.of_value(spread, domain) + 1;
        next - emptiest <= spread.max_skew.unwrap_or(1)
            && spread.max_per_domain.is_none_or(|max| next <= max)
    }

    fn value(&self, spread: &Spread, domain: usize) -> &str {
        self.domains[domain]
            .labels
            .get(&spread.topology_key)
            .map_or("", String::as_str)
    }
}

fn is_required(spread: &Spread) -> bool {
    spread.when_unsatisfiable() == UnsatisfiableAction::DoNotSchedule
        || spread.max_per_domain.is_some()
}

/// Checks that a placement is supported. `satisfied` lists topology keys that are satisfied by any placement.
///
/// # Errors
/// `Invalid` with the field for a failure domain or required topology key that does not exist.
pub(crate) fn check(
    domains: &[FailureDomain],
    placement: Option<&Placement>,
    satisfied: &[&str],
) -> Result<()> {
    let Some(placement) = placement else {
        return Ok(());
    };
    for (at, name) in placement.failure_domains.iter().enumerate() {
        if !domains.iter().any(|domain| domain.name == *name) {
            let known: Vec<_> = domains.iter().map(|domain| domain.name.as_str()).collect();
            return Err(Error::invalid(
                format!("group.placement.failure_domains[{at}]"),
                format!(
                    "there is no failure domain {name:?}; there are: {}",
                    known.join(", ")
                ),
            ));
        }
    }
    for (at, spread) in placement.spread.iter().enumerate() {
        let known = satisfied.contains(&spread.topology_key.as_str())
            || domains
                .iter()
                .any(|domain| domain.labels.contains_key(&spread.topology_key));
        if is_required(spread) && !known {
            return Err(Error::invalid(
                format!("group.placement.spread[{at}].topology_key"),
                format!("no failure domain has {:?}", spread.topology_key),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones(names: &[&str]) -> Vec<FailureDomain> {
        names
            .iter()
            .map(|name| FailureDomain {
                name: (*name).to_owned(),
                labels: [("zone".to_owned(), (*name).to_owned())].into(),
                control_plane: true,
            })
            .collect()
    }

    fn required(max_skew: u32, max_per_domain: Option<u32>) -> Placement {
        Placement {
            spread: vec![Spread {
                topology_key: "zone".to_owned(),
                max_skew: Some(max_skew),
                when_unsatisfiable: UnsatisfiableAction::DoNotSchedule.into(),
                max_per_domain,
                scope: SpreadScope::Group.into(),
            }],
            ..Placement::default()
        }
    }

    /// Chooses domains one after the other, each node created before the next.
    fn chosen(placer: &mut Placer<'_>, count: usize) -> Vec<String> {
        (0..count)
            .map(|_| {
                placer.confirm();
                placer
                    .choose()
                    .map_or("-".to_owned(), |at| at.unwrap_or("").to_owned())
            })
            .collect()
    }

    #[test]
    fn nodes_already_placed_are_counted() {
        let domains = zones(&["a", "b", "c"]);
        let placement = required(1, None);
        let mut placer = Placer::new(&domains, Some(&placement));
        for domain in ["a", "a", "b", "b", "c"] {
            placer.count(domain, true);
        }
        assert_eq!(chosen(&mut placer, 3), ["c", "a", "b"]);
    }

    #[test]
    fn a_full_domain_is_left_out_when_that_is_allowed() {
        let domains = zones(&["a", "b", "c"]);
        let mut preferred = Placer::new(&domains, None);
        preferred.full("a");
        assert_eq!(chosen(&mut preferred, 4), ["b", "c", "b", "c"]);

        let placement = required(1, None);
        let mut strict = Placer::new(&domains, Some(&placement));
        strict.full("a");
        assert_eq!(chosen(&mut strict, 3), ["b", "c", "-"]);
    }

    #[test]
    fn a_required_spread_holds_even_if_the_others_are_not_made() {
        let domains = zones(&["a", "b", "c"]);
        let placement = required(1, None);
        let mut placer = Placer::new(&domains, Some(&placement));
        let mut wave = Vec::new();
        while let Ok(Some(domain)) = placer.choose() {
            wave.push(domain);
        }
        assert_eq!(
            wave,
            ["a", "b", "c"],
            "no second node before the first of c is there"
        );
        placer.take_back("c");
        placer.full("c");
        placer.confirm();
        assert!(placer.choose().is_err());
    }

    #[test]
    fn no_domain_holds_more_than_it_may() {
        let domains = zones(&["a", "b"]);
        let placement = required(2, Some(1));
        let mut placer = Placer::new(&domains, Some(&placement));
        assert_eq!(chosen(&mut placer, 3), ["a", "b", "-"]);
    }

    #[test]
    fn only_named_domains_are_used() {
        let domains = zones(&["a", "b", "c"]);
        let placement = Placement {
            failure_domains: vec!["c".to_owned(), "b".to_owned()],
            ..Placement::default()
        };
        let mut placer = Placer::new(&domains, Some(&placement));
        assert_eq!(chosen(&mut placer, 3), ["b", "c", "b"]);
    }

    #[test]
    fn unknown_domains_and_keys_are_named() {
        let domains = zones(&["a"]);
        let unknown = Placement {
            failure_domains: vec!["x".to_owned()],
            ..Placement::default()
        };
        let error = check(&domains, Some(&unknown), &[HOST]).unwrap_err();
        assert_eq!(
            error.fields()[0].field,
            "group.placement.failure_domains[0]"
        );
        let mut rack = required(1, None);
        rack.spread[0].topology_key = "rack".to_owned();
        let error = check(&domains, Some(&rack), &[HOST]).unwrap_err();
        assert_eq!(
            error.fields()[0].field,
            "group.placement.spread[0].topology_key"
        );
        rack.spread[0].topology_key = "host".to_owned();
        check(&domains, Some(&rack), &[HOST]).unwrap();
    }
}
