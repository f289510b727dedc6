//! Label selectors for machines.

use std::collections::BTreeMap;

use crate::{error::Violation, name};

/// Labels that a machine must have; all requirements must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Labels with exactly these values.
    pub labels: BTreeMap<String, String>,
    /// Further requirements.
    pub requirements: Vec<Requirement>,
}

/// One requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Label key.
    pub key: String,
    /// Comparison operator.
    pub operator: Operator,
    /// Values for `In` and `NotIn`; empty for the other operators.
    pub values: Vec<String>,
}

/// Comparison operator of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// The label exists with one of the values.
    In,
    /// The label is missing, or has none of the values.
    NotIn,
    /// The label exists.
    Exists,
    /// The label is missing.
    NotExists,
}

impl Selector {
    /// Whether it matches everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.requirements.is_empty()
    }

    /// Reports validation errors. `field` is its path in the spec.
    pub(crate) fn check(&self, field: &str, wrong: &mut Vec<Violation>) {
        let mut refuse = |field: String, description: String| {
            wrong.push(Violation { field, description });
        };
        let many = |count: usize| {
            (count > name::MAX_LABELS).then(|| {
                format!(
                    "has {count} entries; at most {} are allowed",
                    name::MAX_LABELS
                )
            })
        };
        if let Some(why) = many(self.labels.len()) {
            refuse(format!("{field}.match_labels"), why);
        }
        for (key, value) in &self.labels {
            if let Err(why) = name::check_label(key, value) {
                refuse(format!("{field}.match_labels[{key:?}]"), why);
            }
        }
        if let Some(why) = many(self.requirements.len()) {
            refuse(format!("{field}.match_expressions"), why);
        }
        for (at, requirement) in self.requirements.iter().enumerate() {
            let at = format!("{field}.match_expressions[{at}]");
            if let Err(why) = name::check_label(&requirement.key, "") {
                refuse(format!("{at}.key"), why);
            }
            let takes = matches!(requirement.operator, Operator::In | Operator::NotIn);
            if takes == requirement.values.is_empty() {
                let why = "IN and NOT_IN need values, the others none";
                refuse(format!("{at}.values"), why.to_owned());
            }
            if let Some(why) = many(requirement.values.len()) {
                refuse(format!("{at}.values"), why);
            }
            for (index, value) in requirement.values.iter().enumerate() {
                if let Err(why) = name::check_label("key", value) {
                    refuse(
                        format!("{at}.values[{index}]"),
                        why.replace(" of \"key\"", ""),
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_wrong_is_named() {
        let requirement = |key: &str, operator, values: &[&str]| Requirement {
            key: key.to_owned(),
            operator,
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        };
        let selector = Selector {
            labels: [("disk", "ssd"), ("a b", "x"), ("c", "d/e")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            requirements: vec![
                requirement("zone", Operator::In, &["a", "b"]),
                requirement("", Operator::Exists, &[]),
                requirement("gpu", Operator::NotIn, &[]),
                requirement("gpu", Operator::NotExists, &["x"]),
                requirement("gpu", Operator::In, &["x", "y z"]),
            ],
        };
        let mut wrong = Vec::new();
        selector.check("placement.selector", &mut wrong);
        let fields: Vec<&str> = wrong.iter().map(|it| it.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "placement.selector.match_labels[\"a b\"]",
                "placement.selector.match_labels[\"c\"]",
                "placement.selector.match_expressions[1].key",
                "placement.selector.match_expressions[2].values",
                "placement.selector.match_expressions[3].values",
                "placement.selector.match_expressions[4].values[1]",
            ]
        );
        let mut wrong = Vec::new();
        Selector::default().check("placement.selector", &mut wrong);
        assert!(wrong.is_empty() && Selector::default().is_empty());
    }
}
