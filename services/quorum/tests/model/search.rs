//! What the search goes through: how it begins, which events there are in a state, and what has to hold in all of them.

use std::collections::BTreeMap;

use drover_quorum::{Copies, Decision, Position, Record, Voter, majority};
use stateright::{Model, Property};

use super::{
    Action, NODES, NOTHING_IS_LOST, Node, PROMOTER, Primary, Promotion, Server, State, VOTERS,
    World,
};

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
