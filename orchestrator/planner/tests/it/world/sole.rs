//! Stores whose active node acknowledges a write only when standbys have it, unless it is allowed to go on alone: which
//! writes each node has. That follows from what nodes do, whatever is planned or recorded.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use drover_core::{
    Phase, Sym,
    node::SoleChange,
    spec::{Group, Hook, SoleWriter},
};
use uuid::Uuid;

use super::{Event, World, backend::Thing, build::fencing, labels::Fate};

/// Milliseconds that a caller waits.
const TIMEOUT: u64 = 10_000;

/// Attribute of a group: the number of standbys that its store needs.
const NEEDS: &str = "needs";

/// The group as a store that needs a standby, unless it is allowed to go on alone.
pub fn sole_writer(group: Group) -> Group {
    let hook = |command: &str| Hook {
        exec: vec![command.to_owned()],
        timeout: Duration::from_millis(TIMEOUT),
        fences: false,
    };
    let mut group = fencing(group);
    group.lifecycle.get_or_insert_default().sole_writer = Some(SoleWriter {
        allow: Some(hook("allow")),
        revoke: hook("revoke"),
        standbys_attribute: NEEDS.to_owned(),
    });
    group
}

/// Such a store that needs so many standbys.
pub fn needing(mut group: Group, standbys: u32) -> Group {
    group.attributes.insert(NEEDS.to_owned(), standbys.into());
    group
}

/// Such a store that is never allowed to go on alone.
pub fn strict(mut group: Group) -> Group {
    let lifecycle = group.lifecycle.get_or_insert_default();
    if let Some(writer) = &mut lifecycle.sole_writer {
        writer.allow = None;
    }
    group
}

/// Request and index of a node.
type Key = (Uuid, u32);

/// A place in a store: its node, or the last one that it had.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    node: Key,
    acts: bool,
    /// The active node that it has caught up with.
    follows: Key,
    /// How many writes it has, from the first one on.
    writes: u64,
    may_write_alone: bool,
}

/// What stores have.
#[derive(Debug, Default)]
pub struct Stores {
    /// By path of the group and ordinal.
    places: BTreeMap<(Sym, u32), Place>,
    /// How many writes were acknowledged and not lost since, by path of the group.
    acknowledged: BTreeMap<Sym, u64>,
    /// Groups whose users have accepted a loss, until a node begins to act.
    forgiven: BTreeSet<Sym>,
}

fn key(thing: &Thing) -> Key {
    (thing.request, thing.index)
}

fn is_up(thing: &Thing) -> bool {
    matches!(thing.phase, Phase::Running | Phase::Deprovisioning)
}

/// What nodes have.
impl World {
    /// After every event: standbys catch up, and who acts acknowledges a write if it can.
    pub(super) fn write(&mut self) {
        let stores = self.groups.iter().filter_map(|group| {
            let (_, needs) = group.sole_writer()?;
            Some((group.path.clone(), needs as usize))
        });
        let stores: Vec<(Sym, usize)> = stores.collect();
        for (group, needs) in stores {
            let things = self.things_of(&group);
            self.take_places(&group, &things);
            self.acknowledge(&group, &things, needs);
        }
    }

    /// Our living things of a group, each with its platform.
    fn things_of(&self, group: &Sym) -> Vec<(Sym, Thing)> {
        let mut things = Vec::new();
        for (platform, backend) in &self.platforms {
            let own = backend.things.values().filter(|thing| {
                thing.owner == self.state.uid && thing.group == *group && !thing.is_dead()
            });
            things.extend(own.map(|thing| (platform.clone(), thing.clone())));
        }
        things
    }

    /// A thing that is new has what its storage has, and as a standby is not ready before it has caught up. One that begins
    /// to act, or may acknowledge alone, is checked.
    fn take_places(&mut self, group: &Sym, things: &[(Sym, Thing)]) {
        let recorded = self.durable.sole.contains_key(group);
        for (platform, thing) in things {
            let at = (group.clone(), thing.ordinal);
            let mut place = self.stores.places.get(&at).copied().unwrap_or_default();
            let made = place.node != key(thing);
            if made {
                let kept = if thing.storage {
                    place
                } else {
                    Place::default()
                };
                place = Place {
                    node: key(thing),
                    writes: kept.writes,
                    may_write_alone: kept.may_write_alone,
                    ..Place::default()
                };
                if !thing.acts {
                    self.set_ready(platform, &thing.id, false);
                }
            }
            if thing.acts && !place.acts {
                let least = self.least(group, things, thing, made);
                let forgiven = self.stores.forgiven.remove(group);
                assert!(
                    forgiven || place.writes >= least,
                    "what {group} acknowledged is lost: {} has {} of {least} writes",
                    thing.id,
                    place.writes
                );
                (self.stores.acknowledged).insert(group.clone(), place.writes);
            }
            place.acts = thing.acts;
            let alone = place.acts && place.may_write_alone;
            assert!(
                recorded || !alone,
                "{} may acknowledge alone, and nothing says so",
                thing.id
            );
            self.stores.places.insert(at, place);
        }
    }

