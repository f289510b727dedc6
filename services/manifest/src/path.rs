//! Field paths (`spec.groups.db.platforms[0].name`): their notation, and their position in a manifest.

use super::tree::{Entry, Node, Span, Value};

/// Sections of a secret. To a server all of them are its data.
const SECTIONS: [&str; 4] = ["stringData", "data", "dataFrom", "sha256"];
/// Maps whose keys are names.
const FREE: [&str; 4] = ["attributes", "groups", "labels", "properties"];

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Key(String),
    Index(usize),
}

/// The path of a key below `path`. Keys other than plain words are quoted.
#[must_use]
pub fn join(path: &str, key: &str) -> String {
    let plain = !key.is_empty()
        && key
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    match (path.is_empty(), plain) {
        (true, true) => key.to_owned(),
        (false, true) => format!("{path}.{key}"),
        (_, false) => format!("{path}[{key:?}]"),
    }
}

/// The path of an element below `path`.
#[must_use]
pub fn index(path: &str, position: usize) -> String {
    format!("{path}[{position}]")
}

/// Splits a path. Malformed parts become keys, since paths also come from servers.
pub(crate) fn parse(path: &str) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            rest = after;
        } else if let Some(inner) = rest.strip_prefix("[\"") {
            let Some(end) = inner.find("\"]") else { break };
            segments.push(Segment::Key(inner[..end].to_owned()));
            rest = &inner[end + 2..];
        } else if let Some(inner) = rest.strip_prefix('[') {
            let Some(end) = inner.find(']') else { break };
            segments.push(match inner[..end].parse() {
                Ok(position) => Segment::Index(position),
                Err(_) => Segment::Key(inner[..end].to_owned()),
            });
            rest = &inner[end + 1..];
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            segments.push(Segment::Key(rest[..end].to_owned()));
            rest = &rest[end..];
        }
    }
    segments
}

/// The last part of a path: a key, with the positions that follow it.
pub(crate) fn last(path: &str) -> String {
    let segments = parse(path);
    let key = segments
        .iter()
        .rposition(|it| matches!(it, Segment::Key(_)));
    let mut parts = segments.iter().skip(key.unwrap_or(0));
    let mut last = match parts.next() {
        Some(Segment::Key(key)) => key.clone(),
        Some(Segment::Index(position)) => index("", *position),
        None => return String::new(),
    };
    for part in parts {
        last = append(&last, part);
    }
    last
}

/// `node_class` in the notation of manifests: `nodeClass`.
pub(crate) fn camel(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    let mut upper = false;
    for c in key.chars() {
        if c == '_' {
            upper = true;
        } else if upper {
            out.extend(c.to_uppercase());
            upper = false;
        } else {
            out.push(c);
        }
    }
    out
}

/// Whether what is wrong at one path may be why another one seems to be wrong: it is the same field, or one around or
/// inside it, also where a group inherits it.
pub(crate) fn explains(wrong: &str, other: &str) -> bool {
    let (wrong, other) = (parse(wrong), parse(other));
    if wrong.is_empty() {
        return false;
    }
    let ((groups, field), (inside, seeming)) = (setting(&wrong), setting(&other));
    let inherits = inside.starts_with(&groups) && !field.is_empty() && !seeming.is_empty();
    let on_one_way =
        |one: &[Segment], other: &[Segment]| one.starts_with(other) || other.starts_with(one);
    on_one_way(&wrong, &other) || (inherits && on_one_way(&field, &seeming))
}

/// The names of the groups around a field, and its path in the innermost one or in the cluster. Fields that are only
/// understood together have one path.
fn setting(path: &[Segment]) -> (Vec<&Segment>, Vec<Segment>) {
    let is = |segment: &Segment, word: &str| matches!(segment, Segment::Key(key) if key == word);
    let (mut groups, mut rest) = (Vec::new(), path);
    if let [first, inner @ ..] = rest
        && is(first, "spec")
    {
        rest = inner;
        while let [key, name, inner @ ..] = rest
            && is(key, "groups")
        {
            groups.push(name);
            rest = inner;
        }
    }
    let alone = |key: &str| vec![Segment::Key(key.into())];
    let field = match rest.first() {
        Some(Segment::Key(key)) => match key.as_str() {
            "platform" => alone("platforms"),
            "store" | "version" => alone("store"),
            section if SECTIONS.contains(&section) => {
                [&alone(SECTIONS[0])[..], &rest[1..]].concat()
            }
            _ => rest.to_vec(),
        },
        _ => rest.to_vec(),
    };
    (groups, field)
}

