//! Simulated platforms: honest, or faulty in every way that the contract allows.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{
    Error, Millis, Phase, Sym,
    error::Reason,
    node::{Former, MaintenanceKind, Outcome, Role},
};
use uuid::Uuid;

use super::{Event, World, build};

/// Something that exists at a backend.
#[derive(Clone, Debug)]
pub struct Thing {
    pub id: String,
    pub owner: Uuid,
    pub request: Uuid,
    pub index: u32,
    pub ordinal: u32,
    pub sequence: u64,
    /// Whether it is in another cluster than the one that is planned.
    pub other_cluster: bool,
    pub spec_hash: Sym,
    pub group: Sym,
    /// Named host. Empty if none.
    pub host: Sym,
    /// Whether it has the storage of its group and ordinal.
    pub storage: bool,
    /// Size of its storage. `None` for the default.
    pub size: Option<u64>,
    pub phase: Phase,
    pub ready: bool,
    /// Whether it is active.
    pub acts: bool,
    /// Labels of its host.
    pub labels: Sym,
    /// Maintenance that is announced, and when it begins.
    pub maintenance: Option<(MaintenanceKind, Millis)>,
    /// Not listed before this time.
    pub hidden_until: Millis,
}

impl Thing {
    /// Whose it is, as its platform shows it. Empty if no owner is recorded.
    pub fn former(&self) -> Former {
        if self.owner.is_nil() {
            return Former::default();
        }
        Former {
            owner: self.owner.to_string().into(),
            request: self.request.to_string().into(),
            index: Some(self.index),
        }
    }

    pub fn is_dead(&self) -> bool {
        matches!(self.phase, Phase::Failed | Phase::Terminated)
    }
}

/// Percentages of calls that fail.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub provision: u64,
    pub deprovision: u64,
    pub role_change: u64,
    pub adopt: u64,
    /// Whether the time until things are listed is up to the contract's limit.
    pub hidden: bool,
}

pub struct Backend {
    pub uid: String,
    pub things: BTreeMap<String, Thing>,
    /// Slots that were ever created.
    pub made: BTreeSet<(Uuid, u32)>,
    /// Slots whose creation has started or will start.
    pub begun: BTreeSet<(Uuid, u32)>,
    pub reachable: bool,
    pub capacity: usize,
    pub faults: Faults,
    /// Ids whose removal was requested.
    pub asked: BTreeSet<String>,
    /// Error of every Provision call.
    pub refuses: Option<Error>,
    /// Hosts that belong to another owner.
    pub claimed: BTreeSet<Sym>,
}

impl Backend {
    pub fn new(name: &str) -> Self {
        Self {
            uid: format!("uid-of-{name}"),
            things: BTreeMap::new(),
            made: BTreeSet::new(),
            begun: BTreeSet::new(),
            reachable: true,
            capacity: usize::MAX,
            faults: Faults::default(),
            asked: BTreeSet::new(),
            refuses: None,
            claimed: BTreeSet::new(),
        }
    }

    /// Result of a complete read.
    pub fn list(&self, now: Millis) -> Vec<Thing> {
        let listed = |thing: &&Thing| thing.hidden_until <= now;
        self.things.values().filter(listed).cloned().collect()
    }
}

