//! Why clusters and groups are not ready: one word, and since when.

use drover_cluster::ClusterState;
use drover_core::{Millis, Node, NodeState, node::RemovalReason};
use drover_planner::{ConditionKind, State};
use drover_proto::orchestrator::v1 as pb;

use super::{has_all, is_trouble};

/// A reason, and since when it holds. 0 if that is not known.
pub(super) type Wait = (&'static str, Millis);

/// Nodes are on a platform that does not show them.
const UNSEEN: Wait = ("PlatformUnavailable", 0);

/// An active node may still acknowledge what its standbys have not got.
const ALONE: Wait = ("SoleWriter", 0);

/// All nodes are there, and it is not known yet that they are as wanted.
const UNOBSERVED: Wait = ("Unobserved", 0);

/// Why a cluster is not ready.
pub(super) fn of_cluster(inner: &ClusterState, groups: &[pb::GroupStatus]) -> Wait {
    let state = inner.state();
    if let Some(wait) = stopped(inner) {
        return wait;
    }
    let mut conditions = state.conditions.iter();
    if let Some((key, held)) = conditions.find(|(key, _)| is_trouble(key.kind)) {
        return (key.kind.as_str(), held.since);
    }
    if let Some(wait) = deletion(inner) {
        return wait;
    }
    if groups.iter().any(|group| group.unknown > 0) {
        return UNSEEN;
    }
    let any = |_: &str| true;
    if let Some(wait) = update(state, any).or_else(|| replacement(state, any)) {
        return wait;
    }
    if let Some((false, _, _, since)) = crate::resources::show::condition(inner) {
        return ("Infrastructure", since);
    }
    if groups.iter().all(has_all)
        && let Some((false, _, _, since)) = crate::resources::show::addons_condition(inner)
    {
        return ("Addons", since);
    }
    let lacks = groups.iter().any(lacks);
    shrinking(state, any).unwrap_or_else(|| rest(inner, any, lacks))
}

/// Why a group is not ready.
pub(super) fn of_group(inner: &ClusterState, group: &pb::GroupStatus) -> Wait {
    let state = inner.state();
    if let Some(wait) = stopped(inner).or_else(|| deletion(inner)) {
        return wait;
    }
    let own = |path: &str| path == group.path;
    let mut conditions = state.conditions.iter();
    if let Some((key, held)) = conditions.find(|(key, _)| own(&key.group) && is_trouble(key.kind)) {
        return (key.kind.as_str(), held.since);
    }
    if group.unknown > 0 {
        return UNSEEN;
    }
    update(state, own)
        .or_else(|| replacement(state, own))
        .or_else(|| shrinking(state, own))
        .unwrap_or_else(|| rest(inner, own, lacks(group)))
}

/// Nothing is done for the cluster.
fn stopped(inner: &ClusterState) -> Option<Wait> {
    if let Some((_, since)) = inner.unstored() {
        return Some(("StoreUnavailable", *since));
    }
    let pause = inner.desired().value.paused.as_ref()?;
    Some((ConditionKind::Paused.as_str(), time(pause.time_ms)))
}

/// The cluster is being deleted.
fn deletion(inner: &ClusterState) -> Option<Wait> {
    let asked = inner.desired().value.delete_time_ms?;
    Some((ConditionKind::Deleting.as_str(), time(asked)))
}

/// A time as it is stored. 0 if it is not known.
fn time(stored: i64) -> Millis {
    u64::try_from(stored).unwrap_or(0)
}

/// Why nodes are dead or sick: they are being replaced, or that is blocked.
pub(super) fn remediation(state: &State) -> Wait {
    let kind = ConditionKind::RemediationBlocked;
    let blocked = state.conditions.iter().filter(|(key, _)| key.kind == kind);
    match blocked.map(|(_, held)| held.since).min() {
        Some(since) => (kind.as_str(), since),
        None => replacement(state, |_| true).unwrap_or(("Replace", 0)),
    }
}

/// Why groups lack nodes: those of an update go before their successors come.
pub(super) fn lack(inner: &ClusterState, groups: &[pb::GroupStatus]) -> Wait {
    let state = inner.state();
    let lacking = groups.iter().filter(|group| lacks(group));
    let grows = |group: &&pb::GroupStatus| !state.rollouts.contains_key(group.path.as_str());
    let grown: Vec<&str> = lacking.filter(grows).map(|it| it.path.as_str()).collect();
    if grown.is_empty()
        && let Some(wait) = update(state, |_| true)
    {
        return wait;
    }
    growing(inner, |group| grown.contains(&group))
}

/// Whether a group has fewer nodes than wanted.
pub(super) fn lacks(group: &pb::GroupStatus) -> bool {
    group.present < group.size + group.standby
}

/// Nodes are replaced one after the other, because they are outdated or because that was asked for.
pub(super) fn update(state: &State, has: impl Fn(&str) -> bool) -> Option<Wait> {
    let rollouts = state.rollouts.iter().filter(|(group, _)| has(group));
    let started = rollouts.map(|(_, rollout)| rollout.started).min();
    // What was asked for since the last plan begins with the next one. Nobody recorded when it was asked for.
    let mut nodes = state.nodes.iter();
    let since = started.or_else(|| {
        let marked = nodes.any(|node| node.marked && has(&node.group));
        marked.then_some(0)
    })?;
    Some(("Update", since))
}

/// Surplus nodes are removed.
pub(super) fn shrinking(state: &State, has: impl Fn(&str) -> bool) -> Option<Wait> {
    let own = state.nodes.iter().filter(|node| has(&node.group));
    let removals = own.filter_map(|node| node.removal);
    let surplus = removals.filter(|removal| removal.reason == RemovalReason::Surplus);
    Some(("ScaleDown", surplus.map(|removal| removal.since).min()?))
}

/// Whether a node is dead or sick, and is replaced if nothing blocks that.
pub(super) fn is_replaced(node: &Node) -> bool {
    matches!(
        node.removal.map(|removal| removal.reason),
        Some(RemovalReason::Dead | RemovalReason::Sick)
    ) || matches!(node.state, NodeState::Unhealthy | NodeState::Failed)
}

fn replacement(state: &State, has: impl Fn(&str) -> bool) -> Option<Wait> {
    let own = state.nodes.iter().filter(|node| has(&node.group));
    let sick = own.filter(|node| is_replaced(node));
    let began = sick.map(|node| {
        node.removal
            .map_or(node.state_time, |removal| removal.since)
    });
    Some(("Replace", began.min()?))
}

/// What is left: nodes come, or nothing is known to be missing.
fn rest(inner: &ClusterState, has: impl Fn(&str) -> bool, lacks: bool) -> Wait {
    if lacks || coming(inner.state(), &has).is_some() {
        growing(inner, has)
    } else if inner.state().sole.keys().any(|group| has(group)) {
        ALONE
    } else {
        UNOBSERVED
    }
}

/// Nodes are missing: since the first of those that come was intended, or else since the spec was last changed.
fn growing(inner: &ClusterState, has: impl Fn(&str) -> bool) -> Wait {
    let applied = || time(inner.desired().value.apply_time_ms);
    (
        "ScaleUp",
        coming(inner.state(), has).unwrap_or_else(applied),
    )
}

/// When the first of the nodes that stay and are not ready was intended. `None` if there are none.
fn coming(state: &State, has: impl Fn(&str) -> bool) -> Option<Millis> {
    let own = state.nodes.iter().filter(|node| has(&node.group));
    let coming = own.filter(|node| node.state != NodeState::Ready && node.removal.is_none());
    coming.map(|node| node.create_time).min()
}

#[cfg(test)]
mod tests {
    use drover_cluster::{Cluster, fixture};
    use drover_core::node::Removal;
    use drover_planner::{Condition, ConditionKey, Rollout};
    use drover_store::{Desired, Pause, Versioned};

    use super::*;

    fn state(nodes: Vec<Node>) -> State {
        State {
            nodes,
            ..State::default()
        }
    }

    #[test]
    fn an_update_is_as_old_as_its_rollout_and_of_unknown_age_if_it_is_only_asked_for() {
        let mut state = state(vec![fixture::node(0, NodeState::Ready)]);
        let of = |state: &State, group: &'static str| update(state, |path| path == group);
        assert_eq!(of(&state, "db"), None);
        state.nodes[0].marked = true;
        assert_eq!(of(&state, "db"), Some(("Update", 0)));
        assert_eq!(of(&state, "web"), None);
        let rollout = Rollout {
            target: "h".into(),
            started: 5_000,
            progress: 6_000,
            ready: 0,
            left: 1,
            size: 1,
            surplus: 0,
        };
        state.rollouts.insert("db".into(), rollout);
        assert_eq!(of(&state, "db"), Some(("Update", 5_000)));
    }

    #[test]
    fn nodes_that_must_stay_sick_are_not_said_to_be_replaced() {
        let sick = fixture::node(0, NodeState::Unhealthy);
        let mut state = state(vec![sick]);
        assert_eq!(remediation(&state), ("Replace", 1_000));
        let key = ConditionKey {
            group: "db".into(),
            kind: ConditionKind::RemediationBlocked,
        };
        let held = Condition {
            reason: "RemediationBlocked".into(),
            message: "3 of 3 are sick".into(),
            since: 4_000,
        };
        state.conditions.insert(key, held);
        assert_eq!(remediation(&state), ("RemediationBlocked", 4_000));
    }

    #[test]
    fn a_group_that_shrinks_is_not_said_to_grow() {
        let leaving = fixture::with(fixture::node(0, NodeState::Deprovisioning), |node| {
            node.removal = Some(Removal {
                reason: RemovalReason::Surplus,
                since: 3_000,
                retain: false,
                drain: 0,
            });
        });
        let state = state(vec![leaving]);
        assert_eq!(shrinking(&state, |_| true), Some(("ScaleDown", 3_000)));
        assert_eq!(update(&state, |_| true), None);
    }

    #[test]
    fn growth_began_when_the_first_node_that_comes_was_intended() {
        let orders = fixture::cluster(uuid::Uuid::from_u128(1), "orders");
        assert_eq!(growing(&orders.lock(), |_| true), ("ScaleUp", 0));
        fixture::record(&orders, fixture::node(0, NodeState::Ready));
        fixture::record(&orders, fixture::node(1, NodeState::Starting));
        assert_eq!(growing(&orders.lock(), |_| true), ("ScaleUp", 1_000));
    }

    #[test]
    fn a_group_that_has_all_its_nodes_is_not_said_to_grow() {
        let orders = fixture::cluster(uuid::Uuid::from_u128(1), "orders");
        fixture::record(&orders, fixture::node(0, NodeState::Ready));
        let mut db = pb::GroupStatus {
            path: "db".into(),
            size: 1,
            present: 1,
            ready: 1,
            ..pb::GroupStatus::default()
        };
        let of = |db: &pb::GroupStatus| {
            let inner = orders.lock();
            let cluster = of_cluster(&inner, std::slice::from_ref(db));
            assert_eq!(cluster, of_group(&inner, db));
            cluster
        };
        assert_eq!(of(&db), ("Unobserved", 0));
        db.size = 2;
        assert_eq!(of(&db), ("ScaleUp", 0));
        db.size = 1;
        fixture::record(&orders, fixture::node(1, NodeState::Starting));
        assert_eq!(of(&db), ("ScaleUp", 1_000));
    }

    #[test]
    fn what_stops_the_whole_cluster_is_why_its_groups_wait() {
        let paused = Pause {
            time_ms: 5_000,
            ..Pause::default()
        };
        let deleting = Desired {
            delete_time_ms: Some(6_000),
            ..Desired::default()
        };
        let both = Desired {
            paused: Some(paused.clone()),
            ..deleting.clone()
        };
        let paused = Desired {
            paused: Some(paused),
            ..Desired::default()
        };
        let db = pb::GroupStatus {
            path: "db".into(),
            ..pb::GroupStatus::default()
        };
        for (value, wait) in [
            (paused, ("Paused", 5_000)),
            (deleting, ("Deleting", 6_000)),
            (both, ("Paused", 5_000)),
        ] {
            let desired = Versioned { value, revision: 1 };
            let spec = fixture::cluster_state().spec().clone();
            let orders = Cluster::create(uuid::Uuid::from_u128(1), desired, spec);
            let marked = fixture::with(fixture::node(0, NodeState::Ready), |node| {
                node.marked = true;
            });
            fixture::record(&orders, marked);
            let inner = orders.lock();
            assert_eq!(of_group(&inner, &db), wait);
            assert_eq!(of_cluster(&inner, std::slice::from_ref(&db)), wait);
        }
    }
}
