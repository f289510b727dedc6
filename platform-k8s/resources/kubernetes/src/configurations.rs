//! Configurations.

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::Configurations;
use k8s_openapi::api::core::v1::ConfigMap;

use crate::{
    client::ApiClient,
    convert::{self, selector_text},
    errors::Fields,
    objects::{Kind, Objects, Query},
};

static KIND: Kind = Kind {
    plural: "configmaps",
    name: "configuration",
    fields: Fields {
        object: "configuration",
        names: &[],
    },
};

/// The configurations of an API server.
pub struct KubernetesConfigurations(Objects<ConfigMap>);

impl KubernetesConfigurations {
    /// The configurations that a client reaches.
    #[must_use]
    pub fn new(client: ApiClient) -> Self {
        Self(Objects::new(client, &KIND))
    }
}

#[async_trait]
impl Configurations for KubernetesConfigurations {
    async fn create(&self, configuration: api::Configuration) -> Result<api::Configuration> {
        let mut object = convert::config_map(configuration);
        object.metadata.resource_version = None;
        self.0.create(&object).await.map(convert::configuration)
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<api::Configuration> {
        let object = self.0.get(namespace, name).await?;
        Ok(convert::configuration(object))
    }

    async fn list(
        &self,
        request: api::ListConfigurationsRequest,
    ) -> Result<api::ListConfigurationsResponse> {
        let query = Query {
            labels: selector_text("selector", request.selector.as_ref())?,
            fields: String::new(),
            page_size: request.page_size,
            page_token: &request.page_token,
        };
        let page = self
            .0
            .page(&request.namespace, &query, convert::configuration);
        let page = page.await?;
        Ok(api::ListConfigurationsResponse {
            configurations: page.items,
            next_page_token: page.next,
        })
    }

    async fn update(&self, configuration: api::Configuration) -> Result<api::Configuration> {
        let object = convert::config_map(configuration);
        let conditional = object.metadata.resource_version.is_some();
        let replaced = self.0.replace(&object).await;
        replaced.map(convert::configuration).map_err(|error| {
            let name = object.metadata.name.unwrap_or_default();
            match error.reason() {
                Reason::Conflict if conditional => {
                    let message = format!("configuration {name:?} no longer has this revision");
                    Error::new(Reason::RevisionMismatch, message)
                }
                Reason::Invalid if is_immutable(&error) => {
                    let message = format!("configuration {name:?} is immutable");
                    Error::new(Reason::Immutable, message)
                }
                _ => error,
            }
        })
    }

    async fn delete(&self, namespace: &str, name: &str) -> Result<bool> {
        self.0.existed(namespace, name).await
    }
}

fn is_immutable(error: &Error) -> bool {
    error.message().contains("when `immutable` is set")
}
