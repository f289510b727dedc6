//! Reads cluster specs from the wire.

use std::collections::BTreeMap;

use drover_core::{
    Error, Result,
    error::Violation,
    name,
    spec::{
        Amount, Bootstrap, ClusterSpec, GroupSpec, Health, Lifecycle, Management, Object,
        OrphanPolicy, PlatformChoice, Remediation, RemovalOrder, SecretRef, Settings, Update,
        UpdateStrategy, UserDataSource,
    },
    storage::{Policy, Retention, Storage, parse_quantity},
};
use drover_proto::{orchestrator::v1 as pb, platform::v1 as platform};

use crate::{lifecycle, value};

mod health;
pub(crate) mod placement;

pub use drover_core::spec::MAX_SPEC;
pub use health::health_policy;
pub use placement::to_placement;

/// Maximum number of secrets that a group makes available to templates.
const MAX_SECRETS: usize = 32;
/// Maximum length of a storage class; platforms reject longer names.
const MAX_STORAGE_CLASS: usize = 512;

struct Reader {
    wrong: Vec<Violation>,
}

/// The settings that a group shares with the cluster, the outermost group.
struct Common<'a> {
    platforms: &'a [pb::PlatformChoice],
    node_class: &'a Option<String>,
    role: &'a Option<String>,
    attributes: &'a Option<prost_types::Struct>,
    properties: &'a Option<prost_types::Struct>,
    placement: &'a Option<pb::Placement>,
    bootstrap: &'a Option<pb::BootstrapSource>,
    secrets: &'a [pb::TemplateSecret],
    management_policy: i32,
    storage: &'a Option<pb::StorageSpec>,
    lifecycle: &'a Option<platform::Lifecycle>,
    health: &'a Option<platform::HealthPolicy>,
    remediation: &'a Option<pb::RemediationPolicy>,
    update: &'a Option<pb::UpdatePolicy>,
    max_in_flight: Option<u32>,
    grace: &'a Option<prost_types::Duration>,
    expire_after: &'a Option<prost_types::Duration>,
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
            secrets: &$from.secrets,
            management_policy: $from.management_policy,
            storage: &$from.storage,
            lifecycle: &$from.lifecycle,
            health: &$from.health,
            remediation: &$from.remediation,
            update: &$from.update,
            max_in_flight: $from.max_in_flight,
            grace: &$from.termination_grace_period,
            expire_after: &$from.expire_after,
            removal_order: $from.removal_order,
            protection: $from.deletion_protection,
            provision_timeout: &$from.provision_timeout,
            stable_after: &$from.stable_after,
        }
    };
}

