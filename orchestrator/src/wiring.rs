//! Builds the parts of an orchestrator, each with what it uses.

use std::{sync::Arc, time::Duration};

use drover_cluster::{Clusters, Interner, NodeCounts};
use drover_core::{Result, Urgency};
use drover_executor::{Executor, Hooks};
use drover_platforms::{Connector, Platforms};
use drover_probes::{Probes, Reach};
use drover_secrets::Vault;
use drover_store::{Clock, DigestKey, PlatformRow, Shards, Store, Versioned};

use crate::{
    calls::Dispatcher,
    commit::Committer,
    expiry::Expiry,
    intake::Intake,
    load::Contents,
    observer::Observer,
    planning::Planner,
    queue::Queue,
    readiness::ReadinessReporter,
    rebind::Rebinder,
    reconcile::{Finisher, Preparer, Reconciler, Turns},
    records::Records,
    registry::Registry,
    resources::{Leaks, sweep::Sweep},
    safety::SafetySweep,
    secrets::Secrets,
    space::Space,
    status::Viewer,
    tasks::Tasks,
    tombstones::{LateNodes, Tombstones},
    waiter::Waiters,
};

mod api;
#[cfg(test)]
mod fixture;

/// How long the first plans wait for platforms to show what they have, and how often it is looked.
const FIRST_LOOK: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What several parts use. Only this module knows all of it.
pub(crate) struct Wiring {
    pub(crate) store: Arc<Store>,
    shards: Shards,
    digests: Arc<DigestKey>,
    pub(crate) interner: Arc<Interner>,
    pub(crate) clock: Arc<Clock>,
    clusters: Arc<Clusters>,
    pub(crate) records: Arc<Records>,
    vault: Arc<Vault>,
    pub(crate) platforms: Arc<Platforms>,
    probes: Arc<Probes>,
    executor: Arc<Executor>,
    pub(crate) queue: Queue,
    pub(crate) tasks: Tasks,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) tombstones: Arc<Tombstones>,
    pub(crate) leaks: Arc<Leaks>,
    committer: Arc<Committer>,
    pub(crate) readiness: ReadinessReporter,
    pub(crate) space: Arc<Space>,
    hooks: Hooks,
}

/// The platforms that the store has, with the numbers of nodes on each.
pub(crate) struct Followed {
    platforms: Vec<Versioned<PlatformRow>>,
    counts: NodeCounts,
}

impl Wiring {
    /// The parts, with what the store has. Returns besides what is to be followed, with [`Self::follow`].
    pub(crate) fn new(
        store: Arc<Store>,
        shards: Shards,
        contents: Contents,
        connector: Connector,
        reach: Reach,
        hooks: Hooks,
    ) -> (Self, Followed) {
        let Contents {
            digests,
            interner,
            vault,
            fleet,
            tombstones: deleted,
            platforms: registered,
        } = contents;
        let clock = Arc::new(Clock::new(hooks.wall()));
        let behind = clock.not_before(fleet.latest);
        if behind > 0 {
            tracing::warn!(
                behind_ms = behind,
                "the clock of this machine is behind what the store has recorded; time goes on from there"
            );
        }
        let clusters = fleet.clusters;
        let platforms = Arc::new(Platforms::new(
            connector,
            vault.clone(),
            store.clone(),
            shards.clone(),
            clock.clone(),
        ));
        let probes = Arc::new(Probes::new(
            clusters.clone(),
            platforms.clone(),
            vault.clone(),
            clock.clone(),
            reach,
        ));
        let records = Arc::new(Records::new(
            store.clone(),
            shards.clone(),
            interner.clone(),
            digests.clone(),
            clusters.clone(),
        ));
        records.wrote(store.revision());
        let tombstones = Arc::new(Tombstones::default());
        for (uid, tombstone) in deleted {
            tombstones.load(uid, &tombstone.value);
        }
        let tasks = Tasks::default();
        let followed = Followed {
            platforms: registered,
            counts: fleet.counts,
        };
        let this = Self {
            executor: Arc::new(Executor {
                clusters: clusters.clone(),
                platforms: platforms.clone(),
                probes: probes.clone(),
                vault: vault.clone(),
                interner: interner.clone(),
                clock: clock.clone(),
                hooks: hooks.clone(),
            }),
            committer: Arc::new(Committer {
                store: store.clone(),
                records: records.clone(),
                digests: digests.clone(),
                tombstones: tombstones.clone(),
                platforms: platforms.clone(),
                probes: probes.clone(),
                clock: clock.clone(),
            }),
            readiness: ReadinessReporter::new(tasks.stop().clone()),
            queue: Queue::default(),
            waiters: Arc::default(),
            leaks: Arc::default(),
            space: Arc::default(),
            store,
            shards,
            digests,
            interner,
            clock,
            clusters,
            records,
            vault,
            platforms,
            probes,
            tasks,
            tombstones,
            hooks,
        };
        (this, followed)
    }

    /// Begins to follow the platforms that are registered.
    pub(crate) async fn follow(
        &self,
        followed: Followed,
        registry: &Arc<Registry>,
        secrets: &Secrets,
    ) -> Result<()> {
        registry.load(followed.platforms, &followed.counts)?;
        secrets.keep_purposes(&self.store, &self.records).await
    }

