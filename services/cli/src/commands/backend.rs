//! Decisions of operators about a platform: that it is the same backend under another uid, that it will never answer
//! again, that vanished nodes are gone.

use std::collections::BTreeSet;

use drover_proto::orchestrator::v1::{
    AbandonPlatformRequest, Cluster, ConfirmNodeLossRequest, GetPlatformRequest, ListNodesRequest,
    Node, Platform, RegisterPlatformRequest,
};

use super::{confirm, rollout, target, wait};
use crate::{
    cli::{AbandonArgs, PlatformChangeFlags},
    client::{CALL_TIMEOUT, Client},
    failure::{Exit, Failure, Outcome},
    output::{self, count, one_line},
};

/// Maximum number of nodes that a question names.
const MAX_NAMED: usize = 5;

/// Gives up the nodes recorded for a cluster on a platform.
pub(crate) async fn abandon(client: &Client, args: AbandonArgs) -> Outcome {
    let AbandonArgs {
        cluster,
        platform,
        uid,
        delete_nodes,
        yes,
        change,
    } = args;
    let name = target::cluster(&cluster).to_owned();
    if !yes && confirm::can_ask() {
        let mut nodes = nodes_on(client, Some(&name), &platform).await?;
        nodes.retain(|node| uid.as_ref().is_none_or(|uid| node.platform_uid == *uid));
        let before = rollout::get(client, &name).await?;
        let swept = orphans(&before).filter(|_| delete_nodes);
        let stakes = given_up(&name, &platform, &nodes, delete_nodes, swept);
        if !confirm::ask(&format!("{stakes}Give it up?"))? {
            return Err(Failure::failed("nothing given up"));
        }
    }
    let request = AbandonPlatformRequest {
        cluster: name.clone(),
        platform: platform.clone(),
        platform_uid: uid,
        delete_nodes,
    };
    let answer = client
        .call(client.api.abandon_platform(request, CALL_TIMEOUT))
        .await?;
    let mut words = String::new();
    for node in &answer.nodes {
        words.push_str(&format!("node/{name}/{node} abandoned\n"));
    }
    words.push_str(&format!(
        "cluster/{name} has no records on {platform} any more: {} given up",
        count(answer.nodes.len(), "node")
    ));
    output::result(change.output, &format!("cluster/{name}"), &answer, &words)?;
    wait::after(client, &name, &change.wait).await
}

/// Confirms that a platform is the same backend under another uid.
pub(crate) async fn rebind(
    client: &Client,
    name: &str,
    uid: &str,
    yes: bool,
    change: &PlatformChangeFlags,
) -> Outcome {
    let request = GetPlatformRequest {
        name: name.to_owned(),
        min_revision: None,
    };
    let before = client
        .call(client.api.get_platform(request, CALL_TIMEOUT))
        .await?;
    let before = before.platform.unwrap_or_default();
    let status = before.status.unwrap_or_default();
    if status.uid != uid && !yes && confirm::can_ask() {
        let nodes = nodes_on(client, None, name).await?;
        let stakes = bound(name, &status.uid, uid, &nodes);
        if !confirm::ask(&format!("{stakes}Keep all records under uid {uid}?"))? {
            return Err(Failure::failed("nothing bound"));
        }
    }
    let concerned = concerned(client, name, change).await?;
    let request = RegisterPlatformRequest {
        platform: Some(Platform {
            name: name.to_owned(),
            spec: before.spec,
            ..Platform::default()
        }),
        validate_only: false,
        rebind_uid: Some(uid.to_owned()),
    };
    let answer = client
        .call(client.api.register_platform(request, CALL_TIMEOUT))
        .await?;
    let of = format!("platform/{name}");
    let words = format!("{of} bound to {uid}");
    output::result(change.output, &of, &answer, &words)?;
    all_ready(client, &concerned, change).await
}

