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
    identity::hex,
    pages::Read,
    platform::Platform,
    service::{Service, answer},
};

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
    async fn list_hosts(&self, request: ListHostsRequest) -> Result<ListHostsResponse> {
        self.meant(
            &request.expected_platform_uid,
            false,
            &request.expected_instance_id,
        )?;
        let mut check = Checker::default();
        let size = check::page(&mut check, request.page_size, &request.cluster_id);
        let selector = request.selector.as_ref();
        if let Some(selector) = selector {
            check::selector(&mut check, "selector", selector);
        }
        check.finish()?;
        let inventory = self.driver.inventory();
        let inventory = inventory.ok_or_else(|| lacks(Capability::Inventory))?;
        let selected = hex(&selector.map(Message::encode_to_vec).unwrap_or_default());
        let query = vec!["ListHosts".to_owned(), request.cluster_id.clone(), selected];
        let page = if request.page_token.is_empty() {
            let observe_time = self.observer.now();
            let hosts = inventory.hosts().await?;
            let wanted = hosts.iter().filter(|host| {
                (request.cluster_id.is_empty() || host.cluster_id == request.cluster_id)
                    && selector.is_none_or(|selector| selects(selector, &host.labels))
            });
            let mut wanted: Vec<&Host> = wanted.collect();
            wanted.sort_unstable_by(|a, b| a.id.cmp(&b.id));
            let read = Read {
                query,
                warnings: Vec::new(),
                observe_time,
                etag: String::new(),
            };
            self.pages.first(read, &wanted, size)
        } else {
            self.pages.next(&request.page_token, &query, size)?
        };
        Ok(ListHostsResponse {
            hosts: page.items,
            next_page_token: page.next_page_token,
            observe_time: Some(timestamp(page.read.observe_time)),
        })
    }
}
