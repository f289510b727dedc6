//! `replace`: a node is replaced, within the update policy of its group.

use drover_core::Error;
use drover_proto::orchestrator::v1::{
    Action, ActionKind, Cluster, GetNodeRequest, GroupRenewal, GroupSpec, Node, NodeRenewal,
    NodeState, Plan, PlanClusterRequest, PlanClusterResponse, PlanTotals, ReplaceNodeRequest,
    RestartGroupRequest, StorageRetention, plan_cluster_request::Subject,
};

use super::{confirm, rollout, tally::Tally, target, wait};
use crate::{
    cli::PlannedFlags,
    client::{CALL_TIMEOUT, Client},
    failure::{Failure, Outcome},
    output,
};

/// Said of a node whose like no plan names.
const DATA_UNKNOWN: &str = "what becomes of its data is not known";

pub(crate) async fn run(client: &Client, node: &str, flags: &PlannedFlags) -> Outcome {
    let (cluster, id) = target::node(node)?;
    let change = &flags.change;
    let found = found(client, &cluster, &id).await?;
    let before = rollout::get(client, &cluster).await?;
    if let Some(why) = is_going(&before, &found) {
        let name = &found.name;
        let what = format!("node/{cluster}/{name} is removed already: {why}");
        return Err(Failure::failed(what));
    }
    if flags.dry_run {
        let answer = PlanClusterResponse {
            cluster: Some(before.clone()),
            ..planned(client, &cluster, &found).await?
        };
        return rollout::show(&cluster, &before, answer, change.output);
    }
    if !flags.yes && confirm::can_ask() {
        let plan = planned(client, &cluster, &found).await?.plan;
        let stakes = stakes(&cluster, &plan.unwrap_or_default());
        if !confirm::ask(&format!("{stakes}Continue?"))? {
            return Err(Failure::failed("nothing changed"));
        }
    }
    let request = ReplaceNodeRequest {
        cluster: cluster.clone(),
        id,
    };
    let answer = client
        .call(client.api.replace_node(request, CALL_TIMEOUT))
        .await?;
    let node = answer.node.clone().unwrap_or_default();
    let name = format!("node/{cluster}/{}", node.name);
    let words = format!("{name} ({}) will be replaced", node.id);
    output::result(change.output, &name, &answer, &words)?;
    wait::after(client, &cluster, &change.wait).await
}

async fn found(client: &Client, cluster: &str, id: &str) -> Outcome<Node> {
    let request = GetNodeRequest {
        cluster: cluster.to_owned(),
        id: id.to_owned(),
        min_revision: None,
    };
    let answer = client
        .call(client.api.get_node(request, CALL_TIMEOUT))
        .await?;
    let node = answer
        .node
        .ok_or_else(|| Error::internal("the answer has no node"))?;
    Ok(node)
}

/// Why a node goes already, so that nothing can be planned for it. `None`: it does not, or the orchestrator says it.
fn is_going<'a>(cluster: &Cluster, node: &'a Node) -> Option<&'a str> {
    if cluster.delete_time.is_some() {
        return None;
    }
    let spec = cluster.spec.as_ref();
    if spec.is_some_and(|spec| !has_group(&spec.groups, &node.group)) {
        return Some("its group is no longer wanted");
    }
    if !matches!(
        node.state(),
        NodeState::Draining | NodeState::Deprovisioning
    ) {
        return None;
    }
    let words = [node.message.as_str(), node.reason.as_str()];
    let said = words.into_iter().find(|word| !word.is_empty());
    Some(said.unwrap_or("its removal has begun"))
}

fn has_group(groups: &[GroupSpec], path: &str) -> bool {
    groups.iter().any(|group| {
        path.strip_prefix(group.name.as_str())
            .is_some_and(|rest| match rest.strip_prefix('/') {
                Some(inner) => has_group(&group.groups, inner),
                None => rest.is_empty(),
            })
    })
}

/// What a question about a node says before it asks, with a line end.
fn stakes(cluster: &str, plan: &Plan) -> String {
    let mut text = Tally::of(plan).stakes(cluster);
    if plan
        .actions
        .iter()
        .any(|it| it.message.ends_with(DATA_UNKNOWN))
    {
        text.push_str(&format!("  {DATA_UNKNOWN}\n"));
    }
    text
}

