//! Checks of requests, before a backend sees them: all that is wrong is named at once, each with the path of its field.
//! What may be written in several ways is written in one.

mod affinity;
mod configuration;
mod container;
pub(crate) mod ingress;
mod network_policy;
mod pod;
mod request;
mod service;
pub(crate) mod syntax;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{Error, Result, error::Violation, name::RESERVED_PREFIX};
use drover_proto::{
    common::v1::{LabelOperator, LabelSelector},
    kubernetes::v1 as api,
};

pub(crate) use self::request::*;
use crate::served::Served;

/// Violations of one request that are kept. Further ones would only make the answer longer than its limit.
const MAX_VIOLATIONS: usize = 256;
/// Maximum size of all annotations of an object in bytes, as in Kubernetes.
const MAX_ANNOTATIONS: usize = 256 * 1024;
/// Most requirements of a selector: it becomes part of a URL, which servers limit to 8 KiB and more.
const MAX_REQUIREMENTS: usize = 256;

/// Collects what is wrong with a request.
#[derive(Debug, Default)]
pub(crate) struct Check(Vec<Violation>);

impl Check {
    pub(crate) fn wrong(&mut self, field: impl Into<String>, description: impl Into<String>) {
        if self.0.len() < MAX_VIOLATIONS {
            self.0.push(Violation {
                field: field.into(),
                description: description.into(),
            });
        }
    }

    pub(crate) fn said(&mut self, field: impl Into<String>, outcome: Result<(), String>) {
        if let Err(why) = outcome {
            self.wrong(field, why);
        }
    }

