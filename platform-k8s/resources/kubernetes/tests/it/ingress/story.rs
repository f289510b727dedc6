//! What a caller sees of ingresses, whatever they are made of, and what stays of objects that others made.

use std::time::Duration;

use drover_core::Reason;
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::{IngressRules, Ingresses};
use drover_testing::kubernetes::{self, Rig, until};
use http::Method;
use serde_json::{Value, json};

use super::{INGRESS, Place, by_name, by_path, kinds::Kind, path, reason, shown, target};

async fn story(kind: Kind) {
    let place = Place::of(kind).await;
    let other = format!("b.{}", place.host);
    assert_eq!(reason(place.get(INGRESS).await), Reason::NotFound);
    assert_eq!(reason(place.rule().await), Reason::NotFound);
    assert_eq!(
        reason(place.upsert(vec![path("/", "", "one")]).await),
        Reason::NotFound
    );

    let made = place
        .ingress(INGRESS, &[&place.host, &other])
        .await
        .unwrap();
    assert_eq!(made.backend(), kind.backend());
    assert_eq!(made.class_name, kind.class_name());
    assert_eq!(place.get(INGRESS).await.unwrap(), made);
    let metadata = made.metadata.unwrap();
    assert_eq!(
        metadata.labels,
        [("team".to_owned(), "blue".to_owned())].into()
    );
    assert_eq!(metadata.annotations.len(), 0, "{:?}", metadata.annotations);
    assert_eq!(
        reason(place.ingress(INGRESS, &[&place.host]).await),
        Reason::AlreadyExists
    );

    a_rule_and_its_paths(&place).await;
    hosts_and_pages(&place).await;

    assert!(place.delete(INGRESS).await.unwrap());
    assert!(!place.delete(INGRESS).await.unwrap());
    assert_eq!(reason(place.get(INGRESS).await), Reason::NotFound);
}

async fn a_rule_and_its_paths(place: &Place) {
    let rule = place
        .upsert(vec![path("/a", "sim", "one"), path("/b", "", "two")])
        .await;
    assert_eq!(rule.unwrap(), ["/a sim one", "/b two two"]);
    // A name that stands under another path moves it.
    let rule = place.upsert(vec![path("/c", "sim", "one")]).await.unwrap();
    assert_eq!(rule, ["/b two two", "/c sim one"]);
    assert_eq!(place.rule().await.unwrap(), rule);
    let rule = place
        .remove(api::path_key::Key::Service(target("two")))
        .await
        .unwrap();
    assert_eq!(rule, ["/c sim one"]);
    assert_eq!(place.remove(by_path("/none")).await.unwrap(), rule);
    // The last path goes, the rule stays, and takes paths again.
    assert!(place.remove(by_name("sim")).await.unwrap().is_empty());
    assert!(place.rule().await.unwrap().is_empty());
    assert_eq!(
        place.upsert(vec![path("/d", "", "one")]).await.unwrap(),
        ["/d one one"]
    );

    let refused = place
        .upsert(vec![path("/e", "", "one"), path("/f", "", "none")])
        .await;
    assert_eq!(reason(refused), Reason::IngressUpstreamMissing);
    assert_eq!(
        place.rule().await.unwrap(),
        ["/d one one"],
        "whole or not at all"
    );
    let many = (0..1001)
        .map(|n| path(&format!("/{n}"), "", "one"))
        .collect();
    assert_eq!(reason(place.upsert(many).await), Reason::Invalid);
    let mut elsewhere = place.remove_request(by_path("/d"));
    elsewhere.host = "none.example".to_owned();
    let gone = IngressRules::remove(&place.server, elsewhere).await;
    assert_eq!(reason(gone), Reason::RuleNotFound);
}

