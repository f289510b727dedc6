//! Every order of events among two replicas, the store that says which of them owns a shard, and a platform that both call:
//! leases that end, hand-overs, processes that stand still or die, transactions and calls that arrive late, platforms that
//! are started again. And that each rule is needed: without it, the search finds the harm.
//!
//! The platform's fences are the real ones. The rest stands for `store::own` and `store::led` (claim, release, hand-over, the fence of
//! each transaction), `platforms::watch` (handshake and fence), `executor::envelope` (a call whose turn has come), and
//! `planner::requests` (repeating and closing requests). What a platform promises is kept: one server at a time, no create
//! that takes longer than `Limits::max_creation_time`, and one node a request.
//!
//! `DROVER_TEST_MODEL=deep` explores more owners, calls and clusters than CI does.

mod events;
#[path = "../../src/fences.rs"]
mod fences;
mod rules;
mod search;

use stateright::{Checker as _, HasDiscoveries, Model as _};
use tokio::{runtime::Handle, time::Instant};

const REPLICAS: u8 = 2;

const EPOCHS: &str = "no call is accepted of a lower epoch than one before";
const SLOTS: &str = "no slot is made twice";
const WRITES: &str = "whoever owns nothing any more writes nothing";

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// The platform accepts every epoch.
    EpochUnchecked,
    /// Fence answers while older calls are under way: the next owner begins before the former one has stopped.
    FenceDoesNotWait,
    /// The next owner begins without Fence.
    NoFence,
    /// A call is made before its intent is stored.
    CallsFirst,
    /// Transactions do not compare the owner's key.
    Unfenced,
    /// Another owner has the same epoch.
    SameEpoch,
    /// A call that waits for its turn takes the epoch of the moment.
    EpochOfTheMoment,
    /// A call may arrive at a later start of the platform's server than the one it was meant for.
    AnyStart,
    /// Whoever hands over goes on with what waits for its turn.
    GoesOn,
    /// Calls are begun after the deadline of the lease.
    ActsOutOfTouch,
    /// A call whose outcome is not known is repeated as another request.
    NewRequest,
    /// Fence ends the own calls of an owner as well.
    OwnCallsEnd,
    /// Whoever took over does not wait for the deadlines of the former owner's calls.
    DeadlineUnmet,
    /// A process that runs lets its calls arrive after their deadline.
    DeadlineIgnored,
}

/// What a replica is to the shard, as far as it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Phase {
    #[default]
    Acts,
    /// It hands over: nothing is begun any more.
    Stops,
    /// The key is given up, with calls under way or without.
    HandedOver { busy: bool },
}

/// An owner's side of one claim (`drover_store::Owned`, `drover_platforms::Platform`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lead {
    epoch: u8,
    phase: Phase,
    /// The deadline of the lease has not passed (`Owned::holds`).
    in_touch: bool,
    /// Start of the platform's server as it has introduced itself last.
    met: Option<u8>,
    /// Start at which Fence was answered.
    fenced: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Replica {
    StandsBy,
    Crashed,
    Leads(Lead),
}

/// What is durable of a cluster, which wants one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Record {
    Nothing,
    /// A request may have been sent, last by the owner of this epoch.
    Asked {
        request: u8,
        by: u8,
    },
    Made {
        request: u8,
        by: u8,
    },
}

/// A step of a cluster that may be applied at any time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Txn {
    replica: u8,
    epoch: u8,
    cluster: u8,
    from: Record,
    to: Record,
    /// Its call follows once it is applied.
    calls: bool,
}

/// Where a call is. Whatever it waits for may take any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Stage {
    /// At the orchestrator, for its turn.
    Waits,
    /// On its way. The process that sent it may stand still meanwhile, with the call half written.
    Sent,
    /// At the platform, which has not begun to create anything.
    Accepted,
    /// At the backend.
    Creates,
}

