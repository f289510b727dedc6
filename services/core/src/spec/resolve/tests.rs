//! Inheritance, validation and hashing.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::{
    spec::{Bootstrap, Health, Object, Placement, PlatformChoice, SecretRef, UserDataSource},
    storage::{Retention, Storage},
};

fn object(value: serde_json::Value) -> Object {
    value.as_object().cloned().unwrap_or_default()
}

fn on(platform: &str) -> Vec<PlatformChoice> {
    vec![PlatformChoice {
        name: platform.into(),
        ..Default::default()
    }]
}

fn leaf(name: &str, size: u32) -> GroupSpec {
    GroupSpec {
        name: name.into(),
        size: Some(size),
        ..Default::default()
    }
}

#[test]
fn groups_inherit_and_maps_merge_by_key() {
    let mut inner = leaf("hot", 2);
    inner.settings.properties = object(json!({"b": null, "c": 3}));
    let outer = GroupSpec {
        name: "data".into(),
        settings: Settings {
            platforms: on("local"),
            properties: object(json!({"a": 1, "b": 2})),
            ..Default::default()
        },
        groups: vec![inner],
        ..Default::default()
    };
    let spec = ClusterSpec {
        groups: vec![outer],
        ..Default::default()
    };
    let groups = spec.resolve().unwrap();
    assert_eq!(&*groups[0].path, "data/hot");
    assert_eq!(&*groups[0].choices[0].platform, "local");
    assert_eq!(
        serde_json::Value::Object(groups[0].choices[0].properties.clone()),
        json!({"a": 1, "c": 3})
    );
    assert_eq!(groups[0].grace, Duration::from_secs(30));
}

#[test]
fn every_wrong_field_is_named_at_once() {
    let twice = leaf("a", 20_000);
    let spec = ClusterSpec {
        groups: vec![leaf("a", 1), twice],
        ..Default::default()
    };
    let error = spec.resolve().unwrap_err();
    let fields: Vec<&str> = error.fields().iter().map(|v| v.field.as_str()).collect();
    for field in [
        "spec.groups[0].platforms",
        "spec.groups[1].name",
        "spec.groups[1].size",
    ] {
        assert!(fields.contains(&field), "{field} in {fields:?}");
    }
}

#[test]
fn depth_number_and_names_are_limited() {
    let mut group = leaf("g", 1);
    for _ in 0..MAX_DEPTH {
        group = GroupSpec {
            name: "g".into(),
            groups: vec![group],
            ..Default::default()
        };
    }
    let spec = ClusterSpec {
        groups: vec![group],
        ..Default::default()
    };
    assert!(spec.resolve().unwrap_err().message().contains("deeper"));

    let groups = (0..=MAX_GROUPS)
        .map(|n| leaf(&format!("g{n}"), 0))
        .collect();
    let settings = Settings {
        platforms: on("local"),
        ..Default::default()
    };
    let spec = ClusterSpec {
        groups,
        settings,
        ..Default::default()
    };
    assert!(spec.resolve().unwrap_err().message().contains("more than"));
}

fn wrong(groups: Vec<GroupSpec>, settings: Settings) -> Vec<String> {
    let spec = ClusterSpec {
        groups,
        settings,
        ..Default::default()
    };
    let error = spec.resolve().unwrap_err();
    error.fields().iter().map(|v| v.field.clone()).collect()
}

fn on_machines(name: &str, size: u32, platform: &str, machines: &[&str]) -> GroupSpec {
    let mut group = leaf(name, size);
    group.settings.platforms = on(platform);
    group.settings.placement = Some(Placement {
        hosts: machines.iter().map(|host| (*host).into()).collect(),
        ..Default::default()
    });
    group
}

