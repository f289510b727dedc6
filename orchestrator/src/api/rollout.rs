//! Rollouts: undo, restarts, and the part of plans about nodes to replace.

use std::collections::BTreeSet;

use drover_cluster::{ClusterState, Resolved, Restart, Restarts, stored_spec, template};
use drover_convert::{spec::to_retention, value::to_duration};
use drover_core::{
    Error, Node, Reason, Result, Sym,
    spec::{Choice, Group, Object},
};
use drover_planner::{Renewal, State};
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Desired, Versioned};

use super::{
    apply::Applier,
    clusters::{Edits, expect, find_group, refuse_deleting},
};
use crate::status::shown;

/// Maximum number of nodes per group that a plan names.
const MAX_NAMED: usize = 1_000;

impl Applier {
    pub(super) async fn undo(
        &self,
        request: pb::UndoClusterRequest,
    ) -> Result<pb::UndoClusterResponse> {
        let (from_generation, answer) = self.undo_as(request, false).await?;
        Ok(pb::UndoClusterResponse {
            cluster: answer.cluster,
            from_generation,
            plan: answer.plan,
            warnings: answer.warnings,
            revision: answer.revision,
        })
    }

    /// Restores an earlier spec, or shows what that would do.
    pub(super) async fn undo_as(
        &self,
        request: pb::UndoClusterRequest,
        validate_only: bool,
    ) -> Result<(u64, pb::ApplyClusterResponse)> {
        let cluster = if validate_only {
            self.access.find(&request.name)?
        } else {
            self.access.find_to_change(&request.name)?
        };
        let (labels, present) = {
            let inner = cluster.lock();
            expect(&inner, request.expected_generation)?;
            refuse_deleting(&inner, cluster.name())?;
            let value = &inner.desired().value;
            (value.labels.clone(), value.generation)
        };
        let kept = self.revisions.kept(&cluster).await?;
        let wanted = match request.to_generation {
            Some(generation) => kept.iter().find(|(kept, _)| *kept == generation),
            None => kept.iter().rev().find(|(kept, _)| *kept != present),
        };
        let Some((generation, row)) = wanted else {
            let numbers: Vec<String> = kept.iter().map(|(kept, _)| kept.to_string()).collect();
            let numbers = numbers.join(", ");
            let name = cluster.name();
            let message = match request.to_generation {
                Some(asked) => {
                    format!(
                        "cluster {name} has no revision {asked} any more, or yet (kept: {numbers})"
                    )
                }
                None => {
                    format!("cluster {name} has no earlier spec to go back to (kept: {numbers})")
                }
            };
            let asked = request.to_generation.unwrap_or_default();
            return Err(Error::new(Reason::NotFound, message)
                .with_resource("revision", format!("{name}/{asked}")));
        };
        let mut spec = stored_spec(&row.spec)?;
        let mut now = stored_spec(&cluster.lock().desired().value.spec)?;
        keep_present_sizes(&mut spec.groups, "", &mut now.groups);
        let apply = pb::ApplyClusterRequest {
            cluster: Some(pb::Cluster {
                name: cluster.name().to_string(),
                labels: labels.into_iter().collect(),
                spec: Some(shown(spec, &self.viewer.digests.of_cluster(cluster.uid()))),
                ..pb::Cluster::default()
            }),
            validate_only,
            // The spec must not have been changed since it was read.
            expected_generation: Some(present),
            remove_groups: request.remove_groups,
            ..pb::ApplyClusterRequest::default()
        };
        Ok((*generation, Box::pin(self.apply(apply)).await?))
    }
}

impl Edits {
    pub(super) async fn restart(
        &self,
        request: pb::RestartGroupRequest,
    ) -> Result<pb::RestartGroupResponse> {
        let cluster = self.access.find_to_change(&request.cluster)?;
        let _change = self.editor.lock(&cluster).await;
        let (desired, node_count) = {
            let inner = cluster.lock();
            refuse_deleting(&inner, cluster.name())?;
            restarted(&inner, request.group.as_deref())?
        };
        let revision = self.editor.store(&cluster, desired, None).await?;
        let words = match node_count {
            1 => "1 node is to be replaced".to_owned(),
            count => format!("all {count} nodes are to be replaced"),
        };
        self.editor
            .tell(&cluster, "RestartAsked", words, |event| {
                event.group.clone_from(&request.group);
            })
            .await;
        let plan = self.forecaster.preview(&cluster);
        Ok(pb::RestartGroupResponse {
            cluster: Some(self.viewer.shown(&cluster)),
            node_count,
            plan: Some(plan),
            revision,
        })
    }
}

