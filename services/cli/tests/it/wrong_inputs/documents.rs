//! Documents: their names, their fields, their notation.

use super::{Case, case, group, groups, named, spec, values::SIZE};

pub(super) fn documents() -> Vec<Case> {
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
        case(named("7"), "7}", name, &["expected a string", "quote it"]),
        case(
            named("Bäd_Näme"),
            "Bäd",
            name,
            &["is not a valid name", "1 to 40"],
        ),
        case(named("\"\""), "\"\"", name, &["1 to 40"]),
        case(named(&"n".repeat(300)), "nnnn", name, &["1 to 40"]),
        case(named("a/b"), "a/b", name, &["is not a valid name"]),
        case(named("$(rm -rf /)"), "$(rm", name, &["is not a valid name"]),
        case(
            groups("web 1: {size: 1}"),
            "web 1",
            "spec.groups[\"web 1\"]",
            &["is not a valid name"],
        ),
        case(
            groups("db: {}\n    db: {size: 2}"),
            "db: {size",
            "",
            &["duplicate key `db`"],
        ),
        case(
            group("size: 1, size: 2"),
            "size: 2",
            "",
            &["duplicate key `size`", "may appear only once"],
        ),
        case(
            groups("a: {dependsOn: [b]}\n    b: {dependsOn: [a]}"),
            "b]",
            "spec.groups.a.dependsOn[0]",
            &["a -> b -> a"],
        ),
        case(
            groups("a: {dependsOn: [a]}"),
            "a]",
            "spec.groups.a.dependsOn[0]",
            &["itself"],
        ),
        case(
            groups("a: {dependsOn: [no]}"),
            "no]",
            "spec.groups.a.dependsOn[0]",
            &["expected a string"],
        ),
        case(
            groups("a: {dependsOn: [zz]}"),
            "zz",
            "spec.groups.a.dependsOn[0]",
            &["no group"],
        ),
        case(
            groups("a: {dependsOn: b}\n    b: {}"),
            "b}",
            "spec.groups.a.dependsOn",
            &["in brackets: [b]"],
        ),
        case(
            group("size: 1, groups: {a: {}}"),
            "1, groups",
            SIZE,
            &["a group that contains groups has no size of its own"],
        ),
        case(
            spec("platform: local\n  groups: [db]"),
            "[db]",
            "spec.groups",
            &["a map of groups by name"],
        ),
        case(
            spec("platform: local\n  groups: {}"),
            "groups",
            "spec.groups",
            &["at least one group"],
        ),
        case(
            spec("groups: {db: {size: 1}}"),
            "db",
            "spec.groups.db.platforms",
            &["no platform is named"],
        ),
        case(
            spec("store: {version: \"7\"}\n  platform: local\n  groups: {db: {}}"),
            "\"7\"",
            "spec.store.version",
            &["a version needs a store"],
        ),
        case(
            whole.replace("spec:\n", "status: {}\nspec:\n"),
            "status",
            "status",
            &["unknown field `status`"],
        ),
        case(
            spaces,
            "namespace",
            "metadata.namespace",
            &["unknown field"],
        ),
        case(
            notes,
            "annotations",
            "metadata.annotations",
            &["unknown field"],
        ),
        case(
            label,
            "5}",
            "metadata.labels.a",
            &["expected a string", "quote it"],
        ),
        case(
            deep(11),
            "groups: {g2",
            "spec.groups.g10.groups.g9.groups.g8.groups.g7.groups.g6.groups.g5.groups.g4.groups.g3.groups",
            &["nested deeper than 8 levels"],
        ),
        case(
            spec(&format!("platform: local\n  groups: {{{many}}}")),
            "groups",
            "spec.groups",
            &["more than 256 groups"],
        ),
        case(
            whole.replace("drover.dev/v1", "drover.dev/v2"),
            "drover.dev/v2",
            "apiVersion",
            &["expected drover.dev/v1"],
        ),
        case(
            whole.replace("kind: Cluster", "kind: Clutser"),
            "Clutser",
            "kind",
            &["did you mean `Cluster`?"],
        ),
        case(
            whole.replace("apiVersion: drover.dev/v1\n", ""),
            "kind",
            "apiVersion",
            &["`apiVersion` is missing"],
        ),
        case(
            whole.replace("kind: Cluster\n", ""),
            "apiVersion",
            "kind",
            &["`kind` is missing"],
        ),
        case(
            whole.replace("metadata: {name: x}\n", ""),
            "apiVersion",
            "metadata",
            &["`metadata` is missing"],
        ),
        case(
            "apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {name: x}\n",
            "apiVersion",
            "spec",
            &["`spec` is missing"],
        ),
        case(
            spec("{}").replace("spec:\n  {}", "spec: text"),
            "text",
            "spec",
            &["expected a map"],
        ),
        case(
            spec("{}").replace("spec:\n  {}", "spec: {}"),
            "spec",
            "spec.groups",
            &["at least one group"],
        ),
        case(
            "[1, 2]\n",
            "[1",
            "",
            &["a map with apiVersion, kind and metadata"],
        ),
        case(
            "text\n",
            "text",
            "",
            &["a map with apiVersion, kind and metadata"],
        ),
        case(
            group("size: !mine 1"),
            "7:22",
            "",
            &["the tag !mine is not supported"],
        ),
        case(bomb, "6:9", "", &["more than 200000 values"]),
        case(
            whole.replace("  platform", "   platform"),
            "6:3",
            "",
            &["not readable as YAML or JSON"],
        ),
        case(
            whole.replace("  platform", "\tplatform"),
            "5:2",
            "",
            &["indent with spaces"],
        ),
        case(
            group("size: 1, role: \"open"),
            "\"open",
            "",
            &["this quote is never closed"],
        ),
        case(
            format!("{}[", whole.trim_end().trim_end_matches('}')),
            "7:17",
            "",
            &["not readable as YAML or JSON"],
        ),
        case(
            whole
                .replace("    db", "<<<<<<< ours\n    db")
                .replace("1}\n", "1}\n=======\n    db: {size: 2}\n>>>>>>> theirs\n"),
            "<<<<<<<",
            "",
            &["a merge conflict"],
        ),
        case(
            format!("a: {}", "[".repeat(300)),
            "1:259",
            "",
            &["nested deeper than 64"],
        ),
        case(
            format!(
                "{whole}---\n{}",
                group("sise: 1").replace("{name: x}", "{name: y}")
            ),
            "sise",
            "spec.groups.db.sise",
            &["did you mean `size`?"],
        ),
        case(
            format!("{whole}---\n{whole}"),
            "11:18",
            "metadata.name",
            &["cluster `x` is defined twice (first in x.yaml:3)"],
        ),
        case(
            group("bootstrap: {userDataFrom: {file: nothere.sh}}"),
            "nothere.sh",
            "spec.groups.db.bootstrap.userDataFrom.file",
            &["cannot read nothere.sh"],
        ),
    ]
}

