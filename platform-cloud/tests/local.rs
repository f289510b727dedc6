//! Nodes as real processes: their life, their end, and what a restarted platform makes of them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod local_support;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    time::Duration,
};

use drover_core::Reason;
use drover_platform::{
    driver::{Change, Deletion, Driver, Target},
    identity::Identity,
};
use drover_platform_cloud::drivers::local::{LocalDriver, Removed, remove_all};
use drover_proto::{
    common::v1::{Chunk, StdinClosed, chunk::Content, process_output::Output},
    platform::v1::{
        DeprovisionState, ExecRequest, ExecStart, NodePhase, NodeRole, Placement, RemovalEvidence,
        Spread, Storage, StreamLogsRequest, UnsatisfiableAction, exec_request::Input,
    },
};
use futures::{StreamExt, stream};
use local_support::{
    World, batch, clean, kill, lives, made, phase, pid, processes_of, refused, request, settings,
    shipped_templates, target, test_templates, until,
};
use prost_types::{Struct, Value, value::Kind};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

fn text(value: &str) -> Value {
    Value {
        kind: Some(Kind::StringValue(value.to_owned())),
    }
}

fn with_attribute(
    mut request: drover_proto::platform::v1::ProvisionRequest,
    name: &str,
    value: Value,
) -> drover_proto::platform::v1::ProvisionRequest {
    let attributes = Struct {
        fields: BTreeMap::from([(name.to_owned(), value)]),
    };
    request.cluster.as_mut().unwrap().attributes = Some(attributes);
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_is_ready_soon_answers_on_loopback_and_shows_all_that_was_asked() {
    let world = World::new();
    let begin = Instant::now();
    let nodes = world.start(&request("redis", "r1", 3)).await;
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    let ports = nodes
        .iter()
        .map(|node| node.endpoints["client"].clone())
        .collect::<BTreeSet<_>>();
    assert_eq!(ports.len(), 3, "{ports:?}");
    for node in &nodes {
        let address = &node.endpoints["client"];
        assert!(address.starts_with("127.0.0.1:"), "{address}");
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all(b"PING\r\n").await.unwrap();
        let mut answer = [0; 7];
        connection.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"+PONG\r\n");
        assert_eq!(node.agent_address, Some(format!("tcp://{address}")));
        assert!(
            node.provider_id.starts_with("local://"),
            "{}",
            node.provider_id
        );
        assert!(lives(pid(node)));
    }
    let node = &nodes[1];
    assert_eq!(
        (
            node.cluster_id.as_str(),
            node.group.as_str(),
            node.name.as_str()
        ),
        ("orders", "db", "db-1")
    );
    assert_eq!(
        (node.id.as_str(), node.ordinal, node.role()),
        ("db-1-r1", Some(1), NodeRole::Active)
    );
    assert!(node.node_id.starts_with("db-1-r1-"), "{}", node.node_id);
    let slot = node.slot.clone().unwrap();
    assert_eq!(
        (slot.owner.as_str(), slot.request_id.as_str(), slot.index),
        ("owner-1", "r1", Some(1))
    );
    assert_eq!(
        (
            node.store_id.as_str(),
            node.sequence,
            node.spec_hash.as_str()
        ),
        ("store-1", 7, "hash")
    );
    assert_eq!(phase(node), NodePhase::Running);
    assert!(node.create_time.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_catalogue_goes_with_the_driver() {
    let world = World::new();
    let templates = shipped_templates();
    for store in ["", "redis"] {
        let request = request(store, "r1", 1);
        let (batch, _caller) = batch(&templates, &request);
        world.driver.check(&batch).await.unwrap();
    }
    assert!(world.nodes().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_is_failed_within_moments_leaves_no_zombie_and_is_not_started_again() {
    let world = World::new();
    let node = world.start(&request("family", "r1", 1)).await.remove(0);
    until("the children are there", async || {
        processes_of(&world.state()).len() == 3
    })
    .await;
    let begin = Instant::now();
    kill(pid(&node), "KILL");
    let failed = world
        .wait(&node.node_id, "failed", |node| {
            phase(node) == NodePhase::Failed
        })
        .await;
    assert!(
        begin.elapsed() < Duration::from_secs(1),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(failed.ready, Some(false));
    let failed = world
        .wait(&node.node_id, "explained", |node| {
            node.message.contains("signal 9")
        })
        .await;
    assert!(
        failed.message.contains(&pid(&node).to_string()),
        "{}",
        failed.message
    );
    until("what it started is gone too", async || {
        processes_of(&world.state()).is_empty()
    })
    .await;
    until("it was reaped", async || {
        !fs::exists(format!("/proc/{}", pid(&node))).unwrap()
    })
    .await;
    assert!(
        world
            .news
            .0
            .lock()
            .iter()
            .any(|(id, removed)| *id == node.node_id && removed.is_none())
    );
    world.remove(&failed).await;
    assert!(!world.node_directory(&node).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_by_itself_is_failed_with_its_exit_code_also_after_a_restart() {
    let world = World::new();
    let node = made(world.create(&request("brief", "r1", 1)).await.remove(0));
    let failed = world
        .wait(&node.node_id, "explained", |node| {
            node.message.contains("code 3")
        })
        .await;
    assert_eq!(phase(&failed), NodePhase::Failed);
    until("it is written down", async || {
        world.node_directory(&node).join("exit.json").exists()
    })
    .await;
    let world = world.restarted().await;
    let failed = world
        .wait(&node.node_id, "explained", |node| {
            node.message.contains("code 3")
        })
        .await;
    assert_eq!(phase(&failed), NodePhase::Failed);
    assert!(processes_of(&world.state()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn deprovision_asks_first_and_leaves_nothing_behind() {
    let world = World::new();
    let nodes = world.start(&request("redis", "r1", 2)).await;
    let deleted = world.delete(&nodes[0], Deletion::default()).await;
    assert_eq!(deleted.state, DeprovisionState::Deprovisioning);
    if let Some(node) = world.node(&nodes[0].node_id).await {
        assert_eq!(phase(&node), NodePhase::Deprovisioning);
    }
    world.gone(&nodes[0].node_id).await;
    assert!(!lives(pid(&nodes[0])) && !world.node_directory(&nodes[0]).exists());
    let confirmed = (nodes[0].node_id.clone(), Some(RemovalEvidence::Confirmed));
    until("the removal is told", async || {
        world.news.0.lock().contains(&confirmed)
    })
    .await;
    assert!(lives(pid(&nodes[1])));
    assert_eq!(
        world.delete(&nodes[0], Deletion::default()).await.state,
        DeprovisionState::Gone
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_ignores_the_signal_is_killed_with_its_children_at_the_deadline() {
    let world = World::new();
    let node = world.start(&request("stubborn", "r1", 1)).await.remove(0);
    let log = world.node_directory(&node).join("log");
    until("it ignores the signal", async || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("ready"))
    })
    .await;
    let begin = Instant::now();
    let grace_period = Some(Duration::from_millis(300));
    world
        .delete(
            &node,
            Deletion {
                grace_period,
                ..Deletion::default()
            },
        )
        .await;
    world.gone(&node.node_id).await;
    assert!(
        begin.elapsed() >= Duration::from_millis(290),
        "{:?}",
        begin.elapsed()
    );
    assert!(processes_of(&world.state()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_deprovision_can_hurry_and_cannot_delay() {
    let world = World::new();
    let node = world.start(&request("stubborn", "r1", 1)).await.remove(0);
    let log = world.node_directory(&node).join("log");
    until("it ignores the signal", async || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("ready"))
    })
    .await;
    let grace = |seconds| Deletion {
        grace_period: Some(Duration::from_secs(seconds)),
        ..Deletion::default()
    };
    world.delete(&node, grace(3600)).await;
    world.delete(&node, grace(0)).await;
    world.delete(&node, grace(3600)).await;
    world.gone(&node.node_id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_another_slot_or_cluster_is_left_alone() {
    let world = World::new();
    let node = world.start(&request("sleeper", "r1", 1)).await.remove(0);
    let right = target(&node);
    let mut slot = right.slot.clone().unwrap();
    slot.request_id = "other".to_owned();
    let other_slot = Target {
        slot: Some(slot),
        ..right.clone()
    };
    let other_cluster = Target {
        cluster_id: "other".to_owned(),
        ..right
    };
    for (target, reason) in [
        (other_slot, Reason::SlotMismatch),
        (other_cluster, Reason::NodeNotInCluster),
    ] {
        let error = world
            .driver
            .delete(&target, &Deletion::default())
            .await
            .unwrap_err();
        assert_eq!(error.reason(), reason);
    }
    assert_eq!(
        phase(&world.node(&node.node_id).await.unwrap()),
        NodePhase::Running
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_platform_finds_its_nodes_and_sees_them_die() {
    let world = World::new();
    let before = world.start(&request("redis", "r1", 3)).await;
    let uid = world.driver.description().uid;
    let world = world.restarted().await;
    assert_eq!(world.driver.description().uid, uid);
    for node in &before {
        let found = world.ready(&node.node_id).await;
        assert_eq!(&found, node);
    }
    kill(pid(&before[0]), "KILL");
    world
        .wait(&before[0].node_id, "failed", |node| {
            phase(node) == NodePhase::Failed
        })
        .await;
    let world = world.restarted().await;
    world
        .wait(&before[0].node_id, "failed", |node| {
            phase(node) == NodePhase::Failed
        })
        .await;
    for node in &before {
        world.remove(node).await;
    }
    assert!(processes_of(&world.state()).is_empty());
    assert_eq!(
        fs::read_dir(world.state().join("nodes")).unwrap().count(),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_died_while_no_platform_ran_is_failed() {
    let world = World::new();
    let node = world.start(&request("sleeper", "r1", 1)).await.remove(0);
    let directory = world.stopped().await;
    kill(pid(&node), "KILL");
    let world = World::over(directory, |_| {});
    let failed = world
        .wait(&node.node_id, "failed", |node| {
            phase(node) == NodePhase::Failed
        })
        .await;
    assert!(
        failed
            .message
            .contains("while the platform was not running"),
        "{}",
        failed.message
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_goes_on_after_a_restart_and_keeps_its_deadline() {
    let world = World::new();
    let node = world.start(&request("stubborn", "r1", 1)).await.remove(0);
    let log = world.node_directory(&node).join("log");
    until("it ignores the signal", async || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("ready"))
    })
    .await;
    let grace_period = Some(Duration::from_millis(500));
    world
        .delete(
            &node,
            Deletion {
                grace_period,
                ..Deletion::default()
            },
        )
        .await;
    let world = world.restarted().await;
    if let Some(node) = world.node(&node.node_id).await {
        assert_eq!(phase(&node), NodePhase::Deprovisioning);
    }
    world.gone(&node.node_id).await;
    assert!(processes_of(&world.state()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_platform_on_the_same_directory_is_refused_with_the_pid_of_the_first() {
    let world = World::new();
    let error = LocalDriver::open(settings(world.directory.path()))
        .err()
        .unwrap();
    assert_eq!(error.reason(), Reason::Precondition);
    assert!(
        error
            .message()
            .contains(&format!("in use by process {}", std::process::id())),
        "{error}"
    );
    let error = remove_all(&world.state()).unwrap_err();
    assert!(error.message().contains("in use"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_and_a_race_answer_the_same_nodes() {
    let world = World::new();
    let request = request("sleeper", "r1", 4);
    let ids = |outcomes: Vec<_>| {
        outcomes
            .into_iter()
            .map(|outcome| made(outcome).node_id)
            .collect::<Vec<_>>()
    };
    let first = ids(world.create(&request).await);
    assert_eq!(ids(world.create(&request).await), first);
    let (one, two) = tokio::join!(world.create(&request), world.create(&request));
    assert_eq!((ids(one), ids(two)), (first.clone(), first.clone()));
    for node_id in &first {
        world.ready(node_id).await;
    }
    assert_eq!(processes_of(&world.state()).len(), 4);
    let found = world.driver.of_request("r1").await.unwrap();
    assert!(found.len() == 4 && found.iter().all(|found| !found.fingerprint.is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_started_once_the_caller_is_gone() {
    let world = World::new();
    let (batch, caller) = batch(&world.templates, &request("sleeper", "r1", 2));
    drop(caller);
    let outcomes = world.driver.create(&batch).await;
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, drover_platform::driver::Outcome::NotStarted))
    );
    assert!(world.nodes().await.is_empty());
    assert_eq!(
        fs::read_dir(world.state().join("nodes")).unwrap().count(),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_command_and_a_wrong_template_make_nothing_and_say_what_to_do() {
    let world = World::new();
    let missing = request("missing", "r1", 1);
    let error = refused(world.create(&missing).await.remove(0));
    assert_eq!(error.reason(), Reason::Precondition);
    assert!(
        error
            .message()
            .contains("`no-such-program-here` is not installed")
            && error.message().contains("PATH"),
        "{error}"
    );
    let (batch, _caller) = batch(&world.templates, &missing);
    assert_eq!(
        world.driver.check(&batch).await.unwrap_err().reason(),
        Reason::Precondition
    );

    let wrong = with_attribute(request("unknown-field", "r2", 1), "secret", text("hunter2"));
    let error = refused(world.create(&wrong).await.remove(0));
    assert!(error.message().contains("line 2, column 1"), "{error}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error}");
    assert!(world.nodes().await.is_empty());
    assert_eq!(
        fs::read_dir(world.state().join("nodes")).unwrap().count(),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_platform_has_no_capacity_until_a_node_goes() {
    let world = World::with(|settings| settings.max_nodes = Some(2));
    let mut outcomes = world.create(&request("sleeper", "r1", 3)).await;
    assert_eq!(
        refused(outcomes.pop().unwrap()).reason(),
        Reason::NoCapacity
    );
    let node = made(outcomes.pop().unwrap());
    assert_eq!(
        refused(world.create(&request("sleeper", "r2", 1)).await.remove(0)).reason(),
        Reason::NoCapacity
    );
    world.ready(&node.node_id).await;
    world.remove(&node).await;
    made(world.create(&request("sleeper", "r2", 1)).await.remove(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_nodes_at_once_share_no_port() {
    let world = World::new();
    let outcomes = world.create(&request("sleeper", "r1", 40)).await;
    let nodes = outcomes.into_iter().map(made).collect::<Vec<_>>();
    let ports = nodes
        .iter()
        .flat_map(|node| node.endpoints.values().cloned())
        .collect::<BTreeSet<_>>();
    assert_eq!(ports.len(), 80);
    for node in &nodes {
        world.ready(&node.node_id).await;
    }
    assert_eq!(processes_of(&world.state()).len(), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_port_that_is_used_is_refused_with_who_uses_it() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let number = listener.local_addr().unwrap().port();
    let port = Value {
        kind: Some(Kind::NumberValue(f64::from(number))),
    };
    let wanted =
        |request_id: &str| with_attribute(request("fixed", request_id, 1), "port", port.clone());
    let error = refused(world.create(&wanted("r1")).await.remove(0));
    assert!(
        error.message().contains(&format!("port {number}"))
            && error.message().contains("another program"),
        "{error}"
    );
    drop(listener);
    let node = made(world.create(&wanted("r2")).await.remove(0));
    assert_eq!(node.endpoints["client"], format!("127.0.0.1:{number}"));
    let error = refused(world.create(&wanted("r3")).await.remove(0));
    assert!(error.message().contains(&node.node_id), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_gets_its_files_and_variables_and_none_of_the_platforms_own() {
    let world = World::new();
    let mut asked = with_attribute(request("everything", "r1", 1), "secret", text("hunter2"));
    let env = Struct {
        fields: BTreeMap::from([("OVER".to_owned(), text("properties"))]),
    };
    let properties = Value {
        kind: Some(Kind::StructValue(env)),
    };
    asked.group.as_mut().unwrap().properties = Some(Struct {
        fields: BTreeMap::from([("env".to_owned(), properties)]),
    });
    let node = world.start(&asked).await.remove(0);
    let work = world.node_directory(&node).join("data/work");
    until("it has written", async || {
        fs::read_to_string(work.join("environment")).is_ok_and(|text| text.ends_with('\n'))
    })
    .await;
    assert_eq!(
        fs::read_to_string(work.join("where")).unwrap().trim(),
        work.to_str().unwrap()
    );
    let environment = fs::read_to_string(work.join("environment")).unwrap();
    let port = node.endpoints["client"].rsplit(':').next().unwrap();
    for line in [
        "FROM_TEMPLATE=orders",
        "OVER=properties",
        "DROVER_CLUSTER_ID=orders",
        "DROVER_NODE_ID=db-0-r1",
        "DROVER_NODE_NAME=db-0",
        &format!("DROVER_PORT_CLIENT={port}"),
    ] {
        assert!(
            environment.lines().any(|given| given == line),
            "{line} in {environment}"
        );
    }
    // Cargo gives the test, and so the platform, many.
    assert!(!environment.contains("CARGO"), "{environment}");
    let settings = work.join("settings.conf");
    assert_eq!(fs::read_to_string(&settings).unwrap(), "secret hunter2");
    assert_eq!(
        fs::metadata(&settings).unwrap().permissions().mode() & 0o777,
        0o640
    );
    assert_eq!(
        node.agent_address,
        Some(format!("http://{}", node.endpoints["client"]))
    );
    let secret = fs::metadata(world.node_directory(&node).join("spec.json")).unwrap();
    assert_eq!(secret.permissions().mode() & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_spread_over_the_failure_domains_within_their_limits() {
    let world = World::with(|settings| {
        settings.failure_domains = ["a", "b", "c"].map(str::to_owned).to_vec();
    });
    let domains = |nodes: Vec<drover_proto::platform::v1::Node>| {
        let mut counts = BTreeMap::<String, usize>::new();
        for node in nodes {
            *counts.entry(node.failure_domain).or_default() += 1;
        }
        counts
            .into_iter()
            .map(|(name, count)| format!("{name}{count}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    world.create(&request("sleeper", "r1", 5)).await;
    assert_eq!(domains(world.nodes().await), "a2 b2 c1");
    let mut limited = request("sleeper", "r2", 3);
    limited.group.as_mut().unwrap().path = "other".to_owned();
    limited.group.as_mut().unwrap().placement = Some(Placement {
        failure_domains: vec!["b".to_owned(), "c".to_owned()],
        spread: vec![Spread {
            topology_key: "zone".to_owned(),
            max_per_domain: Some(1),
            when_unsatisfiable: UnsatisfiableAction::DoNotSchedule.into(),
            ..Spread::default()
        }],
        ..Placement::default()
    });
    let mut outcomes = world.create(&limited).await;
    assert_eq!(
        refused(outcomes.pop().unwrap()).reason(),
        Reason::NoCapacity
    );
    assert_eq!(domains(outcomes.into_iter().map(made).collect()), "b1 c1");
}

async fn exec(
    world: &World,
    node: &drover_proto::platform::v1::Node,
    command: &[&str],
    input: &[&str],
) -> (String, i32) {
    let start = ExecStart {
        command: command.iter().map(|part| (*part).to_owned()).collect(),
        stdin: !input.is_empty(),
        ..ExecStart::default()
    };
    let chunks = input.iter().map(|part| {
        Input::Stdin(Chunk {
            content: Some(Content::Text((*part).to_owned())),
        })
    });
    let messages = chunks
        .chain([Input::StdinClosed(StdinClosed {})])
        .map(|input| Ok(ExecRequest { input: Some(input) }));
    let input = stream::iter(messages.collect::<Vec<_>>())
        .chain(stream::pending())
        .boxed();
    let mut output = world.driver.exec(node, start, input).await.unwrap();
    let (mut written, mut code) = (Vec::new(), None);
    while let Some(item) = output.next().await {
        assert!(code.is_none(), "the exit code is the last message");
        match item.unwrap().output.unwrap() {
            Output::Stdout(Chunk {
                content: Some(Content::Data(data)),
            })
            | Output::Stderr(Chunk {
                content: Some(Content::Data(data)),
            }) => written.extend(data),
            Output::ExitCode(number) => code = Some(number),
            other => panic!("{other:?}"),
        }
    }
    (String::from_utf8(written).unwrap(), code.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_beside_the_node_with_its_variables_input_and_exit_code() {
    let world = World::new();
    let node = world.start(&request("redis", "r1", 1)).await.remove(0);
    let ping = ["sh", "-c", "redis-cli -p $DROVER_PORT_CLIENT ping"];
    assert_eq!(
        exec(&world, &node, &ping, &[]).await,
        ("PONG\n".to_owned(), 0)
    );
    assert_eq!(
        exec(&world, &node, &["cat"], &["a", "b\n"]).await,
        ("ab\n".to_owned(), 0)
    );
    assert_eq!(
        exec(&world, &node, &["sh", "-c", "echo x >&2; exit 5"], &[]).await,
        ("x\n".to_owned(), 5)
    );
    assert_eq!(
        exec(&world, &node, &["no-such-program"], &[]).await,
        (String::new(), 127)
    );
    assert_eq!(
        exec(&world, &node, &["sh", "-c", "kill -9 $$"], &[]).await,
        (String::new(), 137)
    );
    assert_eq!(
        exec(&world, &node, &["true"], &["ignored", "input"]).await,
        (String::new(), 0)
    );
    assert_eq!(
        exec(&world, &node, &["sh", "-c", "sleep 1000 & echo left"], &[]).await,
        ("left\n".to_owned(), 0)
    );
    until("nothing of the commands is left", async || {
        processes_of(&world.state()).into_keys().eq([pid(&node)])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_killed_with_its_children_when_its_call_is_dropped_or_its_node_ends() {
    let world = World::new();
    let node = world.start(&request("sleeper", "r1", 1)).await.remove(0);
    let start = || ExecStart {
        command: ["sh", "-c", "sleep 1000 & echo on; wait"]
            .map(str::to_owned)
            .to_vec(),
        ..ExecStart::default()
    };
    let mut output = world
        .driver
        .exec(&node, start(), stream::pending().boxed())
        .await
        .unwrap();
    output.next().await.unwrap().unwrap();
    assert_eq!(processes_of(&world.state()).len(), 3);
    drop(output);
    until("only the node is left", async || {
        processes_of(&world.state()).len() == 1
    })
    .await;

    let mut output = world
        .driver
        .exec(&node, start(), stream::pending().boxed())
        .await
        .unwrap();
    output.next().await.unwrap().unwrap();
    kill(pid(&node), "KILL");
    let error = output.next().await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Reason::NodeNotRunning);
    until("nothing is left", async || {
        processes_of(&world.state()).is_empty()
    })
    .await;
    let error = world
        .driver
        .exec(&node, start(), stream::pending().boxed())
        .await
        .err()
        .unwrap();
    assert_eq!(error.reason(), Reason::NodeNotRunning);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_refused_in_clear_words() {
    let world = World::new();
    let node = world.start(&request("sleeper", "r1", 1)).await.remove(0);
    let start = ExecStart {
        command: vec!["true".to_owned()],
        tty: true,
        ..ExecStart::default()
    };
    let error = world
        .driver
        .exec(&node, start, stream::pending().boxed())
        .await
        .err()
        .unwrap();
    assert_eq!(error.reason(), Reason::Unimplemented);
    assert!(error.message().contains("without a terminal"), "{error}");
}

async fn log(
    world: &World,
    node: &drover_proto::platform::v1::Node,
    request: StreamLogsRequest,
) -> String {
    let mut pieces = world.driver.logs(node, &request).await.unwrap();
    let mut log = Vec::new();
    while let Some(piece) = pieces.next().await {
        log.extend(piece.unwrap());
    }
    String::from_utf8(log).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_has_both_outputs_can_be_tailed_and_followed_to_the_end_of_the_node() {
    let world = World::new();
    let node = world.start(&request("printer", "r1", 1)).await.remove(0);
    until("it has written", async || {
        log(&world, &node, StreamLogsRequest::default()).await == "one\ntwo\n"
    })
    .await;
    let tail = StreamLogsRequest {
        tail_lines: Some(1),
        ..StreamLogsRequest::default()
    };
    assert_eq!(log(&world, &node, tail.clone()).await, "two\n");

    let mut followed = world
        .driver
        .logs(
            &node,
            &StreamLogsRequest {
                follow: true,
                ..tail
            },
        )
        .await
        .unwrap();
    assert_eq!(followed.next().await.unwrap().unwrap(), b"two\n");
    fs::write(world.node_directory(&node).join("data/more"), "").unwrap();
    assert_eq!(followed.next().await.unwrap().unwrap(), b"three\n");
    world.remove(&node).await;
    assert!(followed.next().await.is_none());

    let previous = StreamLogsRequest {
        previous: true,
        ..StreamLogsRequest::default()
    };
    let other = world.start(&request("sleeper", "r2", 1)).await.remove(0);
    assert_eq!(
        world
            .driver
            .logs(&other, &previous)
            .await
            .err()
            .unwrap()
            .reason(),
        Reason::NodeNotRunning
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn retained_storage_is_attached_again_and_other_storage_goes_with_its_node() {
    let world = World::new();
    let with_storage = |request_id: &str| {
        let mut request = request("redis", request_id, 1);
        request.storage = Some(Storage::default());
        request
    };
    let node = world.start(&with_storage("r1")).await.remove(0);
    let set = ["sh", "-c", "redis-cli -p $DROVER_PORT_CLIENT set key value"];
    assert_eq!(exec(&world, &node, &set, &[]).await, ("OK\n".to_owned(), 0));

    let error = refused(world.create(&with_storage("r2")).await.remove(0));
    assert!(
        error
            .message()
            .contains(&format!("in use by node {}", node.node_id)),
        "{error}"
    );

    let retain = Deletion {
        retain_storage: true,
        ..Deletion::default()
    };
    let kept = world.delete(&node, retain).await.retained_storage;
    assert_eq!(kept.len(), 1);
    world.gone(&node.node_id).await;
    assert!(world.state().join("storage").join(&kept[0]).exists());
    assert!(world.nodes().await.is_empty());

    let node = world.start(&with_storage("r3")).await.remove(0);
    let get = ["sh", "-c", "redis-cli -p $DROVER_PORT_CLIENT get key"];
    // Its port is open before its data is read.
    until("the data is loaded", async || {
        let (answer, _) = exec(&world, &node, &get, &[]).await;
        !answer.starts_with("LOADING")
    })
    .await;
    assert_eq!(
        exec(&world, &node, &get, &[]).await,
        ("value\n".to_owned(), 0)
    );
    world.remove(&node).await;
    assert_eq!(
        fs::read_dir(world.state().join("storage")).unwrap().count(),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn role_labels_and_owner_change_durably_and_only_if_the_slot_still_fits() {
    let world = World::new();
    let node = world.start(&request("sleeper", "r1", 1)).await.remove(0);
    let edit = Change::Edit {
        role: Some(NodeRole::Standby),
        set_labels: BTreeMap::from([
            ("a".to_owned(), "1".to_owned()),
            ("b".to_owned(), "2".to_owned()),
        ]),
        remove_labels: vec!["b".to_owned()],
    };
    let changed = world.driver.update(&target(&node), &edit).await.unwrap();
    assert_eq!(changed.role(), NodeRole::Standby);
    assert_eq!(
        changed.labels,
        BTreeMap::from([("a".to_owned(), "1".to_owned())])
    );
    let adopted = Identity {
        owner: "owner-2".to_owned(),
        cluster_id: "payments".to_owned(),
        request_id: "r9".to_owned(),
        index: 0,
        ..Identity::default()
    };
    let adopt = Change::Adopt(Box::new(adopted));
    let changed = world
        .driver
        .update(&target(&changed), &adopt)
        .await
        .unwrap();
    let error = world
        .driver
        .update(&target(&node), &adopt)
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::NodeNotInCluster);
    let world = world.restarted().await;
    let found = world.ready(&node.node_id).await;
    assert_eq!(
        (found.cluster_id.as_str(), &found.slot, pid(&found)),
        ("payments", &changed.slot, pid(&node))
    );
    assert_eq!(
        found.labels,
        BTreeMap::from([("a".to_owned(), "1".to_owned())])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_read_is_a_warning_with_its_id() {
    let world = World::new();
    let nodes = world.start(&request("sleeper", "r1", 2)).await;
    fs::write(world.node_directory(&nodes[0]).join("node.json"), "{").unwrap();
    let world = world.restarted().await;
    let listing = world.driver.list().await.unwrap();
    assert_eq!(listing.nodes.len(), 1);
    assert_eq!(listing.warnings.len(), 1);
    assert_eq!(listing.warnings[0].id.as_ref(), Some(&nodes[0].node_id));
}

#[tokio::test(flavor = "multi_thread")]
async fn remove_all_kills_counts_and_leaves_nothing_and_spares_what_is_not_its_own() {
    let world = World::new();
    world.start(&request("sleeper", "r1", 2)).await;
    let node = world.start(&request("family", "r2", 1)).await.remove(0);
    until("the children are there", async || {
        processes_of(&world.state()).len() == 5
    })
    .await;
    kill(pid(&node), "KILL");
    world
        .wait(&node.node_id, "failed", |node| {
            phase(node) == NodePhase::Failed
        })
        .await;
    let state = world.state();
    let directory = world.stopped().await;
    let Removed { processes, files } = remove_all(&state).unwrap();
    assert!((2..=4).contains(&processes), "{processes}");
    assert!(files > 10, "{files}");
    assert!(!state.exists() && processes_of(&state).is_empty());
    assert_eq!(remove_all(&state).unwrap(), Removed::default());
    let error = remove_all(directory.path()).unwrap_err();
    assert!(error.message().contains("no state directory"), "{error}");
    clean(directory.path());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_template_output_is_checked_before_anything_is_made() {
    let world = World::new();
    let templates = test_templates();
    let (batch, _caller) = batch(&templates, &request("sleeper", "r1", 2));
    world.driver.check(&batch).await.unwrap();
    assert!(world.nodes().await.is_empty());
    let mut wrong = request("sleeper", "r1", 1);
    wrong.slots[0].id = "../x".to_owned();
    let error = refused(world.create(&wrong).await.remove(0));
    assert_eq!(error.reason(), Reason::Invalid);
}
