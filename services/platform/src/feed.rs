//! Change notifications from drivers.

use std::sync::Arc;

use drover_proto::platform::v1::RemovalEvidence;

/// Receives every change of a node.
pub trait Listener: Send + Sync {
    /// The node is new or has changed.
    fn changed(&self, cluster_id: &str, node_id: &str);
    /// The node is gone.
    fn removed(&self, cluster_id: &str, node_id: &str, evidence: RemovalEvidence);
}

/// Handle by which a driver reports changes. Cheap to clone and to call; never blocks. The state of a node is only read
/// with [`crate::driver::Live::node`] when the notification is sent, so that several changes in a row may be coalesced.
/// May be called with a lock of the driver held, because it never calls back; the driver must update its own state
/// first.
#[derive(Clone)]
pub struct Changes(Arc<dyn Listener>);

impl Changes {
    /// Reports to this listener.
    pub fn new(listener: Arc<dyn Listener>) -> Self {
        Self(listener)
    }

    /// Reports that the node is new or has changed.
    pub fn changed(&self, cluster_id: &str, node_id: &str) {
        self.0.changed(cluster_id, node_id);
    }

    /// Reports a removal: the backend itself says that the node is gone (`Confirmed`), or it is just missing
    /// (`NotListed`).
    pub fn removed(&self, cluster_id: &str, node_id: &str, evidence: RemovalEvidence) {
        self.0.removed(cluster_id, node_id, evidence);
    }
}
