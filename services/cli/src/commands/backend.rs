//! Decisions of operators about a platform: that it is the same backend under another uid, that it will never answer
//! again, that vanished nodes are gone.

use drover_proto::orchestrator::v1::{
    AbandonPlatformRequest, ConfirmNodeLossRequest, GetPlatformRequest, Platform,
    RegisterPlatformRequest,
};

use super::{apply, target};
use crate::{
    client::{CALL_TIMEOUT, Client},
    failure::{Exit, Failure, Outcome},
    output,
};

/// Gives up the nodes recorded for a cluster on a platform.
pub(crate) async fn abandon(
    client: &Client,
    cluster: &str,
    platform: &str,
    uid: Option<String>,
    delete_nodes: bool,
    yes: bool,
) -> Outcome {
    let name = target::cluster(cluster).to_owned();
    let left = if delete_nodes {
        "Nodes that it shows, should it ever answer again, are deleted"
    } else {
        "Nodes and infrastructure that are still there are yours to remove"
    };
    let question = format!(
        "Give up what cluster/{name} has on {platform}? {left}, and what is wanted is made anew."
    );
    if !yes && !apply::ask(&question)? {
        return Err(Failure::failed("nothing given up"));
    }
    let request = AbandonPlatformRequest {
        cluster: name.clone(),
        platform: platform.to_owned(),
        platform_uid: uid,
        delete_nodes,
    };
    let answer = client
        .call(client.api.abandon_platform(request, CALL_TIMEOUT))
        .await?;
    for node in &answer.nodes {
        output::line(&format!("node/{name}/{node} abandoned"))?;
    }
    output::line(&format!(
        "cluster/{name} has no records on {platform} any more: {} nodes given up",
        answer.nodes.len()
    ))?;
    Ok(Exit::Done)
}

/// Confirms that a platform is the same backend under another uid.
pub(crate) async fn rebind(client: &Client, name: &str, uid: &str, yes: bool) -> Outcome {
    let request = GetPlatformRequest {
        name: name.to_owned(),
        min_revision: None,
    };
    let before = client
        .call(client.api.get_platform(request, CALL_TIMEOUT))
        .await?;
    let before = before.platform.unwrap_or_default();
    let status = before.status.unwrap_or_default();
    let question = format!(
        "Keep all records of {name} under uid {uid}? It was {}, with {} nodes; what {uid} does not show of them is replaced.",
        status.uid, status.node_count
    );
    if status.uid != uid && !yes && !apply::ask(&question)? {
        return Err(Failure::failed("nothing bound"));
    }
    let request = RegisterPlatformRequest {
        platform: Some(Platform {
            name: name.to_owned(),
            spec: before.spec,
            ..Platform::default()
        }),
        validate_only: false,
        rebind_uid: Some(uid.to_owned()),
    };
    client
        .call(client.api.register_platform(request, CALL_TIMEOUT))
        .await?;
    output::line(&format!("platform/{name} bound to {uid}"))?;
    Ok(Exit::Done)
}

/// Confirms that nodes which vanished at once are gone.
pub(crate) async fn confirm_loss(client: &Client, name: &str, count: u32) -> Outcome {
    let request = ConfirmNodeLossRequest {
        platform: name.to_owned(),
        vanished_count: count,
    };
    client
        .call(client.api.confirm_node_loss(request, CALL_TIMEOUT))
        .await?;
    output::line(&format!("platform/{name}: {count} nodes are gone"))?;
    Ok(Exit::Done)
}
