//! The built-in stores, as the catalogues of all platforms render them.

mod secrets;

use std::{fs, path::Path};

use drover_core::Result;
use drover_templates::{Catalogue, Context, EmbeddedFile, Query, Scope, Selected, stores};
use serde_json::{Value, json};

const PODS: &str = "platform-k8s/catalogue/kubernetes";
const PROCESSES: &str = "platform-cloud/catalogue/local";
const MACHINES: &str = "platform-cloud/catalogue/cloud";

/// The catalogue in a folder of this repository, with the scripts that all of them have.
fn catalogue(folder: &str) -> Catalogue {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![
        stores::NODE,
        stores::ETCD,
        stores::POSTGRESQL,
        stores::POSTGRESQL_QUORUM,
        stores::POSTGRESQL_APPLICATION,
        stores::REDIS,
    ];
    for entry in fs::read_dir(root.join(folder)).unwrap() {
        let entry = entry.unwrap();
        files.push(EmbeddedFile {
            name: entry.file_name().into_string().unwrap().leak(),
            content: fs::read_to_string(entry.path()).unwrap().leak(),
        });
    }
    Catalogue::embedded(&files).unwrap()
}

/// A node of a store, with a password where it takes one.
struct Wanted {
    store: &'static str,
    version: &'static str,
    password: bool,
    /// Standby nodes of its group, if that is known.
    standby: Option<u32>,
    attributes: Value,
}

fn wanted(store: &'static str, attributes: Value) -> Wanted {
    Wanted {
        store,
        version: "",
        password: store != "etcd",
        standby: Some(2),
        attributes,
    }
}

impl Wanted {
    fn open(mut self) -> Self {
        self.password = false;
        self
    }

    fn version(mut self, version: &'static str) -> Self {
        self.version = version;
        self
    }

    /// What a platform makes the node of.
    fn rendered_by(&self, folder: &str) -> Result<String> {
        let password = if self.password { "secret" } else { "" };
        let context = json!({
            "cluster": {"id": "orders", "store": self.store, "version": self.version},
            "group": {"path": "db", "size": 1, "standby": self.standby, "attributes": self.attributes},
            "node": {"id": "db-0-x7k2p", "name": "db-0"},
            "bootstrap": (self.password && folder == MACHINES).then_some("hunter2"),
            "platform": {
                "name": "db-0-x7k2p", "group_name": "orders-db", "own_group_name": "orders-db-1f", "bootstrap": password,
                "loopback": true,
                "host": "127.0.0.1", "storage": "/data", "ports": {"client": 20000, "peer": 20001},
            },
        });
        let context: Context = serde_json::from_value(context).unwrap();
        let selected = self.selected_by(folder)?;
        let rendered = selected.render(&Scope::from(context))?;
        Ok(rendered.expose().to_owned())
    }

    fn selected_by(&self, folder: &str) -> Result<Selected> {
        catalogue(folder).select(Query {
            store: self.store,
            version: self.version,
            attributes: self.attributes.as_object().unwrap(),
        })
    }

    fn refusal_by(&self, folder: &str) -> String {
        let refused = self.rendered_by(folder).map(|_| "it is not refused");
        refused.unwrap_err().message().to_owned()
    }

    /// The object of this kind that a node is in pods.
    fn in_pods(&self, kind: &str) -> Value {
        let text = self.rendered_by(PODS).unwrap();
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let found = objects.into_iter().find(|object| object["kind"] == kind);
        found.unwrap_or_else(|| panic!("a {kind} in {text}"))
    }
}

/// The script of a PostgreSQL with these attributes.
pub(crate) fn script(attributes: Value) -> String {
    let text = wanted("postgresql", attributes).rendered_by(PROCESSES);
    let process: Value = serde_saphyr::from_str(&text.unwrap()).unwrap();
    process["files"][0]["content"].as_str().unwrap().to_owned()
}

fn image(of: &Wanted) -> Value {
    of.in_pods("Pod")["spec"]["containers"][0]["image"].clone()
}

