//! Plans as text: what is done to each node, now and later, and what waits.

use drover_manifest::{
    encode,
    path::{index, join},
    yaml::{self, Yaml},
};
use drover_proto::orchestrator::v1::{
    Action, ActionKind, Cluster, GroupOutlook, GroupRenewal, GroupSpec, NodeRenewal, Plan,
    PlanActivity, PlanNote, StorageRetention,
};

use crate::output::{age, count, one_line, rows};

/// Limits for the replacement of nodes in a group: `db: at most 4 nodes, at least 3 available, at most 51m`.
pub(crate) fn budget(renewal: &GroupRenewal) -> String {
    let most = renewal.size + renewal.max_surge;
    let least = renewal.size.saturating_sub(renewal.max_unavailable);
    let mut words = format!(
        "{}: at most {}, at least {least} available",
        renewal.group,
        count(most as usize, "node"),
    );
    let longest = renewal
        .longest_duration
        .and_then(|duration| std::time::Duration::try_from(duration).ok());
    if let Some(longest) = longest {
        words.push_str(&format!(", {} at most if none fails", age::short(longest)));
    }
    words
}

/// Desired nodes of a cluster, and their platforms: `3 nodes on local`.
pub(crate) fn wanted(cluster: &Cluster) -> String {
    fn nodes(groups: &[GroupSpec]) -> usize {
        let one = |group: &GroupSpec| match group.groups.as_slice() {
            [] => group.size.unwrap_or(1) as usize + group.standby.unwrap_or(0) as usize,
            inner => nodes(inner),
        };
        groups.iter().map(one).sum()
    }
    let spec = cluster.spec.clone().unwrap_or_default();
    let platforms = rows::platforms(&spec);
    let nodes = count(nodes(&spec.groups), "node");
    if platforms.is_empty() {
        nodes
    } else {
        format!("{nodes} on {}", platforms.join(", "))
    }
}

/// The differences between two specs, by field: path, before, after.
pub(crate) fn differences(
    before: &Cluster,
    after: &Cluster,
) -> anyhow::Result<Vec<(String, String, String)>> {
    let (mut old, mut new) = (Vec::new(), Vec::new());
    flatten("", &encode::cluster(before)?, &mut old);
    flatten("", &encode::cluster(after)?, &mut new);
    let value = |fields: &[(String, String)], path: &str| {
        fields
            .iter()
            .find(|(other, _)| other == path)
            .map(|(_, value)| value.clone())
    };
    let mut out: Vec<(String, String, String)> = Vec::new();
    for (path, before) in &old {
        match value(&new, path) {
            Some(after) if after == *before => {}
            after => out.push((
                path.clone(),
                before.clone(),
                after.unwrap_or_else(|| "none".into()),
            )),
        }
    }
    for (path, after) in &new {
        if value(&old, path).is_none() {
            out.push((path.clone(), "none".into(), after.clone()));
        }
    }
    Ok(out)
}

fn flatten(path: &str, value: &Yaml, out: &mut Vec<(String, String)>) {
    match value {
        Yaml::Map(entries) if !entries.is_empty() => {
            for (key, value) in entries {
                flatten(&join(path, key), value, out);
            }
        }
        Yaml::List(items)
            if items
                .iter()
                .any(|item| matches!(item, Yaml::Map(_) | Yaml::List(_))) =>
        {
            for (position, item) in items.iter().enumerate() {
                flatten(&index(path, position), item, out);
            }
        }
        other => out.push((path.to_owned(), yaml::write(other).trim_end().to_owned())),
    }
}

/// Symbol and verb of an action.
fn symbol(action: &Action) -> (&'static str, &'static str) {
    let replacing = action.replaces;
    match action.kind() {
        ActionKind::Provision if replacing => ("-/+", "create"),
        ActionKind::Provision => ("+", "create"),
        ActionKind::Deprovision if replacing => ("-/+", "replace"),
        ActionKind::Deprovision => ("-", "delete"),
        ActionKind::Drain => ("~", "drain"),
        ActionKind::Promote => ("~", "promote"),
        ActionKind::Adopt => ("+", "adopt"),
        ActionKind::Forget => ("~", "forget"),
        ActionKind::CloseRequest => ("~", "close the request of"),
        ActionKind::EnsureInfrastructure => ("+", "infrastructure"),
        ActionKind::ReleaseInfrastructure => ("-", "infrastructure"),
        ActionKind::EnsureAddon => ("+", "addon"),
        ActionKind::RemoveAddon => ("-", "addon"),
        ActionKind::Unspecified => ("~", "act on"),
    }
}

