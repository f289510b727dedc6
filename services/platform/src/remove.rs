//! Removal and update of single nodes, on condition that they still are what the caller believes.

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{
    Capability, DeprovisionRequest, DeprovisionResponse, DeprovisionState, Fence, Node,
    NodeAdoption, SlotKey, UpdateNodeRequest, update_node_request::Update,
};

use crate::{
    check::{self, need},
    driver::{Change, Deletion, Target},
    identity::Identity,
    platform::{Platform, role},
    provision::removed,
};

impl Platform {
    /// Handles a Deprovision call.
    ///
    /// # Errors
    /// Those of the call, as the proto documents them.
    pub async fn deprovision(
        self: &Arc<Self>,
        request: DeprovisionRequest,
    ) -> Result<DeprovisionResponse> {
        self.meant(
            &request.expected_platform_uid,
            true,
            &request.expected_instance_id,
        )?;
        check::deprovision(&request, &self.description())?;
        let fence = request.fence.clone().unwrap_or_default();
        let this = Arc::clone(self);
        self.changing(&fence, async move { this.remove(request).await })
            .await
    }

    /// Runs a mutation to completion, even if the caller disconnects.
    pub(crate) async fn changing<T: Send + 'static>(
        &self,
        fence: &Fence,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let under_way = self.fences.begin(fence)?;
        let trace = drover_telemetry::current();
        let task = self
            .tasks
            .spawn(drover_telemetry::context::scope(trace, async move {
                let outcome = work.await;
                drop(under_way);
                outcome
            }));
        task.await.unwrap_or_else(|_| {
            Err(Error::internal(
                "the call ended without an answer; its outcome is unknown",
            ))
        })
    }

    async fn remove(&self, request: DeprovisionRequest) -> Result<DeprovisionResponse> {
        let slot = SlotKey {
            owner: request.owner,
            request_id: request.node_request_id,
            index: request.index,
        };
        let target = Target {
            cluster_id: request.cluster_id,
            node_id: request.node_id,
            slot: Some(slot.clone()),
        };
        let found = self.driver.by_node_id(&target.node_id).await?;
        let node = found
            .iter()
            .find(|found| found.node.cluster_id == target.cluster_id)
            .or(found.first());
        let Some(node) = node else {
            return Ok(DeprovisionResponse {
                state: DeprovisionState::Gone.into(),
                retained_storage: Vec::new(),
            });
        };
        target.matches(&node.node)?;
        let options = Deletion {
            grace_period: request
                .grace_period
                .and_then(|grace| Duration::try_from(grace).ok()),
            retain_storage: request.retain_storage,
            reason: request.reason,
        };
        let deleted = self.driver.delete(&target, &options).await?;
        self.observer.hurry();
        // A late repetition of the request that created the node must not create it again.
        self.remember(
            &slot.request_id,
            None,
            slot.index.unwrap_or_default(),
            removed(&target.node_id),
        );
        Ok(DeprovisionResponse {
            state: deleted.state.into(),
            retained_storage: deleted.retained_storage,
        })
    }

    /// Handles an UpdateNode call.
    ///
    /// # Errors
    /// Those of the call, as the proto documents them.
    pub async fn update(self: &Arc<Self>, request: UpdateNodeRequest) -> Result<Node> {
        self.meant(
            &request.expected_platform_uid,
            true,
            &request.expected_instance_id,
        )?;
        check::update(&request, &self.description())?;
        if let Some(Update::Change(change)) = &request.update
            && let Some(labels) = &change.host_labels
        {
            self.check_host_labels(&labels.labels)?;
        }
        if let Some(Update::Change(change)) = &request.update
            && let Some(size) = change.storage_size_bytes
        {
            need(&self.driver.description(), Capability::GrowStorage)?;
            if size == 0 {
                let why = "expected a number above 0";
                return Err(Error::invalid("change.storage_size_bytes", why));
            }
        }
        let fence = request.fence.clone().unwrap_or_default();
        let this = Arc::clone(self);
        self.changing(&fence, async move {
            // A change may last longer than its caller waits, and must not undo what was asked for after it.
            let _node = this.nodes.take(&request.node_id).await;
            this.change(request).await
        })
        .await
    }

    async fn change(&self, request: UpdateNodeRequest) -> Result<Node> {
        let target = Target {
            cluster_id: request.expected_cluster_id,
            node_id: request.node_id,
            slot: request.expected_slot,
        };
        let found = self.driver.by_node_id(&target.node_id).await?;
        if found.is_empty() {
            return Err(Error::not_found("node", &target.node_id));
        }
        let change = match request.update {
            Some(Update::Adoption(adoption)) => {
                let store_id = request
                    .fence
                    .map(|fence| fence.store_id)
                    .unwrap_or_default();
                let identity = adopted(adoption, store_id);
                if let Some(done) = found
                    .iter()
                    .find(|found| is_already(&found.node, &identity))
                {
                    return Ok(done.node.clone());
                }
                let taken = self.driver.of_request(&identity.request_id).await?;
                let taken = taken.iter().map(|found| &found.node);
                if let Some(done) = taken_by(taken, &target.node_id, &identity)? {
                    return Ok(done.clone());
                }
                Change::Adopt(Box::new(identity))
            }
            Some(Update::Change(change)) => Change::Edit {
                role: role(change.role),
                set_labels: change.set_labels,
                remove_labels: change.remove_labels,
                host_labels: change.host_labels.map(|it| it.labels),
                storage_size: change.storage_size_bytes,
                spec_hash: change.spec_hash,
                promoting: change.promoting,
            },
            None => return Err(Error::invalid("update", "is required: change or adoption")),
        };
        let node = found
            .iter()
            .find(|found| found.node.cluster_id == target.cluster_id)
            .or(found.first());
        if let Some(node) = node {
            target.matches(&node.node)?;
        }
        let node = self.driver.update(&target, &change).await?;
        self.observer.made(&node);
        Ok(node)
    }
}

