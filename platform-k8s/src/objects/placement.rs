//! Translates the placement of a request into scheduling constraints of a pod.

use drover_core::{Error, Result};
use drover_proto::{
    common::v1::{LabelOperator, LabelSelector},
    platform::v1::{Placement, Spread, SpreadScope, UnsatisfiableAction},
};
use serde_json::{Map, Value, json};

use super::{child, list};
use crate::labels;

/// Label of Kubernetes nodes that is different for each.
const HOST: &str = "kubernetes.io/hostname";

/// Scheduling constraints for every pod of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Constraints {
    /// Topology spread constraints.
    pub(crate) spread: Vec<Value>,
    /// Required pod anti-affinity terms.
    pub(crate) apart: Vec<Value>,
    /// Node affinity expressions, all of which must match.
    pub(crate) expressions: Vec<Value>,
    /// Whether the spread is only the default, which a template may override.
    default_spread: bool,
    /// Pods that would rather be on another host, where neither request nor template says anything of hosts.
    hosts: Option<Value>,
}

/// Labels that select the pods to count, and the label that names their domains.
pub(crate) struct Counted<'a> {
    /// Key and value of the cluster label.
    pub(crate) cluster: (&'a str, String),
    /// Path of the group.
    pub(crate) group: &'a str,
    /// Label of Kubernetes nodes with the failure domain.
    pub(crate) failure_domain_label: &'a str,
}

impl Constraints {
    /// Reads a placement.
    ///
    /// # Errors
    /// `Invalid` with the field for constraints that the scheduler does not support.
    pub(crate) fn of(placement: Option<&Placement>, counted: &Counted<'_>) -> Result<Self> {
        let mut constraints = Self::default();
        let spreads = placement.map_or(&[][..], |placement| &placement.spread);
        for (at, spread) in spreads.iter().enumerate() {
            constraints.spread(&format!("group.placement.spread[{at}]"), spread, counted)?;
        }
        if let Some(placement) = placement {
            if !placement.failure_domains.is_empty() {
                constraints.expressions.push(json!({
                    "key": counted.failure_domain_label,
                    "operator": "In",
                    "values": placement.failure_domains,
                }));
            }
            if let Some(selector) = &placement.selector {
                constraints.select("group.placement.selector", selector)?;
            }
        }
        if spreads.is_empty() {
            constraints.default_spread = true;
            constraints.spread.push(constraint(
                counted.failure_domain_label,
                1,
                false,
                counted,
                SpreadScope::Group,
            ));
            constraints.hosts = Some(json!({
                "weight": 100,
                "podAffinityTerm": {
                    "topologyKey": HOST,
                    "labelSelector": {"matchLabels": counted.labels(SpreadScope::Group)},
                },
            }));
        }
        Ok(constraints)
    }

    /// Only this selector of Kubernetes nodes.
    ///
    /// # Errors
    /// `Invalid` with the field.
    pub(crate) fn of_nodes(field: &str, selector: &LabelSelector) -> Result<Self> {
        let mut constraints = Self::default();
        constraints.select(field, selector)?;
        Ok(constraints)
    }

    /// Whether any of the constraints was requested.
    pub(crate) fn asked(&self) -> bool {
        !self.apart.is_empty()
            || !self.expressions.is_empty()
            || !(self.default_spread || self.spread.is_empty())
    }

