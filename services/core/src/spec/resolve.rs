//! From the tree that a user writes to the flat list of groups of nodes.

use std::{collections::HashSet, time::Duration};

use super::{
    Amount, Choice, ClusterSpec, Group, GroupSpec, MAX_CHOICES, MAX_DEPTH, MAX_GROUPS, MAX_NODES,
    Settings, Update, merge, pool, spec_hashes,
};
use crate::{
    error::{Error, Violation},
    name,
};

/// Time that a node gets to stop by itself, unless it is said.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// Longest id of a named machine; platforms refuse longer words.
const MAX_HOST: usize = 512;
/// Time that a node must be Ready before a back-off is reset, unless it is said.
const DEFAULT_STABLE_AFTER: Duration = Duration::from_secs(600);

struct Walk<'a> {
    cluster: &'a ClusterSpec,
    groups: Vec<Group>,
    wrong: Vec<Violation>,
    seen: usize,
    nodes: u64,
}

/// What a group inherits from those around it.
struct Outer<'a> {
    path: &'a str,
    settings: &'a Settings,
    version: &'a str,
}

pub(super) fn resolve(cluster: &ClusterSpec) -> Result<Vec<Group>, Error> {
    let mut walk = Walk {
        cluster,
        groups: Vec::new(),
        wrong: Vec::new(),
        seen: 0,
        nodes: 0,
    };
    walk.unsupported("spec", &cluster.unsupported);
    if cluster.software.is_empty() && !cluster.version.is_empty() {
        walk.refuse(
            "spec.store.version",
            "is set, but spec.store.software is not",
        );
    }
    walk.check_settings("spec", &cluster.settings);
    walk.refuse_hosts("spec", &cluster.settings);
    if cluster.groups.is_empty() {
        walk.refuse("spec.groups", "is empty; expected at least one group");
    }
    let outer = Outer {
        path: "",
        settings: &cluster.settings,
        version: &cluster.version,
    };
    walk.siblings("spec.groups", &cluster.groups, &outer, 1);
    crate::infrastructure::check(
        &cluster.infrastructure,
        &cluster.groups,
        &mut |field, why| {
            walk.refuse(field, why);
        },
    );
    if walk.nodes > u64::from(MAX_NODES) {
        let description = format!(
            "ask for {} nodes in all; at most {MAX_NODES} are allowed",
            walk.nodes
        );
        walk.refuse("spec.groups", description);
    }
    if walk.wrong.is_empty() {
        // Kept as long as the cluster is: without the room that it grew by.
        walk.groups.shrink_to_fit();
        Ok(walk.groups)
    } else {
        Err(Error::violations(walk.wrong))
    }
}

