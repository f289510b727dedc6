//! Where a driver says what changed.

use std::sync::Arc;

use drover_proto::platform::v1::RemovalEvidence;

/// Told of every change of a node.
pub trait Listener: Send + Sync {
    /// The node is new, or differs from before.
    fn changed(&self, cluster_id: &str, node_id: &str);
    /// The node is gone.
    fn removed(&self, cluster_id: &str, node_id: &str, evidence: RemovalEvidence);
}

/// Where a driver says what changed. Cheap to clone and to call; never waits. A node is read again with
/// [`crate::driver::Live::node`] when its news is sent, so several changes in a row may be seen as one. It may be called
/// with a lock of the driver held, as it never calls back; the driver's own state is changed first.
#[derive(Clone)]
pub struct Changes(Arc<dyn Listener>);

impl Changes {
    /// Tells this listener.
    pub fn new(listener: Arc<dyn Listener>) -> Self {
        Self(listener)
    }

    /// The node is new, or differs from before.
    pub fn changed(&self, cluster_id: &str, node_id: &str) {
        self.0.changed(cluster_id, node_id);
    }

    /// The backend itself says that the node is gone (`Confirmed`), or it is only missing (`NotListed`).
    pub fn removed(&self, cluster_id: &str, node_id: &str, evidence: RemovalEvidence) {
        self.0.removed(cluster_id, node_id, evidence);
    }
}
