//! `describe` and `status`: desired state, actual state, current actions and waits.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use drover_manifest::yaml;
use drover_proto::common::v1::Condition;
use drover_proto::orchestrator::v1::{
    Cluster, ClusterPhase, EventSeverity, GetClusterRequest, GetNodeRequest, ListEventsRequest,
    Node, PlanClusterRequest, Platform, PlatformPhase, PlatformStatus,
    plan_cluster_request::Subject,
};
use drover_proto::platform::v1::NodeMaintenanceKind;
use prost_types::Timestamp;

use super::{
    storage,
    target::{self, Kind, Target},
    tree::{activity, reason, since, tree, worst},
};
use crate::{
    cli::DescribeArgs,
    client::{CALL_TIMEOUT, Client},
    failure::{Exit, Failure, Outcome},
    output::{
        self, Format, Table, age, count, json,
        rows::{self, Readiness},
    },
};

pub(crate) async fn run(client: &Client, args: DescribeArgs) -> Outcome {
    let targets = match (Target::several(&args.target), args.target.as_slice()) {
        (Err(_), [name]) if !name.contains('/') => {
            return Err(Failure::usage(format!(
                "describe takes KIND NAME, for example: drover describe cluster {name}"
            )));
        }
        (targets, _) => targets?,
    };
    for (number, target) in targets.iter().enumerate() {
        if number > 0 {
            output::line("")?;
        }
        let name = target.name()?;
        match target.kind {
            Kind::Cluster => cluster(client, name, args.all).await?,
            Kind::Node => node(client, name).await?,
            Kind::Platform => platform(client, name).await?,
            _ => {
                return Err(Failure::usage(
                    "only clusters, nodes and platforms can be described",
                ));
            }
        }
    }
    Ok(Exit::Done)
}

async fn cluster(client: &Client, name: &str, all: bool) -> Outcome<()> {
    let request = GetClusterRequest {
        name: name.to_owned(),
        min_revision: None,
    };
    let answer = client
        .call(client.api.get_cluster(request, CALL_TIMEOUT))
        .await?;
    let cluster = answer.cluster.unwrap_or_default();
    let nodes = client.list_nodes(Some(name.to_owned())).await?.nodes;
    let request = PlanClusterRequest {
        subject: Some(Subject::Name(name.to_owned())),
        min_revision: None,
    };
    let plan = client
        .call(client.api.plan_cluster(request, CALL_TIMEOUT))
        .await?;
    let plan = plan.plan.unwrap_or_default();
    let now = SystemTime::now();
    let text = tree(&cluster, &nodes, all, now).render(true, output::colours());
    output::print_painted(&text)?;
    for table in [
        super::infrastructure::table(&cluster),
        super::addons::table(&cluster),
    ] {
        if !table.rows.is_empty() {
            output::print_painted(&format!("\n{}", table.render(true, output::colours())))?;
        }
    }
    let kept = storage::of_cluster(client, name).await;
    if !kept.is_empty() {
        let table = storage::table(&kept);
        let text = table.render(true, output::colours());
        output::print_painted(&format!("\nStorage that is kept:\n{text}"))?;
    }
    output::print(&activity(&cluster, &nodes, &plan, now))?;
    Ok(output::print(&warnings(client, &cluster, now).await?)?)
}

/// The latest warnings about a cluster: recent failures that are not part of its state.
async fn warnings(client: &Client, cluster: &Cluster, now: SystemTime) -> Outcome<String> {
    /// Maximum age of a warning.
    const RECENT: Duration = Duration::from_secs(600);
    /// Maximum number of warnings.
    const MOST: usize = 5;
    /// Number of events that are searched.
    const LOOK: u64 = 100;
    let last = cluster
        .status
        .as_ref()
        .map(|status| status.last_event_sequence);
    let request = ListEventsRequest {
        cluster: cluster.name.clone(),
        after_sequence: last.unwrap_or(0).saturating_sub(LOOK),
        ..Default::default()
    };
    let call = client.api.list_events(request, CALL_TIMEOUT);
    let Ok(answer) = client.call(call).await else {
        // Everything else has been printed, and the events may no longer be kept.
        return Ok(String::new());
    };
    let events = answer.events;
    let recent = events.iter().filter(|event| {
        let age = age::elapsed(event.event_time.as_ref(), now);
        event.severity() == EventSeverity::Warning && age.is_some_and(|age| age <= RECENT)
    });
    let recent: Vec<String> = recent
        .map(|event| {
            let age = age::since(event.event_time.as_ref(), now);
            let of = event.node.as_ref().or(event.group.as_ref());
            let of = of.map(|of| format!("{of} ")).unwrap_or_default();
            format!(
                "WARNED {of}{age} ago: {}: {}\n",
                event.reason,
                output::one_line(&event.message)
            )
        })
        .collect();
    Ok(recent[recent.len().saturating_sub(MOST)..].concat())
}

