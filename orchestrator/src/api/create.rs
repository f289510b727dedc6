//! New clusters.

use std::{sync::Arc, time::Duration};

use drover_cluster::{Cluster, Interner, Resolved, order_adoption};
use drover_core::{Error, Reason, Result, Sym, Urgency};
use drover_executor::{Hooks, Point};
use drover_platforms::Platforms;
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Clock, Desired, Store, Versioned};
use prost::Message;
use tokio::time::Instant;

use super::{
    access::{Access, per_call},
    adopt::{self, Others},
    check::Checked,
    forecast::Forecaster,
    storage::Storage,
};
use crate::{queue::Queue, records::Records, space::Space, status::Viewer, tombstones::Tombstones};

/// Maximum time until a concurrently created cluster, already durable, is visible in memory.
const CREATION_WAIT: Duration = Duration::from_secs(1);

/// Creates clusters, also of nodes that platforms show already.
#[derive(Clone)]
pub(crate) struct Creator {
    pub(crate) access: Access,
    pub(crate) forecaster: Forecaster,
    pub(crate) viewer: Viewer,
    pub(crate) storage: Storage,
    pub(crate) store: Arc<Store>,
    pub(crate) records: Arc<Records>,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) tombstones: Arc<Tombstones>,
    pub(crate) space: Arc<Space>,
    pub(crate) interner: Arc<Interner>,
    pub(crate) queue: Queue,
    pub(crate) clock: Arc<Clock>,
    pub(crate) hooks: Hooks,
}

per_call!(Creator: access, storage);

impl Creator {
    /// Loads a cluster into memory that exists only in the store.
    pub(super) async fn take_in(&self, name: &str) -> Result<()> {
        let end = Instant::now() + CREATION_WAIT;
        while Instant::now() < end {
            if self.records.clusters().find(name).is_ok() {
                return Ok(());
            }
            tokio::time::sleep(super::SHORT_WAIT).await;
        }
        // No other call is about to load it: its creator lost the store's response.
        let Some(uid) = self.store.find_cluster(name).await? else {
            return Ok(());
        };
        if let Some(row) = self.store.load_cluster(uid).await? {
            self.records.wrote(row.desired.revision);
            let cluster = self.records.add(self.records.decode(row)?);
            self.records.changed(&cluster, &mut cluster.lock());
            self.queue.push(uid, Urgency::Bulk);
        }
        Ok(())
    }

    /// Refuses the name of a cluster of which a platform shows foreign nodes.
    pub(super) fn refuse_foreign(&self, name: &str) -> Result<()> {
        for (platform, registered) in &*self.platforms.read() {
            if let Some(owner) = registered.platform.foreign_owner(name) {
                let owner = if owner.is_empty() {
                    "nobody known"
                } else {
                    &owner
                };
                let platform = if self.access.caller.sees_platform(platform) {
                    platform
                } else {
                    "a platform"
                };
                let message = format!(
                    "{platform} shows nodes of a cluster {name:?} whose owner is {owner}; choose another name, or take \
                     them over with adopt"
                );
                return Err(Error::new(Reason::ClusterExists, message));
            }
        }
        Ok(())
    }

    pub(super) async fn create(
        &self,
        name: &str,
        checked: Checked,
        validate_only: bool,
        others: Option<Others>,
    ) -> Result<pb::ApplyClusterResponse> {
        self.space.admit("a new cluster")?;
        let mut checked = checked;
        let kept = self
            .storage
            .warn_of_kept(name, &with_storage(&checked.resolved))
            .await;
        checked.warnings.extend(kept);
        let now = self.clock.now();
        let time = i64::try_from(now).unwrap_or(i64::MAX);
        let mut value = Desired {
            name: name.to_owned(),
            labels: checked.labels,
            spec: checked.spec.encode_to_vec().into(),
            // Continues the generation of a deleted cluster of this name, so that an expected generation of the former
            // never matches.
            generation: self.tombstones.generation(name) + 1,
            author: self.access.record.author().to_owned(),
            apply_time_ms: time,
            create_time_ms: time,
            ..Desired::default()
        };
        if others.is_some() {
            order_adoption(&mut value);
        }
        let mut answer = pb::ApplyClusterResponse {
            outcome: pb::ApplyOutcome::Created.into(),
            warnings: checked.warnings,
            ..pb::ApplyClusterResponse::default()
        };
        let cluster = if validate_only {
            let desired = Versioned { value, revision: 0 };
            answer.revision = self.records.revision();
            Arc::new(Cluster::create(checked.uid, desired, checked.resolved))
        } else {
            self.hooks.reach(Point::BeforeApply).await;
            let data = checked.user_data.to_store();
            let store = &self.store;
            let revision = store
                .create_cluster_with(checked.uid, value.clone(), data)
                .await?;
            self.hooks.reach(Point::AfterApply).await;
            self.access.record.generation(value.generation);
            let desired = Versioned { value, revision };
            answer.revision = revision;
            self.records
                .add(Cluster::create(checked.uid, desired, checked.resolved))
        };
        if let Some(others) = others {
            others.show(&cluster, &self.interner, &self.clock);
        }
        let mut plan = {
            let mut inner = cluster.lock();
            let plan = self.forecaster.forecast(&cluster, &inner, &[]);
            if !validate_only {
                self.records.changed(&cluster, &mut inner);
            }
            plan
        };
        let mut shown = self.viewer.shown(&cluster);
        if let Some(spec) = &mut shown.spec {
            checked.user_data.leave_out(spec);
        }
        if validate_only {
            plan.generation = 0;
            shown.uid.clear();
        } else {
            self.records.wrote(answer.revision);
            self.queue.push(cluster.uid(), Urgency::Bulk);
        }
        answer.warnings.extend(adopt::warning(&plan));
        answer.plan = Some(plan);
        answer.cluster = Some(shown);
        Ok(answer)
    }
}

/// The platforms named by groups with storage.
fn with_storage(spec: &Resolved) -> Vec<Sym> {
    let groups = spec.groups.iter().filter(|group| group.storage.is_some());
    let mut platforms: Vec<Sym> = groups
        .flat_map(|group| &group.choices)
        .map(|choice| choice.platform.clone())
        .collect();
    platforms.sort();
    platforms.dedup();
    platforms
}
