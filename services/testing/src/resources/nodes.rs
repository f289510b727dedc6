//! Nodes.

use drover_core::Reason;
use drover_proto::{common::v1::LabelSelector, kubernetes::v1 as api};

use super::{
    Subject,
    fixture::{all, assert_reason, done, seconds, spec},
};

async fn nodes(subject: &Subject) -> Vec<api::Node> {
    let request = api::ListNodesRequest {
        selector: Some(LabelSelector {
            match_labels: subject.nodes.clone(),
            match_expressions: Vec::new(),
        }),
        ..Default::default()
    };
    done(subject.nodes().list_nodes(request))
        .await
        .unwrap()
        .nodes
}

fn name(node: &api::Node) -> String {
    node.metadata.clone().unwrap().name
}

async fn get(subject: &Subject, name: &str) -> api::Node {
    let request = api::GetNodeRequest { name: name.into() };
    done(subject.nodes().get_node(request))
        .await
        .unwrap()
        .node
        .unwrap()
}

pub(super) async fn nodes_are_listed_and_found(subject: &Subject) {
    let all = nodes(subject).await;
    assert!(!all.is_empty());
    for node in all {
        let found = get(subject, &name(&node)).await;
        assert_eq!(found.metadata.unwrap().uid, node.metadata.unwrap().uid);
    }
}

pub(super) async fn a_node_has_what_schedulers_need(subject: &Subject) {
    for node in nodes(subject).await {
        let metadata = node.metadata.clone().unwrap();
        assert_eq!(metadata.namespace, "");
        assert!(!metadata.uid.is_empty() && !metadata.revision.is_empty());
        assert!(metadata.create_time.is_some());
        assert!(node.capacity.contains_key("cpu"), "{:?}", node.capacity);
        assert!(
            node.allocatable.contains_key("memory"),
            "{:?}",
            node.allocatable
        );
        let ready = node
            .conditions
            .iter()
            .find(|one| one.r#type == "Ready")
            .unwrap();
        assert_eq!(ready.status, Some(node.ready));
    }
}

pub(super) async fn a_cordoned_node_is_unschedulable_until_it_is_uncordoned(subject: &Subject) {
    let node = name(&nodes(subject).await[0]);
    for _ in 0..2 {
        let request = api::CordonNodeRequest { name: node.clone() };
        let cordoned = done(subject.nodes().cordon_node(request))
            .await
            .unwrap()
            .node
            .unwrap();
        assert!(cordoned.unschedulable);
    }
    assert!(get(subject, &node).await.unschedulable);
    for _ in 0..2 {
        let request = api::UncordonNodeRequest { name: node.clone() };
        let open = done(subject.nodes().uncordon_node(request))
            .await
            .unwrap()
            .node
            .unwrap();
        assert!(!open.unschedulable);
    }
    assert!(!get(subject, &node).await.unschedulable);
}

async fn wait(
    subject: &Subject,
    request: api::WaitNodesRequest,
) -> (Vec<api::WaitProgress>, Option<drover_core::Error>) {
    let answers = subject.nodes().wait_nodes(request).await;
    all(answers, |answer: api::WaitNodesResponse| {
        answer.progress.unwrap()
    })
    .await
}

pub(super) async fn nodes_that_are_ready_are_waited_for_in_one_message(subject: &Subject) {
    let names: Vec<String> = nodes(subject).await.iter().map(name).collect();
    let count = u32::try_from(names.len()).unwrap();
    let request = api::WaitNodesRequest {
        names,
        min_count: count,
        ..Default::default()
    };
    let (progress, error) = wait(subject, request).await;
    assert_eq!(error, None);
    let [only] = &progress[..] else {
        panic!("{progress:?}")
    };
    assert!(
        only.done && only.met == count && only.matched == count,
        "{only:?}"
    );
}

pub(super) async fn a_wait_for_a_node_that_does_not_exist_says_so_at_once(subject: &Subject) {
    let request = api::WaitNodesRequest {
        names: vec!["never-made".into()],
        ..Default::default()
    };
    let mut answers = subject
        .nodes()
        .wait_nodes(request.clone())
        .await
        .unwrap()
        .into_inner();
    let first = answers.message().await.unwrap().unwrap().progress.unwrap();
    assert!(!first.done);
    assert_eq!(first.pending[0].name, "never-made");
    assert_eq!(first.pending[0].reason, "NotFound");
    let request = api::WaitNodesRequest {
        fail_if_none: true,
        ..request
    };
    let (_, error) = wait(subject, request).await;
    assert_reason(
        "nothing matches",
        error.map_or(Ok(()), Err),
        Reason::NothingMatches,
    );
}

/// A node with one pod of nobody on it. Answers the names of both.
async fn occupied(subject: &Subject) -> (String, String) {
    let node = name(nodes(subject).await.last().unwrap());
    let mut pod = subject.pod();
    spec(&mut pod).node.clone_from(&node);
    (node, subject.started(pod).await)
}

pub(super) async fn a_drain_without_force_evicts_nothing(subject: &Subject) {
    let (node, pod) = occupied(subject).await;
    let request = api::DrainNodeRequest {
        name: node,
        ..Default::default()
    };
    let answers = subject.nodes().drain_node(request).await;
    let (_, error) = all(answers, |answer: api::DrainNodeResponse| answer.progress).await;
    assert_reason("drain", error.map_or(Ok(()), Err), Reason::Precondition);
    let metadata = subject.get_pod(&pod).await.unwrap().metadata.unwrap();
    assert_eq!(metadata.delete_time, None);
    subject.remove_pod(&pod).await;
}

pub(super) async fn a_drained_node_is_cordoned_and_empty(subject: &Subject) {
    let (node, pod) = occupied(subject).await;
    let request = api::DrainNodeRequest {
        name: node.clone(),
        force: true,
        delete_empty_dir_data: true,
        grace_period: Some(seconds(0)),
    };
    let answers = subject.nodes().drain_node(request).await;
    let (progress, error) = all(answers, |answer: api::DrainNodeResponse| {
        answer.progress.unwrap()
    })
    .await;
    assert_eq!(error, None);
    assert!(progress.last().unwrap().done, "{progress:?}");
    assert_reason("the pod", subject.get_pod(&pod).await, Reason::NotFound);
    assert!(get(subject, &node).await.unschedulable);
    let request = api::UncordonNodeRequest { name: node };
    done(subject.nodes().uncordon_node(request)).await.unwrap();
}
