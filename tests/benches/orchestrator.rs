//! What keeping clusters costs, measured on the real orchestrator binary over SQLite.
//!
//! The simulated platform and the callers run in this process, the orchestrator in a process of its own, so that its
//! CPU and memory are its alone; all of them share the machine. Run by `tests/bench`, which builds the binary.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::HashSet,
    io::Read as _,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use drover_client::Channel;
use drover_platform_cloud::{
    PlatformServer, Settings,
    drivers::simulated::{Death, SimulatedHandle, SimulatedSettings},
};
use drover_proto::{
    orchestrator::v1::{
        self as pb, cluster_service_client::ClusterServiceClient,
        platform_registry_service_client::PlatformRegistryServiceClient, watch_clusters_response,
    },
    platform::v1::{
        WatchNodesRequest, platform_service_client::PlatformServiceClient, watch_nodes_response,
    },
};
use drover_server::{ServerSettings, Shutdown};
use futures::StreamExt;
use tokio::{sync::mpsc, time::Instant};

/// Calls under way at once while clusters are applied.
const CALLERS: usize = 64;

struct Orchestrator {
    child: Child,
    address: SocketAddr,
    data: Option<tempfile::TempDir>,
    started: Duration,
}

impl Drop for Orchestrator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn binary() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let target = own
        .ancestors()
        .find(|dir| dir.join("drover-orchestrator").is_file());
    target
        .expect("drover-orchestrator is not built; run tests/bench")
        .join("drover-orchestrator")
}

impl Orchestrator {
    async fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        Self::start_in(data).await
    }

    async fn start_in(data: tempfile::TempDir) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let began = Instant::now();
        let child = Command::new(binary())
            .arg("--data-dir")
            .arg(data.path().join("store"))
            .arg("--listen")
            .arg(address.to_string())
            .env("RUST_LOG", "warn")
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        // Until it answers, not only until its port is there: by then it has read everything.
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
            child,
            address,
            data: Some(data),
            started: began.elapsed(),
        }
    }

    /// Kills it and starts it anew on what it has stored.
    async fn restart(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let data = self.data.take().unwrap();
        *self = Self::start_in(data).await;
    }

    fn channel(&self) -> Channel {
        drover_client::connect(&format!("http://{}", self.address).parse().unwrap())
    }

    /// CPU time used so far.
    fn cpu(&self) -> Duration {
        let mut stat = String::new();
        std::fs::File::open(format!("/proc/{}/stat", self.child.id()))
            .unwrap()
            .read_to_string(&mut stat)
            .unwrap();
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }

    /// Resident memory in bytes.
    fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            * 1024
    }
}

struct World {
    orchestrator: Orchestrator,
    platform: PlatformServer,
    /// Resident memory before anything was asked of it.
    idle: u64,
    _running: drover_server::Running,
}

impl World {
    async fn start() -> Self {
        let settings = SimulatedSettings {
            seed: Some(1),
            boot_delay: DELAY,
            ready_delay: DELAY,
            ..SimulatedSettings::default()
        };
        let platform = PlatformServer::open(Settings::from(settings))
            .await
            .unwrap();
        let server = ServerSettings::on_port(0);
        let listener = drover_server::listen(&server).await.unwrap();
        let running =
            drover_server::spawn(platform.service(), listener, &server, Shutdown::new()).unwrap();
        let orchestrator = Orchestrator::start().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let idle = orchestrator.memory();
        let registration = pb::Platform {
            name: "simulated".into(),
            spec: Some(pb::PlatformSpec {
                endpoint: format!("http://{}", running.address()),
                ..pb::PlatformSpec::default()
            }),
            ..pb::Platform::default()
        };
        PlatformRegistryServiceClient::new(orchestrator.channel())
            .register_platform(pb::RegisterPlatformRequest {
                platform: Some(registration),
                ..pb::RegisterPlatformRequest::default()
            })
            .await
            .unwrap();
        Self {
            orchestrator,
            platform,
            idle,
            _running: running,
        }
    }

    fn handle(&self) -> &SimulatedHandle {
        self.platform.simulated().unwrap()
    }

    /// Applies clusters and waits until all of them are Ready.
    async fn bring_up(&self, clusters: usize, nodes: u32) -> (Duration, Duration) {
        let mut watch = ClusterServiceClient::new(self.orchestrator.channel())
            .max_decoding_message_size(16 * 1024 * 1024)
            .watch_clusters(pb::WatchClustersRequest::default())
            .await
            .unwrap()
            .into_inner();
        let cpu = self.orchestrator.cpu();
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
        (began.elapsed(), self.orchestrator.cpu() - cpu)
    }

