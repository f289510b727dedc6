use super::*;

fn host(labels: &[(&str, &str)]) -> BareMetalHost {
    let labels: Map<String, Value> = labels
        .iter()
        .map(|(key, text)| ((*key).to_owned(), json!(text)))
        .collect();
    let json = json!({
        "apiVersion": "metal3.io/v1alpha1",
        "kind": "BareMetalHost",
        "metadata": {"name": "h1", "namespace": "hosts", "uid": "u", "resourceVersion": "7", "labels": labels},
        "spec": {"online": true},
    });
    serde_json::from_value(json).unwrap()
}

/// Applies a merge patch as the API server does.
fn apply(host: &BareMetalHost, patch: &Value) -> BareMetalHost {
    let mut host = host.clone();
    for (part, target) in [
        ("labels", &mut host.metadata.labels),
        ("annotations", &mut host.metadata.annotations),
    ] {
        let target = target.get_or_insert_default();
        for (key, value) in patch["metadata"][part].as_object().unwrap() {
            match value.as_str() {
                Some(text) => {
                    target.insert(key.clone(), text.to_owned());
                }
                None => {
                    target.remove(key);
                }
            }
        }
    }
    host
}

fn identity() -> Identity {
    Identity {
        owner: "1b671a64-40d5-491e-99b0-da01ff1f3341".to_owned(),
        cluster_id: "blue".to_owned(),
        group: "control-plane".to_owned(),
        request_id: "1b671a64-40d5-491e-99b0-da01ff1f3342".to_owned(),
        id: "control-plane-0-x7k2p".to_owned(),
        role: NodeRole::Standby.into(),
        labels: [("team".to_owned(), "storage".to_owned())].into(),
        ..Identity::default()
    }
}

#[test]
fn a_release_removes_exactly_what_the_claim_wrote() {
    let keys = LabelKeys::default();
    let before = host(&[
        ("rack", "r1"),
        (MANAGED_BY, "somebody"),
        ("sip.airshipit.org/node-type", "worker"),
    ]);
    let wanted = [
        ("sip.airshipit.org/node-type", "ControlPlane"),
        ("sip.airshipit.org/cluster-name", "blue"),
    ];
    let wanted: HostLabels = wanted.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let claimed = apply(&before, &claim(&before, &identity(), &keys, &wanted, None));
    assert_eq!(
        claimed.labels()["sip.airshipit.org/node-type"],
        "ControlPlane"
    );
    assert_eq!(claimed.labels()["drover.dev/role"], "standby");
    assert_eq!(claimed.labels()["drover.dev/label.team"], "storage");
    assert_eq!(claimed.labels()[MANAGED_BY], "somebody");
    let mark = labels::read(&claimed.metadata, &keys).unwrap();
    assert_eq!((mark.identity, mark.problem), (Some(identity()), None));

    let released = apply(&claimed, &release(&claimed, &keys));
    assert_eq!(released.labels(), before.labels());
    assert!(released.annotations().is_empty());
}

#[test]
fn a_label_that_somebody_changed_after_the_claim_is_left_alone() {
    let keys = LabelKeys::default();
    let before = host(&[("tenant", "none")]);
    let wanted = HostLabels::from([("tenant".to_owned(), "blue".to_owned())]);
    let mut claimed = apply(&before, &claim(&before, &identity(), &keys, &wanted, None));
    claimed
        .labels_mut()
        .insert("tenant".to_owned(), "red".to_owned());
    let released = apply(&claimed, &release(&claimed, &keys));
    assert_eq!(released.labels()["tenant"], "red");
}

