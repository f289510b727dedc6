use std::collections::BTreeSet;

use drover_core::Reason;
use drover_proto::{
    common::v1::{LabelOperator, LabelRequirement, LabelSelector},
    orchestrator::v1 as pb,
};

use crate::api::support::{World, changed, document, invalid, metadata, refused};

#[tokio::test]
async fn pages_of_1200_clusters_hold_each_once_in_order() {
    let world = World::new().await;
    for n in 0..1200 {
        let mut cluster = document(&format!("c-{n:04}"), &[("db", 0)]);
        cluster.labels.insert("third".into(), (n % 3).to_string());
        world.apply(cluster).await.unwrap();
    }
    let mut clusters = world.clusters();
    for (page_size, pages) in [(0, 3), (500, 3), (1000, 2), (5000, 2), (333, 4)] {
        let mut request = pb::ListClustersRequest {
            page_size,
            ..Default::default()
        };
        let (mut names, mut count) = (Vec::new(), 0);
        loop {
            let answer = clusters
                .list_clusters(request.clone())
                .await
                .unwrap()
                .into_inner();
            count += 1;
            assert!(answer.clusters.iter().all(|cluster| cluster.spec.is_none()));
            names.extend(answer.clusters.into_iter().map(|cluster| cluster.name));
            if answer.next_page_token.is_empty() {
                break;
            }
            request.page_token = answer.next_page_token;
        }
        assert_eq!((names.len(), count), (1200, pages), "{page_size}");
        assert!(names.is_sorted());
    }
    let selector = LabelSelector {
        match_expressions: vec![LabelRequirement {
            key: "third".into(),
            operator: LabelOperator::NotIn.into(),
            values: vec!["1".into(), "2".into()],
        }],
        ..Default::default()
    };
    let request = pb::ListClustersRequest {
        selector: Some(selector),
        page_size: 1000,
        ..Default::default()
    };
    assert_eq!(
        clusters
            .list_clusters(request)
            .await
            .unwrap()
            .into_inner()
            .clusters
            .len(),
        400
    );
    world.stop().await;
}

#[tokio::test]
async fn a_page_ends_at_a_mebibyte() {
    let world = World::new().await;
    for n in 0..20 {
        let big = changed(document(&format!("c-{n:02}"), &[("db", 0)]), |spec| {
            let kind = prost_types::value::Kind::StringValue("x".repeat(100_000));
            let text = prost_types::Value { kind: Some(kind) };
            spec.attributes = Some(prost_types::Struct {
                fields: [("a".to_owned(), text)].into(),
            });
        });
        world.apply(big).await.unwrap();
    }
    let mut request = pb::ListClustersRequest {
        view: pb::ClusterView::Full.into(),
        ..Default::default()
    };
    let mut names = Vec::new();
    loop {
        let answer = world
            .clusters()
            .list_clusters(request.clone())
            .await
            .unwrap()
            .into_inner();
        assert!(answer.clusters.len() <= 10, "{}", answer.clusters.len());
        assert!(answer.clusters.iter().all(|cluster| cluster.spec.is_some()));
        names.extend(answer.clusters.into_iter().map(|cluster| cluster.name));
        if answer.next_page_token.is_empty() {
            break;
        }
        request.page_token = answer.next_page_token;
    }
    assert_eq!(names.len(), 20);
    world.stop().await;
}

#[tokio::test]
async fn pages_of_nodes_lose_none_whatever_clusters_are_called() {
    let world = World::new().await;
    // Names with common prefixes, whose next character sorts below or above any separator.
    let names = ["a", "a-b", "a.b", "a0", "ab", "a_b"];
    for name in names {
        world.apply(document(name, &[("db", 3)])).await.unwrap();
    }
    for name in names {
        world.ready(name).await;
    }
    for page_size in 1..=5 {
        let mut request = pb::ListNodesRequest {
            page_size,
            ..Default::default()
        };
        let mut seen = Vec::new();
        loop {
            let answer = world
                .clusters()
                .list_nodes(request.clone())
                .await
                .unwrap()
                .into_inner();
            seen.extend(
                answer
                    .nodes
                    .into_iter()
                    .map(|node| format!("{}/{}", node.cluster, node.id)),
            );
            if answer.next_page_token.is_empty() {
                break;
            }
            request.page_token = answer.next_page_token;
        }
        assert_eq!(
            (seen.len(), seen.iter().collect::<BTreeSet<_>>().len()),
            (18, 18),
            "pages of {page_size}"
        );
    }
    world.stop().await;
}

