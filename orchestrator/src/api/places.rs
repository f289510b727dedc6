//! Checks whether the caller may place nodes as a document specifies: platforms, namespaces, classes, properties.
//!
//! Existing placements stay permitted: a caller who may change a cluster may scale, restart and edit groups that a
//! caller with more permissions has placed. A choice with a different platform, class or properties counts as a new
//! placement.

use std::{collections::BTreeSet, sync::Arc};

use drover_cluster::{Cluster, Resolved};
use drover_convert::value::object;
use drover_core::{
    Error, Reason, Result,
    error::Violation,
    spec::{Choice, Object},
};
use drover_platforms::Registered;
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};
use drover_server::access::{Part, Permission, Place};
use prost::Message;
use prost_types::value::Kind;

use super::check::{Origin, Validator};

/// The property that selects a namespace, on platforms that have namespaces.
const NAMESPACE: &str = "namespace";
/// Schema keyword by which a platform declares that a property has the effect of a node class.
const SIZE_KEYWORD: &str = "x-drover-node-class";

/// Declarations of a platform's schema about its properties.
struct Properties {
    namespaced: bool,
    /// Names of the properties that have the effect of a node class. `None` if unknown.
    sizes: Option<Vec<String>>,
}

impl Properties {
    /// Reads the schema of a platform. For a platform that does not exist or has not responded yet, the strictest
    /// assumptions are made: it may have namespaces, and any property may have the effect of a node class.
    fn of(registered: Option<&Arc<Registered>>) -> Self {
        let handshake = registered.and_then(|registered| registered.platform.handshake());
        let Some(handshake) = handshake else {
            return Self {
                namespaced: true,
                sizes: None,
            };
        };
        let schema = handshake.properties_schema.as_ref();
        let Some(Kind::StructValue(properties)) = schema
            .and_then(|schema| schema.fields.get("properties"))
            .and_then(|properties| properties.kind.as_ref())
        else {
            return Self {
                namespaced: false,
                sizes: Some(Vec::new()),
            };
        };
        let chooses_size = |property: &prost_types::Value| match &property.kind {
            Some(Kind::StructValue(property)) => property
                .fields
                .get(SIZE_KEYWORD)
                .is_some_and(|said| said.kind == Some(Kind::BoolValue(true))),
            _ => false,
        };
        let sizes = properties
            .fields
            .iter()
            .filter(|(_, property)| chooses_size(property))
            .map(|(name, _)| name.clone());
        Self {
            namespaced: properties.fields.contains_key(NAMESPACE),
            sizes: Some(sizes.collect()),
        }
    }
}

impl Validator {
    /// Refuses placements that the caller is not permitted.
    ///
    /// # Errors
    /// `PermissionDenied` with the fields.
    pub(super) fn check_places(
        &self,
        document: &pb::Cluster,
        spec: &pb::ClusterSpec,
        resolved: &Resolved,
        cluster: Option<&Arc<Cluster>>,
        validate_only: bool,
    ) -> Result<()> {
        let permission = if validate_only {
            Permission::Read
        } else {
            Permission::Change
        };
        let before = cluster.map(|cluster| cluster.lock().spec().clone());
        let before = before.as_deref();
        let refusals = |platform: &str, class: Option<&str>, properties: &Object| {
            let known = Properties::of(self.platforms.get(platform).as_ref());
            let place = Place {
                platform,
                node_class: class,
                properties,
                namespaced: known.namespaced,
                sizes: known.sizes.as_deref(),
            };
            self.access
                .caller
                .refusals(permission, &document.name, &document.labels, &place)
        };
        let mut wrong = BTreeSet::new();
        for group in &resolved.groups {
            let origin = Origin::of(spec, &group.field);
            for (index, choice) in group.choices.iter().enumerate() {
                if before.is_some_and(|before| is_placed(before, &group.path, choice)) {
                    continue;
                }
                for one in refusals(&choice.platform, Some(&choice.class), &choice.properties) {
                    let field = match &one.part {
                        Part::Platform => origin.choice(index),
                        Part::NodeClass => origin.node_class(index),
                        Part::Property(property) => origin.property(index, property),
                    };
                    wrong.insert((field, one.why));
                }
            }
        }
        for (index, wanted) in resolved.infrastructure.iter().enumerate() {
            if before.is_some_and(|before| before.infrastructure.contains(wanted)) {
                continue;
            }
            let body = wire::InfrastructureSpec::decode(&*wanted.body)
                .map_err(|_| Error::internal("an encoded spec cannot be read"))?;
            let at = format!("spec.infrastructure[{index}]");
            let properties = body.properties.as_ref();
            let properties = properties.map(|it| object(&format!("{at}.properties"), it));
            let properties = properties.transpose()?.unwrap_or_default();
            let class = body.firewall.as_ref().map(|it| it.node_class.as_str());
            for one in refusals(&wanted.platform, class, &properties) {
                let field = match &one.part {
                    Part::Platform => format!("{at}.platform"),
                    Part::NodeClass => format!("{at}.firewall.node_class"),
                    Part::Property(property) => format!("{at}.properties.{property}"),
                };
                wrong.insert((field, one.why));
            }
        }
        for (index, addon) in resolved.addons.iter().enumerate() {
            if before.is_some_and(|before| before.addons.contains(addon)) {
                continue;
            }
            let body = drover_convert::addon::decode(&addon.wanted.body)?;
            let at = format!("spec.addons[{index}]");
            let properties = body.properties.as_ref();
            let properties = properties.map(|it| object(&format!("{at}.properties"), it));
            let properties = properties.transpose()?.unwrap_or_default();
            for one in refusals(&addon.wanted.platform, None, &properties) {
                let field = match &one.part {
                    Part::Platform | Part::NodeClass => format!("{at}.platform"),
                    Part::Property(property) => format!("{at}.properties.{property}"),
                };
                wrong.insert((field, one.why));
            }
        }
        denied(&document.name, wrong)
    }
}

/// Whether a group already has an equal choice.
fn is_placed(before: &Resolved, path: &str, choice: &Choice) -> bool {
    let group = before.groups.iter().find(|group| *group.path == *path);
    let same = |old: &Choice| {
        (&old.platform, &old.class, &old.properties)
            == (&choice.platform, &choice.class, &choice.properties)
    };
    group.is_some_and(|group| group.choices.iter().any(same))
}

pub(super) fn denied(cluster: &str, wrong: BTreeSet<(String, String)>) -> Result<()> {
    let Some((field, why)) = wrong.first() else {
        return Ok(());
    };
    let message = format!("{field}: {why}");
    let error = Error::new(Reason::PermissionDenied, message).with_resource("cluster", cluster);
    let wrong = wrong
        .into_iter()
        .map(|(field, description)| Violation { field, description });
    Err(wrong.fold(error, |error, one| {
        error.with_violation(one.field, one.description)
    }))
}
