//! A Redis that serves, but lacks something: room on its disk, or connections.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
};

use drover_proto::orchestrator::v1 as pb;

use super::{all_ready, alone, port, redis};
use crate::stores::{
    active,
    alone::{Node, until},
    apply,
    disk::Disk,
    impaired::{impaired, lacks, not_impaired, roles},
    installed, nested, object,
    real::World,
    run, store, text, up, world,
};

const NAME: &str = "redis";

async fn primary(world: &World) -> pb::Node {
    let nodes = world.records(NAME).await.unwrap();
    active(&nodes).expect("an active one").clone()
}

/// Sets a key on a connection that is there.
fn is_written(to: &TcpStream, key: &str) {
    let mut server = to;
    server
        .write_all(format!("SET {key} x\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    BufReader::new(server).read_line(&mut answer).unwrap();
    assert_eq!(answer, "+OK\r\n", "{key}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_whose_connections_are_all_taken_is_told_and_nobody_takes_over() {
    installed("redis-server", "redis-server");
    let world = world().await;
    let config = nested(&[("maxclients", text("20"))]);
    let attributes = object(&[("config", config)]);
    apply(&world, &store(NAME, "", 1, 1, attributes)).await;
    up(&world, NAME, 2).await;
    let (primary, before) = (primary(&world).await, roles(&world, NAME).await);
    let to = ("127.0.0.1", port(&primary));
    let first = TcpStream::connect(to).unwrap();
    is_written(&first, "1");
    let mut taken = Vec::new();
    let take_one = || {
        let answer = redis(to.1, &["ping"]).unwrap_or_default();
        if !answer.contains("max number of clients") {
            taken.extend(TcpStream::connect(to));
        }
    };
    let reason = (&primary, "ConnectionsExhausted");
    impaired(&world, NAME, reason, take_one).await;
    is_written(&first, "2");
    assert_eq!(roles(&world, NAME).await, before);
    drop(taken);
    not_impaired(&world, NAME).await;
    is_written(&first, "3");
    assert_eq!(roles(&world, NAME).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_with_a_full_disk_is_told_and_nobody_takes_over() {
    installed("redis-server", "redis-server");
    let world = world().await;
    // Goes before the world: what is mounted could not be deleted with the rest.
    let disk = Disk::at(world.state().join("storage"));
    let mut cluster = store(NAME, "", 1, 1, object(&[]));
    cluster.spec.as_mut().unwrap().groups[0].storage = Some(pb::StorageSpec::default());
    apply(&world, &cluster).await;
    up(&world, NAME, 2).await;
    let (primary, before) = (primary(&world).await, roles(&world, NAME).await);
    let client = TcpStream::connect(("127.0.0.1", port(&primary))).unwrap();
    is_written(&client, "1");
    disk.fill_but(32);
    impaired(&world, NAME, (&primary, "DiskFull"), || {}).await;
    is_written(&client, "2");
    assert_eq!(roles(&world, NAME).await, before);
    disk.free();
    not_impaired(&world, NAME).await;
    is_written(&client, "3");
    assert_eq!(roles(&world, NAME).await, before);
}

/// Asks a server with a password for a snapshot.
fn save(node: &Node) {
    let port = node.port("client");
    let command = format!("REDISCLI_AUTH=secret redis-cli -p {port} bgsave");
    let asked = run("sh", &["-c", &command]);
    assert!(asked.status.success(), "{asked:?}");
}

#[test]
fn one_that_cannot_write_its_data_says_so_to_those_that_have_its_password() {
    installed("redis-server", "redis-server");
    let mut nodes = [alone(0).with(&["--save", "60 1"])];
    nodes[0].is_given(b"secret\n");
    nodes[0].start("active");
    nodes[0].hears_of(&[]);
    until("it is of use", &mut nodes, all_ready);
    assert!(lacks(&nodes[0]).is_empty());
    // No snapshot can be put there.
    let snapshot = nodes[0].storage().join("dump.rdb");
    fs::create_dir(&snapshot).unwrap();
    save(&nodes[0]);
    until("it says that it cannot write", &mut nodes, |nodes| {
        lacks(&nodes[0]) == ["DiskFull"]
    });
    assert!(nodes[0].is_ready());
    fs::remove_dir(&snapshot).unwrap();
    save(&nodes[0]);
    until("it says that it can", &mut nodes, |nodes| {
        lacks(&nodes[0]).is_empty()
    });
}

#[test]
fn one_that_takes_nobody_more_says_so_without_its_password() {
    installed("redis-server", "redis-server");
    let mut nodes = [alone(0).with(&["--maxclients", "8"])];
    nodes[0].is_given(b"secret\n");
    nodes[0].start("active");
    nodes[0].hears_of(&[]);
    until("it is of use", &mut nodes, all_ready);
    let to = ("127.0.0.1", nodes[0].port("client"));
    let mut taken = Vec::new();
    until("it says so", &mut nodes, |nodes| {
        taken.extend(TcpStream::connect(to));
        lacks(&nodes[0]) == ["ConnectionsExhausted"]
    });
    drop(taken);
    until("it says so no more", &mut nodes, |nodes| {
        lacks(&nodes[0]).is_empty()
    });
}
