//! Stores in pods with certificates, and with what an application needs in a Secret.

use std::{collections::BTreeMap, fs};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use drover_proto::{orchestrator::v1 as pb, platform::v1::NodeRole};
use drover_testing::{kubernetes::without_kubelet, wait::until};
use serde_json::json;
use tempfile::TempDir;

use super::{
    bench::{Bench, clients, endpoint, etcd_at, host, password, run, said, spec},
    rig,
};

/// The Secret of an application, with its files in a directory.
struct Access {
    directory: TempDir,
    values: BTreeMap<String, String>,
}

impl Access {
    async fn read(bench: &Bench) -> Self {
        let name = format!("{}-db-app", bench.cluster);
        let secret = bench.namespace.get("secrets", &name).await.unwrap();
        let directory = TempDir::new().unwrap();
        let mut values = BTreeMap::new();
        for (key, text) in secret["data"].as_object().unwrap() {
            let value = BASE64.decode(text.as_str().unwrap()).unwrap();
            fs::write(directory.path().join(key), &value).unwrap();
            values.insert(key.clone(), String::from_utf8(value).unwrap());
        }
        Self { directory, values }
    }

    fn file(&self, name: &str) -> String {
        let path = self.directory.path().join(name);
        path.to_str().unwrap().to_owned()
    }

    /// What psql says to the application at a node.
    fn sql(&self, node: &pb::Node, tls: &str, statement: &str) -> Option<String> {
        let [user, database, port] = ["user", "dbname", "port"].map(|key| &self.values[key]);
        let (host, ca) = (host(node), self.file("ca.crt"));
        let password = &self.values["password"];
        let to = format!(
            "host={host} port={port} user={user} dbname={database} password={password} sslmode={tls} sslrootcert={ca} connect_timeout=2"
        );
        said(&run("psql", &["-XAtqw", "-d", &to, "-c", statement]))
    }

    fn redis(&self, node: &pb::Node, command: &[&str]) -> Option<String> {
        let [user, password, port] = ["user", "password", "port"].map(|key| &*self.values[key]);
        let (auth, host, ca) = (
            format!("REDISCLI_AUTH={password}"),
            host(node),
            self.file("ca.crt"),
        );
        let client = ["redis-cli", "--no-auth-warning", "--tls", "--cacert", &ca];
        let to = ["--user", user, "-h", &host, "-p", port];
        said(&run(
            "env",
            &[&[&*auth], &client[..], &to, command].concat(),
        ))
    }

    fn etcd(&self, nodes: &[pb::Node], command: &[&str]) -> Option<String> {
        let all = clients(nodes).into_iter();
        let all: Vec<String> = all.map(|it| format!("https://{it}")).collect();
        let endpoints = format!("--endpoints={}", all.join(","));
        let shown = [
            ("cacert", "ca.crt"),
            ("cert", "tls.crt"),
            ("key", "tls.key"),
        ];
        let shown = shown.map(|(flag, file)| format!("--{flag}={}", self.file(file)));
        let mut arguments = vec![&*endpoints, "--dial-timeout=1s", "--command-timeout=3s"];
        arguments.extend(shown.iter().map(String::as_str));
        arguments.extend(command);
        said(&run("etcdctl", &arguments))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_reaches_postgresql_by_its_secret_and_nobody_without_tls() {
    if without_kubelet() {
        return;
    }
    rig().image(&["postgresql"]).await;
    let attributes =
        json!({"image": "postgres:test", "tls": "required", "user": "shop", "database": "orders"});
    let mut spec = spec("postgresql", 1, 1, attributes);
    spec.bootstrap = Some(password());
    let bench = Bench::start("orders", spec).await;
    bench.ready(2).await;
    let access = Access::read(&bench).await;
    let primary = bench.one(NodeRole::Active).await;
    // May be repeated: what succeeds is not always heard of.
    let made = "create table if not exists t (x int primary key); \
                insert into t values (42) on conflict do nothing";
    bench
        .world
        .until("the application writes", async |_| {
            access.sql(&primary, "verify-ca", made).is_some()
        })
        .await;
    assert_eq!(access.sql(&primary, "disable", "select 1"), None);
    bench.kill_9(&primary, "postgres").await;
    let inserted = "insert into t values (43) on conflict do nothing";
    bench
        .taken_over(&primary, async |node| {
            access.sql(node, "verify-ca", inserted).is_some()
        })
        .await;
    let now = bench.one(NodeRole::Active).await;
    let rows = access.sql(&now, "verify-ca", "select x from t order by x");
    assert_eq!(rows.as_deref(), Some("42\n43"));
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_reaches_redis_by_its_secret() {
    if without_kubelet() {
        return;
    }
    rig().image(&["redis"]).await;
    let mut spec = spec(
        "redis",
        1,
        1,
        json!({"image": "redis:test", "tls": "required"}),
    );
    spec.bootstrap = Some(password());
    let bench = Bench::start("cache", spec).await;
    bench.ready(2).await;
    let access = Access::read(&bench).await;
    let primary = bench.one(NodeRole::Active).await;
    assert_eq!(
        access.redis(&primary, &["set", "a", "1"]).as_deref(),
        Some("OK")
    );
    let standby = bench.one(NodeRole::Standby).await;
    bench
        .world
        .until("the replica has it", async |_| {
            access.redis(&standby, &["get", "a"]).as_deref() == Some("1")
        })
        .await;
    let plain = super::redis(&endpoint(&primary), &["PING"]).await;
    assert!(!plain.is_ok_and(|all| {
        all.iter()
            .any(|it| it.contains("PONG") || it.contains("AUTH"))
    }));
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_in_pods_with_certificates_takes_a_new_member_in_at_its_new_address() {
    if without_kubelet() {
        return;
    }
    for image in ["etcd", "busybox"] {
        rig().image(&[image]).await;
    }
    let attributes = json!({
        "image": "etcd:test", "tools_image": "busybox:test", "tls": "required",
        // Disk performance of the test machine is not under test.
        "flags": {"unsafe-no-fsync": "true"},
    });
    let bench = Bench::start("coordination", spec("etcd", 3, 0, attributes)).await;
    bench.ready(3).await;
    let access = Access::read(&bench).await;
    let nodes = bench.nodes().await;
    until("the application writes", async || {
        access.etcd(&nodes, &["put", "a", "1"])
    })
    .await;
    assert_eq!(
        etcd_at(&clients(&nodes), &["get", "a"]),
        None,
        "without a certificate"
    );
    let victim = nodes.iter().find(|node| node.ordinal == 1).unwrap().clone();
    bench.delete_pod(&victim).await;
    bench
        .world
        .until("another node is in its place", async |_| {
            let nodes = bench.nodes().await;
            nodes.iter().any(|node| {
                node.name == victim.name
                    && node.id != victim.id
                    && node.state() == pb::NodeState::Ready
            })
        })
        .await;
    bench.ready(3).await;
    for node in bench.nodes().await {
        let (node, get) = ([node], ["get", "a", "--print-value-only"]);
        let read = until("the application reads", async || access.etcd(&node, &get)).await;
        assert_eq!(read, "1");
    }
    bench.end().await;
}
