//! Locates where a spec sets the values that a group inherits, for error messages.

use drover_core::error::Violation;
use drover_proto::orchestrator::v1 as pb;

/// Where the inherited values of a group are set: paths of enclosing groups, or its own.
#[derive(Clone)]
pub(in crate::api) struct Origin {
    pub(super) platforms: String,
    /// Which of the choices set their own class.
    pub(super) own_class: Vec<bool>,
    pub(super) class: String,
    pub(super) placement: String,
    pub(super) bootstrap: String,
    pub(super) storage: String,
    pub(super) health: String,
    pub(super) lifecycle: String,
    /// Field with the version of the store.
    version: String,
    /// Where properties are set, outermost first, and their names.
    properties: Vec<(String, Vec<String>)>,
    /// For each choice, the names of the properties that it sets itself.
    own_properties: Vec<Vec<String>>,
}

impl Origin {
    /// Origin of the group at this path of the spec (`spec.groups[0].groups[1]`).
    pub(in crate::api) fn of(spec: &pb::ClusterSpec, field: &str) -> Self {
        let own_class = |choices: &[pb::PlatformChoice]| {
            choices.iter().map(|c| c.node_class.is_some()).collect()
        };
        let own_properties = |choices: &[pb::PlatformChoice]| {
            let said = choices.iter().map(|c| names(c.properties.as_ref()));
            said.collect()
        };
        let top = || "spec".to_owned();
        let mut origin = Self {
            platforms: top(),
            own_class: own_class(&spec.platforms),
            class: top(),
            placement: top(),
            bootstrap: top(),
            storage: top(),
            health: top(),
            lifecycle: top(),
            version: "spec.store.version".to_owned(),
            properties: vec![(top(), names(spec.properties.as_ref()))],
            own_properties: own_properties(&spec.platforms),
        };
        let (mut at, mut groups) = (top(), &spec.groups);
        for part in field.split(".groups[").skip(1) {
            let index = part.trim_end_matches(']').parse().unwrap_or(usize::MAX);
            let Some(group) = groups.get(index) else {
                break;
            };
            at = format!("{at}.groups[{index}]");
            if !group.platforms.is_empty() {
                origin.platforms.clone_from(&at);
                origin.own_class = own_class(&group.platforms);
                origin.own_properties = own_properties(&group.platforms);
            }
            let said = names(group.properties.as_ref());
            origin.properties.push((at.clone(), said));
            if group.node_class.is_some() {
                origin.class.clone_from(&at);
            }
            if group.placement.is_some() {
                origin.placement.clone_from(&at);
            }
            if group.bootstrap.is_some() {
                origin.bootstrap.clone_from(&at);
            }
            if group.storage.is_some() {
                origin.storage.clone_from(&at);
            }
            if group.health.is_some() {
                origin.health.clone_from(&at);
            }
            if group.lifecycle.is_some() {
                origin.lifecycle.clone_from(&at);
            }
            if group.version.is_some() {
                origin.version = format!("{at}.version");
            }
            groups = &group.groups;
        }
        origin
    }

    pub(super) fn version(&self) -> String {
        self.version.clone()
    }

    /// What does not fit any template: the version if the platform has the store in others, else the store.
    pub(super) fn store(&self, has_others: bool) -> String {
        if has_others {
            return self.version();
        }
        "spec.store.software".to_owned()
    }

    /// What a platform says of the request for a node of this group.
    pub(super) fn theirs(&self, index: usize, platform: &str, inner: &Violation) -> Violation {
        let description = &inner.description;
        let field = match inner.field.strip_prefix("group.properties.") {
            Some(property) => self.property(index, property),
            None if inner.field == "group.version" => self.version(),
            None => {
                return Violation {
                    field: self.choice(index),
                    description: format!("{platform}: {}: {description}", inner.field),
                };
            }
        };
        Violation {
            field,
            description: format!("{platform}: {description}"),
        }
    }

    pub(in crate::api) fn bootstrap(&self) -> String {
        format!("{}.bootstrap", self.bootstrap)
    }

    pub(in crate::api) fn choice(&self, index: usize) -> String {
        format!("{}.platforms[{index}]", self.platforms)
    }

    pub(in crate::api) fn node_class(&self, index: usize) -> String {
        if self.own_class.get(index).copied().unwrap_or(false) {
            return format!("{}.node_class", self.choice(index));
        }
        format!("{}.node_class", self.class)
    }
    /// Where a choice gets a property from (`securityGroups[1]`); the choice itself if the property is not set
    /// anywhere.
    pub(in crate::api) fn property(&self, index: usize, property: &str) -> String {
        let name = property.split('[').next().unwrap_or_default();
        let says = |said: &[String]| said.iter().any(|one| one == name);
        let own = self.own_properties.get(index).is_some_and(|it| says(it));
        let outer = || self.properties.iter().rev().find(|(_, said)| says(said));
        match outer().filter(|_| !own) {
            Some((at, _)) => format!("{at}.properties.{property}"),
            None => format!("{}.properties.{property}", self.choice(index)),
        }
    }
}

fn names(properties: Option<&prost_types::Struct>) -> Vec<String> {
    properties.map_or_else(Vec::new, |it| it.fields.keys().cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_platform_says_of_the_version_is_said_where_the_version_is() {
        let mut spec = pb::ClusterSpec {
            groups: vec![pb::GroupSpec::default()],
            ..pb::ClusterSpec::default()
        };
        let inner = Violation {
            field: "group.version".to_owned(),
            description: "is not installed".to_owned(),
        };
        let said =
            |spec: &pb::ClusterSpec| Origin::of(spec, "spec.groups[0]").theirs(0, "local", &inner);
        assert_eq!(said(&spec).field, "spec.store.version");
        assert_eq!(said(&spec).description, "local: is not installed");
        spec.groups[0].version = Some("9".to_owned());
        assert_eq!(said(&spec).field, "spec.groups[0].version");
    }
}
