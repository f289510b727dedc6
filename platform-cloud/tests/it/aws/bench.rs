//! A platform on an EC2 server, and helpers to call it.
mod infrastructure;
mod moto;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use aws_config::{BehaviorVersion, Region};
use aws_credential_types::Credentials;
use aws_sdk_ec2::{Client, config::AppName};
use aws_smithy_http_client::{
    Builder as HttpBuilder,
    tls::{Provider, rustls_provider::CryptoMode},
};
use drover_core::{Error, Result};
use drover_emulators::ec2::{Ec2, Ec2Settings};
use drover_platform_cloud::{
    PlatformServer,
    cloud::CloudDriver,
    drivers::aws::{self, Settings},
    stores,
};
use drover_proto::{
    common::v1::chunk,
    platform::v1::{
        Bootstrap, DeprovisionResponse, DeprovisionState, Fence, GetPlatformRequest, Node,
        NodeChange, NodePhase, NodeRole, NodeTarget, Platform, ProvisionRequest, ProvisionResponse,
        Resource, StreamLogsRequest, UpdateNodeRequest, bootstrap,
        infrastructure_service_client::InfrastructureServiceClient,
        node_access_service_client::NodeAccessServiceClient,
        platform_service_client::PlatformServiceClient, update_node_request::Update,
    },
};
use drover_testing::platform::{
    caller::{list, refusal, told, whole},
    requests,
};
use moto::Moto;
use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;
use uuid::Uuid;

use super::{faults, infrastructure::faults as infrastructure_faults};
use crate::changes;
pub(crate) use drover_testing::platform::caller::{index, until};

/// Timeout of any wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const REGION: &str = "eu-central-1";
/// How the client of the tests calls itself, other than the driver.
const BY_HAND: &str = "by-hand";
/// An access key that all servers here accept.
pub(crate) const KEY: &str = "AKIAEMULATED";

/// The EC2 server of a platform.
pub(crate) enum Backend {
    Emulator(Ec2),
    Moto {
        /// Stopped with the bench.
        _process: Moto,
    },
}

/// A platform, its cloud, and its directory with the credentials.
pub(crate) struct Bench {
    pub(crate) backend: Backend,
    pub(crate) settings: Settings,
    pub(crate) server: Arc<Mutex<Arc<PlatformServer>>>,
    pub(crate) directory: TempDir,
    pub(crate) owner: Uuid,
    pub(crate) cluster: String,
    /// Default properties of the groups: image, node class and so on.
    pub(crate) properties: Mutex<Value>,
    ordinals: AtomicU32,
    sequence: AtomicU64,
}

/// Writes a file with credentials.
pub(crate) fn credentials(directory: &Path, key: &str) {
    let text = format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n");
    std::fs::write(directory.join("credentials"), text).unwrap();
}

/// Settings for a server at this address, with short intervals.
pub(crate) fn settings(url: &str, directory: &Path) -> Settings {
    let mut settings = Settings {
        region: REGION.to_owned(),
        endpoint: url.to_owned(),
        credentials_file: Some(directory.join("credentials")),
        image: "amazonlinux".to_owned(),
        instance_type: "t3.micro".to_owned(),
        ..Settings::default()
    };
    let common = &mut settings.common;
    common.calls_per_second = 1000.0;
    common.poll_interval_seconds = 0.1;
    common.pending_poll_interval_seconds = 0.05;
    common.visibility_delay_seconds = 0.4;
    common.call_timeout_seconds = 10.0;
    settings
}

/// Starts a platform server with the driver.
pub(crate) async fn serve(settings: &Settings) -> Result<PlatformServer> {
    let cloud = aws::open(settings.clone()).await?;
    let driver = CloudDriver::new(cloud, settings.common.clone())?;
    PlatformServer::with_driver(Arc::new(driver), stores::templates(None)?)
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Backend::Emulator(ec2) = &self.backend {
            let by_driver = |client: &str| !client.contains(BY_HAND);
            let tables = [
                &faults::NODES[..],
                &infrastructure_faults::MAKING,
                &infrastructure_faults::CHANGING,
                &infrastructure_faults::BORROWING,
                &infrastructure_faults::FREEING,
            ];
            changes::have_rows(ec2.control(), by_driver, &tables);
        }
    }
}

impl Bench {
    pub(crate) async fn emulator() -> Self {
        Self::emulated(Ec2Settings::default()).await
    }

    pub(crate) async fn emulated(settings: Ec2Settings) -> Self {
        let ec2 = Ec2::start(settings).await.unwrap();
        let url = ec2.url();
        Self::over(Backend::Emulator(ec2), &url, |_| ()).await
    }

