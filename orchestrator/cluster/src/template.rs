//! Platform templates: which one makes the nodes of a group, and which nodes were made from an earlier version.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drover_core::{
    Node, Sym,
    spec::{Choice, Group, Template},
};
use drover_planner::State;
use drover_proto::platform::v1 as wire;
use drover_templates::{Matcher, Requirement};
use uuid::Uuid;

use crate::ClusterState;

/// Maximum length of a template digest. If a platform reports a longer one, the template counts as unknown.
const MAX_DIGEST: usize = 64;

/// The catalogue entry from which a platform makes the nodes of a group: the first match, as on platforms.
pub fn entry<'a>(
    handshake: &'a wire::Platform,
    software: &str,
    group: &Group,
) -> Option<&'a wire::TemplateEntry> {
    handshake.templates.iter().find(|entry| {
        let version = group.version.is_empty()
            || Requirement::parse(&entry.version_requirement)
                .is_ok_and(|requirement| requirement.accepts(&group.version));
        !entry.addon
            && (entry.store == software || entry.store == "*")
            && version
            && matches(entry, group)
    })
}

/// Whether the attributes of a group match those that a template requires.
fn matches(entry: &wire::TemplateEntry, group: &Group) -> bool {
    let Some(matchers) = &entry.matchers else {
        return true;
    };
    let Ok(matchers) = drover_convert::value::object("matchers", matchers) else {
        return false;
    };
    matchers
        .into_iter()
        .all(|(key, wanted)| Matcher::from(wanted).accepts(group.attributes.get(&key)))
}

/// Sets the current templates on the choices of a group. Returns whether any is known.
pub(crate) fn fill_in(
    group: &mut Group,
    software: &str,
    handshakes: &BTreeMap<Sym, Arc<wire::Platform>>,
) -> bool {
    let templates: Vec<Option<Template>> = group
        .choices
        .iter()
        .map(|choice| {
            let entry = entry(handshakes.get(&choice.platform)?, software, group)?;
            is_digest(&entry.digest).then(|| Template {
                name: entry.template.as_str().into(),
                digest: entry.digest.as_str().into(),
            })
        })
        .collect();
    let known = templates.iter().any(Option::is_some);
    for (choice, template) in group.choices.iter_mut().zip(templates) {
        choice.template = template;
    }
    known
}

/// The known templates of all groups.
pub(crate) fn known(groups: &[Group]) -> Vec<(&Sym, &Choice)> {
    let choices = groups.iter().flat_map(|group| {
        group
            .choices
            .iter()
            .map(move |choice| (&group.path, choice))
    });
    choices
        .filter(|(_, choice)| choice.template.is_some())
        .collect()
}

fn is_digest(digest: &str) -> bool {
    !digest.is_empty() && digest.len() <= MAX_DIGEST
}

/// Whether a node matches its group's current spec and template. While its request is open, the platform may still
/// report which template made it.
pub fn is_current(state: &State, group: &Group, node: &Node) -> bool {
    group.makes(node)
        && (group.newer_template(node).is_none() || state.requests.contains_key(&node.request))
}

/// Describes the template change that makes a node outdated.
pub fn cause(group: &Group, node: &Node) -> Option<String> {
    let template = group.newer_template(node)?;
    Some(format!(
        "template {} of platform {}",
        template.name, node.platform
    ))
}

/// Describes the template changes that make nodes outdated although the spec alone would not. Empty if there are none.
pub fn changed(state: &State, groups: &[Group]) -> String {
    let mut causes = BTreeSet::new();
    for group in groups {
        let own = state.nodes.iter().filter(|node| node.group == group.path);
        let stale = own.filter(|node| group.makes(node) && !is_current(state, group, node));
        causes.extend(stale.filter_map(|node| cause(group, node)));
    }
    let causes: Vec<String> = causes.into_iter().collect();
    if causes.is_empty() {
        String::new()
    } else {
        format!("{} changed", causes.join(", "))
    }
}

/// The template to record if it was recorded as one digest and reported as another.
///
/// A digest that the platform does not list counts as unknown. If the platform lists both that digest and the recorded
/// one, it selects templates by rules of its own, and the recorded one is kept: otherwise nodes would be replaced over
/// and over for nothing.
pub fn known_as<'a>(recorded: &'a str, said: &'a str, listed: impl Fn(&str) -> bool) -> &'a str {
    if !listed(said) {
        ""
    } else if !recorded.is_empty() && listed(recorded) {
        recorded
    } else {
        said
    }
}

