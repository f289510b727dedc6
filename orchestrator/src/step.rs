//! What follows from a durable step outside of its cluster: probes, and the numbers that platforms and readers see.

use bytes::Bytes;
use drover_cluster::{Cluster, Stepped};
use drover_core::Millis;
use drover_planner::Plan;
use drover_store::StepDone;
use uuid::Uuid;

use crate::shared::Shared;

/// Applies a durable step to memory.
pub(crate) fn take_over(
    shared: &Shared,
    cluster: &Cluster,
    plan: &Plan,
    bodies: Vec<(Uuid, Bytes)>,
    done: StepDone,
    now: Millis,
) {
    let revision = done.revision;
    let mut inner = cluster.lock();
    let Stepped {
        counts: change,
        probe,
        backed_off,
    } = inner.commit(plan, bodies, done, now);
    for platform in backed_off {
        let platform = platform.to_string();
        metrics::counter!("drover_back_offs_total", "platform" => platform).increment(1);
    }
    for one in probe {
        shared.probes.track(&mut inner, &one.group, one.slot);
    }
    shared.changed(cluster, &mut inner);
    shared.wrote(revision);
    drop(inner);
    shared.platforms.count(&change);
}
