//! A cluster as a tree that collapses its healthy parts, and the activity on the other ones.

use std::time::SystemTime;

use drover_proto::{
    common::v1::Condition,
    orchestrator::v1::{Cluster, ClusterPhase, GroupStatus, Node, NodeState, Plan},
};
use prost_types::Timestamp;

use super::report;
use crate::output::{
    Table, age, count, one_line,
    rows::{self, Readiness},
};

/// Maximum number of names listed for collapsed nodes.
const MAX_NAMES: usize = 6;

/// The author of a change, if known.
fn by(author: &str) -> String {
    if author.is_empty() {
        String::new()
    } else {
        format!(" by {author}")
    }
}

/// The cluster, its groups and its nodes. Healthy parts are collapsed.
pub(super) fn tree(cluster: &Cluster, nodes: &[Node], all: bool, now: SystemTime) -> Table {
    let mut table = Table::new(&["NAME", "STATUS", "READY", "REASON", "SINCE", "MESSAGE"]);
    let status = cluster.status.clone().unwrap_or_default();
    let spec = cluster.spec.clone().unwrap_or_default();
    let trouble = worst(&status.conditions);
    let mut about = Vec::new();
    if let Some(store) = &spec.store {
        about.push(
            format!("{} {}", store.software, store.version)
                .trim()
                .to_owned(),
        );
    }
    about.push(format!(
        "generation {} of {}{}",
        status.observed_generation,
        cluster.generation,
        by(&cluster.author)
    ));
    if let Some(pause) = &status.pause {
        let by = by(&pause.author);
        about.push(if pause.reason.is_empty() {
            format!("paused{by}")
        } else {
            format!("paused{by}: {}", pause.reason)
        });
    }
    about.extend(troubles(&status.conditions));
    table.rows.push(vec![
        format!("cluster/{}", cluster.name),
        rows::cluster_status(cluster),
        Readiness::of(cluster).words(),
        reason(trouble),
        since(trouble, cluster.create_time.as_ref(), now),
        about.join(" · "),
    ]);
    let parts = parts(&status.groups, &cluster.status);
    let last = parts.len().saturating_sub(1);
    for (position, part) in parts.iter().enumerate() {
        let (branch, below) = if position == last {
            ("└─ ", "   ")
        } else {
            ("├─ ", "│  ")
        };
        match part {
            Part::Group(group) => {
                let members: Vec<&Node> = nodes
                    .iter()
                    .filter(|node| node.group == group.path)
                    .collect();
                table.rows.push(group_row(branch, group, &members, now));
                node_rows(&mut table, below, &members, all, now);
            }
            Part::Other(row) => {
                let mut row = row.clone();
                row[0] = format!("{branch}{}", row[0]);
                table.rows.push(row);
            }
        }
    }
    table
}

enum Part<'a> {
    Group(&'a GroupStatus),
    Other(Vec<String>),
}

/// Groups, and infrastructure and addons that are not ready.
fn parts<'a>(
    groups: &'a [GroupStatus],
    status: &Option<drover_proto::orchestrator::v1::ClusterStatus>,
) -> Vec<Part<'a>> {
    use drover_proto::platform::v1::ResourcePhase;
    let mut parts = Vec::new();
    let row = |name: String, phase: ResourcePhase, message: String| {
        let state = rows::word(phase.as_str_name(), "RESOURCE_PHASE_");
        Part::Other(vec![
            name,
            state,
            String::new(),
            String::new(),
            String::new(),
            message,
        ])
    };
    for infrastructure in status.iter().flat_map(|status| &status.infrastructure) {
        let state = infrastructure.state.clone().unwrap_or_default();
        if state.phase() != ResourcePhase::Ready {
            let worst = state
                .resources
                .iter()
                .find(|resource| resource.phase() == state.phase());
            let message = worst
                .map(|r| format!("{} {}: {}", r.kind, r.name, r.message))
                .unwrap_or_default();
            parts.push(row(
                format!("infrastructure ({})", infrastructure.platform),
                state.phase(),
                message,
            ));
        }
    }
    parts.extend(groups.iter().map(Part::Group));
    for addon in status.iter().flat_map(|status| &status.addons) {
        if addon.phase() != ResourcePhase::Ready {
            parts.push(row(
                format!("addon/{}", addon.name),
                addon.phase(),
                addon.message.clone(),
            ));
        }
    }
    parts
}

