//! Where a pod may run: affinity and tolerations.

use std::collections::BTreeMap;

use drover_proto::kubernetes::v1 as api;

use super::{Check, is_empty, syntax};

impl Check {
    pub(super) fn affinity(&mut self, field: &str, affinity: &mut api::Affinity) {
        let nodes = [
            ("node_required", &mut affinity.node_required, false),
            ("node_preferred", &mut affinity.node_preferred, true),
        ];
        for (name, terms, preferred) in nodes {
            for (at, term) in terms.iter_mut().enumerate() {
                let field = format!("{field}.{name}[{at}]");
                let selector = format!("{field}.selector");
                if is_empty(term.selector.as_ref()) {
                    self.wrong(&selector, "is required, with at least one label");
                }
                self.selector(&selector, term.selector.as_mut());
                self.weight(&field, &mut term.weight, preferred);
            }
        }
        let pods = [
            ("pod_required", &mut affinity.pod_required, false),
            ("pod_preferred", &mut affinity.pod_preferred, true),
            ("pod_anti_required", &mut affinity.pod_anti_required, false),
            ("pod_anti_preferred", &mut affinity.pod_anti_preferred, true),
        ];
        for (name, terms, preferred) in pods {
            for (at, term) in terms.iter_mut().enumerate() {
                let field = format!("{field}.{name}[{at}]");
                let selector = format!("{field}.selector");
                if term.selector.is_none() {
                    self.wrong(&selector, "is required");
                }
                self.selector(&selector, term.selector.as_mut());
                let key = format!("{field}.topology_key");
                self.required(key, &term.topology_key, syntax::qualified);
                for (at, namespace) in term.namespaces.iter().enumerate() {
                    let field = format!("{field}.namespaces[{at}]");
                    self.required(field, namespace, syntax::label);
                }
                self.weight(&field, &mut term.weight, preferred);
            }
        }
    }

    fn weight(&mut self, field: &str, weight: &mut u32, preferred: bool) {
        let field = format!("{field}.weight");
        match (preferred, *weight) {
            (true, 0) => *weight = 1,
            (true, 1..=100) | (false, 0) => {}
            (true, _) => self.wrong(field, "expected 1 to 100"),
            (false, _) => self.wrong(field, "counts only where preferred"),
        }
    }

    pub(super) fn toleration(&mut self, field: &str, toleration: &api::Toleration) {
        let operator = toleration.operator;
        self.known::<api::TolerationOperator>(format!("{field}.operator"), operator);
        self.known::<api::TaintEffect>(format!("{field}.effect"), toleration.effect);
        self.optional(format!("{field}.key"), &toleration.key, syntax::qualified);
        let value = format!("{field}.value");
        self.optional(&value, &toleration.value, syntax::label_value);
        match toleration.operator() {
            api::TolerationOperator::Exists => {
                if !toleration.value.is_empty() {
                    self.wrong(value, "must be empty with EXISTS");
                }
            }
            api::TolerationOperator::Unspecified | api::TolerationOperator::Equal => {
                if toleration.key.is_empty() {
                    self.wrong(format!("{field}.key"), "is required, except with EXISTS");
                }
            }
        }
        let period = format!("{field}.toleration_period");
        let evicts = toleration.effect() == api::TaintEffect::NoExecute;
        if toleration.toleration_period.is_some() && !evicts {
            self.wrong(&period, "needs the effect NO_EXECUTE");
        }
        self.seconds(period, toleration.toleration_period.as_ref(), 0);
    }

    pub(super) fn node_selector(&mut self, field: &str, labels: &BTreeMap<String, String>) {
        self.labels(field, labels);
    }
}
