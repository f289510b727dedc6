//! Services.

use async_trait::async_trait;
use drover_core::Result;
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::Services;
use k8s_openapi::api::core::v1::Service;

use crate::{
    client::ApiClient,
    convert::{self, selector_text},
    errors::Fields,
    objects::{Kind, Objects, Query},
};

static KIND: Kind = Kind {
    plural: "services",
    name: "service",
    fields: Fields {
        object: "service",
        names: &[
            ("cluster_ips[0]", "cluster_ip"),
            ("cluster_ips", "cluster_ip"),
        ],
    },
    first_limit: u32::MAX,
};

/// The services of an API server.
pub struct KubernetesServices(Objects<Service>);

impl KubernetesServices {
    /// The services that a client reaches.
    #[must_use]
    pub fn new(client: ApiClient) -> Self {
        Self(Objects::new(client, &KIND))
    }
}

#[async_trait]
impl Services for KubernetesServices {
    async fn create(&self, service: api::Service) -> Result<api::Service> {
        let service = convert::to_service(service)?;
        self.0.create(&service).await.map(convert::service)
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<api::Service> {
        self.0.get(namespace, name).await.map(convert::service)
    }

    async fn list(&self, request: api::ListServicesRequest) -> Result<api::ListServicesResponse> {
        let query = Query {
            labels: selector_text("selector", request.selector.as_ref())?,
            fields: String::new(),
            page_size: request.page_size,
            page_token: &request.page_token,
        };
        let page = self.0.page(&request.namespace, &query, convert::service);
        let page = page.await?;
        Ok(api::ListServicesResponse {
            services: page.items,
            next_page_token: page.next,
        })
    }

    async fn delete(&self, namespace: &str, name: &str) -> Result<bool> {
        self.0.existed(namespace, name).await
    }
}
