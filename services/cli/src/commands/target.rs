//! Parses the names of objects as people type them: `KIND NAME`, `KIND/NAME`, singular or plural, `CLUSTER/NODE`.

use drover_core::name::closest;
use drover_proto::common::v1::{LabelOperator, LabelRequirement, LabelSelector};

use crate::{
    failure::{Failure, Outcome},
    hint::Hint,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Cluster,
    Node,
    Platform,
    Host,
    Event,
    Discovered,
    Secret,
    Storage,
    Replica,
}

pub(crate) const KINDS: [(&str, &str, Kind); 9] = [
    ("cluster", "clusters", Kind::Cluster),
    ("node", "nodes", Kind::Node),
    ("platform", "platforms", Kind::Platform),
    ("host", "hosts", Kind::Host),
    ("event", "events", Kind::Event),
    ("discovered", "discovered", Kind::Discovered),
    ("secret", "secrets", Kind::Secret),
    ("storage", "storage", Kind::Storage),
    ("replica", "replicas", Kind::Replica),
];

impl Kind {
    pub(crate) fn parse(word: &str) -> Outcome<Self> {
        let lower = word.to_lowercase();
        let found = KINDS
            .iter()
            .find(|(one, many, _)| *one == lower || *many == lower);
        found.map(|(.., kind)| *kind).ok_or_else(|| {
            let suggestion = closest(word, KINDS.iter().map(|(_, many, _)| *many));
            let suggestion = suggestion
                .map(|name| format!(", did you mean `{name}`?"))
                .unwrap_or_default();
            let names: Vec<&str> = KINDS.iter().map(|(_, many, _)| *many).collect();
            Failure::usage(format!(
                "unknown kind `{word}`{suggestion} (kinds: {})",
                names.join(", ")
            ))
        })
    }

    pub(crate) fn word(self) -> &'static str {
        KINDS
            .iter()
            .find(|(.., kind)| *kind == self)
            .map_or("", |(one, ..)| one)
    }
}

/// A kind, and the name of an object if one is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) name: Option<String>,
}

impl Target {
    pub(crate) fn parse(words: &[String]) -> Outcome<Self> {
        match words {
            [one] => match one.split_once('/') {
                Some((kind, name)) if !name.is_empty() => Ok(Self {
                    kind: Kind::parse(kind)?,
                    name: Some(name.into()),
                }),
                Some((_, _)) => Err(Failure::usage(format!("`{one}` has no name"))),
                None => Ok(Self {
                    kind: Kind::parse(one)?,
                    name: None,
                }),
            },
            [kind, name] => {
                let kind = Kind::parse(kind)?;
                let prefix = format!("{}/", kind.word());
                let name = name.strip_prefix(&prefix).unwrap_or(name);
                Ok(Self {
                    kind,
                    name: Some(name.into()),
                })
            }
            _ => Err(Failure::usage("expected KIND NAME or KIND/NAME")),
        }
    }

    /// Parses several targets: `KIND NAME NAME…`, `KIND/NAME KIND/NAME…`.
    pub(crate) fn several(words: &[String]) -> Outcome<Vec<Self>> {
        match words {
            [first, ..] if first.contains('/') => words
                .iter()
                .map(|word| Self::parse(std::slice::from_ref(word)))
                .collect(),
            [kind, names @ ..] if names.len() > 1 => names
                .iter()
                .map(|name| Self::parse(&[kind.clone(), name.clone()]))
                .collect(),
            _ => Ok(vec![Self::parse(words)?]),
        }
    }

    /// The name, or an error if it is missing.
    pub(crate) fn name(&self) -> Outcome<&str> {
        self.name.as_deref().ok_or_else(|| match self.kind {
            Kind::Host => Failure::usage("hosts of which platform? give its name")
                .with_hint(&Hint::platforms()),
            kind => Failure::usage(format!("which {}? give its name", kind.word())),
        })
    }
}

/// The name of a cluster, with or without `cluster/`.
pub(crate) fn cluster(text: &str) -> &str {
    text.strip_prefix("cluster/")
        .or_else(|| text.strip_prefix("clusters/"))
        .unwrap_or(text)
}

/// Cluster, path of a group, and the words that follow, of `CLUSTER/GROUP` or `CLUSTER GROUP`, with or without kinds.
/// What is not given is empty.
pub(crate) fn group(words: &[String]) -> (&str, &str, &[String]) {
    match words {
        [first, rest @ ..] if cluster(first).contains('/') => {
            let first = match first.strip_prefix("group/") {
                // A cluster may be named `group`.
                Some(inner) if inner.contains('/') => inner,
                _ => cluster(first),
            };
            let (name, path) = first.split_once('/').unwrap_or((first, ""));
            (name, path, rest)
        }
        [name, path, rest @ ..] => (cluster(name), path.as_str(), rest),
        [name] => (cluster(name), "", &words[1..]),
        [] => ("", "", words),
    }
}

