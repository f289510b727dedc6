//! An in-process orchestrator over in-process simulated platforms, called through its real services.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "shared by several tests, which fail when they cannot go on"
)]

pub use drover_testing::wait::until;

use std::{
    collections::HashMap,
    io::Write,
    path::Path,
    sync::{Arc, Weak},
    time::Duration,
};

use drover_client::{Channel, in_process};
use drover_core::{Error, Reason, Result};
use drover_orchestrator::{Connector, Hooks, Orchestrator};
use drover_platform_cloud::{
    PlatformServer, Settings,
    drivers::simulated::{SimulatedHandle, SimulatedSettings},
};
use drover_proto::orchestrator::v1::{
    self as pb, cluster_service_client::ClusterServiceClient,
    platform_registry_service_client::PlatformRegistryServiceClient,
    secret_service_client::SecretServiceClient,
};
use drover_store::{Backend, Keyring, Store};
use drover_testing::store::{LongLeases, MemoryBackend};
use parking_lot::Mutex;
use tonic::Status;
use tracing_subscriber::fmt::MakeWriter;

pub type Clusters = ClusterServiceClient<Channel>;
pub type Platforms = PlatformRegistryServiceClient<Channel>;
pub type Secrets = SecretServiceClient<Channel>;

/// Store encryption key of these tests.
const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

async fn unlocked(store: Store) -> Store {
    let keys = Keyring::parse(KEY, "keys of tests").unwrap();
    store.unlock(keys).await.unwrap();
    store
}

/// Maximum wait for a condition, far longer than it takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Channels to platforms, by endpoint.
#[derive(Clone, Default)]
pub struct Sites(Arc<Mutex<HashMap<String, Channel>>>);

impl Sites {
    pub fn put(&self, endpoint: &str, channel: Channel) {
        self.0.lock().insert(endpoint.to_owned(), channel);
    }

    pub fn remove(&self, endpoint: &str) {
        self.0.lock().remove(endpoint);
    }

    pub fn connector(&self) -> Connector {
        let sites = self.clone();
        Arc::new(move |spec, _| {
            let endpoint = spec.endpoint.as_str();
            if !endpoint.starts_with("http://") {
                return Err(Error::invalid("endpoint", "expected http://HOST:PORT"));
            }
            // An unknown endpoint has no listener, which only becomes apparent with a call.
            let site = sites.0.lock().get(endpoint).cloned();
            Ok(site.unwrap_or_else(|| in_process(tonic::service::Routes::default())))
        })
    }
}

/// A simulated platform.
pub struct Site {
    pub server: PlatformServer,
}

impl Site {
    pub async fn new(settings: SimulatedSettings) -> Self {
        let own = std::env::current_exe().unwrap();
        let target = own.ancestors().nth(2).unwrap();
        drover_templates::worker::use_program(target.join("examples/orchestrator_texts"));
        Self {
            server: PlatformServer::open(Settings::from(settings))
                .await
                .unwrap(),
        }
    }

    pub fn backend(&self) -> &SimulatedHandle {
        self.server.simulated().unwrap()
    }

    pub fn channel(&self) -> Channel {
        in_process(self.server.routes())
    }
}

/// An orchestrator, with the platform `sim` at `http://sim` unless it was started bare.
pub struct World {
    pub orchestrator: Option<Orchestrator>,
    pub sites: Sites,
    pub site: Site,
    /// The backend of its store, as long as that is alive.
    pub backend: Weak<dyn Backend>,
}

impl World {
    /// With an in-memory store; its platform is registered and visible.
    pub async fn new() -> Self {
        Self::with(SimulatedSettings::default()).await
    }

    pub async fn with(settings: SimulatedSettings) -> Self {
        let world = Self::bare(settings).await;
        world.register("sim", "http://sim").await.unwrap();
        world
    }

    /// Without any registration.
    pub async fn bare(settings: SimulatedSettings) -> Self {
        let backend = LongLeases::over(Arc::new(MemoryBackend::new()));
        let store = Store::open(backend).await.unwrap();
        Self::over(unlocked(store).await, settings).await
    }

    pub async fn over(store: Store, settings: SimulatedSettings) -> Self {
        let site = Site::new(settings).await;
        let sites = Sites::default();
        sites.put("http://sim", site.channel());
        let backend = Arc::downgrade(store.backend());
        let orchestrator = Orchestrator::start(store, sites.connector(), Hooks::default())
            .await
            .unwrap();
        Self {
            orchestrator: Some(orchestrator),
            sites,
            site,
            backend,
        }
    }

    /// With a store in a directory.
    pub async fn in_directory(directory: &Path, settings: SimulatedSettings) -> Self {
        let store = Store::open_directory(directory).await.unwrap();
        Self::over(unlocked(store).await, settings).await
    }

    /// Crashes the process and restarts it on the same directory.
    pub async fn restart(&mut self, directory: &Path) {
        self.orchestrator.take().unwrap().kill().await;
        self.start(directory).await;
    }

    /// Starts on a directory whose previous orchestrator is gone completely.
    pub async fn start(&mut self, directory: &Path) {
        let store = open_again(directory).await;
        let orchestrator = Orchestrator::start(store, self.sites.connector(), Hooks::default())
            .await
            .unwrap();
        self.orchestrator = Some(orchestrator);
    }

    pub fn channel(&self) -> Channel {
        in_process(self.orchestrator.as_ref().unwrap().routes())
    }

    pub fn clusters(&self) -> Clusters {
        ClusterServiceClient::new(self.channel())
    }

    pub fn platforms(&self) -> Platforms {
        PlatformRegistryServiceClient::new(self.channel())
    }

    pub fn secrets(&self) -> Secrets {
        SecretServiceClient::new(self.channel())
    }

