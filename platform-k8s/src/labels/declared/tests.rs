use serde_json::json;

use super::*;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()))
        .collect()
}

fn keys(keys: &[&str]) -> BTreeSet<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

fn applied(declared: &[(&str, &str)], allowed: &[&str], metadata: Value) -> Value {
    let declared = labels(declared);
    let allowed: Vec<String> = allowed.iter().map(|key| (*key).to_owned()).collect();
    let plain = Plain::of(declared.keys(), &allowed);
    let Value::Object(mut metadata) = metadata else {
        unreachable!()
    };
    let labels = declared;
    Declared { labels, plain }.apply(&mut metadata);
    Value::Object(metadata)
}

#[test]
fn every_key_has_a_name_of_ours_and_comes_back() {
    let long = format!("{}Z", "a".repeat(62));
    let kept = "a".repeat(57);
    for (key, expected) in [
        ("team", "drover.dev/label.team".to_owned()),
        ("TEAM_a.b", "drover.dev/label.TEAM_a.b".to_owned()),
        (&kept, format!("drover.dev/label.{kept}")),
        (&long, format!("label.drover.dev/{long}")),
        (
            "example.com/team",
            "example.com.label.drover.dev/team".to_owned(),
        ),
        (
            "app.kubernetes.io/name",
            "app.kubernetes.io.label.drover.dev/name".to_owned(),
        ),
        (
            "a.label.drover.dev/b",
            "a.label.drover.dev.label.drover.dev/b".to_owned(),
        ),
    ] {
        assert_eq!(name(key).as_deref(), Some(&*expected));
        assert!(is_key(&expected) && is_ours(&expected), "{expected}");
        assert_eq!(self::key(&expected).as_deref(), Some(key));
        assert!(!is_reserved(&expected), "{expected}");
    }
    let domain = "a.".repeat(118) + "a";
    for wrong in ["", "-x", "ü", "team.", "a/b/c", &format!("{domain}/x")] {
        assert_eq!(name(wrong), None, "{wrong}");
    }
    for foreign in ["team", "drover.dev/cluster", "xlabel.drover.dev/a", "a/b"] {
        assert_eq!(self::key(foreign), None, "{foreign}");
    }
}

#[test]
fn what_means_something_to_kubernetes_is_never_allowed() {
    let ours = LabelKeys::default();
    for key in [
        "app.kubernetes.io/name",
        "kubernetes.io/hostname",
        "pod-security.kubernetes.io/enforce",
        "topology.ebs.csi.aws.k8s.io/zone",
        "k8s.io/x",
        "drover.dev/role",
        "example.com.label.drover.dev/team",
        "label.drover.dev/team",
        "App.Kubernetes.io/name",
        "kubernetes.io./name",
        "kubernetes.io/",
    ] {
        assert!(refusal(key, &ours).is_some(), "{key}");
        let allowed = [key.to_owned()];
        let plain = Plain::of(&allowed, &allowed);
        assert!(!plain.has(key) || !is_key(key), "{key}");
    }
    for key in ["team", "notkubernetes.io/a", "kubernetes.io.example.com/a"] {
        assert_eq!(refusal(key, &ours), None, "{key}");
    }
    assert!(
        refusal(
            "x/y",
            &LabelKeys {
                node: "x/y".into(),
                ..ours
            }
        )
        .is_some()
    );
}

#[test]
fn an_object_has_them_under_names_of_ours() {
    let it = applied(
        &[
            ("app.kubernetes.io/name", "drover-orchestrator"),
            ("app", "door"),
        ],
        &[],
        json!({"labels": {"app.kubernetes.io/name": "redis"}}),
    );
    assert_eq!(
        it["labels"],
        json!({
            "app.kubernetes.io/name": "redis",
            "app.kubernetes.io.label.drover.dev/name": "drover-orchestrator",
            "drover.dev/label.app": "door",
        })
    );
    assert!(it["annotations"].get(PLAIN).is_none());
}

#[test]
fn what_is_allowed_has_its_own_name_unless_the_template_has_it() {
    let allowed = ["team", "app", "app.kubernetes.io/name"];
    let declared = [
        ("team", "a"),
        ("app", "door"),
        ("app.kubernetes.io/name", "x"),
    ];
    let it = applied(&declared, &allowed, json!({"labels": {"app": "own"}}));
    assert_eq!(
        it["labels"],
        json!({
            "app": "own",
            "drover.dev/label.app": "door",
            "team": "a",
            "app.kubernetes.io.label.drover.dev/name": "x",
        })
    );
    assert_eq!(it["annotations"][PLAIN], "[\"team\"]");
    let plain = Plain::of(
        &labels(&declared).into_keys().collect::<Vec<_>>(),
        &["team".into()],
    );
    assert!(plain.without(&keys(&["team"])).is_empty());
}

#[test]
fn a_change_touches_no_label_that_is_not_recorded() {
    let plain = Plain(keys(&["team", "app"]));
    let has = labels(&[("team", "a"), ("app", "own"), ("old", "x"), ("tier", "1")]);
    let wanted = [
        ("team", Some("b")),
        ("app", Some("door")),
        ("old", None),
        ("tier", Some("2")),
    ];
    let (changes, recorded) = Declared::changes(&plain, wanted, &has, &keys(&["team", "tier"]));
    let set = |text: &str| Some(text.to_owned());
    let expected: BTreeMap<String, Option<String>> = [
        ("team", set("b")),
        ("drover.dev/label.team", None),
        ("drover.dev/label.app", set("door")),
        ("drover.dev/label.old", None),
        // It was allowed when it was set, but is not any more.
        ("tier", None),
        ("drover.dev/label.tier", set("2")),
    ]
    .map(|(key, text)| (key.to_owned(), text))
    .into();
    assert_eq!(changes, expected);
    assert_eq!(recorded, keys(&["team"]));
    assert_eq!(super::recorded(&labels(&[(PLAIN, "no json")])), keys(&[]));
}

#[test]
fn labels_of_what_says_nothing_of_itself_are_shown_as_they_were_declared() {
    let has = labels(&[
        ("drover.dev/cluster", "c"),
        ("drover.dev/label.team", "a"),
        ("example.com.label.drover.dev/tier", "hot"),
        ("team", "somebody else's"),
        ("app", "x"),
    ]);
    let expected = labels(&[("team", "a"), ("example.com/tier", "hot"), ("app", "x")]);
    assert_eq!(shown(&has, &LabelKeys::default(), 64), expected);
    assert_eq!(shown(&has, &LabelKeys::default(), 2).len(), 2);
}
