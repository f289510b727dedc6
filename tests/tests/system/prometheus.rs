//! Metrics as collected by a real Prometheus: over mutual TLS as in `deploy/observability`, with its rules and its
//! dashboard, and compared with the table in the documentation.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use crate::real;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use real::{PATIENCE, Server, free_port, secure};
use serde_json::Value;
use tokio::time::{Duration, Instant, sleep};

const TABLE: [&str; 2] = ["<!-- metrics: begin -->\n", "<!-- metrics: end -->"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

fn observability(name: &str) -> PathBuf {
    root().join("deploy/observability").join(name)
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{command:?}: {error}; `tests/run install` installs what is missing")
    });
    assert!(output.status.success(), "{command:?}: {output:#?}");
    output
}

fn promtool(arguments: &[&str]) {
    run(Command::new("promtool")
        .args(arguments)
        .current_dir(root().join("deploy/observability")));
}

#[test]
fn the_rules_are_sound_and_each_alert_fires_and_does_not_fire() {
    promtool(&["check", "rules", "drover-rules.yaml"]);
    promtool(&["test", "rules", "drover-rules-test.yaml"]);
    let text = |name| fs::read_to_string(observability(name)).unwrap();
    let (rules, tests) = (text("drover-rules.yaml"), text("drover-rules-test.yaml"));
    let alerts: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    assert!(!alerts.is_empty());
    for alert in alerts {
        for case in ["fires", "not "] {
            assert!(
                tests.contains(&format!("\"{alert}: {case}")),
                "{alert}: {case}"
            );
        }
    }
}

/// Two servers with certificates, an unavailable trace collector, and a Prometheus that monitors the servers.
struct World {
    directory: tempfile::TempDir,
    orchestrator: Server,
    platform: Server,
    prometheus: Child,
    address: SocketAddr,
}

impl Drop for World {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.prometheus.kill();
        let _ = self.prometheus.wait();
        self.orchestrator.kill();
        self.platform.kill();
        let here = fs::canonicalize(self.directory.path()).unwrap();
        real::end_nodes(&here.join("state"));
    }
}

impl World {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let here = fs::canonicalize(directory.path()).unwrap();
        secure::authority(&here, &["viewer/prometheus"]);
        let port = free_port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut platform = secure("drover-platform-cloud", "platform-cloud", &here);
        let state = here.join("state");
        platform.add(&["--driver", "local", "--state-dir", state.to_str().unwrap()]);
        platform.start().await;
        let mut orchestrator = secure("drover-orchestrator", "orchestrator", &here);
        let (store, ca) = (here.join("store"), here.join("certs/ca.pem"));
        let data = [
            "--data-dir",
            store.to_str().unwrap(),
            "--platform-ca",
            ca.to_str().unwrap(),
        ];
        orchestrator.add(&data);
        orchestrator.start().await;
        let config = fs::read_to_string(observability("prometheus.yaml")).unwrap();
        let config = config
            .replace("orchestrator:7400", &orchestrator.address.to_string())
            .replace("platform-cloud:7402", &platform.address.to_string())
            .replace("interval: 15s", "interval: 1s");
        fs::write(here.join("prometheus.yaml"), config).unwrap();
        fs::copy(
            observability("drover-rules.yaml"),
            here.join("drover-rules.yaml"),
        )
        .unwrap();
        run(Command::new("promtool")
            .args(["check", "config", "prometheus.yaml"])
            .current_dir(&here));
        let log = fs::File::create(here.join("prometheus.log")).unwrap();
        let prometheus = Command::new("prometheus")
            .args(["--config.file=prometheus.yaml", "--storage.tsdb.path=tsdb"])
            .arg(format!("--web.listen-address={address}"))
            .current_dir(&here)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self {
            directory,
            orchestrator,
            platform,
            prometheus,
            address,
        }
    }

    fn here(&self) -> PathBuf {
        fs::canonicalize(self.directory.path()).unwrap()
    }

    fn client(&self) -> Command {
        secure::administrator(&self.here(), &self.orchestrator)
    }

    /// Response of the API, once it is available.
    async fn ask(&self, path: &str) -> Value {
        let begin = Instant::now();
        loop {
            if let Some(answer) = get(self.address, path) {
                let answer: Value = serde_json::from_str(&answer).unwrap();
                assert_eq!(answer["status"], "success", "{path}: {answer}");
                return answer["data"].clone();
            }
            let log = || fs::read_to_string(self.here().join("prometheus.log")).unwrap();
            assert!(
                begin.elapsed() < PATIENCE,
                "Prometheus does not answer: {}",
                log()
            );
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn query(&self, expression: &str) -> Vec<Value> {
        let data = self
            .ask(&format!("/api/v1/query?query={}", escape(expression)))
            .await;
        data["result"].as_array().unwrap().clone()
    }

    /// The only value of an expression.
    async fn value(&self, expression: &str) -> Option<f64> {
        match &self.query(expression).await[..] {
            [one] => Some(one["value"][1].as_str()?.parse().unwrap()),
            _ => None,
        }
    }

    async fn until(&self, expression: &str, expected: f64) {
        let begin = Instant::now();
        loop {
            let value = self.value(expression).await;
            if value.is_some_and(|value| (value - expected).abs() < f64::EPSILON) {
                return;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "{expression} is {value:?}, expected {expected}\n{}\n{}",
                self.orchestrator.said(),
                fs::read_to_string(self.here().join("prometheus.log")).unwrap()
            );
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// A server with its certificate, an audit log, and an unavailable trace collector.
fn secure(program: &'static str, name: &str, here: &Path) -> Server {
    let mut server = secure::server(program, name, here);
    server.add(&[
        "--otlp-endpoint",
        &format!("http://127.0.0.1:{}", free_port()),
    ]);
    server
}

/// The body of a successful response. `None` if the server does not respond yet.
fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    // HTTP/1.0 responses are not chunked.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    (!head.contains(" 503 ")).then(|| body.to_owned())
}

fn escape(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").unwrap();
        }
        out
    })
}

