//! What happens in a cluster without its callers: nodes are lost, namespaces deleted, finalizers and budgets in the way.

use std::collections::BTreeMap;

use drover_client::Channel;
use drover_convert::error::from_status;
use drover_core::Reason;
use drover_proto::{
    common::v1::LabelSelector,
    kubernetes::v1::{
        self as api, node_service_client::NodeServiceClient, pod_service_client::PodServiceClient,
    },
};
use drover_resources::Served;
use drover_resources_fake::Fake;
use drover_testing::wait::holds;
use tonic::Streaming;

use crate::service::{failed, served};

fn cluster() -> (Fake, PodServiceClient<Channel>, NodeServiceClient<Channel>) {
    let fake = Fake::new(7);
    let channel = served(fake.cluster(), Served::default());
    let nodes = NodeServiceClient::new(channel.clone());
    (fake, PodServiceClient::new(channel), nodes)
}

fn pod(name: &str) -> api::CreatePodRequest {
    let container = api::Container {
        name: "main".into(),
        image: "busybox:1.36".into(),
        ..Default::default()
    };
    api::CreatePodRequest {
        pod: Some(api::Pod {
            metadata: Some(api::Metadata {
                name: name.into(),
                labels: BTreeMap::from([("app".to_owned(), "web".to_owned())]),
                ..Default::default()
            }),
            spec: Some(api::PodSpec {
                containers: vec![container],
                node: "node-1".into(),
                ..Default::default()
            }),
            status: None,
        }),
    }
}

