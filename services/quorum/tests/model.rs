//! Every order of events among three nodes with data and whoever promotes: writes, copies, acknowledgements that arrive
//! late, crashes, promotions that are begun and abandoned, changes of what counts, and old primaries that go on. And that
//! each rule is needed: without it, the search finds what is lost.
//!
//! `DROVER_TEST_MODEL=deep` explores more writes, terms and crashes than CI does.

use std::collections::{BTreeMap, BTreeSet};

use drover_quorum::{
    Change, Copies, Decision, Position, Promise, Record, Step, Voter, decide, majority,
};
use stateright::{Checker as _, Model, Property};

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

impl World {
    const fn is(&self, mutant: Mutant) -> bool {
        matches!(self.mutant, Some(own) if own as u8 == mutant as u8)
    }

    fn promise(&self, state: &mut State, voter: u8, term: u64) -> bool {
        if voter == PROMOTER {
            return state.promoter.promise(term).is_ok();
        }
        let node = &mut state.nodes[usize::from(voter)];
        if !node.up || node.voter.promise(term).is_err() {
            return false;
        }
        let goes_on = match node.server {
            Server::Primary(_) => self.is(Mutant::StillServes),
            Server::Follows { .. } => self.is(Mutant::StillFollows),
            Server::Ended => false,
        };
        if !goes_on {
            node.server = Server::Ended;
        }
        true
    }

    fn decide(&self, promotion: &Promotion) -> Decision<u8> {
        let voters: BTreeSet<u8> = (0..=PROMOTER).collect();
        let mut promises = promotion.promises.clone();
        if self.is(Mutant::AnyRecord) {
            // The oldest that anybody has.
            let oldest = promises.iter().filter_map(|it| it.record.clone());
            let oldest = oldest.min_by_key(Record::version);
            promises
                .iter_mut()
                .for_each(|it| it.record.clone_from(&oldest));
        }
        let newest = promises.iter().filter_map(|it| it.record.clone());
        let newest = newest.max_by_key(Record::version);
        if let Some(newest) = newest.filter(|_| self.is(Mutant::LongestWins)) {
            let positions = promises.iter_mut().filter_map(|it| it.position.as_mut());
            positions.for_each(|it| it.term = newest.term);
        }
        let decision = decide(&voters, promotion.term, self.wanted, &promises);
        match decision {
            Decision::Promote(mut record) => {
                if self.is(Mutant::LaggardsCount) {
                    let others = promotion.promises.iter().map(|it| it.voter);
                    let others = others.filter(|it| *it != PROMOTER && *it != record.primary);
                    record.copies = Copies::of(others.collect(), self.wanted);
                }
                Decision::Promote(record)
            }
            other => other,
        }
    }

    /// The next step of the change of a primary, if it can be done.
    fn step(&self, state: &mut State, number: u8) -> Option<()> {
        let node = &mut state.nodes[usize::from(number)];
        let own = node.log.len() as u64;
        let Server::Primary(primary) = &mut node.server else {
            return None;
        };
        let (change, accepted) = primary.change.as_mut()?;
        let step = change.step()?;
        match &step {
            Step::Accept(record) => {
                let early = self.is(Mutant::CountedFirst) && primary.copies != record.copies;
                if early {
                    primary.copies = record.copies.clone();
                    return Some(());
                }
                if accepted.len() < majority(VOTERS) {
                    return None;
                }
                accepted.clear();
                primary.record = Some(record.clone());
            }
            Step::Count(copies) => {
                primary.copies = copies.clone();
                primary.drain = own;
            }
            Step::Drain(copies) => {
                let heard = |it: &u8| primary.heard[usize::from(*it)];
                let is_drained = copies.acknowledged(primary.drain, heard) == Some(primary.drain);
                if !is_drained && !self.is(Mutant::NoDrain) {
                    return None;
                }
            }
        }
        change.done(step);
        if change.step().is_none() {
            primary.change = None;
        }
        Some(())
    }
}

impl State {
    fn primary(&self, number: u8) -> Option<&Primary> {
        match &self.nodes[usize::from(number)].server {
            Server::Primary(primary) => Some(primary),
            _ => None,
        }
    }

