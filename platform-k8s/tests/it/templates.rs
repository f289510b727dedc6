//! The built-in templates on a real kubelet.

use crate::direct;

use std::os::unix::fs::PermissionsExt as _;

use direct::{Direct, batch, built_in, made};
use drover_platform_k8s::objects::CATALOGUE;
use drover_proto::platform::v1::{Bootstrap, Node, ProvisionRequest, Storage, bootstrap::UserData};
use drover_testing::kubernetes::{Options, Rig, until, without_kubelet};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// `None` if this machine cannot run a kubelet.
async fn rig() -> Option<&'static Rig> {
    if without_kubelet() {
        return None;
    }
    let rig = Rig::shared(Options::kubelet());
    rig.image(&["redis"]).await;
    Some(rig)
}

fn request(bench: &Direct, attributes: &Value) -> ProvisionRequest {
    let mut request = bench.request(1);
    request.cluster.as_mut().unwrap().store = "redis".to_owned();
    request.cluster.as_mut().unwrap().version = "7".to_owned();
    let attributes = attributes.as_object().map(drover_convert::value::to_struct);
    request.group.as_mut().unwrap().attributes = attributes;
    request
}

async fn make(bench: &Direct, request: &ProvisionRequest) -> Node {
    let templates = built_in(CATALOGUE);
    bench.check_by(request, &templates).await.unwrap();
    let (batch, _caller) = batch(request, &templates);
    made(bench.creator.create(&batch).await).remove(0)
}

/// Waits until the node's pod is Ready, and returns it.
async fn ready(bench: &Direct, node: &Node, besides: &str) -> Value {
    until("the pod is Ready", || async {
        let pods = bench.namespace.list("pods").await;
        pods.into_iter().find(|pod| {
            let conditions = pod["status"]["conditions"].as_array();
            let is_ready = |it: &Value| it["type"] == "Ready" && it["status"] == "True";
            pod["metadata"]["labels"]["drover.dev/node"] == json!(node.id)
                && pod["metadata"]["uid"] != besides
                && pod["metadata"]["deletionTimestamp"].is_null()
                && conditions.is_some_and(|all| all.iter().any(is_ready))
        })
    })
    .await
}

/// Sends a command to the redis of a pod.
async fn ask(pod: &Value, command: &str) -> String {
    let address = format!("{}:6379", pod["status"]["podIP"].as_str().unwrap());
    let mut stream = TcpStream::connect(&address).await.unwrap();
    stream
        .write_all(format!("{command}\r\n").as_bytes())
        .await
        .unwrap();
    let mut answer = vec![0; 256];
    let length = stream.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[..length]).trim().to_owned()
}

/// A volume for one claim, writable by users other than root.
async fn volume(bench: &Direct) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(directory.path(), all).unwrap();
    let name = format!("{}-{}", bench.namespace.name, uuid::Uuid::new_v4().simple());
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": name,
            "hostPath": {"path": directory.path()},
        },
    });
    let path = "/api/v1/persistentvolumes";
    bench.namespace.raw.create(path, &volume).await.unwrap();
    (directory, name)
}

