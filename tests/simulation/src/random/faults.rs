//! Fault injection.

use std::{sync::atomic::Ordering, time::Duration};

use drover_core::Error;
use drover_platform_cloud::drivers::simulated::{Death, Fault, Operation, SimulatedSettings};

use drover_proto::{orchestrator::v1 as pb, platform::v1::health_policy};

use super::{Run, model::NodeKey, operator::serves};
use crate::{Site, Way};

const OPERATIONS: [Operation; 9] = [
    Operation::List,
    Operation::Create,
    Operation::Delete,
    Operation::Update,
    Operation::Ensure,
    Operation::Release,
    Operation::EnsureAddon,
    Operation::RemoveAddon,
    Operation::ListAddons,
];

impl Run {
    pub(super) async fn disturb(&mut self) {
        let at = self.random.usize(..self.model.sites.len());
        if self.model.sites[at].lost {
            return;
        }
        match self.random.u8(..115) {
            0..14 => self.kill(at),
            14..24 => self.sicken(at),
            24..34 => self.heal(at),
            34..46 => self.fail_a_call(at),
            46..54 => self.stop_or_start(at),
            54..60 => self.cut_or_join(at),
            60..66 => self.freeze_or_thaw(at),
            66..70 => self.impersonate(at),
            70..74 => self.other_uid(at),
            74..79 => self.limit(at),
            79..85 => self.die_soon(),
            85..92 => self.restart_with_another_clock().await,
            92..95 => self.jump(),
            95..98 => self.break_the_store(),
            98..100 => self.slow_the_store(),
            100..110 => self.deafen(at),
            110 => self.take_away_a_network(at),
            111 | 112 => self.damage_an_addon(at),
            113 => self.burn(at),
            _ => self.overtake().await,
        }
    }

    /// A random living node of a platform.
    fn anyone(&mut self, at: usize) -> Option<(NodeKey, drover_proto::platform::v1::Node)> {
        let nodes = self.model.sites[at].real.all();
        if nodes.is_empty() {
            return None;
        }
        let node = nodes[self.random.usize(..nodes.len())].clone();
        Some(((at, node.node_id.clone()), node))
    }

    fn kill(&mut self, at: usize) {
        let Some((key, node)) = self.anyone(at) else {
            return;
        };
        let how = [Death::Failed, Death::Terminated, Death::Vanished][self.random.usize(..3)];
        self.note(format!("{} of {} dies: {how:?}", key.1, node.cluster_id));
        self.model.hurt(&key);
        let site = &self.model.sites[at];
        let died = site.real.backend.kill(&key.1, how);
        if let (true, Death::Vanished, Some(slot)) = (died, how, &node.slot) {
            let slot = (slot.request_id.clone(), slot.index.unwrap_or_default());
            *self.model.vanished.entry(slot).or_default() += 1;
        }
        self.model.unready.remove(&key);
        self.count("a node dies", died);
    }

    fn sicken(&mut self, at: usize) {
        let Some((key, node)) = self.anyone(at) else {
            return;
        };
        if !serves(&node) {
            return;
        }
        self.note(format!("{} of {} is not ready", key.1, node.cluster_id));
        self.model.hurt(&key);
        // It may recover after its replacement was created.
        self.model.one_too_many(&node.cluster_id, &node.group);
        let done = self.model.sites[at].real.backend.set_ready(&key.1, false);
        self.model.unready.insert(key);
        self.count("a node is not ready", done);
    }

    fn heal(&mut self, at: usize) {
        let of: Vec<_> = self
            .model
            .unready
            .iter()
            .filter(|key| key.0 == at)
            .cloned()
            .collect();
        if of.is_empty() {
            return;
        }
        let key = of[self.random.usize(..of.len())].clone();
        self.note(format!("{} is ready again", key.1));
        let done = self.model.sites[at].real.backend.set_ready(&key.1, true);
        self.model.unready.remove(&key);
        self.count("a node is ready again", done);
    }

    fn fail_a_call(&mut self, at: usize) {
        let operation = OPERATIONS[self.random.usize(..OPERATIONS.len())];
        let fault = match self.random.u8(..3) {
            0 => Fault::Refuse(Error::unavailable("not now")),
            1 => Fault::LoseAnswer,
            _ => Fault::Stall(Duration::from_secs(self.random.u64(1..40))),
        };
        self.note(format!(
            "{operation:?} of {}: {fault:?}",
            self.model.sites[at].name
        ));
        self.model.sites[at]
            .real
            .backend
            .fail_next(operation, fault);
        self.count("a call of a platform fails", true);
    }

