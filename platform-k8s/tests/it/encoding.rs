//! Protobuf and JSON of the API server are read as the same.

use crate::direct;

use std::time::Duration;

use direct::Direct;
use drover_platform_k8s::{
    client::{ListQuery, Object, Shape, WatchEvent},
    pod::Pod,
};
use serde_json::{Value, json};

/// A pod in which every field that is read is set.
async fn full(bench: &Direct) -> Value {
    let namespace = &bench.namespace;
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}});
    let owner = namespace.create("configmaps", &owner).await.unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "full", "labels": {"a": "b", "empty": ""}, "annotations": {"c": "d"},
            "finalizers": ["example.org/stays"],
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "controller": true,
                "uid": owner["metadata"]["uid"],
            }],
        },
        "spec": {
            "schedulerName": "nobody", "nodeName": "nowhere",
            "containers": [
                {"name": "main", "image": "example.invalid/main:1", "ports": [
                    {"name": "client", "containerPort": 7000, "hostPort": 65535},
                    {"containerPort": 1},
                ]},
                {"name": "other", "image": "example.invalid/other:1"},
            ],
        },
    });
    namespace.create("pods", &pod).await.unwrap();
    let ended = json!({"reason": "OOMKilled", "message": "ü", "exitCode": 137, "signal": 9});
    let status = json!({"status": {
        "phase": "Running", "reason": "Evicted", "message": "for the test",
        "hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}],
        "podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::2"}],
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "R", "message": "m"},
            {"type": "PodScheduled", "status": "True"},
        ],
        "containerStatuses": [
            {"name": "main", "ready": false, "restartCount": 3, "image": "", "imageID": "",
             "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "later"}},
             "lastState": {"terminated": ended}},
            {"name": "other", "ready": true, "restartCount": 0, "image": "", "imageID": "",
             "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}},
        ],
    }});
    let path = format!("{}/full/status", namespace.path("pods"));
    namespace.raw.merge(&path, &status).await.unwrap();
    // Deleted, but not yet gone.
    let path = format!("{}/full", namespace.path("pods"));
    namespace.raw.delete(&path).await.unwrap();
    namespace.raw.get(&path).await.unwrap()
}

fn object<T>(event: WatchEvent<T>) -> T {
    match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => object,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_the_same_in_both_encodings_in_lists_and_in_watches() {
    let bench = Direct::start().await;
    let json = full(&bench).await;
    let mut expected: Pod = serde_json::from_value(json.clone()).unwrap();
    // Fields that are read from JSON only, and are not used.
    expected.metadata.managed_fields = None;
    expected.metadata.generation = None;
    expected.metadata.deletion_grace_period_seconds = None;
    let of = |name: &str| json["metadata"][name].as_str().unwrap().to_owned();
    assert_eq!(expected.status.container_statuses.len(), 2, "{json}");
    assert_eq!(of("deletionTimestamp").len(), "2026-01-01T00:00:00Z".len());

    let kinds = bench.api.kinds().await.unwrap();
    let kind = kinds.named("pods").unwrap();
    let query = |shape| ListQuery {
        kind: &kind,
        namespace: &bench.namespace.name,
        labels: "",
        fields: "",
        shape,
    };
    let listed = bench.api.list_all::<Pod>(&query(Shape::Full)).await;
    assert_eq!(listed.unwrap(), std::slice::from_ref(&expected));
    let parts = bench.api.list_all::<Object>(&query(Shape::Metadata)).await;
    let parts: Vec<_> = parts.unwrap().into_iter().map(|it| it.metadata).collect();
    assert_eq!(parts, std::slice::from_ref(&expected.metadata));
    let alone = bench.api.get_meta(&kind, &bench.namespace.name, "full");
    assert_eq!(alone.await.unwrap(), Some(expected.metadata.clone()));

    let silence = Duration::from_secs(30);
    let watch = query(Shape::Full);
    let mut events = bench.api.watch::<Pod>(&watch, "0").await.unwrap();
    let event = events.next(silence).await.unwrap().unwrap();
    assert_eq!(object(event), expected);
    let watch = query(Shape::Metadata);
    let mut events = bench.api.watch::<Object>(&watch, "0").await.unwrap();
    let event = events.next(silence).await.unwrap().unwrap();
    assert_eq!(object(event).metadata, expected.metadata);
    let freed = json!({"metadata": {"finalizers": null}});
    let path = format!("{}/full", bench.namespace.path("pods"));
    bench.namespace.raw.merge(&path, &freed).await.unwrap();
}
