//! Cluster specs from the wire. What this version cannot do is carried along by name, so that it is refused and never
//! ignored.

use drover_core::{
    Error, Result,
    error::Violation,
    spec::{
        Amount, Bootstrap, ClusterSpec, GroupSpec, Health, Object, OrphanPolicy, Placement,
        PlatformChoice, Port, Probe, Remediation, RemovalOrder, Settings, Spread, Update,
        UpdateStrategy,
    },
};
use drover_proto::{orchestrator::v1 as pb, platform::v1 as platform};

use crate::value;

pub use drover_core::spec::MAX_SPEC;

struct Reader {
    wrong: Vec<Violation>,
}

/// The part of a group that it has in common with the cluster, the outermost group.
struct Common<'a> {
    platforms: &'a [pb::PlatformChoice],
    node_class: &'a Option<String>,
    role: &'a Option<String>,
    attributes: &'a Option<prost_types::Struct>,
    properties: &'a Option<prost_types::Struct>,
    placement: &'a Option<pb::Placement>,
    bootstrap: &'a Option<pb::BootstrapSource>,
    management_policy: i32,
    storage: bool,
    lifecycle: bool,
    health: &'a Option<platform::HealthPolicy>,
    remediation: &'a Option<pb::RemediationPolicy>,
    update: &'a Option<pb::UpdatePolicy>,
    max_in_flight: Option<u32>,
    grace: &'a Option<prost_types::Duration>,
    expire_after: bool,
    removal_order: i32,
    protection: Option<bool>,
    provision_timeout: &'a Option<prost_types::Duration>,
    stable_after: &'a Option<prost_types::Duration>,
}

macro_rules! common {
    ($from:expr) => {
        Common {
            platforms: &$from.platforms,
            node_class: &$from.node_class,
            role: &$from.role,
            attributes: &$from.attributes,
            properties: &$from.properties,
            placement: &$from.placement,
            bootstrap: &$from.bootstrap,
            management_policy: $from.management_policy,
            storage: $from.storage.is_some(),
            lifecycle: $from.lifecycle.is_some(),
            health: &$from.health,
            remediation: &$from.remediation,
            update: &$from.update,
            max_in_flight: $from.max_in_flight,
            grace: &$from.termination_grace_period,
            expire_after: $from.expire_after.is_some(),
            removal_order: $from.removal_order,
            protection: $from.deletion_protection,
            provision_timeout: &$from.provision_timeout,
            stable_after: &$from.stable_after,
        }
    };
}

/// A spec of the domain.
///
/// # Errors
/// `Invalid` with every field that cannot be read.
pub fn cluster_spec(from: &pb::ClusterSpec) -> Result<ClusterSpec> {
    let mut reader = Reader { wrong: Vec::new() };
    let spec = reader.cluster(from);
    if reader.wrong.is_empty() {
        return Ok(spec);
    }
    // Whoever has to correct a document wants to know all of it at once.
    if let Err(more) = spec.resolve() {
        reader.wrong.extend(more.fields().iter().cloned());
    }
    Err(Error::violations(reader.wrong))
}

