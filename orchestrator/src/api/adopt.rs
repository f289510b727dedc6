//! Adoption of nodes that platforms show for a cluster and that have no record here.

use drover_cluster::{Cluster, ClusterState, Interner, Resolved, Source};
use drover_core::{Error, Reason, Result, Sym, error::Violation, resource::ResourceKind, words};
use drover_planner::{Op, Plan, State};
use drover_platforms::Registered;
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};
use drover_store::Clock;
use uuid::Uuid;

use super::{apply::Applier, create::Creator};

/// Deadline for a platform to list the nodes of one cluster.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Foreign nodes by location: platform name, backend uid.
pub(super) struct Others(Vec<(Sym, String, Vec<wire::Node>)>);

impl Others {
    /// Adds the nodes to the cluster's foreign nodes.
    pub(super) fn show(&self, cluster: &Cluster, interner: &Interner, clock: &Clock) {
        let mut inner = cluster.lock();
        // No earlier: a list that was begun before this may lack the cluster's nodes, and must not be taken for their end.
        let now = clock.now();
        for (platform, uid, nodes) in &self.0 {
            for node in nodes {
                let source = Source { platform, uid };
                inner.observe_foreign(source, node, now, interner);
            }
        }
    }
}

impl Creator {
    /// Lists the current nodes with the cluster id that is to be adopted, on all platforms.
    ///
    /// # Errors
    /// `CapabilityMissing` if a platform cannot change the owner of nodes, `Unavailable` if one cannot be asked.
    pub(super) async fn others(&self, name: &str) -> Result<Others> {
        let mut others = Vec::new();
        for (platform, registered) in self.access.registered() {
            if registered.platform.foreign_owner(name).is_none() {
                continue;
            }
            refuse_unable(&platform, &registered)?;
            let (uid, instance) = registered.platform.identity();
            let client = registered.platform.client().ok_or_else(|| {
                Error::unavailable(format!(
                    "{platform} shows nodes of {name:?} and cannot be asked about them now"
                ))
            })?;
            let message = wire::DiscoverRequest {
                expected_platform_uid: uid.clone(),
                expected_instance_id: instance,
                cluster_id: name.to_owned(),
                ..wire::DiscoverRequest::default()
            };
            let mut nodes = client.discover_all(message, TIMEOUT).await?.nodes;
            // Remnants of our deleted clusters are about to be removed.
            nodes.retain(|node| {
                let owner = node.slot.as_ref().map(|slot| slot.owner.as_str());
                let owner = owner.and_then(|owner| Uuid::parse_str(owner).ok());
                owner.is_none_or(|owner| self.tombstones.name(owner).is_none())
            });
            others.push((platform, uid, nodes));
        }
        Ok(Others(others))
    }
}

impl Applier {
    /// Whether there may be nodes to adopt. Fails if adopting them is not possible.
    pub(super) fn adoptable(
        &self,
        inner: &ClusterState,
        resolved: &Resolved,
        removed: &[String],
    ) -> Result<bool> {
        let mut last: Option<&Sym> = None;
        for (platform, _) in inner.state().foreign.keys() {
            if last == Some(platform) {
                continue;
            }
            last = Some(platform);
            if let Some(registered) = self.platforms.get(platform) {
                refuse_unable(platform, &registered)?;
            }
        }
        refuse_removed(inner.state(), resolved, removed)?;
        refuse_unnamed(inner.state(), resolved)?;
        let now = self.clock.now();
        let hidden = |choice: &drover_core::spec::Choice| {
            let platform = self.platforms.get(&choice.platform);
            platform.is_some_and(|registered| !registered.platform.is_visible(now))
        };
        let mut choices = resolved.groups.iter().flat_map(|group| &group.choices);
        Ok(!inner.state().orphans.is_empty()
            || !inner.state().resource_orphans.is_empty()
            || !inner.state().foreign.is_empty()
            || choices.any(hidden))
    }
}

fn refuse_unable(platform: &Sym, registered: &Registered) -> Result<()> {
    if registered.platform.has(wire::Capability::Adopt) {
        return Ok(());
    }
    let message = format!("{platform} cannot give nodes another owner");
    Err(Error::new(Reason::CapabilityMissing, message).with_metadata("capability", "ADOPT"))
}

