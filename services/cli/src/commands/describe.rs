//! `describe` and `status`: what is wanted, what is there, what is being done and what is waited for.

use std::{collections::BTreeMap, time::SystemTime};

use drover_proto::{
    common::v1::Condition,
    orchestrator::v1::{
        Cluster, ClusterPhase, GetClusterRequest, GetNodeRequest, GroupStatus, Node, NodeState, Plan, PlanActivity,
        PlanClusterRequest, PlatformPhase, plan_cluster_request::Subject,
    },
};
use prost_types::Timestamp;

use super::{
    report,
    target::{self, Kind, Target},
};
use crate::{
    cli::DescribeArgs,
    client::{CALL_TIMEOUT, Client},
    failure::{Exit, Failure, Outcome},
    output::{
        self, Table, age, count,
        rows::{self, Readiness},
    },
};

/// Names that are listed where nodes are summed up.
const MAX_NAMES: usize = 6;

pub(crate) async fn run(client: &Client, args: DescribeArgs) -> Outcome {
    let target = Target::parse(&args.target)?;
    let name = target.name()?;
    match target.kind {
        Kind::Cluster => cluster(client, name, args.all).await?,
        Kind::Node => node(client, name).await?,
        Kind::Platform => platform(client, name).await?,
        _ => return Err(Failure::usage("only clusters, nodes and platforms can be described")),
    }
    Ok(Exit::Done)
}

async fn cluster(client: &Client, name: &str, all: bool) -> Outcome<()> {
    let request = GetClusterRequest { name: name.to_owned(), min_revision: None };
    let answer = client.call(client.api.get_cluster(request, CALL_TIMEOUT)).await?;
    let cluster = answer.cluster.unwrap_or_default();
    let nodes = client.list_nodes(Some(name.to_owned())).await?.nodes;
    let request = PlanClusterRequest { subject: Some(Subject::Name(name.to_owned())), min_revision: None };
    let plan = client.call(client.api.plan_cluster(request, CALL_TIMEOUT)).await?;
    let plan = plan.plan.unwrap_or_default();
    let now = SystemTime::now();
    let text = tree(&cluster, &nodes, all, now).render(true, output::colours());
    output::print(&text)?;
    output::print(&activity(&cluster, &plan, now))?;
    Ok(())
}

/// The cluster, its groups and its nodes. What is fine is summed up.
pub(crate) fn tree(cluster: &Cluster, nodes: &[Node], all: bool, now: SystemTime) -> Table {
    let mut table = Table::new(&["NAME", "STATUS", "READY", "REASON", "SINCE", "MESSAGE"]);
    let status = cluster.status.clone().unwrap_or_default();
    let spec = cluster.spec.clone().unwrap_or_default();
    let trouble = worst(&status.conditions);
    let mut about = Vec::new();
    if let Some(store) = &spec.store {
        about.push(format!("{} {}", store.software, store.version).trim().to_owned());
    }
    about.push(format!("generation {} of {}", status.observed_generation, cluster.generation));
    if let Some(pause) = &status.pause {
        about.push(format!("paused: {}", pause.reason));
    }
    if let Some(condition) = trouble
        && !condition.message.is_empty()
    {
        about.push(condition.message.clone());
    }
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
        let (branch, below) = if position == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        match part {
            Part::Group(group) => {
                let members: Vec<&Node> = nodes.iter().filter(|node| node.group == group.path).collect();
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
        Part::Other(vec![name, state, String::new(), String::new(), String::new(), message])
    };
    for infrastructure in status.iter().flat_map(|status| &status.infrastructure) {
        let state = infrastructure.state.clone().unwrap_or_default();
        if state.phase() != ResourcePhase::Ready {
            let worst = state.resources.iter().find(|resource| resource.phase() == state.phase());
            let message = worst.map(|r| format!("{} {}: {}", r.kind, r.name, r.message)).unwrap_or_default();
            parts.push(row(format!("infrastructure ({})", infrastructure.platform), state.phase(), message));
        }
    }
    parts.extend(groups.iter().map(Part::Group));
    for addon in status.iter().flat_map(|status| &status.addons) {
        if addon.phase() != ResourcePhase::Ready {
            parts.push(row(format!("addon/{}", addon.name), addon.phase(), addon.message.clone()));
        }
    }
    parts
}

fn group_row(branch: &str, group: &GroupStatus, nodes: &[&Node], now: SystemTime) -> Vec<String> {
    let trouble = worst(&group.conditions);
    let mut platforms: Vec<&str> = nodes.iter().map(|node| node.platform.as_str()).collect();
    platforms.sort_unstable();
    platforms.dedup();
    let place = if platforms.is_empty() { String::new() } else { format!(" ({})", platforms.join(", ")) };
    let fine = group.ready >= group.size && group.standby_ready >= group.standby && group.unknown == 0;
    let mut about = vec![format!("active {} of {}", group.ready, group.size)];
    if group.standby > 0 || group.standby_ready > 0 {
        about.push(format!("standby {} of {}", group.standby_ready, group.standby));
    }
    about.push(format!("up to date {} of {}", group.updated, group.size + group.standby));
    if group.unknown > 0 {
        about.push(format!("unknown {}", group.unknown));
    }
    if let Some(condition) = trouble
        && !condition.message.is_empty()
    {
        about.push(condition.message.clone());
    }
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
        format!("{} of {}", group.ready + group.standby_ready, group.size + group.standby),
        reason(trouble),
        since(trouble, None, now),
        about.join(" · "),
    ]
}