impl ClusterState {
    /// The template that is recorded for the nodes of a request. `None` if it has none.
    #[must_use]
    pub fn template_of(&self, request: Uuid) -> Option<Sym> {
        let mut nodes = self.state.nodes.iter();
        let node = nodes.find(|node| node.request == request)?;
        Some(node.template.clone())
    }
}

/// Whether the catalogue of a platform has a template with this digest.
#[must_use]
pub fn lists(handshake: &wire::Platform, digest: &str) -> bool {
    let mut entries = handshake.templates.iter();
    is_digest(digest) && entries.any(|entry| !entry.addon && entry.digest == digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_a_platform_counts_as_far_as_its_catalogue_bears_it_out() {
        for (recorded, said, catalogue, known) in [
            // As expected.
            ("a", "a", &["a", "b"][..], "a"),
            // Changed before the change was reported.
            ("a", "b", &["b"], "b"),
            // Nothing was known when the node was requested.
            ("", "b", &["b"], "b"),
            // The platform selects by rules of its own: not a reason to replace its nodes over and over.
            ("a", "b", &["a", "b"], "a"),
            // Changed and changed back, or inconsistent.
            ("a", "b", &["a"], ""),
            ("", "b", &[], ""),
        ] {
            let listed = |digest: &str| catalogue.contains(&digest);
            assert_eq!(
                known_as(recorded, said, listed),
                known,
                "{recorded} {said} {catalogue:?}"
            );
        }
    }

    #[test]
    fn the_template_of_a_group_is_the_first_that_fits_as_on_platforms() {
        let entry = |store: &str, version: &str, digest: &str| wire::TemplateEntry {
            store: store.to_owned(),
            version_requirement: version.to_owned(),
            template: format!("{digest}.yaml"),
            digest: digest.to_owned(),
            ..wire::TemplateEntry::default()
        };
        let number = |value: f64| prost_types::Value {
            kind: Some(prost_types::value::Kind::NumberValue(value)),
        };
        let hot = wire::TemplateEntry {
            matchers: Some(prost_types::Struct {
                fields: [("replicas".to_owned(), number(3.0))].into(),
            }),
            ..entry("redis", "^7", "hot")
        };
        let addon = wire::TemplateEntry {
            addon: true,
            ..entry("redis", "*", "addon")
        };
        let handshake = wire::Platform {
            templates: vec![
                entry("", "", "default"),
                addon,
                hot,
                entry("redis", "^7", "plain"),
                entry("redis", "*", "any"),
            ],
            ..wire::Platform::default()
        };
        let groups = |software: &str, version: &str, replicas: Option<i64>| {
            let attributes = replicas.map(|replicas| ("replicas".to_owned(), replicas.into()));
            let settings = drover_core::spec::Settings {
                platforms: vec![drover_core::spec::PlatformChoice {
                    name: "local".to_owned(),
                    ..drover_core::spec::PlatformChoice::default()
                }],
                attributes: attributes.into_iter().collect(),
                ..drover_core::spec::Settings::default()
            };
            let spec = drover_core::spec::ClusterSpec {
                software: software.to_owned(),
                version: version.to_owned(),
                settings,
                groups: vec![drover_core::spec::GroupSpec {
                    name: "db".to_owned(),
                    size: Some(1),
                    ..drover_core::spec::GroupSpec::default()
                }],
                ..drover_core::spec::ClusterSpec::default()
            };
            spec.resolve().unwrap()
        };
        let handshakes = BTreeMap::from([(Sym::from("local"), Arc::new(handshake))]);
        for (software, version, replicas, digest) in [
            ("", "", None, Some("default")),
            ("redis", "7.2", Some(3), Some("hot")),
            ("redis", "7.2", Some(2), Some("plain")),
            ("redis", "6.0", None, Some("any")),
            ("etcd", "3.5", None, None),
        ] {
            let mut groups = groups(software, version, replicas);
            let known = fill_in(&mut groups[0], software, &handshakes);
            let found = groups[0].choices[0].template.as_ref();
            assert_eq!(
                found.map(|found| &*found.digest),
                digest,
                "{software} {version}"
            );
            assert_eq!(known, digest.is_some());
        }
    }
}
