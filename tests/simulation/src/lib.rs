//! An orchestrator over a store in memory and simulated platforms, in virtual time, that dies where it is told to; and
//! [`random`], an operator who does anything at all with it.

#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "shared by several tests, which fail when they cannot go on"
)]

mod calls;
mod checks;
mod disk;
pub mod random;
pub mod restored;
pub mod runs;
mod sites;

pub use disk::Disk;
pub use sites::{Site, Sites};

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use drover_client::{OrchestratorClient, in_process};
use drover_core::Result;
use drover_orchestrator::{Hooks, Orchestrator, Point};
use drover_platform_cloud::drivers::simulated::{Death, SimulatedSettings};
use drover_proto::orchestrator::v1 as pb;
use drover_store::Store;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

/// Virtual time that a condition may take: more than all deadlines of a call that never ends, and every back-off.
pub const PATIENCE: Duration = Duration::from_secs(3600);
/// Virtual deadline of a user's call.
const CALL: Duration = Duration::from_secs(60);

/// A runtime whose clock stands still while there is work, and jumps to the next timer when there is none.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

/// Where the orchestrator dies.
pub struct Crash {
    hits: AtomicUsize,
    at: Mutex<BTreeSet<usize>>,
    died: Mutex<Vec<(usize, Point)>>,
    dead: watch::Sender<bool>,
}

impl Crash {
    /// At these hits, counted over all points.
    pub fn at(hits: impl IntoIterator<Item = usize>) -> Arc<Self> {
        Arc::new(Self {
            hits: AtomicUsize::new(0),
            at: Mutex::new(hits.into_iter().collect()),
            died: Mutex::default(),
            dead: watch::Sender::new(false),
        })
    }

    fn hooks(self: &Arc<Self>) -> Hooks {
        let crash = self.clone();
        Hooks::new(move |point| crash.reach(point))
    }

    fn reach(&self, point: Point) -> bool {
        if *self.dead.borrow() {
            return true;
        }
        let hit = self.hits.fetch_add(1, Ordering::Relaxed) + 1;
        let dies = self.at.lock().contains(&hit);
        if dies {
            self.died.lock().push((hit, point));
            self.dead.send_replace(true);
        }
        dies
    }

    /// Dies at the `nth` hit from now on; 1 is the next.
    pub fn arm(&self, nth: usize) {
        let hit = self.hits.load(Ordering::Relaxed) + nth;
        self.at.lock().insert(hit);
    }

    /// Dies nowhere that is still ahead.
    pub fn disarm(&self) {
        self.at.lock().clear();
    }

    /// Dies here and now.
    pub fn die(&self) {
        self.dead.send_replace(true);
    }

    pub fn is_dead(&self) -> bool {
        *self.dead.borrow()
    }

    /// Where it died.
    pub fn died(&self) -> Vec<(usize, Point)> {
        self.died.lock().clone()
    }

    async fn wait(&self) {
        let _ = self.dead.subscribe().wait_for(|dead| *dead).await;
    }
}

/// What is wanted: sizes by group.
pub type Groups = BTreeMap<String, u32>;

/// An orchestrator with the platform `sim` at `http://sim`.
pub struct World {
    pub crash: Arc<Crash>,
    pub disk: Arc<Disk>,
    pub sites: Sites,
    pub site: Arc<Site>,
    pub orchestrator: Option<Orchestrator>,
    /// A way to it, as long as it runs: making one takes longer than many calls.
    client: Option<OrchestratorClient>,
    pub wanted: BTreeMap<String, Groups>,
    /// Infrastructure that every applied cluster asks for.
    pub below: Vec<pb::Infrastructure>,
    pub restarts: usize,
    /// How many milliseconds the clock of its machine is off.
    pub clock_error: Arc<AtomicI64>,
    /// How often a node of a slot vanished without a trace.
    vanished: BTreeMap<(String, u32), u32>,
    /// Uids of clusters that are gone.
    gone: Vec<String>,
}

impl World {
    pub async fn new(settings: SimulatedSettings, crash: Arc<Crash>) -> Self {
        let site = Site::new(settings);
        let sites = Sites::default();
        sites.put("http://sim", &site);
        Self::over(Disk::new(), sites, site, crash).await
    }

    /// An orchestrator over a store and sites that exist, with the first site registered.
    pub async fn over(disk: Arc<Disk>, sites: Sites, site: Arc<Site>, crash: Arc<Crash>) -> Self {
        let mut world = Self {
            crash,
            disk,
            sites,
            site,
            orchestrator: None,
            client: None,
            wanted: BTreeMap::new(),
            below: Vec::new(),
            restarts: 0,
            clock_error: Arc::default(),
            vanished: BTreeMap::new(),
            gone: Vec::new(),
        };
        world.start().await;
        world.register("sim", "http://sim").await.unwrap();
        world
    }

