//! What is promised, decided and changed, by the rules or without one of them.

use std::collections::BTreeSet;

use drover_quorum::{Copies, Decision, Record, Step, decide, majority};

use super::{Mutant, PROMOTER, Promotion, Server, State, VOTERS, World};

impl World {
    const fn is(&self, mutant: Mutant) -> bool {
        matches!(self.mutant, Some(own) if own as u8 == mutant as u8)
    }

    pub(super) fn promise(&self, state: &mut State, voter: u8, term: u64) -> bool {
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

    pub(super) fn decide(&self, promotion: &Promotion) -> Decision<u8> {
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
    pub(super) fn step(&self, state: &mut State, number: u8) -> Option<()> {
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
