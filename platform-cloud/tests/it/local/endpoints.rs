//! The files by which programs of this machine find the nodes of a group.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use drover_platform::driver::{Change, Driver};
use drover_proto::platform::v1::{Node, NodeRole, ProvisionRequest};

use super::tenants::{is_root, separate};
use crate::local_support::{World, adoption, kill_off, made, pid, request, target, until};

/// A request for one node whose template hears of others.
fn one(request_id: &str, ordinal: u32, role: NodeRole) -> ProvisionRequest {
    let mut request = request("social", request_id, 1);
    request.slots[0].ordinal = Some(ordinal);
    request.slots[0].role = role.into();
    request
}

/// Creates the node of a request and has it say that it is ready.
async fn started(world: &World, request: &ProvisionRequest) -> Node {
    let node = made(world.create(request).await.remove(0));
    fs::write(world.node_directory(&node).join("data/go"), "").unwrap();
    world.ready(&node.node_id).await
}

async fn give(world: &World, node: &Node, role: NodeRole) {
    let change = Change::Edit {
        role: Some(role),
        set_labels: BTreeMap::new(),
        remove_labels: Vec::new(),
        host_labels: None,
        storage_size: None,
        spec_hash: String::new(),
        promoting: false,
    };
    world.driver.update(&target(node), &change).await.unwrap();
}

fn address(node: &Node) -> &str {
    &node.endpoints["client"]
}

fn directory(world: &World) -> PathBuf {
    world.state().join("endpoints")
}

fn files(world: &World) -> Vec<String> {
    let entries = fs::read_dir(directory(world)).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| Path::new(name).extension().is_none_or(|it| it != "new"))
        .collect();
    names.sort();
    names
}

/// The lines of a file but the first. There are none if there is no file.
fn lines(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().skip(1).map(ToOwned::to_owned).collect()
}

/// What a file says that leads writers to one node and readers to another.
fn leading_to(active: &Node, readable: &Node) -> Vec<String> {
    let (host, port) = address(active).rsplit_once(':').unwrap();
    vec![
        format!("STORE_HOST={host}"),
        format!("STORE_PORT={port}"),
        format!("STORE_ADDRESSES={}", address(active)),
        format!("STORE_READ_ADDRESSES={}", address(readable)),
    ]
}