    pub(crate) async fn emulated_with(
        settings: Ec2Settings,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let ec2 = Ec2::start(settings).await.unwrap();
        let url = ec2.url();
        Self::over(Backend::Emulator(ec2), &url, change).await
    }

    pub(crate) async fn moto() -> Self {
        let moto = Moto::start().await;
        let url = moto.url();
        let images = sdk(&url)
            .describe_images()
            .owners("amazon")
            .send()
            .await
            .unwrap();
        let image = images
            .images()
            .iter()
            .find(|image| {
                image
                    .architecture()
                    .is_some_and(|arch| arch.as_str() == "x86_64")
            })
            .and_then(|image| image.image_id())
            .unwrap()
            .to_owned();
        Self::over(Backend::Moto { _process: moto }, &url, |settings| {
            settings.image = image;
            // moto creates MinCount instances rather than as many as possible.
            settings.partial_launches = false;
            // It computes for milliseconds on every call.
            settings.common.poll_interval_seconds = 0.5;
            settings.common.pending_poll_interval_seconds = 0.25;
        })
        .await
    }

    async fn over(backend: Backend, url: &str, change: impl FnOnce(&mut Settings)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        credentials(directory.path(), KEY);
        let mut settings = settings(url, directory.path());
        change(&mut settings);
        let server = serve(&settings).await.unwrap();
        Self {
            backend,
            settings,
            server: Arc::new(Mutex::new(Arc::new(server))),
            directory,
            owner: Uuid::new_v4(),
            cluster: format!("c-{}", &Uuid::new_v4().simple().to_string()[..8]),
            properties: Mutex::new(Value::Null),
            ordinals: AtomicU32::new(0),
            sequence: AtomicU64::new(0),
        }
    }

    pub(crate) fn ec2(&self) -> &Ec2 {
        match &self.backend {
            Backend::Emulator(ec2) => ec2,
            Backend::Moto { .. } => panic!("only on the emulator"),
        }
    }

    pub(crate) fn is_moto(&self) -> bool {
        matches!(self.backend, Backend::Moto { .. })
    }

    /// The SDK client, bypassing the driver.
    pub(crate) async fn sdk(&self) -> Client {
        sdk(&self.settings.endpoint)
    }

    /// Kills the server and starts another one without any of its memory.
    pub(crate) async fn restart(&self) {
        let before = Arc::clone(&self.server.lock());
        before.shutdown().await;
        let after = serve(&self.settings).await.unwrap();
        *self.server.lock() = Arc::new(after);
    }

    pub(crate) fn client(&self) -> PlatformServiceClient<drover_client::Channel> {
        let routes = self.server.lock().routes();
        PlatformServiceClient::new(drover_client::in_process(routes))
    }

    pub(crate) fn infrastructure(&self) -> InfrastructureServiceClient<drover_client::Channel> {
        let routes = self.server.lock().routes();
        InfrastructureServiceClient::new(drover_client::in_process(routes))
    }

    pub(crate) async fn platform(&self) -> Platform {
        let answer = self
            .client()
            .get_platform(GetPlatformRequest {})
            .await
            .unwrap();
        answer.into_inner().platform.unwrap()
    }

    pub(crate) fn fence(&self) -> Fence {
        Fence {
            store_id: self.owner.to_string(),
            shard: 0,
            epoch: 1,
        }
    }

    /// A valid request for new nodes, with these properties in addition to those of the bench.
    pub(crate) async fn request(&self, count: usize, properties: Value) -> ProvisionRequest {
        let count = u32::try_from(count).unwrap();
        let first = self.ordinals.fetch_add(count, Ordering::Relaxed);
        let mut request = requests::provision(
            &self.platform().await.uid,
            self.fence(),
            (&self.cluster, self.owner),
            "db",
            first..first + count,
        );
        request.sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        request.cluster.as_mut().unwrap().labels =
            [("team".to_owned(), "storage".to_owned())].into();
        let mut all = self
            .properties
            .lock()
            .as_object()
            .cloned()
            .unwrap_or_default();
        all.extend(properties.as_object().cloned().unwrap_or_default());
        request.group.as_mut().unwrap().properties =
            (!all.is_empty()).then(|| drover_convert::value::to_struct(&all));
        request
    }

    pub(crate) async fn provision(&self, request: &ProvisionRequest) -> Result<ProvisionResponse> {
        told(self.client().provision(request.clone()).await)
    }

    /// Creates nodes; returns them in the order of their indexes.
    pub(crate) async fn make(
        &self,
        count: usize,
        properties: Value,
    ) -> (ProvisionRequest, Vec<Node>) {
        let request = self.request(count, properties).await;
        let answer = self.provision(&request).await.unwrap();
        (request, whole(answer, count))
    }

