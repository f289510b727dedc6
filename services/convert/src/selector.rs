//! What a label selector means.

use std::collections::BTreeMap;

use drover_proto::common::v1::{LabelOperator, LabelRequirement, LabelSelector};

/// Whether labels meet all requirements of a selector.
#[must_use]
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut exact = selector.match_labels.iter();
    let meets = |one: &LabelRequirement| {
        let value = labels.get(&one.key);
        match one.operator() {
            LabelOperator::In => value.is_some_and(|value| one.values.contains(value)),
            LabelOperator::NotIn => value.is_none_or(|value| !one.values.contains(value)),
            LabelOperator::Exists => value.is_some(),
            LabelOperator::NotExists => value.is_none(),
            LabelOperator::Unspecified => false,
        }
    };
    exact.all(|(key, value)| labels.get(key) == Some(value))
        && selector.match_expressions.iter().all(meets)
}
