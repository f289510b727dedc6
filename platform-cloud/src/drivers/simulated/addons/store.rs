//! The existing addons.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use drover_core::{Error, Reason, Result};
use drover_platform::addons::{AddonProgress, AddonWanted, Owner, targets};
use drover_proto::platform::v1::{AddonKind, AddonState, Endpoint, Resource, ResourcePhase};
use prost::Message;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::super::state_file;

/// When a failed addon is to be tried again.
const RETRY: Duration = Duration::from_secs(1);

/// How often an addon was created and changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddonLedger {
    /// Number of addons ever created under this name.
    pub created: u32,
    /// Number of calls that changed its spec, targets or secrets.
    pub changed: u32,
}

/// Cluster id and name.
pub(super) type Key = (String, String);

#[derive(Default)]
pub(in crate::drivers::simulated) struct AddonStore {
    pub(super) made: BTreeMap<Key, Made>,
    pub(super) ledger: BTreeMap<Key, AddonLedger>,
    last: u32,
    file: Option<PathBuf>,
}

#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct Made {
    /// Empty if it is foreign.
    pub(super) owner: String,
    pub(super) kind: i32,
    /// Hash of the spec.
    spec: String,
    host: String,
    ports: Vec<u16>,
    pub(super) objects: Vec<Object>,
    /// Number of objects when it is complete.
    planned: usize,
    served: Served,
    #[serde(skip)]
    pub(super) wanted: Option<AddonWanted>,
    #[serde(skip)]
    ready_at: Option<Instant>,
    /// What is served from then on.
    #[serde(skip)]
    applied: Option<(Instant, Served)>,
    #[serde(skip)]
    removing: bool,
    #[serde(skip)]
    pub(super) failure: Option<String>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Object {
    pub(super) kind: String,
    name: String,
    id: String,
    sequence: u64,
    #[serde(skip)]
    gone_at: Option<Instant>,
}

/// The targets in use, and those that are left out.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Served {
    pub(super) count: u32,
    pub(super) note: String,
}

/// Ports that an addon needs.
pub(super) struct PortWish {
    /// Field of the request.
    pub(super) field: String,
    /// First port. `None` to choose any.
    pub(super) listen: Option<u32>,
    pub(super) count: u32,
}

/// What a request needs.
pub(super) struct Plan {
    /// Kinds and names, in the order of creation.
    pub(super) objects: Vec<(String, String)>,
    pub(super) ports: Vec<PortWish>,
    pub(super) served: Served,
}

/// The settings of addons, on the time scale of the backend.
pub(super) struct Pace {
    pub(super) ready: Duration,
    pub(super) apply: Duration,
    pub(super) remove: Duration,
    pub(super) ports: std::ops::RangeInclusive<u16>,
    pub(super) steps: bool,
}

#[derive(Default, Serialize, Deserialize)]
struct Stored {
    last: u32,
    made: Vec<(Key, Made)>,
}

impl AddonStore {
    /// Restores the addons in this file.
    pub(in crate::drivers::simulated) fn open(file: Option<PathBuf>) -> std::io::Result<Self> {
        let stored: Stored = match &file {
            Some(file) => state_file::load(file)?,
            None => Stored::default(),
        };
        Ok(Self {
            made: stored.made.into_iter().collect(),
            ledger: BTreeMap::new(),
            last: stored.last,
            file,
        })
    }

    pub(super) fn save(&self) {
        let Some(file) = &self.file else { return };
        let made = self.made.iter();
        let stored = Stored {
            last: self.last,
            made: made
                .map(|(key, made)| (key.clone(), made.clone()))
                .collect(),
        };
        state_file::save(file, &stored);
    }

    /// Brings everything to the current time.
    pub(super) fn settle(&mut self) {
        let now = Instant::now();
        self.made.retain(|_, made| {
            made.objects
                .retain(|object| object.gone_at.is_none_or(|at| at > now));
            if let Some((_, served)) = made.applied.take_if(|(at, _)| *at <= now) {
                made.served = served;
            }
            !(made.removing && made.objects.is_empty())
        });
    }

    pub(super) fn states(&self) -> Vec<AddonState> {
        let made = self.made.iter();
        made.map(|(key, made)| made.state(key)).collect()
    }