    /// How many writes a thing has to have that begins to act: all that were acknowledged. If it is made anew and no storage
    /// has what was acknowledged alone, as many as others have: it may be that no copy is left.
    fn least(&self, group: &Sym, things: &[(Sym, Thing)], thing: &Thing, made: bool) -> u64 {
        let places = self.stores.places.iter();
        let mut own = places.filter(|((path, _), _)| path == group);
        let kept = thing.storage && own.any(|(_, place)| place.may_write_alone);
        if !made || kept {
            let acknowledged = self.stores.acknowledged.get(group);
            return acknowledged.copied().unwrap_or_default();
        }
        let others = things
            .iter()
            .filter(|(_, other)| other.ordinal != thing.ordinal && other.phase == Phase::Running);
        let others = others.filter_map(|(_, other)| {
            let place = (group.clone(), other.ordinal);
            self.stores.places.get(&place)
        });
        others.map(|place| place.writes).max().unwrap_or_default()
    }

    fn acknowledge(&mut self, group: &Sym, things: &[(Sym, Thing)], needs: usize) {
        let active = things.iter().find(|(_, thing)| thing.acts && is_up(thing));
        let Some((_, active)) = active else { return };
        let has = self.stores.places[&(group.clone(), active.ordinal)];
        let mut holders = vec![active.ordinal];
        for (platform, thing) in things {
            if thing.acts || !is_up(thing) {
                continue;
            }
            holders.push(thing.ordinal);
            let at = (group.clone(), thing.ordinal);
            let place = self.stores.places.entry(at).or_default();
            if place.follows != key(active) {
                (place.follows, place.writes) = (key(active), has.writes);
                place.may_write_alone = false;
                self.set_ready(platform, &thing.id, true);
            }
        }
        if has.may_write_alone {
            // Whether standbys get it as well, nobody knows.
            holders.truncate(1);
        } else if holders.len() <= needs {
            return;
        }
        let writes = has.writes + 1;
        self.give(group, &holders, writes);
        self.stores.acknowledged.insert(group.clone(), writes);
    }

    /// Nodes in these places get writes.
    fn give(&mut self, group: &Sym, ordinals: &[u32], writes: u64) {
        for ordinal in ordinals {
            let place = (self.stores.places).entry((group.clone(), *ordinal));
            place.or_default().writes = writes;
        }
    }

    /// Whether the active node of a group may acknowledge alone.
    pub fn writes_alone(&self, group: &str) -> bool {
        let living = self.living(group);
        living.iter().filter(|thing| thing.acts).any(|thing| {
            let place = (thing.group.clone(), thing.ordinal);
            let place = self.stores.places.get(&place);
            place.is_some_and(|place| place.may_write_alone)
        })
    }

    /// The node of a slot dies.
    pub fn dies(&mut self, slot: u64) {
        let node = self.durable.node(slot).unwrap();
        let id = format!("{}-{}", node.request, node.index);
        let death = Event::Phase(node.platform.clone(), id, Phase::Failed);
        self.happen(death);
    }

    /// The recorded sole writer of a group, if nobody acts any more.
    pub fn lost_sole_writer(&self, group: &str) -> Option<u64> {
        let sole = self.durable.sole.get(group)?;
        let acts = self.living(group).iter().any(|thing| thing.acts);
        (!acts).then_some(sole.slot)
    }

    /// A user accepts that what the node of a slot acknowledged alone is lost.
    pub fn accept_loss(&mut self, slot: u64) {
        for state in [&mut self.state, &mut self.durable] {
            state.accepted_losses.insert(slot);
        }
        let groups = self.durable.sole.iter();
        let groups = groups.filter(|(_, sole)| sole.slot == slot);
        let groups: Vec<Sym> = groups.map(|(group, _)| group.clone()).collect();
        self.stores.forgiven.extend(groups);
    }
}

