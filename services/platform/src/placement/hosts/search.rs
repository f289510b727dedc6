use std::collections::{BTreeMap, VecDeque};

use super::{MAX_TRIED, axis::Axis};

/// Kinds of hosts of which combinations are tried: each is a level of the recursion.
const MAX_KINDS: usize = 64;

/// The hosts chosen so far.
pub(super) struct Search {
    axes: Vec<Axis>,
    /// Hosts that can be claimed.
    open: Vec<usize>,
    is_chosen: Vec<bool>,
    chosen: Vec<usize>,
    count: usize,
}

impl Search {
    pub(super) fn new(axes: Vec<Axis>, open: Vec<usize>, count: usize) -> Self {
        let hosts = open.last().map_or(0, |last| last + 1);
        Self {
            axes,
            open,
            is_chosen: vec![false; hosts],
            chosen: Vec::new(),
            count,
        }
    }

    pub(super) fn is_skewed(&self) -> bool {
        self.axes.iter().any(Axis::is_skewed)
    }

    /// Chooses as many as are wanted and possible.
    pub(super) fn run(mut self) -> Vec<usize> {
        self.take_empty();
        while self.chosen.len() < self.count {
            let Some(next) = self.next() else { break };
            self.take(next);
        }
        let limited: Vec<usize> = (0..self.axes.len())
            .filter(|at| self.axes[*at].is_limited() || self.axes[*at].is_skewed())
            .collect();
        let skewed = self.is_skewed();
        match limited[..] {
            _ if self.chosen.len() == self.count => {}
            // Within one maximum a domain, nothing that was chosen stands in the way of anything else.
            [] => {}
            [_] if !skewed => {}
            [left, right] if !skewed => {
                while self.chosen.len() < self.count && self.augment(left, right) {}
            }
            _ => {
                let kinds = self.kinds();
                if kinds.len() <= MAX_KINDS {
                    self.combine(kinds);
                } else {
                    self.replace();
                }
            }
        }
        self.chosen
    }

    /// Chooses as many as are wanted, each where no node is by any spread. `None` if there are too few of those.
    pub(super) fn run_among_empty(mut self) -> Option<Vec<usize>> {
        self.take_empty();
        (self.chosen.len() == self.count).then_some(self.chosen)
    }

    /// Takes hosts whose domains have no node: none can be emptier, and one that was passed over stays unfit, so that one
    /// pass finds what [`Search::next`] would.
    fn take_empty(&mut self) {
        for at in 0..self.open.len() {
            if self.chosen.len() == self.count {
                return;
            }
            let host = self.open[at];
            let is_empty = self.axes.iter().all(|axis| axis.nodes(host) == 0);
            if is_empty && self.fits(host) {
                self.take(host);
            }
        }
    }

    /// The host whose domains have the fewest nodes, of those that fit.
    fn next(&self) -> Option<usize> {
        self.next_but(usize::MAX)
    }

    fn next_but(&self, other_than: usize) -> Option<usize> {
        let free = self.open.iter().copied();
        let free =
            free.filter(|host| !self.is_chosen[*host] && *host != other_than && self.fits(*host));
        free.min_by(|one, other| {
            let of = |host: usize| self.axes.iter().map(move |axis| axis.nodes(host));
            of(*one).cmp(of(*other)).then(one.cmp(other))
        })
    }

    fn fits(&self, host: usize) -> bool {
        self.axes.iter().all(|axis| axis.has_room(host))
    }

    fn take(&mut self, host: usize) {
        self.count_in(host);
        self.chosen.push(host);
    }

    fn count_in(&mut self, host: usize) {
        self.is_chosen[host] = true;
        self.axes.iter_mut().for_each(|axis| axis.take(host));
    }

    fn count_out(&mut self, host: usize) {
        self.is_chosen[host] = false;
        self.axes.iter_mut().for_each(|axis| axis.give_back(host));
    }

    /// Chooses one host more by exchanging others: a path from a domain with room on the left to one with room on the
    /// right, on which hosts that are not chosen and hosts that are alternate.
    fn augment(&mut self, left: usize, right: usize) -> bool {
        let (a, b) = (&self.axes[left], &self.axes[right]);
        // Free hosts by their domain on the left, chosen ones by that on the right.
        let (mut free, mut taken) = (vec![Vec::new(); a.domains()], vec![Vec::new(); b.domains()]);
        for &host in &self.open {
            let (Some(at), Some(to)) = (a.domain(host), b.domain(host)) else {
                continue;
            };
            if self.is_chosen[host] {
                taken[to].push((host, at));
            } else {
                free[at].push((host, to));
            }
        }
        // By which host the search came to a domain.
        let mut to_left: Vec<Option<usize>> = vec![None; a.domains()];
        let mut to_right: Vec<Option<usize>> = vec![None; b.domains()];
        let mut seen: Vec<bool> = (0..a.domains()).map(|at| a.is_below_max(at)).collect();
        let mut queue: VecDeque<usize> = (0..a.domains()).filter(|at| seen[*at]).collect();
        while let Some(at) = queue.pop_front() {
            for &(host, to) in &free[at] {
                if to_right[to].is_some() {
                    continue;
                }
                to_right[to] = Some(host);
                if b.is_below_max(to) {
                    let path = path(host, |host| {
                        let by = to_left[a.domain(host)?]?;
                        Some((by, to_right[b.domain(by)?]?))
                    });
                    self.exchange(&path);
                    return true;
                }
                for &(chosen, back) in &taken[to] {
                    if !seen[back] {
                        seen[back] = true;
                        to_left[back] = Some(chosen);
                        queue.push_back(back);
                    }
                }
            }
        }
        false
    }