#[test]
fn each_machine_is_for_one_group_and_there_are_enough_of_them() {
    let none = Settings::default;
    let few = on_machines("a", 3, "metal", &["m1", "m2"]);
    assert_eq!(wrong(vec![few], none()), ["spec.groups[0].placement.hosts"]);
    let twice = on_machines("a", 1, "metal", &["m1", "m2", "m1", ""]);
    let fields = [
        "spec.groups[0].placement.hosts[2]",
        "spec.groups[0].placement.hosts[3]",
    ];
    assert_eq!(wrong(vec![twice], none()), fields);
    let first = on_machines("a", 1, "metal", &["m1"]);
    let shared = on_machines("b", 1, "metal", &["m2", "m1"]);
    let fields = ["spec.groups[1].placement.hosts[1]"];
    assert_eq!(wrong(vec![first.clone(), shared], none()), fields);
    let mut several = first.clone();
    several.settings.platforms.extend(on("other"));
    assert_eq!(
        wrong(vec![several], none()),
        ["spec.groups[0].placement.hosts"]
    );
    let outer = Settings {
        platforms: on("metal"),
        placement: first.settings.placement.clone(),
        ..Default::default()
    };
    let inside = GroupSpec {
        name: "outer".into(),
        settings: outer.clone(),
        groups: vec![on_machines("in", 1, "metal", &["m3"])],
        ..Default::default()
    };
    let fields = wrong(vec![inside], outer);
    for field in ["spec.placement.hosts", "spec.groups[0].placement.hosts"] {
        assert!(
            fields.iter().any(|one| one == field),
            "{field} in {fields:?}"
        );
    }
    // The same id on another platform is a different machine.
    let elsewhere = on_machines("b", 1, "other", &["m1"]);
    let spec = ClusterSpec {
        groups: vec![first, elsewhere],
        ..Default::default()
    };
    assert_eq!(spec.resolve().unwrap()[1].placement.hosts.len(), 1);
}

#[test]
fn secrets_for_templates_are_inherited_by_name_and_part_of_what_makes_a_node() {
    let secrets = |keys: &[(&str, &str)]| {
        let of = |key: &str| SecretRef {
            name: "db".into(),
            key: key.into(),
        };
        let all = keys.iter().map(|(name, key)| ((*name).to_owned(), of(key)));
        all.collect::<BTreeMap<_, _>>()
    };
    let group = |outer: &[_], inner: &[_]| {
        let mut group = leaf("g", 1);
        group.settings.secrets = secrets(inner);
        let settings = Settings {
            platforms: on("local"),
            secrets: secrets(outer),
            ..Default::default()
        };
        let spec = ClusterSpec {
            groups: vec![group],
            settings,
            ..Default::default()
        };
        spec.resolve().unwrap().remove(0)
    };
    let hash = |group: &Group| group.choices[0].spec_hash.clone();
    let (plain, both) = (
        group(&[], &[]),
        group(&[("a", "x"), ("b", "x")], &[("b", "y")]),
    );
    assert_eq!(both.secrets, secrets(&[("a", "x"), ("b", "y")]));
    assert_eq!(hash(&both), hash(&group(&[], &[("a", "x"), ("b", "y")])));
    for other in [
        plain,
        group(&[], &[("a", "x"), ("b", "x")]),
        group(&[], &[("a", "x")]),
    ] {
        assert_ne!(hash(&both), hash(&other));
    }
}

