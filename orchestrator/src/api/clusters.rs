//! Cluster reads, and changes other than a new spec: delete, pause, resume, scale, replace, reconcile.

mod scale;
mod selector;

use std::{sync::Arc, time::Duration};

use drover_cluster::{Cluster, ClusterState, Repairs, Resolved};
use drover_convert::error::to_rpc_status;
use drover_core::{Error, Reason, Result, Urgency, spec::Group};
use drover_executor::Point;
use drover_planner::State;
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Desired, Pause, UserData, Versioned};

use super::{
    Api,
    paging::{self, Page},
    rollout,
};
use crate::{status, waiter::Outcome};

pub(super) use selector::Selector;

/// Maximum length of a reason given by the caller.
const MAX_REASON: usize = 4096;
/// Maximum time that a caller who requested a pass waits for the platforms' responses.
const RECONCILE_WAIT: Duration = Duration::from_secs(10);

impl Api {
    pub(super) async fn get(
        &self,
        request: pb::GetClusterRequest,
    ) -> Result<pb::GetClusterResponse> {
        self.shared.records.reach(request.min_revision).await?;
        let cluster = self.find(&request.name)?;
        let visible = self.shared.viewer.visible();
        let revision = self.shared.records.revision();
        let inner = cluster.lock();
        Ok(pb::GetClusterResponse {
            cluster: Some(status::cluster(&cluster, &inner, &visible, true)),
            revision,
        })
    }

    pub(super) async fn list(
        &self,
        request: pb::ListClustersRequest,
    ) -> Result<pb::ListClustersResponse> {
        self.shared.records.reach(request.min_revision).await?;
        let full = is_full(request.view)?;
        let selector = Selector::new(request.selector)?;
        let after = paging::start(&request.page_token)?;
        let mut page = Page::new(request.page_size)?;
        let visible = self.shared.viewer.visible();
        let revision = self.shared.records.revision();
        for cluster in self.shared.clusters.by_name() {
            if after
                .as_deref()
                .is_some_and(|after| &**cluster.name() <= after)
            {
                continue;
            }
            let inner = cluster.lock();
            if self.sees(&cluster, &inner)
                && selector.selects(&inner.desired().value.labels)
                && !page.push(
                    &**cluster.name(),
                    status::cluster(&cluster, &inner, &visible, full),
                )
            {
                break;
            }
        }
        Ok(pb::ListClustersResponse {
            clusters: page.rows,
            next_page_token: page.next,
            revision,
        })
    }

    pub(super) async fn delete(
        &self,
        request: pb::DeleteClusterRequest,
    ) -> Result<pb::DeleteClusterResponse> {
        let cluster = self.find_to_change(&request.name)?;
        let _change = self.shared.changing.lock(cluster.uid()).await;
        let desired = self.deleted(&cluster.lock(), &request)?;
        let revision = self.store(&cluster, desired, None).await?;
        Ok(pb::DeleteClusterResponse {
            cluster: Some(self.shared.viewer.shown(&cluster)),
            revision,
        })
    }

    /// The desired state after a deletion request.
    pub(super) fn deleted(
        &self,
        inner: &ClusterState,
        request: &pb::DeleteClusterRequest,
    ) -> Result<Versioned<Desired>> {
        let now = i64::try_from(self.shared.clock.now()).unwrap_or(i64::MAX);
        let desired = {
            // The deletion itself incremented the generation; a repeated request may still expect the previous one.
            let asked_before = inner.state().deleting
                && request
                    .expected_generation
                    .is_some_and(|g| g.checked_add(1) == Some(inner.desired().value.generation));
            if !asked_before {
                expect(inner, request.expected_generation)?;
            }
            if !inner.state().deleting
                && let Some(group) = inner.spec().groups.iter().find(|group| group.protection)
            {
                return Err(protected(inner, &group.path, "deletes the cluster"));
            }
            let mut desired = inner.desired().clone();
            if desired.value.delete_time_ms.is_none() {
                desired.value.delete_time_ms = Some(now);
                desired.value.generation += 1;
            }
            desired
        };
        Ok(desired)
    }

