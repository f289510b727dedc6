//! Which upstream of Gloo a service is.

use drover_core::Reason;
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::IngressRules;
use drover_testing::kubernetes::FaultProxy;
use serde_json::Value;

use super::{INGRESS, Place, kinds::Kind, path, reason, server};

async fn place() -> Place {
    let place = Place::of(Kind::VirtualService).await;
    place.ingress(INGRESS, &[&place.host]).await.unwrap();
    place
}

/// The upstream of the first route.
async fn routed(place: &Place) -> String {
    let objects = place.objects().await;
    let upstream: &Value =
        &objects[0]["spec"]["virtualHost"]["routes"][0]["routeAction"]["single"]["upstream"];
    upstream["name"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_upstream_that_gloo_discovered_wins() {
    let place = place().await;
    place.upstream("a-copy", "one").await;
    place.upsert(vec![path("/a", "", "one")]).await.unwrap();
    assert_eq!(
        routed(&place).await,
        format!("{}-one-80", place.namespace.name)
    );
}

#[tokio::test]
async fn several_others_are_an_error_that_names_them_and_one_is_taken() {
    let place = place().await;
    place.upstream("first", "three").await;
    place.upsert(vec![path("/a", "", "three")]).await.unwrap();
    assert_eq!(routed(&place).await, "first");
    place.upstream("second", "three").await;
    let error = place
        .upsert(vec![path("/b", "", "three")])
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::IngressUpstreamMissing);
    let names = ["first", "second"].map(|name| format!("{}/{name}", place.namespace.name));
    assert!(
        names.iter().all(|name| error.message().contains(name)),
        "{error}"
    );
}

#[tokio::test]
async fn a_path_may_name_its_upstream() {
    let place = place().await;
    let to = |name: &str| api::IngressPath {
        target: Some(api::ingress_path::Target::Upstream(api::UpstreamTarget {
            name: name.to_owned(),
            namespace: String::new(),
        })),
        ..path("/a", "", "")
    };
    let missing = place.upsert(vec![to("legacy")]).await;
    assert_eq!(reason(missing), Reason::IngressUpstreamMissing);
    let object = serde_json::json!({
        "apiVersion": "gloo.solo.io/v1", "kind": "Upstream", "metadata": {"name": "legacy"},
        "spec": {"static": {"hosts": [{"addr": "legacy.example", "port": 80}]}},
    });
    place
        .namespace
        .create("upstreams.gloo.solo.io", &object)
        .await
        .unwrap();
    assert_eq!(
        place.upsert(vec![to("legacy")]).await.unwrap(),
        ["/a  legacy"]
    );
}

#[tokio::test]
async fn a_service_is_looked_for_once_however_many_paths_lead_to_it() {
    for kind in [Kind::Ingress, Kind::HttpRoute, Kind::VirtualService] {
        let mut reads = Vec::new();
        for paths in [2, 200] {
            let place = Place::of(kind).await;
            place.ingress(INGRESS, &[&place.host]).await.unwrap();
            let proxy = FaultProxy::start(place.rig).await;
            let server = server(proxy.kubeconfig(), kind, &place.namespace.name).await;
            let to = |at| path(&format!("/{at}"), "", ["one", "two"][at % 2]);
            let request = place.upsert_request((0..paths).map(to).collect());
            let rule = IngressRules::upsert(&server, request).await.unwrap();
            assert_eq!(rule.paths.len(), paths);
            reads.push(["services", "upstreams.gloo.solo.io"].map(|what| proxy.count("get", what)));
        }
        assert_eq!(reads[0], reads[1], "{kind:?}");
        assert_ne!(reads[0], [0, 0], "{kind:?}");
    }
}
