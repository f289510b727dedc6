use super::{
    super::rule::{Change, Selected, apply},
    *,
};

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

fn key(at: &str) -> Key {
    Key {
        path: at.to_owned(),
        matching: Matching::Prefix,
    }
}

fn path(at: &str, name: Option<&str>) -> Path {
    Path {
        key: key(at),
        name: name.map(str::to_owned),
        target: Target::Service(ServicePort {
            name: "web".to_owned(),
            port: Port::Number(80),
        }),
        raw: None,
    }
}

fn paths(range: std::ops::Range<usize>) -> Vec<Path> {
    range.map(|n| path(&format!("/{n:04}"), None)).collect()
}

fn by_hand(rules: Value) -> DynamicObject {
    object(json!({
        "metadata": {"name": "web", "namespace": "n", "resourceVersion": "7"},
        "spec": {"hostnames": ["a.example"], "parentRefs": [{"name": "gw"}], "rules": rules},
    }))
}

fn rule(at: &str) -> Value {
    // As the API server shows it, with its defaults.
    json!({
        "matches": [{"path": {"type": "PathPrefix", "value": at}}],
        "backendRefs": [{"group": "", "kind": "Service", "name": "web", "port": 80, "weight": 1}],
    })
}

fn ours(held: &Paths) -> DynamicObject {
    let base = ObjectMeta {
        namespace: Some("n".to_owned()),
        uid: Some("u".to_owned()),
        ..ObjectMeta::default()
    };
    let mut metadata = meta::part(&base, "web", "web".to_owned());
    metadata.uid = base.uid;
    leading(
        metadata,
        "a.example",
        &json!([{"namespace": "n", "name": "gw"}]),
        held,
        1,
    )
}

#[test]
fn a_rule_with_one_match_and_one_backend_is_a_path_and_any_other_is_opaque() {
    let with = |field: &str, value: Value| {
        let mut rule = rule("/x");
        rule[field] = value;
        rule
    };
    let header = json!([{"path": {"type": "PathPrefix", "value": "/x"}, "headers": [{"name": "a", "value": "b"}]}]);
    let two = json!([{"name": "web", "port": 80}, {"name": "next", "port": 80}]);
    let elsewhere = json!([{"name": "web", "port": 80, "namespace": "other"}]);
    let half = json!([{"name": "web", "port": 80, "weight": 0}]);
    let either = json!([{"path": {"value": "/x"}}, {"path": {"value": "/y"}}]);
    for (rule, opaque) in [
        (rule("/x"), false),
        (with("name", json!("sim")), false),
        (with("matches", header), true),
        (with("matches", either), true),
        (with("backendRefs", two), true),
        (with("backendRefs", elsewhere), true),
        (with("backendRefs", half), true),
        (with("backendRefs", json!([])), true),
        (with("filters", json!([{"type": "RequestMirror"}])), true),
        (with("timeouts", json!({"request": "1s"})), true),
        (with("later", json!(1)), true),
    ] {
        let rules = rules(&by_hand(json!([rule]))).unwrap();
        let path = &rules["a.example"].answer("a.example").paths[0];
        assert_eq!((path.path.as_str(), path.opaque), ("/x", opaque), "{rule}");
    }
}

#[test]
fn a_route_of_others_is_changed_in_place_and_keeps_what_it_says_besides() {
    let mirrored =
        json!({"matches": [{"path": {"value": "/m"}}], "filters": [{"type": "RequestMirror"}]});
    let object = by_hand(json!([mirrored, rule("/a")]));
    let mut after = rules(&object).unwrap();
    apply(
        &mut after,
        "a.example",
        &Change::Upsert(vec![path("/b", Some("sim"))]),
    )
    .unwrap();
    let patch = patch(&object, &after["a.example"]).unwrap();
    assert_eq!(patch["metadata"], json!({"resourceVersion": "7"}));
    let raw = patch["spec"]["rules"].as_array().unwrap();
    assert_eq!(raw.len(), 3);
    assert!(
        raw.contains(&mirrored) && raw.contains(&rule("/a")),
        "{raw:?}"
    );
}

#[test]
fn the_truth_holds_a_thousand_paths_with_sixteen_in_each_route() {
    let truth = Truth::default().next(&Paths::of(paths(0..1000), Holder::Any));
    assert_eq!((truth.needed(), truth.routes), (63, 63));
    let mut shown = BTreeSet::new();
    for number in 0..63 {
        let rules = truth.shown(number);
        assert!(rules.len() <= 16);
        for rule in rules {
            shown.insert(
                rule["matches"][0]["path"]["value"]
                    .as_str()
                    .unwrap()
                    .to_owned(),
            );
        }
    }
    assert_eq!(shown.len(), 1000);
    // What the API server takes as annotations of one object.
    assert!(truth.annotation().len() < 256 * 1024);
}

