//! What manifests mean, what is refused and how it is said.

use std::{collections::BTreeMap, path::PathBuf};

use drover_core::error::Violation;
use drover_proto::{
    orchestrator::v1::{
        Addon, BootstrapSource, Cluster, ClusterSpec, CountOrPercent, GroupSpec, Infrastructure,
        Placement, PlatformChoice, RemediationPolicy, SecretKeyRef, StorageSpec, StoreSpec,
        UpdatePolicy, bootstrap_source, count_or_percent,
    },
    platform::v1::{
        AddonKind, EndpointSpec, ExecProbe, FirewallRule, FirewallSpec, GrpcProbe, HealthPolicy,
        HttpProbe, Lifecycle, LifecycleHook, NetworkSpec, PhaseProbe, PortMapping, PortRange,
        PortRef, Spread, TcpProbe, health_policy, port_ref,
    },
};
use proptest::{collection::vec, option, prelude::*};
use prost_types::{Duration, Struct, Value as Free, value::Kind as FreeKind};

use super::{Manifests, Objects, encode, scalar, yaml};

fn decode_with(name: &str, text: &str, registered: Option<&[&str]>) -> Objects {
    let mut manifests = Manifests::default();
    manifests.add_text(name, PathBuf::from("."), text.to_owned());
    let names: Option<Vec<String>> =
        registered.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    manifests.decode(names.as_deref())
}

fn decode(text: &str) -> Objects {
    decode_with("x.yaml", text, None)
}

fn cluster(text: &str) -> Cluster {
    let objects = decode(text);
    assert!(
        objects.diagnostics.is_empty(),
        "{}",
        objects.diagnostics.render("")
    );
    objects.clusters.into_iter().next().unwrap().object
}

fn errors(text: &str) -> String {
    decode(text).diagnostics.render("")
}

/// A cluster with one group whose fields are given.
fn group(fields: &str) -> String {
    format!(
        "apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {{name: x}}\nspec:\n  groups:\n    db: {{{fields}}}\n"
    )
}

#[test]
fn errors_are_printed_as_designed() {
    let text = "apiVersion: drover.dev/v1\nkind: Cluster\nmetadata:\n  name: orders\nspec:\n  store: {software: postgresql}\n  groups:\n    db: {sise: 3, platform: locl}\n";
    let objects = decode_with("orders.yaml", text, Some(&["local", "simulated"]));
    let expected = "\
error: unknown field `sise`, did you mean `size`?
  --> orders.yaml:8:10  spec.groups.db.sise
 8 |     db: {sise: 3, platform: locl}
   |          ^^^^ expected a whole number, 0 to 10000, default 1
error: no platform `locl` (registered: local, simulated)  --> orders.yaml:8:29  spec.groups.db.platform
2 errors, nothing applied. Fields: drover explain cluster.spec.groups";
    assert_eq!(objects.diagnostics.render(", nothing applied"), expected);
}

#[test]
fn an_unquoted_version_is_refused() {
    let text = "apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {name: x}\nspec:\n  store: {software: pg, version: 16.10}\n";
    let expected = "\
error: wrong value: the number 16.10, expected a text
  --> x.yaml:5:34  spec.store.version
 5 |   store: {software: pg, version: 16.10}
   |                                  ^^^^^ quote it: YAML reads 16.1
1 error.";
    assert_eq!(errors(text), expected);
}

#[test]
fn a_bare_no_is_refused_where_a_text_is_expected() {
    let text = errors(&group("role: no"));
    assert!(
        text.contains("quote it: a bare no is not the same to all readers of YAML"),
        "{text}"
    );
    let text = errors(&group("attributes: {country: no}"));
    assert!(text.contains("spec.groups.db.attributes.country"), "{text}");
    assert!(decode(&group("role: \"no\"")).diagnostics.is_empty());
}

#[test]
fn every_error_of_a_file_is_reported_at_once_up_to_twenty() {
    let text = errors(&group(
        "sise: 1, standby: many, nodeclass: x, health: {intervall: 5s}, dependsOn: a",
    ));
    for path in [
        "sise",
        "standby",
        "nodeclass",
        "health.intervall",
        "dependsOn",
    ] {
        assert!(
            text.contains(&format!("spec.groups.db.{path}")),
            "{path} in {text}"
        );
    }
    assert!(text.contains("5 errors"), "{text}");
    let many: Vec<String> = (0..30).map(|i| format!("wrong{i}: 1")).collect();
    let text = errors(&group(&many.join(", ")));
    assert_eq!(text.matches("error: unknown").count(), 20, "{text}");
    assert!(text.contains("30 errors. Only the first 20"), "{text}");
}

