//! An orchestrator and platforms in this process, all of which can be killed and restarted.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "shared by several tests, which fail when they cannot go on"
)]

use std::{collections::BTreeMap, ops::Deref, time::Duration};

use drover_client::{OrchestratorClient, connect};
use drover_core::{Reason, Result};
use drover_orchestrator::{Orchestrator, PlatformTlsSettings};
use drover_platform_cloud::DriverSettings;
use drover_proto::orchestrator::v1 as pb;
use drover_server::{Running, ServerSettings, Shutdown};
pub use drover_testing::wait::PATIENCE;
use drover_testing::wait::Wait;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

const CALL: Duration = Duration::from_secs(60);

/// A platform with this poll interval over an emulated EC2.
#[cfg(feature = "clouds")]
pub fn emulated_ec2(url: String, directory: &std::path::Path, poll: Duration) -> DriverSettings {
    use drover_platform_cloud::drivers::aws;

    let credentials = directory.join("aws-credentials");
    let text = "[default]\naws_access_key_id = test\naws_secret_access_key = test\n";
    std::fs::write(&credentials, text).unwrap();
    let mut settings = aws::Settings {
        region: "eu-central-1".to_owned(),
        endpoint: url,
        credentials_file: Some(credentials),
        image: "debian".to_owned(),
        instance_type: "t3.micro".to_owned(),
        ..aws::Settings::default()
    };
    settings.common.calls_per_second = 200.0;
    settings.common.poll_interval_seconds = poll.as_secs_f64();
    settings.common.pending_poll_interval_seconds = poll.as_secs_f64();
    settings.common.visibility_delay_seconds = 2.0;
    settings.common.call_timeout_seconds = 5.0;
    DriverSettings::from(settings)
}

pub struct World {
    pub directory: TempDir,
    orchestrator: Option<(Orchestrator, Running)>,
    platforms: BTreeMap<String, Served>,
    port: u16,
    /// TLS settings for calls to platforms.
    tls: PlatformTlsSettings,
}

struct Served {
    backend: Backend,
    port: u16,
    open: Option<(Opened, Running)>,
}

/// Backend of a platform.
#[derive(Clone)]
pub enum Backend {
    Cloud(DriverSettings),
    Kubernetes(Box<drover_platform_k8s::Settings>),
}

impl From<DriverSettings> for Backend {
    fn from(settings: DriverSettings) -> Self {
        Self::Cloud(settings)
    }
}

impl From<drover_platform_k8s::Settings> for Backend {
    fn from(settings: drover_platform_k8s::Settings) -> Self {
        Self::Kubernetes(Box::new(settings))
    }
}

type Opened = Box<dyn Deref<Target = drover_platform::PlatformServer> + Send + Sync>;

impl Backend {
    async fn open(&self) -> Opened {
        match self.clone() {
            Self::Cloud(driver) => {
                let settings = drover_platform_cloud::Settings {
                    driver,
                    templates: None,
                };
                let server = drover_platform_cloud::PlatformServer::open(settings).await;
                Box::new(server.unwrap())
            }
            Self::Kubernetes(settings) => {
                let server = drover_platform_k8s::PlatformServer::open(*settings).await;
                Box::new(server.unwrap())
            }
        }
    }
}

impl World {
    pub async fn new() -> Self {
        Self::calling(PlatformTlsSettings::default()).await
    }

    /// Creates a world whose orchestrator uses these TLS settings for calls to platforms.
    pub async fn calling(tls: PlatformTlsSettings) -> Self {
        let mut world = Self {
            directory: tempfile::tempdir().unwrap(),
            orchestrator: None,
            platforms: BTreeMap::new(),
            port: 0,
            tls,
        };
        world.start_orchestrator().await;
        world
    }

    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn client(&self) -> OrchestratorClient {
        OrchestratorClient::new(connect(&self.address().parse().unwrap()))
    }

    pub async fn start_orchestrator(&mut self) {
        let settings = drover_orchestrator::Settings {
            data_dir: self.directory.path().join("store"),
            platform_tls: self.tls.clone(),
            ..Default::default()
        };
        let orchestrator = Orchestrator::open(&settings).await.unwrap();
        let running = serve(orchestrator.service(), self.port).await;
        self.port = running.address().port();
        self.orchestrator = Some((orchestrator, running));
    }

