//! An orchestrator over a store in memory and simulated platforms, in virtual time, that dies where it is told to.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "shared by several tests, which fail when they cannot go on"
)]

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use drover_client::{OrchestratorClient, in_process};
use drover_core::{Error, Reason, Result};
use drover_orchestrator::{Connector, Hooks, Orchestrator, Point};
use drover_platform::{clock::Clock, templates::Templates};
use drover_platform_cloud::{
    PlatformServer,
    drivers::simulated::{Death, Simulated, SimulatedHandle, SimulatedSettings},
};
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{Node, NodePhase},
};
use drover_store::{
    Backend, Lane, Revision, Store,
    backend::{CommitError, Info, Lease, LeaseId, Range, Scan, Txn},
    history::Watch,
};
use drover_testing::store::MemoryBackend;
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
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
}

/// Where the orchestrator dies.
pub struct Crash {
    hits: AtomicUsize,
    at: BTreeSet<usize>,
    died: Mutex<Vec<(usize, Point)>>,
    dead: watch::Sender<bool>,
}

impl Crash {
    /// At these hits, counted over all points.
    pub fn at(hits: impl IntoIterator<Item = usize>) -> Arc<Self> {
        Arc::new(Self {
            hits: AtomicUsize::new(0),
            at: hits.into_iter().collect(),
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
        let dies = self.at.contains(&hit);
        if dies {
            self.died.lock().push((hit, point));
            self.dead.send_replace(true);
        }
        dies
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

/// A store that outlives its owners, whose leases die with them.
#[derive(Debug)]
pub struct Disk {
    inner: Arc<MemoryBackend>,
    leases: Mutex<Vec<LeaseId>>,
    /// How long a commit waits before it is made, and before it is answered.
    delay: Mutex<(Duration, Duration)>,
}

impl Disk {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::new(MemoryBackend::new()),
            leases: Mutex::default(),
            delay: Mutex::default(),
        })
    }

    /// Ends what the dead owner held, as the lock of a file goes with its process.
    async fn bury(&self) {
        let leases = std::mem::take(&mut *self.leases.lock());
        for lease in leases {
            self.inner.revoke(lease).await.unwrap();
        }
    }

    /// How long commits wait from now on, before they are made and before they are answered.
    pub fn delay(&self, before: Duration, after: Duration) {
        *self.delay.lock() = (before, after);
    }

    /// All keys, as text.
    pub async fn keys(&self) -> Vec<String> {
        let all = self
            .inner
            .scan(Range::all(), 512)
            .await
            .unwrap()
            .collect()
            .await
            .unwrap();
        all.iter().map(|entry| entry.key.to_string()).collect()
    }
}

#[async_trait]
impl Backend for Disk {
    fn info(&self) -> Info {
        self.inner.info()
    }

    async fn commit(&self, txn: Txn, lane: Lane) -> Result<Revision, CommitError> {
        let (before, after) = *self.delay.lock();
        if (before, after) == (Duration::ZERO, Duration::ZERO) {
            return self.inner.commit(txn, lane).await;
        }
        // As in a real store: once it has its place in the lane, it is made, whoever waits for it.
        let inner = self.inner.clone();
        let made = tokio::spawn(async move {
            sleep(before).await;
            let made = inner.commit(txn, lane).await;
            sleep(after).await;
            made
        });
        made.await.unwrap()
    }

    async fn scan(&self, range: Range, page: usize) -> Result<Scan> {
        self.inner.scan(range, page).await
    }

