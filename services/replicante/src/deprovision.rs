//! `POST /deprovision`.

use drover_core::{Error, Reason, Result, name::node_id};
use drover_proto::platform::v1::{
    DeprovisionRequest, Node, NodeAdoption, NodeRole, Slot, SlotKey, UpdateNodeRequest,
    update_node_request::Update,
};
use serde_json::Value;
use uuid::Uuid;

use crate::{OWNER, ReplicanteApi, document::Deprovision, fence, provision::exists};

/// Group of a node that has none and is adopted only to be removed.
const NO_GROUP: &str = "adopted";

impl ReplicanteApi {
    /// Requests the removal of a node. A node that does not exist counts as removed.
    pub(crate) async fn deprovision(&self, document: &Value) -> Result<()> {
        let asked = Deprovision::read(document)?;
        let found = self.platform.driver().by_node_id(&asked.node_id).await?;
        let mut nodes = found.into_iter().map(|found| found.node).filter(exists);
        let Some(first) = nodes.next() else {
            return Ok(());
        };
        let here = |node: &Node| node.cluster_id == asked.cluster_id;
        let node = if here(&first) {
            first
        } else {
            nodes.find(here).ok_or_else(|| {
                Error::new(
                    Reason::NodeNotInCluster,
                    format!(
                        "node {:?} is in another cluster than {:?}; it was left alone",
                        asked.node_id, asked.cluster_id
                    ),
                )
            })?
        };
        let slot = self.slot(&node).await?;
        let request = DeprovisionRequest {
            expected_platform_uid: self.uid(),
            fence: fence(),
            request_id: Uuid::new_v4().to_string(),
            owner: slot.owner,
            cluster_id: asked.cluster_id,
            node_request_id: slot.request_id,
            index: slot.index,
            node_id: asked.node_id,
            reason: "User".to_owned(),
            ..DeprovisionRequest::default()
        };
        self.platform.deprovision(request).await.map(drop)
    }

    /// Returns the slot of a node if it may be removed.
    async fn slot(&self, node: &Node) -> Result<SlotKey> {
        let slot = node.slot.clone().filter(|slot| !slot.owner.is_empty());
        match slot {
            Some(slot) if self.settings.delete_any || slot.owner == OWNER.to_string() => Ok(slot),
            None if self.settings.delete_any => self.adopt(node).await,
            _ => Err(Error::new(
                Reason::NotOwned,
                format!(
                    "node {:?} was not made through this API; it was left alone (setting replicante.delete_any)",
                    node.node_id
                ),
            )),
        }
    }

    /// Adopts a node without an owner, because only owned nodes can be removed.
    async fn adopt(&self, node: &Node) -> Result<SlotKey> {
        let request = Uuid::new_v4();
        let key = SlotKey {
            owner: OWNER.to_string(),
            request_id: request.to_string(),
            index: Some(0),
        };
        let group = if node.group.is_empty() {
            NO_GROUP
        } else {
            &node.group
        };
        let id = node_id(group, 0, OWNER, request, 0);
        let adoption = NodeAdoption {
            cluster_id: node.cluster_id.clone(),
            key: Some(key.clone()),
            slot: Some(Slot {
                index: Some(0),
                name: id.clone(),
                id,
                ordinal: Some(0),
                role: NodeRole::Active.into(),
                host_id: None,
            }),
            sequence: 1,
            group: group.to_owned(),
            spec_hash: NO_GROUP.to_owned(),
        };
        let request = UpdateNodeRequest {
            expected_platform_uid: self.uid(),
            fence: fence(),
            node_id: node.node_id.clone(),
            expected_cluster_id: node.cluster_id.clone(),
            expected_slot: node.slot.clone(),
            update: Some(Update::Adoption(adoption)),
            ..UpdateNodeRequest::default()
        };
        self.platform.update(request).await.map(|_| key)
    }
}