    fn acknowledge(&mut self, number: u8) -> Option<()> {
        let node = &self.nodes[usize::from(number)];
        let primary = self.primary(number)?;
        if !primary.open {
            return None;
        }
        let heard = |it: &u8| primary.heard[usize::from(*it)];
        let upto = primary.copies.acknowledged(node.log.len() as u64, heard)?;
        let log = node.log[..upto as usize].to_vec();
        let term = primary.term;
        if log.len() <= self.acknowledged.len() {
            return None;
        }
        if !log.starts_with(&self.acknowledged) {
            self.wrong = Some("an acknowledged write is lost");
        } else if term < self.opened {
            self.wrong = Some("a primary that was overtaken acknowledges");
        }
        self.acknowledged = log;
        Some(())
    }

    fn open(&mut self, number: u8) -> Option<()> {
        let node = &mut self.nodes[usize::from(number)];
        let own = node.log.len() as u64;
        let Server::Primary(primary) = &mut node.server else {
            return None;
        };
        let heard = |it: &u8| primary.heard[usize::from(*it)];
        let all_have = primary.copies.acknowledged(own, heard) == Some(own);
        if primary.open || !all_have {
            return None;
        }
        primary.open = true;
        let term = primary.term;
        let log = node.log.clone();
        // Clients see all that is there. One that was overtaken shows what was there before, until it hears of it.
        if term > self.opened || log.len() > self.acknowledged.len() {
            if !log.starts_with(&self.acknowledged) {
                self.wrong = Some("an acknowledged write is lost");
            }
            self.acknowledged = log;
        }
        self.opened = self.opened.max(term);
        Some(())
    }

    /// A node follows a primary: what it has beyond that one's data, it gives up.
    fn follow(&mut self, number: u8, of: u8) -> Option<()> {
        let primary = self.primary(of)?.clone();
        let theirs = self.nodes[usize::from(of)].log.clone();
        let node = &mut self.nodes[usize::from(number)];
        let follows = Server::Follows {
            node: of,
            term: primary.term,
        };
        if !node.up || node.server == follows || !node.voter.may_follow(primary.term) {
            return None;
        }
        if matches!(&node.server, Server::Primary(own) if own.term >= primary.term) {
            return None;
        }
        let same = node.log.iter().zip(&theirs).take_while(|(a, b)| a == b);
        let same = same.count();
        if same < node.log.len() && primary.copies.standbys.contains(&number) {
            self.wrong = Some("a standby that counts gives up data");
        }
        let node = &mut self.nodes[usize::from(number)];
        node.log.truncate(same);
        node.server = follows;
        if same as u64 >= primary.start {
            node.history = primary.term;
        }
        node.said = None;
        Some(())
    }

    fn copy(&mut self, number: u8) -> Option<()> {
        let Server::Follows { node: of, term } = self.nodes[usize::from(number)].server else {
            return None;
        };
        let primary = self.primary(of).filter(|it| it.term == term)?;
        let start = primary.start;
        let at = self.nodes[usize::from(number)].log.len();
        let next = *self.nodes[usize::from(of)].log.get(at)?;
        let node = &mut self.nodes[usize::from(number)];
        node.log.push(next);
        if node.log.len() as u64 >= start {
            node.history = term;
        }
        Some(())
    }

    fn say(&mut self, number: u8) -> Option<()> {
        let node = &mut self.nodes[usize::from(number)];
        if let Server::Follows { node: of, term } = node.server
            && node.history == term
        {
            node.said = Some((of, term, node.log.len() as u64));
        }
        let (of, term, lsn) = node.said?;
        let Server::Primary(primary) = &mut self.nodes[usize::from(of)].server else {
            return None;
        };
        let heard = &mut primary.heard[usize::from(number)];
        if primary.term != term || heard.is_some_and(|known| known >= lsn) {
            return None;
        }
        *heard = Some(lsn);
        Some(())
    }

    fn accept(&mut self, voter: u8, record: Record<u8>) -> bool {
        if voter == PROMOTER {
            return self.promoter.accept(record).is_ok();
        }
        let node = &mut self.nodes[usize::from(voter)];
        if !node.up {
            return false;
        }
        let done = node.voter.accept(record).is_ok();
        // Whoever has accepted a later term serves and follows no earlier one.
        let promised = node.voter.promised;
        match &node.server {
            Server::Primary(own) if own.term < promised => node.server = Server::Ended,
            Server::Follows { term, .. } if *term < promised => node.server = Server::Ended,
            _ => {}
        }
        done
    }

