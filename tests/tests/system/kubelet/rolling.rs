//! Rolling updates of stores in pods with persistent volumes, while a client writes.

use std::{collections::BTreeSet, time::Duration};

use drover_proto::platform::v1::NodeRole;
use drover_testing::{kubernetes::without_kubelet, wait::until};
use serde_json::{Value, json};
use tokio::{runtime::Handle, time::Instant};

use super::{
    bench::{
        Bench, PAUSE, arguments, clients, etcd_at, host, led_to, password, processes, server,
        signal, spec, sql, voters,
    },
    clients::{Asking, Known, Writer, Written, none_lost},
    rig,
};

/// Acknowledged writes between two phases of a test.
const WRITES: usize = 20;
/// Interval of samples of the invariants.
const LOOK: Duration = Duration::from_millis(100);

/// Asserts that the servers of this number of nodes run with these arguments.
async fn all_run_with(bench: &Bench, program: &str, nodes: usize, words: &[&str]) {
    let running = bench.arguments(program).await;
    assert_eq!(running.len(), nodes);
    for (name, arguments) in running {
        for word in words {
            let has = arguments.iter().any(|it| it == word);
            assert!(has, "{name} runs without {word}: {arguments:?}");
        }
    }
}

fn etcd_with(flags: &Value) -> Value {
    // Disk performance of the test machine is not under test.
    let mut all = json!({"unsafe-no-fsync": "true"});
    all.as_object_mut()
        .unwrap()
        .extend(flags.as_object().unwrap().clone());
    json!({"image": "etcd:test", "tools_image": "busybox:test", "flags": all})
}

/// Samples the number of members whose servers live, whether or not they answer in time: an election is none of the update's
/// business.
fn counted(bench: &Bench) -> Asking<usize> {
    let (raw, handle) = (bench.namespace.raw.clone(), Handle::current());
    let path = bench.namespace.path("pods");
    let lives = |pod: &&Value| {
        let mut all = processes(pod).into_iter();
        all.any(|pid| arguments(&pid)[0] == "etcd")
    };
    Asking::start(LOOK, move |_| {
        let look = || {
            let pods = handle.block_on(raw.get(&path)).unwrap();
            let pods = pods["items"].as_array().unwrap();
            pods.iter().filter(lives).count()
        };
        // Twice, for members that came or went during the first look.
        Some(look().max(look()))
    })
}

async fn are_members(bench: &Bench, count: usize) {
    bench.ready(count).await;
    bench
        .world
        .until("every node is a member, and nobody else", async |_| {
            let nodes = bench.nodes().await;
            let ids: BTreeSet<String> = nodes.iter().map(|node| node.id.clone()).collect();
            ids.len() == count && voters(&clients(&nodes)) == ids
        })
        .await;
}

