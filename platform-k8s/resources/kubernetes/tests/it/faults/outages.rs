//! An API server that goes away under waits, commands and logs.

use std::{sync::Arc, time::Duration};

use drover_core::Reason;
use drover_proto::{
    common::v1::process_output::Output,
    kubernetes::v1::{self as api, exec_request::Input},
};
use drover_resources::bytes;
use drover_testing::kubernetes::{Fault, On, Options, PATIENCE, Rig, until, without_kubelet};
use futures::{StreamExt as _, stream};
use serde_json::json;
use tonic::{Code, Streaming};

use super::world::{World, done, serve, stream as all};

/// How long the API server stays away. `DROVER_TEST_OUTAGE_SECONDS=30` makes it longer: what is seen is the same.
fn outage() -> Duration {
    let given = std::env::var("DROVER_TEST_OUTAGE_SECONDS").ok();
    Duration::from_secs(given.map_or(2, |given| given.parse().unwrap()))
}

async fn message<T>(answers: &mut Streaming<T>) -> Result<T, tonic::Status> {
    let next = tokio::time::timeout(PATIENCE, answers.message()).await;
    next.expect("an answer in time")
        .map(|message| message.expect("not the end"))
}

fn name_of(world: &World) -> api::GetPodRequest {
    api::GetPodRequest {
        namespace: world.namespace.name.clone(),
        name: "a".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_goes_on_when_the_api_server_is_back() {
    let rig = Rig::shared(Options {
        restarts: true,
        ..Options::default()
    });
    let _alone = rig.alone().await;
    let namespace = Arc::new(rig.namespace().await);
    let server = serve(rig.kubeconfig(), &namespace.name).await;
    let world = World::new(rig, Arc::clone(&namespace), server).await;
    let request = api::WaitPodsRequest {
        namespace: namespace.name.clone(),
        names: vec!["a".to_owned()],
        conditions: vec![api::PodWaitCondition::HasIp.into()],
        ..api::WaitPodsRequest::default()
    };
    let mut pods = api::pod_service_client::PodServiceClient::new(world.direct.clone());
    let mut wait = pods.wait_pods(request).await.unwrap().into_inner();
    let first = message(&mut wait).await.unwrap().progress.unwrap();
    assert_eq!(first.pending[0].reason, "NotFound");
    rig.stop("apiserver").await;
    let refused = done(pods.get_pod(name_of(&world))).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::Unavailable, "{refused}");
    tokio::time::sleep(outage()).await;
    rig.begin("apiserver").await;
    let pod = json!({
        "metadata": {"name": "a"},
        "spec": {
            "containers": [{"name": "main", "image": "example.invalid/main:1"}],
            "automountServiceAccountToken": false,
        },
    });
    until("a pod is made", || async {
        namespace.create("pods", &pod).await.ok()
    })
    .await;
    let status = json!({"status": {"podIP": "192.0.2.1", "podIPs": [{"ip": "192.0.2.1"}]}});
    let path = format!("{}/a/status", namespace.path("pods"));
    until("it has an address", || async {
        namespace.raw.merge(&path, &status).await.ok()
    })
    .await;
    loop {
        let told = message(&mut wait).await.unwrap().progress.unwrap();
        if told.done {
            break;
        }
    }
    done(pods.get_pod(name_of(&world))).await.unwrap();
}

/// What a command is given: its start, and input that does not end.
pub(super) fn input(
    start: api::ExecStart,
) -> impl futures::Stream<Item = api::ExecRequest> + use<> {
    let input = Some(Input::Start(start));
    stream::iter([api::ExecRequest { input }]).chain(stream::pending())
}

pub(super) fn start(world: &World, command: &[&str]) -> api::ExecStart {
    api::ExecStart {
        namespace: world.namespace.name.clone(),
        pod: "a".to_owned(),
        command: command.iter().map(|&it| it.to_owned()).collect(),
        ..api::ExecStart::default()
    }
}

fn log(world: &World, follow: bool) -> api::StreamLogsRequest {
    api::StreamLogsRequest {
        namespace: world.namespace.name.clone(),
        pod: "a".to_owned(),
        follow,
        ..api::StreamLogsRequest::default()
    }
}

/// A pod on the real kubelet whose log has two lines.
pub(super) async fn world() -> Option<World> {
    if without_kubelet() {
        return None;
    }
    let rig = Rig::shared(Options::kubelet());
    let alone = rig.alone().await;
    rig.image(&["busybox"]).await;
    drop(alone);
    let namespace = Arc::new(rig.namespace().await);
    let direct = serve(rig.kubeconfig(), &namespace.name).await;
    let world = World::new(rig, namespace, direct).await;
    let command = ["sh", "-c", "echo one; echo two; exec sleep 3600"];
    let pod = json!({
        "metadata": {"name": "a"},
        "spec": {
            "containers": [{
                "name": "main", "image": "busybox:test", "imagePullPolicy": "Never",
                "command": command,
            }],
            "terminationGracePeriodSeconds": 0,
        },
    });
    world.namespace.create("pods", &pod).await.unwrap();
    let request = api::WaitPodsRequest {
        namespace: world.namespace.name.clone(),
        names: vec!["a".to_owned()],
        ..api::WaitPodsRequest::default()
    };
    all(world.pods().wait_pods(request), async {})
        .await
        .unwrap();
    Some(world)
}

async fn runs(world: &World) -> Result<Vec<Output>, drover_core::Error> {
    let command = start(world, &["echo", "well"]);
    let told = all(world.pods().exec(input(command)), async {}).await?;
    let outputs = told
        .into_iter()
        .map(|it| it.output.unwrap().output.unwrap());
    Ok(outputs.collect())
}

async fn whole_log(world: &World) -> Result<String, drover_core::Error> {
    let told = all(world.pods().stream_logs(log(world, false)), async {}).await?;
    let bytes = told.into_iter().flat_map(|it| bytes(it.chunk.unwrap()));
    Ok(String::from_utf8(bytes.collect()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_and_a_log_that_lose_the_api_server_end_with_an_error_and_never_as_if_complete() {
    let Some(world) = world().await else { return };
    let endless = start(&world, &["sh", "-c", "echo begun; exec sleep 3600"]);
    let mut command = world
        .pods()
        .exec(input(endless))
        .await
        .unwrap()
        .into_inner();
    message(&mut command).await.unwrap();
    let mut followed = world
        .pods()
        .stream_logs(log(&world, true))
        .await
        .unwrap()
        .into_inner();
    message(&mut followed).await.unwrap();
    let proxy = &world.proxy;
    for verb in ["get", "connect", "watch", "list"] {
        proxy.fail(On::call(verb, "").always(), Fault::Disconnect);
    }
    proxy.sever();
    let ended = message(&mut command).await.unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
    assert_eq!(
        runs(&world).await.unwrap_err().reason(),
        Reason::Unavailable
    );
    proxy.heal();
    // A log that is followed is either taken up again or ends with an error: never as if the container had ended.
    let ended = loop {
        // Its second line may have come in a message of its own.
        if let Err(ended) = message(&mut followed).await {
            break ended;
        }
    };
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
    assert_eq!(whole_log(&world).await.unwrap(), "one\ntwo\n");
    assert!(runs(&world).await.unwrap().contains(&Output::ExitCode(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_or_a_log_whose_answer_is_lost_or_cut_is_an_error_and_can_be_asked_for_again() {
    let Some(world) = world().await else { return };
    let faults = [
        Fault::internal(),
        Fault::Disconnect,
        Fault::LoseAnswer,
        Fault::CutAnswer,
    ];
    for fault in faults {
        let proxy = &world.proxy;
        // The tunnel of a command has no body to be cut: `sever` above does that.
        if !matches!(fault, Fault::CutAnswer) {
            proxy.fail(On::call("connect", "pods/exec"), fault.clone());
            let error = runs(&world).await.unwrap_err();
            assert_eq!(error.reason(), Reason::Unavailable, "{fault:?}: {error}");
            assert_eq!(proxy.count("connect", "pods/exec"), 1, "{fault:?}");
        }
        proxy.fail(On::call("get", "pods/log"), fault.clone());
        let error = whole_log(&world).await.unwrap_err();
        assert_eq!(error.reason(), Reason::Unavailable, "{fault:?}: {error}");
        assert_eq!(proxy.faults_left(), 0, "{fault:?}");
        assert!(runs(&world).await.unwrap().contains(&Output::ExitCode(0)));
        assert_eq!(whole_log(&world).await.unwrap(), "one\ntwo\n");
        proxy.forget();
    }
}