/// Nodes of a group that the spec lacks would be deleted right after their adoption.
fn refuse_removed(state: &State, resolved: &Resolved, removed: &[String]) -> Result<()> {
    for orphan in state.orphans.values() {
        let path = &*orphan.group;
        let wanted = resolved.groups.iter().any(|group| *group.path == *path);
        let named = removed
            .iter()
            .any(|named| named == path || path.starts_with(&format!("{named}/")));
        if !wanted && !named {
            let message = format!(
                "platforms show nodes of group {path:?}, which the spec lacks; add the group, or delete them with \
                 `--remove-group {path}`"
            );
            return Err(Error::new(Reason::GroupHasNodes, message).with_metadata("group", path));
        }
    }
    Ok(())
}

/// A spec as old as a store that is behind does not know of what was made since, which its adoption would release.
fn refuse_unnamed(state: &State, resolved: &Resolved) -> Result<()> {
    let mut wrong = Vec::new();
    for (key, orphan) in &state.resource_orphans {
        if orphan.sequence.is_none_or(|it| state.gave_out(it)) {
            continue;
        }
        let platform = &key.platform;
        let (wanted, field, what) = match &key.kind {
            ResourceKind::Infrastructure => {
                let mut wanted = resolved.infrastructure.iter();
                let wanted = wanted.any(|entry| entry.platform == *platform);
                (wanted, "spec.infrastructure", "infrastructure".to_owned())
            }
            ResourceKind::Addon(name) => {
                let mut wanted = resolved.addons.iter();
                let wanted =
                    wanted.any(|addon| addon.name == *name && addon.wanted.platform == *platform);
                (wanted, "spec.addons", format!("addon {name:?}"))
            }
        };
        if !wanted {
            wrong.push(Violation {
                field: field.to_owned(),
                description: format!(
                    "lacks {what}, which {platform} shows and which is newer than this store; add it, and take it out \
                     again once it is adopted if it is to go"
                ),
            });
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(Error::violations(wrong))
    }
}

/// Adds the nodes that a plan adopts to those that its preview names.
pub(super) fn suppose(names: &mut State, plan: &Plan) {
    for op in &plan.ops {
        if let Op::TakeOrphan { node } = op {
            names.nodes.push((**node).clone());
        }
    }
}

/// A warning about deletions, for users who only wanted to keep existing nodes.
pub(super) fn warning(plan: &pb::Plan) -> Option<String> {
    let count = |kind: pb::ActionKind| {
        let actions = plan.actions.iter();
        actions.filter(|action| action.kind() == kind).count()
    };
    let (adopted, removed) = (
        count(pb::ActionKind::Adopt),
        count(pb::ActionKind::Deprovision),
    );
    (adopted > 0 && removed > 0).then(|| {
        format!(
            "{} {} adopted, and {} more than wanted will then be DELETED",
            words::count(adopted, "node"),
            words::are(adopted),
            words::count(removed, "node")
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use drover_cluster::fixture;

    use super::*;

    /// While the cluster is being written, a platform may have begun to list its nodes anew.
    #[test]
    fn nodes_that_are_shown_outlive_a_list_that_began_before() {
        let (clock, interner) = (Clock::new(1_000), Interner::default());
        let orders = fixture::cluster(Uuid::from_u128(1), "orders");
        let node = wire::Node {
            cluster_id: "orders".to_owned(),
            node_id: "i-1".to_owned(),
            ..wire::Node::default()
        };
        let others = Others(vec![("p".into(), "u".to_owned(), vec![node])]);
        let (asked, asks) = mpsc::channel();
        let began = std::thread::scope(|scope| {
            let held = orders.lock();
            scope.spawn(|| {
                asked.send(clock.now()).unwrap();
                others.show(&orders, &interner, &clock);
            });
            let before = asks.recv().unwrap();
            while clock.now() < before + 20 {
                std::thread::yield_now();
            }
            let began = clock.now();
            drop(held);
            began
        });
        let mut state = orders.lock();
        assert_eq!(state.state().foreign.len(), 1);
        let source = Source {
            platform: &"p".into(),
            uid: "u",
        };
        state.snapshot_ended(source, began, 0);
        assert_eq!(state.state().foreign.len(), 1, "it was seen after that");
    }
}
