//! Access control: every call for every role, and which clusters each caller sees.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use drover_client::{Bearer, Channel, Target, connect};
use drover_core::Reason;
use drover_orchestrator::Orchestrator;
use drover_platform_cloud::drivers::simulated::SimulatedSettings;
use drover_proto::{DESCRIPTORS, orchestrator::v1 as pb};
use drover_server::{Role, Running, ServerSettings, Shutdown, access::permission};
use prost::Message;
use tempfile::TempDir;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::api::support::{Clusters, Platforms, World, document, refused, until};

const RULES: &str = "
tokens:
  - {name: viewer, token: viewer-0123456789abcdef}
  - {name: operator, token: operator-0123456789abcdef}
  - {name: admin, token: admin-0123456789abcdef}
  - {name: platform, token: platform-0123456789abcdef}
  - {name: agent, token: agent-0123456789abcdef}
  - {name: resource-viewer, token: resource-viewer-0123456789abcdef}
  - {name: resource-operator, token: resource-operator-0123456789abcdef}
  - {name: nobody, token: nobody-0123456789abcdef}
  - {name: orders, token: orders-0123456789abcdef}
  - {name: shop, token: shop-0123456789abcdef}
bindings:
  - {role: viewer, subjects: ['token:viewer']}
  - {role: operator, subjects: ['token:operator']}
  - {role: admin, subjects: ['token:admin']}
  - {role: platform, subjects: ['token:platform']}
  - {role: agent, subjects: ['token:agent']}
  - {role: resource-viewer, subjects: ['token:resource-viewer']}
  - {role: resource-operator, subjects: ['token:resource-operator']}
  - {role: operator, subjects: ['token:orders'], clusters: ['orders*']}
  - {role: operator, subjects: ['token:shop'], labels: {team: shop}}
";

/// An orchestrator with access control.
pub(crate) struct Door {
    pub(crate) world: World,
    running: Running,
    directory: TempDir,
}

pub(crate) fn token(name: &str) -> String {
    format!("{name}-0123456789abcdef")
}

impl Door {
    pub(crate) async fn new() -> Self {
        Self::with(SimulatedSettings::default(), RULES).await
    }

    /// With this access file.
    pub(crate) async fn with(settings: SimulatedSettings, text: &str) -> Self {
        let world = World::with(settings).await;
        let directory = TempDir::new().unwrap();
        let rules = directory.path().join("access.yaml");
        std::fs::write(&rules, text).unwrap();
        let settings = ServerSettings {
            access: Some(rules),
            audit_log: Some(directory.path().join("audit.jsonl")),
            ..ServerSettings::default()
        };
        let listener = drover_server::listen(&settings).await.unwrap();
        let service = Orchestrator::service(world.orchestrator.as_ref().unwrap());
        let running = drover_server::spawn(service, listener, &settings, Shutdown::new()).unwrap();
        Self {
            world,
            running,
            directory,
        }
    }

    pub(crate) fn audit(&self) -> PathBuf {
        self.directory.path().join("audit.jsonl")
    }

    pub(crate) fn channel(&self, token: Option<String>) -> Channel {
        let target: Target = format!("http://{}", self.running.address())
            .parse()
            .unwrap();
        connect(&match token {
            Some(token) => target.with_bearer(Bearer::Token(token)),
            None => target,
        })
    }

    pub(crate) fn of(&self, name: &str) -> Clusters {
        Clusters::new(self.channel(Some(token(name))))
    }

    pub(crate) fn platforms(&self, name: &str) -> Platforms {
        Platforms::new(self.channel(Some(token(name))))
    }

    pub(crate) async fn stop(self) {
        self.running.shutdown().await;
        self.world.stop().await;
    }
}

/// Makes a call with an empty message, and returns the status of its first response.
async fn call(channel: &Channel, path: &str) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client
        .ready()
        .await
        .map_err(|error| Status::unknown(error.to_string()))?;
    let answer = client
        .streaming(
            Request::new(futures::stream::iter([()])),
            path.parse().unwrap(),
            ProstCodec::<(), ()>::default(),
        )
        .await?;
    answer.into_inner().message().await.map(drop)
}

fn paths() -> Vec<(String, String)> {
    let set = prost_types::FileDescriptorSet::decode(DESCRIPTORS).unwrap();
    let mut paths = Vec::new();
    for file in &set.file {
        for service in &file.service {
            let full = format!("{}.{}", file.package(), service.name());
            for method in &service.method {
                paths.push((full.clone(), method.name().to_owned()));
            }
        }
    }
    paths
}

