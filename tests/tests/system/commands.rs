//! The commands that the documentation gives for recovery and for getting started, exactly as typed: their output and
//! their effect.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::real;
mod logs;
mod rebind;
mod shell;
mod storage;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use drover_proto::orchestrator::v1 as pb;
use real::World;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use shell::{asked, drover, json, typed};

/// A cluster of two agents, with further settings for the group.
fn document(more: &str) -> String {
    format!(
        "apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {{name: shop}}\n\
         spec:\n  terminationGracePeriod: 2s\n  groups:\n    web: {{size: 2, platform: local{more}}}\n"
    )
}

/// A world with an applied and ready `shop.yaml` in its directory.
async fn shop(more: &str) -> World {
    let world = World::new().await;
    fs::write(world.directory.path().join("shop.yaml"), document(more)).unwrap();
    drover(&world, "apply -f shop.yaml --wait").expect(0, &["cluster/shop created"]);
    world
}

/// Message of a condition of a cluster while it holds.
fn condition(world: &World, name: &str, kind: &str) -> Option<String> {
    let answer = json(world, &format!("get cluster {name} -o json"));
    let conditions = answer["cluster"]["status"]["conditions"].as_array()?;
    let mut conditions = conditions.iter();
    let found = conditions.find(|it| it["type"] == kind && it["status"] == true)?;
    Some(found["message"].as_str()?.to_owned())
}

/// Waits until a condition of a cluster holds.
async fn holds(world: &World, name: &str, kind: &str) -> String {
    let is_so = async |world: &World| condition(world, name, kind).is_some();
    world.until(&format!("{kind} holds"), is_so).await;
    condition(world, name, kind).unwrap_or_else(|| panic!("{kind} held and does not any more"))
}

/// One field of all rows of a list.
fn column(rows: &Value, field: &str) -> BTreeSet<String> {
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| row[field].as_str().unwrap().to_owned())
        .collect()
}

