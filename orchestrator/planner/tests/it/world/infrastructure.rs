//! The infrastructure and the addons of the simulated platforms.

use std::{collections::BTreeMap, sync::Arc};

use drover_core::{
    Error, Millis, Sym,
    addon::AddonTarget,
    error::Reason,
    resource::{
        Asked, Observed, Resource, ResourceAnswer, ResourceKey, ResourcePhase, ResourceRecord,
        Wanted,
    },
};
use drover_planner::{Plan, ResourceOrphan};

use super::{Event, World, backend::Thing, build::CREATION};

/// Faults of infrastructure calls, each as one in so many; 0 for never.
#[derive(Clone, Copy, Debug, Default)]
pub struct SiteFaults {
    /// The response is lost; the effect happens later.
    pub lost: u32,
    /// Refused before any effect.
    pub failed: u32,
    /// Answered after half of it was created.
    pub half: u32,
}

/// The actual state of a resource.
#[derive(Clone, Debug)]
struct Real {
    sequence: u64,
    ready_at: Millis,
    /// When it is gone, once its release has started.
    gone_at: Option<Millis>,
}

/// The infrastructure of the cluster at one platform.
#[derive(Clone, Debug, Default)]
pub struct Site {
    things: BTreeMap<String, Real>,
    pub faults: SiteFaults,
    /// Error of every Ensure call.
    pub refuses: Option<Error>,
    /// Resources that were created, in order.
    pub made: Vec<String>,
    pub ensures: usize,
    pub reads: usize,
    pub releases: usize,
    /// The targets that it serves now.
    pub targets: Arc<[AddonTarget]>,
    /// Longest time from now that an addon takes to serve other targets.
    pub reload: Millis,
    /// When it serves the targets that it was last given.
    pub(super) serves_at: Millis,
}

/// The infrastructure of the cluster at one platform.
pub fn below(platform: &str) -> ResourceKey {
    ResourceKey::infrastructure(platform, format!("uid-of-{platform}"))
}

/// Desired infrastructure with these parts, by name.
pub fn wanted(platform: &str, parts: &str) -> Wanted {
    Wanted::new(platform, parts.as_bytes())
}

/// Drops everything of a record that is not in the store.
pub fn forget(record: &mut ResourceRecord) {
    record.in_flight.sent = false;
    record.in_flight.ensured = 0;
    record.in_flight.targets = Arc::default();
    record.in_flight.served = None;
    record.in_flight.announced.clear();
    record.in_flight.follows = false;
    record.in_flight.call = drover_core::node::Call::default();
    record.in_flight.answer = None;
}

impl Site {
    /// Kinds that exist, including partially created and partially removed ones.
    pub fn present(&mut self, now: Millis) -> Vec<String> {
        self.things
            .retain(|_, real| real.gone_at.is_none_or(|at| now < at));
        self.things.keys().cloned().collect()
    }

    pub(super) fn is_there(&self, now: Millis) -> bool {
        let mut things = self.things.values();
        things.any(|real| real.gone_at.is_none_or(|at| now < at))
    }

    /// Removes a resource without our knowledge.
    pub fn lose(&mut self, kind: &str) {
        self.things.remove(kind).unwrap();
    }

    fn ensure(&mut self, body: &[u8], sequence: u64, now: Millis, half: bool) -> Observed {
        self.present(now);
        let body = String::from_utf8(body.to_vec()).unwrap();
        for part in body.split(',').filter(|part| !part.is_empty()) {
            if !self.things.contains_key(part) {
                self.made.push(part.to_owned());
                let real = Real {
                    sequence,
                    ready_at: now + 3_000,
                    gone_at: None,
                };
                self.things.insert(part.to_owned(), real);
                if half {
                    break;
                }
            }
        }
        self.observe(now, body.split(',').count())
    }

    fn release(&mut self, now: Millis) -> Observed {
        for real in self.things.values_mut() {
            real.gone_at.get_or_insert(now + 2_000);
        }
        self.observe(now, 0)
    }

