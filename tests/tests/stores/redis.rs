//! Redis: a replica takes over with everything.

use std::{collections::BTreeSet, sync::Arc};

use drover_proto::orchestrator::v1 as pb;
use prost_types::Struct;
use tokio::time::Instant;

use crate::{
    Ports, SLOWEST_FAILOVER, UP, active, apply,
    clients::{Writer, lost},
    find, installed, kill_the_active_one, nested, object,
    real::kill_9,
    renew, run, said, server, store, text, up, world,
};

fn redis(port: u16, command: &[&str]) -> Option<String> {
    let port = port.to_string();
    let mut arguments = vec!["-h", "127.0.0.1", "-p", &port];
    arguments.extend(command);
    said(&run("redis-cli", &arguments))
}

fn redis_holds(port: u16) -> BTreeSet<u64> {
    let keys = redis(port, &["keys", "*"]).unwrap();
    keys.lines().filter_map(|key| key.parse().ok()).collect()
}

fn redis_writer(ports: &Ports) -> Writer {
    let ports = Arc::clone(ports);
    let mut last = None;
    Writer::start(move |number| {
        let known = ports.lock().unwrap().clone();
        let number = number.to_string();
        for port in last.into_iter().chain(known) {
            // In one connection: that of the write is the one whose replicas are waited for.
            let script = format!(
                "printf 'set {number} x\\nwait 1 2000\\n' | timeout 5 redis-cli -h 127.0.0.1 -p {port}"
            );
            let output = run("sh", &["-c", &script]);
            if String::from_utf8_lossy(&output.stdout) == "OK\n1\n" {
                last = Some(port);
                return true;
            }
        }
        last = None;
        false
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_replica_takes_over_with_everything_that_it_has_acknowledged() {
    installed("redis-server", "redis-server");
    let mut world = world().await;
    let mut cluster = store("redis", "", 1, 1, Struct::default());
    apply(&world, &cluster).await;
    up(&world, "redis", 2).await;
    let ports = Ports::default();
    find(&world, "redis", &ports).await;
    let writer = redis_writer(&ports);
    kill_the_active_one(&mut world, "redis", &ports, &writer, 2, 2).await;

    // The replica is renewed first, and takes over when the active one goes.
    let config = nested(&[("maxmemory", text("64mb"))]);
    cluster.spec.as_mut().unwrap().attributes = Some(object(&[("config", config)]));
    renew(&world, &cluster, &ports, 2).await;
    writer.writes(&world, "redis", &ports).await;
    let records = find(&world, "redis", &ports).await;
    let acknowledged = writer.finish();
    let primary = active(&records).unwrap();
    let port = port(primary);
    let most = redis(port, &["config", "get", "maxmemory"]).unwrap();
    assert_eq!(most, "maxmemory\n67108864");
    lost(&acknowledged, &redis_holds(port));
    println!("redis: {} writes acknowledged, 0 lost", acknowledged.len());
}

fn port(node: &pb::Node) -> u16 {
    let endpoint = &node.endpoints["client"];
    endpoint.rsplit(':').next().unwrap().parse().unwrap()
}

/// One standby hears no more; what is written then has only the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_replica_takes_from_another_one_what_it_lacks_and_keeps_to_the_declared_minimum() {
    installed("redis-server", "redis-server");
    let world = world().await;
    let config = nested(&[("min-replicas-to-write", text("1"))]);
    let attributes = object(&[("config", config)]);
    apply(&world, &store("redis", "", 1, 2, attributes)).await;
    up(&world, "redis", 3).await;
    let ports = Ports::default();
    let mut records = find(&world, "redis", &ports).await;
    let primary = active(&records).unwrap().clone();
    records.retain(|node| node.id != primary.id);
    // Of two that are as good the one that has been there longer is promoted.
    records.sort_by_key(|node| node.ordinal);
    let (late, other) = (&records[0], &records[1]);

    let signal = |name: &str| {
        let sent = run("kill", &[name, &server(late).to_string()]);
        assert!(sent.status.success(), "{sent:?}");
    };
    signal("-STOP");
    redis(port(&primary), &["client", "kill", "type", "replica"]).unwrap();
    let script = format!(
        "printf 'set 7 x\\nwait 1 5000\\n' | timeout 8 redis-cli -h 127.0.0.1 -p {}",
        port(&primary)
    );
    world
        .until_within(UP, "the other one has it", async |_| {
            String::from_utf8_lossy(&run("sh", &["-c", &script]).stdout) == "OK\n1\n"
        })
        .await;
    kill_9(server(&primary));
    signal("-CONT");
    let killed = Instant::now();
    world
        .until_within(UP, "another one is active", async |world| {
            let now = find(world, "redis", &ports).await;
            active(&now).is_some_and(|node| node.id != primary.id)
        })
        .await;
    println!("redis: another one was active after {:?}", killed.elapsed());
    assert!(killed.elapsed() < SLOWEST_FAILOVER);
    up(&world, "redis", 3).await;
    let records = find(&world, "redis", &ports).await;
    let now = active(&records).unwrap();
    println!("redis: {} took over, {} had it", now.id, other.id);
    assert!(redis_holds(port(now)).contains(&7));
    let least = redis(port(now), &["config", "get", "min-replicas-to-write"]).unwrap();
    assert_eq!(least, "min-replicas-to-write\n1");
}
