//! Servers that serve, but lack something: room on their disk, or connections. People are told; nobody takes over from them,
//! and nobody replaces them. Those of Redis and etcd are in `redis::impaired` and `etcd::impaired`.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Write},
    iter,
    process::{Child, ChildStdout, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use drover_proto::orchestrator::v1 as pb;
use tokio::time::Instant;

use crate::stores::{
    Ports, UP, active,
    alone::{Node, until},
    apply,
    clients::{Writer, lost},
    disk::Disk,
    find, nested, object,
    postgresql::{alone, ask_at, begin, filled, insist, insist_at, postgresql},
    real::{World, look::condition},
    store, text, up, world,
};

const NAME: &str = "postgresql";

/// Waits until a cluster is told to be impaired for this reason, with the name of this node. Until then it does something
/// again and again.
pub(super) async fn impaired(
    world: &World,
    cluster: &str,
    (node, reason): (&pb::Node, &str),
    again: impl FnMut(),
) {
    let again = RefCell::new(again);
    let (what, began) = (
        format!("{} is Impaired, {reason}", node.name),
        Instant::now(),
    );
    world
        .until_within(UP, &what, async |world| {
            (*again.borrow_mut())();
            let told = condition(world, cluster, "Impaired").await;
            told.is_some_and(|(of, message)| of == reason && message.contains(&node.name))
        })
        .await;
    println!("{cluster}: {what}: told after {:?}", began.elapsed());
    assert!(world.is_ready(cluster, 2).await, "it serves");
}

pub(super) async fn not_impaired(world: &World, cluster: &str) {
    let began = Instant::now();
    world
        .until_within(UP, "nobody is Impaired any more", async |world| {
            condition(world, cluster, "Impaired").await.is_none()
        })
        .await;
    println!("{cluster}: ended after {:?}", began.elapsed());
}

/// Who is there, and in which role.
pub(super) async fn roles(world: &World, cluster: &str) -> BTreeSet<(String, i32)> {
    let nodes = world.records(cluster).await.unwrap();
    nodes.into_iter().map(|node| (node.id, node.role)).collect()
}

/// What a server says that it lacks, while it is alive. On a busy machine it may not answer each probe.
pub(super) fn lacks(node: &Node) -> Vec<String> {
    let began = Instant::now();
    let mut answer = node.does("alive");
    while !answer.status.success() {
        assert!(began.elapsed() < UP, "{answer:?}\n{}", node.log());
        sleep(Duration::from_millis(50));
        answer = node.does("alive");
    }
    let said = String::from_utf8(answer.stdout).unwrap();
    let reasons = said.lines().map(|line| line.strip_prefix("impaired: "));
    reasons
        .map(|one| one.expect("a reason").to_owned())
        .collect()
}

/// A client of PostgreSQL that stays.
struct Client {
    psql: Child,
    answers: BufReader<ChildStdout>,
}

impl Client {
    /// `None` if it is not let in.
    fn at(port: &str, user: &str) -> Option<Self> {
        let (_, programs) = postgresql();
        let to =
            format!("host=127.0.0.1 port={port} user={user} dbname=postgres connect_timeout=2");
        let mut psql = Command::new(programs.join("psql"));
        psql.args(["-XAtqw", "-d", &to]).stdin(Stdio::piped());
        psql.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut psql = psql.spawn().unwrap();
        let answers = BufReader::new(psql.stdout.take().unwrap());
        let mut client = Self { psql, answers };
        client.does("reset search_path").then_some(client)
    }

    /// Whether a statement that answers nothing succeeds.
    fn does(&mut self, statement: &str) -> bool {
        let to = self.psql.stdin.as_mut().unwrap();
        if writeln!(to, "{statement};\n\\echo :ERROR").is_err() {
            return false;
        }
        let mut answer = String::new();
        self.answers.read_line(&mut answer).is_ok() && answer == "false\n"
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.psql.kill();
        let _ = self.psql.wait();
    }
}

/// As many clients as are let in.
fn clients(port: &str, user: &str) -> impl Iterator<Item = Client> {
    iter::from_fn(move || Client::at(port, user))
}

fn port(node: &pb::Node) -> &str {
    node.endpoints["client"].rsplit_once(':').unwrap().1
}

/// A primary and a standby, with a client that writes on one connection.
struct Served<'a> {
    world: &'a World,
    primary: pb::Node,
    ports: Ports,
    writer: Writer,
    before: BTreeSet<(String, i32)>,
}

