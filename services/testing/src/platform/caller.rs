//! A client of one platform that makes requests as an orchestrator does, and waits for their effects.

pub use crate::wait::until;

use std::sync::atomic::{AtomicU32, Ordering};

use drover_client::Channel;
use drover_convert::error::{from_rpc_status, from_status};
use drover_core::{Error, Result};
use drover_proto::platform::v1::{
    Bootstrap, DeprovisionRequest, DeprovisionResponse, DiscoverRequest, Fence, GetPlatformRequest,
    Node, NodeChange, NodePhase, Platform, ProvisionRequest, ProvisionResponse, UpdateNodeRequest,
    Warning, bootstrap::UserData, platform_service_client::PlatformServiceClient,
    update_node_request::Update,
};
use prost_types::Struct;
use tonic::service::Routes;
use uuid::Uuid;

use super::requests;

/// The owner of one cluster on a platform in this process.
pub struct Caller {
    /// The platform's self-description.
    pub platform: Platform,
    /// Id of the cluster. Default: `c-` and eight random digits.
    pub cluster: String,
    /// Owner of everything that is created.
    pub owner: Uuid,
    /// Labels of the cluster. Default none.
    pub labels: Vec<(&'static str, &'static str)>,
    routes: Routes,
    ordinals: AtomicU32,
}

impl Caller {
    /// Creates a caller, with a handshake with the platform.
    pub async fn new(routes: Routes) -> Self {
        Self {
            platform: handshake(&routes).await,
            cluster: format!("c-{}", &Uuid::new_v4().simple().to_string()[..8]),
            owner: Uuid::new_v4(),
            labels: Vec::new(),
            routes,
            ordinals: AtomicU32::new(0),
        }
    }

    /// Calls another platform from now on, such as the successor of one that died.
    pub async fn call(&mut self, routes: Routes) {
        self.platform = handshake(&routes).await;
        self.routes = routes;
    }

    /// Opens a channel to the platform.
    pub fn channel(&self) -> Channel {
        drover_client::in_process(self.routes.clone())
    }

    /// A client of the platform.
    pub fn client(&self) -> PlatformServiceClient<Channel> {
        PlatformServiceClient::new(self.channel())
    }

    /// A valid request for `count` new nodes of a group.
    pub fn request_of(&self, group: &str, count: u32, properties: Struct) -> ProvisionRequest {
        let first = self.ordinals.fetch_add(count, Ordering::Relaxed);
        let mut request = requests::provision(
            &self.platform.uid,
            fence(),
            (&self.cluster, self.owner),
            group,
            first..first + count,
        );
        let labels = self.labels.iter();
        let labels = labels.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        request.cluster.as_mut().unwrap().labels = labels.collect();
        request.group.as_mut().unwrap().properties = Some(properties);
        request
    }

    /// A valid request for `count` new nodes of the group `db`, without properties.
    pub fn request(&self, count: u32) -> ProvisionRequest {
        self.request_of("db", count, Struct::default())
    }

    /// Sends a request.
    ///
    /// # Errors
    ///
    /// Those of the platform.
    pub async fn provision(&self, request: &ProvisionRequest) -> Result<ProvisionResponse> {
        told(self.client().provision(request.clone()).await)
    }

    /// Creates nodes, and returns them in the order of their indexes.
    pub async fn make(&self, count: u32) -> Vec<Node> {
        self.made_by(&self.request(count)).await
    }

    /// The nodes of a request that must create all of them, in the order of their indexes.
    pub async fn made_by(&self, request: &ProvisionRequest) -> Vec<Node> {
        let answer = self.provision(request).await.unwrap();
        whole(answer, request.slots.len())
    }

    /// The error of an invalid request that is only validated.
    pub async fn complaint(&self, request: &ProvisionRequest) -> Error {
        let mut request = request.clone();
        request.validate_only = true;
        self.provision(&request).await.unwrap_err()
    }

    /// The request to remove a node.
    pub fn removal(&self, node: &Node) -> DeprovisionRequest {
        requests::removal(&self.platform.uid, fence(), node)
    }

    /// Sends a removal.
    ///
    /// # Errors
    ///
    /// Those of the platform.
    pub async fn deprovision(&self, request: &DeprovisionRequest) -> Result<DeprovisionResponse> {
        told(self.client().deprovision(request.clone()).await)
    }

    /// The request to change role and labels of a node.
    pub fn change(&self, node: &Node, change: NodeChange) -> UpdateNodeRequest {
        requests::update(&self.platform.uid, fence(), node, Update::Change(change))
    }

    /// Sends a change of a node, and returns the node.
    ///
    /// # Errors
    ///
    /// Those of the platform.
    pub async fn update(&self, request: &UpdateNodeRequest) -> Result<Node> {
        updated(self.client(), request).await
    }

