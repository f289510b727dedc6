//! Applies node class, properties and placement to the pods of a node.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result};
use serde_json::{Map, Value};

use super::{Object, child, list, placement::Constraints, properties::Properties};
use crate::{labels, settings::ClassSettings};

/// Paths of the pods or pod templates in an object (with `metadata` and `spec`). Custom resources have none: only their
/// controller knows their meaning.
pub(crate) fn templates(object: &Object) -> &'static [&'static [&'static str]] {
    match (object.group(), object.kind.as_str()) {
        ("", "Pod") => &[&[]],
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
        | ("batch", "Job")
        | ("", "ReplicationController") => &[&["spec", "template"]],
        ("batch", "CronJob") => &[&["spec", "jobTemplate", "spec", "template"]],
        _ => &[],
    }
}

/// Whether the kind of an object comes with Kubernetes.
fn is_built_in(object: &Object) -> bool {
    let group = object.group();
    !group.contains('.') || group.ends_with(".k8s.io")
}

/// Settings for every pod of a request.
pub(crate) struct Pods<'a> {
    pub(crate) class: Option<&'a ClassSettings>,
    pub(crate) properties: &'a Properties,
    pub(crate) constraints: &'a Constraints,
}

impl Pods<'_> {
    /// Applies the settings to the pods of a node.
    ///
    /// # Errors
    /// `Precondition` if the objects contain no pod, or none to which the settings can be applied.
    pub(crate) fn apply(&self, objects: &mut [Object]) -> Result<()> {
        let mut pods = 0;
        for object in objects.iter_mut() {
            for path in templates(object) {
                pods += 1;
                self.pod(object, path)?;
            }
        }
        if pods > 0 {
            return Ok(());
        }
        if objects.iter().all(is_built_in) {
            return Err(Error::new(
                Reason::Precondition,
                "the template makes nothing that runs: expected a Pod, a workload or a custom resource",
            ));
        }
        if self.constraints.asked()
            || self.class.is_some()
            || *self.properties != self.without_pods()
        {
            return Err(Error::new(
                Reason::Precondition,
                "placement, node class and properties of pods cannot be put into custom resources; the template makes no pod",
            ));
        }
        Ok(())
    }

    /// The properties that do not concern pods.
    fn without_pods(&self) -> Properties {
        Properties {
            namespace: self.properties.namespace.clone(),
            ..Properties::default()
        }
    }

    fn pod(&self, object: &mut Object, path: &[&str]) -> Result<()> {
        let at = |rest: &[&'static str]| [path, rest].concat();
        if !self.properties.annotations.is_empty() {
            let annotations = object.map_at(&at(&["metadata", "annotations"]))?;
            set(annotations, &self.properties.annotations);
        }
        check_shape(object, path)?;
        check_budget(object, path)?;
        let spec = object.map_at(&at(&["spec"]))?;
        if let Some(class) = self.class {
            set(
                some(spec, "nodeSelector", &class.node_selector),
                &class.node_selector,
            );
            tolerate(spec, &class.tolerations);
            if let Some(name) = &class.priority_class {
                priority(spec, name);
            }
        }
        let properties = self.properties;
        set(
            some(spec, "nodeSelector", &properties.node_selector),
            &properties.node_selector,
        );
        tolerate(spec, &properties.tolerations);
        if let Some(name) = &properties.priority_class_name {
            priority(spec, name);
        }
        for (key, name) in [
            ("runtimeClassName", &properties.runtime_class_name),
            ("serviceAccountName", &properties.service_account_name),
        ] {
            if let Some(name) = name {
                spec.insert(key.to_owned(), Value::String(name.clone()));
            }
        }
        self.resources(spec);
        self.constraints.apply(spec);
        Ok(())
    }

    /// Sets the resources of the first container.
    fn resources(&self, spec: &mut Map<String, Value>) {
        let mut wanted: BTreeMap<(&str, &str), Value> = BTreeMap::new();
        if let Some(class) = self.class {
            for (what, amounts) in [("requests", &class.requests), ("limits", &class.limits)] {
                for (name, amount) in amounts {
                    wanted.insert((what, name), Value::String(amount.clone()));
                }
            }
        }
        let resources = &self.properties.resources;
        for (what, amounts) in [
            ("requests", &resources.requests),
            ("limits", &resources.limits),
        ] {
            for (name, amount) in amounts {
                wanted.insert((what, name), amount.to_value());
            }
        }
        let first = spec
            .get_mut("containers")
            .and_then(Value::as_array_mut)
            .and_then(|containers| containers.first_mut())
            .and_then(Value::as_object_mut);
        if let Some(container) = first.filter(|_| !wanted.is_empty()) {
            let resources = child(container, "resources");
            for ((what, name), amount) in wanted {
                child(resources, what).insert(name.to_owned(), amount);
            }
        }
    }
}