    pub(super) async fn pause(
        &self,
        request: pb::PauseClusterRequest,
    ) -> Result<pb::PauseClusterResponse> {
        if request.reason.len() > MAX_REASON {
            return Err(Error::invalid(
                "reason",
                format!("is longer than {MAX_REASON} bytes"),
            ));
        }
        let cluster = self.find_to_change(&request.name)?;
        let _change = self.shared.changing.lock(cluster.uid()).await;
        let mut desired = cluster.lock().desired().clone();
        if desired.value.paused.is_none() {
            let time_ms = i64::try_from(self.shared.clock.now()).unwrap_or(i64::MAX);
            desired.value.paused = Some(Pause {
                reason: request.reason,
                time_ms,
            });
        }
        let revision = self.store(&cluster, desired, None).await?;
        Ok(pb::PauseClusterResponse {
            cluster: Some(self.shared.viewer.shown(&cluster)),
            revision,
        })
    }

    pub(super) async fn resume(
        &self,
        request: pb::ResumeClusterRequest,
    ) -> Result<pb::ResumeClusterResponse> {
        let cluster = self.find_to_change(&request.name)?;
        let _change = self.shared.changing.lock(cluster.uid()).await;
        let mut desired = cluster.lock().desired().clone();
        desired.value.paused = None;
        let revision = self.store(&cluster, desired, None).await?;
        Ok(pb::ResumeClusterResponse {
            cluster: Some(self.shared.viewer.shown(&cluster)),
            revision,
        })
    }

    pub(super) async fn replace(
        &self,
        request: pb::ReplaceNodeRequest,
    ) -> Result<pb::ReplaceNodeResponse> {
        self.caller
            .about("node", &format!("{}/{}", request.cluster, request.id));
        let cluster = self.find_to_change(&request.cluster)?;
        let _change = self.shared.changing.lock(cluster.uid()).await;
        let (desired, slot) = {
            let inner = cluster.lock();
            refuse_deleting(&inner, cluster.name())?;
            let node = find_node(&cluster, &inner, &request.id)?;
            let mut desired = inner.desired().clone();
            living_marks(&mut desired.value, inner.state());
            let id = node.id(cluster.uid());
            if !desired.value.marks.contains(&id) {
                desired.value.marks.push(id);
            }
            (desired, node.slot)
        };
        let revision = self.store(&cluster, desired, None).await?;
        self.tell_of_node(&cluster, slot, "ReplacementAsked", "is to be replaced")
            .await;
        let plan = self.preview(&cluster);
        let visible = self.shared.viewer.visible();
        let inner = cluster.lock();
        let node = inner
            .state()
            .node(slot)
            .map(|node| status::node(&cluster, &inner, &visible, node));
        Ok(pb::ReplaceNodeResponse {
            node,
            plan: Some(plan),
            revision,
        })
    }

    pub(super) async fn set_repair(
        &self,
        request: pb::SetNodeRepairRequest,
    ) -> Result<pb::SetNodeRepairResponse> {
        self.caller
            .about("node", &format!("{}/{}", request.cluster, request.id));
        let cluster = self.find_to_change(&request.cluster)?;
        let _change = self.shared.changing.lock(cluster.uid()).await;
        let (desired, slot) = {
            let inner = cluster.lock();
            refuse_deleting(&inner, cluster.name())?;
            let node = find_node(&cluster, &inner, &request.id)?;
            let mut desired = inner.desired().clone();
            let mut repairs = Repairs::of(&desired.value)?;
            let living = |id: &String| {
                let mut nodes = inner.state().nodes.iter();
                nodes.any(|node| node.id(cluster.uid()) == *id)
            };
            repairs.nodes.retain(living);
            let id = node.id(cluster.uid());
            repairs.nodes.retain(|own| *own != id);
            if request.under_repair {
                repairs.nodes.push(id);
            }
            repairs.put(&mut desired.value);
            (desired, node.slot)
        };
        let revision = self.store(&cluster, desired, None).await?;
        let (reason, words) = if request.under_repair {
            ("RepairBegun", "is under repair")
        } else {
            ("RepairEnded", "is not under repair any more")
        };
        self.tell_of_node(&cluster, slot, reason, words).await;
        let visible = self.shared.viewer.visible();
        let inner = cluster.lock();
        let node = inner
            .state()
            .node(slot)
            .map(|node| status::node(&cluster, &inner, &visible, node));
        Ok(pb::SetNodeRepairResponse { node, revision })
    }

