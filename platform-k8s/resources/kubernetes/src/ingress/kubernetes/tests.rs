use super::{
    super::rule::{Change, Selected, apply},
    *,
};

fn ingress(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

fn path(at: &str, name: Option<&str>) -> Path {
    Path {
        key: Key {
            path: at.to_owned(),
            matching: Matching::Prefix,
        },
        name: name.map(str::to_owned),
        target: Target::Service(ServicePort {
            name: "web".to_owned(),
            port: Port::Number(80),
        }),
        raw: None,
    }
}

/// The object after a merge patch.
fn patched(object: &DynamicObject, patch: &Value) -> DynamicObject {
    let mut value = serde_json::to_value(object).unwrap();
    merged(&mut value, patch);
    ingress(value)
}

fn merged(value: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    for (key, patch) in fields {
        if patch.is_null() {
            value.as_object_mut().unwrap().remove(key);
        } else {
            merged(&mut value[key], patch);
        }
    }
}

fn changed(object: &DynamicObject, host: &str, change: &Change) -> DynamicObject {
    let before = rules(object);
    let mut after = before.clone();
    apply(&mut after, host, change).unwrap();
    patched(object, &patch(object, &before, &after))
}

fn by_hand() -> DynamicObject {
    ingress(json!({
        "metadata": {"name": "web", "namespace": "n", "resourceVersion": "7"},
        "spec": {
            "defaultBackend": {"service": {"name": "front", "port": {"number": 80}}},
            "rules": [
                {"host": "a.example", "comment": "of a later version", "http": {
                    "later": true,
                    "paths": [
                        {"path": "/api", "pathType": "Prefix", "backend": {"service": {"name": "api", "port": {"name": "http"}}}},
                        {"path": "/files", "pathType": "Exact", "backend": {"resource": {"kind": "Bucket", "name": "files"}}},
                        {"path": "/new", "pathType": "Prefix", "weight": 7, "backend": {"service": {"name": "new", "port": {"number": 80}}}},
                        {"pathType": "ImplementationSpecific", "backend": {"service": {"name": "all", "port": {"number": 80}}}},
                    ],
                }},
                {"http": {"paths": []}},
            ],
        },
    }))
}

#[test]
fn an_ingress_made_by_hand_is_read_and_what_the_message_cannot_say_is_opaque() {
    let rules = rules(&by_hand());
    assert_eq!(rules.keys().collect::<Vec<_>>(), ["", "a.example"]);
    let paths = rules["a.example"].answer("a.example").paths;
    let shown: Vec<(&str, &str, bool)> = paths
        .iter()
        .map(|path| (path.path.as_str(), path.name.as_str(), path.opaque))
        .collect();
    assert_eq!(
        shown,
        [
            ("", "all", false),
            ("/api", "api", false),
            ("/files", "", true),
            ("/new", "", true),
        ]
    );
    assert_eq!(paths[0].r#type(), api::PathType::ImplementationSpecific);
}

#[test]
fn a_write_keeps_every_field_that_it_does_not_know() {
    let object = by_hand();
    let after = changed(
        &object,
        "a.example",
        &Change::Upsert(vec![path("/b", None)]),
    );
    let (mut old, mut new) = (object.data.clone(), after.data.clone());
    let paths = new["spec"]["rules"][0]["http"]["paths"]
        .as_array_mut()
        .unwrap();
    let added = paths.iter().position(|path| path["path"] == "/b").unwrap();
    paths.remove(added);
    assert_eq!(new, old);
    old["spec"]["rules"].take();
    assert_ne!(new, old);
}

#[test]
fn names_stand_in_an_annotation_and_go_with_their_paths() {
    let named = changed(
        &by_hand(),
        "a.example",
        &Change::Upsert(vec![path("/b", Some("sim-1"))]),
    );
    let annotations = named.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations[NAMES], r#"{"a.example":{"Prefix /b":"sim-1"}}"#);
    let gone = Change::Remove(vec![Selected::Name("sim-1".to_owned())]);
    let unnamed = changed(&named, "a.example", &gone);
    assert_eq!(
        unnamed.metadata.annotations.unwrap_or_default().get(NAMES),
        None
    );
    assert_eq!(unnamed.data, by_hand().data);
}

#[test]
fn the_last_path_leaves_a_rule_that_kubernetes_accepts() {
    let object = ingress(json!({
        "metadata": {"name": "web"},
        "spec": {"rules": [{"host": "a.example", "http": {"paths": [
            {"path": "/a", "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}},
        ]}}]},
    }));
    let after = changed(
        &object,
        "a.example",
        &Change::Remove(vec![Selected::Match(path("/a", None).key)]),
    );
    // Paths that are empty would be refused.
    assert_eq!(after.data["spec"]["rules"], json!([{"host": "a.example"}]));
    let again = changed(&after, "a.example", &Change::Upsert(vec![path("/a", None)]));
    assert_eq!(again.data, object.data);
}

#[test]
fn rules_of_the_same_host_are_one() {
    let rule = |at: &str| {
        json!({"host": "a.example", "http": {"paths": [
            {"path": at, "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}},
        ]}})
    };
    let other = json!({"host": "b.example"});
    let object = ingress(json!({
        "metadata": {"name": "web"},
        "spec": {"rules": [rule("/1"), other, rule("/2")]},
    }));
    assert_eq!(rules(&object)["a.example"].entries.len(), 2);
    let after = changed(
        &object,
        "a.example",
        &Change::Upsert(vec![path("/3", None)]),
    );
    let raw = after.data["spec"]["rules"].as_array().unwrap();
    assert_eq!(raw.len(), 2);
    assert_eq!(raw[1], other);
    assert_eq!(rules(&after)["a.example"].entries.len(), 3);
}

#[test]
fn a_write_is_bound_to_the_version_that_was_read() {
    let object = by_hand();
    let before = rules(&object);
    let patch = patch(&object, &before, &before);
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
}

#[test]
fn a_new_ingress_has_what_was_asked_for() {
    let mut wanted = Rules::new();
    let paths = vec![path("/a", Some("sim"))];
    apply(&mut wanted, "a.example", &Change::Upsert(paths)).unwrap();
    wanted.insert("b.example".to_owned(), Paths::new());
    let tls = api::IngressTls {
        hosts: vec!["a.example".to_owned()],
        secret: "cert".to_owned(),
    };
    let made = object(
        ObjectMeta::default(),
        &wanted,
        std::slice::from_ref(&tls),
        "nginx",
    )
    .unwrap();
    let read = rules(&made);
    for (host, paths) in &wanted {
        assert_eq!(read[host].answer(host), paths.answer(host));
    }
    let about = about(&made);
    assert_eq!((about.tls, about.class_name.as_str()), (vec![tls], "nginx"));
}
