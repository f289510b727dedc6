//! Behaviour of a platform required by the specification.

use std::collections::HashSet;

use drover_platform::identity::Identity;
use drover_platform_cloud::drivers::simulated::{Death, SimulatedSettings};
use drover_proto::platform::v1::{Node, Storage};
use drover_replicante::{OWNER, ReplicanteSettings};
use futures::future::join_all;
use serde_json::json;
use uuid::Uuid;

use crate::replicante::client::{SDK, SPECIFICATION, Site, until};

fn ordinals(nodes: &[Node]) -> Vec<u32> {
    let mut ordinals: Vec<_> = nodes.iter().map(|node| node.ordinal.unwrap()).collect();
    ordinals.sort_unstable();
    ordinals
}

/// The identity of a node with an orchestrator.
fn managed(cluster: &str) -> Identity {
    Identity {
        owner: Uuid::new_v4().to_string(),
        cluster_id: cluster.to_owned(),
        group: "data".to_owned(),
        request_id: Uuid::new_v4().to_string(),
        sequence: 1,
        spec_hash: "x".to_owned(),
        id: "data-0-aaaaa".to_owned(),
        name: "data-0".to_owned(),
        ..Identity::default()
    }
}

#[tokio::test]
async fn a_client_of_the_sdk_provisions_discovers_and_deprovisions() {
    let site = Site::new().await;
    assert_eq!(site.discover().await, json!({"clusters": []}));
    let ids = site.provision(SDK).await.made();
    assert_eq!(ids.len(), 2);

    let made = site.simulated().nodes();
    assert_eq!(ordinals(&made), [0, 1]);
    for node in &made {
        let slot = node.slot.clone().unwrap();
        assert_eq!(slot.owner, OWNER.to_string(), "an owner of its own");
        assert_eq!(
            (node.cluster_id.as_str(), node.group.as_str()),
            ("orders", "data")
        );
        assert_eq!(
            (node.version.as_str(), node.node_class.as_str()),
            ("4.2.1", "large")
        );
        assert!(
            node.id.starts_with(&format!("{}-", node.name)),
            "{}",
            node.id
        );
    }
    let listed = |id: &String, address: &str| json!({"agent_address": address, "node_class": "large", "node_group": "data", "node_id": id});
    let addresses: Vec<_> = made.iter().map(|node| node.agent_address.clone()).collect();
    let expected: Vec<_> = ids
        .iter()
        .zip(&addresses)
        .map(|(id, address)| {
            listed(
                id,
                address
                    .as_deref()
                    .unwrap_or("http://address-unknown.invalid"),
            )
        })
        .collect();
    let found = site.discover().await;
    assert_eq!(found["clusters"][0]["cluster_id"], "orders");
    assert_eq!(found["clusters"][0]["nodes"], json!(expected));

    let answer = site.deprovision("orders", &ids[0]).await;
    assert_eq!((answer.status, answer.body.as_str()), (204, ""));
    until("it is not discovered any more", async || {
        site.discovered("orders").await == ids[1..]
    })
    .await;
    let again = site.deprovision("orders", &ids[0]).await;
    assert_eq!(again.status, 204, "it can be repeated");
    let never = site.deprovision("orders", "never-there").await;
    assert_eq!(never.status, 204);

    let third = site.provision(SPECIFICATION).await.made();
    assert_eq!(third.len(), 1, "without a count it is one");
    assert!(!ids.contains(&third[0]), "ids are not used again");
    assert_eq!(
        ordinals(&site.simulated().nodes()),
        [0, 1],
        "the free ordinal is"
    );
}

