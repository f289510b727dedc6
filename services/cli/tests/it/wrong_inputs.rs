//! Wrong manifests as people write them: each is refused with what is wrong, where, and what to write instead; nothing is
//! changed.

use std::{
    fs,
    path::Path,
    process::{Output, Stdio},
};

use drover_testing::processes::program;
use tempfile::TempDir;

use crate::dev::Dev;

/// A cluster whose group has these fields.
fn group(fields: &str) -> String {
    spec(&format!("platform: local\n  groups:\n    db: {{{fields}}}"))
}

fn spec(fields: &str) -> String {
    format!("apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {{name: x}}\nspec:\n  {fields}\n")
}

fn named(name: &str) -> String {
    group("size: 1").replace("{name: x}", &format!("{{name: {name}}}"))
}

fn groups(fields: &str) -> String {
    spec(&format!("platform: local\n  groups:\n    {fields}"))
}

/// What is written, the text that is pointed to, the path of its field, and words of the message.
type Case = (String, &'static str, &'static str, &'static [&'static str]);

fn validate(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = program(env!("CARGO_BIN_EXE_drover"));
    command.arg("validate").args(arguments);
    command.current_dir(directory).stdin(Stdio::null());
    command.output().unwrap()
}

/// The errors of a command that failed as it should, without having done anything.
fn refusal(output: &Output, what: &str) -> String {
    let told = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{what}\n{told}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{what}");
    assert!(!told.contains("panicked"), "{what}\n{told}");
    told
}

/// `x.yaml:7:10  spec.groups.db.size`, where a text is.
fn place(text: &str, at: &str, path: &str) -> String {
    let start = text.find(at).unwrap_or_else(|| panic!("{at} in {text}"));
    let line = text[..start].matches('\n').count() + 1;
    let column = text[..start]
        .chars()
        .rev()
        .take_while(|c| *c != '\n')
        .count()
        + 1;
    let path = if path.is_empty() {
        String::new()
    } else {
        format!("  {path}")
    };
    format!("--> x.yaml:{line}:{column}{path}\n")
}

fn check(told: &str, (text, at, path, words): &Case) {
    let place = place(text, at, path);
    assert!(told.contains(&place), "{text}\n{place}\n{told}");
    for word in *words {
        assert!(told.contains(word), "{text}\n{word}\n{told}");
    }
}

const SIZE: &str = "spec.groups.db.size";
const NUMBER: &str = "expected a whole number, 0 to 10000";

