//! Applies the labels and annotations of the platform wherever they belong, overriding the template.

use std::collections::BTreeMap;

use drover_core::Result;
use serde_json::{Map, Value};

use super::{Object, child, pods};
use crate::labels::{self, LabelKeys, Stamp};

/// Stamps an object of a node with the pod templates and claim templates in it, and completes its selectors so that
/// they match nothing of another node.
///
/// # Errors
/// `Precondition` if the object has something other than a map there.
pub(crate) fn apply(
    object: &mut Object,
    stamp: &Stamp,
    keys: &LabelKeys,
    anchor: bool,
) -> Result<()> {
    let namespace = Value::String(object.namespace.clone());
    object
        .map_at(&["metadata"])?
        .insert("namespace".to_owned(), namespace);
    mark(object, &[], stamp)?;
    let annotations = object.map_at(&["metadata", "annotations"])?;
    annotations.remove(labels::ANCHOR);
    if anchor {
        annotations.insert(labels::ANCHOR.to_owned(), "true".into());
    }
    // A pod is its own template, and is already marked.
    for path in pods::templates(object).iter().filter(|it| !it.is_empty()) {
        mark(object, path, stamp)?;
    }
    if object.group() == "batch" && object.kind == "CronJob" {
        mark(object, &["spec", "jobTemplate"], stamp)?;
    }
    for claim in super::claims::templates(object)? {
        let metadata = child(claim, "metadata");
        stamp.declared.apply(metadata);
        set(child(metadata, "labels"), &stamp.labels);
        set(child(metadata, "annotations"), &stamp.annotations);
    }
    selectors(object, stamp, keys)
}

/// Marks the metadata at a path.
fn mark(object: &mut Object, path: &[&str], stamp: &Stamp) -> Result<()> {
    let at = |key| -> Vec<&str> {
        path.iter()
            .copied()
            .chain(["metadata"])
            .chain(key)
            .collect()
    };
    for key in ["labels", "annotations"] {
        object.map_at(&at(Some(key)))?;
    }
    stamp.declared.apply(object.map_at(&at(None))?);
    for (key, values) in [
        ("labels", &stamp.labels),
        ("annotations", &stamp.annotations),
    ] {
        set(object.map_at(&at(Some(key)))?, values);
    }
    Ok(())
}

fn set(map: &mut Map<String, Value>, values: &BTreeMap<String, String>) {
    for (key, value) in values {
        map.insert(key.clone(), Value::String(value.clone()));
    }
}

fn selectors(object: &mut Object, stamp: &Stamp, keys: &LabelKeys) -> Result<()> {
    match (object.group(), object.kind.as_str()) {
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet") => {
            let labels = object.map_at(&["spec", "selector", "matchLabels"])?;
            correct(labels, stamp);
            complete(labels, stamp, keys);
        }
        ("", "ReplicationController") => {
            let labels = object.map_at(&["spec", "selector"])?;
            correct(labels, stamp);
            complete(labels, stamp, keys);
        }
        // The endpoints of a service without a selector are managed by somebody else.
        ("", "Service") => {
            let selector = &object
                .body
                .get("spec")
                .and_then(|spec| spec.get("selector"));
            if selector.is_some_and(|selector| !selector.is_null()) {
                let labels = object.map_at(&["spec", "selector"])?;
                narrow(labels, stamp, keys);
            }
        }
        ("policy", "PodDisruptionBudget") => {
            let labels = object.map_at(&["spec", "selector", "matchLabels"])?;
            narrow(labels, stamp, keys);
        }
        ("networking.k8s.io", "NetworkPolicy") => {
            let labels = object.map_at(&["spec", "podSelector", "matchLabels"])?;
            narrow(labels, stamp, keys);
        }
        _ => {}
    }
    Ok(())
}

/// A selector that names only the cluster deliberately matches all of its nodes; any other is narrowed to this node.
fn narrow(labels: &mut Map<String, Value>, stamp: &Stamp, keys: &LabelKeys) {
    let of_cluster = labels.contains_key(&keys.cluster) && !labels.contains_key(&keys.node);
    correct(labels, stamp);
    if !of_cluster {
        complete(labels, stamp, keys);
    }
}

