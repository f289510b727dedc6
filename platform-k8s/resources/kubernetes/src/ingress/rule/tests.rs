use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn key(path: &str) -> Key {
    Key {
        path: path.to_owned(),
        matching: Matching::Prefix,
    }
}

fn path(at: &str, name: &str, service: &str) -> Path {
    Path {
        key: key(at),
        name: (!name.is_empty()).then(|| name.to_owned()),
        target: Target::Service(ServicePort {
            name: service.to_owned(),
            port: Port::Number(80),
        }),
        raw: None,
    }
}

fn opaque(at: &str, name: &str) -> Path {
    Path {
        target: Target::Opaque,
        ..path(at, name, "")
    }
}

fn host(paths: Vec<Path>) -> Rules {
    [("a.example".to_owned(), Paths::of(paths, Holder::Any))].into()
}

fn upsert(rules: &mut Rules, paths: Vec<Path>) -> Result<api::IngressRule> {
    apply(rules, "a.example", &Change::Upsert(paths))
}

fn remove(rules: &mut Rules, selected: Selected) -> Result<api::IngressRule> {
    apply(rules, "a.example", &Change::Remove(vec![selected]))
}

/// Path, name and service of each path of an answer.
fn shown(rule: &api::IngressRule) -> Vec<String> {
    let one = |path: &api::IngressPath| {
        let service = match &path.target {
            Some(api::ingress_path::Target::Service(service)) => &service.name,
            Some(api::ingress_path::Target::Upstream(_)) | None => "",
        };
        format!("{} {} {service}", path.path, path.name)
    };
    rule.paths.iter().map(one).collect()
}

#[test]
fn an_upsert_adds_replaces_and_leaves_what_others_wrote() {
    let mut rules = host(vec![
        path("/old", "old", "one"),
        path("/kept", "kept", "one"),
    ]);
    let rule = upsert(
        &mut rules,
        vec![path("/old", "old", "two"), path("/new", "new", "two")],
    )
    .unwrap();
    assert_eq!(
        shown(&rule),
        ["/kept kept one", "/new new two", "/old old two"]
    );
}

#[test]
fn a_name_that_stands_under_another_path_moves_it() {
    let mut rules = host(vec![path("/a", "sim", "one"), path("/b", "", "two")]);
    let rule = upsert(&mut rules, vec![path("/c", "sim", "one")]).unwrap();
    assert_eq!(shown(&rule), ["/b two two", "/c sim one"]);
}

#[test]
fn a_name_that_nobody_wrote_moves_no_path() {
    let mut rules = host(vec![path("/b", "", "two")]);
    let rule = upsert(&mut rules, vec![path("/d", "two", "two")]).unwrap();
    assert_eq!(shown(&rule), ["/b  two", "/d two two"]);
}

#[test]
fn the_service_names_a_path_only_while_no_other_path_has_that_name() {
    let rules = host(vec![path("/a", "", "web"), path("/b", "", "web")]);
    let rule = rules["a.example"].answer("a.example");
    assert_eq!(shown(&rule), ["/a  web", "/b  web"]);
    let rules = host(vec![path("/a", "", "web"), path("/b", "web", "other")]);
    let rule = rules["a.example"].answer("a.example");
    assert_eq!(shown(&rule), ["/a  web", "/b web other"]);
}

#[test]
fn paths_are_removed_by_key_by_name_and_by_where_they_lead() {
    let all = || {
        host(vec![
            path("/a", "x", "one"),
            path("/b", "y", "one"),
            path("/c", "z", "two"),
        ])
    };
    let service = Selected::Service {
        name: "one".to_owned(),
        ports: vec![Port::Number(80)],
    };
    for (selected, left) in [
        (Selected::Match(key("/a")), vec!["/b", "/c"]),
        (Selected::Name("y".to_owned()), vec!["/a", "/c"]),
        (service, vec!["/c"]),
        (Selected::Match(key("/none")), vec!["/a", "/b", "/c"]),
    ] {
        let rule = remove(&mut all(), selected.clone()).unwrap();
        let paths: Vec<&str> = rule.paths.iter().map(|path| path.path.as_str()).collect();
        assert_eq!(paths, left, "{selected:?}");
    }
}

#[test]
fn a_rule_survives_the_removal_of_its_last_path() {
    let mut rules = host(vec![path("/a", "", "one")]);
    let rule = remove(&mut rules, Selected::Match(key("/a"))).unwrap();
    assert_eq!(rule.paths, []);
    assert!(rules.contains_key("a.example"));
    // And once more: what is not there is no error.
    remove(&mut rules, Selected::Match(key("/a"))).unwrap();
}

#[test]
fn nothing_touches_an_opaque_route_and_the_error_names_it() {
    let changes = [
        Change::Upsert(vec![path("/free", "", "one"), path("/canary", "", "one")]),
        Change::Upsert(vec![path("/free", "split", "one")]),
        Change::Remove(vec![Selected::Match(key("/canary"))]),
        Change::Remove(vec![Selected::Name("split".to_owned())]),
    ];
    for change in changes {
        let mut rules = host(vec![opaque("/canary", "split")]);
        let before = rules.clone();
        let error = apply(&mut rules, "a.example", &change).unwrap_err();
        assert_eq!(error.reason(), Reason::Precondition, "{change:?}");
        assert!(error.message().contains("/canary"), "{error}");
        assert_eq!(rules, before, "a call is done whole or not at all");
    }
}