    /// Starts to keep the clusters as they are wanted.
    pub(crate) fn spawn(&self) {
        let tasks = &self.tasks;
        tasks.spawn_until_stop(plan_all(
            self.clusters.clone(),
            self.platforms.clone(),
            self.queue.clone(),
            self.clock.clone(),
        ));
        tasks.spawn(Arc::new(self.reconciler()).run());
        let queue = self.queue.clone();
        let crossed = move |cluster| queue.push(cluster, Urgency::Urgent);
        let (stop, tracker) = (tasks.stop().clone(), tasks.tracker().clone());
        tasks.spawn(self.probes.clone().run(stop, tracker, crossed));
        tasks.spawn_until_stop(self.safety_sweep().run());
        tasks.spawn(self.expiry().run(tasks.stop().clone()));
        tasks.spawn_until_stop(self.late_nodes().run());
        tasks.spawn_until_stop(self.sweep().run());
    }

    fn observer(&self) -> Observer {
        Observer {
            interner: self.interner.clone(),
            platforms: self.platforms.clone(),
            probes: self.probes.clone(),
        }
    }

    fn planner(&self) -> Planner {
        Planner {
            platforms: self.platforms.clone(),
            vault: self.vault.clone(),
            store: self.store.clone(),
            clock: self.clock.clone(),
        }
    }

    fn viewer(&self) -> Viewer {
        Viewer {
            platforms: self.platforms.clone(),
            digests: self.digests.clone(),
            clock: self.clock.clone(),
        }
    }

    pub(crate) fn intake(&self) -> Intake {
        Intake {
            records: self.records.clone(),
            queue: self.queue.clone(),
            platforms: self.platforms.clone(),
            observer: self.observer(),
            tombstones: self.tombstones.clone(),
            vault: self.vault.clone(),
            interner: self.interner.clone(),
            clock: self.clock.clone(),
        }
    }

    pub(crate) fn rebinder(&self) -> Rebinder {
        Rebinder {
            records: self.records.clone(),
            committer: self.committer.clone(),
            interner: self.interner.clone(),
            queue: self.queue.clone(),
            clock: self.clock.clone(),
        }
    }

    pub(crate) fn registry(&self) -> Registry {
        Registry {
            store: self.store.clone(),
            records: self.records.clone(),
            platforms: self.platforms.clone(),
            intake: Arc::new(self.intake()),
            rebinder: self.rebinder(),
            tombstones: self.tombstones.clone(),
            leaks: self.leaks.clone(),
            interner: self.interner.clone(),
            queue: self.queue.clone(),
            tasks: self.tasks.clone(),
            clock: self.clock.clone(),
        }
    }

    pub(crate) fn secrets(&self) -> Secrets {
        Secrets::new(
            self.vault.clone(),
            self.clusters.clone(),
            self.platforms.clone(),
        )
    }

    fn preparer(&self) -> Preparer {
        Preparer {
            planner: self.planner(),
            records: self.records.clone(),
            platforms: self.platforms.clone(),
            probes: self.probes.clone(),
            vault: self.vault.clone(),
            waiters: self.waiters.clone(),
            queue: self.queue.clone(),
        }
    }

    fn finisher(&self) -> Finisher {
        Finisher {
            store: self.store.clone(),
            records: self.records.clone(),
            committer: self.committer.clone(),
            tombstones: self.tombstones.clone(),
            queue: self.queue.clone(),
            clock: self.clock.clone(),
            hooks: self.hooks.clone(),
        }
    }

    fn dispatcher(&self) -> Dispatcher {
        Dispatcher {
            executor: self.executor.clone(),
            tasks: self.tasks.clone(),
            leaks: self.leaks.clone(),
            waiters: self.waiters.clone(),
            observer: self.observer(),
            records: self.records.clone(),
            queue: self.queue.clone(),
        }
    }

    pub(crate) fn reconciler(&self) -> Reconciler {
        Reconciler {
            queue: self.queue.clone(),
            tasks: self.tasks.clone(),
            records: self.records.clone(),
            waiters: self.waiters.clone(),
            preparer: self.preparer(),
            committer: self.committer.clone(),
            finisher: self.finisher(),
            dispatcher: self.dispatcher(),
            clock: self.clock.clone(),
            hooks: self.hooks.clone(),
            turns: Turns::new(),
        }
    }

    fn safety_sweep(&self) -> SafetySweep {
        SafetySweep {
            records: self.records.clone(),
            queue: self.queue.clone(),
            platforms: self.platforms.clone(),
            clock: self.clock.clone(),
            hooks: self.hooks.clone(),
        }
    }

    fn expiry(&self) -> Expiry {
        Expiry {
            tombstones: self.tombstones.clone(),
            leaks: self.leaks.clone(),
            store: self.store.clone(),
            shards: self.shards.clone(),
            clock: self.clock.clone(),
        }
    }

    fn late_nodes(&self) -> LateNodes {
        LateNodes {
            tombstones: self.tombstones.clone(),
            platforms: self.platforms.clone(),
            executor: self.executor.clone(),
            store: self.store.clone(),
            clock: self.clock.clone(),
        }
    }

    fn sweep(&self) -> Sweep {
        Sweep {
            records: self.records.clone(),
            queue: self.queue.clone(),
            tombstones: self.tombstones.clone(),
            leaks: self.leaks.clone(),
            platforms: self.platforms.clone(),
            executor: self.executor.clone(),
            store: self.store.clone(),
            clock: self.clock.clone(),
        }
    }
}

/// Plans every cluster once. Without what platforms show a plan can only say that it does not know, and ten thousand of
/// them would hold up just that.
async fn plan_all(
    clusters: Arc<Clusters>,
    platforms: Arc<Platforms>,
    queue: Queue,
    clock: Arc<Clock>,
) {
    let looks = async {
        while platforms.are_hidden(clock.now()) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    let _ = tokio::time::timeout(FIRST_LOOK, looks).await;
    for cluster in clusters.all() {
        queue.push(cluster.uid(), Urgency::Bulk);
    }
}
