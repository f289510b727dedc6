//! Ordering of nodes and groups, and lifecycle hooks.

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use super::{Group, GroupSpec, Object};
use crate::name::Sym;

/// Default timeout of a hook.
pub const DEFAULT_HOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// Order in which the nodes of a group are created and removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Management {
    /// One at a time by ordinal, each waiting for the lower ones; removed in reverse.
    OrderedReady,
    /// Concurrently, as far as limits allow.
    Parallel,
}

/// Hooks that run inside a node at points of its lifecycle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lifecycle {
    /// Before it is removed, within its grace period.
    pub pre_stop: Option<Hook>,
    /// After it was promoted.
    pub post_promote: Option<Hook>,
    /// How the active node may acknowledge alone for a while.
    pub sole_writer: Option<SoleWriter>,
}

/// How an active node that needs standbys to acknowledge anything is allowed to go on without them, and how that ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoleWriter {
    /// Allows it. `None` if it is never allowed to.
    pub allow: Option<Hook>,
    /// Ends the permission; succeeds only when nothing is acknowledged by the active node alone any more.
    pub revoke: Hook,
    /// Attribute of the group that is the number of standbys that it needs. Empty for 1.
    pub standbys_attribute: String,
}

impl SoleWriter {
    /// How many standbys the active node of a group with these attributes needs.
    #[must_use]
    pub fn needs(&self, attributes: &Object) -> u32 {
        let needs = match attributes.get(&self.standbys_attribute) {
            Some(Value::Number(number)) => number.as_u64(),
            Some(Value::String(text)) => text.trim().parse().ok(),
            _ => None,
        };
        needs.map_or(1, |needs| u32::try_from(needs).unwrap_or(u32::MAX))
    }
}

impl Lifecycle {
    /// Fills in missing hooks from another set.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            pre_stop: self.pre_stop.or_else(|| other.pre_stop.clone()),
            post_promote: self.post_promote.or_else(|| other.post_promote.clone()),
            sole_writer: self.sole_writer.or_else(|| other.sole_writer.clone()),
        }
    }
}

/// A command that runs inside a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Command and arguments, run without a shell; never empty.
    pub exec: Vec<String>,
    /// Timeout of the command.
    pub timeout: Duration,
    /// Of a promotion: whether it succeeds only when the former active node can acknowledge nothing any more, dead or
    /// alive.
    pub fences: bool,
}

/// An error in the ordering of groups: the field, and the reason.
type Wrong = (String, String);

/// A `depends_on` entry: the path of its group, its field, and the group that it names.
struct Said<'a> {
    path: String,
    field: String,
    on: &'a str,
}

/// Fills in, for every group of nodes, the groups of nodes that it depends on. A dependency on an outer group covers
/// all groups inside it.
pub(super) fn resolve(specs: &[GroupSpec], groups: &mut [Group]) -> Vec<Wrong> {
    let mut said = Vec::new();
    collect(specs, "", "spec.groups", &mut said);
    let mut wrong = Vec::new();
    let paths: Vec<Sym> = groups.iter().map(|group| group.path.clone()).collect();
    for one in &said {
        let on: Vec<&Sym> = paths.iter().filter(|path| within(path, one.on)).collect();
        if on.is_empty() {
            wrong.push((
                one.field.clone(),
                format!("no group {:?} is in this cluster", one.on),
            ));
            continue;
        }
        if within(&one.path, one.on) || within(one.on, &one.path) {
            let why = format!("{:?} would wait for itself", one.path);
            wrong.push((one.field.clone(), why));
            continue;
        }
        for group in groups.iter_mut().filter(|g| within(&g.path, &one.path)) {
            let new = on.iter().filter(|path| !group.depends_on.contains(path));
            let new: Vec<Sym> = new.map(|path| (*path).clone()).collect();
            group.depends_on.extend(new);
        }
    }
    if let Some(circle) = circle(groups) {
        let named = |one: &&Said<'_>| circle.iter().any(|path| within(path, &one.path));
        let field = said.iter().find(named);
        let field = field.map_or_else(|| "spec.groups".to_owned(), |one| one.field.clone());
        let why = format!("the groups wait for each other: {}", circle.join(" -> "));
        wrong.push((field, why));
    }
    wrong
}

fn collect<'a>(specs: &'a [GroupSpec], outer: &str, field: &str, said: &mut Vec<Said<'a>>) {
    for (index, spec) in specs.iter().enumerate() {
        let path = if outer.is_empty() {
            spec.name.clone()
        } else {
            format!("{outer}/{}", spec.name)
        };
        let at = format!("{field}[{index}]");
        for (position, on) in spec.depends_on.iter().enumerate() {
            said.push(Said {
                path: path.clone(),
                field: format!("{at}.depends_on[{position}]"),
                on,
            });
        }
        collect(&spec.groups, &path, &format!("{at}.groups"), said);
    }
}

