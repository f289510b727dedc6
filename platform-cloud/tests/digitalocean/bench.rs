//! A platform over the emulator, and short ways to call it.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use drover_convert::{error::from_status, value::to_struct};
use drover_core::{Result, name};
use drover_emulators::{
    Made,
    digitalocean::{DigitalOcean, DigitalOceanSettings, TOKEN},
};
use drover_platform::templates::Templates;
use drover_platform_cloud::{
    PlatformServer,
    cloud::CloudDriver,
    drivers::digitalocean::{self, Settings},
};
use drover_proto::platform::v1::{
    Bootstrap, ClusterContext, DeprovisionRequest, DeprovisionResponse, DiscoverRequest, Fence,
    GetPlatformRequest, Node, NodePhase, NodeRole, Placement, Platform, ProvisionRequest,
    ProvisionResponse, ResolvedGroup, Slot, UpdateNodeRequest, bootstrap::UserData,
    platform_service_client::PlatformServiceClient,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;
use uuid::Uuid;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// A platform that can be dropped and opened again, on an emulated account.
pub(crate) struct Bench {
    pub(crate) cloud: DigitalOcean,
    pub(crate) settings: Settings,
    pub(crate) server: Arc<PlatformServer>,
    pub(crate) platform: Platform,
    pub(crate) cluster: String,
    owner: Uuid,
    ordinals: AtomicU32,
    /// Holds the file `token`.
    pub(crate) directory: Arc<TempDir>,
}

/// Settings for tests: quick, with one region and the size that the sample of Kadende asks for.
pub(crate) fn settings(cloud: &DigitalOcean) -> (Settings, Arc<TempDir>) {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let mut settings = Settings {
        endpoint: cloud.url(),
        token_file: Some(token),
        regions: vec!["fra1".to_owned()],
        instance_type: "s-1vcpu-1gb".to_owned(),
        ..Settings::default()
    };
    settings.common.calls_per_second = 2_000.0;
    settings.common.poll_interval_seconds = 0.2;
    settings.common.pending_poll_interval_seconds = 0.05;
    settings.common.visibility_delay_seconds = 1.0;
    settings.common.call_timeout_seconds = 2.0;
    (settings, Arc::new(directory))
}

pub(crate) async fn serve(settings: &Settings) -> Result<PlatformServer> {
    let cloud = digitalocean::open(settings.clone()).await?;
    let driver = CloudDriver::new(cloud, settings.common.clone())?;
    PlatformServer::with_driver(Arc::new(driver), Templates::Anything)
}

async fn handshake(server: &PlatformServer) -> Platform {
    let mut client = PlatformServiceClient::new(drover_client::in_process(server.routes()));
    let answer = client.get_platform(GetPlatformRequest {}).await.unwrap();
    answer.into_inner().platform.unwrap()
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(DigitalOceanSettings::default()).await
    }

    pub(crate) async fn with(emulator: DigitalOceanSettings) -> Self {
        Self::set(emulator, |_| ()).await
    }

    /// With settings of the platform changed.
    pub(crate) async fn set(
        emulator: DigitalOceanSettings,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let cloud = DigitalOcean::start(emulator).await.unwrap();
        let (mut settings, directory) = settings(&cloud);
        change(&mut settings);
        let server = serve(&settings).await.unwrap();
        let platform = handshake(&server).await;
        Self {
            cloud,
            settings,
            server: Arc::new(server),
            platform,
            cluster: format!("C-{}", &Uuid::new_v4().simple().to_string()[..8]),
            owner: Uuid::new_v4(),
            ordinals: AtomicU32::new(0),
            directory,
        }
    }

    /// The platform dies, and another one begins with nothing in memory.
    pub(crate) async fn crash(&mut self) {
        self.server = Arc::new(serve(&self.settings).await.unwrap());
        self.platform = handshake(&self.server).await;
    }

    pub(crate) fn client(&self) -> PlatformServiceClient<drover_client::Channel> {
        PlatformServiceClient::new(drover_client::in_process(self.server.routes()))
    }

    pub(crate) fn request(&self, count: u32) -> ProvisionRequest {
        self.request_with(count, &json!({}))
    }

    pub(crate) fn request_with(&self, count: u32, properties: &Value) -> ProvisionRequest {
        let request_id = Uuid::new_v4();
        let slots = (0..count).map(|index| {
            let ordinal = self.ordinals.fetch_add(1, Ordering::Relaxed);
            Slot {
                index: Some(index),
                id: name::node_id("db", ordinal, self.owner, request_id, index),
                name: name::node_name("db", ordinal),
                ordinal: Some(ordinal),
                role: NodeRole::Active.into(),
                host_id: None,
            }
        });
        ProvisionRequest {
            expected_platform_uid: self.platform.uid.clone(),
            fence: Some(fence()),
            owner: self.owner.to_string(),
            request_id: request_id.to_string(),
            sequence: 1,
            slots: slots.collect(),
            cluster: Some(ClusterContext {
                id: self.cluster.clone(),
                labels: [("team.io/One".to_owned(), "A.b_C".to_owned())].into(),
                ..ClusterContext::default()
            }),
            group: Some(ResolvedGroup {
                path: "db".to_owned(),
                size: count,
                properties: Some(to_struct(properties.as_object().unwrap())),
                ..ResolvedGroup::default()
            }),
            spec_hash: "v1-0123456789abcdef".to_owned(),
            ..ProvisionRequest::default()
        }
    }

    pub(crate) async fn provision(&self, request: &ProvisionRequest) -> Result<ProvisionResponse> {
        let answer = self.client().provision(request.clone()).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| from_status(&status))
    }

    /// Makes nodes in the order of their indexes.
    pub(crate) async fn make(&self, count: u32) -> Vec<Node> {
        self.made_by(&self.request(count)).await
    }

    pub(crate) async fn made_by(&self, request: &ProvisionRequest) -> Vec<Node> {
        let answer = self.provision(request).await.unwrap();
        assert_eq!((answer.failures, answer.unknown), (vec![], vec![]));
        let mut nodes = answer.nodes;
        nodes.sort_by_key(|node| node.slot.as_ref().and_then(|slot| slot.index));
        assert_eq!(nodes.len(), request.slots.len());
        nodes
    }

    /// What is wrong with a request.
    pub(crate) async fn refusal(&self, request: &ProvisionRequest) -> drover_core::Error {
        self.provision(request).await.unwrap_err()
    }

    /// What is wrong with a request that is only checked.
    pub(crate) async fn complaint(&self, request: &ProvisionRequest) -> drover_core::Error {
        let mut request = request.clone();
        request.validate_only = true;
        self.refusal(&request).await
    }

    /// As the orchestrator does it: what is unknown is sent again after `Limits.replay_delay`.
    pub(crate) async fn provision_until_known(
        &self,
        request: &ProvisionRequest,
    ) -> ProvisionResponse {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Ok(answer) = self.provision(request).await
                && answer.unknown.is_empty()
            {
                return answer;
            }
            assert!(Instant::now() < end, "the request is still unknown");
            self.replay_delay().await;
        }
    }

    /// The time after which what is unknown may be sent again.
    pub(crate) async fn replay_delay(&self) {
        let limits = self.platform.limits.as_ref().unwrap();
        tokio::time::sleep(limits.replay_delay.unwrap().try_into().unwrap()).await;
    }

    pub(crate) fn removal(&self, node: &Node) -> DeprovisionRequest {
        let slot = node.slot.clone().unwrap();
        DeprovisionRequest {
            expected_platform_uid: self.platform.uid.clone(),
            fence: Some(fence()),
            request_id: Uuid::new_v4().to_string(),
            owner: slot.owner,
            cluster_id: node.cluster_id.clone(),
            node_request_id: slot.request_id,
            index: slot.index,
            node_id: node.node_id.clone(),
            reason: "User".to_owned(),
            ..DeprovisionRequest::default()
        }
    }

    pub(crate) async fn deprovision(
        &self,
        request: &DeprovisionRequest,
    ) -> Result<DeprovisionResponse> {
        let answer = self.client().deprovision(request.clone()).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| from_status(&status))
    }

    pub(crate) async fn update(&self, request: &UpdateNodeRequest) -> Result<Node> {
        let answer = self.client().update_node(request.clone()).await;
        answer
            .map(|answer| answer.into_inner().node.unwrap())
            .map_err(|status| from_status(&status))
    }

    /// Nodes of a cluster (empty: all), all pages.
    pub(crate) async fn discover(&self, cluster: &str) -> Result<Vec<Node>> {
        let mut nodes = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = DiscoverRequest {
                cluster_id: cluster.to_owned(),
                page_token,
                ..DiscoverRequest::default()
            };
            let page = self.client().discover(request).await;
            let page = page.map_err(|status| from_status(&status))?.into_inner();
            nodes.extend(page.nodes);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(nodes);
            }
        }
    }

    /// The node, once it is in this phase.
    pub(crate) async fn until_phase(&self, node_id: &str, phase: NodePhase) -> Node {
        until(&format!("the node is {phase:?}"), || async {
            let nodes = self.discover(&self.cluster).await.unwrap_or_default();
            nodes
                .into_iter()
                .find(|node| node.node_id == node_id && node.phase() == phase)
        })
        .await
    }

    /// Waits until a node is not listed any more.
    pub(crate) async fn until_gone(&self, node_id: &str) {
        until("the node is gone", || async {
            let nodes = self.discover(&self.cluster).await.ok()?;
            let there = nodes.iter().any(|node| node.node_id == node_id);
            (!there).then_some(())
        })
        .await;
    }

    /// Droplets that were made by requests, gone ones included.
    pub(crate) fn made(&self) -> Vec<Made> {
        let mut made = self.cloud.ledger();
        made.retain(|made| !made.foreign);
        made
    }

    /// That no slot was made twice, ever: a droplet has the tag of its request and the name of its slot.
    pub(crate) fn assert_nothing_doubled(&self, what: &str) {
        let names = self.cloud.names();
        let mut seen = BTreeSet::new();
        for made in self.made() {
            let is_request = |tag: &&String| tag.starts_with("drover:request:");
            let slot = (made.tags.keys().find(is_request).cloned(), &names[&made.id]);
            assert!(slot.0.is_some(), "{what}: {} has no request", made.id);
            assert!(seen.insert(slot.clone()), "{what}: made twice: {slot:?}");
        }
    }

    /// Removes every node that is known, and asserts that no droplet is left.
    pub(crate) async fn assert_nothing_leaked(&self, what: &str) {
        until(what, || async {
            let nodes = self.discover("").await.ok()?;
            for node in nodes.iter().filter(|node| node.slot.is_some()) {
                // A fault of the test may meet this, too; the next round tries again.
                let _ = self.deprovision(&self.removal(node)).await;
            }
            self.made().iter().all(|made| made.gone).then_some(())
        })
        .await;
    }
}

/// User data as a caller gives it.
pub(crate) fn user_data(text: &str) -> Bootstrap {
    Bootstrap {
        user_data: Some(UserData::Text(text.to_owned())),
        ..Bootstrap::default()
    }
}

/// A group's placement in these regions.
pub(crate) fn placed_in(request: &mut ProvisionRequest, regions: &[&str]) {
    let group = request.group.as_mut().unwrap();
    group.placement = Some(Placement {
        failure_domains: regions.iter().map(|region| (*region).to_owned()).collect(),
        ..Placement::default()
    });
}

pub(crate) fn fence() -> Fence {
    Fence {
        store_id: "5f0c2b9a-0000-4000-8000-00000000000a".to_owned(),
        shard: 0,
        epoch: 1,
    }
}

/// Waits until a condition holds.
pub(crate) async fn until<T, F>(what: &str, mut condition: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < end, "not in time: {what}");
        tokio::time::sleep(LOOK).await;
    }
}
