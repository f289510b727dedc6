//! Network policies.

use async_trait::async_trait;
use drover_core::Result;
use drover_proto::kubernetes::v1::{self as api, network_peer};
use drover_resources::parts::NetworkPolicies;

use crate::{
    Shared,
    selector::selects,
    store::{Key, Store, exists, key},
};

impl Store {
    fn create_policy(&mut self, mut policy: api::NetworkPolicy) -> Result<api::NetworkPolicy> {
        let key = key(&policy);
        self.check_namespace(&key.0)?;
        if self.policies.get(&key).is_some() {
            return Err(exists::<api::NetworkPolicy>(&key));
        }
        let spec = policy.spec.get_or_insert_default();
        spec.pod_selector.get_or_insert_default();
        let rules = spec.ingress.iter_mut().chain(&mut spec.egress);
        for peer in rules.flat_map(|rule| &mut rule.peers) {
            // No selector at all means the pods of the namespace.
            if let Some(network_peer::Peer::Pods(pods)) = &mut peer.peer
                && pods.namespace_selector.is_none()
            {
                pods.selector.get_or_insert_default();
            }
        }
        self.stamp(&mut policy);
        self.policies.put(policy.clone());
        Ok(policy)
    }

    fn delete_policies(&mut self, request: &api::DeleteNetworkPoliciesRequest) -> Vec<String> {
        let matches = |policy: &&api::NetworkPolicy| {
            let metadata = policy.metadata.clone().unwrap_or_default();
            metadata.namespace == request.namespace
                && selects(request.selector.as_ref(), &metadata.labels)
        };
        let keys: Vec<Key> = self.policies.all().filter(matches).map(key).collect();
        for key in &keys {
            self.policies.remove(key);
        }
        keys.into_iter().map(|(_, name)| name).collect()
    }
}

#[async_trait]
impl NetworkPolicies for Shared {
    async fn create(&self, policy: api::NetworkPolicy) -> Result<api::NetworkPolicy> {
        self.call("network_policies.create", async {
            self.change(|store| store.create_policy(policy))
        })
        .await
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<api::NetworkPolicy> {
        let key = (namespace.to_owned(), name.to_owned());
        self.call("network_policies.get", async {
            self.store.lock().policies.find(&key).cloned()
        })
        .await
    }

    async fn list(
        &self,
        request: api::ListNetworkPoliciesRequest,
    ) -> Result<api::ListNetworkPoliciesResponse> {
        self.call("network_policies.list", async {
            let mut store = self.store.lock();
            let revision = store.tick();
            let matches = |policy: &api::NetworkPolicy| {
                let metadata = policy.metadata.clone().unwrap_or_default();
                (request.namespace.is_empty() || metadata.namespace == request.namespace)
                    && selects(request.selector.as_ref(), &metadata.labels)
            };
            let place = (request.page_size, &*request.page_token);
            let page = store.policies.page(place, revision, matches)?;
            let (network_policies, next_page_token) = page;
            Ok(api::ListNetworkPoliciesResponse {
                network_policies,
                next_page_token,
            })
        })
        .await
    }

    async fn delete(&self, namespace: &str, name: &str) -> Result<bool> {
        let key = (namespace.to_owned(), name.to_owned());
        self.call("network_policies.delete", async {
            Ok(self.change(|store| store.policies.remove(&key)).is_some())
        })
        .await
    }

    async fn delete_selected(
        &self,
        request: api::DeleteNetworkPoliciesRequest,
    ) -> Result<Vec<String>> {
        self.call("network_policies.delete_selected", async {
            Ok(self.change(|store| store.delete_policies(&request)))
        })
        .await
    }
}