fn group_row(branch: &str, group: &GroupStatus, nodes: &[&Node], now: SystemTime) -> Vec<String> {
    let trouble = worst(&group.conditions);
    let mut platforms: Vec<&str> = nodes.iter().map(|node| node.platform.as_str()).collect();
    platforms.sort_unstable();
    platforms.dedup();
    let place = if platforms.is_empty() {
        String::new()
    } else {
        format!(" ({})", platforms.join(", "))
    };
    let fine =
        group.ready >= group.size && group.standby_ready >= group.standby && group.unknown == 0;
    let mut about = vec![format!("active {} of {}", group.ready, group.size)];
    if group.standby > 0 || group.standby_ready > 0 {
        about.push(format!(
            "standby {} of {}",
            group.standby_ready, group.standby
        ));
    }
    about.push(format!(
        "up to date {} of {}",
        // During a replacement there are more nodes than desired.
        group.updated.min(group.size + group.standby),
        group.size + group.standby
    ));
    if group.unknown > 0 {
        about.push(format!("unknown {}", group.unknown));
    }
    about.extend(troubles(&group.conditions));
    if let Some(wait) = age::until(group.wait_until_time.as_ref(), now) {
        about.push(format!("waits at most {wait} more"));
    }
    let status = match trouble {
        Some(condition) if condition.r#type != "Ready" => condition.r#type.clone(),
        _ if fine => "Ready".into(),
        _ => "Progressing".into(),
    };
    vec![
        format!("{branch}group/{}{place}", group.path),
        status,
        format!(
            "{} of {}",
            group.ready + group.standby_ready,
            group.size + group.standby
        ),
        reason(trouble),
        since(trouble, None, now),
        about.join(" · "),
    ]
}

fn node_rows(table: &mut Table, indent: &str, nodes: &[&Node], all: bool, now: SystemTime) {
    let is_fine = |node: &&&Node| {
        // A healthy node with a message is listed, so that the message is seen.
        node.state() == NodeState::Ready
            && !node.outdated
            && !node.marked
            && !node.under_repair
            && node.message.is_empty()
    };
    let fine: Vec<&Node> = if all {
        Vec::new()
    } else {
        nodes.iter().filter(is_fine).copied().collect()
    };
    let mut lines: Vec<Vec<String>> = Vec::new();
    if !fine.is_empty() {
        let mut names: Vec<String> = fine
            .iter()
            .take(MAX_NAMES)
            .map(|node| format!("{} {}", node.name, rows::role(node)))
            .collect();
        if fine.len() > MAX_NAMES {
            names.push("…".into());
        }
        let youngest = fine
            .iter()
            .filter_map(|node| node.state_time.as_ref())
            .max_by_key(|time| (time.seconds, time.nanos));
        lines.push(vec![
            count(fine.len(), "node"),
            "Ready".into(),
            String::new(),
            String::new(),
            age::since(youngest, now),
            format!("{}   (--all lists them)", names.join(", ")),
        ]);
    }
    for node in nodes.iter().filter(|node| all || !is_fine(node)) {
        let about = [
            (node.marked, "to be replaced".to_owned()),
            (node.under_repair, "under repair".to_owned()),
            (node.outdated, "outdated".to_owned()),
            (true, node.message.clone()),
            (node.state() == NodeState::Ready, rows::address(node)),
        ];
        let about: Vec<String> = about
            .into_iter()
            .filter(|(holds, words)| *holds && !words.is_empty())
            .map(|(_, words)| words)
            .collect();
        let message = about.join(" · ");
        lines.push(vec![
            format!("node/{} {}", node.name, rows::role(node)),
            rows::node_state(node.state()),
            String::new(),
            node.reason.clone(),
            age::since(node.state_time.as_ref(), now),
            message,
        ]);
    }
    let last = lines.len().saturating_sub(1);
    for (position, mut line) in lines.into_iter().enumerate() {
        let branch = if position == last {
            "└─ "
        } else {
            "├─ "
        };
        line[0] = format!("{indent}{branch}{}", line[0]);
        table.rows.push(line);
    }
}

/// Conditions that indicate trouble when true; all others indicate trouble when false.
const BAD_WHEN_TRUE: [&str; 22] = [
    // Before the condition that it explains.
    "DeletionBlocked",
    "Deleting",
    "Paused",
    "StoreBehind",
    "ForeignNodes",
    "StoreUnavailable",
    "Failed",
    "Rejected",
    "PlatformUnavailable",
    "NoCapacity",
    // It ends by a command that its message names.
    "HostLost",
    "RemediationBlocked",
    "UpdateBlocked",
    "PromotionFailed",
    "ProbeUnreachable",
    "Orphans",
    "Impaired",
    "MaintenanceScheduled",
    "Draining",
    "Remediating",
    "ScalingUp",
    "ScalingDown",
];

