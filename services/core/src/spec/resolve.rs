//! Flattens the user's tree of groups into a list of groups of nodes.

use std::{collections::HashSet, time::Duration};

use super::{
    Amount, Choice, ClusterSpec, Group, GroupSpec, MAX_CHOICES, MAX_DEPTH, MAX_GROUPS, MAX_NODES,
    Settings, Update,
    hash::{Sizes, labels_hash, pool, spec_hashes},
    merge, minima, order,
};
use crate::{
    error::{Error, Violation},
    name, words,
};

/// Default time that a node gets to stop gracefully.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// Maximum length of the id of a named machine; platforms reject longer ids.
const MAX_HOST: usize = 512;
/// Default time that a node must be Ready before a backoff is reset.
const DEFAULT_STABLE_AFTER: Duration = Duration::from_secs(600);

struct Walk<'a> {
    cluster: &'a ClusterSpec,
    groups: Vec<Group>,
    wrong: Vec<Violation>,
    seen: usize,
    nodes: u64,
}

/// Settings that a group inherits from its ancestors.
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
    if cluster.software.is_empty() && !cluster.version.is_empty() {
        walk.refuse(
            "spec.store.version",
            "a version needs a store: spec.store.software is not set",
        );
    }
    walk.check_settings("spec", &cluster.settings);
    walk.refuse_hosts("spec", &cluster.settings);
    if cluster.groups.is_empty() {
        walk.refuse("spec.groups", "a cluster needs at least one group");
    }
    let outer = Outer {
        path: "",
        settings: &cluster.settings,
        version: &cluster.version,
    };
    walk.siblings("spec.groups", &cluster.groups, &outer, 1);
    for (field, why) in order::resolve(&cluster.groups, &mut walk.groups) {
        walk.refuse(field, why);
    }
    crate::infrastructure::check(
        &cluster.infrastructure,
        &cluster.groups,
        &mut |field, why| {
            walk.refuse(field, why);
        },
    );
    crate::addon::check(&cluster.addons, &cluster.groups, &mut |field, why| {
        walk.refuse(field, why);
    });
    if walk.nodes > u64::from(MAX_NODES) {
        let description = format!(
            "all groups together have {} nodes; at most {MAX_NODES} are possible",
            walk.nodes
        );
        walk.refuse("spec.groups", description);
    }
    if walk.wrong.is_empty() {
        // The list lives as long as the cluster, so excess capacity is released.
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
                    format!("two groups here are named {:?}", group.name),
                );
            }
            self.group(&at, group, outer, depth);
        }
    }

    fn group(&mut self, at: &str, group: &GroupSpec, outer: &Outer<'_>, depth: usize) {
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
        if group.standby.is_some() {
            self.refuse(
                format!("{at}.standby"),
                "a group that contains groups has no nodes of its own",
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
        // Node names replace slashes with hyphens, so that two paths can map to the same name.
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
        for (field, count) in [
            ("size", spec.size.unwrap_or(1)),
            ("standby", spec.standby.unwrap_or(0)),
        ] {
            if count > MAX_NODES {
                self.refuse(
                    format!("{at}.{field}"),
                    format!("expected a whole number, 0 to {MAX_NODES}"),
                );
            } else {
                self.nodes += u64::from(count);
            }
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
                "a version needs a store: spec.store.software is not set",
            );
        }
        let mut group = Group {
            path: path.into(),
            field: at.to_owned(),
            size: spec.size,
            standby: spec.standby.unwrap_or(0),
            choices: Vec::with_capacity(settings.platforms.len()),
            role: settings.role.unwrap_or_default(),
            version: name::sym(version),
            attributes: settings.attributes,
            placement: settings.placement.unwrap_or_default(),
            bootstrap: settings.bootstrap.map(Box::new),
            secrets: settings.secrets,
            storage: settings.storage.map(Box::new),
            management: settings.management,
            lifecycle: settings.lifecycle.map(Box::new),
            depends_on: Vec::new(),
            health: settings.health.map(Box::new),
            remediation: settings.remediation.unwrap_or_default(),
            update: settings.update.unwrap_or_default(),
            max_in_flight: settings.max_in_flight,
            grace: settings.grace.unwrap_or(DEFAULT_GRACE),
            expire_after: settings.expire_after,
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
                labels_hash: name::sym(""),
                sizes: Sizes::default(),
                template: None,
            };
            choice.labels_hash = labels_hash(&choice.properties);
            choice.pool = pool(
                &choice.class,
                &choice.properties,
                group.placement.selector.as_deref(),
            );
            choice.sizes = Sizes::of(self.cluster, &group, &choice);
            let mut hashes = spec_hashes(self.cluster, &group, &choice);
            choice.spec_hash = hashes.pop().unwrap_or_default();
            hashes.shrink_to_fit();
            choice.former_hashes = hashes;
            group.choices.push(choice);
        }
        self.check_hosts(at, &group);
        self.check_storage(at, &group, &spec.settings);
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

    /// An update must be able to make progress: either surge or unavailable nodes are required.
    fn check_budget(&mut self, at: &str, group: &Group, own: bool) {
        let budget = group.budget();
        let size = group.total();
        if size == 0 || budget.surge + budget.unavailable > 0 || both_zero(&group.update) {
            return;
        }
        let nodes = words::count(size, "node");
        let description = if group.delete_first() {
            format!(
                "{} are replaced one after the other has gone: with {nodes} this leaves none of them unavailable; \
                 expected at least 1",
                if group.placement.hosts.is_empty() {
                    "nodes on kept storage"
                } else {
                    "named machines"
                }
            )
        } else {
            format!(
                "with {nodes} neither one more nor one less is allowed, so nothing could ever be replaced; raise \
                 maxSurge or maxUnavailable"
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
                "with maxSurge and maxUnavailable both 0 no node could ever be replaced; raise one of them",
            );
        }
        if update.progress_deadline.is_zero() {
            self.refuse(format!("{at}.update.progress_deadline"), "must be above 0");
        }
    }

    /// Each named machine belongs to one group only, and there must be enough of them.
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
        let size = group.total() as usize;
        if hosts.len() < size {
            let description = format!(
                "names {} for {}; expected at least as many",
                words::count(hosts.len(), "machine"),
                words::count(size, "node")
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
                format!("{host:?} appears twice")
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

    /// Retained storage requires a single platform and one node at a time.
    fn check_storage(&mut self, at: &str, group: &Group, own: &Settings) {
        let field = |own: bool, name: &str| {
            if own {
                format!("{at}.{name}")
            } else {
                at.to_owned()
            }
        };
        let keeps = group.storage.as_ref().is_some_and(|it| it.policy.keeps());
        let platforms = || group.choices.iter().map(|choice| &choice.platform);
        if keeps && platforms().any(|one| Some(one) != platforms().next()) {
            self.refuse(
                field(own.storage.is_some(), "storage"),
                "is kept on one platform, but the group names several; name one, or let it be deleted with its node \
                 (whenReplaced, whenScaled and whenDeleted: Delete)",
            );
        }
        if group.hands_on_storage() && group.remediation.create_first {
            self.refuse(
                field(own.remediation.is_some(), "remediation.create_first"),
                "the storage of a sick node can be handed on only when it is gone; leave this out, or set \
                 storage.whenReplaced to Delete",
            );
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
        if settings.expire_after.is_some_and(|age| age.is_zero()) {
            self.wrong.push(minima::too_young(at));
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
        let selector = settings
            .placement
            .as_ref()
            .and_then(|p| p.selector.as_ref());
        if let Some(selector) = selector {
            selector.check(&format!("{at}.placement.selector"), &mut self.wrong);
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

/// Whether the update explicitly forbids any replacement.
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
        secrets: {
            let mut all = outer.secrets.clone();
            all.extend(own.secrets);
            all
        },
        storage: own.storage.or_else(|| outer.storage.clone()),
        management: own.management.or(outer.management),
        lifecycle: own.lifecycle.or_else(|| outer.lifecycle.clone()),
        health: own.health.or_else(|| outer.health.clone()),
        remediation: own.remediation.or(outer.remediation),
        update: own.update.or(outer.update),
        max_in_flight: own.max_in_flight.or(outer.max_in_flight),
        grace: own.grace.or(outer.grace),
        expire_after: own.expire_after.or(outer.expire_after),
        removal_order: own.removal_order.or(outer.removal_order),
        protection: own.protection.or(outer.protection),
        provision_timeout: own.provision_timeout.or(outer.provision_timeout),
        stable_after: own.stable_after.or(outer.stable_after),
    }
}

#[cfg(test)]
mod tests;
