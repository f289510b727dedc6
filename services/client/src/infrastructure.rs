//! Infrastructure calls, one attempt each.

use std::time::Duration;

use drover_core::{Error, Result};
use drover_proto::platform::v1::{
    EnsureInfrastructureRequest, EnsureInfrastructureResponse, GetInfrastructureRequest,
    InfrastructureState, ListInfrastructureRequest, ListInfrastructureResponse,
    ReleaseInfrastructureRequest, ReleaseInfrastructureResponse, Resource,
};
use tokio::time::Instant;

use crate::{
    PlatformClient,
    call::{request, within},
    pages::{Pages, restarting},
};

impl PlatformClient {
    /// Creates or completes the infrastructure of one cluster, or only validates the desired state.
    pub async fn ensure_infrastructure(
        &self,
        message: EnsureInfrastructureRequest,
        deadline: Duration,
    ) -> Result<EnsureInfrastructureResponse> {
        let mut client = self.infrastructure();
        within(
            deadline,
            client.ensure_infrastructure(request(message, deadline)),
        )
        .await
    }

    /// Reads the infrastructure of one cluster.
    pub async fn get_infrastructure(
        &self,
        message: GetInfrastructureRequest,
        deadline: Duration,
    ) -> Result<InfrastructureState> {
        let mut client = self.infrastructure();
        within(
            deadline,
            client.get_infrastructure(request(message, deadline)),
        )
        .await?
        .state
        .ok_or_else(|| Error::internal("GetInfrastructure answered no state"))
    }

    /// Releases the infrastructure of one cluster.
    pub async fn release_infrastructure(
        &self,
        message: ReleaseInfrastructureRequest,
        deadline: Duration,
    ) -> Result<ReleaseInfrastructureResponse> {
        let mut client = self.infrastructure();
        within(
            deadline,
            client.release_infrastructure(request(message, deadline)),
        )
        .await
    }

    /// Reads one page of resources.
    pub async fn list_infrastructure_page(
        &self,
        message: ListInfrastructureRequest,
        deadline: Duration,
    ) -> Result<ListInfrastructureResponse> {
        let mut client = self.infrastructure();
        within(
            deadline,
            client.list_infrastructure(request(message, deadline)),
        )
        .await
    }

    /// Reads all pages of resources; `deadline` covers all of them together. Restarts once if a page token expires.
    pub async fn list_infrastructure(
        &self,
        message: ListInfrastructureRequest,
        deadline: Duration,
    ) -> Result<Vec<Resource>> {
        let end = Instant::now() + deadline;
        restarting(|| self.infrastructure_pages(message.clone(), end)).await
    }

    async fn infrastructure_pages(
        &self,
        mut message: ListInfrastructureRequest,
        end: Instant,
    ) -> Result<Vec<Resource>> {
        let mut all = Vec::new();
        let mut pages = Pages::of("ListInfrastructure", end);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let page = self.list_infrastructure_page(message.clone(), left).await?;
            let more = pages.take(&page, page.resources.len(), &page.next_page_token)?;
            all.extend(page.resources);
            if !more {
                return Ok(all);
            }
            message.page_token = page.next_page_token;
        }
    }
}
