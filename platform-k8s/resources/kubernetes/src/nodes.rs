//! Nodes.

use async_trait::async_trait;
use drover_core::Result;
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::{Answers, Nodes};
use k8s_openapi::api::core::v1::Node;
use kube::Api;

use crate::{
    client::{ApiClient, Call, escape},
    convert::{self, selector_text},
    drain,
    errors::Fields,
    objects::{self, Kind, Query},
    wait,
};

pub(crate) static KIND: Kind = Kind {
    plural: "nodes",
    name: "node",
    fields: Fields {
        object: "node",
        names: &[],
    },
    first_limit: u32::MAX,
};

/// The nodes of an API server.
pub struct KubernetesNodes(ApiClient);

impl KubernetesNodes {
    /// The nodes that a client reaches.
    #[must_use]
    pub fn new(client: ApiClient) -> Self {
        Self(client)
    }

    fn api(&self) -> Api<Node> {
        Api::all(self.0.kube())
    }
}

#[async_trait]
impl Nodes for KubernetesNodes {
    async fn get(&self, name: &str) -> Result<api::Node> {
        let call = Call::new("get", KIND.plural, "", name);
        let node = self.api().get(&escape(name)).await;
        node.map(convert::node)
            .map_err(|error| KIND.failed(&call, error))
    }

    async fn list(&self, request: api::ListNodesRequest) -> Result<api::ListNodesResponse> {
        let query = Query {
            labels: selector_text("selector", request.selector.as_ref())?,
            fields: String::new(),
            page_size: request.page_size,
            page_token: &request.page_token,
        };
        let call = Call::new("list", KIND.plural, "", "");
        let page = objects::page(&self.api(), &KIND, &call, &query, convert::node).await?;
        Ok(api::ListNodesResponse {
            nodes: page.items,
            next_page_token: page.next,
        })
    }

    async fn wait(&self, request: api::WaitNodesRequest) -> Result<Answers<api::WaitProgress>> {
        wait::nodes(&self.0, request).await
    }

    async fn set_unschedulable(&self, name: &str, unschedulable: bool) -> Result<api::Node> {
        let call = Call::new("patch", KIND.plural, "", name);
        let (api, name) = (self.api(), escape(name));
        let node = if unschedulable {
            api.cordon(&name).await
        } else {
            api.uncordon(&name).await
        };
        node.map(convert::node)
            .map_err(|error| KIND.failed(&call, error))
    }

    async fn drain(&self, request: api::DrainNodeRequest) -> Result<Answers<api::WaitProgress>> {
        // What is refused leaves the node as it is.
        drain::check(&self.0, &request).await?;
        self.set_unschedulable(&request.name, true).await?;
        drain::drain(&self.0, request).await
    }
}
