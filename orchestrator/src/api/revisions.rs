//! Earlier specs of clusters.

use std::sync::Arc;

use drover_cluster::{Cluster, Resolved, stored_spec};
use drover_core::{Result, spec::Group};
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Desired, DigestKey, Former, RevisionRow, Store};

/// Maximum number of retained revisions of a cluster, besides the current one.
const MAX_REVISIONS: usize = 10;

/// Earlier specs of a cluster with their generations, oldest first.
pub(super) type Earlier = Vec<(u64, RevisionRow)>;

/// The revisions that are kept.
#[derive(Clone)]
pub(crate) struct Revisions {
    pub(crate) store: Arc<Store>,
    pub(crate) digests: Arc<DigestKey>,
}

impl Revisions {
    /// The earlier specs that are stored.
    pub(super) async fn earlier(&self, cluster: &Cluster) -> Result<Earlier> {
        self.store.revisions(cluster.uid()).await
    }

    /// The retained revisions of a cluster, oldest first, the current one last.
    pub(super) async fn kept(&self, cluster: &Cluster) -> Result<Earlier> {
        with_present(cluster, self.earlier(cluster).await?)
    }

    /// The current spec, if it is retained when that one replaces it.
    pub(super) async fn replaced(
        &self,
        cluster: &Cluster,
        next: &Desired,
    ) -> Result<Option<Former>> {
        let present = cluster.lock().desired().value.clone();
        if !is_replaced(&present, next)? {
            return Ok(None);
        }
        replaced(cluster, next, &self.earlier(cluster).await?)
    }

    /// The groups of all retained revisions, newest first, to determine what made a node.
    pub(super) async fn former(&self, cluster: &Cluster) -> Result<Vec<Group>> {
        self.groups(cluster, self.earlier(cluster).await?)
    }

    /// The same, of the earlier specs that were read.
    pub(super) fn groups(&self, cluster: &Cluster, earlier: Earlier) -> Result<Vec<Group>> {
        let kept = with_present(cluster, earlier)?;
        let digests = self.digests.of_cluster(cluster.uid());
        let mut groups = Vec::new();
        for (_, row) in kept.iter().rev() {
            groups.extend(Resolved::from_stored(&row.spec, &digests)?.groups);
        }
        Ok(groups)
    }
}

/// Adds the current spec to earlier ones.
fn with_present(cluster: &Cluster, mut kept: Earlier) -> Result<Earlier> {
    let desired = cluster.lock().desired().value.clone();
    // Former versions retained a revision before the change, which then may have failed: it is still the current one.
    kept.retain(|(earlier, _)| *earlier < desired.generation);
    let generation = desired.generation;
    let present = row(desired);
    let same = |old: &RevisionRow| -> Result<bool> {
        Ok(without_sizes(stored_spec(&old.spec)?) == without_sizes(stored_spec(&present.spec)?))
    };
    // Only the newest of consecutive revisions with the same spec is kept.
    if let Some((_, newest)) = kept.last()
        && same(newest)?
    {
        kept.pop();
    }
    kept.push((generation, present));
    Ok(kept)
}

/// The current spec, if it is retained when that one replaces it. A change of sizes alone retains nothing.
pub(super) fn replaced(
    cluster: &Cluster,
    next: &Desired,
    earlier: &Earlier,
) -> Result<Option<Former>> {
    let present = cluster.lock().desired().value.clone();
    if !is_replaced(&present, next)? {
        return Ok(None);
    }
    let older = earlier.iter().map(|(generation, _)| *generation);
    let older: Vec<u64> = older.filter(|it| *it != present.generation).collect();
    let surplus = (older.len() + 1).saturating_sub(MAX_REVISIONS);
    Ok(Some(Former {
        generation: present.generation,
        row: row(present),
        drop: older.into_iter().take(surplus).collect(),
    }))
}

fn row(desired: Desired) -> RevisionRow {
    RevisionRow {
        spec: desired.spec,
        apply_time_ms: desired.apply_time_ms,
        author: desired.author,
    }
}

fn is_replaced(present: &Desired, next: &Desired) -> Result<bool> {
    if present.generation >= next.generation || present.spec == next.spec {
        return Ok(false);
    }
    let before = without_sizes(stored_spec(&present.spec)?);
    Ok(before != without_sizes(stored_spec(&next.spec)?))
}

/// Specs, for their references.
pub(super) fn specs(earlier: &Earlier) -> Result<Vec<pb::ClusterSpec>> {
    earlier
        .iter()
        .map(|(_, row)| stored_spec(&row.spec))
        .collect()
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
