//! Reading and rejection of specs.

use drover_proto::common::v1::{LabelOperator, LabelRequirement, LabelSelector};

use super::*;

fn spec(change: impl Fn(&mut pb::GroupSpec)) -> Result<ClusterSpec> {
    let mut group = pb::GroupSpec {
        name: "db".into(),
        size: Some(1),
        platforms: vec![pb::PlatformChoice {
            name: "metal".into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    change(&mut group);
    let spec = cluster_spec(&pb::ClusterSpec {
        groups: vec![group],
        ..Default::default()
    })?;
    spec.resolve().map(|_| spec)
}

fn bootstrap(source: Option<pb::bootstrap_source::Source>, render: bool) -> Result<ClusterSpec> {
    spec(|group| {
        group.bootstrap = Some(pb::BootstrapSource {
            source: source.clone(),
            render,
        });
    })
}

fn fields<T: std::fmt::Debug>(answer: Result<T>) -> Vec<String> {
    let error = answer.unwrap_err();
    error.fields().iter().map(|v| v.field.clone()).collect()
}

#[test]
fn user_data_becomes_its_digest() {
    use pb::bootstrap_source::Source;
    let digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    for source in [
        Source::Text("hello".into()),
        Source::Binary(b"hello".to_vec()),
        Source::Sha256(digest.to_ascii_uppercase()),
    ] {
        let spec = bootstrap(Some(source), true).unwrap();
        let expected = Bootstrap {
            source: UserDataSource::Sha256(digest.to_owned()),
            known_as: String::new(),
            formerly_known_as: String::new(),
            render: true,
        };
        assert_eq!(spec.groups[0].settings.bootstrap, Some(expected));
    }
    let at = "spec.groups[0].bootstrap";
    let key = |name: &str, key: &str| pb::SecretKeyRef {
        name: name.to_owned(),
        key: key.to_owned(),
    };
    for (source, render, field) in [
        (None, false, at.to_owned()),
        (Some(Source::Text(String::new())), false, at.to_owned()),
        (
            Some(Source::Binary(vec![255])),
            true,
            format!("{at}.render"),
        ),
        (
            Some(Source::Sha256("12".into())),
            false,
            format!("{at}.sha256"),
        ),
        (
            Some(Source::SecretKey(key("db", ""))),
            false,
            format!("{at}.secret_key.key"),
        ),
        (
            Some(Source::SecretKey(key("-", "a"))),
            false,
            format!("{at}.secret_key.name"),
        ),
    ] {
        assert_eq!(fields(bootstrap(source, render)), [field]);
    }
    let spec = bootstrap(Some(Source::SecretKey(key("db", "init.sh"))), true).unwrap();
    let read = spec.groups[0].settings.bootstrap.clone().unwrap();
    assert!(matches!(read.source, UserDataSource::Secret(of) if of.to_string() == "db/init.sh"));
}

#[test]
fn storage_is_read_and_kept_unless_it_is_said() {
    let read = |storage: pb::StorageSpec| {
        spec(move |group| group.storage = Some(storage.clone()))
            .map(|spec| spec.groups[0].settings.storage.clone().unwrap())
    };
    let plain = read(pb::StorageSpec::default()).unwrap();
    assert_eq!(plain, Storage::default());
    let said = pb::StorageSpec {
        size: "1.5Gi".into(),
        class: "fast".into(),
        when_replaced: pb::StorageRetention::Retain.into(),
        when_scaled: pb::StorageRetention::Delete.into(),
        ..Default::default()
    };
    let said = read(said).unwrap();
    assert_eq!(said.size, Some(3 << 29));
    assert_eq!(said.policy.scaled, Retention::Delete);
    assert_eq!(to_storage(&said).size_bytes, Some(3 << 29));
    let at = "spec.groups[0].storage";
    for size in ["0", "5gb", "-1", "16Ei"] {
        let wrong = pb::StorageSpec {
            size: size.into(),
            ..Default::default()
        };
        assert_eq!(fields(read(wrong)), [format!("{at}.size")]);
    }
    let wrong = pb::StorageSpec {
        when_deleted: 7,
        ..Default::default()
    };
    assert_eq!(fields(read(wrong)), [format!("{at}.when_deleted")]);
}

#[test]
fn labels_of_machines_are_read_and_told_as_they_were_said() {
    let select = |selector: LabelSelector| {
        spec(move |group| {
            group.placement = Some(pb::Placement {
                selector: Some(selector.clone()),
                ..Default::default()
            });
        })
    };
    let requirement = |operator: i32, values: &[&str]| LabelRequirement {
        key: "rack".into(),
        operator,
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    };
    let said = LabelSelector {
        match_labels: [("disk".to_owned(), "ssd".to_owned())].into(),
        match_expressions: vec![
            requirement(LabelOperator::In.into(), &["r1", "r2"]),
            requirement(LabelOperator::NotExists.into(), &[]),
        ],
    };
    let read = select(said.clone()).unwrap();
    let placement = read.groups[0].settings.placement.clone().unwrap();
    assert_eq!(to_placement(&placement).unwrap().selector, Some(said));
    let everything = select(LabelSelector::default()).unwrap();
    let placement = everything.groups[0].settings.placement.clone().unwrap();
    assert_eq!(to_placement(&placement), None);
    let at = "spec.groups[0].placement.selector.match_expressions[1]";
    for (operator, values, field) in [
        (0, &[][..], "operator"),
        (9, &[], "operator"),
        (LabelOperator::In.into(), &[], "values"),
        (LabelOperator::Exists.into(), &["a"], "values"),
    ] {
        let first = requirement(LabelOperator::Exists.into(), &[]);
        let wrong = LabelSelector {
            match_expressions: vec![first, requirement(operator, values)],
            ..Default::default()
        };
        assert_eq!(fields(select(wrong)), [format!("{at}.{field}")]);
    }
}

#[test]
fn named_machines_are_read_and_travel_with_slots_alone() {
    let hosts = |names: &[&str]| {
        let hosts: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        spec(move |group| {
            group.placement = Some(pb::Placement {
                hosts: hosts.clone(),
                ..Default::default()
            });
        })
    };
    let read = hosts(&["metalstack://1f", "m2"]).unwrap();
    let placement = read.groups[0].settings.placement.clone().unwrap();
    assert_eq!(&*placement.hosts[0], "metalstack://1f");
    assert_eq!(to_placement(&placement), None);
    let twice = "spec.groups[0].placement.hosts[1]";
    assert_eq!(fields(hosts(&["m2", "m2"])), [twice]);
}
