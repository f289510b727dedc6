//! The stores that are built in for clouds, on machines that boot: user data of the driver for EC2 are run by a Debian with
//! its systemd, which installs the packages, and the orchestrator between.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::Duration,
};

use drover_emulators::ec2::{Ec2, Ec2Settings};
use drover_proto::orchestrator::v1 as pb;
use drover_testing::wait::until;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::boot::{Machines, alone};
use crate::{
    embedded::{World, emulated_ec2},
    stores::clients::{Writer, lost},
};

/// What users see.
const EXAMPLE: &str = include_str!("../../../../deploy/examples/etcd-aws-spot.yaml");
const PASSWORD: &str = "pa$$ 'word\" `x`\\n";
/// Acknowledged writes that show that a store goes on.
const WRITES: usize = 20;

/// An emulated EC2, its machines, and an orchestrator with the platform `aws`.
struct Site {
    ec2: Ec2,
    world: World,
    machines: Machines,
}

impl Site {
    async fn open() -> Self {
        let settings = Ec2Settings {
            key_pairs: vec!["ops".to_owned()],
            ..Ec2Settings::default()
        };
        let ec2 = Ec2::start(settings).await.unwrap();
        let machines = Machines::of(&ec2);
        let mut world = World::new().await;
        let poll = Duration::from_millis(100);
        let settings = emulated_ec2(ec2.url(), world.directory.path(), poll);
        world.add("aws", settings).await;
        Self {
            ec2,
            world,
            machines,
        }
    }

    /// The nodes of a cluster by their names in it.
    async fn nodes(&self, cluster: &str) -> BTreeMap<String, pb::Node> {
        let nodes = self.world.nodes(cluster).await;
        nodes
            .into_iter()
            .map(|node| (node.name.clone(), node))
            .collect()
    }

    /// The host of a node dies. Returns when.
    fn kill(&self, node: &pb::Node) -> Instant {
        self.machines.kill(node.platform_node_id());
        Instant::now()
    }

    async fn end(self) {
        drop(self.machines);
        self.world.end().await;
        self.ec2.shutdown().await;
    }
}

/// The cluster of a manifest.
fn declared(text: &str) -> (String, pb::ClusterSpec) {
    let mut manifests = drover_manifest::Manifests::default();
    manifests.add_text("cluster.yaml", ".".into(), text.to_owned());
    let objects = manifests.decode(Some(&["aws".to_owned()]));
    let wrong = objects.diagnostics.render("");
    assert!(objects.diagnostics.is_empty(), "{wrong}");
    let cluster = objects.clusters[0].object.clone();
    (cluster.name.clone(), cluster.spec.unwrap())
}

/// A text in which another one stands exactly once, replaced.
fn replaced(text: &str, old: &str, new: &str) -> String {
    assert_eq!(text.matches(old).count(), 1, "{old:?} in {text}");
    text.replace(old, new)
}

fn client(node: &pb::Node) -> &str {
    &node.endpoints["client"]
}

fn etcdctl(endpoints: &str, arguments: &[&str]) -> Option<Value> {
    let output = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(["--dial-timeout=1s", "--command-timeout=3s", "-w", "json"])
        .args(["--endpoints", endpoints])
        .args(arguments)
        .output()
        .unwrap();
    let answer = output.status.success().then_some(output.stdout)?;
    Some(serde_json::from_slice(&answer).unwrap())
}

const LIST: [&str; 2] = ["member", "list"];

/// A cluster of etcd, as one of its members has it: its id, and the members' names by their ids, of those that vote.
#[derive(Clone, Debug, PartialEq)]
struct Etcd {
    id: u64,
    members: BTreeMap<u64, String>,
}

impl Etcd {
    /// `None` if that member does not answer, or has one beside it that does not vote yet.
    fn of(endpoint: &str) -> Option<Self> {
        Self::listed(&etcdctl(endpoint, &LIST)?)
    }

    /// As that member has it when it answers.
    async fn told(endpoint: &str) -> Option<Self> {
        let list = until("the member answers", async || etcdctl(endpoint, &LIST)).await;
        Self::listed(&list)
    }

    fn listed(list: &Value) -> Option<Self> {
        let mut members = BTreeMap::new();
        for member in list["members"].as_array()? {
            if member["isLearner"] == json!(true) {
                return None;
            }
            let name = member["name"].as_str()?.to_owned();
            members.insert(member["ID"].as_u64()?, name);
        }
        Some(Self {
            id: list["header"]["cluster_id"].as_u64()?,
            members,
        })
    }

