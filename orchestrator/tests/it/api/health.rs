//! Command probes, circuit breakers, and nodes under repair.

use std::fs;

use drover_client::in_process;
use drover_core::Reason;
use drover_platform_cloud::{PlatformServer, Settings, drivers::simulated::SimulatedSettings};
use drover_proto::{
    common::v1::Condition,
    orchestrator::v1 as pb,
    platform::v1::{self as wire, health_policy::Probe},
};

use crate::api::support::{World, changed, document, fields, invalid, refused, until};

/// A cluster with a command probe every 100 ms; this many consecutive failures make a node unhealthy.
fn probed(command: &[&str], failures: u32) -> pb::Cluster {
    let command = command.iter().map(|&part| part.to_owned()).collect();
    let tenth = prost_types::Duration {
        seconds: 0,
        nanos: 100_000_000,
    };
    changed(document("orders", &[("db", 3)]), |spec| {
        spec.health = Some(wire::HealthPolicy {
            probe: Some(Probe::Exec(wire::ExecProbe {
                command,
                ..wire::ExecProbe::default()
            })),
            interval: Some(tenth),
            timeout: Some(prost_types::Duration {
                seconds: 5,
                nanos: 0,
            }),
            failure_threshold: Some(failures),
            ..Default::default()
        });
    })
}

fn repair(id: &str, under_repair: bool) -> pb::SetNodeRepairRequest {
    pb::SetNodeRepairRequest {
        cluster: "orders".into(),
        id: id.to_owned(),
        under_repair,
    }
}