async fn hosts_and_pages(place: &Place) {
    // A host that is new is added, and another ingress does not get it.
    let mut request = place.upsert_request(vec![path("/x", "", "one")]);
    request.host = format!("c.{}", place.host);
    let rule = IngressRules::upsert(&place.server, request.clone())
        .await
        .unwrap();
    assert_eq!(shown(&rule), ["/x one one"]);
    let taken = place.ingress("next", &[&request.host]).await.unwrap_err();
    assert_eq!(taken.reason(), Reason::IngressHostTaken);
    let (_, name) = taken.resource().unwrap();
    assert!(
        name.starts_with(&format!("{}/{INGRESS}", place.namespace.name)),
        "{name}"
    );
    let free = format!("d.{}", place.host);
    place.ingress("next", &[&free]).await.unwrap();
    request.ingress = "next".to_owned();
    let taken = IngressRules::upsert(&place.server, request).await;
    assert_eq!(reason(taken), Reason::IngressHostTaken);

    let mut pages = Vec::new();
    let mut list = api::ListIngressesRequest {
        page_size: 1,
        ..api::ListIngressesRequest::default()
    };
    loop {
        let page = Ingresses::list(&place.server, list.clone()).await.unwrap();
        let names = page
            .ingresses
            .iter()
            .map(|it| it.metadata.as_ref().unwrap().name.clone());
        pages.push(names.collect::<Vec<_>>());
        list.page_token = page.next_page_token;
        if list.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(pages, [["next"], [INGRESS]]);
    place.delete("next").await.unwrap();
}

#[tokio::test]
async fn callers_see_the_same_of_an_ingress() {
    story(Kind::Ingress).await;
}

#[tokio::test]
async fn callers_see_the_same_of_http_routes() {
    story(Kind::HttpRoute).await;
}

#[tokio::test]
async fn callers_see_the_same_of_virtual_services() {
    story(Kind::VirtualService).await;
}

/// Objects that somebody made by hand, each with one plain route to `one` and one that no message can say.
fn by_hand(kind: Kind, host: &str) -> Value {
    match kind {
        Kind::Ingress => json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": INGRESS},
            "spec": {
                "defaultBackend": {"service": {"name": "two", "port": {"number": 80}}},
                "rules": [{"host": host, "http": {"paths": [
                    {"path": "/a", "pathType": "Prefix", "backend": {"service": {"name": "one", "port": {"number": 80}}}},
                    {"path": "/kept", "pathType": "Prefix", "backend": {"resource": {"kind": "Bucket", "apiGroup": "files.example", "name": "b"}}},
                ]}}],
            },
        }),
        Kind::HttpRoute => json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": INGRESS},
            "spec": {"hostnames": [host], "parentRefs": [{"name": "gw", "sectionName": "https"}], "rules": [
                {"matches": [{"path": {"value": "/a"}}], "backendRefs": [{"name": "one", "port": 80}]},
                {"matches": [{"path": {"value": "/kept"}}], "timeouts": {"request": "3s"}, "backendRefs": [
                    {"name": "one", "port": 80, "weight": 9}, {"name": "two", "port": 80, "weight": 1},
                ]},
            ]},
        }),
        Kind::VirtualService => json!({
            "apiVersion": "gateway.solo.io/v1", "kind": "VirtualService", "metadata": {"name": INGRESS},
            "spec": {"displayName": "by hand", "virtualHost": {
                "domains": [host], "options": {"cors": {"allowOrigin": ["*"]}}, "routes": [
                    {"matchers": [{"prefix": "/kept", "methods": ["GET"]}], "options": {"timeout": "3s"}, "redirectAction": {"hostRedirect": "x"}},
                    {"matchers": [{"prefix": "/a"}], "routeAction": {"single": {"upstream": {"name": "legacy"}}}},
                ],
            }},
        }),
    }
}

async fn made_by_hand(kind: Kind) {
    let place = Place::of(kind).await;
    let object = by_hand(kind, &place.host);
    let before = place
        .namespace
        .create(kind.resource(), &object)
        .await
        .unwrap();
    let rule = place.rule().await.unwrap();
    assert_eq!(rule.len(), 2);
    assert_eq!(rule[1], "/kept  opaque");
    assert_eq!(
        reason(place.upsert(vec![path("/kept", "", "two")]).await),
        Reason::Precondition
    );
    assert_eq!(
        reason(place.remove(by_path("/kept")).await),
        Reason::Precondition
    );

    place.upsert(vec![path("/b", "sim", "two")]).await.unwrap();
    place.remove(by_name("sim")).await.unwrap();
    let after = place.namespace.get(kind.resource(), INGRESS).await.unwrap();
    assert_ne!(
        after["metadata"]["resourceVersion"],
        before["metadata"]["resourceVersion"]
    );
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(place.objects().await.len(), 1);
}

#[tokio::test]
async fn an_ingress_made_by_hand_can_be_changed_and_keeps_the_rest() {
    made_by_hand(Kind::Ingress).await;
}

#[tokio::test]
async fn an_http_route_made_by_hand_can_be_changed_and_keeps_the_rest() {
    made_by_hand(Kind::HttpRoute).await;
}

#[tokio::test]
async fn a_virtual_service_made_by_hand_can_be_changed_and_keeps_the_rest() {
    made_by_hand(Kind::VirtualService).await;
}

#[tokio::test]
async fn an_http_route_made_by_hand_takes_sixteen_rules() {
    let place = Place::of(Kind::HttpRoute).await;
    let object = by_hand(Kind::HttpRoute, &place.host);
    place
        .namespace
        .create(Kind::HttpRoute.resource(), &object)
        .await
        .unwrap();
    let more = (0..14).map(|n| path(&format!("/{n}"), "", "one")).collect();
    assert_eq!(place.upsert(more).await.unwrap().len(), 16);
    let one = vec![path("/more", "", "one")];
    assert_eq!(reason(place.upsert(one).await), Reason::Precondition);
}