#[test]
fn role_and_labels_of_a_node_change_where_it_runs() {
    let keys = LabelKeys::default();
    let before = host(&[]);
    let claimed = apply(
        &before,
        &claim(&before, &identity(), &keys, &HostLabels::new(), None),
    );
    let set = [("tier".to_owned(), "gold".to_owned())].into();
    let edit = Edit {
        role: Some(NodeRole::Active),
        set_labels: &set,
        remove_labels: &["team".to_owned()],
        host_labels: None,
    };
    let edited = apply(&claimed, &edit.of(&claimed, &identity(), &keys));
    let mark = labels::read(&edited.metadata, &keys).unwrap();
    let changed = mark.identity.unwrap();
    assert_eq!(mark.problem, None);
    assert_eq!(changed.role(), NodeRole::Active);
    assert_eq!(changed.labels, set);
    assert_eq!(edited.labels()[ROLE], "active");
    assert!(!edited.labels().contains_key("drover.dev/label.team"));
}

fn relabelled(host: &BareMetalHost, wanted: &[(&str, &str)]) -> BareMetalHost {
    let own = |(key, text): &(&str, &str)| ((*key).to_owned(), (*text).to_owned());
    let wanted: HostLabels = wanted.iter().map(own).collect();
    let edit = Edit {
        role: None,
        set_labels: &BTreeMap::new(),
        remove_labels: &[],
        host_labels: Some(&wanted),
    };
    let identity: Identity = serde_json::from_str(&host.annotations()[IDENTITY]).unwrap();
    apply(host, &edit.of(host, &identity, &LabelKeys::default()))
}

#[test]
fn changed_labels_of_a_group_reach_the_host_and_those_it_has_no_more_leave_it_as_it_was() {
    let keys = LabelKeys::default();
    let before = host(&[("tenant", "none"), ("rack", "r1")]);
    let wanted = [("tenant", "blue"), ("tier", "gold")];
    let own = wanted.map(|(key, text)| (key.to_owned(), text.to_owned()));
    let claimed = apply(
        &before,
        &claim(&before, &identity(), &keys, &own.into(), None),
    );

    let changed = relabelled(&claimed, &[("tenant", "green"), ("zone", "z")]);
    let mut expected = claimed.labels().clone();
    expected.insert("tenant".to_owned(), "green".to_owned());
    expected.insert("zone".to_owned(), "z".to_owned());
    expected.remove("tier");
    assert_eq!(changed.labels(), &expected, "nothing else changes");
    assert_eq!(
        relabelled(&changed, &[("tenant", "green"), ("zone", "z")]),
        changed
    );

    let none = relabelled(&changed, &[]);
    assert_eq!(none.labels()["tenant"], "none");
    assert!(!none.annotations().contains_key(HOST_LABELS));
    for it in [&changed, &none] {
        assert_eq!(apply(it, &release(it, &keys)).labels(), before.labels());
    }
    let mut theirs = claimed;
    theirs
        .labels_mut()
        .insert("tier".to_owned(), "theirs".to_owned());
    assert_eq!(relabelled(&theirs, &[]).labels()["tier"], "theirs");
}

#[test]
fn labels_of_sip_s_former_family_on_an_adopted_host_give_way_to_those_of_its_group() {
    let keys = LabelKeys::default();
    let before = host(&[
        ("rack", "r1"),
        ("sip.airshipit.org/workload-cluster", "tenants_blue"),
        ("sip.airshipit.org/scheduled", "true"),
        ("sip.airshipit.org/node-type", "worker"),
    ]);
    let adopted = apply(
        &before,
        &adopt(&before, "hosts/h1", None, &identity(), &keys),
    );
    let now = [
        ("sip.airshipit.org/cluster-namespace", "tenants"),
        ("sip.airshipit.org/cluster-name", "blue"),
        ("sip.airshipit.org/node-type", "Worker"),
    ];
    let changed = relabelled(&adopted, &now);
    let of_sip = changed
        .labels()
        .iter()
        .filter(|(key, _)| sip::is_claim(key));
    let of_sip: BTreeMap<&str, &str> = of_sip.map(|(key, it)| (&**key, &**it)).collect();
    assert_eq!(of_sip, now.into());
    let mark = labels::read(&changed.metadata, &keys).unwrap();
    assert_eq!(
        (mark.node.as_deref(), mark.problem),
        (Some("hosts/h1"), None)
    );
    let released = apply(&changed, &release(&changed, &keys));
    assert_eq!(released.labels(), host(&[("rack", "r1")]).labels());
}