    async fn start(&mut self) {
        // Whoever supervises it starts it again when its store was not there.
        for attempt in 0.. {
            let Err(error) = self.try_start().await else {
                return;
            };
            assert!(attempt < 20, "it does not start: {error}");
            if attempt > 10 {
                // Of so many commits one always fails, or all together take longer than a lease.
                self.disk.faults().restart();
                self.disk.delay(Duration::ZERO, Duration::ZERO);
            }
            self.disk.bury().await;
            sleep(Duration::from_secs(1)).await;
        }
    }

    async fn try_start(&mut self) -> Result<()> {
        let store = Store::open(self.disk.clone()).await?;
        if let Some(keys) = self.disk.keyring() {
            store.unlock(keys).await?;
        }
        let connector = self.sites.connector();
        let hooks = self.crash.hooks();
        let hooks = hooks.with_clock_error(self.clock_error.clone());
        // Futures without optimisation are large, and a test's thread has 2 MB.
        let orchestrator = Box::pin(Orchestrator::start(store, connector, hooks)).await?;
        let client = OrchestratorClient::new(in_process(orchestrator.routes()));
        (self.orchestrator, self.client) = (Some(orchestrator), Some(client));
        Ok(())
    }

    /// The death of the process, and its next start.
    pub async fn restart(&mut self) {
        self.end().await;
        self.begin().await;
    }

    /// The death of the process.
    async fn end(&mut self) {
        self.client = None;
        if let Some(dead) = self.orchestrator.take() {
            self.crash.die();
            dead.kill().await;
        }
        self.disk.bury().await;
    }

    /// Its next start.
    async fn begin(&mut self) {
        self.crash.dead.send_replace(false);
        self.restarts += 1;
        self.start().await;
    }

    pub fn client(&self) -> OrchestratorClient {
        self.client.clone().unwrap()
    }

    /// A call of a user, who calls again when the orchestrator dies over it.
    pub async fn call<T>(
        &mut self,
        call: impl AsyncFn(OrchestratorClient) -> Result<T>,
    ) -> Result<T> {
        loop {
            let client = self.client();
            let crash = self.crash.clone();
            tokio::select! {
                biased;
                answer = Box::pin(call(client)) => return answer,
                () = crash.wait() => {}
            }
            Box::pin(self.restart()).await;
        }
    }

    /// Lets virtual time pass, whatever dies meanwhile.
    pub async fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let crash = self.crash.clone();
            tokio::select! {
                biased;
                () = crash.wait() => Box::pin(self.restart()).await,
                () = tokio::time::sleep_until(end) => {}
            }
        }
    }

    /// Lets nodes of a cluster die, the newest first. Answers how many there were.
    pub fn kill(&mut self, cluster: &str, count: usize, how: Death) -> usize {
        let nodes = self.site.nodes(cluster);
        let mut killed = 0;
        for node in nodes.iter().rev().take(count) {
            killed += usize::from(self.site.backend.kill(&node.node_id, how));
            if let (Death::Vanished, Some(slot)) = (how, &node.slot) {
                let slot = (slot.request_id.clone(), slot.index.unwrap());
                *self.vanished.entry(slot).or_default() += 1;
            }
        }
        killed
    }
}

/// Virtual time in which a wrong belief would have shown: beyond every grace and every deadline.
pub const LONG: Duration = Duration::from_secs(20 * 60);

/// A backend whose chances are always the same.
pub fn settings() -> SimulatedSettings {
    SimulatedSettings {
        seed: Some(1),
        ..SimulatedSettings::default()
    }
}

/// A process that nothing kills.
pub fn immortal() -> Arc<Crash> {
    Crash::at([])
}

/// A cluster of groups on one platform.
pub fn document(name: &str, platform: &str, groups: &[(&str, u32)]) -> pb::Cluster {
    let group = |(name, size): &(&str, u32)| pb::GroupSpec {
        name: (*name).to_owned(),
        size: Some(*size),
        ..Default::default()
    };
    let spec = pb::ClusterSpec {
        platforms: vec![pb::PlatformChoice {
            name: platform.to_owned(),
            ..Default::default()
        }],
        groups: groups.iter().map(group).collect(),
        ..Default::default()
    };
    pb::Cluster {
        name: name.to_owned(),
        spec: Some(spec),
        ..Default::default()
    }
}

/// Waits a little of virtual time.
pub async fn tick() {
    sleep(Duration::from_millis(10)).await;
}
