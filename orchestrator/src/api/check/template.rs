//! What a group may ask of the template that makes its nodes.

use drover_cluster::template;
use drover_convert::{lifecycle::lifecycle, template::exceeded};
use drover_core::{
    Error, Result,
    error::Violation,
    spec::{Choice, Group},
};
use drover_proto::platform::v1 as wire;

use super::{Origin, Validator};

/// Refuses what the template of a group cannot provide.
pub(super) fn check(
    origin: &Origin,
    index: usize,
    group: &Group,
    choice: &Choice,
    software: &str,
    handshake: &wire::Platform,
) -> Vec<Violation> {
    let Some(entry) = template::entry(handshake, software, group) else {
        return Vec::new();
    };
    let limits = entry.limits.unwrap_or_default();
    let named = named(entry, software, &choice.platform);
    let mut wrong: Vec<Violation> = counts(group, entry)
        .into_iter()
        .map(|(field, why)| Violation {
            field: format!("{}.{field}", group.field),
            description: format!("{named} {why}"),
        })
        .collect();
    if limits.ignores_version && !group.version.is_empty() {
        wrong.push(Violation {
            field: origin.version(),
            description: format!("{named} takes whichever version is there; leave the version out"),
        });
    }
    if limits.ignores_node_class && !choice.class.is_empty() && handshake.node_classes.is_empty() {
        wrong.push(Violation {
            field: origin.node_class(index),
            description: format!("{named} knows no node classes; leave the node class out"),
        });
    }
    wrong
}

fn named(entry: &wire::TemplateEntry, software: &str, platform: &str) -> String {
    let of = if software.is_empty() { "" } else { " of " };
    format!(
        "template {}{of}{software} on platform {platform}",
        entry.template
    )
}

/// Fields with more nodes than the template provides for, or fewer than it needs, and why.
fn counts(group: &Group, entry: &wire::TemplateEntry) -> Vec<(&'static str, String)> {
    let limits = entry.limits.unwrap_or_default();
    let mut wrong = exceeded(&limits, group.size.unwrap_or(1), group.standby);
    let defaults = entry.defaults.as_ref();
    let suggested = defaults.and_then(|defaults| defaults.lifecycle.as_ref());
    let suggested = suggested.and_then(|it| lifecycle("lifecycle", it).ok()?.sole_writer);
    if let Some(writer) = suggested {
        let (needs, attribute) = (writer.needs(&group.attributes), &writer.standbys_attribute);
        if (1..needs).contains(&group.standby) {
            let why = format!(
                "needs at least {needs} standby nodes to acknowledge anything (attribute `{attribute}`), or none at all"
            );
            wrong.push(("standby", why));
        }
    }
    wrong
}

impl Validator {
    /// Refuses more nodes than a group had if one of its platforms cannot provide for them.
    pub(in crate::api) fn check_counts(&self, group: &Group, software: &str) -> Result<()> {
        for choice in &group.choices {
            let registered = self.platforms.get(&choice.platform);
            let Some(handshake) = registered.and_then(|it| it.platform.handshake()) else {
                continue;
            };
            if let Some((_, why)) = Self::check_roles(group, &choice.platform, &handshake)
                .into_iter()
                .next()
            {
                return Err(Error::invalid("standby", why));
            }
            let Some(entry) = template::entry(&handshake, software, group) else {
                continue;
            };
            if let Some((field, why)) = counts(group, entry).into_iter().next() {
                let named = named(entry, software, &choice.platform);
                return Err(Error::invalid(field, format!("{named} {why}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(most: (Option<u32>, Option<u32>, Option<u32>)) -> wire::TemplateEntry {
        let limits = wire::TemplateLimits {
            max_size: most.0,
            max_standby: most.1,
            max_size_with_standby: most.2,
            ..wire::TemplateLimits::default()
        };
        wire::TemplateEntry {
            limits: Some(limits),
            ..wire::TemplateEntry::default()
        }
    }

    fn group() -> Group {
        let spec = drover_core::spec::ClusterSpec {
            settings: drover_core::spec::Settings {
                platforms: vec![drover_core::spec::PlatformChoice {
                    name: "local".to_owned(),
                    ..Default::default()
                }],
                ..Default::default()
            },
            groups: vec![drover_core::spec::GroupSpec {
                name: "db".to_owned(),
                ..Default::default()
            }],
            ..Default::default()
        };
        spec.resolve().unwrap().remove(0)
    }

    #[test]
    fn a_group_has_enough_standbys_for_what_it_acknowledges_or_none() {
        let hook = wire::LifecycleHook {
            exec: vec!["together".to_owned()],
            ..wire::LifecycleHook::default()
        };
        let writer = wire::SoleWriter {
            revoke: Some(hook),
            standbys_attribute: "synchronous".to_owned(),
            ..wire::SoleWriter::default()
        };
        let lifecycle = wire::Lifecycle {
            sole_writer: Some(writer),
            ..wire::Lifecycle::default()
        };
        let entry = wire::TemplateEntry {
            defaults: Some(wire::TemplateDefaults {
                lifecycle: Some(lifecycle),
                ..wire::TemplateDefaults::default()
            }),
            ..wire::TemplateEntry::default()
        };
        for (synchronous, standby, is_refused) in [
            (None, 0, false),
            (None, 1, false),
            (Some(0), 1, false),
            (Some(2), 0, false),
            (Some(2), 1, true),
            (Some(2), 2, false),
        ] {
            let mut group = Group { standby, ..group() };
            if let Some(synchronous) = synchronous {
                let attribute = "synchronous".to_owned();
                group.attributes.insert(attribute, synchronous.into());
            }
            let fields: Vec<&str> = counts(&group, &entry).iter().map(|it| it.0).collect();
            let expected: &[&str] = if is_refused { &["standby"] } else { &[] };
            assert_eq!(fields, expected, "{synchronous:?} {standby}");
        }
    }

    #[test]
    fn a_group_has_no_more_nodes_than_its_template_provides_for() {
        let group = group();
        let primary = (Some(1), None, None);
        let members = (None, Some(0), None);
        let alone_or_followed = (None, None, Some(1));
        for (most, size, standby, refused) in [
            (primary, 1, 2, &[][..]),
            (primary, 0, 0, &[]),
            (
                primary,
                2,
                0,
                &["size: has at most 1 active node; further nodes are `standby` nodes"],
            ),
            (members, 5, 0, &[]),
            (
                members,
                3,
                1,
                &["standby: has no standby nodes; raise `size` instead"],
            ),
            (alone_or_followed, 4, 0, &[]),
            (alone_or_followed, 1, 4, &[]),
            (
                alone_or_followed,
                2,
                1,
                &[
                    "size: has at most 1 active node in a group with standby nodes, which would not know whom to follow",
                ],
            ),
            ((None, None, None), 9, 9, &[]),
        ] {
            let group = Group {
                size: Some(size),
                standby,
                ..group.clone()
            };
            let found: Vec<String> = counts(&group, &limits(most))
                .into_iter()
                .map(|(field, why)| format!("{field}: {why}"))
                .collect();
            assert_eq!(found, refused, "{most:?} {size} {standby}");
        }
    }
}