fn repair(node: &Node) -> &'static str {
    if node.under_repair {
        "somebody works on it: it is not replaced for being sick"
    } else {
        ""
    }
}

/// What is announced for the machine under a node, and what becomes of the node.
fn maintenance(node: &Node) -> String {
    let Some(announced) = &node.maintenance else {
        return String::new();
    };
    match announced.kind() {
        NodeMaintenanceKind::Unspecified => announced.message.clone(),
        NodeMaintenanceKind::Restart => format!("{} (it stays)", announced.message),
        NodeMaintenanceKind::Stop => format!("{} (it ends the node)", announced.message),
    }
}

async fn node(client: &Client, name: &str) -> Outcome<()> {
    let (cluster, id) = target::node(name)?;
    let request = GetNodeRequest {
        cluster,
        id,
        min_revision: None,
    };
    let answer = client
        .call(client.api.get_node(request, CALL_TIMEOUT))
        .await?;
    let node = answer.node.unwrap_or_default();
    let now = SystemTime::now();
    let kept: Vec<String> = storage::of_cluster(client, &node.cluster)
        .await
        .iter()
        .filter(|one| storage::is_of(one, &node))
        .map(|one| format!("{} on {}", storage::id(one), one.platform))
        .collect();
    let endpoints: Vec<String> = node
        .endpoints
        .iter()
        .map(|(name, address)| format!("{name} {address}"))
        .collect();
    fields(&[
        ("NAME", format!("{}/{}", node.cluster, node.name)),
        ("ID", node.id.clone()),
        ("STATUS", rows::node_state(node.state())),
        ("SINCE", age::since(node.state_time.as_ref(), now)),
        ("REASON", node.reason.clone()),
        ("MESSAGE", node.message.clone()),
        ("REPAIR", repair(&node).to_owned()),
        ("MAINTENANCE", maintenance(&node)),
        ("GROUP", format!("{} ({})", node.group, rows::role(&node))),
        (
            "PLATFORM",
            format!("{} ({})", node.platform, node.platform_uid),
        ),
        ("CLASS", node.node_class.clone()),
        ("VERSION", node.version.clone()),
        ("ENDPOINTS", endpoints.join(", ")),
        ("AGENT", node.agent_address.clone().unwrap_or_default()),
        ("DOMAIN", node.failure_domain.clone()),
        ("PROVIDER ID", node.provider_id.clone()),
        ("KEPT STORAGE", kept.join(", ")),
        (
            "REQUEST",
            format!(
                "{} index {} sequence {}",
                node.request_id, node.request_index, node.request_sequence
            ),
        ),
        ("ATTEMPTS", node.attempts.to_string()),
        (
            "OUTDATED",
            if node.outdated {
                "yes".into()
            } else {
                String::new()
            },
        ),
        ("CREATED", age::rfc3339(node.create_time.as_ref())),
        ("SEEN", age::since(node.observe_time.as_ref(), now)),
    ])
}

