use std::{collections::BTreeMap, sync::Arc};

use drover_client::{Channel, PlatformClient};
use drover_convert::error::from_rpc_status;
use drover_core::{Error, Result};
use drover_platform_k8s::{PlatformServer, Settings, settings::DriverKind};
use drover_proto::platform::v1::{
    DeprovisionRequest, DiscoverRequest, Fence, GetPlatformRequest, Host, ListHostsRequest, Node,
    NodeAdoption, Placement, ProvisionRequest, ProvisionResponse, RemovalEvidence, Slot, SlotKey,
    Spread, WatchNodesRequest, platform_service_client::PlatformServiceClient,
    update_node_request::Update, watch_nodes_response::Event,
};
use drover_testing::{
    kubernetes::{Namespace, Options, Rig, definitions, until},
    platform::requests,
    wait::PATIENCE,
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::bench::without_addons;

/// Their kind, as calls to the API server name it.
pub(super) const HOSTS: &str = "baremetalhosts.metal3.io";

/// Path of the hosts of a namespace.
fn hosts_of(namespace: &str) -> String {
    format!("/apis/metal3.io/v1alpha1/namespaces/{namespace}/baremetalhosts")
}

/// A host with these labels.
pub(super) fn host(name: &str, labels: &[(&str, &str)]) -> Value {
    let labels: BTreeMap<_, _> = labels.iter().copied().collect();
    json!({
        "apiVersion": "metal3.io/v1alpha1",
        "kind": "BareMetalHost",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "online": true,
            "bmc": {"address": "redfish+https://192.0.2.1/1", "credentialsName": format!("{name}-bmc")},
            "networkData": {"name": format!("{name}-networkdata")},
        },
    })
}

/// A namespace with hosts, and a platform over them.
pub(super) struct Place {
    pub(super) namespace: Arc<Namespace>,
    pub(super) server: Arc<PlatformServer>,
    pub(super) uid: String,
    channel: Channel,
    store: Uuid,
}

impl Place {
    /// A place with these hosts, each with network data and credentials of its own.
    pub(super) async fn with(hosts: &[Value]) -> Self {
        let rig = Rig::shared(Options::default());
        let namespace = Arc::new(rig.namespace().await);
        definitions::define(&namespace.raw, &definitions::metal3()).await;
        for host in hosts {
            add(&namespace, host).await;
        }
        let server = open(rig, &namespace.name).await;
        Self::over(namespace, server).await
    }

    async fn over(namespace: Arc<Namespace>, server: Arc<PlatformServer>) -> Self {
        let channel = drover_client::in_process(server.routes());
        let mut client = PlatformServiceClient::new(channel.clone());
        let platform = client.get_platform(GetPlatformRequest {}).await.unwrap();
        Self {
            uid: platform.into_inner().platform.unwrap().uid,
            namespace,
            server,
            channel,
            store: Uuid::new_v4(),
        }
    }

    /// The same caller, by another way to the platform.
    pub(super) fn by_way_of(&self, channel: Channel) -> Self {
        Self {
            namespace: Arc::clone(&self.namespace),
            server: Arc::clone(&self.server),
            uid: self.uid.clone(),
            channel,
            store: self.store,
        }
    }

    /// The same hosts, by another server.
    pub(super) async fn served_by(self, server: PlatformServer) -> Self {
        Self::over(self.namespace, Arc::new(server)).await
    }

    /// Another server over the same hosts.
    pub(super) async fn another(&self) -> Self {
        let rig = Rig::shared(Options::default());
        let server = open(rig, &self.namespace.name).await;
        Self::over(Arc::clone(&self.namespace), server).await
    }

    pub(super) fn path(&self, name: &str) -> String {
        format!("{}/{name}", hosts_of(&self.namespace.name))
    }

    pub(super) async fn object(&self, name: &str) -> Value {
        self.namespace.raw.get(&self.path(name)).await.unwrap()
    }

    pub(super) async fn merge(&self, name: &str, patch: Value) {
        let patched = self.namespace.raw.merge(&self.path(name), &patch).await;
        patched.unwrap();
    }

    /// Writes the status of a host, as metal3 does.
    pub(super) async fn status(&self, name: &str, status: Value) {
        let path = format!("{}/status", self.path(name));
        let patch = json!({"status": status});
        self.namespace.raw.merge(&path, &patch).await.unwrap();
    }

    fn fence(&self) -> Fence {
        Fence {
            store_id: self.store.to_string(),
            shard: 0,
            epoch: 1,
        }
    }

    /// A request for so many hosts of a group, at most one in each domain of these keys.
    pub(super) fn request(
        &self,
        cluster: (&str, Uuid),
        ordinals: std::ops::Range<u32>,
        keys: &[&str],
    ) -> ProvisionRequest {
        let mut request =
            requests::provision(&self.uid, self.fence(), cluster, "control-plane", ordinals);
        let spread = |key: &&str| Spread {
            topology_key: (*key).to_owned(),
            max_per_domain: Some(1),
            ..Spread::default()
        };
        request.group.as_mut().unwrap().placement = Some(Placement {
            spread: keys.iter().map(spread).collect(),
            ..Placement::default()
        });
        request
    }

    /// The nodes of a request, or why it has none.
    pub(super) async fn provision(&self, request: &ProvisionRequest) -> Result<Vec<Node>> {
        let answer = self.answer(request).await?;
        assert_eq!(answer.unknown, vec![]);
        match answer.failures.first() {
            None => Ok(answer.nodes),
            Some(failure) => {
                assert_eq!(answer.nodes, vec![], "all of them or none");
                Err(from_rpc_status(failure.error.as_ref().unwrap()))
            }
        }
    }

