//! Waits.

use std::time::Duration;

use drover_core::Reason;
use drover_proto::kubernetes::v1::{self as api, PodWaitCondition as Want};
use tonic::Request;

use super::{
    Subject,
    fixture::{assert_reason, labels, selector, spec},
};

fn name(pod: &api::Pod) -> String {
    pod.metadata.clone().unwrap().name
}

pub(super) async fn a_ready_pod_is_waited_for(subject: &Subject) {
    let pod = subject.create_pod(subject.pod()).await.unwrap();
    let (progress, error) = subject.wait(subject.wait_for(&name(&pod), &[])).await;
    assert_eq!(error, None);
    let last = progress.last().unwrap();
    assert!(
        last.done && last.met == 1 && last.matched == 1 && last.pending.is_empty(),
        "{last:?}"
    );
    assert!(progress[..progress.len() - 1].iter().all(|one| !one.done));
    assert!(
        subject
            .get_pod(&name(&pod))
            .await
            .unwrap()
            .status
            .unwrap()
            .ready
    );
    subject.remove_pod(&name(&pod)).await;
}

pub(super) async fn the_first_message_comes_at_once_and_says_what_is_missing(subject: &Subject) {
    let mut pod = subject.pod();
    spec(&mut pod).node_selector = labels(&[("no-node", "has-this")]);
    let pod = subject.create_pod(pod).await.unwrap();
    let request = subject.wait_for(&name(&pod), &[]);
    let mut answers = subject
        .pods()
        .wait_pods(request)
        .await
        .unwrap()
        .into_inner();
    let first = answers.message().await.unwrap().unwrap().progress.unwrap();
    assert!(
        !first.done && first.matched == 1 && first.met == 0,
        "{first:?}"
    );
    assert_eq!(first.pending[0].name, name(&pod));
    assert_ne!(first.pending[0].reason, "");
    drop(answers);
    subject.remove_pod(&name(&pod)).await;
}

pub(super) async fn a_pod_that_does_not_exist_yet_is_waited_for(subject: &Subject) {
    let pod = subject.pod();
    let request = subject.wait_for(&name(&pod), &[]);
    let mut answers = subject
        .pods()
        .wait_pods(request)
        .await
        .unwrap()
        .into_inner();
    let first = answers.message().await.unwrap().unwrap().progress.unwrap();
    assert_eq!(first.pending[0].reason, "NotFound", "{first:?}");
    subject.create_pod(pod.clone()).await.unwrap();
    let mut last = first;
    while let Some(answer) = answers.message().await.unwrap() {
        last = answer.progress.unwrap();
    }
    assert!(last.done, "{last:?}");
    subject.remove_pod(&name(&pod)).await;
}

pub(super) async fn nothing_matches_is_an_error_only_if_asked_for(subject: &Subject) {
    let request = api::WaitPodsRequest {
        namespace: subject.namespace.clone(),
        selector: selector(&[("group", &subject.name("none"))]),
        fail_if_none: true,
        ..Default::default()
    };
    let (_, error) = subject.wait(request.clone()).await;
    assert_reason(
        "fail_if_none",
        error.map_or(Ok(()), Err),
        Reason::NothingMatches,
    );
    let request = api::WaitPodsRequest {
        fail_if_none: false,
        ..request
    };
    let mut answers = subject
        .pods()
        .wait_pods(request)
        .await
        .unwrap()
        .into_inner();
    let first = answers.message().await.unwrap().unwrap().progress.unwrap();
    assert!(!first.done && first.matched == 0, "{first:?}");
}

async fn impossible(subject: &Subject, script: &str, wanted: Want) {
    let mut pod = subject.pod_once(script);
    // A container without a probe is ready while it runs, however shortly.
    let never = api::ExecAction {
        command: vec!["false".into()],
    };
    spec(&mut pod).containers[0].readiness_probe = Some(api::Probe {
        action: Some(api::probe::Action::Exec(never)),
        ..Default::default()
    });
    let pod = subject.create_pod(pod).await.unwrap();
    let (_, error) = subject.wait(subject.wait_for(&name(&pod), &[wanted])).await;
    let error = assert_reason(script, error.map_or(Ok(()), Err), Reason::WaitImpossible);
    assert!(error.message().contains(&name(&pod)), "{error}");
    subject.remove_pod(&name(&pod)).await;
}

pub(super) async fn a_pod_that_failed_is_never_ready_and_the_wait_ends(subject: &Subject) {
    impossible(subject, "exit 3", Want::Ready).await;
}

pub(super) async fn a_pod_that_succeeded_is_never_failed_and_the_wait_ends(subject: &Subject) {
    impossible(subject, "exit 0", Want::Failed).await;
}

pub(super) async fn a_pod_that_failed_is_what_was_waited_for(subject: &Subject) {
    let pod = subject
        .create_pod(subject.pod_once("exit 3"))
        .await
        .unwrap();
    let (progress, error) = subject
        .wait(subject.wait_for(&name(&pod), &[Want::Failed]))
        .await;
    assert_eq!(error, None);
    assert!(progress.last().unwrap().done);
    let status = subject.get_pod(&name(&pod)).await.unwrap().status.unwrap();
    assert_eq!(status.phase(), api::PodPhase::Failed);
    assert_eq!(status.containers[0].exit_code, Some(3));
    assert_eq!(
        status.containers[0].state(),
        api::ContainerState::Terminated
    );
    subject.remove_pod(&name(&pod)).await;
}

pub(super) async fn any_of_several_conditions_is_enough(subject: &Subject) {
    let wanted = [Want::Failed, Want::Succeeded, Want::Failed];
    let pod = subject
        .create_pod(subject.pod_once("exit 0"))
        .await
        .unwrap();
    let (progress, error) = subject.wait(subject.wait_for(&name(&pod), &wanted)).await;
    assert_eq!(error, None);
    assert!(progress.last().unwrap().done);
    subject.remove_pod(&name(&pod)).await;
}

