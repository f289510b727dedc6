//! The load balancer of a world, on its second platform: an addon that follows the group.

use std::hash::{Hash, Hasher};

use drover_core::{
    Error, Millis,
    addon::WantedAddon,
    error::Reason,
    node::SeenAddress,
    resource::{
        Asked, Observed, Resource, ResourceAnswer, ResourceKey, ResourcePhase, ResourceRecord,
    },
};

use crate::world::{
    addons::{addon, key},
    infrastructure::forget,
};

use super::model::{Model, Step, Thing};

/// What is wanted of it, what there really is of it, and the call about it.
#[derive(Clone, Default)]
pub(super) struct Balancer {
    /// One if it is wanted.
    pub(super) wanted: Vec<WantedAddon>,
    /// The slots that it really serves, and whether it lets go of them. `None` if it is not there.
    pub(super) serves: Option<Vec<(u64, bool)>>,
    /// Whether this world can have one.
    pub(super) is_possible: bool,
    /// The call in flight, and when it was begun.
    asked: Option<(Asked, Millis)>,
}

fn lb() -> ResourceKey {
    key("lb", "b")
}

pub(super) fn address(slot: u64) -> SeenAddress {
    SeenAddress {
        kind: 1,
        value: slot.to_string().into(),
        interface: "".into(),
    }
}

impl Model {
    pub(super) fn balance(&mut self, wanted: bool) {
        let all = wanted.then(|| addon("lb", "b", &["data"]));
        self.balancer.wanted = all.into_iter().collect();
        self.balancer.is_possible = true;
        self.state.generation += 1;
    }

    pub(super) fn begin_telling(&mut self, key: &ResourceKey, asked: Asked) {
        let record = self.state.resources.get_mut(key).unwrap();
        record.in_flight.call.in_flight = true;
        assert!(self.balancer.asked.is_none(), "one call at a time");
        self.balancer.asked = Some((asked, self.now));
    }

    /// What may become of the call in flight.
    pub(super) fn tellings(&self) -> &'static [Step] {
        match self.balancer.asked {
            None => &[],
            Some(_) if self.views["b"].visible => &[Step::Told, Step::ToldLost, Step::NotTold],
            Some(_) => &[Step::ToldLost, Step::NotTold],
        }
    }

    pub(super) fn told(&mut self, happens: bool, answered: bool) {
        let Some((asked, began)) = self.balancer.asked.take() else {
            return;
        };
        if happens {
            self.have_effect(asked);
        }
        let at = self.now;
        let Some(record) = self.state.resources.get_mut(&lb()) else {
            return;
        };
        let outcome = match (asked, answered) {
            (_, false) if happens => Err(Error::new(Reason::DeadlineExceeded, "lost")),
            (_, false) => Err(Error::unavailable("lost")),
            (Asked::Ensure, true) => Ok(Observed {
                phase: ResourcePhase::Ready,
                resources: vec![Resource {
                    kind: "proxy".into(),
                    name: "main".into(),
                    id: "".into(),
                    phase: ResourcePhase::Ready,
                    message: "".into(),
                    sequence: record.sequence,
                    create_time: 0,
                }],
                ..Observed::default()
            }),
            (Asked::Release | Asked::Read, true) => Ok(Observed {
                phase: ResourcePhase::Gone,
                ..Observed::default()
            }),
        };
        record.in_flight.call.in_flight = false;
        record.in_flight.answer = Some(ResourceAnswer {
            asked,
            began,
            at,
            outcome,
        });
    }

    fn have_effect(&mut self, asked: Asked) {
        let record = self.state.resources.get(&lb());
        match (asked, record) {
            (Asked::Ensure, Some(record)) => {
                let targets = record.in_flight.targets.iter();
                let targets = targets.map(|one| (one.slot, one.draining));
                self.balancer.serves = Some(targets.collect());
            }
            _ => self.balancer.serves = None,
        }
    }

    /// A call that was begun takes effect, and nobody hears of it.
    pub(super) fn forget_balancer(&mut self, begun: bool) {
        if let Some((asked, _)) = self.balancer.asked.take().filter(|_| begun) {
            self.have_effect(asked);
        }
        for record in self.state.resources.values_mut() {
            forget(record);
        }
    }

    /// A call whose deadline has passed ends, and it is not known how.
    pub(super) fn end_late_telling(&mut self) {
        let record = self.state.resources.get(&lb());
        if record
            .is_some_and(|record| record.in_flight.call.in_flight && record.deadline <= self.now)
        {
            self.told(false, false);
        }
    }

    /// No node goes while new connections are sent to it, unless it is dead or its grace is over.
    pub(super) fn check_served(&self, slot: u64) {
        let node = self.state.node(slot).unwrap();
        let grace = self.group.grace.as_millis() as Millis;
        let removal = node.removal.unwrap();
        let served = self.balancer.serves.iter().flatten();
        let mut served = served.filter(|(own, draining)| *own == slot && !draining);
        let runs = self.things.get(&(node.request, node.index));
        let runs = runs.is_some_and(Thing::lives);
        assert!(
            served.next().is_none() || !runs || node.is_dead() || self.now >= removal.since + grace,
            "goes while it is served: {node:?}"
        );
    }

    /// Whether it serves exactly the nodes that there are, or is not there and not recorded.
    pub(super) fn is_balanced(&self) -> bool {
        if self.balancer.wanted.is_empty() {
            return self.balancer.serves.is_none() && self.state.resources.is_empty();
        }
        let nodes = self.state.nodes.iter().map(|node| (node.slot, false));
        let nodes: Vec<(u64, bool)> = nodes.collect();
        let record = self.state.resources.get(&lb());
        record.is_some_and(ResourceRecord::is_ready) && self.balancer.serves == Some(nodes)
    }

    pub(super) fn hash_balancer(&self, hash: &mut impl Hasher, ago: impl Fn(Millis) -> i64) {
        let balancer = &self.balancer;
        (balancer.wanted.len(), balancer.is_possible).hash(hash);
        let slot = |slot: &u64| self.state.at(*slot);
        let serves = balancer.serves.as_ref();
        let serves = serves.map(|all| all.iter().map(|(own, goes)| (slot(own), *goes)));
        serves.map(Iterator::collect::<Vec<_>>).hash(hash);
        let asked = balancer
            .asked
            .map(|(asked, began)| (asked == Asked::Ensure, ago(began)));
        asked.hash(hash);
        for record in self.state.resources.values() {
            (
                record.phase,
                record.releasing,
                record.failures,
                &*record.reason,
            )
                .hash(hash);
            (
                ago(record.deadline),
                ago(record.unsettled),
                ago(record.next),
            )
                .hash(hash);
            (
                ago(record.doubt),
                ago(record.in_flight.ensured),
                ago(record.phase_time),
            )
                .hash(hash);
            (
                record.in_flight.sent,
                record.in_flight.follows,
                record.in_flight.answer.is_some(),
            )
                .hash(hash);
            for targets in [
                Some(&record.in_flight.targets),
                record.in_flight.served.as_ref(),
            ] {
                let targets = targets.map(|all| all.iter());
                let targets = targets.map(|all| all.map(|one| (slot(&one.slot), one.draining)));
                targets.map(Iterator::collect::<Vec<_>>).hash(hash);
            }
            let announced: Vec<_> = record.in_flight.announced.iter().map(slot).collect();
            announced.hash(hash);
        }
    }
}