/// The permission to acknowledge alone.
impl World {
    pub(super) fn change_sole(&mut self, slot: u64, allow: bool) {
        let node = self.state.node(slot).unwrap();
        let (group, platform) = (node.group.clone(), node.platform.clone());
        let recorded = self.durable.sole.get(&group).map(|sole| sole.slot);
        assert_eq!(recorded, Some(slot), "recorded before and after");
        self.begin_sole(slot, allow);
        let Fate {
            mut took,
            happens,
            told,
        } = self.fate(&platform, TIMEOUT);
        took = self.in_order(
            took,
            |event| matches!(event, Event::Permits(other, ..) if *other == slot),
        );
        let (epoch, told) = (self.epoch, told && took < TIMEOUT);
        if happens {
            let hears = told.then_some(epoch);
            self.at(took, Event::Permits(slot, allow, hears));
        }
        if !told {
            let unknown = Event::Permitted(epoch, slot, allow, Err(false));
            self.at(TIMEOUT, unknown);
        }
    }

    /// The hook runs in the node.
    pub(super) fn take_permission(&mut self, slot: u64, allow: bool, hears: Option<u64>) {
        let outcome = self.permit(slot, allow);
        if let Some(epoch) = hears {
            self.at(1, Event::Permitted(epoch, slot, allow, outcome));
        }
    }

    /// The active node may acknowledge alone if it lacks standbys, and needs them again when they have everything. Refused
    /// otherwise.
    fn permit(&mut self, slot: u64, allow: bool) -> Result<(), bool> {
        let node = self.durable.node(slot).ok_or(true)?;
        let (group, own) = (node.group.clone(), (node.request, node.index));
        let spec = self.groups.iter().find(|spec| spec.path == group);
        let (_, needs) = spec.and_then(Group::sole_writer).ok_or(true)?;
        let mut things = self.things_of(&group);
        things.retain(|(_, thing)| is_up(thing));
        let mut active = things.iter().filter(|(_, thing)| thing.acts);
        let active = active.find(|(_, thing)| key(thing) == own).ok_or(true)?;
        let active = (group.clone(), active.1.ordinal);
        let standbys = things.iter().filter(|(_, thing)| !thing.acts);
        let standbys: Vec<u32> = standbys.map(|(_, thing)| thing.ordinal).collect();
        let enough = standbys.len() >= needs as usize;
        if enough == allow {
            return Err(true);
        }
        let place = self.stores.places.entry(active).or_default();
        place.may_write_alone = allow;
        let writes = place.writes;
        if !allow {
            self.give(&group, &standbys, writes);
        }
        Ok(())
    }

    pub(super) fn permitted(
        &mut self,
        epoch: u64,
        slot: u64,
        allow: bool,
        outcome: Result<(), bool>,
    ) {
        let node = self.state.node(slot).filter(|_| epoch == self.epoch);
        let change = node.and_then(|node| node.in_flight.changes.sole.as_ref());
        if change.is_some_and(|change| change.allow == allow && change.call.in_flight) {
            self.answer_sole(slot, outcome);
        }
    }

    /// A call begins that changes the permission of a node.
    pub fn begin_sole(&mut self, slot: u64, allow: bool) {
        let node = self.state.node_mut(slot).unwrap();
        let first = || Box::new(SoleChange::first());
        let change = node.in_flight.changes.sole.get_or_insert_with(first);
        assert!(
            !change.call.in_flight,
            "one change of a permission at a time"
        );
        change.begin(allow);
    }

    /// It ends: with success, or with `Err(true)` if it was certainly refused, `Err(false)` if its outcome is not known.
    pub fn answer_sole(&mut self, slot: u64, outcome: Result<(), bool>) {
        let (now, next) = (self.now, self.now + 1_000);
        let node = self.state.node_mut(slot).unwrap();
        let change = node.in_flight.changes.sole.as_mut().unwrap();
        assert!(change.call.in_flight, "nothing is under way");
        change.call.in_flight = false;
        match outcome {
            Ok(()) => change.succeeded(now),
            Err(refused) => {
                change.failed(refused, "says no");
                change.call.next = next;
            }
        }
    }
}