/// Tells whether a file was written again.
fn version(file: &Path) -> (u64, i64, i64) {
    let meta = fs::metadata(file).unwrap();
    (meta.ino(), meta.mtime(), meta.mtime_nsec())
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_are_led_to_nodes_that_are_ready_by_their_roles_until_the_last_is_gone() {
    let world = World::new();
    let file = directory(&world).join("orders-db.env");
    let says = async |what: &str, expected: &[String]| {
        until(what, async || lines(&file) == expected).await;
    };
    let nobody = "# no active node".to_owned();

    let first = made(
        world
            .create(&one("r1", 0, NodeRole::Active))
            .await
            .remove(0),
    );
    says("nobody is ready", std::slice::from_ref(&nobody)).await;
    fs::write(world.node_directory(&first).join("data/go"), "").unwrap();
    let first = world.ready(&first.node_id).await;
    says("the first is", &leading_to(&first, &first)).await;
    let second = started(&world, &one("r2", 1, NodeRole::Standby)).await;
    says("the second is read", &leading_to(&first, &second)).await;

    let script = r#". "$0"; printf %s "$STORE_HOST:$STORE_PORT""#;
    let shell = Command::new("sh").args(["-c", script]).arg(&file).output();
    assert_eq!(shell.unwrap().stdout, address(&first).as_bytes());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o644);
    // As root, clusters have users of their own.
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    assert_eq!(
        mode(&directory(&world)),
        if is_root { 0o711 } else { 0o755 }
    );

    give(&world, &first, NodeRole::Standby).await;
    let both = format!(
        "STORE_READ_ADDRESSES={},{}",
        address(&first),
        address(&second)
    );
    says("nobody is active", &[nobody.clone(), both]).await;
    give(&world, &second, NodeRole::Active).await;
    says("the second is active", &leading_to(&second, &first)).await;
    kill_off(pid(&first)).await;
    says("the first is dead", &leading_to(&second, &second)).await;
    kill_off(pid(&second)).await;
    says("both are", &[nobody]).await;
    world.remove(&first).await;
    world.remove(&second).await;
    until("the file is gone", async || files(&world).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_platform_leaves_a_file_as_it_is_and_removes_that_of_a_group_that_is_gone() {
    let world = World::new();
    let file = directory(&world).join("orders-db.env");
    let node = started(&world, &one("r1", 0, NodeRole::Active)).await;
    until("it is listed", async || {
        lines(&file) == leading_to(&node, &node)
    })
    .await;
    let stopped = world.stopped().await;
    let gone = file.with_file_name("gone-db.env");
    let text = fs::read_to_string(&file).unwrap();
    let tag = text.lines().next().unwrap().rsplit(' ').next().unwrap();
    fs::write(&gone, text.replace(tag, "0123456789")).unwrap();
    fs::write(file.with_file_name("mine"), "").unwrap();

    let world = World::over(stopped, |_| {});
    until("the other file is gone", async || !gone.exists()).await;
    let node = world.ready(&node.node_id).await;
    let second = started(&world, &one("r2", 1, NodeRole::Standby)).await;
    until("the second is listed", async || {
        lines(&file) == leading_to(&node, &second)
    })
    .await;
    assert_eq!(files(&world), ["mine", "orders-db.env"]);

    let before = version(&file);
    let world = world.restarted().await;
    for node in [&node, &second] {
        world.ready(&node.node_id).await;
    }
    // By the time that another file is written, this one would have been.
    let mut other = one("r3", 0, NodeRole::Active);
    other.cluster.as_mut().unwrap().id = "other".to_owned();
    let other = started(&world, &other).await;
    let theirs = directory(&world).join("other-db.env");
    until("another group is listed", async || {
        lines(&theirs) == leading_to(&other, &other)
    })
    .await;
    assert_eq!(version(&file), before, "it never said anything else");
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_of_one_name_never_share_a_file_and_nodes_that_hear_of_nobody_have_none() {
    let world = World::new();
    let ours = started(&world, &one("r1", 0, NodeRole::Active)).await;
    let usual = directory(&world).join("orders-db.env");
    until("the first has the file", async || {
        lines(&usual) == leading_to(&ours, &ours)
    })
    .await;
    let mut same_name = one("r2", 0, NodeRole::Active);
    same_name.owner = "owner-2".to_owned();
    let theirs = started(&world, &same_name).await;
    let mut silent = request("sleeper", "r3", 1);
    silent.cluster.as_mut().unwrap().id = "silent".to_owned();
    world.start(&silent).await;
    until("the second has a file of its own", async || {
        let all = files(&world);
        let own = all.iter().find(|name| name.starts_with("orders-db-"));
        all.len() == 2
            && own.is_some_and(|own| {
                lines(&directory(&world).join(own)) == leading_to(&theirs, &theirs)
            })
    })
    .await;
    assert_eq!(lines(&usual), leading_to(&ours, &ours));

    let world = world.restarted().await;
    let theirs = world.ready(&theirs.node_id).await;
    let ours = world.ready(&ours.node_id).await;
    assert_eq!(lines(&usual), leading_to(&ours, &ours));
    world.remove(&ours).await;
    until("the name is free for the second", async || {
        lines(&usual) == leading_to(&theirs, &theirs)
    })
    .await;
    until("and its own is gone", async || {
        files(&world) == ["orders-db.env"]
    })
    .await;

    let before = fs::read_to_string(&usual).unwrap();
    let change = adoption("owner-3", 0);
    let update = world.driver.update(&target(&theirs), &change).await;
    let adopted = update.unwrap();
    until("the file is that of the new owner", async || {
        fs::read_to_string(&usual).is_ok_and(|text| text != before)
    })
    .await;
    assert_eq!(lines(&usual), leading_to(&adopted, &adopted));
    assert_eq!(files(&world), ["orders-db.env"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_clusters_have_users_nobody_sees_the_names_of_others() {
    if !is_root() {
        return;
    }
    let world = separate();
    started(&world, &one("r1", 0, NodeRole::Active)).await;
    let file = directory(&world).join("orders-db.env");
    until("it is written", async || file.exists()).await;
    let mode = fs::metadata(directory(&world)).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o711);
}