    /// What exists, out of `parts` desired resources.
    pub fn observe(&mut self, now: Millis, parts: usize) -> Observed {
        self.present(now);
        let resources: Vec<Resource> = self
            .things
            .iter()
            .map(|(kind, real)| Resource {
                kind: kind.as_str().into(),
                name: "main".into(),
                id: format!("{kind}-{}", real.ready_at).into(),
                phase: match real.gone_at {
                    Some(_) => ResourcePhase::Releasing,
                    None if now < real.ready_at => ResourcePhase::Pending,
                    None => ResourcePhase::Ready,
                },
                message: "".into(),
                sequence: real.sequence,
                create_time: real.ready_at,
            })
            .collect();
        let any = |phase| resources.iter().any(|one| one.phase == phase);
        let phase = if resources.is_empty() {
            ResourcePhase::Gone
        } else if any(ResourcePhase::Releasing) {
            ResourcePhase::Releasing
        } else if any(ResourcePhase::Pending) || resources.len() < parts {
            ResourcePhase::Pending
        } else {
            ResourcePhase::Ready
        };
        let phase = match phase {
            ResourcePhase::Ready if now < self.serves_at => ResourcePhase::Pending,
            phase => phase,
        };
        let done = matches!(phase, ResourcePhase::Ready | ResourcePhase::Gone);
        Observed {
            phase,
            message: "".into(),
            outputs: if resources.is_empty() {
                Arc::default()
            } else {
                (*b"outputs").into()
            },
            resources,
            poll_after: (!done).then_some(1_000),
        }
    }
}

/// A call in flight.
#[derive(Clone, Debug)]
pub struct Ask {
    pub epoch: u64,
    pub key: ResourceKey,
    pub asked: Asked,
    pub began: Millis,
    body: Arc<[u8]>,
    targets: Arc<[AddonTarget]>,
    sequence: u64,
    half: bool,
    /// When it is answered. `None` if the response is lost.
    answer: Option<Millis>,
}

impl World {
    /// Changes the desired infrastructure.
    pub fn want_below(&mut self, infrastructure: Vec<Wanted>) {
        self.infrastructure = infrastructure;
        self.state.generation += 1;
        self.durable.generation += 1;
    }

    pub fn site(&mut self, platform: &str) -> &mut Site {
        self.sites.entry(below(platform)).or_default()
    }

    pub fn record(&self, platform: &str) -> Option<&ResourceRecord> {
        self.state.resources.get(&below(platform))
    }

    /// Takes in a list of what a platform has: what has no record, or is of a request that the record never gave out.
    pub(super) fn list_resources(&mut self, platform: &Sym) {
        let (now, state) = (self.now, &mut self.state);
        let is_there =
            |key: &ResourceKey, site: &Site| key.platform == *platform && site.is_there(now);
        let shown = self.sites.iter().filter(|(key, site)| is_there(key, site));
        let shown: BTreeMap<&ResourceKey, u64> = shown
            .map(|(key, site)| {
                (
                    key,
                    site.things
                        .values()
                        .map(|real| real.sequence)
                        .max()
                        .unwrap(),
                )
            })
            .collect();
        (state.resource_orphans)
            .retain(|key, _| key.platform != *platform || shown.contains_key(key));
        for (key, sequence) in shown {
            if state.resources.contains_key(key) && state.gave_out(sequence) {
                state.resource_orphans.remove(key);
            } else {
                let orphan = state.resource_orphans.entry(key.clone());
                let orphan = orphan.or_insert(ResourceOrphan {
                    sequence: None,
                    since: now,
                });
                orphan.sequence = Some(sequence);
            }
        }
    }

    pub(super) fn forget_calls(&mut self) {
        self.state.resources.values_mut().for_each(forget);
    }

    /// No node is requested before its infrastructure exists, and no infrastructure is released while a node uses it.
    pub(super) fn check_below(&mut self, planned: &Plan) {
        use drover_planner::{Call, Op};
        let now = self.now;
        for op in &planned.ops {
            if let Op::Request { .. } = op {
                for wanted in self.infrastructure.clone() {
                    let record = self.record(&wanted.platform).unwrap();
                    assert!(record.is_ready(), "a node before its infrastructure");
                    assert_eq!(record.spec_hash, wanted.spec_hash);
                }
            }
        }
        for call in &planned.calls {
            if let Call::Resource {
                key,
                asked: Asked::Release,
            } = call
            {
                let record = self.state.resources.get(key);
                assert!(record.is_some(), "released without a record");
                if key.is_addon() {
                    continue;
                }
                let platform = &key.platform;
                let all = self.state.deleting;
                for (name, backend) in &self.platforms {
                    assert!(
                        (!all && name != platform) || backend.things.values().all(Thing::is_dead),
                        "released under living nodes at {now}"
                    );
                }
            }
        }
    }