/// Confirms that nodes which vanished at once are gone.
pub(crate) async fn confirm_loss(
    client: &Client,
    name: &str,
    vanished: u32,
    change: &PlatformChangeFlags,
) -> Outcome {
    let concerned = concerned(client, name, change).await?;
    let request = ConfirmNodeLossRequest {
        platform: name.to_owned(),
        vanished_count: vanished,
    };
    let answer = client
        .call(client.api.confirm_node_loss(request, CALL_TIMEOUT))
        .await?;
    let of = format!("platform/{name}");
    let words = format!("{of}: {} gone", count(vanished as usize, "node"));
    output::result(change.output, &of, &answer, &words)?;
    all_ready(client, &concerned, change).await
}

/// The recorded nodes on a platform, of one cluster or of all.
async fn nodes_on(client: &Client, cluster: Option<&str>, platform: &str) -> Outcome<Vec<Node>> {
    let mut nodes = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListNodesRequest {
            cluster: cluster.map(str::to_owned),
            platform: Some(platform.to_owned()),
            page_token,
            ..ListNodesRequest::default()
        };
        let page = client
            .call(client.api.list_nodes(request, CALL_TIMEOUT))
            .await?;
        nodes.extend(page.nodes);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(nodes);
        }
    }
}

/// Clusters with nodes on a platform that are waited for after a change: those that are there to stay.
async fn concerned(
    client: &Client,
    platform: &str,
    change: &PlatformChangeFlags,
) -> Outcome<Vec<String>> {
    if !change.wait {
        return Ok(Vec::new());
    }
    let nodes = nodes_on(client, None, platform).await?;
    let there: BTreeSet<String> = nodes.into_iter().map(|node| node.cluster).collect();
    let all = client.list_clusters(None).await?.clusters.into_iter();
    let stay = all.filter(|it| it.delete_time.is_none() && there.contains(&it.name));
    Ok(stay.map(|cluster| cluster.name).collect())
}

async fn all_ready(client: &Client, clusters: &[String], change: &PlatformChangeFlags) -> Outcome {
    let patience = wait::Patience::new(change.timeout);
    for name in clusters {
        wait::ready(client, name, patience).await?;
    }
    Ok(Exit::Done)
}