    /// Turns around which hosts of the path are chosen.
    fn exchange(&mut self, path: &[usize]) {
        for &host in path {
            if self.is_chosen[host] {
                self.count_out(host);
            } else {
                self.count_in(host);
            }
        }
        let is_chosen = &self.is_chosen;
        let mut kept: Vec<usize> = self.chosen.clone();
        kept.retain(|host| is_chosen[*host]);
        kept.extend(path.iter().filter(|host| is_chosen[**host]));
        self.chosen = kept;
    }

    /// Hosts that can be claimed, those of equal domains together.
    fn kinds(&self) -> Vec<Vec<usize>> {
        let mut kinds: BTreeMap<Vec<Option<usize>>, Vec<usize>> = BTreeMap::new();
        for &host in &self.open {
            let domains = self.axes.iter().map(|axis| axis.domain(host));
            kinds.entry(domains.collect()).or_default().push(host);
        }
        kinds.into_values().collect()
    }

    /// Looks for a larger choice among all combinations.
    fn combine(&mut self, kinds: Vec<Vec<usize>>) {
        let mut rest: Vec<usize> = kinds.iter().map(Vec::len).collect();
        for at in (1..rest.len()).rev() {
            rest[at - 1] += rest[at];
        }
        let best = std::mem::take(&mut self.chosen);
        best.iter().for_each(|host| self.count_out(*host));
        let mut trial = Trial {
            kinds,
            rest,
            now: Vec::new(),
            best,
            left: MAX_TRIED,
        };
        trial.from(self, 0);
        trial.best.iter().for_each(|host| self.count_in(*host));
        self.chosen = trial.best;
    }

    /// Replaces one chosen host by two others, as long as that is possible.
    fn replace(&mut self) {
        let mut at = 0;
        let mut left = MAX_TRIED;
        while at < self.chosen.len() && self.chosen.len() < self.count {
            let Some(rest) = left.checked_sub(self.open.len()) else {
                return;
            };
            left = rest;
            let host = self.chosen[at];
            self.count_out(host);
            let first = self.next_but(host);
            let second = first.and_then(|first| {
                self.count_in(first);
                let second = self.next_but(host);
                if second.is_none() {
                    self.count_out(first);
                }
                second
            });
            match (first, second) {
                (Some(first), Some(second)) => {
                    self.count_in(second);
                    self.chosen.remove(at);
                    self.chosen.extend([first, second]);
                    at = 0;
                }
                _ => {
                    self.count_in(host);
                    at += 1;
                }
            }
        }
    }

    fn is_even(&self, chosen: &[usize]) -> bool {
        let even = |host: &usize| self.axes.iter().all(|axis| axis.stays_even(*host));
        chosen.iter().all(even)
    }
}

/// The hosts of a path from its end: one that is free, then pairs of one that is chosen and one that is free.
fn path(last: usize, before: impl Fn(usize) -> Option<(usize, usize)>) -> Vec<usize> {
    let mut path = vec![last];
    let mut at = last;
    while let Some((chosen, free)) = before(at) {
        path.extend([chosen, free]);
        at = free;
    }
    path
}

struct Trial {
    kinds: Vec<Vec<usize>>,
    /// Hosts of a kind and those after it.
    rest: Vec<usize>,
    now: Vec<usize>,
    best: Vec<usize>,
    left: usize,
}

impl Trial {
    fn from(&mut self, search: &mut Search, kind: usize) {
        if self.now.len() > self.best.len() && search.is_even(&self.now) {
            self.best.clone_from(&self.now);
        }
        let more = self.rest.get(kind).copied().unwrap_or_default();
        if more == 0
            || self.left == 0
            || self.best.len() >= search.count
            || self.now.len() + more <= self.best.len()
        {
            return;
        }
        self.left -= 1;
        let mut taken = 0;
        while let Some(&host) = self.kinds[kind].get(taken) {
            let fits = search.axes.iter().all(|axis| axis.fits_max(host));
            if !fits || self.now.len() >= search.count {
                break;
            }
            search.count_in(host);
            self.now.push(host);
            taken += 1;
        }
        // With as many of this kind as fit first, then with fewer.
        loop {
            self.from(search, kind + 1);
            if taken == 0 {
                return;
            }
            taken -= 1;
            if let Some(host) = self.now.pop() {
                search.count_out(host);
            }
        }
    }
}