    fn stop_or_start(&mut self, at: usize) {
        let site = &mut self.model.sites[at];
        site.down = !site.down;
        let what = if site.down {
            site.real.stop();
            "stops"
        } else {
            site.real.start();
            "starts"
        };
        let what = format!("server of {} {what}", site.name);
        self.note(what);
        self.count("a platform server stops or starts", true);
    }

    fn cut_or_join(&mut self, at: usize) {
        let cut = self.random.bool();
        self.note(format!(
            "backend of {} reachable: {}",
            self.model.sites[at].name, !cut
        ));
        self.model.sites[at].real.backend.pause_backend(cut);
        self.count("a backend is cut off or back", true);
    }

    fn freeze_or_thaw(&mut self, at: usize) {
        let frozen = self.random.bool();
        self.note(format!(
            "{} shows an old picture: {frozen}",
            self.model.sites[at].name
        ));
        self.model.sites[at].real.backend.freeze_visibility(frozen);
        self.count("a backend shows an old picture or not", true);
    }

    /// Replaces a backend by an impostor that claims its uid and has no nodes, or restores it. Only if so many nodes
    /// would be missing that no orchestrator may believe it.
    fn impersonate(&mut self, at: usize) {
        let site = &mut self.model.sites[at];
        if site.impostor {
            self.world.sites.put(&site.endpoint, &site.real);
            site.impostor = false;
            let what = format!("{} shows its nodes again", site.name);
            return self.note(what);
        }
        let known = self.model.nodes.iter();
        let sound = known
            .filter(|(key, node)| key.0 == at && node.sound)
            .count();
        if sound < ENOUGH {
            return;
        }
        let empty = Site::new(SimulatedSettings {
            name: site.name.clone(),
            uid: Some(site.uid.clone()),
            capacity: Some(0),
            ..SimulatedSettings::default()
        });
        self.world.sites.put(&site.endpoint, &empty);
        site.impostor = true;
        // Closes the connections to the actual platform server.
        if !site.down {
            site.real.stop();
            site.real.start();
        }
        let what = format!("{} shows no nodes at all", site.name);
        self.note(what);
        self.count("a platform shows no nodes", true);
    }

    /// Changes the uid of the backend: the orchestrator must not trust it until the uid is restored or the platform is
    /// rebound.
    fn other_uid(&mut self, at: usize) {
        let site = &mut self.model.sites[at];
        let own = format!("simulated:{}", site.name);
        site.uid = if site.uid == own {
            format!("{own}:2")
        } else {
            own
        };
        site.renamed = true;
        site.real.backend.set_uid(&site.uid);
        if !site.down {
            site.real.stop();
            site.real.start();
        }
        let what = format!("{} says to be {}", site.name, site.uid);
        self.note(what);
        self.count("a backend has another uid", true);
    }

    /// Lets commands fail in all nodes of a platform although the nodes are healthy. Only if so many are probed that
    /// the nodes cannot be the cause: fewer may be replaced.
    fn deafen(&mut self, at: usize) {
        let names = self.model.wanted().into_iter();
        let most = names.max_by_key(|name| self.asked(at, name));
        let most = most.filter(|name| self.asked(at, name) >= ENOUGH);
        let deaf = match self.model.sites[at].deaf {
            Some(_) => None,
            None if most.is_none() => return,
            None => most,
        };
        if let Some(name) = &deaf {
            // Other clusters may be probed more often and have few nodes there.
            self.hurt(at, |cluster| cluster != name);
        }
        self.model.sites[at].real.backend.deafen(deaf.is_some());
        self.note(format!(
            "commands fail in all nodes of {}: {}",
            self.model.sites[at].name,
            deaf.is_some()
        ));
        self.model.sites[at].deaf = deaf;
        self.count("commands fail in all nodes of a platform, or not", true);
    }

    /// Number of sound nodes of a cluster on a platform that are probed by commands.
    pub(super) fn asked(&self, at: usize, name: &str) -> usize {
        let known = self.model.clusters.get(name);
        if !known.is_some_and(|known| has_probe(&known.spec)) {
            return 0;
        }
        let nodes = self.model.nodes.iter();
        nodes
            .filter(|(key, node)| key.0 == at && node.cluster == name && node.sound)
            .count()
    }

