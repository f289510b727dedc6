//! Changes of roles: the platform is told, and then the node itself, by its hook. Both may be told again.

use std::{sync::Arc, time::Duration};

use drover_client::PlatformClient;
use drover_core::{Class, Error, Millis, Reason, Result, node::Role, spec::Hook};
use drover_proto::platform::v1 as wire;
use drover_telemetry::span;

use crate::{
    calls::{judged, turn_at},
    cluster::{Cluster, Inner},
    exec::run_hook,
    hooks::Point,
    queue::Urgency,
    secrets,
    shared::Shared,
    trace,
    witness::Subject,
};

/// Deadline of an UpdateNode call: a label, a tag or a file.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(10);
/// First wait after a change of a role failed; it doubles. Somebody waits for the service.
const RETRY_FIRST: Millis = 250;
/// Longest wait after that.
const RETRY_MOST: Millis = 30_000;

/// Why a change of a role failed.
struct Failure {
    error: Error,
    /// Nothing of it happened.
    refused: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        // Whoever was asked and says that it cannot be, or was never asked, has done nothing.
        let refused = matches!(
            error.class(),
            Class::Cannot | Class::Credentials | Class::Stale
        ) || error.reason() == Reason::Overloaded;
        Self { error, refused }
    }
}

/// Has a node take the role that its record intends: first its platform, then, to become active, the node by its hook.
pub(crate) async fn turn(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    slot: u64,
) -> Option<Urgency> {
    let (role, request) = {
        let inner = cluster.inner.lock();
        let node = inner.state.node(slot)?;
        (node.role, request(cluster, node)?)
    };
    let told = tell(shared, cluster, slot, role, request).await;
    let now = shared.now();
    let mut inner = cluster.inner.lock();
    if let Some(witness) = &inner.witness {
        let error = told.as_ref().err().map(|failure| &failure.error);
        witness.answered(Subject::Slot(slot), error);
    }
    let node = inner.state.node_mut(slot)?;
    let name = node.name();
    let turn = node.turn.get_or_insert_default();
    turn.call.in_flight = false;
    match told {
        Ok(()) => turn.done = node.role == role,
        Err(Failure { error, refused }) => {
            tracing::debug!(cluster = %cluster.name, %name, %error, "a role could not be changed");
            let most = (RETRY_FIRST << turn.call.failures.min(16)).min(RETRY_MOST);
            turn.call.next = now + fastrand::u64(most / 2..=most);
            turn.failed(refused, error.message());
        }
    }
    shared.changed(cluster, &mut inner);
    Some(Urgency::Urgent)
}

fn request(cluster: &Cluster, node: &drover_core::Node) -> Option<wire::UpdateNodeRequest> {
    let role = match node.role {
        Role::Promoting | Role::Active => wire::NodeRole::Active,
        Role::Demoting | Role::Standby => wire::NodeRole::Standby,
    };
    let change = wire::NodeChange {
        role: role.into(),
        ..wire::NodeChange::default()
    };
    Some(wire::UpdateNodeRequest {
        expected_platform_uid: node.platform_uid.to_string(),
        node_id: node.node_id.as_ref()?.to_string(),
        expected_cluster_id: cluster.name.to_string(),
        expected_slot: Some(wire::SlotKey {
            owner: cluster.uid.to_string(),
            request_id: node.request.to_string(),
            index: Some(node.index),
        }),
        update: Some(wire::update_node_request::Update::Change(change)),
        ..wire::UpdateNodeRequest::default()
    })
}

async fn tell(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    slot: u64,
    role: Role,
    request: wire::UpdateNodeRequest,
) -> Result<(), Failure> {
    let (platform, hook) = {
        let inner = cluster.inner.lock();
        let gone = || Error::not_found("node", "its record is gone");
        let platform = inner.state.node(slot).ok_or_else(gone)?.platform.clone();
        let hook = post_promote(&inner, slot);
        (platform, hook)
    };
    let traced = trace::call("update", &platform);
    let told = span::within(traced.as_ref(), async {
        let uid = request.expected_platform_uid.clone();
        let (registered, client, permit) =
            turn_at(shared, &platform, &uid, Urgency::Urgent).await?;
        shared.hooks.reach(Point::BeforeTurn).await;
        let instance = registered.platform.identity().1;
        let answer = update(shared, cluster, &client, instance, request).await;
        let answer = secrets::hide(shared, cluster, slot, answer).await;
        drop(permit);
        judged(shared, &registered, answer.as_ref().err());
        shared.hooks.reach(Point::AfterTurn).await;
        answer
    })
    .await;
    trace::called(traced, told.as_ref().err());
    told?;
    let Some(hook) = hook.filter(|_| role == Role::Promoting) else {
        return Ok(());
    };
    run_hook(shared, cluster, slot, &hook, hook.timeout)
        .await
        .map_err(|error| Failure {
            refused: says_no(&error),
            error: Error::new(error.reason(), format!("postPromote {}", error.message())),
        })
}

async fn update(
    shared: &Shared,
    cluster: &Cluster,
    client: &PlatformClient,
    instance: String,
    mut request: wire::UpdateNodeRequest,
) -> Result<()> {
    request.fence = Some(shared.fence(cluster.uid));
    request.expected_instance_id = instance;
    client.update_node(request, UPDATE_TIMEOUT).await.map(drop)
}

/// What is run in a node to make it active: what its group says, or else its template.
fn post_promote(inner: &Inner, slot: u64) -> Option<Hook> {
    let node = inner.state.node(slot)?;
    inner.lifecycle(&node.group)?.post_promote
}

/// Whether a hook that ended like this has not made the node active, for certain.
fn says_no(error: &Error) -> bool {
    matches!(
        error.reason(),
        Reason::Precondition
            | Reason::CapabilityMissing
            | Reason::NodeNotRunning
            // It was never begun.
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
            (Reason::PlatformRestarted, true),
            (Reason::Fenced, true),
            (Reason::Precondition, true),
            (Reason::Overloaded, true),
            (Reason::Unavailable, false),
            (Reason::Internal, false),
        ] {
            let failure = Failure::from(Error::new(reason, "no"));
            assert_eq!(failure.refused, refused, "{reason:?}");
            let hook = Error::new(reason, "no");
            assert_eq!(says_no(&hook), refused, "a hook: {reason:?}");
        }
    }
}
