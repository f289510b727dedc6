//! Services around a cluster (load balancer, jump host, OIDC provider, templates), and their `AddonService`.

mod check;
mod service;
pub mod targets;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use drover_core::Result;
use drover_proto::platform::v1::{
    AddonKind, AddonSecret, AddonSpec, AddonState, AddonTarget, Warning,
};
use drover_templates::Catalogue;

pub use crate::owner::Owner;

/// A backend that can run addons. Each addon is a slot (owner, name): made at most once, marked with cluster id, owner,
/// kind and name from its creation, and found again by those marks only. An addon of another owner, or an object that
/// only has the same name, is never touched. Calls for one owner are serialized; calls for different owners may be
/// concurrent.
#[async_trait]
pub trait Addons: Send + Sync {
    /// The kinds that can be made here (`Platform.addon_kinds`).
    fn kinds(&self) -> Vec<AddonKind>;

    /// The catalogue that their templates are in, built-in ones too. `None` if there is none, or any name is one.
    fn templates(&self) -> Option<Arc<Catalogue>> {
        None
    }

    /// Validates against the backend, with a server-side dry run where there is one, and makes nothing.
    ///
    /// # Errors
    ///
    /// `Invalid` with the field (`spec.load_balancer.ports[0].listen`); `Immutable` for another kind under the name;
    /// `NotOwned`; `TemplateNotFound`.
    async fn check(&self, owner: &Owner, wanted: &AddonWanted) -> Result<()>;

    /// Makes the addon, or brings it to this spec, these targets and these secrets. Answers without waiting for
    /// readiness, and can be repeated from any half-made state.
    ///
    /// # Errors
    ///
    /// Those of [`Addons::check`] and of the backend. What was made before the error remains and is found again.
    async fn ensure(
        &self,
        owner: &Owner,
        sequence: u64,
        wanted: &AddonWanted,
    ) -> Result<AddonProgress>;

    /// Lists every addon of one cluster or of all, in any order, including those of other owners and foreign ones.
    /// Returns an error rather than an incomplete list.
    ///
    /// # Errors
    ///
    /// Those of the backend.
    async fn list(&self, cluster_id: Option<&str>) -> Result<(Vec<AddonState>, Vec<Warning>)>;

    /// Removes everything of one addon as far as possible now, from any half-made state. Complete when the backend says
    /// that nothing is left: phase `Gone`.
    ///
    /// # Errors
    ///
    /// Those of the backend. What was removed before the error stays removed.
    async fn remove(&self, owner: &Owner, name: &str) -> Result<AddonProgress>;
}

/// What is wanted of one addon, whole. Without `Debug`, because a spec may hold confidential settings.
#[derive(Clone, Default)]
pub struct AddonWanted {
    /// The spec; its form has been checked.
    pub spec: AddonSpec,
    /// All targets, each node once.
    pub targets: Vec<AddonTarget>,
    /// Content of every secret that the spec names, by its name, with the keys that its use needs.
    pub secrets: BTreeMap<String, AddonSecret>,
}

/// Progress of an addon operation.
#[derive(Clone, Debug, PartialEq)]
pub struct AddonProgress {
    /// The addon as it is now.
    pub state: AddonState,
    /// When to poll again. `None` when complete.
    pub poll_after: Option<Duration>,
}