    /// Marks the nodes on a platform that are probed by commands as possibly failed, so that they may be replaced.
    pub(super) fn hurt(&mut self, at: usize, of: impl Fn(&str) -> bool) {
        let probed = |name: &str| {
            let known = self.model.clusters.get(name);
            known.is_some_and(|known| has_probe(&known.spec))
        };
        for (key, node) in &mut self.model.nodes {
            if key.0 == at && of(&node.cluster) && probed(&node.cluster) {
                node.sound = false;
            }
        }
    }

    fn limit(&mut self, at: usize) {
        let capacity = self.random.bool().then(|| self.random.u32(..6));
        self.note(format!(
            "room on {}: {capacity:?}",
            self.model.sites[at].name
        ));
        self.model.sites[at].real.backend.set_capacity(capacity);
        self.count("a platform is full or not", true);
    }

    fn die_soon(&mut self) {
        let nth = self.random.usize(1..12);
        self.note(format!("the orchestrator dies at hit {nth} from now"));
        self.world.crash.arm(nth);
        self.count("the orchestrator dies at a point", true);
    }

    pub(super) async fn restart_with_another_clock(&mut self) {
        let off = match self.random.u8(..4) {
            0 => self.random.i64(-7_200_000..7_200_000),
            // An empty battery, or somebody set the clock.
            1 if self.random.u8(..4) == 0 => self.random.i64(-40 * DAY..40 * DAY),
            _ => 0,
        };
        self.note(format!(
            "the orchestrator starts again, its clock is {off} ms off"
        ));
        self.world.clock_error.store(off, Ordering::Relaxed);
        self.world.disk.faults().restart();
        self.world.restart().await;
        self.count("the orchestrator starts again", true);
    }

    /// The lead goes to another orchestrator, and the former one does not know it, or what it knows and what it hears changes.
    async fn overtake(&mut self) {
        if self.world.overtaken() > 0 && self.random.bool() {
            if self.random.bool() {
                self.note("those that were overtaken reach the store again");
                self.world.rejoin_overtaken();
            } else {
                self.note("those that were overtaken end");
                self.world.end_overtaken().await;
            }
            return;
        }
        let way = if self.random.bool() {
            Way::Silent
        } else {
            Way::Refused
        };
        let late = Duration::from_millis(self.random.u64(..10_000));
        self.note(format!(
            "the orchestrator is cut off ({way:?}), its calls are up to {late:?} late; another one takes over"
        ));
        self.world.disk.faults().restart();
        self.world.overtake(way, late).await;
        self.count("another orchestrator takes over", true);
    }

    fn jump(&mut self) {
        let off = self.random.i64(-600_000..600_000);
        self.note(format!("the clock jumps: it is {off} ms off"));
        self.world.clock_error.store(off, Ordering::Relaxed);
        self.count("the clock jumps", true);
    }

    fn break_the_store(&mut self) {
        let share = if self.random.bool() {
            0.0
        } else {
            self.random.f64() * 0.3
        };
        self.note(format!("{share:.2} of commits fail"));
        let seed = self.random.u64(..);
        self.world.disk.faults().inject_randomly(seed, share);
        self.count("the store fails or not", true);
    }

    fn slow_the_store(&mut self) {
        let slow = self.random.bool();
        let wait = |random: &mut fastrand::Rng| {
            Duration::from_millis(if slow { random.u64(..500) } else { 0 })
        };
        let (before, after) = (wait(&mut self.random), wait(&mut self.random));
        self.note(format!("commits take {before:?} and {after:?}"));
        self.world.disk.delay(before, after);
        self.count("the store is slow or not", true);
    }
}

/// Whether the nodes of a cluster are probed by a command.
fn has_probe(spec: &pb::ClusterSpec) -> bool {
    let health = spec.health.as_ref();
    health.is_some_and(|health| matches!(health.probe, Some(health_policy::Probe::Exec(_))))
}

/// With this many nodes on a platform, it is implausible that all of them vanish or fail at once.
const ENOUGH: usize = 6;
/// This few nodes may plausibly be unhealthy, and are replaced.
pub(super) const FEW: usize = 4;
/// A day in milliseconds.
const DAY: i64 = 24 * 3600 * 1000;
