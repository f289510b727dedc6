//! Nodes and pods.

use drover_core::{Error, Reason};
use drover_proto::kubernetes::v1 as api;
use futures::stream;
use serde_json::{Value, json};

use super::{Row, selector};
use crate::faults::world::{World, done, stream as all};

/// A condition that no controller writes.
const CONDITION: &str = "drover.dev/Tested";

async fn make_node(world: &World, name: &str) {
    let taint = json!({"key": "drover.dev/test", "effect": "NoSchedule"});
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"case": name}},
        "spec": {"taints": [taint]},
    });
    let raw = &world.namespace.raw;
    raw.create("/api/v1/nodes", &node).await.unwrap();
}

async fn node(world: &World, name: &str) -> Value {
    let path = format!("/api/v1/nodes/{name}");
    world.namespace.raw.get(&path).await.unwrap()
}

/// A pod on a node, or on none.
async fn make_pod(world: &World, name: &str, node: Option<&str>) {
    let pod = json!({
        "metadata": {"name": name, "labels": {"case": name}},
        "spec": {
            "containers": [{"name": "main", "image": "example.invalid/main:1"}],
            "nodeSelector": if node.is_none() { json!({"no": "where"}) } else { json!({}) },
            "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": false,
        },
    });
    world.namespace.create("pods", &pod).await.unwrap();
}

async fn set_status(world: &World, name: &str, status: Value) {
    let path = format!("{}/{name}/status", world.namespace.path("pods"));
    let patch = json!({"status": status});
    world.namespace.raw.merge(&path, &patch).await.unwrap();
}