    pub(super) async fn answer(&self, request: &ProvisionRequest) -> Result<ProvisionResponse> {
        let client = PlatformClient::new(self.channel.clone());
        client.provision(request.clone(), PATIENCE).await
    }

    pub(super) async fn remove(&self, node: &Node) -> Result<()> {
        let mut client = PlatformServiceClient::new(self.channel.clone());
        let removal: DeprovisionRequest = requests::removal(&self.uid, self.fence(), node);
        let removed = client.deprovision(removal).await;
        removed
            .map(drop)
            .map_err(|status| drover_convert::error::from_status(&status))
    }

    pub(super) async fn update(&self, node: &Node, update: Update) -> Result<()> {
        let client = PlatformClient::new(self.channel.clone());
        let request = requests::update(&self.uid, self.fence(), node, update);
        client.update_node(request, PATIENCE).await.map(drop)
    }

    /// Has another owner take a node of cluster `blue` over.
    pub(super) async fn take_over(&self, node: &Node, heir: Uuid, slot: &Slot) {
        let adoption = NodeAdoption {
            cluster_id: "blue".to_owned(),
            key: Some(SlotKey {
                owner: heir.to_string(),
                request_id: Uuid::new_v4().to_string(),
                index: Some(0),
            }),
            slot: Some(Slot {
                host_id: None,
                ..slot.clone()
            }),
            sequence: 9,
            group: "control-plane".to_owned(),
            spec_hash: "h1-x".to_owned(),
        };
        self.update(node, Update::Adoption(adoption)).await.unwrap();
    }

    /// Watches nodes; the answer ends with how the platform knows that this one is gone.
    pub(super) async fn removal_of(
        &self,
        node: &Node,
    ) -> std::pin::Pin<Box<dyn Future<Output = RemovalEvidence> + Send>> {
        let mut client = PlatformServiceClient::new(self.channel.clone());
        let request = WatchNodesRequest {
            expected_platform_uid: self.uid.clone(),
            ..WatchNodesRequest::default()
        };
        let mut events = client.watch_nodes(request).await.unwrap().into_inner();
        let id = node.node_id.clone();
        Box::pin(async move {
            let seen = async {
                while let Some(message) = events.message().await.unwrap() {
                    let Some(Event::Removals(removals)) = message.event else {
                        continue;
                    };
                    if let Some(gone) = removals.nodes.iter().find(|gone| gone.node_id == id) {
                        return gone.evidence();
                    }
                }
                panic!("the watch has ended");
            };
            tokio::time::timeout(PATIENCE, seen)
                .await
                .expect("a removal")
        })
    }

    pub(super) async fn nodes(&self) -> Vec<Node> {
        self.try_nodes().await.unwrap()
    }

    pub(super) async fn try_nodes(&self) -> Result<Vec<Node>> {
        let mut client = PlatformServiceClient::new(self.channel.clone());
        let listed = client.discover(DiscoverRequest::default()).await;
        let listed = listed.map_err(|status| drover_convert::error::from_status(&status))?;
        Ok(listed.into_inner().nodes)
    }

    pub(super) async fn hosts(&self) -> Vec<Host> {
        let client = PlatformClient::new(self.channel.clone());
        let listed = client.list_hosts(ListHostsRequest::default(), PATIENCE);
        listed.await.unwrap().hosts
    }

    /// Waits until the inventory shows a host so.
    pub(super) async fn until_host(&self, name: &str, fits: impl Fn(&Host) -> bool) -> Host {
        let id = format!("{}/{name}", self.namespace.name);
        until(&format!("host {name} is as expected"), || async {
            let hosts = self.hosts().await;
            hosts.into_iter().find(|host| host.id == id && fits(host))
        })
        .await
    }
}

pub(super) async fn add(namespace: &Namespace, host: &Value) {
    let name = host["metadata"]["name"].as_str().unwrap();
    let path = hosts_of(&namespace.name);
    namespace.raw.create(&path, host).await.unwrap();
    let number = name
        .bytes()
        .fold(0_u32, |sum, byte| (sum * 31 + u32::from(byte)) % 250);
    let data =
        json!({"networks": [{"id": "oam-ipv4", "ip_address": format!("192.0.2.{number}/24")}]});
    let network = json!({
        "metadata": {"name": format!("{name}-networkdata")},
        "stringData": {"networkData": data.to_string()},
    });
    let credentials = json!({
        "metadata": {"name": format!("{name}-bmc")},
        "stringData": {"username": "admin", "password": "hunter2"},
    });
    for secret in [network, credentials] {
        namespace.create("secrets", &secret).await.unwrap();
    }
}

pub(super) fn settings(rig: &Rig, namespace: &str) -> Settings {
    Settings {
        driver: DriverKind::Hosts,
        kubeconfig: Some(rig.kubeconfig().to_path_buf()),
        namespaces: vec![namespace.to_owned()],
        addons: without_addons(),
        ..Settings::default()
    }
}

pub(super) async fn open(rig: &Rig, namespace: &str) -> Arc<PlatformServer> {
    let server = PlatformServer::open(settings(rig, namespace)).await;
    Arc::new(server.unwrap())
}

/// Names of the hosts that these nodes are.
pub(super) fn names(nodes: &[Node]) -> Vec<String> {
    let name = |node: &Node| {
        let id = node.host_id.clone().unwrap();
        id.split_once('/').unwrap().1.to_owned()
    };
    let mut names: Vec<String> = nodes.iter().map(name).collect();
    names.sort_unstable();
    names
}

/// The error of a call that must fail.
pub(super) fn refused<T: std::fmt::Debug>(outcome: Result<T>) -> Error {
    outcome.unwrap_err()
}