impl<'a> Served<'a> {
    async fn new(world: &'a World, storage: Option<pb::StorageSpec>) -> Self {
        let (version, _) = postgresql();
        let settings = [
            ("shared_buffers", text("16MB")),
            ("max_connections", text("20")),
        ];
        let attributes = object(&[("settings", nested(&settings))]);
        let mut cluster = store(NAME, &version, 1, 1, attributes);
        cluster.spec.as_mut().unwrap().groups[0].storage = storage;
        apply(world, &cluster).await;
        up(world, NAME, 2).await;
        let ports = Ports::default();
        let nodes = find(world, NAME, &ports).await;
        let primary = active(&nodes).expect("a primary").clone();
        insist_at(&primary, "create table numbers (number bigint)");
        let mut client = Client::at(port(&primary), "postgres").expect("it is let in");
        let writer = Writer::start(move |number| {
            client.does(&format!("insert into numbers values ({number})"))
        });
        writer.writes(world, NAME, &ports).await;
        assert_eq!(condition(world, NAME, "Impaired").await, None);
        let before = roles(world, NAME).await;
        Self {
            world,
            primary,
            ports,
            writer,
            before,
        }
    }

    /// Waits until it is told what the primary lacks, which serves nevertheless.
    async fn is_impaired(&self, reason: &str, again: impl FnMut()) {
        impaired(self.world, NAME, (&self.primary, reason), again).await;
        self.writer.writes(self.world, NAME, &self.ports).await;
        assert_eq!(roles(self.world, NAME).await, self.before);
    }

    async fn is_no_longer(&self) {
        not_impaired(self.world, NAME).await;
        self.writer.writes(self.world, NAME, &self.ports).await;
        assert_eq!(roles(self.world, NAME).await, self.before);
    }

    /// Stops the writer, of whose rows none is lost.
    fn finish(self) {
        let acknowledged = self.writer.finish();
        let there = insist_at(&self.primary, "select number from numbers");
        let there = there.lines().map(|number| number.parse().unwrap());
        lost(&acknowledged, &there.collect());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_whose_connections_are_all_taken_is_told_and_nobody_takes_over() {
    let world = world().await;
    let served = Served::new(&world, None).await;
    insist_at(&served.primary, "create role client login");
    let to = port(&served.primary);
    // Those that are kept for superusers are left, and then not even those.
    for (user, is_let_in) in [("client", true), ("postgres", false)] {
        let mut all = Vec::new();
        served
            .is_impaired("ConnectionsExhausted", || all.extend(clients(to, user)))
            .await;
        let what = format!("a superuser is let in: {is_let_in}");
        let all = RefCell::new(all);
        world
            .until_within(UP, &what, async |_| {
                all.borrow_mut().extend(clients(to, user));
                ask_at(&served.primary, "select 1").is_some() == is_let_in
            })
            .await;
        drop(all);
        served.is_no_longer().await;
    }
    served.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_with_a_full_disk_is_told_and_nobody_takes_over() {
    let world = world().await;
    // Goes before the world: what is mounted could not be deleted with the rest.
    let disk = Disk::at(world.state().join("storage"));
    let served = Served::new(&world, Some(pb::StorageSpec::default())).await;
    // Enough for what is written meanwhile: a server without room for its log ends.
    disk.fill_but(48);
    served.is_impaired("DiskFull", || {}).await;
    disk.free();
    served.is_no_longer().await;
    served.finish();
}

#[test]
fn primary_and_standby_say_that_their_connections_are_taken_each_of_its_own() {
    let mut nodes: Vec<_> = (0..2)
        .map(|at| alone(at, &["max_connections=10"]))
        .collect();
    begin(&mut nodes);
    for at in [0, 1] {
        let all = filled(&nodes[at]);
        until("it says so", &mut nodes, |nodes| {
            lacks(&nodes[at]) == ["ConnectionsExhausted"]
        });
        assert!(lacks(&nodes[1 - at]).is_empty(), "not of the other one");
        drop(all);
        until("it says so no more", &mut nodes, |nodes| {
            lacks(&nodes[at]).is_empty()
        });
    }
}

#[test]
fn a_server_that_lets_one_more_client_in_lacks_no_connections() {
    let mut nodes = [alone(0, &["max_connections=10"])];
    begin(&mut nodes);
    insist(&nodes[0], "create role client login");
    let port = nodes[0].port("client").to_string();
    // Three are kept for superusers, and the node's own script has one.
    let mut all = Vec::new();
    until("all but one are taken", &mut nodes, |_| {
        all.extend(clients(&port, "client").take(5 - all.len()));
        all.len() == 5
    });
    let taken = nodes[0].directory().join("taken");
    fs::write(&taken, "").unwrap();
    until("it was asked", &mut nodes, |nodes| {
        lacks(&nodes[0]).is_empty()
    });
    until("the last one is taken", &mut nodes, |nodes| {
        all.extend(clients(&port, "client"));
        lacks(&nodes[0]) == ["ConnectionsExhausted"]
    });
    // One more if it came while the script had none.
    assert!((6..=7).contains(&all.len()), "{}", all.len());
}