    pub(super) fn check(
        &self,
        owner: &Owner,
        wanted: &AddonWanted,
        plan: &Plan,
        pace: &Pace,
    ) -> Result<()> {
        let key = key(owner, &wanted.spec.name);
        let made = self.made.get(&key);
        if let Some(made) = made {
            if made.owner != owner.owner {
                return Err(Error::new(
                    Reason::NotOwned,
                    format!("an addon {:?} of somebody else is there", key.1),
                ));
            }
            if made.kind != i32::from(targets::kind(&wanted.spec)) {
                let why = format!("addon {:?} is of another kind", key.1);
                return Err(Error::new(Reason::Immutable, why)
                    .with_violation("spec.kind", "cannot be changed once it is made"));
            }
        }
        self.ports(&key, plan, pace).map(drop)
    }

    /// The ports for a plan: those that were asked for, those that the addon has, then the first free ones.
    fn ports(&self, key: &Key, plan: &Plan, pace: &Pace) -> Result<Vec<u16>> {
        let others = self.made.iter().filter(|(other, _)| *other != key);
        let mut taken: BTreeSet<u16> = others.flat_map(|(_, made)| made.ports.clone()).collect();
        for wish in &plan.ports {
            let Some(first) = wish.listen else { continue };
            for port in first..first.saturating_add(wish.count) {
                let port = u16::try_from(port).ok();
                let port = port
                    .filter(|port| pace.ports.contains(port))
                    .ok_or_else(|| {
                        let (first, last) = (pace.ports.start(), pace.ports.end());
                        Error::invalid(&wish.field, format!("expected {first} to {last}"))
                    })?;
                if !taken.insert(port) {
                    return Err(Error::invalid(&wish.field, format!("port {port} is taken")));
                }
            }
        }
        let before = self
            .made
            .get(key)
            .map_or(&[][..], |made| made.ports.as_slice());
        let (mut ports, mut at) = (Vec::new(), 0);
        for wish in &plan.ports {
            for offset in 0..wish.count {
                let port = match wish.listen {
                    Some(first) => u16::try_from(first + offset).ok(),
                    None => {
                        let had = before.get(at).copied();
                        let mut free = had.into_iter().chain(pace.ports.clone());
                        free.find(|port| taken.insert(*port))
                    }
                };
                at += 1;
                ports.push(port.ok_or_else(|| {
                    Error::new(Reason::NoCapacity, "no port is free for another addon")
                })?);
            }
        }
        Ok(ports)
    }

    pub(super) fn ensure(
        &mut self,
        owner: &Owner,
        sequence: u64,
        wanted: &AddonWanted,
        plan: &Plan,
        pace: &Pace,
    ) -> Result<AddonProgress> {
        self.check(owner, wanted, plan, pace)?;
        let key = key(owner, &wanted.spec.name);
        let ports = self.ports(&key, plan, pace)?;
        let now = Instant::now();
        let made = self.made.entry(key.clone()).or_insert_with(|| {
            self.ledger.entry(key.clone()).or_default().created += 1;
            self.last += 1;
            Made {
                owner: owner.owner.clone(),
                kind: targets::kind(&wanted.spec).into(),
                host: match wanted.spec.cluster_ip.as_str() {
                    "" => format!("203.0.113.{}", self.last % 250 + 1),
                    address => address.to_owned(),
                },
                ..Made::default()
            }
        });
        // What is on its way out is made again when it is gone.
        made.removing = false;
        let spec: String = Sha256::digest(wanted.spec.encode_to_vec())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let before = made.wanted.as_ref();
        let respecified = made.spec != spec;
        let reloaded = before.is_none_or(|before| {
            before.targets != wanted.targets || before.secrets != wanted.secrets
        });
        if respecified || reloaded {
            self.ledger.entry(key.clone()).or_default().changed += 1;
            made.applied = Some((now + pace.apply, plan.served.clone()));
        }
        let is_planned = |object: &Object| {
            plan.objects
                .contains(&(object.kind.clone(), object.name.clone()))
        };
        made.objects.retain(is_planned);
        let there = |kind: &str, name: &str, made: &Made| {
            made.objects
                .iter()
                .any(|it| it.kind == kind && it.name == name)
        };
        let mut added = false;
        for (kind, name) in &plan.objects {
            if there(kind, name, made) || (added && pace.steps) {
                continue;
            }
            self.last += 1;
            added = true;
            made.objects.push(Object {
                kind: kind.clone(),
                name: name.clone(),
                id: format!("{kind}-{:08x}", self.last),
                sequence,
                gone_at: None,
            });
        }
        if added || respecified {
            made.ready_at = Some(now + pace.ready);
        }
        made.planned = plan.objects.len();
        made.ports = ports;
        made.spec = spec;
        made.wanted = Some(wanted.clone());
        self.settle();
        self.save();
        let made = self.made.get(&key);
        made.map(|made| made.progress(&key))
            .ok_or_else(|| Error::internal("an addon was lost while it was made"))
    }

