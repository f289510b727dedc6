//! A Redis with a password, and its rotation.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use drover_proto::orchestrator::v1::{self as pb, bootstrap_source::Source, secret_value};
use prost_types::Struct;

use super::{all_ready, alone, port};
use crate::{
    real::{PATIENCE, look},
    stores::{
        Ports, UP, active,
        alone::{Node, introduce, promoted, refused, until},
        apply,
        clients::{Writer, lost},
        find, installed, kill_the_active_one,
        real::World,
        store, up,
    },
};

/// The passwords of these tests; wherever one of `TRACES` is seen, there is a leak.
const OLD: &str = "Zirkel-5527 \"old\" \\ #1";
const NEW: &str = "Tangente-8861 'new' \\ #2";
const TRACES: [&str; 2] = ["Zirkel-5527", "Tangente-8861"];

const NOAUTH: &str = "-NOAUTH Authentication required.";

/// A connection that does not reveal the password to other processes.
struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects, and authenticates if there is a password. Without one, the server either requires none or is expected
    /// to refuse commands.
    fn to(port: u16, password: Option<&[u8]>) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut connection = Self(BufReader::new(stream));
        if let Some(password) = password {
            let answer = connection.asks(&[b"AUTH", password])?;
            if answer != "+OK" {
                return Err(std::io::Error::other(answer));
            }
        }
        Ok(connection)
    }

    fn asks(&mut self, words: &[&[u8]]) -> std::io::Result<String> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend(format!("${}\r\n", word.len()).bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request)?;
        self.answer()
    }

    /// Reads a reply; each of its parts becomes a line.
    fn answer(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let line = line.trim_end();
        let length = line.get(1..).and_then(|it| it.parse::<usize>().ok());
        match (line.chars().next(), length) {
            (Some('$'), Some(length)) => {
                let mut text = vec![0; length + 2];
                self.0.read_exact(&mut text)?;
                Ok(String::from_utf8_lossy(&text[..length]).into_owned())
            }
            (Some('*'), Some(parts)) => {
                let parts = (0..parts).map(|_| self.answer());
                Ok(parts.collect::<std::io::Result<Vec<_>>>()?.join("\n"))
            }
            _ => Ok(line.to_owned()),
        }
    }
}

/// Reply of a server to one command.
fn ask(port: u16, password: Option<&str>, command: &str) -> std::io::Result<String> {
    let words: Vec<_> = command.split(' ').map(str::as_bytes).collect();
    Connection::to(port, password.map(str::as_bytes))?.asks(&words)
}

fn insist(node: &Node, password: &str, command: &str) -> String {
    let answer = ask(node.port("client"), Some(password), command);
    answer.unwrap_or_else(|error| panic!("{}: {command}: {error}\n{}", node.name, node.log()))
}

/// Nodes with this user data and retained storage; the first one is active.
fn nodes(count: u32, user_data: Option<&str>) -> Vec<Node> {
    installed("redis-server", "redis-server");
    let kept = |at| alone(at).with(&["--appendonly", "yes"]);
    let mut nodes: Vec<_> = (0..count).map(kept).collect();
    for (at, node) in nodes.iter_mut().enumerate() {
        if let Some(user_data) = user_data {
            node.is_given(user_data.as_bytes());
        }
        node.start(if at == 0 { "active" } else { "standby" });
    }
    introduce(&nodes);
    until("all are of use", &mut nodes, all_ready);
    nodes
}

/// Replaces a node by a standby with different user data.
fn renew(nodes: &mut [Node], at: usize, user_data: &str) {
    nodes[at].is_given(user_data.as_bytes());
    nodes[at].start("standby");
    introduce(nodes);
    until("the new one is of use", nodes, |nodes| nodes[at].is_ready());
}

/// Kills one node and promotes another; all living nodes are informed.
fn takes_over(nodes: &mut [Node], dies: usize, at: usize) {
    nodes[dies].kill();
    introduce(nodes);
    promoted(&mut nodes[at]);
    introduce(nodes);
}

