//! What people do to the objects of an addon by hand.

use drover_platform::addons::{AddonWanted, Addons as _};
use drover_proto::platform::v1::{JumpHost, OidcProvider, ResourcePhase, addon_spec::Kind};
use drover_testing::kubernetes::{Namespace, until};
use http::Method;
use serde_json::{Value, json};

use super::{
    Bench,
    bench::balancer,
    mapping,
    others::{KEY, addon, authority, pod_template, secret},
    target,
};

/// Deletes all objects of a kind and leaves what they keep, as `kubectl delete --cascade=orphan` does.
pub(super) async fn orphan(namespace: &Namespace, resource: &str) {
    for object in namespace.list(resource).await {
        let name = object["metadata"]["name"].as_str().unwrap();
        let path = format!(
            "{}/{name}?propagationPolicy=Orphan",
            namespace.path(resource)
        );
        let deleted = namespace.raw.call(Method::DELETE, &path, None).await;
        deleted.unwrap();
    }
    until(&format!("{resource} are gone"), || async {
        namespace.list(resource).await.is_empty().then_some(())
    })
    .await;
}

fn api() -> AddonWanted {
    balancer(vec![mapping(None, 80, 1)], vec![target("a", "192.0.2.1")])
}

fn jump() -> AddonWanted {
    let jump = JumpHost {
        authorized_keys: vec![KEY.to_owned()],
        private_keys_secret: "node-keys".to_owned(),
        ..JumpHost::default()
    };
    let mut wanted = addon(Kind::JumpHost(jump), vec![target("a", "192.0.2.1")]);
    let keys = secret(&[("id_ed25519", "private")]);
    wanted.secrets.insert("node-keys".to_owned(), keys);
    wanted
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_were_left_behind_by_their_deployment_go_with_the_addon() {
    let bench = Bench::start().await;
    for kinds in [
        &["deployments.apps"][..],
        &["deployments.apps", "replicasets.apps"],
    ] {
        bench.ensure(&api()).await.unwrap();
        bench.until_told("the pods are there", 2, |_| true).await;
        for kind in kinds {
            orphan(&bench.namespace, kind).await;
        }
        bench.remove("api").await;
        bench.namespace.until_empty("the load balancer").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_a_removal_from_its_end_is_named() {
    let bench = Bench::start().await;
    bench.ensure(&api()).await.unwrap();
    let map = bench.object("configmaps", "").await;
    let name = map["metadata"]["name"].as_str().unwrap();
    let held = json!({"metadata": {"finalizers": ["example.com/held"]}});
    bench
        .namespace
        .merge("configmaps", name, &held)
        .await
        .unwrap();
    // Of somebody else, though its pods look like those of the addon.
    let own = json!({
        "drover.dev/addon": "api", "drover.dev/addon-cluster": "blue", "drover.dev/owner": bench.owner.owner,
        "app": "theirs",
    });
    let theirs = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "theirs"},
        "spec": {
            "selector": {"matchLabels": {"app": "theirs"}},
            "template": {
                "metadata": {"labels": own},
                "spec": {"containers": [{"name": "x", "image": "none.invalid/x"}]},
            },
        },
    });
    let sets = "replicasets.apps";
    bench.namespace.create(sets, &theirs).await.unwrap();
    let waits_for = async |words: [&str; 2]| {
        until(&format!("{words:?} are named"), || async {
            let removed = bench.addons.remove(&bench.owner, "api").await.unwrap();
            assert_eq!(removed.state.phase(), ResourcePhase::Releasing);
            let message = removed.state.message;
            words.iter().all(|it| message.contains(it)).then_some(())
        })
        .await;
    };
    waits_for([name, "example.com/held"]).await;
    let free = json!({"metadata": {"finalizers": null}});
    bench
        .namespace
        .merge("configmaps", name, &free)
        .await
        .unwrap();
    waits_for(["pod/theirs-", "replicaset/theirs"]).await;
    bench.namespace.delete(sets, "theirs").await;
    bench.remove("api").await;
    bench.namespace.until_empty("the load balancer").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_whose_labels_were_changed_go_with_their_addon() {
    let bench = Bench::start().await;
    let provider = addon(Kind::OidcProvider(OidcProvider::default()), Vec::new());
    let (addon, cluster) = ("drover.dev/addon", "drover.dev/addon-cluster");
    let changes = [
        ("secrets", addon, Value::Null),
        ("services", cluster, Value::Null),
        ("", addon, json!("other")),
        ("", cluster, Value::Null),
    ];
    for wanted in [jump(), api(), provider] {
        for (only, key, by_hand) in &changes {
            bench.ensure(&wanted).await.unwrap();
            let changed = json!({"metadata": {"labels": {*key: by_hand}}});
            let objects = bench.objects().await.into_iter();
            for object in objects.filter(|it| only.is_empty() || it.resource == *only) {
                let (resource, name) = (&object.resource, &object.name);
                let patched = bench.namespace.merge(resource, name, &changed).await;
                patched.unwrap();
            }
            bench.remove(&wanted.spec.name).await;
            let left = bench.objects().await;
            assert!(left.is_empty(), "{only} {key}: {left:?}");
        }
    }
    bench.namespace.until_empty("all of them").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_lost_from_what_is_written_once_is_written_again_and_then_kept() {
    let bench = Bench::start().await;
    bench.ensure(&jump()).await.unwrap();
    for (end, key) in [("-salt", "salt"), ("-host-key", "ssh_host_key")] {
        for lost in [Value::Null, json!("")] {
            let name = bench.object("secrets", end).await["metadata"]["name"].clone();
            let name = name.as_str().unwrap();
            let edit = json!({"data": {key: lost}});
            bench.namespace.merge("secrets", name, &edit).await.unwrap();
            let mut seen = Vec::new();
            for _ in 0..5 {
                bench.ensure(&jump()).await.unwrap();
                let kept = bench.object("secrets", end).await["data"][key].clone();
                let text = kept.as_str().unwrap_or_default();
                assert!(!text.is_empty(), "{name} has its {key} again");
                seen.push((kept, pod_template(&bench).await));
            }
            seen.dedup();
            assert_eq!(seen.len(), 1, "{name}: each other template ends pods");
        }
    }
    bench.remove("one").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_certificate_is_issued_anew_with_its_key() {
    let bench = Bench::start().await;
    let provider = OidcProvider {
        tls_secret: "tls".to_owned(),
        ..OidcProvider::default()
    };
    let mut wanted = addon(Kind::OidcProvider(provider), Vec::new());
    let (certificate, key) = authority();
    let pair = secret(&[("ca.crt", &*certificate), ("ca.key", &*key)]);
    wanted.secrets.insert("tls".to_owned(), pair);
    bench.ensure(&wanted).await.unwrap();
    let issued = bench.object("secrets", "-tls").await;
    let name = issued["metadata"]["name"].as_str().unwrap();
    let edit = json!({"data": {"tls.key": ""}});
    bench.namespace.merge("secrets", name, &edit).await.unwrap();
    bench.ensure(&wanted).await.unwrap();
    let again = bench.object("secrets", "-tls").await;
    for key in ["tls.crt", "tls.key"] {
        assert_ne!(again["data"][key], "", "{key}");
        assert_ne!(again["data"][key], issued["data"][key], "{key}");
    }
    bench.ensure(&wanted).await.unwrap();
    let kept = bench.object("secrets", "-tls").await;
    assert_eq!(kept["data"], again["data"]);
    bench.remove("one").await;
}
