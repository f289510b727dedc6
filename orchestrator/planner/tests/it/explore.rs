//! Model checking of every state that a group can reach: each order of platform events, each fault at each point, also
//! on a platform that is not visible at that moment, and changes of the spec in the middle. In no state are there too
//! many nodes or, by our own doing, too few, and each has a path to the desired state.
//!
//! `PLANNER_EXPLORE=full cargo test --release -p drover-planner explore -- --nocapture` explores all of it; without it,
//! the worlds are smaller.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "what must be there fails the test if it is not, and how much was seen is part of the result"
)]

use crate::world;
mod balancer;
mod key;
mod model;
mod steps;

use std::collections::{BTreeSet, HashSet};

use drover_core::spec::{Group, Management};
use model::{Model, Step};
use world::build::{group, of_template, pre_stop, rolling};

/// Maximum number of consecutive passes without an external event.
const MAX_PASSES: usize = 60;

impl Model {
    /// Continues without faults, and returns whether that leads to the desired state.
    fn calm(mut self) -> bool {
        self.faults = 0;
        self.wishes = 0;
        for _ in 0..3_000 {
            self.settle();
            // Everything in flight ends, then time passes.
            let good = |step: &Step| step.is_progress() || matches!(step, Step::Recovers(..));
            let good = self.steps().into_iter().find(good);
            match good {
                Some(step) => self.take(step, true),
                // An addon is looked at again and again.
                None if self.balancer.is_possible && self.is_as_wanted() => return true,
                None if self.wake.is_some() => self.take(Step::Tick, true),
                None => return self.is_as_wanted(),
            }
        }
        false
    }
}

/// Whether to explore all worlds completely.
fn is_full() -> bool {
    std::env::var("PLANNER_EXPLORE").is_ok_and(|value| value == "full")
}

/// Coverage over several worlds.
#[derive(Default)]
struct Seen {
    /// Number of completely explored worlds.
    whole: usize,
    /// Kinds of steps that were taken.
    steps: BTreeSet<String>,
}