impl World {
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.rng.u64(0..100) < percent
    }

    pub(super) fn provision(&mut self, request: Uuid, deadline: Millis) {
        let asked = self.state.requests[&request].clone();
        let platform = asked.platform.clone();
        let things: Vec<Thing> = self
            .state
            .nodes
            .iter()
            .filter(|node| node.request == request)
            .map(|node| Thing {
                id: format!("{request}-{}", node.index),
                owner: self.state.uid,
                request,
                index: node.index,
                ordinal: node.ordinal,
                sequence: node.sequence,
                other_cluster: false,
                spec_hash: node.spec_hash.clone(),
                group: node.group.clone(),
                host: node.host.clone(),
                storage: node.storage,
                size: node.storage_size,
                phase: Phase::Pending,
                ready: true,
                acts: node.role == Role::Active,
                labels: node.labels_hash.clone(),
                maintenance: None,
                hidden_until: 0,
            })
            .collect();
        let backend = &self.platforms[&platform];
        let (faults, reachable) = (backend.faults, backend.reachable);
        let full = backend.things.len() + things.len() > backend.capacity;
        let epoch = self.epoch;
        if !reachable {
            let error = Error::unavailable("cannot be reached");
            return self.at(1_000, Event::Answered(epoch, request, Err(error)));
        }
        if let Some(error) = backend.refuses.clone() {
            return self.at(100, Event::Answered(epoch, request, Err(error)));
        }
        if full {
            let error = Error::new(Reason::NoCapacity, "full");
            return self.at(500, Event::Answered(epoch, request, Err(error)));
        }
        if things
            .iter()
            .any(|thing| backend.claimed.contains(&thing.host))
        {
            return self.provision_unclaimed(&platform, request, things);
        }
        if !self.chance(faults.provision) {
            let ids = things
                .iter()
                .map(|t| Outcome::Made(t.id.as_str().into()))
                .collect();
            let slots = things.iter().map(|t| (t.request, t.index));
            let backend = self.platforms.get_mut(&platform).unwrap();
            backend.begun.extend(slots);
            let took = self.rng.u64(10..3_000);
            self.at(took, Event::Make(platform, things));
            return self.at(took + 1, Event::Answered(epoch, request, Ok(ids)));
        }
        self.fail_provision(&platform, request, things, deadline);
    }

    /// Creates the nodes whose hosts belong to no other owner.
    fn provision_unclaimed(&mut self, platform: &Sym, request: Uuid, things: Vec<Thing>) {
        let backend = self.platforms.get_mut(platform).unwrap();
        let mut outcomes = Vec::new();
        let mut made = Vec::new();
        for thing in things {
            if backend.claimed.contains(&thing.host) {
                let error = Error::new(Reason::HostClaimed, "belongs to somebody else");
                outcomes.push(Outcome::Failed(error));
            } else {
                backend.begun.insert((thing.request, thing.index));
                outcomes.push(Outcome::Made(thing.id.as_str().into()));
                made.push(thing);
            }
        }
        let epoch = self.epoch;
        self.at(100, Event::Make(platform.clone(), made));
        self.at(101, Event::Answered(epoch, request, Ok(outcomes)));
    }

    fn fail_provision(
        &mut self,
        platform: &Sym,
        request: Uuid,
        things: Vec<Thing>,
        deadline: Millis,
    ) {
        let epoch = self.epoch;
        let after = self.rng.u64(1..(deadline - self.now));
        match self.rng.u8(0..6) {
            // Nothing is created, and the caller does not know it.
            0 => {
                let error = Error::unavailable("broken");
                self.at(after, Event::Answered(epoch, request, Err(error)));
            }
            // Created, now or as late as possible, and the response is lost; the call may arrive twice.
            1 | 2 => {
                let copies = self.rng.u8(1..=2);
                let slots = things.iter().map(|t| (t.request, t.index));
                let backend = self.platforms.get_mut(platform).unwrap();
                backend.begun.extend(slots);
                for _ in 0..copies {
                    let late = self.rng.u64(0..deadline - self.now + build::CREATION);
                    self.at(late, Event::Make(platform.clone(), things.clone()));
                }
                let error = Error::new(Reason::DeadlineExceeded, "lost");
                self.at(
                    deadline - self.now,
                    Event::Answered(epoch, request, Err(error)),
                );
            }
            // Some are created, some never, and the outcome of some is not known.
            3 => {
                let mut outcomes = Vec::new();
                let after = after.min(5_000);
                for thing in things {
                    let backend = self.platforms.get_mut(platform).unwrap();
                    let slot = (request, thing.index);
                    let fate = if backend.begun.contains(&slot) {
                        0
                    } else {
                        self.rng.u8(0..3)
                    };
                    let late = self.rng.u64(0..build::CREATION);
                    outcomes.push(match fate {
                        0 => Outcome::Made(thing.id.as_str().into()),
                        1 => Outcome::Failed(Error::internal("broken part")),
                        _ => Outcome::Unknown(Error::internal("who knows")),
                    });
                    match fate {
                        0 => {
                            let backend = self.platforms.get_mut(platform).unwrap();
                            backend.begun.insert(slot);
                            self.at(after, Event::Make(platform.clone(), vec![thing]));
                        }
                        2 if self.rng.bool() => {
                            let backend = self.platforms.get_mut(platform).unwrap();
                            backend.begun.insert(slot);
                            self.at(after + late, Event::Make(platform.clone(), vec![thing]));
                        }
                        _ => {}
                    }
                }
                self.at(after + 1, Event::Answered(epoch, request, Ok(outcomes)));
            }
            4 => {
                let error = Error::new(Reason::Fenced, "out of date");
                self.at(50, Event::Answered(epoch, request, Err(error)));
            }
            _ => {
                let error = Error::new(Reason::Invalid, "refused");
                self.at(50, Event::Answered(epoch, request, Err(error)));
            }
        }
    }

    pub(super) fn make(&mut self, platform: &Sym, things: Vec<Thing>) {
        for mut thing in things {
            let delay = self.rng.u64(0..build::HIDDEN - 1_000);
            let backend = self.platforms.get_mut(platform).unwrap();
            let slot = (thing.request, thing.index);
            if !backend.made.insert(slot) {
                continue;
            }
            let lives =
                |other: &Thing| other.host == thing.host && other.phase != Phase::Terminated;
            assert!(
                thing.host.is_empty() || !backend.things.values().any(lives),
                "two on {}",
                thing.host
            );
            let writes = |other: &Thing| {
                let same = other.group == thing.group && other.ordinal == thing.ordinal;
                other.storage && same && other.phase != Phase::Terminated
            };
            assert!(
                !thing.storage || !backend.things.values().any(writes),
                "two write to the storage of {}-{}",
                thing.group,
                thing.ordinal
            );
            thing.hidden_until = self.now + if backend.faults.hidden { delay } else { 0 };
            let (id, group) = (thing.id.clone(), thing.group.clone());
            let hidden = thing.hidden_until - self.now;
            let acts = thing.acts;
            backend.things.insert(id.clone(), thing);
            if std::env::var_os("PLANNER_TRACE").is_some() {
                eprintln!("at {}: made {id} of {group}", self.now - 1_000_000_000);
            }
            self.check_ceiling(&group);
            if acts {
                self.check_acting(&group);
            }
            let run = self.rng.u64(100..10_000);
            self.at(hidden, Event::Appear(platform.clone(), id.clone()));
            self.at(run, Event::Phase(platform.clone(), id, Phase::Running));
        }
    }

    pub(super) fn deprovision(&mut self, slot: u64) {
        let node = self.state.node_mut(slot).unwrap();
        assert!(!node.in_flight.call.in_flight, "one removal call at a time");
        node.in_flight.call.in_flight = true;
        let (platform, request, index) = (node.platform.clone(), node.request, node.index);
        let id = node.node_id.clone().unwrap().to_string();
        let uid = self.state.uid;
        let epoch = self.epoch;
        let backend = &self.platforms[&platform];
        let (faults, reachable) = (backend.faults, backend.reachable);
        if let Some(thing) = backend.things.get(&id) {
            assert_eq!(thing.owner, uid, "another owner's node");
            assert_eq!((thing.request, thing.index), (request, index));
        }
        let fails = self.chance(faults.deprovision);
        let does = reachable && (!fails || self.rng.bool());
        if does {
            let backend = self.platforms.get_mut(&platform).unwrap();
            backend.asked.insert(id.clone());
            let exists = backend.things.get_mut(&id);
            if let Some(thing) = exists {
                if !thing.is_dead() {
                    thing.phase = Phase::Deprovisioning;
                }
                let says = match self.rng.u8(0..3) {
                    0 => None,
                    1 => Some(false),
                    _ => Some(true),
                };
                let took = self.rng.u64(10..8_000);
                self.show(&platform, &id);
                self.at(took, Event::Gone(platform, id, says));
            }
        }
        let good = does && !fails;
        let took = self.rng.u64(5..500);
        self.at(took, Event::Deprovisioned(epoch, slot, good));
    }

    /// Handles the request to hand over a foreign node.
    pub(super) fn adopt(&mut self, slot: u64) {
        let node = self.state.node_mut(slot).unwrap();
        assert!(
            !node.in_flight.call.in_flight,
            "one adoption call at a time"
        );
        assert!(node.removal.is_none());
        node.in_flight.call.in_flight = true;
        let node = node.clone();
        let (uid, epoch) = (self.state.uid, self.epoch);
        let id = node.node_id.clone().unwrap().to_string();
        let former = node.adopted.former.clone().unwrap();
        let backend = &self.platforms[&node.platform];
        let (faults, reachable) = (backend.faults.adopt, backend.reachable);
        let fails = self.chance(faults);
        // More than 100 %: no call reaches it.
        let does = reachable && (!fails || faults <= 100 && self.rng.bool());
        let backend = self.platforms.get_mut(&node.platform).unwrap();
        let mut gone = None;
        if does && let Some(thing) = backend.things.get_mut(&id) {
            if thing.former() == former {
                thing.acts = node.role.may_act();
                (thing.owner, thing.request, thing.index) = (uid, node.request, node.index);
                (thing.ordinal, thing.sequence) = (node.ordinal, node.sequence);
                thing.group = node.group.clone();
                thing.spec_hash = node.spec_hash.clone();
                backend.made.insert((node.request, node.index));
            }
            gone = Some((thing.owner, thing.request) != (uid, node.request));
            self.show(&node.platform, &id);
        }
        let took = self.rng.u64(5..500);
        let told = if fails { None } else { gone };
        self.at(took, Event::Adopted(epoch, slot, told));
    }

    /// A thing of ours dies: failed, terminated, or simply gone.
    pub fn kill(&mut self, platform: &Sym, id: &str) {
        let backend = self.platforms.get_mut(platform).unwrap();
        let Some(thing) = backend.things.get_mut(id).filter(|t| !t.is_dead()) else {
            return;
        };
        match self.rng.u8(0..3) {
            0 => thing.phase = Phase::Failed,
            1 => {
                thing.phase = Phase::Terminated;
                let after = self.rng.u64(1_000..600_000);
                let gone = Event::Gone(platform.clone(), id.to_owned(), Some(false));
                self.at(after, gone);
            }
            _ => {
                backend.things.remove(id);
                return self.unlist(platform, id, false);
            }
        }
        self.show(platform, id);
    }

    pub fn set_ready(&mut self, platform: &Sym, id: &str, ready: bool) {
        let backend = self.platforms.get_mut(platform).unwrap();
        if let Some(thing) = backend.things.get_mut(id) {
            thing.ready = ready;
        }
        self.show(platform, id);
    }

    /// Announces maintenance in a day, or that there is none.
    pub fn announce(&mut self, platform: &Sym, id: &str, kind: Option<MaintenanceKind>) {
        let start = self.now + 24 * 3_600_000;
        let backend = self.platforms.get_mut(platform).unwrap();
        if let Some(thing) = backend.things.get_mut(id) {
            thing.maintenance = kind.map(|kind| (kind, start));
        }
        self.maintains |= kind == Some(MaintenanceKind::Stop);
        self.show(platform, id);
    }

    /// A thing that exists is not listed for a while, shorter than the contract's limit.
    pub fn flicker(&mut self, platform: &Sym, id: &str) {
        let span = self.rng.u64(1_000..build::HIDDEN - 1_000);
        let backend = self.platforms.get_mut(platform).unwrap();
        let Some(thing) = backend.things.get_mut(id) else {
            return;
        };
        if thing.hidden_until > self.now {
            return;
        }
        thing.hidden_until = self.now + span;
        self.unlist(platform, id, false);
        self.at(span, Event::Appear(platform.clone(), id.to_owned()));
    }

    /// Ids of existing things, with their platforms.
    pub fn ids(&self) -> Vec<(Sym, String)> {
        self.platforms
            .iter()
            .flat_map(|(name, b)| b.things.values().map(|t| (name.clone(), t.id.clone())))
            .collect()
    }
}