    fn spread(&mut self, field: &str, spread: &Spread, counted: &Counted<'_>) -> Result<()> {
        let key = match spread.topology_key.as_str() {
            "zone" => counted.failure_domain_label,
            "region" => "topology.kubernetes.io/region",
            "host" => HOST,
            "rack" => "topology.kubernetes.io/rack",
            key if labels::is_key(key) => key,
            _ => {
                return Err(Error::invalid(
                    format!("{field}.topology_key"),
                    "is not a valid label key: expected zone, rack, host, region or a label of the Kubernetes nodes",
                ));
            }
        };
        let required = spread.when_unsatisfiable() == UnsatisfiableAction::DoNotSchedule;
        let max_skew = spread.max_skew.unwrap_or(1);
        if i32::try_from(max_skew).is_err() {
            return Err(Error::invalid(format!("{field}.max_skew"), "is too large"));
        }
        match spread.max_per_domain {
            None => {}
            Some(1) => self.apart.push(json!({
                "topologyKey": key,
                "labelSelector": {"matchLabels": counted.labels(spread.scope())},
            })),
            Some(_) => {
                return Err(Error::invalid(
                    format!("{field}.max_per_domain"),
                    "only 1 can be had on Kubernetes: its scheduler knows no other limit",
                ));
            }
        }
        let constraint = constraint(key, max_skew, required, counted, spread.scope());
        if self.spread.iter().any(|it| same_place(it, &constraint)) {
            return Err(Error::invalid(
                format!("{field}.topology_key"),
                "is there twice with the same when_unsatisfiable",
            ));
        }
        self.spread.push(constraint);
        Ok(())
    }

    fn select(&mut self, field: &str, selector: &LabelSelector) -> Result<()> {
        for (key, value) in &selector.match_labels {
            self.expression(
                &format!("{field}.match_labels"),
                key,
                "In",
                std::slice::from_ref(value),
            )?;
        }
        for (at, requirement) in selector.match_expressions.iter().enumerate() {
            let operator = match requirement.operator() {
                LabelOperator::In => "In",
                LabelOperator::NotIn => "NotIn",
                LabelOperator::Exists => "Exists",
                LabelOperator::NotExists => "DoesNotExist",
                LabelOperator::Unspecified => continue,
            };
            let field = format!("{field}.match_expressions[{at}].key");
            self.expression(&field, &requirement.key, operator, &requirement.values)?;
        }
        Ok(())
    }

    fn expression(
        &mut self,
        field: &str,
        key: &str,
        operator: &str,
        values: &[String],
    ) -> Result<()> {
        if !labels::is_key(key) {
            return Err(Error::invalid(field, format!("{key:?} is not a label key")));
        }
        let mut expression = json!({"key": key, "operator": operator});
        if !values.is_empty() {
            expression["values"] = json!(values);
        }
        self.expressions.push(expression);
        Ok(())
    }

    /// Adds the constraints to the spec of a pod, beside those of the template.
    pub(crate) fn apply(&self, spec: &mut Map<String, Value>) {
        if let Some(hosts) = self.hosts.as_ref().filter(|_| !says_hosts(spec)) {
            let apart = child(child(spec, "affinity"), "podAntiAffinity");
            list(apart, "preferredDuringSchedulingIgnoredDuringExecution").push(hosts.clone());
        }
        for constraint in &self.spread {
            let spread = list(spec, "topologySpreadConstraints");
            // The API server allows one constraint per topology key and action; the template overrides the default.
            let before = spread.iter().position(|it| same_place(it, constraint));
            match before {
                Some(at) if !self.default_spread => spread[at] = constraint.clone(),
                Some(_) => {}
                None => spread.push(constraint.clone()),
            }
        }
        if !self.apart.is_empty() {
            let apart = child(child(spec, "affinity"), "podAntiAffinity");
            list(apart, "requiredDuringSchedulingIgnoredDuringExecution")
                .extend(self.apart.iter().cloned());
        }
        if !self.expressions.is_empty() {
            let required = child(
                child(child(spec, "affinity"), "nodeAffinity"),
                "requiredDuringSchedulingIgnoredDuringExecution",
            );
            let terms = list(required, "nodeSelectorTerms");
            if terms.is_empty() {
                terms.push(json!({}));
            }
            // A Kubernetes node needs to match only one term, so each needs the expressions.
            for term in terms.iter_mut().filter_map(Value::as_object_mut) {
                list(term, "matchExpressions").extend(self.expressions.iter().cloned());
            }
        }
    }
}