fn values() -> Vec<Case> {
    let duration = "spec.groups.db.expireAfter";
    let surge = "spec.groups.db.update.maxSurge";
    let storage = "spec.groups.db.storage.size";
    let long = "9".repeat(26);
    vec![
        (
            group("size: two"),
            "two",
            SIZE,
            &["wrong value: `two`", NUMBER],
        ),
        (
            group("size: \"2\""),
            "\"2\"",
            SIZE,
            &[NUMBER, "without quotes: 2"],
        ),
        (group("size: 2.5"), "2.5", SIZE, &["the number 2.5", NUMBER]),
        (group("size: -1"), "-1", SIZE, &["the number -1", NUMBER]),
        (group("size: 10001"), "10001", SIZE, &[NUMBER]),
        (group(&format!("size: {long}")), "9999", SIZE, &[NUMBER]),
        (group("size: 1e3"), "1e3", SIZE, &["in digits: 1000"]),
        (
            group("size: null"),
            "null",
            SIZE,
            &["wrong value: null", NUMBER],
        ),
        (group("size: [2]"), "[2]", SIZE, &["a list", NUMBER]),
        (
            group("size: 010"),
            "010",
            SIZE,
            &["without leading zeros: 10"],
        ),
        (
            group("sise: 2"),
            "sise",
            "spec.groups.db.sise",
            &["did you mean `size`?"],
        ),
        (
            group("standby: 10000"),
            "groups",
            "spec.groups",
            &["10001 nodes", "at most 10000"],
        ),
        (
            group("expireAfter: 90"),
            "90",
            duration,
            &["with its unit: 90s"],
        ),
        (
            group("expireAfter: \"90\""),
            "\"90\"",
            duration,
            &["with its unit: 90s"],
        ),
        (
            group("expireAfter: 5 minutes"),
            "5 minutes",
            duration,
            &["like 30s, 5m or 1h30m"],
        ),
        (
            group("expireAfter: -5s"),
            "-5s",
            duration,
            &["like 30s, 5m or 1h30m"],
        ),
        (group("expireAfter: 5M"), "5M", duration, &["write 5m"]),
        (
            group("expireAfter: 1000000000000h"),
            "1000000",
            duration,
            &["at most 87660000h"],
        ),
        (group("expireAfter: 0s"), "0s", duration, &["at least 60s"]),
        (group("expireAfter: 1s"), "1s", duration, &["at least 60s"]),
        (
            group("health: {tcp: {port: client}, interval: 1ms}"),
            "1ms",
            "spec.groups.db.health.interval",
            &["at least 100ms"],
        ),
        (
            group("update: {maxSurge: -10%}"),
            "-10%",
            surge,
            &["a share is 0% to 100%"],
        ),
        (
            group("update: {maxSurge: 10 %}"),
            "10 %",
            surge,
            &["write 10%"],
        ),
        (
            group("update: {maxSurge: 33.3%}"),
            "33.3%",
            surge,
            &["a share is whole: 33%"],
        ),
        (
            group("update: {maxSurge: 150%}"),
            "150%",
            surge,
            &["a share is 0% to 100%"],
        ),
        (
            group("update: {maxSurge: 0, maxUnavailable: 0}"),
            "0,",
            surge,
            &["maxSurge and maxUnavailable both 0", "raise one of them"],
        ),
        (
            group("storage: {size: 50GB}"),
            "50GB",
            storage,
            &["write 50G or 50Gi"],
        ),
        (
            group("storage: {size: -5Gi}"),
            "-5Gi",
            storage,
            &["a quantity like 50Gi"],
        ),
        (group("storage: {size: 0}"), "0}", storage, &["a quantity"]),
        (
            group("health: {tcp: {port: 99999}}"),
            "99999",
            "spec.groups.db.health.tcp.port",
            &["a port number, 1 to 65535"],
        ),
        (
            group("deletionProtection: yes"),
            "yes",
            "spec.groups.db.deletionProtection",
            &["expected true or false", "write true"],
        ),
        (
            group("role: 5"),
            "5",
            "spec.groups.db.role",
            &["expected a string", "quote it"],
        ),
        (
            group("attributes: {big: 18446744073709551616}"),
            "18446",
            "spec.groups.db.attributes.big",
            &["up to 2^53", "quote it"],
        ),
        (
            group("managementPolicy: Orderd"),
            "Orderd",
            "spec.groups.db.managementPolicy",
            &["OrderedReady"],
        ),
        (
            group("maxInFlight: 0"),
            "0}",
            "spec.groups.db.maxInFlight",
            &["expected a whole number, 1 to 10000"],
        ),
        (
            group("placement: {spread: [{topologyKey: zone, maxSkew: 0}]}"),
            "0}",
            "spec.groups.db.placement.spread[0].maxSkew",
            &["expected a whole number, 1 to 10000"],
        ),
        (
            group("health: {http: {port: client, path: ready}}"),
            "ready",
            "spec.groups.db.health.http.path",
            &["expected a path that begins with a slash"],
        ),
        (
            group("health: {tcp: {port: a}, http: {port: a}}"),
            "http",
            "spec.groups.db.health.http",
            &["`http` and `tcp` exclude each other"],
        ),
        (
            group("platform: null"),
            "null",
            "spec.groups.db.platform",
            &["the name of a platform"],
        ),
        (
            group("version: 7"),
            "7}",
            "spec.groups.db.version",
            &["expected a string", "quote it"],
        ),
        (
            group("version: 7.0"),
            "7.0",
            "spec.groups.db.version",
            &["quote it"],
        ),
        (
            group("version: \"7\""),
            "\"7\"",
            "spec.groups.db.version",
            &["a version needs a store"],
        ),
        (
            group("store: {software: redis}"),
            "store",
            "spec.groups.db.store",
            &["unknown field"],
        ),
        (
            group("<<: {size: 1}"),
            "<<",
            "spec.groups.db",
            &["merge keys (`<<`) are not supported"],
        ),
        (
            group("lifecycle: {preStop: {exec: []}}"),
            "exec",
            "spec.groups.db.lifecycle.preStop.exec",
            &["exec"],
        ),
    ]
}

