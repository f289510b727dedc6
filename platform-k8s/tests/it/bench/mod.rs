//! A platform over the rig, in its own namespace and behind its own proxy, with helpers to call it.
#![allow(dead_code, reason = "every test binary uses its own part of it")]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use drover_core::{Error, Result};
use drover_platform_k8s::{PlatformServer, Settings, addons::AddonsSettings};
use drover_proto::platform::v1::{
    DeprovisionResponse, DeprovisionState, Fence, GetPlatformRequest, Node, NodePhase, Platform,
    ProvisionRequest, ProvisionResponse, UpdateNodeRequest, Warning, WatchNodesRequest,
    WatchNodesResponse, platform_service_client::PlatformServiceClient,
};
use futures::future::join_all;
use parking_lot::Mutex;
use serde_json::Value;
use uuid::Uuid;

use drover_testing::{
    kubernetes::{Fault, FaultProxy, Namespace, Options, PATIENCE, Rig, Thing, until},
    platform::{
        caller::{list, refusal, told, updated, whole},
        requests,
    },
};

pub(crate) use drover_testing::platform::caller::index;

/// The rig that all tests share.
pub(crate) fn rig() -> &'static Rig {
    Rig::shared(Options::kwok(3))
}

pub(crate) fn catalogue() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/bench/catalogue")
}

/// A platform, with the API server and the proxy below it.
pub(crate) struct Bench {
    pub(crate) rig: &'static Rig,
    pub(crate) namespace: Namespace,
    pub(crate) settings: Settings,
    pub(crate) cluster: String,
    pub(crate) owner: Uuid,
    store_id: Uuid,
    proxy: Mutex<Arc<FaultProxy>>,
    server: Mutex<Arc<PlatformServer>>,
    ordinals: AtomicU32,
    sequence: AtomicU64,
}

pub(crate) fn settings(namespace: &str) -> Settings {
    Settings {
        namespaces: vec![namespace.to_owned()],
        templates: Some(catalogue()),
        call_timeout_seconds: 5.0,
        addons: without_addons(),
        ..Settings::default()
    }
}

/// Tests of nodes have nothing to do with addons.
pub(crate) fn without_addons() -> AddonsSettings {
    AddonsSettings {
        kinds: Vec::new(),
        ..AddonsSettings::default()
    }
}

async fn open(settings: &Settings, proxy: &FaultProxy) -> Result<Arc<PlatformServer>> {
    let settings = Settings {
        kubeconfig: Some(proxy.kubeconfig()),
        ..settings.clone()
    };
    PlatformServer::open(settings).await.map(Arc::new)
}