/// A call for the node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Call {
    stage: Stage,
    replica: u8,
    epoch: u8,
    cluster: u8,
    request: u8,
    /// Start of the platform's server that is meant. 0 as long as it waits.
    start: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    cluster: u8,
    request: u8,
    by: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    replicas: [Replica; REPLICAS as usize],
    /// The leased key: replica and epoch.
    owner: Option<(u8, u8)>,
    epoch: u8,
    claims: u8,
    records: Vec<Record>,
    /// Clusters whose stored deadline of the last call has passed.
    overdue: Vec<bool>,
    txns: Vec<Txn>,
    calls: Vec<Call>,
    /// The platform's server: how often it was started, and the epoch that it knows.
    start: u8,
    known: u8,
    nodes: Vec<Node>,
    /// Highest epoch of a call that any start of the server has accepted: what nobody in the model can see.
    accepted: u8,
    requests: u8,
    made_calls: u8,
    crashes: u8,
    hand_overs: u8,
    /// Epoch of the last lead that was given.
    given: Option<u8>,
    wrong: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Plan {
    /// Asks for the node.
    Ask,
    /// Repeats the request.
    Repeat,
    /// Closes a request that has made nothing and never will, and asks anew.
    Replace,
    /// Notes that the node is there.
    Note,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Claim(u8),
    LeaseEnds,
    LosesTouch(u8),
    FindsTouch(u8),
    /// A replica hears that it owns nothing any more.
    Hears(u8),
    Crash(u8),
    Stop(u8),
    HandOver(u8),
    Give(u8),
    Meet(u8),
    Fence(u8),
    Plan(u8, u8, Plan),
    Apply(Txn),
    DeadlinePasses(u8),
    Send(Call),
    Arrive(Call),
    Create(Call),
    Finish(Call),
    Lose(Call),
    Restart,
}

#[derive(Clone, Debug)]
struct World {
    mutant: Option<Mutant>,
    /// The only property that is looked at, if not all are.
    only: Option<&'static str>,
    /// Of the platform: whether it has `CAPABILITY_FENCE`.
    fences: bool,
    /// A lease may end before the deadline that its holder knows: it was revoked (`Store::bury`), or the holder's clock stood
    /// still.
    early: bool,
    /// An owner that meets another start of the platform's server, in whatever way it hears of it, looks whether it still owns
    /// the shard before it calls there. That server knows no epoch, and may be fenced by whoever is the first.
    looks: bool,
    /// A call arrives before its deadline or never, even if its sender stood still.
    punctual: bool,
    clusters: u8,
    claims: u8,
    requests: u8,
    calls: u8,
    starts: u8,
    crashes: u8,
    hand_overs: u8,
    /// In which the timers of fences run.
    runtime: Handle,
}

impl World {
    fn new() -> Self {
        Self {
            mutant: None,
            only: None,
            fences: true,
            early: true,
            looks: true,
            punctual: false,
            clusters: 1,
            claims: 2,
            requests: 2,
            calls: 3,
            starts: 2,
            crashes: 1,
            hand_overs: 1,
            runtime: Handle::current(),
        }
    }