#[test]
fn duplicate_keys_are_refused() {
    let text = errors(
        "apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {name: x}\nspec:\n  groups:\n    a: {size: 1}\n    a: {size: 2}\n",
    );
    assert!(
        text.contains("error: duplicate key `a`\n  --> x.yaml:7:5\n"),
        "{text}"
    );
    assert!(text.contains("first on line 6"), "{text}");
}

#[test]
fn the_document_itself_is_checked() {
    assert!(errors("kind: Cluster\n").contains("`apiVersion` is missing"));
    assert!(errors("apiVersion: v1\nkind: Clutser\n").contains("did you mean `Cluster`?"));
    assert!(
        errors("apiVersion: drover.dev/v2\nkind: Cluster\n").contains("expected drover.dev/v1")
    );
    assert!(errors("- a\n").contains("expected a map with apiVersion"));
    assert!(errors("a: [\n").contains("not readable as YAML or JSON"));
    assert!(
        errors(&format!("{}status: {{}}\n", group("size: 1"))).contains("unknown field `status`")
    );
    assert!(
        errors("apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {}\nspec: {}\n")
            .contains("`metadata.name` is missing")
    );
}

#[test]
fn one_object_stands_in_one_document() {
    let one = group("size: 1");
    assert!(errors(&format!("{one}---\n{one}")).contains("cluster `x` stands here twice"));
}

#[test]
fn two_probes_exclude_each_other() {
    let text = errors(&group("health: {tcp: {port: client}, http: {}}"));
    assert!(
        text.contains("`http` and `tcp` exclude each other"),
        "{text}"
    );
    let text = errors(&group("platform: a, platforms: [b]"));
    assert!(
        text.contains("`platforms` and `platform` exclude each other"),
        "{text}"
    );
}

#[test]
fn all_that_a_group_may_say_is_read() {
    let cluster = cluster(
        r#"
apiVersion: drover.dev/v1
kind: Cluster
metadata: {name: orders, labels: {team: payments}}
spec:
  store: {software: postgresql, version: "16.4"}
  update: {strategy: RollingUpdate, maxSurge: 25%, maxUnavailable: 0, minReady: 1m}
  groups:
    outer:
      properties: {image: base, count: 3, nothing: null}
      groups:
        b: {size: 0, standby: 1, platforms: [{name: aws, max: 2}, gcp]}
        a:
    probe:
      health: {http: {path: /health, port: client}, interval: 5s, startupTimeout: 1h30m}
      placement: {spread: [{topologyKey: host, maxPerDomain: 1, whenUnsatisfiable: DoNotSchedule}]}
      remediation: {maxUnhealthy: 40%, enabled: false}
      storage: {size: 50Gi, whenReplaced: Delete}
      bootstrap: {render: true, userData: '#cloud-config'}
  addons:
    - {name: api, type: LoadBalancer, platform: k8s, targets: [probe], port: 6443, targetPort: 8443}
"#,
    );
    let spec = cluster.spec.unwrap();
    assert_eq!(cluster.labels["team"], "payments");
    assert_eq!(
        spec.update.unwrap().max_surge.unwrap().amount,
        Some(count_or_percent::Amount::Percent(25))
    );
    let names: Vec<&str> = spec.groups[0]
        .groups
        .iter()
        .map(|group| group.name.as_str())
        .collect();
    assert_eq!(names, ["b", "a"], "the order of the file is kept");
    let b = &spec.groups[0].groups[0];
    assert_eq!(
        (b.size, b.standby, b.platforms.len()),
        (Some(0), Some(1), 2)
    );
    assert_eq!(b.platforms[1].name, "gcp");
    assert_eq!(spec.groups[0].groups[1].size, None);
    let probe = &spec.groups[1];
    let health = probe.health.clone().unwrap();
    assert_eq!(
        health.startup_timeout,
        Some(Duration {
            seconds: 5400,
            nanos: 0
        })
    );
    assert!(
        matches!(health.probe, Some(health_policy::Probe::Http(HttpProbe { ref path, .. })) if path == "/health")
    );
    assert_eq!(spec.addons[0].r#type(), AddonKind::LoadBalancer);
    assert_eq!(
        spec.addons[0].target_port.clone().unwrap().port,
        Some(port_ref::Port::Number(8443))
    );
}

#[test]
fn user_data_is_read_from_a_file_beside_the_manifest() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("m")).unwrap();
    std::fs::write(dir.path().join("boot.sh"), "#!/bin/sh\n").unwrap();
    let manifest = dir.path().join("m/x.yaml");
    std::fs::write(
        &manifest,
        group("bootstrap: {userDataFrom: {file: ../boot.sh}}"),
    )
    .unwrap();
    let objects = Manifests::read(&[manifest.display().to_string()])
        .unwrap()
        .decode(None);
    let group = objects.clusters[0]
        .object
        .spec
        .clone()
        .unwrap()
        .groups
        .remove(0);
    assert_eq!(
        group.bootstrap.unwrap().source,
        Some(bootstrap_source::Source::Text("#!/bin/sh\n".into()))
    );

    std::fs::write(dir.path().join("boot.sh"), [0xff, 0, b'x']).unwrap();
    let binary = Manifests::read(&[manifest.display().to_string()])
        .unwrap()
        .decode(None);
    let group = &binary.clusters[0].object.spec.as_ref().unwrap().groups[0];
    assert_eq!(
        group.bootstrap.as_ref().unwrap().source,
        Some(bootstrap_source::Source::Binary(vec![0xff, 0, b'x']))
    );

    std::fs::write(dir.path().join("boot.sh"), vec![b'x'; 600 * 1024]).unwrap();
    let text = Manifests::read(&[manifest.display().to_string()])
        .unwrap()
        .decode(None)
        .diagnostics
        .render("");
    assert!(text.contains("larger than 512 KiB"), "{text}");
}