    /// The error of a request that fails and creates nothing.
    pub(crate) async fn refused(&self, request: &ProvisionRequest) -> Error {
        refusal(self.provision(request).await)
    }

    pub(crate) async fn deprovision(&self, node: &Node) -> Result<DeprovisionResponse> {
        let uid = self.platform().await.uid;
        let request = requests::removal(&uid, self.fence(), node);
        told(self.client().deprovision(request).await)
    }

    /// Makes a node a standby with other labels.
    pub(crate) async fn change(&self, node: &Node) -> UpdateNodeRequest {
        let change = NodeChange {
            role: NodeRole::Standby.into(),
            set_labels: [("stage".to_owned(), "prod".to_owned())].into(),
            remove_labels: vec!["team".to_owned()],
            ..NodeChange::default()
        };
        let uid = self.platform().await.uid;
        requests::update(&uid, self.fence(), node, Update::Change(change))
    }

    /// The log of a node.
    pub(crate) async fn log(&self, node: &Node, tail_lines: Option<u32>) -> String {
        let request = StreamLogsRequest {
            node: Some(NodeTarget {
                expected_platform_uid: self.platform().await.uid,
                node_id: node.node_id.clone(),
                cluster_id: node.cluster_id.clone(),
                expected_slot: node.slot.clone(),
                ..NodeTarget::default()
            }),
            tail_lines,
            as_text: true,
            ..StreamLogsRequest::default()
        };
        let routes = self.server.lock().routes();
        let mut client = NodeAccessServiceClient::new(drover_client::in_process(routes));
        let mut stream = client.stream_logs(request).await.unwrap().into_inner();
        let mut text = String::new();
        while let Some(answer) = stream.message().await.unwrap() {
            if let Some(chunk::Content::Text(piece)) = answer.chunk.and_then(|chunk| chunk.content)
            {
                text.push_str(&piece);
            }
        }
        text
    }

    /// Deletes a node and waits until it is gone.
    pub(crate) async fn remove(&self, node: &Node) {
        until("the node is gone", || async {
            match self.deprovision(node).await {
                Ok(answer) => (answer.state() == DeprovisionState::Gone).then_some(()),
                Err(error) => panic!("{error:?}"),
            }
        })
        .await;
    }

    /// The nodes of the cluster, except terminated ones.
    pub(crate) async fn nodes(&self) -> Vec<Node> {
        self.discover(&self.cluster).await.unwrap()
    }

    pub(crate) async fn discover(&self, cluster: &str) -> Result<Vec<Node>> {
        let (mut nodes, _) = list(self.client(), cluster).await?;
        nodes.retain(|node| node.phase() != NodePhase::Terminated);
        Ok(nodes)
    }

    pub(crate) async fn node(&self, id: &str) -> Option<Node> {
        self.nodes()
            .await
            .into_iter()
            .find(|node| node.node_id == id)
    }

    /// Resources that the emulator has created for any owner and that still exist.
    pub(crate) fn left(&self) -> Vec<(String, String)> {
        self.ec2()
            .ledger()
            .into_iter()
            .filter(|made| !made.foreign && !made.gone)
            .map(|made| (made.kind, made.id))
            .collect()
    }
}

/// The kinds and names of the resources.
pub(crate) fn names(resources: &[Resource]) -> Vec<String> {
    let mut names: Vec<String> = resources
        .iter()
        .map(|resource| format!("{}/{}", resource.kind, resource.name))
        .collect();
    names.sort();
    names
}

/// User data for a request.
pub(crate) fn user_data(bytes: usize) -> Option<Bootstrap> {
    Some(Bootstrap {
        user_data: Some(bootstrap::UserData::Binary(vec![b'x'; bytes])),
        ..Bootstrap::default()
    })
}

/// The SDK client without our configuration.
pub(crate) fn sdk(url: &str) -> Client {
    let http = HttpBuilder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https();
    let config = aws_sdk_ec2::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(http)
        .app_name(AppName::new(BY_HAND).unwrap())
        .region(Region::new(REGION))
        .credentials_provider(Credentials::new(KEY, "secret", None, None, "tests"))
        .endpoint_url(url)
        .build();
    Client::from_conf(config)
}

/// The tags of an instance as the API returns them.
pub(crate) async fn tags_of(sdk: &Client, id: &str) -> BTreeMap<String, String> {
    let answer = sdk
        .describe_instances()
        .instance_ids(id)
        .send()
        .await
        .unwrap();
    let instance = &answer.reservations()[0].instances()[0];
    instance
        .tags()
        .iter()
        .map(|tag| {
            (
                tag.key().unwrap().to_owned(),
                tag.value().unwrap().to_owned(),
            )
        })
        .collect()
}
