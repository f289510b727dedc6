//! Chooses failure domains for the nodes of a group according to its spread.

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{FailureDomain, Placement, Spread, SpreadScope};

use super::is_required;

/// Topology key of the host that a node runs on.
pub const HOST: &str = "host";

/// Chooses failure domains for the nodes of one request.
#[derive(Debug)]
pub struct Placer<'a> {
    domains: &'a [FailureDomain],
    spreads: Vec<Counted<'a>>,
    allowed: Vec<usize>,
    full: Vec<bool>,
    /// Number of nodes by failure domain, including those about to be created.
    group: Vec<u32>,
    cluster: Vec<u32>,
}

/// A spread with the number of nodes by value of its topology key.
#[derive(Debug)]
struct Counted<'a> {
    spread: &'a Spread,
    /// The value of each failure domain. `None` where the placement does not allow the domain.
    value_of: Vec<Option<usize>>,
    /// Including nodes about to be created.
    nodes: Vec<u32>,
    /// Those that certainly exist: a required spread must hold even if none of the others is created.
    sure: Vec<u32>,
}

impl<'a> Counted<'a> {
    fn new(spread: &'a Spread, domains: &[FailureDomain], allowed: &[usize]) -> Self {
        let value = |at: usize| domains[at].labels.get(&spread.topology_key);
        let mut values: Vec<_> = allowed.iter().map(|at| value(*at)).collect();
        values.sort_unstable();
        values.dedup();
        let mut value_of = vec![None; domains.len()];
        for &at in allowed {
            value_of[at] = values.binary_search(&value(at)).ok();
        }
        Self {
            spread,
            value_of,
            nodes: vec![0; values.len()],
            sure: vec![0; values.len()],
        }
    }

    fn counts(&self, same_group: bool) -> bool {
        same_group || self.spread.scope() == SpreadScope::Cluster
    }

    fn of(&self, domain: usize) -> u32 {
        self.value_of[domain].map_or(0, |value| self.nodes[value])
    }

    fn may_take(&self, domain: usize) -> bool {
        if self.spread.topology_key == HOST || !is_required(self.spread) {
            return true;
        }
        let emptiest = self.sure.iter().min().copied().unwrap_or_default();
        let next = self.of(domain) + 1;
        next - emptiest <= self.spread.max_skew.unwrap_or(1)
            && self.spread.max_per_domain.is_none_or(|max| next <= max)
    }
}

impl<'a> Placer<'a> {
    /// A placer without any nodes.
    #[must_use]
    pub fn new(domains: &'a [FailureDomain], placement: Option<&'a Placement>) -> Self {
        let named = placement.map_or(&[][..], |placement| &placement.failure_domains);
        let is_allowed = |at: &usize| named.is_empty() || named.contains(&domains[*at].name);
        let allowed: Vec<_> = (0..domains.len()).filter(is_allowed).collect();
        let spreads = placement.map_or(&[][..], |placement| &placement.spread);
        Self {
            domains,
            spreads: spreads
                .iter()
                .map(|spread| Counted::new(spread, domains, &allowed))
                .collect(),
            allowed,
            full: vec![false; domains.len()],
            group: vec![0; domains.len()],
            cluster: vec![0; domains.len()],
        }
    }

    /// Counts an existing node of the cluster.
    pub fn count(&mut self, domain: &str, same_group: bool) {
        let Some(at) = self.position(domain) else {
            return;
        };
        self.cluster[at] += 1;
        self.group[at] += u32::from(same_group);
        for counted in self.spreads.iter_mut().filter(|it| it.counts(same_group)) {
            if let Some(value) = counted.value_of[at] {
                counted.nodes[value] += 1;
                counted.sure[value] += 1;
            }
        }
    }

    /// Confirms that all nodes that were chosen and not taken back exist.
    pub fn confirm(&mut self) {
        for counted in &mut self.spreads {
            counted.sure.clone_from(&counted.nodes);
        }
    }

    /// Marks a domain as full.
    pub fn full(&mut self, domain: &str) {
        if let Some(at) = self.position(domain) {
            self.full[at] = true;
        }
    }

    /// Uncounts a node that was not created after all.
    pub fn take_back(&mut self, domain: &str) {
        let Some(at) = self.position(domain) else {
            return;
        };
        self.cluster[at] = self.cluster[at].saturating_sub(1);
        self.group[at] = self.group[at].saturating_sub(1);
        for counted in &mut self.spreads {
            if let Some(value) = counted.value_of[at] {
                counted.nodes[value] = counted.nodes[value].saturating_sub(1);
            }
        }
    }

    /// Chooses the failure domain of the next node and counts it. `None` if there are no failure domains.
    ///
    /// # Errors
    /// `NoCapacity` if no domain has capacity and satisfies the required spreads; a [`Placer::confirm`] may change
    /// that.
    pub fn choose(&mut self) -> Result<Option<&'a str>> {
        if self.domains.is_empty() {
            return Ok(None);
        }
        let fits = |at: &usize| !self.full[*at] && self.may_take(*at);
        // The least loaded by the first spread, then by the others, then by nodes of the group, then by order of the
        // domains.
        let order = |at: &usize| {
            let by_spread: Vec<u32> = self
                .spreads
                .iter()
                .map(|counted| match counted.spread.topology_key.as_str() {
                    HOST => 0,
                    _ => counted.of(*at),
                })
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
        self.take_at(at);
        Ok(Some(&self.domains[at].name))
    }

    /// Counts a node of the group whose domain was chosen before, as [`Placer::choose`] does.
    pub fn take(&mut self, domain: &str) {
        if let Some(at) = self.position(domain) {
            self.take_at(at);
        }
    }

    fn take_at(&mut self, at: usize) {
        self.cluster[at] += 1;
        self.group[at] += 1;
        for counted in &mut self.spreads {
            if let Some(value) = counted.value_of[at] {
                counted.nodes[value] += 1;
            }
        }
    }

    /// Checks that the next node may be in this domain, which is that of its named host.
    ///
    /// # Errors
    /// `NoCapacity` if the domain is not allowed or violates a required spread.
    pub fn check(&self, domain: &str) -> Result<()> {
        let at = self.position(domain);
        if at.is_none_or(|at| self.allowed.contains(&at) && self.may_take(at)) {
            return Ok(());
        }
        Err(Error::new(
            Reason::NoCapacity,
            "the named machine is where the placement allows no other node",
        ))
    }

    fn position(&self, domain: &str) -> Option<usize> {
        self.domains.iter().position(|known| known.name == domain)
    }

    fn may_take(&self, domain: usize) -> bool {
        self.spreads.iter().all(|counted| counted.may_take(domain))
    }
}

/// Checks that a placement is supported. `satisfied` lists topology keys that are satisfied by any placement.
///
/// # Errors
/// `Invalid` with the field for a failure domain or required topology key that does not exist.
pub fn check(
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
    use drover_proto::platform::v1::UnsatisfiableAction;

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
    fn a_node_that_is_taken_again_and_not_made_leaves_no_room_for_others() {
        let domains = zones(&["a", "b", "c"]);
        let placement = required(1, None);
        let mut placer = Placer::new(&domains, Some(&placement));
        for domain in ["b", "c"] {
            placer.count(domain, true);
        }
        placer.take("a");
        placer.take_back("a");
        placer.full("a");
        placer.confirm();
        assert_eq!(placer.choose().unwrap_err().reason(), Reason::NoCapacity);
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