#[tokio::test]
async fn every_call_is_for_the_roles_that_the_table_says_and_for_nobody_else() {
    const SERVED: [&str; 3] = [
        "drover.orchestrator.v1.ClusterService",
        "drover.orchestrator.v1.PlatformRegistryService",
        "drover.orchestrator.v1.SecretService",
    ];
    let door = Door::new().await;
    let mut calls = 0;
    for (service, method) in paths() {
        if !SERVED.contains(&service.as_str()) {
            continue;
        }
        let path = format!("/{service}/{method}");
        let needed = permission(&service, &method).unwrap();
        for role in Role::ALL {
            let channel = door.channel(Some(token(&role.to_string())));
            let code = call(&channel, &path)
                .await
                .map_or_else(|s| s.code(), |()| Code::Ok);
            assert_eq!(
                code == Code::PermissionDenied,
                !role.has(needed),
                "{role} {path}: {code:?}"
            );
            assert_ne!(code, Code::Unauthenticated, "{role} {path}");
            calls += 1;
        }
        let nobody = call(&door.channel(Some(token("nobody"))), &path).await;
        assert_eq!(nobody.unwrap_err().code(), Code::PermissionDenied, "{path}");
        for stranger in [None, Some("made-up-0123456789".to_owned())] {
            let answer = call(&door.channel(stranger), &path).await;
            assert_eq!(answer.unwrap_err().code(), Code::Unauthenticated, "{path}");
        }
    }
    assert_eq!(calls, 35 * Role::ALL.len());
    door.stop().await;
}

pub(crate) fn labelled(name: &str, labels: &[(&str, &str)]) -> pb::ApplyClusterRequest {
    let mut cluster = document(name, &[("db", 1)]);
    cluster.labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect::<BTreeMap<_, _>>();
    pb::ApplyClusterRequest {
        cluster: Some(cluster),
        ..Default::default()
    }
}

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

#[tokio::test]
async fn changes_and_refusals_are_written_down_and_reads_and_secrets_are_not() {
    let door = Door::new().await;
    let mut operator = door.of("operator");
    operator
        .apply_cluster(labelled("orders", &[]))
        .await
        .unwrap();
    operator
        .get_cluster(pb::GetClusterRequest {
            name: "orders".into(),
            ..Default::default()
        })
        .await
        .unwrap();
    let delete = pb::DeleteClusterRequest {
        name: "orders".into(),
        ..Default::default()
    };
    let mut request = Request::new(delete);
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    request
        .metadata_mut()
        .insert("traceparent", parent.parse().unwrap());
    refused(
        door.of("viewer").delete_cluster(request).await,
        Reason::PermissionDenied,
    );
    let mut stranger = Clusters::new(door.channel(Some("made-up-0123456789".into())));
    refused(
        stranger
            .list_clusters(pb::ListClustersRequest::default())
            .await,
        Reason::Unauthenticated,
    );
    let path = door.audit();
    let text = until("three lines", async || {
        let text = std::fs::read_to_string(&path).unwrap();
        (text.lines().count() >= 3).then_some(text)
    })
    .await;
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3, "{text}");
    let of = |line: usize, key: &str| lines[line][key].as_str().unwrap_or_default().to_owned();
    assert_eq!(of(0, "who"), "token:operator");
    assert_eq!(
        of(0, "what"),
        "drover.orchestrator.v1.ClusterService/ApplyCluster"
    );
    assert_eq!(
        (of(0, "object"), of(0, "code")),
        ("cluster/orders".into(), "OK".into())
    );
    assert_eq!(of(1, "who"), "token:viewer");
    assert_eq!(of(1, "code"), "PERMISSION_DENIED");
    assert_eq!(of(1, "trace_id"), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(lines[1]["denied"], true);
    assert_eq!(
        (of(2, "who"), of(2, "code")),
        ("anonymous".into(), "UNAUTHENTICATED".into())
    );
    assert!(!text.contains("0123456789"), "{text}");
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

#[tokio::test]
async fn a_line_of_the_audit_log_is_not_as_long_as_a_caller_likes() {
    let door = Door::new().await;
    let delete = pb::DeleteClusterRequest {
        name: "\u{1}\u{e9}".repeat(300_000),
        ..Default::default()
    };
    refused(
        door.of("operator").delete_cluster(delete).await,
        Reason::NotFound,
    );
    let path = door.audit();
    let line = until("the refusal is written down", async || {
        let text = std::fs::read_to_string(&path).unwrap();
        text.ends_with('\n').then_some(text)
    })
    .await;
    assert!(line.len() < 8 << 10, "{} bytes", line.len());
    door.stop().await;
}