    /// Kills the orchestrator in the middle of its work, and starts another one on its store.
    pub async fn kill_orchestrator(&mut self) {
        if let Some((orchestrator, running)) = self.orchestrator.take() {
            orchestrator.kill().await;
            running.shutdown().await;
        }
        self.start_orchestrator().await;
    }

    /// Starts a platform and registers it.
    pub async fn add(&mut self, name: &str, backend: impl Into<Backend>) {
        let served = Served {
            backend: backend.into(),
            port: 0,
            open: None,
        };
        self.platforms.insert(name.to_owned(), served);
        self.start_platform(name).await;
        let endpoint = format!("http://127.0.0.1:{}", self.platforms[name].port);
        self.register(name, &endpoint).await;
    }

    /// Registers an externally running platform.
    pub async fn register(&self, name: &str, endpoint: &str) {
        self.register_as(name, endpoint, "").await;
    }

    /// Registers a platform whose certificate has another name than its endpoint.
    pub async fn register_as(&self, name: &str, endpoint: &str, server_name: &str) {
        let tls = pb::PlatformTls {
            server_name: server_name.to_owned(),
            ..Default::default()
        };
        let platform = pb::Platform {
            name: name.to_owned(),
            spec: Some(pb::PlatformSpec {
                endpoint: endpoint.to_owned(),
                tls: (!server_name.is_empty()).then_some(tls),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = pb::RegisterPlatformRequest {
            platform: Some(platform),
            ..Default::default()
        };
        self.client()
            .register_platform(request, CALL)
            .await
            .unwrap();
        self.until("the platform is visible", async |world| {
            let request = pb::GetPlatformRequest {
                name: name.to_owned(),
                ..Default::default()
            };
            let answer = world.client().get_platform(request, CALL).await.unwrap();
            let status = answer
                .platform
                .unwrap_or_default()
                .status
                .unwrap_or_default();
            status.phase() == pb::PlatformPhase::Ready
        })
        .await;
    }

    async fn start_platform(&mut self, name: &str) {
        let served = self.platforms.get_mut(name).unwrap();
        let platform = served.backend.open().await;
        let running = serve(platform.service(), served.port).await;
        served.port = running.address().port();
        served.open = Some((platform, running));
    }

    /// Kills a platform server without waiting for its calls in flight, and starts another one over the same cloud.
    pub async fn kill_platform(&mut self, name: &str) {
        if let Some((platform, running)) = self.platforms.get_mut(name).unwrap().open.take() {
            drop(platform);
            running.shutdown().await;
        }
        self.start_platform(name).await;
    }

    pub async fn apply(&self, name: &str, spec: pb::ClusterSpec) {
        let cluster = pb::Cluster {
            name: name.to_owned(),
            spec: Some(spec),
            ..Default::default()
        };
        let request = pb::ApplyClusterRequest {
            cluster: Some(cluster),
            ..Default::default()
        };
        self.client().apply_cluster(request, CALL).await.unwrap();
    }

    /// Applies a cluster that takes over what platforms show of it. Asked only, it says what would be done.
    pub async fn adopt(
        &self,
        name: &str,
        spec: pb::ClusterSpec,
        asked_only: bool,
    ) -> Result<pb::ApplyClusterResponse> {
        let cluster = pb::Cluster {
            name: name.to_owned(),
            spec: Some(spec),
            ..Default::default()
        };
        let request = pb::ApplyClusterRequest {
            cluster: Some(cluster),
            adopt: true,
            validate_only: asked_only,
            ..Default::default()
        };
        self.client().apply_cluster(request, CALL).await
    }

    pub async fn scale(&self, name: &str, group: &str, size: u32) {
        let request = pb::ScaleGroupRequest {
            cluster: name.to_owned(),
            group: group.to_owned(),
            size: Some(size),
            ..Default::default()
        };
        self.client().scale_group(request, CALL).await.unwrap();
    }

    /// Resets the backoff of a cluster.
    pub async fn reset_back_off(&self, name: &str) {
        let request = pb::ReconcileClusterRequest {
            name: name.to_owned(),
            reset_back_off: true,
        };
        self.client()
            .reconcile_cluster(request, CALL)
            .await
            .unwrap();
    }

    pub async fn delete(&self, name: &str) {
        let request = pb::DeleteClusterRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        self.client().delete_cluster(request, CALL).await.unwrap();
    }

    pub async fn cluster(&self, name: &str) -> Result<Option<pb::Cluster>> {
        let request = pb::GetClusterRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        match self.client().get_cluster(request, CALL).await {
            Ok(answer) => Ok(answer.cluster),
            Err(error) if error.reason() == Reason::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn nodes(&self, name: &str) -> Vec<pb::Node> {
        let request = pb::ListNodesRequest {
            cluster: Some(name.to_owned()),
            page_size: 1000,
            ..Default::default()
        };
        self.client().list_nodes(request, CALL).await.unwrap().nodes
    }

    pub async fn ready(&self, name: &str, size: usize) {
        self.until("the cluster is ready", async |world| {
            let Ok(Some(cluster)) = world.cluster(name).await else {
                return false;
            };
            let nodes = world.nodes(name).await;
            let status = cluster.status.unwrap_or_default();
            status.observed_generation == cluster.generation
                && status.phase() == pb::ClusterPhase::Ready
                && nodes.len() == size
                && nodes
                    .iter()
                    .all(|node| node.state() == pb::NodeState::Ready)
        })
        .await;
    }

    pub async fn gone(&self, name: &str) {
        self.until("the cluster is gone", async |world| {
            matches!(world.cluster(name).await, Ok(None))
        })
        .await;
    }

    pub async fn until(&self, what: &str, condition: impl AsyncFn(&Self) -> bool) {
        let mut wait = Wait::new(what, PATIENCE);
        while !condition(self).await {
            if !wait.goes_on().await {
                let request = pb::ListClustersRequest {
                    view: pb::ClusterView::Full.into(),
                    ..Default::default()
                };
                let clusters = self
                    .client()
                    .list_clusters(request, CALL)
                    .await
                    .unwrap()
                    .clusters;
                for cluster in clusters {
                    let request = pb::ListEventsRequest {
                        cluster: cluster.name.clone(),
                        page_size: 500,
                        ..Default::default()
                    };
                    let events = self
                        .client()
                        .list_events(request, CALL)
                        .await
                        .unwrap()
                        .events;
                    for event in events.iter().rev().take(30).rev() {
                        println!("{} {} {}", event.sequence, event.reason, event.message);
                    }
                    for node in self.nodes(&cluster.name).await {
                        println!(
                            "{} {:?} {} {}",
                            node.id,
                            node.state(),
                            node.reason,
                            node.message
                        );
                    }
                    println!("{:#?}", cluster.status);
                }
                wait.fail();
            }
        }
    }

    pub async fn end(mut self) {
        if let Some((orchestrator, running)) = self.orchestrator.take() {
            running.shutdown().await;
            orchestrator.shutdown().await;
        }
        for (_, served) in std::mem::take(&mut self.platforms) {
            if let Some((platform, running)) = served.open {
                platform.shutdown().await;
                running.shutdown().await;
            }
        }
    }
}

async fn serve(service: drover_server::Service, port: u16) -> Running {
    let settings = ServerSettings::on_port(port);
    let began = Instant::now();
    loop {
        match drover_server::listen(&settings).await {
            Ok(listener) => {
                return drover_server::spawn(service, listener, &settings, Shutdown::new())
                    .unwrap();
            }
            // The previous server may need a moment to release the port.
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// A group `web` on one platform.
pub fn group_on(platform: &str, size: u32) -> pb::ClusterSpec {
    pb::ClusterSpec {
        platforms: vec![pb::PlatformChoice {
            name: platform.to_owned(),
            ..Default::default()
        }],
        groups: vec![pb::GroupSpec {
            name: "web".to_owned(),
            size: Some(size),
            ..Default::default()
        }],
        ..Default::default()
    }
}
