//! Tests of the rig that the other tests rely on.

use std::time::Duration;

use drover_testing::kubernetes::{Fault, FaultProxy, Namespace, On, Options, Raw, Rig, until};
use serde_json::json;

fn config_map(name: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

async fn begin() -> (&'static Rig, Namespace, FaultProxy, Raw) {
    let rig = Rig::shared(Options::kwok(3));
    let proxy = FaultProxy::start(rig).await;
    let raw = Raw::open(&proxy.kubeconfig()).await;
    (rig, rig.namespace().await, proxy, raw)
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_run_on_nodes_of_kwok_and_everything_is_listed() {
    let rig = Rig::shared(Options::kwok(3));
    let namespace = rig.namespace().await;
    assert_eq!(namespace.everything().await, vec![]);
    namespace.pod("one", json!({})).await;
    until("the pod is ready", || async {
        let pod = namespace.get("pods", "one").await.unwrap();
        let conditions = pod["status"]["conditions"].as_array()?.clone();
        let ready = |condition: &serde_json::Value| {
            condition["type"] == "Ready" && condition["status"] == "True"
        };
        conditions.iter().any(ready).then_some(())
    })
    .await;
    let things = namespace.everything().await;
    assert_eq!(things.len(), 1, "{things:?}");
    namespace.delete("pods", "one").await;
    namespace.until_empty("a pod").await;
    namespace.remove_wholly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_does_or_does_not_what_it_says() {
    let (_, namespace, proxy, raw) = begin().await;
    let faults = [
        (Fault::internal(), Some(500), false),
        (Fault::internal_after(), Some(500), true),
        (Fault::Throttle { seconds: 7 }, Some(429), false),
        (Fault::Disconnect, Some(0), false),
        (Fault::LoseAnswer, Some(0), true),
        (Fault::CutAnswer, Some(0), true),
        (Fault::Stall, None, false),
        (Fault::StallAfter, None, true),
    ];
    let path = namespace.path("configmaps");
    for (number, (fault, code, done)) in faults.into_iter().enumerate() {
        let name = format!("c-{number}");
        proxy.fail(On::call("create", "configmaps"), fault.clone());
        let created = config_map(&name);
        let call = raw.create(&path, &created);
        // Faults with an answer may be slow.
        let limit = if code.is_some() { 60 } else { 2 };
        let outcome = tokio::time::timeout(Duration::from_secs(limit), call).await;
        let got = outcome.ok().map(|outcome| outcome.unwrap_err().code);
        assert_eq!(got, code, "{fault:?}");
        assert_eq!(proxy.faults_left(), 0);
        let exists = namespace.get("configmaps", &name).await.is_ok();
        assert_eq!(exists, done, "{fault:?}");
    }
    raw.create(&path, &config_map("last")).await.unwrap();
    let calls = proxy.calls();
    assert!(calls.iter().all(|call| call.verb == "create"
        && call.resource == "configmaps"
        && call.namespace == namespace.name
        && !call.dry_run));
    assert_eq!(calls.last().unwrap().name, "last");
    assert_eq!(calls.last().unwrap().status, Some(201));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_client_reaches_nothing_any_more() {
    for (fault, done) in [(Fault::DieBefore, 1), (Fault::DieAfter, 2)] {
        let (_, namespace, proxy, raw) = begin().await;
        let path = namespace.path("configmaps");
        proxy.fail(On::change().nth(2), fault.clone());
        raw.create(&path, &config_map("one")).await.unwrap();
        assert_eq!(
            raw.create(&path, &config_map("two"))
                .await
                .unwrap_err()
                .code,
            0
        );
        assert!(proxy.is_dead());
        assert_eq!(
            raw.create(&path, &config_map("three"))
                .await
                .unwrap_err()
                .code,
            0
        );
        assert_eq!(namespace.everything().await.len(), done, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_end_as_they_are_told() {
    let (_, namespace, proxy, raw) = begin().await;
    let path = format!(
        "{}?watch=true&timeoutSeconds=30",
        namespace.path("configmaps")
    );
    let settings: [(&str, &dyn Fn()); 4] = [
        ("cut", &|| proxy.watches().cut("configmaps")),
        ("end", &|| proxy.watches().end("configmaps")),
        ("expire", &|| proxy.watches().expire("configmaps")),
        ("silence", &|| proxy.watches().silence("configmaps")),
    ];
    for (what, happens) in settings {
        let watch = tokio::spawn({
            let (raw, path) = (raw.clone(), path.clone());
            async move { raw.get(&path).await }
        });
        proxy.watches().until_running("configmaps").await;
        happens();
        if what == "silence" {
            watch.abort();
        } else {
            let outcome = watch.await.unwrap();
            match what {
                "cut" => assert_eq!(outcome.unwrap_err().code, 0),
                "expire" => assert!(
                    outcome.unwrap().to_string().contains("\\\"code\\\":410")
                        || proxy.count("watch", "configmaps") == 3
                ),
                _ => assert!(outcome.is_ok()),
            }
        }
        until("no watch is left", || async {
            (proxy.watches().running("configmaps") == 0).then_some(())
        })
        .await;
    }
    proxy.fail(On::call("watch", "configmaps"), Fault::expired());
    assert_eq!(raw.get(&path).await.unwrap_err().code, 410);
    proxy.fail(On::call("watch", "configmaps"), Fault::expired_event());
    let said = raw.get(&path).await.unwrap().to_string();
    assert!(said.contains("ERROR") && said.contains("410"), "{said}");
}