/// What the replacement of a node leads to: its part of the replacement of its whole group, which can be planned.
async fn planned(client: &Client, cluster: &str, node: &Node) -> Outcome<PlanClusterResponse> {
    let request = PlanClusterRequest {
        subject: Some(Subject::Restart(RestartGroupRequest {
            cluster: cluster.to_owned(),
            group: Some(node.group.clone()),
        })),
        min_revision: None,
    };
    let mut answer = client
        .call(client.api.plan_cluster(request, CALL_TIMEOUT))
        .await?;
    let plan = answer.plan.take().unwrap_or_default();
    answer.plan = Some(of_node(&plan, node));
    Ok(answer)
}

/// The part of a plan for all nodes of a group that is about one of them.
fn of_node(all: &Plan, node: &Node) -> Plan {
    let goes = |action: &&Action| {
        action.kind() == ActionKind::Deprovision && action.replaces && action.group == node.group
    };
    let going: Vec<&Action> = all.actions.iter().filter(goes).collect();
    let group = all.renewals.iter().find(|it| it.group == node.group);
    let now = going
        .iter()
        .map(|it| (it.node.as_deref().unwrap_or_default(), it.storage()));
    let later = group.into_iter().flat_map(|it| &it.nodes);
    let later = later.map(|it| (it.node.as_str(), it.storage()));
    let fates: Vec<(&str, StorageRetention)> = now.chain(later).collect();
    // Of a large group a plan names only the first nodes. Those that it names may differ, as the policy may have changed
    // since some were made: of the others the worst is feared.
    let own = fates.iter().find(|(id, _)| *id == node.id);
    let known = own.or(fates.iter().max_by_key(|(_, fate)| badness(*fate)));
    let storage = known.map_or(StorageRetention::Unspecified, |(_, fate)| *fate);
    let is = |fate: StorageRetention| u32::from(storage == fate);
    let mut plan = Plan {
        generation: all.generation,
        plan_time: all.plan_time,
        totals: Some(PlanTotals {
            replace_count: 1,
            // One of the group may go now, or none.
            replace_now_count: u32::from(!going.is_empty()),
            storage_deleted_count: is(StorageRetention::Delete),
            storage_kept_count: is(StorageRetention::Retain),
            ..PlanTotals::default()
        }),
        ..Plan::default()
    };
    if let Some(group) = group {
        // With the limits of the group.
        plan.renewals.push(GroupRenewal {
            nodes: vec![NodeRenewal {
                node: node.id.clone(),
                node_name: node.name.clone(),
                platform: node.platform.clone(),
                reason: "User".to_owned(),
                causes: Vec::new(),
                storage: storage.into(),
            }],
            node_count: 1,
            longest_duration: None,
            ..group.clone()
        });
    }
    if group.is_none() || known.is_none() {
        let message = match known {
            Some(_) => "asked for".to_owned(),
            None => format!("asked for · {DATA_UNKNOWN}"),
        };
        plan.actions.push(Action {
            kind: ActionKind::Deprovision.into(),
            group: node.group.clone(),
            node: Some(node.id.clone()),
            node_name: Some(node.name.clone()),
            platform: node.platform.clone(),
            count: 1,
            reason: "User".to_owned(),
            message,
            storage: storage.into(),
            replaces: true,
            ..Action::default()
        });
    }
    plan
}