    /// Kills one node of each cluster in turn and measures until its replacement is asked of the platform.
    async fn deaths(&self, clusters: impl Iterator<Item = usize>, gap: Duration) -> Vec<Duration> {
        let mut client =
            PlatformServiceClient::new(drover_client::in_process(self.platform.routes()));
        let mut watch = client
            .watch_nodes(WatchNodesRequest::default())
            .await
            .unwrap()
            .into_inner();
        let (made, mut seen) = mpsc::channel(65_536);
        let follower = tokio::spawn(async move {
            let mut live = false;
            let mut known = HashSet::new();
            while let Some(Ok(message)) = watch.next().await {
                match message.event {
                    Some(watch_nodes_response::Event::SnapshotComplete(_)) => {
                        live = true;
                        let _ = made.send((String::new(), Instant::now())).await;
                    }
                    Some(watch_nodes_response::Event::Upserts(upserts)) => {
                        for node in upserts.nodes {
                            if known.insert(node.node_id) && live {
                                let _ = made.send((node.cluster_id, Instant::now())).await;
                            }
                        }
                    }
                    _ => {}
                }
            }
        });
        seen.recv().await.unwrap();
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
        follower.abort();
        latencies.sort();
        latencies
    }
}

/// From created to running, and from running to ready, on the simulated platform.
const DELAY: Duration = Duration::from_millis(25);

fn cluster(number: usize, nodes: u32) -> pb::ApplyClusterRequest {
    let group = pb::GroupSpec {
        name: "web".into(),
        size: Some(nodes),
        ..pb::GroupSpec::default()
    };
    let spec = pb::ClusterSpec {
        platforms: vec![pb::PlatformChoice {
            name: "simulated".into(),
            ..pb::PlatformChoice::default()
        }],
        groups: vec![group],
        ..pb::ClusterSpec::default()
    };
    let cluster = pb::Cluster {
        name: format!("bench-{number}"),
        spec: Some(spec),
        ..pb::Cluster::default()
    };
    pb::ApplyClusterRequest {
        cluster: Some(cluster),
        ..pb::ApplyClusterRequest::default()
    }
}

fn row(what: &str, measured: String, target: &str) {
    println!("| {what} | {measured} | {target} |");
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

fn ms(span: Duration) -> String {
    format!("{:.1} ms", span.as_secs_f64() * 1000.0)
}

#[tokio::main]
async fn main() {
    // `cargo bench` passes flags of its own.
    let small = std::env::var("BENCH_SMALL").is_ok();
    let many = if small { 1_000 } else { 10_000 };
    println!("| what | measured | target |\n|---|---|---|");

    let world = World::start().await;
    let idle = world.idle;
    row(
        "empty start to first answer",
        ms(world.orchestrator.started),
        "< 50 ms",
    );
    row(
        "memory when empty",
        format!("{:.1} MB", idle as f64 / 1e6),
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
    drop(world);

    let mut world = World::start().await;
    let (took, cpu) = world.bring_up(many, 10).await;
    row(
        &format!("{many} clusters x 10, apply to all Ready"),
        format!(
            "{:.2} s (CPU {:.2} s)",
            took.as_secs_f64(),
            cpu.as_secs_f64()
        ),
        "< 15 s",
    );
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (cpu, began) = (world.orchestrator.cpu(), Instant::now());
    tokio::time::sleep(Duration::from_secs(30)).await;
    let share =
        (world.orchestrator.cpu() - cpu).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
    row(
        &format!("converged, {} nodes: CPU", many * 10),
        format!("{share:.2} % of a core"),
        "< 0.5 %",
    );
    let bytes = (world.orchestrator.memory().saturating_sub(idle)) as f64 / (many as f64 * 10.0);
    row("the same: memory a node", format!("{bytes:.0} B"), "< 1 kB");
    world.orchestrator.restart().await;
    row(
        "the same after kill -9: start with all of it",
        ms(world.orchestrator.started),
        "< 250 ms",
    );
    tokio::time::sleep(Duration::from_secs(10)).await;
    let bytes = (world.orchestrator.memory().saturating_sub(idle)) as f64 / (many as f64 * 10.0);
    row(
        "the same after the restart: memory a node",
        format!("{bytes:.0} B"),
        "< 1 kB",
    );
    drop(world);

    let world = World::start().await;
    world.bring_up(1_000, 3).await;
    let load = async {
        let channel = world.orchestrator.channel();
        futures::stream::iter(1_000..many + 1_000)
            .for_each_concurrent(CALLERS, |number| {
                let mut client = ClusterServiceClient::new(channel.clone());
                async move {
                    client.apply_cluster(cluster(number, 10)).await.unwrap();
                }
            })
            .await;
    };
    let deaths = world.deaths(0..1_000, Duration::from_millis(2));
    let mut deaths = std::pin::pin!(deaths);
    let mut load = std::pin::pin!(load);
    let latencies = tokio::select! {
        latencies = &mut deaths => latencies,
        () = &mut load => deaths.await,
    };
    row(
        &format!(
            "the same while {many} clusters x 10 are made, p50 / p99 of {}",
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
