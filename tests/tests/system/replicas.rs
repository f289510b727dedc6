//! Three orchestrators on one etcd: one leads, and whichever dies, stands still or loses touch, another goes on with what
//! it had begun.

mod blind;
mod forwarding;
mod histories;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use drover_client::{Channel, OrchestratorClient, connect, to_error};
use drover_core::{Error, Reason};
use drover_proto::orchestrator::v1::{self as pb, cluster_service_client::ClusterServiceClient};
use drover_testing::{etcd::Etcd, wait::PATIENCE};
use tokio::time::{Instant, sleep};

use crate::real::{Server, World, binary, free_port, kill_9};

const CALL: Duration = Duration::from_secs(30);
const REPLICAS: usize = 3;
/// Of what may end otherwise when the machine stands still for a second, but not each time.
const ROUNDS: usize = 10;
const ORCHESTRATOR: &str = "drover-orchestrator";
/// Times that the leader is killed. For more: `REPLICAS_KILLS=200`.
fn kills() -> usize {
    let more = std::env::var("REPLICAS_KILLS").ok();
    more.map_or(10, |kills| kills.parse().unwrap())
}

struct Site {
    world: World,
    etcd: Etcd,
}

fn replica(program: &'static str, world: &World, etcd: &Etcd, name: &str) -> Server {
    let mut server = Server::new(
        program,
        world.directory.path(),
        free_port(),
        &["--replica-name", name],
    );
    for endpoint in etcd.endpoints() {
        server.add(&["--etcd-endpoint", &endpoint]);
    }
    let log = "warn,drover_orchestrator::replica=info".to_owned();
    server.environment = vec![("RUST_LOG", log)];
    server
}

impl Site {
    async fn new(members: usize) -> Self {
        let etcd = Etcd::start(members);
        let mut world = World::stopped();
        world.orchestrator = replica(ORCHESTRATOR, &world, &etcd, "r0");
        for i in 1..REPLICAS {
            let other = replica(ORCHESTRATOR, &world, &etcd, &format!("r{i}"));
            world.others.push(other);
        }
        let mut site = Self { world, etcd };
        site.begin(|platform| format!("http://{platform}")).await;
        site
    }

    /// Starts everything, and registers the platform at a URL.
    async fn begin(&mut self, url: impl Fn(std::net::SocketAddr) -> String) {
        let world = &mut self.world;
        world.platform.start().await;
        world.orchestrator.start().await;
        for other in &mut world.others {
            other.start().await;
        }
        world.register("local", &url(world.platform.address)).await;
    }

    fn server(&mut self, at: usize) -> &mut Server {
        match at {
            0 => &mut self.world.orchestrator,
            at => &mut self.world.others[at - 1],
        }
    }

    fn alone(&mut self, at: usize) -> OrchestratorClient {
        let target = self.server(at).endpoint().parse().unwrap();
        OrchestratorClient::new(connect(&target))
    }

    /// A client that makes each call once.
    fn once(&mut self, at: usize) -> ClusterServiceClient<Channel> {
        ClusterServiceClient::new(connect(&self.server(at).endpoint().parse().unwrap()))
    }

    /// The replicas, by the number in their name.
    async fn replicas(&self) -> BTreeMap<usize, pb::Replica> {
        let request = pb::ListReplicasRequest {};
        let Ok(answer) = self.world.client().list_replicas(request, CALL).await else {
            return BTreeMap::new();
        };
        let number = |replica: &pb::Replica| replica.name[1..].parse().unwrap();
        let replicas = answer.replicas.into_iter();
        replicas
            .map(|replica| (number(&replica), replica))
            .collect()
    }