/// Refuses an annotation that would give the group no disruption budget, without a word.
fn check_budget(object: &Object, path: &[&str]) -> Result<()> {
    let mut map = Some(&object.body);
    for key in [path, &["metadata", "annotations"]].concat() {
        map = map.and_then(|it| it.get(key)).and_then(Value::as_object);
    }
    let budget = map.and_then(|it| it.get(labels::DISRUPTION_BUDGET));
    let Some(budget) = budget.filter(|it| !it.is_null()) else {
        return Ok(());
    };
    if budget.as_str().is_some_and(|it| it.parse::<u32>().is_ok()) {
        return Ok(());
    }
    Err(object.wrong(format_args!(
        "the annotation {} is not a whole number in quotes: expected how many pods of the group may be evicted at the same \
         time (\"1\")",
        labels::DISRUPTION_BUDGET
    )))
}

/// Parts of a pod that are changed must have the expected type, or be absent.
fn check_shape(object: &mut Object, path: &[&str]) -> Result<()> {
    let Some(spec) = object
        .map_at(&[path, &["spec"]].concat())?
        .get("containers")
    else {
        return Err(object.wrong("its pod has no containers"));
    };
    let objects = spec.as_array().is_some_and(|containers| {
        !containers.is_empty() && containers.iter().all(Value::is_object)
    });
    if !objects {
        return Err(object.wrong("containers is not a list of objects"));
    }
    for map in ["nodeSelector", "affinity"] {
        let spec = object.map_at(&[path, &["spec"]].concat())?;
        if spec
            .get(map)
            .is_some_and(|it| !it.is_object() && !it.is_null())
        {
            return Err(object.wrong(format_args!("{map} is not a map")));
        }
    }
    for list in ["tolerations", "topologySpreadConstraints"] {
        let spec = object.map_at(&[path, &["spec"]].concat())?;
        if spec
            .get(list)
            .is_some_and(|it| !it.is_array() && !it.is_null())
        {
            return Err(object.wrong(format_args!("{list} is not a list")));
        }
    }
    Ok(())
}

/// The map at a key, which is not created if there is nothing to insert.
fn some<'a, T>(
    spec: &'a mut Map<String, Value>,
    key: &str,
    values: &BTreeMap<String, T>,
) -> Option<&'a mut Map<String, Value>> {
    (!values.is_empty()).then(|| child(spec, key))
}

fn set<'a>(map: impl Into<Option<&'a mut Map<String, Value>>>, values: &BTreeMap<String, String>) {
    if let Some(map) = map.into() {
        for (key, value) in values {
            map.insert(key.clone(), Value::String(value.clone()));
        }
    }
}

fn tolerate(spec: &mut Map<String, Value>, tolerations: &[Value]) {
    for toleration in tolerations {
        let all = list(spec, "tolerations");
        if !all.contains(toleration) {
            all.push(toleration.clone());
        }
    }
}

