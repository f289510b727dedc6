//! Digest of the content that an entry creates nodes from. Nodes created from a different digest are outdated.

use std::{collections::BTreeSet, fmt::Write};

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::catalogue::Files;

/// Version of the digest format. A new version makes all nodes of all templates outdated, so it changes only with the
/// meaning of templates, not with the code.
const VERSION: u8 = 1;

/// Statements that refer to another file.
const NAMING: [&str; 4] = ["include", "import", "from", "extends"];

/// Tokens that may follow the file name in such a statement if the name is a single literal.
const AFTER: [&str; 7] = ["%}", "-%}", "+%}", "ignore", "with", "as", "import"];

/// SHA-256 in hexadecimal of a template, the files that it refers to, directly or indirectly, and the other parts of
/// its entry that reach its nodes. The same content has the same digest in any directory and on any machine.
pub(crate) fn digest(
    template: &str,
    options: &Map<String, Value>,
    ports: &[String],
    files: &Files,
) -> String {
    let mut hash = Sha256::new();
    hash.update([VERSION]);
    text(&mut hash, files.get(template).map_or("", String::as_str));
    let named = named(template, files);
    hash.update((named.len() as u64).to_be_bytes());
    for name in named {
        text(&mut hash, name);
        text(&mut hash, &files[name]);
    }
    object(&mut hash, options);
    hash.update((ports.len() as u64).to_be_bytes());
    for port in ports {
        text(&mut hash, port);
    }
    hash.finalize().iter().fold(String::new(), |mut hex, byte| {
        // Cannot fail for a string.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Returns the other files that a template needs; all files if it computes a name during rendering.
fn named<'a>(template: &'a str, files: &'a Files) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::from([template]);
    let mut open = vec![template];
    while let Some(source) = open.pop().and_then(|name| files.get(name)) {
        let all = computes_names(source);
        for name in files.keys() {
            if (all || is_quoted(source, name)) && found.insert(name) {
                open.push(name);
            }
        }
    }
    found.remove(template);
    found
}

fn is_quoted(source: &str, name: &str) -> bool {
    ['"', '\'']
        .iter()
        .any(|quote| source.contains(&format!("{quote}{name}{quote}")))
}

/// Whether a statement refers to a file by anything but a single literal.
fn computes_names(source: &str) -> bool {
    let mut rest = source;
    while let Some((_, after)) = rest.split_once("{%") {
        rest = after.trim_start_matches(['-', '+']).trim_start();
        let name = NAMING.iter().find_map(|word| {
            let name = rest.strip_prefix(word)?;
            let ends = name.starts_with(|c: char| !(c.is_alphanumeric() || c == '_'));
            ends.then(|| name.trim_start())
        });
        if name.is_some_and(|name| !is_literal(name)) {
            return true;
        }
    }
    false
}

fn is_literal(name: &str) -> bool {
    let Some(quote) = name.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
        return false;
    };
    let Some((literal, after)) = name[1..].split_once(quote) else {
        return false;
    };
    // With an escape, the literal may differ from the file name.
    !literal.contains('\\')
        && AFTER
            .iter()
            .any(|word| after.trim_start().starts_with(word))
}

fn text(hash: &mut Sha256, text: &str) {
    hash.update((text.len() as u64).to_be_bytes());
    hash.update(text);
}

/// The order of keys does not matter.
fn object(hash: &mut Sha256, object: &Map<String, Value>) {
    let mut keys: Vec<&String> = object.keys().collect();
    keys.sort();
    hash.update(b"{");
    hash.update((keys.len() as u64).to_be_bytes());
    for key in keys {
        text(hash, key);
        value(hash, &object[key]);
    }
}

fn value(hash: &mut Sha256, value: &Value) {
    match value {
        Value::Object(inner) => object(hash, inner),
        Value::Array(values) => {
            hash.update(b"[");
            hash.update((values.len() as u64).to_be_bytes());
            for inner in values {
                self::value(hash, inner);
            }
        }
        Value::String(string) => {
            hash.update(b"s");
            text(hash, string);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            hash.update(b"v");
            text(hash, &value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(of: &[(&str, &str)]) -> Files {
        let own = |(name, content): &(&str, &str)| ((*name).to_owned(), (*content).to_owned());
        of.iter().map(own).collect()
    }

    #[test]
    fn a_template_needs_what_it_names_and_what_that_names() {
        let files = files(&[
            (
                "a.yaml",
                "{%- include \"b.sh.j2\" ignore missing %} data.yaml",
            ),
            (
                "b.sh.j2",
                "{% from 'parts/c.j2' import d %}{% import \"a.yaml\" as a -%}",
            ),
            ("data.yaml", ""),
            ("parts/c.j2", ""),
            (
                "x.yaml",
                "{% include_later %}{% import 'parts/c.j2' as c %}",
            ),
        ]);
        let of = |name| named(name, &files).into_iter().collect::<Vec<_>>();
        assert_eq!(of("a.yaml"), ["b.sh.j2", "parts/c.j2"]);
        assert_eq!(of("x.yaml"), ["parts/c.j2"]);
        assert!(of("data.yaml").is_empty());
    }

    #[test]
    fn a_template_that_computes_a_name_needs_all_files() {
        for source in [
            "{% include options.script %}",
            "{%include(\"b.j2\")%}",
            "{% include 'b' ~ options.ending %}",
            "{% include [options.script, 'b.j2'] %}",
            "{% extends 'b.j2' if options.script else options.other %}",
            "{%- from \"\\u0062.j2\" import d %}",
        ] {
            let files = files(&[("a.yaml", source), ("b.j2", ""), ("c.j2", "")]);
            assert_eq!(named("a.yaml", &files).len(), 2, "{source}");
        }
    }

    #[test]
    fn parts_cannot_pass_for_others() {
        let files = files(&[("a", "x"), ("b", "y"), ("c", "xy")]);
        let of = |name: &str, options: Value, ports: &[&str]| {
            let ports: Vec<String> = ports.iter().map(|&port| port.to_owned()).collect();
            digest(
                name,
                options.as_object().unwrap_or(&Map::new()),
                &ports,
                &files,
            )
        };
        let all = [
            of("a", Value::Null, &[]),
            of("b", Value::Null, &[]),
            of("c", Value::Null, &[]),
            of("a", serde_json::json!({"k": "1"}), &[]),
            of("a", serde_json::json!({"k": 1}), &[]),
            of("a", serde_json::json!({"k": [1]}), &[]),
            of("a", serde_json::json!({"k": {"1": null}}), &[]),
            of("a", Value::Null, &["k"]),
            of("a", Value::Null, &["k", "l"]),
            of("a", Value::Null, &["l", "k"]),
        ];
        assert_eq!(BTreeSet::from(all.clone()).len(), all.len());
        assert_eq!(
            of("a", serde_json::json!({"k": 1, "l": 2}), &[]),
            of("a", serde_json::json!({"l": 2, "k": 1}), &[])
        );
    }
}
