//! What others are told of platforms.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use drover_core::{Millis, Result, Urgency};
use drover_proto::platform::v1 as wire;
use drover_store::Revision;

use crate::Registered;

/// Foreign nodes that a platform shows: by cluster, then by the platform's node id, the owner.
pub type Foreign = BTreeMap<String, BTreeMap<String, String>>;

/// Is told what platforms show, in the order in which they show it.
#[async_trait]
pub trait Listener: Send + Sync {
    /// Something has changed that concerns all clusters that name or use a platform.
    fn changed(&self, platform: &str, urgency: Urgency);

    /// A registration was made durable, and memory reflects it.
    fn wrote(&self, revision: Revision);

    /// A watch has begun: what follows first is a complete snapshot.
    fn watch_begun(&self, registered: &Registered);

    /// Nodes were added or changed. Those that belong to nobody here are added to `foreign`.
    ///
    /// # Errors
    /// The platform shows more unrecorded nodes than can be kept.
    async fn shown(
        &self,
        registered: &Registered,
        nodes: Vec<wire::Node>,
        foreign: &mut Foreign,
    ) -> Result<()>;

    /// Nodes are no longer shown.
    fn removed(&self, registered: &Registered, nodes: &[wire::NodeRemoved]);

    /// A snapshot that began at `began` is complete; all of its foreign nodes are in `foreign`.
    fn snapshot_complete(&self, registered: &Arc<Registered>, began: Millis, foreign: Foreign);
}
