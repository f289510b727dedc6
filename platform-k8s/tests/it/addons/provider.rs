//! A namespace has one OIDC provider, since Dex keeps the keys and logins of all in the same objects.

use drover_core::Reason;
use drover_platform::addons::Addons as _;
use drover_proto::platform::v1::{OidcProvider, ResourcePhase, addon_spec::Kind};
use drover_testing::{
    kubernetes::{
        Options, Rig,
        manifests::{apply, documents},
        until,
    },
    wait::holds,
};
use serde_json::{Value, json};

use super::{Bench, bench::owner, others::addon};

const KEYS: &str = "signingkeies.dex.coreos.com";

/// Defines the kinds of Dex, and makes the object with its signing keys.
async fn sign(bench: &Bench) -> Value {
    apply(&bench.namespace.raw, documents("addons/dex.yaml")).await;
    let key = json!({"apiVersion": "dex.coreos.com/v1", "kind": "SigningKey", "metadata": {"name": "openid-connect-keys"}});
    until("the kinds of Dex are served", || async {
        bench.namespace.create(KEYS, &key).await.ok()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_is_alone_in_its_namespace_and_leaves_no_keys_to_the_next() {
    let bench = Bench::start().await;
    let wanted = addon(Kind::OidcProvider(OidcProvider::default()), Vec::new());
    bench.ensure(&wanted).await.unwrap();
    sign(&bench).await;

    let green = owner("green");
    let mut second = wanted.clone();
    second.spec.name = "second".to_owned();
    for (owner, wanted) in [(&green, &wanted), (&bench.owner, &second)] {
        let before = bench.objects().await;
        let checked = bench.addons.check(owner, wanted).await.unwrap_err();
        let ensured = bench.addons.ensure(owner, 1, wanted).await.unwrap_err();
        assert_eq!(checked, ensured);
        assert_eq!(ensured.reason(), Reason::Precondition, "{ensured}");
        assert!(
            ensured.message().contains("one of cluster blue"),
            "{ensured}"
        );
        assert_eq!(bench.objects().await, before);
    }
    bench.ensure(&wanted).await.unwrap();

    until("the next provider is made", || async {
        bench.addons.remove(&bench.owner, "one").await.unwrap();
        bench.addons.ensure(&green, 1, &wanted).await.ok()
    })
    .await;
    let keys = bench.namespace.list(KEYS).await;
    assert!(keys.is_empty(), "{keys:?}");
    until("the next one is gone", || async {
        let gone = bench.addons.remove(&green, "one").await.unwrap();
        (gone.state.phase() == ResourcePhase::Gone).then_some(())
    })
    .await;
    bench.namespace.until_empty("both").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dex_that_was_there_first_keeps_its_keys() {
    let bench = Bench::start().await;
    let key = sign(&bench).await;
    let wanted = addon(Kind::OidcProvider(OidcProvider::default()), Vec::new());
    let checked = bench.addons.check(&bench.owner, &wanted).await.unwrap_err();
    let ensured = bench.ensure(&wanted).await.unwrap_err();
    assert_eq!(checked, ensured);
    assert_eq!(ensured.reason(), Reason::Precondition, "{ensured}");
    for words in ["openid-connect-keys", "addons.namespace"] {
        assert!(ensured.message().contains(words), "{ensured}");
    }
    bench.remove("one").await;
    assert_eq!(bench.namespace.list(KEYS).await.len(), 1, "nothing else");

    // A provider that was made beside it nevertheless.
    let mut later = 0;
    holds("an object that is newer", async || {
        later += 1;
        let mark = json!({
            "owner": bench.owner.owner, "clusterId": "blue", "name": "one", "kind": "ADDON_KIND_OIDC_PROVIDER",
        });
        let ours = json!({"metadata": {
            "name": format!("ours-{later}"),
            "labels": {"drover.dev/addon": "one", "drover.dev/addon-cluster": "blue"},
            "annotations": {"drover.dev/addon-identity": mark.to_string()},
        }});
        let made = bench.namespace.create("configmaps", &ours).await.unwrap();
        let time = |object: &Value| object["metadata"]["creationTimestamp"].to_string();
        let newer = time(&made) > time(&key);
        if !newer {
            let name = made["metadata"]["name"].as_str().unwrap();
            bench.namespace.delete("configmaps", name).await;
        }
        newer
    })
    .await;
    bench.remove("one").await;
    assert_eq!(bench.namespace.list(KEYS).await.len(), 1, "older than it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_without_labels_is_one_nevertheless() {
    let bench = Bench::start().await;
    let wanted = addon(Kind::OidcProvider(OidcProvider::default()), Vec::new());
    bench.ensure(&wanted).await.unwrap();
    let stripped = json!({"metadata": {"labels": {"drover.dev/addon": null}}});
    for object in bench.objects().await {
        let (resource, name) = (&object.resource, &object.name);
        let patched = bench.namespace.merge(resource, name, &stripped).await;
        patched.unwrap();
    }
    let second = bench.addons.ensure(&owner("green"), 1, &wanted).await;
    let refused = second.unwrap_err();
    assert_eq!(refused.reason(), Reason::Precondition, "{refused}");
    bench.ensure(&wanted).await.unwrap();
    bench.remove("one").await;
    bench.namespace.until_empty("the provider").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_platforms_that_make_a_provider_at_once_one_does() {
    let one = Bench::start().await;
    let other = Bench::over(Rig::shared(Options::kwok(3)), |settings| {
        settings.addons.namespace = Some(one.namespace.name.clone());
    })
    .await;
    let wanted = addon(Kind::OidcProvider(OidcProvider::default()), Vec::new());
    let green = owner("green");
    for _ in 0..5 {
        let (first, second) =
            futures::join!(one.ensure(&wanted), other.addons.ensure(&green, 1, &wanted));
        let (refused, winner) = match (first, second) {
            (Ok(_), Err(refused)) => (refused, &one.owner),
            (Err(refused), Ok(_)) => (refused, &green),
            both => panic!("one of them: {both:?}"),
        };
        assert_eq!(refused.reason(), Reason::Precondition, "{refused}");
        until("the one that was made is gone", || async {
            let gone = one.addons.remove(winner, "one").await.unwrap();
            (gone.state.phase() == ResourcePhase::Gone).then_some(())
        })
        .await;
        one.namespace.until_empty("nothing of the other").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_cannot_be_made_keeps_no_other_from_its_namespace() {
    let bench = Bench::start().await;
    // Of those that nobody gets who does not ask for one.
    let taken = json!({
        "metadata": {"name": "taken"},
        "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_040}]},
    });
    bench.namespace.create("services", &taken).await.unwrap();
    let with = |port: Option<u32>| {
        let provider = OidcProvider {
            port,
            ..OidcProvider::default()
        };
        addon(Kind::OidcProvider(provider), Vec::new())
    };
    let refused = bench.ensure(&with(Some(30_040))).await.unwrap_err();
    assert_eq!(refused.reason(), Reason::Invalid, "{refused}");
    let green = owner("green");
    bench.addons.ensure(&green, 1, &with(None)).await.unwrap();
    bench.addons.remove(&green, "one").await.unwrap();
}