/// Waits until a key written to one node is on all other living ones.
fn arrives(nodes: &mut [Node], at: usize, key: &str, passwords: &[&str]) {
    until("it is written, and everywhere", nodes, |nodes| {
        let write = format!("SET {key} x");
        ask(nodes[at].port("client"), Some(passwords[at]), &write).is_ok_and(|it| it == "+OK")
            && nodes.iter_mut().zip(passwords).all(|(node, password)| {
                let read = format!("EXISTS {key}");
                node.has_ended()
                    || ask(node.port("client"), Some(*password), &read).is_ok_and(|it| it == ":1")
            })
    });
}

#[test]
fn redis_takes_odd_passwords_and_lets_nobody_in_without_one() {
    let long = "x'\"\\".repeat(32);
    for password in [
        &b" in front and behind "[..],
        b"it's \"quoted\" \\ and # more",
        b"\\x41\\n%s%%",
        b"$HOME `id` $(id) * ~",
        b"-x",
        b"\"",
        b"former: x",
        "\u{17e}lu\u{165} \u{5bc6}\u{7801}".as_bytes(),
        b"\x81\x88\xe9\xff",
        long.as_bytes(),
    ] {
        installed("redis-server", "redis-server");
        let mut nodes: Vec<_> = (0..2).map(alone).collect();
        for (node, role) in nodes.iter_mut().zip(["active", "standby"]) {
            node.is_given(password);
            node.start(role);
        }
        introduce(&nodes);
        let what = format!("they are of use with {}", password.escape_ascii());
        until(&what, &mut nodes, all_ready);
        for node in &nodes {
            let port = node.port("client");
            let with = Connection::to(port, Some(password)).and_then(|mut it| it.asks(&[b"PING"]));
            assert_eq!(with.unwrap(), "+PONG");
            assert_eq!(ask(port, None, "PING").unwrap(), NOAUTH);
            let wrong = Connection::to(port, Some(&password[1..])).err().unwrap();
            assert!(wrong.to_string().starts_with("-WRONGPASS"), "{wrong}");
            let file = fs::metadata(node.directory().join("redis.conf")).unwrap();
            assert_eq!(file.permissions().mode() & 0o777, 0o600);
        }
    }
}

#[test]
fn a_redis_password_that_is_empty_or_has_control_characters_is_refused() {
    for user_data in [
        &b""[..],
        b"\nsecond line",
        b"a\tb",
        b"a\r\n",
        b"a\0b",
        b"a\x7f",
        b"a\nformer: b\x01",
    ] {
        let mut nodes = [alone(0)];
        nodes[0].is_given(user_data);
        nodes[0].start("active");
        until("it ends", &mut nodes, |nodes| nodes[0].has_ended());
        let said = nodes[0].log();
        assert!(
            said.contains("is empty or has control characters"),
            "{said}"
        );
    }
}

/// Wrapper programs that record their arguments in a file and then execute the original programs.
struct Told(tempfile::TempDir);

