//! Calls to platforms, exactly as planned, each as a task of its own and in one [envelope](Envelope). The next pass
//! takes in their results; nothing is decided here.

mod adopt;
mod confirm;
mod deprovision;
mod envelope;
pub(crate) mod hook;
mod infrastructure;
mod provision;
mod role_change;

use std::sync::Arc;

use drover_core::Millis;
use drover_planner::Call;
use drover_telemetry::{context, current};

use crate::{
    cluster::{CallEnd, Cluster},
    order,
    queue::Urgency,
    shared::Shared,
};

pub(crate) use envelope::{Envelope, Kind};

/// Starts a call as a task of its own.
pub(crate) fn start(shared: &Arc<Shared>, cluster: &Arc<Cluster>, call: &Call, urgency: Urgency) {
    let (shared, cluster, call) = (shared.clone(), cluster.clone(), call.clone());
    let owner = shared.clone();
    owner.spawn(context::scope(current(), async move {
        let next = match call {
            Call::Provision { request, deadline } => {
                provision::provision(&shared, &cluster, request, deadline, urgency).await
            }
            Call::Deprovision { slot } => {
                deprovision::deprovision(&shared, &cluster, slot, urgency).await
            }
            Call::RoleChange { slot } => role_change::change(&shared, &cluster, slot).await,
            Call::Drain { slot, until } => drain(&shared, &cluster, slot, until).await,
            Call::Adopt { slot } => adopt::adopt(&shared, &cluster, slot, urgency).await,
            Call::Confirm { platform } => confirm::confirm(&shared, &cluster, &platform).await,
            Call::Infrastructure {
                platform,
                uid,
                asked,
            } => infrastructure::call(&shared, &cluster, (platform, uid), asked, urgency).await,
        };
        if let Some(urgency) = next {
            shared.queue.push(cluster.uid, urgency);
        }
    }));
}

/// Runs the pre-stop hook of a node before its removal.
async fn drain(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    slot: u64,
    until: Millis,
) -> Option<Urgency> {
    let pre_stop = order::pre_stop(&cluster.inner.lock(), slot);
    let ran = match &pre_stop {
        None => Ok(()),
        Some(pre_stop) => {
            hook::run(shared, cluster, slot, pre_stop, shared.clock.until(until)).await
        }
    };
    let now = shared.now();
    let mut inner = cluster.inner.lock();
    let end = CallEnd::PreStop { slot, ran };
    inner.call_ended(end, now).then_some(Urgency::Urgent)
}