/// A pod that runs, as far as the API server knows, on no node.
async fn make_running(world: &World, name: &str) {
    make_pod(world, name, None).await;
    let running = json!({
        "name": "main", "image": "x", "imageID": "x", "ready": true, "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    });
    let status = json!({"phase": "Running", "containerStatuses": [running]});
    set_status(world, name, status).await;
}

/// The API server asks no kubelet for a pod without a node, and says so, or nothing: that far these calls get here.
fn without_a_kubelet<T>(outcome: Result<Vec<T>, Error>) -> Result<(), Error> {
    match outcome {
        Ok(told) => {
            assert!(told.is_empty(), "nothing runs there");
            Ok(())
        }
        Err(error) if error.reason() == Reason::ContainerNotRunning => Ok(()),
        Err(error) => Err(error),
    }
}

fn start(world: &World, name: &str) -> api::ExecRequest {
    api::ExecRequest {
        input: Some(api::exec_request::Input::Start(api::ExecStart {
            namespace: world.namespace.name.clone(),
            pod: name.to_owned(),
            command: vec!["true".to_owned()],
            ..api::ExecStart::default()
        })),
    }
}

pub(super) fn rows() -> Vec<Row> {
    let mut rows = nodes();
    rows.extend(pods());
    rows.extend(inside());
    rows
}

fn nodes() -> Vec<Row> {
    vec![
        Row::reads(
            "NodeService/GetNode",
            |world, name| Box::pin(make_node(world, name)),
            |world, name| {
                Box::pin(async move {
                    let name = name.to_owned();
                    let request = api::GetNodeRequest { name };
                    done(world.nodes().get_node(request)).await.map(drop)
                })
            },
        ),
        Row::reads(
            "NodeService/ListNodes",
            |world, name| Box::pin(make_node(world, name)),
            |world, name| {
                Box::pin(async move {
                    let request = api::ListNodesRequest {
                        selector: selector(name),
                        ..api::ListNodesRequest::default()
                    };
                    let listed = done(world.nodes().list_nodes(request)).await?;
                    assert_eq!(listed.nodes.len(), 1);
                    Ok(())
                })
            },
        ),
        Row::reads(
            "NodeService/WaitNodes",
            |world, name| Box::pin(make_node(world, name)),
            |world, name| Box::pin(wait_nodes(world, name)),
        ),
        Row::changes(
            "NodeService/CordonNode",
            |world, name| Box::pin(make_node(world, name)),
            |world, name| {
                Box::pin(async move {
                    let name = name.to_owned();
                    let request = api::CordonNodeRequest { name };
                    done(world.nodes().cordon_node(request)).await.map(drop)
                })
            },
            ("patch", "nodes", |world, name| {
                Box::pin(async move { node(world, name).await["spec"]["unschedulable"] == true })
            }),
        ),
        Row::changes(
            "NodeService/UncordonNode",
            |world, name| {
                Box::pin(async move {
                    make_node(world, name).await;
                    let path = format!("/api/v1/nodes/{name}");
                    let patch = json!({"spec": {"unschedulable": true}});
                    world.namespace.raw.merge(&path, &patch).await.unwrap();
                })
            },
            |world, name| {
                Box::pin(async move {
                    let name = name.to_owned();
                    let request = api::UncordonNodeRequest { name };
                    done(world.nodes().uncordon_node(request)).await.map(drop)
                })
            },
            ("patch", "nodes", |world, name| {
                Box::pin(async move { node(world, name).await["spec"]["unschedulable"] != true })
            }),
        ),
        Row::changes(
            "NodeService/DrainNode",
            |world, name| {
                Box::pin(async move {
                    make_node(world, name).await;
                    make_pod(world, name, Some(name)).await;
                })
            },
            |world, name| Box::pin(drain(world, name)),
            ("create", "pods/eviction", |world, name| {
                Box::pin(async move { !world.has("pods", name).await })
            }),
        ),
    ]
}

async fn wait_nodes(world: &World, name: &str) -> Result<(), Error> {
    let request = api::WaitNodesRequest {
        names: vec![name.to_owned()],
        condition: CONDITION.to_owned(),
        ..api::WaitNodesRequest::default()
    };
    let path = format!("/api/v1/nodes/{name}/status");
    let condition = json!({
        "type": CONDITION, "status": "True", "reason": "Test", "message": "",
        "lastHeartbeatTime": null, "lastTransitionTime": null,
    });
    let patch = json!({"status": {"conditions": [condition]}});
    let comes = async {
        world.namespace.raw.merge(&path, &patch).await.unwrap();
    };
    let told = all(world.nodes().wait_nodes(request), comes).await?;
    assert!(told.last().unwrap().progress.as_ref().unwrap().done);
    Ok(())
}

async fn drain(world: &World, name: &str) -> Result<(), Error> {
    let request = api::DrainNodeRequest {
        name: name.to_owned(),
        grace_period: Some(prost_types::Duration::default()),
        force: true,
        ..api::DrainNodeRequest::default()
    };
    let told = all(world.nodes().drain_node(request), async {}).await?;
    assert!(told.last().unwrap().progress.as_ref().unwrap().done);
    Ok(())
}

fn pods() -> Vec<Row> {
    vec![
        Row::creates(
            "PodService/CreatePod",
            |world, name| {
                Box::pin(async move {
                    let container = api::Container {
                        name: "main".to_owned(),
                        image: "example.invalid/main:1".to_owned(),
                        ..api::Container::default()
                    };
                    let pod = api::Pod {
                        metadata: world.metadata(name),
                        spec: Some(api::PodSpec {
                            containers: vec![container],
                            node_selector: [("no".to_owned(), "where".to_owned())].into(),
                            ..api::PodSpec::default()
                        }),
                        status: None,
                    };
                    let request = api::CreatePodRequest { pod: Some(pod) };
                    done(world.pods().create_pod(request)).await.map(drop)
                })
            },
            "pods",
            |world, name| Box::pin(world.has("pods", name)),
        ),
        Row::reads(
            "PodService/GetPod",
            |world, name| Box::pin(make_pod(world, name, None)),
            |world, name| {
                Box::pin(async move {
                    let request = api::GetPodRequest {
                        namespace: world.namespace.name.clone(),
                        name: name.to_owned(),
                    };
                    done(world.pods().get_pod(request)).await.map(drop)
                })
            },
        ),
        Row::reads(
            "PodService/ListPods",
            |world, name| Box::pin(make_pod(world, name, None)),
            |world, name| {
                Box::pin(async move {
                    let request = api::ListPodsRequest {
                        namespace: world.namespace.name.clone(),
                        selector: selector(name),
                        ..api::ListPodsRequest::default()
                    };
                    let listed = done(world.pods().list_pods(request)).await?;
                    assert_eq!(listed.pods.len(), 1);
                    Ok(())
                })
            },
        ),
        Row::changes(
            "PodService/DeletePod",
            |world, name| Box::pin(make_pod(world, name, None)),
            |world, name| {
                Box::pin(async move {
                    let request = api::DeletePodRequest {
                        namespace: world.namespace.name.clone(),
                        name: name.to_owned(),
                        wait: true,
                        ..api::DeletePodRequest::default()
                    };
                    done(world.pods().delete_pod(request)).await.map(drop)
                })
            },
            ("delete", "pods", |world, name| {
                Box::pin(async move { !world.has("pods", name).await })
            }),
        ),
        Row::reads(
            "PodService/WaitPods",
            |world, name| Box::pin(make_pod(world, name, None)),
            |world, name| Box::pin(wait_pods(world, name)),
        ),
    ]
}

async fn wait_pods(world: &World, name: &str) -> Result<(), Error> {
    let request = api::WaitPodsRequest {
        namespace: world.namespace.name.clone(),
        names: vec![name.to_owned()],
        conditions: vec![api::PodWaitCondition::HasIp.into()],
        ..api::WaitPodsRequest::default()
    };
    let status = json!({"podIP": "192.0.2.1", "podIPs": [{"ip": "192.0.2.1"}]});
    let comes = set_status(world, name, status);
    let told = all(world.pods().wait_pods(request), comes).await?;
    assert!(told.last().unwrap().progress.as_ref().unwrap().done);
    Ok(())
}

fn inside() -> Vec<Row> {
    vec![
        Row::reads(
            "PodService/Exec",
            |world, name| Box::pin(make_running(world, name)),
            |world, name| {
                Box::pin(async move {
                    let input = stream::iter([start(world, name)]);
                    without_a_kubelet(all(world.pods().exec(input), async {}).await)
                })
            },
        ),
        Row::reads(
            "PodService/RunScript",
            |world, name| Box::pin(make_running(world, name)),
            |world, name| {
                Box::pin(async move {
                    let request = api::RunScriptRequest {
                        namespace: world.namespace.name.clone(),
                        pod: name.to_owned(),
                        script: "true".to_owned(),
                        ..api::RunScriptRequest::default()
                    };
                    without_a_kubelet(all(world.pods().run_script(request), async {}).await)
                })
            },
        ),
        Row::reads(
            "PodService/ReadFile",
            |world, name| Box::pin(make_running(world, name)),
            |world, name| {
                Box::pin(async move {
                    let request = api::ReadFileRequest {
                        namespace: world.namespace.name.clone(),
                        pod: name.to_owned(),
                        path: "/etc/hosts".to_owned(),
                        ..api::ReadFileRequest::default()
                    };
                    without_a_kubelet(all(world.pods().read_file(request), async {}).await)
                })
            },
        ),
        Row::reads(
            "PodService/StreamLogs",
            |world, name| Box::pin(make_running(world, name)),
            |world, name| {
                Box::pin(async move {
                    let request = api::StreamLogsRequest {
                        namespace: world.namespace.name.clone(),
                        pod: name.to_owned(),
                        ..api::StreamLogsRequest::default()
                    };
                    without_a_kubelet(all(world.pods().stream_logs(request), async {}).await)
                })
            },
        ),
    ]
}
