//! A namespace has one OIDC provider, since Dex keeps the keys and logins of all in the same objects.

use drover_core::Reason;
use drover_platform::addons::Addons as _;
use drover_proto::platform::v1::{OidcProvider, ResourcePhase, addon_spec::Kind};
use drover_testing::kubernetes::{
    manifests::{apply, documents},
    until,
};
use serde_json::json;

use super::{Bench, bench::owner, others::addon};

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_is_alone_in_its_namespace_and_leaves_no_keys_to_the_next() {
    let bench = Bench::start().await;
    apply(&bench.namespace.raw, documents("addons/dex.yaml")).await;
    let wanted = addon(Kind::OidcProvider(OidcProvider::default()), Vec::new());
    bench.ensure(&wanted).await.unwrap();
    let key = json!({"apiVersion": "dex.coreos.com/v1", "kind": "SigningKey", "metadata": {"name": "openid-connect-keys"}});
    let path = bench.namespace.path("signingkeies.dex.coreos.com");
    until("the kinds of Dex are served", || async {
        bench.namespace.raw.create(&path, &key).await.ok()
    })
    .await;

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
    let keys = bench.namespace.list("signingkeies.dex.coreos.com").await;
    assert!(keys.is_empty(), "{keys:?}");
    until("the next one is gone", || async {
        let gone = bench.addons.remove(&green, "one").await.unwrap();
        (gone.state.phase() == ResourcePhase::Gone).then_some(())
    })
    .await;
    bench.namespace.until_empty("both").await;
}
