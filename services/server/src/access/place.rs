//! Limits of a grant on where and how nodes may be created: platforms, namespaces, classes and properties. A single
//! grant must allow the whole placement; two grants that each allow a part do not add up.

use std::collections::BTreeMap;

use drover_core::{
    allow::{AllowList, describe, matches},
    spec::Object,
};
use serde_json::Value;

use super::{Caller, Grant, Permission};

/// Property by which platforms receive the namespace.
const NAMESPACE: &str = "namespace";

/// The limits of a binding as written in an access file.
pub(super) struct LimitsFile {
    pub(super) platforms: Option<Vec<String>>,
    pub(super) namespaces: Option<Vec<String>>,
    pub(super) node_classes: Option<Vec<String>>,
    pub(super) properties: Option<BTreeMap<String, Vec<Value>>>,
}

/// Limits of a grant. Empty fields were omitted and do not limit anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    platforms: Vec<String>,
    namespaces: Vec<String>,
    node_classes: Vec<String>,
    properties: AllowList,
}

/// Where and how nodes are to be created.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Name of the platform.
    pub platform: &'a str,
    /// Node class; empty for the platform's default. `None` if the object is not a node and has no class.
    pub node_class: Option<&'a str>,
    /// Merged properties for the platform.
    pub properties: &'a Object,
    /// Whether objects on this platform belong to a namespace.
    pub namespaced: bool,
    /// Names of the properties that determine the size of a node, as a class does. `None` if not known, in which case
    /// any property might.
    pub sizes: Option<&'a [String]>,
}

/// A part of a placement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The platform.
    Platform,
    /// The node class.
    NodeClass,
    /// A property (`securityGroups[1]`).
    Property(String),
}

/// A part of a placement that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// The rejected part.
    pub part: Part,
    /// The reason, phrased to follow the field name.
    pub why: String,
}

impl LimitsFile {
    pub(super) fn read(self) -> Result<Limits, String> {
        if self.properties.as_ref().is_some_and(BTreeMap::is_empty) {
            return Err(
                "properties is empty; leave it out to allow all, or write \"*\": [] in it to allow none".to_owned(),
            );
        }
        Ok(Limits {
            platforms: patterns("platforms", self.platforms)?,
            namespaces: patterns("namespaces", self.namespaces)?,
            node_classes: patterns("node_classes", self.node_classes)?,
            properties: AllowList::new(self.properties.unwrap_or_default())
                .map_err(|(property, why)| format!("properties.{property}: {why}"))?,
        })
    }
}

/// Validates a list of patterns. An omitted list yields no patterns and does not limit anything.
pub(super) fn patterns(name: &str, list: Option<Vec<String>>) -> Result<Vec<String>, String> {
    let Some(patterns) = list else {
        return Ok(Vec::new());
    };
    if patterns.is_empty() {
        return Err(ambiguous(name));
    }
    if patterns.iter().any(String::is_empty) {
        return Err(format!("{name}: a pattern is empty"));
    }
    Ok(patterns)
}

/// The error for an empty list, whose author may have meant either everything or nothing.
pub(super) fn ambiguous(name: &str) -> String {
    format!("{name} is empty; leave it out to allow all, or take the binding out to allow nothing")
}

impl Limits {
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether nothing is limited but namespaces.
    pub(super) fn is_of_namespaces(&self) -> bool {
        let Self {
            platforms,
            namespaces: _,
            node_classes,
            properties,
        } = self;
        platforms.is_empty() && node_classes.is_empty() && *properties == AllowList::default()
    }

    /// Whether they allow what is in a namespace; `None` for what is in none.
    pub(super) fn reach(&self, namespace: Option<&str>) -> bool {
        self.namespaces.is_empty() || namespace.is_some_and(|name| any(&self.namespaces, name))
    }

    fn names(&self, platform: &str) -> bool {
        self.platforms.is_empty() || any(&self.platforms, platform)
    }

