//! Network policies.

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::NetworkPolicies;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::DeleteParams;

use crate::{
    client::ApiClient,
    convert::{self, selector_text},
    errors::Fields,
    objects::{Kind, Objects, Query, half_way, of_uid},
};

static KIND: Kind = Kind {
    plural: "networkpolicies.networking.k8s.io",
    name: "network policy",
    fields: Fields {
        object: "network_policy",
        names: &[
            ("].from[", "].peers["),
            ("].to[", "].peers["),
            ("ip_block.except", "ip_block.except_cidrs"),
            ("].pod_selector", "].pods.selector"),
            ("].namespace_selector", "].pods.namespace_selector"),
            ("policy_types", "directions"),
        ],
    },
    first_limit: u32::MAX,
};

/// Policies that are read at once before they are deleted.
const PAGE_SIZE: i32 = 500;

/// The network policies of an API server.
pub struct KubernetesNetworkPolicies(Objects<NetworkPolicy>);

impl KubernetesNetworkPolicies {
    /// The network policies that a client reaches.
    #[must_use]
    pub fn new(client: ApiClient) -> Self {
        Self(Objects::new(client, &KIND))
    }
}

#[async_trait]
impl NetworkPolicies for KubernetesNetworkPolicies {
    async fn create(&self, policy: api::NetworkPolicy) -> Result<api::NetworkPolicy> {
        let policy = convert::to_network_policy(policy)?;
        self.0.create(&policy).await.map(convert::network_policy)
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<api::NetworkPolicy> {
        let policy = self.0.get(namespace, name).await?;
        Ok(convert::network_policy(policy))
    }

    async fn list(
        &self,
        request: api::ListNetworkPoliciesRequest,
    ) -> Result<api::ListNetworkPoliciesResponse> {
        let query = Query {
            labels: selector_text("selector", request.selector.as_ref())?,
            fields: String::new(),
            page_size: request.page_size,
            page_token: &request.page_token,
        };
        let page = self
            .0
            .page(&request.namespace, &query, convert::network_policy);
        let page = page.await?;
        Ok(api::ListNetworkPoliciesResponse {
            network_policies: page.items,
            next_page_token: page.next,
        })
    }

    async fn delete(&self, namespace: &str, name: &str) -> Result<bool> {
        self.0.existed(namespace, name).await
    }

    async fn delete_selected(
        &self,
        request: api::DeleteNetworkPoliciesRequest,
    ) -> Result<Vec<String>> {
        let labels = selector_text("selector", request.selector.as_ref())?;
        if labels.is_empty() {
            return Err(Error::invalid("selector", "is required"));
        }
        let namespace = &request.namespace;
        let selected = self.selected(namespace, labels).await?;
        delete_all(selected, |name, uid| async move {
            let how = DeleteParams {
                preconditions: of_uid(uid),
                ..DeleteParams::default()
            };
            self.0.delete(namespace, &name, &how).await
        })
        .await
    }
}

/// Deletes policies one after the other, and answers the names of those that were there.
async fn delete_all<T, F>(
    selected: Vec<(String, String)>,
    delete: impl Fn(String, String) -> F,
) -> Result<Vec<String>>
where
    F: Future<Output = Result<Option<T>>>,
{
    let mut names = Vec::new();
    for (name, uid) in selected {
        match delete(name.clone(), uid).await {
            Ok(Some(_)) => names.push(name),
            Ok(None) => {}
            // Another policy has this name now.
            Err(error) if error.reason() == Reason::RevisionMismatch => {}
            Err(error) => return Err(half_way(error, KIND.name, &names)),
        }
    }
    Ok(names)
}

impl KubernetesNetworkPolicies {
    /// Names and uids of the policies that match, in order.
    async fn selected(&self, namespace: &str, labels: String) -> Result<Vec<(String, String)>> {
        let mut selected = Vec::new();
        let mut token = String::new();
        loop {
            let query = Query {
                labels: labels.clone(),
                fields: String::new(),
                page_size: PAGE_SIZE,
                page_token: &token,
            };
            let page = self
                .0
                .page(namespace, &query, convert::network_policy)
                .await?;
            let metadata = page.items.into_iter().filter_map(|it| it.metadata);
            selected.extend(metadata.map(|it| (it.name, it.uid)));
            if page.next.is_empty() {
                return Ok(selected);
            }
            token = page.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_deletion_that_fails_half_way_says_what_it_has_deleted() {
        let selected = ["a", "b", "other", "c", "d"];
        let selected = selected
            .map(|name| (name.to_owned(), String::new()))
            .to_vec();
        let error = delete_all(selected, |name, _| async move {
            match &*name {
                "b" => Ok(None),
                "other" => Err(Error::new(Reason::RevisionMismatch, "another uid")),
                "d" => Err(Error::unavailable("cut off")),
                _ => Ok(Some(())),
            }
        })
        .await
        .unwrap_err();
        assert_eq!(error.reason(), Reason::Unavailable);
        assert!(error.message().contains("2 of kind"), "{error}");
        assert!(error.message().contains("(a, c)"), "{error}");
        assert!(error.message().ends_with("cut off"), "{error}");

        let many = (0..1000).map(|n| (format!("policy-{n}"), String::new()));
        let error = delete_all(many.collect(), |name, _| async move {
            match &*name {
                "policy-999" => Err(Error::unavailable("cut off")),
                _ => Ok(Some(())),
            }
        })
        .await
        .unwrap_err();
        assert!(error.message().contains("999 of kind"), "{error}");
        assert!(error.message().ends_with("cut off"), "{error}");
        assert!(
            error.message().len() < drover_core::error::MAX_MESSAGE,
            "{error}"
        );
    }
}
