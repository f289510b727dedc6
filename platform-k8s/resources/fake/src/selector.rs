//! Which labels a selector means.

use std::collections::BTreeMap;

use drover_proto::common::v1::{LabelOperator, LabelSelector};

pub(crate) fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    let Some(selector) = selector else {
        return true;
    };
    let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    selector.match_labels.iter().all(equal)
        && selector.match_expressions.iter().all(|one| {
            let value = labels.get(&one.key);
            let listed = value.is_some_and(|value| one.values.contains(value));
            match one.operator() {
                LabelOperator::In => listed,
                LabelOperator::NotIn => !listed,
                LabelOperator::Exists => value.is_some(),
                LabelOperator::NotExists => value.is_none(),
                LabelOperator::Unspecified => false,
            }
        })
}