    pub(super) async fn reconcile(
        &self,
        request: pb::ReconcileClusterRequest,
    ) -> Result<pb::ReconcileClusterResponse> {
        let cluster = self.find_to_change(&request.name)?;
        let _only = self.shared.reconciling.lock(cluster.uid()).await;
        let waiter = {
            let mut inner = cluster.lock();
            if inner.state().paused {
                let message = format!("{} is paused; resume it first", cluster.name());
                let error = Error::new(Reason::ClusterPaused, message);
                return Err(error.with_metadata("cluster", cluster.name()));
            }
            inner.retry_now(request.reset_back_off, self.shared.clock.now());
            self.shared.waiters.add(cluster.uid())
        };
        self.shared.queue.push(cluster.uid(), Urgency::Urgent);
        let ended = tokio::time::timeout(RECONCILE_WAIT, waiter.ended());
        let ended = self.shared.tasks.stop().run_until_cancelled(ended).await;
        let is_stopped = ended.is_none();
        let has_ended = matches!(ended, Some(Ok(())));
        let seen = waiter.take();
        if let Some(error) = seen.broken {
            return Err(error);
        }
        let Some(plan) = seen.plan else {
            if is_stopped && !self.shared.store.info().exclusive {
                return Err(Error::new(
                    Reason::NotLeader,
                    "another replica is about to lead",
                ));
            }
            let message = format!(
                "{} was not planned within {RECONCILE_WAIT:?}; it will be",
                cluster.name()
            );
            return Err(Error::unavailable(message));
        };
        let late = || {
            Error::new(
                Reason::DeadlineExceeded,
                "the platform has not answered yet; the call goes on",
            )
        };
        let results = plan
            .actions
            .iter()
            .zip(seen.results)
            .map(|(action, result)| {
                let error = match result {
                    Outcome::Done => None,
                    Outcome::Failed(error) => Some(error),
                    Outcome::Open(_) => (!has_ended).then(late),
                };
                pb::StepResult {
                    step: action.step.clone(),
                    error: error.as_ref().map(to_rpc_status),
                }
            });
        let results = results.collect();
        Ok(pb::ReconcileClusterResponse {
            results,
            plan: Some(plan),
            cluster: Some(self.shared.viewer.shown(&cluster)),
            revision: self.shared.records.revision(),
        })
    }

    /// Makes a changed desired state durable, then applies it in memory.
    pub(super) async fn store(
        &self,
        cluster: &Arc<Cluster>,
        desired: Versioned<Desired>,
        spec: Option<Arc<Resolved>>,
    ) -> Result<u64> {
        self.store_with(cluster, desired, spec, UserData::default())
            .await
    }

    /// Like [`Self::store`], together with the user data to add and drop.
    pub(super) async fn store_with(
        &self,
        cluster: &Arc<Cluster>,
        desired: Versioned<Desired>,
        spec: Option<Arc<Resolved>>,
        data: UserData,
    ) -> Result<u64> {
        let before = cluster.lock().desired().value.clone();
        self.record.generation(desired.value.generation);
        if before == desired.value {
            return Ok(self.shared.records.revision());
        }
        let mut desired = desired;
        let author = || self.record.author().to_owned();
        if before.generation != desired.value.generation {
            desired.value.author = author();
        }
        if before.paused != desired.value.paused {
            desired.value.pause_author = author();
        }
        self.keep_revision(cluster, &desired.value).await?;
        self.shared.hooks.reach(Point::BeforeApply).await;
        let value = desired.value.clone();
        let stored = self
            .shared
            .store
            .update_desired_with(cluster.uid(), desired.revision, value, data)
            .await;
        let revision = match stored {
            Ok(revision) => revision,
            Err(error) => {
                // The change may be durable all the same, or a concurrent one is: memory must show the stored state.
                if let Err(error) = self.shared.committer.reload_desired(cluster).await {
                    tracing::warn!(cluster = %cluster.name(), %error, "what is wanted could not be read again");
                }
                return Err(error);
            }
        };
        self.shared.hooks.reach(Point::AfterApply).await;
        let mut inner = cluster.lock();
        let changed = spec.is_some();
        let desired = Versioned {
            value: desired.value,
            revision,
        };
        inner.desire(desired, spec);
        if changed {
            self.shared.probes.track_all(&mut inner);
        }
        // Readers and the next apply must not take the groups for such without templates until the next pass.
        let suggestions = self.shared.planner.suggestions(&inner);
        inner.follow_suggestions(suggestions);
        self.shared.records.changed(cluster, &mut inner);
        self.shared.records.wrote(revision);
        drop(inner);
        self.shared.queue.push(cluster.uid(), Urgency::Bulk);
        Ok(revision)
    }

    /// The next plan of a stored cluster.
    pub(super) fn preview(&self, cluster: &Cluster) -> pb::Plan {
        self.preview_with(cluster, &[])
    }

