use drover_client::PlatformClient;
use drover_core::Reason;
use drover_proto::platform::v1::{
    Capability, DeleteStorageRequest, DeprovisionRequest, KeptStorage, ListStorageRequest, Node,
    NodeChange, ProvisionRequest, Storage, update_node_request::Update,
};
use uuid::Uuid;

use super::{
    Subject,
    fixture::{Fixture, exists, partition, refused, until},
    requests,
};

/// A fixture on a platform that retains storage, with a request for one node that has some. `None` if the platform does
/// not retain storage, or its default template declares none.
async fn begin(subject: &Subject) -> Option<(Fixture<'_>, ProvisionRequest)> {
    let fixture = Fixture::new(subject).await;
    if !fixture.can(Capability::RetainStorage) || !fixture.can(Capability::Storage) {
        return None;
    }
    let mut request = fixture.request(1);
    request.storage = Some(Storage::default());
    let tried = ProvisionRequest {
        validate_only: true,
        ..request.clone()
    };
    match fixture.provision(&tried).await {
        Ok(_) => Some((fixture, request)),
        Err(error) => {
            assert_eq!(error.reason(), Reason::Precondition, "{error}");
            None
        }
    }
}

fn client(subject: &Subject) -> PlatformClient {
    PlatformClient::new((subject.connect)())
}

async fn made(fixture: &Fixture<'_>, request: &ProvisionRequest) -> Node {
    let answer = fixture
        .provision(request)
        .await
        .expect("a valid request is accepted");
    partition(request, &answer);
    assert_eq!(answer.failures, vec![], "a valid request makes its node");
    assert_eq!(answer.unknown, vec![], "a valid request makes its node");
    answer.nodes.into_iter().next().expect("one node")
}

/// The same place under another request, as for the successor of a node.
fn next(fixture: &Fixture<'_>, request: &ProvisionRequest) -> ProvisionRequest {
    let mut other = fixture.request(1);
    let ordinal = request.slots[0].ordinal;
    let request_id: Uuid = other.request_id.parse().expect("a UUID");
    let slot = &mut other.slots[0];
    slot.ordinal = ordinal;
    slot.name = drover_core::name::node_name("db", ordinal.unwrap_or_default());
    slot.id = drover_core::name::node_id(
        "db",
        ordinal.unwrap_or_default(),
        fixture.owner,
        request_id,
        0,
    );
    other.storage.clone_from(&request.storage);
    other
}

/// Removes a node and waits until it is gone. Returns the ids of the retained storage.
async fn remove(fixture: &Fixture<'_>, node: &Node, retain: bool) -> Vec<String> {
    let removal = DeprovisionRequest {
        retain_storage: retain,
        ..requests::removal(&fixture.platform.uid, fixture.fence(), node)
    };
    let answer = fixture
        .deprovision(&removal)
        .await
        .expect("an own node can be removed");
    until(fixture.subject, "the node is gone", || async {
        let listed = fixture.nodes().await;
        let left = listed.iter().filter(|node| exists(node)).count();
        (left == 0).then_some(())
    })
    .await;
    answer.retained_storage
}

async fn kept(fixture: &Fixture<'_>) -> Vec<KeptStorage> {
    let request = ListStorageRequest {
        expected_platform_uid: fixture.platform.uid.clone(),
        cluster_id: fixture.cluster.clone(),
        ..ListStorageRequest::default()
    };
    client(fixture.subject)
        .list_storage(request, fixture.subject.patience)
        .await
        .expect("kept storage can be listed")
}

fn deletion(fixture: &Fixture<'_>, storage: &KeptStorage) -> DeleteStorageRequest {
    DeleteStorageRequest {
        expected_platform_uid: fixture.platform.uid.clone(),
        fence: Some(fixture.fence()),
        id: storage.id.clone(),
        owner: storage.owner.clone(),
        cluster_id: storage.cluster_id.clone(),
        group: storage.group.clone(),
        ordinal: Some(storage.ordinal),
        ..DeleteStorageRequest::default()
    }
}

