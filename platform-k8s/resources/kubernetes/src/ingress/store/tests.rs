use std::time::Duration;

use drover_core::Reason;
use http::Method;
use serde_json::{Value, json};

use super::{
    super::{
        memory::Memory,
        rule::{Change, Key, Matching, Path, Port, ServicePort, Target},
        upstreams::Targets,
        writer::Writers,
    },
    *,
};

const HOST: &str = "a.example";

fn path(at: &str) -> Path {
    Path {
        key: Key {
            path: at.to_owned(),
            matching: Matching::Prefix,
        },
        name: None,
        target: Target::Service(ServicePort {
            name: "web".to_owned(),
            port: Port::Number(80),
        }),
        raw: None,
    }
}

fn put(range: std::ops::Range<usize>) -> Change {
    Change::Upsert(range.map(|n| path(&format!("/{n}"))).collect())
}

fn holder(objects: &Objects, kind: Kind, host: &str) -> HostObject {
    HostObject {
        objects: objects.clone(),
        kind,
        namespace: "n".to_owned(),
        ingress: "web".to_owned(),
        host: host.to_owned(),
    }
}

/// Makes a change, and fails the test if it takes for ever.
async fn change(object: HostObject, change: Change) -> Result<()> {
    let writers = Writers::default();
    let host = object.host.clone();
    let made = writers.change("it".to_owned(), object, &host, change);
    let made = tokio::time::timeout(Duration::from_secs(5), made).await;
    made.expect("an answer").map(drop)
}

/// The ingress `web` with one leading HTTPRoute, without paths.
fn leading(memory: &Memory) -> DynamicObject {
    let base = meta::part(&kube::core::ObjectMeta::default(), "web", "web".to_owned());
    let metadata = kube::core::ObjectMeta {
        namespace: Some("n".to_owned()),
        ..base
    };
    let parents = json!([{"namespace": "n", "name": "gw"}]);
    let object = route::leading(metadata, HOST, &parents, &Paths::new(), 1);
    memory.put(
        &Kind::HttpRoute.resource(),
        serde_json::to_value(object).unwrap(),
    )
}

fn route_of(name: &str, labels: Value, hosts: Value) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": "n", "labels": labels, "annotations": {INGRESS: "web"}},
        "spec": {"hostnames": hosts, "parentRefs": [{"name": "gw"}], "rules": []},
    })
}

#[tokio::test]
async fn a_repeated_write_is_done_only_once_all_routes_show_it() {
    let memory = Memory::default();
    let objects = memory.objects();
    leading(&memory);
    let follower = route::name_behind("web", HOST, 1);
    memory.fail(Method::POST, &follower);
    let write = || change(holder(&objects, Kind::HttpRoute, HOST), put(0..20));
    assert_eq!(write().await.unwrap_err().reason(), Reason::Unavailable);
    memory.fail(Method::POST, &follower);
    assert_eq!(write().await.unwrap_err().reason(), Reason::Unavailable);
    write().await.unwrap();
    let names = memory.names(&Kind::HttpRoute.resource());
    assert!(names.contains(&follower), "{names:?}");
}

#[tokio::test]
async fn an_object_with_several_hosts_is_not_changed() {
    let memory = Memory::default();
    let objects = memory.objects();
    let kind = Kind::HttpRoute;
    let both = json!([HOST, "b.example"]);
    memory.put(&kind.resource(), route_of("web", json!({}), both.clone()));
    let error = change(holder(&objects, kind, HOST), put(0..1))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition);
    assert_eq!(error.resource(), Some(("HTTPRoute", "web")));
    let message = error.message();
    assert!(
        message.contains(HOST) && message.contains("b.example"),
        "{error}"
    );

    let kind = Kind::VirtualService;
    for (domains, refused) in [
        (both, true),
        (json!([HOST, "*"]), true),
        (json!([HOST, "a.example:443"]), false),
    ] {
        let service = json!({
            "apiVersion": "gateway.solo.io/v1", "kind": "VirtualService",
            "metadata": {"name": "web", "namespace": "n"},
            "spec": {"virtualHost": {"domains": domains, "routes": []}},
        });
        memory.put(&kind.resource(), service);
        let outcome = change(holder(&objects, kind, HOST), put(0..1)).await;
        assert_eq!(outcome.is_err(), refused, "{domains}: {outcome:?}");
    }
}

#[tokio::test]
async fn what_is_in_the_way_of_a_new_host_is_named() {
    let host = "b.example";
    let name = route::name_for("web", host);
    let label = json!({INGRESS: "web"});
    for (labels, hosts) in [(label, json!(["c.example"])), (json!({}), json!([host]))] {
        let memory = Memory::default();
        let objects = memory.objects();
        leading(&memory);
        let kind = Kind::HttpRoute;
        memory.put(&kind.resource(), route_of(&name, labels, hosts));
        let error = change(holder(&objects, kind, host), put(0..1))
            .await
            .unwrap_err();
        assert_eq!(error.reason(), Reason::Precondition, "{error}");
        assert_eq!(error.resource(), Some(("HTTPRoute", name.as_str())));
    }
}