/// Our metrics named in a text.
fn named(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("drover_"))
        .map(str::to_owned)
        .collect()
}

/// All expressions of a dashboard, as Grafana would send them.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(expression)) = map.get("expr") {
                let expression = expression
                    .replace("$__rate_interval", "1m")
                    .replace("$instance", ".*")
                    .replace("$platform", ".*");
                found.push(expression);
            }
            map.values().for_each(|value| expressions(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prometheus_reads_what_was_applied_and_knows_every_metric_that_rules_dashboard_and_documentation_name()
 {
    let world = World::start().await;
    let manifest = format!(
        "apiVersion: drover.dev/v1\nkind: Platform\nmetadata: {{name: here}}\nspec: {{endpoint: \"https://{}\"}}\n---\n\
         apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {{name: secretive}}\n\
         spec: {{groups: {{web: {{size: 2, platform: here}}}}}}\n",
        world.platform.address
    );
    fs::write(world.here().join("all.yaml"), manifest).unwrap();
    run(world
        .client()
        .args(["apply", "--yes", "--wait", "-f", "all.yaml"]));

    world.until("drover_clusters{phase=\"ready\"}", 1.0).await;
    world
        .until("drover_nodes{platform=\"here\", state=\"ready\"}", 2.0)
        .await;
    world
        .until("drover_nodes_wanted - drover_nodes_ready", 0.0)
        .await;
    world
        .until("drover_platform_ready{platform=\"here\"}", 1.0)
        .await;
    world
        .until("drover_clusters_not_ready_oldest_seconds", 0.0)
        .await;
    world.until("up{job=\"drover-platform\"}", 1.0).await;
    let made =
        "sum(drover_platform_calls_total{platform=\"here\", method=\"Provision\", code=\"OK\"})";
    world.until(&format!("{made} >= bool 1"), 1.0).await;
    let left = "min(drover_tls_certificate_expiry_timestamp_seconds) - time()";
    world
        .until(&format!("{left} > bool 360 * 86400"), 1.0)
        .await;

    // Some metrics have no values before their first event: an unknown path, and a failed TLS handshake.
    let tls = [
        "--cacert",
        "certs/ca.pem",
        "--cert",
        "certs/admin.pem",
        "--key",
        "certs/admin.key",
    ];
    let nowhere = format!("https://{}/nowhere", world.orchestrator.address);
    run(Command::new("curl")
        .args(tls)
        .arg("-s")
        .arg(nowhere)
        .current_dir(world.here()));
    // Another test checks the response of a TLS port to plain text.
    let _ = get(world.orchestrator.address, "/metrics");
    world
        .until("sum(drover_tls_handshakes_failed_total) > bool 0", 1.0)
        .await;
    world
        .until("sum(drover_http_requests_total) > bool 0", 1.0)
        .await;
    world
        .until("sum(drover_probes_total{result=\"ok\"}) > bool 0", 1.0)
        .await;

    let names = world.ask("/api/v1/label/__name__/values").await;
    let known: BTreeSet<String> = serde_json::from_value(names).unwrap();
    let rules = fs::read_to_string(observability("drover-rules.yaml")).unwrap();
    let dashboard = fs::read_to_string(observability("drover-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut asked = Vec::new();
    expressions(&dashboard, &mut asked);
    assert!(asked.len() > 20, "{}", asked.len());
    let queries = dashboard["templating"]["list"].as_array().unwrap().iter();
    let queries: String = queries
        .map(|variable| variable["query"].to_string())
        .collect();
    let wanted = named(&rules.replace("drover-rules", ""))
        .into_iter()
        .chain(named(&queries));
    for name in wanted.chain(asked.iter().flat_map(|it| named(it))) {
        let there = [name.clone(), format!("{name}_count")];
        assert!(
            there.iter().any(|it| known.contains(it)),
            "nobody has {name}"
        );
    }
    for expression in &asked {
        world.query(expression).await;
    }
    let groups = world.ask("/api/v1/rules").await;
    let loaded = groups["groups"][0]["rules"].as_array().unwrap().clone();
    assert_eq!(loaded.len(), rules.matches("- alert:").count());
    assert!(
        loaded.iter().all(|rule| rule["health"] != "err"),
        "{loaded:#?}"
    );

    let series = world
        .ask(&format!(
            "/api/v1/series?match[]={}",
            escape("{__name__=~\"drover_.*\"}")
        ))
        .await;
    assert!(
        !series.to_string().contains("secretive"),
        "labels are bounded"
    );
    documented(&world, &series).await;

    // The metrics show that the platform is down.
    let World { platform, .. } = &world;
    real::kill_9(platform.pid());
    world
        .until("drover_platform_ready{platform=\"here\"}", 0.0)
        .await;
    world.until("up{job=\"drover-platform\"}", 0.0).await;
    world
        .until("drover_clusters_not_ready_oldest_seconds > bool 0", 1.0)
        .await;
}

/// Compares the table in the documentation with the actual metrics. `UPDATE_DOCS=1` writes the table.
async fn documented(world: &World, series: &Value) {
    let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for one in series.as_array().unwrap() {
        let one = one.as_object().unwrap();
        let name = one["__name__"].as_str().unwrap();
        let own = one
            .keys()
            .filter(|key| !["__name__", "job", "instance", "le"].contains(&key.as_str()));
        labels
            .entry(name.to_owned())
            .or_default()
            .extend(own.cloned());
    }
    let metadata = world.ask("/api/v1/metadata").await;
    let mut table =
        "| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n".to_owned();
    let ours: BTreeMap<String, Value> = serde_json::from_value(metadata).unwrap();
    for (name, about) in ours.iter().filter(|(name, _)| name.starts_with("drover_")) {
        let (kind, help) = (
            about[0]["type"].as_str().unwrap(),
            about[0]["help"].as_str().unwrap(),
        );
        assert!(!help.is_empty(), "{name} is not described");
        let found = labels
            .get(name)
            .or_else(|| labels.get(&format!("{name}_count")));
        let found = found.unwrap_or_else(|| panic!("{name} has no series"));
        let found: Vec<String> = found.iter().map(|label| format!("`{label}`")).collect();
        let unit = if name.contains("_seconds") { "s" } else { "1" };
        writeln!(
            table,
            "| `{name}` | {kind} | {} | {unit} | {help} |",
            found.join(", ")
        )
        .unwrap();
    }
    let path = root().join("docs/operate/telemetry.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(TABLE[0]).unwrap();
    let (there, after) = rest.split_once(TABLE[1]).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let [begin, end] = TABLE;
        fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(
        there, table,
        "docs/operate/telemetry.md is not current: UPDATE_DOCS=1 writes it"
    );
}
