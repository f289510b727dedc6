//! An orchestrator and one platform, each with a server of its own, as they run in production.

use std::{collections::HashSet, net::SocketAddr, time::Duration};

use drover_client::Channel;
use drover_orchestrator::Orchestrator;
use drover_platform_cloud::{DriverSettings, PlatformServer, Settings};
use drover_proto::{
    orchestrator::v1::{
        self as pb, cluster_service_client::ClusterServiceClient,
        platform_registry_service_client::PlatformRegistryServiceClient,
        watch_clusters_response::Event,
    },
    platform::v1::{NodePhase, WatchNodesRequest, watch_nodes_response},
};
use drover_server::{Running, ServerSettings, Shutdown};
use drover_testing::platform::caller::Caller;
use futures::{StreamExt, future::join_all};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use super::PATIENCE;

const PLATFORM: &str = "cloud";
const CLUSTER: &str = "bench";

pub(super) struct Drover {
    orchestrator: Orchestrator,
    api: Running,
    platform: PlatformServer,
    served: Running,
    channel: Channel,
    _data: TempDir,
}

impl Drover {
    /// `data` holds the files that the driver's settings name.
    pub(super) async fn start(driver: DriverSettings, data: TempDir) -> Self {
        let platform = open(driver).await;
        let served = serve(platform.service()).await;
        let orchestrator = Orchestrator::open(&drover_orchestrator::Settings {
            data_dir: data.path().join("store"),
            ..Default::default()
        })
        .await
        .unwrap();
        let api = serve(orchestrator.service()).await;
        let channel = drover_client::connect(&url(api.address()).parse().unwrap());
        let mut registry = PlatformRegistryServiceClient::new(channel.clone());
        registry
            .register_platform(pb::RegisterPlatformRequest {
                platform: Some(pb::Platform {
                    name: PLATFORM.to_owned(),
                    spec: Some(pb::PlatformSpec {
                        endpoint: url(served.address()),
                        ..Default::default()
                    }),
                    ..Default::default()
                }),
                ..Default::default()
            })
            .await
            .unwrap();
        let drover = Self {
            orchestrator,
            api,
            platform,
            served,
            channel,
            _data: data,
        };
        drover.until_visible().await;
        drover
    }

    /// Waits until the orchestrator watches the platform, to exclude the handshake from the measurement.
    async fn until_visible(&self) {
        let mut registry = PlatformRegistryServiceClient::new(self.channel.clone());
        let began = Instant::now();
        loop {
            let answer = registry
                .list_platforms(pb::ListPlatformsRequest::default())
                .await
                .unwrap();
            let platforms = answer.into_inner().platforms;
            let ready = platforms.iter().all(|platform| {
                platform
                    .status
                    .as_ref()
                    .is_some_and(|status| status.phase() == pb::PlatformPhase::Ready)
            });
            if ready && !platforms.is_empty() {
                return;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "the platform is not visible: {platforms:?}"
            );
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Measures the time from the apply until every node is recorded and running.
    pub(super) async fn make(&self, count: u32) -> Duration {
        let mut client = ClusterServiceClient::new(self.channel.clone());
        let mut watch = client
            .watch_clusters(pb::WatchClustersRequest::default())
            .await
            .unwrap()
            .into_inner();
        let began = Instant::now();
        client.apply_cluster(cluster_of(count)).await.unwrap();
        let all = async {
            while let Some(message) = watch.next().await {
                let Some(Event::Upserts(upserts)) = message.unwrap().event else {
                    continue;
                };
                let statuses = upserts.clusters.iter().filter_map(|c| c.status.as_ref());
                let ready: u32 = statuses
                    .flat_map(|s| &s.groups)
                    .map(|group| group.ready)
                    .sum();
                if ready == count {
                    return;
                }
            }
            panic!("the watch ended");
        };
        timeout(PATIENCE, all)
            .await
            .expect("the nodes are not ready");
        began.elapsed()
    }

    /// Measures the time from the deletion of the cluster until it and its nodes are gone.
    pub(super) async fn remove(&self) -> Duration {
        let mut client = ClusterServiceClient::new(self.channel.clone());
        let mut watch = client
            .watch_clusters(pb::WatchClustersRequest::default())
            .await
            .unwrap()
            .into_inner();
        let began = Instant::now();
        client
            .delete_cluster(pb::DeleteClusterRequest {
                name: CLUSTER.to_owned(),
                ..Default::default()
            })
            .await
            .unwrap();
        let gone = async {
            while let Some(message) = watch.next().await {
                if let Some(Event::Removals(removals)) = message.unwrap().event
                    && removals.names.iter().any(|name| name == CLUSTER)
                {
                    return;
                }
            }
            panic!("the watch ended");
        };
        timeout(PATIENCE, gone)
            .await
            .expect("the cluster is not gone");
        began.elapsed()
    }

    pub(super) async fn end(self) {
        self.api.shutdown().await;
        self.orchestrator.shutdown().await;
        self.platform.shutdown().await;
        self.served.shutdown().await;
    }
}

fn cluster_of(count: u32) -> pb::ApplyClusterRequest {
    let cluster = pb::Cluster {
        name: CLUSTER.to_owned(),
        spec: Some(pb::ClusterSpec {
            platforms: vec![pb::PlatformChoice {
                name: PLATFORM.to_owned(),
                ..Default::default()
            }],
            groups: vec![pb::GroupSpec {
                name: "web".to_owned(),
                size: Some(count),
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..Default::default()
    };
    pb::ApplyClusterRequest {
        cluster: Some(cluster),
        ..Default::default()
    }
}

/// Measures the time that a platform alone takes until all of so many nodes run, asked for as an orchestrator does.
pub(super) async fn platform_alone(driver: DriverSettings, count: u32) -> Duration {
    let platform = open(driver).await;
    let caller = Caller::new(platform.routes()).await;
    let limits = caller.platform.limits.as_ref();
    let most = limits.and_then(|limits| limits.max_batch).unwrap_or(1);
    let batches = (0..count).step_by(most as usize);
    let requests: Vec<_> = batches
        .map(|first| caller.request(most.min(count - first)))
        .collect();
    let mut client = caller.client();
    let watch = client.watch_nodes(WatchNodesRequest::default()).await;
    let mut watch = watch.unwrap().into_inner();
    let began = Instant::now();
    let made = join_all(requests.iter().map(|request| caller.made_by(request)));
    let run = async {
        let mut running = HashSet::new();
        while running.len() < count as usize {
            let message = watch.next().await.expect("the watch ended").unwrap();
            let Some(watch_nodes_response::Event::Upserts(upserts)) = message.event else {
                continue;
            };
            let nodes = upserts.nodes.into_iter();
            let nodes = nodes.filter(|node| node.phase() == NodePhase::Running);
            running.extend(nodes.map(|node| node.node_id));
        }
    };
    timeout(PATIENCE, async { tokio::join!(made, run) })
        .await
        .expect("the nodes do not run");
    let took = began.elapsed();
    platform.shutdown().await;
    took
}

async fn open(driver: DriverSettings) -> PlatformServer {
    let settings = Settings {
        driver,
        templates: None,
    };
    PlatformServer::open(settings).await.unwrap()
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

async fn serve(service: drover_server::Service) -> Running {
    let settings = ServerSettings::on_port(0);
    let listener = drover_server::listen(&settings).await.unwrap();
    drover_server::spawn(service, listener, &settings, Shutdown::new()).unwrap()
}
