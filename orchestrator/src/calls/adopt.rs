//! Asking a platform to give a foreign node its slot here.

use std::{sync::Arc, time::Duration};

use drover_core::{Class, Reason, node::Call as Attempt};
use drover_proto::platform::v1 as wire;
use drover_telemetry::span;

use super::{heard, judged, retry_later, turn_at};
use crate::{
    cluster::{Cluster, Inner},
    heard::Heard,
    hooks::Point,
    intake,
    queue::Urgency,
    request, secrets,
    shared::Shared,
    trace,
};

/// Deadline of an UpdateNode call.
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
    let traced = trace::call("adopt", &platform);
    let answer = span::within(traced.as_ref(), async {
        let (registered, client, permit) = turn_at(shared, &platform, &uid, urgency).await?;
        message.fence = Some(shared.fence(cluster.uid));
        message.expected_instance_id = registered.platform.identity().1;
        shared.hooks.reach(Point::BeforeAdopt).await;
        let answer = client.update_node(message, TIMEOUT).await;
        let answer = secrets::hide(shared, cluster, slot, answer).await;
        drop(permit);
        judged(shared, &registered, answer.as_ref().err());
        shared.hooks.reach(Point::AfterAdopt).await;
        answer
    })
    .await;
    trace::called(traced, answer.as_ref().err());
    let answer = match answer {
        Ok(answer) => Ok(Heard::of(shared, answer.node.into_iter().collect()).await),
        Err(error) => Err(error),
    };
    let now = shared.now();
    let mut inner = cluster.inner.lock();
    let node = heard(&mut inner, slot, answer.as_ref().err())?;
    match answer {
        Ok(answer) => {
            node.call = Attempt::default();
            for shown in &answer {
                let at = (began, now);
                let source = intake::Source {
                    platform: &platform,
                    uid: &uid,
                };
                intake::show(shared, cluster, &mut inner, source, shown, at, false);
            }
        }
        Err(error) => {
            if error.class() != Class::Stale {
                tracing::debug!(cluster = %cluster.name, slot, %platform, %error, "a node was not adopted");
                node.seen.message = error.message().into();
            }
            // Somebody else has it by now, and whoever gave it away compared as we do: it never becomes ours.
            let taken = [Reason::SlotMismatch, Reason::NodeNotInCluster];
            node.seen.gone |= taken.contains(&error.reason());
            retry_later(&mut node.call, &error, now);
        }
    }
    Some(urgency)
}

fn message(cluster: &Cluster, inner: &Inner, slot: u64) -> Option<wire::UpdateNodeRequest> {
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