/// What could not be read is not wrong a second time for what it therefore lacks; what else is wrong is told.
pub(super) fn half_read() -> Vec<Case> {
    let whole = group("size: 1");
    let nameless = whole.replace("metadata: {name: x}\n", "");
    let addon = "{name: a_b, type: LoadBalancer, platform: local, port: 0, targets: [db]}";
    vec![
        case(
            spec("plattform: local\n  groups: {db: {}}"),
            "plattform",
            "spec.plattform",
            &["did you mean `platform`?"],
        ),
        case(
            spec("platform: 5\n  groups: {db: {}}"),
            "5\n",
            "spec.platform",
            &["expected a string"],
        ),
        case(
            spec("platform: local\n  grups: {db: {}}"),
            "grups",
            "spec.grups",
            &["did you mean `groups`?"],
        ),
        case(
            spec("store: {software: 5, version: \"7\"}\n  platform: local\n  groups: {db: {}}"),
            "5,",
            "spec.store.software",
            &["expected a string"],
        ),
        case(
            whole.replace("{name: x}", "{nme: x}"),
            "nme",
            "metadata.nme",
            &["did you mean `name`?"],
        ),
        case(
            whole.replace("spec:", "specs:"),
            "specs",
            "specs",
            &["did you mean `spec`?"],
        ),
        case(
            group("update: {maxSurge: 0, maxUnavailable: some}"),
            "some",
            "spec.groups.db.update.maxUnavailable",
            &["a whole number or a share"],
        ),
        case(
            format!("{nameless}---\n{nameless}"),
            "apiVersion",
            "metadata",
            &["`metadata` is missing"],
        )
        .errors(2),
        case(
            group("sise: 2, expireAfter: 1s"),
            "1s",
            "spec.groups.db.expireAfter",
            &["at least 60s", "did you mean `size`?"],
        )
        .errors(2),
        case(
            spec(&format!(
                "platform: local\n  groups: {{db: {{}}}}\n  addons: [{addon}]"
            )),
            "a_b",
            "spec.addons[0].name",
            &[
                "`name`: expected 1 to 63 letters",
                "expected a whole number, 1 to 65535",
            ],
        )
        .errors(2),
    ]
}

