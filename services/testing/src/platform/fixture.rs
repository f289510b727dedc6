//! A separate cluster for each check, and shortcuts for calls.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use drover_client::Channel;
use drover_convert::error::from_status;
use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{
    Capability, DeprovisionRequest, DeprovisionResponse, DiscoverRequest, DiscoverResponse, Fence,
    FenceRequest, GetPlatformRequest, Node, NodePhase, Platform, ProvisionRequest,
    ProvisionResponse, UpdateNodeRequest, node_access_service_client::NodeAccessServiceClient,
    platform_service_client::PlatformServiceClient,
};
use tokio::time::Instant;
use tonic::Request;
use uuid::Uuid;

use super::{Subject, caller::index, requests};

/// Poll interval of conditions.
const LOOK: Duration = Duration::from_millis(10);

/// A separate cluster on the platform.
pub(super) struct Fixture<'a> {
    pub(super) subject: &'a Subject,
    pub(super) platform: Platform,
    pub(super) owner: Uuid,
    pub(super) store_id: Uuid,
    pub(super) cluster: String,
    pub(super) epoch: u64,
    ordinals: AtomicU32,
    sequence: AtomicU64,
}

pub(super) fn client(subject: &Subject) -> PlatformServiceClient<Channel> {
    PlatformServiceClient::new((subject.connect)())
}

pub(super) fn access(subject: &Subject) -> NodeAccessServiceClient<Channel> {
    NodeAccessServiceClient::new((subject.connect)())
}

pub(super) async fn handshake(subject: &Subject) -> Platform {
    let answer = client(subject)
        .get_platform(GetPlatformRequest {})
        .await
        .expect("GetPlatform answers");
    answer
        .into_inner()
        .platform
        .expect("GetPlatform answers a platform")
}

pub(super) fn error<T>(outcome: std::result::Result<T, tonic::Status>) -> Result<T> {
    outcome.map_err(|status| from_status(&status))
}

/// Waits until a condition returns a value, and fails with its name on a timeout.
pub(super) async fn until<T, F>(
    subject: &Subject,
    what: &str,
    mut condition: impl FnMut() -> F,
) -> T
where
    F: Future<Output = Option<T>>,
{
    let end = Instant::now() + subject.patience;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(
            Instant::now() < end,
            "not within {:?}: {what}",
            subject.patience
        );
        tokio::time::sleep(LOOK).await;
    }
}

/// Asserts that an outcome is an error with this reason.
pub(super) fn refused<T: std::fmt::Debug>(outcome: Result<T>, reason: Reason, what: &str) -> Error {
    match outcome {
        Err(error) => {
            assert_eq!(error.reason(), reason, "{what}: {error:?}");
            error
        }
        Ok(answer) => panic!("{what}: expected {reason:?}, got {answer:?}"),
    }
}

impl<'a> Fixture<'a> {
    pub(super) async fn new(subject: &'a Subject) -> Self {
        Self {
            subject,
            platform: handshake(subject).await,
            owner: Uuid::new_v4(),
            store_id: Uuid::new_v4(),
            cluster: format!("c-{}", &Uuid::new_v4().simple().to_string()[..12]),
            epoch: 1,
            ordinals: AtomicU32::new(0),
            sequence: AtomicU64::new(0),
        }
    }

    pub(super) fn can(&self, capability: Capability) -> bool {
        self.platform.capabilities.contains(&i32::from(capability))
    }

    pub(super) fn batch(&self, wanted: usize) -> usize {
        let most = self
            .platform
            .limits
            .as_ref()
            .and_then(|limits| limits.max_batch)
            .unwrap_or(1);
        wanted.min(most as usize)
    }

    pub(super) fn fence(&self) -> Fence {
        Fence {
            store_id: self.store_id.to_string(),
            shard: 0,
            epoch: self.epoch,
        }
    }

    /// A valid request for up to `count` new nodes.
    pub(super) fn request(&self, count: usize) -> ProvisionRequest {
        let slots = self.batch(count) as u32;
        let first = self.ordinals.fetch_add(slots, Ordering::Relaxed);
        let subject = self.subject;
        let mut request = requests::provision(
            &self.platform.uid,
            self.fence(),
            (&self.cluster, self.owner),
            "db",
            first..first + slots,
        );
        request.sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        let cluster = request.cluster.as_mut().unwrap();
        cluster.store.clone_from(&subject.store);
        cluster.version.clone_from(&subject.version);
        cluster.labels = [("team".to_owned(), "storage".to_owned())].into();
        let group = request.group.as_mut().unwrap();
        group.size = count as u32;
        group.node_class.clone_from(&subject.node_class);
        group.version.clone_from(&subject.version);
        group.properties.clone_from(&subject.properties);
        request
    }

    pub(super) async fn provision(&self, request: &ProvisionRequest) -> Result<ProvisionResponse> {
        error(client(self.subject).provision(request.clone()).await)
            .map(tonic::Response::into_inner)
    }

    pub(super) async fn provision_within(
        &self,
        request: &ProvisionRequest,
        deadline: Duration,
    ) -> Result<ProvisionResponse> {
        let mut message = Request::new(request.clone());
        message.set_timeout(deadline);
        error(client(self.subject).provision(message).await).map(tonic::Response::into_inner)
    }