#[test]
fn a_change_touches_the_route_that_shows_the_path_and_no_other() {
    let mut rules: Rules = [(
        "a.example".to_owned(),
        Paths::of(paths(0..100), Holder::Any),
    )]
    .into();
    let before = Truth::default().next(&rules["a.example"]);
    let change = Change::Remove(vec![Selected::Match(key("/0020"))]);
    apply(&mut rules, "a.example", &change).unwrap();
    apply(&mut rules, "a.example", &Change::Upsert(paths(500..501))).unwrap();
    let after = before.next(&rules["a.example"]);
    let differ = (0..before.routes).filter(|n| before.shown(*n) != after.shown(*n));
    assert_eq!(differ.collect::<Vec<_>>(), [1]);
    assert_eq!(after.version, before.version + 1);
    assert_eq!(after.routes, before.routes);
}

#[test]
fn what_stands_in_the_annotation_counts_and_not_what_somebody_made_of_the_rules() {
    let held = Paths::of(paths(0..20), Holder::Any);
    let mut object = ours(&held);
    object.data["spec"]["rules"] = json!([rule("/by-hand")]);
    assert_eq!(rules(&object).unwrap()["a.example"], held);
    let patch = patch(&object, &held).unwrap();
    assert_eq!(patch["spec"]["rules"].as_array().unwrap().len(), 16);
}

#[test]
fn an_annotation_that_nobody_can_read_is_an_error_that_names_the_object() {
    let mut object = ours(&Paths::new());
    let annotations = object.metadata.annotations.as_mut().unwrap();
    annotations.insert(PATHS.to_owned(), "{".to_owned());
    let error = rules(&object).unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition);
    assert_eq!(error.resource(), Some(("HTTPRoute", "web")));
}

#[test]
fn a_route_behind_is_overwritten_unless_it_shows_a_later_truth() {
    let leading = ours(&Paths::of(paths(0..20), Holder::Any));
    let truth = Truth::of(&leading).unwrap().unwrap();
    let wanted = behind(&leading, &truth, 1);
    let mut shown = wanted.clone();
    shown.data["spec"]["rules"] = (16..20).map(|n| rule(&format!("/{n:04}"))).collect();
    assert_eq!(shows(&shown, &wanted, &truth), Shows::This);
    let mut edited = shown.clone();
    edited.data["spec"]["rules"][0] = rule("/by-hand");
    assert_eq!(shows(&edited, &wanted, &truth), Shows::Otherwise);
    let version = |object: &mut DynamicObject, version: &str| {
        let annotations = object.metadata.annotations.as_mut().unwrap();
        annotations.insert(VERSION.to_owned(), version.to_owned());
    };
    version(&mut edited, "2");
    assert_eq!(shows(&edited, &wanted, &truth), Shows::Later(2));
    // Later, but behind a leading one that is gone.
    edited.metadata.owner_references.as_mut().unwrap()[0].uid = "earlier".to_owned();
    assert_eq!(shows(&edited, &wanted, &truth), Shows::Otherwise);
}

#[test]
fn a_host_without_paths_has_a_route_without_rules() {
    let object = ours(&Paths::new());
    assert_eq!(object.data["spec"]["rules"], json!([]));
    assert_eq!(rules(&object).unwrap()["a.example"].entries, []);
}

#[test]
fn the_parent_is_named_by_namespace_and_name() {
    assert_eq!(
        parent("n/gw"),
        Some(json!([{"namespace": "n", "name": "gw"}]))
    );
    for wrong in ["", "gw", "/gw", "n/", "n/gw/x"] {
        assert_eq!(parent(wrong), None, "{wrong:?}");
    }
    let parents = parents(&by_hand(json!([])));
    assert_eq!(parents[0].0, "n/gw");
}

#[test]
fn an_annotation_out_of_bounds_cannot_be_read() {
    let of = |text: &str| {
        let mut object = ours(&Paths::new());
        let annotations = object.metadata.annotations.as_mut().unwrap();
        annotations.insert(PATHS.to_owned(), text.to_owned());
        Truth::of(&object)
    };
    let path =
        |route: &str| format!(r#"{{"v":1,"n":2,"p":[[{route},"/","Prefix","web",80,null]]}}"#);
    for text in [
        r#"{"v":1,"n":1000000000000,"p":[]}"#,
        r#"{"v":1,"n":1002,"p":[]}"#,
        r#"{"v":18446744073709551615,"n":1,"p":[]}"#,
        &path("2"),
        &path("18446744073709551615"),
    ] {
        assert_eq!(
            of(text).unwrap_err().reason(),
            Reason::Precondition,
            "{text}"
        );
    }
    of(r#"{"v":1,"n":1001,"p":[]}"#).unwrap();
    of(&path("1")).unwrap();
}

#[test]
fn routes_are_counted_by_names_that_a_server_could_have_given() {
    let named = |name: &str| object(json!({"metadata": {"name": name}, "spec": {}}));
    let behind = [
        named("web-1a2b-3"),
        named("web-1a2b-1000000000000"),
        named("web"),
    ];
    assert_eq!(count(behind.iter()), 3);
}