    fn refusals(&self, place: &Place<'_>) -> Vec<Refusal> {
        if !self.names(place.platform) {
            let why = format!(
                "platform {:?} is outside of what the caller may use",
                place.platform
            );
            let part = Part::Platform;
            return vec![Refusal { part, why }];
        }
        let mut refused: Vec<Refusal> = self.class(place).into_iter().collect();
        refused.extend(self.namespace(place));
        let properties = self.properties.refusals(place.properties);
        refused.extend(properties.into_iter().map(|(property, why)| Refusal {
            part: Part::Property(property),
            why: format!("{why} for the caller"),
        }));
        refused.sort();
        refused.dedup_by(|a, b| a.part == b.part);
        refused
    }

    fn class(&self, place: &Place<'_>) -> Option<Refusal> {
        let class = place.node_class.filter(|_| !self.node_classes.is_empty())?;
        let why = || format!("{} for the caller", allowed(&self.node_classes));
        let mut chosen = !class.is_empty();
        let Some(sizes) = place.sizes else {
            return self.class_of_unknown(class, place.properties);
        };
        for property in sizes {
            match place.properties.get(property) {
                None | Some(Value::Null) => {}
                Some(Value::String(name)) if any(&self.node_classes, name) => chosen = true,
                Some(_) => {
                    let part = Part::Property(property.clone());
                    return Some(Refusal { part, why: why() });
                }
            }
        }
        let fits = if class.is_empty() && chosen {
            true
        } else {
            any(&self.node_classes, class)
        };
        let part = Part::NodeClass;
        (!fits).then(|| Refusal { part, why: why() })
    }

    /// Checks the class while any property might override it.
    fn class_of_unknown(&self, class: &str, properties: &Object) -> Option<Refusal> {
        if self.node_classes.iter().any(|pattern| pattern == "*") {
            return None;
        }
        if !any(&self.node_classes, class) {
            let why = format!("{} for the caller", allowed(&self.node_classes));
            let part = Part::NodeClass;
            return Some(Refusal { part, why });
        }
        let mut set = properties
            .iter()
            .filter(|(name, value)| *name != NAMESPACE && !value.is_null());
        set.next().map(|(name, _)| Refusal {
            part: Part::Property(name.clone()),
            why: "may choose what a node class chooses, to which the caller is held; nobody knows before the platform has \
                  answered once since the orchestrator started"
                .to_owned(),
        })
    }

    fn namespace(&self, place: &Place<'_>) -> Option<Refusal> {
        if self.namespaces.is_empty() {
            return None;
        }
        let fits = match place.properties.get(NAMESPACE) {
            // The platform chooses the namespace itself.
            None | Some(Value::Null) => !place.namespaced,
            Some(Value::String(name)) => any(&self.namespaces, name),
            Some(_) => false,
        };
        let part = Part::Property(NAMESPACE.to_owned());
        let why = format!("{} for the caller", allowed(&self.namespaces));
        (!fits).then_some(Refusal { part, why })
    }
}

fn any(patterns: &[String], text: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, text))
}

fn allowed(patterns: &[String]) -> String {
    let patterns: Vec<Value> = patterns.iter().cloned().map(Value::String).collect();
    describe(&patterns)
}

impl Caller {
    /// Returns why a cluster with this name and these labels may not have nodes at a place. Empty if it may.
    ///
    /// Use `Permission::Read` for planning and `Permission::Change` for executing.
    #[must_use]
    pub fn refusals(
        &self,
        permission: Permission,
        cluster: &str,
        labels: &BTreeMap<String, String>,
        place: &Place<'_>,
    ) -> Vec<Refusal> {
        let Some(grants) = &self.grants else {
            return Vec::new();
        };
        let refusals = covering(grants, permission, cluster, Some(labels))
            .map(|grant| grant.limits.refusals(place));
        // Report the refusals of the grant that comes closest to allowing it.
        let platform = |one: &Vec<Refusal>| one.iter().any(|it| it.part == Part::Platform);
        let nearest = refusals.min_by_key(|one| (platform(one), one.len()));
        nearest.unwrap_or_else(|| {
            let why = "is outside of what the caller may use".to_owned();
            let part = Part::Platform;
            vec![Refusal { part, why }]
        })
    }