    async fn watch(&self, after: Revision) -> Result<Watch> {
        self.inner.watch(after).await
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease> {
        let lease = self.inner.lease(ttl).await?;
        self.leases.lock().push(lease.id);
        Ok(lease)
    }

    async fn renew(&self, lease: LeaseId) -> Result<Instant> {
        self.inner.renew(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.inner.revoke(lease).await
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.inner.compact(revision).await
    }
}

/// A simulated backend, and the platform server over it, if one runs.
pub struct Site {
    driver: Arc<Simulated>,
    pub backend: SimulatedHandle,
    server: Mutex<Option<Arc<PlatformServer>>>,
}

impl Site {
    pub fn new(settings: SimulatedSettings) -> Arc<Self> {
        let driver = Simulated::open(settings, Clock::start()).unwrap();
        let site = Arc::new(Self {
            backend: driver.handle(),
            driver,
            server: Mutex::default(),
        });
        site.start();
        site
    }

    /// Starts the server.
    pub fn start(&self) {
        let server = PlatformServer::with_driver(self.driver.clone(), Templates::Anything).unwrap();
        *self.server.lock() = Some(Arc::new(server));
    }

    /// Ends it, as a crash does: the backend and its nodes know nothing of it.
    pub fn stop(&self) {
        *self.server.lock() = None;
    }

    /// All nodes as they really are, but for those of which a backend only remembers that they have ended.
    pub fn all(&self) -> Vec<Node> {
        let all = self.backend.nodes().into_iter();
        all.filter(|node| node.phase() != NodePhase::Terminated)
            .collect()
    }

    /// Those of a cluster.
    pub fn nodes(&self, cluster: &str) -> Vec<Node> {
        self.all()
            .into_iter()
            .filter(|node| node.cluster_id == cluster)
            .collect()
    }
}

/// Sites by endpoint.
#[derive(Clone, Default)]
pub struct Sites(Arc<Mutex<HashMap<String, Arc<Site>>>>);

impl Sites {
    pub fn put(&self, endpoint: &str, site: &Arc<Site>) {
        self.0.lock().insert(endpoint.to_owned(), site.clone());
    }

    fn connector(&self) -> Connector {
        let sites = self.clone();
        Arc::new(move |spec| {
            let endpoint = spec.endpoint.as_str();
            let site = sites.0.lock().get(endpoint).cloned();
            let server = site.and_then(|site| site.server.lock().clone());
            let server = server
                .ok_or_else(|| Error::unavailable(format!("nobody listens at {endpoint}")))?;
            Ok(in_process(server.routes()))
        })
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
    pub wanted: BTreeMap<String, Groups>,
    /// Infrastructure that every applied cluster asks for.
    pub below: Vec<pb::Infrastructure>,
    pub restarts: usize,
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
            wanted: BTreeMap::new(),
            below: Vec::new(),
            restarts: 0,
            vanished: BTreeMap::new(),
            gone: Vec::new(),
        };
        world.start().await;
        world.register("sim", "http://sim").await.unwrap();
        world
    }

    async fn start(&mut self) {
        let store = Store::open(self.disk.clone()).await.unwrap();
        let orchestrator = Orchestrator::start(store, self.sites.connector(), self.crash.hooks())
            .await
            .unwrap();
        self.orchestrator = Some(orchestrator);
    }

    /// The death of the process, and its next start.
    pub async fn restart(&mut self) {
        if let Some(dead) = self.orchestrator.take() {
            self.crash.die();
            dead.kill().await;
        }
        self.disk.bury().await;
        self.crash.dead.send_replace(false);
        self.restarts += 1;
        self.start().await;
    }

    pub fn client(&self) -> OrchestratorClient {
        OrchestratorClient::new(in_process(self.orchestrator.as_ref().unwrap().routes()))
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
                answer = call(client) => return answer,
                () = crash.wait() => {}
            }
            self.restart().await;
        }
    }

