//! Changes that affect the digest of an entry, and changes that do not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{collections::BTreeMap, fs, path::Path};

use drover_templates::{Catalogue, EmbeddedFile, Reload};

const INDEX: &str = "\
default: {template: agent.yaml}
stores:
  - store: redis
    versions:
      - {version: ^7, template: redis.yaml, options: {appendonly: true, maxmemory: 1gb}, ports: [client]}
      - {version: ^6, template: redis.yaml, ports: [client]}
";

const FILES: [EmbeddedFile; 6] = [
    EmbeddedFile {
        name: "index.yaml",
        content: INDEX,
    },
    EmbeddedFile {
        name: "agent.yaml",
        content: "agent of {{ node.id }}",
    },
    EmbeddedFile {
        name: "redis.yaml",
        content: "script: {% set s %}{% include \"redis.sh.j2\" %}{% endset %}{{ s | tojson }}",
    },
    EmbeddedFile {
        name: "redis.sh.j2",
        content: "{% include 'node.sh.j2' %}\nredis-server",
    },
    EmbeddedFile {
        name: "node.sh.j2",
        content: "set -eu",
    },
    EmbeddedFile {
        name: "other.sh.j2",
        content: "nobody needs it",
    },
];

/// Returns the digest of each entry, by store and version.
fn digests(catalogue: &Catalogue) -> BTreeMap<String, String> {
    let entries = catalogue.entries().into_iter();
    entries
        .map(|entry| {
            let version = entry.version.map(|version| version.to_string());
            let name = format!("{}{}", entry.store, version.unwrap_or_default());
            (name, entry.digest)
        })
        .collect()
}

fn write(directory: &Path, name: &str, content: &str) {
    fs::write(directory.join(name), content).unwrap();
}

#[test]
fn the_same_content_has_the_same_digest_wherever_it_is() {
    let built_in = digests(&Catalogue::embedded(&FILES).unwrap());
    assert_eq!(built_in.len(), 3);
    for digest in built_in.values() {
        assert_eq!(digest.len(), 64, "{digest}");
        assert!(
            digest.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{digest}"
        );
    }
    assert_ne!(built_in["redis^7"], built_in["redis^6"], "options");
    for _ in 0..2 {
        let directory = tempfile::tempdir().unwrap();
        for file in FILES {
            write(directory.path(), file.name, file.content);
        }
        let read = Catalogue::open(&[], Some(directory.path())).unwrap();
        assert_eq!(digests(&read), built_in);
    }
}

#[test]
fn what_reaches_nodes_changes_the_digests_of_those_that_it_reaches() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let original = || {
        for file in FILES {
            write(directory, file.name, file.content);
        }
    };
    original();
    let catalogue = Catalogue::open(&[], Some(directory)).unwrap();
    let before = digests(&catalogue);
    let commented = format!(
        "# Ours.\n{}",
        INDEX.replace("default:", "# Whatever.\ndefault:")
    );
    let reordered = INDEX.replace(
        "{appendonly: true, maxmemory: 1gb}",
        "{maxmemory: 1gb,   appendonly: true}",
    );
    let suggested = INDEX.replace(
        "{template: agent.yaml}",
        "{template: agent.yaml, health: {grpc: {}}}",
    );
    let more = INDEX.replace("maxmemory: 1gb", "maxmemory: 2gb");
    let port = INDEX.replace(
        "^6, template: redis.yaml, ports: [client]",
        "^6, template: redis.yaml, ports: [client, bus]",
    );
    let none: &[&str] = &[];
    for (name, content, changed) in [
        ("agent.yaml", "agent of {{ node.name }}", &[""][..]),
        ("redis.yaml", "none", &["redis^6", "redis^7"]),
        (
            "redis.sh.j2",
            "redis-server --daemonize no",
            &["redis^6", "redis^7"],
        ),
        ("node.sh.j2", "set -eux", &["redis^6", "redis^7"]),
        ("index.yaml", &more, &["redis^7"]),
        ("index.yaml", &port, &["redis^6"]),
        ("index.yaml", &commented, none),
        ("index.yaml", &reordered, none),
        ("index.yaml", &suggested, none),
        ("other.sh.j2", "still nobody", none),
        ("new.yaml", "nobody", none),
    ] {
        write(directory, name, content);
        assert_eq!(catalogue.reload_if_changed(), Reload::Reloaded, "{name}");
        let after = digests(&catalogue);
        let differ: Vec<&str> = before
            .keys()
            .filter(|key| before[*key] != after[*key])
            .map(String::as_str)
            .collect();
        assert_eq!(differ, changed, "{name}: {content}");
        original();
        assert_eq!(catalogue.reload_if_changed(), Reload::Reloaded, "{name}");
        assert_eq!(digests(&catalogue), before, "{name} is as it was");
    }
}
