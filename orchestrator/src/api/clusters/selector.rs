//! Label selectors.

use drover_core::{Error, Result};
use drover_proto::common::v1 as common;

/// Labels that a cluster must have.
pub(in crate::api) struct Selector(Option<common::LabelSelector>);

impl Selector {
    pub(in crate::api) fn new(selector: Option<common::LabelSelector>) -> Result<Self> {
        use common::LabelOperator;
        for (at, requirement) in selector
            .iter()
            .flat_map(|s| &s.match_expressions)
            .enumerate()
        {
            let field = |name: &str| format!("selector.match_expressions[{at}].{name}");
            if requirement.key.is_empty() {
                return Err(Error::invalid(field("key"), "is empty"));
            }
            let wants = match LabelOperator::try_from(requirement.operator) {
                Ok(LabelOperator::In | LabelOperator::NotIn) => true,
                Ok(LabelOperator::Exists | LabelOperator::NotExists) => false,
                Ok(LabelOperator::Unspecified) | Err(_) => {
                    return Err(Error::invalid(
                        field("operator"),
                        "expected IN, NOT_IN, EXISTS or NOT_EXISTS",
                    ));
                }
            };
            if wants == requirement.values.is_empty() {
                return Err(Error::invalid(
                    field("values"),
                    "IN and NOT_IN need values, the others none",
                ));
            }
        }
        Ok(Self(selector))
    }

    pub(in crate::api) fn selects(
        &self,
        labels: &std::collections::BTreeMap<String, String>,
    ) -> bool {
        use common::LabelOperator;
        let Some(selector) = &self.0 else { return true };
        let equal = selector
            .match_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value));
        equal
            && selector.match_expressions.iter().all(|requirement| {
                let value = labels.get(&requirement.key);
                match requirement.operator() {
                    LabelOperator::In => {
                        value.is_some_and(|value| requirement.values.contains(value))
                    }
                    LabelOperator::NotIn => {
                        value.is_none_or(|value| !requirement.values.contains(value))
                    }
                    LabelOperator::Exists => value.is_some(),
                    LabelOperator::NotExists | LabelOperator::Unspecified => value.is_none(),
                }
            })
    }
}