    pub async fn register(
        &mut self,
        name: &str,
        endpoint: &str,
    ) -> Result<pb::RegisterPlatformResponse> {
        let platform = pb::Platform {
            name: name.to_owned(),
            spec: Some(pb::PlatformSpec {
                endpoint: endpoint.to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = pb::RegisterPlatformRequest {
            platform: Some(platform),
            ..Default::default()
        };
        self.call(async |client| client.register_platform(request.clone(), CALL).await)
            .await
    }

    pub async fn platform(&mut self, name: &str) -> pb::Platform {
        let request = pb::GetPlatformRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        let answer = self
            .call(async |client| client.get_platform(request.clone(), CALL).await)
            .await;
        answer.unwrap().platform.unwrap()
    }

    pub async fn try_apply(
        &mut self,
        name: &str,
        groups: &[(&str, u32)],
    ) -> Result<pb::ApplyClusterResponse> {
        self.try_apply_with(name, groups, &|_| {}).await
    }

    /// The same with more in its spec.
    pub async fn try_apply_with(
        &mut self,
        name: &str,
        groups: &[(&str, u32)],
        change: &dyn Fn(&mut pb::ClusterSpec),
    ) -> Result<pb::ApplyClusterResponse> {
        let mut cluster = document(name, "sim", groups);
        change(cluster.spec.as_mut().unwrap());
        if let Some(spec) = &mut cluster.spec {
            spec.infrastructure.clone_from(&self.below);
        }
        let request = pb::ApplyClusterRequest {
            cluster: Some(cluster),
            ..Default::default()
        };
        let answer = self
            .call(async |client| client.apply_cluster(request.clone(), CALL).await)
            .await?;
        let groups = groups
            .iter()
            .map(|(name, size)| ((*name).to_owned(), *size))
            .collect();
        self.wanted.insert(name.to_owned(), groups);
        Ok(answer)
    }

    pub async fn apply(&mut self, name: &str, groups: &[(&str, u32)]) {
        self.try_apply(name, groups).await.unwrap();
    }

    pub async fn scale(&mut self, name: &str, group: &str, size: u32) {
        let request = pb::ScaleGroupRequest {
            cluster: name.to_owned(),
            group: group.to_owned(),
            size: Some(size),
            ..Default::default()
        };
        self.call(async |client| client.scale_group(request.clone(), CALL).await)
            .await
            .unwrap();
        self.wanted
            .get_mut(name)
            .unwrap()
            .insert(group.to_owned(), size);
    }

    /// Asks for the deletion of a cluster.
    pub async fn delete(&mut self, name: &str) {
        let uid = self.cluster(name).await.expect("a cluster to delete").uid;
        let request = pb::DeleteClusterRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        let answer = self
            .call(async |client| client.delete_cluster(request.clone(), CALL).await)
            .await;
        match answer {
            Ok(_) => {}
            // It died after it was durable, and was done with it before it could be asked again.
            Err(error) if error.reason() == Reason::NotFound && self.restarts > 0 => {}
            Err(error) => panic!("{error}"),
        }
        self.wanted.remove(name);
        self.gone.push(uid);
    }

    pub async fn cluster(&mut self, name: &str) -> Option<pb::Cluster> {
        let request = pb::GetClusterRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        match self
            .call(async |client| client.get_cluster(request.clone(), CALL).await)
            .await
        {
            Ok(answer) => answer.cluster,
            Err(error) if error.reason() == Reason::NotFound => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Whether a condition of a cluster or of one of its groups holds.
    pub async fn condition(&mut self, name: &str, kind: &str) -> Option<String> {
        let status = self.cluster(name).await?.status?;
        let groups = status.groups.iter().flat_map(|group| &group.conditions);
        let mut all = status.conditions.iter().chain(groups);
        all.find(|c| c.r#type == kind && c.status == Some(true))
            .map(|c| format!("{}: {}", c.reason, c.message))
    }

    pub async fn records(&mut self, name: &str) -> Vec<pb::Node> {
        let mut nodes = Vec::new();
        let mut request = pb::ListNodesRequest {
            cluster: Some(name.to_owned()),
            page_size: 1000,
            ..Default::default()
        };
        loop {
            let answer = self
                .call(async |client| client.list_nodes(request.clone(), CALL).await)
                .await
                .unwrap();
            nodes.extend(answer.nodes);
            if answer.next_page_token.is_empty() {
                return nodes;
            }
            request.page_token = answer.next_page_token;
        }
    }

    /// Lets virtual time pass, whatever dies meanwhile.
    pub async fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let crash = self.crash.clone();
            tokio::select! {
                biased;
                () = crash.wait() => self.restart().await,
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

    /// What differs from what is wanted; none: all is as it should be.
    pub async fn difference(&mut self) -> Option<String> {
        let mut names: BTreeSet<String> = self.wanted.keys().cloned().collect();
        names.extend(self.site.all().into_iter().map(|node| node.cluster_id));
        for name in names {
            let Some(groups) = self.wanted.get(&name).cloned() else {
                return Some(format!("{name} has nodes and is not wanted"));
            };
            let Some(cluster) = self.cluster(&name).await else {
                return Some(format!("{name} is not there"));
            };
            let status = cluster.status.clone().unwrap();
            if status.observed_generation != cluster.generation {
                return Some(format!(
                    "{name}: generation {} is not taken in",
                    cluster.generation
                ));
            }
            let records = self.records(&name).await;
            let real = self.site.nodes(&name);
            for (group, size) in &groups {
                let size = *size as usize;
                let recorded = records.iter().filter(|node| node.group == *group).count();
                let ready = records
                    .iter()
                    .filter(|node| node.group == *group && node.state() == pb::NodeState::Ready)
                    .count();
                let lives =
                    |node: &&Node| node.phase() == NodePhase::Running && node.ready == Some(true);
                let living = real
                    .iter()
                    .filter(|node| node.group == *group)
                    .filter(lives)
                    .count();
                if (recorded, ready, living) != (size, size, size) {
                    return Some(format!(
                        "{name}/{group}: {size} wanted, {recorded} recorded, {ready} ready, {living} on the platform"
                    ));
                }
            }
            let recorded: BTreeSet<&str> = records
                .iter()
                .filter_map(|node| node.platform_node_id.as_deref())
                .collect();
            let living: BTreeSet<&str> = real.iter().map(|node| node.node_id.as_str()).collect();
            if recorded != living || records.len() != real.len() {
                return Some(format!(
                    "{name}: recorded {recorded:?}, on the platform {living:?}"
                ));
            }
            if status.phase() != pb::ClusterPhase::Ready {
                return Some(format!(
                    "{name}: all nodes are there and it is {:?}",
                    status.phase()
                ));
            }
        }
        let request = pb::ListClustersRequest::default();
        let answer = self
            .call(async |client| client.list_clusters(request.clone(), CALL).await)
            .await
            .unwrap();
        let known: BTreeSet<String> = answer
            .clusters
            .into_iter()
            .map(|cluster| cluster.name)
            .collect();
        let wanted: BTreeSet<String> = self.wanted.keys().cloned().collect();
        (known != wanted).then(|| format!("clusters {known:?}, wanted {wanted:?}"))
    }

    /// Waits until all is as wanted.
    pub async fn converge(&mut self) {
        let end = Instant::now() + PATIENCE;
        let mut wait = Duration::from_millis(20);
        while let Some(difference) = self.difference().await {
            if Instant::now() > end {
                self.explain().await;
                panic!("not as wanted after {PATIENCE:?} of virtual time: {difference}");
            }
            self.pass(wait).await;
            wait = (wait * 3 / 2).min(Duration::from_secs(5));
        }
    }

    /// Waits for a condition of the world.
    pub async fn until(&mut self, what: &str, condition: impl AsyncFn(&mut Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        let mut wait = Duration::from_millis(20);
        while !condition(self).await {
            if Instant::now() > end {
                self.explain().await;
                panic!("{what}: not within {PATIENCE:?} of virtual time");
            }
            self.pass(wait).await;
            wait = (wait * 3 / 2).min(Duration::from_secs(2));
        }
    }

    /// Converges, stays so, and leaves nothing behind.
    pub async fn check(&mut self) {
        self.converge().await;
        let before: BTreeSet<String> = self
            .site
            .all()
            .into_iter()
            .map(|node| node.node_id)
            .collect();
        // Long enough for whatever is still under way to arrive.
        self.pass(Duration::from_secs(15)).await;
        assert_eq!(self.difference().await, None, "it did not stay as wanted");
        let after: BTreeSet<String> = self
            .site
            .all()
            .into_iter()
            .map(|node| node.node_id)
            .collect();
        assert_eq!(before, after, "a converged cluster stays as it is");
        self.assert_no_doubles();
        let keys = self.disk.keys().await;
        for uid in &self.gone {
            let left: Vec<&String> = keys
                .iter()
                .filter(|key| {
                    key.contains(uid.as_str()) && (key.starts_with("c/") || key.starts_with("u/"))
                })
                .collect();
            assert!(left.is_empty(), "a deleted cluster left {left:?}");
        }
        let names: Vec<&String> = keys.iter().filter(|key| key.starts_with("n/")).collect();
        assert_eq!(
            names.len(),
            self.wanted.len(),
            "names that are taken: {names:?}"
        );
    }

    /// No slot was ever made while a node of it was there. A backend that has lost a node without a trace may be asked for
    /// it again, while it is not known whether it was ever made.
    pub fn assert_no_doubles(&self) {
        let mut doubles = self.site.backend.doubles();
        doubles.retain(|entry| {
            let lost = self.vanished.get(&(entry.request_id.clone(), entry.index));
            entry.created > 1 + lost.copied().unwrap_or(0)
        });
        assert!(doubles.is_empty(), "made more than once: {doubles:?}");
    }

    /// Prints what is known, for whoever has to find out why a test failed.
    pub async fn explain(&mut self) {
        let platform = self.platform("sim").await.status.unwrap();
        eprintln!(
            "platform: {:?} {} {:?}",
            platform.phase(),
            platform.message,
            platform.conditions
        );
        let request = pb::ListClustersRequest::default();
        let answer = self
            .call(async |client| client.list_clusters(request.clone(), CALL).await)
            .await
            .unwrap();
        for cluster in answer.clusters {
            let full = self.cluster(&cluster.name).await.unwrap();
            let status = full.status.unwrap();
            eprintln!(
                "{} {:?}: {:?}",
                cluster.name,
                status.phase(),
                status.conditions
            );
            for group in status.groups {
                eprintln!(
                    "  group {}: {} present, {} ready: {:?}",
                    group.path, group.present, group.ready, group.conditions
                );
            }
            for node in self.records(&cluster.name).await {
                eprintln!(
                    "  {} {:?} {:?} {} {}",
                    node.id,
                    node.state(),
                    node.platform_node_id,
                    node.reason,
                    node.message
                );
            }
            let request = pb::PlanClusterRequest {
                subject: Some(pb::plan_cluster_request::Subject::Name(
                    cluster.name.clone(),
                )),
                ..Default::default()
            };
            if let Ok(plan) = self
                .call(async |client| client.plan_cluster(request.clone(), CALL).await)
                .await
            {
                eprintln!("  plan: {:?}", plan.plan);
            }
        }
        for node in self.site.backend.nodes() {
            eprintln!(
                "  real {} {} {:?} ready {:?}",
                node.cluster_id,
                node.node_id,
                node.phase(),
                node.ready
            );
        }
    }
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