pub(super) async fn kept_storage_is_listed_and_attached_again(subject: &Subject) {
    let Some((fixture, request)) = begin(subject).await else {
        return;
    };
    let node = made(&fixture, &request).await;
    assert_eq!(kept(&fixture).await, vec![], "a node has it");
    let retained = remove(&fixture, &node, true).await;
    assert!(!retained.is_empty(), "it is said what was kept");
    assert_eq!(
        fixture.nodes().await.iter().filter(|it| exists(it)).count(),
        0,
        "kept storage is not a node"
    );
    let listed = kept(&fixture).await;
    let ids: Vec<&String> = listed.iter().map(|one| &one.id).collect();
    assert_eq!(ids, retained.iter().collect::<Vec<_>>());
    for one in &listed {
        assert_eq!(one.owner, request.owner);
        assert_eq!(one.cluster_id, fixture.cluster);
        assert_eq!(one.group, "db");
        assert_eq!(Some(one.ordinal), request.slots[0].ordinal);
        assert_eq!(one.store_id, fixture.store_id.to_string());
    }
    // The successor uses it, so it is not free any more.
    let follower = next(&fixture, &request);
    let node = made(&fixture, &follower).await;
    assert_eq!(kept(&fixture).await, vec![], "the node that follows has it");
    let again = remove(&fixture, &node, true).await;
    assert_eq!(again, retained, "it is the same storage");
    let follower = next(&fixture, &request);
    let node = made(&fixture, &follower).await;
    assert_eq!(remove(&fixture, &node, false).await, Vec::<String>::new());
    assert_eq!(kept(&fixture).await, vec![], "it went with its node");
}

pub(super) async fn storage_grows_under_its_node(subject: &Subject) {
    const GI: u64 = 1 << 30;
    let Some((fixture, mut request)) = begin(subject).await else {
        return;
    };
    request.storage = Some(Storage {
        size_bytes: Some(GI),
        ..Storage::default()
    });
    let node = made(&fixture, &request).await;
    let grow = async |size| {
        let change = NodeChange {
            storage_size_bytes: Some(size),
            spec_hash: format!("h1-{size}"),
            ..NodeChange::default()
        };
        let uid = &fixture.platform.uid;
        let request = requests::update(uid, fixture.fence(), &node, Update::Change(change));
        fixture.update(&request).await
    };
    if !fixture.can(Capability::GrowStorage) {
        refused(
            grow(2 * GI).await,
            Reason::CapabilityMissing,
            "no such capability",
        );
        return fixture.clean().await;
    }
    let error = grow(0).await.expect_err("nothing is no size");
    assert_eq!(error.fields()[0].field, "change.storage_size_bytes");
    for size in [2 * GI, 2 * GI, GI] {
        match grow(size).await {
            Ok(after) => {
                assert_eq!((&after.node_id, &after.slot), (&node.node_id, &node.slot));
                assert_eq!(after.spec_hash, format!("h1-{size}"));
            }
            // A volume that nobody has made yet cannot grow.
            Err(error) => {
                assert!(error.message().contains("has no volume yet"), "{error}");
                return fixture.clean().await;
            }
        }
    }
    remove(&fixture, &node, true).await;
    let listed = kept(&fixture).await;
    let storage = listed[0].storage.as_ref().expect("its size is known");
    assert_eq!(storage.size_bytes, Some(2 * GI), "it never shrinks");
    let client = client(subject);
    let deleted = client.delete_storage(deletion(&fixture, &listed[0]), subject.patience);
    deleted.await.expect("kept storage can be deleted");
}

pub(super) async fn storage_has_one_node_at_a_time(subject: &Subject) {
    let Some((fixture, request)) = begin(subject).await else {
        return;
    };
    let node = made(&fixture, &request).await;
    let second = next(&fixture, &request);
    match fixture.provision(&second).await {
        Ok(answer) => assert_eq!(answer.nodes, vec![], "two nodes with one storage"),
        Err(error) => assert_ne!(error.reason(), Reason::Internal, "{error}"),
    }
    remove(&fixture, &node, false).await;
    fixture.clean().await;
}