#[tokio::test]
async fn nodes_are_selected_by_cluster_group_and_platform() {
    let world = World::new().await;
    let nested = changed(
        document("orders", &[("data", 0), ("database", 1)]),
        |spec| {
            let leaf = |name: &str| pb::GroupSpec {
                name: name.into(),
                size: Some(2),
                ..Default::default()
            };
            spec.groups[0].size = None;
            spec.groups[0].groups = vec![leaf("hot"), leaf("cold")];
        },
    );
    world.apply(nested).await.unwrap();
    world.ready("orders").await;
    let count = async |group: &str, platform: Option<&str>| {
        let request = pb::ListNodesRequest {
            cluster: Some("orders".into()),
            group: (!group.is_empty()).then(|| group.to_owned()),
            platform: platform.map(ToOwned::to_owned),
            ..Default::default()
        };
        world
            .clusters()
            .list_nodes(request)
            .await
            .map(|answer| answer.into_inner().nodes.len())
    };
    assert_eq!(count("", None).await.unwrap(), 5);
    assert_eq!(count("data", None).await.unwrap(), 4);
    assert_eq!(count("data/hot", Some("sim")).await.unwrap(), 2);
    assert_eq!(count("", Some("other")).await.unwrap(), 0);
    let status = refused(count("nothing", None).await, Reason::NotFound);
    let error = drover_convert::error::from_status(&status);
    assert_eq!(error.resource(), Some(("group", "orders/nothing")));
    let request = pb::ListNodesRequest {
        group: Some("data".into()),
        ..Default::default()
    };
    invalid(world.clusters().list_nodes(request).await, "group");

    let node = &world.nodes("orders").await[0];
    for id in [&node.id, &node.name] {
        let request = pb::GetNodeRequest {
            cluster: "orders".into(),
            id: id.clone(),
            ..Default::default()
        };
        let found = world
            .clusters()
            .get_node(request)
            .await
            .unwrap()
            .into_inner()
            .node
            .unwrap();
        assert_eq!((&found.id, found.state()), (&node.id, pb::NodeState::Ready));
    }
    world.stop().await;
}

#[tokio::test]
async fn page_sizes_tokens_and_views_that_cannot_be_are_refused() {
    let world = World::new().await;
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    let (mut clusters, mut platforms) = (world.clusters(), world.platforms());
    let list = pb::ListClustersRequest::default;
    invalid(
        clusters
            .list_clusters(pb::ListClustersRequest {
                page_size: -1,
                ..list()
            })
            .await,
        "page_size",
    );
    invalid(
        clusters
            .list_clusters(pb::ListClustersRequest { view: 9, ..list() })
            .await,
        "view",
    );
    let token = pb::ListClustersRequest {
        page_token: "nonsense".into(),
        ..list()
    };
    refused(
        clusters.list_clusters(token).await,
        Reason::PageTokenExpired,
    );
    let requirement = LabelRequirement {
        key: "a".into(),
        operator: 9,
        values: Vec::new(),
    };
    let selector = LabelSelector {
        match_expressions: vec![requirement],
        ..Default::default()
    };
    let selected = pb::ListClustersRequest {
        selector: Some(selector.clone()),
        ..list()
    };
    invalid(
        clusters.list_clusters(selected).await,
        "selector.match_expressions[0].operator",
    );
    let watch = pb::WatchClustersRequest {
        selector: Some(selector),
        ..Default::default()
    };
    invalid(
        clusters.watch_clusters(watch).await.map(drop),
        "selector.match_expressions[0].operator",
    );
    let negative = prost_types::Duration {
        seconds: -1,
        nanos: 0,
    };
    let watch = pb::WatchClustersRequest {
        heartbeat_interval: Some(negative),
        ..Default::default()
    };
    invalid(
        clusters.watch_clusters(watch).await.map(drop),
        "heartbeat_interval",
    );
    let nodes = pb::ListNodesRequest {
        page_size: -1,
        ..Default::default()
    };
    invalid(clusters.list_nodes(nodes).await, "page_size");
    let nodes = pb::ListNodesRequest {
        page_token: "x".into(),
        ..Default::default()
    };
    refused(clusters.list_nodes(nodes).await, Reason::PageTokenExpired);
    let events = |page_token: &str| pb::ListEventsRequest {
        cluster: "orders".into(),
        page_token: page_token.into(),
        ..Default::default()
    };
    refused(
        clusters.list_events(events("x")).await,
        Reason::PageTokenExpired,
    );
    refused(
        clusters.list_events(events("after:x")).await,
        Reason::PageTokenExpired,
    );
    let listed = pb::ListPlatformsRequest {
        page_size: -1,
        ..Default::default()
    };
    invalid(platforms.list_platforms(listed).await, "page_size");
    let hosts = pb::ListHostsRequest {
        platform: "sim".into(),
        page_size: -1,
        ..Default::default()
    };
    invalid(platforms.list_hosts(hosts).await, "page_size");
    let discovered = pb::ListDiscoveredClustersRequest {
        page_token: "x".into(),
        ..Default::default()
    };
    refused(
        platforms.list_discovered_clusters(discovered).await,
        Reason::PageTokenExpired,
    );
    world.stop().await;
}