    /// All pages of the nodes of a cluster, or of all clusters if it is empty.
    ///
    /// # Errors
    ///
    /// Those of the platform.
    pub async fn discover(&self, cluster: &str) -> Result<Vec<Node>> {
        list(self.client(), cluster).await.map(|(nodes, _)| nodes)
    }

    /// Waits until a node is in this phase, and returns it.
    pub async fn until_phase(&self, node_id: &str, phase: NodePhase) -> Node {
        until(&format!("the node is {phase:?}"), || async {
            let nodes = self.discover(&self.cluster).await.unwrap_or_default();
            nodes
                .into_iter()
                .find(|node| node.node_id == node_id && node.phase() == phase)
        })
        .await
    }

    /// Waits until a node is no longer listed.
    pub async fn until_gone(&self, node_id: &str) {
        until("the node is gone", || async {
            let nodes = self.discover(&self.cluster).await.ok()?;
            let there = nodes.iter().any(|node| node.node_id == node_id);
            (!there).then_some(())
        })
        .await;
    }

    /// Repeatedly removes all listed nodes, until the cloud itself reports that nothing is left.
    pub async fn remove_all(&self, what: &str, nothing_left: impl Fn() -> bool) {
        until(what, || async {
            let nodes = self.discover("").await.ok()?;
            for node in nodes.iter().filter(|node| node.slot.is_some()) {
                // This may be hit by a fault of the test; the next round retries.
                let _ = self.deprovision(&self.removal(node)).await;
            }
            nothing_left().then_some(())
        })
        .await;
    }
}

async fn handshake(routes: &Routes) -> Platform {
    let mut client = PlatformServiceClient::new(drover_client::in_process(routes.clone()));
    let answer = client.get_platform(GetPlatformRequest {}).await.unwrap();
    answer.into_inner().platform.unwrap()
}

/// The outcome of a call as callers see it.
///
/// # Errors
///
/// The error that the status represents.
pub fn told<T>(answer: std::result::Result<tonic::Response<T>, tonic::Status>) -> Result<T> {
    answer
        .map(tonic::Response::into_inner)
        .map_err(|status| from_status(&status))
}

/// All pages of the nodes of a cluster, or of all clusters if it is empty, with the warnings.
///
/// # Errors
///
/// Those of the platform.
pub async fn list(
    mut client: PlatformServiceClient<Channel>,
    cluster: &str,
) -> Result<(Vec<Node>, Vec<Warning>)> {
    let (mut nodes, mut warnings) = (Vec::new(), Vec::new());
    let mut page_token = String::new();
    loop {
        let request = DiscoverRequest {
            cluster_id: cluster.to_owned(),
            page_token,
            ..DiscoverRequest::default()
        };
        let page = told(client.discover(request).await)?;
        nodes.extend(page.nodes);
        warnings.extend(page.warnings);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok((nodes, warnings));
        }
    }
}

/// Sends a change of a node, and returns the node.
///
/// # Errors
///
/// Those of the platform.
pub async fn updated(
    mut client: PlatformServiceClient<Channel>,
    request: &UpdateNodeRequest,
) -> Result<Node> {
    told(client.update_node(request.clone()).await).map(|answer| answer.node.unwrap())
}

/// The nodes of a response that must have this number and no failures, in the order of their indexes.
pub fn whole(answer: ProvisionResponse, count: usize) -> Vec<Node> {
    assert_eq!((answer.failures, answer.unknown), (vec![], vec![]));
    let mut nodes = answer.nodes;
    nodes.sort_by_key(index);
    assert_eq!(nodes.len(), count);
    nodes
}

/// The error of a request that must have failed and created nothing.
pub fn refusal(outcome: Result<ProvisionResponse>) -> Error {
    match outcome {
        Err(error) => error,
        Ok(answer) => {
            assert_eq!((&answer.nodes, &answer.unknown), (&vec![], &vec![]));
            from_rpc_status(answer.failures[0].error.as_ref().unwrap())
        }
    }
}

/// The index of a node in its request.
pub fn index(node: &Node) -> u32 {
    let index = node.slot.as_ref().and_then(|slot| slot.index);
    index.expect("an own node has an index")
}

/// User data as set by a caller.
pub fn user_data(text: &str) -> Bootstrap {
    Bootstrap {
        user_data: Some(UserData::Text(text.to_owned())),
        ..Bootstrap::default()
    }
}

/// The fence of all callers here.
pub fn fence() -> Fence {
    Fence {
        store_id: "5f0c2b9a-0000-4000-8000-00000000000a".to_owned(),
        shard: 0,
        epoch: 1,
    }
}
