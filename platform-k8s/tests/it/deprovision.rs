//! Removal of nodes on a real API server.

use crate::direct;

use std::{sync::Arc, time::Duration};

use direct::{DEPLOYMENT, Direct, POD, SET, STATEFUL, target};
use drover_core::Reason;
use drover_platform::driver::Deletion;
use drover_platform_k8s::{client::Meta as _, delete::Place};
use drover_proto::platform::v1::DeprovisionState;
use drover_testing::kubernetes::{Fault, On, refusal, until};
use serde_json::json;

fn may_not(verb: &str, resource: &str) -> Fault {
    let message = format!(
        "{resource} is forbidden: User \"x\" cannot {verb} resource \"{resource}\" in API group \"\" in the namespace \"y\""
    );
    let (code, body) = refusal(403, "Forbidden", &message);
    Fault::Refuse(code, body)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pod_goes_first_and_then_the_rest_in_the_order_of_the_settings() {
    let bench = Direct::start().await;
    let node = bench.one(SET).await;
    bench.proxy.forget();
    let state = bench.delete(&node).await.unwrap();
    assert_eq!(state, DeprovisionState::Deprovisioning);
    assert_eq!(
        bench.changes(),
        [
            "delete pods",
            "delete services",
            "delete configmaps",
            "delete persistentvolumeclaims"
        ]
    );
    let calls = bench.proxy.calls();
    let reads = calls.iter().filter(|call| call.verb == "list");
    assert!(reads.clone().count() > 10, "{calls:?}");
    assert!(reads.clone().all(|call| call.metadata_only), "{calls:?}");
    bench.gone(&node).await;
    bench.namespace.until_empty("a set of four kinds").await;
    assert_eq!(bench.delete(&node).await.unwrap(), DeprovisionState::Gone);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_the_settings_is_kept_even_if_the_pod_is_the_last_in_it() {
    let bench = Direct::with(|settings| {
        settings.kinds.retain(|kind| kind != "pods");
        settings.kinds.push("pods".to_owned());
    })
    .await;
    let node = bench.one(SET).await;
    bench.proxy.forget();
    let state = bench.delete(&node).await.unwrap();
    assert_eq!(state, DeprovisionState::Deprovisioning);
    assert_eq!(
        bench.changes(),
        [
            "delete services",
            "delete configmaps",
            "delete pods",
            "delete persistentvolumeclaims"
        ]
    );
    bench.gone(&node).await;
    bench.namespace.until_empty("a set of four kinds").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_known_is_looked_at_and_the_end_is_read() {
    let bench = Direct::start().await;
    let node = bench.one(SET).await;
    let items = bench
        .remover
        .read(&bench.cluster, &node.node_id)
        .await
        .unwrap();
    let known: Vec<_> = items
        .iter()
        .map(|item| Place {
            kind: Arc::clone(&item.kind),
            namespace: item.meta.namespace().to_owned(),
            name: item.meta.name().to_owned(),
        })
        .collect();
    let (target, options) = (target(&node), Deletion::default());
    bench.proxy.forget();
    bench
        .remover
        .delete(&target, &options, &known)
        .await
        .unwrap();
    let calls = bench.proxy.calls();
    assert!(
        calls
            .iter()
            .all(|call| matches!(call.verb, "get" | "delete")),
        "{calls:?}"
    );
    assert_eq!(bench.changes()[0], "delete pods");
    until("the node is gone", || async {
        let deleted = bench
            .remover
            .delete(&target, &options, &known)
            .await
            .unwrap();
        (deleted.state == DeprovisionState::Gone).then_some(())
    })
    .await;
    assert!(bench.proxy.count("list", "secrets") > 0);
    bench.namespace.until_empty("what was known").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workloads_go_with_everything_that_they_made() {
    let bench = Direct::start().await;
    for (template, grace) in [
        (STATEFUL, None),
        (STATEFUL, Some(Duration::from_secs(1))),
        (DEPLOYMENT, None),
        (DEPLOYMENT, Some(Duration::ZERO)),
    ] {
        let node = bench.one(template).await;
        until("its pod is there", || async {
            bench.namespace.list("pods").await.into_iter().next()
        })
        .await;
        let options = Deletion {
            grace_period: grace,
            ..Deletion::default()
        };
        until("the node is gone", || async {
            let state = bench.delete_as(&target(&node), &options).await.unwrap();
            (state == DeprovisionState::Gone).then_some(())
        })
        .await;
        for resource in [
            "pods",
            "persistentvolumeclaims",
            "statefulsets.apps",
            "replicasets.apps",
        ] {
            assert!(bench.names(resource).await.is_empty(), "{resource}");
        }
        bench.namespace.until_empty("a workload").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_somebody_elses_is_left_alone() {
    let bench = Direct::start().await;
    let node = bench.one(SET).await;
    let id = &node.node_id;
    let labels = |cluster: &str| json!({"drover.dev/cluster": cluster, "drover.dev/node": id});
    // A pod of another cluster, and one with the same labels and another owner's identity.
    bench
        .namespace
        .pod("other-cluster", json!({"labels": labels("other")}))
        .await;
    let mut stolen = labels(&bench.cluster);
    let owner = uuid::Uuid::new_v4().to_string();
    stolen["drover.dev/owner"] = json!(owner);
    stolen["drover.dev/request"] = json!(owner);
    let identity =
        json!({"owner": owner, "request_id": owner, "cluster_id": bench.cluster, "id": id});
    let annotations = json!({"drover.dev/identity": identity.to_string()});
    bench
        .namespace
        .pod(
            "other-owner",
            json!({"labels": stolen, "annotations": annotations}),
        )
        .await;
    // An object that an operator has derived has the labels and no identity.
    bench
        .namespace
        .pod("follower", json!({"labels": labels(&bench.cluster)}))
        .await;
    until("what belongs to the node is gone", || async {
        // The other owner's pod has both labels; in the end it is distinguished from the node.
        let state = bench.delete(&node).await;
        assert!(
            matches!(&state, Ok(DeprovisionState::Deprovisioning))
                || state
                    .as_ref()
                    .is_err_and(|it| it.reason() == Reason::NodeNotInCluster),
            "{state:?}"
        );
        state.is_err().then_some(())
    })
    .await;
    until("only what is somebody else's is left", || async {
        let left = bench.everything().await;
        let mut left: Vec<_> = left.iter().map(|it| it.name.as_str()).collect();
        left.sort_unstable();
        (left == ["other-cluster", "other-owner"]).then_some(())
    })
    .await;
    let left = bench.everything().await;
    assert!(left.iter().all(|it| !it.terminating), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_slot_or_owner_is_refused_and_nothing_touched() {
    let bench = Direct::start().await;
    let node = bench.one(SET).await;
    let before = bench.everything().await;
    let other = || uuid::Uuid::new_v4().to_string();
    for (reason, change) in [
        (Reason::SlotMismatch, ("request", other())),
        (Reason::NodeNotInCluster, ("owner", other())),
    ] {
        let mut target = target(&node);
        let slot = target.slot.as_mut().unwrap();
        match change {
            ("request", id) => slot.request_id = id,
            (_, id) => slot.owner = id,
        }
        let error = bench
            .delete_as(&target, &Deletion::default())
            .await
            .unwrap_err();
        assert_eq!(error.reason(), reason);
    }
    let mut elsewhere = target(&node);
    elsewhere.cluster_id = "elsewhere".to_owned();
    let state = bench
        .delete_as(&elsewhere, &Deletion::default())
        .await
        .unwrap();
    assert_eq!(
        state,
        DeprovisionState::Gone,
        "there is no such node in that cluster"
    );
    assert_eq!(bench.everything().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_a_finalizer_that_never_finishes_is_never_gone() {
    let bench = Direct::start().await;
    let template = SET.replace(
        "kind: ConfigMap\nmetadata: {",
        "kind: ConfigMap\nmetadata: {finalizers: [example.com/never], ",
    );
    let node = bench.one(&template).await;
    until("all but the one is gone", || async {
        let state = bench.delete(&node).await.unwrap();
        assert_eq!(state, DeprovisionState::Deprovisioning);
        let items = bench
            .remover
            .read(&bench.cluster, &node.node_id)
            .await
            .unwrap();
        (items.len() == 1).then_some(())
    })
    .await;
    bench.proxy.forget();
    let state = bench.delete(&node).await.unwrap();
    assert_eq!(state, DeprovisionState::Deprovisioning);
    assert_eq!(
        bench.changes(),
        Vec::<String>::new(),
        "it was asked for before"
    );
    let items = bench
        .remover
        .read(&bench.cluster, &node.node_id)
        .await
        .unwrap();
    assert!(items[0].meta.is_deleting());
    assert!(
        items[0]
            .meta
            .finalizers()
            .contains(&"example.com/never".to_owned())
    );
    let free = json!({"metadata": {"finalizers": []}});
    bench
        .namespace
        .merge("configmaps", &node.node_id, &free)
        .await
        .unwrap();
    bench.gone(&node).await;
    bench.namespace.until_empty("the finalizer is gone").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_that_may_not_be_deleted_are_named_and_the_others_go() {
    let bench = Direct::start().await;
    let node = bench.one(SET).await;
    for resource in ["configmaps", "services"] {
        let on = On::call("delete", resource).always();
        bench.proxy.fail(on, may_not("delete", resource));
    }
    let error = bench.delete(&node).await.unwrap_err();
    assert_eq!(error.reason(), Reason::CredentialsRefused);
    for resource in ["configmaps", "services"] {
        assert!(error.message().contains(resource), "{error:?}");
    }
    until("pod and claim are gone", || async {
        let left = bench.everything().await;
        let gone = |resource: &str| left.iter().all(|it| it.resource != resource);
        (gone("pods") && gone("persistentvolumeclaims")).then_some(())
    })
    .await;
    bench.proxy.heal();
    bench.gone(&node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_whole_is_not_begun() {
    let bench = Direct::start().await;
    let node = bench.one(SET).await;
    bench.proxy.forget();
    bench.proxy.fail(
        On::call("list", "secrets").always(),
        may_not("list", "secrets"),
    );
    let error = bench.delete(&node).await.unwrap_err();
    assert_eq!(error.reason(), Reason::CredentialsRefused);
    assert!(error.message().contains("secrets"), "{error:?}");
    bench.proxy.heal();
    bench
        .proxy
        .fail(On::call("list", "secrets"), Fault::internal());
    let error = bench.delete(&node).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable);
    assert_eq!(bench.changes(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_goes_on_whatever_befell_the_one_before() {
    for fault in [
        Fault::internal(),
        Fault::LoseAnswer,
        Fault::internal_after(),
    ] {
        for resource in ["pods", "services", "persistentvolumeclaims"] {
            let bench = Direct::start().await;
            let node = bench.one(SET).await;
            bench
                .proxy
                .fail(On::call("delete", resource), fault.clone());
            let error = bench.delete(&node).await.unwrap_err();
            assert_eq!(error.reason(), Reason::Unavailable, "{error:?}");
            bench.gone(&node).await;
            bench.namespace.until_empty("after a fault").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_a_node_without_its_pod_is_removed() {
    let bench = Direct::start().await;
    let node = bench.one(SET).await;
    bench.namespace.delete("pods", &node.node_id).await;
    until("the pod is gone", || async {
        bench.names("pods").await.is_empty().then_some(())
    })
    .await;
    bench.gone(&node).await;
    bench.namespace.until_empty("what was left of a node").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_call_may_hurry_and_a_grace_is_never_none() {
    let bench = Direct::start().await;
    let slow = POD
        .replace(
            "terminationGracePeriodSeconds: 1",
            "terminationGracePeriodSeconds: 1000",
        )
        .replace("metadata: {", "metadata: {finalizers: [example.com/wait], ");
    let node = bench.one(&slow).await;
    let grace = |seconds| Deletion {
        grace_period: Some(Duration::from_secs(seconds)),
        ..Deletion::default()
    };
    for (asked, expected) in [(100, 100), (7, 7), (50, 7), (0, 1)] {
        bench
            .delete_as(&target(&node), &grace(asked))
            .await
            .unwrap();
        let pod = bench.namespace.get("pods", &node.node_id).await.unwrap();
        let left = &pod["metadata"]["deletionGracePeriodSeconds"];
        assert!(
            left.as_u64().is_some_and(|left| left <= expected),
            "{asked}: {left}"
        );
    }
    let free = json!({"metadata": {"finalizers": []}});
    bench
        .namespace
        .merge("pods", &node.node_id, &free)
        .await
        .unwrap();
    bench.gone(&node).await;
}
