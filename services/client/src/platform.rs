//! Client of a platform for an orchestrator: typed calls with deadlines, one attempt each.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use drover_core::{Error, Result};
use drover_proto::{
    common::v1::{Chunk, ProcessOutput},
    platform::v1::{
        DeleteStorageRequest, DeleteStorageResponse, DeprovisionRequest, DeprovisionResponse,
        DiscoverRequest, DiscoverResponse, ExecRequest, FenceRequest, GetPlatformRequest, Host,
        KeptStorage, ListHostsRequest, ListHostsResponse, ListStorageRequest, Node, Platform,
        ProvisionRequest, ProvisionResponse, StreamLogsRequest, UpdateNodeRequest,
        UpdateNodeResponse, Warning, WatchNodesRequest, WatchNodesResponse,
        addon_service_client::AddonServiceClient,
        infrastructure_service_client::InfrastructureServiceClient,
        inventory_service_client::InventoryServiceClient,
        node_access_service_client::NodeAccessServiceClient,
        platform_service_client::PlatformServiceClient,
        storage_service_client::StorageServiceClient, watch_nodes_response,
    },
};
use futures::{Stream, StreamExt, ready, stream::BoxStream};
use prost_types::Timestamp;
use tokio::time::Instant;

use crate::{
    Channel, MAX_MESSAGE_BYTES,
    alive::Alive,
    call::{request, to_error, within},
    pages::{Pages, restarting},
    role::Role,
};

pub use crate::pages::MAX_ITEMS;

/// Maximum number of distinct warnings per read. Each is compared with all others.
const MAX_WARNINGS: usize = 1_000;

/// The complete result of listing a platform.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Discovered {
    /// The nodes, including those of other owners.
    pub nodes: Vec<Node>,
    /// Objects that exist but could not be read.
    pub warnings: Vec<Warning>,
    /// When the backend was last read completely, by the platform's clock; the oldest time of all pages.
    pub observe_time: Option<Timestamp>,
    /// `Platform.etag` at that time.
    pub platform_etag: String,
}

/// Client of a platform. Clones share the connection.
///
/// Every method makes one attempt and fails with `DeadlineExceeded` when its deadline passes.
#[derive(Clone, Debug)]
pub struct PlatformClient {
    channel: Channel,
}

/// A client of one of the services of a platform.
macro_rules! service {
    ($name:ident: $client:ident) => {
        pub(crate) fn $name(&self) -> $client<Channel> {
            $client::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
        }
    };
}