#[test]
fn a_host_takes_a_thousand_paths_and_no_more() {
    let paths = |from: usize, to: usize| -> Vec<Path> {
        (from..to)
            .map(|n| path(&format!("/{n}"), "", "one"))
            .collect()
    };
    let mut rules = Rules::new();
    upsert(&mut rules, paths(0, MAX_PATHS)).unwrap();
    let before = rules.clone();
    let error = upsert(&mut rules, paths(MAX_PATHS, MAX_PATHS + 1)).unwrap_err();
    assert_eq!(error.fields()[0].field, "paths");
    assert_eq!(rules, before);
    upsert(&mut rules, vec![path("/0", "", "two")]).unwrap();
}

#[test]
fn a_route_of_others_takes_sixteen() {
    let paths = (0..16).map(|n| path(&format!("/{n}"), "", "one"));
    let mut rules = host(paths.collect());
    rules.get_mut("a.example").unwrap().holder = Holder::ForeignRoute;
    let error = upsert(&mut rules, vec![path("/more", "", "one")]).unwrap_err();
    assert_eq!(error.reason(), Reason::Precondition);
    upsert(&mut rules, vec![path("/3", "", "two")]).unwrap();
}

#[test]
fn a_path_that_did_not_change_keeps_its_raw_form() {
    let raw = serde_json::json!({"as": "written"});
    let mut old = path("/a", "x", "one");
    old.raw = Some(raw.clone());
    let mut rules = host(vec![old]);
    upsert(
        &mut rules,
        vec![path("/a", "x", "one"), path("/b", "", "one")],
    )
    .unwrap();
    let entries = &rules["a.example"].entries;
    assert_eq!(
        entries.iter().find(|it| it.key.path == "/a").unwrap().raw,
        Some(raw)
    );
}

#[test]
fn a_proxy_that_takes_the_first_match_finds_the_most_specific_one() {
    let mut rules = host(vec![path("/", "", "all")]);
    let mut exact = path("/a", "", "exact");
    exact.key.matching = Matching::Exact;
    upsert(
        &mut rules,
        vec![path("/a", "", "one"), path("/a/b", "", "two"), exact],
    )
    .unwrap();
    let order = rules["a.example"].entries.iter();
    let order: Vec<(&str, Matching)> = order
        .map(|it| (it.key.path.as_str(), it.key.matching))
        .collect();
    assert_eq!(
        order,
        [
            ("/a", Matching::Exact),
            ("/a/b", Matching::Prefix),
            ("/a", Matching::Prefix),
            ("/", Matching::Prefix),
        ]
    );
}

/// What a writer does, in paths and names of its own.
#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8, u8),
    DropPath(u8),
    DropName(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..6u8, 0..4u8, 0..3u8).prop_map(|(at, name, to)| Step::Put(at, name, to)),
        1 => (0..6u8).prop_map(Step::DropPath),
        1 => (0..4u8).prop_map(Step::DropName),
    ]
}

fn change(writer: usize, step: &Step) -> Change {
    let at = |n: u8| format!("/w{writer}/{n}");
    let name = |n: u8| format!("w{writer}-{n}");
    match step {
        Step::Put(n, by, to) => Change::Upsert(vec![path(&at(*n), &name(*by), &format!("s{to}"))]),
        Step::DropPath(n) => Change::Remove(vec![Selected::Match(key(&at(*n)))]),
        Step::DropName(n) => Change::Remove(vec![Selected::Name(name(*n))]),
    }
}

/// What the steps of one writer leave, by a model that shares nothing with the code: path to name and service.
fn expected(writer: usize, steps: &[Step], all: &mut BTreeMap<String, (String, String)>) {
    for step in steps {
        match step {
            Step::Put(n, by, to) => {
                let name = format!("w{writer}-{by}");
                all.retain(|_, (known, _)| *known != name);
                all.insert(format!("/w{writer}/{n}"), (name, format!("s{to}")));
            }
            Step::DropPath(n) => drop(all.remove(&format!("/w{writer}/{n}"))),
            Step::DropName(n) => {
                let name = format!("w{writer}-{n}");
                all.retain(|_, (known, _)| *known != name);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_interleaving_of_writers_equals_their_serial_run(
        plans in prop::collection::vec(prop::collection::vec(step(), 0..12), 1..6),
        turns in prop::collection::vec(any::<prop::sample::Index>(), 72),
    ) {
        let mut left: Vec<std::slice::Iter<'_, Step>> = plans.iter().map(|plan| plan.iter()).collect();
        let mut rules = host(Vec::new());
        for turn in turns {
            let ready: Vec<usize> = (0..left.len()).filter(|&at| left[at].len() > 0).collect();
            if ready.is_empty() {
                break;
            }
            let writer = ready[turn.index(ready.len())];
            let step = left[writer].next().unwrap();
            apply(&mut rules, "a.example", &change(writer, step)).unwrap();
        }
        let mut serial = BTreeMap::new();
        for (writer, plan) in plans.iter().enumerate() {
            expected(writer, plan, &mut serial);
        }
        let rule = rules["a.example"].answer("a.example");
        let serial = serial.into_iter();
        let serial: Vec<String> = serial.map(|(at, (name, to))| format!("{at} {name} {to}")).collect();
        prop_assert_eq!(shown(&rule), serial);
    }
}
