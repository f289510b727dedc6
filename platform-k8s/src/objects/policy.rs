//! Restrictions of the pods of nodes, applied to the result of template, attributes and properties.

use std::collections::BTreeMap;

use drover_core::{
    Error, Result,
    allow::{AllowList, describe},
};
use drover_platform::PolicySettings;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    Object,
    pods::{Pods, templates},
};

/// What callers may set, and what the pods of nodes may be. Lists of patterns, in which an asterisk stands for any text;
/// absent: anything, empty: nothing. They are looked at in the pods and pod templates of built-in kinds, as they would be
/// sent; what a custom resource means is known to its controller only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PodPolicySettings {
    /// What properties may be set to: lists by property, `*` for all properties without a list of their own. A map has
    /// all keys of its pattern and no other. Absent: anything.
    pub properties: BTreeMap<String, Vec<Value>>,
    /// Images of containers and volumes.
    pub images: Option<Vec<String>>,
    /// Paths of hostPath volumes.
    pub host_paths: Option<Vec<String>>,
    /// Service accounts. A pod that names none has that of its namespace.
    pub service_accounts: Option<Vec<String>>,
    /// Priority classes, beside that of the node class.
    pub priority_classes: Option<Vec<String>>,
    /// Tolerations, as in a pod, beside those of the node class. Each has exactly the keys of its pattern.
    pub tolerations: Option<Vec<Value>>,
    /// User ids that every container runs as: by itself, or by its pod. `0` is root; without one the image decides, which
    /// is refused.
    pub run_as_users: Option<Vec<String>>,
}

/// A value in a pod that a list restricts.
struct Found {
    list: &'static str,
    /// Path of the value in the pod.
    field: String,
    value: Value,
}

impl PodPolicySettings {
    /// The part of the policy that every platform has.
    #[must_use]
    pub fn common(&self) -> PolicySettings {
        PolicySettings {
            properties: self.properties.clone(),
        }
    }

    /// Validates the patterns.
    ///
    /// # Errors
    /// `Invalid` with the setting.
    pub fn check(&self) -> Result<()> {
        self.common().read()?;
        self.lists().map(|_| ())
    }

    fn lists(&self) -> Result<AllowList> {
        let texts = |list: &Option<Vec<String>>| -> Option<Vec<Value>> {
            let list = list.as_ref()?.iter();
            Some(list.cloned().map(Value::String).collect())
        };
        let lists = [
            ("images", texts(&self.images)),
            ("host_paths", texts(&self.host_paths)),
            ("service_accounts", texts(&self.service_accounts)),
            ("priority_classes", texts(&self.priority_classes)),
            ("tolerations", self.tolerations.clone()),
            ("run_as_users", texts(&self.run_as_users)),
        ];
        let lists = lists
            .into_iter()
            .filter_map(|(name, list)| Some((name.to_owned(), list?)));
        AllowList::new(lists.collect())
            .map_err(|(list, why)| Error::invalid(format!("policy.{list}"), why))
    }

    /// Refuses pods that violate the policy.
    ///
    /// # Errors
    /// `Precondition`, which names the document and the fields in it.
    pub(crate) fn allows(&self, objects: &[Object], pods: &Pods<'_>) -> Result<()> {
        let lists = self.lists()?;
        if lists.is_empty() {
            return Ok(());
        }
        for object in objects {
            for path in templates(object) {
                let at = [path, &["spec"][..]].concat();
                let mut spec = Some(&object.body);
                for key in &at {
                    spec = spec
                        .and_then(|map| map.get(*key))
                        .and_then(Value::as_object);
                }
                let Some(spec) = spec else { continue };
                let mut wrong = Vec::new();
                for found in self.found(spec, pods) {
                    let one: Map<String, Value> =
                        [(found.list.to_owned(), found.value)].into_iter().collect();
                    if !lists.refusals(&one).is_empty() {
                        wrong.push((format!("{}.{}", at.join("."), found.field), found.list));
                    }
                }
                let Some((field, list)) = wrong.first() else {
                    continue;
                };
                let why = self.why(list);
                let error = object.wrong(format_args!("{field} {why}"));
                return Err(wrong.into_iter().fold(error, |error, (field, list)| {
                    error.with_violation(field, self.why(list))
                }));
            }
        }
        Ok(())
    }