fn adopted(adoption: NodeAdoption, store_id: String) -> Identity {
    let key = adoption.key.unwrap_or_default();
    let slot = adoption.slot.unwrap_or_default();
    Identity {
        owner: key.owner,
        cluster_id: adoption.cluster_id,
        group: adoption.group,
        request_id: key.request_id,
        index: slot.index.unwrap_or_default(),
        sequence: adoption.sequence,
        spec_hash: adoption.spec_hash,
        store_id,
        id: slot.id,
        name: slot.name,
        ordinal: slot.ordinal.unwrap_or_default(),
        role: slot.role,
        ..Identity::default()
    }
}

/// Returns the node if it already has its new slot: an earlier call whose response was lost may have been executed
/// since the node was read.
///
/// # Errors
///
/// `SlotMismatch` if another node has the slot.
fn taken_by<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
    node_id: &str,
    identity: &Identity,
) -> Result<Option<&'a Node>> {
    let mut nodes = nodes.into_iter();
    match nodes.find(|node| node.slot.as_ref() == Some(&identity.key())) {
        None => Ok(None),
        Some(done) if done.node_id == node_id && is_already(done, identity) => Ok(Some(done)),
        Some(_) => Err(Error::new(
            Reason::SlotMismatch,
            "another node has the slot that it should get",
        )),
    }
}

