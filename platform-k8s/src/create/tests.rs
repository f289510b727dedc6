use serde_json::json;

use super::{dry_run::alone, *};

fn step(kind: &str, name: &str, mut body: Value) -> Step {
    body["metadata"]["name"] = name.into();
    Step {
        kind: Kind::core(kind, &format!("{}s", kind.to_lowercase())),
        namespace: "prod".to_owned(),
        name: name.to_owned(),
        label: format!("{kind} {name}"),
        body,
    }
}

#[test]
fn what_refers_to_another_object_of_its_set_is_tried_out_without_it() {
    let all = [
        step("ServiceAccount", "a", json!({})),
        step("Role", "r", json!({})),
        step("RoleBinding", "b", json!({"roleRef": {"name": "r"}})),
        step("RoleBinding", "c", json!({"roleRef": {"name": "other"}})),
        step("Pod", "p", json!({"spec": {"serviceAccountName": "a"}})),
        step("Pod", "q", json!({"spec": {"serviceAccountName": "other"}})),
    ];
    let tried: Vec<_> = all.iter().map(|step| alone(step, &all)).collect();
    assert_eq!(tried[2], None);
    assert_eq!(tried[3].as_ref(), Some(&all[3].body));
    let account = |at: usize| tried[at].as_ref().unwrap()["spec"]["serviceAccountName"].clone();
    assert_eq!((account(4), account(5)), (json!("default"), json!("other")));
}

#[test]
fn an_object_is_of_a_slot_by_its_identity_alone() {
    let identity = Identity {
        owner: "o".to_owned(),
        cluster_id: "c".to_owned(),
        request_id: "r".to_owned(),
        index: 3,
        id: "n".to_owned(),
        ..Identity::default()
    };
    let meta = |identity: &Identity| ObjectMeta {
        annotations: Some(
            [(
                labels::IDENTITY.to_owned(),
                serde_json::to_string(identity).unwrap(),
            )]
            .into(),
        ),
        ..ObjectMeta::default()
    };
    assert!(is_of(&meta(&identity), &identity));
    assert!(!is_of(&ObjectMeta::default(), &identity));
    let change: [fn(&mut Identity); 5] = [
        |it| it.owner.push('x'),
        |it| it.cluster_id.push('x'),
        |it| it.request_id.push('x'),
        |it| it.index += 1,
        |it| it.id.push('x'),
    ];
    for change in change {
        let mut other = identity.clone();
        change(&mut other);
        assert!(!is_of(&meta(&other), &identity));
    }
}