fn node_rows(table: &mut Table, indent: &str, nodes: &[&Node], all: bool, now: SystemTime) {
    let is_fine = |node: &&&Node| node.state() == NodeState::Ready && !node.outdated && !node.marked;
    let fine: Vec<&Node> = if all { Vec::new() } else { nodes.iter().filter(is_fine).copied().collect() };
    let mut lines: Vec<Vec<String>> = Vec::new();
    if !fine.is_empty() {
        let mut names: Vec<String> =
            fine.iter().take(MAX_NAMES).map(|node| format!("{} {}", node.name, rows::role(node))).collect();
        if fine.len() > MAX_NAMES {
            names.push("…".into());
        }
        let youngest = fine.iter().filter_map(|node| node.state_time.as_ref()).max_by_key(|time| (time.seconds, time.nanos));
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
        let mut message = node.message.clone();
        if message.is_empty() && node.state() == NodeState::Ready {
            message = rows::address(node);
        }
        if node.outdated {
            message = format!("outdated {message}").trim_end().to_owned();
        }
        if node.marked {
            message = format!("to be replaced {message}").trim_end().to_owned();
        }
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
        let branch = if position == last { "└─ " } else { "├─ " };
        line[0] = format!("{indent}{branch}{}", line[0]);
        table.rows.push(line);
    }
}

/// Conditions that are troubles when they hold; the others are troubles when they do not.
const BAD_WHEN_TRUE: [&str; 15] = [
    "Deleting",
    "Paused",
    "StoreBehind",
    "ForeignNodes",
    "DeletionBlocked",
    "Failed",
    "Rejected",
    "PlatformUnavailable",
    "NoCapacity",
    "RemediationBlocked",
    "UpdateBlocked",
    "ProbeUnreachable",
    "Remediating",
    "ScalingUp",
    "ScalingDown",
];