#[tokio::test]
async fn a_read_shows_at_least_the_revision_that_it_names() {
    let world = World::new().await;
    for size in 1..20 {
        let answer = world
            .apply(document("orders", &[("db", size)]))
            .await
            .unwrap();
        let request = pb::GetClusterRequest {
            name: "orders".into(),
            min_revision: Some(answer.revision),
        };
        let read = world
            .clusters()
            .get_cluster(request)
            .await
            .unwrap()
            .into_inner();
        assert!(read.revision >= answer.revision);
        assert_eq!(
            read.cluster.unwrap().spec.unwrap().groups[0].size,
            Some(size)
        );
    }
    let never = Some(u64::MAX / 2);
    let mut clusters = world.clusters();
    let request = pb::GetClusterRequest {
        name: "orders".into(),
        min_revision: never,
    };
    let status = refused(clusters.get_cluster(request).await, Reason::StoreRestored);
    assert!(metadata(&status, "revision").is_some());
    let request = pb::ListNodesRequest {
        min_revision: never,
        ..Default::default()
    };
    refused(clusters.list_nodes(request).await, Reason::StoreRestored);
    let request = pb::WatchClustersRequest {
        min_revision: never,
        ..Default::default()
    };
    refused(
        clusters.watch_clusters(request).await.map(drop),
        Reason::StoreRestored,
    );
    let request = pb::ListPlatformsRequest {
        min_revision: never,
        ..Default::default()
    };
    refused(
        world.platforms().list_platforms(request).await,
        Reason::StoreRestored,
    );
    world.stop().await;
}

#[tokio::test]
async fn logs_and_commands_go_through_to_the_platform_in_order() {
    let world = World::new().await;
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.ready("orders").await;
    let mut clusters = world.clusters();
    let logs = |id: &str| pb::StreamNodeLogsRequest {
        cluster: "orders".into(),
        id: id.into(),
        ..Default::default()
    };
    refused(
        clusters.stream_node_logs(logs("nothing")).await.map(drop),
        Reason::NotFound,
    );
    let name = world.nodes("orders").await[0].name.clone();
    let mut log = clusters
        .stream_node_logs(logs(&name))
        .await
        .unwrap()
        .into_inner();
    while let Some(piece) = log.message().await.unwrap() {
        assert!(piece.chunk.is_some());
    }
    let exec = |input| futures::stream::iter([pb::ExecNodeRequest { input }]);
    let start = |command: &[&str]| pb::ExecNodeStart {
        cluster: "orders".into(),
        id: name.clone(),
        command: command.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    use pb::exec_node_request::Input;
    invalid(clusters.exec_node(exec(None)).await.map(drop), "input");
    let closed = Input::StdinClosed(drover_proto::common::v1::StdinClosed {});
    invalid(
        clusters.exec_node(exec(Some(closed))).await.map(drop),
        "input",
    );
    invalid(
        clusters
            .exec_node(exec(Some(Input::Start(start(&[])))))
            .await
            .map(drop),
        "start.command",
    );
    let mut outputs = clusters
        .exec_node(exec(Some(Input::Start(start(&["true"])))))
        .await
        .unwrap()
        .into_inner();
    let mut last = None;
    while let Some(answer) = outputs.message().await.unwrap() {
        last = answer.output.unwrap().output;
    }
    assert_eq!(
        last,
        Some(drover_proto::common::v1::process_output::Output::ExitCode(
            0
        ))
    );

    // A second start is out of order, whatever the command does meanwhile.
    let message = |input| pb::ExecNodeRequest { input: Some(input) };
    let attached = pb::ExecNodeStart {
        stdin: true,
        ..start(&["cat"])
    };
    let twice = [
        message(Input::Start(attached.clone())),
        message(Input::Start(attached)),
    ];
    let twice = futures::StreamExt::chain(futures::stream::iter(twice), futures::stream::pending());
    let ended = match clusters.exec_node(twice).await {
        Err(status) => status,
        Ok(outputs) => {
            let mut outputs = outputs.into_inner();
            loop {
                match outputs.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("it ended without an error"),
                    Err(status) => break status,
                }
            }
        }
    };
    invalid(Err::<(), _>(ended), "input");
    world.stop().await;
}