    fn why(&self, list: &str) -> String {
        let all = json!(self);
        let patterns = all.get(list).and_then(Value::as_array);
        let why = describe(patterns.map_or(&[][..], |all| all));
        format!("{why} by policy.{list} of the platform")
    }

    /// The values of a pod that the lists restrict. Values from the node class are the platform's own.
    fn found(&self, spec: &Map<String, Value>, pods: &Pods<'_>) -> Vec<Found> {
        let mut found = Vec::new();
        let mut add = |list: &'static str, field: String, value: &Value| {
            if !value.is_null() {
                let value = value.clone();
                found.push(Found { list, field, value });
            }
        };
        for key in ["serviceAccountName", "serviceAccount"] {
            if let Some(name) = spec.get(key) {
                add("service_accounts", key.to_owned(), name);
            }
        }
        let class = pods.class;
        let own = class.and_then(|class| class.priority_class.as_deref());
        if let Some(name) = spec
            .get("priorityClassName")
            .filter(|name| name.as_str() != own)
        {
            add("priority_classes", "priorityClassName".to_owned(), name);
        }
        for (at, one) in entries(spec, "tolerations") {
            if !class.is_some_and(|class| class.tolerations.contains(one)) {
                add("tolerations", format!("tolerations[{at}]"), one);
            }
        }
        for (at, volume) in entries(spec, "volumes") {
            if let Some(path) = volume.pointer("/hostPath/path") {
                let field = format!("volumes[{at}].hostPath.path");
                add("host_paths", field, path);
            }
            if let Some(image) = volume.pointer("/image/reference") {
                add("images", format!("volumes[{at}].image.reference"), image);
            }
        }
        let user = spec
            .get("securityContext")
            .and_then(|context| context.get("runAsUser"))
            .filter(|user| !user.is_null());
        if let Some(user) = user {
            add("run_as_users", "securityContext.runAsUser".to_owned(), user);
        }
        for kind in ["initContainers", "containers", "ephemeralContainers"] {
            for (at, container) in entries(spec, kind) {
                if let Some(image) = container.get("image") {
                    add("images", format!("{kind}[{at}].image"), image);
                }
                let own = container.pointer("/securityContext/runAsUser");
                // No user is set; only `*` matches this value.
                let unsaid = Value::String("unset".to_owned());
                let user = own.filter(|own| !own.is_null()).or(user);
                let field = format!("{kind}[{at}].securityContext.runAsUser");
                add("run_as_users", field, user.unwrap_or(&unsaid));
            }
        }
        found
    }
}

