//! Role changes: first the platform is told, then the node itself, by its hook, then the platform that clients may be led to
//! the node. Each may be repeated.

use std::time::Duration;

use drover_cluster::{CallEnd, Cluster, ClusterState, RoleChangeFailure};
use drover_core::{Error, Reason, Result, Sym, Urgency, error::KILLED, node::Role, spec::Hook};
use drover_proto::platform::v1 as wire;

use super::{
    envelope::{Envelope, Kind},
    hook,
};
use crate::{Ended, Executor};

/// Deadline of an UpdateNode call, which only changes a label, a tag or a file.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Makes a node take the role that its record intends: first its platform is told, then, on promotion, the hook runs in
/// the node.
pub(super) async fn change(executor: &Executor, cluster: &Cluster, slot: u64) -> Option<Ended> {
    let (role, request) = {
        let inner = cluster.lock();
        let node = inner.state().node(slot)?;
        let change = wire::NodeChange {
            role: wire_role(node.role).into(),
            ..wire::NodeChange::default()
        };
        let request = wire::UpdateNodeRequest {
            update: Some(wire::update_node_request::Update::Change(change)),
            ..target(cluster, node)?
        };
        (node.role, request)
    };
    let answer = tell(executor, cluster, slot, role, request).await;
    if let Err(RoleChangeFailure { error, .. }) = &answer {
        tracing::debug!(cluster = %cluster.name(), slot, %error, "a role could not be changed");
    }
    let end = CallEnd::RoleChange { slot, role, answer };
    Some(Ended::new(end, executor.clock.now(), Urgency::Urgent))
}

fn wire_role(role: Role) -> wire::NodeRole {
    match role {
        Role::Promoting | Role::Active => wire::NodeRole::Active,
        Role::Demoting | Role::Standby => wire::NodeRole::Standby,
    }
}

/// A request about a node as it is recorded, which does not say yet what is to be changed.
pub(super) fn target(
    cluster: &Cluster,
    node: &drover_core::Node,
) -> Option<wire::UpdateNodeRequest> {
    Some(wire::UpdateNodeRequest {
        expected_platform_uid: node.platform_uid.to_string(),
        node_id: node.node_id.as_ref()?.to_string(),
        expected_cluster_id: cluster.name().to_string(),
        expected_slot: Some(wire::SlotKey {
            owner: cluster.uid().to_string(),
            request_id: node.request.to_string(),
            index: Some(node.index),
        }),
        ..wire::UpdateNodeRequest::default()
    })
}

async fn tell(
    executor: &Executor,
    cluster: &Cluster,
    slot: u64,
    role: Role,
    request: wire::UpdateNodeRequest,
) -> Result<(), RoleChangeFailure> {
    let (platform, post_promote) = {
        let inner = cluster.lock();
        let gone = || Error::not_found("node", "its record is gone");
        let platform = inner.state().node(slot).ok_or_else(gone)?.platform.clone();
        let post_promote = post_promote(&inner, slot);
        (platform, post_promote)
    };
    let Some(post_promote) = post_promote.filter(|_| role == Role::Promoting) else {
        return Ok(update(executor, cluster, slot, &platform, request).await?);
    };
    let first = promoting(request.clone());
    update(executor, cluster, slot, &platform, first).await?;
    hook::run(executor, cluster, slot, &post_promote, post_promote.timeout)
        .await
        .map_err(|error| RoleChangeFailure {
            refused: says_no(&error),
            error: Error::new(error.reason(), format!("postPromote {}", error.message())),
        })?;
    // Whatever comes of this, it has been promoted.
    let led_to = update(executor, cluster, slot, &platform, request).await;
    led_to.map_err(|error| RoleChangeFailure {
        refused: false,
        error,
    })
}

async fn update(
    executor: &Executor,
    cluster: &Cluster,
    slot: u64,
    platform: &Sym,
    mut request: wire::UpdateNodeRequest,
) -> Result<()> {
    let uid = request.expected_platform_uid.clone();
    let envelope = Envelope {
        executor,
        kind: Kind::RoleChange,
        platform,
        uid: &uid,
        owner: cluster.uid(),
        urgency: Urgency::Urgent,
        turn: None,
    };
    envelope
        .send(async |open| {
            request.fence = Some(open.fence.clone());
            request.expected_instance_id.clone_from(&open.instance);
            open.call(async |client| {
                let answer = client.update_node(request, TIMEOUT).await.map(drop);
                executor.vault.hide(cluster, slot, answer).await
            })
            .await
        })
        .await
}

/// The same request for a node whose hook has yet to make it active.
fn promoting(mut request: wire::UpdateNodeRequest) -> wire::UpdateNodeRequest {
    if let Some(wire::update_node_request::Update::Change(change)) = &mut request.update {
        change.promoting = true;
    }
    request
}

/// The promotion hook of a node: its group's own, or else its template's.
fn post_promote(inner: &ClusterState, slot: u64) -> Option<Hook> {
    let node = inner.state().node(slot)?;
    inner.lifecycle(&node.group)?.post_promote
}

/// Whether a hook that failed with this error has certainly not made the node active.
pub(super) fn says_no(error: &Error) -> bool {
    !error.metadata().contains_key(KILLED)
        && matches!(
            error.reason(),
            Reason::Precondition
            | Reason::CapabilityMissing
            | Reason::NodeNotRunning
            // The hook never started.
            | Reason::NotSent
            | Reason::PlatformRestarted
            | Reason::Fenced
            | Reason::Overloaded
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_never_asked_has_done_nothing_and_who_may_have_been_is_in_doubt() {
        for (reason, refused) in [
            (Reason::NotSent, true),
            (Reason::PlatformRestarted, true),
            (Reason::Fenced, true),
            (Reason::Precondition, true),
            (Reason::Overloaded, true),
            (Reason::Unavailable, false),
            (Reason::Internal, false),
        ] {
            let failure = RoleChangeFailure::from(Error::new(reason, "no"));
            assert_eq!(failure.refused, refused, "{reason:?}");
            let hook = Error::new(reason, "no");
            assert_eq!(says_no(&hook), refused, "a hook: {reason:?}");
            let killed = hook.with_metadata(KILLED, true);
            assert!(!says_no(&killed), "a hook that was killed: {reason:?}");
        }
    }
}