    fn accept_change(&mut self, number: u8, voter: u8) -> Option<()> {
        let primary = self.primary(number)?;
        let (change, accepted) = primary.change.as_ref()?;
        let Step::Accept(record) = change.step()? else {
            return None;
        };
        if accepted.contains(&voter) || !self.accept(voter, record) {
            return None;
        }
        let Server::Primary(primary) = &mut self.nodes[usize::from(number)].server else {
            return None;
        };
        primary.change.as_mut()?.1.insert(voter);
        Some(())
    }

    fn begin(&mut self, number: u8, to: Copies<u8>) -> Option<()> {
        let Server::Primary(primary) = &mut self.nodes[usize::from(number)].server else {
            return None;
        };
        let record = primary.record.clone()?;
        let change = Change::new(record, to);
        change.step()?;
        primary.change = Some((change, BTreeSet::new()));
        self.changes += 1;
        Some(())
    }

    fn ask(&mut self, world: &World, voter: u8) -> Option<()> {
        let term = self
            .promotion
            .as_ref()
            .filter(|it| it.record.is_none())?
            .term;
        if !world.promise(self, voter, term) {
            return None;
        }
        let promise = if voter == PROMOTER {
            Promise {
                voter,
                record: self.promoter.record.clone(),
                position: None,
            }
        } else {
            let node = &self.nodes[usize::from(voter)];
            Promise {
                voter,
                record: node.voter.record.clone(),
                position: Some(Position {
                    term: node.history,
                    lsn: node.log.len() as u64,
                }),
            }
        };
        let promotion = self.promotion.as_mut()?;
        promotion.promises.push(promise);
        promotion.promises.sort_by_key(|it| it.voter);
        Some(())
    }

    fn promote(&mut self) -> Option<()> {
        let promotion = self.promotion.take()?;
        let record = promotion.record?;
        let node = &mut self.nodes[usize::from(record.primary)];
        let is_it = node.up && node.voter.promised == record.term;
        let own = Position {
            term: node.history,
            lsn: node.log.len() as u64,
        };
        // What it has is what it promised with.
        if !is_it || own != record.start {
            return Some(());
        }
        node.history = record.term;
        node.server = Server::Primary(Box::new(Primary {
            term: record.term,
            start: record.start.lsn,
            copies: record.copies.clone(),
            record: Some(record),
            ..Primary::default()
        }));
        Some(())
    }
}

/// What a primary may count: who follows it and is in its history.
fn targets(state: &State, primary: &Primary, wanted: usize) -> Vec<Copies<u8>> {
    let near: Vec<u8> = (0..NODES)
        .filter(|it| {
            let node = &state.nodes[usize::from(*it)];
            let counts = primary.copies.standbys.contains(it);
            let follows =
                matches!(node.server, Server::Follows { term, .. } if term == primary.term);
            counts || (follows && node.history == primary.term)
        })
        .collect();
    let mut targets = BTreeMap::new();
    for bits in 0..1_u8 << near.len() {
        let some = near
            .iter()
            .enumerate()
            .filter(|(at, _)| bits & (1 << at) != 0);
        let some = some.map(|(_, it)| *it).collect();
        let copies = Copies::of(some, wanted);
        if copies != primary.copies {
            targets.insert(format!("{copies:?}"), copies);
        }
    }
    targets.into_values().collect()
}

impl Model for World {
    type State = State;
    type Action = Action;