impl Bench {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        Self::on(rig(), change).await
    }

    pub(crate) async fn on(rig: &'static Rig, change: impl FnOnce(&mut Settings)) -> Self {
        let namespace = rig.namespace().await;
        let mut settings = settings(&namespace.name);
        change(&mut settings);
        let proxy = FaultProxy::start(rig).await;
        Self::over(rig, namespace, settings, proxy).await
    }

    pub(crate) async fn over(
        rig: &'static Rig,
        namespace: Namespace,
        settings: Settings,
        proxy: FaultProxy,
    ) -> Self {
        let server = open(&settings, &proxy).await.unwrap();
        let bench = Self {
            rig,
            namespace,
            settings,
            cluster: format!("c-{}", &Uuid::new_v4().simple().to_string()[..12]),
            owner: Uuid::new_v4(),
            store_id: Uuid::new_v4(),
            proxy: Mutex::new(Arc::new(proxy)),
            server: Mutex::new(server),
            ordinals: AtomicU32::new(0),
            sequence: AtomicU64::new(0),
        };
        bench.settled().await;
        bench
    }

    /// Waits until every watch is running, so that a test sees only its own changes.
    async fn settled(&self) {
        self.proxy().watches().until_running("pods").await;
        until("the platform lists", || async {
            self.list("").await.ok().map(drop)
        })
        .await;
    }

    pub(crate) fn proxy(&self) -> Arc<FaultProxy> {
        Arc::clone(&self.proxy.lock())
    }

    pub(crate) fn server(&self) -> Arc<PlatformServer> {
        Arc::clone(&self.server.lock())
    }

    /// Replaces a platform that died by another one over the same API server. Nothing of the old one reaches the server
    /// any more.
    pub(crate) async fn reborn(&self) {
        self.proxy().die();
        let proxy = FaultProxy::start(self.rig).await;
        let server = open(&self.settings, &proxy).await.unwrap();
        *self.proxy.lock() = Arc::new(proxy);
        *self.server.lock() = server;
        self.settled().await;
    }

    /// After a fault: removes all faults, and starts a new platform if this one died.
    pub(crate) async fn recover(&self, fault: &Fault) {
        self.proxy().heal();
        if fault.kills() {
            self.reborn().await;
        }
    }

    pub(crate) fn client(&self) -> PlatformServiceClient<drover_client::Channel> {
        PlatformServiceClient::new(drover_client::in_process(self.server().routes()))
    }

    pub(crate) async fn platform(&self) -> Platform {
        let answer = self.client().get_platform(GetPlatformRequest {}).await;
        answer.unwrap().into_inner().platform.unwrap()
    }

    pub(crate) fn fence(&self) -> Fence {
        Fence {
            store_id: self.store_id.to_string(),
            shard: 0,
            epoch: 1,
        }
    }

    /// A request for nodes of a store in the test catalogue.
    pub(crate) async fn request(&self, store: &str, count: u32) -> ProvisionRequest {
        let first = self.ordinals.fetch_add(count, Ordering::Relaxed);
        let mut request = requests::provision(
            &self.platform().await.uid,
            self.fence(),
            (&self.cluster, self.owner),
            "db",
            first..first + count,
        );
        request.sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        let cluster = request.cluster.as_mut().unwrap();
        cluster.store = store.to_owned();
        cluster.version = "1".to_owned();
        cluster.labels = [("team".to_owned(), "storage".to_owned())].into();
        request.group.as_mut().unwrap().version = "1".to_owned();
        request
    }

    pub(crate) async fn provision(&self, request: &ProvisionRequest) -> Result<ProvisionResponse> {
        told(self.client().provision(request.clone()).await)
    }

    /// Creates nodes, and returns them in the order of their indexes.
    pub(crate) async fn make(&self, store: &str, count: u32) -> (ProvisionRequest, Vec<Node>) {
        let request = self.request(store, count).await;
        let answer = self.provision(&request).await.unwrap();
        let nodes = whole(answer, request.slots.len());
        (request, nodes)
    }

    /// Repeats a request until every slot has its node.
    pub(crate) async fn whole(&self, request: &ProvisionRequest, what: &str) -> Vec<Node> {
        let last = Mutex::new(String::new());
        let attempt = async || {
            let answer = match self.provision(request).await {
                Ok(answer) => answer,
                Err(error) => {
                    *last.lock() = format!("{error:?}");
                    return None;
                }
            };
            assert_eq!(answer.failures, vec![], "{what}: nothing here is final");
            *last.lock() = format!("{:?}", answer.unknown);
            (answer.nodes.len() == request.slots.len()).then_some(answer.nodes)
        };
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            if let Some(mut nodes) = attempt().await {
                nodes.sort_by_key(index);
                return nodes;
            }
            assert!(
                tokio::time::Instant::now() < end,
                "{what}: never whole: {}",
                last.lock()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The error of a request that creates nothing.
    pub(crate) async fn refused(&self, request: &ProvisionRequest) -> Error {
        refusal(self.provision(request).await)
    }

    pub(crate) async fn deprovision(&self, node: &Node) -> Result<DeprovisionResponse> {
        let uid = self.platform().await.uid;
        let request = requests::removal(&uid, self.fence(), node);
        told(self.client().deprovision(request).await)
    }

    pub(crate) async fn update(&self, request: &UpdateNodeRequest) -> Result<Node> {
        updated(self.client(), request).await
    }

    /// Repeats the removal until the node is gone, whatever fails on the way.
    pub(crate) async fn remove(&self, node: &Node, what: &str) {
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let outcome = self.deprovision(node).await;
            if let Ok(answer) = &outcome
                && answer.state() == DeprovisionState::Gone
            {
                return;
            }
            assert!(
                tokio::time::Instant::now() < end,
                "{what}: {} never goes: {outcome:?}",
                node.node_id
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Removes every node of ours that is listed, and waits until the namespace is empty.
    pub(crate) async fn clean(&self, what: &str) {
        let nodes = self.nodes().await;
        join_all(nodes.iter().map(|node| self.remove(node, what))).await;
        self.namespace.until_empty(what).await;
        assert_eq!(self.nodes().await, vec![], "{what}");
    }

    /// The nodes of the cluster, except terminated ones.
    pub(crate) async fn nodes(&self) -> Vec<Node> {
        self.list(&self.cluster).await.unwrap().0
    }

    pub(crate) async fn node(&self, id: &str) -> Option<Node> {
        let nodes = self.nodes().await;
        nodes.into_iter().find(|node| node.node_id == id)
    }

    /// Nodes and warnings. An empty name selects all clusters.
    pub(crate) async fn list(&self, cluster: &str) -> Result<(Vec<Node>, Vec<Warning>)> {
        let (mut nodes, warnings) = list(self.client(), cluster).await?;
        nodes.retain(|node| node.phase() != NodePhase::Terminated);
        Ok((nodes, warnings))
    }

    /// Waits until all nodes of the cluster are running.
    pub(crate) async fn until_running(&self) -> Vec<Node> {
        until("the nodes run", || async {
            let nodes = self.nodes().await;
            let runs = |node: &Node| node.phase() == NodePhase::Running && node.ready == Some(true);
            nodes.iter().all(runs).then_some(nodes)
        })
        .await
    }

    /// Watches all nodes of all clusters.
    pub(crate) async fn watch(&self) -> tonic::Streaming<WatchNodesResponse> {
        let request = WatchNodesRequest {
            heartbeat_interval: Some(prost_types::Duration {
                seconds: 1,
                nanos: 0,
            }),
            ..WatchNodesRequest::default()
        };
        self.client()
            .watch_nodes(request)
            .await
            .unwrap()
            .into_inner()
    }
}

/// Number of objects by kind, except those that controllers derive from others.
pub(crate) fn kinds(things: &[Thing]) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for thing in things {
        let derived = [
            "endpoints",
            "endpointslices.discovery.k8s.io",
            "controllerrevisions.apps",
        ];
        if !derived.contains(&thing.resource.as_str()) {
            *kinds.entry(thing.resource.clone()).or_default() += 1;
        }
    }
    kinds
}

/// Asserts that every slot has exactly one node.
pub(crate) fn one_each(nodes: &[Node], request: &ProvisionRequest, what: &str) {
    let made = |node: &&Node| {
        let slot = node.slot.as_ref();
        slot.is_some_and(|slot| slot.request_id == request.request_id)
    };
    let indexes: Vec<u32> = nodes.iter().filter(made).map(index).collect();
    let distinct: BTreeSet<u32> = indexes.iter().copied().collect();
    let expected: BTreeSet<u32> = request.slots.iter().filter_map(|slot| slot.index).collect();
    assert_eq!(distinct, expected, "{what}: every slot has a node");
    assert_eq!(indexes.len(), distinct.len(), "{what}: no slot has two");
}

/// Sets the attributes of a group.
pub(crate) fn attributes(request: &mut ProvisionRequest, value: Value) {
    let Value::Object(value) = value else {
        panic!("attributes are an object")
    };
    request.group.as_mut().unwrap().attributes = Some(drover_convert::value::to_struct(&value));
}
