//! Meaning of manifests, and diagnostics of invalid ones.

mod contents;
mod random;

use std::path::{Path, PathBuf};

use drover_core::error::Violation;
use drover_proto::{
    orchestrator::v1::{Cluster, count_or_percent},
    platform::v1::{AddonKind, HttpProbe, health_policy, port_ref},
};
use prost_types::Duration;

use crate::{Manifests, Objects};

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

fn add(manifests: &mut Manifests, path: &Path) {
    let base = path.parent().unwrap().to_owned();
    let content = std::fs::read(path).unwrap();
    manifests
        .add(&path.display().to_string(), base, content)
        .unwrap();
}

/// The documents of one file.
fn decode_file(path: &Path) -> Objects {
    let mut manifests = Manifests::default();
    add(&mut manifests, path);
    manifests.decode(None)
}

/// A cluster with one group that has these fields.
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
error: no platform `locl`, did you mean `local`? (registered: local, simulated)
  --> orders.yaml:8:29  spec.groups.db.platform
2 errors, nothing applied. Fields: drover explain cluster.spec.groups";
    assert_eq!(objects.diagnostics.render(", nothing applied"), expected);
}

#[test]
fn an_unquoted_version_is_refused() {
    let text = "apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {name: x}\nspec:\n  store: {software: pg, version: 16.10}\n";
    let expected = "\
error: wrong value: the number 16.10, expected a string
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
    assert!(errors(&format!("{one}---\n{one}")).contains("cluster `x` is defined twice"));
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
fn what_is_no_text_is_refused_and_utf_16_is_recognised() {
    let refused = |content: &[u8]| {
        let added = Manifests::default().add("x.yaml", PathBuf::new(), content.to_vec());
        added.unwrap_err().to_string()
    };
    assert_eq!(refused(b"a: \xff"), "x.yaml is not UTF-8 text");
    for utf_16 in [b"\xff\xfea\0", b"\xfe\xff\0a"] {
        assert_eq!(
            refused(utf_16),
            "x.yaml is not UTF-8 text (is it UTF-16? save it as UTF-8)"
        );
    }
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
    let diagnostic = objects.clusters[0].violation(&Violation {
        field: "cluster.name".into(),
        description: "is 41 characters long".into(),
    });
    assert_eq!(diagnostic.message, "the name is 41 characters long");
}

#[test]
fn what_could_not_be_read_is_wrong_once() {
    let violations = |fields: &[&str]| -> Vec<Violation> {
        let violation = |field: &&str| Violation {
            field: (*field).to_owned(),
            description: "is wrong".to_owned(),
        };
        fields.iter().map(violation).collect()
    };
    let text = group("size: two, plattform: local");
    let mut objects = decode(&text);
    let wrong = [
        "spec.groups",
        "spec.groups[0].size",
        "spec.groups[0].platforms",
    ];
    objects.clusters[0].report(violations(&wrong), &mut objects.diagnostics);
    assert_eq!(objects.diagnostics.count(), 2);
    let wrong = violations(&["spec.groups[0].standby", "name"]);
    objects.clusters[0].report(wrong, &mut objects.diagnostics);
    assert_eq!(objects.diagnostics.count(), 4, "what else is wrong is told");
    // Another document of the same file.
    let text = format!(
        "{text}---\n{}",
        group("size: 1").replace("{name: x}", "{name: y}")
    );
    let mut objects = decode(&text);
    let wrong = violations(&["spec.groups[0].size"]);
    objects.clusters[1].report(wrong, &mut objects.diagnostics);
    assert_eq!(objects.diagnostics.count(), 3);
}

#[test]
fn what_has_no_name_is_not_defined_twice() {
    let text = group("size: 1").replace("{name: x}", "{nme: x}");
    let text = errors(&format!("{text}---\n{text}"));
    assert!(text.contains("2 errors"), "{text}");
    let text = errors(
        "apiVersion: drover.dev/v1\nkind: Platform\nmetadata: {name: p}\nspec: {endpont: x}\n",
    );
    assert!(text.contains("1 error."), "{text}");
    let text = errors("apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {name: c}\nspc: {}\n");
    assert!(text.contains("1 error."), "{text}");
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
    let mut manifests = Manifests::default();
    for entry in std::fs::read_dir(&examples).unwrap() {
        let path = entry.unwrap().path();
        let extension = path.extension().unwrap_or_default();
        if ["yaml", "yml", "json"].iter().any(|one| extension == *one) {
            add(&mut manifests, &path);
        }
    }
    let objects = manifests.decode(Some(&[
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
    let schema = crate::explain::json_schema().unwrap();
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
        "etcd.yaml",
        "postgresql.yaml",
        "metal-kubernetes.yaml",
        "etcd-aws-spot.yaml",
    ] {
        let text = std::fs::read_to_string(examples.join(name)).unwrap();
        assert_eq!(errors(&text), Vec::<String>::new(), "{name}");
    }
    let golden = include_str!("convert/capm/testdata/capm-metal-stack.golden.yaml");
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