#[test]
fn a_store_in_pods_without_a_version_runs_one_that_is_the_same_everywhere() {
    for (store, expected) in [
        ("redis", "docker.io/library/redis:7.4"),
        ("postgresql", "docker.io/library/postgres:16"),
        ("etcd", "quay.io/coreos/etcd:v3.5.21"),
    ] {
        assert_eq!(image(&wanted(store, json!({}))), expected);
    }
    let attributes = json!({"workload": "StatefulSet", "open": true});
    let stateful = wanted("redis", attributes).open().in_pods("StatefulSet");
    let image = &stateful["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(image, "docker.io/library/redis:7.4");
}

#[test]
fn a_store_in_pods_runs_the_version_or_the_image_that_is_asked_for() {
    for (store, version, expected) in [
        ("redis", "7.2", "docker.io/library/redis:7.2"),
        ("postgresql", "17", "docker.io/library/postgres:17"),
        ("etcd", "3.6.1", "quay.io/coreos/etcd:v3.6.1"),
        ("etcd", "v3.6.1", "quay.io/coreos/etcd:v3.6.1"),
    ] {
        let asked = wanted(store, json!({})).version(version);
        assert_eq!(image(&asked), expected);
        let own = wanted(store, json!({"image": "registry.example/mine:1"}));
        assert_eq!(image(&own.version(version)), "registry.example/mine:1");
    }
}

#[test]
fn the_version_latest_is_refused_and_one_that_would_do_is_named() {
    for (store, attributes, way_out) in [
        ("redis", json!({}), "7.4"),
        (
            "redis",
            json!({"workload": "StatefulSet", "open": true}),
            "7.4",
        ),
        ("postgresql", json!({}), "16"),
        ("etcd", json!({}), "v3.5.21"),
    ] {
        let mut asked = wanted(store, attributes).version("latest");
        asked.password &= asked.attributes.get("open").is_none();
        let refusal = asked.refusal_by(PODS);
        let way_out = format!("`version: \"{way_out}\"`");
        assert!(refusal.contains("`latest`"), "{refusal}");
        assert!(refusal.contains(&way_out), "{refusal}");
    }
}

#[test]
fn a_redis_in_pods_without_a_password_is_refused_unless_it_is_said_to_be_open() {
    for (attributes, part) in [
        (json!({}), "user data (bootstrap)"),
        (json!({}), "`open: true`"),
        (json!({"open": false}), "`open: true`"),
        (json!({"open": "true"}), "`open: true`"),
        (json!({"workload": "StatefulSet"}), "`open: true`"),
    ] {
        let refusal = wanted("redis", attributes).open().refusal_by(PODS);
        assert!(refusal.contains(part), "{refusal}");
    }
    let open = wanted("redis", json!({"open": true})).open();
    assert!(open.rendered_by(PODS).unwrap().contains("protected-mode"));
    let closed = wanted("redis", json!({})).in_pods("Pod").to_string();
    assert!(!closed.contains("protected-mode"), "{closed}");
}

#[test]
fn a_redis_in_pods_is_not_open_and_closed() {
    let both = wanted("redis", json!({"open": true}));
    assert!(both.refusal_by(PODS).contains("leave out"));
}

#[test]
fn what_a_template_sets_is_refused_as_an_attribute_on_every_platform() {
    for (store, version, attribute, name, way_out) in [
        ("redis", "7", "config", "requirepass", "user data"),
        ("redis", "7", "config", "RequirePass", "user data"),
        ("redis", "7", "config", "masterauth", "user data"),
        ("redis", "7", "config", "user", "user data"),
        ("redis", "7", "config", "aclfile", "user data"),
        ("redis", "7", "config", "replicaof", "`standby`"),
        ("redis", "7", "config", "slaveof", "`standby`"),
        ("redis", "7", "config", "port", "leave it out"),
        ("redis", "7", "config", "dir", "leave it out"),
        ("redis", "7", "config", "bind", "leave it out"),
        ("redis", "7", "config", "protected-mode", "leave it out"),
        ("postgresql", "15", "settings", "port", "leave it out"),
        (
            "postgresql",
            "15",
            "settings",
            "listen_addresses",
            "leave it out",
        ),
        (
            "postgresql",
            "15",
            "settings",
            "Data-Directory",
            "leave it out",
        ),
        (
            "postgresql",
            "15",
            "settings",
            "primary_conninfo",
            "`standby`",
        ),
        ("postgresql", "15", "settings", "hot_standby", "`standby`"),
        (
            "postgresql",
            "15",
            "settings",
            "synchronous_standby_names",
            "`synchronous`",
        ),
        (
            "postgresql",
            "15",
            "settings",
            "drover.fence",
            "leave it out",
        ),
        ("etcd", "3.5", "flags", "name", "leave it out"),
        ("etcd", "3.5", "flags", "data-dir", "leave it out"),
        ("etcd", "3.5", "flags", "listen-client-urls", "leave it out"),
        (
            "etcd",
            "3.5",
            "flags",
            "advertise-client-urls",
            "leave it out",
        ),
        (
            "etcd",
            "3.5",
            "flags",
            "initial-cluster-state",
            "leave it out",
        ),
        ("etcd", "3.5", "flags", "cert-file", "`tls`"),
        ("etcd", "3.5", "flags", "peer-auto-tls", "`tls`"),
        ("etcd", "3.5", "flags", "force-new-cluster", "recover"),
        ("etcd", "3.5", "flags", "wal-dir", "with the data"),
    ] {
        for folder in [PODS, PROCESSES, MACHINES] {
            let attributes = json!({ attribute: { name: "x" } });
            let asked = wanted(store, attributes).version(version);
            let refusal = asked.refusal_by(folder);
            for part in [attribute, name, way_out] {
                assert!(refusal.contains(part), "{folder}: {refusal}");
            }
        }
    }
}

#[test]
fn what_a_template_does_not_set_is_handed_to_the_server_on_every_platform() {
    for (store, version, attributes) in [
        (
            "redis",
            "7",
            json!({"config": {"maxmemory": "1gb", "min-replicas-to-write": 1}}),
        ),
        (
            "postgresql",
            "15",
            json!({"settings": {"shared_buffers": "64MB", "wal_level": "logical"}}),
        ),
        (
            "etcd",
            "3.5",
            json!({"flags": {"snapshot-count": "5000", "listen-metrics-urls": "http://127.0.0.1:2381"}}),
        ),
    ] {
        for folder in [PODS, PROCESSES, MACHINES] {
            let asked = wanted(store, attributes.clone()).version(version);
            let rendered = asked.rendered_by(folder);
            assert!(rendered.is_ok(), "{folder} {store}: {rendered:?}");
        }
    }
}

#[test]
fn a_promotion_of_postgresql_is_said_to_fence_only_where_standbys_are_counted() {
    for (value, counted) in [
        (None, 1),
        (Some(json!(0)), 0),
        (Some(json!("0")), 0),
        (Some(json!(1)), 1),
        (Some(json!("1")), 1),
        (Some(json!(2)), 2),
    ] {
        let attributes = value.map_or_else(|| json!({}), |value| json!({"synchronous": value}));
        let asked = wanted("postgresql", attributes).version("15");
        for (folder, written) in [
            (PODS, format!("{{name: SYNCHRONOUS, value: \"{counted}\"}}")),
            (PROCESSES, format!("SYNCHRONOUS: \"{counted}\"")),
        ] {
            let rendered = asked.rendered_by(folder).unwrap();
            assert!(rendered.contains(&written), "{folder}: {rendered}");
            let hooks = asked.selected_by(folder).unwrap().entry().lifecycle.clone();
            let hooks = hooks.unwrap();
            let fences = hooks.post_promote.unwrap().fences;
            assert_eq!(fences, counted > 0, "{folder} {:?}", asked.attributes);
            let allows = hooks.sole_writer.unwrap().allow.is_some();
            assert_eq!(allows, counted > 0, "{folder} {:?}", asked.attributes);
        }
    }
    for wrong in [
        json!(false),
        json!(true),
        json!(""),
        json!(0.5),
        json!("0.0"),
        json!("00"),
        json!(-1),
        json!(17),
        json!("all"),
        json!([1]),
    ] {
        let asked = wanted("postgresql", json!({"synchronous": wrong})).version("15");
        for folder in [PODS, PROCESSES, MACHINES] {
            let refusal = asked.refusal_by(folder);
            let said = "attribute `synchronous`: expected a number";
            assert!(refusal.contains(said), "{folder} {wrong}: {refusal}");
        }
    }
}

#[test]
fn a_primary_goes_on_alone_unless_durability_is_strict() {
    for (value, durability, allows) in [
        (None, "available", true),
        (Some("available"), "available", true),
        (Some("strict"), "strict", false),
    ] {
        let attributes = value.map_or_else(|| json!({}), |value| json!({"durability": value}));
        let asked = wanted("postgresql", attributes).version("15");
        for (folder, written) in [
            (
                PODS,
                format!("{{name: DURABILITY, value: \"{durability}\"}}"),
            ),
            (PROCESSES, format!("DURABILITY: \"{durability}\"")),
        ] {
            let rendered = asked.rendered_by(folder).unwrap();
            assert!(rendered.contains(&written), "{folder}: {rendered}");
            let hooks = asked.selected_by(folder).unwrap().entry().lifecycle.clone();
            let writer = hooks.unwrap().sole_writer.unwrap();
            assert_eq!(writer.allow.is_some(), allows, "{folder} {value:?}");
            assert_eq!(writer.standbys_attribute, "synchronous");
        }
    }
    for (attributes, said) in [
        (
            json!({"durability": "some"}),
            "attribute `durability`: expected `available` or `strict`",
        ),
        (
            json!({"durability": "strict", "synchronous": 0}),
            "attribute `durability` has no effect with `synchronous: 0`",
        ),
    ] {
        let asked = wanted("postgresql", attributes).version("15");
        for folder in [PODS, PROCESSES] {
            let refusal = asked.refusal_by(folder);
            assert!(refusal.contains(said), "{folder}: {refusal}");
        }
    }
}

#[test]
fn a_postgresql_begins_alone_if_its_group_wants_no_standby_or_it_is_not_known() {
    for (standby, alone) in [(Some(0), "1"), (None, "1"), (Some(1), ""), (Some(2), "")] {
        let mut asked = wanted("postgresql", json!({})).version("15");
        asked.standby = standby;
        for (folder, written) in [
            (PODS, format!("{{name: ALONE, value: \"{alone}\"}}")),
            (PROCESSES, format!("ALONE: \"{alone}\"")),
        ] {
            let rendered = asked.rendered_by(folder).unwrap();
            assert!(rendered.contains(&written), "{folder}: {rendered}");
        }
    }
}

#[test]
fn no_entry_of_the_catalogue_for_machines_lets_in_standbys() {
    let entries = catalogue(MACHINES).entries();
    let stores: Vec<&str> = entries.iter().map(|entry| entry.store.as_str()).collect();
    for store in ["redis", "etcd", "postgresql", "kubernetes"] {
        assert!(stores.contains(&store), "{stores:?}");
    }
    for entry in &entries {
        let template = &entry.template;
        assert_eq!(entry.limits.max_standby, Some(0), "{template}");
    }
}

#[test]
fn a_postgresql_that_writes_too_little_for_standbys_is_refused() {
    let asked = wanted("postgresql", json!({"settings": {"wal_level": "minimal"}}));
    for folder in [PODS, PROCESSES] {
        let refusal = asked.refusal_by(folder);
        assert!(refusal.contains("leaves standbys nothing"), "{refusal}");
    }
}

#[test]
fn a_postgresql_in_a_pod_has_shared_memory_for_parallel_queries() {
    for (attributes, size) in [(json!({}), "256Mi"), (json!({"shm": "1Gi"}), "1Gi")] {
        let pod = wanted("postgresql", attributes).in_pods("Pod");
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|volume| volume["name"] == "shm");
        let memory = json!({"medium": "Memory", "sizeLimit": size});
        assert_eq!(volume.unwrap()["emptyDir"], memory);
        let mounts = &pod["spec"]["containers"][0]["volumeMounts"];
        let mounts = mounts.as_array().unwrap();
        let there = |mount: &&Value| mount["mountPath"] == "/dev/shm";
        assert_eq!(mounts.iter().find(there).unwrap()["name"], "shm");
    }
    let redis = wanted("redis", json!({})).in_pods("Pod").to_string();
    assert!(!redis.contains("/dev/shm"));
}
