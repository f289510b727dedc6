//! Effects of events on the world, and of reads on the record.

use std::collections::BTreeSet;

use drover_core::{
    Millis, Phase, Sym,
    error::Reason,
    node::{Answer, Maintenance, Role, Seen, SeenHost},
};
use drover_planner::{Foreign, Orphan};
use uuid::Uuid;

use super::{Event, World, addons, backend::Thing, build};

impl World {
    pub(super) fn happen(&mut self, event: Event) {
        match event {
            Event::Make(platform, things) => self.make(&platform, things),
            Event::Phase(platform, id, phase) => {
                let backend = self.platforms.get_mut(&platform).unwrap();
                if let Some(thing) = backend.things.get_mut(&id)
                    && !thing.is_dead()
                {
                    thing.phase = phase;
                    self.show(&platform, &id);
                    if phase == Phase::Running
                        && let Some(lifetime) = self.lifetime
                    {
                        self.at(lifetime, Event::Phase(platform, id, Phase::Failed));
                    }
                }
            }
            Event::Appear(platform, id) => self.show(&platform, &id),
            Event::Gone(platform, id, confirmed) => {
                self.platforms
                    .get_mut(&platform)
                    .unwrap()
                    .things
                    .remove(&id);
                if let Some(confirmed) = confirmed {
                    self.unlist(&platform, &id, confirmed);
                }
            }
            Event::Answered(epoch, request, outcome) => {
                if epoch == self.epoch
                    && let Some(request) = self.state.requests.get_mut(&request)
                {
                    if let Err(error) = &outcome
                        && error.reason() == Reason::NoCapacity
                    {
                        let until = self.now + 60_000;
                        let view = self.views.get_mut(&request.platform).unwrap();
                        view.no_capacity.push(build::shortage(until));
                    }
                    request.in_flight.call.in_flight = false;
                    request.in_flight.answer = Some(Answer {
                        at: self.now,
                        taken: false,
                        outcome,
                    });
                }
            }
            Event::Drained(epoch, slot, how) => {
                if how == Some(true) {
                    self.drained.push(slot);
                }
                if epoch == self.epoch
                    && let Some(node) = self.state.node_mut(slot)
                {
                    node.in_flight.call.in_flight = false;
                    match how {
                        Some(true) => node.in_flight.changes.hook = Some(Box::new(Ok(()))),
                        Some(false) => {
                            node.in_flight.changes.hook = Some(Box::new(Err("exit code 1".into())));
                        }
                        None => node.in_flight.call.next = self.now + 1_000,
                    }
                }
            }
            Event::Deprovisioned(epoch, slot, good) => {
                if epoch == self.epoch
                    && let Some(node) = self.state.node_mut(slot)
                {
                    node.in_flight.call.in_flight = false;
                    node.in_flight.call.failures = if good {
                        0
                    } else {
                        node.in_flight.call.failures + 1
                    };
                    node.in_flight.call.next = self.now + if good { 30_000 } else { 1_000 };
                }
            }
            Event::RoleChange(slot, role) => self.take_role(slot, role),
            Event::Turned(epoch, slot, role, outcome) => self.turned(epoch, slot, role, outcome),
            Event::Labels(slot, labels) => self.take_labels(slot, labels),
            Event::Relabelled(epoch, slot, told) => self.relabelled(epoch, slot, told),
            Event::Grows(slot, size, hash) => self.enlarge(slot, size, hash),
            Event::Grown(epoch, slot, told) => self.grown(epoch, slot, told),
            Event::Permits(slot, allow, hears) => self.take_permission(slot, allow, hears),
            Event::Permitted(epoch, slot, allow, outcome) => {
                self.permitted(epoch, slot, allow, outcome);
            }
            Event::Adopted(epoch, slot, told) => {
                if epoch == self.epoch
                    && let Some(node) = self.state.node_mut(slot)
                {
                    node.in_flight.call.in_flight = false;
                    node.in_flight.call.next = self.now + if told.is_none() { 1_000 } else { 0 };
                    node.seen.gone |= told == Some(true);
                }
            }
            Event::Effect(ask) => self.effect(ask),
            Event::Told(ask, outcome) => self.told(&ask, outcome),
            Event::Read(epoch, platform, begun, shown) => {
                if epoch == self.epoch {
                    self.end_read(&platform, begun, shown);
                }
            }
        }
        self.write();
    }

    pub(super) fn run_hook(&mut self, slot: u64, until: Millis) {
        let faults = {
            let node = self.state.node_mut(slot).unwrap();
            assert!(!node.in_flight.call.in_flight, "one hook at a time");
            let drain = node.removal.unwrap().drain;
            assert!(drain == until && until > self.now, "within its time");
            assert!(!node.is_dead(), "nothing runs in what is dead");
            node.in_flight.call.in_flight = true;
            self.platforms[&node.platform].faults.deprovision
        };
        let left = until - self.now;
        let (after, how) = match self.rng.u64(0..100) {
            dice if dice >= faults => (self.rng.u64(1..=left), Some(true)),
            dice if dice % 3 == 0 => (self.rng.u64(1..=left), Some(false)),
            dice if dice % 3 == 1 => (1, None),
            // It hangs until its call is ended.
            _ => (left, Some(false)),
        };
        self.at(after, Event::Drained(self.epoch, slot, how));
    }