fn blocked(cluster: &pb::Cluster) -> Option<String> {
    let group = cluster.status.as_ref()?.groups.first()?;
    let condition = group
        .conditions
        .iter()
        .find(|c| c.r#type == "RemediationBlocked")?;
    (condition.status == Some(true)).then(|| condition.message.clone())
}

#[tokio::test]
async fn a_command_that_fails_makes_nodes_sick_and_a_breaker_holds_them() {
    let world = World::new().await;
    // Every node has failed before the first of them reaches the threshold.
    let cluster = probed(&["check", "hush-hush"], 10);
    world.apply(cluster).await.unwrap();
    world.ready("orders").await;
    let before: Vec<String> = world
        .nodes("orders")
        .await
        .into_iter()
        .map(|n| n.id)
        .collect();

    world.site.backend().deafen(true);
    let message = until("the breaker is open", async || {
        blocked(&world.get("orders").await.unwrap())
    })
    .await;
    assert!(
        message.ends_with("more than 1: none is replaced"),
        "{message}"
    );
    let nodes = until("all are sick", async || {
        let nodes = world.nodes("orders").await;
        let sick = |node: &pb::Node| node.state() == pb::NodeState::Unhealthy;
        nodes.iter().all(sick).then_some(nodes)
    })
    .await;
    let message = blocked(&world.get("orders").await.unwrap());
    assert_eq!(
        message.as_deref(),
        Some("3 of 3 are sick, more than 1: none is replaced")
    );
    let status = world.get("orders").await.unwrap().status.unwrap();
    let reason = |conditions: &[Condition], kind: &str| {
        let found = conditions.iter().find(|one| one.r#type == kind).unwrap();
        assert!(found.last_transition_time.is_some(), "{found:?}");
        found.reason.clone()
    };
    for kind in ["Ready", "Remediating"] {
        assert_eq!(reason(&status.conditions, kind), "RemediationBlocked");
    }
    assert_eq!(
        reason(&status.groups[0].conditions, "Ready"),
        "RemediationBlocked"
    );
    for node in &nodes {
        assert_eq!(node.state(), pb::NodeState::Unhealthy);
        assert!(
            node.message.contains("exec: exit code 1"),
            "{}",
            node.message
        );
        assert!(!node.message.contains("hush"), "what is run is not shown");
        assert!(before.contains(&node.id));
    }

    // Two nodes are under repair, so the third one may be replaced.
    let mut clusters = world.clusters();
    let third = nodes.iter().find(|node| node.ordinal == 2).unwrap();
    for ordinal in [0, 1] {
        let answer = clusters
            .set_node_repair(repair(&format!("db-{ordinal}"), true))
            .await;
        assert!(answer.unwrap().into_inner().node.unwrap().under_repair);
    }
    let left = until("the third node is replaced", async || {
        let nodes = world.nodes("orders").await;
        nodes
            .iter()
            .all(|node| node.id != third.id)
            .then_some(nodes)
    })
    .await;
    for node in nodes.iter().filter(|node| node.ordinal != 2) {
        let now = left
            .iter()
            .find(|left| left.id == node.id)
            .expect("it stays");
        assert!(now.under_repair);
    }
    // Healthy again, and the repair is done.
    world.site.backend().deafen(false);
    world.ready("orders").await;
    clusters
        .set_node_repair(repair("db-0", false))
        .await
        .unwrap();
    let repaired = world.nodes("orders").await;
    let marked: Vec<u32> = repaired
        .iter()
        .filter(|n| n.under_repair)
        .map(|n| n.ordinal)
        .collect();
    assert_eq!(marked, [1]);
    refused(
        clusters.set_node_repair(repair("db-9", true)).await,
        Reason::NotFound,
    );
    world.stop().await;
}

#[tokio::test]
async fn what_is_under_repair_is_so_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::in_directory(directory.path(), SimulatedSettings::default()).await;
    world.register("sim", "http://sim").await.unwrap();
    world.apply(document("orders", &[("db", 2)])).await.unwrap();
    world.ready("orders").await;
    world
        .clusters()
        .set_node_repair(repair("db-1", true))
        .await
        .unwrap();
    world.restart(directory.path()).await;
    let nodes = world.nodes("orders").await;
    let marked: Vec<bool> = nodes.iter().map(|node| node.under_repair).collect();
    assert_eq!(marked, [false, true]);
    world.stop().await;
}

#[tokio::test]
async fn a_command_has_to_be_one() {
    let world = World::new().await;
    for command in [&[][..], &[""]] {
        invalid(
            world.apply(probed(command, 1)).await,
            "spec.health.exec.command",
        );
    }
    world.stop().await;
}

#[tokio::test]
async fn a_named_node_goes_when_its_group_gets_smaller() {
    let world = World::new().await;
    world
        .apply(document("orders", &[("db", 3), ("web", 1)]))
        .await
        .unwrap();
    world.ready("orders").await;
    let before = world.nodes("orders").await;
    let scale = |nodes: &[&str], size| pb::ScaleGroupRequest {
        cluster: "orders".into(),
        group: "db".into(),
        size,
        remove_nodes: nodes.iter().map(|&node| node.to_owned()).collect(),
        ..Default::default()
    };
    let mut clusters = world.clusters();
    for (request, field) in [
        (scale(&["db-0", "db-0"], None), "remove_nodes[1]"),
        (scale(&["db-0", "web-0"], None), "remove_nodes[1]"),
        (scale(&["db-0"], Some(3)), "size"),
    ] {
        let status = invalid(clusters.scale_group(request).await, field);
        assert_eq!(fields(&status), [field]);
    }
    refused(
        clusters.scale_group(scale(&["db-7"], None)).await,
        Reason::NotFound,
    );
    let id = |ordinal: u32| {
        let found = before
            .iter()
            .find(|n| n.group == "db" && n.ordinal == ordinal);
        found.unwrap().id.clone()
    };
    let answer = clusters
        .scale_group(scale(&["db-0"], None))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        answer.cluster.unwrap().spec.unwrap().groups[0].size,
        Some(2)
    );
    let left = until("the named node is gone", async || {
        let nodes = world.nodes("orders").await;
        (nodes.len() == 3).then_some(nodes)
    })
    .await;
    let mut left: Vec<&str> = left
        .iter()
        .filter(|n| n.group == "db")
        .map(|n| n.id.as_str())
        .collect();
    left.sort_unstable();
    assert_eq!(left, [id(1), id(2)], "and no other");
    world.ready("orders").await;
    world.stop().await;
}