    /// Like [`Self::preview`], with groups of former specs to explain the causes of an update.
    pub(super) fn preview_with(&self, cluster: &Cluster, former: &[Group]) -> pb::Plan {
        let inner = cluster.lock();
        let now = self.shared.clock.now();
        let suggestions = self.shared.planner.suggestions(&inner);
        let plan = self.shared.planner.plan(&inner, &suggestions, now, true);
        let mut shown = status::plan(
            &plan,
            inner.state(),
            inner.groups(),
            inner.head().revision,
            inner.state().generation,
            now,
        );
        let known = suggestions.groups.as_ref();
        let groups = known.map_or(&inner.spec().groups, |groups| groups);
        shown.renewals = rollout::renewals(&plan.renewals, inner.state(), groups, former);
        shown
    }
}

pub(super) fn is_full(view: i32) -> Result<bool> {
    match pb::ClusterView::try_from(view) {
        Ok(pb::ClusterView::Unspecified | pb::ClusterView::Basic) => Ok(false),
        Ok(pb::ClusterView::Full) => Ok(true),
        Err(_) => Err(Error::invalid(
            "view",
            format!("{view} is not a view; expected BASIC or FULL"),
        )),
    }
}

pub(super) fn expect(inner: &ClusterState, generation: Option<u64>) -> Result<()> {
    let now = inner.desired().value.generation;
    match generation {
        Some(expected) if expected != now => {
            let message = format!("the cluster has generation {now}, not {expected}");
            Err(Error::new(Reason::GenerationMismatch, message)
                .with_metadata("generation", now)
                .with_metadata("cluster", &inner.desired().value.name))
        }
        _ => Ok(()),
    }
}

pub(super) fn refuse_deleting(inner: &ClusterState, name: &str) -> Result<()> {
    if inner.state().deleting {
        let message = format!("{name} is being deleted; its name is free again when it is gone");
        return Err(Error::new(Reason::ClusterDeleting, message));
    }
    Ok(())
}

/// Refuses what deletes nodes of a protected group: "lowers size from 3 to 2".
pub(super) fn protected(inner: &ClusterState, group: &str, what: &str) -> Error {
    let message = format!(
        "deletion protection of group {group} is on, and this {what}; first apply what is stored with \
         `deletionProtection: false`, and nothing else"
    );
    Error::new(Reason::Protected, message)
        .with_metadata("group", group)
        .with_metadata("cluster", &inner.desired().value.name)
}

/// What becomes of the numbers of active and standby nodes, if one of them gets lower.
pub(super) fn lowers(before: (u32, u32), after: (u32, u32)) -> Option<String> {
    let numbers = [("size", before.0, after.0), ("standby", before.1, after.1)];
    let lower = numbers
        .into_iter()
        .filter(|(_, before, after)| after < before);
    let words: Vec<String> = lower
        .map(|(what, before, after)| format!("{what} from {before} to {after}"))
        .collect();
    (!words.is_empty()).then(|| format!("lowers {}", words.join(" and ")))
}

pub(super) fn no_group(cluster: &str, path: &str) -> Error {
    Error::not_found("group", path).with_metadata("cluster", cluster)
}

/// Removes the marks of nodes that are gone from the desired state.
pub(super) fn living_marks(desired: &mut Desired, state: &State) {
    let living = |id: &String| state.nodes.iter().any(|node| node.id(state.uid) == *id);
    desired.marks.retain(living);
    desired.scaled_away.retain(living);
}

/// The group at a path of a spec.
pub(super) fn find_group<'a>(
    groups: &'a mut [pb::GroupSpec],
    path: &str,
) -> Option<&'a mut pb::GroupSpec> {
    let (first, rest) = path
        .split_once('/')
        .map_or((path, None), |(first, rest)| (first, Some(rest)));
    let group = groups.iter_mut().find(|group| group.name == first)?;
    match rest {
        Some(rest) => find_group(&mut group.groups, rest),
        None => Some(group),
    }
}

/// Finds a node by its id, or else by its name.
pub(super) fn find_node<'a>(
    cluster: &Cluster,
    inner: &'a ClusterState,
    id: &str,
) -> Result<&'a drover_core::Node> {
    let nodes = &inner.state().nodes;
    let by_id = nodes.iter().find(|node| node.id(cluster.uid()) == id);
    // Of nodes with the same name, one that is not being removed takes precedence over remnants.
    let named = || nodes.iter().filter(|node| node.name() == id);
    by_id
        .or_else(|| named().find(|node| node.removal.is_none()))
        .or_else(|| named().next_back())
        .ok_or_else(|| Error::not_found("node", format!("{}/{id}", cluster.name())))
}
