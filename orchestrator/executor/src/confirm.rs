//! Complete reads: confirming whether nodes are gone.

use std::{collections::HashSet, time::Duration};

use drover_client::{PlatformClient, platform::Discovered};
use drover_cluster::{CallEnd, Cluster};
use drover_core::{Error, Result, Sym, Urgency};
use drover_proto::platform::v1 as wire;

use super::envelope::{Envelope, Kind};
use crate::{Complete, Ended, Executor, Shown};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Deadline for an agent to prove that its node is alive.
const AGENT_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads a platform completely for one cluster: nodes found neither in the list nor by id are missing.
pub(super) async fn confirm(
    executor: &Executor,
    cluster: &Cluster,
    platform: Sym,
) -> Option<Ended> {
    let (shown, answer) = match read(executor, cluster, &platform).await {
        Ok(shown) => (Some(shown), Ok(())),
        Err(error) => (None, Err(error)),
    };
    let ended = Ended::new(
        CallEnd::Confirm { platform, answer },
        executor.clock.now(),
        Urgency::Urgent,
    );
    Some(match shown {
        Some(shown) => ended.showing(shown),
        None => ended,
    })
}

async fn read(executor: &Executor, cluster: &Cluster, platform: &Sym) -> Result<Shown> {
    let began = executor.clock.now();
    let registered = executor.platforms.require(platform)?;
    let uid = registered.platform.identity().0;
    let envelope = Envelope {
        executor,
        kind: Kind::Confirm,
        platform,
        uid: &uid,
        owner: cluster.uid(),
        urgency: Urgency::Bulk,
        turn: None,
    };
    let reads = envelope.send(async |open| {
        let message = wire::DiscoverRequest {
            expected_platform_uid: uid.clone(),
            expected_instance_id: open.instance.clone(),
            cluster_id: cluster.name().to_string(),
            ..wire::DiscoverRequest::default()
        };
        open.call(async |client| both(&client, cluster, platform, message).await)
            .await
    });
    let (listed, found, agents) = reads.await?;
    let as_of = |read: &Discovered| {
        let as_of = registered.platform.as_of(read.observe_time.as_ref(), began);
        as_of.ok_or_else(|| {
            Error::unavailable(format!(
                "{platform} answers how it was before what it showed"
            ))
        })
    };
    let mut since = as_of(&listed)?;
    let (mut nodes, mut warnings) = (listed.nodes, listed.warnings);
    let listed = nodes.len();
    if let Some(found) = found {
        since = since.min(as_of(&found)?);
        nodes.extend(found.nodes);
        warnings.extend(found.warnings);
    }
    let asked = agents.into_iter().map(|(id, address)| async move {
        let gate = executor.probes.gate(platform);
        let alive = drover_probes::agent_says(&address, &id, AGENT_TIMEOUT, gate).await;
        alive.then_some(id)
    });
    let alive = futures::future::join_all(asked)
        .await
        .into_iter()
        .flatten()
        .collect();
    Ok(Shown {
        platform: platform.clone(),
        uid,
        as_of: since,
        nodes: executor.vault.hear(&executor.clusters, nodes).await,
        listed,
        complete: Some(Complete { warnings, alive }),
    })
}

/// Lists the nodes of a cluster and looks up by id those that the list lacks. Also returns the agents of the latter.
async fn both(
    client: &PlatformClient,
    cluster: &Cluster,
    platform: &Sym,
    message: wire::DiscoverRequest,
) -> Result<(Discovered, Option<Discovered>, Vec<(String, String)>)> {
    let listed = client.discover_all(message.clone(), TIMEOUT).await?;
    let ids = listed.nodes.iter().map(|node| node.node_id.as_str());
    let uid = &message.expected_platform_uid;
    let (missing, agents) = missing(cluster, platform, uid, &ids.collect());
    if missing.is_empty() {
        return Ok((listed, None, agents));
    }
    // Looked up by id as well, because the lists of some backends lag behind.
    let message = wire::DiscoverRequest {
        node_ids: missing,
        ..message
    };
    let found = client.discover_all(message, TIMEOUT).await?;
    Ok((listed, Some(found), agents))
}

/// Ids of recorded nodes that the list lacks, and the agents of those whose removal was not requested.
fn missing(
    cluster: &Cluster,
    platform: &Sym,
    uid: &str,
    shown: &HashSet<&str>,
) -> (Vec<String>, Vec<(String, String)>) {
    let inner = cluster.lock();
    let (mut ids, mut agents) = (Vec::new(), Vec::new());
    for node in inner
        .state()
        .nodes
        .iter()
        .filter(|n| n.platform == *platform && *n.platform_uid == *uid)
    {
        if let Some(id) = node.node_id.as_deref().filter(|id| !shown.contains(id)) {
            ids.push(id.to_owned());
            if node.removal.is_none() && !node.seen.agent_address.is_empty() {
                agents.push((node.id(cluster.uid()), node.seen.agent_address.to_string()));
            }
        }
    }
    (ids, agents)
}