async fn platform(client: &Client, name: &str) -> Outcome<()> {
    let platform = client.get_platform(name).await?;
    let status = platform.status.clone().unwrap_or_default();
    let handshake = status.handshake.clone().unwrap_or_default();
    let now = SystemTime::now();
    let capabilities: Vec<String> = handshake
        .capabilities()
        .map(|capability| rows::word(capability.as_str_name(), "CAPABILITY_"))
        .collect();
    let stores: Vec<String> = handshake
        .templates
        .iter()
        .filter(|entry| !entry.addon)
        .map(|entry| {
            if entry.store.is_empty() {
                "(default)".into()
            } else {
                format!("{} {}", entry.store, entry.version_requirement)
            }
        })
        .collect();
    let domains: Vec<&str> = handshake
        .failure_domains
        .iter()
        .map(|domain| domain.name.as_str())
        .collect();
    let classes: Vec<&str> = handshake
        .node_classes
        .iter()
        .map(|class| class.name.as_str())
        .collect();
    let scope: Vec<String> = handshake
        .scope
        .iter()
        .map(|(key, value)| format!("{key} {value}"))
        .collect();
    fields(&[
        ("NAME", platform.name.clone()),
        ("STATUS", rows::platform_status(&platform)),
        ("MESSAGE", status.message.clone()),
        (
            "ENDPOINT",
            platform.spec.clone().unwrap_or_default().endpoint,
        ),
        (
            "KIND",
            format!(
                "{} (driver {}, {})",
                handshake.kind, handshake.driver, handshake.version
            ),
        ),
        ("BACKEND", handshake.backend_version.clone()),
        ("UID", status.uid.clone()),
        ("SCOPE", scope.join(", ")),
        ("NODES", status.node_count.to_string()),
        ("READ", age::since(status.observe_time.as_ref(), now)),
        ("CAPABILITIES", capabilities.join(", ")),
        ("STORES", stores.join(", ")),
        ("ADDONS", rows::addons(&handshake)),
        ("DOMAINS", domains.join(", ")),
        ("CLASSES", classes.join(", ")),
        ("WARNINGS", handshake.warnings.join("; ")),
    ])
}

/// Prints names and values, one per line, without empty values.
fn fields(fields: &[(&str, String)]) -> Outcome<()> {
    let width = fields
        .iter()
        .map(|(name, _)| name.len())
        .max()
        .unwrap_or_default();
    let mut out = String::new();
    for (name, value) in fields.iter().filter(|(_, value)| !value.trim().is_empty()) {
        out.push_str(&format!("{name:width$}   {}\n", output::one_line(value)));
    }
    Ok(output::print(&out)?)
}

/// Prints platforms, clusters that are not ready, and the oldest wait.
pub(crate) async fn status(client: &Client, format: Format) -> Outcome {
    let now = SystemTime::now();
    let platforms = client.list_platforms().await?.platforms;
    let clusters = client.list_clusters(None).await?.clusters;
    if !matches!(format, Format::Table | Format::Wide) {
        return in_trouble(&platforms, &clusters, format);
    }
    let mut states: BTreeMap<String, usize> = BTreeMap::new();
    for platform in &platforms {
        *states.entry(rows::platform_status(platform)).or_default() += 1;
    }
    let states: Vec<String> = states
        .iter()
        .map(|(state, number)| format!("{number} {state}"))
        .collect();
    output::line(&format!(
        "{}: {}",
        count(platforms.len(), "platform"),
        if states.is_empty() {
            "none registered".into()
        } else {
            states.join(", ")
        }
    ))?;
    for platform in &platforms {
        let status = platform.status.clone().unwrap_or_default();
        if status.phase() != PlatformPhase::Ready {
            output::line(&format!(
                "  platform/{}  {}  {}",
                platform.name,
                rows::platform_status(platform),
                output::one_line(&status.message)
            ))?;
        }
    }
    let troubled: Vec<&Cluster> = clusters.iter().filter(|it| !is_ready(it)).collect();
    output::line(&format!(
        "{}: {} ready",
        count(clusters.len(), "cluster"),
        clusters.len() - troubled.len()
    ))?;
    let mut table = Table::new(&["NAME", "STATUS", "READY", "REASON", "SINCE", "MESSAGE"]);
    for cluster in &troubled {
        let trouble = trouble(cluster);
        table.rows.push(vec![
            format!("cluster/{}", cluster.name),
            rows::cluster_status(cluster),
            Readiness::of(cluster).words(),
            reason(trouble.condition),
            since(trouble.condition, cluster.create_time.as_ref(), now),
            trouble.words(),
        ]);
    }
    output::print_painted(&table.render(!table.rows.is_empty(), output::colours()))?;
    if let Some((since, name, message)) = oldest_wait(&troubled) {
        output::line(&format!(
            "oldest wait: cluster/{name} for {}: {}",
            age::since(Some(since), now),
            output::one_line(&message)
        ))?;
    }
    Ok(Exit::Done)
}

pub(super) fn is_ready(cluster: &Cluster) -> bool {
    let status = cluster.status.as_ref();
    status.is_some_and(|it| it.phase() == ClusterPhase::Ready && it.pause.is_none())
}