    pub(crate) fn finish(self) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(Error::violations(self.0))
    }

    /// A value that must be there and have a syntax.
    pub(crate) fn required(
        &mut self,
        field: impl Into<String>,
        value: &str,
        syntax: fn(&str) -> Result<(), String>,
    ) {
        if value.is_empty() {
            self.wrong(field, "is required");
        } else {
            self.said(field, syntax(value));
        }
    }

    /// A value that may be empty, or else must have a syntax.
    pub(crate) fn optional(
        &mut self,
        field: impl Into<String>,
        value: &str,
        syntax: fn(&str) -> Result<(), String>,
    ) {
        if !value.is_empty() {
            self.said(field, syntax(value));
        }
    }

    /// A value of an enum, which may be unset.
    pub(crate) fn known<E: TryFrom<i32>>(&mut self, field: impl Into<String>, value: i32) {
        if E::try_from(value).is_err() {
            self.wrong(field, format!("{value} is not a known value"));
        }
    }

    /// A value of an enum, which must be set.
    pub(crate) fn set<E: TryFrom<i32>>(&mut self, field: impl Into<String>, value: i32) {
        let field = field.into();
        if value == 0 {
            self.wrong(field, "is required");
        } else {
            self.known::<E>(field, value);
        }
    }

    /// A time in whole seconds, from a smallest one on.
    pub(crate) fn seconds(
        &mut self,
        field: impl Into<String>,
        value: Option<&prost_types::Duration>,
        least: i64,
    ) {
        let Some(value) = value else { return };
        if !(-999_999_999..=999_999_999).contains(&value.nanos) {
            self.wrong(field, "is not a valid duration");
        } else if value.nanos != 0 {
            self.wrong(field, "must be whole seconds");
        } else if value.seconds < least {
            self.wrong(field, format!("must be at least {least} s"));
        } else if value.seconds > i64::from(i32::MAX) {
            self.wrong(field, format!("must be at most {} s", i32::MAX));
        }
    }

    pub(crate) fn labels(&mut self, field: &str, labels: &BTreeMap<String, String>) {
        for (key, value) in labels {
            self.said(field, drover_core::name::check_label(key, value));
        }
    }

    /// Metadata of an object that is created or replaced. Fields of the server are cleared; the revision stays if it is
    /// part of the request.
    fn metadata(
        &mut self,
        field: &str,
        metadata: &mut Option<api::Metadata>,
        named: fn(&str) -> Result<(), String>,
        served: &Served,
        revision: bool,
    ) {
        let metadata = metadata.get_or_insert_default();
        self.required(format!("{field}.name"), &metadata.name, named);
        self.namespace(
            &format!("{field}.namespace"),
            &mut metadata.namespace,
            served,
        );
        self.labels(&format!("{field}.labels"), &metadata.labels);
        let annotations = format!("{field}.annotations");
        for key in metadata.annotations.keys() {
            self.said(&annotations, syntax::qualified(key));
        }
        // The platform beside these services believes them: with them a pod would be a node of a cluster.
        for (kind, all) in [
            ("labels", &metadata.labels),
            ("annotations", &metadata.annotations),
        ] {
            for key in all.keys().filter(|key| key.starts_with(RESERVED_PREFIX)) {
                let field = format!("{field}.{kind}[{key}]");
                self.wrong(field, "belongs to Drover itself");
            }
        }
        let sizes = metadata.annotations.iter();
        let size: usize = sizes.map(|(key, value)| key.len() + value.len()).sum();
        if size > MAX_ANNOTATIONS {
            let why = format!("are {size} bytes large; at most {MAX_ANNOTATIONS} are allowed");
            self.wrong(annotations, why);
        }
        metadata.uid.clear();
        metadata.create_time = None;
        metadata.delete_time = None;
        if !revision {
            metadata.revision.clear();
        }
    }

    /// A namespace; an empty one becomes the default.
    fn namespace(&mut self, field: &str, namespace: &mut String, served: &Served) {
        if namespace.is_empty() {
            namespace.clone_from(&served.default_namespace);
        }
        self.said(field, syntax::label(namespace));
    }

    /// A selector. Requirements come in one order, each with its values in one order.
    pub(crate) fn selector(&mut self, field: &str, selector: Option<&mut LabelSelector>) {
        let Some(selector) = selector else { return };
        let terms = selector.match_labels.len() + selector.match_expressions.len();
        if terms > MAX_REQUIREMENTS {
            let why = format!("has {terms} requirements; at most {MAX_REQUIREMENTS} are allowed");
            return self.wrong(field, why);
        }
        self.labels(&format!("{field}.match_labels"), &selector.match_labels);
        for (at, one) in selector.match_expressions.iter_mut().enumerate() {
            let field = format!("{field}.match_expressions[{at}]");
            self.required(format!("{field}.key"), &one.key, syntax::qualified);
            self.set::<LabelOperator>(format!("{field}.operator"), one.operator);
            let values = format!("{field}.values");
            match one.operator() {
                LabelOperator::In | LabelOperator::NotIn if one.values.is_empty() => {
                    self.wrong(&values, "at least one is required for this operator");
                }
                LabelOperator::Exists | LabelOperator::NotExists if !one.values.is_empty() => {
                    self.wrong(&values, "must be empty for this operator");
                }
                LabelOperator::Unspecified
                | LabelOperator::In
                | LabelOperator::NotIn
                | LabelOperator::Exists
                | LabelOperator::NotExists => {}
            }
            for (at, value) in one.values.iter().enumerate() {
                self.said(format!("{values}[{at}]"), syntax::label_value(value));
            }
            one.values.sort_unstable();
            one.values.dedup();
        }
        let order = |one: &drover_proto::common::v1::LabelRequirement| {
            (one.key.clone(), one.operator, one.values.clone())
        };
        selector.match_expressions.sort_by_cached_key(order);
        selector.match_expressions.dedup();
    }

    /// A port by number or name.
    fn port_ref(
        &mut self,
        field: &str,
        port: Option<&api::PortRef>,
        named: fn(&str) -> Result<(), String>,
    ) {
        match port.and_then(|port| port.port.as_ref()) {
            None => self.wrong(field, "is required"),
            Some(api::port_ref::Port::Number(number)) => {
                self.said(format!("{field}.number"), syntax::port(*number));
            }
            Some(api::port_ref::Port::Name(name)) => {
                self.required(format!("{field}.name"), name, named);
            }
        }
    }

    /// Values of which none may be there twice.
    fn unique<T: Ord>(&mut self, seen: &mut BTreeSet<T>, field: impl Into<String>, value: T) {
        if !seen.insert(value) {
            self.wrong(field, "is there twice");
        }
    }
}

/// Whether a selector selects everything.
pub(crate) fn is_empty(selector: Option<&LabelSelector>) -> bool {
    selector.is_none_or(|selector| {
        selector.match_labels.is_empty() && selector.match_expressions.is_empty()
    })
}

/// A quantity that is at least 0.
fn quantity(text: &str) -> Result<syntax::Quantity, String> {
    let quantity = syntax::Quantity::read(text)?;
    if text.starts_with('-') {
        return Err(format!("{text:?} is negative"));
    }
    Ok(quantity)
}