    fn member(&self, node: &pb::Node) -> u64 {
        let found = self.members.iter().find(|(_, name)| **name == node.id);
        *found.unwrap().0
    }
}

/// Whether a member knows these nodes for the ones that vote, and no others.
fn all_vote(nodes: &BTreeMap<String, pb::Node>, etcd: Option<Etcd>) -> bool {
    let wanted: BTreeSet<&str> = nodes.values().map(|node| node.id.as_str()).collect();
    etcd.is_some_and(|etcd| {
        let names: BTreeSet<&str> = etcd.members.values().map(String::as_str).collect();
        names == wanted && etcd.members.len() == wanted.len()
    })
}

/// Waits until all of these nodes are the voting members of one etcd, and no other is one.
async fn one_etcd(nodes: &BTreeMap<String, pb::Node>) -> Etcd {
    until("all nodes are members of one etcd", async || {
        let seen: Option<Vec<Etcd>> = nodes.values().map(|node| Etcd::of(client(node))).collect();
        let seen = seen?;
        let same = seen.iter().all(|etcd| *etcd == seen[0]);
        let all = all_vote(nodes, Etcd::of(client(nodes.values().next()?)));
        (same && all).then(|| seen[0].clone())
    })
    .await
}

/// The example with as many members, which may become fewer, and of the version that Debian 12 has.
fn example(size: usize) -> (String, pb::ClusterSpec) {
    let text = replaced(EXAMPLE, "size: 5", &format!("size: {size}"));
    let text = replaced(
        &text,
        "deletionProtection: true",
        "deletionProtection: false",
    );
    declared(&replaced(&text, "\"3.5\"", "\"3.4\""))
}

