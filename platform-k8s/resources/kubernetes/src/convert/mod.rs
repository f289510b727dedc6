//! Between the messages of `drover.kubernetes.v1` and the objects of Kubernetes. Enums are matched whole in both
//! directions; what Kubernetes says and this version does not know is unspecified.

mod affinity;
mod configuration;
mod container;
mod network_policy;
mod node;
mod pod;
mod service;
mod status;
#[cfg(test)]
mod tests;
mod volume;

use std::collections::BTreeMap;

use drover_core::{Error, Result};
use drover_proto::{
    common::v1 as common,
    kubernetes::v1::{self as api, port_ref::Port},
};
use k8s_openapi::{
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta, Time},
        util::intstr::IntOrString,
    },
    jiff::Timestamp,
};

pub(crate) use self::{
    configuration::{config_map, configuration},
    network_policy::{network_policy, to_network_policy},
    node::node,
    pod::{pod, to_pod},
    service::{service, to_service},
    status::{Why, phase, why},
};

/// Longest text that is repeated of what Kubernetes says, in bytes.
const MAX_MESSAGE: usize = 4096;

/// Metadata as it is answered.
pub(crate) fn metadata(from: &ObjectMeta) -> api::Metadata {
    api::Metadata {
        namespace: from.namespace.clone().unwrap_or_default(),
        name: from.name.clone().unwrap_or_default(),
        labels: from.labels.clone().unwrap_or_default(),
        annotations: from.annotations.clone().unwrap_or_default(),
        uid: from.uid.clone().unwrap_or_default(),
        revision: from.resource_version.clone().unwrap_or_default(),
        create_time: time(from.creation_timestamp.as_ref()),
        delete_time: time(from.deletion_timestamp.as_ref()),
    }
}

/// Metadata of an object to write: what callers set.
pub(crate) fn object_meta(from: Option<api::Metadata>) -> ObjectMeta {
    let from = from.unwrap_or_default();
    ObjectMeta {
        namespace: some(from.namespace),
        name: some(from.name),
        labels: some(from.labels),
        annotations: some(from.annotations),
        ..ObjectMeta::default()
    }
}

/// A selector as the API server reads it in a query: always the same text for the same requirements.
pub(crate) fn selector_text(
    field: &str,
    selector: Option<&common::LabelSelector>,
) -> Result<String> {
    let Some(selector) = selector else {
        return Ok(String::new());
    };
    let labels = selector.match_labels.iter();
    let mut terms: Vec<String> = labels
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    for (at, one) in selector.match_expressions.iter().enumerate() {
        let field = format!("{field}.match_expressions[{at}]");
        let mut values = one.values.clone();
        values.sort_unstable();
        let (key, values) = (&one.key, values.join(","));
        terms.push(match operator(&field, one)? {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.clone(),
            _ => format!("!{key}"),
        });
    }
    terms.sort_unstable();
    terms.dedup();
    Ok(terms.join(","))
}

/// The operator of a requirement, in the words of Kubernetes.
fn operator(field: &str, one: &common::LabelRequirement) -> Result<&'static str> {
    let operator = known::<common::LabelOperator>(&format!("{field}.operator"), one.operator)?;
    let needs_values = matches!(
        operator,
        common::LabelOperator::In | common::LabelOperator::NotIn
    );
    if needs_values == one.values.is_empty() {
        let why = if needs_values {
            "at least one is required for this operator"
        } else {
            "must be empty for this operator"
        };
        return Err(Error::invalid(format!("{field}.values"), why));
    }
    match operator {
        common::LabelOperator::Unspecified => {
            Err(Error::invalid(format!("{field}.operator"), "is required"))
        }
        common::LabelOperator::In => Ok("In"),
        common::LabelOperator::NotIn => Ok("NotIn"),
        common::LabelOperator::Exists => Ok("Exists"),
        common::LabelOperator::NotExists => Ok("DoesNotExist"),
    }
}

fn operator_of(text: &str) -> common::LabelOperator {
    let all = [
        ("In", common::LabelOperator::In),
        ("NotIn", common::LabelOperator::NotIn),
        ("Exists", common::LabelOperator::Exists),
        ("DoesNotExist", common::LabelOperator::NotExists),
    ];
    named(&all, Some(text)).unwrap_or_default()
}

fn to_label_selector(field: &str, from: common::LabelSelector) -> Result<LabelSelector> {
    let requirements = from.match_expressions.into_iter().enumerate();
    let requirements = requirements.map(|(at, one)| {
        let operator = operator(&format!("{field}.match_expressions[{at}]"), &one)?;
        Ok(LabelSelectorRequirement {
            key: one.key,
            operator: operator.to_owned(),
            values: some(one.values),
        })
    });
    let requirements: Vec<_> = requirements.collect::<Result<_>>()?;
    Ok(LabelSelector {
        match_labels: some(from.match_labels),
        match_expressions: some(requirements),
    })
}

fn label_selector(from: LabelSelector) -> common::LabelSelector {
    let requirements = from.match_expressions.unwrap_or_default().into_iter();
    common::LabelSelector {
        match_labels: from.match_labels.unwrap_or_default(),
        match_expressions: requirements
            .map(|one| requirement(one.key, &one.operator, one.values))
            .collect(),
    }
}

fn requirement(
    key: String,
    operator: &str,
    values: Option<Vec<String>>,
) -> common::LabelRequirement {
    common::LabelRequirement {
        key,
        operator: operator_of(operator).into(),
        values: values.unwrap_or_default(),
    }
}

/// A value of an enum that this version knows.
fn known<E: TryFrom<i32>>(field: &str, value: i32) -> Result<E> {
    E::try_from(value).map_err(|_| Error::invalid(field, format!("{value} is not a known value")))
}

