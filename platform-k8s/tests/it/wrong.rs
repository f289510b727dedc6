//! Mistakes of users and administrators are reported, and leave nothing in the namespace.

use crate::bench;
mod webhook;

use bench::{Bench, attributes, kinds, one_each, rig, settings};
use drover_core::{Class, Error, Reason};
use drover_platform_k8s::PlatformServer;
use drover_testing::kubernetes::{FaultProxy, Raw, Thing, until};
use serde_json::json;
use webhook::{Verdict, Webhook};

/// Errors must not show the content of templates.
fn silent(error: &Error) {
    let text = format!("{error:?} {error}");
    assert!(!text.contains("hunter2"), "{text}");
    assert!(text.len() < 16_384, "{} bytes of error", text.len());
}

/// All objects except those of the test itself.
async fn left(bench: &Bench, besides: &[&str]) -> Vec<Thing> {
    let mut things = bench.namespace.everything().await;
    things.retain(|thing| !besides.contains(&thing.resource.as_str()));
    things
}

#[tokio::test(flavor = "multi_thread")]
async fn templates_that_make_no_sense_are_named_and_make_nothing() {
    let bench = Bench::start().await;
    for (store, reasons, words) in [
        (
            "unreadable",
            &[Reason::Precondition][..],
            &["document 2", "line"][..],
        ),
        (
            "unheard",
            &[Reason::Precondition],
            &["Unheard", "nobody.example/v1"],
        ),
        (
            "senseless",
            &[Reason::Precondition, Reason::Invalid],
            &["containers[0].name", "containerPort"],
        ),
        (
            "mistyped",
            &[Reason::Invalid],
            &["spec.containers[0].livenessProb"],
        ),
    ] {
        for validate_only in [true, false] {
            let mut request = bench.request(store, 3).await;
            request.validate_only = validate_only;
            let error = bench.provision(&request).await.unwrap_err();
            assert!(reasons.contains(&error.reason()), "{store}: {error:?}");
            assert_eq!(error.class(), Class::Cannot, "{store}: {error:?}");
            let text = format!("{error:?}");
            for word in words {
                assert!(text.contains(word), "{store}: no {word:?} in {text}");
            }
            silent(&error);
            assert_eq!(bench.namespace.everything().await, vec![], "{store}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_five_megabytes_is_refused_by_its_name() {
    let bench = Bench::start().await;
    for megabytes in [2, 5] {
        let mut request = bench.request("large", 2).await;
        attributes(&mut request, json!({"times": megabytes * 1024 * 1024 / 8}));
        let error = bench.refused(&request).await;
        assert_eq!(error.class(), Class::Cannot, "{error:?}");
        let text = format!("{error:?}");
        // Beyond 4 MiB the template itself is refused.
        let named = if megabytes == 2 {
            "ConfigMap"
        } else {
            "large.yaml"
        };
        assert!(text.contains(named), "{text}");
        silent(&error);
        assert_eq!(bench.namespace.everything().await, vec![]);
    }
    // A smaller object is created.
    let mut request = bench.request("large", 1).await;
    attributes(&mut request, json!({"times": 64 * 1024}));
    bench.whole(&request, "half a megabyte").await;
    bench.clean("half a megabyte").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_is_full_fails_the_slots_beyond_it_and_leaves_no_part_of_them() {
    let bench = Bench::start().await;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "2"}},
    });
    bench
        .namespace
        .create("resourcequotas", &quota)
        .await
        .unwrap();
    until("the quota counts", || async {
        let quota = bench.namespace.get("resourcequotas", "q").await.unwrap();
        quota["status"]["used"]["pods"].as_str().map(drop)
    })
    .await;
    let request = bench.request("rich", 3).await;
    let answer = bench.provision(&request).await.unwrap();
    assert_eq!(
        (answer.nodes.len(), &answer.unknown),
        (2, &vec![]),
        "{answer:?}"
    );
    let error = drover_convert::error::from_rpc_status(answer.failures[0].error.as_ref().unwrap());
    assert_eq!(error.reason(), Reason::QuotaExceeded, "{error:?}");
    assert!(error.message().contains("exceeded quota: q"), "{error:?}");
    let besides = ["resourcequotas"];
    until("the third one left no part of it", || async {
        let kinds = kinds(&left(&bench, &besides).await);
        kinds.values().all(|&count| count == 2).then_some(())
    })
    .await;
    // Repeating the request returns the existing nodes; the other one still fails.
    let again = bench.provision(&request).await.unwrap();
    assert_eq!((again.nodes.len(), again.failures.len()), (2, 1));
    assert_eq!(bench.nodes().await.len(), 2);
    bench.namespace.delete("resourcequotas", "q").await;
    // A failed slot stays failed, even if it becomes possible; a new request is independent.
    let more = until("there is room again", || async {
        let more = bench.request("rich", 1).await;
        let answer = bench.provision(&more).await.unwrap();
        (answer.nodes.len() == 1).then_some(more)
    })
    .await;
    let again = bench.provision(&request).await.unwrap();
    assert_eq!((again.nodes.len(), again.failures.len()), (2, 1));
    let nodes = bench.nodes().await;
    assert_eq!(nodes.len(), 3);
    one_each(&nodes, &more, "after the quota");
    bench.clean("a quota").await;
}