#[test]
fn an_adopted_node_keeps_its_id_and_remembers_its_former_slot() {
    let keys = LabelKeys::default();
    let before = host(&[("sip.airshipit.org/cluster-name", "blue")]);
    let adopted = apply(
        &before,
        &adopt(&before, "hosts/h1", None, &identity(), &keys),
    );
    let mark = labels::read(&adopted.metadata, &keys).unwrap();
    assert_eq!(mark.problem, None);
    assert_eq!(mark.node.as_deref(), Some("hosts/h1"));
    let other = Identity {
        owner: "1b671a64-40d5-491e-99b0-da01ff1f3349".to_owned(),
        ..identity()
    };
    let again = adopt(&adopted, "hosts/h1", mark.identity.as_ref(), &other, &keys);
    let mark = labels::read(&apply(&adopted, &again).metadata, &keys).unwrap();
    assert_eq!(mark.former.unwrap()[0].owner, identity().owner);
    // Else it would be taken for a node of that cluster again.
    let released = apply(&adopted, &release(&adopted, &keys));
    assert_eq!(released.labels(), host(&[]).labels());
}

#[test]
fn a_claim_takes_away_what_is_left_of_another() {
    let keys = LabelKeys::default();
    let before = host(&[]);
    let wanted = HostLabels::from([("tenant".to_owned(), "red".to_owned())]);
    let adopted = apply(&before, &adopt(&before, "old-id", None, &identity(), &keys));
    let mut left = apply(
        &adopted,
        &claim(&adopted, &identity(), &keys, &wanted, Some(3)),
    );
    left.labels_mut().remove(&keys.cluster);
    left.annotations_mut().remove(IDENTITY);
    let heir = Identity {
        id: "control-plane-9-zzzzz".to_owned(),
        ..identity()
    };
    let claimed = apply(&left, &claim(&left, &heir, &keys, &HostLabels::new(), None));
    let mark = labels::read(&claimed.metadata, &keys).unwrap();
    assert_eq!(mark.node.as_deref(), Some("control-plane-9-zzzzz"));
    assert_eq!((mark.former, mark.problem), (None, None));
    assert!(!claimed.annotations().contains_key(HOST_LABELS));
    assert!(!is_unfinished(&claimed), "that was another request");
}

#[test]
fn labels_that_a_group_may_not_set_on_hosts_are_named() {
    let reader = Reader {
        keys: LabelKeys::default(),
        settings: super::super::HostsSettings::default(),
    };
    let set = |key: &str, value: &str| HostLabels::from([(key.to_owned(), value.to_owned())]);
    for (key, value) in [
        ("rack", "r1"),
        ("vino.airshipit.org/host", "h1"),
        ("network.drover.dev/oam", "true"),
        ("node-role.kubernetes.io/worker", ""),
        ("sip.airshipit.org/cluster-name", "red"),
        ("sip.airshipit.org/workload-cluster", "t_red"),
        ("drover.dev/owner", "x"),
        ("drover.dev/label.team", "x"),
        ("no key", "x"),
        ("tenant", "no value!"),
        (MANAGED_BY, "x"),
    ] {
        let error = check("hostLabels", &set(key, value), "blue", &reader).unwrap_err();
        assert_eq!(error.fields()[0].field, format!("hostLabels[{key:?}]"));
    }
    let own = set("sip.airshipit.org/cluster-name", "blue");
    for wanted in [set("tenant", "blue"), own] {
        check("hostLabels", &wanted, "blue", &reader).unwrap();
    }
}
