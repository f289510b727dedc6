//! `manifest.md`: every field of a manifest, as described by `drover explain`, and the fields rejected in this version.

use std::fmt::Write as _;

use crate::{cell, cli, head, sources};

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
    out.push_str("\n## Refused in this version\n\nApplying a file that has one of these is an error that names the field. Nothing is accepted and ignored.\n\n| field | what it is |\n|---|---|\n");
    let refused = refused();
    for (field, feature) in &refused {
        writeln!(out, "| `{field}` | {feature} |").unwrap();
    }
    let served = |(_, text): &(String, String)| text.contains("SecretServiceServer");
    if !sources::programs().iter().any(served) {
        out.push_str("\nDocuments of kind Secret are refused, too.\n");
    }
    let mut seen: Vec<(String, String)> = Vec::new();
    for kind in ["cluster.spec", "platform.spec"] {
        section(kind, &refused, &mut seen, &mut out);
    }
    out
}

fn section(
    path: &str,
    refused: &[(String, String)],
    seen: &mut Vec<(String, String)>,
    out: &mut String,
) {
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
        let full = format!("{path}.{}", field.key);
        let inside = full
            .trim_start_matches("cluster.spec.")
            .trim_start_matches("groups.");
        let refused = refused
            .iter()
            .find(|(name, _)| name == inside || *name == full);
        let note = refused.map_or_else(String::new, |(_, feature)| {
            format!(" **Refused in this version: {feature}.**")
        });
        writeln!(
            out,
            "| `{}` | {} | {}{note} |",
            field.key,
            cell(&field.kind),
            cell(&field.about)
        )
        .unwrap();
    }
    for field in &fields {
        if field.kind.starts_with("a map") || field.kind.starts_with("a list") {
            section(&format!("{path}.{}", field.key), refused, seen, out);
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

/// Fields rejected elsewhere, valid as long as the words are found there: file, words, field, feature.
const ELSEWHERE: &[(&str, &str, &str, &str)] = &[(
    "orchestrator/src/registry.rs",
    "secrets are not available in this version",
    "platform.spec.tokenSecret",
    "secrets",
)];

/// Returns the fields that `services/convert` reports as unsupported, and those above: the field as spelled in
/// manifests, and the feature.
fn refused() -> Vec<(String, String)> {
    let text = sources::text("services/convert/src/spec.rs");
    let code = text.split("#[cfg(test)]").next().unwrap();
    let mut all = Vec::new();
    for call in code.split("lacks(").skip(1) {
        let call = call.split(");").next().unwrap();
        let words: Vec<&str> = call.split('"').skip(1).step_by(2).collect();
        if let [field, feature] = words[..] {
            // Manifests spell a reference to a secret as Kubernetes does.
            let field = camel(field).replace("secretKey", "secretKeyRef");
            all.push((field, feature.to_owned()));
        }
    }
    assert!(!all.is_empty(), "what is refused is said elsewhere now");
    for (file, words, field, feature) in ELSEWHERE {
        if sources::text(file).contains(words) {
            all.push(((*field).to_owned(), (*feature).to_owned()));
        }
    }
    all.sort();
    all.dedup();
    all
}

fn camel(field: &str) -> String {
    let mut out = String::new();
    let mut up = false;
    for c in field.chars() {
        if c == '_' {
            up = true;
        } else if std::mem::take(&mut up) {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
    }
    out
}
