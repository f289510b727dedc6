//! Requests that a platform assigns a foreign node its slot in this cluster.

use std::{sync::Arc, time::Duration};

use drover_core::Class;
use drover_proto::platform::v1 as wire;

use super::envelope::{Envelope, Kind};
use crate::{
    cluster::{CallEnd, Cluster, ClusterState, Source},
    heard::Heard,
    intake,
    queue::Urgency,
    request, secrets,
    shared::Shared,
};

const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn adopt(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    slot: u64,
    urgency: Urgency,
) -> Option<Urgency> {
    let (platform, uid, mut message) = {
        let inner = cluster.inner.lock();
        let node = inner.state.node(slot)?;
        let message = message(cluster, &inner, slot)?;
        (node.platform.clone(), node.platform_uid.clone(), message)
    };
    let began = shared.now();
    let envelope = Envelope {
        shared,
        kind: Kind::Adopt,
        platform: &platform,
        uid: &uid,
        owner: cluster.uid,
        urgency,
    };
    let answer = envelope
        .send(async |open| {
            message.fence = Some(open.fence.clone());
            message.expected_instance_id.clone_from(&open.instance);
            open.call(async |client| {
                let answer = client.update_node(message, TIMEOUT).await;
                secrets::hide(shared, cluster, slot, answer).await
            })
            .await
        })
        .await;
    let answer = match answer {
        Ok(answer) => Ok(Heard::of(shared, answer.node.into_iter().collect()).await),
        Err(error) => Err(error),
    };
    let now = shared.now();
    if let Err(error) = &answer
        && error.class() != Class::Stale
    {
        tracing::debug!(cluster = %cluster.name, slot, %platform, %error, "a node was not adopted");
    }
    let (shown, answer) = match answer {
        Ok(shown) => (shown, Ok(())),
        Err(error) => (Vec::new(), Err(error)),
    };
    let mut inner = cluster.inner.lock();
    if !inner.call_ended(CallEnd::Adopt { slot, answer }, now) {
        return None;
    }
    let source = Source {
        platform: &platform,
        uid: &uid,
    };
    intake::apply_answer(shared, cluster, &mut inner, source, &shown, (began, now));
    Some(urgency)
}

fn message(cluster: &Cluster, inner: &ClusterState, slot: u64) -> Option<wire::UpdateNodeRequest> {
    let node = inner.state.node(slot)?;
    let former = node.adoption.as_deref()?;
    let adoption = wire::NodeAdoption {
        cluster_id: cluster.name.to_string(),
        key: Some(wire::SlotKey {
            owner: cluster.uid.to_string(),
            request_id: node.request.to_string(),
            index: Some(node.index),
        }),
        slot: Some(request::slot(cluster, node)),
        sequence: node.sequence,
        group: node.group.to_string(),
        spec_hash: node.spec_hash.to_string(),
    };
    Some(wire::UpdateNodeRequest {
        expected_platform_uid: node.platform_uid.to_string(),
        node_id: node.node_id.as_ref()?.to_string(),
        expected_cluster_id: cluster.name.to_string(),
        expected_slot: (!former.owner.is_empty()).then(|| wire::SlotKey {
            owner: former.owner.to_string(),
            request_id: former.request.to_string(),
            index: former.index,
        }),
        update: Some(wire::update_node_request::Update::Adoption(adoption)),
        ..wire::UpdateNodeRequest::default()
    })
}
