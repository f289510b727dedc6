//! Cost of managing clusters, measured on the production orchestrator binary over SQLite.
//!
//! The simulated platform and the callers run in this process, the orchestrator in a process of its own, so that its
//! CPU and memory can be measured separately; all of them share the machine. Run by `tests/bench`, which builds the
//! binary. `BENCH_ONLY` is one part of it: `addons`, `quiet`, `many`, `renewal` or `loaded`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod addons;

use std::{collections::HashSet, time::Duration};

use drover_client::Channel;
use drover_platform_cloud::drivers::simulated::{Death, SimulatedHandle};
use drover_proto::orchestrator::v1::{
    self as pb, cluster_service_client::ClusterServiceClient,
    platform_registry_service_client::PlatformRegistryServiceClient, watch_clusters_response,
};
use drover_tests::{
    fleet::{Simulated, cluster},
    process::Process,
    table::{ms, percentile, row},
};
use futures::StreamExt;
use tokio::time::Instant;

/// The allocator of the platform servers, one of which runs in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Concurrent calls while clusters are applied.
const CALLERS: usize = 64;

struct Orchestrator {
    process: Process,
    data: Option<tempfile::TempDir>,
    started: Duration,
}

impl Orchestrator {
    async fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        Self::start_in(data).await
    }

    async fn start_in(data: tempfile::TempDir) -> Self {
        let began = Instant::now();
        let process = Process::start(data.path(), |command| command.env("RUST_LOG", "warn"));
        let address = process.address;
        // Waits for a response, not only for an open port: by then the orchestrator has loaded its state.
        let mut client = PlatformRegistryServiceClient::new(drover_client::connect(
            &format!("http://{address}").parse().unwrap(),
        ));
        while client
            .list_platforms(pb::ListPlatformsRequest::default())
            .await
            .is_err()
        {
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "the orchestrator does not start"
            );
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        Self {
            process,
            data: Some(data),
            started: began.elapsed(),
        }
    }

    /// Kills the orchestrator and restarts it on its stored state.
    async fn restart(&mut self) {
        self.process.kill();
        let data = self.data.take().unwrap();
        *self = Self::start_in(data).await;
    }

    fn channel(&self) -> Channel {
        drover_client::connect(&format!("http://{}", self.process.address).parse().unwrap())
    }
}

struct World {
    orchestrator: Orchestrator,
    platform: Simulated,
    /// Resident memory before the first request, and what of it is not the program.
    idle: (u64, u64),
}

impl World {
    async fn start() -> Self {
        Self::start_with(DELAY).await
    }

    /// `delay` is the time from created to running, and again from running to ready.
    async fn start_with(delay: Duration) -> Self {
        let platform = Simulated::start(delay).await;
        let orchestrator = Orchestrator::start().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let process = &orchestrator.process;
        let idle = (process.memory(), process.own_memory());
        PlatformRegistryServiceClient::new(orchestrator.channel())
            .register_platform(platform.registration())
            .await
            .unwrap();
        Self {
            orchestrator,
            platform,
            idle,
        }
    }

    fn handle(&self) -> &SimulatedHandle {
        self.platform.handle()
    }

    /// Applies clusters and waits until all of them are Ready.
    async fn bring_up(&self, clusters: usize, nodes: u32) -> (Duration, Duration) {
        let mut watch = ClusterServiceClient::new(self.orchestrator.channel())
            .max_decoding_message_size(16 * 1024 * 1024)
            .watch_clusters(pb::WatchClustersRequest::default())
            .await
            .unwrap()
            .into_inner();
        let cpu = self.orchestrator.process.cpu();
        let began = Instant::now();
        let channel = self.orchestrator.channel();
        let applied = tokio::spawn(async move {
            futures::stream::iter(0..clusters)
                .for_each_concurrent(CALLERS, |number| {
                    let mut client = ClusterServiceClient::new(channel.clone());
                    async move {
                        client.apply_cluster(cluster(number, nodes)).await.unwrap();
                    }
                })
                .await;
        });
        let mut ready = HashSet::new();
        while ready.len() < clusters {
            let message = watch.message().await.unwrap().unwrap();
            if let Some(watch_clusters_response::Event::Upserts(upserts)) = message.event {
                for cluster in upserts.clusters {
                    if cluster.status.unwrap().phase() == pb::ClusterPhase::Ready {
                        ready.insert(cluster.name);
                    }
                }
            }
        }
        applied.await.unwrap();
        (began.elapsed(), self.orchestrator.process.cpu() - cpu)
    }