/// Subject of an action, for people.
pub(crate) fn subject(action: &Action) -> String {
    match (&action.node_name, &action.node) {
        (Some(name), _) => name.clone(),
        (None, Some(id)) => id.clone(),
        (None, None) if action.count > 0 && !action.group.is_empty() => {
            format!(
                "{} in {}",
                count(action.count as usize, "node"),
                action.group
            )
        }
        (None, None) if action.group.is_empty() => "cluster".into(),
        (None, None) => action.group.clone(),
    }
}

/// Summary of an action: `create 3 nodes in web on local`.
pub(crate) fn action(action: &Action) -> String {
    let (_, verb) = symbol(action);
    let mut out = format!("{verb} {}", subject(action));
    if !action.platform.is_empty() {
        out.push_str(&format!(" on {}", action.platform));
    }
    out
}

/// All lines of a plan: changed fields, actions, waits.
pub(crate) fn plan(
    plan: &Plan,
    differences: &[(String, String, String)],
    now: std::time::SystemTime,
) -> String {
    let mut lines: Vec<[String; 4]> = Vec::new();
    for (path, before, after) in differences {
        lines.push([
            "~".into(),
            path.clone(),
            format!("{before} -> {after}"),
            String::new(),
        ]);
    }
    for item in &plan.actions {
        let (symbol, verb) = symbol(item);
        let mut why = item.message.clone();
        if why.is_empty() {
            why = match item.reason.as_str() {
                "ScaleDown" => "size lowered".into(),
                "Delete" => "no longer wanted".into(),
                other => other.into(),
            };
        }
        why.push_str(data(item.storage()));
        let place = if item.platform.is_empty() {
            verb.to_owned()
        } else {
            format!("{verb} on {}", item.platform)
        };
        lines.push([symbol.into(), subject(item), place, why]);
    }
    for renewal in &plan.renewals {
        renewed(plan, renewal, &mut lines);
    }
    for outlook in &plan.outlooks {
        later(plan, outlook, &mut lines);
    }
    for note in waits(plan)
        // Already listed with the node, in the order of replacement.
        .filter(|note| !(note.reason == "Budget" && is_renewed(plan, note.node.as_deref())))
        .filter(|note| !is_removed_later(plan, note.node.as_deref()))
    {
        let who = note.node.clone().unwrap_or_else(|| {
            if note.group.is_empty() {
                "cluster".into()
            } else {
                note.group.clone()
            }
        });
        let until = age::until(note.wait_until_time.as_ref(), now)
            .map(|wait| format!(", at most {wait} more"))
            .unwrap_or_default();
        let why = if note.message.is_empty() {
            String::new()
        } else {
            format!(": {}", note.message)
        };
        lines.push([
            "…".into(),
            who,
            "waits".into(),
            format!("{}{why}{until}", note.reason),
        ]);
    }
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].chars().count())
            .max()
            .unwrap_or_default()
    };
    let (first, second, third) = (width(0), width(1), width(2));
    let mut out = String::new();
    for [symbol, who, what, why] in &lines {
        let line = format!("  {symbol:first$}  {who:second$}  {what:third$}  {why}");
        out.push_str(one_line(&line).trim_end());
        out.push('\n');
    }
    if plan.omitted > 0 {
        out.push_str(&format!("  and {} more\n", plan.omitted));
    }
    out
}

/// What waits, but for the age at which nodes are renewed: that is so of every healthy node.
pub(crate) fn waits(plan: &Plan) -> impl Iterator<Item = &PlanNote> {
    let notes = plan.report.iter();
    notes.filter(|note| note.activity() == PlanActivity::Waiting && note.reason != "Lifetime")
}

/// Maximum number of nodes per group that a plan lists.
const MAX_NAMED: usize = 30;

