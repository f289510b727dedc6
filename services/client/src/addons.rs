//! Addon calls, one attempt each.

use std::time::Duration;

use drover_core::Result;
use drover_proto::platform::v1::{
    AddonState, EnsureAddonRequest, EnsureAddonResponse, ListAddonsRequest, ListAddonsResponse,
    RemoveAddonRequest, RemoveAddonResponse, Warning,
};
use tokio::time::Instant;

use crate::{
    PlatformClient,
    call::{request, within},
    pages::{Pages, restarting},
};

/// The complete result of listing addons.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Addons {
    /// The addons, including those of other owners.
    pub addons: Vec<AddonState>,
    /// Addons that exist but could not be read.
    pub warnings: Vec<Warning>,
}

impl PlatformClient {
    /// Makes an addon or brings it to its spec and targets, or only validates them.
    pub async fn ensure_addon(
        &self,
        message: EnsureAddonRequest,
        deadline: Duration,
    ) -> Result<EnsureAddonResponse> {
        let mut client = self.addons();
        within(deadline, client.ensure_addon(request(message, deadline))).await
    }

    /// Removes an addon.
    pub async fn remove_addon(
        &self,
        message: RemoveAddonRequest,
        deadline: Duration,
    ) -> Result<RemoveAddonResponse> {
        let mut client = self.addons();
        within(deadline, client.remove_addon(request(message, deadline))).await
    }

    /// Reads one page of addons.
    pub async fn list_addons_page(
        &self,
        message: ListAddonsRequest,
        deadline: Duration,
    ) -> Result<ListAddonsResponse> {
        let mut client = self.addons();
        within(deadline, client.list_addons(request(message, deadline))).await
    }

    /// Reads all pages of addons; `deadline` covers all of them together. Restarts once if a page token expires.
    pub async fn list_addons(
        &self,
        message: ListAddonsRequest,
        deadline: Duration,
    ) -> Result<Addons> {
        let end = Instant::now() + deadline;
        restarting(|| self.addon_pages(message.clone(), end)).await
    }

    async fn addon_pages(&self, mut message: ListAddonsRequest, end: Instant) -> Result<Addons> {
        let mut addons = Vec::new();
        let mut pages = Pages::of("ListAddons", end);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let page = self.list_addons_page(message.clone(), left).await?;
            let items = page.addons.len() + page.warnings.len();
            let more = pages.take(&page, items, &page.next_page_token)?;
            addons.extend(page.addons);
            if !more {
                // Every page repeats the warnings.
                let warnings = page.warnings;
                return Ok(Addons { addons, warnings });
            }
            message.page_token = page.next_page_token;
        }
    }
}