/// The position of a path in a manifest, as far as it can be followed, and the path in the notation of the manifest.
/// Both notations of groups are understood: `spec.groups[0]` and `spec.groups.db`.
pub(crate) fn locate(root: &Node, path: &str) -> (Span, String) {
    let mut segments = parse(path);
    // Some requests have the document in a field.
    if let Some(Segment::Key(first)) = segments.first()
        && ["cluster", "platform"].contains(&first.as_str())
    {
        segments.remove(0);
    }
    let mut secret = false;
    match segments.first() {
        Some(Segment::Key(first)) if ["name", "labels"].contains(&first.as_str()) => {
            segments.insert(0, Segment::Key("metadata".into()));
        }
        Some(Segment::Key(first)) if first == "data" && root.entry("spec").is_none() => {
            secret = true;
            segments[0] = Segment::Key(section(root, &segments[1..]).into());
        }
        _ => {}
    }
    let mut node = root;
    let mut span = first_line(root);
    let mut written = String::new();
    let mut at = 0;
    while at < segments.len() {
        let Some(step) = step(node, &segments[at..]) else {
            break;
        };
        // The position of a scalar is its value, that of other values their key. What a secret says is never shown.
        span = match step.node.value {
            Value::Scalar { .. } if !secret => step.node.span,
            _ => step.span,
        };
        written = append(&written, &step.written);
        node = step.node;
        at += step.used;
    }
    let mut free = false;
    for segment in &segments[at..] {
        written = match segment {
            Segment::Key(key) if !free => join(&written, &camel(key)),
            other => append(&written, other),
        };
        free |= matches!(segment, Segment::Key(key) if FREE.contains(&key.as_str()));
    }
    (span, written)
}

/// The section of a secret that has a key, or the first one.
fn section(root: &Node, key: &[Segment]) -> &'static str {
    let has_key = |section: &&str| {
        let node = root.get(section);
        node.is_some_and(|node| key.is_empty() || step(node, key).is_some())
    };
    let is_there = |section: &&str| root.entry(section).is_some();
    let mut sections = SECTIONS.into_iter();
    let found = sections.find(has_key);
    found
        .or_else(|| SECTIONS.into_iter().find(is_there))
        .unwrap_or(SECTIONS[0])
}

fn append(path: &str, segment: &Segment) -> String {
    match segment {
        Segment::Key(key) => join(path, key),
        Segment::Index(position) => index(path, *position),
    }
}

/// The beginning of a document.
pub(crate) fn first_line(node: &Node) -> Span {
    node.map()
        .and_then(|entries| entries.first())
        .map_or(node.span, |entry| entry.span)
}

/// Fields that have other names in manifests than on servers.
const ALIASES: &[(&str, &[&str])] = &[
    ("text", &["userData", "userDataFrom"]),
    ("binary", &["userDataBase64", "userDataFrom"]),
    ("sha256", &["userDataSha256"]),
    ("secret_key", &["secretKeyRef", "userDataFrom"]),
    ("ca_pem", &["ca", "caFrom"]),
];

/// One step into a manifest.
struct Step<'a> {
    span: Span,
    node: &'a Node,
    /// Number of path segments that it consumes.
    used: usize,
    written: Segment,
}

impl<'a> Step<'a> {
    fn into_entry(entry: &'a Entry, used: usize) -> Self {
        Self {
            span: entry.span,
            node: &entry.value,
            used,
            written: Segment::Key(entry.key.clone()),
        }
    }

    fn into_item(item: &'a Node, position: usize) -> Self {
        Self {
            span: first_line(item),
            node: item,
            used: 1,
            written: Segment::Index(position),
        }
    }
}