/// Whether a path is this group or inside it.
fn within(path: &str, outer: &str) -> bool {
    path.strip_prefix(outer)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns a dependency cycle, with its first group repeated at the end.
fn circle(groups: &[Group]) -> Option<Vec<String>> {
    let mut done: BTreeSet<usize> = BTreeSet::new();
    for start in 0..groups.len() {
        // Each entry: a group, and how many of its dependencies were visited.
        let mut way: Vec<(usize, usize)> = vec![(start, 0)];
        while let Some((at, looked)) = way.last().copied() {
            let next = groups[at].depends_on.get(looked);
            let Some(next) = next.filter(|_| !done.contains(&at)) else {
                done.insert(at);
                way.pop();
                continue;
            };
            if let Some(last) = way.last_mut() {
                last.1 += 1;
            }
            let Some(next) = groups.iter().position(|group| group.path == *next) else {
                continue;
            };
            if let Some(from) = way.iter().position(|(on, _)| *on == next) {
                let on = way[from..].iter().map(|(on, _)| *on).chain([next]);
                return Some(on.map(|on| groups[on].path.to_string()).collect());
            }
            way.push((next, 0));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{ClusterSpec, PlatformChoice, Settings};

    fn group(name: &str, on: &[&str], inside: Vec<GroupSpec>) -> GroupSpec {
        GroupSpec {
            name: name.into(),
            depends_on: on.iter().map(|on| (*on).to_owned()).collect(),
            groups: inside,
            ..GroupSpec::default()
        }
    }

    fn spec(groups: Vec<GroupSpec>) -> ClusterSpec {
        ClusterSpec {
            settings: Settings {
                platforms: vec![PlatformChoice {
                    name: "local".into(),
                    ..PlatformChoice::default()
                }],
                ..Settings::default()
            },
            groups,
            ..ClusterSpec::default()
        }
    }

    fn wrong(groups: Vec<GroupSpec>) -> Vec<(String, String)> {
        let error = spec(groups).resolve().unwrap_err();
        let fields = error.fields().iter();
        fields
            .map(|one| (one.field.clone(), one.description.clone()))
            .collect()
    }

    #[test]
    fn an_outer_group_stands_for_all_inside_on_both_sides() {
        let data = group(
            "data",
            &[],
            vec![group("a", &[], vec![]), group("b", &[], vec![])],
        );
        let apps = group("apps", &["data"], vec![group("x", &["solo"], vec![])]);
        let groups = spec(vec![apps, data, group("solo", &[], vec![])])
            .resolve()
            .unwrap();
        let on: Vec<&str> = groups[0].depends_on.iter().map(|path| &**path).collect();
        assert_eq!(
            (&*groups[0].path, on),
            ("apps/x", vec!["data/a", "data/b", "solo"])
        );
        assert!(groups[1].depends_on.is_empty());
    }

    #[test]
    fn what_is_missing_or_waits_for_itself_is_named() {
        let missing = wrong(vec![group("a", &["b"], vec![])]);
        assert_eq!(missing[0].0, "spec.groups[0].depends_on[0]");
        assert!(missing[0].1.contains("no group \"b\""), "{missing:?}");
        let own = wrong(vec![group("a", &["a"], vec![])]);
        assert!(own[0].1.contains("wait for itself"), "{own:?}");
        let inside = wrong(vec![group("o", &[], vec![group("a", &["o"], vec![])])]);
        assert_eq!(inside[0].0, "spec.groups[0].groups[0].depends_on[0]");
        let around = wrong(vec![group("o", &["o/a"], vec![group("a", &[], vec![])])]);
        assert_eq!(around[0].0, "spec.groups[0].depends_on[0]");
        // A common name prefix does not make a group an ancestor.
        assert!(
            spec(vec![group("ab", &["a"], vec![]), group("a", &[], vec![])])
                .resolve()
                .is_ok()
        );
    }

    #[test]
    fn a_circle_is_named_from_end_to_end() {
        let circle = wrong(vec![
            group("z", &["a"], vec![]),
            group("a", &["b"], vec![]),
            group("b", &["c", "d"], vec![]),
            group("c", &[], vec![]),
            group("d", &["a"], vec![]),
        ]);
        assert_eq!(circle.len(), 1, "{circle:?}");
        assert!(circle[0].1.ends_with("a -> b -> d -> a"), "{circle:?}");
        assert_eq!(circle[0].0, "spec.groups[1].depends_on[0]");
        let two_ways = vec![
            group("a", &["b", "c"], vec![]),
            group("b", &["d"], vec![]),
            group("c", &["d"], vec![]),
            group("d", &[], vec![]),
        ];
        assert!(spec(two_ways).resolve().is_ok(), "no circle");
    }
}
