//! Field paths (`spec.groups.db.platforms[0].name`): how they are written, and where they lead in a manifest.

use super::tree::{Node, Span, Value};

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Key(String),
    Index(usize),
}

/// The path of a key below `path`. Keys that are no plain words are quoted.
pub(crate) fn join(path: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    match (path.is_empty(), plain) {
        (true, true) => key.to_owned(),
        (false, true) => format!("{path}.{key}"),
        (_, false) => format!("{path}[{key:?}]"),
    }
}

/// The path of an element below `path`.
pub(crate) fn index(path: &str, position: usize) -> String {
    format!("{path}[{position}]")
}

/// Takes a path apart. What is not well formed becomes a key, since paths come from servers too.
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

/// `node_class` as manifests write it: `nodeClass`.
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

/// Where a path leads in a manifest, as far as it can be followed. Both spellings of groups are understood:
/// `spec.groups[0]` and `spec.groups.db`.
pub(crate) fn locate(root: &Node, path: &str) -> Span {
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
    follow(root, &segments)
}

/// Follows segments from a node on. Values are pointed at where they are scalars, else their keys.
pub(crate) fn follow(root: &Node, segments: &[Segment]) -> Span {
    let mut node = root;
    let mut span = first_line(root);
    let mut at = 0;
    while at < segments.len() {
        let Some((entry_span, next, used)) = step(node, &segments[at..]) else { break };
        span = if matches!(next.value, Value::Scalar { .. }) { next.span } else { entry_span };
        node = next;
        at += used;
    }
    span
}

fn first_line(node: &Node) -> Span {
    node.map().and_then(|entries| entries.first()).map_or(node.span, |entry| entry.span)
}

fn step<'a>(node: &'a Node, segments: &[Segment]) -> Option<(Span, &'a Node, usize)> {
    match (&segments[0], &node.value) {
        (Segment::Index(position), Value::List(items)) => {
            items.get(*position).map(|item| (first_line(item), item, 1))
        }
        (Segment::Index(position), Value::Map(entries)) => {
            entries.get(*position).map(|entry| (entry.span, &entry.value, 1))
        }
        (Segment::Key(name), Value::List(items)) => items
            .iter()
            .find(|item| item.get("name").and_then(Node::text) == Some(name))
            .map(|item| (first_line(item), item, 1)),
        (Segment::Key(name), Value::Map(_)) => {
            let found = |key: &str| node.entry(key).map(|entry| (entry.span, &entry.value));
            if let Some((span, value)) = found(name).or_else(|| found(&camel(name))) {
                return Some((span, value, 1));
            }
            if name == "platforms" {
                return found("platform").map(|(span, value)| (span, value, segments.len()));
            }
            dotted(node, segments).or_else(|| nested(node, name))
        }
        _ => None,
    }
}

/// A name with dots in it that the server did not quote.
fn dotted<'a>(node: &'a Node, segments: &[Segment]) -> Option<(Span, &'a Node, usize)> {
    let mut name = String::new();
    for (used, segment) in segments.iter().enumerate() {
        let Segment::Key(part) = segment else { return None };
        if used > 0 {
            name.push('.');
        }
        name.push_str(part);
        if used > 0
            && let Some(entry) = node.entry(&name)
        {
            return Some((entry.span, &entry.value, used + 1));
        }
    }
    None
}

/// The path of a group (`data/hot`).
fn nested<'a>(groups: &'a Node, path: &str) -> Option<(Span, &'a Node, usize)> {
    let mut parts = path.split('/');
    let first = groups.entry(parts.next()?)?;
    let mut entry = first;
    for part in parts {
        entry = entry.value.get("groups").and_then(|groups| groups.entry(part)).or_else(|| entry.value.entry(part))?;
    }
    Some((entry.span, &entry.value, 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{diagnostic::Diagnostics, tree};

    fn at(text: &str, path: &str) -> (usize, usize) {
        let root = tree::parse(&tree::Source::new("x", text), &mut Diagnostics::default()).remove(0);
        let span = locate(&root, path);
        (span.line, span.column)
    }

    const TEXT: &str = "metadata: {name: n, labels: {a.b: c}}\nspec:\n  groups:\n    v1.0: {size: 1}\n    data:\n      groups:\n        hot: {platform: local, nodeClass: x}\n";

    #[test]
    fn both_spellings_of_a_group_lead_to_the_same_place() {
        assert_eq!(at(TEXT, "spec.groups[1].groups[0].platforms[0].name"), (7, 25));
        assert_eq!(at(TEXT, "cluster.spec.groups.data.groups.hot.platforms[0]"), (7, 25));
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
    fn a_path_that_leads_nowhere_ends_at_the_last_known_key() {
        assert_eq!(at(TEXT, "spec.groups.data.groups.hot.health.interval"), (7, 9));
        assert_eq!(at(TEXT, "nothing"), (1, 1));
    }
}