/// The numbers that are on a member itself, once it has heard of what is acknowledged.
async fn keys(endpoint: &str) -> BTreeSet<u64> {
    let last = ["get", "last"];
    until("it has heard of all", async || etcdctl(endpoint, &last)).await;
    let own = ["get", "number-", "--prefix", "--consistency=s"];
    let found = until("it has the numbers", async || etcdctl(endpoint, &own)).await;
    let number = |pair: &Value| {
        use base64::Engine;
        let value = pair["value"].as_str().unwrap();
        let value = base64::engine::general_purpose::STANDARD.decode(value);
        String::from_utf8(value.unwrap()).unwrap().parse().unwrap()
    };
    found["kvs"]
        .as_array()
        .unwrap()
        .iter()
        .map(number)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_forms_keeps_its_quorum_when_a_host_dies_and_has_all_keys_when_that_is_replaced() {
    if !alone(
        "clouds::machines::an_etcd_forms_keeps_its_quorum_when_a_host_dies_and_has_all_keys_when_that_is_replaced",
    ) {
        return;
    }
    let site = Site::open().await;
    let (name, spec) = example(3);
    site.world.apply(&name, spec).await;
    site.world.ready(&name, 3).await;
    let nodes = site.nodes(&name).await;
    let left = &nodes["member-1"];
    // Else an update would let the next one go too early.
    let told = Etcd::told(client(left)).await;
    assert!(all_vote(&nodes, told), "ready, and without a vote");
    let before = one_etcd(&nodes).await;

    let clients: Vec<&str> = nodes.values().map(client).collect();
    let endpoints = clients.join(",");
    let writer = Writer::start(move |number| {
        let (key, value) = (format!("number-{number}"), number.to_string());
        etcdctl(&endpoints, &["put", &key, &value]).is_some()
    });
    until("the three acknowledge writes", async || {
        (writer.count() >= WRITES).then_some(())
    })
    .await;

    // The one with the lowest ordinal: alone it would begin a cluster.
    let dead = &nodes["member-0"];
    site.machines.hold();
    let killed = site.kill(dead);
    until("the two that are left acknowledge writes", async || {
        writer.since(killed)
    })
    .await;
    let count = writer.count();
    until("they go on", async || {
        (writer.count() >= count + WRITES).then_some(())
    })
    .await;
    assert_eq!(
        Etcd::told(client(left)).await.as_ref(),
        Some(&before),
        "nobody has joined yet"
    );
    site.machines.go_on();
    site.world
        .until("the host is replaced", async |world| {
            let nodes = world.nodes(&name).await;
            nodes.iter().all(|node| node.id != dead.id)
        })
        .await;
    site.world.ready(&name, 3).await;

    let now = site.nodes(&name).await;
    let told = Etcd::told(client(left)).await;
    assert!(all_vote(&now, told), "ready, and without a vote");
    let after = one_etcd(&now).await;
    assert_eq!(after.id, before.id, "another etcd");
    for survivor in ["member-1", "member-2"] {
        assert_eq!(now[survivor].id, nodes[survivor].id, "it was replaced");
        assert_eq!(
            after.member(&now[survivor]),
            before.member(&nodes[survivor])
        );
    }
    assert!(
        !after.members.contains_key(&before.member(dead)),
        "{after:?}"
    );
    let acknowledged = writer.finish();
    for node in now.values() {
        lost(&acknowledged, &keys(client(node)).await);
    }
    site.end().await;
}

/// Lets a member wait for a second where it waits for minutes.
async fn hurry(site: &Site, node: &pb::Node) {
    let change = "cd /var/lib/drover && grep -qx LONG=300 store.sh && sed -i s/^LONG=300$/LONG=1/ store.sh \
        && systemctl restart drover-store";
    let machine = node.platform_node_id();
    let output = site.machines.on(machine, &["sh", "-c", change]).unwrap();
    assert!(output.status.success(), "{output:?}");
    until("the member is there again", async || Etcd::of(client(node))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_went_without_a_replacement_counts_no_more_for_the_quorum() {
    if !alone(
        "clouds::machines::a_member_that_went_without_a_replacement_counts_no_more_for_the_quorum",
    ) {
        return;
    }
    let site = Site::open().await;
    let (name, spec) = example(2);
    site.world.apply(&name, spec).await;
    site.world.ready(&name, 2).await;
    site.world.scale(&name, "member", 3).await;
    site.world.ready(&name, 3).await;
    let nodes = site.nodes(&name).await;
    let before = one_etcd(&nodes).await;
    for node in nodes.values() {
        hurry(&site, node).await;
        one_etcd(&nodes).await;
    }
    // As at the end of a rolling update, which begins with one node more.
    site.world.scale(&name, "member", 2).await;
    site.world.ready(&name, 2).await;
    let left = site.nodes(&name).await;
    assert_eq!(one_etcd(&left).await.id, before.id);
    site.end().await;
}

fn redis(node: &pb::Node, password: Option<&str>, command: &[&str]) -> String {
    let (host, port) = client(node).split_once(':').unwrap();
    let mut program = Command::new("redis-cli");
    program.args(["-h", host, "-p", port]);
    match password {
        Some(password) => program.env("REDISCLI_AUTH", password),
        None => program.env_remove("REDISCLI_AUTH"),
    };
    let output = program.args(command).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&said).trim().to_owned()
}

/// That a node lets in those with the password and nobody else.
async fn asks_for_the_password(node: &pb::Node) {
    until("Redis answers those with the password", async || {
        (redis(node, Some(PASSWORD), &["ping"]) == "PONG").then_some(())
    })
    .await;
    let without = redis(node, None, &["ping"]);
    assert!(without.starts_with("NOAUTH"), "{without}");
    let wrong = redis(node, Some("password"), &["ping"]);
    assert!(wrong.contains("WRONGPASS"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_asks_for_its_password_and_does_so_on_the_machine_that_replaces_its_own() {
    if !alone(
        "clouds::machines::a_redis_asks_for_its_password_and_does_so_on_the_machine_that_replaces_its_own",
    ) {
        return;
    }
    let site = Site::open().await;
    let (name, mut spec) = declared(
        "apiVersion: drover.dev/v1\n\
         kind: Cluster\n\
         metadata: {name: cache}\n\
         spec:\n  \
           store: {software: redis, version: \"7\"}\n  \
           attributes: {config: {maxmemory: 16mb}}\n  \
           groups: {redis: {size: 1, platform: aws}}\n",
    );
    spec.groups[0].bootstrap = Some(pb::BootstrapSource {
        source: Some(pb::bootstrap_source::Source::Text(PASSWORD.to_owned())),
        render: false,
    });
    site.world.apply(&name, spec).await;
    site.world.ready(&name, 1).await;
    let first = site.nodes(&name).await.remove("redis-0").unwrap();
    asks_for_the_password(&first).await;
    let most = redis(&first, Some(PASSWORD), &["config", "get", "maxmemory"]);
    assert_eq!(most, "maxmemory\n16777216");
    assert_eq!(
        redis(&first, Some(PASSWORD), &["set", "key", "value"]),
        "OK"
    );

    site.kill(&first);
    site.world
        .until("the host is replaced", async |world| {
            let nodes = world.nodes(&name).await;
            nodes.iter().all(|node| node.id != first.id)
        })
        .await;
    site.world.ready(&name, 1).await;
    let second = site.nodes(&name).await.remove("redis-0").unwrap();
    asks_for_the_password(&second).await;
    let value = redis(&second, Some(PASSWORD), &["get", "key"]);
    assert_eq!(
        value, "",
        "data are on the disk of the machine, and go with it"
    );
    site.end().await;
}

/// What a PostgreSQL answers over the network, or why it does not.
fn sql(node: &pb::Node, password: Option<&str>, statement: &str) -> Result<String, String> {
    let (host, port) = client(node).split_once(':').unwrap();
    let to = format!("host={host} port={port} user=postgres dbname=postgres connect_timeout=5");
    let mut program = Command::new("psql");
    match password {
        Some(password) => program.env("PGPASSWORD", password),
        None => program.env_remove("PGPASSWORD"),
    };
    program.env("LC_ALL", "C").env("PGPASSFILE", "/nowhere");
    let output = program
        .args(["-XAtqw", "-d", &to, "-c", statement])
        .output()
        .unwrap();
    let text = |said: Vec<u8>| String::from_utf8_lossy(&said).trim().to_owned();
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        Err(text(output.stderr))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgresql_answers_at_its_private_address_those_with_its_password_and_nobody_else() {
    if !alone(
        "clouds::machines::a_postgresql_answers_at_its_private_address_those_with_its_password_and_nobody_else",
    ) {
        return;
    }
    let site = Site::open().await;
    let (name, mut spec) = declared(
        "apiVersion: drover.dev/v1\n\
         kind: Cluster\n\
         metadata: {name: orders}\n\
         spec:\n  \
           store: {software: postgresql, version: \"15\"}\n  \
           attributes: {settings: {work_mem: 5MB}}\n  \
           groups: {db: {size: 1, platform: aws}}\n",
    );
    spec.groups[0].bootstrap = Some(pb::BootstrapSource {
        source: Some(pb::bootstrap_source::Source::Text(PASSWORD.to_owned())),
        render: false,
    });
    site.world.apply(&name, spec).await;
    site.world.ready(&name, 1).await;
    let node = site.nodes(&name).await.remove("db-0").unwrap();
    let ask = |statement: &str| sql(&node, Some(PASSWORD), statement);
    let version = until("it answers", async || ask("show server_version").ok()).await;
    assert!(version.starts_with("15."), "{version}");
    assert_eq!(ask("show work_mem").as_deref(), Ok("5MB"));
    let address = site.ec2.private_address(node.platform_node_id()).unwrap();
    let at = ask("select host(inet_server_addr())");
    assert_eq!(at, Ok(address.to_string()));
    let rows = ask("create table number as select generate_series(1, 20) as it");
    assert!(rows.is_ok(), "{rows:?}");
    assert_eq!(ask("select sum(it) from number").as_deref(), Ok("210"));

    let without = sql(&node, None, "select 1").unwrap_err();
    assert!(without.contains("no password supplied"), "{without}");
    let wrong = sql(&node, Some("password"), "select 1").unwrap_err();
    let refused = "password authentication failed";
    assert!(wrong.contains(refused), "{wrong}");
    site.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_whose_packages_are_of_another_version_says_so_on_its_console() {
    if !alone(
        "clouds::machines::a_machine_whose_packages_are_of_another_version_says_so_on_its_console",
    ) {
        return;
    }
    let site = Site::open().await;
    let (name, spec) = declared(EXAMPLE);
    site.world.apply(&name, spec).await;
    let said = until("the first machine says something", async || {
        let instance = site.ec2.machines().first()?.id.clone();
        let console = site.machines.on(&instance, &["cat", "/dev/console"])?;
        let text = String::from_utf8(console.stdout).unwrap();
        text.ends_with('\n').then_some(text)
    })
    .await;
    let asked = "drover: etcd 3.5 is asked for, and this image has 3.4.";
    assert!(said.starts_with(asked), "{said}");
    site.end().await;
}