#[tokio::test]
async fn what_another_probe_has_shown_says_nothing_of_a_node() {
    let world = World::new().await;
    let one = |command: &[&str], healed: bool| {
        changed(probed(command, 1), |spec| {
            spec.groups[0].size = Some(1);
            spec.remediation = Some(pb::RemediationPolicy {
                enabled: Some(healed),
                ..Default::default()
            });
        })
    };
    let is = async |state: pb::NodeState| {
        until(&format!("the node is {state:?}"), async || {
            let nodes = world.nodes("orders").await;
            (nodes[0].state() == state).then_some(())
        })
        .await;
    };
    world.apply(one(&["true"], false)).await.unwrap();
    world.ready("orders").await;
    let before = world.nodes("orders").await[0].id.clone();
    world.apply(one(&["false"], false)).await.unwrap();
    is(pb::NodeState::Unhealthy).await;
    let unasked = changed(one(&[], false), |spec| {
        spec.health.as_mut().unwrap().probe = Some(Probe::Phase(wire::PhaseProbe {}));
    });
    world.apply(unasked).await.unwrap();
    is(pb::NodeState::Ready).await;
    // Not probed yet.
    world.apply(one(&["sleep", "2"], true)).await.unwrap();
    let request = pb::ReconcileClusterRequest {
        name: "orders".into(),
        ..Default::default()
    };
    world.clusters().reconcile_cluster(request).await.unwrap();
    let nodes = world.nodes("orders").await;
    let states: Vec<_> = nodes.iter().map(|node| (&node.id, node.state())).collect();
    assert_eq!(states, [(&before, pb::NodeState::Ready)]);
    world.stop().await;
}

#[tokio::test]
async fn a_template_that_begins_to_suggest_a_probe_condemns_no_node_that_was_there_before() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| fs::write(directory.path().join(name), content);
    write(
        "index.yaml",
        "default: {template: web.yaml, ports: [client]}\n",
    )
    .unwrap();
    write("web.yaml", "first").unwrap();
    let world = World::bare(SimulatedSettings::default()).await;
    let settings = Settings {
        templates: Some(directory.path().to_owned()),
        ..Settings::from(SimulatedSettings::default())
    };
    let server = PlatformServer::open(settings).await.unwrap();
    world.sites.put("http://sim", in_process(server.routes()));
    world.register("sim", "http://sim").await.unwrap();
    let kept = changed(document("orders", &[("db", 1)]), |spec| {
        spec.update = Some(pb::UpdatePolicy {
            strategy: pb::UpdateStrategy::OnDelete.into(),
            ..Default::default()
        });
    });
    world.apply(kept).await.unwrap();
    world.ready("orders").await;
    let before = world.nodes("orders").await[0].id.clone();

    let probed = "default: {template: web.yaml, ports: [client], health: {tcp: {port: client}, interval: 100ms, startupTimeout: 1s}}\n";
    write("index.yaml", probed).unwrap();
    until("the suggestion is known", async || {
        let handshake = world.platform("sim").await.handshake?;
        let defaults = handshake.templates.into_iter().next()?.defaults?;
        defaults.health.map(|_| ())
    })
    .await;
    let new = document("new", &[("db", 1)]);
    world.apply(new).await.unwrap();
    // By then the node that was there before was probed as often.
    until("a new node without this port is not ready", async || {
        let status = world.get("new").await.ok()?.status?;
        let group = status.groups.first()?;
        let mut conditions = group.conditions.iter();
        conditions
            .find(|one| one.r#type == "ProbeUnreachable")
            .map(|_| ())
    })
    .await;
    let nodes = world.nodes("orders").await;
    let states: Vec<_> = nodes.iter().map(|node| (&node.id, node.state())).collect();
    assert_eq!(states, [(&before, pb::NodeState::Ready)]);
    world.stop().await;
    drop(server);
}
