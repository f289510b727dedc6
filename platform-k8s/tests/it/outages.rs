//! Outages and changes while the platform runs: components restart, watches expire, credentials are rotated, people
//! delete and change objects. No node is lost, and no event invented.

use crate::bench;

use std::time::Duration;

use crate::story::Story;
use bench::{Bench, kinds, one_each, rig, settings};
use drover_core::{Class, Reason};
use drover_proto::platform::v1::{DeprovisionState, Node, NodePhase};
use drover_testing::kubernetes::{
    Fault, FaultProxy, Namespace, On, Options, Raw, Rig, Speaks, refusal, until,
};
use serde_json::json;

fn ids(nodes: &[Node]) -> Vec<String> {
    let mut ids: Vec<String> = nodes.iter().map(|node| node.node_id.clone()).collect();
    ids.sort();
    ids
}

/// Stops and restarts a component. Meanwhile the platform does not answer from unknown state; afterwards everything is
/// as before and works again.
async fn survives_without(component: &str) {
    let rig = Rig::shared(Options {
        restarts: true,
        ..Options::kwok(3)
    });
    let _alone = rig.alone().await;
    let bench = Bench::on(rig, |_| {}).await;
    let (request, nodes) = bench.make("rich", 3).await;
    bench.until_running().await;
    let story = Story::of(&bench).await;
    story.until_complete().await;
    bench.rig.stop(component).await;
    let refused = bench.list(&bench.cluster).await.unwrap_err();
    assert_eq!(refused.class(), Class::Unknown, "{refused:?}");
    let other = bench.request("rich", 2).await;
    match bench.provision(&other).await {
        Err(error) => assert_eq!(error.class(), Class::Unknown, "{error:?}"),
        Ok(answer) => assert_eq!((answer.unknown.len(), answer.failures.len()), (2, 0)),
    }
    let refused = bench.deprovision(&nodes[0]).await.unwrap_err();
    assert_eq!(refused.class(), Class::Unknown, "{refused:?}");
    bench.rig.begin(component).await;
    until("the nodes are listed again", || async {
        let (listed, _) = bench.list(&bench.cluster).await.ok()?;
        let ours = listed.iter().filter(|node| {
            let slot = node.slot.as_ref();
            slot.is_some_and(|slot| slot.request_id == request.request_id)
        });
        (ours.count() == 3).then_some(())
    })
    .await;
    let made = bench.whole(&other, component).await;
    one_each(&made, &other, component);
    bench.remove(&nodes[0], component).await;
    story
        .until_told("what was made", |story| {
            ids(&made).iter().all(|id| story.knows(id)) && !story.knows(&nodes[0].node_id)
        })
        .await;
    story.never_removed(&ids(&nodes[1..]));
    bench.until_running().await;
    let things = bench.namespace.everything().await;
    assert_eq!(kinds(&things)["pods"], 4, "{things:?}");
    bench.clean(component).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_restarts_loses_nothing() {
    survives_without("apiserver").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_restarts_loses_nothing() {
    survives_without("etcd").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_ends_a_watch_no_change_is_missed_and_none_invented() {
    // A silent watch is given up after this time.
    let bench = Bench::with(|settings| settings.watch_timeout_seconds = 3.0).await;
    let ends = [
        "cut",
        "end",
        "expire",
        "silence",
        "expired",
        "expired event",
        "error",
    ];
    let (_, steady) = bench.make("pod", 2).await;
    bench.until_running().await;
    for what in ends {
        let (_, nodes) = bench.make("pod", 2).await;
        let story = Story::of(&bench).await;
        story.until_complete().await;
        story
            .until_told("they run", |story| {
                nodes.iter().all(|node| story.runs(&node.node_id))
            })
            .await;
        let proxy = bench.proxy();
        // Changes while no watch receives events.
        match what {
            "silence" => proxy.watches().silence("pods"),
            _ => proxy.fail(On::call("watch", "pods").times(3), Fault::internal()),
        }
        match what {
            "expired" => {
                proxy.fail(On::call("watch", "pods"), Fault::expired());
                proxy.watches().end("pods");
            }
            "expired event" => {
                proxy.fail(On::call("watch", "pods"), Fault::expired_event());
                proxy.watches().end("pods");
            }
            "error" => {
                let (code, body) = refusal(500, "InternalError", "watch cache is gone");
                proxy.fail(On::call("watch", "pods"), Fault::WatchError(code, body));
                proxy.watches().cut("pods");
            }
            "expire" => proxy.watches().expire("pods"),
            "end" => proxy.watches().end("pods"),
            "cut" => proxy.watches().cut("pods"),
            _ => {}
        }
        bench.namespace.delete("pods", &nodes[0].node_id).await;
        let labels = json!({"drover.dev/cluster": "somebody"});
        let name = format!("by-hand-{}", what.replace(' ', "-"));
        bench.namespace.pod(&name, json!({"labels": labels})).await;
        story
            .until_told(what, |story| {
                !story.knows(&nodes[0].node_id) && story.knows(&name)
            })
            .await;
        let mut living = ids(&steady);
        living.push(nodes[1].node_id.clone());
        story.never_removed(&living);
        bench.namespace.delete("pods", &name).await;
        story.until_told(what, |story| !story.knows(&name)).await;
        proxy.heal();
        bench.remove(&nodes[1], what).await;
    }
    bench.clean("watches").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_nothing_is_heard_nothing_is_current() {
    let bench = Bench::with(|settings| settings.watch_timeout_seconds = 2.0).await;
    bench.make("pod", 1).await;
    let story = Story::of(&bench).await;
    story.until_complete().await;
    let proxy = bench.proxy();
    proxy.fail(On::call("watch", "pods").always(), Fault::WatchSilent);
    proxy.fail(On::call("list", "pods").always(), Fault::internal());
    proxy.watches().silence("pods");
    // A heartbeat contains the time of the last complete read, which stays behind.
    story.until_behind(Duration::from_secs(3)).await;
    proxy.heal();
    story.until_fresh(Duration::from_secs(2)).await;
    bench.clean("silence").await;
}

/// A token that is valid until the Secret that it is bound to is deleted.
async fn bound_token(namespace: &Namespace, secret: &str) -> String {
    let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret}});
    let made = namespace.create("secrets", &object).await.unwrap();
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600, "boundObjectRef": {
            "apiVersion": "v1", "kind": "Secret", "name": secret, "uid": made["metadata"]["uid"],
        }},
    });
    let path = format!("{}/default/token", namespace.path("serviceaccounts"));
    let answer = until("the ServiceAccount is there", || async {
        namespace.raw.create(&path, &request).await.ok()
    })
    .await;
    answer["status"]["token"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_rotated_on_disk_are_taken_up() {
    for in_file in [true, false] {
        let rig = rig();
        let (namespace, keys) = (rig.namespace().await, rig.namespace().await);
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": namespace.name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": keys.name}],
        });
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        namespace.raw.create(path, &binding).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let proxy = FaultProxy::over(rig.kubeconfig(), Speaks::AsClient).await;
        let give = |proxy: &FaultProxy, token: &str| {
            if in_file {
                let draft = folder.path().join("draft");
                std::fs::write(&draft, token).unwrap();
                std::fs::rename(draft, &file).unwrap();
            } else {
                proxy.write_kubeconfig(&format!("token: {token}"));
            }
        };
        let first = bound_token(&keys, "first").await;
        if in_file {
            proxy.write_kubeconfig(&format!("tokenFile: {}", file.display()));
        }
        give(&proxy, &first);
        let settings = settings(&namespace.name);
        let bench = Bench::over(rig, namespace, settings, proxy).await;
        let (_, nodes) = bench.make("rich", 1).await;
        // The first token becomes invalid before there is another.
        keys.delete("secrets", "first").await;
        let raw = Raw::with_token(rig.kubeconfig(), &first).await;
        until("the first token has ended", || async {
            let refused = raw.get("/api/v1/namespaces").await.err()?;
            (refused.code == 401).then_some(())
        })
        .await;
        let request = bench.request("rich", 1).await;
        let error = until("the platform is refused", || async {
            bench.provision(&request).await.err()
        })
        .await;
        assert_eq!(error.reason(), Reason::CredentialsRefused, "{error:?}");
        assert!(
            !format!("{error:?}").contains(&first),
            "no token in an error"
        );
        let second = bound_token(&keys, "second").await;
        give(&bench.proxy(), &second);
        let made = until("the second token is taken up", || async {
            let answer = bench.provision(&request).await.ok()?;
            (answer.nodes.len() == 1).then_some(answer.nodes)
        })
        .await;
        let story = Story::of(&bench).await;
        story.until_complete().await;
        story
            .until_told("the watch goes on", |story| story.runs(&made[0].node_id))
            .await;
        assert!(story.knows(&nodes[0].node_id));
        bench.clean("rotated").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bare_pod_deleted_by_hand_is_gone_and_nothing_replaces_it() {
    let bench = Bench::start().await;
    let (_, nodes) = bench.make("pod", 2).await;
    bench.until_running().await;
    let story = Story::of(&bench).await;
    story.until_complete().await;
    bench.namespace.delete("pods", &nodes[0].node_id).await;
    story
        .until_told("the pod is gone", |story| {
            story.confirmed(&nodes[0].node_id)
        })
        .await;
    assert_eq!(ids(&bench.nodes().await), [nodes[1].node_id.clone()]);
    bench.clean("deleted by hand").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_a_pod_deleted_by_hand_is_a_failed_node() {
    let bench = Bench::start().await;
    let (request, nodes) = bench.make("rich", 2).await;
    bench.until_running().await;
    let story = Story::of(&bench).await;
    story.until_complete().await;
    bench.namespace.delete("pods", &nodes[0].node_id).await;
    story
        .until_told("it has failed", |story| {
            story.phase(&nodes[0].node_id) == Some(NodePhase::Failed)
        })
        .await;
    let node = bench.node(&nodes[0].node_id).await.unwrap();
    assert_eq!(node.phase(), NodePhase::Failed);
    assert_eq!(node.slot, nodes[0].slot);
    let message = node.message.to_lowercase();
    assert!(
        message.contains("pod") && message.contains("service"),
        "{message}"
    );
    bench.remove(&node, "half of it").await;
    story
        .until_told("it is gone", |story| !story.knows(&nodes[0].node_id))
        .await;
    assert_eq!(ids(&bench.nodes().await), [nodes[1].node_id.clone()]);
    assert_eq!(kinds(&bench.namespace.everything().await)["services"], 1);
    // Repeating the closed request creates neither the node nor any of its objects again.
    let again = bench.provision(&request).await.unwrap();
    assert_eq!(
        (ids(&again.nodes), again.failures.len()),
        (vec![nodes[1].node_id.clone()], 1)
    );
    assert_eq!(kinds(&bench.namespace.everything().await)["services"], 1);
    bench.clean("half of it").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_changed_by_hand_neither_loses_nor_doubles_the_node() {
    let bench = Bench::start().await;
    let keys = bench.settings.labels.clone();
    for (kind, key, value) in [
        ("pods", keys.node.clone(), json!("another")),
        ("pods", keys.cluster.clone(), json!(null)),
        ("pods", "drover.dev/request".to_owned(), json!(null)),
        ("pods", "drover.dev/owner".to_owned(), json!("me")),
        ("services", keys.node.clone(), json!(null)),
        ("services", keys.cluster.clone(), json!("another")),
    ] {
        let what = format!("{key} of {kind} became {value}");
        let (request, nodes) = bench.make("rich", 1).await;
        let name = nodes[0].node_id.clone();
        let before = bench.namespace.get("pods", &name).await.unwrap();
        let original = bench.namespace.get(kind, &name).await.unwrap();
        let original = original["metadata"]["labels"][&key].clone();
        let patch = json!({"metadata": {"labels": {key.clone(): value}}});
        bench.namespace.merge(kind, &name, &patch).await.unwrap();
        // An object of that name is never ignored: it is a node, or a part of one, or a warning.
        let visible = async |what: &str| {
            until(&format!("{what}: it is seen"), || async {
                let (nodes, warnings) = bench.list("").await.ok()?;
                let text = format!("{nodes:?} {warnings:?}");
                text.contains(&name).then_some(text)
            })
            .await
        };
        let seen = visible(&what).await;
        // A repeated request finds the same node, or is refused with the reason.
        let answer = bench.provision(&request).await;
        let text = format!("{answer:?}");
        let same_or_refused = match &answer {
            Ok(answer) => ids(&answer.nodes) == [name.clone()] || text.contains(&key),
            Err(error) => {
                matches!(
                    error.reason(),
                    Reason::Precondition | Reason::RequestIdReused
                ) || text.contains(&key)
            }
        };
        assert!(same_or_refused, "{what}: {text}");
        assert!(kind != "pods" || seen.contains("label"), "{what}: {seen}");
        let things = bench.namespace.everything().await;
        assert_eq!(kinds(&things)["pods"], 1, "{what}: {seen}");
        assert_eq!(kinds(&things)["services"], 1, "{what}: {seen}");
        let after = bench.namespace.get("pods", &name).await.unwrap();
        assert_eq!(
            before["metadata"]["uid"], after["metadata"]["uid"],
            "{what}: the same pod"
        );
        // After a removal in this state, anything that is left is still reported.
        let _ = bench.deprovision(&nodes[0]).await;
        until(&format!("{what}: what is left stays"), || async {
            let things = bench.namespace.everything().await;
            things.iter().all(|thing| !thing.terminating).then_some(())
        })
        .await;
        if !bench.namespace.everything().await.is_empty() {
            visible(&what).await;
        }
        // With the label restored, the node can be removed.
        let patch = json!({"metadata": {"labels": {key.clone(): original}}});
        let _ = bench.namespace.merge(kind, &name, &patch).await;
        bench.remove(&nodes[0], &what).await;
        bench.clean(&what).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finalizer_that_never_finishes_is_a_removal_that_goes_on() {
    let bench = Bench::start().await;
    for kind in ["pods", "services"] {
        let (_, nodes) = bench.make("rich", 2).await;
        let name = nodes[0].node_id.clone();
        let hold = json!({"metadata": {"finalizers": ["drover.dev/tests"]}});
        bench.namespace.merge(kind, &name, &hold).await.unwrap();
        until("the removal goes on", || async {
            let answer = bench.deprovision(&nodes[0]).await.unwrap();
            assert_eq!(answer.state(), DeprovisionState::Deprovisioning, "{kind}");
            let object = bench.namespace.get(kind, &name).await.unwrap();
            object["metadata"]["deletionTimestamp"]
                .is_string()
                .then_some(())
        })
        .await;
        let node = until("the finalizer is named", || async {
            let node = bench.node(&name).await.unwrap();
            node.message.contains("drover.dev/tests").then_some(node)
        })
        .await;
        assert!(
            matches!(node.phase(), NodePhase::Deprovisioning | NodePhase::Failed),
            "{kind}: {node:?}"
        );
        let free = json!({"metadata": {"finalizers": null}});
        bench.namespace.merge(kind, &name, &free).await.unwrap();
        bench.remove(&nodes[0], kind).await;
        assert_eq!(ids(&bench.nodes().await), [nodes[1].node_id.clone()]);
        bench.clean(kind).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_the_name_already_is_left_alone_and_named() {
    let bench = Bench::start().await;
    let request = bench.request("rich", 2).await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": request.slots[1].id, "labels": {"app": "theirs"}},
        "spec": {"ports": [{"port": 1}]},
    });
    let theirs = bench.namespace.create("services", &service).await.unwrap();
    let answer = bench.provision(&request).await;
    let text = format!("{answer:?}");
    assert!(
        text.contains(&request.slots[1].id) && text.to_lowercase().contains("service"),
        "{text}"
    );
    if let Ok(answer) = answer {
        assert_eq!(
            (answer.nodes.len(), answer.unknown.len()),
            (1, 0),
            "{answer:?}"
        );
    }
    for node in bench.nodes().await {
        bench.remove(&node, "beside theirs").await;
    }
    let after = bench
        .namespace
        .get("services", &request.slots[1].id)
        .await
        .unwrap();
    assert_eq!(after["metadata"]["uid"], theirs["metadata"]["uid"]);
    assert_eq!(after["metadata"]["labels"], theirs["metadata"]["labels"]);
    assert_eq!(after["spec"], theirs["spec"]);
    until("only theirs is left", || async {
        let things = bench.namespace.everything().await;
        things
            .iter()
            .all(|thing| thing.name.starts_with(&request.slots[1].id))
            .then_some(())
    })
    .await;
}