#[test]
fn user_data_is_inherited_and_part_of_what_makes_a_node() {
    let data = |text: &str, render| Bootstrap {
        source: UserDataSource::Sha256(crate::spec::digest(text.as_bytes())),
        render,
        known_as: String::new(),
        formerly_known_as: String::new(),
    };
    let groups = |outer, inner| {
        let mut group = leaf("g", 1);
        group.settings.bootstrap = inner;
        let settings = Settings {
            platforms: on("local"),
            bootstrap: outer,
            ..Default::default()
        };
        let spec = ClusterSpec {
            groups: vec![group],
            settings,
            ..Default::default()
        };
        spec.resolve().unwrap().remove(0)
    };
    let hash = |group: Group| group.choices[0].spec_hash.clone();
    let plain = hash(groups(None, None));
    let inherited = groups(Some(data("x", false)), None);
    assert_eq!(inherited.bootstrap.as_deref(), Some(&data("x", false)));
    let own = groups(Some(data("y", true)), Some(data("x", false)));
    assert_eq!(hash(inherited.clone()), hash(own));
    assert_ne!(hash(inherited.clone()), plain);
    assert_ne!(
        hash(inherited.clone()),
        hash(groups(Some(data("x", true)), None))
    );
    assert_ne!(hash(inherited), hash(groups(Some(data("z", false)), None)));
    let secret = |name: &str, key: &str| {
        let (name, key) = (name.to_owned(), key.to_owned());
        let source = UserDataSource::Secret(SecretRef { name, key });
        let bootstrap = Bootstrap {
            source,
            render: false,
            known_as: String::new(),
            formerly_known_as: String::new(),
        };
        hash(groups(Some(bootstrap), None))
    };
    assert_eq!(secret("a", "bc"), secret("a", "bc"));
    assert_ne!(secret("a", "bc"), secret("ab", "c"));
    assert_ne!(secret("a", "bc"), plain);
}

#[test]
fn a_hash_says_nothing_of_user_data_to_who_has_no_key_and_nodes_from_before_that_stay() {
    let of = |text: &str, known_as: &str, formerly: &str| {
        let mut group = leaf("g", 1);
        group.settings.platforms = on("local");
        group.settings.bootstrap = Some(Bootstrap {
            source: UserDataSource::Sha256(crate::spec::digest(text.as_bytes())),
            render: false,
            known_as: known_as.to_owned(),
            formerly_known_as: formerly.to_owned(),
        });
        resolved(group).choices.remove(0)
    };
    let before = of("hush", "", "");
    let now = of("hush", "k1-a", "k1-store");
    let other = of("hush", "k1-b", "k1-store");
    assert!(now.is_hash(&before.spec_hash), "it is made of the same");
    assert_ne!(now.spec_hash, before.spec_hash);
    assert_eq!(now.spec_hash, of("another guess", "k1-a", "k1-x").spec_hash);
    assert_ne!(now.spec_hash, other.spec_hash, "of another cluster");
    assert!(!of("hushed", "k1-b", "k1-x").is_hash(&before.spec_hash));
    // Existing nodes carry the identifier from the time when all clusters had the same digest for the same data.
    let former = |choice: &Choice| choice.former_hashes.last().unwrap().clone();
    assert!(former(&now).starts_with("h2-"));
    assert_eq!(former(&now), former(&other));
    assert!(now.is_hash(&former(&other)));

    let mut plain = leaf("g", 1);
    plain.settings.platforms = on("local");
    let plain = resolved(plain).choices.remove(0);
    assert!(plain.spec_hash.starts_with("h1-") && plain.former_hashes.is_empty());
}

fn with_storage(change: &dyn Fn(&mut GroupSpec)) -> GroupSpec {
    let mut group = leaf("db", 3);
    group.settings.platforms = on("local");
    group.settings.storage = Some(Storage::default());
    change(&mut group);
    group
}

fn resolved(group: GroupSpec) -> Group {
    let spec = ClusterSpec {
        groups: vec![group],
        ..Default::default()
    };
    spec.resolve().unwrap().remove(0)
}

#[test]
fn storage_is_inherited_and_makes_nodes_and_its_fate_does_not() {
    let outer = Settings {
        platforms: on("local"),
        storage: Some(Storage {
            size: Some(5),
            ..Default::default()
        }),
        ..Default::default()
    };
    let spec = ClusterSpec {
        groups: vec![leaf("db", 1)],
        settings: outer.clone(),
        ..Default::default()
    };
    let group = spec.resolve().unwrap().remove(0);
    assert_eq!(group.storage.as_deref(), outer.storage.as_ref());
    let hash = |change: &dyn Fn(&mut Storage)| {
        let group = resolved(with_storage(&|group| {
            change(group.settings.storage.as_mut().unwrap());
        }));
        group.choices[0].spec_hash.clone()
    };
    let plain = hash(&|_| {});
    assert_ne!(
        plain,
        resolved(with_storage(&|g| g.settings.storage = None)).choices[0].spec_hash
    );
    assert_ne!(plain, hash(&|s| s.size = Some(1)));
    assert_ne!(plain, hash(&|s| s.class = "fast".into()));
    assert_eq!(plain, hash(&|s| s.policy.replaced = Retention::Delete));
    assert_eq!(plain, hash(&|s| s.policy.deleted = Retention::Delete));
}