/// Appends the nodes of a group that are replaced later, in the order of replacement.
fn renewed(plan: &Plan, renewal: &GroupRenewal, lines: &mut Vec<[String; 4]>) {
    let begun = |node: &&NodeRenewal| {
        let of_node = |action: &Action| {
            action.kind() == ActionKind::Deprovision && action.node.as_deref() == Some(&node.node)
        };
        !plan.actions.iter().any(of_node)
    };
    let later: Vec<&NodeRenewal> = (renewal.nodes.iter())
        .filter(begun)
        .filter(|node| !is_removed_later(plan, Some(&node.node)))
        .collect();
    for node in later.iter().take(MAX_NAMED) {
        let mut why = match node.causes.as_slice() {
            [] if node.reason == "User" => "asked for".to_owned(),
            [] => "made from an older spec".to_owned(),
            causes => format!("{} changed", causes.join(", ")),
        };
        why.push_str(data(node.storage()));
        lines.push([
            "-/+".into(),
            node.node_name.clone(),
            format!("replace on {}", node.platform),
            why,
        ]);
    }
    let more = (renewal.node_count as usize).saturating_sub(renewal.nodes.len())
        + later.len().saturating_sub(MAX_NAMED);
    if more > 0 {
        lines.push([
            "-/+".into(),
            format!("{more} more in {}", renewal.group),
            "replace".into(),
            String::new(),
        ]);
    }
}

/// Appends what is created and removed when others are ready or gone.
fn later(plan: &Plan, outlook: &GroupOutlook, lines: &mut Vec<[String; 4]>) {
    if outlook.create_count > 0 {
        let nodes = count(outlook.create_count as usize, "node");
        lines.push([
            "+".into(),
            format!("{nodes} in {}", outlook.group),
            "create".into(),
            "later".into(),
        ]);
    }
    for node in outlook.removals.iter().take(MAX_NAMED) {
        let note = (plan.report.iter())
            .find(|note| note.node.as_deref() == Some(&node.node) && !note.message.is_empty());
        let mut why = note.map_or_else(|| "later".to_owned(), |note| note.message.clone());
        why.push_str(data(node.storage()));
        lines.push([
            "-".into(),
            node.node_name.clone(),
            format!("delete on {}", node.platform),
            why,
        ]);
    }
    let named = outlook.removals.len().min(MAX_NAMED);
    let more = (outlook.removal_count as usize).saturating_sub(named);
    if more > 0 {
        lines.push([
            "-".into(),
            format!("{more} more in {}", outlook.group),
            "delete".into(),
            "later".into(),
        ]);
    }
}

fn is_removed_later(plan: &Plan, node: Option<&str>) -> bool {
    let listed = |outlook: &GroupOutlook| {
        let mut named = outlook.removals.iter().take(MAX_NAMED);
        node.is_some_and(|id| named.any(|removal| removal.node == id))
    };
    plan.outlooks.iter().any(listed)
}

fn is_renewed(plan: &Plan, node: Option<&str>) -> bool {
    let mut nodes = plan.renewals.iter().flat_map(|renewal| &renewal.nodes);
    node.is_some_and(|id| nodes.any(|node| node.node == id))
}

fn data(storage: StorageRetention) -> &'static str {
    match storage {
        StorageRetention::Retain => " · data kept",
        StorageRetention::Delete => " · data DELETED",
        StorageRetention::Unspecified => "",
    }
}

#[cfg(test)]
mod tests {
    use drover_proto::orchestrator::v1::{ClusterSpec, NodeRemoval, PlanTotals, PlatformChoice};

    use super::*;

    fn act(kind: ActionKind, name: &str, reason: &str) -> Action {
        Action {
            kind: kind.into(),
            node_name: Some(name.into()),
            reason: reason.into(),
            replaces: reason != "ScaleDown" && reason != "Delete",
            count: 1,
            ..Default::default()
        }
    }