    /// Changes the template of all nodes of a cluster, and waits until each is replaced.
    async fn roll(&self, number: usize, nodes: u32) -> Duration {
        let mut client = ClusterServiceClient::new(self.orchestrator.channel());
        let mut request = cluster(number, nodes);
        let spec = request.cluster.as_mut().unwrap().spec.as_mut().unwrap();
        let changed = prost_types::Value {
            kind: Some(prost_types::value::Kind::BoolValue(true)),
        };
        spec.attributes = Some(prost_types::Struct {
            fields: [("changed".to_owned(), changed)].into(),
        });
        let surge = pb::count_or_percent::Amount::Percent(SURGE);
        spec.update = Some(pb::UpdatePolicy {
            max_surge: Some(pb::CountOrPercent {
                amount: Some(surge),
            }),
            ..pb::UpdatePolicy::default()
        });
        let mut watch = client
            .watch_clusters(pb::WatchClustersRequest::default())
            .await
            .unwrap()
            .into_inner();
        let began = Instant::now();
        client.apply_cluster(request).await.unwrap();
        loop {
            let message = watch.message().await.unwrap().unwrap();
            let Some(watch_clusters_response::Event::Upserts(upserts)) = message.event else {
                continue;
            };
            let is_new = |cluster: &pb::Cluster| {
                let status = cluster.status.as_ref().unwrap();
                let all = status.groups.first();
                let all = all.is_some_and(|it| it.updated_ready == nodes && it.present == nodes);
                status.observed_generation == 2 && all
            };
            if upserts.clusters.iter().any(is_new) {
                return began.elapsed();
            }
        }
    }

    /// Kills one node of each cluster in turn and measures the time until its replacement is requested from the
    /// platform.
    async fn deaths(&self, clusters: impl Iterator<Item = usize>, gap: Duration) -> Vec<Duration> {
        let mut seen = self.platform.births().await;
        let nodes: std::collections::HashMap<String, String> = self
            .handle()
            .nodes()
            .into_iter()
            .map(|node| (node.cluster_id.clone(), node.node_id.clone()))
            .collect();
        let mut latencies = Vec::new();
        for number in clusters {
            let name = format!("bench-{number}");
            let Some(node) = nodes.get(&name) else {
                continue;
            };
            while seen.try_recv().is_ok() {}
            let began = Instant::now();
            assert!(self.handle().kill(node, Death::Failed));
            loop {
                let (cluster, at) = tokio::time::timeout(Duration::from_secs(30), seen.recv())
                    .await
                    .unwrap()
                    .unwrap();
                if cluster == name {
                    latencies.push(at - began);
                    break;
                }
            }
            tokio::time::sleep(gap).await;
        }
        latencies.sort();
        latencies
    }
}

/// Surge during a rolling update, in percent.
const SURGE: u32 = 10;
/// From created to running, and from running to ready, on the simulated platform.
const DELAY: Duration = Duration::from_millis(25);

/// Rolling update of all nodes of a large cluster, one tenth at a time.
async fn renewal() {
    let delay = Duration::from_millis(250);
    let world = World::start_with(delay).await;
    world.bring_up(1, 1_000).await;
    let took = world.roll(0, 1_000).await;
    let least = delay * 2 * 100 / SURGE;
    row(
        &format!("1,000 nodes renewed, surge {SURGE} %, ready after 0.5 s"),
        format!(
            "{:.2} s ({:.2} x {:.0} s)",
            took.as_secs_f64(),
            took.as_secs_f64() / least.as_secs_f64(),
            least.as_secs_f64()
        ),
        "< 1.5 x surge and readiness",
    );
}

