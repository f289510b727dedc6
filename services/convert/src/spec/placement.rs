//! Converts placement: from users, and to platforms.

use drover_core::{
    error::Violation,
    spec::{Operator, Placement, Requirement, Selector, Spread},
};
use drover_proto::{
    common::v1::{LabelOperator, LabelRequirement, LabelSelector},
    orchestrator::v1 as pb,
    platform::v1 as platform,
};

use super::Reader;

impl Reader {
    pub(super) fn placement(&mut self, at: &str, from: &pb::Placement) -> Placement {
        let spread = from
            .spread
            .iter()
            .enumerate()
            .map(|(index, spread)| self.spread(&format!("{at}.placement.spread[{index}]"), spread))
            .collect();
        Placement {
            failure_domains: from.failure_domains.clone(),
            spread,
            // An empty selector matches everything.
            selector: from
                .selector
                .as_ref()
                .map(|it| selector(&format!("{at}.placement.selector"), it, &mut self.wrong))
                .filter(|selector| !selector.is_empty())
                .map(Box::new),
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
}

/// Reads a label selector; unreadable fields are added to `wrong`.
pub(crate) fn selector(at: &str, from: &LabelSelector, wrong: &mut Vec<Violation>) -> Selector {
    let requirements = from.match_expressions.iter().enumerate();
    let requirements = requirements.map(|(index, requirement)| {
        let operator = match LabelOperator::try_from(requirement.operator) {
            Ok(LabelOperator::In) => Operator::In,
            Ok(LabelOperator::NotIn) => Operator::NotIn,
            Ok(LabelOperator::Exists) => Operator::Exists,
            Ok(LabelOperator::NotExists) => Operator::NotExists,
            Ok(LabelOperator::Unspecified) | Err(_) => {
                wrong.push(Violation {
                    field: format!("{at}.match_expressions[{index}].operator"),
                    description: "expected IN, NOT_IN, EXISTS or NOT_EXISTS".to_owned(),
                });
                Operator::Exists
            }
        };
        Requirement {
            key: requirement.key.clone(),
            operator,
            values: requirement.values.clone(),
        }
    });
    Selector {
        requirements: requirements.collect(),
        labels: from
            .match_labels
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
    }
}

/// Converts placement to the form that is sent to platforms.
#[must_use]
pub fn to_placement(from: &Placement) -> Option<platform::Placement> {
    // Named machines are sent with each slot instead.
    if from.failure_domains.is_empty() && from.spread.is_empty() && from.selector.is_none() {
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
        selector: from.selector.as_deref().map(to_selector),
        failure_domains: from.failure_domains.clone(),
    })
}

/// Converts a selector to the form that is sent to platforms.
pub(crate) fn to_selector(from: &Selector) -> LabelSelector {
    let requirement = |one: &Requirement| {
        let operator = match one.operator {
            Operator::In => LabelOperator::In,
            Operator::NotIn => LabelOperator::NotIn,
            Operator::Exists => LabelOperator::Exists,
            Operator::NotExists => LabelOperator::NotExists,
        };
        LabelRequirement {
            key: one.key.clone(),
            operator: operator.into(),
            values: one.values.clone(),
        }
    };
    LabelSelector {
        match_labels: from.labels.clone().into_iter().collect(),
        match_expressions: from.requirements.iter().map(requirement).collect(),
    }
}
