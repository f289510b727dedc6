//! Deterministic simulation: an orchestrator over an in-memory store and simulated platforms, in virtual time, that
//! crashes at chosen crash points, or is overtaken by another one without knowing; and [`random`], an operator that exercises
//! it at random.

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
mod host;
pub mod random;
pub mod restored;
pub mod runs;
mod sites;

pub use disk::Disk;
pub use host::{Host, Way};
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

/// Virtual time that a condition may take: beyond all deadlines of a hanging call and every backoff.
pub const PATIENCE: Duration = Duration::from_secs(3600);
/// Virtual deadline of a user's call.
const CALL: Duration = Duration::from_secs(60);

/// A runtime whose clock stands still while there is work, and jumps to the next timer otherwise.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

/// Crashes the orchestrator at chosen hits of crash points.
pub struct Crash {
    hits: AtomicUsize,
    at: Mutex<BTreeSet<usize>>,
    died: Mutex<Vec<(usize, Point)>>,
    dead: watch::Sender<bool>,
}

impl Crash {
    /// Crashes at these hits, counted over all crash points.
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

    /// Crashes at the `nth` hit from now on; 1 is the next.
    pub fn arm(&self, nth: usize) {
        let hit = self.hits.load(Ordering::Relaxed) + nth;
        self.at.lock().insert(hit);
    }

    /// Removes all pending crashes.
    pub fn disarm(&self) {
        self.at.lock().clear();
    }

    /// Crashes immediately.
    pub fn die(&self) {
        self.dead.send_replace(true);
    }

    pub fn is_dead(&self) -> bool {
        *self.dead.borrow()
    }

    /// Hits and crash points of the crashes so far.
    pub fn died(&self) -> Vec<(usize, Point)> {
        self.died.lock().clone()
    }

    async fn wait(&self) {
        let _ = self.dead.subscribe().wait_for(|dead| *dead).await;
    }
}

/// Desired sizes by group.
pub type Groups = BTreeMap<String, u32>;

/// An orchestrator with the platform `sim` at `http://sim`.
pub struct World {
    pub crash: Arc<Crash>,
    pub disk: Arc<Disk>,
    pub sites: Sites,
    pub site: Arc<Site>,
    pub orchestrator: Option<Orchestrator>,
    host: Arc<Host>,
    /// Orchestrators in whose place another one leads, and that may not know it.
    overtaken: Vec<(Orchestrator, Arc<Host>)>,
    /// Requests to platforms of such orchestrators that have ended.
    pub late_requests: u64,
    /// Cached while the orchestrator is running, because creating a client takes longer than many calls.
    client: Option<OrchestratorClient>,
    pub wanted: BTreeMap<String, Groups>,
    /// Infrastructure requested by every applied cluster.
    pub below: Vec<pb::Infrastructure>,
    pub restarts: usize,
    /// Clock error of the orchestrator's machine in milliseconds.
    pub clock_error: Arc<AtomicI64>,
    /// How often a node of a slot vanished without a trace, by request id and index.
    vanished: BTreeMap<(String, u32), u32>,
    /// Uids of deleted clusters.
    gone: Vec<String>,
}

impl World {
    pub async fn new(settings: SimulatedSettings, crash: Arc<Crash>) -> Self {
        let site = Site::new(settings);
        let sites = Sites::default();
        sites.put("http://sim", &site);
        Self::over(Disk::new(), sites, site, crash).await
    }