/// The desired state after marking all current nodes of a group for replacement, and their number.
pub(super) fn restarted(
    inner: &ClusterState,
    group: Option<&str>,
) -> Result<(Versioned<Desired>, u32)> {
    let inside = |path: &str| {
        group.is_none_or(|group| path == group || path.starts_with(&format!("{group}/")))
    };
    let paths: BTreeSet<Sym> = inner
        .spec()
        .groups
        .iter()
        .map(|group| group.path.clone())
        .filter(|path| inside(path))
        .collect();
    if paths.is_empty() {
        let name = &inner.desired().value.name;
        return Err(super::clusters::no_group(name, group.unwrap_or_default()));
    }
    let mut desired = inner.desired().clone();
    let mut restarts = Restarts::of(&desired.value)?;
    restarts.groups.retain(|old| {
        let known = inner
            .spec()
            .groups
            .iter()
            .any(|group| *group.path == old.group);
        known && !paths.contains(&*old.group)
    });
    restarts.groups.extend(paths.iter().map(|path| Restart {
        group: path.to_string(),
        before_slot: inner.state().next_slot,
    }));
    restarts.put(&mut desired.value);
    let own = |node: &&Node| paths.contains(&node.group) && node.removal.is_none();
    let count = inner.state().nodes.iter().filter(own).count();
    Ok((desired, u32::try_from(count).unwrap_or(u32::MAX)))
}

/// Sizes are not part of a revision: scaling since then is preserved.
fn keep_present_sizes(groups: &mut [pb::GroupSpec], outer: &str, now: &mut [pb::GroupSpec]) {
    for group in groups {
        let path = if outer.is_empty() {
            group.name.clone()
        } else {
            format!("{outer}/{}", group.name)
        };
        if let Some(present) = find_group(now, &path)
            && present.groups.is_empty()
            && group.groups.is_empty()
        {
            group.size = present.size;
            group.standby = present.standby;
        }
        keep_present_sizes(&mut group.groups, &path, now);
    }
}

/// The part of a plan about nodes to replace. `former` are groups of former specs, newest first.
pub(super) fn renewals(
    renewals: &[Renewal],
    state: &State,
    groups: &[Group],
    former: &[Group],
) -> Vec<pb::GroupRenewal> {
    let one = |renewal: &Renewal| {
        let group = groups.iter().find(|group| group.path == renewal.group);
        let policy = group
            .and_then(|group| group.storage.as_ref())
            .map(|storage| storage.policy)
            .or_else(|| state.storage.get(&*renewal.group).copied());
        let nodes = renewal.order.iter().take(MAX_NAMED).filter_map(|slot| {
            let node = state.node(*slot)?;
            Some(pb::NodeRenewal {
                node: node.id(state.uid),
                node_name: node.name(),
                platform: node.platform.to_string(),
                reason: if node.marked { "User" } else { "Outdated" }.to_owned(),
                causes: group.map_or_else(Vec::new, |group| causes(node, group, former)),
                storage: to_retention(
                    policy
                        .filter(|_| node.storage)
                        .map(|policy| policy.replaced),
                )
                .into(),
            })
        });
        pb::GroupRenewal {
            group: renewal.group.to_string(),
            size: renewal.size,
            max_surge: renewal.budget.surge,
            max_unavailable: renewal.budget.unavailable,
            nodes: nodes.collect(),
            node_count: u32::try_from(renewal.order.len()).unwrap_or(u32::MAX),
            longest_duration: Some(to_duration(std::time::Duration::from_millis(
                renewal.at_most,
            ))),
        }
    };
    renewals.iter().map(one).collect()
}

/// The differences between a node and its group's current spec and template.
fn causes(node: &Node, group: &Group, former: &[Group]) -> Vec<String> {
    let mut causes = causes_in_spec(node, group, former);
    causes.extend(template::cause(group, node));
    causes
}