    fn end_read(&mut self, platform: &Sym, begun: Millis, shown: Option<Vec<Thing>>) {
        let read = shown.filter(|_| self.platforms[platform].reachable);
        if let Some(confirm) = self.state.confirms.get_mut(platform) {
            confirm.in_flight = false;
            confirm.next = self.now + if read.is_some() { 0 } else { 5_000 };
        }
        let Some(shown) = read else { return };
        let view = self.views.get_mut(platform).unwrap();
        if !view.visible {
            (view.visible, view.callable, view.visible_since) = (true, true, self.now);
            view.trouble = "".into();
        }
        self.list_resources(platform);
        let backend = &self.platforms[platform];
        let slots: BTreeSet<(Uuid, u32)> = shown.iter().map(|t| (t.request, t.index)).collect();
        for node in &mut self.state.nodes {
            let pending = node.is_adopting()
                && shown
                    .iter()
                    .any(|t| Some(&*t.id) == node.node_id.as_deref());
            if pending {
                continue;
            }
            if *node.platform_uid == *backend.uid && !slots.contains(&(node.request, node.index)) {
                if node.seen.missing_from == 0 && !node.seen.unlisted && node.seen.last > 0 {
                    // Listed until now.
                    node.seen.last = node.seen.last.max(begun);
                }
                node.seen.missing_from = begun;
                let runs = |t: &&Thing| t.request == node.request && t.index == node.index;
                node.seen.silent = backend
                    .things
                    .values()
                    .find(runs)
                    .is_none_or(|t| t.phase != Phase::Running);
            }
        }
        self.state
            .orphans
            .retain(|(at, id), _| at != platform || shown.iter().any(|t| t.id == **id));
        for thing in &shown {
            self.take_in(platform, thing, begun);
        }
        // Changes during the read.
        let listed = self.platforms[platform].list(self.now);
        for thing in shown {
            if listed.iter().all(|t| t.id != thing.id) {
                self.unlist(platform, &thing.id, false);
            }
        }
        for thing in listed {
            self.take_in(platform, &thing, self.now);
        }
    }

    pub(super) fn show(&mut self, platform: &Sym, id: &str) {
        let backend = &self.platforms[platform];
        if !self.views[platform].visible {
            return;
        }
        let thing = backend
            .list(self.now)
            .into_iter()
            .find(|thing| thing.id == id);
        if let Some(thing) = thing {
            self.take_in(platform, &thing, self.now);
        }
    }

    fn take_in(&mut self, platform: &Sym, thing: &Thing, at: Millis) {
        if thing.other_cluster {
            return;
        }
        let key: (Sym, Box<str>) = (platform.clone(), thing.id.as_str().into());
        // A thing of another cluster, which none of our lists shows.
        if thing.id == "of-somebody-else" {
            return;
        }
        if thing.owner != self.state.uid {
            let foreign = Foreign {
                former: thing.former(),
                group: thing.group.clone(),
                ordinal: (!thing.owner.is_nil()).then_some(thing.ordinal),
                role: if thing.acts {
                    Role::Active
                } else {
                    Role::Standby
                },
                host: thing.host.clone(),
                platform_uid: self.views[platform].uid.clone(),
                last: at,
                ..Foreign::default()
            };
            self.state.foreign.insert(key, foreign);
            return;
        }
        self.state.foreign.remove(&key);
        let slot = |n: &&mut drover_core::Node| {
            n.request == thing.request && n.index == thing.index && n.platform == *platform
        };
        if let Some(node) = self.state.nodes.iter_mut().find(slot) {
            if at < node.seen.last {
                return;
            }
            if node.node_id.is_none() {
                node.seen.node_id = thing.id.as_str().into();
            }
            node.seen.phase = thing.phase;
            node.seen.ready = Some(thing.ready);
            node.seen.host.maintenance = thing.maintenance.map(|(kind, start)| {
                Box::new(Maintenance {
                    kind,
                    start,
                    ..Maintenance::default()
                })
            });
            node.seen.last = at;
            if thing.phase == Phase::Running {
                node.seen.addresses = [addons::address(thing)].into();
            }
            node.seen.missing_from = 0;
            node.seen.unlisted = false;
        } else {
            let since = self.now;
            let runs = thing.phase == Phase::Running;
            let address = runs.then(|| addons::address(thing));
            self.state.orphans.entry(key).or_insert_with(|| Orphan {
                request: thing.request,
                index: thing.index,
                sequence: thing.sequence,
                group: thing.group.clone(),
                ordinal: thing.ordinal,
                role: if thing.acts {
                    Role::Active
                } else {
                    Role::Standby
                },
                platform_uid: self.views[platform].uid.clone(),
                since,
                last: since,
                spec_hash: thing.spec_hash.clone(),
                seen: Box::new(Seen {
                    phase: thing.phase,
                    ready: Some(thing.ready),
                    last: at,
                    host: SeenHost {
                        id: (!thing.host.is_empty()).then(|| (&*thing.host).into()),
                        ..SeenHost::default()
                    }
                    .into(),
                    addresses: address.into_iter().collect(),
                    ..Seen::default()
                }),
                ..Orphan::default()
            });
        }
    }

    pub(super) fn unlist(&mut self, platform: &Sym, id: &str, confirmed: bool) {
        if !self.views[platform].visible {
            return;
        }
        let own =
            |n: &&mut drover_core::Node| n.node_id.as_deref().unwrap_or(&n.seen.node_id) == id;
        if let Some(node) = self.state.nodes.iter_mut().find(own) {
            node.seen.gone |= confirmed;
            node.seen.unlisted = true;
            node.seen.last = self.now;
        }
        self.state.orphans.remove(&(platform.clone(), id.into()));
        self.state.foreign.remove(&(platform.clone(), id.into()));
    }
}