/// Ids of retained volumes.
fn kept(world: &World) -> BTreeSet<String> {
    let answer = json(world, "get storage -o json");
    let rows = answer["storage"].as_array().unwrap().iter();
    rows.map(|row| row["storage"]["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Ids of the data directories that outlive their nodes.
fn data(world: &World) -> BTreeSet<String> {
    let entries = fs::read_dir(world.state().join("storage")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with('.')).collect()
}

const WITH_STORAGE: &str = ", storage: {size: 1Gi}";

/// A world in which `shop` has one node, and the volume of a second one is retained: its id, and that of the one in
/// use.
async fn scaled_down() -> (World, String, String) {
    let world = shop(WITH_STORAGE).await;
    let both = data(&world);
    drover(&world, "scale shop web 1").expect(0, &["1 to delete"]);
    world
        .until("the storage of the second is kept", async |world| {
            kept(world).len() == 1
        })
        .await;
    let one = kept(&world).pop_first().unwrap();
    let used = both.into_iter().find(|id| *id != one).unwrap();
    (world, one, used)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_size_can_be_a_difference_and_nodes_go_only_when_somebody_agrees() {
    let world = shop("").await;
    let size = |world: &World| {
        let answer = json(world, "get cluster shop -o json");
        answer["cluster"]["spec"]["groups"][0]["size"].clone()
    };
    let question = async |text: &str| assert!(text.contains("1 to delete"), "{text}");
    asked(&world, "scale shop/web -1", question, "n")
        .await
        .expect(1, &["not scaled"]);
    assert_eq!(size(&world), 2);
    let question = async |text: &str| assert!(text.contains("1 to delete"), "{text}");
    asked(&world, "scale shop/web -1", question, "y")
        .await
        .expect(0, &["group/shop/web scaled"]);
    assert_eq!(size(&world), 1);
    // As it is shown, with a wait.
    drover(&world, "scale group/shop/web +2 --wait").expect(0, &["2 to create", "shop is ready"]);
    assert_eq!(size(&world), 3);
    let nodes = drover(&world, "get nodes shop -o name").expect(0, &[]).out;
    assert_eq!(nodes.lines().count(), 3, "{nodes}");
    drover(&world, "events").expect(0, &["CLUSTER", "shop  "]);
    drover(&world, "scale shop web -4").expect(64, &["-4 of 3 nodes is not possible"]);
    drover(&world, "scale shop web --standby +1 --dry-run").expect(0, &["standby", "-> 1"]);
    assert_eq!(size(&world), 3);
    let manifest = drover(&world, "get cluster shop -o manifest").expect(0, &["size: 3"]);
    fs::write(world.directory.path().join("again.yaml"), manifest.out).unwrap();
    drover(&world, "plan -f again.yaml").expect(0, &["cluster/shop  unchanged"]);
    drover(&world, "pause shop").expect(0, &[]);
    let waits = "cluster shop is paused; nothing happens until: drover resume shop";
    drover(&world, "scale shop/web 2").expect(0, &[waits]);
    drover(&world, "resume shop --wait").expect(0, &["shop is ready: 2 of 2"]);
    drover(&world, "status -o name").expect(0, &[]);
    drover(&world, "top --once")
        .expect(0, &["clusters      1: 1 Ready", "nodes         2: 2 Ready"]);
    drover(&world, "get cluster shop nope").expect(3, &["shop", "there is no cluster"]);
    drover(&world, "complete -- scale shop/").expect(0, &["shop/web"]);
    drover(&world, "wait shop --for condition=Redy").expect(64, &["did you mean `Ready`?"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_storage_is_listed_with_whose_it_is_and_goes_with_its_data_by_its_id() {
    let (world, one, used) = scaled_down().await;
    let table = drover(&world, "get storage").expect(0, &[]).out;
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 2, "{table}");
    assert_eq!(rows[0].last(), Some(&"ID"), "{table}");
    assert_eq!(rows[1][..5], ["shop", "web", "1", "local", "1Gi"]);
    assert!(
        table.contains("its next node") && rows[1].last() == Some(&&*one),
        "{table}"
    );
    drover(&world, "describe cluster shop").expect(0, &["Storage that is kept", &one]);
    let named = json(&world, &format!("get storage {one} -o json"));
    let row = &named["storage"][0];
    assert_eq!(row["claim"], "STORAGE_CLAIM_CLUSTER");
    assert_eq!(row["storage"]["storage"]["sizeBytes"], "1073741824");
    assert_eq!(row["storage"]["ordinal"], 1);

    let deletion = format!("delete storage {one}");
    drover(&world, &format!("{deletion} --dry-run")).expect(0, &["would be deleted", &one]);
    let planned = json(&world, &format!("{deletion} --dry-run -o json"));
    assert_eq!(planned["storage"]["id"], *one);
    let question = async |text: &str| {
        for words in ["0 to replace, 1 to delete", "data of 1 node kept"] {
            assert!(text.contains(words), "{text}");
        }
    };
    asked(&world, "delete cluster shop", question, "n")
        .await
        .expect(1, &["nothing deleted"]);
    let question = async |text: &str| assert!(text.contains("shop/web-1 on local"), "{text}");
    asked(&world, &deletion, question, "n")
        .await
        .expect(1, &["nothing deleted"]);
    assert!(data(&world).contains(&one), "nobody has said yes");

    let deleted = json(&world, &format!("{deletion} -y -o json"));
    assert_eq!(deleted["gone"], true);
    assert_eq!(
        data(&world),
        BTreeSet::from([used]),
        "its directory is gone"
    );
    drover(&world, "get storage").expect(0, &["nothing found"]);
    drover(&world, &format!("get storage {one}")).expect(3, &["storage"]);
    drover(&world, &deletion).expect(3, &["no storage", "hint: drover get storage"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_replaced_only_when_somebody_agrees_who_knows_what_becomes_of_its_data() {
    let world = shop(WITH_STORAGE).await;
    let ids = |world: &World| column(&json(world, "get nodes shop -o json")["nodes"], "id");
    let before = ids(&world);
    let replaced = "0 to create, 1 to replace";
    drover(&world, "replace shop/web-1 --dry-run").expect(
        0,
        &[
            "cluster/shop  generation 1, nothing changes in its spec (dry run)",
            "replace on local  asked for · data kept",
            "Plan: data of 1 node kept.",
            replaced,
        ],
    );
    let plan = json(&world, "replace shop/web-1 --dry-run -o json");
    assert_eq!(plan["plan"]["totals"]["replaceCount"], 1);
    assert_eq!(plan["plan"]["renewals"][0]["nodes"][0]["nodeName"], "web-1");
    let question = async |text: &str| {
        assert!(text.contains(replaced), "{text}");
        assert!(text.contains("data of 1 node kept"), "{text}");
    };
    asked(&world, "replace shop/web-1", question, "n")
        .await
        .expect(1, &["nothing changed"]);
    let nodes = json(&world, "get nodes shop -o json");
    let nodes = nodes["nodes"].as_array().unwrap();
    assert!(
        nodes.iter().all(|node| node["marked"] == false),
        "{nodes:?}"
    );
    assert_eq!(ids(&world), before);
    drover(&world, "replace shop/web-1 -y --wait").expect(0, &["will be replaced"]);
    world
        .until("it is another one", async |world| {
            let now = ids(world);
            now.len() == 2 && now.intersection(&before).count() == 1
        })
        .await;
    drover(&world, "replace shop/nope --dry-run").expect(3, &["hint: drover get nodes shop"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_not_scaled_beyond_what_its_template_provides_for() {
    let mut world = World::stopped();
    let catalogue = world.directory.path().join("catalogue");
    fs::create_dir(&catalogue).unwrap();
    let index = "default: {template: agent.yaml, ports: [agent], health: {grpc: {}}, limits: {maxSize: 1, maxStandby: 0}}";
    fs::write(catalogue.join("index.yaml"), index).unwrap();
    fs::write(
        catalogue.join("agent.yaml"),
        include_str!("../../../platform-cloud/catalogue/local/agent.yaml"),
    )
    .unwrap();
    let directory = catalogue.to_str().unwrap();
    world.platform.add(&["--templates", directory]);
    world.platform.start().await;
    world.orchestrator.start().await;
    world.register("local", &world.platform.endpoint()).await;
    world
        .until("the platform is ready", async |world| {
            let status = world.platform_status("local").await;
            status.phase() == pb::PlatformPhase::Ready
        })
        .await;
    let text = document("").replace("size: 2", "size: 1");
    fs::write(world.directory.path().join("shop.yaml"), text).unwrap();
    drover(&world, "apply -f shop.yaml --wait").expect(0, &["cluster/shop created"]);

    let stored = |world: &World| {
        let mut answer = json(world, "get cluster shop -o json");
        let cluster = &mut answer["cluster"];
        (cluster["generation"].take(), cluster["spec"].take())
    };
    let (before, processes) = (stored(&world), world.processes());
    for (change, field) in [
        ("shop/web 2", "size: "),
        ("shop/web +1", "size: "),
        ("shop web --standby 1", "standby: "),
        ("shop/web 1 --standby +1", "standby: "),
    ] {
        let why = ["on platform local has ", field];
        drover(&world, &format!("scale {change}")).expect(1, &why);
        drover(&world, &format!("scale {change} --dry-run")).expect(1, &why);
    }
    assert_eq!(stored(&world), before);
    assert_eq!(world.processes(), processes);
    drover(&world, "scale shop/web 1").expect(0, &["unchanged"]);
    drover(&world, "scale shop/web 0").expect(0, &["1 to delete"]);
    drover(&world, "scale shop/web 1 --wait").expect(0, &["shop is ready: 1 of 1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storage_of_another_name_or_in_use_is_not_deleted() {
    let (world, one, used) = scaled_down().await;
    let all = BTreeSet::from([one.clone(), used.clone()]);
    let refused = ["nope", "local/nope", "web-1", &used];
    for name in refused {
        let line = format!("delete storage {name} -y");
        drover(&world, &line).expect(3, &[name, "hint: drover get storage"]);
    }
    let line = format!("delete storage {one} nope -y");
    drover(&world, &line).expect(3, &["nope", "hint: drover get storage"]);
    assert_eq!((data(&world), kept(&world).len()), (all.clone(), 1));

    // The volume is retained when the prompt appears, and in use when it is answered.
    let line = format!("delete storage {one}");
    let next_node = async |_: &str| {
        drover(&world, "scale shop web 2").expect(0, &["1 to create"]);
        world.ready("shop", 2).await;
    };
    let said = asked(&world, &line, next_node, "y").await;
    said.expect(1, &["error: ", &one, "is that of web-1, which is there"]);
    assert_eq!(data(&world), all, "its node has it");
    assert!(world.is_ready("shop", 2).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_platform_has_that_answers_is_not_given_up() {
    let world = shop("").await;
    let before = world.processes();
    drover(&world, "abandon shop").expect(64, &["--platform <PLATFORM>"]);
    drover(&world, "abandon shop --platform local -y").expect(1, &["local answers"]);
    drover(&world, "abandon nope --platform local -y").expect(3, &["hint: drover get clusters"]);
    drover(&world, "abandon shop --platform nope -y").expect(3, &["hint: drover get platforms"]);
    assert!(world.is_ready("shop", 2).await);
    assert_eq!(world.processes(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_that_a_platform_blocks_which_is_gone_for_good_ends_by_abandoning_it() {
    let mut world = shop("").await;
    let nodes = json(&world, "get nodes shop -o json");
    let ids = column(&nodes["nodes"], "id");
    assert_eq!(ids.len(), 2);
    world.platform.kill();
    let mut waiting = typed(&world, "delete cluster shop -y --wait --timeout 3m")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let said = holds(&world, "shop", "DeletionBlocked").await;
    assert!(said.contains("2 nodes on local"), "{said}");
    drover(&world, "describe cluster shop")
        .expect(0, &["Deleting", "DeletionBlocked", "nodes on local"]);

    let command = "abandon shop --platform local";
    let question = async |text: &str| {
        for words in [
            "cluster/shop has on local 2 nodes: shop/web-0, shop/web-1",
            "they go on running with their data, and nobody looks after them",
            "yours to remove",
        ] {
            assert!(text.contains(words), "{text}");
        }
    };
    asked(&world, command, question, "n")
        .await
        .expect(1, &["nothing given up"]);
    assert!(condition(&world, "shop", "DeletionBlocked").is_some());
    assert!(
        waiting.try_wait().unwrap().is_none(),
        "the deletion waits for an answer"
    );

    let command = format!("{command} -y");
    drover(&world, &command).expect(1, &["looked for in vain", "it can be abandoned in"]);
    let said = drover_testing::wait::until("it may be abandoned", async || {
        let said = drover(&world, &command);
        (said.code == 0).then_some(said)
    })
    .await;
    let said = said.expect(0, &["2 nodes given up"]);
    for id in &ids {
        assert!(
            said.out.contains(&format!("node/shop/{id} abandoned")),
            "{said:?}"
        );
    }
    let status = waiting.wait().unwrap();
    assert!(status.success(), "the deletion ends: {status}");
    drover(&world, "get cluster shop").expect(3, &["hint: drover get clusters"]);
    let told = drover(&world, "events shop").expect(0, &["DeletionBlockedEnded"]);
    assert_eq!(told.out.matches("NodeAbandoned").count(), 2, "{}", told.out);
    assert_eq!(world.processes().len(), 2, "nobody could end them");
    drover(&world, "delete platform local -y").expect(0, &["platform/local deleted"]);
}

/// Replaces the orchestrator after the loss of its store by a fresh one.
async fn lose_the_store(world: &mut World) {
    world.orchestrator.kill();
    fs::remove_dir_all(world.store()).unwrap();
    world.orchestrator.start().await;
    let platform = format!(
        "apiVersion: drover.dev/v1\nkind: Platform\nmetadata: {{name: local}}\nspec: {{endpoint: \"{}\"}}\n",
        world.platform.endpoint()
    );
    fs::write(world.directory.path().join("local.yaml"), platform).unwrap();
    drover(world, "apply -f local.yaml").expect(0, &["platform/local created"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_another_orchestrator_made_is_refused_with_the_way_to_take_it_over() {
    let mut world = shop("").await;
    let before = world.processes();
    lose_the_store(&mut world).await;
    world
        .until("it is discovered", async |world| {
            let said = drover(world, "get discovered").expect(0, &[]);
            let mut rows = said.out.lines().map(str::split_whitespace);
            rows.any(|row| {
                let row: Vec<&str> = row.collect();
                row[..2] == ["local", "shop"] && row[3] == "2"
            })
        })
        .await;
    for command in ["apply", "plan"] {
        let said = drover(&world, &format!("{command} -f shop.yaml"));
        said.expect(1, &["local shows nodes of a cluster \"shop\"", "--adopt"]);
    }
    drover(&world, "get cluster shop").expect(3, &[]);
    drover(&world, "apply -f shop.yaml --adopt --dry-run")
        .expect(0, &["(dry run)", "web-0", "web-1"]);
    drover(&world, "get cluster shop").expect(3, &[]);
    assert_eq!(world.processes(), before);
}

/// Pids by node name.
fn pids(world: &World) -> BTreeMap<String, u32> {
    let nodes = json(world, "get nodes shop -o json");
    let nodes = nodes["nodes"].as_array().unwrap().iter();
    nodes
        .map(|node| {
            let name = node["name"].as_str().unwrap().to_owned();
            let provider = node["providerId"].as_str().unwrap();
            let pid = provider.rsplit('/').next().unwrap().parse().unwrap();
            (name, pid)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adopted_nodes_are_the_very_same_processes_and_are_watched_as_any_others() {
    let mut world = shop("").await;
    let directories = |world: &World| BTreeSet::from_iter(world.node_directories());
    let (before, made) = (pids(&world), directories(&world));
    // With the platform down, the nodes are still unknown when the cluster is created.
    world.platform.kill();
    lose_the_store(&mut world).await;
    let said = drover(&world, "apply -f shop.yaml").expect(0, &["cluster/shop created"]);
    assert!(said.err.contains("has not answered yet"), "{said:?}");
    world.platform.start().await;
    let said = holds(&world, "shop", "ForeignNodes").await;
    assert!(said.contains("drover apply --adopt"), "{said}");
    drover(&world, "describe cluster shop").expect(0, &["ForeignNodes", "drover apply --adopt"]);
    drover(&world, "status").expect(0, &["ForeignNodes", "drover apply --adopt"]);
    assert_eq!(directories(&world), made, "nothing is made");

    drover(&world, "apply -f shop.yaml --adopt").expect(0, &["cluster/shop configured"]);
    world.ready("shop", 2).await;
    drover(&world, "wait cluster/shop").expect(0, &["cluster/shop is ready"]);
    assert_eq!(pids(&world), before);
    assert_eq!(condition(&world, "shop", "ForeignNodes"), None);
    drover(&world, "get discovered").expect(0, &["nothing found"]);
    let told = drover(&world, "events shop").expect(0, &[]).out;
    assert_eq!(told.matches("NodeAdopted").count(), 2, "{told}");

    // Only probes detect a hung process, so the other node has responded to as many by then.
    let hangs = before["web-1"];
    let pid = Pid::from_raw(hangs.cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    world
        .until("the one that hangs is replaced", async |world| {
            !world.processes().contains_key(&hangs) && world.is_ready("shop", 2).await
        })
        .await;
    let told = drover(&world, "events shop").expect(0, &[]).out;
    assert_eq!(pids(&world)["web-0"], before["web-0"], "{told}");
    assert_eq!(told.matches("NodeUnhealthy").count(), 1, "{told}");
}

/// Fails unless this command finds the programs of a store.
fn installed(look: &str, packages: &str) {
    let there = Command::new("sh").args(["-c", look]).output().unwrap();
    assert!(
        there.status.success(),
        "{look}: apt-get install {packages}, and run this test again"
    );
}

/// Applies the unmodified output of `init`, and expects this number of nodes.
async fn is_applied_unchanged(kind: &str, cluster: &str, nodes: usize) {
    let world = World::new().await;
    // Nodes may run as another user.
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(world.directory.path(), open).unwrap();
    let printed = drover(&world, &format!("init {kind}")).expect(0, &[]);
    assert_eq!(printed.err, "");
    fs::write(world.directory.path().join("it.yaml"), &printed.out).unwrap();

    drover(&world, "validate -f it.yaml").expect(0, &["1 document valid"]);
    let new = format!("cluster/{cluster}  new: {nodes} nodes on local");
    let plan = drover(&world, "plan -f it.yaml").expect(0, &[&new, "to create"]);
    assert!(
        plan.out.contains("0 to replace, 0 to delete"),
        "{}",
        plan.out
    );
    drover(&world, "plan -f it.yaml --detailed-exitcode").expect(2, &[]);
    drover(&world, "apply -f it.yaml --dry-run").expect(0, &["(dry run)"]);
    drover(&world, "get clusters").expect(0, &["nothing found"]);
    assert_eq!(world.processes().len(), 0, "it was only asked");

    let said = drover(&world, "apply -f it.yaml --wait --timeout 3m");
    if said.code != 0 {
        let state = drover(&world, &format!("describe cluster {cluster}"));
        panic!("{said:?}\n{}", state.out);
    }
    assert_eq!(said.out.matches("  Ready").count(), nodes, "{}", said.out);
    world.ready(cluster, nodes).await;
    drover(&world, "plan -f it.yaml --detailed-exitcode").expect(0, &["unchanged"]);
    drover(&world, "apply -f it.yaml").expect(0, &[&format!("cluster/{cluster} unchanged")]);
    drover(&world, "delete -f it.yaml -y --wait").expect(0, &[&format!("cluster/{cluster} gone")]);
    assert_eq!(world.processes().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_init_prints_for_redis_becomes_ready_as_it_is() {
    installed("command -v redis-server", "redis-server");
    is_applied_unchanged("redis", "cache", 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_init_prints_for_etcd_becomes_ready_as_it_is() {
    installed(
        "command -v etcd && command -v etcdctl",
        "etcd-server etcd-client",
    );
    is_applied_unchanged("etcd", "coordination", 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_init_prints_for_postgresql_becomes_ready_as_it_is() {
    installed("ls /usr/lib/postgresql/*/bin/postgres", "postgresql");
    is_applied_unchanged("postgresql", "orders", 3).await;
}