fn documents() -> Vec<Case> {
    let deep = |levels: usize| {
        let mut text = "size: 1".to_owned();
        for level in 0..levels {
            text = format!("groups: {{g{level}: {{{text}}}}}");
        }
        spec(&format!("platform: local\n  {text}"))
    };
    let many: String = (0..257).map(|at| format!("g{at}: {{}}, ")).collect();
    let label = group("size: 1").replace("{name: x}", "{name: x, labels: {a: 5}}");
    let spaces = group("size: 1").replace("{name: x}", "{name: x, namespace: y}");
    let notes = group("size: 1").replace("{name: x}", "{name: x, annotations: {a: b}}");
    let bomb = "a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c]\ne: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d]\nf: [*e, *e, *e, *e, *e, *e, *e, *e, *e]\n";
    let whole = group("size: 1");
    let name = "metadata.name";
    vec![
        (named("7"), "7}", name, &["expected a string", "quote it"]),
        (
            named("Bäd_Näme"),
            "Bäd",
            name,
            &["is not a valid name", "1 to 40"],
        ),
        (named("\"\""), "\"\"", name, &["1 to 40"]),
        (named(&"n".repeat(300)), "nnnn", name, &["1 to 40"]),
        (named("a/b"), "a/b", name, &["is not a valid name"]),
        (named("$(rm -rf /)"), "$(rm", name, &["is not a valid name"]),
        (
            groups("web 1: {size: 1}"),
            "web 1",
            "spec.groups[\"web 1\"]",
            &["is not a valid name"],
        ),
        (
            groups("db: {}\n    db: {size: 2}"),
            "db: {size",
            "",
            &["duplicate key `db`"],
        ),
        (
            group("size: 1, size: 2"),
            "size: 2",
            "",
            &["duplicate key `size`", "may appear only once"],
        ),
        (
            groups("a: {dependsOn: [b]}\n    b: {dependsOn: [a]}"),
            "b]",
            "spec.groups.a.dependsOn[0]",
            &["a -> b -> a"],
        ),
        (
            groups("a: {dependsOn: [a]}"),
            "a]",
            "spec.groups.a.dependsOn[0]",
            &["itself"],
        ),
        (
            groups("a: {dependsOn: [no]}"),
            "no]",
            "spec.groups.a.dependsOn[0]",
            &["expected a string"],
        ),
        (
            groups("a: {dependsOn: [zz]}"),
            "zz",
            "spec.groups.a.dependsOn[0]",
            &["no group"],
        ),
        (
            groups("a: {dependsOn: b}\n    b: {}"),
            "b}",
            "spec.groups.a.dependsOn",
            &["in brackets: [b]"],
        ),
        (
            group("size: 1, groups: {a: {}}"),
            "1, groups",
            SIZE,
            &["groups"],
        ),
        (
            spec("platform: local\n  groups: [db]"),
            "[db]",
            "spec.groups",
            &["a map of groups by name"],
        ),
        (
            spec("platform: local\n  groups: {}"),
            "groups",
            "spec.groups",
            &["at least one group"],
        ),
        (
            spec("groups: {db: {size: 1}}"),
            "db",
            "spec.groups.db.platforms",
            &["no platform is named"],
        ),
        (
            spec("store: {version: \"7\"}\n  platform: local\n  groups: {db: {}}"),
            "\"7\"",
            "spec.store.version",
            &["a version needs a store"],
        ),
        (
            whole.replace("spec:\n", "status: {}\nspec:\n"),
            "status",
            "status",
            &["unknown field `status`"],
        ),
        (
            spaces,
            "namespace",
            "metadata.namespace",
            &["unknown field"],
        ),
        (
            notes,
            "annotations",
            "metadata.annotations",
            &["unknown field"],
        ),
        (
            label,
            "5}",
            "metadata.labels.a",
            &["expected a string", "quote it"],
        ),
        (
            deep(11),
            "groups: {g2",
            "spec.groups.g10.groups.g9.groups.g8.groups.g7.groups.g6.groups.g5.groups.g4.groups.g3.groups",
            &["nested deeper than 8 levels"],
        ),
        (
            spec(&format!("platform: local\n  groups: {{{many}}}")),
            "groups",
            "spec.groups",
            &["more than 256 groups"],
        ),
        (
            whole.replace("drover.dev/v1", "drover.dev/v2"),
            "drover.dev/v2",
            "apiVersion",
            &["expected drover.dev/v1"],
        ),
        (
            whole.replace("kind: Cluster", "kind: Clutser"),
            "Clutser",
            "kind",
            &["did you mean `Cluster`?"],
        ),
        (
            whole.replace("apiVersion: drover.dev/v1\n", ""),
            "kind",
            "apiVersion",
            &["`apiVersion` is missing"],
        ),
        (
            whole.replace("kind: Cluster\n", ""),
            "apiVersion",
            "kind",
            &["`kind` is missing"],
        ),
        (
            whole.replace("metadata: {name: x}\n", ""),
            "apiVersion",
            "metadata",
            &["`metadata` is missing"],
        ),
        (
            "apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {name: x}\n".into(),
            "apiVersion",
            "spec",
            &["`spec` is missing"],
        ),
        (
            spec("{}").replace("spec:\n  {}", "spec: text"),
            "text",
            "spec",
            &["expected a map"],
        ),
        (
            spec("{}").replace("spec:\n  {}", "spec: {}"),
            "spec",
            "spec.groups",
            &["at least one group"],
        ),
        (
            "[1, 2]\n".into(),
            "[1",
            "",
            &["a map with apiVersion, kind and metadata"],
        ),
        (
            "text\n".into(),
            "text",
            "",
            &["a map with apiVersion, kind and metadata"],
        ),
        (group("size: !mine 1"), "", "", &["tag"]),
        (bomb.into(), "", "", &["more than 200000 values"]),
        (
            whole.replace("  platform", "   platform"),
            "",
            "",
            &["not readable as YAML or JSON"],
        ),
        (
            whole.replace("  platform", "\tplatform"),
            "",
            "",
            &["indent with spaces"],
        ),
        (
            group("size: 1, role: \"open"),
            "\"open",
            "",
            &["this quote is never closed"],
        ),
        (
            format!("{}[", whole.trim_end().trim_end_matches('}')),
            "",
            "",
            &["not readable as YAML or JSON"],
        ),
        (
            whole
                .replace("    db", "<<<<<<< ours\n    db")
                .replace("1}\n", "1}\n=======\n    db: {size: 2}\n>>>>>>> theirs\n"),
            "<<<<<<<",
            "",
            &["a merge conflict"],
        ),
        (
            format!("a: {}", "[".repeat(300)),
            "",
            "",
            &["nested deeper than 64"],
        ),
        (
            format!("{whole}---\n{}", group("sise: 1")),
            "sise",
            "spec.groups.db.sise",
            &["did you mean `size`?"],
        ),
        (
            format!("{whole}---\n{whole}"),
            "",
            "metadata.name",
            &["cluster `x` is defined twice (first in x.yaml:3)"],
        ),
        (
            group("bootstrap: {userDataFrom: {file: nothere.sh}}"),
            "",
            "spec.groups.db.bootstrap.userDataFrom.file",
            &["cannot read nothere.sh"],
        ),
    ]
}

