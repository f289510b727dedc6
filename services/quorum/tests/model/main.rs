//! Every order of events among three nodes with data and whoever promotes: writes, copies, acknowledgements that arrive
//! late, crashes, promotions that are begun and abandoned, changes of what counts, and old primaries that go on. And that
//! each rule is needed: without it, the search finds what is lost.
//!
//! `DROVER_TEST_MODEL=deep` explores more writes, terms and crashes than CI does.

mod events;
mod rules;
mod search;

use std::collections::BTreeSet;

use drover_quorum::{Change, Copies, Promise, Record, Voter};
use stateright::{Checker as _, Model as _};

/// Nodes with data; the voter behind them is whoever promotes.
const NODES: u8 = 3;
const PROMOTER: u8 = NODES;
const VOTERS: usize = NODES as usize + 1;

const NOTHING_IS_LOST: &str = "nothing acknowledged is lost, and only the latest acknowledges";

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// Who has less than the new primary counts from the start.
    LaggardsCount,
    /// A removed standby is forgotten before the others have everything.
    NoDrain,
    /// Who is added counts before that is recorded.
    CountedFirst,
    /// A promise is given by a standby that goes on following.
    StillFollows,
    /// A primary that promises goes on.
    StillServes,
    /// Any record will do, not the newest of a majority.
    AnyRecord,
    /// Data of an older history are compared by their length.
    LongestWins,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Primary {
    term: u64,
    start: u64,
    open: bool,
    /// What counts at the server.
    copies: Copies<u8>,
    /// What each node has said in this term that it has on disk.
    heard: [Option<u64>; NODES as usize],
    change: Option<(Change<u8>, BTreeSet<u8>)>,
    /// What is to be drained.
    drain: u64,
    record: Option<Record<u8>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Server {
    #[default]
    Ended,
    Follows {
        node: u8,
        term: u64,
    },
    Primary(Box<Primary>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    /// Durable.
    voter: Voter<u8>,
    /// Durable: the term of each write.
    log: Vec<u64>,
    /// Durable: the term whose history the log is a beginning of.
    history: u64,
    up: bool,
    server: Server,
    /// What it has said last of what is on its disk, and to whom: it may arrive at any time.
    said: Option<(u8, u64, u64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Promotion {
    term: u64,
    promises: Vec<Promise<u8>>,
    record: Option<Record<u8>>,
    accepted: BTreeSet<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    nodes: Vec<Node>,
    promoter: Voter<u8>,
    promotion: Option<Promotion>,
    /// The longest log that was acknowledged, and the highest term that was opened: what nobody in the model can see.
    acknowledged: Vec<u64>,
    opened: u64,
    crashes: u8,
    changes: u8,
    wrong: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Write(u8),
    Copy(u8),
    Say(u8),
    Acknowledge(u8),
    Follow(u8, u8),
    Crash(u8),
    Restart(u8),
    Open(u8),
    Begin(u8, Copies<u8>),
    AcceptChange(u8, u8),
    NextStep(u8),
    StartPromotion,
    AskPromise(u8),
    Decide,
    AcceptPromotion(u8),
    Promote,
}

#[derive(Clone)]
struct World {
    mutant: Option<Mutant>,
    /// Standbys that should have each write.
    wanted: usize,
    writes: usize,
    terms: u64,
    crashes: u8,
    changes: u8,
}

/// So many writes, terms, crashes and changes of what counts.
const fn world(wanted: usize, bounds: (usize, u64, u8, u8)) -> World {
    let (writes, terms, crashes, changes) = bounds;
    World {
        mutant: None,
        wanted,
        writes,
        terms,
        crashes,
        changes,
    }
}

/// How many states there are, and the shortest way to a loss.
fn explore(world: World) -> (usize, Option<String>) {
    let checker = world.checker().threads(2).spawn_bfs().join();
    let found = checker.discoveries();
    let lost = found.get(NOTHING_IS_LOST);
    let way = lost.map(|path| format!("{:#?}", path.clone().into_actions()));
    if way.is_none() {
        checker.assert_properties();
    }
    (checker.unique_state_count(), way)
}

#[test]
fn no_order_of_events_loses_what_was_acknowledged() {
    let is_deep = std::env::var("DROVER_TEST_MODEL").is_ok_and(|it| it == "deep");
    let bounds: &[_] = if is_deep {
        &[
            (2, 3, 0, 0),
            (1, 3, 1, 0),
            (1, 3, 0, 1),
            (2, 2, 0, 1),
            (1, 2, 0, 2),
        ]
    } else {
        &[(2, 2, 1, 0), (1, 2, 0, 1)]
    };
    for bounds in bounds {
        for wanted in [1, 2] {
            let (states, lost) = explore(world(wanted, *bounds));
            assert_eq!(lost, None, "{bounds:?}");
            println!("{wanted} of 2 standbys, {bounds:?}: {states} states");
        }
    }
}

#[test]
fn each_rule_is_needed() {
    for (mutant, bounds) in [
        (Mutant::LaggardsCount, (1, 3, 0, 0)),
        (Mutant::NoDrain, (1, 2, 0, 1)),
        (Mutant::CountedFirst, (1, 2, 0, 1)),
        (Mutant::StillFollows, (1, 2, 0, 0)),
        (Mutant::StillServes, (1, 3, 0, 0)),
        (Mutant::AnyRecord, (1, 2, 0, 1)),
        (Mutant::LongestWins, (2, 3, 0, 0)),
    ] {
        let world = World {
            mutant: Some(mutant),
            ..world(1, bounds)
        };
        let (states, lost) = explore(world);
        assert!(
            lost.is_some(),
            "{mutant:?} loses nothing in {states} states"
        );
    }
}
