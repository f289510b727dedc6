//! Calls to platforms, exactly as planned, each in one [envelope](Envelope). Nothing is decided here: whoever has a call
//! made is told how it [ended](Ended).

mod adopt;
mod confirm;
mod deprovision;
mod ended;
mod envelope;
pub mod hook;
mod in_place;
pub mod points;
mod provision;
mod resources;
mod role_change;
mod sole;
mod trace;

use std::sync::Arc;

use drover_cluster::{CallEnd, Cluster, Clusters, Interner};
use drover_core::{Millis, Urgency};
use drover_planner::Call;
use drover_platforms::{Platforms, Registered};
use drover_probes::Probes;
use drover_secrets::Vault;
use drover_store::Clock;

pub use ended::{Complete, Ended, Shown};
pub use envelope::{Envelope, Kind, Open, Turn};
pub use points::{Hooks, Point};

/// Makes calls.
#[derive(Debug)]
pub struct Executor {
    /// All clusters.
    pub clusters: Arc<Clusters>,
    /// The platforms that are called.
    pub platforms: Arc<Platforms>,
    /// Has the restrictions for questions to agents.
    pub probes: Arc<Probes>,
    /// The secrets that are sent, and that no answer may repeat.
    pub vault: Arc<Vault>,
    /// Shared forms of texts in answers.
    pub interner: Arc<Interner>,
    /// The current time.
    pub clock: Arc<Clock>,
    /// Points at which tests kill the process.
    pub hooks: Hooks,
}

impl Executor {
    /// Makes a call of a plan. `None` if its record is gone, so that there is nothing to call.
    pub async fn call(&self, cluster: &Cluster, call: Call, urgency: Urgency) -> Option<Ended> {
        // Thousands may wait for their turn, and what they need for the call itself is large.
        let turn = self.turn(cluster, &call, urgency).await;
        Box::pin(self.make(cluster, call, urgency, turn)).await
    }

    /// Waits for the turn of a call of which there may be many. `None` if it is none of those, or fails without waiting.
    async fn turn(&self, cluster: &Cluster, call: &Call, urgency: Urgency) -> Option<Turn> {
        let platform = match call {
            Call::Provision { request, .. } => {
                let inner = cluster.lock();
                inner.state().requests.get(request)?.platform.clone()
            }
            Call::Deprovision { slot } => cluster.lock().state().node(*slot)?.platform.clone(),
            _ => return None,
        };
        let registered = self.platforms.get(&platform)?;
        registered.platform.client()?;
        Some(self.wait(&registered, urgency).await)
    }

    async fn wait(&self, registered: &Registered, urgency: Urgency) -> Turn {
        let now = || self.clock.now();
        registered.platform.permit(urgency, now).await.into()
    }

    async fn make(
        &self,
        cluster: &Cluster,
        call: Call,
        urgency: Urgency,
        turn: Option<Turn>,
    ) -> Option<Ended> {
        match call {
            Call::Provision { request, deadline } => {
                provision::provision(self, cluster, (request, deadline), urgency, turn).await
            }
            Call::Deprovision { slot } => {
                deprovision::deprovision(self, cluster, slot, urgency, turn).await
            }
            Call::RoleChange { slot } => role_change::change(self, cluster, slot).await,
            Call::Relabel { slot } => {
                in_place::change(self, cluster, slot, urgency, in_place::LABELS).await
            }
            Call::Grow { slot } => {
                in_place::change(self, cluster, slot, urgency, in_place::STORAGE).await
            }
            Call::Sole { slot, allow } => Some(sole::change(self, cluster, slot, allow).await),
            Call::Drain { slot, until } => Some(self.drain(cluster, slot, until).await),
            Call::Adopt { slot } => adopt::adopt(self, cluster, slot, urgency).await,
            Call::Confirm { platform } => confirm::confirm(self, cluster, platform).await,
            Call::Resource { key, asked } => {
                resources::call(self, cluster, key, asked, urgency).await
            }
        }
    }

    /// Runs the pre-stop hook of a node before its removal.
    async fn drain(&self, cluster: &Cluster, slot: u64, until: Millis) -> Ended {
        let pre_stop = cluster.lock().pre_stop(slot);
        let ran = match &pre_stop {
            None => Ok(()),
            Some(pre_stop) => {
                hook::run(self, cluster, slot, pre_stop, self.clock.until(until)).await
            }
        };
        Ended::new(
            CallEnd::PreStop { slot, ran },
            self.clock.now(),
            Urgency::Urgent,
        )
    }
}