/// Start, memory, a thousand clusters and the deaths of their nodes, with nothing else going on.
async fn quiet() {
    let world = World::start().await;
    row(
        "empty start to first answer",
        ms(world.orchestrator.started),
        "< 50 ms",
    );
    let (all, own) = world.idle;
    row(
        "memory when empty, and of it without the program",
        format!("{:.1} MB, {:.1} MB", all as f64 / 1e6, own as f64 / 1e6),
        "< 20 MB",
    );
    let (took, cpu) = world.bring_up(1_000, 3).await;
    row(
        "1,000 clusters x 3, apply to all Ready",
        format!(
            "{:.2} s (CPU {:.2} s)",
            took.as_secs_f64(),
            cpu.as_secs_f64()
        ),
        "< 1.5 s",
    );
    let deaths = world.deaths(0..500, Duration::from_millis(2)).await;
    row(
        "death to replacement asked, quiet, p50 / p99",
        format!(
            "{} / {}",
            ms(percentile(&deaths, 50)),
            ms(percentile(&deaths, 99))
        ),
        "p99 < 10 ms",
    );
}

/// Many clusters at once, at rest, and after the orchestrator was killed.
async fn many(clusters: usize) {
    let mut world = World::start().await;
    let nodes = clusters as f64 * 10.0;
    let (took, cpu) = world.bring_up(clusters, 10).await;
    row(
        &format!("{clusters} clusters x 10, apply to all Ready"),
        format!(
            "{:.2} s (CPU {:.2} s)",
            took.as_secs_f64(),
            cpu.as_secs_f64()
        ),
        "< 15 s",
    );
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (cpu, began) = (world.orchestrator.process.cpu(), Instant::now());
    tokio::time::sleep(Duration::from_secs(30)).await;
    let share = (world.orchestrator.process.cpu() - cpu).as_secs_f64()
        / began.elapsed().as_secs_f64()
        * 100.0;
    row(
        &format!("converged, {nodes} nodes: CPU"),
        format!("{share:.2} % of a core"),
        "< 0.5 %",
    );
    let bytes = |world: &World| {
        let own = world.orchestrator.process.own_memory();
        let taken = own.saturating_sub(world.idle.1);
        format!("{:.0} B", taken as f64 / nodes)
    };
    row("the same: memory a node", bytes(&world), "< 1 kB");
    world.orchestrator.restart().await;
    row(
        "the same after kill -9: start with all of it",
        ms(world.orchestrator.started),
        "< 250 ms",
    );
    tokio::time::sleep(Duration::from_secs(10)).await;
    row(
        "the same after the restart: memory a node",
        bytes(&world),
        "< 1 kB",
    );
}

/// Deaths of nodes while many clusters are made.
async fn loaded(clusters: usize) {
    let world = World::start().await;
    world.bring_up(1_000, 3).await;
    let load = async {
        let channel = world.orchestrator.channel();
        futures::stream::iter(1_000..clusters + 1_000)
            .for_each_concurrent(CALLERS, |number| {
                let mut client = ClusterServiceClient::new(channel.clone());
                async move {
                    client.apply_cluster(cluster(number, 10)).await.unwrap();
                }
            })
            .await;
    };
    let deaths = world.deaths(0..1_000, Duration::from_millis(2));
    let latencies = {
        let mut deaths = std::pin::pin!(deaths);
        let mut load = std::pin::pin!(load);
        tokio::select! {
            latencies = &mut deaths => latencies,
            () = &mut load => deaths.await,
        }
    };
    row(
        &format!(
            "death to replacement while {clusters} clusters x 10 are made, p50 / p99 of {}",
            latencies.len()
        ),
        format!(
            "{} / {}",
            ms(percentile(&latencies, 50)),
            ms(percentile(&latencies, 99))
        ),
        "p99 < 50 ms",
    );
}

#[tokio::main]
async fn main() {
    // `cargo bench` passes flags of its own.
    let small = std::env::var("BENCH_SMALL").is_ok();
    let clusters = if small { 1_000 } else { 10_000 };
    let only = std::env::var("BENCH_ONLY").ok();
    let asked = |part: &str| only.as_ref().is_none_or(|only| only == part);
    println!("| what | measured | target |\n|---|---|---|");
    if asked("addons") {
        addons::membership(if small { 100 } else { 1_000 }).await;
    }
    if asked("quiet") {
        quiet().await;
    }
    if asked("many") {
        many(clusters).await;
    }
    if asked("renewal") {
        renewal().await;
    }
    if asked("loaded") {
        loaded(clusters).await;
    }
}