    pub(super) fn ask(&mut self, key: &ResourceKey, asked: Asked) {
        let record = self.state.resources.get_mut(key).unwrap();
        record.in_flight.call.in_flight = true;
        let targets = Arc::clone(&record.in_flight.targets);
        let (deadline, body, sequence) = match asked {
            Asked::Read => (self.now + 30_000, Arc::default(), 0),
            Asked::Ensure | Asked::Release => {
                (record.deadline, Arc::clone(&record.body), record.sequence)
            }
        };
        let took = self.rng.u64(1..2_000);
        let site = self.sites.entry(key.clone()).or_default();
        match asked {
            Asked::Ensure => site.ensures += 1,
            Asked::Read => site.reads += 1,
            Asked::Release => site.releases += 1,
        }
        let faults = site.faults;
        let one_in = |rng: &mut fastrand::Rng, n: u32| n > 0 && rng.u32(0..n) == 0;
        let mut ask = Ask {
            epoch: self.epoch,
            key: key.clone(),
            asked,
            began: self.now,
            body,
            targets,
            sequence,
            half: one_in(&mut self.rng, faults.half),
            answer: Some(took),
        };
        let refused = site.refuses.clone().filter(|_| asked == Asked::Ensure);
        let gone = !self.platforms[&key.platform].reachable;
        if gone || one_in(&mut self.rng, faults.failed) || refused.is_some() {
            let error = refused.unwrap_or_else(|| Error::new(Reason::Unavailable, "not now"));
            self.at(took, Event::Told(ask, Err(error)));
        } else if one_in(&mut self.rng, faults.lost) && asked != Asked::Read {
            // It takes effect at any time until its deadline, and what it starts then may take even longer.
            let late = match asked {
                Asked::Ensure => CREATION,
                Asked::Read | Asked::Release => 0,
            };
            let span = deadline.saturating_sub(self.now) + late;
            let after = self.rng.u64(0..span.max(1));
            ask.answer = None;
            self.at(after, Event::Effect(ask.clone()));
            let error = Error::new(Reason::DeadlineExceeded, "lost");
            self.at(took, Event::Told(ask, Err(error)));
        } else {
            let after = self.rng.u64(0..took);
            ask.answer = Some(took - after);
            self.at(after, Event::Effect(ask));
        }
    }

    pub(super) fn effect(&mut self, ask: Ask) {
        let now = self.now;
        let site = self.sites.get_mut(&ask.key).unwrap();
        if ask.asked == Asked::Ensure {
            site.serve(&ask.targets, now);
        }
        let seen = match ask.asked {
            Asked::Ensure => site.ensure(&ask.body, ask.sequence, now, ask.half),
            Asked::Release => site.release(now),
            Asked::Read => site.observe(now, 0),
        };
        if let Some(after) = ask.answer {
            self.at(after, Event::Told(ask, Ok(seen)));
        }
    }

    pub(super) fn told(&mut self, ask: &Ask, outcome: Result<Observed, Error>) {
        let now = self.now;
        if ask.epoch != self.epoch {
            return;
        }
        let Some(record) = self.state.resources.get_mut(&ask.key) else {
            return;
        };
        record.in_flight.call.in_flight = false;
        if ask.asked == Asked::Read && outcome.is_err() {
            record.in_flight.call.next = now + 5_000;
            return;
        }
        record.in_flight.call = drover_core::node::Call::default();
        record.in_flight.answer = Some(ResourceAnswer {
            asked: ask.asked,
            began: ask.began,
            at: now,
            outcome,
        });
    }

    /// Lets everything in flight happen, without another plan.
    pub fn drain(&mut self) {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            self.now = self.now.max(at);
            self.happen(event);
        }
        self.now += 60_000;
    }
}
