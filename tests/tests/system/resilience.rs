//! Faults of images, hooks, standbys, disks and certificates, with real processes: each is reported where a user looks,
//! running nodes continue, and there is a working remedy.
//!
//! Two of them fill a small disk (tmpfs) of their own, which needs root.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::real;
use drover_testing::certs;
mod certificates;
mod disks;

use std::{
    cell::RefCell, collections::BTreeSet, fs, io::Write, path::Path, process::Command,
    time::Duration,
};

use drover_core::Error;
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{
        HealthPolicy, Lifecycle, LifecycleHook, NodeRole, PortRef, health_policy::Probe, port_ref,
    },
};
use prost_types::{Struct, Value, value::Kind};
use real::{
    World, kill_9,
    look::{condition, described, drover, ids, process, ready, records},
};

const CALL: Duration = Duration::from_secs(20);

fn span(millis: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration {
        seconds: i64::from(millis / 1_000),
        nanos: millis % 1_000 * 1_000_000,
    })
}

fn object(fields: &[(&str, &str)]) -> Struct {
    let fields = fields.iter().map(|(name, text)| {
        let kind = Some(Kind::StringValue((*text).to_owned()));
        ((*name).to_owned(), Value { kind })
    });
    Struct {
        fields: fields.collect(),
    }
}

/// A group `web` on `local` with some software; empty: the agent.
fn document(name: &str, software: &str, size: u32) -> pb::Cluster {
    let store = pb::StoreSpec {
        software: software.to_owned(),
        ..Default::default()
    };
    pb::Cluster {
        name: name.to_owned(),
        spec: Some(pb::ClusterSpec {
            store: (!software.is_empty()).then_some(store),
            platforms: vec![pb::PlatformChoice {
                name: "local".to_owned(),
                ..Default::default()
            }],
            groups: vec![pb::GroupSpec {
                name: "web".to_owned(),
                size: Some(size),
                ..Default::default()
            }],
            termination_grace_period: span(2_000),
            ..Default::default()
        }),
        ..Default::default()
    }
}

async fn apply(world: &World, cluster: &pb::Cluster) -> Result<(), Error> {
    let request = pb::ApplyClusterRequest {
        cluster: Some(cluster.clone()),
        ..Default::default()
    };
    world.client().apply_cluster(request, CALL).await.map(drop)
}

async fn holds(world: &World, name: &str, kind: &str) -> (String, String) {
    let found = RefCell::new(None);
    world
        .until(&format!("{kind} holds"), async |world| {
            let now = condition(world, name, kind).await;
            let is_so = now.is_some();
            found.replace(now);
            is_so
        })
        .await;
    found.into_inner().unwrap()
}

/// A world whose platform has an additional template, for software of its name.
async fn world_with(name: &str, template: &str) -> World {
    let mut world = World::stopped();
    let catalogue = world.state().with_file_name("catalogue");
    fs::create_dir(&catalogue).unwrap();
    let index = format!(
        "stores:\n  - store: {name}\n    versions:\n      - {{version: \"*\", template: {name}.yaml, ports: [client]}}\n"
    );
    fs::write(catalogue.join("index.yaml"), index).unwrap();
    fs::write(catalogue.join(format!("{name}.yaml")), template).unwrap();
    world
        .platform
        .add(&["--templates", catalogue.to_str().unwrap()]);
    let keys = world.store().with_file_name("keys");
    write_secret(&keys, "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n");
    world
        .orchestrator
        .add(&["--secrets-key-file", keys.to_str().unwrap()]);
    world.platform.start().await;
    world.orchestrator.start().await;
    world.register("local", &world.platform.endpoint()).await;
    world
        .until("the platform is ready", async |world| {
            world.platform_status("local").await.phase() == pb::PlatformPhase::Ready
        })
        .await;
    world
}

