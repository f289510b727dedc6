//! Requests that a platform assigns a foreign node its slot in this cluster.

use std::time::Duration;

use drover_cluster::{CallEnd, Cluster, ClusterState, request};
use drover_core::{Class, Urgency};
use drover_proto::platform::v1 as wire;

use super::envelope::{Envelope, Kind};
use crate::{Ended, Executor, Shown};

const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn adopt(
    executor: &Executor,
    cluster: &Cluster,
    slot: u64,
    urgency: Urgency,
) -> Option<Ended> {
    let (platform, uid, mut message) = {
        let inner = cluster.lock();
        let node = inner.state().node(slot)?;
        let message = message(cluster, &inner, slot)?;
        (node.platform.clone(), node.platform_uid.clone(), message)
    };
    let began = executor.clock.now();
    let envelope = Envelope {
        executor,
        kind: Kind::Adopt,
        platform: &platform,
        uid: &uid,
        owner: cluster.uid(),
        urgency,
        turn: None,
    };
    let answer = envelope
        .send(async |open| {
            message.fence = Some(open.fence.clone());
            message.expected_instance_id.clone_from(&open.instance);
            open.call(async |client| {
                let answer = client.update_node(message, TIMEOUT).await;
                executor.vault.hide(cluster, slot, answer).await
            })
            .await
        })
        .await;
    let answer = match answer {
        Ok(answer) => Ok(executor
            .vault
            .hear(&executor.clusters, answer.node.into_iter().collect())
            .await),
        Err(error) => Err(error),
    };
    if let Err(error) = &answer
        && error.class() != Class::Stale
    {
        tracing::debug!(cluster = %cluster.name(), slot, %platform, %error, "a node was not adopted");
    }
    let (nodes, answer) = match answer {
        Ok(nodes) => (nodes, Ok(())),
        Err(error) => (Vec::new(), Err(error)),
    };
    let end = CallEnd::Adopt { slot, answer };
    let shown = Shown::by_answer(platform, &uid, began, nodes);
    Some(Ended::new(end, executor.clock.now(), urgency).showing(shown))
}

fn message(cluster: &Cluster, inner: &ClusterState, slot: u64) -> Option<wire::UpdateNodeRequest> {
    let node = inner.state().node(slot)?;
    let former = node.adopted.former.as_ref()?;
    let adoption = wire::NodeAdoption {
        cluster_id: cluster.name().to_string(),
        key: Some(wire::SlotKey {
            owner: cluster.uid().to_string(),
            request_id: node.request.to_string(),
            index: Some(node.index),
        }),
        slot: Some(request::slot(cluster.uid(), node)),
        sequence: node.sequence,
        group: node.group.to_string(),
        spec_hash: node.spec_hash.to_string(),
    };
    Some(wire::UpdateNodeRequest {
        expected_platform_uid: node.platform_uid.to_string(),
        node_id: node.node_id.as_ref()?.to_string(),
        expected_cluster_id: cluster.name().to_string(),
        expected_slot: (!former.owner.is_empty()).then(|| wire::SlotKey {
            owner: former.owner.to_string(),
            request_id: former.request.to_string(),
            index: former.index,
        }),
        update: Some(wire::update_node_request::Update::Adoption(adoption)),
        ..wire::UpdateNodeRequest::default()
    })
}
