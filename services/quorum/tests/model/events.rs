//! What each event does to the nodes and to whoever promotes.

use std::collections::BTreeSet;

use drover_quorum::{Change, Copies, Position, Promise, Record, Step};

use super::{PROMOTER, Primary, Server, State, World};

impl State {
    pub(super) fn primary(&self, number: u8) -> Option<&Primary> {
        match &self.nodes[usize::from(number)].server {
            Server::Primary(primary) => Some(primary),
            _ => None,
        }
    }

    pub(super) fn acknowledge(&mut self, number: u8) -> Option<()> {
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

    pub(super) fn open(&mut self, number: u8) -> Option<()> {
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
    pub(super) fn follow(&mut self, number: u8, of: u8) -> Option<()> {
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

    pub(super) fn copy(&mut self, number: u8) -> Option<()> {
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

    pub(super) fn say(&mut self, number: u8) -> Option<()> {
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

    pub(super) fn accept(&mut self, voter: u8, record: Record<u8>) -> bool {
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

    pub(super) fn accept_change(&mut self, number: u8, voter: u8) -> Option<()> {
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

    pub(super) fn begin(&mut self, number: u8, to: Copies<u8>) -> Option<()> {
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

    pub(super) fn ask(&mut self, world: &World, voter: u8) -> Option<()> {
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

    pub(super) fn promote(&mut self) -> Option<()> {
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
