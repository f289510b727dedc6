//! Plans a cluster as it is now.

use std::sync::Arc;

use bytes::Bytes;
use drover_cluster::{ClusterState, Suggestions, request};
use drover_core::{Millis, Sym, spec::Group};
use drover_planner::{Input, Leaving, Plan, Sizes};
use drover_platforms::Platforms;
use drover_secrets::Vault;
use drover_store::{Clock, Store};
use uuid::Uuid;

/// Gathers what a plan depends on besides the cluster itself.
#[derive(Clone)]
pub(crate) struct Planner {
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) store: Arc<Store>,
    pub(crate) clock: Arc<Clock>,
}

impl Planner {
    /// What platforms suggest for the groups of a cluster.
    pub(crate) fn suggestions(&self, inner: &ClusterState) -> Suggestions {
        inner.suggestions(&self.platforms.handshakes(&inner.spec().groups))
    }

    /// The next plan of a cluster. `explain` has it say why.
    pub(crate) fn plan(
        &self,
        inner: &ClusterState,
        suggestions: &Suggestions,
        now: Millis,
        explain: bool,
    ) -> Plan {
        let views = self.platforms.views(inner);
        let wanted = suggestions.groups.as_ref();
        let known: &[Group] = wanted.map_or(&inner.spec().groups, |groups| groups);
        let (groups, leaving): (&[Group], Arc<[Leaving]>) = if inner.state().deleting {
            let all = known.iter().map(Leaving::of);
            let all = all.chain(inner.leaving().iter().cloned());
            (&[], all.collect())
        } else {
            (known, inner.leaving().clone())
        };
        let addons = &inner.spec().addons;
        let addon_secrets: Vec<Sym> = (addons.iter())
            .map(|addon| self.vault.addon_secrets_hash(&addon.secrets))
            .collect();
        let input = Input {
            now,
            process_start: self.clock.start(),
            groups,
            infrastructure: &inner.spec().infrastructure,
            addons,
            addon_secrets: &addon_secrets,
            health_defaults: &suggestions.health,
            leaving: &leaving,
            orphans: inner.spec().orphans,
            orphan_grace: inner.spec().orphan_grace,
            orphan_hold: self.store.restored_hold(),
            state: inner.state(),
            platforms: &views,
            sizes: &StoredSizes(inner),
            explain,
        };
        drover_planner::plan(&input, &mut Uuid::now_v7)
    }
}

/// Sizes of a cluster's requests in the store.
struct StoredSizes<'a>(&'a ClusterState);

impl Sizes for StoredSizes<'_> {
    fn request(&self, group: usize, choice: usize) -> usize {
        request::most_bytes(self.0, group, choice)
    }

    fn open(&self, request: &Uuid) -> usize {
        self.0.body(request).map_or(0, Bytes::len)
    }
}
