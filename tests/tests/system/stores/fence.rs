//! A primary that is to go and lives on: nobody waits for its end, and it acknowledges nothing more.

use std::{fs, sync::Mutex};

use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{
        ExecProbe, HealthPolicy, Lifecycle, LifecycleHook, NodeRole, health_policy::Probe,
    },
};

use crate::stores::{
    UP, active, apply, nested, object,
    postgresql::{ask_at as ask, insist_at as insist, postgresql},
    real::World,
    run, server, store, text, up, world,
};

fn span(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(|word| (*word).to_owned()).collect()
}

/// A primary and two standbys. Whoever is named in the file counts as sick; and who is to go takes minutes for it.
fn slow_to_go(version: &str, sick: &str) -> pb::Cluster {
    let settings = [("shared_buffers", text("16MB"))];
    let attributes = object(&[("synchronous", text("1")), ("settings", nested(&settings))]);
    let mut cluster = store("postgresql", version, 1, 2, attributes);
    let spec = cluster.spec.as_mut().unwrap();
    let probe = format!("! grep -qx \"$DROVER_NODE_ID\" {sick}");
    spec.health = Some(HealthPolicy {
        probe: Some(Probe::Exec(ExecProbe {
            command: words(&["sh", "-c", &probe]),
            ..ExecProbe::default()
        })),
        interval: span(1),
        // Nobody else is sick, however busy the machine is.
        timeout: span(10),
        ..Default::default()
    });
    spec.lifecycle = Some(Lifecycle {
        pre_stop: Some(LifecycleHook {
            exec: words(&["sleep", "300"]),
            timeout: span(300),
            fences: false,
        }),
        ..Lifecycle::default()
    });
    cluster
}

async fn nodes(world: &World) -> Vec<pb::Node> {
    world.records("postgresql").await.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_the_end_of_a_primary_that_a_promotion_keeps_out() {
    let (version, _) = postgresql();
    let world = world().await;
    let sick = world.directory.path().join("sick");
    fs::write(&sick, "").unwrap();
    let cluster = slow_to_go(&version, sick.to_str().unwrap());
    apply(&world, &cluster).await;
    up(&world, "postgresql", 3).await;
    let old = active(&nodes(&world).await).expect("a primary").clone();
    insist(&old, "create table t (x int)");
    insist(&old, "insert into t values (1)");
    fs::write(&sick, format!("{}\n", old.id)).unwrap();
    let acknowledged = Mutex::new(vec![1]);
    world
        .until_within(UP, "another one is active", async |world| {
            // A client that goes on with the one that it knows.
            let row = acknowledged.lock().unwrap().len() + 1;
            if ask(&old, &format!("insert into t values ({row}) returning x")).is_some() {
                acknowledged.lock().unwrap().push(row);
            }
            let now = nodes(world).await;
            now.iter()
                .any(|node| node.id != old.id && node.role() == NodeRole::Active)
        })
        .await;
    let acknowledged = acknowledged.into_inner().unwrap();
    assert!(acknowledged.len() > 1, "it served until then");
    let now = nodes(&world).await;
    let mut others = now.iter().filter(|node| node.id != old.id);
    let new = others.find(|node| node.role() == NodeRole::Active).unwrap();
    // It is there, it answers, it is a primary, and nothing that it is given is acknowledged.
    assert_eq!(insist(&old, "select not pg_is_in_recovery()"), "t");
    assert_eq!(ask(&old, "insert into t values (0) returning x"), None);
    let rows = acknowledged.iter().map(|row| format!("({row})"));
    let lacks = format!(
        "select count(*) from (values {}) given (x) where not exists (select from t where t.x = given.x)",
        rows.collect::<Vec<_>>().join(", ")
    );
    assert_eq!(insist(new, &lacks), "0", "{acknowledged:?}");
    let serves = "insert into t values (-1) returning x";
    world
        .until_within(UP, "the new one has a standby", async |_| {
            ask(new, serves).is_some()
        })
        .await;
    assert_eq!(ask(&old, "insert into t values (0) returning x"), None);
    // Its end, at last.
    let server = server(&old).to_string();
    assert!(run("kill", &["-KILL", &server]).status.success());
    up(&world, "postgresql", 3).await;
}
