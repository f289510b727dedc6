//! Scaling of groups, and marking the nodes to remove first.

use std::sync::Arc;

use drover_cluster::{Cluster, ClusterState, Resolved, stored_spec};
use drover_core::{
    Error, Result,
    spec::{Group, MAX_NODES},
    words,
};
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Desired, Versioned};
use prost::Message;

use super::{
    Edits, expect, find_group, find_node, living_marks, lowers, no_group, protected,
    refuse_deleting,
};

impl Edits {
    pub(in crate::api) async fn scale(
        &self,
        request: pb::ScaleGroupRequest,
    ) -> Result<pb::ScaleGroupResponse> {
        let cluster = self.access.find_to_change(&request.cluster)?;
        let _change = self.editor.lock(&cluster).await;
        let (desired, spec) = self.scaled(&cluster, &cluster.lock(), &request)?;
        // Before a pass makes the first steps.
        let planned = self
            .forecaster
            .supposed(&cluster, desired.clone(), Some(spec.clone()), &[]);
        let revision = self.editor.store(&cluster, desired, Some(spec)).await?;
        Ok(pb::ScaleGroupResponse {
            cluster: Some(self.viewer.shown(&cluster)),
            plan: planned.plan,
            revision,
        })
    }

    /// The desired state after scaling a group.
    pub(in crate::api) fn scaled(
        &self,
        cluster: &Cluster,
        inner: &ClusterState,
        request: &pb::ScaleGroupRequest,
    ) -> Result<(Versioned<Desired>, Arc<Resolved>)> {
        let named = !request.remove_nodes.is_empty();
        if request.size.is_none() && request.standby.is_none() && !named {
            return Err(Error::invalid("size", "neither size nor standby is given"));
        }
        let answer = {
            expect(inner, request.expected_generation)?;
            refuse_deleting(inner, cluster.name())?;
            let mut desired = inner.desired().clone();
            let mut spec = stored_spec(&desired.value.spec)?;
            let group = find_group(&mut spec.groups, &request.group)
                .ok_or_else(|| no_group(cluster.name(), &request.group))?;
            if !group.groups.is_empty() {
                return Err(Error::invalid(
                    "group",
                    format!("{:?} contains groups; name one of them", request.group),
                ));
            }
            let before = group.size.unwrap_or(1);
            let standby_before = group.standby.unwrap_or(0);
            let (size, standby) = if named {
                let counts = (before, standby_before);
                mark_removed(cluster, inner, request, counts, &mut desired.value)?
            } else {
                let standby = request.standby.unwrap_or(standby_before);
                (request.size.unwrap_or(before), standby)
            };
            if size > MAX_NODES {
                return Err(Error::invalid(
                    "size",
                    format!("expected a whole number, 0 to {MAX_NODES}"),
                ));
            }
            if standby > MAX_NODES {
                return Err(Error::invalid(
                    "standby",
                    format!("expected a whole number, 0 to {MAX_NODES}"),
                ));
            }
            let resolved = inner
                .spec()
                .groups
                .iter()
                .find(|g| *g.path == *request.group);
            if resolved.is_some_and(|group| group.protection)
                && let Some(what) = lowers((before, standby_before), (size, standby))
            {
                return Err(protected(inner, &request.group, &what));
            }
            let grows = size > before || standby > standby_before;
            if let Some(group) = resolved.filter(|_| grows) {
                let group = Group {
                    size: Some(size),
                    standby,
                    ..group.clone()
                };
                self.validator
                    .check_counts(&group, &inner.spec().software)?;
            }
            group.size = Some(size);
            if standby != standby_before {
                group.standby = (standby > 0).then_some(standby);
            }
            let resolved = Arc::new(
                Resolved::new(
                    drover_convert::spec::cluster_spec(&spec)?,
                    &self.digests.of_cluster(cluster.uid()),
                )?
                .interned(&self.interner),
            );
            if size != before || standby != standby_before {
                desired.value.spec = spec.encode_to_vec().into();
                desired.value.generation += 1;
                desired.value.apply_time_ms = i64::try_from(self.clock.now()).unwrap_or(i64::MAX);
            }
            (desired, resolved)
        };
        Ok(answer)
    }
}

/// Marks the nodes that a scale request names, so that they are removed before all others. Returns size and standby.
fn mark_removed(
    cluster: &Cluster,
    inner: &ClusterState,
    request: &pb::ScaleGroupRequest,
    (before, standby_before): (u32, u32),
    desired: &mut Desired,
) -> Result<(u32, u32)> {
    living_marks(desired, inner.state());
    let mut ids = std::collections::BTreeSet::new();
    let mut standing_by = 0;
    for (index, name) in request.remove_nodes.iter().enumerate() {
        let field = || format!("remove_nodes[{index}]");
        let node = find_node(cluster, inner, name)?;
        if *node.group != *request.group {
            let why = format!("{name:?} is a node of group {:?}", &*node.group);
            return Err(Error::invalid(field(), why));
        }
        if !ids.insert(node.id(cluster.uid())) {
            return Err(Error::invalid(field(), format!("{name:?} appears twice")));
        }
        standing_by += u32::from(!node.role.may_act());
    }
    let gone = u32::try_from(ids.len())
        .unwrap_or(u32::MAX)
        .saturating_sub(standing_by);
    let most_standby = standby_before.saturating_sub(standing_by);
    let standby = request.standby.unwrap_or(most_standby);
    if standby > most_standby {
        let why = format!(
            "expected at most {most_standby}: {standing_by} of {} to be removed",
            words::count(standby_before, "standby node")
        );
        return Err(Error::invalid("standby", why));
    }
    let most = before.saturating_sub(gone);
    let size = request.size.unwrap_or(most);
    if size > most {
        let why = format!(
            "expected at most {most}: {gone} of {} to be removed",
            words::count(before, "node")
        );
        return Err(Error::invalid("size", why));
    }
    for id in ids {
        if !desired.scaled_away.contains(&id) {
            desired.scaled_away.push(id.clone());
        }
        if !desired.marks.contains(&id) {
            desired.marks.push(id);
        }
    }
    Ok((size, standby))
}