    /// Creates a world with an existing store and sites, and registers the first site.
    pub async fn over(disk: Arc<Disk>, sites: Sites, site: Arc<Site>, crash: Arc<Crash>) -> Self {
        let mut world = Self {
            crash,
            host: Host::new(disk.clone()),
            overtaken: Vec::new(),
            late_requests: 0,
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
        // A supervisor would restart the process if its store was unavailable.
        for attempt in 0.. {
            let Err(error) = self.try_start().await else {
                return;
            };
            assert!(attempt < 20, "it does not start: {error}");
            if attempt > 10 {
                // With a high fault rate one of the commits always fails, or together they outlast a lease.
                self.disk.faults().restart();
                self.disk.delay(Duration::ZERO, Duration::ZERO);
            }
            self.host.bury().await;
            sleep(Duration::from_secs(1)).await;
        }
    }

    async fn try_start(&mut self) -> Result<()> {
        self.host = Host::new(self.disk.clone());
        let store = Store::open(self.host.clone()).await?;
        store.vacancy().await?;
        if let Some(keys) = self.disk.keyring() {
            store.unlock(keys).await?;
        }
        let connector = self.sites.connector(self.host.clone());
        let hooks = self.crash.hooks();
        let hooks = hooks.with_clock_error(self.clock_error.clone());
        // Unoptimized futures are large, and the stack of a test thread is 2 MB.
        let orchestrator = Box::pin(Orchestrator::start(store, connector, hooks)).await?;
        let client = OrchestratorClient::new(in_process(orchestrator.routes()));
        (self.orchestrator, self.client) = (Some(orchestrator), Some(client));
        Ok(())
    }

    /// Kills the process and starts it again.
    pub async fn restart(&mut self) {
        self.end().await;
        self.begin().await;
    }

    /// Kills the process.
    async fn end(&mut self) {
        self.client = None;
        self.crash.die();
        if let Some(dead) = self.orchestrator.take() {
            dead.kill().await;
        }
        self.host.bury().await;
        self.end_overtaken().await;
        self.disk.bury().await;
    }

    /// Cuts the orchestrator off from its store, and has what it sends to platforms arrive late. Another one leads when its
    /// lease has ended; it may go on until [`Self::end_overtaken`].
    pub async fn overtake(&mut self, way: Way, late: Duration) {
        let Some(former) = self.orchestrator.take() else {
            return;
        };
        self.client = None;
        self.host.set_way(way);
        self.host.be_late(late);
        self.overtaken.push((former, self.host.clone()));
        self.restarts += 1;
        self.start().await;
    }

    /// Number of orchestrators that were overtaken and live.
    pub fn overtaken(&self) -> usize {
        self.overtaken.len()
    }

    /// Has those that were overtaken reach the store again.
    pub fn rejoin_overtaken(&self) {
        for (_, host) in &self.overtaken {
            host.set_way(Way::Open);
        }
    }

    /// Kills those that were overtaken.
    pub async fn end_overtaken(&mut self) {
        for (former, host) in std::mem::take(&mut self.overtaken) {
            // Nothing that it waits for holds up its end.
            host.set_way(Way::Refused);
            former.kill().await;
            host.bury().await;
            self.late_requests += host.late_requests();
        }
    }

    /// Starts the process again.
    async fn begin(&mut self) {
        self.crash.dead.send_replace(false);
        self.restarts += 1;
        self.start().await;
    }

    pub fn client(&self) -> OrchestratorClient {
        self.client.clone().unwrap()
    }

    /// Makes a call as a user, who repeats it if the orchestrator crashes meanwhile.
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

    /// Lets virtual time pass, restarting after crashes.
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

    /// Kills nodes of a cluster, newest first. Returns how many were killed.
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

/// Virtual time after which a wrong assumption would have shown: beyond every grace period and every deadline.
pub const LONG: Duration = Duration::from_secs(20 * 60);

/// A backend with a fixed seed.
pub fn settings() -> SimulatedSettings {
    SimulatedSettings {
        seed: Some(1),
        ..SimulatedSettings::default()
    }
}

/// Never crashes the process.
pub fn immortal() -> Arc<Crash> {
    Crash::at([])
}

/// A cluster with groups on one platform.
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

/// Waits for a short virtual time.
pub async fn tick() {
    sleep(Duration::from_millis(10)).await;
}