/// What a word of Kubernetes stands for.
fn named<T: Copy>(all: &[(&str, T)], word: Option<&str>) -> Option<T> {
    let word = word?;
    all.iter()
        .find(|(name, _)| *name == word)
        .map(|(_, it)| *it)
}

fn protocol(field: &str, value: i32) -> Result<Option<String>> {
    let word = match known::<api::Protocol>(field, value)? {
        api::Protocol::Unspecified => return Ok(None),
        api::Protocol::Tcp => "TCP",
        api::Protocol::Udp => "UDP",
        api::Protocol::Sctp => "SCTP",
    };
    Ok(Some(word.to_owned()))
}

fn protocol_of(word: Option<&str>) -> i32 {
    let all = [
        ("TCP", api::Protocol::Tcp),
        ("UDP", api::Protocol::Udp),
        ("SCTP", api::Protocol::Sctp),
    ];
    named(&all, word).unwrap_or_default().into()
}

fn effect(field: &str, value: i32) -> Result<Option<String>> {
    let word = match known::<api::TaintEffect>(field, value)? {
        api::TaintEffect::Unspecified => return Ok(None),
        api::TaintEffect::NoSchedule => "NoSchedule",
        api::TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        api::TaintEffect::NoExecute => "NoExecute",
    };
    Ok(Some(word.to_owned()))
}

fn effect_of(word: Option<&str>) -> i32 {
    let all = [
        ("NoSchedule", api::TaintEffect::NoSchedule),
        ("PreferNoSchedule", api::TaintEffect::PreferNoSchedule),
        ("NoExecute", api::TaintEffect::NoExecute),
    ];
    named(&all, word).unwrap_or_default().into()
}

/// A number of a port.
fn port(field: &str, number: u32) -> Result<i32> {
    match u16::try_from(number) {
        Ok(number) if number > 0 => Ok(number.into()),
        _ => Err(Error::invalid(field, "must be between 1 and 65535")),
    }
}

fn port_number(from: i32) -> u32 {
    u32::try_from(from).unwrap_or(0)
}

fn port_ref(field: &str, from: Option<api::PortRef>) -> Result<IntOrString> {
    match from.and_then(|it| it.port) {
        Some(Port::Number(number)) => {
            port(&format!("{field}.number"), number).map(IntOrString::Int)
        }
        Some(Port::Name(name)) if !name.is_empty() => Ok(IntOrString::String(name)),
        Some(Port::Name(_)) | None => Err(Error::invalid(field, "is required")),
    }
}

fn port_ref_of(from: IntOrString) -> api::PortRef {
    let port = match from {
        IntOrString::Int(number) => Port::Number(port_number(number)),
        IntOrString::String(name) => Port::Name(name),
    };
    api::PortRef { port: Some(port) }
}

fn number<T: TryFrom<u32>>(field: &str, from: u32) -> Result<T> {
    T::try_from(from).map_err(|_| Error::invalid(field, "is too large"))
}

/// Whole seconds of a span; parts of one count as one.
pub(crate) fn seconds(field: &str, from: &prost_types::Duration) -> Result<u32> {
    let span = drover_convert::value::duration(field, from)?;
    let whole = span.as_secs() + u64::from(span.subsec_nanos() > 0);
    u32::try_from(whole)
        .ok()
        .filter(|it| i32::try_from(*it).is_ok())
        .ok_or_else(|| Error::invalid(field, "is too long"))
}

fn seconds_opt<T: TryFrom<u32>>(
    field: &str,
    from: Option<&prost_types::Duration>,
) -> Result<Option<T>> {
    from.map(|from| number(field, seconds(field, from)?))
        .transpose()
}

fn span(seconds: impl Into<i64>) -> prost_types::Duration {
    prost_types::Duration {
        seconds: seconds.into(),
        nanos: 0,
    }
}

fn time(from: Option<&Time>) -> Option<prost_types::Timestamp> {
    from.map(|Time(at)| timestamp(*at))
}

fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: at.as_second(),
        nanos: at.subsec_nanosecond(),
    }
}

fn quantities(from: BTreeMap<String, String>) -> Option<BTreeMap<String, Quantity>> {
    let quantities = from.into_iter();
    some(quantities.map(|(name, it)| (name, Quantity(it))).collect())
}

fn quantities_of(from: Option<BTreeMap<String, Quantity>>) -> BTreeMap<String, String> {
    let quantities = from.unwrap_or_default().into_iter();
    quantities.map(|(name, it)| (name, it.0)).collect()
}

/// A condition, as Kubernetes names it.
fn condition(
    type_: String,
    status: &str,
    reason: Option<String>,
    message: Option<String>,
    since: Option<&Time>,
) -> common::Condition {
    common::Condition {
        r#type: type_,
        status: named(&[("True", true), ("False", false)], Some(status)),
        reason: reason.unwrap_or_default(),
        message: words(message),
        last_transition_time: time(since),
    }
}

/// What Kubernetes says, cut at what is repeated of it.
fn words(from: Option<String>) -> String {
    let mut text = from.unwrap_or_default();
    text.truncate(text.floor_char_boundary(MAX_MESSAGE));
    text
}

/// Each of a list with its path.
fn each<T, U>(field: &str, from: Vec<T>, convert: impl Fn(&str, T) -> Result<U>) -> Result<Vec<U>> {
    let all = from.into_iter().enumerate();
    all.map(|(at, one)| convert(&format!("{field}[{at}]"), one))
        .collect()
}

fn all<T, U>(from: Option<Vec<T>>, convert: impl Fn(T) -> U) -> Vec<U> {
    from.unwrap_or_default().into_iter().map(convert).collect()
}

/// A value that is left out where it is empty.
fn some<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}
