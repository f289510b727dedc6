//! Decisions of operators about a platform: that it is the same backend under another uid, that it will never answer
//! again, that vanished nodes are gone.

use drover_proto::orchestrator::v1::{
    AbandonPlatformRequest, ConfirmNodeLossRequest, GetPlatformRequest, Platform,
    RegisterPlatformRequest,
};

use super::{confirm, target, wait};
use crate::{
    cli::AbandonArgs,
    client::{CALL_TIMEOUT, Client},
    failure::{Exit, Failure, Outcome},
    output::{self, Format, count},
};

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
    let left = if delete_nodes {
        "Nodes that it shows, should it ever answer again, are deleted"
    } else {
        "Nodes and infrastructure that are still there are yours to remove"
    };
    let question = format!(
        "Give up what cluster/{name} has on {platform}? {left}, and what is wanted is made anew."
    );
    if !yes && !confirm::ask(&question)? {
        return Err(Failure::failed("nothing given up"));
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
    format: Format,
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
    let question = format!(
        "Keep all records of {name} under uid {uid}? It was {}, with {}; what {uid} does not show of them is replaced.",
        status.uid,
        count(status.node_count as usize, "node")
    );
    if status.uid != uid && !yes && !confirm::ask(&question)? {
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
    let answer = client
        .call(client.api.register_platform(request, CALL_TIMEOUT))
        .await?;
    let of = format!("platform/{name}");
    output::result(format, &of, &answer, &format!("{of} bound to {uid}"))?;
    Ok(Exit::Done)
}

/// Confirms that nodes which vanished at once are gone.
pub(crate) async fn confirm_loss(
    client: &Client,
    name: &str,
    vanished: u32,
    format: Format,
) -> Outcome {
    let request = ConfirmNodeLossRequest {
        platform: name.to_owned(),
        vanished_count: vanished,
    };
    let answer = client
        .call(client.api.confirm_node_loss(request, CALL_TIMEOUT))
        .await?;
    let of = format!("platform/{name}");
    let words = format!("{of}: {} gone", count(vanished as usize, "node"));
    output::result(format, &of, &answer, &words)?;
    Ok(Exit::Done)
}
