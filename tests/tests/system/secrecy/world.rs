//! Production-like servers with maximum verbosity, and all their output, in one directory.

use std::{
    cell::Cell,
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use tokio::time::{Duration, Instant, sleep};

use super::planted::Planted;
use crate::{
    collector::Collector,
    real::{self, PATIENCE, Server, secure},
};

/// Template of the nodes on the local platform. `mode` selects a failure.
const KEEPER: &str = r#"
{% set mode = group.attributes.mode | default("") %}
{% if mode == "refuse" %}{{ refuse("no " ~ secrets.password) }}{% endif %}
{% if mode == "late" and group.size > 1 %}{{ refuse("later " ~ secrets.password) }}{% endif %}
{% if mode == "undefined" %}{{ cluster[secrets.password].more }}{% endif %}
{% if mode == "wrong" %}{{ secrets.password }}: [{% endif %}
command: {{ (secrets.password if mode == "absent" else "/" ~ secrets.password if mode == "path" else "sh") | tojson }}
arguments:
  - -c
  - {{ "cat password; cat password >&2; exit 3" if mode == "dies" else "cat password; exec sleep 100000" }}
  - {{ secrets.password | tojson }}
environment: {PASSWORD: {{ secrets.password | tojson }}}
files:
  - {path: password, content: {{ secrets.password | tojson }}}
agent: {scheme: tcp, port: client}
"#;

const INDEX: &str = r#"
stores:
  - store: keeper
    versions:
      - {version: "*", template: keeper.yaml, ports: [client], health: {phase: {}}}
"#;

/// An orchestrator, a local and a simulated platform, and all output of them and of the command line.
pub(crate) struct World {
    pub(crate) orchestrator: Server,
    pub(crate) local: Server,
    pub(crate) simulated: Server,
    collector: Collector,
    followers: Vec<Child>,
    outputs: Cell<u32>,
    /// Declared last, so that it is dropped last: servers print their output when they are dropped.
    directory: TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        self.end();
        real::end_nodes(&self.state());
    }
}

/// Writes a file that is readable by its owner only.
pub(crate) fn write_secret(path: &Path, content: &str) {
    let mut options = fs::OpenOptions::new();
    let file = options.create_new(true).write(true).mode(0o600).open(path);
    file.unwrap().write_all(content.as_bytes()).unwrap();
}

impl World {
    pub(crate) async fn start(planted: &Planted) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let here = fs::canonicalize(directory.path()).unwrap();
        for inner in ["said", "given", "catalogue"] {
            fs::create_dir(here.join(inner)).unwrap();
        }
        secure::authority(&here, &[]);
        fs::write(here.join("catalogue/index.yaml"), INDEX).unwrap();
        fs::write(here.join("catalogue/keeper.yaml"), KEEPER).unwrap();
        let path = |name: &str| here.join(name).to_str().unwrap().to_owned();
        let collector = Collector::start().await;
        let orchestrator = secure::server("drover-orchestrator", "orchestrator", &here);
        let local = secure::server("drover-platform-cloud", "platform-cloud", &here);
        let simulated = secure::server("drover-platform-cloud", "platform-k8s", &here);
        let platforms = [&local, &simulated].map(|server| server.address);
        for (name, content) in planted.files(&here, platforms) {
            write_secret(&here.join("given").join(name), &content);
        }
        let mut world = Self {
            directory,
            orchestrator,
            local,
            simulated,
            collector,
            followers: Vec::new(),
            outputs: Cell::new(0),
        };
        let (state, catalogue) = (path("state"), path("catalogue"));
        world.local.add(&[
            "--driver",
            "local",
            "--state-dir",
            &state,
            "--templates",
            &catalogue,
        ]);
        let access = path("given/platform.access");
        world
            .simulated
            .add(&["--driver", "simulated", "--access", &access]);
        let (store, ca, keys, access) = (
            path("store"),
            path("certs/ca.pem"),
            path("given/keys"),
            path("given/orchestrator.access"),
        );
        world.orchestrator.add(&[
            "--data-dir",
            &store,
            "--platform-ca",
            &ca,
            "--secrets-key-file",
            &keys,
            "--access",
            &access,
        ]);
        let otlp = world.collector.endpoint();
        for server in [
            &mut world.local,
            &mut world.simulated,
            &mut world.orchestrator,
        ] {
            server.add(&[
                "--otlp-endpoint",
                &otlp,
                "--audit-reads",
                "true",
                "--log-format",
                "json",
            ]);
            server.environment = vec![("RUST_LOG", "trace".to_owned())];
            server.start().await;
        }
        world
    }

    pub(crate) fn here(&self) -> PathBuf {
        fs::canonicalize(self.directory.path()).unwrap()
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.here().join("state")
    }

    fn administrator(&self) -> Command {
        let mut command = secure::administrator(&self.here(), &self.orchestrator);
        command
            .env("DROVER_OTLP_ENDPOINT", self.collector.endpoint())
            .env("RUST_LOG", "trace");
        command
    }

    /// Runs the command line with these arguments and records its output. Returns exit code and output.
    pub(crate) async fn drover(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = self.administrator();
        command.args(arguments);
        self.run(command).await
    }

    /// Runs a command line that must succeed. Returns its output.
    pub(crate) async fn done(&self, line: &str) -> String {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let (code, said) = self.drover(&arguments).await;
        assert_eq!(code, 0, "drover {line}: {said}");
        said
    }

    /// Runs a command line that must fail. Returns its output.
    pub(crate) async fn fails(&self, line: &str) -> String {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let (code, said) = self.drover(&arguments).await;
        assert_ne!(code, 0, "drover {line}: {said}");
        said
    }

    /// Runs any command and records its output.
    pub(crate) async fn run(&self, mut command: Command) -> (i32, String) {
        // The collector runs on this thread.
        let output = tokio::task::spawn_blocking(move || command.stdin(Stdio::null()).output());
        let output = output.await.unwrap().unwrap();
        let said = [output.stdout, output.stderr].concat();
        self.keep("output", &said);
        let said = String::from_utf8_lossy(&said).into_owned();
        (output.status.code().unwrap(), said)
    }

    /// Records output, to be searched for secrets.
    pub(crate) fn keep(&self, what: &str, said: &[u8]) {
        self.outputs.set(self.outputs.get() + 1);
        let name = format!("said/{what}-{}", self.outputs.get());
        fs::write(self.here().join(name), said).unwrap();
    }

    /// Runs a command line in the background.
    pub(crate) fn follow(&mut self, line: &str) {
        let name = format!("said/{}", line.replace(' ', "_"));
        let file = fs::File::create(self.here().join(name)).unwrap();
        let mut command = self.administrator();
        command
            .args(line.split_whitespace())
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        self.followers.push(command.spawn().unwrap());
    }

    /// Waits until the output of a command line contains these words.
    pub(crate) async fn until(&self, line: &str, words: &str) {
        let begin = Instant::now();
        loop {
            let arguments: Vec<&str> = line.split_whitespace().collect();
            let (_, said) = self.drover(&arguments).await;
            if said.contains(words) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{line}: no {words} in {said}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// The nodes of a cluster, as commands name them.
    pub(crate) async fn nodes(&self, cluster: &str) -> Vec<String> {
        let said = self.done(&format!("get nodes {cluster} -o name")).await;
        let names = said.lines().filter_map(|line| line.strip_prefix("node/"));
        names.map(str::to_owned).collect()
    }

    /// Stops everything, and records the spans sent to the collector.
    pub(crate) fn end(&mut self) {
        for mut follower in self.followers.drain(..) {
            follower.kill().unwrap();
            follower.wait().unwrap();
        }
        for server in [&mut self.orchestrator, &mut self.local, &mut self.simulated] {
            server.kill();
        }
        self.keep("spans", format!("{:?}", self.collector.seen()).as_bytes());
    }

    /// All recorded files except the inputs of the test (the manifests and the keys) and the directories of the nodes,
    /// which are supposed to have the secrets.
    pub(crate) fn everything(&self) -> Vec<PathBuf> {
        let (here, state) = (self.here(), self.state().join("nodes"));
        let mut found = Vec::new();
        walk(&here, &mut |path| {
            let given =
                path.starts_with(here.join("given")) || path.starts_with(here.join("certs"));
            if !given && !is_of_a_node(path, &state) {
                found.push(path.to_owned());
            }
        });
        found
    }
}

/// Whether a file belongs to a node: its spec, its own directory, and its logs.
fn is_of_a_node(path: &Path, nodes: &Path) -> bool {
    let Ok(within) = path.strip_prefix(nodes) else {
        return false;
    };
    let second = within.components().nth(1);
    second.is_some_and(|it| {
        ["data", "spec.json", "log", "log.1"].contains(&&*it.as_os_str().to_string_lossy())
    })
}

fn walk(directory: &Path, each: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            walk(&entry.path(), each);
        } else if kind.is_file() {
            each(&entry.path());
        }
    }
}