    pub async fn register(
        &self,
        name: &str,
        endpoint: &str,
    ) -> Result<pb::RegisterPlatformResponse, Status> {
        let request = registration(name, endpoint);
        self.platforms()
            .register_platform(request)
            .await
            .map(tonic::Response::into_inner)
    }

    pub async fn apply(&self, cluster: pb::Cluster) -> Result<pb::ApplyClusterResponse, Status> {
        let request = pb::ApplyClusterRequest {
            cluster: Some(cluster),
            ..Default::default()
        };
        self.clusters()
            .apply_cluster(request)
            .await
            .map(tonic::Response::into_inner)
    }

    pub async fn get(&self, name: &str) -> Result<pb::Cluster, Status> {
        let request = pb::GetClusterRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        self.clusters()
            .get_cluster(request)
            .await
            .map(|answer| answer.into_inner().cluster.unwrap())
    }

    pub async fn delete(&self, name: &str) -> Result<pb::DeleteClusterResponse, Status> {
        let request = pb::DeleteClusterRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        self.clusters()
            .delete_cluster(request)
            .await
            .map(tonic::Response::into_inner)
    }

    pub async fn nodes(&self, cluster: &str) -> Vec<pb::Node> {
        let request = pb::ListNodesRequest {
            cluster: Some(cluster.to_owned()),
            page_size: 1000,
            ..Default::default()
        };
        self.clusters()
            .list_nodes(request)
            .await
            .unwrap()
            .into_inner()
            .nodes
    }

    pub async fn events(&self, cluster: &str) -> Vec<pb::Event> {
        let request = pb::ListEventsRequest {
            cluster: cluster.to_owned(),
            page_size: 1000,
            ..Default::default()
        };
        self.clusters()
            .list_events(request)
            .await
            .unwrap()
            .into_inner()
            .events
    }

    pub async fn platform(&self, name: &str) -> pb::PlatformStatus {
        let request = pb::GetPlatformRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        let answer = self
            .platforms()
            .get_platform(request)
            .await
            .unwrap()
            .into_inner();
        answer.platform.unwrap().status.unwrap()
    }

    /// Waits until a cluster is ready, and returns it.
    pub async fn ready(&self, name: &str) -> pb::Cluster {
        until(&format!("{name} is ready"), async || {
            let cluster = self.get(name).await.unwrap();
            (cluster.status.as_ref().unwrap().phase() == pb::ClusterPhase::Ready).then_some(cluster)
        })
        .await
    }

    pub async fn gone(&self, name: &str) {
        until(&format!("{name} is gone"), async || {
            self.get(name).await.is_err().then_some(())
        })
        .await;
    }

    pub async fn stop(mut self) {
        if let Some(orchestrator) = self.orchestrator.take() {
            orchestrator.kill().await;
        }
    }
}

/// Opens a directory whose previous owner is about to release it.
pub async fn open_again(directory: &Path) -> Store {
    unlocked(open_locked(directory).await).await
}

/// Opens it without the encryption keys.
pub async fn open_locked(directory: &Path) -> Store {
    until("the store is free", async || {
        Store::open_directory(directory).await.ok()
    })
    .await
}

pub fn registration(name: &str, endpoint: &str) -> pb::RegisterPlatformRequest {
    let spec = pb::PlatformSpec {
        endpoint: endpoint.to_owned(),
        ..Default::default()
    };
    let platform = pb::Platform {
        name: name.to_owned(),
        spec: Some(spec),
        ..Default::default()
    };
    pb::RegisterPlatformRequest {
        platform: Some(platform),
        ..Default::default()
    }
}

/// Captures everything that is logged by this thread.
#[derive(Clone, Default)]
pub struct Log(pub Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// A cluster of groups on the platform `sim`.
pub fn document(name: &str, groups: &[(&str, u32)]) -> pb::Cluster {
    let group = |(name, size): &(&str, u32)| pb::GroupSpec {
        name: (*name).to_owned(),
        size: Some(*size),
        ..Default::default()
    };
    let spec = pb::ClusterSpec {
        platforms: vec![pb::PlatformChoice {
            name: "sim".to_owned(),
            ..Default::default()
        }],
        groups: groups.iter().map(group).collect(),
        ..Default::default()
    };
    pb::Cluster {
        name: name.to_owned(),
        spec: Some(spec),
        ..Default::default()
    }
}

/// Modifies the spec of a cluster.
pub fn changed(mut cluster: pb::Cluster, change: impl FnOnce(&mut pb::ClusterSpec)) -> pb::Cluster {
    change(cluster.spec.as_mut().unwrap());
    cluster
}

pub fn reason(status: &Status) -> Reason {
    drover_convert::error::from_status(status).reason()
}

/// The fields of the violations in an error.
pub fn fields(status: &Status) -> Vec<String> {
    let error = drover_convert::error::from_status(status);
    error.fields().iter().map(|one| one.field.clone()).collect()
}

pub fn metadata(status: &Status, key: &str) -> Option<String> {
    drover_convert::error::from_status(status)
        .metadata()
        .get(key)
        .cloned()
}

/// Panics unless a call failed with this reason.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, wanted: Reason) -> Status {
    let status = answer.expect_err("a refusal");
    assert_eq!(reason(&status), wanted, "{status:?}");
    status
}

/// Panics unless a call failed with a violation of this field.
#[track_caller]
pub fn invalid<T: std::fmt::Debug>(answer: Result<T, Status>, field: &str) -> Status {
    let status = refused(answer, Reason::Invalid);
    let fields = fields(&status);
    assert!(
        fields.iter().any(|one| one == field),
        "{field} in {fields:?}: {}",
        status.message()
    );
    status
}