/// Which nodes of a cluster have no record, and why they are still there. No list has them.
fn orphans(cluster: &Cluster) -> Option<&str> {
    let mut conditions = cluster.status.iter().flat_map(|it| &it.conditions);
    conditions
        .find(|it| it.r#type == "Orphans" && it.status == Some(true))
        .map(|it| it.message.as_str())
}

/// What becomes of the nodes of a cluster on a platform that is given up, as a question says it before it asks. Orphans
/// are those that are swept.
fn given_up(
    cluster: &str,
    platform: &str,
    nodes: &[Node],
    delete: bool,
    orphans: Option<&str>,
) -> String {
    let mut text = orphans.map_or_else(String::new, |which| {
        let which = one_line(which);
        format!("{which}\n  those on {platform} are deleted now, with their data\n")
    });
    text.push_str(&format!(
        "cluster/{cluster} has on {platform} {}\n",
        named(nodes)
    ));
    let mut say = |line: &str| text.push_str(&format!("  {line}\n"));
    if !nodes.is_empty() {
        say("they go on running with their data, and nobody looks after them");
    }
    if delete {
        say(
            "what it shows, should it ever answer again, is deleted, and its storage as its group says",
        );
    } else {
        say("nodes, storage and infrastructure that are still there are yours to remove");
    }
    if !nodes.is_empty() {
        say("what is wanted of them is made anew, without their data");
    }
    say("infrastructure and addons there are given up too; what the cluster wants is made anew");
    text
}

/// What becomes of the nodes on a platform that is bound to another uid, as a question says it before it asks.
fn bound(platform: &str, from: &str, to: &str, nodes: &[Node]) -> String {
    let mut text = format!("platform/{platform} was {from}, with {}\n", named(nodes));
    if !nodes.is_empty() {
        text.push_str(&format!(
            "  those that {to} shows are taken as they are\n  \
             those that it does not show count as vanished; many hold back replacements (drover confirm-loss)\n"
        ));
    }
    text
}

/// `7 nodes: shop/web-0, shop/web-1, shop/web-2, shop/web-3, shop/web-4 and 2 more`.
fn named(nodes: &[Node]) -> String {
    let first = nodes.iter().take(MAX_NAMED);
    let names: Vec<String> = first
        .map(|node| format!("{}/{}", node.cluster, node.name))
        .collect();
    let mut text = count(nodes.len(), "node");
    if !names.is_empty() {
        text.push_str(&format!(": {}", names.join(", ")));
    }
    if nodes.len() > MAX_NAMED {
        text.push_str(&format!(" and {} more", nodes.len() - MAX_NAMED));
    }
    text
}

#[cfg(test)]
mod tests {
    use drover_proto::{common::v1::Condition, orchestrator::v1::ClusterStatus};

    use super::*;

    fn nodes(number: usize) -> Vec<Node> {
        let node = |ordinal: usize| Node {
            cluster: "shop".into(),
            name: format!("web-{ordinal}"),
            ..Node::default()
        };
        (0..number).map(node).collect()
    }

    #[test]
    fn who_gives_nodes_up_is_told_which_and_what_becomes_of_them() {
        assert_eq!(
            given_up("shop", "local", &nodes(2), false, None),
            "cluster/shop has on local 2 nodes: shop/web-0, shop/web-1\n  \
             they go on running with their data, and nobody looks after them\n  \
             nodes, storage and infrastructure that are still there are yours to remove\n  \
             what is wanted of them is made anew, without their data\n  \
             infrastructure and addons there are given up too; what the cluster wants is made anew\n"
        );
        let deleted = given_up("shop", "local", &nodes(7), true, None);
        for words in [
            "7 nodes: shop/web-0, shop/web-1, shop/web-2, shop/web-3, shop/web-4 and 2 more\n",
            "should it ever answer again, is deleted, and its storage as its group says",
        ] {
            assert!(deleted.contains(words), "{deleted}");
        }
        assert_eq!(
            given_up("shop", "local", &[], false, None),
            "cluster/shop has on local 0 nodes\n  \
             nodes, storage and infrastructure that are still there are yours to remove\n  \
             infrastructure and addons there are given up too; what the cluster wants is made anew\n"
        );
    }

    #[test]
    fn nodes_without_a_record_that_are_swept_are_named_first() {
        let message = "1 of ours without a record on local (web-0-abcde): given up";
        let mut cluster = Cluster {
            status: Some(ClusterStatus {
                conditions: vec![Condition {
                    r#type: "Orphans".into(),
                    status: Some(true),
                    message: message.into(),
                    ..Condition::default()
                }],
                ..ClusterStatus::default()
            }),
            ..Cluster::default()
        };
        assert_eq!(orphans(&cluster), Some(message));
        let text = given_up("shop", "local", &[], true, orphans(&cluster));
        let begin = format!(
            "{message}\n  those on local are deleted now, with their data\n\
             cluster/shop has on local 0 nodes\n"
        );
        assert!(text.starts_with(&begin), "{text}");
        let status = cluster.status.as_mut().unwrap();
        status.conditions[0].status = Some(false);
        assert_eq!(orphans(&cluster), None);
        assert_eq!(orphans(&Cluster::default()), None);
    }

    #[test]
    fn who_binds_a_platform_again_is_told_what_becomes_of_the_nodes_on_it() {
        assert_eq!(
            bound("local", "uid:a", "uid:b", &nodes(1)),
            "platform/local was uid:a, with 1 node: shop/web-0\n  \
             those that uid:b shows are taken as they are\n  \
             those that it does not show count as vanished; many hold back replacements (drover confirm-loss)\n"
        );
        assert_eq!(
            bound("local", "uid:a", "uid:b", &[]),
            "platform/local was uid:a, with 0 nodes\n"
        );
    }
}