fn entries<'a>(
    spec: &'a Map<String, Value>,
    key: &str,
) -> impl Iterator<Item = (usize, &'a Value)> {
    let all = spec.get(key).and_then(Value::as_array);
    all.into_iter().flatten().enumerate()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{placement::Constraints, properties::Properties, render::tests::objects};

    const POD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {
        serviceAccountName: db, priorityClassName: high, securityContext: {runAsUser: 999},
        tolerations: [{key: db, operator: Exists}],
        volumes: [{name: v, hostPath: {path: /var/lib/db}}],
        initContainers: [{name: init, image: 'registry.example.com/init:1'}],
        containers: [{name: main, image: 'registry.example.com/db:7', securityContext: {runAsUser: 1000}}]}}";

    fn refused(policy: &str, text: &str) -> Vec<String> {
        let policy: PodPolicySettings = serde_saphyr::from_str(policy).unwrap();
        policy.check().unwrap();
        let pods = Pods {
            class: None,
            properties: &Properties::default(),
            constraints: &Constraints::default(),
        };
        match policy.allows(&objects(text), &pods) {
            Ok(()) => Vec::new(),
            Err(error) => error.fields().iter().map(|one| one.field.clone()).collect(),
        }
    }

    #[test]
    fn without_a_policy_a_pod_may_be_anything() {
        assert!(refused("{}", POD).is_empty());
    }

    #[test]
    fn what_is_on_a_list_is_let_through() {
        let all = "{images: ['registry.example.com/*'], host_paths: [/var/lib/db], service_accounts: ['d*'],
            priority_classes: [high], tolerations: [{key: db, operator: Exists}], run_as_users: ['999', '1000']}";
        assert_eq!(refused(all, POD), Vec::<String>::new());
    }

    #[test]
    fn what_is_on_no_list_is_refused_with_its_field() {
        for (policy, fields) in [
            (
                "{images: ['registry.example.com/db:*']}",
                vec!["spec.initContainers[0].image"],
            ),
            ("{host_paths: []}", vec!["spec.volumes[0].hostPath.path"]),
            ("{service_accounts: [web]}", vec!["spec.serviceAccountName"]),
            ("{priority_classes: []}", vec!["spec.priorityClassName"]),
            (
                "{tolerations: [{key: db, operator: Equal, value: x}]}",
                vec!["spec.tolerations[0]"],
            ),
            (
                "{run_as_users: ['1*']}",
                vec![
                    "spec.securityContext.runAsUser",
                    "spec.initContainers[0].securityContext.runAsUser",
                ],
            ),
        ] {
            assert_eq!(refused(policy, POD), fields, "{policy}");
        }
    }

    #[test]
    fn another_word_for_a_service_account_and_an_unsaid_user_are_not_overlooked() {
        let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {serviceAccount: admin, containers: [{name: a, image: i}]}}";
        assert_eq!(
            refused("{service_accounts: [db]}", pod),
            ["spec.serviceAccount"]
        );
        assert_eq!(
            refused("{run_as_users: ['1000']}", pod),
            ["spec.containers[0].securityContext.runAsUser"]
        );
        // Kubernetes treats null as absent: the user of the pod applies, or none is set.
        for (pod, fields) in [
            (
                "{securityContext: {runAsUser: 999}, containers: [{name: a, securityContext: {runAsUser: null}}]}",
                vec![
                    "spec.securityContext.runAsUser",
                    "spec.containers[0].securityContext.runAsUser",
                ],
            ),
            (
                "{securityContext: {runAsUser: null}, containers: [{name: a, securityContext: {runAsUser: null}}]}",
                vec!["spec.containers[0].securityContext.runAsUser"],
            ),
            (
                "{securityContext: {runAsUser: null}, containers: [{name: a, securityContext: {runAsUser: 1000}}]}",
                vec![],
            ),
        ] {
            let pod = format!("{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {pod}}}");
            assert_eq!(refused("{run_as_users: ['1000']}", &pod), fields, "{pod}");
        }
        let job = "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: a}, spec: {template: {spec: {containers: [{name: a, image: evil}]}}}}";
        assert_eq!(
            refused("{images: ['good/*']}", job),
            ["spec.template.spec.containers[0].image"]
        );
    }

    #[test]
    fn what_the_node_class_brings_is_the_platforms_own() {
        let class = serde_json::from_value(json!({
            "tolerations": [{"key": "db", "operator": "Exists"}], "priority_class": "high",
        }))
        .unwrap();
        let policy = PodPolicySettings {
            tolerations: Some(Vec::new()),
            priority_classes: Some(Vec::new()),
            ..PodPolicySettings::default()
        };
        let pods = Pods {
            class: Some(&class),
            properties: &Properties::default(),
            constraints: &Constraints::default(),
        };
        policy.allows(&objects(POD), &pods).unwrap();
    }
}