impl Counted<'_> {
    fn labels(&self, scope: SpreadScope) -> Value {
        let (key, value) = &self.cluster;
        match scope {
            SpreadScope::Cluster => json!({*key: value}),
            SpreadScope::Unspecified | SpreadScope::Group => {
                json!({*key: value, labels::GROUP: labels::value(self.group)})
            }
        }
    }
}

fn constraint(
    key: &str,
    max_skew: u32,
    required: bool,
    counted: &Counted<'_>,
    scope: SpreadScope,
) -> Value {
    json!({
        "topologyKey": key,
        "maxSkew": max_skew,
        "whenUnsatisfiable": if required { "DoNotSchedule" } else { "ScheduleAnyway" },
        "labelSelector": {"matchLabels": counted.labels(scope)},
    })
}

/// Whether a template keeps pods apart, or spreads them over hosts, by itself.
fn says_hosts(spec: &Map<String, Value>) -> bool {
    let affinity = spec.get("affinity");
    let apart = affinity.and_then(|affinity| affinity.get("podAntiAffinity"));
    let spread = spec
        .get("topologySpreadConstraints")
        .and_then(Value::as_array);
    apart.is_some_and(|it| !it.is_null())
        || spread.is_some_and(|all| all.iter().any(|it| it["topologyKey"] == HOST))
}

/// Whether two constraints have the same topology key and action.
fn same_place(a: &Value, b: &Value) -> bool {
    ["topologyKey", "whenUnsatisfiable"]
        .iter()
        .all(|key| a.get(key) == b.get(key))
}

#[cfg(test)]
mod tests {
    use drover_proto::common::v1::LabelRequirement;

    use super::*;

