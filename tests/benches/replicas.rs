//! What the loss of a leader costs, with three orchestrators on an etcd of three members.
//!
//! The simulated platform and the callers run in this process, orchestrators and etcd in processes of their own; all share
//! the machine. Run by `tests/bench`, which builds the orchestrator. `BENCH_SMALL=1` makes it ten times smaller,
//! `BENCH_KILLS` is how often a leader is killed (10), `BENCH_HAND_OVERS` how often one is asked to end (10).
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use drover_client::{OrchestratorClient, connect_any};
use drover_platform_cloud::drivers::simulated::Death;
use drover_proto::orchestrator::v1 as pb;
use drover_testing::etcd::Etcd;
use drover_tests::{
    fleet::{Simulated, cluster},
    process::Process,
    table::{ms, percentile, row},
};
use futures::StreamExt;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

const REPLICAS: usize = 3;
const CALLERS: usize = 64;
const NODES: u32 = 10;
/// Callers that make changes while the lead is handed over.
const CHANGERS: usize = 4;
/// Far longer than it takes from the signal to the next leader.
const HANDS_OVER: Duration = Duration::from_millis(250);
const CALL: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(100);
/// From created to running, and from running to ready.
const DELAY: Duration = Duration::from_millis(25);

struct Site {
    clusters: usize,
    platform: Simulated,
    births: mpsc::UnboundedReceiver<(String, Instant)>,
    replicas: Vec<Process>,
    client: OrchestratorClient,
    etcd: Etcd,
    directory: tempfile::TempDir,
}

fn replica(etcd: &Etcd, directory: &std::path::Path, at: usize, port: Option<u16>) -> Process {
    Process::start_at(port, directory, |command| {
        for endpoint in etcd.endpoints() {
            command.args(["--etcd-endpoint", &endpoint]);
        }
        command.args(["--replica-name", &format!("r{at}")]).env(
            "RUST_LOG",
            std::env::var("RUST_LOG").unwrap_or("warn".into()),
        )
    })
}

impl Site {
    async fn start(clusters: usize) -> Self {
        let etcd = Etcd::start(REPLICAS);
        let directory = tempfile::tempdir().unwrap();
        let platform = Simulated::start(DELAY).await;
        let replicas: Vec<Process> = (0..REPLICAS)
            .map(|at| replica(&etcd, directory.path(), at, None))
            .collect();
        let targets: Vec<_> = replicas
            .iter()
            .map(|it| format!("http://{}", it.address).parse().unwrap())
            .collect();
        let client = OrchestratorClient::new(connect_any(&targets));
        let registration = platform.registration();
        client.register_platform(registration, CALL).await.unwrap();
        Self {
            clusters,
            births: platform.births().await,
            platform,
            replicas,
            client,
            etcd,
            directory,
        }
    }

    /// Applies all clusters and waits until their nodes are there.
    async fn bring_up(&self) -> Duration {
        let began = Instant::now();
        futures::stream::iter(0..self.clusters)
            .for_each_concurrent(CALLERS, |number| async move {
                let request = cluster(number, NODES);
                self.client.apply_cluster(request, CALL).await.unwrap();
            })
            .await;
        self.whole().await;
        began.elapsed()
    }

    /// Waits until all clusters are Ready.
    async fn whole(&self) {
        let began = Instant::now();
        // Cheaper to look at, and true first.
        let nodes = self.clusters * usize::try_from(NODES).unwrap();
        while self.platform.handle().len() < nodes {
            assert!(began.elapsed() < PATIENCE, "nodes are missing");
            sleep(LOOK).await;
        }
        loop {
            let ready = self.ready().await;
            if ready == self.clusters {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{ready} are ready");
            sleep(LOOK).await;
        }
    }

    async fn ready(&self) -> usize {
        let (mut ready, mut page_token) = (0, String::new());
        loop {
            let request = pb::ListClustersRequest {
                page_size: 1_000,
                page_token,
                ..pb::ListClustersRequest::default()
            };
            let answer = self.client.list_clusters(request, CALL).await.unwrap();
            let is_ready = |cluster: &&pb::Cluster| {
                let status = cluster.status.as_ref();
                status.is_some_and(|status| status.phase() == pb::ClusterPhase::Ready)
            };
            ready += answer.clusters.iter().filter(is_ready).count();
            page_token = answer.next_page_token;
            if page_token.is_empty() {
                return ready;
            }
        }
    }

    async fn leader(&self) -> usize {
        let began = Instant::now();
        loop {
            let request = pb::ListReplicasRequest {};
            let answer = self.client.list_replicas(request, CALL).await;
            let replicas = answer.map(|answer| answer.replicas).unwrap_or_default();
            if replicas.len() == REPLICAS
                && let Some(leader) = replicas.iter().find(|replica| replica.leads)
            {
                return leader.name[1..].parse().unwrap();
            }
            assert!(began.elapsed() < PATIENCE, "nobody leads");
            sleep(LOOK).await;
        }
    }

    /// Waits until the lead can be handed to each that does not have it.
    async fn others_take_over(&self) {
        let began = Instant::now();
        loop {
            let request = pb::ListReplicasRequest {};
            let replicas = self.client.list_replicas(request, CALL).await.unwrap();
            let mut replicas = replicas.replicas.iter();
            if replicas.len() == REPLICAS && replicas.all(|it| it.leads || it.takes_over()) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "some have yet to read");
            sleep(LOOK).await;
        }
    }

    fn restart(&mut self, at: usize) {
        let port = self.replicas[at].address.port();
        self.replicas[at] = replica(&self.etcd, self.directory.path(), at, Some(port));
    }

