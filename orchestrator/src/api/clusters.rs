//! Changes of a cluster other than a new spec: delete, pause, resume, scale, replace, repair.

mod scale;
mod selector;

use std::sync::Arc;

use drover_cluster::{Cluster, ClusterState, Interner, Repairs};
use drover_core::{Error, Reason, Result};
use drover_planner::State;
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Clock, Desired, DigestKey, Pause, Versioned};

use super::{
    access::{Access, per_call},
    check::Validator,
    editor::Editor,
    forecast::Forecaster,
};
use crate::status::{self, Viewer};

pub(super) use selector::Selector;

/// Maximum length of a reason given by the caller.
const MAX_REASON: usize = 4096;

/// Changes clusters, other than by a new spec.
#[derive(Clone)]
pub(crate) struct Edits {
    pub(crate) access: Access,
    pub(crate) editor: Editor,
    pub(crate) forecaster: Forecaster,
    pub(crate) validator: Validator,
    pub(crate) viewer: Viewer,
    pub(crate) clock: Arc<Clock>,
    pub(crate) digests: Arc<DigestKey>,
    pub(crate) interner: Arc<Interner>,
}

per_call!(Edits: access, editor, validator);

impl Edits {
    pub(super) async fn delete(
        &self,
        request: pb::DeleteClusterRequest,
    ) -> Result<pb::DeleteClusterResponse> {
        let cluster = self.access.find_to_change(&request.name)?;
        let _change = self.editor.lock(&cluster).await;
        let desired = self.deleted(&cluster.lock(), &request)?;
        let revision = self.editor.store(&cluster, desired, None).await?;
        Ok(pb::DeleteClusterResponse {
            cluster: Some(self.viewer.shown(&cluster)),
            revision,
        })
    }

    /// The desired state after a deletion request.
    pub(super) fn deleted(
        &self,
        inner: &ClusterState,
        request: &pb::DeleteClusterRequest,
    ) -> Result<Versioned<Desired>> {
        let now = i64::try_from(self.clock.now()).unwrap_or(i64::MAX);
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
        let cluster = self.access.find_to_change(&request.name)?;
        let _change = self.editor.lock(&cluster).await;
        let mut desired = cluster.lock().desired().clone();
        if desired.value.paused.is_none() {
            let time_ms = i64::try_from(self.clock.now()).unwrap_or(i64::MAX);
            desired.value.paused = Some(Pause {
                reason: request.reason,
                time_ms,
            });
        }
        let revision = self.editor.store(&cluster, desired, None).await?;
        Ok(pb::PauseClusterResponse {
            cluster: Some(self.viewer.shown(&cluster)),
            revision,
        })
    }

    pub(super) async fn resume(
        &self,
        request: pb::ResumeClusterRequest,
    ) -> Result<pb::ResumeClusterResponse> {
        let cluster = self.access.find_to_change(&request.name)?;
        let _change = self.editor.lock(&cluster).await;
        let mut desired = cluster.lock().desired().clone();
        desired.value.paused = None;
        let revision = self.editor.store(&cluster, desired, None).await?;
        Ok(pb::ResumeClusterResponse {
            cluster: Some(self.viewer.shown(&cluster)),
            revision,
        })
    }

    pub(super) async fn replace(
        &self,
        request: pb::ReplaceNodeRequest,
    ) -> Result<pb::ReplaceNodeResponse> {
        self.access
            .caller
            .about("node", &format!("{}/{}", request.cluster, request.id));
        let cluster = self.access.find_to_change(&request.cluster)?;
        let _change = self.editor.lock(&cluster).await;
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
        let revision = self.editor.store(&cluster, desired, None).await?;
        self.editor
            .tell_of_node(&cluster, slot, "ReplacementAsked", "is to be replaced")
            .await;
        let plan = self.forecaster.preview(&cluster);
        let visible = self.viewer.visible();
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
        self.access
            .caller
            .about("node", &format!("{}/{}", request.cluster, request.id));
        let cluster = self.access.find_to_change(&request.cluster)?;
        let _change = self.editor.lock(&cluster).await;
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
        let revision = self.editor.store(&cluster, desired, None).await?;
        let (reason, words) = if request.under_repair {
            ("RepairBegun", "is under repair")
        } else {
            ("RepairEnded", "is not under repair any more")
        };
        self.editor
            .tell_of_node(&cluster, slot, reason, words)
            .await;
        let visible = self.viewer.visible();
        let inner = cluster.lock();
        let node = inner
            .state()
            .node(slot)
            .map(|node| status::node(&cluster, &inner, &visible, node));
        Ok(pb::SetNodeRepairResponse { node, revision })
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
    Error::not_found("group", format!("{cluster}/{path}"))
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