    /// Creates nodes, and returns them in the order of their indexes.
    pub(super) async fn make(&self, count: usize) -> (ProvisionRequest, Vec<Node>) {
        let request = self.request(count);
        let answer = self
            .provision(&request)
            .await
            .expect("a valid request is accepted");
        partition(&request, &answer);
        assert_eq!(answer.failures, vec![], "a valid request makes every node");
        assert_eq!(answer.unknown, vec![], "a valid request makes every node");
        let mut nodes = answer.nodes;
        nodes.sort_by_key(index);
        (request, nodes)
    }

    pub(super) async fn discover(&self, request: DiscoverRequest) -> Result<DiscoverResponse> {
        error(client(self.subject).discover(request).await).map(tonic::Response::into_inner)
    }

    /// All nodes of a cluster, or of all clusters if it is empty, in pages.
    pub(super) async fn list(&self, cluster: &str, page_size: i32) -> Vec<Node> {
        let mut nodes = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = DiscoverRequest {
                cluster_id: cluster.to_owned(),
                page_size,
                page_token,
                ..DiscoverRequest::default()
            };
            let page = self.discover(request).await.expect("Discover answers");
            nodes.extend(page.nodes);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return nodes;
            }
        }
    }

    pub(super) async fn nodes(&self) -> Vec<Node> {
        self.list(&self.cluster, 0).await
    }

    /// Waits until exactly these nodes are listed as existing.
    pub(super) async fn until_listed(&self, expected: &[Node]) -> Vec<Node> {
        let expected = ids(expected);
        until(self.subject, "the nodes are listed", || async {
            let nodes = self.nodes().await;
            (ids(&nodes) == expected).then_some(nodes)
        })
        .await
    }

    pub(super) fn removal(&self, request: &ProvisionRequest, node: &Node) -> DeprovisionRequest {
        DeprovisionRequest {
            expected_platform_uid: self.platform.uid.clone(),
            fence: Some(self.fence()),
            request_id: Uuid::new_v4().to_string(),
            owner: request.owner.clone(),
            cluster_id: node.cluster_id.clone(),
            node_request_id: request.request_id.clone(),
            index: Some(index(node)),
            node_id: node.node_id.clone(),
            reason: "User".to_owned(),
            ..DeprovisionRequest::default()
        }
    }

    pub(super) async fn deprovision(
        &self,
        request: &DeprovisionRequest,
    ) -> Result<DeprovisionResponse> {
        error(client(self.subject).deprovision(request.clone()).await)
            .map(tonic::Response::into_inner)
    }

    pub(super) async fn update(&self, request: &UpdateNodeRequest) -> Result<Node> {
        let answer = error(client(self.subject).update_node(request.clone()).await)?;
        Ok(answer
            .into_inner()
            .node
            .expect("UpdateNode answers the node"))
    }

    pub(super) async fn raise(&self, fence: Fence) -> Result<()> {
        let request = FenceRequest {
            expected_platform_uid: self.platform.uid.clone(),
            fence: Some(fence),
            ..FenceRequest::default()
        };
        // It waits for older calls, for some seconds.
        until(self.subject, "older calls have ended", || async {
            let raised = error(client(self.subject).fence(request.clone()).await).map(drop);
            let waits = raised.as_ref().map_err(Error::reason) == Err(Reason::DeadlineExceeded);
            (!waits).then_some(raised)
        })
        .await
    }

    /// Removes everything that the check created, and waits until it is gone.
    pub(super) async fn clean(&self) {
        until(self.subject, "everything is removed", || async {
            let left: Vec<_> = self.nodes().await.into_iter().filter(exists).collect();
            for node in &left {
                let Some(slot) = &node.slot else { continue };
                let request = ProvisionRequest {
                    owner: slot.owner.clone(),
                    request_id: slot.request_id.clone(),
                    ..ProvisionRequest::default()
                };
                let removal = DeprovisionRequest {
                    fence: Some(Fence {
                        epoch: u64::MAX,
                        ..self.fence()
                    }),
                    ..self.removal(&request, node)
                };
                self.deprovision(&removal)
                    .await
                    .expect("an own node can be removed");
            }
            left.is_empty().then_some(())
        })
        .await;
    }
}

/// Ids of the nodes that exist.
pub(super) fn ids(nodes: &[Node]) -> BTreeSet<String> {
    nodes
        .iter()
        .filter(|node| exists(node))
        .map(|node| node.node_id.clone())
        .collect()
}

pub(super) fn exists(node: &Node) -> bool {
    node.phase() != NodePhase::Terminated
}

/// Asserts that every index is in exactly one of the lists.
pub(super) fn partition(request: &ProvisionRequest, answer: &ProvisionResponse) {
    let mut indexes: Vec<u32> = answer.nodes.iter().map(index).collect();
    indexes.extend(
        answer
            .failures
            .iter()
            .chain(&answer.unknown)
            .map(|entry| entry.index),
    );
    indexes.sort_unstable();
    let expected: Vec<u32> = (0..request.slots.len() as u32).collect();
    assert_eq!(
        indexes, expected,
        "every index is in exactly one of nodes, failures and unknown"
    );
}
