//! Structs and enums parsed from the Rust sources: fields, types and comments.

use std::{collections::BTreeMap, fs};

use crate::root;

/// A field of a struct, or a variant of an enum.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Serialized name.
    pub(crate) name: String,
    /// Empty for a variant.
    pub(crate) kind: String,
    /// Comment, joined to one line.
    pub(crate) doc: String,
}

/// The structs and enums of one file.
#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) structs: BTreeMap<String, Vec<Member>>,
    pub(crate) enums: BTreeMap<String, Vec<Member>>,
}

/// Contents of a file of the workspace.
pub(crate) fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Parses a file formatted by rustfmt: each field or variant is on a line of its own, indented by four spaces.
pub(crate) fn read(path: &str) -> File {
    let text = text(path);
    let mut file = File::default();
    let mut lines = text.lines();
    let mut rename_all = String::new();
    while let Some(line) = lines.next() {
        if let Some(rule) = quoted_after(line, "rename_all = ") {
            rename_all = rule;
        }
        let item = line
            .trim_start_matches("pub ")
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub(super) ");
        let found = ["struct ", "enum "]
            .iter()
            .find_map(|word| item.strip_prefix(word).map(|rest| (*word, rest)));
        let Some((word, rest)) = found.filter(|_| line.ends_with('{')) else {
            if !line.starts_with("#[") && !line.starts_with("///") {
                rename_all.clear();
            }
            continue;
        };
        let name = rest.trim_end_matches(" {").to_owned();
        let members = members(&mut lines, word == "enum ", &rename_all);
        if word == "enum " {
            file.enums.insert(name, members);
        } else {
            file.structs.insert(name, members);
        }
        rename_all.clear();
    }
    file
}

fn members<'a>(
    lines: &mut impl Iterator<Item = &'a str>,
    is_enum: bool,
    rename_all: &str,
) -> Vec<Member> {
    let mut all = Vec::new();
    let mut doc = String::new();
    let mut renamed = None;
    let mut skip = false;
    for line in lines {
        if line == "}" {
            break;
        }
        let Some(line) = line.strip_prefix("    ") else {
            continue;
        };
        if let Some(more) = line.strip_prefix("///") {
            doc.push_str(more);
        } else if line.starts_with("#[") {
            renamed = renamed.or_else(|| quoted_after(line, "rename = "));
            skip |= line.contains("serde(skip)") || line.contains("serde(skip,");
        } else if !line.starts_with([' ', '}', ')', ']', '/']) {
            let declared = line.trim_start_matches("pub ");
            let (name, kind) = match declared.split_once(": ") {
                Some((name, kind)) if !is_enum => (name, kind.trim_end_matches(',')),
                _ => (declared.split([',', '(', ' ']).next().unwrap_or(""), ""),
            };
            let name = renamed.take().unwrap_or_else(|| {
                if is_enum {
                    recase(name, rename_all)
                } else {
                    name.to_owned()
                }
            });
            let doc = std::mem::take(&mut doc).trim().to_owned();
            if !std::mem::take(&mut skip) {
                let kind = kind.to_owned();
                all.push(Member { name, kind, doc });
            }
        }
    }
    all
}

fn recase(name: &str, rule: &str) -> String {
    match rule {
        "lowercase" => name.to_lowercase(),
        "snake_case" => {
            let mut out = String::new();
            for c in name.chars() {
                if c.is_uppercase() && !out.is_empty() {
                    out.push('_');
                }
                out.extend(c.to_lowercase());
            }
            out
        }
        _ => name.to_owned(),
    }
}

fn quoted_after(line: &str, key: &str) -> Option<String> {
    let rest = line.split_once(key)?.1.strip_prefix('"')?;
    Some(rest.split_once('"')?.0.to_owned())
}

/// All Rust sources of the programs except tests: path and text.
pub(crate) fn programs() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for folder in ["orchestrator", "platform-cloud", "platform-k8s", "services"] {
        walk(folder, &mut found);
    }
    found
}

fn walk(folder: &str, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = format!("{folder}/{name}");
        if entry.file_type().unwrap().is_dir() {
            if !["tests", "target", "testing", "testdata"].contains(&name.as_str()) {
                walk(&path, found);
            }
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            found.push((path.clone(), text(&path)));
        }
    }
}