    fn cluster(size: u32) -> Cluster {
        let group = GroupSpec {
            name: "web".into(),
            size: Some(size),
            platforms: vec![PlatformChoice {
                name: "local".into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        Cluster {
            name: "hello".into(),
            spec: Some(ClusterSpec {
                groups: vec![group],
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn a_plan_says_what_changes_and_why() {
        let mut delete = act(ActionKind::Deprovision, "db-2", "ScaleDown");
        delete.message = "standby lowered, newest first".into();
        delete.storage = StorageRetention::Retain.into();
        let shown = plan(
            &Plan {
                actions: vec![delete],
                ..Default::default()
            },
            &differences(&cluster(3), &cluster(5)).unwrap(),
            std::time::SystemTime::now(),
        );
        assert_eq!(
            shown,
            "  ~  spec.groups.web.size  3 -> 5\n  -  db-2                  delete  standby lowered, newest first · data kept\n"
        );
    }

    #[test]
    fn a_plan_names_who_is_replaced_why_and_within_which_limits() {
        let node = |name: &str, causes: &[&str]| NodeRenewal {
            node: format!("{name}-x"),
            node_name: name.into(),
            platform: "local".into(),
            reason: "Outdated".into(),
            causes: causes.iter().map(|cause| (*cause).to_owned()).collect(),
            ..Default::default()
        };
        let mut begun = act(ActionKind::Deprovision, "db-2", "Outdated");
        begun.node = Some("db-2-x".into());
        let mut surge = act(ActionKind::Provision, "db-3", "Update");
        surge.platform = "local".into();
        let shown = Plan {
            actions: vec![begun, surge],
            renewals: vec![GroupRenewal {
                group: "db".into(),
                size: 3,
                max_surge: 1,
                max_unavailable: 1,
                nodes: vec![
                    node("db-2", &[]),
                    node("db-1", &["attributes.max", "version"]),
                    node("db-0", &[]),
                ],
                node_count: 3,
                longest_duration: Some(prost_types::Duration {
                    seconds: 3060,
                    nanos: 0,
                }),
            }],
            totals: Some(PlanTotals {
                replace_count: 3,
                replace_now_count: 1,
                ..Default::default()
            }),
            ..Default::default()
        };
        let text = plan(&shown, &[], std::time::SystemTime::now());
        assert!(
            text.contains("db-1  replace on local  attributes.max, version changed"),
            "{text}"
        );
        assert_eq!(text.matches("db-2").count(), 1, "{text}");
        let line = super::super::plan::summary(&shown);
        assert_eq!(
            line,
            "Plan: 0 to create, 3 to replace (1 now), 0 to delete; db: at most 4 nodes, at least 2 available, 51m at most if none fails."
        );
    }

    #[test]
    fn nodes_that_go_later_are_listed_with_their_data_instead_of_their_wait() {
        let node = |name: &str| NodeRemoval {
            node: format!("{name}-x"),
            node_name: name.into(),
            platform: "local".into(),
            storage: StorageRetention::Delete.into(),
        };
        let shown = Plan {
            actions: vec![act(ActionKind::Deprovision, "app-0", "Delete")],
            report: vec![PlanNote {
                node: Some("db-0-x".into()),
                activity: PlanActivity::Waiting.into(),
                reason: "Ordered".into(),
                message: "goes when group app is gone".into(),
                ..Default::default()
            }],
            renewals: vec![GroupRenewal {
                group: "db".into(),
                nodes: vec![NodeRenewal {
                    node: "db-1-x".into(),
                    node_name: "db-1".into(),
                    platform: "local".into(),
                    ..Default::default()
                }],
                node_count: 1,
                ..Default::default()
            }],
            outlooks: vec![
                GroupOutlook {
                    group: "db".into(),
                    removals: vec![node("db-0"), node("db-1")],
                    removal_count: 2,
                    ..Default::default()
                },
                GroupOutlook {
                    group: "web".into(),
                    create_count: 7,
                    ..Default::default()
                },
            ],
            ..Default::default()
        };
        assert_eq!(
            plan(&shown, &[], std::time::SystemTime::now()),
            "  -  app-0           delete           no longer wanted\n  \
             -  db-0            delete on local  goes when group app is gone · data DELETED\n  \
             -  db-1            delete on local  later · data DELETED\n  \
             +  7 nodes in web  create           later\n"
        );
    }

    #[test]
    fn a_cluster_is_summed_up_in_a_few_words() {
        assert_eq!(wanted(&cluster(3)), "3 nodes on local");
        assert_eq!(wanted(&cluster(1)), "1 node on local");
    }
}