pub(super) async fn kept_storage_is_deleted_only_as_it_is_meant(subject: &Subject) {
    let Some((fixture, request)) = begin(subject).await else {
        return;
    };
    let node = made(&fixture, &request).await;
    let retained = remove(&fixture, &node, true).await;
    let listed = kept(&fixture).await;
    let right = deletion(&fixture, &listed[0]);
    let wrongs = [
        DeleteStorageRequest {
            owner: Uuid::new_v4().to_string(),
            ..right.clone()
        },
        DeleteStorageRequest {
            cluster_id: "another".to_owned(),
            ..right.clone()
        },
        DeleteStorageRequest {
            group: "other".to_owned(),
            ..right.clone()
        },
        DeleteStorageRequest {
            ordinal: right.ordinal.map(|ordinal| ordinal + 1),
            ..right.clone()
        },
    ];
    let client = client(subject);
    for wrong in wrongs {
        let outcome = client.delete_storage(wrong, subject.patience).await;
        refused(outcome, Reason::NodeNotInCluster, "another's storage");
    }
    assert_eq!(
        kept(&fixture).await.len(),
        retained.len(),
        "it was left alone"
    );
    // A node keeps the storage that it uses.
    let follower = next(&fixture, &request);
    let node = made(&fixture, &follower).await;
    let outcome = client.delete_storage(right, subject.patience).await;
    refused(outcome, Reason::Precondition, "storage that a node has");
    remove(&fixture, &node, true).await;
    for one in kept(&fixture).await {
        let request = deletion(&fixture, &one);
        for _ in 0..2 {
            client
                .delete_storage(request.clone(), subject.patience)
                .await
                .expect("kept storage can be deleted, and again");
        }
    }
    until(subject, "the storage is gone", || async {
        kept(&fixture).await.is_empty().then_some(())
    })
    .await;
    let mut unfenced = deletion(&fixture, &listed[0]);
    unfenced.fence = None;
    refused(
        client.delete_storage(unfenced, subject.patience).await,
        Reason::Invalid,
        "a deletion on nobody's behalf",
    );
}

pub(super) async fn storage_goes_with_an_adopted_node_to_the_one_that_follows(subject: &Subject) {
    let Some((former, request)) = begin(subject).await else {
        return;
    };
    if !former.can(Capability::Adopt) {
        return;
    }
    let mut heir = Fixture::new(subject).await;
    // Not every node can be moved to another cluster.
    heir.cluster.clone_from(&former.cluster);
    let node = made(&former, &request).await;
    let adoption = requests::adoption(
        &heir.platform.uid,
        heir.fence(),
        &node,
        (&heir.cluster, heir.owner),
    );
    let mut node = node;
    for _ in 0..2 {
        let adopted = heir.update(&adoption).await;
        node = adopted.expect("an adoption can be repeated");
    }
    assert_eq!(kept(&heir).await, vec![], "a node has it");
    let mut place = request.clone();
    place.slots[0].ordinal = node.ordinal;
    let retained = remove(&heir, &node, true).await;
    assert!(!retained.is_empty(), "it is said what was kept");
    let listed = kept(&heir).await;
    let ids: Vec<&String> = listed.iter().map(|one| &one.id).collect();
    assert_eq!(ids, retained.iter().collect::<Vec<_>>());
    for one in &listed {
        assert_eq!(one.owner, heir.owner.to_string(), "it is the heir's");
        assert_eq!(one.cluster_id, heir.cluster);
        assert_eq!(
            (one.group.as_str(), Some(one.ordinal)),
            ("db", node.ordinal)
        );
        assert_eq!(one.store_id, heir.store_id.to_string());
    }
    // Not only the next node, but every one after it.
    for _ in 0..2 {
        let node = made(&heir, &next(&heir, &place)).await;
        assert_eq!(kept(&heir).await, vec![], "the node that follows has it");
        let again = remove(&heir, &node, true).await;
        assert_eq!(again, retained, "it is the same storage");
    }
    let node = made(&heir, &next(&heir, &place)).await;
    remove(&heir, &node, false).await;
    assert_eq!(kept(&heir).await, vec![], "it went with its node");
}