    fn counted() -> Counted<'static> {
        Counted {
            cluster: ("drover.dev/cluster", "c1".to_owned()),
            group: "data/hot",
            failure_domain_label: "topology.kubernetes.io/zone",
        }
    }

    fn spread(key: &str) -> Spread {
        Spread {
            topology_key: key.to_owned(),
            ..Spread::default()
        }
    }

    fn applied(placement: &Placement, spec: Value) -> Value {
        let constraints = Constraints::of(Some(placement), &counted()).unwrap();
        let Value::Object(mut spec) = spec else {
            unreachable!()
        };
        constraints.apply(&mut spec);
        Value::Object(spec)
    }

    fn refused(placement: &Placement) -> String {
        let error = Constraints::of(Some(placement), &counted()).unwrap_err();
        error.fields()[0].field.clone()
    }

    #[test]
    fn without_a_word_pods_go_over_zones_and_hosts_as_well_as_possible() {
        let spec = applied(&Placement::default(), json!({}));
        let group = labels::value("data/hot");
        assert_eq!(
            spec,
            json!({
                "topologySpreadConstraints": [{
                    "topologyKey": "topology.kubernetes.io/zone",
                    "maxSkew": 1,
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {"drover.dev/cluster": "c1", "drover.dev/group": group}},
                }],
                "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                    "weight": 100,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"drover.dev/cluster": "c1", "drover.dev/group": group}},
                    },
                }]}},
            })
        );
    }

    #[test]
    fn who_says_something_of_hosts_gets_no_more() {
        let none = |placement: &Placement, spec: Value| {
            let spec = applied(placement, spec);
            let path = "/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution";
            assert_eq!(spec.pointer(path), None, "{spec}");
        };
        let apart =
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}});
        none(&Placement::default(), json!({"affinity": apart}));
        let over_hosts = json!([{"topologyKey": "kubernetes.io/hostname", "maxSkew": 2}]);
        none(
            &Placement::default(),
            json!({"topologySpreadConstraints": over_hosts}),
        );
        let asked = Placement {
            spread: vec![spread("zone")],
            ..Placement::default()
        };
        none(&asked, json!({}));
    }

    #[test]
    fn keys_skew_and_scope_are_those_of_the_request() {
        let placement = Placement {
            spread: vec![
                Spread {
                    max_skew: Some(2),
                    when_unsatisfiable: UnsatisfiableAction::DoNotSchedule.into(),
                    scope: SpreadScope::Cluster.into(),
                    ..spread("host")
                },
                spread("zone"),
                spread("rack"),
                spread("region"),
                spread("example.com/cell"),
            ],
            ..Placement::default()
        };
        let spec = applied(&placement, json!({}));
        let all = spec["topologySpreadConstraints"].as_array().unwrap();
        assert_eq!(
            all[0],
            json!({
                "topologyKey": "kubernetes.io/hostname",
                "maxSkew": 2,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"drover.dev/cluster": "c1"}},
            })
        );
        let keys: Vec<_> = all.iter().map(|it| &it["topologyKey"]).collect();
        assert_eq!(
            keys,
            [
                "kubernetes.io/hostname",
                "topology.kubernetes.io/zone",
                "topology.kubernetes.io/rack",
                "topology.kubernetes.io/region",
                "example.com/cell"
            ]
        );
    }

    #[test]
    fn a_constraint_of_the_template_gives_way_only_to_one_that_was_asked_for() {
        let own = json!({"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 9, "whenUnsatisfiable": "ScheduleAnyway"});
        let spec = json!({"topologySpreadConstraints": [own]});
        let skew = |placement: &Placement| {
            applied(placement, spec.clone())["topologySpreadConstraints"][0]["maxSkew"].clone()
        };
        assert_eq!(skew(&Placement::default()), 9);
        let asked = Placement {
            spread: vec![spread("zone")],
            ..Placement::default()
        };
        assert_eq!(skew(&asked), 1);
    }

    #[test]
    fn one_in_a_domain_keeps_pods_apart_and_more_is_refused() {
        let mut placement = Placement {
            spread: vec![Spread {
                max_per_domain: Some(1),
                ..spread("rack")
            }],
            ..Placement::default()
        };
        let spec = applied(&placement, json!({}));
        let apart =
            &spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(apart[0]["topologyKey"], "topology.kubernetes.io/rack");
        placement.spread[0].max_per_domain = Some(2);
        assert_eq!(
            refused(&placement),
            "group.placement.spread[0].max_per_domain"
        );
    }

    #[test]
    fn failure_domains_and_selector_go_into_every_term_of_the_template() {
        let placement = Placement {
            failure_domains: vec!["a".to_owned(), "b".to_owned()],
            selector: Some(LabelSelector {
                match_labels: [("disk".to_owned(), "ssd".to_owned())].into(),
                match_expressions: vec![LabelRequirement {
                    key: "gpu".to_owned(),
                    operator: LabelOperator::NotExists.into(),
                    values: Vec::new(),
                }],
            }),
            ..Placement::default()
        };
        let own = json!({"key": "x", "operator": "Exists"});
        let spec = applied(
            &placement,
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [own]}, {}]
            }}}}),
        );
        let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"];
        let ours = [
            json!({"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]}),
            json!({"key": "disk", "operator": "In", "values": ["ssd"]}),
            json!({"key": "gpu", "operator": "DoesNotExist"}),
        ];
        assert_eq!(terms[1]["matchExpressions"], json!(ours));
        assert_eq!(terms[0]["matchExpressions"][0], own);
        assert_eq!(terms[0]["matchExpressions"].as_array().unwrap().len(), 4);
    }

    #[test]
    fn keys_that_are_none_are_refused_with_their_field() {
        let placement = Placement {
            spread: vec![spread("zone"), spread("a key")],
            ..Placement::default()
        };
        assert_eq!(
            refused(&placement),
            "group.placement.spread[1].topology_key"
        );
        let placement = Placement {
            spread: vec![spread("zone"), spread("zone")],
            ..Placement::default()
        };
        assert_eq!(
            refused(&placement),
            "group.placement.spread[1].topology_key"
        );
    }
}