#[test]
fn what_needs_no_server_is_refused_without_one() {
    let directory = tempfile::tempdir().unwrap();
    let fails = |case: &&Case| {
        let check_one = || {
            fs::write(directory.path().join("x.yaml"), &case.0).unwrap();
            let told = refusal(&validate(directory.path(), &["-f", "x.yaml"]), &case.0);
            if case.1.is_empty() {
                assert!(told.contains("--> x.yaml:"), "{told}");
                let words = case.3.iter().all(|word| told.contains(word));
                assert!(words, "{}\n{told}", case.0);
            } else {
                check(&told, case);
            }
        };
        std::panic::catch_unwind(check_one).is_err()
    };
    let all = [values(), documents()].concat();
    let failed: Vec<&Case> = all.iter().filter(fails).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn files_that_are_no_manifests_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &[u8]| {
        fs::write(directory.path().join(name), content).unwrap();
    };
    write("empty.yaml", b"");
    write("comment.yaml", b"# nothing\n");
    write("none.yaml", b"---\n---\n");
    write("binary.yaml", b"\x7fELF\0\xff\xfe");
    write("utf16.yaml", b"\xff\xfea\0:\0 \0b\0");
    write("large.yaml", &vec![b'#'; 4 * 1024 * 1024 + 1]);
    write("whole.yaml", group("size: 1").as_bytes());
    fs::create_dir(directory.path().join("folder")).unwrap();
    for (files, words) in [
        (&["empty.yaml"][..], &["no document in empty.yaml"][..]),
        (&["comment.yaml"], &["no document in comment.yaml"]),
        (&["none.yaml"], &["no document in none.yaml"]),
        (&["binary.yaml"], &["binary.yaml", "UTF-8"]),
        (&["utf16.yaml"], &["utf16.yaml", "UTF-8"]),
        (&["/bin/ls"], &["/bin/ls", "UTF-8"]),
        (&["large.yaml"], &["large.yaml", "4096 KiB"]),
        (&["folder"], &["folder has no .yaml, .yml or .json file"]),
        (
            &["missing.yaml"],
            &["cannot read missing.yaml", "No such file"],
        ),
        (&["-"], &["no document in -"]),
        (
            &["https://example.com/x.yaml"],
            &[
                "no URLs",
                "curl -fsS https://example.com/x.yaml | drover apply -f -",
            ],
        ),
        (
            &["whole.yaml", "whole.yaml"],
            &["cluster `x` is defined twice (first in whole.yaml:3)"],
        ),
    ] {
        let arguments: Vec<&str> = files.iter().flat_map(|file| ["-f", *file]).collect();
        let told = refusal(&validate(directory.path(), &arguments), &files.join(" "));
        for word in words {
            assert!(told.contains(word), "{files:?}\n{word}\n{told}");
        }
    }
}