/// Prints platforms and clusters that are not ready, for programs.
fn in_trouble(platforms: &[Platform], clusters: &[Cluster], format: Format) -> Outcome {
    let phase = |it: &&Platform| it.status.as_ref().map(PlatformStatus::phase);
    let platforms = platforms
        .iter()
        .filter(|it| phase(it) != Some(PlatformPhase::Ready));
    let clusters = clusters.iter().filter(|cluster| !is_ready(cluster));
    if format == Format::Name {
        let platforms = platforms.map(|it| format!("platform/{}\n", it.name));
        let clusters = clusters.map(|it| format!("cluster/{}\n", it.name));
        output::print(&platforms.chain(clusters).collect::<String>())?;
        return Ok(Exit::Done);
    }
    let value = serde_json::json!({
        "platforms": platforms.map(json::value).collect::<Result<Vec<_>, _>>()?,
        "clusters": clusters.map(json::value).collect::<Result<Vec<_>, _>>()?,
    });
    output::print(&match format {
        Format::Yaml => yaml::write(&json::to_yaml(&value)),
        _ => format!("{value:#}\n"),
    })?;
    Ok(Exit::Done)
}

/// What best explains why a cluster is not ready.
struct Trouble<'a> {
    /// Path of the group. Empty for the whole cluster.
    group: &'a str,
    condition: Option<&'a Condition>,
}

impl Trouble<'_> {
    fn words(&self) -> String {
        let message = self.condition.map_or("", |it| it.message.as_str());
        if self.group.is_empty() || message.is_empty() {
            return message.to_owned();
        }
        format!("group/{}: {message}", self.group)
    }
}

/// A condition of the whole cluster often only sums up what one of its groups says.
fn trouble(cluster: &Cluster) -> Trouble<'_> {
    let status = cluster.status.as_ref();
    let whole = status.and_then(|status| worst(&status.conditions));
    let told = |condition: &&Condition| !condition.message.is_empty();
    let groups = status.map_or(&[][..], |status| &status.groups);
    let group = groups.iter().find_map(|group| {
        let condition = worst(&group.conditions).filter(told)?;
        (condition.r#type != "Ready").then_some((group.path.as_str(), condition))
    });
    match group {
        Some((group, condition)) if whole.is_none_or(|whole| whole.message.is_empty()) => Trouble {
            group,
            condition: Some(condition),
        },
        _ => Trouble {
            group: "",
            condition: whole,
        },
    }
}

fn oldest_wait<'a>(clusters: &[&'a Cluster]) -> Option<(&'a Timestamp, &'a str, String)> {
    let waits = clusters.iter().filter_map(|cluster| {
        let trouble = trouble(cluster);
        let condition = trouble.condition?;
        let words = match trouble.words() {
            words if words.is_empty() => condition.reason.clone(),
            words => words,
        };
        let since = condition.last_transition_time.as_ref();
        let since = since.or(cluster.create_time.as_ref())?;
        Some((since, cluster.name.as_str(), words))
    });
    waits.min_by_key(|(time, ..)| (time.seconds, time.nanos))
}

#[cfg(test)]
mod tests {
    use drover_proto::orchestrator::v1::{ClusterStatus, GroupStatus};

    use super::*;

    fn holds(name: &str, message: &str) -> Condition {
        Condition {
            r#type: name.into(),
            status: Some(true),
            reason: name.into(),
            message: message.into(),
            last_transition_time: Some(Timestamp::default()),
        }
    }

    #[test]
    fn the_reason_of_a_cluster_in_trouble_is_that_of_its_group() {
        let group = GroupStatus {
            path: "web".into(),
            conditions: vec![holds("RemediationBlocked", "2 of 3 are sick, more than 1")],
            ..Default::default()
        };
        let cluster = Cluster {
            name: "hello".into(),
            status: Some(ClusterStatus {
                conditions: vec![holds("Remediating", "")],
                groups: vec![group],
                ..Default::default()
            }),
            ..Default::default()
        };
        let found = trouble(&cluster);
        assert_eq!(reason(found.condition), "RemediationBlocked");
        assert_eq!(found.words(), "group/web: 2 of 3 are sick, more than 1");
        let (_, name, words) = oldest_wait(&[&cluster]).unwrap();
        assert_eq!((name, words), ("hello", found.words()));
    }
}