async fn gone(bench: &Direct, node: &Node) {
    bench.gone(node).await;
    bench
        .namespace
        .until_empty("a node on a real kubelet")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_runs_as_somebody_without_rights_and_answers() {
    let Some(rig) = rig().await else { return };
    let bench = Direct::over(rig, |_| {}).await;
    let node = make(
        &bench,
        &request(&bench, &json!({"image": "redis:test", "open": true})),
    )
    .await;
    let pod = ready(&bench, &node, "").await;
    assert_eq!(ask(&pod, "PING").await, "+PONG");
    gone(&bench, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_without_a_password_is_refused_before_anything_is_made() {
    let Some(rig) = rig().await else { return };
    let bench = Direct::over(rig, |_| {}).await;
    let mut request = request(&bench, &json!({"image": "postgres:test"}));
    request.cluster.as_mut().unwrap().store = "postgresql".to_owned();
    let templates = built_in(CATALOGUE);
    let error = bench.check_by(&request, &templates).await.unwrap_err();
    assert!(error.message().contains("give the password"), "{error}");
    bench.namespace.until_empty("a refused node").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_of_redis_that_is_none_or_that_nobody_would_ask_for_is_refused() {
    let Some(rig) = rig().await else { return };
    let bench = Direct::over(rig, |_| {}).await;
    let templates = built_in(CATALOGUE);
    let refusal = async |workload: &str, text: &str| {
        let attributes = json!({"image": "redis:test", "workload": workload});
        let mut request = request(&bench, &attributes);
        request.bootstrap = Some(Bootstrap {
            user_data: Some(UserData::Text(text.to_owned())),
            ..Bootstrap::default()
        });
        bench.check_by(&request, &templates).await.err()
    };
    assert!(refusal("Pod", "it's \"odd\" \\ #").await.is_none());
    for (workload, text, why) in [
        ("Pod", "", "is empty or has control characters"),
        ("StatefulSet", "hunter2", "takes no password"),
    ] {
        let error = refusal(workload, text).await.unwrap();
        assert!(error.message().contains(why), "{error}");
    }
    bench.namespace.until_empty("a refused node").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_run_as_the_user_that_is_asked_for_or_as_whom_admission_assigns() {
    let bench = Direct::start().await;
    for (user, expected) in [
        (json!(null), json!(999)),
        (json!(70), json!(70)),
        (json!("70"), json!(70)),
        (json!("assigned"), Value::Null),
    ] {
        for workload in ["Pod", "StatefulSet"] {
            let mut attributes = json!({"workload": workload, "open": true});
            if !user.is_null() {
                attributes["run_as_user"] = user.clone();
            }
            let node = make(&bench, &request(&bench, &attributes)).await;
            let pod = until("its pod is there", || async {
                bench.namespace.list("pods").await.into_iter().next()
            })
            .await;
            let security = &pod["spec"]["securityContext"];
            for field in ["runAsUser", "runAsGroup", "fsGroup"] {
                assert_eq!(security[field], expected, "{workload} {user} {field}");
            }
            assert_eq!(security["runAsNonRoot"], true);
            gone(&bench, &node).await;
        }
    }
    for user in [
        json!(0),
        json!("postgres"),
        json!(-1),
        json!(false),
        json!(70.5),
        json!("70.5"),
        json!("inf"),
        json!(4_294_967_296_u64),
    ] {
        let attributes = json!({"open": true, "run_as_user": user});
        let request = request(&bench, &attributes);
        let error = bench.check_by(&request, &built_in(CATALOGUE)).await;
        let error = error.unwrap_err();
        assert!(error.message().contains("run_as_user"), "{user}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_with_storage_keeps_what_it_was_told() {
    let Some(rig) = rig().await else { return };
    for workload in ["Pod", "StatefulSet"] {
        let bench = Direct::over(rig, |_| {}).await;
        let (directory, class) = volume(&bench).await;
        let attributes = json!({"image": "redis:test", "workload": workload, "open": true});
        let mut request = request(&bench, &attributes);
        request.storage = Some(Storage {
            size_bytes: Some(1 << 30),
            class: class.clone(),
        });
        let node = make(&bench, &request).await;
        let pod = ready(&bench, &node, "").await;
        assert_eq!(ask(&pod, "SET a hunter").await, "+OK");
        assert!(directory.path().join("appendonlydir").exists());
        if workload == "StatefulSet" {
            let name = pod["metadata"]["name"].as_str().unwrap();
            bench.namespace.delete("pods", name).await;
            let before = pod["metadata"]["uid"].as_str().unwrap();
            let after = ready(&bench, &node, before).await;
            assert!(ask(&after, "GET a").await.ends_with("hunter"));
        }
        gone(&bench, &node).await;
        let path = format!("/api/v1/persistentvolumes/{class}");
        bench.namespace.raw.delete(&path).await.unwrap();
    }
}
