//! Has clusters take in what platforms show of their nodes.

use std::sync::Arc;

use drover_cluster::{Cluster, ClusterState, Effect, Interner, Observation, Observed};
use drover_core::Urgency;
use drover_platforms::Platforms;
use drover_probes::Probes;

/// Tells clusters of observations, and probes and platforms of what follows from them.
#[derive(Clone)]
pub(crate) struct Observer {
    pub(crate) interner: Arc<Interner>,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) probes: Arc<Probes>,
}

impl Observer {
    /// Takes in a node that a platform shows as part of this cluster. Returns how urgently the cluster must be planned.
    pub(crate) fn observe(
        &self,
        cluster: &Cluster,
        state: &mut ClusterState,
        seen: Observation<'_>,
    ) -> Option<Urgency> {
        let platform = seen.source.platform;
        let Observed { urgency, effects } = state.observe(seen, &self.interner);
        for effect in effects {
            if let Effect::Probe { group, slot } = &effect {
                self.probes.track(state, group, *slot);
                continue;
            }
            let Some(registered) = self.platforms.get(platform) else {
                continue;
            };
            match effect {
                Effect::Probe { .. } => {}
                Effect::Returned => registered.platform.returned(),
                Effect::Stranger => registered.platform.stranger(),
                Effect::ClaimEnded => {
                    registered
                        .platform
                        .drop_claim(cluster.name(), &seen.node.node_id);
                }
                Effect::Claimed { recorded } => {
                    let (name, id) = (&**cluster.name(), seen.node.node_id.as_str());
                    if registered.platform.claim(name, id, &recorded, seen.now) {
                        tracing::error!(%platform, cluster = name, node_id = id, %recorded, "a platform shows a node that is recorded on another one; it is not believed");
                    }
                }
            }
        }
        urgency
    }
}