    pub(super) fn remove(&mut self, owner: &Owner, name: &str, pace: &Pace) -> AddonProgress {
        let key = key(owner, name);
        let own = self.made.get_mut(&key);
        if let Some(made) = own.filter(|made| made.owner == owner.owner) {
            made.removing = true;
            let gone = Instant::now() + pace.remove;
            // The last of what was made goes first.
            let steps = if pace.steps { 1 } else { usize::MAX };
            for object in made.objects.iter_mut().rev().take(steps) {
                object.gone_at.get_or_insert(gone);
            }
        }
        self.settle();
        self.save();
        let own = self.made.get(&key);
        match own.filter(|made| made.owner == owner.owner) {
            Some(made) => made.progress(&key),
            None => AddonProgress {
                state: AddonState {
                    cluster_id: owner.cluster_id.clone(),
                    owner: owner.owner.clone(),
                    name: name.to_owned(),
                    phase: ResourcePhase::Gone.into(),
                    ..AddonState::default()
                },
                poll_after: None,
            },
        }
    }

    /// Creates an addon that belongs to no cluster record.
    pub(super) fn create_foreign(&mut self, cluster_id: &str, kind: AddonKind, name: &str) {
        let made = Made {
            kind: kind.into(),
            ..Made::default()
        };
        self.made
            .insert((cluster_id.to_owned(), name.to_owned()), made);
        self.save();
    }
}

fn key(owner: &Owner, name: &str) -> Key {
    (owner.cluster_id.clone(), name.to_owned())
}

impl Made {
    fn phase(&self) -> ResourcePhase {
        let now = Instant::now();
        if self.removing {
            ResourcePhase::Releasing
        } else if self.failure.is_some() {
            ResourcePhase::Failed
        } else if self.objects.len() < self.planned
            || self.objects.iter().any(|object| object.gone_at.is_some())
            || self.ready_at.is_some_and(|at| at > now)
        {
            ResourcePhase::Pending
        } else {
            ResourcePhase::Ready
        }
    }

    fn state(&self, key: &Key) -> AddonState {
        let phase = self.phase();
        let resource = |object: &Object| Resource {
            cluster_id: key.0.clone(),
            owner: self.owner.clone(),
            kind: object.kind.clone(),
            name: object.name.clone(),
            id: object.id.clone(),
            phase: if object.gone_at.is_some() {
                ResourcePhase::Releasing.into()
            } else {
                phase.into()
            },
            sequence: object.sequence,
            ..Resource::default()
        };
        let endpoint = |port: &u16| Endpoint {
            host: self.host.clone(),
            port: (*port).into(),
        };
        AddonState {
            cluster_id: key.0.clone(),
            owner: self.owner.clone(),
            kind: self.kind,
            name: key.1.clone(),
            phase: phase.into(),
            message: self
                .failure
                .clone()
                .unwrap_or_else(|| self.served.note.clone()),
            endpoints: self.ports.iter().map(endpoint).collect(),
            target_count: self.served.count,
            resources: self.objects.iter().map(resource).collect(),
        }
    }

    fn progress(&self, key: &Key) -> AddonProgress {
        let now = Instant::now();
        let until = |at: Option<Instant>| {
            let left = at?.checked_duration_since(now)?;
            (!left.is_zero()).then(|| left.max(Duration::from_millis(1)))
        };
        let soon = Duration::from_millis(1);
        let gone = self.objects.iter().filter_map(|object| object.gone_at);
        let gone = until(gone.max());
        let poll_after = match self.phase() {
            ResourcePhase::Failed => Some(RETRY),
            ResourcePhase::Releasing => Some(gone.unwrap_or(soon)),
            _ if self.objects.len() < self.planned => Some(soon),
            _ => {
                let applied = self.applied.as_ref().map(|(at, _)| *at);
                until(self.ready_at).max(until(applied)).max(gone)
            }
        };
        AddonProgress {
            state: self.state(key),
            poll_after,
        }
    }
}