    /// The first node is primary of term 1, and the others follow it.
    fn init_states(&self) -> Vec<State> {
        let record = Record {
            term: 1,
            change: 0,
            primary: 0,
            start: Position { term: 0, lsn: 0 },
            copies: Copies::of((1..NODES).collect(), self.wanted),
        };
        let voter = Voter {
            promised: 1,
            record: Some(record.clone()),
        };
        let node = |number: u8| Node {
            voter: voter.clone(),
            history: 1,
            up: true,
            server: if number == 0 {
                Server::Primary(Box::new(Primary {
                    term: 1,
                    open: true,
                    copies: record.copies.clone(),
                    record: Some(record.clone()),
                    ..Primary::default()
                }))
            } else {
                Server::Follows { node: 0, term: 1 }
            },
            ..Node::default()
        };
        vec![State {
            nodes: (0..NODES).map(node).collect(),
            promoter: voter.clone(),
            promotion: None,
            acknowledged: Vec::new(),
            opened: 1,
            crashes: 0,
            changes: 0,
            wrong: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.wrong.is_some() {
            return;
        }
        for number in 0..NODES {
            let node = &state.nodes[usize::from(number)];
            if !node.up {
                actions.push(Action::Restart(number));
                continue;
            }
            if state.crashes < self.crashes {
                actions.push(Action::Crash(number));
            }
            actions.extend([Action::Copy(number), Action::Say(number)]);
            for of in (0..NODES).filter(|it| *it != number) {
                actions.push(Action::Follow(number, of));
            }
            let Server::Primary(primary) = &node.server else {
                continue;
            };
            actions.extend([Action::Acknowledge(number), Action::Open(number)]);
            if primary.open && node.log.len() < self.writes {
                actions.push(Action::Write(number));
            }
            if primary.change.is_some() {
                actions.push(Action::NextStep(number));
                actions.extend((0..=PROMOTER).map(|it| Action::AcceptChange(number, it)));
            } else if state.changes < self.changes {
                let targets = targets(state, primary, self.wanted).into_iter();
                actions.extend(targets.map(|it| Action::Begin(number, it)));
            }
        }
        if state.promoter.promised < self.terms {
            actions.push(Action::StartPromotion);
        }
        let Some(promotion) = &state.promotion else {
            return;
        };
        match &promotion.record {
            None => {
                actions.extend((0..NODES).map(Action::AskPromise));
                actions.push(Action::Decide);
            }
            Some(_) if promotion.accepted.len() >= majority(VOTERS) => {
                actions.push(Action::Promote);
            }
            Some(_) => actions.extend((0..=PROMOTER).map(Action::AcceptPromotion)),
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Write(number) => {
                let term = state.primary(number)?.term;
                state.nodes[usize::from(number)].log.push(term);
            }
            Action::Copy(number) => state.copy(number)?,
            Action::Say(number) => state.say(number)?,
            Action::Acknowledge(number) => state.acknowledge(number)?,
            Action::Follow(number, of) => state.follow(number, of)?,
            Action::Crash(number) => {
                let node = &mut state.nodes[usize::from(number)];
                (node.up, node.server) = (false, Server::Ended);
                state.crashes += 1;
            }
            Action::Restart(number) => state.nodes[usize::from(number)].up = true,
            Action::Open(number) => state.open(number)?,
            Action::Begin(number, copies) => state.begin(number, copies)?,
            Action::AcceptChange(number, voter) => state.accept_change(number, voter)?,
            Action::NextStep(number) => self.step(&mut state, number)?,
            Action::StartPromotion => {
                let term = state.promoter.promised + 1;
                state.promotion = Some(Promotion {
                    term,
                    ..Promotion::default()
                });
                state.ask(self, PROMOTER)?;
            }
            Action::AskPromise(voter) => state.ask(self, voter)?,
            Action::Decide => {
                let promotion = state.promotion.as_ref()?;
                let Decision::Promote(record) = self.decide(promotion) else {
                    return None;
                };
                state.promotion.as_mut()?.record = Some(record);
            }
            Action::AcceptPromotion(voter) => {
                let record = state.promotion.as_ref()?.record.clone()?;
                if state.promotion.as_ref()?.accepted.contains(&voter)
                    || !state.accept(voter, record)
                {
                    return None;
                }
                state.promotion.as_mut()?.accepted.insert(voter);
            }
            Action::Promote => state.promote()?,
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NOTHING_IS_LOST, |_, state: &State| state.wrong.is_none()),
            Property::sometimes("a second primary takes over", |_, state: &State| {
                state.opened > 1
            }),
            Property::sometimes(
                "a write is acknowledged in a later term",
                |_, state: &State| state.acknowledged.iter().any(|term| *term > 1),
            ),
        ]
    }
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