/// Path of each rule, over all HTTPRoutes.
async fn routed(place: &Place) -> Vec<String> {
    let mut all = Vec::new();
    for route in place.objects().await {
        let rules = route["spec"]["rules"].as_array().unwrap().clone();
        all.extend(rules.iter().map(|rule| {
            rule["matches"][0]["path"]["value"]
                .as_str()
                .unwrap()
                .to_owned()
        }));
    }
    all.sort();
    all
}

#[tokio::test]
async fn what_follows_from_a_leading_http_route_is_completed_by_the_next_writer_and_at_a_start() {
    let place = Place::of(Kind::HttpRoute).await;
    place.ingress(INGRESS, &[&place.host]).await.unwrap();
    let paths = (10..60)
        .map(|n| path(&format!("/{n}"), "", "one"))
        .collect();
    place.upsert(paths).await.unwrap();
    let all: Vec<String> = (10..60).map(|n| format!("/{n}")).collect();
    assert_eq!(routed(&place).await, all);
    let behind = || async {
        let routes = place.objects().await;
        let name = |route: &Value| route["metadata"]["name"].as_str().unwrap().to_owned();
        let mut names: Vec<String> = routes.iter().map(name).filter(|it| it != INGRESS).collect();
        names.sort();
        names
    };
    let names = behind().await;
    assert_eq!(names.len(), 3);

    // A writer that ended half-way, and somebody's hand.
    place
        .namespace
        .delete(Kind::HttpRoute.resource(), &names[0])
        .await;
    let edit = json!({"spec": {"rules": [], "hostnames": ["x.example"]}});
    place
        .namespace
        .merge(Kind::HttpRoute.resource(), &names[1], &edit)
        .await
        .unwrap();
    assert_ne!(routed(&place).await, all);
    place.server().await.complete().await.unwrap();
    assert_eq!(routed(&place).await, all);

    place
        .namespace
        .delete(Kind::HttpRoute.resource(), &names[2])
        .await;
    place.upsert(vec![path("/10", "", "two")]).await.unwrap();
    assert_eq!(routed(&place).await, all);

    // Without the leading one the rule is gone, and nothing of it is left once it begins anew.
    place
        .ingress("next", &[&format!("b.{}", place.host)])
        .await
        .unwrap();
    place
        .namespace
        .delete(Kind::HttpRoute.resource(), INGRESS)
        .await;
    assert_eq!(reason(place.rule().await), Reason::NotFound);
    place.server().await.complete().await.unwrap();
    assert_eq!(behind().await, ["next"]);
    assert_eq!(routed(&place).await, [] as [String; 0]);
}

#[tokio::test]
async fn a_kind_that_is_not_there_is_said_and_found_once_it_is() {
    // Without a definition, and with one that is removed while the server runs: a Kubernetes of its own.
    let rig = Rig::shared(kubernetes::Options {
        restarts: true,
        ..kubernetes::Options::default()
    });
    let _alone = rig.alone().await;
    let raw = rig.raw().await;
    let place = Place::on(rig, Kind::VirtualService).await;
    Kind::VirtualService.remove(&raw).await;
    let missing = Reason::IngressBackendMissing;
    assert_eq!(
        reason(place.ingress(INGRESS, &[&place.host]).await),
        missing
    );
    assert_eq!(reason(place.rule().await), missing);
    Kind::VirtualService.install(&raw).await;
    until("the kind is found", || async {
        place.ingress(INGRESS, &[&place.host]).await.ok()
    })
    .await;
    Kind::VirtualService.remove(&raw).await;
    assert_eq!(reason(place.get(INGRESS).await), missing);
    assert_eq!(reason(place.delete(INGRESS).await), missing);
    let paths = vec![path("/a", "", "one")];
    assert_eq!(reason(place.upsert(paths).await), missing);
    raw.call(Method::GET, "/readyz", None).await.unwrap();
}

#[tokio::test]
async fn a_caller_can_wait_for_a_service_and_stop_waiting() {
    for kind in [Kind::Ingress, Kind::HttpRoute, Kind::VirtualService] {
        let place = Place::of(kind).await;
        place.ingress(INGRESS, &[&place.host]).await.unwrap();
        let request = |service: &str| api::UpsertPathsRequest {
            wait: true,
            ..place.upsert_request(vec![path("/a", "", service)])
        };
        let waits = IngressRules::upsert(&place.server, request("late"));
        let makes = async {
            let never = IngressRules::upsert(&place.server, request("never"));
            let stopped = tokio::time::timeout(Duration::from_millis(200), never).await;
            assert!(stopped.is_err(), "{stopped:?}");
            place.service("late").await;
        };
        let (rule, ()) = tokio::join!(waits, makes);
        assert_eq!(shown(&rule.unwrap()), ["/a late late"]);
        assert_eq!(place.rule().await.unwrap(), ["/a late late"]);
    }
}