impl Told {
    fn new(programs: &[&str]) -> Self {
        let told = Self(tempfile::tempdir().unwrap());
        for program in programs {
            let real = super::run("sh", &["-c", &format!("command -v {program}")]);
            let real = String::from_utf8(real.stdout).unwrap();
            let script = format!(
                "#!/bin/sh\n/bin/cat /proc/$$/cmdline /proc/$$/environ >>{}\nexec {} \"$@\"\n",
                told.file().display(),
                real.trim(),
            );
            let path = told.0.path().join(program);
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        told
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("said")
    }

    /// The value of `PATH` with these programs first.
    fn path(&self) -> String {
        let before = std::env::var("PATH").unwrap();
        format!("{}:{before}", self.0.path().display())
    }
}

#[test]
fn no_program_has_a_redis_password_in_its_arguments_or_in_its_environment() {
    let told = Told::new(&[
        "redis-server",
        "redis-cli",
        "timeout",
        "sed",
        "tr",
        "wc",
        "cut",
        "sha256sum",
        "grep",
        "awk",
        "cat",
        "tail",
    ]);
    let mut nodes: Vec<_> = (0..3).map(alone).collect();
    for (node, role) in nodes.iter_mut().zip(["active", "standby", "standby"]) {
        node.is_given(format!("{NEW}\nformer: {OLD}").as_bytes());
        node.sets("PATH", &told.path());
        // The script itself has variables of these names.
        node.sets("password", "of the group");
        node.sets("former", "of the group");
        node.start(role);
    }
    introduce(&nodes);
    until("all are of use", &mut nodes, all_ready);
    arrives(&mut nodes, 0, "1", &[OLD, NEW, OLD]);
    takes_over(&mut nodes, 0, 1);
    arrives(&mut nodes, 1, "2", &[NEW; 3]);
    let said = fs::read(told.file()).unwrap();
    let said = String::from_utf8_lossy(&said);
    for word in ["replication", "--include", "replicaof\0no\0one"] {
        assert!(said.contains(word), "{word} is not in it");
    }
    for trace in TRACES {
        assert!(!said.contains(trace), "{trace} is seen");
        for node in &nodes {
            assert!(!node.log().contains(trace), "{}", node.log());
        }
    }
}

#[test]
fn redis_nodes_are_given_another_password_in_two_steps_and_whoever_dies_meanwhile_nothing_is_lost()
{
    let mut nodes = nodes(3, Some(OLD));
    arrives(&mut nodes, 0, "1", &[OLD; 3]);
    let both = format!("{NEW}\nformer: {OLD}\n");
    renew(&mut nodes, 1, &both);
    arrives(&mut nodes, 0, "2", &[OLD, NEW, OLD]);
    // A node with only the old password syncs from one with both.
    takes_over(&mut nodes, 0, 1);
    arrives(&mut nodes, 1, "3", &[OLD, NEW, OLD]);
    renew(&mut nodes, 0, &both);
    // And the other way round.
    takes_over(&mut nodes, 1, 2);
    arrives(&mut nodes, 2, "4", &[NEW, NEW, OLD]);
    renew(&mut nodes, 1, &both);
    takes_over(&mut nodes, 2, 0);
    renew(&mut nodes, 2, &both);
    arrives(&mut nodes, 0, "5", &[OLD, OLD, NEW]);

    renew(&mut nodes, 1, NEW);
    takes_over(&mut nodes, 0, 1);
    arrives(&mut nodes, 1, "6", &[NEW; 3]);
    renew(&mut nodes, 0, NEW);
    renew(&mut nodes, 2, NEW);
    arrives(&mut nodes, 1, "7", &[NEW; 3]);
    for node in &nodes {
        assert_eq!(insist(node, NEW, "DBSIZE"), ":7", "{}", node.name);
        let old = ask(node.port("client"), Some(OLD), "PING").unwrap_err();
        assert!(old.to_string().starts_with("-WRONGPASS"), "{old}");
    }
}

#[test]
fn a_redis_standby_with_another_password_is_of_no_use_until_it_is_told_the_former_one() {
    let mut nodes = nodes(3, Some(OLD));
    arrives(&mut nodes, 0, "1", &[OLD; 3]);
    nodes[1].is_given(NEW.as_bytes());
    nodes[1].start("standby");
    introduce(&nodes);
    let said = "db-0 asks for another password than this node has";
    until("it says why", &mut nodes, |nodes| {
        nodes[1].log().contains(said)
    });
    assert!(!nodes[1].is_ready());
    // No replica is promoted if it cannot ask the other one for its data.
    nodes[0].kill();
    introduce(&nodes);
    refused(&mut nodes[2], &["db-1 asks for another password"]);
    nodes[1].is_given(format!("{NEW}\nformer: {OLD}").as_bytes());
    nodes[1].start("standby");
    takes_over(&mut nodes, 0, 2);
    until("it is of use", &mut nodes, |nodes| nodes[1].is_ready());
    assert_eq!(insist(&nodes[1], NEW, "EXISTS 1"), ":1");
}

#[test]
fn redis_nodes_without_a_password_are_given_one() {
    let mut nodes = nodes(3, None);
    let port = nodes[0].port("client");
    assert_eq!(ask(port, None, "SET 1 x").unwrap(), "+OK");
    renew(&mut nodes, 1, NEW);
    renew(&mut nodes, 2, NEW);
    takes_over(&mut nodes, 0, 1);
    renew(&mut nodes, 0, NEW);
    arrives(&mut nodes, 1, "2", &[NEW; 3]);
    for node in &nodes {
        assert_eq!(insist(node, NEW, "DBSIZE"), ":2", "{}", node.name);
        assert_eq!(ask(node.port("client"), None, "PING").unwrap(), NOAUTH);
    }
}

#[test]
fn a_redis_replica_that_is_let_in_no_more_is_not_ready_and_does_not_take_over() {
    let mut nodes = nodes(3, None);
    renew(&mut nodes, 1, NEW);
    takes_over(&mut nodes, 0, 1);
    until("the other one is of no use", &mut nodes, |nodes| {
        !nodes[2].is_ready()
    });
    assert_eq!(insist(&nodes[1], NEW, "SET newer x"), "+OK");
    nodes[1].kill();
    introduce(&nodes);
    // A person decides to go on without the refused node.
    refused(&mut nodes[2], &["may have newer data", "refused"]);
    fs::remove_file(nodes[2].directory().join("refused")).unwrap();
    promoted(&mut nodes[2]);
}

/// Watches the arguments and environments of all processes of this machine until it is dropped.
struct Look {
    on: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    found: Arc<Mutex<Vec<String>>>,
}

impl Look {
    fn begin() -> Self {
        let on = Arc::new(AtomicBool::new(true));
        let found: Arc<Mutex<Vec<String>>> = Arc::default();
        let (goes_on, all) = (Arc::clone(&on), Arc::clone(&found));
        let thread = std::thread::spawn(move || {
            while goes_on.load(Ordering::Relaxed) {
                all.lock().unwrap().extend(Self::seen());
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Self {
            on,
            thread: Some(thread),
            found,
        }
    }

    fn seen() -> Vec<String> {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let files = all.flat_map(|entry| ["cmdline", "environ"].map(|it| entry.path().join(it)));
        let texts = files.filter_map(|file| fs::read(file).ok());
        let texts = texts.map(|text| String::from_utf8_lossy(&text).into_owned());
        texts.filter(|text| has_trace(text)).collect()
    }

    fn end(mut self) -> Vec<String> {
        self.on.store(false, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.found.lock().unwrap().clone()
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.on.store(false, Ordering::Relaxed);
    }
}

fn has_trace(text: &str) -> bool {
    TRACES.iter().any(|trace| text.contains(trace))
}

/// A world whose orchestrator supports secrets.
async fn world() -> World {
    let mut world = World::stopped();
    // Nodes may run as another user.
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(world.directory.path(), open).unwrap();
    let keys = world.store().with_file_name("keys");
    fs::write(&keys, "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n").unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
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

/// Sets the content of the cluster's secret.
async fn keep(world: &World, content: &str) {
    let value = Some(secret_value::Value::Text(content.to_owned()));
    let request = pb::ApplySecretRequest {
        name: "redis".to_owned(),
        data: [("password".to_owned(), pb::SecretValue { value })].into(),
        purpose: pb::SecretPurpose::Workload.into(),
        ..Default::default()
    };
    world
        .client()
        .apply_secret(request, PATIENCE)
        .await
        .unwrap();
}

fn drover(world: &World, line: &str) -> String {
    let words: Vec<_> = line.split(' ').collect();
    let output = look::drover(world, &words);
    assert!(output.status.success(), "{line}: {output:?}");
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&said).into_owned()
}

/// Rolls out the current content of the secret to every node, as the page describes.
async fn restart(world: &World, ports: &Ports) {
    let before = world.records("redis").await.unwrap();
    drover(world, "rollout restart redis");
    world
        .until_within(UP, "every node is new", async |world| {
            let now = find(world, "redis", ports).await;
            let is_new = |node: &pb::Node| before.iter().all(|old| old.id != node.id);
            world.is_ready("redis", before.len()).await && now.iter().all(is_new)
        })
        .await;
}

fn writer(ports: &Ports, password: &Arc<Mutex<&'static str>>) -> Writer {
    let (ports, password) = (Arc::clone(ports), Arc::clone(password));
    Writer::start(move |number| {
        let known = ports.lock().unwrap().clone();
        let password = *password.lock().unwrap();
        let number = number.to_string();
        known.into_iter().any(|port| {
            let wrote = Connection::to(port, Some(password.as_bytes())).and_then(|mut it| {
                // On one connection, because WAIT covers only writes of its own connection.
                Ok(it.asks(&[b"SET", number.as_bytes(), b"x"])? == "+OK"
                    && it.asks(&[b"WAIT", b"1", b"2000"])? == ":1")
            });
            wrote.unwrap_or_default()
        })
    })
}

/// Everything that is shown of the cluster.
async fn told(world: &World) -> String {
    let mut said = String::new();
    for line in [
        "get clusters -o yaml",
        "get nodes redis -o yaml",
        "get secrets -o yaml",
        "events redis -o yaml",
        "describe cluster redis --all",
        "plan redis",
        "rollout history redis -o yaml",
    ] {
        said += &drover(world, line);
    }
    for node in world.records("redis").await.unwrap() {
        for what in ["describe node", "logs"] {
            said += &drover(world, &format!("{what} redis/{}", node.name));
        }
    }
    said + &world.orchestrator.said() + &world.platform.said()
}

/// Collects the permissions of files that contain the password.
fn readers(folder: &Path, has: &mut Vec<u32>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() {
            readers(&entry.path(), has);
        } else if fs::read(entry.path())
            .is_ok_and(|content| has_trace(&String::from_utf8_lossy(&content)))
        {
            has.push(entry.metadata().unwrap().permissions().mode() & 0o777);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_with_a_password_fails_over_and_is_given_another_one_and_nobody_sees_either() {
    installed("redis-server", "redis-server");
    let look = Look::begin();
    let mut world = world().await;
    keep(&world, OLD).await;
    let mut cluster = store("redis", "", 1, 1, Struct::default());
    let key = pb::SecretKeyRef {
        name: "redis".to_owned(),
        key: "password".to_owned(),
    };
    cluster.spec.as_mut().unwrap().bootstrap = Some(pb::BootstrapSource {
        source: Some(Source::SecretKey(key)),
        ..Default::default()
    });
    apply(&world, &cluster).await;
    up(&world, "redis", 2).await;
    let ports = Ports::default();
    for node in find(&world, "redis", &ports).await {
        assert_eq!(ask(port(&node), None, "PING").unwrap(), NOAUTH);
    }
    let password = Arc::new(Mutex::new(OLD));
    let writer = writer(&ports, &password);
    kill_the_active_one(&mut world, "redis", &ports, &writer, 2, 1).await;

    keep(&world, &format!("{NEW}\nformer: {OLD}")).await;
    restart(&world, &ports).await;
    writer.writes(&world, "redis", &ports).await;
    *password.lock().unwrap() = NEW;
    writer.writes(&world, "redis", &ports).await;
    keep(&world, NEW).await;
    restart(&world, &ports).await;
    writer.writes(&world, "redis", &ports).await;
    let pause = writer.longest_pause();
    let acknowledged = writer.finish();

    let records = find(&world, "redis", &ports).await;
    for node in &records {
        assert_eq!(ask(port(node), None, "PING").unwrap(), NOAUTH);
        assert!(ask(port(node), Some(OLD), "PING").is_err());
    }
    let primary = port(active(&records).unwrap());
    let keys = ask(primary, Some(NEW), "KEYS *").unwrap();
    let there = keys.lines().filter_map(|key| key.parse().ok()).collect();
    lost(&acknowledged, &there);
    println!(
        "redis: {} writes acknowledged, 0 lost, two changes of the password, longest pause {pause:?}",
        acknowledged.len()
    );
    let said = told(&world).await;
    assert!(said.contains("following 127.0.0.1"), "{said}");
    assert!(!has_trace(&said), "{said}");
    let mut modes = Vec::new();
    readers(&world.state(), &mut modes);
    assert!(
        !modes.is_empty() && modes.iter().all(|mode| mode & 0o77 == 0),
        "{modes:?}"
    );
    assert_eq!(look.end(), Vec::<String>::new());
}
