//! One emulator, one platform on it, and short ways to call.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use drover_convert::error::from_status;
use drover_core::{Class, Result, name};
use drover_emulators::{
    Made,
    gce::{Gce, GceSettings},
};
use drover_platform::templates::Templates;
use drover_platform_cloud::{
    PlatformServer,
    cloud::CloudDriver,
    drivers::gcp::{self, Settings},
};
use drover_proto::platform::v1::{
    ClusterContext, DeprovisionRequest, DeprovisionResponse, DiscoverRequest, Fence,
    GetPlatformRequest, Node, NodePhase, NodeRole, Platform, ProvisionRequest, ProvisionResponse,
    ResolvedGroup, Slot, platform_service_client::PlatformServiceClient,
};
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(40);

/// Longest time of a call: long enough for a busy machine, as a call that is late is a fault of its own.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// An emulator and a platform on it that can be dropped and opened again.
pub(crate) struct Bench {
    pub(crate) gce: Gce,
    pub(crate) settings: Settings,
    pub(crate) server: Arc<PlatformServer>,
    pub(crate) platform: Platform,
    pub(crate) cluster: String,
    owner: Uuid,
    ordinals: AtomicU32,
}

/// Settings for tests: quick, and for a project with three zones.
pub(crate) fn settings(gce: &Gce) -> Settings {
    let mut settings = Settings::emulated(gce.url());
    settings.common.calls_per_second = 2_000.0;
    settings.common.poll_interval_seconds = 0.2;
    settings.common.pending_poll_interval_seconds = 0.05;
    settings.common.visibility_delay_seconds = 1.0;
    settings.common.call_timeout_seconds = CALL_TIMEOUT.as_secs_f64();
    settings.operation_timeout_seconds = 20.0;
    settings
}

pub(crate) async fn serve(settings: &Settings) -> Result<PlatformServer> {
    let cloud = gcp::open(settings.clone()).await?;
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
        Self::with(GceSettings::default()).await
    }

    pub(crate) async fn with(emulator: GceSettings) -> Self {
        let gce = Gce::start(emulator).await.unwrap();
        let settings = settings(&gce);
        Self::over(gce, settings).await
    }

    pub(crate) async fn over(gce: Gce, settings: Settings) -> Self {
        let server = serve(&settings).await.unwrap();
        let platform = handshake(&server).await;
        Self {
            gce,
            settings,
            server: Arc::new(server),
            platform,
            cluster: format!("c-{}", &Uuid::new_v4().simple().to_string()[..8]),
            owner: Uuid::new_v4(),
            ordinals: AtomicU32::new(0),
        }
    }

    /// The platform dies and another one is started: what it knew in memory is forgotten.
    pub(crate) async fn crash(&mut self) {
        let new = serve(&self.settings).await.unwrap();
        let old = std::mem::replace(&mut self.server, Arc::new(new));
        drop(old);
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
        let properties = drover_convert::value::to_struct(properties.as_object().unwrap());
        ProvisionRequest {
            expected_platform_uid: self.platform.uid.clone(),
            fence: Some(fence()),
            owner: self.owner.to_string(),
            request_id: request_id.to_string(),
            sequence: 1,
            slots: slots.collect(),
            cluster: Some(ClusterContext {
                id: self.cluster.clone(),
                labels: [("team.example/One".to_owned(), "A_b.1".to_owned())].into(),
                ..ClusterContext::default()
            }),
            group: Some(ResolvedGroup {
                path: "db".to_owned(),
                size: count,
                properties: Some(properties),
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

    /// As the orchestrator does it: sends the request until nothing of it is unknown.
    pub(crate) async fn provision_until_known(
        &self,
        request: &ProvisionRequest,
    ) -> ProvisionResponse {
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = self.provision(request).await;
            match &answer {
                Ok(known) if known.unknown.is_empty() => return answer.unwrap(),
                Err(error) => assert_eq!(error.class(), Class::Unknown, "{error:?}"),
                Ok(_) => {}
            }
            assert!(
                Instant::now() < end,
                "the request is still unknown: {answer:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
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

    /// Nodes of the cluster (empty: all), all pages.
    pub(crate) async fn discover(&self, cluster: &str) -> Result<Vec<Node>> {
        let mut nodes = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = DiscoverRequest {
                cluster_id: cluster.to_owned(),
                page_token,
                ..DiscoverRequest::default()
            };
            let page = self
                .client()
                .discover(request)
                .await
                .map_err(|status| from_status(&status))?;
            let page = page.into_inner();
            nodes.extend(page.nodes);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(nodes);
            }
        }
    }

    /// The node, once it is in this phase.
    pub(crate) async fn until_phase(&self, node_id: &str, phase: NodePhase) -> Node {
        until("the node is in its phase", || async {
            let nodes = self.discover(&self.cluster).await.unwrap_or_default();
            nodes
                .into_iter()
                .find(|node| node.node_id == node_id && node.phase() == phase)
        })
        .await
    }

    /// Machines that were made by requests, gone ones included.
    pub(crate) fn made(&self) -> Vec<Made> {
        let mut made = self.gce.ledger();
        made.retain(|made| !made.foreign);
        made
    }

    /// That no slot was made twice, ever.
    pub(crate) fn assert_nothing_doubled(&self, what: &str) {
        let mut seen = std::collections::BTreeSet::new();
        for made in self.made() {
            let slot = (
                made.tags["drover-request"].clone(),
                made.tags["drover-slots"].clone(),
            );
            assert!(seen.insert(slot), "{what}: a slot was made twice: {made:?}");
        }
    }

    /// Removes every node that is known, and asserts that no machine is left.
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
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