#[tokio::test]
async fn a_host_is_not_added_to_an_ingress_that_is_deleted_meanwhile() {
    for kind in [Kind::HttpRoute, Kind::VirtualService] {
        let memory = Memory::default();
        let objects = memory.objects();
        let first = match kind {
            Kind::HttpRoute => leading(&memory),
            _ => memory.put(&kind.resource(), service("web", HOST)),
        };
        let name = route::name_for("web", "b.example");
        memory.delete_during((Method::POST, &name), &kind.resource(), &first);
        let added = change(holder(&objects, kind, "b.example"), put(0..1)).await;
        assert_eq!(added.unwrap_err().reason(), Reason::NotFound);
        assert!(memory.names(&kind.resource()).is_empty(), "{kind:?}");
    }
}

fn service(name: &str, host: &str) -> Value {
    json!({
        "apiVersion": "gateway.solo.io/v1", "kind": "VirtualService",
        "metadata": {"name": name, "namespace": "n", "labels": {INGRESS: name}},
        "spec": {"virtualHost": {"domains": [host], "routes": []}},
    })
}

#[tokio::test]
async fn a_host_that_another_server_routes_meanwhile_is_not_added() {
    let kind = Kind::HttpRoute;
    let memory = Memory::default();
    let objects = memory.objects();
    leading(&memory);
    let name = route::name_for("web", "b.example");
    let mut theirs = route_of("theirs", json!({}), json!(["b.example"]));
    theirs["metadata"]["annotations"] = Value::Null;
    memory.put_during((Method::POST, &name), &kind.resource(), theirs);
    let added = change(holder(&objects, kind, "b.example"), put(0..1)).await;
    assert_eq!(added.unwrap_err().reason(), Reason::IngressHostTaken);
    assert_eq!(memory.names(&kind.resource()), ["theirs", "web"]);

    let kind = Kind::Ingress.resource();
    let ingress = |name: &str, host: &str| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {"name": name, "namespace": "n"}, "spec": {"rules": [{"host": host}]},
        })
    };
    memory.put(&kind, ingress("web", HOST));
    let theirs = ingress("theirs", "b.example");
    memory.put_during((Method::PATCH, "web"), &kind, theirs);
    let own = IngressObject {
        objects: objects.clone(),
        namespace: "n".to_owned(),
        name: "web".to_owned(),
    };
    let writers = Writers::default();
    let added = writers.change("key".to_owned(), own, "b.example", put(0..1));
    assert_eq!(added.await.unwrap_err().reason(), Reason::IngressHostTaken);
    let left = objects.get(&kind, "n", "web").await.unwrap().unwrap();
    let hosts: Vec<&str> = kubernetes::hosts(&left).collect();
    assert_eq!(hosts, [HOST]);
}

