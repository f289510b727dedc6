use std::collections::BTreeMap;

use drover_proto::platform::v1::{Spread, SpreadScope, UnsatisfiableAction};

use super::{super::is_required, Candidate, Placed};

/// One spread over the hosts: their domains, and how many nodes each domain has.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) key: String,
    /// The domain of each host. `None` if the host lacks the topology key.
    domain_of: Vec<Option<usize>>,
    nodes: Vec<usize>,
    /// Domains by their number of nodes.
    levels: BTreeMap<usize, usize>,
    /// Most nodes in a domain.
    max: Option<usize>,
    /// Most by which the fullest domain may exceed the emptiest.
    skew: Option<usize>,
    required: bool,
}

impl Axis {
    pub(super) fn new(spread: &Spread, hosts: &[Candidate<'_>], placed: &[Placed<'_>]) -> Self {
        let mut domains = BTreeMap::new();
        for host in hosts {
            if let Some(value) = host.labels.get(&spread.topology_key) {
                let next = domains.len();
                domains.entry(value.as_str()).or_insert(next);
            }
        }
        let domain = |labels: &BTreeMap<String, String>| {
            let value = labels.get(&spread.topology_key)?;
            domains.get(value.as_str()).copied()
        };
        let mut nodes = vec![0; domains.len()];
        let all = spread.scope() == SpreadScope::Cluster;
        for one in placed.iter().filter(|one| all || one.same_group) {
            if let Some(at) = domain(one.labels) {
                nodes[at] += 1;
            }
        }
        let mut levels = BTreeMap::new();
        for count in &nodes {
            *levels.entry(*count).or_default() += 1;
        }
        let to_usize = |limit: u32| usize::try_from(limit).unwrap_or(usize::MAX);
        let max = spread.max_per_domain.map(to_usize);
        let strict = spread.when_unsatisfiable() == UnsatisfiableAction::DoNotSchedule;
        let skew = strict.then(|| to_usize(spread.max_skew.unwrap_or(1)));
        Self {
            key: spread.topology_key.clone(),
            domain_of: hosts.iter().map(|host| domain(host.labels)).collect(),
            nodes,
            levels,
            max,
            // No domain can exceed an empty one by more than its maximum.
            skew: skew.filter(|skew| max.is_none_or(|max| max > *skew)),
            required: is_required(spread),
        }
    }

    /// Whether the host can be a candidate: a required spread needs its key.
    pub(super) fn knows(&self, host: usize) -> bool {
        !self.required || self.domain_of[host].is_some()
    }

    pub(super) fn is_limited(&self) -> bool {
        self.max.is_some()
    }

    pub(super) fn is_skewed(&self) -> bool {
        self.skew.is_some()
    }

    pub(super) fn domains(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn domain(&self, host: usize) -> Option<usize> {
        self.domain_of[host]
    }

    /// Nodes in the host's domain.
    pub(super) fn nodes(&self, host: usize) -> usize {
        self.domain_of[host].map_or(0, |domain| self.nodes[domain])
    }

    pub(super) fn take(&mut self, host: usize) {
        if let Some(domain) = self.domain_of[host] {
            self.set(domain, self.nodes[domain] + 1);
        }
    }

    pub(super) fn give_back(&mut self, host: usize) {
        if let Some(domain) = self.domain_of[host] {
            self.set(domain, self.nodes[domain] - 1);
        }
    }

    fn set(&mut self, domain: usize, nodes: usize) {
        let before = std::mem::replace(&mut self.nodes[domain], nodes);
        if let Some(count) = self.levels.get_mut(&before) {
            *count -= 1;
            if *count == 0 {
                self.levels.remove(&before);
            }
        }
        *self.levels.entry(nodes).or_default() += 1;
    }

    /// Whether the maximum of a domain allows another node.
    pub(super) fn is_below_max(&self, domain: usize) -> bool {
        self.max.is_none_or(|max| self.nodes[domain] < max)
    }

    /// Whether no maximum of the host's domain is exceeded by another node there.
    pub(super) fn fits_max(&self, host: usize) -> bool {
        self.domain_of[host].is_none_or(|domain| self.is_below_max(domain))
    }

    /// Whether the next node may be on this host.
    pub(super) fn has_room(&self, host: usize) -> bool {
        let Some(domain) = self.domain_of[host] else {
            return !self.required;
        };
        self.is_below_max(domain) && self.is_even(domain, 1)
    }

    /// Whether the host's domain, with as many nodes as it has, exceeds no other too far.
    pub(super) fn stays_even(&self, host: usize) -> bool {
        self.domain_of[host].is_none_or(|domain| self.is_even(domain, 0))
    }

    fn is_even(&self, domain: usize, more: usize) -> bool {
        let Some(skew) = self.skew else {
            return true;
        };
        let next = self.nodes[domain] + more;
        let mut levels = self.levels.iter();
        let emptiest = match levels.next() {
            // With one node more, a domain that is alone the emptiest is so no longer.
            Some((least, 1)) if *least == self.nodes[domain] => {
                levels.next().map_or(next, |(second, _)| next.min(*second))
            }
            Some((least, _)) => *least,
            None => 0,
        };
        next <= emptiest.saturating_add(skew)
    }

    /// Domains in which no other node may be.
    pub(super) fn full(&self) -> usize {
        let closed = |domain: &usize| !self.is_below_max(*domain) || !self.is_even(*domain, 1);
        (0..self.nodes.len()).filter(closed).count()
    }
}
