use super::{
    super::rule::{Change, Port, Selected, apply},
    *,
};

fn service(routes: Value) -> DynamicObject {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "n", "resourceVersion": "7"},
        "spec": {"displayName": "web", "virtualHost": {"domains": ["a.example", "a.example:443"], "routes": routes}},
    }))
    .unwrap()
}

fn route(at: &str) -> Value {
    json!({
        "matchers": [{"prefix": at}],
        "routeAction": {"single": {"upstream": {"name": "n-web-80", "namespace": "gloo-system"}}},
    })
}

fn known() -> Known {
    let port = ServicePort {
        name: "web".to_owned(),
        port: Port::Number(80),
    };
    [(("gloo-system".to_owned(), "n-web-80".to_owned()), port)].into()
}

fn path(at: &str, name: Option<&str>) -> Path {
    Path {
        key: Key {
            path: at.to_owned(),
            matching: Matching::Regex,
        },
        name: name.map(str::to_owned),
        target: Target::Upstream(Upstream {
            namespace: "gloo-system".to_owned(),
            name: "n-web-80".to_owned(),
            service: None,
        }),
        raw: None,
    }
}

#[test]
fn a_route_with_one_matcher_and_one_upstream_is_a_path_and_any_other_is_opaque() {
    let with = |field: &str, value: Value| {
        let mut route = route("/x");
        route[field] = value;
        route
    };
    let header = json!([{"prefix": "/x", "headers": [{"name": "a"}]}]);
    for (route, opaque) in [
        (route("/x"), false),
        (with("name", json!("sim")), false),
        (with("matchers", json!([{"exact": "/x"}])), false),
        (with("matchers", json!([{"regex": "/x"}])), false),
        (with("matchers", header), true),
        (
            with("matchers", json!([{"prefix": "/x"}, {"prefix": "/y"}])),
            true,
        ),
        (
            with("matchers", json!([{"prefix": "/x", "methods": ["GET"]}])),
            true,
        ),
        (with("options", json!({"timeout": "1s"})), true),
        (
            with("routeAction", json!({"multi": {"destinations": []}})),
            true,
        ),
        (
            with(
                "routeAction",
                json!({"single": {"upstream": {"name": "u"}, "subset": {}}}),
            ),
            true,
        ),
        (with("redirectAction", json!({})), true),
    ] {
        let rules = rules(&service(json!([route])), &known());
        let path = &rules["a.example"].answer("a.example").paths[0];
        assert_eq!((path.path.as_str(), path.opaque), ("/x", opaque), "{route}");
    }
}

#[test]
fn an_upstream_that_stands_for_a_service_is_shown_as_that_service() {
    use api::ingress_path::Target as To;
    let mut other = route("/b");
    other["routeAction"]["single"]["upstream"] = json!({"name": "legacy"});
    let object = service(json!([route("/a"), other]));
    let paths = rules(&object, &known())["a.example"]
        .answer("a.example")
        .paths;
    let Some(To::Service(found)) = &paths[0].target else {
        panic!("{paths:?}");
    };
    assert_eq!(
        (found.name.as_str(), paths[0].name.as_str()),
        ("web", "web")
    );
    let legacy = api::UpstreamTarget {
        name: "legacy".to_owned(),
        namespace: "n".to_owned(),
    };
    assert_eq!(paths[1].target, Some(To::Upstream(legacy)));
}

#[test]
fn the_name_of_a_route_survives_a_write() {
    let mut named = route("/a");
    named["name"] = json!("sim-1");
    let object = service(json!([named]));
    let mut after = rules(&object, &known());
    let change = Change::Upsert(vec![path("/b.*", Some("sim-2"))]);
    apply(&mut after, "a.example", &change).unwrap();
    let patch = patch(&object, &after["a.example"]);
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    let routes = patch["spec"]["virtualHost"]["routes"].as_array().unwrap();
    let names: Vec<&str> = routes
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    // The regular expression comes first: the prefix would take its requests.
    assert_eq!(names, ["sim-2", "sim-1"]);
    assert_eq!(routes[1], named);
}

#[test]
fn the_last_route_can_be_removed() {
    let object = service(json!([route("/a")]));
    let mut after = rules(&object, &known());
    let gone = Selected::Service {
        name: "web".to_owned(),
        ports: vec![Port::Number(80)],
    };
    apply(&mut after, "a.example", &Change::Remove(vec![gone])).unwrap();
    let patch = patch(&object, &after["a.example"]);
    assert_eq!(patch["spec"], json!({"virtualHost": {"routes": []}}));
}

#[test]
fn every_domain_of_a_virtual_service_is_a_host_and_a_star_is_every_host() {
    assert_eq!(hosts(&service(json!([]))), ["a.example", "a.example:443"]);
    let made = object(ObjectMeta::default(), "", &Paths::new(), None);
    assert_eq!(made.data["spec"]["virtualHost"]["domains"], json!(["*"]));
    assert_eq!(hosts(&made), [""]);
}

#[test]
fn a_certificate_is_read_as_it_was_written() {
    let wanted = api::IngressTls {
        hosts: vec!["a.example".to_owned()],
        secret: "cert".to_owned(),
    };
    let metadata = ObjectMeta {
        namespace: Some("n".to_owned()),
        ..ObjectMeta::default()
    };
    let made = object(metadata, "a.example", &Paths::new(), Some(&wanted));
    let secret = &made.data["spec"]["sslConfig"]["secretRef"];
    assert_eq!(*secret, json!({"name": "cert", "namespace": "n"}));
    assert_eq!(tls(&made), Some(wanted));
}
