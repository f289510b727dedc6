use drover_core::Reason;
use drover_proto::platform::v1::{DeprovisionRequest, DeprovisionState, NodePhase};
use uuid::Uuid;

use super::{
    Subject,
    fixture::{Fixture, exists, ids, refused, until},
};

pub(super) async fn each_wrong_field_leaves_the_node_alone(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let (request, nodes) = fixture.make(2).await;
    fixture.until_listed(&nodes).await;
    let right = fixture.removal(&request, &nodes[0]);
    let other = || Uuid::new_v4().to_string();
    let wrongs = [
        (
            "owner",
            Reason::NodeNotInCluster,
            DeprovisionRequest {
                owner: other(),
                ..right.clone()
            },
        ),
        (
            "cluster",
            Reason::NodeNotInCluster,
            DeprovisionRequest {
                cluster_id: "another".to_owned(),
                ..right.clone()
            },
        ),
        (
            "request",
            Reason::SlotMismatch,
            DeprovisionRequest {
                node_request_id: other(),
                ..right.clone()
            },
        ),
        (
            "index",
            Reason::SlotMismatch,
            DeprovisionRequest {
                index: Some(1),
                ..right.clone()
            },
        ),
        (
            "node id",
            Reason::SlotMismatch,
            DeprovisionRequest {
                node_id: nodes[1].node_id.clone(),
                ..right.clone()
            },
        ),
    ];
    for (what, reason, wrong) in wrongs {
        if what == "node id" && nodes.len() < 2 {
            continue;
        }
        refused(fixture.deprovision(&wrong).await, reason, what);
    }
    let listed = fixture.until_listed(&nodes).await;
    assert!(
        listed
            .iter()
            .all(|node| node.phase() != NodePhase::Deprovisioning),
        "nothing was touched"
    );
    fixture.clean().await;
}

pub(super) async fn a_removed_node_goes_and_stays_gone(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let (request, nodes) = fixture.make(2).await;
    fixture.until_listed(&nodes).await;
    let removal = fixture.removal(&request, &nodes[0]);
    for _ in 0..3 {
        let answer = fixture
            .deprovision(&removal)
            .await
            .expect("a removal can be repeated");
        assert_ne!(answer.state(), DeprovisionState::Unspecified);
    }
    until(subject, "the node is gone", || async {
        fixture
            .nodes()
            .await
            .iter()
            .all(|node| node.node_id != nodes[0].node_id || !exists(node))
            .then_some(())
    })
    .await;
    let again = fixture
        .deprovision(&removal)
        .await
        .expect("a removal can be repeated");
    assert_ne!(again.state(), DeprovisionState::Unspecified);
    // One that has ended may be listed for a while, and once more by a list that lags.
    let others = ids(&nodes[1..]);
    until(
        subject,
        "the others are left alone and nothing replaces it",
        || async { (ids(&fixture.nodes().await) == others).then_some(()) },
    )
    .await;
    fixture.clean().await;
}

pub(super) async fn an_absent_node_is_gone(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let request = fixture.request(1);
    let removal = DeprovisionRequest {
        expected_platform_uid: fixture.platform.uid.clone(),
        fence: Some(fixture.fence()),
        request_id: Uuid::new_v4().to_string(),
        owner: request.owner,
        cluster_id: fixture.cluster.clone(),
        node_request_id: request.request_id,
        index: Some(0),
        node_id: "no-such-node".to_owned(),
        ..DeprovisionRequest::default()
    };
    let answer = fixture
        .deprovision(&removal)
        .await
        .expect("what is not there is gone");
    assert_eq!(answer.state(), DeprovisionState::Gone);
}

pub(super) async fn wrong_fields_of_a_removal_are_named(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let (request, nodes) = fixture.make(1).await;
    let wrongs: &[(&str, fn(&mut DeprovisionRequest))] = &[
        ("fence", |request| request.fence = None),
        ("request_id", |request| request.request_id.clear()),
        ("owner", |request| request.owner = "me".to_owned()),
        ("cluster_id", |request| request.cluster_id.clear()),
        ("node_request_id", |request| request.node_request_id.clear()),
        ("index", |request| request.index = None),
        ("node_id", |request| request.node_id.clear()),
        ("grace_period", |request| {
            request.grace_period = Some(prost_types::Duration {
                seconds: -1,
                nanos: 0,
            });
        }),
    ];
    for (field, make_wrong) in wrongs {
        let mut removal = fixture.removal(&request, &nodes[0]);
        make_wrong(&mut removal);
        let error = refused(fixture.deprovision(&removal).await, Reason::Invalid, field);
        assert!(
            error.fields().iter().any(|wrong| wrong.field == *field),
            "{field} is named: {error:?}"
        );
    }
    fixture.until_listed(&nodes).await;
    fixture.clean().await;
}

pub(super) async fn foreign_nodes_are_listed_and_left_alone(subject: &Subject) {
    let Some(make_foreign) = &subject.make_foreign else {
        return;
    };
    let fixture = Fixture::new(subject).await;
    let (cluster_id, node_id) = make_foreign().await;
    let listed = || async {
        let nodes = fixture.list("", 0).await;
        nodes
            .into_iter()
            .find(|node| node.node_id == node_id && node.cluster_id == cluster_id)
    };
    let node = until(subject, "the foreign node is listed", listed).await;
    let owner = node.slot.map(|slot| slot.owner).unwrap_or_default();
    assert_eq!(owner, "", "a foreign node has no owner");
    let request = fixture.request(1);
    let removal = DeprovisionRequest {
        expected_platform_uid: fixture.platform.uid.clone(),
        fence: Some(fixture.fence()),
        request_id: Uuid::new_v4().to_string(),
        owner: request.owner,
        cluster_id: fixture.cluster.clone(),
        node_request_id: request.request_id,
        index: Some(0),
        node_id: node_id.clone(),
        ..DeprovisionRequest::default()
    };
    refused(
        fixture.deprovision(&removal).await,
        Reason::NodeNotInCluster,
        "a foreign node",
    );
    let node = listed().await.expect("it is still there");
    assert_ne!(
        node.phase(),
        NodePhase::Deprovisioning,
        "nothing was touched"
    );
}