/// Asserts that every member has all acknowledged writes itself, read without the others.
async fn each_member_has(bench: &Bench, acknowledged: &[Written]) {
    let last = format!("number/{}", acknowledged.last().unwrap().number);
    for node in bench.nodes().await {
        let at = clients(std::slice::from_ref(&node));
        let own = |what: &[&str]| {
            let get = ["get", "--keys-only", "--consistency=s"];
            etcd_at(&at, &[&get, what].concat())
        };
        bench
            .world
            .until("it has heard of the last write", async |_| {
                own(&[&last]).as_ref() == Some(&last)
            })
            .await;
        let all = ["--prefix", "number/"];
        let keys = until("it lists the keys", async || own(&all)).await;
        none_lost(acknowledged, &keys.replace("number/", ""), &node.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_in_pods_is_rolled_to_other_flags_on_its_claims_and_keeps_quorum_and_every_write() {
    const MEMBERS: usize = 3;
    if without_kubelet() {
        return;
    }
    for image in ["etcd", "busybox"] {
        rig().image(&[image]).await;
    }
    let before = spec("etcd", 3, 0, etcd_with(&json!({})));
    let bench = Bench::start_with_storage("ledger", before, MEMBERS).await;
    are_members(&bench, MEMBERS).await;
    let claims = bench.claims().await;
    let known = Known::of(&bench);
    let writer = Writer::writes(move |number| {
        let key = format!("number/{number}");
        etcd_at(&known.endpoints(), &["put", &key, "x"]).is_some()
    });
    writer.until_written(&bench, WRITES).await;
    let sampler = counted(&bench);

    let began = Instant::now();
    let flags = json!({"heartbeat-interval": "150", "snapshot-count": "5000"});
    bench.renew(&etcd_with(&flags)).await;
    are_members(&bench, MEMBERS).await;
    let took = began.elapsed();
    writer.until_written(&bench, WRITES).await;

    let samples = sampler.finish();
    let least = samples.iter().min().copied().unwrap_or_default();
    assert!(least >= MEMBERS - 1, "{least} lived: {samples:?}");
    let words = ["--heartbeat-interval=150", "--snapshot-count=5000"];
    all_run_with(&bench, "etcd", MEMBERS, &words).await;
    assert_eq!(bench.claims().await, claims, "the claim of each name stays");
    let pause = writer.longest_pause();
    assert!(pause < PAUSE, "nothing was acknowledged for {pause:?}");
    let acknowledged = writer.finish();
    each_member_has(&bench, &acknowledged).await;
    println!(
        "ledger: rolled in {took:?}, {} writes acknowledged, 0 lost, longest pause {pause:?}, {} looks, at least {least} alive",
        acknowledged.len(),
        samples.len()
    );
    bench.end().await;
}

fn postgresql_with(memory: &str) -> Value {
    let settings = json!({"shared_buffers": "16MB", "max_connections": "30", "work_mem": memory});
    json!({"image": "postgres:test", "synchronous": 1, "settings": settings})
}

/// Samples the hosts that the service of the group leads to.
fn seen(bench: &Bench) -> Asking<BTreeSet<String>> {
    let (raw, handle) = (bench.namespace.raw.clone(), Handle::current());
    let (namespace, cluster) = (bench.namespace.name.clone(), bench.cluster);
    Asking::start(LOOK, move |_| {
        Some(handle.block_on(led_to(&raw, &namespace, cluster)))
    })
}

/// Asserts that the service leads only to the primary, and that each name still has its volume claim.
async fn is_whole(bench: &Bench, claims: &std::collections::BTreeMap<String, String>) {
    bench.ready(2).await;
    bench.led().await;
    let led: Vec<_> = bench.service().await.into_iter().collect();
    let recovering = sql(&led, false, "select pg_is_in_recovery()");
    assert_eq!(recovering.as_deref(), Some("f"), "{led:?} is the primary");
    assert_eq!(
        bench.claims().await,
        *claims,
        "the claim of each name stays"
    );
}

/// Kills the primary while it has a commit that no other node has, and waits until it has been rewound and is a
/// standby.
async fn dies_and_is_rewound(bench: &Bench) {
    let primary = bench.one(NodeRole::Active).await;
    // Found before: a standby that hears nothing for 6 s connects again, and would hear of the commit.
    let pod = bench.pod(&primary).await;
    let server = server(&pod, "postgres");
    let sends = |pid: &String| arguments(pid).iter().any(|it| it.contains("walsender"));
    let senders: Vec<_> = processes(&pod).into_iter().filter(sends).collect();
    assert!(!senders.is_empty(), "a standby hears it");
    for sender in &senders {
        signal(sender, "-STOP");
    }
    let alone = "set synchronous_commit = local; insert into numbers values (-1)";
    sql(&[host(&primary)], true, alone).expect("it is committed");
    signal(&server, "-9");
    bench
        .taken_over(&primary, async |node| {
            sql(&[host(node)], true, "select 1").is_some()
        })
        .await;
    bench.back(&primary).await;
    bench.ready(2).await;
    let active = bench.one(NodeRole::Active).await;
    let back = bench.one(NodeRole::Standby).await;
    assert_eq!(back.name, primary.name);
    let log = bench.log(&back).await;
    let rewound = format!("drover: rewound to {}", active.name);
    assert!(log.contains(&rewound), "it was not rewound: {log}");
    assert!(!log.contains("no rewind required"), "needlessly: {log}");
    assert!(!log.contains("a base backup of"), "it was copied: {log}");
}

/// Asserts that each server has all acknowledged rows itself, and none of the rewound ones.
async fn each_server_has(bench: &Bench, acknowledged: &[Written]) {
    let last = acknowledged.last().unwrap().number;
    let has_last = format!("select count(*) from numbers where number = {last}");
    for node in bench.nodes().await {
        let own = |statement: &str| sql(&[host(&node)], false, statement);
        // A standby acknowledges a row slightly before it replays it.
        bench
            .world
            .until("it has the last row", async |_| {
                own(&has_last).as_deref() == Some("1")
            })
            .await;
        none_lost(
            acknowledged,
            &own("select number from numbers").unwrap(),
            &node.name,
        );
        let taken_back = own("select count(*) from numbers where number < 0");
        assert_eq!(taken_back.as_deref(), Some("0"), "{}", node.name);
        assert_eq!(own("show work_mem").as_deref(), Some("8MB"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_primary_in_a_pod_comes_back_by_rewinding_its_claim_and_a_new_setting_costs_no_row()
{
    if without_kubelet() {
        return;
    }
    rig().image(&["postgresql"]).await;
    let mut spec = spec("postgresql", 1, 1, postgresql_with("4MB"));
    spec.bootstrap = Some(password());
    let bench = Bench::start_with_storage("accounts", spec, 2).await;
    bench.ready(2).await;
    let claims = bench.claims().await;
    is_whole(&bench, &claims).await;
    let known = Known::of(&bench);
    let table = "create table numbers (number bigint primary key)";
    let primary = bench.one(NodeRole::Active).await;
    sql(&[host(&primary)], true, table).expect("a table");
    let writer = Writer::writes(move |number| {
        let row = format!("insert into numbers values ({number})");
        sql(&known.hosts(), true, &row).is_some()
    });
    let service = seen(&bench);
    writer.until_written(&bench, WRITES).await;

    dies_and_is_rewound(&bench).await;
    is_whole(&bench, &claims).await;
    writer.until_written(&bench, WRITES).await;

    let began = Instant::now();
    bench.renew(&postgresql_with("8MB")).await;
    let took = began.elapsed();
    is_whole(&bench, &claims).await;
    writer.until_written(&bench, WRITES).await;
    all_run_with(&bench, "postgres", 2, &["work_mem=8MB"]).await;

    let looks = service.finish();
    assert!(
        looks.iter().all(|it| it.len() <= 1),
        "led to two: {looks:?}"
    );
    // Nothing is acknowledged while the only standby is away.
    let pause = writer.longest_pause();
    let acknowledged = writer.finish();
    each_server_has(&bench, &acknowledged).await;
    println!(
        "accounts: rolled in {took:?}, {} rows acknowledged, 0 lost, longest pause {pause:?}, {} looks, the service led to one at most",
        acknowledged.len(),
        looks.len()
    );
    bench.end().await;
}