#[tokio::test]
async fn an_unreadable_object_does_not_keep_others_from_being_completed() {
    let memory = Memory::default();
    let objects = memory.objects();
    let kind = Kind::HttpRoute.resource();
    let follower = route::name_behind("web", HOST, 1);
    leading(&memory);
    memory.fail(Method::POST, &follower);
    change(holder(&objects, Kind::HttpRoute, HOST), put(0..20))
        .await
        .unwrap_err();
    let mut bad = route_of("bad", json!({INGRESS: "bad"}), json!(["bad.example"]));
    bad["metadata"]["annotations"] =
        json!({INGRESS: "bad", route::PATHS: r#"{"v":1,"n":1000000000000,"p":[]}"#});
    memory.put(&kind, bad);
    followers::complete_all(&objects, &objects.everywhere())
        .await
        .unwrap();
    assert!(memory.names(&kind).contains(&follower));
}

#[tokio::test]
async fn excluded_namespaces_are_neither_completed_nor_named() {
    let memory = Memory::default();
    let kind = Kind::HttpRoute;
    leading(&memory);
    let follower = route::name_behind("web", HOST, 1);
    memory.fail(Method::POST, &follower);
    let all = memory.objects();
    change(holder(&all, kind, HOST), put(0..20))
        .await
        .unwrap_err();
    let objects = all.clone().excluding(&[], &["n".to_owned()]);
    followers::complete_all(&objects, &objects.everywhere())
        .await
        .unwrap();
    assert!(!memory.names(&kind.resource()).contains(&follower));
    let free = |objects: Objects| async move {
        let hosts = [HOST].into();
        hosts::check_free(&objects, kind, "other", "new", &hosts).await
    };
    assert_eq!(
        free(all).await.unwrap_err().reason(),
        Reason::IngressHostTaken
    );
    free(objects.clone()).await.unwrap();
    for scope in [objects.everywhere(), objects.within("n")] {
        assert!(
            objects
                .list(&kind.resource(), &scope, "")
                .await
                .unwrap()
                .is_empty()
        );
    }
}

#[tokio::test]
async fn a_name_stays_one_segment_of_a_path() {
    let memory = Memory::default();
    let objects = memory.objects();
    let kind = Kind::Ingress.resource();
    let found = objects
        .get(&kind, "n/services", "x/status?a")
        .await
        .unwrap();
    assert_eq!(found, None);
    let calls = memory.calls();
    assert!(
        calls[0].ends_with("/namespaces/n%2Fservices/ingresses/x%2Fstatus%3Fa"),
        "{calls:?}"
    );
}

#[tokio::test]
async fn an_upstream_out_of_bounds_is_answered_as_if_it_were_missing() {
    let memory = Memory::default();
    let objects = memory.objects();
    let kind = upstreams::resource();
    let put = |namespace: &str, name: &str, spec: Value| {
        let metadata = json!({"name": name, "namespace": namespace});
        memory.put(&kind, json!({
            "apiVersion": "gloo.solo.io/v1", "kind": "Upstream", "metadata": metadata, "spec": spec,
        }));
    };
    let kube = |namespace: &str| json!({"kube": {"serviceName": "web", "serviceNamespace": namespace, "servicePort": 80}});
    let fixed = json!({"static": {"hosts": []}});
    put("n", "fixed", fixed.clone());
    put("n", "theirs", kube("other"));
    put("gloo", "ours", kube("n"));
    put("gloo", "theirs", kube("other"));
    put("other", "fixed", fixed);
    let allowed = ["gloo".to_owned()];
    let targets = Targets {
        objects: &objects,
        kind: Kind::VirtualService,
        namespace: "n",
        upstreams: &allowed,
    };
    for (namespace, name, found) in [
        ("n", "fixed", true),
        ("gloo", "ours", true),
        ("n", "theirs", false),
        ("gloo", "theirs", false),
        ("other", "fixed", false),
        ("n", "none", false),
    ] {
        let upstream = super::super::rule::Upstream {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            service: None,
        };
        let to = Path {
            target: Target::Upstream(upstream),
            ..path("/a")
        };
        let outcome = targets.find("paths", &[to]).await;
        assert_eq!(outcome.is_ok(), found, "{namespace}/{name}");
        if let Err(error) = outcome {
            assert_eq!(error.reason(), Reason::IngressUpstreamMissing);
            let missing = format!("there is no Upstream \"{namespace}/{name}\"");
            assert_eq!(error.message(), missing);
        }
    }
}

#[tokio::test]
async fn of_two_ingresses_that_want_one_host_at_once_one_gets_it() {
    let memory = Memory::default();
    let objects = memory.objects();
    let kind = Kind::Ingress.resource();
    for name in ["one", "two"] {
        memory.put(
            &kind,
            json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
                "metadata": {"name": name, "namespace": "n"}, "spec": {},
            }),
        );
    }
    let writers = Writers::default();
    let make = |name: &str| {
        let object = IngressObject {
            objects: objects.clone(),
            namespace: "n".to_owned(),
            name: name.to_owned(),
        };
        writers.change(name.to_owned(), object, HOST, put(0..1))
    };
    let (one, two) = tokio::join!(make("one"), make("two"));
    let refused: Vec<Reason> = [one, two]
        .into_iter()
        .filter_map(Result::err)
        .map(|it| it.reason())
        .collect();
    assert_eq!(refused, [Reason::IngressHostTaken]);
}

#[tokio::test]
async fn a_route_behind_that_claims_a_later_version_than_its_leading_one_is_overwritten() {
    let memory = Memory::default();
    let objects = memory.objects();
    leading(&memory);
    let write = |range| change(holder(&objects, Kind::HttpRoute, HOST), put(range));
    write(0..20).await.unwrap();
    let kind = Kind::HttpRoute.resource();
    let name = route::name_behind("web", HOST, 1);
    let shown = objects.get(&kind, "n", &name).await.unwrap().unwrap();
    let mut forged = shown.clone();
    let annotations = forged.metadata.annotations.as_mut().unwrap();
    annotations.insert(route::VERSION.to_owned(), "1000".to_owned());
    forged.data["spec"]["rules"] = json!([]);
    memory.put(&kind, serde_json::to_value(&forged).unwrap());
    write(19..20).await.unwrap();
    let now = objects.get(&kind, "n", &name).await.unwrap().unwrap();
    assert_eq!(now.data["spec"], shown.data["spec"]);
}
