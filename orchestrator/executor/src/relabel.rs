//! Changes of the labels that hosts have for their group. They may be repeated.

use std::{collections::BTreeMap, time::Duration};

use drover_cluster::{CallEnd, Cluster, ClusterState};
use drover_core::{Error, Reason, Sym, Urgency};
use drover_proto::platform::v1 as wire;

use super::envelope::{Envelope, Kind};
use crate::{Ended, Executor, role_change::target};

/// Deadline of the call, which only changes labels.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Has the host of a node get the labels that its group wants now.
pub(super) async fn relabel(
    executor: &Executor,
    cluster: &Cluster,
    slot: u64,
    urgency: Urgency,
) -> Option<Ended> {
    let (platform, request, wanted) = {
        let inner = cluster.lock();
        let node = inner.state().node(slot)?;
        (
            node.platform.clone(),
            target(cluster, node)?,
            wanted(&inner, node),
        )
    };
    let answer = match wanted {
        None => {
            let message = "the group of the node has changed meanwhile";
            Err(Error::new(Reason::NotSent, message))
        }
        Some((hash, labels)) => {
            let change = wire::NodeChange {
                host_labels: Some(wire::HostLabels { labels }),
                ..wire::NodeChange::default()
            };
            let mut request = wire::UpdateNodeRequest {
                update: Some(wire::update_node_request::Update::Change(change)),
                ..request
            };
            let uid = request.expected_platform_uid.clone();
            let envelope = Envelope {
                executor,
                kind: Kind::Relabel,
                platform: &platform,
                uid: &uid,
                owner: cluster.uid(),
                urgency,
            };
            let sent = envelope.send(async |open| {
                // A server that does not know the field would accept the change and make none.
                if !open.registered.platform.has(wire::Capability::RelabelHosts) {
                    let message = format!("{platform} cannot change labels in place");
                    return Err(Error::new(Reason::NotSent, message));
                }
                request.fence = Some(open.fence.clone());
                request.expected_instance_id.clone_from(&open.instance);
                open.call(async |client| {
                    let answer = client.update_node(request, TIMEOUT).await.map(drop);
                    executor.vault.hide(cluster, slot, answer).await
                })
                .await
            });
            sent.await.map(|()| hash)
        }
    };
    if let Err(error) = &answer {
        tracing::debug!(cluster = %cluster.name(), slot, %error, "the labels of a host could not be changed");
    }
    let end = CallEnd::Relabel { slot, answer };
    Some(Ended::new(end, executor.clock.now(), urgency))
}

/// The labels that the host of a node is to have, and their hash. `None` if no group says so any more.
fn wanted(
    inner: &ClusterState,
    node: &drover_core::Node,
) -> Option<(Sym, BTreeMap<String, String>)> {
    let mut groups = inner.spec().groups.iter();
    let group = groups.find(|group| group.path == node.group)?;
    let choice = group.choice_for(node)?;
    Some((choice.labels_hash.clone(), choice.host_labels()))
}