#[test]
fn storage_that_is_handed_on_is_replaced_delete_first() {
    let budget = |surge, unavailable| crate::spec::Budget { surge, unavailable };
    let update = |surge, unavailable| {
        Some(Update {
            max_surge: surge,
            max_unavailable: unavailable,
            ..Default::default()
        })
    };
    let of = |update: Option<Update>, replaced| {
        let group = resolved(with_storage(&|group| {
            group.settings.update = update;
            group.settings.storage.as_mut().unwrap().policy.replaced = replaced;
        }));
        group.budget()
    };
    assert_eq!(of(None, Retention::Retain), budget(0, 1));
    let one = Some(Amount::Count(1));
    assert_eq!(of(update(one, one), Retention::Retain), budget(0, 1));
    assert_eq!(of(None, Retention::Delete), budget(1, 0));
    let none = with_storage(&|g| g.settings.update = update(one, Some(Amount::Count(0))));
    assert_eq!(
        wrong(vec![none], Settings::default()),
        ["spec.groups[0].update.max_unavailable"]
    );
}

#[test]
fn kept_storage_is_on_one_platform_and_with_one_node_at_a_time() {
    let none = Settings::default;
    let first = with_storage(&|group| {
        group.settings.remediation = Some(crate::spec::Remediation {
            create_first: true,
            ..Default::default()
        });
    });
    assert_eq!(
        wrong(vec![first], none()),
        ["spec.groups[0].remediation.create_first"]
    );
    let several = with_storage(&|group| group.settings.platforms.extend(on("other")));
    assert_eq!(wrong(vec![several], none()), ["spec.groups[0].storage"]);
    let not_kept = with_storage(&|group| {
        group.settings.platforms.extend(on("other"));
        let delete = Retention::Delete;
        group.settings.storage.as_mut().unwrap().policy = crate::storage::Policy {
            replaced: delete,
            scaled: delete,
            deleted: delete,
        };
    });
    assert_eq!(resolved(not_kept).choices.len(), 2);
}

#[test]
fn choices_of_one_class_and_other_properties_take_other_capacity() {
    let mut group = leaf("g", 1);
    group.settings.node_class = Some("m6i".into());
    let spot = PlatformChoice {
        name: "aws".into(),
        properties: object(json!({"capacityType": "spot"})),
        ..Default::default()
    };
    group.settings.platforms = vec![spot, on("aws").remove(0)];
    let spec = ClusterSpec {
        groups: vec![group],
        ..Default::default()
    };
    let choices = spec.resolve().unwrap().remove(0).choices;
    assert_ne!(choices[0].pool, choices[1].pool);
    assert_eq!(&*choices[1].pool, "m6i");
}

#[test]
fn labels_of_hosts_make_no_node_and_nodes_from_before_that_stay() {
    let of = |properties: serde_json::Value| {
        let mut group = leaf("g", 1);
        group.settings.platforms = on("local");
        group.settings.properties = object(properties);
        resolved(group).choices.remove(0)
    };
    let plain = of(json!({"a": 1}));
    let blue = of(json!({"a": 1, "hostLabels": {"tenant": "blue", "rank": "1"}}));
    let red = of(json!({"a": 1, "hostLabels": {"tenant": "red"}}));
    assert_eq!(plain.spec_hash, blue.spec_hash);
    assert_eq!(red.spec_hash, blue.spec_hash);
    assert_eq!(plain.pool, blue.pool);
    assert_ne!(plain.spec_hash, of(json!({"a": 2})).spec_hash);
    assert!(plain.labels_hash.is_empty());
    assert_ne!(red.labels_hash, blue.labels_hash);
    let other_order = of(json!({"a": 1, "hostLabels": {"rank": "1", "tenant": "blue"}}));
    assert_eq!(other_order.labels_hash, blue.labels_hash);
    assert_eq!(blue.host_labels()["tenant"], "blue");
    // What hashes were when they covered the labels, too.
    let former = &blue.former_hashes;
    assert_eq!(former.len(), 1);
    assert!(blue.is_hash(&former[0]) && !plain.is_hash(&former[0]));
}