impl PlatformClient {
    /// Creates a client over this channel. With TLS, a server whose certificate identifies it as something else
    /// (`spiffe://drover/orchestrator/…`) is rejected before anything is sent to it.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        Self {
            channel: channel.to(Role::Platform),
        }
    }

    service!(platform: PlatformServiceClient);
    service!(addons: AddonServiceClient);
    service!(access: NodeAccessServiceClient);
    service!(inventory: InventoryServiceClient);
    service!(storage: StorageServiceClient);
    service!(infrastructure: InfrastructureServiceClient);

    /// Performs the handshake.
    pub async fn get_platform(&self, deadline: Duration) -> Result<Platform> {
        let mut client = self.platform();
        within(
            deadline,
            client.get_platform(request(GetPlatformRequest {}, deadline)),
        )
        .await?
        .platform
        .ok_or_else(|| Error::internal("GetPlatform answered no platform"))
    }

    /// Reads one page of nodes.
    pub async fn discover_page(
        &self,
        message: DiscoverRequest,
        deadline: Duration,
    ) -> Result<DiscoverResponse> {
        let mut client = self.platform();
        within(deadline, client.discover(request(message, deadline))).await
    }

    /// Reads all pages of nodes; `deadline` covers all of them together. Restarts once if a page token expires.
    pub async fn discover_all(
        &self,
        message: DiscoverRequest,
        deadline: Duration,
    ) -> Result<Discovered> {
        let end = Instant::now() + deadline;
        restarting(|| self.discover_pages(message.clone(), end)).await
    }

    async fn discover_pages(
        &self,
        mut message: DiscoverRequest,
        end: Instant,
    ) -> Result<Discovered> {
        let mut all = Discovered::default();
        let mut pages = Pages::of("Discover", end);
        let mut first = true;
        loop {
            let page = self
                .discover_page(
                    message.clone(),
                    end.saturating_duration_since(Instant::now()),
                )
                .await?;
            let items = page.nodes.len() + page.warnings.len();
            let more = pages.take(&page, items, &page.next_page_token)?;
            all.nodes.extend(page.nodes);
            if first || older(page.observe_time.as_ref(), all.observe_time.as_ref()) {
                all.observe_time = page.observe_time;
                all.platform_etag = page.platform_etag;
            }
            for warning in page.warnings {
                // Every page repeats the warnings.
                if !all.warnings.contains(&warning) {
                    all.warnings.push(warning);
                }
            }
            if all.warnings.len() > MAX_WARNINGS {
                return Err(Error::internal(format!(
                    "Discover answered more than {MAX_WARNINGS} different warnings"
                )));
            }
            if !more {
                return Ok(all);
            }
            message.page_token = page.next_page_token;
            first = false;
        }
    }

    /// Creates the nodes of one request.
    pub async fn provision(
        &self,
        message: ProvisionRequest,
        deadline: Duration,
    ) -> Result<ProvisionResponse> {
        let mut client = self.platform();
        within(deadline, client.provision(request(message, deadline))).await
    }

    /// Removes a node.
    pub async fn deprovision(
        &self,
        message: DeprovisionRequest,
        deadline: Duration,
    ) -> Result<DeprovisionResponse> {
        let mut client = self.platform();
        within(deadline, client.deprovision(request(message, deadline))).await
    }

    /// Raises the epoch of a shard.
    pub async fn fence(&self, message: FenceRequest, deadline: Duration) -> Result<()> {
        let mut client = self.platform();
        within(deadline, client.fence(request(message, deadline)))
            .await
            .map(drop)
    }

    /// Updates or adopts a node.
    pub async fn update_node(
        &self,
        message: UpdateNodeRequest,
        deadline: Duration,
    ) -> Result<UpdateNodeResponse> {
        let mut client = self.platform();
        within(deadline, client.update_node(request(message, deadline))).await
    }

    /// Reads one page of hosts.
    pub async fn list_hosts(
        &self,
        message: ListHostsRequest,
        deadline: Duration,
    ) -> Result<ListHostsResponse> {
        let mut client = self.inventory();
        within(deadline, client.list_hosts(request(message, deadline))).await
    }

    /// Reads all pages of hosts and returns those that are `wanted`; `deadline` covers all pages together.
    pub async fn find_hosts(
        &self,
        mut message: ListHostsRequest,
        deadline: Duration,
        wanted: impl Fn(&Host) -> bool,
    ) -> Result<Vec<Host>> {
        let end = Instant::now() + deadline;
        let mut found = Vec::new();
        let mut pages = Pages::of("ListHosts", end);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let page = self.list_hosts(message.clone(), left).await?;
            let more = pages.take(&page, page.hosts.len(), &page.next_page_token)?;
            found.extend(page.hosts.into_iter().filter(|host| wanted(host)));
            if !more {
                return Ok(found);
            }
            message.page_token = page.next_page_token;
        }
    }

    /// Reads all retained storage by id, of one cluster or of all; `deadline` covers all pages together.
    pub async fn list_storage(
        &self,
        mut message: ListStorageRequest,
        deadline: Duration,
    ) -> Result<Vec<KeptStorage>> {
        let end = Instant::now() + deadline;
        let mut all = Vec::new();
        let mut pages = Pages::of("ListStorage", end);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut client = self.storage();
            let page = within(left, client.list_storage(request(message.clone(), left))).await?;
            let more = pages.take(&page, page.storage.len(), &page.next_page_token)?;
            all.extend(page.storage);
            if !more {
                return Ok(all);
            }
            message.page_token = page.next_page_token;
        }
    }

    /// Deletes retained storage.
    pub async fn delete_storage(
        &self,
        message: DeleteStorageRequest,
        deadline: Duration,
    ) -> Result<DeleteStorageResponse> {
        let mut client = self.storage();
        within(deadline, client.delete_storage(request(message, deadline))).await
    }

    /// Opens a watch, with one attempt; `deadline` applies to opening it. The stream always ends with an error:
    /// `Unavailable` if the server ended it, `DeadlineExceeded` if it was silent for three heartbeat intervals.
    pub async fn watch_nodes(
        &self,
        message: WatchNodesRequest,
        deadline: Duration,
    ) -> Result<NodeWatch> {
        let interval = message.heartbeat_interval;
        let mut client = self.platform();
        // No grpc-timeout, because it would also end the stream.
        let inner = within(deadline, client.watch_nodes(message)).await?;
        Ok(NodeWatch(Alive::new(inner, interval.as_ref(), heartbeat)))
    }

    /// Reads the log of a node; `deadline` applies to opening the stream.
    pub async fn stream_logs(
        &self,
        message: StreamLogsRequest,
        deadline: Duration,
    ) -> Result<BoxStream<'static, Result<Chunk>>> {
        let mut client = self.access();
        let inner = within(deadline, client.stream_logs(message)).await?;
        Ok(inner
            .filter_map(async |item| {
                item.map(|answer| answer.chunk)
                    .map_err(|status| to_error(&status))
                    .transpose()
            })
            .boxed())
    }

    /// Runs a command in a node; `deadline` applies to opening the stream. If the stream ends without an exit code, the
    /// outcome is unknown.
    pub async fn exec(
        &self,
        input: impl Stream<Item = ExecRequest> + Send + 'static,
        deadline: Duration,
    ) -> Result<BoxStream<'static, Result<ProcessOutput>>> {
        let mut client = self.access();
        let inner = within(deadline, client.exec(input)).await?;
        Ok(inner
            .filter_map(async |item| {
                item.map(|answer| answer.output)
                    .map_err(|status| to_error(&status))
                    .transpose()
            })
            .boxed())
    }
}

fn older(a: Option<&Timestamp>, b: Option<&Timestamp>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => (a.seconds, a.nanos) < (b.seconds, b.nanos),
        // A page without an observation time counts as the oldest.
        (None, Some(_)) => true,
        (_, None) => false,
    }
}

/// The events of a watch, in order. It ends after an error.
#[derive(Debug)]
pub struct NodeWatch(Alive<WatchNodesResponse>);

impl Stream for NodeWatch {
    type Item = Result<watch_nodes_response::Event>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            return match ready!(self.0.poll_next_unpin(cx)) {
                Some(Ok(WatchNodesResponse { event: Some(event) })) => Poll::Ready(Some(Ok(event))),
                // An event kind that this version does not know.
                Some(Ok(WatchNodesResponse { event: None })) => continue,
                Some(Err(error)) => Poll::Ready(Some(Err(error))),
                None => Poll::Ready(None),
            };
        }
    }
}

fn heartbeat(message: &WatchNodesResponse) -> Option<&prost_types::Duration> {
    match &message.event {
        Some(watch_nodes_response::Event::Started(started)) => started.heartbeat_interval.as_ref(),
        _ => None,
    }
}
