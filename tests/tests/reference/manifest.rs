//! `manifest.md`: every field of a manifest, as described by `drover explain`.

use std::fmt::Write as _;

use crate::{cell, cli, head};

struct Field {
    key: String,
    kind: String,
    about: String,
}

pub(crate) fn page() -> String {
    let mut out = head("Manifest");
    out.push_str(
        "As `drover explain PATH` says it; `drover schema` prints the JSON Schema for editors. A file has one or more documents, YAML or \
         JSON:\n\n```yaml\napiVersion: drover.dev/v1\nkind: Cluster          # or Platform\nmetadata:\n  name: orders\n  labels: {team: orders}   # clusters only\n\
         spec: {}\n```\n\nFields of a group that are absent are inherited from the group around it, then from the cluster. \
         `attributes` and `properties` are merged key by key; `null` removes a key.\n",
    );
    let mut seen: Vec<(String, String)> = Vec::new();
    for kind in ["cluster.spec", "platform.spec"] {
        section(kind, &mut seen, &mut out);
    }
    out
}

fn section(path: &str, seen: &mut Vec<(String, String)>, out: &mut String) {
    let text = cli::run("drover", &["explain", path]);
    let Some((about, listing)) = text.split_once("Fields:\n") else {
        return;
    };
    let fields = fields(listing);
    let keys: String = fields
        .iter()
        .map(|field| format!("{}:{} ", field.key, field.about))
        .collect();
    let about = about.lines().skip(1).collect::<Vec<_>>().join(" ");
    if let Some((_, first)) = seen.iter().find(|(other, _)| *other == keys) {
        let anchor = first.replace('.', "").to_lowercase();
        write!(
            out,
            "\n## {path}\n\n{} Fields: those of [{first}](#{anchor}).\n",
            cell(&about)
        )
        .unwrap();
        return;
    }
    seen.push((keys, path.to_owned()));
    write!(
        out,
        "\n## {path}\n\n{}\n\n| field | value | |\n|---|---|---|\n",
        cell(&about)
    )
    .unwrap();
    for field in &fields {
        writeln!(
            out,
            "| `{}` | {} | {} |",
            field.key,
            cell(&field.kind),
            cell(&field.about)
        )
        .unwrap();
    }
    for field in &fields {
        if field.kind.starts_with("a map") || field.kind.starts_with("a list") {
            section(&format!("{path}.{}", field.key), seen, out);
        }
    }
}

/// Parses the lines of a listing: ` key (value) about`, followed by more deeply indented continuation lines.
fn fields(listing: &str) -> Vec<Field> {
    let mut all: Vec<Field> = Vec::new();
    for line in listing.lines() {
        let own = line
            .strip_prefix("  ")
            .filter(|rest| !rest.starts_with(' '));
        if let Some((key, rest)) = own.and_then(|line| line.split_once(' ')) {
            all.push(Field {
                key: key.to_owned(),
                kind: String::new(),
                about: rest.trim().to_owned(),
            });
        } else if line.starts_with("   ") {
            let last = all.last_mut().unwrap();
            last.about = format!("{} {}", last.about, line.trim());
        }
    }
    for field in &mut all {
        let (kind, about) = field.about[1..].split_once(')').unwrap();
        (field.kind, field.about) = (kind.to_owned(), about.trim().to_owned());
    }
    all
}