#[test]
fn what_only_looks_odd_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    for text in [
        group("size: 0x10"),
        group("expireAfter: 1.5h"),
        group("expireAfter: 2d"),
        group("role: Größe"),
        group("platforms: [{name: a}, {name: b}]"),
        group("storage: {size: 900Ti}"),
        named("Upper"),
        group("size: 1").replace('\n', "\r\n"),
        format!("\u{feff}{}", group("size: 1")),
        group("size: &n 1, standby: *n"),
        "{\"apiVersion\": \"drover.dev/v1\", \"kind\": \"Cluster\", \"metadata\": {\"name\": \"x\"}, \"spec\": {\"platform\": \"local\", \"groups\": {\"db\": {},}}}".to_owned(),
    ] {
        fs::write(directory.path().join("x.yaml"), &text).unwrap();
        let output = validate(directory.path(), &["-f", "x.yaml"]);
        assert!(output.status.success(), "{text}\n{output:?}");
    }
}

/// What only a server with its platforms can know.
fn served() -> Vec<Case> {
    let store = |store: &str, fields: &str| {
        spec(&format!(
            "store: {{{store}}}\n  platform: local\n  groups:\n    db: {{{fields}}}"
        ))
    };
    vec![
        (
            group("platform: locl"),
            "locl",
            "spec.groups.db.platform",
            &["no platform `locl`, did you mean `local`?"],
        ),
        (
            group("properties: {foo: 1}"),
            "1}",
            "spec.groups.db.properties.foo",
            &["no such property", "env"],
        ),
        (
            store("software: redi", "size: 1"),
            "redi",
            "spec.store.software",
            &["no template for store `redi`", "redis"],
        ),
        (
            store("software: redis, version: \"99\"", "size: 1"),
            "\"99\"",
            "spec.store.version",
            &["takes whichever version is there"],
        ),
        (
            store("software: redis", "size: 2, standby: 1"),
            "2,",
            SIZE,
            &["at most 1 active node in a group with standby nodes"],
        ),
        (
            store("software: postgresql", "size: 2"),
            "2}",
            SIZE,
            &["at most 1 active node", "`standby`"],
        ),
        (
            store("software: etcd", "size: 3, standby: 1"),
            "1}",
            "spec.groups.db.standby",
            &["has no standby nodes", "raise `size`"],
        ),
        (
            group("nodeClass: huge"),
            "huge",
            "spec.groups.db.nodeClass",
            &["knows no node classes"],
        ),
        (
            group("placement: {selector: {matchLabels: {a: b}}}"),
            "selector",
            "spec.groups.db.placement.selector",
            &["labels"],
        ),
        (
            group("placement: {failureDomains: [z]}"),
            "placement",
            "spec.groups.db.placement",
            &["has no failure domains"],
        ),
        (
            store("software: postgresql, version: \"9\"", "size: 1"),
            "local",
            "spec.platform",
            &["postgresql-9"],
        ),
    ]
}

#[test]
fn what_a_server_knows_is_refused_by_it_and_nothing_is_applied() {
    let dev = Dev::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.yaml");
    let apply = |text: &str| -> String {
        fs::write(&path, text).unwrap();
        let output = dev.asks(&["apply", "--dry-run", "-f", path.to_str().unwrap()]);
        refusal(&output, text).replace(path.to_str().unwrap(), "x.yaml")
    };
    for case in served() {
        let told = apply(&case.0);
        if case.2.is_empty() {
            let words = case.3.iter().all(|word| told.contains(word));
            assert!(words, "{}\n{told}", case.0);
        } else {
            check(&told, &case);
        }
    }
    assert_eq!(
        dev.json(&["get", "clusters"])["clusters"],
        serde_json::json!([])
    );
    clean(dev, directory);
}

fn clean(dev: Dev, directory: TempDir) {
    dev.stop();
    drop(directory);
}
