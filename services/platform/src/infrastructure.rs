//! What a cluster needs before its nodes (network, endpoint, firewall), and `InfrastructureService` over it.

mod service;

use std::time::Duration;

use async_trait::async_trait;
use drover_core::Result;
use drover_proto::platform::v1::{InfrastructureSpec, InfrastructureState, Resource, Warning};

pub(crate) use service::Working;

/// Whose infrastructure is meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Cluster id.
    pub cluster_id: String,
    /// UUID of the cluster record.
    pub owner: String,
}

/// A backend that can make infrastructure. Each resource is a slot (owner, kind, name): made at most once, tagged with
/// cluster id, owner and sequence from creation on, found again by those tags and by nothing else. Calls for one owner
/// come one at a time, those for different owners at once.
#[async_trait]
pub trait Infrastructure: Send + Sync {
    /// Checks what is wanted against the backend and against what was made already, and makes nothing.
    ///
    /// # Errors
    /// `Invalid` with the field (`spec.network.cidr`); `Immutable` for what cannot be changed; `NotOwned`.
    async fn check(&self, owner: &Owner, spec: &InfrastructureSpec) -> Result<()>;

    /// Makes what is missing and can be made now, and answers with the state of every resource. Looks at what exists
    /// first, so that it can be repeated from every half-made state.
    ///
    /// # Errors
    /// Those of the backend. What was made until then stays, and is found again.
    async fn ensure(
        &self,
        owner: &Owner,
        sequence: u64,
        spec: &InfrastructureSpec,
    ) -> Result<Progress>;

    /// What exists, read through to the backend.
    ///
    /// # Errors
    /// Those of the backend.
    async fn get(&self, owner: &Owner) -> Result<InfrastructureState>;

    /// Every resource of every owner, foreign ones of the kinds that are made here included; or an error, never a short
    /// list.
    ///
    /// # Errors
    /// Those of the backend.
    async fn list(&self) -> Result<(Vec<Resource>, Vec<Warning>)>;

    /// Frees whatever of the owner's exists and can be freed now, in the right order, from every half-made state.
    /// Resources of others, and those that the user brought, are left alone. Done when nothing is left: phase `Gone`.
    ///
    /// # Errors
    /// Those of the backend. What was freed until then is.
    async fn release(&self, owner: &Owner) -> Result<Progress>;
}

/// How far infrastructure is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// State of every resource, and the outputs known by now. The phase is set by the caller from the resources.
    pub state: InfrastructureState,
    /// When to ask again. `None`: done.
    pub poll_after: Option<Duration>,
}
