//! Callers with a scope: what is outside of it is not there for them, and is not changed.

use std::time::Duration;

use drover_core::Reason;
use drover_proto::orchestrator::v1 as pb;

use super::{Door, labelled};
use crate::api::support::{Clusters, refused};

async fn names(client: &mut Clusters) -> Vec<String> {
    let answer = client
        .list_clusters(pb::ListClustersRequest::default())
        .await
        .unwrap()
        .into_inner();
    answer.clusters.into_iter().map(|one| one.name).collect()
}

#[tokio::test]
async fn what_is_outside_of_a_scope_is_not_there_and_is_not_changed() {
    let door = Door::new().await;
    let mut admin = door.of("admin");
    for name in ["orders-eu", "carts"] {
        admin.apply_cluster(labelled(name, &[])).await.unwrap();
        door.world.ready(name).await;
    }
    assert_eq!(names(&mut admin).await, ["carts", "orders-eu"]);
    let mut orders = door.of("orders");
    assert_eq!(names(&mut orders).await, ["orders-eu"]);

    // Reads fail exactly as for clusters that do not exist.
    let get = |name: &str| pb::GetClusterRequest {
        name: name.into(),
        ..Default::default()
    };
    orders.get_cluster(get("orders-eu")).await.unwrap();
    let hidden = refused(orders.get_cluster(get("carts")).await, Reason::NotFound);
    let absent = refused(orders.get_cluster(get("stuff")).await, Reason::NotFound);
    assert_eq!(
        hidden.message().replace("carts", "X"),
        absent.message().replace("stuff", "X")
    );
    assert_eq!(hidden.details().len(), absent.details().len());
    let nodes = |cluster: Option<&str>| pb::ListNodesRequest {
        cluster: cluster.map(Into::into),
        ..Default::default()
    };
    refused(
        orders.list_nodes(nodes(Some("carts"))).await,
        Reason::NotFound,
    );
    let seen = orders.list_nodes(nodes(None)).await.unwrap().into_inner();
    assert!(!seen.nodes.is_empty() && seen.nodes.iter().all(|node| node.cluster == "orders-eu"));
    let id = &admin
        .list_nodes(nodes(Some("carts")))
        .await
        .unwrap()
        .into_inner()
        .nodes[0]
        .id;
    let node = pb::GetNodeRequest {
        cluster: "carts".into(),
        id: id.clone(),
        ..Default::default()
    };
    refused(orders.get_node(node).await, Reason::NotFound);
    let events = pb::ListEventsRequest {
        cluster: "carts".into(),
        ..Default::default()
    };
    refused(orders.list_events(events).await, Reason::NotFound);
    let watch = pb::WatchEventsRequest {
        cluster: "carts".into(),
        ..Default::default()
    };
    refused(orders.watch_events(watch).await.map(drop), Reason::NotFound);
    let logs = pb::StreamNodeLogsRequest {
        cluster: "carts".into(),
        id: id.clone(),
        ..Default::default()
    };
    refused(
        orders.stream_node_logs(logs).await.map(drop),
        Reason::NotFound,
    );
    let plan = pb::PlanClusterRequest {
        subject: Some(pb::plan_cluster_request::Subject::Name("carts".into())),
        ..Default::default()
    };
    refused(orders.plan_cluster(plan).await, Reason::NotFound);
    let plan = pb::PlanClusterRequest {
        subject: labelled("carts", &[])
            .cluster
            .map(pb::plan_cluster_request::Subject::Cluster),
        ..Default::default()
    };
    refused(orders.plan_cluster(plan).await, Reason::NotFound);

    // Changes fail alike, whether the cluster exists or not.
    refused(
        orders.apply_cluster(labelled("carts", &[])).await,
        Reason::PermissionDenied,
    );
    refused(
        orders.apply_cluster(labelled("fresh", &[])).await,
        Reason::PermissionDenied,
    );
    let delete = |name: &str| pb::DeleteClusterRequest {
        name: name.into(),
        ..Default::default()
    };
    refused(
        orders.delete_cluster(delete("carts")).await,
        Reason::PermissionDenied,
    );
    refused(
        orders.delete_cluster(delete("nothing")).await,
        Reason::PermissionDenied,
    );
    refused(
        orders.delete_cluster(delete("orders-no")).await,
        Reason::NotFound,
    );
    let scale = pb::ScaleGroupRequest {
        cluster: "carts".into(),
        group: "db".into(),
        size: Some(0),
        ..Default::default()
    };
    refused(orders.scale_group(scale).await, Reason::PermissionDenied);
    let pause = pb::PauseClusterRequest {
        name: "carts".into(),
        ..Default::default()
    };
    refused(orders.pause_cluster(pause).await, Reason::PermissionDenied);
    let replace = pb::ReplaceNodeRequest {
        cluster: "carts".into(),
        id: id.clone(),
    };
    refused(orders.replace_node(replace).await, Reason::PermissionDenied);
    let give_up = pb::FailOverGroupRequest {
        cluster: "carts".into(),
        group: "db".into(),
        accept_loss: true,
    };
    refused(
        orders.fail_over_group(give_up).await,
        Reason::PermissionDenied,
    );
    let start = pb::exec_node_request::Input::Start(pb::ExecNodeStart {
        cluster: "carts".into(),
        id: id.clone(),
        command: vec!["true".into()],
        ..Default::default()
    });
    let exec = pb::ExecNodeRequest { input: Some(start) };
    refused(
        orders
            .exec_node(futures::stream::iter([exec]))
            .await
            .map(drop),
        Reason::NotFound,
    );

    // Within the scope, everything works.
    orders
        .apply_cluster(labelled("orders-us", &[]))
        .await
        .unwrap();
    orders.delete_cluster(delete("orders-eu")).await.unwrap();
    assert!(names(&mut admin).await.contains(&"carts".to_owned()));
    door.stop().await;
}

