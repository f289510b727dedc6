//! `InventoryService` over a [`Platform`].

use drover_convert::selector::selects;
use drover_core::Result;
use drover_proto::platform::v1::{
    Capability, Host, ListHostsRequest, ListHostsResponse,
    inventory_service_server::InventoryService,
};
use prost::Message;
use tonic::{Request, Response, Status};

use crate::{
    check::{self, Checker},
    clock::timestamp,
    driver::lacks,
    pages::{not_ours, page_end},
    platform::Platform,
    service::{Service, answer},
};

/// Begins a page token; the id of the last host follows.
const TOKEN: &str = "after:";

#[tonic::async_trait]
impl InventoryService for Service {
    async fn list_hosts(
        &self,
        request: Request<ListHostsRequest>,
    ) -> std::result::Result<Response<ListHostsResponse>, Status> {
        answer(self.0.list_hosts(request.into_inner()).await)
    }
}

impl Platform {
    /// Every page is a new read that starts after the last host of the page before, so that no host is shown twice and
    /// none is left out that was there all the time.
    async fn list_hosts(&self, request: ListHostsRequest) -> Result<ListHostsResponse> {
        self.meant(
            &request.expected_platform_uid,
            false,
            &request.expected_instance_id,
        )?;
        let mut check = Checker::default();
        let size = check::page(&mut check, request.page_size, &request.cluster_id);
        if let Some(selector) = &request.selector {
            check::selector(&mut check, "selector", selector);
        }
        let after = match request.page_token.strip_prefix(TOKEN) {
            Some(id) => Some(id),
            None if request.page_token.is_empty() => None,
            None => return Err(not_ours()),
        };
        check.finish()?;
        let inventory = self.driver.inventory();
        let inventory = inventory.ok_or_else(|| lacks(Capability::Inventory))?;
        let observe_time = self.observer.now();
        let mut hosts = inventory.hosts().await?;
        let selector = request.selector.as_ref();
        hosts.retain(|host| {
            after.is_none_or(|after| host.id.as_str() > after)
                && (request.cluster_id.is_empty() || host.cluster_id == request.cluster_id)
                && selector.is_none_or(|selector| selects(selector, &host.labels))
        });
        hosts.sort_by(|a, b| a.id.cmp(&b.id));
        let count = page_end(hosts.iter().map(Host::encoded_len), size);
        let more = hosts.len() > count;
        hosts.truncate(count);
        let next_page_token = match hosts.last() {
            Some(last) if more => format!("{TOKEN}{}", last.id),
            _ => String::new(),
        };
        Ok(ListHostsResponse {
            hosts,
            next_page_token,
            observe_time: Some(timestamp(observe_time)),
        })
    }
}