/// The condition that best explains the trouble.
pub(super) fn worst(conditions: &[Condition]) -> Option<&Condition> {
    let named = |name: &&str| {
        conditions
            .iter()
            .find(|c| c.r#type == **name && c.status == Some(true))
    };
    BAD_WHEN_TRUE.iter().find_map(named).or_else(|| {
        conditions
            .iter()
            .find(|c| !BAD_WHEN_TRUE.contains(&c.r#type.as_str()) && c.status != Some(true))
    })
}

/// The messages of the worst condition and of all other troubles. A condition that only reports progress has no
/// message.
fn troubles(conditions: &[Condition]) -> Vec<String> {
    let worst = worst(conditions);
    let first = worst.map(|condition| condition.message.clone());
    let others = conditions.iter().filter(|condition| {
        let holds = condition.status == Some(true);
        let is_other = worst.is_none_or(|worst| worst.r#type != condition.r#type);
        holds && is_other && BAD_WHEN_TRUE.contains(&condition.r#type.as_str())
    });
    let others = others.filter(|condition| !condition.message.is_empty());
    let others = others.map(|condition| format!("{}: {}", condition.r#type, condition.message));
    let first = first.into_iter().filter(|message| !message.is_empty());
    first.chain(others).collect()
}

pub(super) fn reason(condition: Option<&Condition>) -> String {
    condition
        .map(|condition| condition.reason.clone())
        .unwrap_or_default()
}

pub(super) fn since(
    condition: Option<&Condition>,
    otherwise: Option<&Timestamp>,
    now: SystemTime,
) -> String {
    let time = condition
        .and_then(|condition| condition.last_transition_time.as_ref())
        .or(otherwise);
    age::since(time, now)
}

/// Current and next actions.
pub(super) fn activity(cluster: &Cluster, nodes: &[Node], plan: &Plan, now: SystemTime) -> String {
    let mut out = String::new();
    for action in &plan.actions {
        let why = if action.message.is_empty() {
            &action.reason
        } else {
            &action.message
        };
        let doing = format!("DOING  {}: {why}", report::action(action));
        out.push_str(&(one_line(&doing) + "\n"));
    }
    for note in report::waits(plan) {
        let who = note.node.as_deref().unwrap_or(if note.group.is_empty() {
            "the cluster"
        } else {
            &note.group
        });
        let until = age::until(note.wait_until_time.as_ref(), now).map_or_else(
            || "until something changes".to_owned(),
            |wait| format!("for at most {wait}"),
        );
        let why = if note.message.is_empty() {
            note.reason.clone()
        } else {
            format!("{}: {}", note.reason, note.message)
        };
        out.push_str(&(one_line(&format!("WAITS  {who} {until}: {why}")) + "\n"));
    }
    out.push_str(&coming(nodes, now));
    let ready = cluster
        .status
        .as_ref()
        .is_some_and(|status| status.phase() == ClusterPhase::Ready);
    if out.is_empty() && !ready {
        out.push_str("Nothing to do by itself now: drover events shows what happened\n");
    }
    out
}

/// Nodes that are starting, for which nothing can be done but wait.
fn coming(nodes: &[Node], now: SystemTime) -> String {
    let on_the_way = nodes.iter().filter(|node| {
        matches!(
            node.state(),
            NodeState::Requested | NodeState::Provisioning | NodeState::Starting
        )
    });
    let coming: Vec<&Node> = on_the_way.collect();
    let Some(first) = coming
        .iter()
        .filter_map(|node| node.state_time.as_ref())
        .min_by_key(|time| (time.seconds, time.nanos))
    else {
        return String::new();
    };
    let mut names: Vec<&str> = coming
        .iter()
        .take(MAX_NAMES)
        .map(|node| node.name.as_str())
        .collect();
    if coming.len() > MAX_NAMES {
        names.push("…");
    }
    format!(
        "COMES  {}: not Ready yet, the first for {}\n",
        names.join(", "),
        age::since(Some(first), now)
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use drover_proto::{
        orchestrator::v1::{ClusterSpec, ClusterStatus, StoreSpec},
        platform::v1::NodeRole,
    };

    use super::*;

    fn ago(now: SystemTime, seconds: u64) -> Option<Timestamp> {
        Some((now - Duration::from_secs(seconds)).into())
    }

    #[test]
    fn a_tree_hides_what_is_fine_and_expands_what_is_not() {
        let now = SystemTime::now();
        let day = 86_400;
        let condition = Condition {
            r#type: "Remediating".into(),
            status: Some(true),
            reason: "ProbeFailed".into(),
            last_transition_time: ago(now, 41),
            ..Default::default()
        };
        let group = GroupStatus {
            path: "db".into(),
            size: 1,
            ready: 1,
            standby: 2,
            standby_ready: 1,
            updated: 3,
            conditions: vec![Condition {
                reason: String::new(),
                ..condition.clone()
            }],
            ..Default::default()
        };
        let node = |name: &str, role: NodeRole, state: NodeState, seconds| Node {
            name: name.into(),
            cluster: "orders".into(),
            group: "db".into(),
            platform: "local".into(),
            role: role.into(),
            state: state.into(),
            state_time: ago(now, seconds),
            ..Default::default()
        };
        let mut sick = node("db-2", NodeRole::Standby, NodeState::Unhealthy, 41);
        sick.reason = "ProbeFailed".into();
        sick.message = "tcp client 127.0.0.1:41007: connection refused, 3 of 3".into();
        let nodes = [
            node("db-0", NodeRole::Active, NodeState::Ready, 3 * day),
            node("db-1", NodeRole::Standby, NodeState::Ready, 3 * day),
            sick,
        ];
        let cluster = Cluster {
            name: "orders".into(),
            generation: 8,
            spec: Some(ClusterSpec {
                store: Some(StoreSpec {
                    software: "postgresql".into(),
                    version: "15.8".into(),
                }),
                ..Default::default()
            }),
            status: Some(ClusterStatus {
                observed_generation: 8,
                conditions: vec![condition],
                groups: vec![group],
                phase: ClusterPhase::Degraded.into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let expected = "\
NAME                      STATUS        READY    REASON        SINCE   MESSAGE
cluster/orders            Remediating   2 of 3   ProbeFailed   41s     postgresql 15.8 · generation 8 of 8
└─ group/db (local)       Remediating   2 of 3                 41s     active 1 of 1 · standby 1 of 2 · up to date 3 of 3
   ├─ 2 nodes             Ready                                3d      db-0 active, db-1 standby   (--all lists them)
   └─ node/db-2 standby   Unhealthy              ProbeFailed   41s     tcp client 127.0.0.1:41007: connection refused, 3 of 3
";
        assert_eq!(
            tree(&cluster, &nodes, false, now).render(true, false),
            expected
        );
        assert_eq!(
            tree(&cluster, &nodes, true, now).rows.len(),
            5,
            "--all lists every node"
        );
        let activity = activity(&cluster, &nodes, &Plan::default(), now);
        assert!(activity.starts_with("Nothing to do"), "{activity}");
    }

    #[test]
    fn what_a_ready_node_says_is_shown() {
        let now = SystemTime::now();
        let node = |name: &str, message: &str| Node {
            name: name.into(),
            role: NodeRole::Active.into(),
            state: NodeState::Ready.into(),
            message: message.into(),
            agent_address: Some("tcp://127.0.0.1:1".into()),
            ..Default::default()
        };
        let mut marked = node("db-2", "");
        (marked.marked, marked.under_repair) = (true, true);
        let nodes = [
            node("db-0", ""),
            node("db-1", "follows 4 MB behind"),
            marked,
        ];
        let mut table = Table::new(&["NAME", "STATUS", "READY", "REASON", "SINCE", "MESSAGE"]);
        let nodes: Vec<&Node> = nodes.iter().collect();
        node_rows(&mut table, "", &nodes, false, now);
        let messages: Vec<&str> = table.rows.iter().map(|row| row[5].as_str()).collect();
        assert_eq!(
            messages,
            [
                "db-0 active   (--all lists them)",
                "follows 4 MB behind · 127.0.0.1:1",
                "to be replaced · under repair · 127.0.0.1:1"
            ]
        );
    }

    #[test]
    fn nodes_on_their_way_are_what_is_waited_for() {
        let now = SystemTime::now();
        let node = |name: &str, state: NodeState, seconds| Node {
            name: name.into(),
            state: state.into(),
            state_time: ago(now, seconds),
            ..Default::default()
        };
        let nodes = [
            node("db-0", NodeState::Ready, 90),
            node("db-1", NodeState::Starting, 4),
            node("db-2", NodeState::Requested, 9),
        ];
        assert_eq!(
            activity(&Cluster::default(), &nodes, &Plan::default(), now),
            "COMES  db-1, db-2: not Ready yet, the first for 9s\n"
        );
    }
}
