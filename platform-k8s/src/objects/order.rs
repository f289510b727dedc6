//! Creation order of objects: first those that others refer to, last those that run.

use super::Object;

/// Rank of unlisted kinds: after objects that others only refer to, before those that run.
const OTHERS: usize = 12;

/// The rank of an object. Objects of the same rank keep the order of their documents.
fn rank(object: &Object) -> usize {
    match (object.group(), object.kind.as_str()) {
        ("", "ServiceAccount") => 0,
        ("rbac.authorization.k8s.io", "Role") => 1,
        ("rbac.authorization.k8s.io", "RoleBinding") => 2,
        ("", "Secret") => 3,
        ("", "ConfigMap") => 4,
        ("", "PersistentVolumeClaim") => 5,
        ("", "Service") => 6,
        ("networking.k8s.io", "NetworkPolicy") => 7,
        ("policy", "PodDisruptionBudget") => 8,
        ("networking.k8s.io", "Ingress") => 9,
        ("autoscaling", _) => 10,
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
        | ("batch", "Job" | "CronJob")
        | ("", "ReplicationController") => 13,
        ("", "Pod") => 14,
        _ => OTHERS,
    }
}

/// Sorts the objects of a node into creation order. The last one is the anchor.
pub(crate) fn sort(objects: &mut [Object]) {
    objects.sort_by_key(rank);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::render::tests::objects;

    #[test]
    fn what_is_referred_to_comes_first_and_the_pod_last() {
        let mut all = objects(
            "
{apiVersion: v1, kind: Pod, metadata: {name: a}}
---
{apiVersion: example.com/v1, kind: Pod, metadata: {name: b}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: c}}
---
{apiVersion: v1, kind: Service, metadata: {name: d}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: e}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: f}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: g}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: h}}
",
        );
        sort(&mut all);
        let names: Vec<_> = all.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["g", "h", "e", "f", "d", "b", "c", "a"]);
    }
}