fn causes_in_spec(node: &Node, group: &Group, former: &[Group]) -> Vec<String> {
    let mut causes = Vec::new();
    let hosts = &group.placement.hosts;
    if !hosts.is_empty() && !hosts.contains(&node.host) {
        causes.push("placement.hosts".to_owned());
    }
    if group.choice_of(&node.spec_hash).is_some() {
        return causes;
    }
    let made = former.iter().filter(|old| old.path == group.path);
    let found = made
        .filter_map(|old| {
            Some((
                old,
                old.choices.iter().find(|c| c.is_hash(&node.spec_hash))?,
            ))
        })
        .next();
    let Some((old, choice)) = found else {
        return causes;
    };
    let same = |new: &&Choice| new.platform == choice.platform;
    if let Some(new) = group.choices.iter().find(same).or(group.choices.first()) {
        differences(old, choice, group, new, &mut causes);
    }
    causes
}

fn differences(old: &Group, was: &Choice, new: &Group, is: &Choice, out: &mut Vec<String>) {
    let size = |group: &Group| group.storage.as_ref().map(|storage| storage.size);
    let class = |group: &Group| group.storage.as_ref().map(|storage| storage.class.clone());
    for (name, differs) in [
        ("platform", was.platform != is.platform),
        ("nodeClass", was.class != is.class),
        ("version", old.version != new.version),
        ("role", old.role != new.role),
        ("bootstrap", old.bootstrap != new.bootstrap),
        ("secrets", old.secrets != new.secrets),
        ("storage.size", size(old) != size(new)),
        ("storage.class", class(old) != class(new)),
    ] {
        if differs {
            out.push(name.to_owned());
        }
    }
    keys("attributes", &old.attributes, &new.attributes, out);
    keys("properties", &was.properties, &is.properties, out);
    if out.is_empty() && was.spec_hash != is.spec_hash {
        out.push("store.software".to_owned());
    }
}

fn keys(name: &str, old: &Object, new: &Object, out: &mut Vec<String>) {
    let all: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for key in all {
        if old.get(key) != new.get(key) {
            out.push(format!("{name}.{key}"));
        }
    }
}

/// The differences between two specs, group by group.
pub(super) fn changes(before: &Resolved, after: &Resolved) -> Vec<String> {
    let mut changes = Vec::new();
    if before.software != after.software {
        changes.push("store.software".to_owned());
    }
    for new in &after.groups {
        let Some(old) = before.groups.iter().find(|old| old.path == new.path) else {
            changes.push(format!("{}: added", new.path));
            continue;
        };
        let mut own = Vec::new();
        if let (Some(was), Some(is)) = (old.choices.first(), new.choices.first()) {
            differences(old, was, new, is, &mut own);
            own.retain(|field| field != "store.software");
        }
        let policy = |group: &Group| group.storage.as_ref().map(|storage| storage.policy);
        let choices = |group: &Group| -> Vec<(Sym, Option<u32>)> {
            let choices = group.choices.iter();
            choices.map(|c| (c.platform.clone(), c.max)).collect()
        };
        for (name, differs) in [
            ("platforms", choices(old) != choices(new)),
            ("placement", old.placement != new.placement),
            ("storage", policy(old) != policy(new)),
            ("health", old.health != new.health),
            ("remediation", old.remediation != new.remediation),
            ("update", old.update != new.update),
            ("maxInFlight", old.max_in_flight != new.max_in_flight),
            ("terminationGracePeriod", old.grace != new.grace),
            ("expireAfter", old.expire_after != new.expire_after),
            ("managementPolicy", old.management != new.management),
            ("lifecycle", old.lifecycle != new.lifecycle),
            ("dependsOn", old.depends_on != new.depends_on),
            ("removalOrder", old.removal_order != new.removal_order),
            ("deletionProtection", old.protection != new.protection),
            (
                "provisionTimeout",
                old.provision_timeout != new.provision_timeout,
            ),
            ("stableAfter", old.stable_after != new.stable_after),
        ] {
            if differs {
                own.push(name.to_owned());
            }
        }
        changes.extend(
            own.into_iter()
                .map(|field| format!("{}: {field}", new.path)),
        );
    }
    for old in &before.groups {
        if !after.groups.iter().any(|new| new.path == old.path) {
            changes.push(format!("{}: removed", old.path));
        }
    }
    if changes.is_empty() {
        for (name, differs) in [
            (
                "infrastructure",
                before.infrastructure != after.infrastructure,
            ),
            ("addons", before.addons != after.addons),
        ] {
            if differs {
                changes.push(name.to_owned());
            }
        }
    }
    changes
}