const FORM: &str = "expected http://HOST:PORT or https://HOST:PORT";

/// Registrations of platforms, and secrets.
pub(super) fn others() -> Vec<Case> {
    let platform = |name: &str, fields: &str| {
        format!(
            "apiVersion: drover.dev/v1\nkind: Platform\nmetadata: {{name: {name}}}\nspec: {{{fields}}}\n"
        )
    };
    let secret = |name: &str, rest: &str| {
        format!("apiVersion: drover.dev/v1\nkind: Secret\nmetadata: {{name: {name}}}\n{rest}\n")
    };
    let there = "endpoint: \"http://127.0.0.1:1\"";
    let endpoint = "spec.endpoint";
    vec![
        case(
            platform("Bäd", there),
            "Bäd",
            "metadata.name",
            &["\"Bäd\" is not a valid name", "1 to 63"],
        ),
        case(
            platform("p", "endpoint: nonsense"),
            "nonsense",
            endpoint,
            &["has no scheme", FORM],
        ),
        case(
            platform("p", "endpoint: ftp://a"),
            "ftp://a",
            endpoint,
            &["has a scheme that is not supported", FORM],
        ),
        case(
            platform("p", "endpoint: http://a:b"),
            "http://a:b",
            endpoint,
            &["has a port that cannot be", FORM],
        ),
        case(
            platform("p", "endpoint: \"\""),
            "\"\"",
            endpoint,
            &["`endpoint` is empty", FORM],
        ),
        case(
            platform("p", ""),
            "spec",
            endpoint,
            &["`spec.endpoint` is missing"],
        ),
        case(
            platform("p", "endpont: nonsense"),
            "endpont",
            "spec.endpont",
            &["did you mean `endpoint`?"],
        ),
        case(
            platform("p", &format!("{there}, tokenSecret: a b")),
            "a b",
            "spec.tokenSecret",
            &["\"a b\" is not a valid name"],
        ),
        case(
            platform("Bäd", "endpoint: nonsense"),
            "nonsense",
            endpoint,
            &["has no scheme", "\"Bäd\" is not a valid name"],
        )
        .errors(2),
        case(
            secret("a b", "stringData: {k: v}"),
            "a b",
            "metadata.name",
            &["the name is not a valid name", "1 to 63"],
        ),
        case(
            secret("s", "stringData: {good: x, \"k k/\": y}"),
            "\"k k/\"",
            "stringData[\"k k/\"]",
            &["`k k/`: expected 1 to 253"],
        ),
        case(
            secret("s", "data: {\"k k/\": eQ==}"),
            "\"k k/\"",
            "data[\"k k/\"]",
            &["`k k/`: expected 1 to 253"],
        ),
        case(
            secret("s", "sha256: {k: abc}"),
            "k: abc",
            "sha256.k",
            &["`k`: expected a digest"],
        ),
        case(
            secret("s", ""),
            "apiVersion",
            "stringData",
            &["`stringData` is empty", "at least one key"],
        ),
        case(
            secret("s", "stringData: {}"),
            "stringData",
            "stringData",
            &["`stringData` is empty", "at least one key"],
        ),
        case(
            secret("s", "strngData: {a: x}"),
            "strngData",
            "strngData",
            &["did you mean `stringData`?"],
        ),
        case(
            secret("s", "stringData: {a: 5}"),
            "5}",
            "stringData",
            &["expected a string; quote it"],
        ),
        case(
            secret("a b", "stringData: {\"k k/\": y}"),
            "a b",
            "metadata.name",
            &["the name is not a valid name", "`k k/`: expected 1 to 253"],
        )
        .errors(2),
    ]
}