type Unsupported = Vec<(String, &'static str)>;

fn lacks(list: &mut Unsupported, set: bool, field: &str, feature: &'static str) {
    if set {
        list.push((field.to_owned(), feature));
    }
}

impl Reader {
    fn refuse(&mut self, field: impl Into<String>, description: impl Into<String>) {
        self.wrong.push(Violation {
            field: field.into(),
            description: description.into(),
        });
    }

    fn take<T: Default>(&mut self, from: Result<T>) -> T {
        from.unwrap_or_else(|error| {
            self.wrong.extend(error.fields().iter().cloned());
            T::default()
        })
    }

    fn cluster(&mut self, from: &pb::ClusterSpec) -> ClusterSpec {
        let mut unsupported = Unsupported::new();
        lacks(
            &mut unsupported,
            !from.addons.is_empty(),
            "addons",
            "addons",
        );
        let settings = self.settings("spec", &common!(from), &mut unsupported);
        let orphans = match pb::OrphanPolicy::try_from(from.orphan_policy) {
            Ok(pb::OrphanPolicy::Unspecified | pb::OrphanPolicy::Delete) => OrphanPolicy::Delete,
            Ok(pb::OrphanPolicy::Ignore) => OrphanPolicy::Ignore,
            Ok(pb::OrphanPolicy::Adopt) => {
                lacks(
                    &mut unsupported,
                    true,
                    "orphan_policy",
                    "adoption of orphans",
                );
                OrphanPolicy::Ignore
            }
            Err(_) => {
                self.refuse(
                    "spec.orphan_policy",
                    format!("{} is no orphan policy", from.orphan_policy),
                );
                OrphanPolicy::Ignore
            }
        };
        let store = from.store.clone().unwrap_or_default();
        if from.store.is_some() && store.software.is_empty() {
            self.refuse(
                "spec.store.software",
                "is empty; expected the name of a store, or no store at all",
            );
        }
        ClusterSpec {
            software: store.software,
            version: store.version,
            settings,
            infrastructure: crate::infrastructure::specs(&from.infrastructure, &mut self.wrong),
            groups: self.groups("spec.groups", &from.groups, 0),
            orphans,
            orphan_grace: self.span("spec.orphan_grace", &from.orphan_grace),
            unsupported,
        }
    }

    fn groups(&mut self, field: &str, from: &[pb::GroupSpec], depth: usize) -> Vec<GroupSpec> {
        // One level more than allowed, so that the domain can name it; a deeper tree must not exhaust the stack.
        if depth > drover_core::spec::MAX_DEPTH {
            return Vec::new();
        }
        from.iter()
            .enumerate()
            .map(|(index, group)| self.group(&format!("{field}[{index}]"), group, depth))
            .collect()
    }

    fn group(&mut self, at: &str, from: &pb::GroupSpec, depth: usize) -> GroupSpec {
        let mut unsupported = Unsupported::new();
        lacks(
            &mut unsupported,
            from.standby.is_some_and(|n| n > 0),
            "standby",
            "standby",
        );
        lacks(
            &mut unsupported,
            !from.depends_on.is_empty(),
            "depends_on",
            "order between groups",
        );
        GroupSpec {
            name: from.name.clone(),
            size: from.size,
            settings: self.settings(at, &common!(from), &mut unsupported),
            groups: self.groups(&format!("{at}.groups"), &from.groups, depth + 1),
            version: from.version.clone(),
            unsupported,
        }
    }

    fn settings(&mut self, at: &str, from: &Common<'_>, unsupported: &mut Unsupported) -> Settings {
        lacks(unsupported, from.storage, "storage", "storage");
        lacks(unsupported, from.lifecycle, "lifecycle", "lifecycle hooks");
        lacks(
            unsupported,
            from.expire_after,
            "expire_after",
            "a maximal lifetime",
        );
        self.management_policy(at, from.management_policy, unsupported);
        Settings {
            platforms: from
                .platforms
                .iter()
                .enumerate()
                .map(|(index, choice)| self.choice(&format!("{at}.platforms[{index}]"), choice))
                .collect(),
            node_class: from.node_class.clone(),
            role: from.role.clone(),
            attributes: self.object(&format!("{at}.attributes"), from.attributes),
            properties: self.object(&format!("{at}.properties"), from.properties),
            placement: from
                .placement
                .as_ref()
                .map(|p| self.placement(at, p, unsupported)),
            bootstrap: from
                .bootstrap
                .as_ref()
                .and_then(|source| self.bootstrap(at, source, unsupported)),
            health: from
                .health
                .as_ref()
                .map(|health| self.health(at, health, unsupported)),
            remediation: from.remediation.as_ref().map(|r| self.remediation(at, r)),
            update: from.update.as_ref().map(|update| self.update(at, update)),
            max_in_flight: from.max_in_flight,
            grace: self.span(&format!("{at}.termination_grace_period"), from.grace),
            removal_order: self.removal_order(at, from.removal_order),
            protection: from.protection,
            provision_timeout: self
                .span(&format!("{at}.provision_timeout"), from.provision_timeout),
            stable_after: self.span(&format!("{at}.stable_after"), from.stable_after),
        }
    }

    fn bootstrap(
        &mut self,
        at: &str,
        from: &pb::BootstrapSource,
        unsupported: &mut Unsupported,
    ) -> Option<Bootstrap> {
        use pb::bootstrap_source::Source;
        let at = format!("{at}.bootstrap");
        let (data, text) = match &from.source {
            None => {
                self.refuse(at, "is empty; expected text, bytes or a digest");
                return None;
            }
            Some(Source::SecretKey(_)) => {
                lacks(
                    unsupported,
                    true,
                    "bootstrap.secret_key",
                    "user data from a secret",
                );
                return None;
            }
            Some(Source::Sha256(digest)) => {
                let hexadecimal = digest.bytes().all(|byte| byte.is_ascii_hexdigit());
                if digest.len() != 64 || !hexadecimal {
                    self.refuse(format!("{at}.sha256"), "expected 64 hexadecimal digits");
                }
                return Some(Bootstrap {
                    sha256: digest.to_ascii_lowercase(),
                    render: from.render,
                });
            }
            Some(Source::Text(text)) => (text.as_bytes(), true),
            Some(Source::Binary(data)) => (data.as_slice(), std::str::from_utf8(data).is_ok()),
        };
        if data.is_empty() {
            self.refuse(&at, "is empty; leave it out for nodes without user data");
        }
        if from.render && !text {
            self.refuse(format!("{at}.render"), "only text can be rendered");
        }
        Some(Bootstrap {
            sha256: drover_core::spec::digest(data),
            render: from.render,
        })
    }

    fn management_policy(&mut self, at: &str, from: i32, unsupported: &mut Unsupported) {
        use platform::ManagementPolicy;
        match ManagementPolicy::try_from(from) {
            Ok(ManagementPolicy::Unspecified | ManagementPolicy::Parallel) => {}
            Ok(ManagementPolicy::OrderedReady) => {
                lacks(
                    unsupported,
                    true,
                    "management_policy",
                    "order within a group",
                );
            }
            Err(_) => self.refuse(
                format!("{at}.management_policy"),
                format!("{from} is no management policy"),
            ),
        }
    }

    fn removal_order(&mut self, at: &str, from: i32) -> Option<RemovalOrder> {
        match pb::RemovalOrder::try_from(from) {
            Ok(pb::RemovalOrder::Unspecified) => None,
            Ok(pb::RemovalOrder::Newest) => Some(RemovalOrder::Newest),
            Ok(pb::RemovalOrder::Oldest) => Some(RemovalOrder::Oldest),
            Err(_) => {
                self.refuse(
                    format!("{at}.removal_order"),
                    format!("{from} is no removal order"),
                );
                None
            }
        }
    }

    fn span(
        &mut self,
        field: &str,
        from: &Option<prost_types::Duration>,
    ) -> Option<std::time::Duration> {
        let result = from
            .as_ref()
            .map(|span| value::duration(field, span))
            .transpose();
        self.take(result)
    }

    fn object(&mut self, field: &str, from: &Option<prost_types::Struct>) -> Object {
        let result = from
            .as_ref()
            .map(|object| value::object(field, object))
            .transpose();
        self.take(result).unwrap_or_default()
    }

    fn choice(&mut self, at: &str, from: &pb::PlatformChoice) -> PlatformChoice {
        PlatformChoice {
            name: from.name.clone(),
            node_class: from.node_class.clone(),
            max: from.max,
            properties: self.object(&format!("{at}.properties"), &from.properties),
            version_requirement: if from.version_requirement == "latest" {
                String::new()
            } else {
                from.version_requirement.clone()
            },
        }
    }

    fn placement(
        &mut self,
        at: &str,
        from: &pb::Placement,
        unsupported: &mut Unsupported,
    ) -> Placement {
        lacks(
            unsupported,
            from.selector.is_some(),
            "placement.selector",
            "placement by labels of the host",
        );
        let spread = from
            .spread
            .iter()
            .enumerate()
            .map(|(index, spread)| self.spread(&format!("{at}.placement.spread[{index}]"), spread))
            .collect();
        Placement {
            failure_domains: from.failure_domains.clone(),
            spread,
            hosts: from.hosts.iter().map(|host| host.as_str().into()).collect(),
        }
    }

    fn spread(&mut self, at: &str, from: &platform::Spread) -> Spread {
        use platform::{SpreadScope, UnsatisfiableAction};
        let required = match UnsatisfiableAction::try_from(from.when_unsatisfiable) {
            Ok(UnsatisfiableAction::Unspecified | UnsatisfiableAction::ScheduleAnyway) => false,
            Ok(UnsatisfiableAction::DoNotSchedule) => true,
            Err(_) => {
                self.refuse(
                    format!("{at}.when_unsatisfiable"),
                    "expected DoNotSchedule or ScheduleAnyway",
                );
                false
            }
        };
        let over_cluster = match SpreadScope::try_from(from.scope) {
            Ok(SpreadScope::Unspecified | SpreadScope::Group) => false,
            Ok(SpreadScope::Cluster) => true,
            Err(_) => {
                self.refuse(format!("{at}.scope"), "expected group or cluster");
                false
            }
        };
        Spread {
            topology_key: from.topology_key.clone(),
            max_skew: from.max_skew.unwrap_or(1),
            required,
            max_per_domain: from.max_per_domain,
            over_cluster,
        }
    }

    fn health(
        &mut self,
        at: &str,
        from: &platform::HealthPolicy,
        unsupported: &mut Unsupported,
    ) -> Health {
        let result = health_policy(&format!("{at}.health"), from);
        lacks(
            unsupported,
            matches!(from.probe, Some(platform::health_policy::Probe::Exec(_))),
            "health.exec",
            "a probe by a command",
        );
        self.take(result.map(Some)).unwrap_or_default()
    }

    fn remediation(&mut self, at: &str, from: &pb::RemediationPolicy) -> Remediation {
        let default = Remediation::default();
        let max_unhealthy = self.amount(
            &format!("{at}.remediation.max_unhealthy"),
            from.max_unhealthy.as_ref(),
        );
        Remediation {
            enabled: from.enabled.unwrap_or(default.enabled),
            max_unhealthy: max_unhealthy.unwrap_or(default.max_unhealthy),
            max_retries: from.max_retries.unwrap_or(default.max_retries),
            create_first: from.create_first.unwrap_or(default.create_first),
        }
    }

    fn amount(&mut self, field: &str, from: Option<&pb::CountOrPercent>) -> Option<Amount> {
        match from?.amount {
            Some(pb::count_or_percent::Amount::Count(count)) => Some(Amount::Count(count)),
            Some(pb::count_or_percent::Amount::Percent(percent)) => Some(Amount::Percent(percent)),
            None => {
                self.refuse(field, "expected a count or a percentage");
                None
            }
        }
    }

    fn update(&mut self, at: &str, from: &pb::UpdatePolicy) -> Update {
        let at = format!("{at}.update");
        let strategy = match pb::UpdateStrategy::try_from(from.strategy) {
            Ok(pb::UpdateStrategy::OnDelete) => UpdateStrategy::OnDelete,
            Ok(pb::UpdateStrategy::Unspecified | pb::UpdateStrategy::Rolling) => {
                UpdateStrategy::Rolling
            }
            Err(_) => {
                self.refuse(
                    format!("{at}.strategy"),
                    "expected RollingUpdate or OnDelete",
                );
                UpdateStrategy::Rolling
            }
        };
        let default = Update::default();
        let update = Update {
            strategy,
            max_surge: self.amount(&format!("{at}.max_surge"), from.max_surge.as_ref()),
            max_unavailable: self.amount(
                &format!("{at}.max_unavailable"),
                from.max_unavailable.as_ref(),
            ),
            min_ready: self
                .span(&format!("{at}.min_ready"), &from.min_ready)
                .unwrap_or(default.min_ready),
            progress_deadline: self
                .span(&format!("{at}.progress_deadline"), &from.progress_deadline)
                .unwrap_or(default.progress_deadline),
        };
        // What would never be heeded is refused, not ignored.
        if strategy == UpdateStrategy::OnDelete {
            for (field, set) in [
                ("max_surge", from.max_surge.is_some()),
                ("max_unavailable", from.max_unavailable.is_some()),
                ("min_ready", from.min_ready.is_some()),
                ("progress_deadline", from.progress_deadline.is_some()),
            ] {
                if set {
                    self.refuse(
                        format!("{at}.{field}"),
                        "is for RollingUpdate; with OnDelete only the strategy is said",
                    );
                }
            }
        }
        update
    }
}

/// A health policy of the domain. A probe by a command becomes the platform's own readiness.
///
/// # Errors
/// `Invalid` with the wrong field.
pub fn health_policy(at: &str, from: &platform::HealthPolicy) -> Result<Health> {
    use platform::health_policy::Probe as Wire;
    let default = Health::default();
    let port = |field: &str, port: &Option<platform::PortRef>| -> Result<Option<Port>> {
        match port.as_ref().map(|port| &port.port) {
            None => Ok(None),
            Some(Some(platform::port_ref::Port::Name(name))) => Ok(Some(Port::Name(name.clone()))),
            Some(Some(platform::port_ref::Port::Number(number))) => match u16::try_from(*number) {
                Ok(number) if number > 0 => Ok(Some(Port::Number(number))),
                _ => Err(Error::invalid(
                    format!("{at}.{field}.port"),
                    "expected 1 to 65535",
                )),
            },
            Some(None) => Err(Error::invalid(
                format!("{at}.{field}.port"),
                "expected a name or a number",
            )),
        }
    };
    let span = |field: &str, from: &Option<prost_types::Duration>, default| {
        from.as_ref().map_or(Ok(default), |span| {
            value::duration(&format!("{at}.{field}"), span)
        })
    };
    let probe = match &from.probe {
        None | Some(Wire::Phase(_) | Wire::Exec(_)) => Probe::Phase,
        Some(Wire::Grpc(probe)) => Probe::Grpc {
            port: port("grpc", &probe.port)?,
            service: probe.service.clone(),
        },
        Some(Wire::Http(probe)) => {
            if probe.tls {
                return Err(Error::invalid(
                    format!("{at}.http.tls"),
                    "https is not available in this version",
                ));
            }
            let path = if probe.path.is_empty() {
                "/healthz".to_owned()
            } else {
                probe.path.clone()
            };
            if !path.starts_with('/') || path.contains(char::is_whitespace) {
                return Err(Error::invalid(
                    format!("{at}.http.path"),
                    "expected a path that begins with a slash",
                ));
            }
            Probe::Http {
                port: port("http", &probe.port)?,
                path,
            }
        }
        Some(Wire::Tcp(probe)) => Probe::Tcp {
            port: port("tcp", &probe.port)?,
        },
    };
    Ok(Health {
        probe,
        interval: span("interval", &from.interval, default.interval)?,
        timeout: span("timeout", &from.timeout, default.timeout)?,
        failure_threshold: from.failure_threshold.unwrap_or(default.failure_threshold),
        success_threshold: from.success_threshold.unwrap_or(default.success_threshold),
        startup_timeout: span(
            "startup_timeout",
            &from.startup_timeout,
            default.startup_timeout,
        )?,
    })
}

/// Placement as platforms are told it.
#[must_use]
pub fn to_placement(from: &Placement) -> Option<platform::Placement> {
    // Named machines travel with each slot.
    if from.failure_domains.is_empty() && from.spread.is_empty() {
        return None;
    }
    let spread = from.spread.iter().map(|spread| {
        let action = if spread.required {
            platform::UnsatisfiableAction::DoNotSchedule
        } else {
            platform::UnsatisfiableAction::ScheduleAnyway
        };
        let scope = if spread.over_cluster {
            platform::SpreadScope::Cluster
        } else {
            platform::SpreadScope::Group
        };
        platform::Spread {
            topology_key: spread.topology_key.clone(),
            max_skew: Some(spread.max_skew),
            when_unsatisfiable: action.into(),
            max_per_domain: spread.max_per_domain,
            scope: scope.into(),
        }
    });
    Some(platform::Placement {
        spread: spread.collect(),
        selector: None,
        failure_domains: from.failure_domains.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(change: impl Fn(&mut pb::GroupSpec)) -> Result<ClusterSpec> {
        let mut group = pb::GroupSpec {
            name: "db".into(),
            size: Some(1),
            platforms: vec![pb::PlatformChoice {
                name: "metal".into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        change(&mut group);
        let spec = cluster_spec(&pb::ClusterSpec {
            groups: vec![group],
            ..Default::default()
        })?;
        spec.resolve().map(|_| spec)
    }

    fn bootstrap(
        source: Option<pb::bootstrap_source::Source>,
        render: bool,
    ) -> Result<ClusterSpec> {
        spec(|group| {
            group.bootstrap = Some(pb::BootstrapSource {
                source: source.clone(),
                render,
            });
        })
    }

    fn fields<T: std::fmt::Debug>(answer: Result<T>) -> Vec<String> {
        let error = answer.unwrap_err();
        error.fields().iter().map(|v| v.field.clone()).collect()
    }

    #[test]
    fn user_data_becomes_its_digest() {
        use pb::bootstrap_source::Source;
        let digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        for source in [
            Source::Text("hello".into()),
            Source::Binary(b"hello".to_vec()),
            Source::Sha256(digest.to_ascii_uppercase()),
        ] {
            let spec = bootstrap(Some(source), true).unwrap();
            let expected = Bootstrap {
                sha256: digest.to_owned(),
                render: true,
            };
            assert_eq!(spec.groups[0].settings.bootstrap, Some(expected));
        }
        let at = "spec.groups[0].bootstrap";
        let key = pb::SecretKeyRef::default();
        for (source, render, field) in [
            (None, false, at.to_owned()),
            (Some(Source::Text(String::new())), false, at.to_owned()),
            (
                Some(Source::Binary(vec![255])),
                true,
                format!("{at}.render"),
            ),
            (
                Some(Source::Sha256("12".into())),
                false,
                format!("{at}.sha256"),
            ),
            (
                Some(Source::SecretKey(key)),
                false,
                format!("{at}.secret_key"),
            ),
        ] {
            assert_eq!(fields(bootstrap(source, render)), [field]);
        }
    }

    #[test]
    fn named_machines_are_read_and_travel_with_slots_alone() {
        let hosts = |names: &[&str]| {
            let hosts: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            spec(move |group| {
                group.placement = Some(pb::Placement {
                    hosts: hosts.clone(),
                    ..Default::default()
                });
            })
        };
        let read = hosts(&["metalstack://1f", "m2"]).unwrap();
        let placement = read.groups[0].settings.placement.clone().unwrap();
        assert_eq!(&*placement.hosts[0], "metalstack://1f");
        assert_eq!(to_placement(&placement), None);
        let twice = "spec.groups[0].placement.hosts[1]";
        assert_eq!(fields(hosts(&["m2", "m2"])), [twice]);
    }
}
