use drover_proto::{
    common::v1::LabelSelector,
    platform::v1::{Spread, SpreadScope, UnsatisfiableAction},
};
use fastrand::Rng;

use super::*;

type Labels = BTreeMap<String, String>;

fn labels(pairs: &[(&str, &str)]) -> Labels {
    let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(own).collect()
}

fn host<'a>(id: &'a str, labels: &'a Labels) -> Candidate<'a> {
    Candidate {
        id,
        labels,
        failure_domain: labels.get("rack").map_or("", String::as_str),
        availability: Availability::Free,
    }
}

/// At most so many nodes of the group in each domain.
fn limit(key: &str, max: u32) -> Spread {
    Spread {
        topology_key: key.to_owned(),
        max_per_domain: Some(max),
        ..Spread::default()
    }
}

fn even(key: &str, skew: u32) -> Spread {
    Spread {
        topology_key: key.to_owned(),
        max_skew: Some(skew),
        when_unsatisfiable: UnsatisfiableAction::DoNotSchedule.into(),
        ..Spread::default()
    }
}

fn spread(spread: &[Spread]) -> Placement {
    Placement {
        spread: spread.to_vec(),
        ..Placement::default()
    }
}

#[test]
fn racks_of_nodes_that_are_placed_are_not_used_again() {
    let racks = [
        labels(&[("rack", "r1")]),
        labels(&[("rack", "r2")]),
        labels(&[("rack", "r3")]),
    ];
    let hosts: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .zip(&racks)
        .map(|(id, labels)| host(id, labels))
        .collect();
    let there = [Placed {
        labels: &racks[1],
        same_group: true,
    }];
    let one_a_rack = spread(&[limit("rack", 1)]);
    assert_eq!(choose(&hosts, &there, &one_a_rack, 2), Ok(vec![0, 2]));
    let shortage = choose(&hosts, &there, &one_a_rack, 3).unwrap_err();
    assert_eq!((shortage.fits, shortage.wanted), (2, 3));
    assert_eq!(shortage.blocking, ["spread[0]"]);
    let error = Error::from(shortage);
    assert_eq!(error.reason(), Reason::NoCapacity);
    assert_eq!(
        error.message(),
        "free: 3 hosts; rack: 1 of 3 domains take no other node; 2 more hosts fit, 3 are wanted"
    );
}

#[test]
fn other_groups_count_where_the_spread_is_over_the_cluster() {
    let (one, other) = (labels(&[("rack", "r1")]), labels(&[("rack", "r2")]));
    let hosts = [host("a", &one), host("b", &other)];
    let there = [Placed {
        labels: &one,
        same_group: false,
    }];
    let mut placement = spread(&[limit("rack", 1)]);
    assert_eq!(choose(&hosts, &there, &placement, 2), Ok(vec![0, 1]));
    placement.spread[0].scope = SpreadScope::Cluster.into();
    assert!(choose(&hosts, &there, &placement, 2).is_err());
    assert_eq!(choose(&hosts, &there, &placement, 1), Ok(vec![1]));
}

#[test]
fn a_first_choice_that_is_in_the_way_of_two_keys_is_exchanged() {
    // Whoever takes `a` first, because it comes first, is left with r1 and h1 taken twice.
    let all = [
        labels(&[("rack", "r1"), ("host", "h1")]),
        labels(&[("rack", "r1"), ("host", "h2")]),
        labels(&[("rack", "r2"), ("host", "h1")]),
    ];
    let hosts: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .zip(&all)
        .map(|(id, labels)| host(id, labels))
        .collect();
    let placement = spread(&[limit("rack", 1), limit("host", 1)]);
    let mut chosen = choose(&hosts, &[], &placement, 2).unwrap();
    chosen.sort_unstable();
    assert_eq!(chosen, [1, 2]);
}

#[test]
fn a_shortage_says_what_remains_after_each_requirement() {
    let big = [
        labels(&[("flavor", "big"), ("rack", "r1")]),
        labels(&[("flavor", "big"), ("rack", "r2")]),
        labels(&[("flavor", "big"), ("rack", "r3")]),
    ];
    let small = labels(&[("flavor", "small"), ("rack", "r4")]);
    let mut hosts: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .zip(&big)
        .map(|(id, labels)| host(id, labels))
        .collect();
    hosts.push(host("d", &small));
    hosts[0].availability = Availability::Claimed;
    hosts[1].availability = Availability::Unusable("Secret b-networkdata is missing");
    let placement = Placement {
        selector: Some(LabelSelector {
            match_labels: [("flavor".to_owned(), "big".to_owned())].into(),
            ..LabelSelector::default()
        }),
        spread: vec![limit("rack", 1)],
        ..Placement::default()
    };
    let shortage = choose(&hosts, &[], &placement, 2).unwrap_err();
    assert_eq!(shortage.blocking, ["selector", "free", "usable"]);
    assert_eq!(
        Error::from(shortage).message(),
        "selector: 3 hosts; free: 2; usable: 1 (b: Secret b-networkdata is missing); 1 more host fits, 2 are wanted"
    );
}

