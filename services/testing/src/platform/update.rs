use drover_core::Reason;
use drover_proto::platform::v1::{
    Capability, Node, NodeAdoption, NodeChange, NodeRole, Slot, SlotKey, UpdateNodeRequest,
    update_node_request::Update,
};
use uuid::Uuid;

use super::{
    Subject,
    fixture::{Fixture, refused, until},
};

fn change(fixture: &Fixture<'_>, node: &Node, change: NodeChange) -> UpdateNodeRequest {
    UpdateNodeRequest {
        expected_platform_uid: fixture.platform.uid.clone(),
        fence: Some(fixture.fence()),
        node_id: node.node_id.clone(),
        expected_cluster_id: node.cluster_id.clone(),
        expected_slot: node.slot.clone(),
        update: Some(Update::Change(change)),
        ..UpdateNodeRequest::default()
    }
}

pub(super) async fn role_and_labels_are_changed(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    if !fixture.can(Capability::UpdateNode) {
        return;
    }
    let (_, nodes) = fixture.make(1).await;
    let node = &nodes[0];
    let wanted = NodeChange {
        role: NodeRole::Standby.into(),
        set_labels: [("tier".to_owned(), "hot".to_owned())].into(),
        remove_labels: vec!["team".to_owned(), "not-there".to_owned()],
    };
    for _ in 0..2 {
        let updated = fixture
            .update(&change(&fixture, node, wanted.clone()))
            .await
            .expect("a change can be repeated");
        assert_eq!(updated.role(), NodeRole::Standby);
        assert_eq!(
            updated.labels,
            [("tier".to_owned(), "hot".to_owned())].into()
        );
        assert_eq!(
            (&updated.node_id, &updated.slot),
            (&node.node_id, &node.slot),
            "nothing is replaced"
        );
    }
    until(subject, "the change is listed", || async {
        let nodes = fixture.nodes().await;
        (nodes.len() == 1 && nodes[0].role() == NodeRole::Standby).then_some(())
    })
    .await;
    let labels = NodeChange {
        set_labels: [("tier".to_owned(), "cold".to_owned())].into(),
        ..NodeChange::default()
    };
    let updated = fixture
        .update(&change(&fixture, node, labels))
        .await
        .expect("a change of labels");
    assert_eq!(
        updated.role(),
        NodeRole::Standby,
        "an unset role stays as it is"
    );
    let own = NodeChange {
        set_labels: [("drover.dev/owner".to_owned(), "me".to_owned())].into(),
        ..NodeChange::default()
    };
    refused(
        fixture.update(&change(&fixture, node, own)).await,
        Reason::Invalid,
        "a label of Drover's own",
    );
    let unknown = NodeChange {
        role: 77,
        ..NodeChange::default()
    };
    refused(
        fixture.update(&change(&fixture, node, unknown)).await,
        Reason::Invalid,
        "an unknown role",
    );
    fixture.clean().await;
}

pub(super) async fn a_change_of_another_slot_is_refused(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    if !fixture.can(Capability::UpdateNode) {
        return;
    }
    let (_, nodes) = fixture.make(1).await;
    let right = change(
        &fixture,
        &nodes[0],
        NodeChange {
            role: NodeRole::Standby.into(),
            ..NodeChange::default()
        },
    );
    let slot = nodes[0].slot.clone().unwrap();
    let with = |slot: SlotKey| UpdateNodeRequest {
        expected_slot: Some(slot),
        ..right.clone()
    };
    let other = Uuid::new_v4().to_string();
    let owner = with(SlotKey {
        owner: other.clone(),
        ..slot.clone()
    });
    refused(
        fixture.update(&owner).await,
        Reason::NodeNotInCluster,
        "another owner",
    );
    let request = with(SlotKey {
        request_id: other,
        ..slot.clone()
    });
    refused(
        fixture.update(&request).await,
        Reason::SlotMismatch,
        "another request",
    );
    let index = with(SlotKey {
        index: Some(9),
        ..slot
    });
    refused(
        fixture.update(&index).await,
        Reason::SlotMismatch,
        "another index",
    );
    let cluster = UpdateNodeRequest {
        expected_cluster_id: "another".to_owned(),
        ..right.clone()
    };
    refused(
        fixture.update(&cluster).await,
        Reason::NodeNotInCluster,
        "another cluster",
    );
    let absent = UpdateNodeRequest {
        node_id: "no-such-node".to_owned(),
        ..right.clone()
    };
    refused(
        fixture.update(&absent).await,
        Reason::NotFound,
        "an absent node",
    );
    let nothing = UpdateNodeRequest {
        update: None,
        ..right
    };
    refused(fixture.update(&nothing).await, Reason::Invalid, "no update");
    let listed = fixture.until_listed(&nodes).await;
    assert_eq!(listed[0].role(), NodeRole::Active, "nothing was touched");
    fixture.clean().await;
}

pub(super) async fn a_node_is_adopted_once(subject: &Subject) {
    let (fixture, heir) = (Fixture::new(subject).await, Fixture::new(subject).await);
    if !fixture.can(Capability::Adopt) {
        return;
    }
    let (request, nodes) = fixture.make(1).await;
    let node = &nodes[0];
    let adoption = |owner: String| UpdateNodeRequest {
        expected_platform_uid: fixture.platform.uid.clone(),
        fence: Some(heir.fence()),
        node_id: node.node_id.clone(),
        expected_cluster_id: node.cluster_id.clone(),
        expected_slot: node.slot.clone(),
        update: Some(Update::Adoption(NodeAdoption {
            cluster_id: heir.cluster.clone(),
            key: Some(SlotKey {
                owner,
                request_id: Uuid::new_v4().to_string(),
                index: None,
            }),
            slot: Some(Slot {
                index: Some(0),
                id: "db-7-abcde".to_owned(),
                name: "db-7".to_owned(),
                ordinal: Some(7),
                role: NodeRole::Active.into(),
                host_id: None,
            }),
            sequence: 3,
            group: "db".to_owned(),
            spec_hash: "v1-adopted".to_owned(),
        })),
        ..UpdateNodeRequest::default()
    };
    let first = adoption(heir.owner.to_string());
    for _ in 0..2 {
        let adopted = fixture
            .update(&first)
            .await
            .expect("an adoption can be repeated");
        assert_eq!(adopted.cluster_id, heir.cluster);
        assert_eq!(
            (adopted.id.as_str(), adopted.name.as_str(), adopted.ordinal),
            ("db-7-abcde", "db-7", Some(7))
        );
        let slot = adopted.slot.expect("it has a slot now");
        assert_eq!((slot.owner, slot.index), (heir.owner.to_string(), Some(0)));
        assert_eq!(
            (adopted.sequence, adopted.spec_hash.as_str()),
            (3, "v1-adopted")
        );
        assert_eq!(adopted.store_id, heir.store_id.to_string());
    }
    let late = adoption(Uuid::new_v4().to_string());
    refused(
        fixture.update(&late).await,
        Reason::NodeNotInCluster,
        "somebody else was quicker",
    );
    let removal = fixture.removal(&request, node);
    refused(
        fixture.deprovision(&removal).await,
        Reason::NodeNotInCluster,
        "the owner before",
    );
    until(subject, "the heir's cluster has the node", || async {
        let nodes = heir.nodes().await;
        (nodes.len() == 1 && fixture.nodes().await.is_empty()).then_some(())
    })
    .await;
    heir.clean().await;
}
