//! Sole writers: hooks that allow an active node to acknowledge alone, and take the permission back. Both may be repeated.

use drover_cluster::{CallEnd, Cluster, ClusterState, RoleChangeFailure};
use drover_core::{Error, Reason, Urgency, spec::Hook};

use super::{hook, role_change::says_no};
use crate::{Ended, Executor};

/// Allows a node to acknowledge alone, or takes the permission back.
pub(super) async fn change(
    executor: &Executor,
    cluster: &Cluster,
    slot: u64,
    allow: bool,
) -> Ended {
    let wanted = wanted(&cluster.lock(), slot, allow);
    let answer = match wanted {
        Some(wanted) => hook::run(executor, cluster, slot, &wanted, wanted.timeout).await,
        None => {
            let message = "the template of the node has changed meanwhile";
            Err(Error::new(Reason::NotSent, message))
        }
    };
    if let Err(error) = &answer {
        tracing::debug!(cluster = %cluster.name(), slot, allow, %error, "the permission to acknowledge alone could not be changed");
    }
    let answer = answer.map_err(|error| RoleChangeFailure {
        refused: says_no(&error),
        error,
    });
    let end = CallEnd::Sole {
        slot,
        allow,
        answer,
    };
    Ended::new(end, executor.clock.now(), Urgency::Urgent)
}

fn wanted(inner: &ClusterState, slot: u64, allow: bool) -> Option<Hook> {
    let node = inner.state().node(slot)?;
    let writer = inner.lifecycle(&node.group)?.sole_writer?;
    if allow {
        writer.allow
    } else {
        Some(writer.revoke)
    }
}