fn badness(fate: StorageRetention) -> u8 {
    match fate {
        StorageRetention::Delete => 2,
        StorageRetention::Unspecified => 1,
        StorageRetention::Retain => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use drover_proto::orchestrator::v1::ClusterSpec;

    use super::*;
    use crate::commands::{plan::summary, report};

    fn node() -> Node {
        Node {
            id: "web-1-abcde".into(),
            name: "web-1".into(),
            group: "web".into(),
            platform: "local".into(),
            ..Node::default()
        }
    }

    fn renewal(node: &str, storage: StorageRetention) -> NodeRenewal {
        NodeRenewal {
            node: node.into(),
            storage: storage.into(),
            ..NodeRenewal::default()
        }
    }

    fn shown(plan: &Plan) -> (String, String) {
        let lines = report::plan(plan, &[], SystemTime::UNIX_EPOCH);
        (lines, summary(plan))
    }

    #[test]
    fn the_plan_of_a_node_has_its_data_and_the_limits_of_its_group() {
        let all = Plan {
            actions: vec![Action {
                kind: ActionKind::Deprovision.into(),
                group: "web".into(),
                node: Some("web-0-abcde".into()),
                storage: StorageRetention::Retain.into(),
                replaces: true,
                ..Action::default()
            }],
            renewals: vec![GroupRenewal {
                group: "web".into(),
                size: 3,
                max_unavailable: 1,
                nodes: vec![
                    renewal("web-0-abcde", StorageRetention::Retain),
                    renewal("web-1-abcde", StorageRetention::Delete),
                ],
                node_count: 3,
                ..GroupRenewal::default()
            }],
            ..Plan::default()
        };
        let (lines, summary) = shown(&of_node(&all, &node()));
        assert_eq!(
            lines,
            "  -/+  web-1  replace on local  asked for · data DELETED\n"
        );
        assert_eq!(
            summary,
            "Plan: data of 1 node DELETED: web-1.\n\
             Plan: 0 to create, 1 to replace, 0 to delete; web: at most 3 nodes, at least 2 available."
        );
    }

    #[test]
    fn a_node_that_no_plan_names_is_replaced_all_the_same() {
        let (lines, summary) = shown(&of_node(&Plan::default(), &node()));
        assert_eq!(
            lines,
            "  -/+  web-1  replace on local  asked for · what becomes of its data is not known\n"
        );
        assert_eq!(
            summary,
            "Plan: 0 to create, 1 to replace (none now), 0 to delete."
        );
        assert_eq!(
            stakes("shop", &of_node(&Plan::default(), &node())),
            "cluster/shop: 0 to create, 1 to replace (none now), 0 to delete\n  \
             what becomes of its data is not known\n"
        );
    }

    #[test]
    fn of_a_node_that_a_plan_does_not_name_the_worst_is_feared() {
        let all = |fates: &[StorageRetention]| Plan {
            renewals: vec![GroupRenewal {
                group: "web".into(),
                nodes: fates.iter().map(|fate| renewal("other", *fate)).collect(),
                node_count: 40,
                ..GroupRenewal::default()
            }],
            ..Plan::default()
        };
        let (retain, none) = (StorageRetention::Retain, StorageRetention::Unspecified);
        for (fates, why) in [
            (
                &[retain, StorageRetention::Delete, none][..],
                "asked for · data DELETED",
            ),
            (&[retain, none], "asked for"),
            (&[retain], "asked for · data kept"),
            (&[], "asked for · what becomes of its data is not known"),
        ] {
            let (lines, _) = shown(&of_node(&all(fates), &node()));
            assert_eq!(lines, format!("  -/+  web-1  replace on local  {why}\n"));
        }
    }

    #[test]
    fn a_node_that_goes_already_is_not_replaced() {
        let group = |name: &str, groups: Vec<GroupSpec>| GroupSpec {
            name: name.into(),
            groups,
            ..GroupSpec::default()
        };
        let cluster = |groups: Vec<GroupSpec>| Cluster {
            spec: Some(ClusterSpec {
                groups,
                ..ClusterSpec::default()
            }),
            ..Cluster::default()
        };
        let unwanted = Some("its group is no longer wanted");
        let wanted = cluster(vec![group("db", vec![]), group("web", vec![])]);
        assert_eq!(is_going(&wanted, &node()), None);
        let others = cluster(vec![group("we", vec![]), group("webs", vec![])]);
        assert_eq!(is_going(&others, &node()), unwanted);
        let inner = Node {
            group: "data/hot".into(),
            ..node()
        };
        let nested = cluster(vec![group("data", vec![group("hot", vec![])])]);
        assert_eq!(is_going(&nested, &inner), None);
        assert_eq!(is_going(&nested, &node()), unwanted);
        let mut going = Node {
            state: NodeState::Draining.into(),
            reason: "Outdated".into(),
            ..node()
        };
        assert_eq!(is_going(&wanted, &going), Some("Outdated"));
        going.message = "made from an older spec".into();
        assert_eq!(is_going(&wanted, &going), Some("made from an older spec"));
    }
}
