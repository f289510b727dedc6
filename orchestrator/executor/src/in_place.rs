//! Changes of living nodes that replace nothing: the labels of their hosts, and storage that grows. They may be repeated.

use std::time::Duration;

use drover_cluster::{CallEnd, Cluster, ClusterState};
use drover_core::{Error, Node, Reason, Result, Sym, Urgency};
use drover_proto::platform::v1 as wire;

use super::envelope::{Envelope, Kind};
use crate::{Ended, Executor, role_change::target};

/// Deadline of a call, which only changes labels.
const LABELS_TIMEOUT: Duration = Duration::from_secs(10);
/// Deadline of a call for storage, which may ask the backend about each volume.
const STORAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// What a node is to become, with the hash that stands for it in its record.
type Wanted = (Sym, wire::NodeChange);

/// How a kind of change is asked for.
pub(super) struct How {
    kind: Kind,
    needs: wire::Capability,
    timeout: Duration,
    /// `None` if no group says so any more.
    wanted: fn(&ClusterState, &Node) -> Option<Wanted>,
    /// With the hash of what the node is now.
    end: fn(u64, Result<Sym>) -> CallEnd,
}

/// The host of a node gets the labels that its group wants now.
pub(super) const LABELS: How = How {
    kind: Kind::Relabel,
    needs: wire::Capability::RelabelHosts,
    timeout: LABELS_TIMEOUT,
    wanted: labels,
    end: |slot, answer| CallEnd::Relabel { slot, answer },
};

/// The storage of a node grows to the size that its group wants now.
pub(super) const STORAGE: How = How {
    kind: Kind::Grow,
    needs: wire::Capability::GrowStorage,
    timeout: STORAGE_TIMEOUT,
    wanted: storage,
    end: |slot, answer| CallEnd::Grow { slot, answer },
};

pub(super) async fn change(
    executor: &Executor,
    cluster: &Cluster,
    slot: u64,
    urgency: Urgency,
    how: How,
) -> Option<Ended> {
    let (platform, request, wanted) = {
        let inner = cluster.lock();
        let node = inner.state().node(slot)?;
        (
            node.platform.clone(),
            target(cluster, node)?,
            (how.wanted)(&inner, node),
        )
    };
    let answer = match wanted {
        None => {
            let message = "the group of the node has changed meanwhile";
            Err(Error::new(Reason::NotSent, message))
        }
        Some((hash, change)) => {
            let mut request = wire::UpdateNodeRequest {
                update: Some(wire::update_node_request::Update::Change(change)),
                ..request
            };
            let uid = request.expected_platform_uid.clone();
            let envelope = Envelope {
                executor,
                kind: how.kind,
                platform: &platform,
                uid: &uid,
                owner: cluster.uid(),
                urgency,
                turn: None,
            };
            let sent = envelope.send(async |open| {
                // A server that does not know the field would accept the change and make none.
                if !open.registered.platform.has(how.needs) {
                    let message = format!(
                        "{platform} cannot do this in place (capability {:?})",
                        how.needs
                    );
                    return Err(Error::new(Reason::NotSent, message));
                }
                request.fence = Some(open.fence.clone());
                request.expected_instance_id.clone_from(&open.instance);
                open.call(async |client| {
                    let answer = client.update_node(request, how.timeout).await.map(drop);
                    executor.vault.hide(cluster, slot, answer).await
                })
                .await
            });
            sent.await.map(|()| hash)
        }
    };
    if let Err(error) = &answer {
        tracing::debug!(cluster = %cluster.name(), slot, kind = ?how.kind, %error, "a node could not be changed in place");
    }
    let end = (how.end)(slot, answer);
    Some(Ended::new(end, executor.clock.now(), urgency))
}

/// The labels that the host of a node is to have.
fn labels(inner: &ClusterState, node: &Node) -> Option<Wanted> {
    let mut groups = inner.spec().groups.iter();
    let group = groups.find(|group| group.path == node.group)?;
    let growing = || Some(group.growth_of(node)?.0);
    let choice = group.choice_for(node).or_else(growing)?;
    let change = wire::NodeChange {
        host_labels: Some(wire::HostLabels {
            labels: choice.host_labels(),
        }),
        ..wire::NodeChange::default()
    };
    Some((choice.labels_hash.clone(), change))
}

/// The storage that a node is to have.
fn storage(inner: &ClusterState, node: &Node) -> Option<Wanted> {
    let mut groups = inner.spec().groups.iter();
    let group = groups.find(|group| group.path == node.group)?;
    let (choice, size) = group.growth_of(node)?;
    let change = wire::NodeChange {
        storage_size_bytes: Some(size),
        spec_hash: choice.spec_hash.to_string(),
        ..wire::NodeChange::default()
    };
    Some((choice.spec_hash.clone(), change))
}