impl Seen {
    /// Fails unless enough worlds were explored completely and each of these steps happened: a planner that does
    /// nothing breaks no invariant, and would pass otherwise.
    #[track_caller]
    fn has(&self, whole: usize, steps: &[&[&str]]) {
        println!("{} worlds as a whole; {:?}", self.whole, self.steps);
        assert!(self.whole >= whole, "{} worlds as a whole", self.whole);
        let steps = steps.iter().copied().flatten();
        let missing: Vec<_> = steps.filter(|step| !self.steps.contains(**step)).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}

/// Steps in the life of every node.
const LIFE: &[&str] = &["Made", "Ready", "Removed", "Read"];
/// Faults between an orchestrator and its platforms.
const FAULTS: &[&str] = &[
    "LostButMade",
    "LostAndNothing",
    "Refused",
    "NoCapacity",
    "Dies",
    "Vanishes",
    "NotRemoved",
    "Restart",
    "Unreachable",
];

fn kind(step: Step) -> String {
    let name = format!("{step:?}");
    let end = name.find('(').unwrap_or(name.len());
    name[..end].to_owned()
}

/// Explores all states, or the first `most`.
fn explore(what: &str, start: Model, most: usize, all: &mut Seen) {
    let mut seen = HashSet::new();
    let mut transitions = 0_u64;
    let mut ends = 0_u64;
    let mut open = vec![start];
    while let Some(mut model) = open.pop() {
        open.extend(model.settle());
        if !seen.insert(model.key()) {
            continue;
        }
        if seen.len() >= most {
            break;
        }
        let steps = model.steps();
        let quiet = !steps.iter().any(|step| step.is_progress());
        // From a sample of all states, and from each state in which nothing happens by itself any more.
        if seen.len() % 64 == 0
            || steps
                .iter()
                .all(|step| step.is_fault(quiet) || step.is_wish())
        {
            ends += 1;
            let shown = format!("{:#?}", model.state);
            assert!(model.clone().calm(), "it never becomes as wanted: {shown}");
        }
        for step in steps {
            let mut next = model.clone();
            all.steps.insert(kind(step));
            next.take(step, quiet);
            transitions += 1;
            open.push(next);
        }
    }
    let whole = if open.is_empty() { "all" } else { "the first" };
    assert!(open.is_empty() || !is_full(), "{what}: not all of it");
    println!(
        "{what}: {whole} {} states, {transitions} transitions, {ends} followed to their end, 0 violations",
        seen.len()
    );
    all.whole += usize::from(open.is_empty());
}

fn start(size: u32, platforms: &[&str], budget: (u32, u32), faults: u32, wishes: u32) -> Model {
    begin((size, 0), platforms, budget, (faults, wishes), false)
}

/// Initial state with all nodes Ready, with these numbers of active and standby nodes. With `ordered`, nodes go one at
/// a time and are drained before.
fn begin(
    (size, standby): (u32, u32),
    platforms: &[&str],
    budget: (u32, u32),
    (faults, wishes): (u32, u32),
    ordered: bool,
) -> Model {
    let mut group = group("data", size, platforms);
    group.standby = standby;
    group.update = rolling(budget.0, budget.1);
    if ordered {
        group.management = Some(Management::OrderedReady);
        group.lifecycle = Some(pre_stop(5));
    }
    if platforms.len() > 1 {
        group.choices[0].max = Some(size.max(2) - 1);
    }
    let mut model = all_ready(group);
    model.faults = faults;
    model.wishes = wishes;
    model
}

/// All nodes of a group are Ready, and have been for a long time.
fn all_ready(group: Group) -> Model {
    run_up(Model::new(group, 0, 0))
}

fn run_up(mut model: Model) -> Model {
    for _ in 0..50 {
        model.settle();
        let steps = model.steps();
        let good = |step: &&Step| matches!(step, Step::Made(_) | Step::Ready(..) | Step::Told);
        match steps.iter().find(good) {
            Some(step) => model.take(*step, true),
            None => break,
        }
    }
    assert!(model.is_as_wanted());
    model.now += 3_600_000;
    model.show();
    model
}

#[test]
fn no_state_of_an_ordered_group_breaks_floor_or_ceiling_and_each_leads_to_what_is_wanted() {
    let full = is_full();
    let most = if full { 3_000_000 } else { 12_000 };
    let mut seen = Seen::default();
    for (surge, unavailable) in [(1, 0), (0, 1)] {
        for size in [1, 2, 3] {
            let what = format!(
                "{size} ordered nodes with hooks, surge {surge}, unavailable {unavailable}, 2 faults"
            );
            let model = begin((size, 0), &["a"], (surge, unavailable), (2, 1), true);
            explore(&what, model, most, &mut seen);
        }
    }
    seen.has(2, &[LIFE, FAULTS, &["Drained", "NotDrained"]]);
}

#[test]
fn no_state_of_an_update_breaks_floor_or_ceiling_and_each_leads_to_what_is_wanted() {
    let full = is_full();
    let mut seen = Seen::default();
    let most = if full { usize::MAX } else { 12_000 };
    for (surge, unavailable) in [(1, 0), (0, 1), (1, 1)] {
        let what = format!("1 node, surge {surge}, unavailable {unavailable}, 2 faults, 1 change");
        explore(
            &what,
            start(1, &["a"], (surge, unavailable), 2, 1),
            most,
            &mut seen,
        );
        let what = format!("2 nodes, surge {surge}, unavailable {unavailable}, 1 fault, 1 change");
        explore(
            &what,
            start(2, &["a"], (surge, unavailable), 1, 1),
            most,
            &mut seen,
        );
        let what =
            format!("2 nodes on 2 platforms, surge {surge}, unavailable {unavailable}, 1 fault");
        explore(
            &what,
            start(2, &["a", "b"], (surge, unavailable), 1, 1),
            most,
            &mut seen,
        );
    }
    if full {
        for (surge, unavailable) in [(1, 0), (0, 1), (1, 1)] {
            for (size, faults, wishes) in [(2, 2, 1), (2, 1, 2), (3, 1, 1), (3, 2, 1)] {
                let what = format!(
                    "{size} nodes on 2 platforms, surge {surge}, unavailable {unavailable}, {faults} faults, {wishes} changes"
                );
                let model = start(size, &["a", "b"], (surge, unavailable), faults, wishes);
                explore(&what, model, 3_000_000, &mut seen);
            }
        }
    }
    seen.has(9, &[LIFE, FAULTS, &["Want"]]);
}

#[test]
fn no_state_has_more_active_nodes_than_wanted_and_each_leads_to_what_is_wanted() {
    let full = is_full();
    let mut seen = Seen::default();
    let most = if full { 3_000_000 } else { 12_000 };
    for (surge, unavailable) in [(1, 0), (0, 1), (1, 1)] {
        for (size, standby, faults, wishes) in [(1, 1, 2, 1), (1, 2, 1, 1), (2, 1, 1, 1)] {
            let what = format!(
                "{size} active, {standby} standby, surge {surge}, unavailable {unavailable}, {faults} faults, {wishes} change"
            );
            let model = begin(
                (size, standby),
                &["a"],
                (surge, unavailable),
                (faults, wishes),
                false,
            );
            explore(&what, model, most, &mut seen);
        }
    }
    if full {
        for (size, standby, faults, wishes) in
            [(1, 1, 3, 0), (1, 1, 3, 1), (1, 2, 2, 1), (2, 1, 2, 1)]
        {
            let what = format!(
                "{size} active, {standby} standby on 2 platforms, {faults} faults, {wishes} changes"
            );
            let model = begin(
                (size, standby),
                &["a", "b"],
                (1, 0),
                (faults, wishes),
                false,
            );
            explore(&what, model, most, &mut seen);
        }
    }
    seen.has(5, &[LIFE, &["Turned", "TurnLost", "TurnRefused", "Dies"]]);
}

#[test]
fn no_state_of_a_group_with_a_balancer_cuts_a_node_off_and_each_leads_to_what_is_wanted() {
    let full = is_full();
    let most = if full { 3_000_000 } else { 8_000 };
    let mut seen = Seen::default();
    for (size, standby, faults, wishes) in [(1, 0, 1, 1), (1, 1, 1, 1), (2, 0, 1, 1), (1, 0, 2, 1)]
    {
        let what = format!(
            "{size} active, {standby} standby behind a balancer elsewhere, {faults} faults, {wishes} changes of anything"
        );
        let mut group = group("data", size, &["a"]);
        group.standby = standby;
        group.update = rolling(1, 0);
        let mut model = Model::new(group, 0, 0);
        model.balance(true);
        let mut model = run_up(model);
        (model.faults, model.wishes) = (faults, wishes);
        explore(&what, model, most, &mut seen);
    }
    let told = &["Told", "ToldLost", "NotTold", "Balance", "Scale", "Want"];
    seen.has(
        0,
        &[LIFE, told, &["Dies", "Vanishes", "Restart", "Unreachable"]],
    );
}

#[test]
fn no_state_of_a_changed_template_breaks_floor_or_ceiling_and_each_leads_to_the_present_one() {
    let full = is_full();
    let most = if full { 3_000_000 } else { 8_000 };
    let mut seen = Seen::default();
    for (surge, unavailable) in [(1, 0), (0, 1)] {
        for (size, platforms, faults, changes) in [
            (1, &["a"][..], 2, 1),
            (1, &["a"], 1, 2),
            (2, &["a", "b"], 1, 1),
        ] {
            let what = format!(
                "{size} nodes on {}, surge {surge}, unavailable {unavailable}, {faults} faults, {changes} changes of templates or size",
                platforms.len()
            );
            let mut group = of_template(group("data", size, platforms), "t1");
            group.update = rolling(surge, unavailable);
            if platforms.len() > 1 {
                group.choices[0].max = Some(1);
            }
            let mut model = all_ready(group);
            (model.faults, model.wishes) = (faults, changes);
            explore(&what, model, most, &mut seen);
        }
    }
    seen.has(6, &[LIFE, &["Template", "Scale"]]);
}