fn step<'a>(node: &'a Node, segments: &[Segment]) -> Option<Step<'a>> {
    match (&segments[0], &node.value) {
        (Segment::Index(position), Value::List(items)) => items
            .get(*position)
            .map(|item| Step::into_item(item, *position)),
        (Segment::Index(position), Value::Map(entries)) => {
            let entry = entries.get(*position)?;
            // The name of a group is its key.
            let is_name = segments.get(1) == Some(&Segment::Key("name".into()))
                && entry.value.entry("name").is_none();
            Some(Step::into_entry(entry, if is_name { 2 } else { 1 }))
        }
        (Segment::Key(name), Value::List(items)) => {
            let named = |item: &&Node| item.get("name").and_then(Node::text) == Some(name);
            let position = items.iter().position(|item| named(&item))?;
            Some(Step::into_item(&items[position], position))
        }
        (Segment::Key(name), Value::Map(_)) => {
            if let Some(entry) = node.entry(name).or_else(|| node.entry(&camel(name))) {
                return Some(Step::into_entry(entry, 1));
            }
            if name == "platforms"
                && let Some(entry) = node.entry("platform")
            {
                return Some(Step::into_entry(entry, segments.len()));
            }
            let aliases = ALIASES.iter().find(|(field, _)| field == name);
            if let Some(entry) = aliases
                .into_iter()
                .flat_map(|(_, written)| *written)
                .find_map(|written| node.entry(written))
            {
                return Some(Step::into_entry(entry, 1));
            }
            dotted(node, segments).or_else(|| nested(node, name))
        }
        _ => None,
    }
}

/// A name with dots that the server did not quote.
fn dotted<'a>(node: &'a Node, segments: &[Segment]) -> Option<Step<'a>> {
    let mut name = String::new();
    for (used, segment) in segments.iter().enumerate() {
        let Segment::Key(part) = segment else {
            return None;
        };
        if used > 0 {
            name.push('.');
        }
        name.push_str(part);
        if used > 0
            && let Some(entry) = node.entry(&name)
        {
            return Some(Step::into_entry(entry, used + 1));
        }
    }
    None
}

