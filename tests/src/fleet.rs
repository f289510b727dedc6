//! Many clusters on a simulated platform in this process.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on fails"
)]

use std::{collections::HashSet, fmt, time::Duration};

use drover_platform_cloud::{
    PlatformServer, Settings,
    drivers::simulated::{SimulatedHandle, SimulatedSettings},
};
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{
        WatchNodesRequest, platform_service_client::PlatformServiceClient, watch_nodes_response,
    },
};
use drover_server::{Running, ServerSettings, Shutdown};
use futures::StreamExt;
use tokio::{sync::mpsc, time::Instant};

/// The request for a cluster with nodes in one group.
#[must_use]
pub fn cluster(number: usize, nodes: u32) -> pb::ApplyClusterRequest {
    let group = pb::GroupSpec {
        name: "web".into(),
        size: Some(nodes),
        ..pb::GroupSpec::default()
    };
    let spec = pb::ClusterSpec {
        platforms: vec![pb::PlatformChoice {
            name: "simulated".into(),
            ..pb::PlatformChoice::default()
        }],
        groups: vec![group],
        ..pb::ClusterSpec::default()
    };
    let cluster = pb::Cluster {
        name: format!("bench-{number}"),
        spec: Some(spec),
        ..pb::Cluster::default()
    };
    pb::ApplyClusterRequest {
        cluster: Some(cluster),
        ..pb::ApplyClusterRequest::default()
    }
}

/// A platform and its server.
pub struct Simulated {
    platform: PlatformServer,
    running: Running,
}

impl fmt::Debug for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Simulated({})", self.running.address())
    }
}

impl Simulated {
    /// `delay` is the time from created to running, and again from running to ready.
    pub async fn start(delay: Duration) -> Self {
        let settings = SimulatedSettings {
            seed: Some(1),
            boot_delay: delay,
            ready_delay: delay,
            // Who made what is not asked here, and would be kept for each node.
            ledger: false,
            ..SimulatedSettings::default()
        };
        let platform = PlatformServer::open(Settings::from(settings))
            .await
            .unwrap();
        let server = ServerSettings::on_port(0);
        let listener = drover_server::listen(&server).await.unwrap();
        let running =
            drover_server::spawn(platform.service(), listener, &server, Shutdown::new()).unwrap();
        Self { platform, running }
    }

    #[must_use]
    pub fn handle(&self) -> &SimulatedHandle {
        self.platform.simulated().unwrap()
    }

    /// The request that registers it under `simulated`.
    #[must_use]
    pub fn registration(&self) -> pb::RegisterPlatformRequest {
        let platform = pb::Platform {
            name: "simulated".into(),
            spec: Some(pb::PlatformSpec {
                endpoint: format!("http://{}", self.running.address()),
                ..pb::PlatformSpec::default()
            }),
            ..pb::Platform::default()
        };
        pb::RegisterPlatformRequest {
            platform: Some(platform),
            ..pb::RegisterPlatformRequest::default()
        }
    }

    /// Follows the nodes that are made from now on, with the name of their cluster.
    pub async fn births(&self) -> mpsc::UnboundedReceiver<(String, Instant)> {
        let mut client =
            PlatformServiceClient::new(drover_client::in_process(self.platform.routes()));
        let watch = client.watch_nodes(WatchNodesRequest::default()).await;
        let mut watch = watch.unwrap().into_inner();
        let (sender, receiver) = mpsc::unbounded_channel();
        let (ready, began) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let mut ready = Some(ready);
            let mut known = HashSet::new();
            while let Some(Ok(message)) = watch.next().await {
                match message.event {
                    Some(watch_nodes_response::Event::SnapshotComplete(_)) => {
                        ready.take().map(|ready| ready.send(()));
                    }
                    Some(watch_nodes_response::Event::Upserts(upserts)) => {
                        for node in upserts.nodes {
                            let is_new = known.insert(node.node_id) && ready.is_none();
                            if is_new && sender.send((node.cluster_id, Instant::now())).is_err() {
                                return;
                            }
                        }
                    }
                    _ => {}
                }
            }
        });
        began.await.unwrap();
        receiver
    }
}