#[test]
fn a_host_without_the_key_of_a_required_spread_is_no_candidate() {
    let none = Labels::new();
    let hosts = [host("a", &none)];
    let shortage = choose(&hosts, &[], &spread(&[limit("rack", 1)]), 1).unwrap_err();
    assert_eq!(shortage.blocking, ["spread[0]"]);
    let preferred = Spread {
        topology_key: "rack".to_owned(),
        ..Spread::default()
    };
    assert_eq!(choose(&hosts, &[], &spread(&[preferred]), 1), Ok(vec![0]));
}

#[test]
fn a_named_host_has_to_fit_the_spread_too() {
    let (one, other) = (labels(&[("rack", "r1")]), labels(&[("rack", "r2")]));
    let hosts = [host("a", &one), host("b", &other)];
    let there = [Placed {
        labels: &one,
        same_group: true,
    }];
    let placement = spread(&[limit("rack", 1)]);
    check_named(&hosts[1], &hosts, &there, &placement).unwrap();
    let error = check_named(&hosts[0], &hosts, &there, &placement).unwrap_err();
    assert_eq!(error.reason(), Reason::NoCapacity);
    assert!(error.message().contains("spread[0]"), "{error}");
}

/// Ids and labels of 10,000 hosts.
fn ten_thousand() -> Vec<(String, Labels)> {
    let one = |at: usize| {
        let (rack, host) = (format!("r{}", at % 250), format!("h{}", at % 1_600));
        let labels = labels(&[("rack", &rack), ("host", &host)]);
        (format!("host-{at:05}"), labels)
    };
    (0..10_000).map(one).collect()
}

#[test]
fn a_thousand_hosts_of_ten_thousand_are_chosen_under_two_keys() {
    let all = ten_thousand();
    let hosts: Vec<_> = all.iter().map(|(id, labels)| host(id, labels)).collect();
    let placement = spread(&[limit("rack", 4), limit("host", 1)]);
    assert_eq!(
        choose(&hosts, &[], &placement, 1_000).map(|it| it.len()),
        Ok(1_000)
    );
}

#[test]
fn that_none_of_ten_thousand_hosts_fits_is_said_with_numbers() {
    let all = ten_thousand();
    let mut hosts: Vec<_> = all.iter().map(|(id, labels)| host(id, labels)).collect();
    for (at, host) in hosts.iter_mut().enumerate() {
        host.availability = match at % 2 {
            0 => Availability::Claimed,
            _ => Availability::Unusable("its state is \"inspecting\""),
        };
    }
    let placement = spread(&[limit("rack", 4), limit("host", 1)]);
    let shortage = choose(&hosts, &[], &placement, 1_000).unwrap_err();
    assert_eq!(shortage.fits, 0);
    assert_eq!(shortage.blocking, ["free", "usable"]);
    let message = Error::from(shortage).message().to_owned();
    let expected =
        "free: 5000 hosts; usable: 0 (host-00001: its state is \"inspecting\", and 4999 more)";
    assert!(message.starts_with(expected), "{message}");
}

/// A world of few hosts, of which every choice can be tried.
struct World {
    labels: Vec<Labels>,
    claimed: Vec<bool>,
    placed: Vec<(Labels, bool)>,
    placement: Placement,
    wanted: usize,
}

impl World {
    fn random(rng: &mut Rng, keys: usize, skews: bool) -> Self {
        const KEYS: [&str; 3] = ["rack", "host", "room"];
        let draw = |rng: &mut Rng| -> Labels {
            let pairs = KEYS.iter().filter_map(|key| {
                let has = rng.u8(0..12) > 0;
                let value = format!("{}", rng.u8(0..4));
                has.then(|| ((*key).to_owned(), value))
            });
            pairs.collect()
        };
        let hosts = rng.usize(1..=8);
        let placed = rng.usize(0..3);
        let mut spread = Vec::new();
        for key in KEYS.iter().take(keys) {
            let mut one = limit(key, rng.u32(1..=2));
            if skews && rng.bool() {
                one = even(key, rng.u32(1..=2));
            }
            if rng.bool() {
                one.scope = SpreadScope::Cluster.into();
            }
            spread.push(one);
        }
        Self {
            labels: (0..hosts).map(|_| draw(rng)).collect(),
            claimed: (0..hosts).map(|_| rng.u8(0..5) == 0).collect(),
            placed: (0..placed).map(|_| (draw(rng), rng.bool())).collect(),
            placement: Placement {
                spread,
                ..Placement::default()
            },
            wanted: rng.usize(1..=hosts),
        }
    }

    fn choose(&self) -> std::result::Result<Vec<usize>, Shortage> {
        self.ask(|hosts, placed| choose(hosts, placed, &self.placement, self.wanted))
    }

    fn choose_among_first(&self, count: usize) -> Option<Vec<usize>> {
        self.ask(|hosts, placed| {
            choose_among_first(&hosts[..count], placed, &self.placement, self.wanted)
        })
    }