fn write_secret(path: &Path, text: &str) {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// The old image becomes ready at once; the new one takes one of two tickets, and never becomes ready if none is left.
const IMAGE: &str = r#"
command: sh
arguments:
  - -c
  - |
    while [ "$IMAGE" = new ] && ! mkdir "$TICKETS/1" && ! mkdir "$TICKETS/2"; do
      sleep 1000
    done 2>/dev/null
    : >"$DROVER_DIR/ready"
    exec sleep 100000
environment:
  IMAGE: {{ group.attributes.image | tojson }}
  TICKETS: {{ group.attributes.tickets | tojson }}
readiness: {file: ready}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_is_not_ready_in_the_middle_and_two_deaths_cost_no_other_node() {
    let world = world_with("image", IMAGE).await;
    let tickets = world.state().with_file_name("tickets");
    fs::create_dir(&tickets).unwrap();
    let of = |image: &str| {
        let mut cluster = document("shop", "image", 5);
        let spec = cluster.spec.as_mut().unwrap();
        let attributes = [("image", image), ("tickets", tickets.to_str().unwrap())];
        spec.attributes = Some(object(&attributes));
        spec.update = Some(pb::UpdatePolicy {
            progress_deadline: span(2_000),
            ..Default::default()
        });
        cluster
    };
    apply(&world, &of("old")).await.unwrap();
    world.ready("shop", 5).await;
    let old = ids(&records(&world, "shop").await);

    apply(&world, &of("new")).await.unwrap();
    // A merely slow step is also reported as stuck, but continues.
    world
        .until("it stands still in the middle", async |world| {
            let now = ready(&world.records("shop").await.unwrap_or_default());
            now.len() == 5
                && now.difference(&old).count() == 2
                && condition(world, "shop", "UpdateBlocked").await.is_some()
        })
        .await;
    let (reason, message) = holds(&world, "shop", "UpdateBlocked").await;
    assert_eq!(reason, "ProgressDeadline", "{message}");
    let said = described(&world, "shop");
    assert!(
        said.contains("UpdateBlocked") && said.contains(&message),
        "{said}"
    );
    let status = drover(&world, &["rollout", "status", "shop", "--timeout", "20s"]);
    assert_eq!(status.status.code(), Some(1), "{status:?}");
    let now = records(&world, "shop").await;
    assert_eq!(ready(&now).len(), 5, "surge 1, unavailable 0: {now:?}");
    assert_eq!(
        ready(&now).difference(&old).count(),
        2,
        "it was in the middle"
    );

    // One old and one new node die meanwhile.
    let serving = ready(&now);
    let victim = |is_old: bool| {
        let serves =
            |node: &&pb::Node| serving.contains(&node.id) && old.contains(&node.id) == is_old;
        now.iter().find(serves).unwrap()
    };
    let dead = [victim(true), victim(false)];
    for node in dead {
        kill_9(process(node));
    }
    let dead: BTreeSet<String> = dead.iter().map(|node| node.id.clone()).collect();
    let survivors: BTreeSet<String> = serving.difference(&dead).cloned().collect();
    world
        .until(
            "both are gone, and others are made for them",
            async |world| {
                let Ok(now) = world.records("shop").await else {
                    return false;
                };
                let now = ids(&now);
                now.is_disjoint(&dead) && now.len() >= 5
            },
        )
        .await;
    let now = ready(&records(&world, "shop").await);
    assert!(survivors.is_subset(&now), "{survivors:?} of {now:?}");
    let still = holds(&world, "shop", "UpdateBlocked").await;
    assert_eq!(still.0, "ProgressDeadline");

    // Recovery.
    let undone = drover(&world, &["rollout", "undo", "shop"]);
    assert!(undone.status.success(), "{undone:?}");
    world.ready("shop", 5).await;
    let now = ids(&records(&world, "shop").await);
    let kept: Vec<&String> = survivors.intersection(&old).collect();
    assert!(
        !kept.is_empty() && kept.iter().all(|id| now.contains(*id)),
        "{kept:?} of {now:?}"
    );
    assert_eq!(condition(&world, "shop", "UpdateBlocked").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_that_fails_and_one_that_hangs_are_told_and_hold_up_nobody() {
    let world = World::new().await;
    let mut cluster = document("hooked", "", 3);
    let hook = |cluster: &mut pb::Cluster, script: &str, size: u32| {
        let spec = cluster.spec.as_mut().unwrap();
        spec.groups[0].size = Some(size);
        spec.termination_grace_period = span(30_000);
        spec.lifecycle = Some(Lifecycle {
            pre_stop: Some(LifecycleHook {
                exec: ["sh", "-c", script].map(str::to_owned).into(),
                // Only the hanging hook must exceed its timeout.
                timeout: span(if script.contains("sleep") {
                    10_000
                } else {
                    20_000
                }),
                fences: false,
            }),
            ..Lifecycle::default()
        });
    };
    hook(&mut cluster, "echo hush-hush; exit 3", 3);
    apply(&world, &cluster).await.unwrap();
    world.ready("hooked", 3).await;
    for (script, size, words) in [
        ("echo hush-hush; exit 3", 2, "exit code 3"),
        ("echo hush-hush; exec sleep 1000", 1, "did not end"),
    ] {
        hook(&mut cluster, script, size);
        apply(&world, &cluster).await.unwrap();
        if script.contains("sleep") {
            let (reason, message) = holds(&world, "hooked", "Draining").await;
            assert_eq!(reason, "PreStop");
            assert!(
                message.contains("web-1: its preStop hook runs"),
                "{message}"
            );
        }
        world.ready("hooked", size as usize).await;
        assert_eq!(condition(&world, "hooked", "Draining").await, None);
        let events = world.events("hooked").await;
        let told = events
            .iter()
            .rev()
            .find(|event| event.reason == "DrainFailed");
        let told = told.unwrap_or_else(|| panic!("nobody says that it failed: {events:?}"));
        assert!(told.message.contains(words), "{}", told.message);
        assert!(told.message.contains("preStop"), "{}", told.message);
        assert!(events.iter().all(|event| !event.message.contains("hush")));
        let said = described(&world, "hooked");
        assert!(said.contains("DrainFailed"), "{said}");
    }
}

/// A Redis that requires a password which its standbys do not have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_cannot_follow_is_named_and_never_takes_over() {
    let there = Command::new("redis-cli").arg("--version").output();
    assert!(
        there.is_ok(),
        "redis-cli is not installed: apt-get install redis-server, and run this test again"
    );
    let world = World::new().await;
    let mut cluster = document("cache", "redis", 1);
    cluster.spec.as_mut().unwrap().health = Some(HealthPolicy {
        probe: Some(Probe::Tcp(drover_proto::platform::v1::TcpProbe {
            port: Some(PortRef {
                port: Some(port_ref::Port::Name("client".to_owned())),
            }),
        })),
        interval: span(200),
        // The primary stays, however busy the machine is.
        failure_threshold: Some(10),
        ..Default::default()
    });
    apply(&world, &cluster).await.unwrap();
    world.ready("cache", 1).await;
    let primary = records(&world, "cache").await.remove(0);
    let port = primary.endpoints["client"]
        .rsplit(':')
        .next()
        .unwrap()
        .to_owned();
    let redis = |arguments: &[&str]| {
        let output = Command::new("redis-cli")
            .args(["-h", "127.0.0.1", "-p", &port])
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(redis(&["set", "a", "1"]), "OK");
    assert_eq!(redis(&["config", "set", "requirepass", "hush"]), "OK");
    cluster.spec.as_mut().unwrap().groups[0].standby = Some(1);
    apply(&world, &cluster).await.unwrap();
    world
        .until("the standby is made and does not follow", async |world| {
            let nodes = world.records("cache").await.unwrap_or_default();
            let standby = nodes.iter().find(|node| node.role() == NodeRole::Standby);
            standby.is_some_and(|node| {
                node.state() == pb::NodeState::Starting && !node.provider_id.is_empty()
            })
        })
        .await;
    let status = world
        .cluster("cache")
        .await
        .unwrap()
        .unwrap()
        .status
        .unwrap();
    assert_ne!(status.phase(), pb::ClusterPhase::Ready);
    let said = described(&world, "cache");
    let standby = records(&world, "cache").await;
    let standby = standby
        .iter()
        .find(|node| node.role() == NodeRole::Standby)
        .unwrap();
    assert!(
        said.contains(&standby.name) && said.contains("Starting"),
        "{said}"
    );
    assert!(said.contains("1 of 2"), "{said}");

    // The active role is not moved to the standby, and the active node is left alone.
    let active = |nodes: &[pb::Node]| {
        let active = nodes.iter().find(|node| node.role() == NodeRole::Active);
        active.map(|node| node.id.clone())
    };
    assert_eq!(
        active(&records(&world, "cache").await),
        Some(primary.id.clone())
    );
    assert_eq!(redis(&["-a", "hush", "get", "a"]), "1");

    // Recovery.
    redis(&["-a", "hush", "config", "set", "requirepass", ""]);
    world.ready("cache", 2).await;
    let nodes = records(&world, "cache").await;
    assert_eq!(active(&nodes), Some(primary.id));
    assert!(
        ids(&nodes).contains(&standby.id),
        "the same standby follows now"
    );
}