/// A cluster, or a group of it as by [`group`]. A group whose name is empty is none, and not the whole cluster.
pub(crate) fn cluster_or_group(words: &[String]) -> Outcome<(&str, Option<&str>)> {
    match (words, group(words)) {
        ([only], (name, "", [])) if !name.is_empty() && !only.ends_with('/') => Ok((name, None)),
        (_, (name, path, [])) if !name.is_empty() && !path.is_empty() => Ok((name, Some(path))),
        _ => Err(Failure::usage(
            "expected CLUSTER or CLUSTER/GROUP, like shop or shop/web",
        )),
    }
}

/// Splits `CLUSTER/NODE`, with or without `node/`.
pub(crate) fn node(text: &str) -> Outcome<(String, String)> {
    let text = match text
        .strip_prefix("node/")
        .or_else(|| text.strip_prefix("nodes/"))
    {
        // A cluster may be named `node`.
        Some(rest) if rest.contains('/') => rest,
        _ => text,
    };
    match text.split_once('/') {
        Some((cluster, node)) if !cluster.is_empty() && !node.is_empty() && !node.contains('/') => {
            Ok((cluster.into(), node.into()))
        }
        _ => Err(Failure::usage(format!(
            "`{text}` is not a node name; write CLUSTER/NODE, for example orders/db-1"
        ))),
    }
}

/// Whose nodes are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Nodes {
    /// All of a cluster.
    Cluster(String),
    /// Those of a group, by cluster and path.
    Group(String, String),
    /// One, by cluster and name.
    Node(String, String),
    /// The node of a cluster that has this name, or the group.
    Named(String, String),
}

/// Parses `CLUSTER`, `CLUSTER/GROUP` or `CLUSTER/NODE`, with or without `cluster/`, `group/` or `node/`.
pub(crate) fn nodes(text: &str) -> Outcome<Nodes> {
    // A cluster may be named `group` or `node`.
    let of_kind = |one: &str, many: &str| {
        let rest = text.strip_prefix(one).or_else(|| text.strip_prefix(many));
        rest.filter(|rest| rest.contains('/'))
    };
    if of_kind("node/", "nodes/").is_some() {
        return node(text).map(|(cluster, node)| Nodes::Node(cluster, node));
    }
    let group = of_kind("group/", "groups/");
    let words = group.unwrap_or_else(|| cluster(text));
    if words.split('/').any(str::is_empty) {
        return Err(Failure::usage(format!(
            "`{text}` is no cluster, group or node; write CLUSTER, CLUSTER/GROUP or CLUSTER/NODE, for example orders, \
             orders/db or orders/db-1"
        )));
    }
    Ok(match words.split_once('/') {
        None => Nodes::Cluster(words.into()),
        Some((cluster, path)) if group.is_some() || path.contains('/') => {
            Nodes::Group(cluster.into(), path.into())
        }
        Some((cluster, name)) => Nodes::Named(cluster.into(), name.into()),
    })
}

/// Parses a label selector: `a=b,c!=d,e,!f,g in (x,y),h notin (z)`.
pub(crate) fn selector(text: &str) -> Outcome<LabelSelector> {
    let mut selector = LabelSelector::default();
    for part in split_outside_parentheses(text) {
        let part = part.trim();
        let requirement = |key: &str, operator: LabelOperator, values: Vec<String>| {
            let key = key.trim();
            if key.is_empty() {
                return Err(Failure::usage(format!(
                    "`{part}` has no label; write a=b,c!=d,e,!f"
                )));
            }
            Ok(LabelRequirement {
                key: key.into(),
                operator: operator.into(),
                values,
            })
        };
        let found = if let Some((key, value)) = part.split_once("!=") {
            requirement(key, LabelOperator::NotIn, vec![value.trim().into()])?
        } else if let Some((key, values)) = set(part, " notin ") {
            requirement(key, LabelOperator::NotIn, values)?
        } else if let Some((key, values)) = set(part, " in ") {
            requirement(key, LabelOperator::In, values)?
        } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
            requirement(key, LabelOperator::In, vec![value.trim().into()])?
        } else if let Some(key) = part.strip_prefix('!') {
            requirement(key, LabelOperator::NotExists, Vec::new())?
        } else {
            requirement(part, LabelOperator::Exists, Vec::new())?
        };
        selector.match_expressions.push(found);
    }
    Ok(selector)
}

