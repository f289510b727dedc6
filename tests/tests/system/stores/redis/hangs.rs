//! A Redis that hangs: it takes connections, and answers nothing.

use std::{fs, net::TcpStream};

use super::{all_ready, alone, confirmed, keep_busy, redis, three};
use crate::stores::{
    UP, active,
    alone::{Node, promoted, until},
    apply, installed, object, run, server, store, up, world,
};

pub(super) fn signal(pid: u32, name: &str) {
    let sent = run("kill", &[name, &pid.to_string()]);
    assert!(sent.status.success(), "{sent:?}");
}

fn is_alive(node: &Node) -> bool {
    node.does("alive").status.success()
}

#[test]
fn a_server_that_hangs_is_of_no_use_and_is_ended_and_one_that_is_busy_is_not() {
    let mut nodes = three();
    confirmed(&nodes[0], "1", 2);
    keep_busy(&mut nodes, 0);
    until("it says that it is busy", &mut nodes, |nodes| {
        is_alive(&nodes[0])
    });
    redis(nodes[0].port("client"), &["script", "kill"]).unwrap();
    signal(nodes[0].pid(), "-STOP");
    assert!(!is_alive(&nodes[0]));
    assert!(!nodes[0].is_ready() && !nodes[0].has_ended());
    signal(nodes[0].pid(), "-CONT");
    until("it answers again", &mut nodes, |nodes| is_alive(&nodes[0]));
    until("it is of use again", &mut nodes, all_ready);
    signal(nodes[0].pid(), "-STOP");
    for _ in 0..3 {
        assert!(!is_alive(&nodes[0]));
    }
    until("it has ended", &mut nodes, |nodes| nodes[0].has_ended());
    nodes[1].hears_of(&[nodes[2].seen_as("standby")]);
    promoted(&mut nodes[1]);
}

#[test]
fn one_that_nobody_can_take_over_from_is_given_longer() {
    installed("redis-server", "redis-server");
    let mut nodes = [alone(0)];
    nodes[0].start("active");
    // Another one that is active has other data.
    nodes[0].hears_of(&[alone(1).seen_as("active")]);
    until("it is of use", &mut nodes, all_ready);
    signal(nodes[0].pid(), "-STOP");
    for _ in 0..4 {
        assert!(is_alive(&nodes[0]));
    }
    assert!(nodes[0].is_ready() && !nodes[0].has_ended());
    fs::write(nodes[0].directory().join("misses"), "\n".repeat(14)).unwrap();
    assert!(!is_alive(&nodes[0]));
    until("it has ended", &mut nodes, |nodes| nodes[0].has_ended());
}

#[test]
fn one_whose_connections_are_all_taken_is_alive() {
    installed("redis-server", "redis-server");
    let mut nodes = [alone(0).with(&["--maxclients", "8"])];
    nodes[0].is_given(b"secret\n");
    nodes[0].start("active");
    nodes[0].hears_of(&[alone(1).seen_as("standby")]);
    let to = ("127.0.0.1", nodes[0].port("client"));
    until("it is alive, and of use", &mut nodes, |nodes| {
        // Also one that has missed a probe, once its script is let in.
        until("it is of use", nodes, all_ready);
        let mut taken = Vec::new();
        until("nobody else is let in", &mut [], |_| {
            taken.extend(TcpStream::connect(to));
            redis(to.1, &["ping"]).is_some_and(|answer| answer.contains("max number of clients"))
        });
        is_alive(&nodes[0]) && nodes[0].is_ready()
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_active_one_that_hangs_a_replica_takes_the_place() {
    installed("redis-server", "redis-server");
    let world = world().await;
    apply(&world, &store("redis", "", 1, 1, object(&[]))).await;
    up(&world, "redis", 2).await;
    let records = world.records("redis").await.unwrap_or_default();
    let hung = active(&records).expect("an active one").clone();
    signal(server(&hung), "-STOP");
    world
        .until_within(UP, "another one is active", async |world| {
            let now = world.records("redis").await.unwrap_or_default();
            active(&now).is_some_and(|node| node.id != hung.id)
        })
        .await;
    up(&world, "redis", 2).await;
}