    fn without(mutant: Mutant) -> Self {
        Self {
            mutant: Some(mutant),
            ..Self::new()
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

/// What was found.
struct Explored {
    states: usize,
    /// The property that does not hold, with a short way there.
    broken: Option<(&'static str, Vec<String>)>,
}

fn explore(what: &str, world: World) -> Explored {
    let began = Instant::now();
    let checker = world.checker().threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    let found = checker.discoveries();
    let broken = [EPOCHS, SLOTS, WRITES].into_iter().find_map(|property| {
        let way = found.get(property)?.clone().into_actions();
        let steps = way.iter().map(|step| format!("{step:?}"));
        Some((property, steps.collect()))
    });
    if broken.is_none() {
        checker.assert_properties();
    }
    let states = checker.unique_state_count();
    println!(
        "{what}: {states} states, {:.1?}, {broken:#?}",
        began.elapsed()
    );
    Explored { states, broken }
}

fn does_no_harm(what: &str, world: World) {
    let Explored { states, broken } = explore(what, world);
    assert!(broken.is_none(), "{what}, in {states} states: {broken:#?}");
}

fn does_harm(what: &str, world: World, property: &'static str) {
    let only = Some(property);
    let Explored { states, broken } = explore(what, World { only, ..world });
    assert!(broken.is_some(), "{what}: no harm in {states} states");
}

#[tokio::test]
async fn no_order_of_events_does_harm() {
    let is_deep = std::env::var("DROVER_TEST_MODEL").is_ok_and(|it| it == "deep");
    let world = World::new();
    does_no_harm("leases that end early", world.clone());
    let two = World {
        clusters: 2,
        calls: 2,
        crashes: 0,
        hand_overs: 0,
        ..world.clone()
    };
    does_no_harm("two clusters", two.clone());
    // It accepts whoever calls, but nobody takes its slots for free before the deadlines of all calls have passed.
    let unfenced = World {
        fences: false,
        punctual: true,
        ..world.clone()
    };
    does_no_harm("a platform without fences", unfenced.clone());
    if !is_deep {
        return;
    }
    for (what, world) in [
        ("leases that end early", world),
        ("a platform without fences", unfenced),
    ] {
        let third = World {
            claims: 3,
            ..world.clone()
        };
        does_no_harm(&format!("a third claim, {what}"), third);
        let more = World {
            requests: 3,
            calls: 4,
            ..world
        };
        does_no_harm(&format!("a fourth call, {what}"), more);
    }
    let all = World {
        calls: 3,
        crashes: 1,
        hand_overs: 1,
        ..two
    };
    does_no_harm("two clusters, crashes and hand-overs", all);
}

#[tokio::test]
async fn where_leases_end_early_an_owner_looks_before_it_calls_a_platform_that_was_started_again() {
    let blind = World {
        looks: false,
        ..World::new()
    };
    does_harm("nobody looks", blind.clone(), EPOCHS);
    does_harm("nobody looks", blind, SLOTS);
}

#[tokio::test]
async fn without_fences_a_sender_that_stands_still_beyond_a_deadline_does_harm() {
    let late = World {
        fences: false,
        ..World::new()
    };
    does_harm("a sender stands still", late, SLOTS);
}

#[tokio::test]
async fn each_rule_is_needed() {
    // Where leases do not end early, and looking makes good what is left out.
    let lease = |mutant| World {
        early: false,
        looks: false,
        ..World::without(mutant)
    };
    for (world, property) in [
        (World::without(Mutant::EpochUnchecked), EPOCHS),
        (World::without(Mutant::NoFence), SLOTS),
        (World::without(Mutant::FenceDoesNotWait), SLOTS),
        (World::without(Mutant::CallsFirst), SLOTS),
        (World::without(Mutant::Unfenced), WRITES),
        (World::without(Mutant::SameEpoch), SLOTS),
        (World::without(Mutant::AnyStart), EPOCHS),
        (World::without(Mutant::NewRequest), SLOTS),
        (World::without(Mutant::OwnCallsEnd), SLOTS),
        (World::without(Mutant::DeadlineIgnored), SLOTS),
        (lease(Mutant::ActsOutOfTouch), EPOCHS),
        (lease(Mutant::GoesOn), EPOCHS),
        (
            World {
                claims: 3,
                starts: 1,
                crashes: 0,
                hand_overs: 0,
                ..World::without(Mutant::EpochOfTheMoment)
            },
            SLOTS,
        ),
        (
            World {
                fences: false,
                punctual: true,
                ..World::without(Mutant::DeadlineUnmet)
            },
            SLOTS,
        ),
    ] {
        does_harm(&format!("{:?}", world.mutant), world, property);
    }
}
