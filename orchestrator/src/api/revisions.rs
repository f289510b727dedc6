//! Earlier specs of clusters.

use std::sync::Arc;

use drover_cluster::{Cluster, Resolved, stored_spec};
use drover_core::{Result, spec::Group};
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Desired, DigestKey, RevisionRow, Store};

/// Maximum number of retained revisions of a cluster, besides the current one.
const MAX_REVISIONS: usize = 10;

/// The revisions that are kept.
#[derive(Clone)]
pub(crate) struct Revisions {
    pub(crate) store: Arc<Store>,
    pub(crate) digests: Arc<DigestKey>,
}

impl Revisions {
    /// The retained revisions of a cluster, oldest first, the current one last.
    pub(super) async fn kept(&self, cluster: &Cluster) -> Result<Vec<(u64, RevisionRow)>> {
        let mut kept = self.store.revisions(cluster.uid()).await?;
        let desired = cluster.lock().desired().value.clone();
        // A revision that was retained for a change that then failed is still the current one.
        kept.retain(|(generation, _)| *generation < desired.generation);
        let present = RevisionRow {
            spec: desired.spec,
            apply_time_ms: desired.apply_time_ms,
            author: desired.author,
        };
        let same =
            |old: &RevisionRow| -> Result<bool> {
                Ok(without_sizes(stored_spec(&old.spec)?)
                    == without_sizes(stored_spec(&present.spec)?))
            };
        // Only the newest of consecutive revisions with the same spec is kept.
        if let Some((_, newest)) = kept.last()
            && same(newest)?
        {
            kept.pop();
        }
        kept.push((desired.generation, present));
        Ok(kept)
    }

    /// The groups of all retained revisions, newest first, to determine what made a node.
    pub(super) async fn former(&self, cluster: &Cluster) -> Result<Vec<Group>> {
        let kept = self.kept(cluster).await?;
        let digests = self.digests.of_cluster(cluster.uid());
        let mut groups = Vec::new();
        for (_, row) in kept.iter().rev() {
            groups.extend(Resolved::from_stored(&row.spec, &digests)?.groups);
        }
        Ok(groups)
    }

    /// Retains the current spec before another one replaces it.
    pub(super) async fn keep_revision(&self, cluster: &Cluster, next: &Desired) -> Result<()> {
        let present = cluster.lock().desired().value.clone();
        if present.generation >= next.generation || present.spec == next.spec {
            return Ok(());
        }
        let before = without_sizes(stored_spec(&present.spec)?);
        if before == without_sizes(stored_spec(&next.spec)?) {
            return Ok(());
        }
        let row = RevisionRow {
            spec: present.spec,
            apply_time_ms: present.apply_time_ms,
            author: present.author,
        };
        let store = &self.store;
        store
            .keep_revision(cluster.uid(), present.generation, row, MAX_REVISIONS)
            .await
    }

    /// The retained specs besides the current one, for their references.
    pub(super) async fn kept_specs(&self, cluster: &Cluster) -> Result<Vec<pb::ClusterSpec>> {
        let kept = self.store.revisions(cluster.uid()).await?;
        kept.iter().map(|(_, row)| stored_spec(&row.spec)).collect()
    }
}

fn without_sizes(mut spec: pb::ClusterSpec) -> pb::ClusterSpec {
    fn clear(groups: &mut [pb::GroupSpec]) {
        for group in groups {
            (group.size, group.standby) = (None, None);
            clear(&mut group.groups);
        }
    }
    clear(&mut spec.groups);
    spec
}
