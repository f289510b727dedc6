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
    // One may be a MiB large, and many MiB of JSON are read before the first is seen.
    first_limit: 16,
};

/// Updates without a revision that meet another one's, before that is told.
const MAX_CONFLICTS: usize = 5;

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
        let wanted = convert::config_map(configuration);
        let metadata = wanted.metadata.clone();
        let conditional = metadata.resource_version.is_some();
        let name = metadata.name.clone().unwrap_or_default();
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let full = format!("{namespace}/{name}");
        let told = |reason, message: String| {
            Error::new(reason, message).with_resource("configuration", &full)
        };
        let stale = || {
            let message = format!("configuration {name:?} no longer has this revision");
            told(Reason::RevisionMismatch, message)
        };
        let mut conflicts = 0;
        let replaced = loop {
            let present = self.0.get(&namespace, &name).await?;
            // What is no revision at all, Kubernetes calls an internal error.
            if conditional && metadata.resource_version != present.metadata.resource_version {
                return Err(stale());
            }
            let replaced = self.0.replace(&merged(wanted.clone(), present)).await;
            let conflict = replaced
                .as_ref()
                .is_err_and(|error| error.reason() == Reason::Conflict);
            conflicts += usize::from(conflict);
            if !conflict || conditional || conflicts == MAX_CONFLICTS {
                break replaced;
            }
        };
        replaced
            .map(convert::configuration)
            .map_err(|error| match error.reason() {
                Reason::Conflict if conditional => stale(),
                Reason::Invalid if is_immutable(&error) => {
                    let message = format!("configuration {name:?} is immutable");
                    told(Reason::Immutable, message)
                }
                _ => error,
            })
    }

    async fn delete(&self, namespace: &str, name: &str) -> Result<bool> {
        self.0.existed(namespace, name).await
    }
}

/// What is to be written: what the caller knows of is theirs, the rest (owners, finalizers) stays as it is.
fn merged(wanted: ConfigMap, present: ConfigMap) -> ConfigMap {
    let theirs = wanted.metadata;
    let mut metadata = present.metadata;
    metadata.labels = theirs.labels;
    metadata.annotations = theirs.annotations;
    if theirs.resource_version.is_some() {
        metadata.resource_version = theirs.resource_version;
    }
    ConfigMap { metadata, ..wanted }
}

fn is_immutable(error: &Error) -> bool {
    error.message().contains("when `immutable` is set")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn map(metadata: Value) -> ConfigMap {
        serde_json::from_value(json!({"metadata": metadata, "data": metadata["labels"]})).unwrap()
    }

    #[test]
    fn an_update_keeps_owners_and_finalizers_and_the_revision_of_the_caller() {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u"});
        let present = map(json!({
            "name": "c", "uid": "1", "resourceVersion": "7", "finalizers": ["a/b"],
            "ownerReferences": [owner], "labels": {"old": "1"}, "annotations": {"old": "1"},
        }));
        let new = merged(
            map(json!({"name": "c", "labels": {"new": "1"}})),
            present.clone(),
        );
        assert_eq!(new.metadata.finalizers, present.metadata.finalizers);
        assert_eq!(
            new.metadata.owner_references,
            present.metadata.owner_references
        );
        assert!(new.metadata.annotations.is_none());
        assert_eq!(new.metadata.labels, new.data);
        assert_eq!(new.metadata.resource_version.as_deref(), Some("7"));
        let conditional = merged(map(json!({"name": "c", "resourceVersion": "5"})), present);
        assert_eq!(conditional.metadata.resource_version.as_deref(), Some("5"));
    }
}
