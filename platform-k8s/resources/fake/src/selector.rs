use std::collections::BTreeMap;

use drover_proto::common::v1::LabelSelector;

/// Whether a selector means these labels; without one all are meant.
pub(crate) fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    selector.is_none_or(|selector| drover_convert::selector::selects(selector, labels))
}