/// Enforced labels can only be selected with the enforced value.
fn correct(selected: &mut Map<String, Value>, stamp: &Stamp) {
    for (key, value) in selected {
        // A selector by role deliberately follows the current role.
        if key == labels::ROLE || key == labels::ACTIVE {
            continue;
        }
        if let Some(enforced) = stamp.labels.get(key) {
            *value = Value::String(enforced.clone());
        }
    }
}

fn complete(labels: &mut Map<String, Value>, stamp: &Stamp, keys: &LabelKeys) {
    for key in [&keys.cluster, &keys.node] {
        if let Some(value) = stamp.labels.get(key) {
            labels.insert(key.clone(), Value::String(value.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use drover_core::Reason;
    use drover_platform::identity::Identity;
    use serde_json::json;

    use super::*;
    use crate::{
        labels::declared::{Declared, Plain},
        objects::render::tests::objects,
    };

    fn stamp() -> Stamp {
        let map = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        Stamp {
            labels: map(&[
                ("drover.dev/cluster", "c1"),
                ("drover.dev/node", "n1"),
                ("drover.dev/owner", "o1"),
            ]),
            annotations: map(&[("drover.dev/identity", "{}")]),
            ..Stamp::default()
        }
    }

    fn stamped(text: &str) -> Value {
        let mut object = objects(text).remove(0);
        apply(&mut object, &stamp(), &LabelKeys::default(), false).unwrap();
        Value::Object(object.body)
    }

    #[track_caller]
    fn marked(metadata: &Value) {
        assert_eq!(metadata["labels"]["drover.dev/cluster"], "c1");
        assert_eq!(metadata["labels"]["drover.dev/node"], "n1");
        assert_eq!(metadata["labels"]["drover.dev/owner"], "o1");
        assert_eq!(metadata["annotations"]["drover.dev/identity"], "{}");
    }

    #[test]
    fn an_object_carries_the_labels_whatever_the_template_says() {
        let it = stamped(
            "{apiVersion: example.com/v1, kind: Store, metadata: {name: a, labels: {drover.dev/cluster: other, app: x}}}",
        );
        marked(&it["metadata"]);
        assert_eq!(it["metadata"]["labels"]["app"], "x");
        assert_eq!(it["metadata"]["namespace"], "prod");
        let it = stamped("{apiVersion: v1, kind: Pod, metadata: {name: a, labels: null}}");
        marked(&it["metadata"]);
    }

    #[test]
    fn a_declared_label_has_one_name() {
        let identity = Identity {
            labels: [("team".to_owned(), "a".to_owned())].into(),
            ..Identity::default()
        };
        let plain = Plain::of(identity.labels.keys(), &["team".to_owned()]);
        let stamp = Stamp {
            declared: Declared::of(&identity, &plain),
            ..stamp()
        };
        for text in [
            "{apiVersion: v1, kind: Pod, metadata: {name: a}}",
            "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: {}}}",
        ] {
            let mut object = objects(text).remove(0);
            apply(&mut object, &stamp, &LabelKeys::default(), false).unwrap();
            let body = Value::Object(object.body);
            let template = body.pointer("/spec/template/metadata");
            for metadata in [Some(&body["metadata"]), template].into_iter().flatten() {
                assert_eq!(metadata["labels"]["team"], "a");
                assert_eq!(metadata["labels"].get("drover.dev/label.team"), None);
            }
        }
    }

    #[test]
    fn only_the_anchor_is_one() {
        let text = "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {drover.dev/anchor: \"true\"}}}";
        assert_eq!(
            stamped(text)["metadata"]["annotations"].get("drover.dev/anchor"),
            None
        );
        let mut object = objects(text).remove(0);
        apply(&mut object, &stamp(), &LabelKeys::default(), true).unwrap();
        assert_eq!(
            object.body["metadata"]["annotations"]["drover.dev/anchor"],
            "true"
        );
    }

    #[test]
    fn pod_templates_of_every_workload_carry_them() {
        for kind in ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"] {
            let it = stamped(&format!(
                "{{apiVersion: apps/v1, kind: {kind}, metadata: {{name: a}}, spec: {{selector: {{matchLabels: {{app: x, drover.dev/node: wrong}}}}, template: {{metadata: {{labels: {{app: x}}}}}}}}}}"
            ));
            marked(&it["metadata"]);
            marked(&it["spec"]["template"]["metadata"]);
            assert_eq!(
                it["spec"]["selector"]["matchLabels"],
                json!({"app": "x", "drover.dev/node": "n1", "drover.dev/cluster": "c1"})
            );
        }
        let it = stamped(
            "{apiVersion: batch/v1, kind: Job, metadata: {name: a}, spec: {template: {spec: {}}}}",
        );
        marked(&it["spec"]["template"]["metadata"]);
        assert_eq!(it["spec"].get("selector"), None);
        let it = stamped(
            "{apiVersion: batch/v1, kind: CronJob, metadata: {name: a}, spec: {jobTemplate: {spec: {template: {}}}}}",
        );
        marked(&it["spec"]["jobTemplate"]["metadata"]);
        marked(&it["spec"]["jobTemplate"]["spec"]["template"]["metadata"]);
        let it = stamped(
            "{apiVersion: v1, kind: ReplicationController, metadata: {name: a}, spec: {selector: {app: x}, template: {}}}",
        );
        marked(&it["spec"]["template"]["metadata"]);
        assert_eq!(it["spec"]["selector"]["drover.dev/node"], "n1");
    }

    #[test]
    fn claim_templates_carry_them() {
        let it = stamped(
            "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: a}, spec: {volumeClaimTemplates: [{metadata: {name: data}}, {metadata: {name: log, labels: {drover.dev/node: x}}}]}}",
        );
        marked(&it["spec"]["volumeClaimTemplates"][0]["metadata"]);
        marked(&it["spec"]["volumeClaimTemplates"][1]["metadata"]);
    }

    #[test]
    fn the_template_of_a_custom_resource_is_left_alone() {
        let it = stamped(
            "{apiVersion: example.com/v1, kind: Deployment, metadata: {name: a}, spec: {template: {x: 1}}}",
        );
        assert_eq!(it["spec"], json!({"template": {"x": 1}}));
    }

    #[test]
    fn a_selector_selects_nothing_of_another_node() {
        let both = json!({"drover.dev/cluster": "c1", "drover.dev/node": "n1"});
        let it = stamped(
            "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {selector: {app: x}}}",
        );
        let selector = &it["spec"]["selector"];
        assert_eq!(selector["drover.dev/node"], "n1");
        assert_eq!(selector["drover.dev/cluster"], "c1");
        assert_eq!(selector["app"], "x");
        let it = stamped(
            "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: a}, spec: {}}",
        );
        assert_eq!(it["spec"]["selector"]["matchLabels"], both);
        let it = stamped(
            "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}, spec: {podSelector: {}}}",
        );
        assert_eq!(it["spec"]["podSelector"]["matchLabels"], both);
    }

    #[test]
    fn a_service_over_the_cluster_stays_one_and_one_without_selector_too() {
        let it = stamped(
            "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {selector: {drover.dev/cluster: other}}}",
        );
        assert_eq!(it["spec"]["selector"], json!({"drover.dev/cluster": "c1"}));
        let it = stamped(
            "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: ExternalName}}",
        );
        assert_eq!(it["spec"].get("selector"), None);
    }

    #[test]
    fn what_is_no_map_is_named() {
        for text in [
            "{apiVersion: v1, kind: Pod, metadata: {name: a, labels: [x]}}",
            "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: x}}",
            "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: a}, spec: {volumeClaimTemplates: x}}",
        ] {
            let mut object = objects(text).remove(0);
            let error = apply(&mut object, &stamp(), &LabelKeys::default(), false).unwrap_err();
            assert_eq!(error.reason(), Reason::Precondition);
            assert!(error.message().starts_with("document 1"), "{error:?}");
        }
    }
}