/// Whether this adoption has already happened. The role may have changed since.
fn is_already(node: &Node, identity: &Identity) -> bool {
    node.cluster_id == identity.cluster_id
        && node.slot.as_ref() == Some(&identity.key())
        && node.id == identity.id
        && node.name == identity.name
        && node.ordinal == Some(identity.ordinal)
        && node.group == identity.group
        && node.spec_hash == identity.spec_hash
        && node.sequence == identity.sequence
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use drover_proto::platform::v1::{Capability, NodeChange};
    use parking_lot::Mutex;
    use tokio::sync::Notify;

    use super::*;
    use crate::{
        batch::Batch,
        clock::Clock,
        driver::{Deleted, Description, Driver, Found, Listing, Outcome},
        templates::Templates,
    };

    /// A backend with one node, which is slow to write some labels.
    #[derive(Default)]
    struct Slow {
        node: Mutex<Node>,
        begun: Notify,
        go_on: Notify,
    }

    #[async_trait::async_trait]
    impl Driver for Slow {
        fn description(&self) -> Description {
            Description {
                uid: "backend".to_owned(),
                capabilities: vec![Capability::UpdateNode],
                ..Description::default()
            }
        }

        async fn check(&self, _: &Batch) -> Result<()> {
            Ok(())
        }

        async fn list(&self) -> Result<Listing> {
            let found = Found {
                node: self.node.lock().clone(),
                ..Found::default()
            };
            Ok(Listing {
                nodes: vec![found],
                warnings: Vec::new(),
            })
        }

        async fn create(&self, _: &Batch) -> Vec<Outcome> {
            Vec::new()
        }

        async fn delete(&self, _: &Target, _: &Deletion) -> Result<Deleted> {
            Err(Error::internal("no removal was asked for"))
        }

        async fn update(&self, _: &Target, change: &Change) -> Result<Node> {
            let Change::Edit { set_labels, .. } = change else {
                return Err(Error::internal("no adoption was asked for"));
            };
            if set_labels["tenant"] == "blue" {
                self.begun.notify_one();
                self.go_on.notified().await;
            }
            let mut node = self.node.lock();
            node.labels.clone_from(set_labels);
            Ok(node.clone())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_ends_after_its_caller_gave_up_does_not_undo_a_later_one() {
        let slot = SlotKey {
            owner: "1b671a64-40d5-491e-99b0-da01ff1f3341".to_owned(),
            request_id: "1b671a64-40d5-491e-99b0-da01ff1f3342".to_owned(),
            index: Some(0),
        };
        let driver = Arc::new(Slow::default());
        *driver.node.lock() = Node {
            node_id: "n-1".to_owned(),
            cluster_id: "orders".to_owned(),
            slot: Some(slot.clone()),
            ..Node::default()
        };
        let backend: Arc<dyn Driver> = Arc::<Slow>::clone(&driver);
        let platform = Platform::new(backend, Templates::Anything, Clock::start());
        let relabel = |tenant: &str| {
            let change = NodeChange {
                set_labels: BTreeMap::from([("tenant".to_owned(), tenant.to_owned())]),
                ..NodeChange::default()
            };
            let request = UpdateNodeRequest {
                expected_platform_uid: "backend".to_owned(),
                expected_cluster_id: "orders".to_owned(),
                expected_slot: Some(slot.clone()),
                node_id: "n-1".to_owned(),
                update: Some(Update::Change(change)),
                fence: Some(Fence {
                    store_id: "1b671a64-40d5-491e-99b0-da01ff1f3343".to_owned(),
                    shard: 0,
                    epoch: 1,
                }),
                ..UpdateNodeRequest::default()
            };
            let platform = Arc::clone(&platform);
            tokio::spawn(async move { platform.update(request).await })
        };
        let tenant = || driver.node.lock().labels.get("tenant").cloned();

        let first = relabel("blue");
        driver.begun.notified().await;
        first.abort();
        let second = relabel("red");
        // The clock is paused: whatever can happen has happened by then.
        tokio::time::sleep(Duration::from_millis(100)).await;
        driver.go_on.notify_one();
        let answer = second.await.unwrap().unwrap();
        assert_eq!(answer.labels["tenant"], "red");
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(tenant().as_deref(), Some("red"));
    }

    #[test]
    fn an_adoption_that_is_carried_out_while_it_is_repeated_is_the_same_one() {
        let heir = Identity {
            owner: "heir".to_owned(),
            request_id: "made-by-adoption".to_owned(),
            cluster_id: "orders".to_owned(),
            ..Identity::default()
        };
        let (own, other) = (heir.node("n-1"), heir.node("n-2"));
        assert_eq!(taken_by([&own], "n-1", &heir).unwrap(), Some(&own));
        assert_eq!(taken_by([], "n-1", &heir).unwrap(), None);
        let refused = taken_by([&other], "n-1", &heir).unwrap_err();
        assert_eq!(refused.reason(), Reason::SlotMismatch);
    }
}
