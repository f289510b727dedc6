//! Copies of a cluster that plans are tried on.

use std::{ops::Deref, sync::Arc};

use drover_core::Millis;
use drover_planner::{Call, Op, Plan};
use drover_store::{Desired, Versioned};

use crate::{ClusterState, Resolved};

/// A copy of a cluster, on which plans are tried that nobody carries out.
#[derive(Debug)]
pub struct Preview(ClusterState);

impl Deref for Preview {
    type Target = ClusterState;

    fn deref(&self) -> &ClusterState {
        &self.0
    }
}

impl ClusterState {
    /// A copy of the cluster as it is.
    #[must_use]
    pub fn preview(&self) -> Preview {
        Preview(self.clone())
    }

    /// A copy of the cluster as if this were its desired state.
    #[must_use]
    pub fn what_if(&self, desired: Versioned<Desired>, spec: Arc<Resolved>) -> Preview {
        let mut preview = self.preview();
        preview.0.defaults = None;
        preview.0.desire(desired, Some(spec));
        preview.0.state.paused = false;
        preview
    }
}

impl Preview {
    /// Goes on as if a plan were carried out: its step is made, adoptions succeed, and removals are under way.
    pub fn step(&mut self, plan: &Plan, now: Millis) {
        let state = &mut self.0.state;
        drover_planner::apply(state, &plan.ops, now);
        for call in &plan.calls {
            match call {
                Call::Adopt { slot } => {
                    drover_planner::apply(state, &[Op::Own { slot: *slot }], now);
                }
                Call::Deprovision { slot } => {
                    if let Some(node) = state.node_mut(*slot) {
                        node.in_flight.call.in_flight = true;
                    }
                }
                _ => {}
            }
        }
    }
}