fn priority(spec: &mut Map<String, Value>, name: &str) {
    spec.insert("priorityClassName".to_owned(), name.into());
    // The API server refuses values that differ from those of the class.
    spec.remove("priority");
    spec.remove("preemptionPolicy");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::render::tests::objects;

    const POD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeSelector: {own: x}, containers: [{name: main, resources: {requests: {cpu: 1, memory: 1Gi}}}, {name: side}]}}";

    fn properties(value: Value) -> Properties {
        serde_json::from_value(value).unwrap()
    }

    fn class() -> ClassSettings {
        serde_json::from_value(json!({
            "requests": {"cpu": "2"},
            "limits": {"cpu": "4", "memory": "8Gi"},
            "node_selector": {"size": "large"},
            "tolerations": [{"key": "large", "operator": "Exists"}],
            "priority_class": "high",
        }))
        .unwrap()
    }

    fn applied(text: &str, class: Option<&ClassSettings>, wanted: &Properties) -> Result<Value> {
        let mut all = objects(text);
        let pods = Pods {
            class,
            properties: wanted,
            constraints: &Constraints::default(),
        };
        pods.apply(&mut all)?;
        Ok(Value::Object(all.remove(0).body))
    }

    #[test]
    fn a_class_becomes_resources_selector_tolerations_and_priority() {
        let pod = applied(POD, Some(&class()), &Properties::default()).unwrap();
        let spec = &pod["spec"];
        assert_eq!(
            spec["containers"][0]["resources"],
            json!({"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}})
        );
        assert_eq!(spec["containers"][1].get("resources"), None);
        assert_eq!(spec["nodeSelector"], json!({"own": "x", "size": "large"}));
        assert_eq!(
            spec["tolerations"],
            json!([{"key": "large", "operator": "Exists"}])
        );
        assert_eq!(spec["priorityClassName"], "high");
    }

    #[test]
    fn properties_go_over_the_class() {
        let wanted = properties(json!({
            "nodeSelector": {"size": "huge"},
            "annotations": {"k8s.replicante.io/agent-port": "4000"},
            "priorityClassName": "low",
            "runtimeClassName": "kata",
            "serviceAccountName": "db",
            "resources": {"requests": {"cpu": 3}},
            "tolerations": [{"key": "large", "operator": "Exists"}, {"key": "x"}],
        }));
        let pod = applied(POD, Some(&class()), &wanted).unwrap();
        let spec = &pod["spec"];
        assert_eq!(spec["containers"][0]["resources"]["requests"]["cpu"], "3");
        assert_eq!(spec["nodeSelector"]["size"], "huge");
        assert_eq!(spec["priorityClassName"], "low");
        assert_eq!(spec["runtimeClassName"], "kata");
        assert_eq!(spec["serviceAccountName"], "db");
        assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
        assert_eq!(
            pod["metadata"]["annotations"]["k8s.replicante.io/agent-port"],
            "4000"
        );
    }

    #[test]
    fn a_template_that_has_all_it_needs_stays_as_it_is() {
        let before = objects(POD).remove(0).body;
        let after = applied(POD, None, &Properties::default()).unwrap();
        assert_eq!(Value::Object(before), after);
    }

    #[test]
    fn templates_inside_workloads_are_pods_too() {
        let text = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: {spec: {containers: [{name: a}]}}}}";
        let it = applied(text, Some(&class()), &Properties::default()).unwrap();
        assert_eq!(
            it["spec"]["template"]["spec"]["nodeSelector"]["size"],
            "large"
        );
        let text = "{apiVersion: batch/v1, kind: CronJob, metadata: {name: a}, spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: a}]}}}}}}";
        let it = applied(text, Some(&class()), &Properties::default()).unwrap();
        let spec = &it["spec"]["jobTemplate"]["spec"]["template"]["spec"];
        assert_eq!(spec["nodeSelector"]["size"], "large");
    }

    #[test]
    fn what_cannot_be_a_pod_is_named() {
        for (spec, part) in [
            ("{}", "no containers"),
            ("{containers: []}", "containers is not a list of objects"),
            ("{containers: [x]}", "containers is not a list of objects"),
            ("{containers: [{name: a}], nodeSelector: x}", "nodeSelector"),
            ("{containers: [{name: a}], tolerations: x}", "tolerations"),
            ("x", "spec is not a map"),
        ] {
            let text =
                format!("{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {spec}}}");
            let error = applied(&text, None, &Properties::default()).unwrap_err();
            assert!(error.message().contains("document 1"), "{error:?}");
            assert!(error.message().contains(part), "{error:?}");
        }
    }

    #[test]
    fn a_disruption_budget_is_a_whole_number() {
        let pod = |budget: &str| {
            let text = format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: a, annotations: {{drover.dev/disruption-budget: {budget}}}}}, spec: {{containers: [{{name: a}}]}}}}"
            );
            applied(&text, None, &Properties::default())
        };
        for right in ["\"0\"", "\"1\"", "null"] {
            pod(right).unwrap();
        }
        for wrong in ["1", "\"-1\"", "\"50%\"", "one", "\"\""] {
            let error = pod(wrong).unwrap_err();
            for part in ["document 1", "drover.dev/disruption-budget"] {
                assert!(error.message().contains(part), "{wrong}: {error:?}");
            }
        }
        let inside = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: {metadata: {annotations: {drover.dev/disruption-budget: many}}, spec: {containers: [{name: a}]}}}}";
        applied(inside, None, &Properties::default()).unwrap_err();
    }

    #[test]
    fn a_set_that_runs_nothing_is_refused_and_a_custom_resource_may_run_something() {
        let config = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}";
        let error = applied(config, None, &Properties::default()).unwrap_err();
        assert!(error.message().contains("nothing that runs"), "{error:?}");
        let custom = "{apiVersion: example.com/v1, kind: Store, metadata: {name: a}}";
        applied(custom, None, &properties(json!({"namespace": "x"}))).unwrap();
        for (class, wanted) in [
            (Some(class()), json!({})),
            (None, json!({"nodeSelector": {"a": "b"}})),
        ] {
            let error = applied(custom, class.as_ref(), &properties(wanted)).unwrap_err();
            assert!(error.message().contains("no pod"), "{error:?}");
        }
    }
}