    /// Whether it may change the resources of a cluster on a platform. `labels` is `None` if not known.
    #[must_use]
    pub fn changes_on(
        &self,
        platform: &str,
        cluster: &str,
        labels: Option<&BTreeMap<String, String>>,
    ) -> bool {
        self.grants.as_ref().is_none_or(|grants| {
            covering(grants, Permission::Change, cluster, labels)
                .any(|grant| grant.limits.names(platform))
        })
    }

    /// Whether it may change a cluster whose nodes have unknown locations and properties.
    #[must_use]
    pub fn changes_anywhere(&self, cluster: &str) -> bool {
        self.grants.as_ref().is_none_or(|grants| {
            covering(grants, Permission::Change, cluster, None).any(|grant| grant.limits.is_none())
        })
    }

    /// Whether it may see a platform.
    #[must_use]
    pub fn sees_platform(&self, platform: &str) -> bool {
        self.grants.as_ref().is_none_or(|grants| {
            grants
                .iter()
                .any(|grant| grant.role.has(Permission::Read) && grant.limits.names(platform))
        })
    }
}

fn covering<'a>(
    grants: &'a [Grant],
    permission: Permission,
    cluster: &'a str,
    labels: Option<&'a BTreeMap<String, String>>,
) -> impl Iterator<Item = &'a Grant> {
    grants
        .iter()
        .filter(move |grant| grant.role.has(permission) && grant.covers(cluster, labels))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Role;

    fn grant(limits: &str) -> Grant {
        let file: serde_json::Value = serde_saphyr::from_str(limits).unwrap();
        let list = |name: &str| serde_json::from_value(file[name].clone()).unwrap_or_default();
        let limits = LimitsFile {
            platforms: list("platforms"),
            namespaces: list("namespaces"),
            node_classes: list("node_classes"),
            properties: serde_json::from_value(file["properties"].clone()).unwrap_or_default(),
        };
        let mut grant = Grant::whole(Role::Operator);
        grant.limits = limits.read().unwrap();
        grant
    }

    fn refused(grants: &[&str], platform: &str, class: &str, properties: Value) -> Vec<Part> {
        let sizes = ["instanceType".to_owned(), "memory".to_owned()];
        refused_at(grants, platform, class, properties, Some(&sizes))
    }

    fn refused_at(
        grants: &[&str],
        platform: &str,
        class: &str,
        properties: Value,
        sizes: Option<&[String]>,
    ) -> Vec<Part> {
        let caller = Caller::new(grants.iter().map(|limits| grant(limits)).collect());
        let Value::Object(properties) = properties else {
            panic!("an object")
        };
        let place = Place {
            platform,
            node_class: Some(class),
            properties: &properties,
            namespaced: platform.starts_with("k8s"),
            sizes,
        };
        let refusals = caller.refusals(Permission::Change, "orders", &BTreeMap::new(), &place);
        refusals.into_iter().map(|refusal| refusal.part).collect()
    }

    fn property(name: &str) -> Part {
        Part::Property(name.to_owned())
    }

    #[test]
    fn a_grant_without_limits_allows_every_place() {
        assert!(refused(&["{}"], "k8s", "huge", json!({"namespace": "kube-system"})).is_empty());
    }

    #[test]
    fn a_namespace_has_to_be_named_where_there_are_some() {
        let grants = &["{namespaces: ['shop-*']}"];
        for (platform, properties, fits) in [
            ("k8s", json!({"namespace": "shop-a"}), true),
            ("k8s", json!({"namespace": "bank"}), false),
            ("k8s", json!({"namespace": null}), false),
            ("k8s", json!({"namespace": ["shop-a"]}), false),
            ("k8s", json!({}), false),
            ("aws", json!({}), true),
        ] {
            let wrong = refused(grants, platform, "", properties.clone());
            let wanted = if fits {
                vec![]
            } else {
                vec![property("namespace")]
            };
            assert_eq!(wrong, wanted, "{platform} {properties}");
        }
    }

    #[test]
    fn a_class_is_neither_left_out_nor_chosen_by_a_property_instead() {
        let grants = &["{node_classes: [small, 't3.*']}"];
        for (class, properties, wanted) in [
            ("small", json!({}), vec![]),
            ("huge", json!({}), vec![Part::NodeClass]),
            ("", json!({}), vec![Part::NodeClass]),
            ("", json!({"instanceType": "t3.nano"}), vec![]),
            (
                "",
                json!({"instanceType": "m7i.48xlarge"}),
                vec![property("instanceType")],
            ),
            (
                "small",
                json!({"instanceType": "m7i.48xlarge"}),
                vec![property("instanceType")],
            ),
            ("small", json!({"memory": 512}), vec![property("memory")]),
        ] {
            assert_eq!(
                refused(grants, "aws", class, properties.clone()),
                wanted,
                "{class} {properties}"
            );
        }
        assert!(refused(&["{node_classes: ['*']}"], "aws", "", json!({})).is_empty());
    }

    #[test]
    fn while_nobody_knows_which_properties_choose_a_class_each_may() {
        let unknown = |grants: &[&str], class: &str, properties: Value| {
            refused_at(grants, "k8s", class, properties, None)
        };
        let grants = &["{node_classes: [small]}"];
        assert!(unknown(grants, "small", json!({"namespace": "shop", "image": null})).is_empty());
        assert_eq!(
            unknown(grants, "small", json!({"instanceType": "huge"})),
            [property("instanceType")]
        );
        assert_eq!(unknown(grants, "", json!({})), [Part::NodeClass]);
        for grant in ["{node_classes: ['*']}", "{}"] {
            assert!(unknown(&[grant], "", json!({"instanceType": "huge"})).is_empty());
        }
    }

    #[test]
    fn one_grant_has_to_allow_all_of_a_place() {
        let grants = &[
            "{platforms: [dev]}",
            "{platforms: [prod], node_classes: [small]}",
        ];
        assert!(refused(grants, "dev", "huge", json!({})).is_empty());
        assert!(refused(grants, "prod", "small", json!({})).is_empty());
        assert_eq!(
            refused(grants, "prod", "huge", json!({})),
            [Part::NodeClass]
        );
        assert_eq!(
            refused(grants, "other", "small", json!({})),
            [Part::Platform]
        );
    }

    #[test]
    fn properties_are_those_that_are_listed() {
        let grants = &["{properties: {iamInstanceProfile: ['orders-*'], securityGroups: []}}"];
        assert!(
            refused(
                grants,
                "aws",
                "",
                json!({"iamInstanceProfile": "orders-db"})
            )
            .is_empty()
        );
        assert_eq!(
            refused(
                grants,
                "aws",
                "",
                json!({"iamInstanceProfile": "admin", "securityGroups": ["a"]})
            ),
            [
                property("iamInstanceProfile"),
                property("securityGroups[0]")
            ]
        );
        // An empty list is a choice, too.
        assert_eq!(
            refused(grants, "aws", "", json!({"securityGroups": []})),
            [property("securityGroups")]
        );
    }

    #[test]
    fn a_platform_that_no_grant_names_is_not_seen_and_nothing_of_unknown_place_is_taken_over() {
        let caller = |limits: &str| Caller::new([grant(limits)].into());
        assert!(caller("{platforms: ['dev-*']}").sees_platform("dev-a"));
        assert!(!caller("{platforms: ['dev-*']}").sees_platform("prod"));
        assert!(!caller("{platforms: ['dev-*']}").sees_all());
        assert!(!caller("{platforms: ['dev-*']}").changes_anywhere("orders"));
        assert!(caller("{}").changes_anywhere("orders") && caller("{}").sees_all());
        assert!(caller("{platforms: [dev]}").changes_on("dev", "orders", None));
        assert!(!caller("{platforms: [dev]}").changes_on("prod", "orders", None));
    }
}