    fn ask<T>(&self, question: impl FnOnce(&[Candidate<'_>], &[Placed<'_>]) -> T) -> T {
        let ids: Vec<String> = (0..self.labels.len()).map(|at| at.to_string()).collect();
        let mut hosts: Vec<_> = (ids.iter().zip(&self.labels))
            .map(|(id, labels)| host(id, labels))
            .collect();
        for (host, claimed) in hosts.iter_mut().zip(&self.claimed) {
            if *claimed {
                host.availability = Availability::Claimed;
            }
        }
        let placed: Vec<_> = self
            .placed
            .iter()
            .map(|(labels, same_group)| Placed {
                labels,
                same_group: *same_group,
            })
            .collect();
        question(&hosts, &placed)
    }

    /// Whether these hosts may be claimed together, from the words of the contract.
    fn may(&self, chosen: &[usize], without: &str) -> bool {
        let spreads = self.placement.spread.iter().enumerate();
        let free = chosen
            .iter()
            .all(|at| without == "free" || !self.claimed[*at]);
        free && spreads
            .filter(|(at, _)| without != format!("spread[{at}]"))
            .all(|(_, spread)| self.holds(spread, chosen))
    }

    fn holds(&self, spread: &Spread, chosen: &[usize]) -> bool {
        let key = &spread.topology_key;
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for labels in &self.labels {
            if let Some(value) = labels.get(key) {
                counts.entry(value).or_default();
            }
        }
        let everybody = spread.scope() == SpreadScope::Cluster;
        let there = self.placed.iter().filter(|(_, own)| everybody || *own);
        let there: Vec<_> = there.filter_map(|(labels, _)| labels.get(key)).collect();
        for value in there {
            if let Some(count) = counts.get_mut(value.as_str()) {
                *count += 1;
            }
        }
        let mut used = Vec::new();
        for at in chosen {
            let Some(value) = self.labels[*at].get(key) else {
                return false;
            };
            *counts.entry(value).or_default() += 1;
            used.push(value.as_str());
        }
        let emptiest = counts.values().min().copied().unwrap_or_default();
        let strict = spread.when_unsatisfiable() == UnsatisfiableAction::DoNotSchedule;
        used.iter().all(|value| {
            let count = counts[value];
            spread.max_per_domain.is_none_or(|max| count <= max)
                && (!strict || count <= emptiest + spread.max_skew.unwrap_or(1))
        })
    }

    /// The most hosts that may be claimed.
    fn most(&self, without: &str) -> usize {
        let hosts = self.labels.len();
        let sets = (0..1_u32 << hosts).map(|set| {
            let chosen = (0..hosts).filter(move |at| set & (1 << at) != 0);
            chosen.collect::<Vec<_>>()
        });
        let allowed = sets.filter(|set| set.len() <= self.wanted && self.may(set, without));
        allowed.map(|set| set.len()).max().unwrap_or_default()
    }
}

/// Compares with brute force over so many random worlds.
fn compare(worlds: usize, keys: std::ops::RangeInclusive<usize>, skews: bool) {
    let given = std::env::var("DROVER_SEED").map(|seed| seed.parse().unwrap());
    let seed = given.unwrap_or_else(|_| fastrand::u64(..));
    let mut rng = Rng::with_seed(seed);
    let (mut short, mut early) = (0, 0);
    for world in 0..worlds {
        let keys = rng.usize(keys.clone());
        let world_of = World::random(&mut rng, keys, skews);
        let place = format!("seed {seed}, world {world}");
        let chosen = world_of.choose();
        for first in 1..world_of.labels.len() {
            if let Some(among_first) = world_of.choose_among_first(first) {
                early += 1;
                assert_eq!(chosen, Ok(among_first), "{place}: among the first {first}");
            }
        }
        match chosen {
            Ok(chosen) => {
                assert_eq!(chosen.len(), world_of.wanted, "{place}");
                let mut distinct = chosen.clone();
                distinct.sort_unstable();
                distinct.dedup();
                assert_eq!(distinct.len(), chosen.len(), "{place}: chosen twice");
                assert!(world_of.may(&chosen, ""), "{place}: {chosen:?}");
            }
            Err(shortage) => {
                short += 1;
                assert_eq!(shortage.fits, world_of.most(""), "{place}");
                for named in &shortage.blocking {
                    assert!(
                        world_of.most(named) > shortage.fits,
                        "{place}: without {named} no more hosts would fit"
                    );
                }
            }
        }
    }
    assert!(short > worlds / 10, "{short} of {worlds} were short");
    assert!(
        early > worlds / 40,
        "{early} of {worlds} were decided early"
    );
}

#[test]
fn under_at_most_two_limits_the_choice_is_the_best_there_is() {
    compare(60_000, 0..=2, false);
}

#[test]
fn more_keys_and_skews_are_never_broken() {
    compare(20_000, 3..=3, true);
    compare(20_000, 1..=2, true);
}