#[test]
fn a_hash_over_the_labels_of_hosts_tells_which_ones_by_every_formula() {
    for formulas in [1, 3] {
        let of = |properties: serde_json::Value| {
            let mut group = leaf("g", 1);
            group.settings.platforms = on("local");
            group.settings.properties = object(properties);
            group.settings.bootstrap = (formulas > 1).then(|| Bootstrap {
                source: UserDataSource::Sha256(crate::spec::digest(b"hush")),
                render: false,
                known_as: "k1-a".to_owned(),
                formerly_known_as: "k1-store".to_owned(),
            });
            resolved(group).choices.remove(0)
        };
        let labelled = of(json!({"hostLabels": {"tenant": "blue"}}));
        let none = of(json!({}));
        // Those that it has in common with a group without labels say nothing of labels.
        let shared = |hash: &crate::Sym| none.is_hash(hash);
        let hashes = labelled.former_hashes.iter().chain([&labelled.spec_hash]);
        let (without, over): (Vec<_>, Vec<_>) = hashes.partition(|hash| shared(hash));
        assert_eq!((without.len(), over.len()), (formulas, formulas));
        assert!(over.iter().all(|hash| labelled.covers_labels(hash)));
        assert!(!without.iter().any(|hash| labelled.covers_labels(hash)));
        assert!(!none.covers_labels(&none.spec_hash));
    }
}

#[test]
fn the_hash_knows_what_makes_a_node_and_nothing_else() {
    let hash = |change: &dyn Fn(&mut GroupSpec)| {
        let mut group = leaf("g", 1);
        group.settings.platforms = on("local");
        group.settings.properties = object(json!({"a": 1, "b": {"x": 1, "y": 2}}));
        change(&mut group);
        ClusterSpec {
            groups: vec![group],
            ..Default::default()
        }
        .resolve()
        .unwrap()[0]
            .choices[0]
            .spec_hash
            .clone()
    };
    let plain = hash(&|_| {});
    assert_eq!(plain, hash(&|g| g.size = Some(7)));
    assert_eq!(
        plain,
        hash(&|g| g.settings.grace = Some(Duration::from_secs(1)))
    );
    assert_eq!(
        plain,
        hash(&|g| g.settings.properties = object(json!({"b": {"y": 2, "x": 1}, "a": 1})))
    );
    assert_ne!(
        plain,
        hash(&|g| g.settings.properties = object(json!({"a": 2})))
    );
    assert_ne!(
        plain,
        hash(&|g| g.settings.node_class = Some("large".into()))
    );
    assert!(plain.len() <= 63);
}

#[test]
fn a_new_spec_keeps_minima_and_a_stored_one_below_them_is_resolved() {
    let settings = Settings {
        platforms: on("local"),
        expire_after: Some(Duration::from_secs(59)),
        ..Default::default()
    };
    let health = Health {
        interval: Duration::from_millis(99),
        ..Health::default()
    };
    let mut inner = leaf("inner", 1);
    inner.settings.health = Some(health);
    let outer = GroupSpec {
        name: "outer".into(),
        groups: vec![inner],
        ..Default::default()
    };
    let spec = ClusterSpec {
        groups: vec![outer],
        settings,
        ..Default::default()
    };
    spec.resolve().unwrap();
    let wrong = spec.check_new();
    let fields: Vec<&str> = wrong.iter().map(|one| one.field.as_str()).collect();
    let inner = "spec.groups[0].groups[0].health.interval";
    assert_eq!(fields, ["spec.expire_after", inner]);
}