#[test]
fn what_reads_show_of_user_data_can_be_applied_again() {
    let digest = "ab".repeat(32);
    let shown = Cluster {
        name: "x".into(),
        spec: Some(ClusterSpec {
            groups: vec![GroupSpec {
                name: "db".into(),
                bootstrap: Some(BootstrapSource {
                    render: true,
                    source: Some(bootstrap_source::Source::Sha256(digest.clone())),
                }),
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..Default::default()
    };
    let text = yaml::write(&encode::cluster(&shown).unwrap());
    assert!(
        text.contains(&format!("userDataSha256: {digest}")),
        "{text}"
    );
    assert_eq!(cluster(&text), shown);
}

#[test]
fn user_data_has_one_source() {
    for (fields, message) in [
        ("userDataFrom: {}", "no source"),
        (
            "userDataFrom: {file: a, secretKeyRef: {name: a, key: b}}",
            "more than one source",
        ),
        ("userData: a, userDataFrom: {file: b}", "exclude each other"),
        (
            "userData: a, secretKeyRef: {name: a, key: b}",
            "exclude each other",
        ),
        (
            "userDataFrom: {file: nowhere.yaml}",
            "cannot read nowhere.yaml",
        ),
    ] {
        let text = errors(&group(&format!("bootstrap: {{{fields}}}")));
        assert!(text.contains(message), "{message}: {text}");
    }
    for key in [
        "secretKeyRef: {name: a, key: b}",
        "userDataFrom: {secretKeyRef: {name: a, key: b}}",
    ] {
        let cluster = cluster(&group(&format!("bootstrap: {{{key}}}")));
        let bootstrap = cluster.spec.unwrap().groups.remove(0).bootstrap.unwrap();
        let (name, key) = ("a".into(), "b".into());
        assert_eq!(
            bootstrap.source,
            Some(bootstrap_source::Source::SecretKey(SecretKeyRef {
                name,
                key
            }))
        );
    }
}

#[test]
fn no_error_shows_user_data() {
    for bootstrap in [
        "bootstrap: hunter2",
        "bootstrap: {userData: [hunter2]}",
        "bootstrap: {userDataBase64: hunter2!}",
        "bootstrap: {userData: hunter2, rendr: true}",
        "sise: 1, bootstrap: {userData: hunter2}",
    ] {
        let text = errors(&group(bootstrap));
        assert!(text.contains("1 error"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    let objects = decode(&group("size: 3, bootstrap: {userData: hunter2}"));
    let mut problems = super::diagnostic::Diagnostics::default();
    for field in ["spec.groups[0].bootstrap.text", "spec.groups[0].size"] {
        problems.push(objects.clusters[0].violation(&Violation {
            field: field.into(),
            description: "is wrong".into(),
        }));
    }
    let text = problems.render("");
    assert!(
        text.contains("2 errors") && !text.contains("hunter2"),
        "{text}"
    );
}

#[test]
fn a_directory_is_read_by_name_and_other_files_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("b.yaml"), group("size: 1")).unwrap();
    std::fs::write(dir.path().join("a.json"), r#"{"apiVersion":"drover.dev/v1","kind":"Platform","metadata":{"name":"p"},"spec":{"endpoint":"http://127.0.0.1:1"}}"#).unwrap();
    std::fs::write(dir.path().join("notes.txt"), "not yaml: [").unwrap();
    let objects = Manifests::read(&[dir.path().display().to_string()])
        .unwrap()
        .decode(None);
    assert!(
        objects.diagnostics.is_empty(),
        "{}",
        objects.diagnostics.render("")
    );
    assert_eq!((objects.platforms.len(), objects.clusters.len()), (1, 1));
}

#[test]
fn a_platform_in_the_file_counts_as_registered() {
    let platform = "apiVersion: drover.dev/v1\nkind: Platform\nmetadata: {name: own}\nspec: {endpoint: \"http://127.0.0.1:7402\"}\n";
    let text = format!("{}---\n{platform}", group("platform: own"));
    assert!(decode_with("x", &text, Some(&[])).diagnostics.is_empty());
    let text = decode_with("x", &group("platform: own"), Some(&[]))
        .diagnostics
        .render("");
    assert!(
        text.contains("no platform `own` (none is registered)"),
        "{text}"
    );
}

#[test]
fn no_error_shows_what_a_secret_says() {
    let text = errors(
        "apiVersion: drover.dev/v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: hunter2, b: 4711, c: [hunter3]}\nextra: hunter4\n",
    );
    assert!(text.contains("3 errors"), "{text}");
    for secret in ["hunter2", "4711", "hunter3", "hunter4"] {
        assert!(!text.contains(secret), "{text}");
    }
    let text = errors("kind: Secret\nstringData: {a: hunter2\n");
    assert!(!text.contains("hunter2"), "{text}");
    let text = errors(&group("bootstrap: {userData: hunter2, rendr: true}"));
    assert!(
        text.contains("rendr") && !text.contains("hunter2"),
        "{text}"
    );
}

#[test]
fn what_the_server_objects_to_is_shown_at_its_line() {
    let objects = decode_with("o.yaml", &group("size: 3, platform: local"), None);
    for field in [
        "spec.groups[0].size",
        "spec.groups.db.size",
        "cluster.spec.groups[0].size",
    ] {
        let violation = Violation {
            field: field.into(),
            description: "is too large".into(),
        };
        let diagnostic = objects.clusters[0].violation(&violation);
        assert_eq!(
            (diagnostic.span.line, diagnostic.span.column),
            (6, 16),
            "{field}"
        );
    }
}

#[test]
fn bombs_are_refused() {
    let mut text = String::from("a: &a [x, x, x, x, x, x, x, x, x, x]\n");
    for (name, before) in ["b", "c", "d", "e", "f", "g"]
        .iter()
        .zip(["a", "b", "c", "d", "e", "f"])
    {
        text.push_str(&format!(
            "{name}: &{name} [{}]\n",
            vec![format!("*{before}"); 10].join(", ")
        ));
    }
    assert!(errors(&text).contains("more than 200000 values"));
    assert!(errors(&format!("a: {}", "[".repeat(200))).contains("error"));
    assert!(
        errors(&format!("{}1{}", "{a: ".repeat(100), "}".repeat(100)))
            .contains("nested deeper than 64")
    );
    assert!(errors("a: &a [*a]\n").contains("error"));
}

#[test]
fn numbers_that_lose_digits_are_refused() {
    let text = errors(&group("attributes: {a: 9007199254740993}"));
    assert!(text.contains("2^53"), "{text}");
    let text = errors(&group("attributes: {a: .inf}"));
    assert!(text.contains("a finite number"), "{text}");
    let text = errors(&group("attributes: {a: 0755}"));
    assert!(text.contains("quote it"), "{text}");
}

#[test]
fn the_examples_of_the_repository_are_valid() {
    let examples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples");
    let objects = Manifests::read(&[examples.display().to_string()])
        .unwrap()
        .decode(Some(&[
            "local".into(),
            "simulated".into(),
            "aws".into(),
            "gcd".into(),
            "digitalOcean".into(),
            "my-custom-plugin".into(),
            "metal".into(),
        ]));
    assert!(
        objects.diagnostics.is_empty(),
        "{}",
        objects.diagnostics.render("")
    );
    assert!(objects.clusters.len() >= 6);
}

#[test]
fn manifests_are_valid_by_the_schema_that_is_printed() {
    let schema = super::explain::json_schema().unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors = |text: &str| -> Vec<String> {
        let document: serde_json::Value = serde_saphyr::from_str(text).unwrap();
        validator
            .iter_errors(&document)
            .map(|error| error.to_string())
            .collect()
    };
    let examples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples");
    for name in [
        "hello.yaml",
        "redis.yaml",
        "metal-kubernetes.yaml",
        "etcd-aws-spot.yaml",
    ] {
        let text = std::fs::read_to_string(examples.join(name)).unwrap();
        assert_eq!(errors(&text), Vec::<String>::new(), "{name}");
    }
    let golden = include_str!("../convert/capm/testdata/capm-metal-stack.golden.yaml");
    assert_eq!(errors(golden), Vec::<String>::new());
    for (from, to) in [
        ("port: 6443", "port: 66443"),
        (
            "nodeClass: v1-small-x86\n        host",
            "nodeclass: v1-small-x86\n        host",
        ),
        (
            "hosts: [e0ab02d2-27cd-5a5e-8efc-080ba80cf258]",
            "hosts: e0ab",
        ),
        ("software: kubernetes", "software: 5"),
    ] {
        assert_eq!(golden.matches(from).count(), 1, "{from}");
        assert!(!errors(&golden.replace(from, to)).is_empty(), "{to}");
    }
}

// Random specs.

fn free_map(fields: Vec<(String, Free)>) -> Struct {
    Struct {
        fields: fields.into_iter().collect(),
    }
}

fn word() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9-]{0,8}[a-z0-9]"
}

fn free_value() -> impl Strategy<Value = Free> {
    let leaf = prop_oneof![
        Just(FreeKind::NullValue(0)),
        any::<bool>().prop_map(FreeKind::BoolValue),
        (-(1i64 << 53)..=1i64 << 53).prop_map(|n| FreeKind::NumberValue(n as f64)),
        any::<f64>()
            .prop_filter("finite", |n| n.is_finite())
            .prop_map(|n| FreeKind::NumberValue(if n == 0.0 { 0.0 } else { n })),
        any::<String>().prop_map(FreeKind::StringValue),
        prop_oneof![
            Just("no"),
            Just("1.0"),
            Just("a: b"),
            Just("- x"),
            Just("#"),
            Just(""),
            Just("two\nlines\n"),
            Just("0x1F")
        ]
        .prop_map(|text| FreeKind::StringValue(text.into())),
    ]
    .prop_map(scalar::free);
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(scalar::free_list),
            vec((any::<String>(), inner), 0..4)
                .prop_map(|fields| scalar::free(FreeKind::StructValue(free_map(fields)))),
        ]
    })
}

fn free_form() -> impl Strategy<Value = Option<Struct>> {
    option::of(vec((word(), free_value()), 0..4).prop_map(free_map))
}

fn duration() -> impl Strategy<Value = Option<Duration>> {
    option::of(
        (0i64..1_000_000, prop_oneof![Just(0), 0i32..1_000_000_000])
            .prop_map(|(seconds, nanos)| Duration { seconds, nanos }),
    )
}

fn amount() -> impl Strategy<Value = Option<CountOrPercent>> {
    option::of(prop_oneof![
        (0u32..1000).prop_map(count_or_percent::Amount::Count),
        (0u32..=100).prop_map(count_or_percent::Amount::Percent),
    ])
    .prop_map(|amount| {
        amount.map(|amount| CountOrPercent {
            amount: Some(amount),
        })
    })
}

fn port() -> impl Strategy<Value = Option<PortRef>> {
    option::of(prop_oneof![
        word().prop_map(port_ref::Port::Name),
        (1u32..65_536).prop_map(port_ref::Port::Number)
    ])
    .prop_map(|port| port.map(|port| PortRef { port: Some(port) }))
}

fn health() -> impl Strategy<Value = Option<HealthPolicy>> {
    let probe = prop_oneof![
        Just(health_policy::Probe::Phase(PhaseProbe {})),
        (port(), word())
            .prop_map(|(port, service)| health_policy::Probe::Grpc(GrpcProbe { port, service })),
        (port(), any::<bool>()).prop_map(|(port, tls)| health_policy::Probe::Http(HttpProbe {
            port,
            path: "/a".into(),
            tls
        })),
        port().prop_map(|port| health_policy::Probe::Tcp(TcpProbe { port })),
        vec(any::<String>(), 1..3)
            .prop_map(|command| health_policy::Probe::Exec(ExecProbe { command })),
    ];
    option::of(
        (option::of(probe), duration(), option::of(1u32..100)).prop_map(
            |(probe, interval, failure_threshold)| HealthPolicy {
                probe,
                interval,
                failure_threshold,
                ..Default::default()
            },
        ),
    )
}

fn bootstrap() -> impl Strategy<Value = Option<BootstrapSource>> {
    let source = prop_oneof![
        any::<String>().prop_map(bootstrap_source::Source::Text),
        vec(any::<u8>(), 0..20).prop_map(bootstrap_source::Source::Binary),
        (word(), word()).prop_map(|(name, key)| bootstrap_source::Source::SecretKey(
            SecretKeyRef { name, key }
        )),
        "[0-9a-f]{64}".prop_map(bootstrap_source::Source::Sha256),
    ];
    option::of(
        (source, any::<bool>()).prop_map(|(source, render)| BootstrapSource {
            source: Some(source),
            render,
        }),
    )
}

fn platforms() -> impl Strategy<Value = Vec<PlatformChoice>> {
    let choice = (
        word(),
        option::of(word()),
        option::of(0u32..10),
        free_form(),
        prop_oneof![Just(String::new()), Just("^1.2".into())],
    )
        .prop_map(
            |(name, node_class, max, properties, version_requirement)| PlatformChoice {
                name,
                node_class,
                max,
                properties,
                version_requirement,
            },
        );
    vec(choice, 0..3)
}

fn group_spec() -> impl Strategy<Value = GroupSpec> {
    let leaf = (
        (
            option::of(0u32..100),
            option::of(0u32..100),
            vec(word(), 0..3),
            platforms(),
            option::of(any::<String>()),
        ),
        (free_form(), free_form(), bootstrap(), health(), duration()),
        (
            amount(),
            amount(),
            option::of(any::<bool>()),
            0i32..3,
            0i32..3,
        ),
        (option::of(vec(word(), 1..3)), option::of(0u32..3)),
    )
        .prop_map(|(a, b, c, d)| GroupSpec {
            size: a.0,
            standby: a.1,
            depends_on: a.2,
            platforms: a.3,
            role: a.4,
            attributes: b.0,
            properties: b.1,
            bootstrap: b.2,
            health: b.3,
            expire_after: b.4,
            update: Some(UpdatePolicy {
                max_surge: c.0,
                strategy: c.4,
                ..Default::default()
            }),
            remediation: Some(RemediationPolicy {
                max_unhealthy: c.1,
                enabled: c.2,
                ..Default::default()
            }),
            management_policy: c.3,
            storage: Some(StorageSpec {
                size: "5Gi".into(),
                when_scaled: c.4,
                ..Default::default()
            }),
            placement: d.0.map(|domains| Placement {
                hosts: domains.iter().map(|name| format!("e0ab-{name}")).collect(),
                failure_domains: domains,
                spread: vec![Spread {
                    topology_key: "zone".into(),
                    max_skew: d.1.map(|n| n + 1),
                    when_unsatisfiable: c.3,
                    ..Default::default()
                }],
                ..Default::default()
            }),
            lifecycle: d.1.map(|_| Lifecycle {
                pre_stop: Some(LifecycleHook {
                    exec: vec!["redis-cli".into(), "no".into()],
                    timeout: None,
                }),
                post_promote: None,
            }),
            ..Default::default()
        });
    leaf.prop_recursive(3, 8, 3, |inner| {
        (named_groups(inner), free_form()).prop_map(|(groups, attributes)| GroupSpec {
            groups,
            attributes,
            ..Default::default()
        })
    })
}

fn named_groups(group: impl Strategy<Value = GroupSpec>) -> impl Strategy<Value = Vec<GroupSpec>> {
    vec(
        ("[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,6}[a-zA-Z0-9])?", group),
        1..4,
    )
    .prop_map(|groups| {
        let unique: BTreeMap<String, GroupSpec> = groups.into_iter().collect();
        unique
            .into_iter()
            .map(|(name, group)| GroupSpec { name, ..group })
            .collect()
    })
}

fn infrastructure() -> impl Strategy<Value = Vec<Infrastructure>> {
    let network =
        (word(), option::of(1u32..129), any::<bool>()).prop_map(|(name, prefix_length, id)| {
            NetworkSpec {
                cidr: if id {
                    String::new()
                } else {
                    "10.0.0.0/22".into()
                },
                prefix_length,
                id: if id { name.clone() } else { String::new() },
                public: name,
            }
        });
    let endpoint =
        (vec(word(), 0..3), 1u32..65_536, any::<bool>()).prop_map(|(targets, port, fixed)| {
            EndpointSpec {
                host: if fixed {
                    "100.255.254.1".into()
                } else {
                    String::new()
                },
                port,
                targets,
            }
        });
    let rule = (1i32..3, vec(1u32..65_536, 0..3), any::<String>()).prop_map(
        |(direction, ports, comment)| FirewallRule {
            direction,
            protocol: "udp".into(),
            cidrs: vec!["0.0.0.0/0".into()],
            ports: ports
                .into_iter()
                .map(|first| PortRange { first, last: first })
                .collect(),
            comment,
        },
    );
    let firewall = (word(), vec(rule, 0..3)).prop_map(|(host, rules)| FirewallSpec {
        image: "firewall-ubuntu-2.0".into(),
        node_class: "v1-small-x86".into(),
        rules,
        host,
    });
    let one = (
        word(),
        free_form(),
        option::of(network),
        option::of(endpoint),
        option::of(firewall),
    )
        .prop_map(
            |(platform, properties, network, endpoint, firewall)| Infrastructure {
                platform,
                properties,
                network,
                endpoint,
                firewall,
            },
        );
    vec(one, 0..3)
}

fn any_cluster() -> impl Strategy<Value = Cluster> {
    (
        word(),
        vec((word(), any::<String>()), 0..3),
        named_groups(group_spec()),
        platforms(),
        free_form(),
        port(),
        infrastructure(),
    )
        .prop_map(
            |(name, labels, groups, platforms, attributes, port, infrastructure)| Cluster {
                name: name.clone(),
                labels: labels.into_iter().collect(),
                spec: Some(ClusterSpec {
                    store: Some(StoreSpec {
                        software: "pg".into(),
                        version: "16.10".into(),
                    }),
                    groups,
                    platforms,
                    attributes,
                    infrastructure,
                    addons: vec![Addon {
                        name,
                        r#type: 1,
                        target_port: port.clone(),
                        ports: vec![PortMapping {
                            listen: Some(80),
                            target: port,
                            count: 2,
                        }],
                        ..Default::default()
                    }],
                    ..Default::default()
                }),
                ..Default::default()
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_written_cluster_reads_back_the_same(cluster in any_cluster()) {
        let text = yaml::write(&encode::cluster(&cluster).unwrap());
        let objects = decode(&text);
        prop_assert!(objects.diagnostics.is_empty(), "{}\n{}", objects.diagnostics.render(""), text);
        prop_assert_eq!(&objects.clusters[0].object, &cluster, "{}", text);
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let _ = decode_with("x", &text, Some(&[])).diagnostics.render("");
    }

    #[test]
    fn random_yaml_never_panics(pieces in vec(prop_oneof![
        Just("{"), Just("}"), Just("["), Just("]"), Just(": "), Just("- "), Just("\n"), Just("  "), Just("&a "), Just("*a"),
        Just("groups"), Just("kind: Cluster\n"), Just("apiVersion: drover.dev/v1\n"), Just("spec"), Just("size"), Just("'"),
        Just("\""), Just("|\n"), Just("#"), Just("---\n"), Just("é"), Just("\t"), Just("? "), Just("!!str "), Just("resourcePlugin"),
        Just("name"), Just(","), Just("0"),
    ], 0..60)) {
        let _ = decode_with("x", &pieces.concat(), Some(&[])).diagnostics.render("");
    }

    #[test]
    fn a_truncated_manifest_never_panics(cut in 0usize..600) {
        let text = include_str!("../../../../deploy/examples/kadende-basic_cluster.yml");
        let text: String = text.chars().take(cut).collect();
        let _ = decode_with("x", &text, None).diagnostics.render("");
    }
}