/// Follows the path of a group (`data/hot`).
fn nested<'a>(groups: &'a Node, path: &str) -> Option<Step<'a>> {
    let mut parts = path.split('/');
    let mut entry = groups.entry(parts.next()?)?;
    for part in parts {
        entry = entry
            .value
            .get("groups")
            .and_then(|groups| groups.entry(part))?;
    }
    let written = Segment::Key(path.to_owned());
    Some(Step {
        written,
        ..Step::into_entry(entry, 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{diagnostic::Diagnostics, tree};

    fn located(text: &str, path: &str) -> (usize, usize, String) {
        let root =
            tree::parse(&tree::Source::new("x", text), &mut Diagnostics::default()).remove(0);
        let (span, written) = locate(&root, path);
        (span.line, span.column, written)
    }

    fn at(text: &str, path: &str) -> (usize, usize) {
        let (line, column, _) = located(text, path);
        (line, column)
    }

    const TEXT: &str = "metadata: {name: n, labels: {a.b: c}}\nspec:\n  groups:\n    v1.0: {size: 1}\n    data:\n      groups:\n        hot: {platform: local, nodeClass: x}\n";

    #[test]
    fn both_spellings_of_a_group_lead_to_the_same_place() {
        assert_eq!(
            at(TEXT, "spec.groups[1].groups[0].platforms[0].name"),
            (7, 25)
        );
        assert_eq!(
            at(TEXT, "cluster.spec.groups.data.groups.hot.platforms[0]"),
            (7, 25)
        );
        assert_eq!(at(TEXT, "spec.groups.data/hot.node_class"), (7, 43));
        assert_eq!(at(TEXT, "spec.groups.v1.0.size"), (4, 18));
        assert_eq!(at(TEXT, "spec.groups[\"v1.0\"].size"), (4, 18));
    }

    #[test]
    fn the_last_part_of_a_path_is_a_key_with_its_positions() {
        for (path, part) in [
            ("", ""),
            ("spec", "spec"),
            ("spec.groups.a.dependsOn[0]", "dependsOn[0]"),
            ("stringData[\"k k/\"]", "k k/"),
        ] {
            assert_eq!(last(path), part);
        }
    }

    #[test]
    fn names_and_labels_stand_in_the_metadata() {
        assert_eq!(at(TEXT, "name"), (1, 18));
        assert_eq!(at(TEXT, "labels[a.b]"), (1, 35));
        assert_eq!(
            located("spec: {}\n", "name"),
            (1, 1, "metadata.name".into())
        );
    }

    #[test]
    fn what_a_platform_and_a_secret_have_in_a_request_is_found_in_their_documents() {
        let platform =
            "kind: Platform\nmetadata: {name: p}\nspec:\n  endpoint: x\n  tokenSecret: t\n";
        for (path, line, column, written) in [
            ("platform.name", 2, 18, "metadata.name"),
            ("platform.spec.endpoint", 4, 13, "spec.endpoint"),
            ("platform.spec.token_secret", 5, 16, "spec.tokenSecret"),
        ] {
            let found = located(platform, path);
            assert_eq!(found, (line, column, written.into()), "{path}");
        }
        let secret =
            "kind: Secret\nstringData:\n  a: x\n  \"k k/\": y\ndataFrom:\n  tls.crt: {file: x}\n";
        for (path, line, column, written) in [
            ("data.a", 3, 3, "stringData.a"),
            ("data.k k/", 4, 3, "stringData[\"k k/\"]"),
            ("data.tls.crt", 6, 3, "dataFrom[\"tls.crt\"]"),
            ("data", 2, 1, "stringData"),
        ] {
            let found = located(secret, path);
            assert_eq!(found, (line, column, written.into()), "{path}");
        }
        let empty = located("kind: Secret\nmetadata: {name: s}\n", "data");
        assert_eq!(empty, (1, 1, "stringData".into()));
    }

    #[test]
    fn one_wrong_field_explains_what_depends_on_it_and_nothing_else() {
        for (wrong, other) in [
            ("spec", "spec.groups"),
            ("metadata", "metadata.name"),
            (
                "spec.groups.db.bootstrap.userDataFrom.file",
                "spec.groups.db.bootstrap",
            ),
            ("spec.groups.db.size", "spec.groups"),
            ("spec.platform", "spec.groups.db.platforms"),
            ("spec.groups.a.platform", "spec.groups.a.groups.b.platforms"),
            ("spec.store.software", "spec.groups.db.version"),
            ("spec.update.maxSurge", "spec.groups.db.update.maxSurge"),
            ("spec.addons", "spec.addons[1].port"),
            ("dataFrom.init.file", "stringData"),
        ] {
            assert!(explains(wrong, other), "{wrong} {other}");
        }
        for (wrong, other) in [
            ("", "spec"),
            ("spec.groups.db.size", "spec.groups.db.standby"),
            ("spec.groups.a.platform", "spec.groups.b.platforms"),
            ("spec.groups.a.groups.b.platform", "spec.groups.a.platforms"),
            ("spec.addons[0].type", "spec.addons[1].type"),
            ("spec.addons[0].type", "spec.addons[0].port"),
            ("spec.update.maxSurge", "spec.groups.db.update.minReady"),
            ("spec.groups.a", "spec.groups.b"),
            ("metadata.labels.a", "metadata.name"),
            ("metadata.name", "spec.groups.db.size"),
            ("stringData.a", "stringData[\"k k/\"]"),
        ] {
            assert!(!explains(wrong, other), "{wrong} {other}");
        }
    }

    #[test]
    fn what_is_written_under_another_name_is_found() {
        let text = "spec:\n  groups:\n    a:\n      bootstrap: {render: true,\n        userDataFrom: {file: x}}\n";
        for field in ["text", "binary", "secret_key"] {
            assert_eq!(
                at(text, &format!("spec.groups[0].bootstrap.{field}")),
                (5, 9),
                "{field}"
            );
        }
    }

    #[test]
    fn a_path_that_leads_nowhere_ends_at_the_last_known_key() {
        assert_eq!(
            at(TEXT, "spec.groups.data.groups.hot.health.interval"),
            (7, 9)
        );
        assert_eq!(at(TEXT, "nothing"), (1, 1));
    }

    #[test]
    fn a_path_of_the_server_is_shown_as_the_manifest_writes_it() {
        let root =
            tree::parse(&tree::Source::new("x", TEXT), &mut Diagnostics::default()).remove(0);
        for (path, written) in [
            ("cluster.name", "metadata.name"),
            (
                "spec.groups[1].groups[0].platforms[0].name",
                "spec.groups.data.groups.hot.platform",
            ),
            (
                "spec.groups[0].node_class",
                "spec.groups[\"v1.0\"].nodeClass",
            ),
            (
                "spec.groups[0].properties.disk_size",
                "spec.groups[\"v1.0\"].properties.disk_size",
            ),
        ] {
            assert_eq!(locate(&root, path).1, written);
        }
    }
}
