//! `drover dev --emulate`: the real drivers on emulated clouds, started as by a user.
#![cfg(feature = "emulate")]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use drover_testing::processes::program;
use serde_json::Value;
use tokio::time::Instant;

/// Timeout for anything, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

struct Dev {
    child: Child,
    server: String,
    said: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
    _data: tempfile::TempDir,
}

impl Dev {
    fn start(arguments: &[&str]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = free.local_addr().unwrap().to_string();
        drop(free);
        let mut child = program(env!("CARGO_BIN_EXE_drover"))
            .arg("dev")
            .args(["--listen", &listen])
            .arg("--data-dir")
            .arg(data.path().join("data"))
            .args(arguments)
            .current_dir(root())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let readers = vec![
            read(child.stdout.take().unwrap(), said.clone()),
            read(child.stderr.take().unwrap(), said.clone()),
        ];
        Self {
            child,
            server: format!("http://{listen}"),
            said,
            readers,
            _data: data,
        }
    }

    /// Waits for a line with all of these words, and returns it.
    fn line(&mut self, words: &[&str]) -> String {
        let began = Instant::now();
        loop {
            let has_all = |line: &&String| words.iter().all(|word| line.contains(word));
            let found = self.said.lock().unwrap().iter().find(has_all).cloned();
            if let Some(line) = found {
                return line;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && began.elapsed() < PATIENCE,
                "no line with {words:?} ({ended:?})"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Addresses of the emulators by platform.
    fn emulators(&mut self) -> BTreeMap<String, String> {
        let line = self.line(&["  emulators "]);
        let (_, list) = line.split_once("emulators ").unwrap();
        list.split(", ")
            .map(|one| one.split_once(" http://").unwrap())
            .map(|(name, address)| (name.to_owned(), address.to_owned()))
            .collect()
    }

    fn succeeds(&self, arguments: &[&str]) {
        let output = program(env!("CARGO_BIN_EXE_drover"))
            .args(arguments)
            .args(["--server", &self.server])
            .current_dir(root())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "drover {arguments:?}: {output:?}");
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        if thread::panicking() {
            eprintln!("{}", self.said.lock().unwrap().join("\n"));
        }
    }
}

fn read(from: impl Read + Send + 'static, said: Arc<Mutex<Vec<String>>>) -> JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            said.lock().unwrap().push(line);
        }
    })
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Objects that were created at an emulator and still exist.
fn left(emulator: &str) -> Vec<Value> {
    let mut ledger = ask(emulator, "ledger");
    ledger.retain(|made| made["gone"] == false && made["foreign"] == false);
    ledger
}

fn ask(emulator: &str, what: &str) -> Vec<Value> {
    let mut stream = TcpStream::connect(emulator).unwrap();
    let head = format!("Host: {emulator}\r\nConnection: close\r\n\r\n");
    let request = format!("GET /_emulator/{what} HTTP/1.1\r\n{head}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap()
}

fn kinds(left: &[Value]) -> BTreeMap<&str, usize> {
    let mut kinds = BTreeMap::new();
    for made in left {
        *kinds.entry(made["kind"].as_str().unwrap()).or_default() += 1;
    }
    kinds
}

/// Waits until nothing is left: removals may take a moment.
fn until_empty(emulator: &str) {
    let began = Instant::now();
    while !left(emulator).is_empty() {
        assert!(began.elapsed() < PATIENCE, "{:#?}", left(emulator));
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_kadende_document_runs_on_three_clouds() {
    let mut dev = Dev::start(&[
        "--emulate",
        "aws,gcd,digitalOcean",
        "--simulate",
        "my-custom-plugin",
        "-f",
        "deploy/examples/kadende-basic_cluster.yml",
    ]);
    let emulators = dev.emulators();
    dev.line(&["basic_cluster", "Ready", "9 of 9"]);
    for (name, kind, expected) in [
        ("aws", "instance", 2),
        ("gcd", "instance", 2),
        ("digitalOcean", "droplet", 3),
    ] {
        let left = left(&emulators[name]);
        assert_eq!(kinds(&left).get(kind), Some(&expected), "{name}: {left:#?}");
    }
    dev.succeeds(&["delete", "cluster", "basic_cluster", "-y", "--wait"]);
    emulators
        .values()
        .for_each(|emulator| until_empty(emulator));
}

#[test]
fn documents_of_the_cluster_api_run_on_metal_and_leave_nothing_behind() {
    let mut dev = Dev::start(&[
        "--emulate",
        "metal",
        "-f",
        "deploy/examples/capm-metal-stack.yaml",
    ]);
    let metal = dev.emulators()["metal"].clone();
    dev.line(&["lab", "Ready", "3 of 3"]);
    let left = left(&metal);
    let kinds = kinds(&left);
    let count = |kind: &str| kinds.get(kind).copied().unwrap_or_default();
    assert_eq!(
        [count("machine"), count("firewall"), count("network")],
        [3, 1, 1],
        "{kinds:?}"
    );
    assert!(count("ip") >= 1, "{kinds:?}");
    let named = "e0ab02d2-27cd-5a5e-8efc-080ba80cf258";
    let machines = ask(&metal, "machines");
    let used =
        |machine: &Value| machine["id"] == named && machine["tags"]["drover.dev/cluster"] == "lab";
    assert!(machines.iter().any(used), "{machines:#?}");
    dev.succeeds(&["delete", "cluster", "lab", "-y", "--wait"]);
    until_empty(&metal);
}