    /// Kills the leader, and a node of one cluster in a hundred with it. Adds the time to each replacement, and returns that
    /// to the first change that is accepted.
    async fn kill(&mut self, round: usize, replaced: &mut Vec<Duration>) -> Duration {
        let leader = self.leader().await;
        let one: HashMap<String, String> = self
            .platform
            .handle()
            .nodes()
            .into_iter()
            .map(|node| (node.cluster_id, node.node_id))
            .collect();
        let mut dead: HashSet<String> = (0..self.clusters)
            .skip(round % 100)
            .step_by(100)
            .map(|number| format!("bench-{number}"))
            .collect();
        while self.births.try_recv().is_ok() {}
        let began = Instant::now();
        self.replicas[leader].kill();
        for name in &dead {
            assert!(self.platform.handle().kill(&one[name], Death::Failed));
        }
        let change = self.client.apply_cluster(cluster(0, NODES), CALL);
        let births = async {
            while !dead.is_empty() {
                let (name, at) = timeout(PATIENCE, self.births.recv())
                    .await
                    .unwrap()
                    .unwrap();
                if dead.remove(&name) {
                    replaced.push(at - began);
                }
            }
        };
        let (accepted, ()) = tokio::join!(
            async {
                change.await.unwrap();
                began.elapsed()
            },
            births
        );
        self.restart(leader);
        self.whole().await;
        accepted
    }

    /// Changes of several callers for a while, each one after another.
    async fn changes(&self) -> Changes {
        let began = Instant::now();
        let callers = (0..CHANGERS).map(|caller| async move {
            let mut made = Vec::new();
            for most in (100..).take_while(|_| began.elapsed() < Duration::from_secs(3)) {
                let call = Instant::now();
                let mut request = cluster(caller, NODES);
                // Nothing else would be stored.
                let spec = request.cluster.as_mut().unwrap().spec.as_mut().unwrap();
                spec.max_in_flight = Some(most);
                self.client.apply_cluster(request, CALL).await.unwrap();
                made.push((Instant::now(), call.elapsed()));
            }
            made
        });
        let mut made = futures::future::join_all(callers).await.concat();
        made.sort_unstable();
        let pauses = made.windows(2).filter(|two| two[0].0 - began < HANDS_OVER);
        let pauses = pauses.map(|two| two[1].0 - two[0].0);
        Changes {
            pause: pauses.max().unwrap(),
            longest: made.iter().map(|(_, took)| *took).max().unwrap(),
        }
    }

    /// The same while the leader is asked to end.
    async fn hand_over(&mut self) -> Changes {
        let leader = self.leader().await;
        self.replicas[leader].terminate();
        let changes = self.changes().await;
        self.restart(leader);
        self.whole().await;
        self.others_take_over().await;
        changes
    }
}

/// What callers notice.
struct Changes {
    /// The longest time in which no change was accepted, that began while a leader hands over.
    pause: Duration,
    longest: Duration,
}

#[tokio::main]
async fn main() {
    let small = std::env::var("BENCH_SMALL").is_ok();
    let often = |name| std::env::var(name).map_or(10, |count| count.parse().unwrap());
    let (kills, hand_overs) = (often("BENCH_KILLS"), often("BENCH_HAND_OVERS"));
    let many = if small { 1_000 } else { 10_000 };
    println!("| what | measured | target |\n|---|---|---|");
    let mut site = Site::start(many).await;
    let took = site.bring_up().await;
    row(
        &format!("{many} clusters x {NODES} on etcd of three, apply to all Ready"),
        format!("{:.2} s", took.as_secs_f64()),
        "< 25 s",
    );
    sleep(Duration::from_secs(5)).await;
    let memory: Vec<String> = site
        .replicas
        .iter()
        .map(|it| format!("{:.0}", it.memory() as f64 / 1e6))
        .collect();
    row(
        "memory of the three orchestrators then",
        format!("{} MB", memory.join(", ")),
        "< 150 MB",
    );
    let (mut replaced, mut accepted) = (Vec::new(), Vec::new());
    for round in 0..kills {
        accepted.push(site.kill(round, &mut replaced).await);
    }
    let shown = |what: &str, mut all: Vec<Duration>, target: &str| {
        if all.is_empty() {
            return;
        }
        all.sort();
        let of = |percent| ms(percentile(&all, percent));
        let measured = format!("{} / {} / {}", of(50), of(99), of(100));
        row(&format!("{what}, p50 / p99 / max"), measured, target);
    };
    let killed = format!("{kills} leaders killed: to the replacement of a node that died then");
    shown(&killed, replaced, "p99 < 3 s");
    shown(
        "the same: to the next change accepted",
        accepted,
        "p99 < 3 s",
    );
    let (mut quiet, mut asked) = (Vec::new(), Vec::new());
    for _ in 0..hand_overs {
        quiet.push(site.changes().await);
        asked.push(site.hand_over().await);
    }
    let of = |all: &[Changes], what: fn(&Changes) -> Duration| all.iter().map(what).collect();
    let pause = "leader asked to end: longest time without a change accepted in the 0.25 s of that";
    shown(pause, of(&asked, |it| it.pause), "p99 < 50 ms");
    shown("the same while nobody is", of(&quiet, |it| it.pause), "");
    let longest = "leader asked to end: longest change of the 3 s after";
    shown(longest, of(&asked, |it| it.longest), "");
    shown("the same while nobody is", of(&quiet, |it| it.longest), "");
}