    /// The replica that leads, and its epoch, once there is one other than this.
    async fn leader_after(&self, former: Option<usize>) -> (usize, u64) {
        let begin = Instant::now();
        loop {
            let replicas = self.replicas().await;
            let leader = replicas.iter().find(|(_, replica)| replica.leads);
            if let Some((&at, replica)) = leader
                && Some(at) != former
            {
                return (at, replica.epoch);
            }
            assert!(begin.elapsed() < PATIENCE, "nobody leads: {replicas:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the lead can be handed to each that does not have it.
    async fn others_take_over(&self) {
        let begin = Instant::now();
        loop {
            let replicas = self.replicas().await;
            let mut each = replicas.values();
            if replicas.len() == REPLICAS && each.all(|it| it.leads || it.takes_over()) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "some do not: {replicas:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn exactly(&self, size: usize) {
        self.world
            .until_healed("prey", PATIENCE, "as wanted", async |world| {
                let records = world.records("prey").await.unwrap_or_default();
                let recorded: BTreeSet<String> = records
                    .into_iter()
                    .filter_map(|node| node.platform_node_id)
                    .collect();
                let directories = world.node_directories().into_iter().collect();
                world.is_ready("prey", size).await
                    && world.processes().len() == size
                    && recorded == directories
            })
            .await;
    }
}

/// While its size changes all the time: no node twice, none left over, and callers notice nothing but a pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_leader_is_killed_another_goes_on_with_what_it_had_begun() {
    let mut random = fastrand::Rng::with_seed(drover_testing::seed::seed());
    let mut site = Site::new(1).await;
    site.world.apply("prey", "", 3).await.unwrap();
    let (mut pauses, mut last) = (Vec::new(), 0);
    for _ in 0..kills() {
        let size = random.u32(0..6);
        site.world.scale("prey", size).await.unwrap();
        let (leader, epoch) = site.leader_after(None).await;
        assert!(epoch > last, "the epoch grows with each lead");
        last = epoch;
        sleep(Duration::from_millis(random.u64(0..200))).await;
        site.server(leader).kill();
        let began = Instant::now();
        // Without a word of what happened, by whoever answers next.
        site.world.scale("prey", random.u32(0..6)).await.unwrap();
        pauses.push(began.elapsed());
        site.server(leader).start().await;
    }
    pauses.sort();
    let (median, p99) = (pauses[pauses.len() / 2], pauses[pauses.len() * 99 / 100]);
    println!(
        "from a kill to the next change accepted: median {median:?}, p99 {p99:?}, all {pauses:?}"
    );
    site.world.scale("prey", 4).await.unwrap();
    site.exactly(4).await;
    site.world.delete("prey").await.unwrap();
    site.world
        .until("nothing is left", async |world| {
            world.processes().is_empty() && world.node_directories().is_empty()
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stood_still_neither_writes_nor_answers_of_the_past() {
    let mut site = Site::new(1).await;
    site.world.apply("prey", "", 2).await.unwrap();
    site.world.ready("prey", 2).await;
    let (old, epoch) = site.leader_after(None).await;
    let pid = site.server(old).pid();
    signal(pid, "STOP");
    let (new, later) = site.leader_after(Some(old)).await;
    assert!(later > epoch);
    let scale = |size| pb::ScaleGroupRequest {
        cluster: "prey".to_owned(),
        group: "web".to_owned(),
        size: Some(size),
        ..Default::default()
    };
    site.alone(new).scale_group(scale(3), CALL).await.unwrap();
    signal(pid, "CONT");
    // It says nothing of what it knew, and then asks the other one.
    let mut client = site.once(old);
    let begin = Instant::now();
    loop {
        let get = pb::GetClusterRequest {
            name: "prey".to_owned(),
            ..Default::default()
        };
        match client.get_cluster(get).await {
            Ok(answer) => {
                let cluster = answer.into_inner().cluster.unwrap();
                let size = cluster.spec.unwrap().groups[0].size;
                assert_eq!(size, Some(3), "an answer of the past");
                break;
            }
            Err(error) => drop(refused::<()>(Err(error))),
        }
        assert!(begin.elapsed() < PATIENCE, "it does not stand by");
    }
    client.scale_group(scale(4)).await.unwrap();
    let now = site.leader_after(None).await;
    assert!(now == (new, later) || now.1 > later, "{now:?}");
    site.exactly(4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_asked_to_end_hands_over_and_nodes_live_on() {
    let mut site = Site::new(1).await;
    site.world.apply("prey", "", 3).await.unwrap();
    site.world.ready("prey", 3).await;
    let nodes = site.world.processes();
    let mut handed = 0;
    for _ in 0..ROUNDS {
        site.others_take_over().await;
        let (leader, _) = site.leader_after(None).await;
        let (began, before) = (Instant::now(), site.server(leader).said().len());
        signal(site.server(leader).pid(), "TERM");
        let (ended, said) = site.server(leader).ended().await;
        assert!(ended, "{said}");
        let said = &said[before..];
        // Whoever does not say in time that it lives is passed over.
        handed += usize::from(said.contains("the lead was handed over"));
        let (next, _) = site.leader_after(Some(leader)).await;
        println!(
            "r{leader} ended and r{next} leads after {:?}",
            began.elapsed()
        );
        site.server(leader).kill();
        site.server(leader).start().await;
        if handed == REPLICAS {
            break;
        }
    }
    assert_eq!(handed, REPLICAS, "of {ROUNDS} that ended");
    site.world.ready("prey", 3).await;
    assert_eq!(site.world.processes(), nodes, "no node noticed anything");
}

/// The leader, and the one that the lead would be handed to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_are_asked_to_end_at_once_leave_the_lead_to_the_third() {
    let mut site = Site::new(1).await;
    site.world.apply("prey", "", 1).await.unwrap();
    site.world.ready("prey", 1).await;
    for _ in 0..3 {
        let (leader, epoch) = site.leader_after(None).await;
        site.others_take_over().await;
        let replicas = site.replicas().await.into_iter();
        let others = replicas.filter(|(_, replica)| !replica.leads);
        let since = |replica: &pb::Replica| {
            let start = replica.start_time.as_ref().unwrap();
            (start.seconds, start.nanos)
        };
        let last = others.max_by_key(|(_, replica)| since(replica));
        let ends = [leader, last.unwrap().0];
        for at in ends {
            signal(site.server(at).pid(), "TERM");
        }
        for at in ends {
            let (ended, said) = site.server(at).ended().await;
            assert!(ended, "{said}");
        }
        let (third, later) = site.leader_after(Some(leader)).await;
        assert!(!ends.contains(&third) && later > epoch);
        for at in ends {
            site.server(at).kill();
            site.server(at).start().await;
        }
    }
    site.exactly(1).await;
}

/// While etcd is away nothing is begun, and nothing is said that may be of the past.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_etcd_nothing_is_begun_or_said_and_afterwards_all_goes_on() {
    let mut site = Site::new(3).await;
    site.world.apply("prey", "", 3).await.unwrap();
    site.world.ready("prey", 3).await;
    let before = site.leader_after(None).await;
    let request = pb::WatchClustersRequest::default();
    let watch = site.once(before.0).watch_clusters(request).await.unwrap();
    let mut watch = watch.into_inner();
    for member in 0..3 {
        site.etcd.kill(member);
    }
    let nodes = site.world.processes();
    let victim = *nodes.keys().next().unwrap();
    kill_9(victim);
    // It knows after a while that it is out of touch: watches end, and calls are refused.
    while watch.message().await.is_ok_and(|message| message.is_some()) {}
    let get = pb::GetClusterRequest {
        name: "prey".to_owned(),
        ..Default::default()
    };
    let error = refused(site.once(before.0).get_cluster(get).await);
    assert_eq!(error.reason(), Reason::NotLeader);
    for at in 0..REPLICAS {
        let begin = Instant::now();
        while !status(site.server(at), "/readyz").contains(" 503 ") {
            assert!(begin.elapsed() < PATIENCE, "r{at} is ready without etcd");
            sleep(Duration::from_millis(20)).await;
        }
    }
    let alive: BTreeSet<u32> = site.world.processes().into_keys().collect();
    assert!(
        alive.iter().all(|pid| nodes.contains_key(pid)),
        "nothing is begun"
    );
    for member in 0..3 {
        site.etcd.restart(member);
    }
    site.exactly(3).await;
    let now = site.world.processes();
    let kept = |pid: &u32| *pid == victim || now.contains_key(pid);
    assert!(nodes.keys().all(kept), "only what had died was replaced");
}

/// The lease of the process before still lives then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_killed_and_started_at_once_joins_again() {
    let mut site = Site::new(1).await;
    for _ in 0..4 {
        let (leader, _) = site.leader_after(None).await;
        for at in [leader, (leader + 1) % REPLICAS] {
            site.server(at).kill();
            site.server(at).start().await;
        }
        let begin = Instant::now();
        loop {
            let replicas = site.replicas().await;
            let leads = replicas.values().filter(|replica| replica.leads).count();
            if (replicas.len(), leads) == (REPLICAS, 1) {
                break;
            }
            assert!(begin.elapsed() < PATIENCE, "{replicas:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }
    for at in 0..REPLICAS {
        assert!(site.server(at).is_running(), "r{at} ended");
    }
}

/// With a member of etcd lost nobody notices, whichever it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_etcd_may_die_and_changes_go_on() {
    let mut site = Site::new(3).await;
    site.world.apply("prey", "", 2).await.unwrap();
    for round in 0..4 {
        let leader = site.etcd.leader();
        let at = if round % 2 == 0 {
            leader
        } else {
            (leader + 1) % 3
        };
        site.etcd.kill(at);
        site.world.scale("prey", 3 + round % 3).await.unwrap();
        site.etcd.restart(at);
        assert!(site.etcd.is_up());
    }
    site.world.scale("prey", 3).await.unwrap();
    site.exactly(3).await;
}

/// What is there can still be kept and changed in an etcd that fills up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_fills_up_takes_no_new_cluster_or_group_and_what_is_there_lives_on() {
    let mut site = Site::new(1).await;
    site.world.apply("prey", "", 2).await.unwrap();
    site.world.ready("prey", 2).await;
    for at in 0..REPLICAS {
        let server = site.server(at);
        server.kill();
        // Less than any database has.
        server.add(&["--etcd-quota", "1000"]);
        server.start().await;
    }
    let begin = Instant::now();
    let refused = loop {
        // It is measured soon after another one leads.
        let name = format!("more-{}", begin.elapsed().as_millis());
        if let Err(error) = site.world.apply(&name, "", 0).await {
            break error;
        }
        assert!(begin.elapsed() < PATIENCE, "etcd takes everything");
        sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(refused.reason(), Reason::StorageFull, "{refused}");
    assert!(refused.message().contains("store maintain"), "{refused}");
    let mut cluster = site.world.cluster("prey").await.unwrap().unwrap();
    let spec = cluster.spec.as_mut().unwrap();
    let mut another = spec.groups[0].clone();
    another.name = "another".to_owned();
    spec.groups.push(another);
    let request = pb::ApplyClusterRequest {
        cluster: Some(cluster),
        ..Default::default()
    };
    let client = site.world.client();
    let refused = client.apply_cluster(request, CALL).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::StorageFull, "{refused}");
    assert!(refused.message().contains("another"), "{refused}");

    site.world.scale("prey", 3).await.unwrap();
    site.world.ready("prey", 3).await;
    kill_9(*site.world.processes().keys().next().unwrap());
    site.exactly(3).await;
    let (leader, _) = site.leader_after(None).await;
    let metrics = get(site.server(leader), "/metrics");
    assert!(
        metrics.contains("\ndrover_store_quota_bytes 1000\n"),
        "{metrics}"
    );
}

#[test]
fn maintenance_says_of_each_member_of_etcd_what_it_has_and_what_was_done() {
    let etcd = Etcd::start(3);
    let mut members: Vec<&str> = Vec::new();
    let endpoints = etcd.endpoints();
    for endpoint in &endpoints {
        members.extend(["--etcd-endpoint", endpoint]);
    }
    let maintain = |arguments: &[&str], members: &[&str]| {
        let done = std::process::Command::new(binary("drover-orchestrator"))
            .args(["store", "maintain"])
            .args(arguments)
            .args(members)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (done.status.success(), text(done.stdout), text(done.stderr))
    };
    let (ended, said, error) = maintain(&[], &members);
    assert!(ended && said.starts_with("MEMBER "), "{said}{error}");
    assert!(endpoints.iter().all(|it| said.contains(it)), "{said}");
    let (ended, said, error) = maintain(&["--output", "json", "--least", "0"], &members);
    assert!(ended, "{error}");
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["members"].as_array().unwrap().len(), 3, "{said}");
    assert_eq!(said["noSpace"], false, "{said}");
    let (ended, _, error) = maintain(&[], &[]);
    assert!(!ended && error.contains("--etcd-endpoint"), "{error}");
    let missing = format!("http://127.0.0.1:{}", free_port());
    let (ended, said, error) = maintain(&[], &["--etcd-endpoint", &missing]);
    assert!(!ended && error.contains(&missing), "{error}");
    assert!(said.contains("does not answer"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_alone_on_a_directory_is_listed_by_its_name_too() {
    let mut world = World::stopped();
    world.orchestrator.add(&["--replica-name", "alone"]);
    for _ in 0..2 {
        world.orchestrator.start().await;
        let request = pb::ListReplicasRequest {};
        let answer = world.client().list_replicas(request, CALL).await.unwrap();
        let [replica] = &answer.replicas[..] else {
            panic!("{answer:?}");
        };
        assert_eq!(
            (replica.name.as_str(), replica.leads, replica.answers),
            ("alone", true, true)
        );
        assert_eq!(replica.address, world.orchestrator.endpoint());
        assert_eq!(replica.version, env!("CARGO_PKG_VERSION"));
        // The next one finds what the one before has left.
        world.orchestrator.kill();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_is_refused_at_the_start_with_its_setting() {
    let site = Site::new(1).await;
    let mut twin = replica(ORCHESTRATOR, &site.world, &site.etcd, "r1");
    twin.launch();
    let (ended, said) = twin.ended().await;
    assert!(
        !ended && said.contains("another process is the replica \"r1\""),
        "{said}"
    );

    let missing = format!("http://127.0.0.1:{}", free_port());
    let rows: [(&[&str], &str); 3] = [
        (&["--etcd-endpoint", &missing], "no member of etcd answers"),
        (&["--etcd-endpoint", "etcd:2379"], "etcd.endpoints[0]"),
        (
            &["--etcd-endpoint", &missing, "--replica-name", "a b"],
            "replica.name",
        ),
    ];
    for (arguments, expected) in rows {
        let here = tempfile::tempdir().unwrap();
        let mut server = Server::new("drover-orchestrator", here.path(), free_port(), arguments);
        server.launch();
        let (ended, said) = server.ended().await;
        assert!(!ended && said.contains(expected), "{arguments:?}: {said}");
    }
}

/// The error of a call to one that does not lead, or is about to change its part.
fn refused<T: std::fmt::Debug>(answer: Result<tonic::Response<T>, tonic::Status>) -> Error {
    let error = to_error(&answer.expect_err("it does not lead"));
    let known = matches!(error.reason(), Reason::NotLeader | Reason::Unavailable);
    assert!(known, "{error}");
    error
}

fn signal(pid: u32, name: &str) {
    let done = std::process::Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status()
        .unwrap();
    assert!(done.success());
}

fn status(server: &Server, path: &str) -> String {
    let answer = get(server, path);
    answer.lines().next().unwrap_or_default().to_owned()
}

fn get(server: &Server, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