fn set<'a>(part: &'a str, word: &str) -> Option<(&'a str, Vec<String>)> {
    let (key, values) = part.split_once(word)?;
    let values = values.trim().strip_prefix('(')?.strip_suffix(')')?;
    Some((
        key,
        values
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect(),
    ))
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0i32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn kinds_are_understood_in_every_spelling() {
        for text in [
            "cluster orders",
            "clusters orders",
            "cluster/orders",
            "Clusters/orders",
            "cluster cluster/orders",
        ] {
            let target = Target::parse(&words(text)).unwrap();
            assert_eq!(
                target,
                Target {
                    kind: Kind::Cluster,
                    name: Some("orders".into())
                },
                "{text}"
            );
        }
        let target = Target::parse(&words("node/orders/db-1")).unwrap();
        assert_eq!(
            target,
            Target {
                kind: Kind::Node,
                name: Some("orders/db-1".into())
            }
        );
        let failure = Target::parse(&words("clutsers")).unwrap_err();
        assert!(
            failure.message.contains("did you mean `clusters`?"),
            "{failure}"
        );
    }

    #[test]
    fn several_are_named_as_in_kubectl() {
        let cluster = |name: &str| Target {
            kind: Kind::Cluster,
            name: Some(name.into()),
        };
        for text in ["cluster a b", "cluster/a cluster/b", "clusters a cluster/b"] {
            let found = Target::several(&words(text)).unwrap();
            assert_eq!(found, [cluster("a"), cluster("b")], "{text}");
        }
        assert_eq!(
            Target::several(&words("cluster a")).unwrap(),
            [cluster("a")]
        );
        assert!(Target::several(&words("cluster/a b")).is_err());
    }

    #[test]
    fn a_group_is_named_as_it_is_shown_or_in_two_words() {
        for (text, meant) in [
            ("shop", ("shop", None)),
            ("cluster/shop", ("shop", None)),
            ("shop/web", ("shop", Some("web"))),
            ("shop web", ("shop", Some("web"))),
            ("cluster/shop web", ("shop", Some("web"))),
            ("group/shop/data/hot", ("shop", Some("data/hot"))),
            ("shop data/hot", ("shop", Some("data/hot"))),
            ("group", ("group", None)),
            ("group/web", ("group", Some("web"))),
        ] {
            let words = words(text);
            assert_eq!(cluster_or_group(&words).unwrap(), meant, "{text}");
        }
        for text in [
            "",
            "/",
            "shop/",
            "/web",
            "shop ",
            "cluster/",
            "shop web more",
        ] {
            let failure = cluster_or_group(&words(text)).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage, "{text}");
        }
    }

    #[test]
    fn a_node_is_cluster_slash_node() {
        assert_eq!(
            node("orders/db-1").unwrap(),
            ("orders".into(), "db-1".into())
        );
        assert_eq!(
            node("node/orders/db-1").unwrap(),
            ("orders".into(), "db-1".into())
        );
        assert_eq!(node("node/db-1").unwrap(), ("node".into(), "db-1".into()));
        assert!(node("db-1").is_err() && node("a/b/c").is_err() && node("/b").is_err());
    }

    #[test]
    fn nodes_are_those_of_a_cluster_or_a_group_or_one() {
        let named = |cluster: &str, name: &str| Nodes::Named(cluster.into(), name.into());
        let group = |cluster: &str, path: &str| Nodes::Group(cluster.into(), path.into());
        for (text, meant) in [
            ("orders", Nodes::Cluster("orders".into())),
            ("cluster/orders", Nodes::Cluster("orders".into())),
            ("orders/db", named("orders", "db")),
            ("orders/db-1", named("orders", "db-1")),
            ("cluster/orders/db", named("orders", "db")),
            ("orders/data/hot", group("orders", "data/hot")),
            ("group/orders/db", group("orders", "db")),
            ("group/orders/data/hot", group("orders", "data/hot")),
            ("group/web", named("group", "web")),
            (
                "node/orders/db-1",
                Nodes::Node("orders".into(), "db-1".into()),
            ),
            ("node/db-1", named("node", "db-1")),
        ] {
            assert_eq!(nodes(text).unwrap(), meant, "{text}");
        }
        for text in [
            "",
            "/",
            "orders/",
            "/db",
            "orders//db",
            "cluster/",
            "node/a/b/c",
        ] {
            assert_eq!(nodes(text).unwrap_err().exit, Exit::Usage, "{text}");
        }
    }

    #[test]
    fn labels_are_selected_as_in_kubernetes() {
        let selector = selector("a=b,c!=d,e,!f,g in (x, y),h notin (z)").unwrap();
        let found: Vec<(&str, LabelOperator, usize)> = selector
            .match_expressions
            .iter()
            .map(|requirement| {
                (
                    requirement.key.as_str(),
                    requirement.operator(),
                    requirement.values.len(),
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                ("a", LabelOperator::In, 1),
                ("c", LabelOperator::NotIn, 1),
                ("e", LabelOperator::Exists, 0),
                ("f", LabelOperator::NotExists, 0),
                ("g", LabelOperator::In, 2),
                ("h", LabelOperator::NotIn, 1),
            ]
        );
        assert!(super::selector("").is_err() && super::selector("=b").is_err());
    }
}