/// The condition that says most about what is wrong.
fn worst(conditions: &[Condition]) -> Option<&Condition> {
    let named = |name: &&str| conditions.iter().find(|c| c.r#type == **name && c.status == Some(true));
    BAD_WHEN_TRUE.iter().find_map(|name| named(&name)).or_else(|| {
        conditions.iter().find(|c| !BAD_WHEN_TRUE.contains(&c.r#type.as_str()) && c.status != Some(true))
    })
}

fn reason(condition: Option<&Condition>) -> String {
    condition.map(|condition| condition.reason.clone()).unwrap_or_default()
}

fn since(condition: Option<&Condition>, otherwise: Option<&Timestamp>, now: SystemTime) -> String {
    let time = condition.and_then(|condition| condition.last_transition_time.as_ref()).or(otherwise);
    age::since(time, now)
}

/// What is being done, and what comes next.
fn activity(cluster: &Cluster, plan: &Plan, now: SystemTime) -> String {
    let mut out = String::new();
    for action in &plan.actions {
        let why = if action.message.is_empty() { &action.reason } else { &action.message };
        out.push_str(&format!("DOING  {}: {why}\n", report::action(action)));
    }
    for note in plan.report.iter().filter(|note| note.activity() == PlanActivity::Waiting) {
        let who = note.node.as_deref().unwrap_or(if note.group.is_empty() { "the cluster" } else { &note.group });
        let until = age::until(note.wait_until_time.as_ref(), now)
            .map_or_else(|| "until something changes".to_owned(), |wait| format!("for at most {wait}"));
        let why = if note.message.is_empty() { note.reason.clone() } else { format!("{}: {}", note.reason, note.message) };
        out.push_str(&format!("WAITS  {who} {until}: {why}\n"));
    }
    let ready = cluster.status.as_ref().is_some_and(|status| status.phase() == ClusterPhase::Ready);
    if out.is_empty() && !ready {
        out.push_str("Nothing to do by itself now: drover events shows what happened\n");
    }
    out
}

async fn node(client: &Client, name: &str) -> Outcome<()> {
    let (cluster, id) = target::node(name)?;
    let request = GetNodeRequest { cluster, id, min_revision: None };
    let answer = client.call(client.api.get_node(request, CALL_TIMEOUT)).await?;
    let node = answer.node.unwrap_or_default();
    let now = SystemTime::now();
    let endpoints: Vec<String> = node.endpoints.iter().map(|(name, address)| format!("{name} {address}")).collect();
    fields(&[
        ("NAME", format!("{}/{}", node.cluster, node.name)),
        ("ID", node.id.clone()),
        ("STATUS", rows::node_state(node.state())),
        ("SINCE", age::since(node.state_time.as_ref(), now)),
        ("REASON", node.reason.clone()),
        ("MESSAGE", node.message.clone()),
        ("GROUP", format!("{} ({})", node.group, rows::role(&node))),
        ("PLATFORM", format!("{} ({})", node.platform, node.platform_uid)),
        ("CLASS", node.node_class.clone()),
        ("VERSION", node.version.clone()),
        ("ENDPOINTS", endpoints.join(", ")),
        ("AGENT", node.agent_address.clone().unwrap_or_default()),
        ("DOMAIN", node.failure_domain.clone()),
        ("PROVIDER ID", node.provider_id.clone()),
        ("REQUEST", format!("{} index {} sequence {}", node.request_id, node.request_index, node.request_sequence)),
        ("ATTEMPTS", node.attempts.to_string()),
        ("OUTDATED", if node.outdated { "yes".into() } else { String::new() }),
        ("CREATED", age::rfc3339(node.create_time.as_ref())),
        ("SEEN", age::since(node.observe_time.as_ref(), now)),
    ])
}

async fn platform(client: &Client, name: &str) -> Outcome<()> {
    let platform = client.get_platform(name).await?;
    let status = platform.status.clone().unwrap_or_default();
    let handshake = status.handshake.clone().unwrap_or_default();
    let now = SystemTime::now();
    let capabilities: Vec<String> =
        handshake.capabilities().map(|capability| rows::word(capability.as_str_name(), "CAPABILITY_")).collect();
    let stores: Vec<String> = handshake
        .templates
        .iter()
        .map(|entry| if entry.store.is_empty() { "(default)".into() } else { format!("{} {}", entry.store, entry.version_requirement) })
        .collect();
    let domains: Vec<&str> = handshake.failure_domains.iter().map(|domain| domain.name.as_str()).collect();
    let classes: Vec<&str> = handshake.node_classes.iter().map(|class| class.name.as_str()).collect();
    let scope: Vec<String> = handshake.scope.iter().map(|(key, value)| format!("{key} {value}")).collect();
    fields(&[
        ("NAME", platform.name.clone()),
        ("STATUS", rows::platform_status(&platform)),
        ("MESSAGE", status.message.clone()),
        ("ENDPOINT", platform.spec.clone().unwrap_or_default().endpoint),
        ("KIND", format!("{} (driver {}, {})", handshake.kind, handshake.driver, handshake.version)),
        ("BACKEND", handshake.backend_version.clone()),
        ("UID", status.uid.clone()),
        ("SCOPE", scope.join(", ")),
        ("NODES", status.node_count.to_string()),
        ("READ", age::since(status.observe_time.as_ref(), now)),
        ("CAPABILITIES", capabilities.join(", ")),
        ("STORES", stores.join(", ")),
        ("DOMAINS", domains.join(", ")),
        ("CLASSES", classes.join(", ")),
        ("WARNINGS", handshake.warnings.join("; ")),
    ])
}

/// Name and value, one a line; what is empty is left out.
fn fields(fields: &[(&str, String)]) -> Outcome<()> {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let mut out = String::new();
    for (name, value) in fields.iter().filter(|(_, value)| !value.trim().is_empty()) {
        out.push_str(&format!("{name:width$}   {}\n", value.replace('\n', " ")));
    }
    Ok(output::print(&out)?)
}

/// Platforms, clusters that are not ready, the oldest wait.
pub(crate) async fn status(client: &Client) -> Outcome {
    let now = SystemTime::now();
    let platforms = client.list_platforms().await?.platforms;
    let clusters = client.list_clusters(None).await?.clusters;
    let mut states: BTreeMap<String, usize> = BTreeMap::new();
    for platform in &platforms {
        *states.entry(rows::platform_status(platform)).or_default() += 1;
    }
    let states: Vec<String> = states.iter().map(|(state, number)| format!("{number} {state}")).collect();
    output::line(&format!("{}: {}", count(platforms.len(), "platform"), if states.is_empty() { "none registered".into() } else { states.join(", ") }))?;
    for platform in &platforms {
        let status = platform.status.clone().unwrap_or_default();
        if status.phase() != PlatformPhase::Ready {
            output::line(&format!("  platform/{}  {}  {}", platform.name, rows::platform_status(platform), status.message))?;
        }
    }
    let ready = |cluster: &&Cluster| cluster.status.as_ref().is_some_and(|s| s.phase() == ClusterPhase::Ready && s.pause.is_none());
    let troubled: Vec<&Cluster> = clusters.iter().filter(|cluster| !ready(cluster)).collect();
    output::line(&format!("{}: {} ready", count(clusters.len(), "cluster"), clusters.len() - troubled.len()))?;
    let mut table = Table::new(&["NAME", "STATUS", "READY", "REASON", "SINCE", "MESSAGE"]);
    for cluster in &troubled {
        let conditions = cluster.status.clone().unwrap_or_default().conditions;
        let trouble = worst(&conditions);
        table.rows.push(vec![
            format!("cluster/{}", cluster.name),
            rows::cluster_status(cluster),
            Readiness::of(cluster).words(),
            reason(trouble),
            since(trouble, cluster.create_time.as_ref(), now),
            trouble.map(|condition| condition.message.clone()).unwrap_or_default(),
        ]);
    }
    output::print(&table.render(!table.rows.is_empty(), output::colours()))?;
    if let Some((since, name, message)) = oldest_wait(&troubled) {
        output::line(&format!("oldest wait: cluster/{name} for {}: {message}", age::since(Some(since), now)))?;
    }
    Ok(Exit::Done)
}

fn oldest_wait<'a>(clusters: &[&'a Cluster]) -> Option<(&'a Timestamp, &'a str, String)> {
    let waits = clusters.iter().filter_map(|cluster| {
        let condition = worst(&cluster.status.as_ref()?.conditions)?;
        let text = if condition.message.is_empty() { condition.reason.clone() } else { condition.message.clone() };
        Some((condition.last_transition_time.as_ref()?, cluster.name.as_str(), text))
    });
    waits.min_by_key(|(time, ..)| (time.seconds, time.nanos))
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
            conditions: vec![Condition { reason: String::new(), ..condition.clone() }],
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
                store: Some(StoreSpec { software: "postgresql".into(), version: "15.8".into() }),
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
        assert_eq!(tree(&cluster, &nodes, false, now).render(true, false), expected);
        assert_eq!(tree(&cluster, &nodes, true, now).rows.len(), 5, "--all lists every node");
    }
}