fn web() -> api::WaitPodsRequest {
    api::WaitPodsRequest {
        selector: Some(LabelSelector {
            match_labels: BTreeMap::from([("app".to_owned(), "web".to_owned())]),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Reads progress until it is as wanted.
async fn until(
    answers: &mut Streaming<api::WaitPodsResponse>,
    wanted: impl Fn(&api::WaitProgress) -> bool,
) -> api::WaitProgress {
    loop {
        let answer = answers.message().await.unwrap().expect("the wait goes on");
        let progress = answer.progress.unwrap();
        if wanted(&progress) {
            return progress;
        }
    }
}

async fn ready(pods: &mut PodServiceClient<Channel>, request: api::WaitPodsRequest) {
    let mut answers = pods.wait_pods(request).await.unwrap().into_inner();
    until(&mut answers, |progress| progress.done).await;
}

#[tokio::test]
async fn a_node_that_is_lost_while_a_pod_is_waited_for_holds_up_the_wait_with_its_reason() {
    let (fake, mut pods, _) = cluster();
    pods.create_pod(pod("web-0")).await.unwrap();
    ready(&mut pods, web()).await;
    fake.set_node_ready("node-1", false);
    let mut answers = pods.wait_pods(web()).await.unwrap().into_inner();
    let progress = until(&mut answers, |progress| progress.matched == 1).await;
    assert_eq!(progress.pending[0].reason, "NodeLost");
    fake.set_node_ready("node-1", true);
    until(&mut answers, |progress| progress.done).await;
}

#[tokio::test]
async fn a_security_that_says_nothing_is_not_kept() {
    let (_, mut pods, _) = cluster();
    let mut request = pod("web-0");
    let spec = request.pod.as_mut().unwrap().spec.as_mut().unwrap();
    spec.security = Some(api::PodSecurity::default());
    let made = pods.create_pod(request).await.unwrap().into_inner();
    assert_eq!(made.pod.unwrap().spec.unwrap().security, None);
}

#[tokio::test]
async fn pods_that_are_replaced_under_the_selector_are_waited_for_in_their_turn() {
    let (_, mut pods, _) = cluster();
    let request = api::WaitPodsRequest {
        min_count: 2,
        ..web()
    };
    let mut answers = pods.wait_pods(request).await.unwrap().into_inner();
    pods.create_pod(pod("web-0")).await.unwrap();
    until(&mut answers, |progress| progress.met == 1).await;
    let gone = api::DeletePodRequest {
        name: "web-0".into(),
        wait: true,
        ..Default::default()
    };
    pods.delete_pod(gone).await.unwrap();
    for name in ["web-1", "web-2"] {
        pods.create_pod(pod(name)).await.unwrap();
    }
    let last = until(&mut answers, |progress| progress.done).await;
    assert_eq!((last.matched, last.met), (2, 2));
}

#[tokio::test]
async fn a_namespace_that_is_deleted_takes_its_pods_and_refuses_new_ones() {
    let (fake, mut pods, _) = cluster();
    fake.set_namespaces(&["default"]);
    pods.create_pod(pod("web-0")).await.unwrap();
    ready(&mut pods, web()).await;
    let gone = api::WaitPodsRequest {
        conditions: vec![api::PodWaitCondition::Gone as i32],
        ..web()
    };
    let mut answers = pods.wait_pods(gone).await.unwrap().into_inner();
    until(&mut answers, |progress| progress.matched == 1).await;
    fake.delete_namespace("default");
    until(&mut answers, |progress| progress.done).await;
    let error = failed(pods.create_pod(pod("web-1")).await);
    assert_eq!(error.reason(), Reason::Precondition);
    assert_eq!(error.resource(), Some(("namespace", "default")));
}

#[tokio::test]
async fn a_finalizer_keeps_a_deleted_pod_and_the_wait_for_its_end() {
    let (fake, mut pods, _) = cluster();
    pods.create_pod(pod("web-0")).await.unwrap();
    fake.hold_pod("default", "web-0");
    let request = api::DeletePodRequest {
        name: "web-0".into(),
        grace_period: Some(prost_types::Duration::default()),
        ..Default::default()
    };
    assert!(pods.delete_pod(request).await.unwrap().into_inner().existed);
    let gone = api::WaitPodsRequest {
        conditions: vec![api::PodWaitCondition::Gone as i32],
        ..web()
    };
    let mut answers = pods.wait_pods(gone).await.unwrap().into_inner();
    let progress = until(&mut answers, |progress| progress.matched == 1).await;
    assert_eq!(progress.pending[0].reason, "Terminating");
    fake.release_pod("default", "web-0");
    until(&mut answers, |progress| progress.done).await;
}

#[tokio::test]
async fn a_namespace_that_is_full_refuses_another_pod() {
    let (fake, mut pods, _) = cluster();
    fake.set_pod_quota("default", 1);
    pods.create_pod(pod("web-0")).await.unwrap();
    let error = failed(pods.create_pod(pod("web-1")).await);
    assert_eq!(error.reason(), Reason::QuotaExceeded);
}

#[tokio::test]
async fn a_drain_waits_for_a_disruption_budget_and_names_it() {
    let (fake, mut pods, mut nodes) = cluster();
    for name in ["web-0", "web-1"] {
        pods.create_pod(pod(name)).await.unwrap();
        fake.own_pod("default", name);
    }
    ready(
        &mut pods,
        api::WaitPodsRequest {
            min_count: 2,
            ..web()
        },
    )
    .await;
    let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
    fake.set_budget("default", "web", labels.clone(), 1);
    let request = api::DrainNodeRequest {
        name: "node-1".into(),
        ..Default::default()
    };
    let mut answers = nodes.drain_node(request).await.unwrap().into_inner();
    let mut named = false;
    while !named {
        let progress = answers.message().await.unwrap().unwrap().progress.unwrap();
        assert!(!progress.done);
        named = progress.met == 1
            && progress
                .pending
                .iter()
                .any(|one| one.message.contains("\"web\""));
    }
    fake.set_budget("default", "web", labels, 0);
    let mut done = false;
    while let Some(answer) = answers.message().await.unwrap() {
        done = answer.progress.unwrap().done;
    }
    assert!(done);
}

#[tokio::test]
async fn a_command_ends_with_its_container() {
    let (fake, mut pods, _) = cluster();
    pods.create_pod(pod("web-0")).await.unwrap();
    ready(&mut pods, web()).await;
    let start = api::ExecStart {
        pod: "web-0".into(),
        command: vec!["sleep".into(), "3600".into()],
        ..Default::default()
    };
    let first = api::ExecRequest {
        input: Some(api::exec_request::Input::Start(start)),
    };
    let mut output = pods
        .exec(futures::stream::iter([first]))
        .await
        .unwrap()
        .into_inner();
    fake.end_container(("default", "web-0", "main"), 1);
    let last = output.message().await.unwrap().unwrap().output.unwrap();
    let code = drover_proto::common::v1::process_output::Output::ExitCode(137);
    assert_eq!(last.output, Some(code));
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_the_reason_of_the_pod() {
    let (_, mut pods, _) = cluster();
    let mut request = pod("web-0");
    let spec = request.pod.as_mut().unwrap().spec.as_mut().unwrap();
    spec.containers[0].image = "nowhere.invalid/web:1".into();
    pods.create_pod(request).await.unwrap();
    let mut answers = pods.wait_pods(web()).await.unwrap().into_inner();
    until(&mut answers, |progress| {
        progress
            .pending
            .iter()
            .any(|one| one.reason == "ImagePullBackOff")
    })
    .await;
    drop(answers);
    holds("the status says the same", async || {
        let request = api::GetPodRequest {
            name: "web-0".into(),
            ..Default::default()
        };
        let found = pods
            .get_pod(request)
            .await
            .map_err(|status| from_status(&status));
        let status = found.unwrap().into_inner().pod.unwrap().status.unwrap();
        status.reason == "ImagePullBackOff" && status.phase() == api::PodPhase::Pending
    })
    .await;
}