pub(super) async fn an_address_is_waited_for(subject: &Subject) {
    let pod = subject.create_pod(subject.pod()).await.unwrap();
    let (_, error) = subject
        .wait(subject.wait_for(&name(&pod), &[Want::HasIp]))
        .await;
    assert_eq!(error, None);
    let status = subject.get_pod(&name(&pod)).await.unwrap().status.unwrap();
    assert_ne!(status.ip, "");
    subject.remove_pod(&name(&pod)).await;
}

pub(super) async fn gone_pods_are_waited_for(subject: &Subject) {
    let pod = subject.create_pod(subject.pod()).await.unwrap();
    let request = subject.wait_for(&name(&pod), &[Want::Gone]);
    let mut answers = subject
        .pods()
        .wait_pods(request.clone())
        .await
        .unwrap()
        .into_inner();
    let first = answers.message().await.unwrap().unwrap().progress.unwrap();
    assert!(!first.done && first.matched == 1, "{first:?}");
    subject.remove_pod(&name(&pod)).await;
    let mut last = first;
    while let Some(answer) = answers.message().await.unwrap() {
        last = answer.progress.unwrap();
    }
    assert!(last.done, "{last:?}");
    let (progress, error) = subject.wait(request).await;
    assert_eq!(error, None);
    assert!(progress.len() == 1 && progress[0].done, "{progress:?}");
}

pub(super) async fn pods_that_come_later_do_not_hold_up_a_wait_for_gone(subject: &Subject) {
    let group = subject.name("group");
    let member = || {
        let mut pod = subject.pod();
        pod.metadata.as_mut().unwrap().labels = labels(&[("group", &group)]);
        pod
    };
    let old = subject.started(member()).await;
    let request = api::WaitPodsRequest {
        namespace: subject.namespace.clone(),
        selector: selector(&[("group", &group)]),
        conditions: vec![Want::Gone as i32],
        ..Default::default()
    };
    let mut answers = subject
        .pods()
        .wait_pods(request)
        .await
        .unwrap()
        .into_inner();
    answers.message().await.unwrap().unwrap();
    let new = subject.started(member()).await;
    subject.remove_pod(&old).await;
    let mut last = None;
    while let Some(answer) = answers.message().await.unwrap() {
        last = answer.progress;
    }
    assert!(last.unwrap().done);
    subject.remove_pod(&new).await;
}

pub(super) async fn a_wait_for_gone_goes_on_with_uids_past_a_pod_made_anew_under_the_name(
    subject: &Subject,
) {
    let name = subject.running().await;
    let mut request = subject.wait_for(&name, &[Want::Gone]);
    let mut answers = subject
        .pods()
        .wait_pods(request.clone())
        .await
        .unwrap()
        .into_inner();
    let first = answers.message().await.unwrap().unwrap().progress.unwrap();
    drop(answers);
    let uid = first.pending[0].uid.clone();
    let pod = subject.get_pod(&name).await.unwrap();
    assert_eq!(pod.metadata.unwrap().uid, uid);
    subject.remove_pod(&name).await;
    let mut anew = subject.pod();
    name.clone_into(&mut anew.metadata.as_mut().unwrap().name);
    subject.started(anew).await;
    request.uids = vec![uid];
    let (progress, error) = subject.wait(request).await;
    assert_eq!(error, None);
    assert!(progress.len() == 1 && progress[0].done, "{progress:?}");
    subject.remove_pod(&name).await;
}

pub(super) async fn enough_pods_must_match(subject: &Subject) {
    let group = subject.name("group");
    let member = || {
        let mut pod = subject.pod();
        pod.metadata.as_mut().unwrap().labels = labels(&[("group", &group)]);
        pod
    };
    let first = subject.started(member()).await;
    let request = api::WaitPodsRequest {
        namespace: subject.namespace.clone(),
        selector: selector(&[("group", &group)]),
        min_count: 2,
        ..Default::default()
    };
    let mut answers = subject
        .pods()
        .wait_pods(request)
        .await
        .unwrap()
        .into_inner();
    let progress = answers.message().await.unwrap().unwrap().progress.unwrap();
    assert!(!progress.done && progress.met == 1, "{progress:?}");
    let second = subject.started(member()).await;
    let mut last = progress;
    while let Some(answer) = answers.message().await.unwrap() {
        last = answer.progress.unwrap();
    }
    assert!(last.done && last.met == 2, "{last:?}");
    subject.remove_pod(&first).await;
    subject.remove_pod(&second).await;
}

pub(super) async fn a_wait_can_be_cancelled_and_leaves_the_server_well(subject: &Subject) {
    // More than may be open at once, one after the other.
    for _ in 0..300 {
        let request = subject.wait_for("never-made", &[]);
        let mut answers = subject
            .pods()
            .wait_pods(request)
            .await
            .unwrap()
            .into_inner();
        answers.message().await.unwrap().unwrap();
    }
}

pub(super) async fn a_wait_ends_with_its_deadline(subject: &Subject) {
    let mut request = Request::new(subject.wait_for("never-made", &[]));
    request.set_timeout(Duration::from_millis(300));
    let mut answers = subject
        .pods()
        .wait_pods(request)
        .await
        .unwrap()
        .into_inner();
    let error = loop {
        match answers.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the wait ended well"),
            Err(status) => break drover_convert::error::from_status(&status),
        }
    };
    let reason = error.reason();
    assert!(
        matches!(reason, Reason::DeadlineExceeded | Reason::Cancelled),
        "{error:?}"
    );
}
