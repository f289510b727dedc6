//! Waits: one list, one watch, whatever happens to them.

use drover_core::Reason;
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::{Nodes as _, Pods as _};
use drover_testing::kubernetes::{Fault, On, Raw, refusal, until};
use serde_json::json;

use crate::bench::{Bench, done, next, reasons};

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_says_at_once_what_is_missing_and_never_polls() {
    let bench = Bench::start().await;
    bench.pods.create(bench.unplaced("a")).await.unwrap();
    until("it is not scheduled", || async {
        let pod = bench.pods.get(&bench.namespace.name, "a").await.unwrap();
        (pod.status.unwrap().reason == "Unschedulable").then_some(())
    })
    .await;
    let mut wait = bench.pods.wait(bench.wait(&["a", "b"])).await.unwrap();
    let first = next(&mut wait).await.unwrap().unwrap();
    assert_eq!(reasons(&first), [("a", "Unschedulable"), ("b", "NotFound")]);
    let waiting = tokio::spawn(done(wait));
    bench.proxy.watches().until_running("pods").await;
    assert_eq!(bench.proxy.count("list", "pods"), 1);
    bench.namespace.delete("pods", "a").await;
    for name in ["a", "b"] {
        bench.pods.create(bench.pod(name)).await.unwrap();
    }
    let told = waiting.await.unwrap().unwrap();
    assert_eq!(
        (told.last().unwrap().matched, told.last().unwrap().met),
        (2, 2)
    );
    assert_eq!(bench.proxy.count("list", "pods"), 1);
    assert_eq!(bench.proxy.count("watch", "pods"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_dropped_leaves_no_watch() {
    let bench = Bench::start().await;
    let mut wait = bench.pods.wait(bench.wait(&["a"])).await.unwrap();
    next(&mut wait).await.unwrap().unwrap();
    let following = tokio::spawn(async move { next(&mut wait).await.is_some() });
    bench.proxy.watches().until_running("pods").await;
    following.abort();
    until("the watch ends", || async {
        (bench.proxy.watches().running("pods") == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_change_is_lost_when_the_watch_is() {
    let bench = Bench::start().await;
    type Happens = fn(&Bench);
    let happenings: [(&str, Happens); 4] = [
        ("cut", |bench| bench.proxy.watches().cut("pods")),
        ("end", |bench| bench.proxy.watches().end("pods")),
        ("expire", |bench| bench.proxy.watches().expire("pods")),
        ("refused", |bench| {
            bench
                .proxy
                .fail(On::call("watch", "pods"), Fault::expired());
            bench.proxy.watches().cut("pods");
        }),
    ];
    for (name, happens) in happenings {
        let mut wait = bench.pods.wait(bench.wait(&[name])).await.unwrap();
        let first = next(&mut wait).await.unwrap().unwrap();
        assert_eq!(reasons(&first), [(name, "NotFound")]);
        let waiting = tokio::spawn(done(wait));
        bench.proxy.watches().until_running("pods").await;
        happens(&bench);
        bench.pods.create(bench.pod(name)).await.unwrap();
        waiting.await.unwrap().unwrap();
        bench.proxy.heal();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_fails_for_a_while_is_waited_for() {
    let bench = Bench::start().await;
    let mut wait = bench.pods.wait(bench.wait(&["a"])).await.unwrap();
    next(&mut wait).await.unwrap().unwrap();
    let waiting = tokio::spawn(done(wait));
    bench.proxy.watches().until_running("pods").await;
    bench
        .proxy
        .fail(On::call("watch", "pods").times(3), Fault::internal());
    bench.proxy.watches().cut("pods");
    bench.pods.create(bench.pod("a")).await.unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(bench.proxy.faults_left(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_as_soon_as_it_is_impossible() {
    let bench = Bench::start().await;
    let mut pod = bench.unplaced("a");
    pod.spec.as_mut().unwrap().restart_policy = api::RestartPolicy::Never.into();
    bench.pods.create(pod).await.unwrap();
    let mut wait = bench.pods.wait(bench.wait(&["a"])).await.unwrap();
    next(&mut wait).await.unwrap().unwrap();
    let failed = json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "disk"}});
    let path = format!("{}/a/status", bench.namespace.path("pods"));
    bench.namespace.raw.merge(&path, &failed).await.unwrap();
    let error = loop {
        if let Err(error) = next(&mut wait).await.expect("an error") {
            break error;
        }
    };
    assert_eq!(error.reason(), Reason::WaitImpossible);
    assert!(error.message().contains("Evicted"), "{error}");
    let mut failed = bench.wait(&["a"]);
    failed.conditions = vec![api::PodWaitCondition::Failed.into()];
    done(bench.pods.wait(failed).await.unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn gone_is_about_the_pods_of_the_beginning() {
    let bench = Bench::start().await;
    let mut held = bench.pod("a");
    held.metadata.as_mut().unwrap().annotations = [("x".to_owned(), "y".to_owned())].into();
    bench.ready(held).await;
    let finalizer = json!({"metadata": {"finalizers": ["drover.dev/test"]}});
    bench
        .namespace
        .merge("pods", "a", &finalizer)
        .await
        .unwrap();
    let mut request = bench.wait(&[]);
    request.conditions = vec![api::PodWaitCondition::Gone.into()];
    let mut wait = bench.pods.wait(request).await.unwrap();
    assert_eq!(next(&mut wait).await.unwrap().unwrap().matched, 1);
    bench.pods.create(bench.pod("later")).await.unwrap();
    bench.namespace.delete("pods", "a").await;
    let held = next(&mut wait).await.unwrap().unwrap();
    assert_eq!(reasons(&held), [("a", "Terminating")]);
    assert!(held.pending[0].message.contains("drover.dev/test"));
    let released = json!({"metadata": {"finalizers": null}});
    bench.namespace.merge("pods", "a", &released).await.unwrap();
    assert_eq!(done(wait).await.unwrap().last().unwrap().met, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_matches_nothing_is_an_error_if_asked() {
    let bench = Bench::start().await;
    let mut request = bench.wait(&[]);
    request.fail_if_none = true;
    let mut wait = bench.pods.wait(request).await.unwrap();
    let error = next(&mut wait).await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Reason::NothingMatches);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_may_not_watch_says_so() {
    let bench = Bench::start().await;
    let message = "pods is forbidden: User \"u\" cannot list resource \"pods\" in API group \"\"";
    let (code, body) = refusal(403, "Forbidden", message);
    let forbidden = Fault::Refuse(code, body);
    bench.proxy.fail(On::call("list", "pods"), forbidden);
    let mut wait = bench.pods.wait(bench.wait(&[])).await.unwrap();
    let error = next(&mut wait).await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Reason::CredentialsRefused);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_waited_for() {
    let bench = Bench::start().await;
    let request = api::WaitNodesRequest {
        names: vec!["kwok-0".to_owned(), "kwok-1".to_owned()],
        min_count: 2,
        ..api::WaitNodesRequest::default()
    };
    let told = done(bench.nodes.wait(request).await.unwrap())
        .await
        .unwrap();
    assert_eq!(told.last().unwrap().met, 2);
    let request = api::WaitNodesRequest {
        names: vec!["no".to_owned()],
        ..api::WaitNodesRequest::default()
    };
    let mut wait = bench.nodes.wait(request).await.unwrap();
    let first = next(&mut wait).await.unwrap().unwrap();
    assert_eq!(reasons(&first), [("no", "NotFound")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_are_replaced_under_the_selector_are_waited_for_in_their_turn() {
    let bench = Bench::start().await;
    let mut request = bench.wait(&[]);
    request.min_count = 2;
    let mut wait = bench.pods.wait(request).await.unwrap();
    assert_eq!(next(&mut wait).await.unwrap().unwrap().matched, 0);
    bench.pods.create(bench.pod("old")).await.unwrap();
    while next(&mut wait).await.unwrap().unwrap().met < 1 {}
    bench.namespace.delete("pods", "old").await;
    for name in ["new-0", "new-1"] {
        bench.pods.create(bench.pod(name)).await.unwrap();
    }
    let told = done(wait).await.unwrap();
    // The old one may still be leaving when both new ones are ready.
    assert!(told.last().unwrap().met >= 2, "{told:?}");
    assert_eq!(bench.proxy.count("list", "pods"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_deleted_takes_its_pods_and_refuses_new_ones() {
    let bench = Bench::start().await;
    bench.ready(bench.pod("a")).await;
    let mut gone = bench.wait(&[]);
    gone.conditions = vec![api::PodWaitCondition::Gone.into()];
    let mut wait = bench.pods.wait(gone).await.unwrap();
    assert_eq!(next(&mut wait).await.unwrap().unwrap().matched, 1);
    let waiting = tokio::spawn(done(wait));
    let name = bench.namespace.name.clone();
    let path = format!("/api/v1/namespaces/{name}");
    bench.namespace.raw.delete(&path).await.unwrap();
    waiting.await.unwrap().unwrap();
    let error = until("the namespace is refused", || async {
        bench.pods.create(bench.pod("b")).await.err()
    })
    .await;
    assert_eq!(error.reason(), Reason::Precondition, "{error}");
    assert_eq!(error.resource(), Some(("namespace", &*name)), "{error}");
}

/// What a kubelet says of a node or pod that is ready.
async fn say_ready(raw: &Raw, path: &str, phase: Option<&str>) {
    let ready =
        json!({"type": "Ready", "status": "True", "reason": "Kubelet", "message": "as it says"});
    let status = json!({"status": {"phase": phase, "conditions": [ready]}});
    raw.merge(&format!("{path}/status"), &status).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_lost_while_a_pod_is_waited_for_holds_up_the_wait_with_its_reason() {
    let bench = Bench::start().await;
    let raw = &bench.namespace.raw;
    // A node whose kubelet is this test: it says once that all is well, and then nothing.
    let name = format!("lost-{}", bench.namespace.name);
    let taint = json!({"key": "drover.dev/test", "effect": "NoSchedule"});
    let object = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": [taint]},
    });
    raw.create("/api/v1/nodes", &object).await.unwrap();
    let of_node = format!("/api/v1/nodes/{name}");
    let of_pod = format!("{}/on-it", bench.namespace.path("pods"));
    say_ready(raw, &of_node, None).await;
    let mut pod = bench.pod("on-it");
    name.clone_into(&mut pod.spec.as_mut().unwrap().node);
    bench.pods.create(pod).await.unwrap();
    say_ready(raw, &of_pod, Some("Running")).await;
    let request = bench.wait(&["on-it", "later"]);
    let mut wait = bench.pods.wait(request).await.unwrap();
    let first = next(&mut wait).await.unwrap().unwrap();
    assert_eq!(reasons(&first), [("later", "NotFound")]);
    let held = loop {
        let progress = next(&mut wait).await.unwrap().unwrap();
        if progress.met == 0 {
            break progress;
        }
    };
    let lost = ("on-it", "NotReady");
    assert!(reasons(&held).contains(&lost), "{held:?}");

    bench.pods.create(bench.pod("later")).await.unwrap();
    while next(&mut wait).await.unwrap().unwrap().met < 1 {}
    say_ready(raw, &of_node, None).await;
    say_ready(raw, &of_pod, Some("Running")).await;
    done(wait).await.unwrap();
    raw.delete(&of_pod).await.unwrap();
    raw.delete(&of_node).await.unwrap();
}
