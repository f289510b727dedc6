//! Field paths (`spec.groups.db.platforms[0].name`): their notation, and their position in a manifest.

use super::tree::{Entry, Node, Span, Value};

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

/// The position of a path in a manifest, as far as it can be followed, and the path in the notation of the manifest.
/// Both notations of groups are understood: `spec.groups[0]` and `spec.groups.db`.
pub(crate) fn locate(root: &Node, path: &str) -> (Span, String) {
    let mut segments = parse(path);
    if segments.first() == Some(&Segment::Key("cluster".into())) {
        segments.remove(0);
    }
    if let Some(Segment::Key(first)) = segments.first()
        && matches!(first.as_str(), "name" | "labels")
        && root.get("metadata").is_some()
    {
        segments.insert(0, Segment::Key("metadata".into()));
    }
    let mut node = root;
    let mut span = first_line(root);
    let mut written = String::new();
    let mut at = 0;
    while at < segments.len() {
        let Some(step) = step(node, &segments[at..]) else {
            break;
        };
        // The position of a scalar is its value, that of other values their key.
        span = match step.node.value {
            Value::Scalar { .. } => step.node.span,
            Value::List(_) | Value::Map(_) => step.span,
        };
        written = append(&written, &step.written);
        node = step.node;
        at += step.used;
    }
    let rest = segments.iter().skip(at);
    let written = rest.fold(written, |path, segment| append(&path, segment));
    (span, written)
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

    fn at(text: &str, path: &str) -> (usize, usize) {
        let root =
            tree::parse(&tree::Source::new("x", text), &mut Diagnostics::default()).remove(0);
        let (span, _) = locate(&root, path);
        (span.line, span.column)
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
    fn names_and_labels_stand_in_the_metadata() {
        assert_eq!(at(TEXT, "name"), (1, 18));
        assert_eq!(at(TEXT, "labels[a.b]"), (1, 35));
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
                "spec.groups[\"v1.0\"].node_class",
            ),
        ] {
            assert_eq!(locate(&root, path).1, written);
        }
    }
}
