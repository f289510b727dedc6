//! Requests that a platform removes a node.

use std::time::Duration;

use drover_cluster::{CallEnd, Cluster};
use drover_core::{Class, Urgency, storage::Retention};
use drover_proto::platform::v1 as wire;
use uuid::Uuid;

use super::envelope::{Envelope, Kind, Turn};
use crate::{Ended, Executor};

/// Deadline of the call: the platform responds once the removal has begun, not when it is complete.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn deprovision(
    executor: &Executor,
    cluster: &Cluster,
    slot: u64,
    urgency: Urgency,
    turn: Option<Turn>,
) -> Option<Ended> {
    let (platform, uid, grace, mut message) = {
        let inner = cluster.lock();
        let node = inner.state().node(slot)?;
        let grace = inner.grace(&node.group);
        let message = wire::DeprovisionRequest {
            expected_platform_uid: node.platform_uid.to_string(),
            request_id: Uuid::now_v7().to_string(),
            owner: cluster.uid().to_string(),
            cluster_id: cluster.name().to_string(),
            node_request_id: node.request.to_string(),
            index: Some(node.index),
            node_id: node.node_id.as_ref()?.to_string(),
            reason: node
                .removal
                .map_or("", |removal| removal.reason.as_str())
                .to_owned(),
            retain_storage: node.fate_of_storage() == Some(Retention::Retain),
            ..wire::DeprovisionRequest::default()
        };
        (
            node.platform.clone(),
            node.platform_uid.clone(),
            grace,
            message,
        )
    };
    let envelope = Envelope {
        executor,
        kind: Kind::Deprovision,
        platform: &platform,
        uid: &uid,
        owner: cluster.uid(),
        urgency,
        turn,
    };
    let answer = envelope
        .send(async |open| {
            message.fence = Some(open.fence.clone());
            message.expected_instance_id.clone_from(&open.instance);
            if open.registered.platform.has(wire::Capability::GracePeriod) {
                message.grace_period = grace.map(drover_convert::value::to_duration);
            }
            open.call(async |client| {
                let answer = client.deprovision(message, TIMEOUT).await;
                executor.vault.hide(cluster, slot, answer).await
            })
            .await
        })
        .await;
    if let Err(error) = &answer
        && error.class() != Class::Stale
    {
        tracing::debug!(cluster = %cluster.name(), slot, %platform, %error, "removal failed");
    }
    let end = CallEnd::Deprovision {
        slot,
        grace,
        answer: answer.map(drop),
    };
    Some(Ended::new(end, executor.clock.now(), urgency))
}
