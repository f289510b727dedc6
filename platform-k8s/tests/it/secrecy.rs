//! What passes through the resources, searched for in all that a server process says: with `RUST_LOG=trace`, traces, an
//! audit log of everything, and errors of every kind. Over memory, and over a real kubelet, where it passes through kube.

mod calls;
#[path = "../../../tests/tests/system/collector/mod.rs"]
mod collector;
mod planted;

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use drover_testing::{
    kubernetes::{Options, Rig, without_kubelet},
    processes::program,
    wait::holds,
};
use tempfile::TempDir;

use self::{calls::Calls, collector::Collector, planted::Planted};

/// A server process, and all that it says.
struct Server {
    address: SocketAddr,
    child: Child,
    collector: Collector,
    directory: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    async fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let collector = Collector::start().await;
        let address = drover_testing::ports::free_address();
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let audit = directory.path().join("audit");
        let child = program(env!("CARGO_BIN_EXE_drover-platform-k8s"))
            .args(arguments)
            .args(["--listen", &address.to_string()])
            .args(["--audit-log", audit.to_str().unwrap()])
            .args(["--audit-reads", "true", "--log-format", "json"])
            .args(["--otlp-endpoint", &collector.endpoint()])
            .env("RUST_LOG", "trace")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = Self {
            address,
            child,
            collector,
            directory,
        };
        holds("the server listens", async || {
            TcpStream::connect(address).is_ok()
        })
        .await;
        server
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    fn metrics(&self) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let request = format!(
            "GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    }

    /// Keeps what it says apart from its log, and ends it.
    async fn end(&mut self) {
        for call in [
            "PodService/RunScript",
            "ConfigurationService/GetConfiguration",
        ] {
            holds("the call is in a trace", async || {
                let seen = self.collector.seen();
                seen.iter().any(|one| one.span.name.ends_with(call))
            })
            .await;
        }
        let metrics = self.metrics();
        assert!(String::from_utf8_lossy(&metrics).contains("drover_"));
        fs::write(self.path("metrics"), metrics).unwrap();
        let spans = format!("{:?}", self.collector.seen());
        fs::write(self.path("spans"), spans).unwrap();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let read = |file: &str| fs::read_to_string(self.path(file)).unwrap();
        // What is searched is what was meant to be.
        let (log, audit) = (read("log"), read("audit"));
        assert!(log.contains("\"TRACE\"") && log.contains("RunScript"));
        for call in ["RunScript", "Exec", "ReadFile", "StreamLogs", "CreatePod"] {
            assert!(audit.contains(call), "{call} is not in the audit log");
        }
    }
}

async fn holds_its_tongue(mut server: Server, calls: Calls, planted: &Planted) {
    let said = calls.all(planted).await;
    server.end().await;
    let needles = planted.needles();
    // The search finds what is there: in what came back.
    for (what, answer) in &said.answers {
        assert!(
            needles.find(answer).is_some(),
            "{what} brought nothing back"
        );
    }
    for (what, text) in &said.errors {
        fs::write(server.path(&format!("error of {what}")), text).unwrap();
    }
    for (what, text) in planted::debugged(planted) {
        fs::write(server.path(&format!("Debug of {what}")), text).unwrap();
    }
    let (mut found, mut bytes) = (Vec::new(), 0);
    for path in files(server.directory.path()) {
        let content = fs::read(&path).unwrap();
        bytes += content.len();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        found.extend(needles.find(&content).map(|seen| format!("{name}: {seen}")));
    }
    println!("{bytes} bytes were looked through");
    assert!(bytes > 100_000, "{bytes}");
    assert!(found.is_empty(), "{}", found.join("\n\n"));
}

fn files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
}

fn planted() -> Planted {
    Planted::new(&mut fastrand::Rng::with_seed(drover_testing::seed::seed()))
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_passes_through_a_server_over_memory_is_in_what_it_says() {
    let planted = planted();
    let server = Server::start(&["--fake"]).await;
    let calls = Calls::to(server.address, "default", "busybox:1.36");
    holds_its_tongue(server, calls, &planted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_passes_through_a_server_to_a_real_kubelet_is_in_what_it_says() {
    if without_kubelet() {
        return;
    }
    let planted = planted();
    let rig = Rig::shared(Options::kubelet());
    rig.image(&["busybox"]).await;
    let namespace = rig.namespace().await;
    let kubeconfig = rig.kubeconfig().to_str().unwrap();
    let server = Server::start(&[
        "--resources",
        "--kubeconfig",
        kubeconfig,
        "--namespace",
        &namespace.name,
    ])
    .await;
    let calls = Calls::to(server.address, &namespace.name, "busybox:test");
    holds_its_tongue(server, calls, &planted).await;
    namespace.remove_wholly().await;
}
