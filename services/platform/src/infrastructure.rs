//! The infrastructure that a cluster needs before its nodes (network, endpoint, firewall), and its
//! `InfrastructureService`.

mod service;

use std::time::Duration;

use async_trait::async_trait;
use drover_core::Result;
use drover_proto::platform::v1::{
    InfrastructureSpec, InfrastructureState, Resource, ResourcePhase, Warning,
};

pub use crate::owner::Owner;
pub use drover_core::resource::ENDPOINT;

/// A backend that can create infrastructure. Each resource is a slot (owner, kind, name): created at most once, tagged
/// with cluster id, owner and sequence from its creation, and found again by those tags only. Calls for one owner are
/// serialized; calls for different owners may be concurrent.
#[async_trait]
pub trait Infrastructure: Send + Sync {
    /// Validates the spec against the backend and against existing resources, without creating anything.
    ///
    /// # Errors
    ///
    /// `Invalid` with the field (`spec.network.cidr`); `Immutable` for a change that is not possible; `NotOwned`.
    async fn check(&self, owner: &Owner, spec: &InfrastructureSpec) -> Result<()>;

    /// Creates the missing resources that can be created now, and returns the state of all resources. Checks first what
    /// exists, so that it can be repeated from any partial state.
    ///
    /// # Errors
    ///
    /// Those of the backend. Resources created before the error remain and are found again.
    async fn ensure(
        &self,
        owner: &Owner,
        sequence: u64,
        spec: &InfrastructureSpec,
    ) -> Result<Progress>;

    /// Reads the existing resources from the backend.
    ///
    /// # Errors
    ///
    /// Those of the backend.
    async fn get(&self, owner: &Owner) -> Result<InfrastructureState>;

    /// Lists all resources of all owners, including foreign ones of the kinds that are created here. Returns an error
    /// rather than an incomplete list.
    ///
    /// # Errors
    ///
    /// Those of the backend.
    async fn list(&self) -> Result<(Vec<Resource>, Vec<Warning>)>;

    /// Releases the owner's existing resources as far as possible now, in the right order and from any partial state.
    /// Resources of other owners, and those that the user brought, are left alone. Complete when nothing is left: phase
    /// `Gone`.
    ///
    /// # Errors
    ///
    /// Those of the backend. Resources released before the error stay released.
    async fn release(&self, owner: &Owner) -> Result<Progress>;
}

/// Progress of an infrastructure operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// State of all resources, and the outputs known so far. The caller derives the phase from the resources.
    pub state: InfrastructureState,
    /// When to poll again. `None` when complete.
    pub poll_after: Option<Duration>,
}

/// Whether an endpoint is there and only waits for a node to lead to.
#[must_use]
pub fn awaits_nodes(resource: &Resource) -> bool {
    let is_there = resource.kind == ENDPOINT && !resource.id.is_empty();
    is_there && resource.phase() == ResourcePhase::Pending
}

/// The phase of all, for backends whose endpoints follow nodes. Nodes wait for infrastructure, so what waits for nodes
/// must not count.
#[must_use]
pub fn phase_before_nodes(resources: &[Resource]) -> ResourcePhase {
    service::worst(resources.iter().map(|one| match awaits_nodes(one) {
        true => ResourcePhase::Ready,
        false => one.phase(),
    }))
}