/// A policy that refuses objects of a kind in one namespace.
async fn forbid(raw: &Raw, namespace: &str, plural: &str, words: &str) {
    let name = format!("{namespace}-{plural}");
    let root = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [plural]},
            ]},
            "validations": [{"expression": "false", "message": words}],
        },
    });
    let path = format!("{root}/validatingadmissionpolicies");
    raw.create(&path, &policy).await.unwrap();
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
        "spec": {
            "policyName": name, "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}},
        },
    });
    let path = format!("{root}/validatingadmissionpolicybindings");
    raw.create(&path, &binding).await.unwrap();
    // A policy takes effect with a delay.
    let probe = json!({"apiVersion": "v1", "metadata": {"name": "probe"}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let path = format!("/api/v1/namespaces/{namespace}/{plural}?dryRun=All");
    until("the policy holds", || async {
        let refused = raw.create(&path, &probe).await.err()?;
        refused.message.contains(words).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_refuses_is_quoted_and_nothing_is_left() {
    let bench = Bench::start().await;
    forbid(
        &bench.namespace.raw,
        &bench.namespace.name,
        "pods",
        "no pods on Sundays",
    )
    .await;
    let request = bench.request("rich", 2).await;
    let error = bench.refused(&request).await;
    assert_eq!(error.reason(), Reason::Precondition, "{error:?}");
    assert!(error.message().contains("no pods on Sundays"), "{error:?}");
    bench.namespace.until_empty("a policy").await;
    assert_eq!(bench.nodes().await, vec![]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_refuses_is_quoted_and_one_that_does_not_answer_leaves_it_open() {
    let bench = Bench::start().await;
    let webhook = Webhook::start(Verdict::Deny("the moon is full")).await;
    webhook.register(&bench.namespace).await;
    let request = bench.request("rich", 2).await;
    let error = bench.refused(&request).await;
    assert_eq!(error.reason(), Reason::Precondition, "{error:?}");
    assert!(error.message().contains("the moon is full"), "{error:?}");
    bench.namespace.until_empty("a webhook that refuses").await;

    webhook.say(Verdict::Silence);
    let request = bench.request("rich", 2).await;
    match bench.provision(&request).await {
        Err(error) => {
            assert_eq!(error.class(), Class::Unknown, "{error:?}");
            assert!(error.message().contains("webhook"), "{error:?}");
        }
        Ok(answer) => {
            assert_eq!((&answer.nodes, &answer.failures), (&vec![], &vec![]));
            let error = answer.unknown[0].error.as_ref().unwrap();
            assert!(error.message.contains("webhook"), "{error:?}");
        }
    }

    // Only actual creations are refused, not dry runs: some objects are created, and removed again.
    webhook.say(Verdict::DenyKept("the moon is rising"));
    let other = bench.request("rich", 2).await;
    let error = bench.refused(&other).await;
    assert_eq!(error.reason(), Reason::Precondition, "{error:?}");
    assert!(error.message().contains("the moon is rising"), "{error:?}");
    let of_other = |thing: &Thing| other.slots.iter().any(|slot| thing.name.contains(&slot.id));
    until("no part of it is left", || async {
        let things = bench.namespace.everything().await;
        (!things.iter().any(of_other)).then_some(())
    })
    .await;

    webhook.say(Verdict::Allow);
    let nodes = bench.whole(&request, "the webhook allows it").await;
    one_each(&nodes, &request, "the webhook allows it");
    bench.clean("webhooks").await;
    assert!(webhook.asked() > 3, "the webhook was asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_missing_or_goes_is_named_and_makes_nothing() {
    let rig = rig();
    let gone = rig.namespace().await;
    let bench = Bench::with(|settings| settings.namespaces.push(gone.name.clone())).await;
    // A finalizer keeps it from being deleted.
    let keeper = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "keeper", "finalizers": ["drover.dev/tests"]}});
    gone.create("configmaps", &keeper).await.unwrap();
    let into = |mut request: drover_proto::platform::v1::ProvisionRequest| {
        let properties = json!({"namespace": gone.name});
        let properties = drover_convert::value::to_struct(properties.as_object().unwrap());
        request.group.as_mut().unwrap().properties = Some(properties);
        request
    };
    let request = into(bench.request("rich", 2).await);
    let nodes = bench.whole(&request, "a namespace that lives").await;
    gone.remove().await;
    until("the namespace goes", || async {
        let path = format!("/api/v1/namespaces/{}", gone.name);
        let namespace = gone.raw.get(&path).await.unwrap();
        (namespace["status"]["phase"] == "Terminating").then_some(())
    })
    .await;
    let error = bench.refused(&into(bench.request("rich", 2).await)).await;
    assert_eq!(error.reason(), Reason::Precondition, "{error:?}");
    assert!(error.message().contains(&gone.name), "{error:?}");
    for node in &nodes {
        bench.remove(node, "a namespace that goes").await;
    }
    gone.merge(
        "configmaps",
        "keeper",
        &json!({"metadata": {"finalizers": null}}),
    )
    .await
    .unwrap();
    until("the namespace is gone", || async {
        let path = format!("/api/v1/namespaces/{}", gone.name);
        gone.raw.get(&path).await.is_err().then_some(())
    })
    .await;
    let error = bench.refused(&into(bench.request("rich", 2).await)).await;
    assert_eq!(error.reason(), Reason::Precondition, "{error:?}");
    assert!(error.message().contains(&gone.name), "{error:?}");
    // The other namespace works as before.
    bench.make("rich", 1).await;
    bench.clean("the other namespace").await;
    let properties = json!({"namespace": "kube-system"});
    let properties = drover_convert::value::to_struct(properties.as_object().unwrap());
    let mut request = bench.request("pod", 1).await;
    request.group.as_mut().unwrap().properties = Some(properties);
    let error = bench.refused(&request).await;
    assert!(
        error.message().contains("kube-system")
            || format!("{error:?}").contains("properties.namespace"),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_is_not_served_is_refused_by_name_and_a_custom_one_is_dealt_with() {
    let widgets = "widgets.v1alpha1.tests.drover.dev".to_owned();
    let rig = rig();
    let proxy = FaultProxy::start(rig).await;
    let mut settings = settings("default");
    settings.kubeconfig = Some(proxy.kubeconfig());
    settings.kinds.insert(1, widgets.clone());
    let refused = PlatformServer::open(settings).await.err().unwrap();
    assert_eq!(refused.class(), Class::Cannot, "{refused:?}");
    assert!(refused.message().contains(&widgets), "{refused:?}");

    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.tests.drover.dev"},
        "spec": {
            "group": "tests.drover.dev", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1alpha1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            }}}],
        },
    });
    let raw = rig.raw().await;
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    raw.create(path, &definition).await.unwrap();
    until("widgets are served", || async {
        let path = "/apis/tests.drover.dev/v1alpha1/widgets";
        let served = raw.get(path).await.is_ok();
        let groups = raw.get("/apis").await.unwrap().to_string();
        (served && groups.contains("tests.drover.dev")).then_some(())
    })
    .await;
    let bench = Bench::with(|settings| settings.kinds.insert(1, widgets.clone())).await;
    let request = bench.request("custom", 2).await;
    let nodes = bench.whole(&request, "widgets").await;
    one_each(&nodes, &request, "widgets");
    let made = bench.namespace.list(&widgets).await;
    assert_eq!(made.len(), 2);
    for widget in &made {
        let labels = &widget["metadata"]["labels"];
        assert_eq!(labels[&bench.settings.labels.cluster], bench.cluster);
        assert!(labels["drover.dev/owner"].is_string() && labels["drover.dev/request"].is_string());
    }
    bench.clean("widgets").await;
    // A platform whose settings do not list the kind refuses to create it: it could not remove it.
    let other = Bench::start().await;
    let error = other.refused(&other.request("custom", 1).await).await;
    assert_eq!(error.class(), Class::Cannot, "{error:?}");
    assert!(
        format!("{error:?}").to_lowercase().contains("widget"),
        "{error:?}"
    );
    other.namespace.until_empty("no widgets").await;
}