#[tokio::test]
async fn the_written_specification_and_the_sdk_mean_the_same() {
    let site = Site::new().await;
    site.provision(SPECIFICATION).await.made();
    let sdk = SPECIFICATION
        .replace(r#""version""#, r#""store_version""#)
        .replace(
            r#""node_group_id": "data""#,
            r#""count": 1, "node_group": "data""#,
        );
    site.provision(&sdk).await.made();
    let cluster = SPECIFICATION
        .replace(r#""store_version""#, r#""version""#)
        .replace(r#""attributes": {}, "desired"#, r#""desired"#)
        .replace(r#""attributes": {},"#, "");
    site.provision(&cluster).await.made();
    let nodes = site.simulated().nodes();
    let hashes: HashSet<_> = nodes.iter().map(|node| &node.spec_hash).collect();
    assert_eq!((nodes.len(), hashes.len()), (3, 1));
    assert!(nodes.iter().all(|node| node.version == "4.2.1"));
    // A group without a version uses that of the cluster.
    site.provision(&SPECIFICATION.replace(r#", "version": "4.2.1""#, ""))
        .await
        .made();
    let versions = |version| {
        let nodes = site.simulated().nodes();
        nodes.iter().filter(|node| node.version == version).count()
    };
    assert_eq!(versions("4.0.5"), 1);
}

#[tokio::test]
async fn nodes_have_the_user_data_and_the_storage_of_their_group() {
    let site = Site::new().await;
    let group = r#""node_class": "large", "user_data": "hunter2", "storage": {"size": "1.5Gi", "class": "fast"}"#;
    let document = SPECIFICATION.replace(r#""node_class": "large""#, group);
    let ids = site.keyed("once", &document).await.made();
    let data = site.simulated().user_data(&ids[0]);
    assert_eq!(data.as_deref(), Some(b"hunter2".as_slice()));
    let (storage, holder) = site.simulated().storage().remove(0);
    let expected = Storage {
        size_bytes: Some(3 << 29),
        class: "fast".to_owned(),
    };
    assert_eq!(storage.storage, Some(expected));
    assert_eq!(holder.as_ref(), Some(&ids[0]));

    let larger = document.replace("1.5Gi", "2Gi");
    let body = site.keyed("once", &larger).await.refused(422);
    assert!(!body.to_string().contains("hunter2"), "{body}");

    assert_eq!(site.deprovision("orders", &ids[0]).await.status, 204);
    until("its storage is gone with it", async || {
        site.simulated().storage().is_empty()
    })
    .await;
}

#[tokio::test]
async fn discovery_lists_every_node_of_every_owner_and_health() {
    let site = Site::new().await;
    let ids = site.provision(SDK).await.made();
    let legacy = site.simulated().create_foreign("legacy", "old").unwrap();
    site.simulated().create_foreign("", "stray").unwrap();
    let other = site.simulated().create_as(managed("orders")).unwrap();
    site.simulated().kill(&ids[0], Death::Failed);
    until("it has failed", async || {
        let nodes = site.simulated().nodes();
        nodes.iter().any(|node| {
            node.node_id == ids[0] && node.phase() == drover_proto::platform::v1::NodePhase::Failed
        })
    })
    .await;
    let found = site.discover().await;
    let clusters: Vec<_> = found["clusters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cluster| cluster["cluster_id"].as_str().unwrap())
        .collect();
    assert_eq!(clusters, ["legacy", "orders"], "by name, and none without");
    let mut expected = ids.clone();
    expected.push(other.node_id);
    expected.sort_unstable();
    assert_eq!(site.discovered("orders").await, expected);
    let foreign = &found["clusters"][0]["nodes"][0];
    assert_eq!(foreign["node_id"], legacy.node_id);
    assert_eq!(foreign["node_class"], "", "the SDK requires it");
    assert!(foreign.get("node_group").is_none(), "{foreign}");
    // Clients expect a transport before the first colon.
    assert_eq!(foreign["agent_address"], "http://address-unknown.invalid");

    site.simulated().kill(&ids[1], Death::Terminated);
    until("what has ended for good is not listed", async || {
        !site.discovered("orders").await.contains(&ids[1])
    })
    .await;
    assert_eq!(site.deprovision("orders", &ids[1]).await.status, 204);
}

#[tokio::test]
async fn what_others_made_is_left_alone() {
    let site = Site::new().await;
    let foreign = site.simulated().create_foreign("orders", "old").unwrap();
    let other = site.simulated().create_as(managed("orders")).unwrap();
    for node in [&foreign, &other] {
        let answer = site.deprovision("orders", &node.node_id).await;
        let body = answer.refused(403);
        assert!(body["error_cause"].as_str().unwrap().contains("delete_any"));
    }
    assert_eq!(site.simulated().len(), 2);

    let ids = site.provision(SDK).await.made();
    let body = site.deprovision("payments", &ids[0]).await.refused(409);
    assert!(body["error_cause"].as_str().unwrap().contains("payments"));
    assert_eq!(site.simulated().len(), 4, "it is in another cluster");
}

#[tokio::test]
async fn an_option_lets_it_remove_what_others_made() {
    let replicante = ReplicanteSettings {
        delete_any: true,
        ..ReplicanteSettings::default()
    };
    let site = Site::over(SimulatedSettings::default(), replicante).await;
    let foreign = site.simulated().create_foreign("orders", "old").unwrap();
    let other = site.simulated().create_as(managed("orders")).unwrap();
    site.deprovision("payments", &other.node_id)
        .await
        .refused(409);
    for node in [&foreign, &other] {
        let answer = site.deprovision("orders", &node.node_id).await;
        assert_eq!(answer.status, 204, "{}", answer.body);
    }
    until("they are gone", async || site.simulated().is_empty()).await;
}

#[tokio::test]
async fn it_can_be_switched_off() {
    let replicante = ReplicanteSettings {
        enabled: false,
        ..ReplicanteSettings::default()
    };
    let site = Site::over(SimulatedSettings::default(), replicante).await;
    let answer = site.send("GET", "/discover", &[], b"").await;
    assert_eq!(answer.status, 404);
    assert_eq!(site.provision(SDK).await.status, 404);
    assert!(site.simulated().is_empty());
}

#[tokio::test]
async fn each_post_is_a_new_request_and_no_two_share_an_ordinal() {
    let settings = SimulatedSettings {
        latency: std::time::Duration::from_millis(20),
        ..SimulatedSettings::default()
    };
    let site = Site::with(settings).await;
    let answers = join_all((0..8).map(|_| site.provision(SDK))).await;
    let ids: HashSet<_> = answers.iter().flat_map(|answer| answer.made()).collect();
    assert_eq!(ids.len(), 16);
    let nodes = site.simulated().nodes();
    assert_eq!(ordinals(&nodes), Vec::from_iter(0..16));
    let unique: HashSet<_> = nodes.iter().map(|node| &node.id).collect();
    assert_eq!(unique.len(), 16, "ids of nodes have a random part");
}

#[tokio::test]
async fn a_count_above_what_the_platform_takes_at_once_makes_fewer() {
    let settings = SimulatedSettings {
        max_batch: 3,
        ..SimulatedSettings::default()
    };
    let site = Site::with(settings).await;
    let many = SDK.replace(r#""count": 2"#, r#""count": 65535"#);
    assert_eq!(site.provision(&many).await.made().len(), 3);
    let none = SDK.replace(r#""count": 2"#, r#""count": 0"#);
    assert_eq!(site.provision(&none).await.made().len(), 0);
    assert_eq!(site.simulated().len(), 3);
    let wrong = none.replace("orders", "no name at all");
    site.provision(&wrong).await.refused(400);
}
