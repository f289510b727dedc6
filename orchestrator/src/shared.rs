//! What the API uses.

use std::{fmt, sync::Arc};

use drover_cluster::{Clusters, Interner};
use drover_executor::Hooks;
use drover_platforms::Platforms;
use drover_probes::Probes;
use drover_secrets::Vault;
use drover_store::{Clock, DigestKey, Store};

use crate::{
    commit::Committer, limits::Limits, locks::Locks, planning::Planner, queue::Queue,
    readiness::ReadinessReporter, records::Records, registry::Registry, secrets::Secrets,
    space::Space, status::Viewer, tasks::Tasks, tombstones::Tombstones, waiter::Waiters,
};

pub(crate) struct Shared {
    pub(crate) clock: Arc<Clock>,
    pub(crate) store: Arc<Store>,
    pub(crate) records: Arc<Records>,
    pub(crate) interner: Arc<Interner>,
    pub(crate) queue: Queue,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) changing: Locks,
    pub(crate) reconciling: Locks,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) tombstones: Arc<Tombstones>,
    pub(crate) probes: Arc<Probes>,
    pub(crate) limits: Limits,
    pub(crate) vault: Arc<Vault>,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) digests: Arc<DigestKey>,
    pub(crate) tasks: Tasks,
    pub(crate) readiness: ReadinessReporter,
    pub(crate) space: Arc<Space>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) planner: Planner,
    pub(crate) viewer: Viewer,
    pub(crate) hooks: Hooks,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
