use drover_core::Reason;
use drover_proto::platform::v1::{
    Capability, DeprovisionRequest, DeprovisionState, Node, NodeChange, NodeRole, SlotKey,
    UpdateNodeRequest, update_node_request::Update,
};
use uuid::Uuid;

use super::{
    Subject,
    fixture::{Fixture, refused, until},
    requests,
};

fn change(fixture: &Fixture<'_>, node: &Node, change: NodeChange) -> UpdateNodeRequest {
    requests::update(
        &fixture.platform.uid,
        fixture.fence(),
        node,
        Update::Change(change),
    )
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
        ..NodeChange::default()
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
    let (fixture, mut heir) = (Fixture::new(subject).await, Fixture::new(subject).await);
    if !fixture.can(Capability::Adopt) {
        return;
    }
    let (request, nodes) = fixture.make(1).await;
    let node = &nodes[0];
    if !subject.moves {
        refused(
            fixture.update(&adoption(&heir, node, heir.owner)).await,
            Reason::Precondition,
            "another cluster",
        );
        heir.cluster.clone_from(&fixture.cluster);
    }
    let first = adoption(&heir, node, heir.owner);
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
    let late = adoption(&heir, node, Uuid::new_v4());
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
        let (nodes, left) = (heir.nodes().await, fixture.nodes().await);
        let left = left.iter().filter(|node| node.cluster_id != heir.cluster);
        (nodes.len() == 1 && left.count() == 0 && is_of(&nodes[0], &heir)).then_some(())
    })
    .await;
    heir.clean().await;
}

fn adoption(heir: &Fixture<'_>, node: &Node, owner: Uuid) -> UpdateNodeRequest {
    requests::adoption(
        &heir.platform.uid,
        heir.fence(),
        node,
        (&heir.cluster, owner),
    )
}

fn is_of(node: &Node, heir: &Fixture<'_>) -> bool {
    let slot = node.slot.as_ref();
    slot.is_some_and(|slot| slot.owner == heir.owner.to_string())
}

pub(super) async fn a_foreign_node_is_adopted_and_removed(subject: &Subject) {
    let mut heir = Fixture::new(subject).await;
    let Some(make_foreign) = subject
        .make_foreign
        .as_ref()
        .filter(|_| heir.can(Capability::Adopt))
    else {
        return;
    };
    let (cluster_id, node_id) = make_foreign().await;
    let listed = || async {
        let nodes = heir.list("", 0).await;
        nodes
            .into_iter()
            .find(|node| node.node_id == node_id && node.cluster_id == cluster_id)
    };
    let node = until(subject, "the foreign node is listed", listed).await;
    let owner = node.slot.as_ref().map(|slot| slot.owner.as_str());
    assert_eq!(owner.unwrap_or_default(), "", "it has no owner");
    // As in the takeover of a cluster.
    if !cluster_id.is_empty() {
        heir.cluster.clone_from(&cluster_id);
    }
    let mut wrong = adoption(&heir, &node, heir.owner);
    wrong.expected_slot = Some(SlotKey {
        owner: Uuid::new_v4().to_string(),
        request_id: Uuid::new_v4().to_string(),
        index: Some(0),
    });
    refused(
        heir.update(&wrong).await,
        Reason::NodeNotInCluster,
        "it has no owner",
    );
    let wanted = adoption(&heir, &node, heir.owner);
    let before = (node.name.clone(), node.addresses.clone());
    for _ in 0..2 {
        let adopted = heir.update(&wanted).await;
        let adopted = adopted.expect("an adoption can be repeated");
        assert_eq!(
            (adopted.id.as_str(), adopted.name.as_str(), adopted.ordinal),
            ("db-7-abcde", "db-7", Some(7)),
            "{before:?}"
        );
        assert!(is_of(&adopted, &heir), "{adopted:?}");
    }
    let change = NodeChange {
        role: NodeRole::Standby.into(),
        set_labels: [("tier".to_owned(), "hot".to_owned())].into(),
        ..NodeChange::default()
    };
    let listed = || async {
        let nodes = heir.list(&heir.cluster, 0).await;
        nodes
            .into_iter()
            .find(|node| node.node_id == node_id && is_of(node, &heir))
    };
    let node = until(subject, "it is listed as the heir's", listed).await;
    if heir.can(Capability::UpdateNode) {
        let changed = heir.update(&self::change(&heir, &node, change)).await;
        let changed = changed.expect("it can be changed as any other");
        assert_eq!(changed.role(), NodeRole::Standby);
        assert_eq!(changed.labels.get("tier").map(String::as_str), Some("hot"));
    }
    until(subject, "it is removed", || async {
        let removal = DeprovisionRequest {
            expected_platform_uid: heir.platform.uid.clone(),
            fence: Some(heir.fence()),
            request_id: Uuid::new_v4().to_string(),
            owner: heir.owner.to_string(),
            cluster_id: heir.cluster.clone(),
            node_request_id: node.slot.as_ref()?.request_id.clone(),
            index: Some(0),
            node_id: node_id.clone(),
            ..DeprovisionRequest::default()
        };
        let answer = heir.deprovision(&removal).await.expect("it is removed");
        (answer.state() == DeprovisionState::Gone).then_some(())
    })
    .await;
}