#[tokio::test]
async fn a_scope_of_labels_neither_takes_nor_gives_away() {
    let door = Door::new().await;
    let (mut admin, mut shop) = (door.of("admin"), door.of("shop"));
    let ours = [("team", "shop")];
    shop.apply_cluster(labelled("ours", &ours)).await.unwrap();
    admin.apply_cluster(labelled("theirs", &[])).await.unwrap();
    assert_eq!(names(&mut shop).await, ["ours"]);
    for (name, labels) in [
        ("fresh", &[][..]),
        ("fresh", &[("team", "bank")]),
        ("theirs", &ours),
        ("ours", &[]),
    ] {
        refused(
            shop.apply_cluster(labelled(name, labels)).await,
            Reason::PermissionDenied,
        );
    }

    // A watch shows clusters that enter the scope and those that leave it.
    let mut watch = shop
        .watch_clusters(pb::WatchClustersRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut seen = std::collections::BTreeSet::new();
    let mut follow = async |wanted: &[&str]| {
        use pb::watch_clusters_response::Event;
        let patience = Duration::from_secs(30);
        let all = async {
            while seen.iter().map(String::as_str).collect::<Vec<_>>() != wanted {
                match watch.message().await.unwrap().unwrap().event {
                    Some(Event::Upserts(upserts)) => {
                        seen.extend(upserts.clusters.into_iter().map(|one| one.name));
                    }
                    Some(Event::Removals(gone)) => {
                        for name in &gone.names {
                            seen.remove(name);
                        }
                    }
                    _ => {}
                }
            }
        };
        tokio::time::timeout(patience, all).await.unwrap();
    };
    follow(&["ours"]).await;
    admin
        .apply_cluster(labelled("theirs", &ours))
        .await
        .unwrap();
    follow(&["ours", "theirs"]).await;
    admin.apply_cluster(labelled("ours", &[])).await.unwrap();
    follow(&["theirs"]).await;
    assert_eq!(names(&mut shop).await, ["theirs"]);
    door.stop().await;
}

/// Remnants of a deleted cluster have labels of their own, which are no longer known.
#[tokio::test]
async fn a_name_that_is_used_again_gives_no_access_to_what_an_earlier_cluster_left() {
    let door = Door::new().await;
    let (mut admin, mut shop) = (door.of("admin"), door.of("shop"));
    let stored = |labels: &[(&str, &str)]| {
        let mut request = labelled("till", labels);
        let spec = request.cluster.as_mut().unwrap().spec.as_mut().unwrap();
        spec.groups[0].storage = Some(pb::StorageSpec::default());
        request
    };
    admin
        .apply_cluster(stored(&[("team", "bank")]))
        .await
        .unwrap();
    door.world.ready("till").await;
    let delete = pb::DeleteClusterRequest {
        name: "till".into(),
        ..Default::default()
    };
    admin.delete_cluster(delete).await.unwrap();
    door.world.gone("till").await;
    shop.apply_cluster(stored(&[("team", "shop")]))
        .await
        .unwrap();
    let kept = async |who: &str| {
        let request = pb::ListStorageRequest::default();
        let answer = door.platforms(who).list_storage(request).await.unwrap();
        answer.into_inner().storage
    };
    let left = kept("admin").await;
    assert!(!left.is_empty());
    assert_eq!(kept("shop").await, []);
    let one = left[0].storage.clone().unwrap();
    let delete = || pb::DeleteStorageRequest {
        platform: left[0].platform.clone(),
        id: one.id.clone(),
        owner: one.owner.clone(),
        cluster: one.cluster_id.clone(),
        group: one.group.clone(),
        ordinal: Some(one.ordinal),
    };
    refused(
        door.platforms("shop").delete_storage(delete()).await,
        Reason::PermissionDenied,
    );
    assert_eq!(kept("admin").await, left);
    door.platforms("admin")
        .delete_storage(delete())
        .await
        .unwrap();

    // Nor are foreign nodes adopted on the basis of labels that only the caller assigns.
    let adopting = |name: &str| pb::ApplyClusterRequest {
        adopt: true,
        ..labelled(name, &[("team", "shop")])
    };
    refused(
        shop.apply_cluster(adopting("unknown")).await,
        Reason::PermissionDenied,
    );
    door.of("orders")
        .apply_cluster(adopting("orders-old"))
        .await
        .unwrap();
    door.stop().await;
}

#[tokio::test]
async fn who_loses_sight_of_a_cluster_loses_its_logs_and_its_shells() {
    let door = Door::new().await;
    let (mut admin, mut shop) = (door.of("admin"), door.of("shop"));
    shop.apply_cluster(labelled("ours", &[("team", "shop")]))
        .await
        .unwrap();
    door.world.ready("ours").await;
    let id = door.world.nodes("ours").await[0].id.clone();
    let follow = pb::StreamNodeLogsRequest {
        cluster: "ours".into(),
        id: id.clone(),
        follow: true,
        ..Default::default()
    };
    let mut logs = shop.stream_node_logs(follow).await.unwrap().into_inner();
    let start = pb::exec_node_request::Input::Start(pb::ExecNodeStart {
        cluster: "ours".into(),
        id,
        command: vec!["sleep".into(), "3600".into()],
        ..Default::default()
    });
    let exec = pb::ExecNodeRequest { input: Some(start) };
    let mut shell = shop
        .exec_node(futures::stream::iter([exec]))
        .await
        .unwrap()
        .into_inner();
    admin.apply_cluster(labelled("ours", &[])).await.unwrap();
    let patience = Duration::from_secs(30);
    let ended = async {
        loop {
            if let Err(status) = logs.message().await.map(Option::unwrap) {
                break status;
            }
        }
    };
    let ended = tokio::time::timeout(patience, ended).await.unwrap();
    refused(Err::<(), _>(ended), Reason::NotFound);
    let ended = tokio::time::timeout(patience, shell.message()).await;
    refused(ended.unwrap(), Reason::NotFound);
    door.stop().await;
}