/// Converts a cluster spec.
///
/// # Errors
///
/// `Invalid` with all unreadable fields.
pub fn cluster_spec(from: &pb::ClusterSpec) -> Result<ClusterSpec> {
    let mut reader = Reader { wrong: Vec::new() };
    let spec = reader.cluster(from);
    if reader.wrong.is_empty() {
        return Ok(spec);
    }
    // Report the remaining errors too, so that the document can be corrected in one go.
    if let Err(more) = spec.resolve() {
        reader.wrong.extend(more.fields().iter().cloned());
    }
    Err(Error::violations(reader.wrong))
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
        let settings = self.settings("spec", &common!(from));
        let orphans = match pb::OrphanPolicy::try_from(from.orphan_policy) {
            Ok(pb::OrphanPolicy::Unspecified | pb::OrphanPolicy::Delete) => OrphanPolicy::Delete,
            Ok(pb::OrphanPolicy::Ignore) => OrphanPolicy::Ignore,
            Ok(pb::OrphanPolicy::Adopt) => OrphanPolicy::Adopt,
            Err(_) => {
                self.refuse(
                    "spec.orphan_policy",
                    format!("{} is not an orphan policy", from.orphan_policy),
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
            addons: crate::addon::specs(&from.addons, &mut self.wrong),
            orphans,
            orphan_grace: self.span("spec.orphan_grace", &from.orphan_grace),
        }
    }

    fn groups(&mut self, field: &str, from: &[pb::GroupSpec], depth: usize) -> Vec<GroupSpec> {
        // One level more than allowed, so that the domain can report it; deeper trees must not exhaust the stack.
        if depth > drover_core::spec::MAX_DEPTH {
            return Vec::new();
        }
        from.iter()
            .enumerate()
            .map(|(index, group)| self.group(&format!("{field}[{index}]"), group, depth))
            .collect()
    }

    fn group(&mut self, at: &str, from: &pb::GroupSpec, depth: usize) -> GroupSpec {
        GroupSpec {
            name: from.name.clone(),
            size: from.size,
            standby: from.standby,
            settings: self.settings(at, &common!(from)),
            groups: self.groups(&format!("{at}.groups"), &from.groups, depth + 1),
            depends_on: from.depends_on.clone(),
            version: from.version.clone(),
        }
    }

    fn settings(&mut self, at: &str, from: &Common<'_>) -> Settings {
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
            placement: from.placement.as_ref().map(|p| self.placement(at, p)),
            bootstrap: from
                .bootstrap
                .as_ref()
                .and_then(|source| self.bootstrap(at, source)),
            secrets: self.secrets(at, from.secrets),
            management: self.management(at, from.management_policy),
            lifecycle: self.lifecycle(at, from.lifecycle),
            storage: from
                .storage
                .as_ref()
                .map(|storage| self.storage(&format!("{at}.storage"), storage)),
            health: from.health.as_ref().map(|health| self.health(at, health)),
            remediation: from.remediation.as_ref().map(|r| self.remediation(at, r)),
            update: from.update.as_ref().map(|update| self.update(at, update)),
            max_in_flight: from.max_in_flight,
            grace: self.span(&format!("{at}.termination_grace_period"), from.grace),
            expire_after: self.span(&format!("{at}.expire_after"), from.expire_after),
            removal_order: self.removal_order(at, from.removal_order),
            protection: from.protection,
            provision_timeout: self
                .span(&format!("{at}.provision_timeout"), from.provision_timeout),
            stable_after: self.span(&format!("{at}.stable_after"), from.stable_after),
        }
    }

    fn bootstrap(&mut self, at: &str, from: &pb::BootstrapSource) -> Option<Bootstrap> {
        use pb::bootstrap_source::Source;
        let at = format!("{at}.bootstrap");
        let (data, text) = match &from.source {
            None => {
                self.refuse(
                    at,
                    "is empty; expected text, bytes, a key of a secret or a digest",
                );
                return None;
            }
            Some(Source::SecretKey(secret)) => {
                let secret = self.secret(&format!("{at}.secret_key"), secret);
                return Some(Bootstrap {
                    source: UserDataSource::Secret(secret),
                    render: from.render,
                    known_as: String::new(),
                    formerly_known_as: String::new(),
                });
            }
            Some(Source::Sha256(digest)) => {
                let digest = digest.to_ascii_lowercase();
                // The `k1-` form that the orchestrator returns in reads, which it can resolve.
                let digits = digest.strip_prefix("k1-").unwrap_or(&digest);
                let hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                if digits.len() != 64 || !hexadecimal {
                    self.refuse(
                        format!("{at}.sha256"),
                        "expected a digest as reads show it, or 64 hexadecimal digits",
                    );
                }
                return Some(Bootstrap {
                    source: UserDataSource::Sha256(digest),
                    render: from.render,
                    known_as: String::new(),
                    formerly_known_as: String::new(),
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
            source: UserDataSource::Sha256(drover_core::spec::digest(data)),
            render: from.render,
            known_as: String::new(),
            formerly_known_as: String::new(),
        })
    }

    fn secret(&mut self, at: &str, from: &pb::SecretKeyRef) -> SecretRef {
        if let Err(why) = name::check_name(&from.name) {
            self.refuse(format!("{at}.name"), why);
        }
        if let Err(why) = name::check_secret_key(&from.key) {
            self.refuse(format!("{at}.key"), why);
        }
        SecretRef {
            name: from.name.clone(),
            key: from.key.clone(),
        }
    }

    fn secrets(&mut self, at: &str, from: &[pb::TemplateSecret]) -> BTreeMap<String, SecretRef> {
        let at = format!("{at}.secrets");
        if from.len() > MAX_SECRETS {
            self.refuse(&at, format!("expected at most {MAX_SECRETS}"));
        }
        let mut all = BTreeMap::new();
        for (index, secret) in from.iter().enumerate().take(MAX_SECRETS) {
            let at = format!("{at}[{index}]");
            if let Err(why) = name::check_variable(&secret.name) {
                self.refuse(format!("{at}.name"), why);
            }
            let Some(key) = &secret.secret_key_ref else {
                self.refuse(format!("{at}.secret_key_ref"), "is missing");
                continue;
            };
            let key = self.secret(&format!("{at}.secret_key_ref"), key);
            if all.insert(secret.name.clone(), key).is_some() {
                self.refuse(format!("{at}.name"), "is there twice");
            }
        }
        all
    }

    fn storage(&mut self, at: &str, from: &pb::StorageSpec) -> Storage {
        let size = match from.size.as_str() {
            "" => None,
            text => match parse_quantity(text) {
                Some(bytes) if bytes > 0 => Some(bytes),
                _ => {
                    self.refuse(
                        format!("{at}.size"),
                        format!("{text:?} is not a quantity above 0; expected one like 50Gi"),
                    );
                    None
                }
            },
        };
        if from.class.len() > MAX_STORAGE_CLASS {
            self.refuse(
                format!("{at}.class"),
                format!("expected at most {MAX_STORAGE_CLASS} bytes"),
            );
        }
        Storage {
            size,
            class: from.class.clone(),
            policy: Policy {
                replaced: self.retention(&format!("{at}.when_replaced"), from.when_replaced),
                scaled: self.retention(&format!("{at}.when_scaled"), from.when_scaled),
                deleted: self.retention(&format!("{at}.when_deleted"), from.when_deleted),
            },
        }
    }

    fn retention(&mut self, field: &str, from: i32) -> Retention {
        match pb::StorageRetention::try_from(from) {
            Ok(pb::StorageRetention::Unspecified | pb::StorageRetention::Retain) => {
                Retention::Retain
            }
            Ok(pb::StorageRetention::Delete) => Retention::Delete,
            Err(_) => {
                self.refuse(field, format!("{from} is not a retention"));
                Retention::Retain
            }
        }
    }

    fn management(&mut self, at: &str, from: i32) -> Option<Management> {
        let result = lifecycle::management(&format!("{at}.management_policy"), from);
        self.take(result)
    }

    fn lifecycle(&mut self, at: &str, from: &Option<platform::Lifecycle>) -> Option<Lifecycle> {
        let result = from
            .as_ref()
            .map(|from| lifecycle::lifecycle(&format!("{at}.lifecycle"), from))
            .transpose();
        self.take(result)
    }

    fn removal_order(&mut self, at: &str, from: i32) -> Option<RemovalOrder> {
        match pb::RemovalOrder::try_from(from) {
            Ok(pb::RemovalOrder::Unspecified) => None,
            Ok(pb::RemovalOrder::Newest) => Some(RemovalOrder::Newest),
            Ok(pb::RemovalOrder::Oldest) => Some(RemovalOrder::Oldest),
            Err(_) => {
                self.refuse(
                    format!("{at}.removal_order"),
                    format!("{from} is not a removal order"),
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

    fn health(&mut self, at: &str, from: &platform::HealthPolicy) -> Health {
        let result = health_policy(&format!("{at}.health"), from);
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
        // Fields without effect are rejected rather than ignored.
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

/// Converts a retention to its API representation.
#[must_use]
pub fn to_retention(from: Option<Retention>) -> pb::StorageRetention {
    match from {
        None => pb::StorageRetention::Unspecified,
        Some(Retention::Retain) => pb::StorageRetention::Retain,
        Some(Retention::Delete) => pb::StorageRetention::Delete,
    }
}

/// Converts storage to the form that is sent to platforms.
#[must_use]
pub fn to_storage(from: &Storage) -> platform::Storage {
    platform::Storage {
        size_bytes: from.size,
        class: from.class.clone(),
    }
}

#[cfg(test)]
mod tests;
