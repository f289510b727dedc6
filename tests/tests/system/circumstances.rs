//! Adverse conditions are reported to the operator, survived, and recovered from.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use crate::real;

use std::sync::Arc;

use drover_proto::orchestrator::v1 as pb;
use real::{Server, World, free_port};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

/// Expects the server to fail and to name the conflicting process.
async fn refused(mut server: Server, pid: u32) {
    server.launch();
    let (well, said) = server.ended().await;
    assert!(!well, "it has to fail");
    assert!(
        said.contains(&pid.to_string()),
        "it has to name pid {pid}: {said}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_the_port_is_named() {
    let world = World::new().await;
    let aside = tempfile::tempdir().unwrap();
    let store = aside.path().join("store");
    let second = Server::new(
        "drover-orchestrator",
        aside.path(),
        world.orchestrator.address.port(),
        &["--data-dir", store.to_str().unwrap()],
    );
    refused(second, world.orchestrator.pid()).await;
    let state = aside.path().join("state");
    let second = Server::new(
        "drover-platform-cloud",
        aside.path(),
        world.platform.address.port(),
        &["--driver", "local", "--state-dir", state.to_str().unwrap()],
    );
    refused(second, world.platform.pid()).await;
    assert!(
        world.apply("hello", "", 1).await.is_ok(),
        "the first goes on"
    );
    world.ready("hello", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_the_directory_is_named() {
    let world = World::new().await;
    let aside = tempfile::tempdir().unwrap();
    let store = world.store();
    let second = Server::new(
        "drover-orchestrator",
        aside.path(),
        free_port(),
        &["--data-dir", store.to_str().unwrap()],
    );
    refused(second, world.orchestrator.pid()).await;
    let state = world.state();
    let second = Server::new(
        "drover-platform-cloud",
        aside.path(),
        free_port(),
        &["--driver", "local", "--state-dir", state.to_str().unwrap()],
    );
    refused(second, world.platform.pid()).await;
    assert!(
        world.apply("hello", "", 1).await.is_ok(),
        "the first goes on"
    );
    world.ready("hello", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_platform_that_is_down_is_named_and_used_when_it_is_up() {
    let mut world = World::stopped();
    world.orchestrator.start().await;
    world.register("local", &world.platform.endpoint()).await;
    world
        .until(
            "it is said that the platform cannot be reached, and why",
            async |world| {
                let status = world.platform_status("local").await;
                status.phase() == pb::PlatformPhase::Unreachable
                    && status.message.contains("refused")
            },
        )
        .await;
    world.apply("hello", "", 2).await.unwrap();
    let cluster = world.cluster("hello").await.unwrap().unwrap();
    assert_ne!(cluster.status.unwrap().phase(), pb::ClusterPhase::Ready);
    world.platform.start().await;
    world.ready("hello", 2).await;
}

/// Responds to everything with bytes that are not HTTP/2, or with a web page.
async fn garbage(port: u16) -> tokio::task::JoinHandle<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let turn = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let web = turn
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
                .is_multiple_of(2);
            tokio::spawn(async move {
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                let page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\nhello\n";
                let answer: &[u8] = if web { page } else { &[0xff; 4096] };
                let _ = stream.write_all(answer).await;
            });
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_platform_that_answers_garbage_is_named_and_used_when_it_makes_sense() {
    let mut world = World::stopped();
    let garbage = garbage(world.platform.address.port()).await;
    world.orchestrator.start().await;
    world.register("local", &world.platform.endpoint()).await;
    world
        .until(
            "it is said that the platform cannot be followed, and why",
            async |world| {
                let status = world.platform_status("local").await;
                status.phase() == pb::PlatformPhase::Unreachable && !status.message.is_empty()
            },
        )
        .await;
    println!("{}", world.platform_status("local").await.message);
    world.apply("hello", "", 2).await.unwrap();
    garbage.abort();
    let _ = garbage.await;
    world.platform.start().await;
    world.ready("hello", 2).await;

    // Existing nodes survive the same fault.
    let before: Vec<String> = world
        .records("hello")
        .await
        .unwrap()
        .into_iter()
        .map(|node| node.id)
        .collect();
    world.platform.kill();
    let garbage = self::garbage(world.platform.address.port()).await;
    world
        .until("the platform is lost", async |world| {
            world.platform_status("local").await.phase() == pb::PlatformPhase::Unreachable
        })
        .await;
    garbage.abort();
    let _ = garbage.await;
    world.platform.start().await;
    world.ready("hello", 2).await;
    let after: Vec<String> = world
        .records("hello")
        .await
        .unwrap()
        .into_iter()
        .map(|node| node.id)
        .collect();
    assert_eq!(before, after, "nothing was replaced");
}
