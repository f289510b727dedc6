use drover_platform::driver::Found;
use drover_proto::{
    common::v1::{Address, AddressType},
    platform::v1::{NodePhase, SlotKey},
};

use serde_json::json;

use super::*;
use crate::group::{PodPart, Told, UnderWay};
use crate::labels::LabelKeys;
use crate::{
    discover::Seen,
    group::{Groups, Member},
};

/// A running pod of group `db`, with some changes.
fn pod(number: u32, change: impl FnOnce(&mut Node, &mut PodPart)) -> Seen {
    let mut node = Node {
        cluster_id: "c".into(),
        node_id: format!("db-{number}-x"),
        id: format!("db-{number}-x"),
        name: format!("db-{number}"),
        ordinal: Some(number),
        group: "db".into(),
        slot: Some(SlotKey {
            owner: "o".into(),
            ..SlotKey::default()
        }),
        endpoints: [("client".to_owned(), format!("10.0.0.{number}:6379"))].into(),
        addresses: vec![Address {
            r#type: AddressType::InternalIp.into(),
            value: format!("10.0.0.{number}"),
            ..Address::default()
        }],
        ..Node::default()
    };
    node.set_phase(NodePhase::Running);
    node.set_role(if number == 0 {
        NodeRole::Active
    } else {
        NodeRole::Standby
    });
    let mut part = PodPart {
        created: 1,
        host: None,
        ours: true,
        unschedulable: false,
        lost: false,
        ended: false,
        told: Some(Box::new(Told {
            peers: uid("[]"),
            service: Some("c-db".into()),
        })),
        found: Found::default().into(),
    };
    change(&mut node, &mut part);
    let key = (node.cluster_id.clone(), node.node_id.clone());
    part.found = Found {
        node,
        ..Found::default()
    }
    .into();
    Seen {
        cluster: key.0,
        node: key.1.clone(),
        member: Member {
            uid: u128::from(number) + 1,
            kind: 0,
            namespace: "prod".into(),
            name: key.1.into(),
            deleting: false,
            kept_by: None,
            anchor: true,
            pod: Some(Box::new(part)),
            warning: None,
        },
        identity: None,
        request: 0,
        adopted: None,
    }
}

fn peer_update(pods: Vec<Seen>) -> PeerUpdate {
    let mut groups = Groups::default();
    for pod in pods {
        groups.insert(pod);
    }
    let mut update = PeerUpdate::default();
    for (_, group) in groups.iter() {
        let found = group.node(&[], UnderWay::default());
        update.add(group, found.map(|found| found.node));
    }
    update
}

fn names(untold: &Untold) -> Vec<String> {
    let list: Vec<serde_json::Value> = serde_json::from_str(&untold.list).unwrap();
    let name = |peer: &serde_json::Value| peer["name"].as_str().unwrap().to_owned();
    list.iter().map(name).collect()
}

#[test]
fn everybody_hears_of_everybody_who_has_an_address_and_has_not_ended() {
    let all = vec![
        pod(0, |_, _| ()),
        pod(1, |_, _| ()),
        pod(2, |node, _| node.addresses.clear()),
        pod(3, |_, part| part.ended = true),
        pod(4, |_, part| part.told = None),
        pod(5, |_, part| part.ours = false),
    ];
    let untold = peer_update(all).untold();
    assert_eq!(untold.len(), 2, "those who ask and run");
    for pod in &untold {
        assert_eq!(names(pod), ["db-0", "db-1", "db-4"]);
    }
    let list: Vec<serde_json::Value> = serde_json::from_str(&untold[0].list).unwrap();
    assert_eq!(
        list[1],
        json!({"group": "db", "ordinal": 1, "name": "db-1", "id": "db-1-x", "role": "standby",
            "host": "10.0.0.1", "ports": {"client": 6379}})
    );
}

#[test]
fn nobody_is_told_what_it_knows_and_nothing_of_another_owner() {
    let first = peer_update(vec![pod(0, |_, _| ()), pod(1, |_, _| ())]).untold();
    let knows = uid(&first[0].list);
    let again = |node: &mut Node, part: &mut PodPart| {
        part.told.as_mut().unwrap().peers = knows;
        node.set_role(NodeRole::Active);
    };
    let know = |_: &mut Node, part: &mut PodPart| part.told.as_mut().unwrap().peers = knows;
    let foreign = |node: &mut Node, _: &mut PodPart| node.slot.as_mut().unwrap().owner = "p".into();
    assert!(
        peer_update(vec![pod(0, know), pod(1, know)])
            .untold()
            .is_empty(),
        "all is said"
    );
    let untold = peer_update(vec![pod(0, know), pod(1, know), pod(2, foreign)]).untold();
    assert_eq!(untold.len(), 1);
    assert_eq!(names(&untold[0]), ["db-2"]);
    // A change of role concerns both.
    assert_eq!(
        peer_update(vec![pod(0, know), pod(1, again)])
            .untold()
            .len(),
        2
    );
}

#[test]
fn a_service_goes_with_all_pods_of_its_group_and_has_their_ports() {
    let all = vec![
        pod(0, |_, part| part.ended = true),
        pod(1, |_, _| ()),
        pod(2, |_, part| part.told.as_mut().unwrap().service = None),
    ];
    let wanted: Vec<_> = peer_update(all).services.wanted().collect();
    assert_eq!(wanted.len(), 1);
    assert_eq!((wanted[0].namespace(), wanted[0].name()), ("prod", "c-db"));
    let body = serde_json::to_value(wanted[0].service(&LabelKeys::default())).unwrap();
    let owners = body["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!(owners.len(), 2, "{owners:?}");
    assert_eq!(owners[0]["uid"], "00000000-0000-0000-0000-000000000001");
    assert_eq!(
        body["spec"],
        json!({
            "selector": {"drover.dev/cluster": "c", "drover.dev/group": "db", "drover.dev/owner": "o", "drover.dev/role": "active"},
            "ports": [{"name": "client", "port": 6379, "targetPort": "client"}],
        })
    );
    let none = peer_update(vec![pod(0, |node, _| node.addresses.clear())]);
    assert!(!none.is_empty());
    assert_eq!(none.services.wanted().count(), 0, "no port is known");
}