impl Walk<'_> {
    fn refuse(&mut self, field: impl Into<String>, description: impl Into<String>) {
        self.wrong.push(Violation {
            field: field.into(),
            description: description.into(),
        });
    }

    fn unsupported(&mut self, at: &str, fields: &[(String, &'static str)]) {
        for (field, feature) in fields {
            self.refuse(
                format!("{at}.{field}"),
                format!("{feature} is not available in this version; leave the field out"),
            );
        }
    }

    fn siblings(&mut self, field: &str, groups: &[GroupSpec], outer: &Outer<'_>, depth: usize) {
        if depth > MAX_DEPTH {
            self.refuse(field, format!("is nested deeper than {MAX_DEPTH} levels"));
            return;
        }
        let mut names = HashSet::new();
        for (index, group) in groups.iter().enumerate() {
            self.seen += 1;
            if self.seen > MAX_GROUPS {
                if self.seen == MAX_GROUPS + 1 {
                    self.refuse(field, format!("more than {MAX_GROUPS} groups in all"));
                }
                return;
            }
            let at = format!("{field}[{index}]");
            if let Err(why) = name::check_name(&group.name) {
                self.refuse(format!("{at}.name"), why);
            } else if !names.insert(group.name.as_str()) {
                self.refuse(
                    format!("{at}.name"),
                    format!("{:?} stands there twice", group.name),
                );
            }
            self.group(&at, group, outer, depth);
        }
    }

    fn group(&mut self, at: &str, group: &GroupSpec, outer: &Outer<'_>, depth: usize) {
        self.unsupported(at, &group.unsupported);
        self.check_settings(at, &group.settings);
        let path = if outer.path.is_empty() {
            group.name.clone()
        } else {
            format!("{}/{}", outer.path, group.name)
        };
        let settings = inherit(outer.settings, &group.settings);
        let version = group.version.as_deref().unwrap_or(outer.version);
        if group.groups.is_empty() {
            self.leaf(at, path, group, settings, version);
            return;
        }
        self.refuse_hosts(at, &group.settings);
        if group.size.is_some() {
            self.refuse(
                format!("{at}.size"),
                "a group that contains groups has no size of its own",
            );
        }
        let outer = Outer {
            path: &path,
            settings: &settings,
            version,
        };
        self.siblings(&format!("{at}.groups"), &group.groups, &outer, depth + 1);
    }

    fn leaf(
        &mut self,
        at: &str,
        path: String,
        spec: &GroupSpec,
        settings: Settings,
        version: &str,
    ) {
        if path.len() > name::MAX_NAME {
            self.refuse(
                format!("{at}.name"),
                format!(
                    "the path {path:?} is longer than {} characters",
                    name::MAX_NAME
                ),
            );
        }
        // Node names put hyphens for slashes, so two paths can come to the same name.
        let flat = path.replace('/', "-");
        if let Some(other) = self
            .groups
            .iter()
            .find(|g| g.path.replace('/', "-") == flat)
        {
            let description = format!(
                "the nodes of {path:?} would be named like those of {:?}",
                other.path
            );
            self.refuse(format!("{at}.name"), description);
        }
        if spec.size.is_some_and(|size| size > MAX_NODES) {
            self.refuse(
                format!("{at}.size"),
                format!("expected a whole number, 0 to {MAX_NODES}"),
            );
        } else {
            self.nodes += u64::from(spec.size.unwrap_or(1));
        }
        if settings.platforms.is_empty() {
            self.refuse(
                format!("{at}.platforms"),
                "no platform is named here or in a group around it",
            );
        }
        if self.cluster.software.is_empty() && !version.is_empty() && spec.version.is_some() {
            self.refuse(
                format!("{at}.version"),
                "is set, but spec.store.software is not",
            );
        }
        let mut group = Group {
            path: path.into(),
            field: at.to_owned(),
            size: spec.size,
            choices: Vec::with_capacity(settings.platforms.len()),
            role: settings.role.unwrap_or_default(),
            version: name::sym(version),
            attributes: settings.attributes,
            placement: settings.placement.unwrap_or_default(),
            bootstrap: settings.bootstrap,
            health: settings.health,
            remediation: settings.remediation.unwrap_or_default(),
            update: settings.update.unwrap_or_default(),
            max_in_flight: settings.max_in_flight,
            grace: settings.grace.unwrap_or(DEFAULT_GRACE),
            removal_order: settings.removal_order.unwrap_or_default(),
            protection: settings.protection.unwrap_or_default(),
            provision_timeout: settings.provision_timeout,
            stable_after: settings.stable_after.unwrap_or(DEFAULT_STABLE_AFTER),
        };
        for choice in settings.platforms.iter().take(MAX_CHOICES) {
            let mut choice = Choice {
                platform: choice.name.as_str().into(),
                class: name::sym(
                    choice
                        .node_class
                        .as_ref()
                        .or(settings.node_class.as_ref())
                        .map_or("", String::as_str),
                ),
                max: choice.max,
                properties: merge(&settings.properties, &choice.properties),
                version_requirement: choice.version_requirement.clone(),
                pool: name::sym(""),
                spec_hash: name::sym(""),
                former_hashes: Vec::new(),
            };
            choice.pool = pool(&choice.class, &choice.properties);
            let mut hashes = spec_hashes(self.cluster, &group, &choice);
            choice.spec_hash = hashes.pop().unwrap_or_default();
            choice.former_hashes = hashes;
            group.choices.push(choice);
        }
        self.check_hosts(at, &group);
        self.check_budget(at, &group, spec.settings.update.is_some());
        self.groups.push(group);
    }

    fn refuse_hosts(&mut self, at: &str, settings: &Settings) {
        if settings
            .placement
            .as_ref()
            .is_some_and(|placement| !placement.hosts.is_empty())
        {
            self.refuse(
                format!("{at}.placement.hosts"),
                "machines can be named in a group of nodes only",
            );
        }
    }

    /// An update has to be able to begin: nodes above the size, or nodes below it.
    fn check_budget(&mut self, at: &str, group: &Group, own: bool) {
        let budget = group.budget();
        let size = group.size.unwrap_or(1);
        if size == 0 || budget.surge + budget.unavailable > 0 || both_zero(&group.update) {
            return;
        }
        let description = if group.delete_first() {
            format!(
                "named machines are replaced one after the other has gone: with {size} nodes this leaves none of them \
                 unavailable; expected at least 1"
            )
        } else {
            format!(
                "with {size} nodes neither one more nor one less is allowed, so nothing could ever be replaced; raise \
                 max_surge or max_unavailable"
            )
        };
        let field = if own {
            format!("{at}.update.max_unavailable")
        } else {
            at.to_owned()
        };
        self.refuse(field, description);
    }

    fn check_update(&mut self, at: &str, update: &Update) {
        for (field, amount) in [
            ("max_surge", update.max_surge),
            ("max_unavailable", update.max_unavailable),
        ] {
            if let Some(Amount::Percent(percent @ 101..)) = amount {
                self.refuse(
                    format!("{at}.update.{field}"),
                    format!("{percent} percent; expected 0 to 100 percent"),
                );
            }
        }
        if both_zero(update) {
            self.refuse(
                format!("{at}.update.max_surge"),
                "is 0, and so is max_unavailable: nothing could ever be replaced; raise one of them",
            );
        }
        if update.progress_deadline.is_zero() {
            self.refuse(format!("{at}.update.progress_deadline"), "must be above 0");
        }
    }

    /// Each named machine is for one group, and there are enough of them.
    fn check_hosts(&mut self, at: &str, group: &Group) {
        let hosts = &group.placement.hosts;
        let Some(platform) = group.choices.first().map(|choice| &choice.platform) else {
            return;
        };
        if hosts.is_empty() {
            return;
        }
        let field = format!("{at}.placement.hosts");
        if group.choices.iter().any(|c| c.platform != *platform) {
            self.refuse(
                field.clone(),
                "are machines of one platform, but the group names several",
            );
        }
        let size = group.size.unwrap_or(1) as usize;
        if hosts.len() < size {
            let description = format!(
                "names {} machines for {size} nodes; expected at least as many",
                hosts.len()
            );
            self.refuse(field.clone(), description);
        }
        let mut wrong = Vec::new();
        for (index, host) in hosts.iter().enumerate() {
            let others = self.groups.iter().filter(|other| {
                other
                    .choices
                    .first()
                    .is_some_and(|c| c.platform == *platform)
                    && other.placement.hosts.contains(host)
            });
            let description = if host.is_empty() || host.len() > MAX_HOST {
                format!("expected the platform's id of a machine, 1 to {MAX_HOST} bytes")
            } else if hosts[..index].contains(host) {
                format!("{host:?} stands there twice")
            } else if let Some(other) = others.into_iter().next() {
                format!("{host:?} is named by group {:?} already", other.path)
            } else {
                continue;
            };
            wrong.push((format!("{field}[{index}]"), description));
        }
        for (field, description) in wrong {
            self.refuse(field, description);
        }
    }

    fn check_settings(&mut self, at: &str, settings: &Settings) {
        if settings.platforms.len() > MAX_CHOICES {
            self.refuse(
                format!("{at}.platforms"),
                format!("at most {MAX_CHOICES} platforms are possible"),
            );
        }
        for (index, choice) in settings.platforms.iter().enumerate() {
            if let Err(why) = name::check_name(&choice.name) {
                self.refuse(format!("{at}.platforms[{index}].name"), why);
            }
        }
        if settings.max_in_flight == Some(0) {
            self.refuse(
                format!("{at}.max_in_flight"),
                "0 would let nothing happen; expected at least 1",
            );
        }
        if let Some(health) = &settings.health {
            for (field, zero) in [
                ("interval", health.interval.is_zero()),
                ("timeout", health.timeout.is_zero()),
                ("failure_threshold", health.failure_threshold == 0),
                ("success_threshold", health.success_threshold == 0),
                ("startup_timeout", health.startup_timeout.is_zero()),
            ] {
                if zero {
                    self.refuse(format!("{at}.health.{field}"), "must be above 0");
                }
            }
        }
        if let Some(remediation) = &settings.remediation {
            if let Amount::Percent(101..) = remediation.max_unhealthy {
                self.refuse(
                    format!("{at}.remediation.max_unhealthy"),
                    "expected 0 to 100 percent",
                );
            }
            if remediation.max_retries == 0 {
                self.refuse(
                    format!("{at}.remediation.max_retries"),
                    "expected at least 1",
                );
            }
        }
        if let Some(update) = &settings.update {
            self.check_update(at, update);
        }
        for (index, spread) in settings
            .placement
            .iter()
            .flat_map(|p| &p.spread)
            .enumerate()
        {
            let at = format!("{at}.placement.spread[{index}]");
            if spread.topology_key.is_empty() {
                self.refuse(
                    format!("{at}.topology_key"),
                    "is empty; expected zone, rack, host, region or a label",
                );
            }
            if spread.max_skew == 0 {
                self.refuse(format!("{at}.max_skew"), "expected at least 1");
            }
            if spread.max_per_domain == Some(0) {
                self.refuse(format!("{at}.max_per_domain"), "expected at least 1");
            }
        }
    }
}

/// Whether it says that nothing may ever be replaced.
fn both_zero(update: &Update) -> bool {
    let zero = |amount| matches!(amount, Some(Amount::Count(0) | Amount::Percent(0)));
    zero(update.max_surge) && zero(update.max_unavailable)
}

fn inherit(outer: &Settings, inner: &Settings) -> Settings {
    let own = inner.clone();
    Settings {
        platforms: if own.platforms.is_empty() {
            outer.platforms.clone()
        } else {
            own.platforms
        },
        node_class: own.node_class.or_else(|| outer.node_class.clone()),
        role: own.role.or_else(|| outer.role.clone()),
        attributes: merge(&outer.attributes, &own.attributes),
        properties: merge(&outer.properties, &own.properties),
        placement: own.placement.or_else(|| outer.placement.clone()),
        bootstrap: own.bootstrap.or_else(|| outer.bootstrap.clone()),
        health: own.health.or_else(|| outer.health.clone()),
        remediation: own.remediation.or(outer.remediation),
        update: own.update.or(outer.update),
        max_in_flight: own.max_in_flight.or(outer.max_in_flight),
        grace: own.grace.or(outer.grace),
        removal_order: own.removal_order.or(outer.removal_order),
        protection: own.protection.or(outer.protection),
        provision_timeout: own.provision_timeout.or(outer.provision_timeout),
        stable_after: own.stable_after.or(outer.stable_after),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::spec::{Bootstrap, Object, Placement, PlatformChoice};

    fn object(value: serde_json::Value) -> Object {
        value.as_object().cloned().unwrap_or_default()
    }

    fn on(platform: &str) -> Vec<PlatformChoice> {
        vec![PlatformChoice {
            name: platform.into(),
            ..Default::default()
        }]
    }

    fn leaf(name: &str, size: u32) -> GroupSpec {
        GroupSpec {
            name: name.into(),
            size: Some(size),
            ..Default::default()
        }
    }

    #[test]
    fn groups_inherit_and_maps_merge_by_key() {
        let mut inner = leaf("hot", 2);
        inner.settings.properties = object(json!({"b": null, "c": 3}));
        let outer = GroupSpec {
            name: "data".into(),
            settings: Settings {
                platforms: on("local"),
                properties: object(json!({"a": 1, "b": 2})),
                ..Default::default()
            },
            groups: vec![inner],
            ..Default::default()
        };
        let spec = ClusterSpec {
            groups: vec![outer],
            ..Default::default()
        };
        let groups = spec.resolve().unwrap();
        assert_eq!(&*groups[0].path, "data/hot");
        assert_eq!(&*groups[0].choices[0].platform, "local");
        assert_eq!(
            serde_json::Value::Object(groups[0].choices[0].properties.clone()),
            json!({"a": 1, "c": 3})
        );
        assert_eq!(groups[0].grace, Duration::from_secs(30));
    }

    #[test]
    fn every_wrong_field_is_named_at_once() {
        let mut twice = leaf("a", 20_000);
        twice.unsupported.push(("standby".into(), "standby"));
        let spec = ClusterSpec {
            groups: vec![leaf("a", 1), twice],
            ..Default::default()
        };
        let error = spec.resolve().unwrap_err();
        let fields: Vec<&str> = error.fields().iter().map(|v| v.field.as_str()).collect();
        for field in [
            "spec.groups[0].platforms",
            "spec.groups[1].name",
            "spec.groups[1].size",
            "spec.groups[1].standby",
        ] {
            assert!(fields.contains(&field), "{field} in {fields:?}");
        }
    }

    #[test]
    fn depth_number_and_names_are_limited() {
        let mut group = leaf("g", 1);
        for _ in 0..MAX_DEPTH {
            group = GroupSpec {
                name: "g".into(),
                groups: vec![group],
                ..Default::default()
            };
        }
        let spec = ClusterSpec {
            groups: vec![group],
            ..Default::default()
        };
        assert!(spec.resolve().unwrap_err().message().contains("deeper"));

        let groups = (0..=MAX_GROUPS)
            .map(|n| leaf(&format!("g{n}"), 0))
            .collect();
        let settings = Settings {
            platforms: on("local"),
            ..Default::default()
        };
        let spec = ClusterSpec {
            groups,
            settings,
            ..Default::default()
        };
        assert!(spec.resolve().unwrap_err().message().contains("more than"));
    }

    fn wrong(groups: Vec<GroupSpec>, settings: Settings) -> Vec<String> {
        let spec = ClusterSpec {
            groups,
            settings,
            ..Default::default()
        };
        let error = spec.resolve().unwrap_err();
        error.fields().iter().map(|v| v.field.clone()).collect()
    }

    fn on_machines(name: &str, size: u32, platform: &str, machines: &[&str]) -> GroupSpec {
        let mut group = leaf(name, size);
        group.settings.platforms = on(platform);
        group.settings.placement = Some(Placement {
            hosts: machines.iter().map(|host| (*host).into()).collect(),
            ..Default::default()
        });
        group
    }

    #[test]
    fn each_machine_is_for_one_group_and_there_are_enough_of_them() {
        let none = Settings::default;
        let few = on_machines("a", 3, "metal", &["m1", "m2"]);
        assert_eq!(wrong(vec![few], none()), ["spec.groups[0].placement.hosts"]);
        let twice = on_machines("a", 1, "metal", &["m1", "m2", "m1", ""]);
        let fields = [
            "spec.groups[0].placement.hosts[2]",
            "spec.groups[0].placement.hosts[3]",
        ];
        assert_eq!(wrong(vec![twice], none()), fields);
        let first = on_machines("a", 1, "metal", &["m1"]);
        let shared = on_machines("b", 1, "metal", &["m2", "m1"]);
        let fields = ["spec.groups[1].placement.hosts[1]"];
        assert_eq!(wrong(vec![first.clone(), shared], none()), fields);
        let mut several = first.clone();
        several.settings.platforms.extend(on("other"));
        assert_eq!(
            wrong(vec![several], none()),
            ["spec.groups[0].placement.hosts"]
        );
        let outer = Settings {
            platforms: on("metal"),
            placement: first.settings.placement.clone(),
            ..Default::default()
        };
        let inside = GroupSpec {
            name: "outer".into(),
            settings: outer.clone(),
            groups: vec![on_machines("in", 1, "metal", &["m3"])],
            ..Default::default()
        };
        let fields = wrong(vec![inside], outer);
        for field in ["spec.placement.hosts", "spec.groups[0].placement.hosts"] {
            assert!(
                fields.iter().any(|one| one == field),
                "{field} in {fields:?}"
            );
        }
        // The same name on another platform is another machine.
        let elsewhere = on_machines("b", 1, "other", &["m1"]);
        let spec = ClusterSpec {
            groups: vec![first, elsewhere],
            ..Default::default()
        };
        assert_eq!(spec.resolve().unwrap()[1].placement.hosts.len(), 1);
    }

    #[test]
    fn user_data_is_inherited_and_part_of_what_makes_a_node() {
        let data = |text: &str, render| Bootstrap {
            sha256: crate::spec::digest(text.as_bytes()),
            render,
        };
        let groups = |outer, inner| {
            let mut group = leaf("g", 1);
            group.settings.bootstrap = inner;
            let settings = Settings {
                platforms: on("local"),
                bootstrap: outer,
                ..Default::default()
            };
            let spec = ClusterSpec {
                groups: vec![group],
                settings,
                ..Default::default()
            };
            spec.resolve().unwrap().remove(0)
        };
        let hash = |group: Group| group.choices[0].spec_hash.clone();
        let plain = hash(groups(None, None));
        let inherited = groups(Some(data("x", false)), None);
        assert_eq!(inherited.bootstrap, Some(data("x", false)));
        let own = groups(Some(data("y", true)), Some(data("x", false)));
        assert_eq!(hash(inherited.clone()), hash(own));
        assert_ne!(hash(inherited.clone()), plain);
        assert_ne!(
            hash(inherited.clone()),
            hash(groups(Some(data("x", true)), None))
        );
        assert_ne!(hash(inherited), hash(groups(Some(data("z", false)), None)));
    }

    #[test]
    fn choices_of_one_class_and_other_properties_take_other_capacity() {
        let mut group = leaf("g", 1);
        group.settings.node_class = Some("m6i".into());
        let spot = PlatformChoice {
            name: "aws".into(),
            properties: object(json!({"capacityType": "spot"})),
            ..Default::default()
        };
        group.settings.platforms = vec![spot, on("aws").remove(0)];
        let spec = ClusterSpec {
            groups: vec![group],
            ..Default::default()
        };
        let choices = spec.resolve().unwrap().remove(0).choices;
        assert_ne!(choices[0].pool, choices[1].pool);
        assert_eq!(&*choices[1].pool, "m6i");
    }

    #[test]
    fn the_hash_knows_what_makes_a_node_and_nothing_else() {
        let hash = |change: &dyn Fn(&mut GroupSpec)| {
            let mut group = leaf("g", 1);
            group.settings.platforms = on("local");
            group.settings.properties = object(json!({"a": 1, "b": {"x": 1, "y": 2}}));
            change(&mut group);
            ClusterSpec {
                groups: vec![group],
                ..Default::default()
            }
            .resolve()
            .unwrap()[0]
                .choices[0]
                .spec_hash
                .clone()
        };
        let plain = hash(&|_| {});
        assert_eq!(plain, hash(&|g| g.size = Some(7)));
        assert_eq!(
            plain,
            hash(&|g| g.settings.grace = Some(Duration::from_secs(1)))
        );
        assert_eq!(
            plain,
            hash(&|g| g.settings.properties = object(json!({"b": {"y": 2, "x": 1}, "a": 1})))
        );
        assert_ne!(
            plain,
            hash(&|g| g.settings.properties = object(json!({"a": 2})))
        );
        assert_ne!(
            plain,
            hash(&|g| g.settings.node_class = Some("large".into()))
        );
        assert!(plain.len() <= 63);
    }
}
