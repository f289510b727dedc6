//! Which machine has the control-plane address, if metal-stack announces it. It gives addresses to machines that it is
//! about to install only, so the address goes to a machine that is made after the one that had it is gone.

use drover_core::Result;
use tokio::sync::MutexGuard;

use super::{
    Metal,
    properties::{Endpoint, WantedAllocation},
};
use crate::cloud::{Cloud as _, Filter, Launch, LaunchSlot, Machine, REQUEST};

impl Metal {
    /// Attaches the address to a machine that is not the first one, if no other machine has it. The machine has to be
    /// allocated before the guard is dropped.
    pub(super) async fn inherit(
        &self,
        wanted: &mut WantedAllocation,
        launch: &Launch,
        slot: &LaunchSlot,
    ) -> Result<Option<MutexGuard<'_, ()>>> {
        if !self.inherits(wanted, launch, slot).await? {
            return Ok(None);
        }
        let guard = self.inheriting.lock().await;
        // Another machine may have it by now.
        if self.inherits(wanted, launch, slot).await? {
            wanted.attach();
        }
        Ok(Some(guard))
    }

    /// Whether no machine has the address although some were made that may. Before that the first one is about to get it,
    /// and others cannot join through an address that they have themselves.
    async fn inherits(
        &self,
        wanted: &WantedAllocation,
        launch: &Launch,
        slot: &LaunchSlot,
    ) -> Result<bool> {
        let Some(endpoint) = wanted.endpoint.as_ref().filter(|_| wanted.ips.is_empty()) else {
            return Ok(false);
        };
        Ok(
            self.is_vacant(endpoint, slot).await?
                && self.has_elders(endpoint, launch, slot).await?,
        )
    }

    async fn is_vacant(&self, endpoint: &Endpoint, slot: &LaunchSlot) -> Result<bool> {
        let Some(ip) = self.api.ip(&endpoint.address).await? else {
            return Ok(false);
        };
        for id in ip.machines() {
            // A machine that was freed keeps its addresses until it is clean.
            let machines = self.one(id).await?.machines;
            let mut holders = machines.iter().filter_map(Machine::identity);
            if holders.any(|holder| holder.owner == slot.identity.owner) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether earlier requests made machines that may have the address.
    async fn has_elders(
        &self,
        endpoint: &Endpoint,
        launch: &Launch,
        slot: &LaunchSlot,
    ) -> Result<bool> {
        let cluster = Filter::Cluster(slot.identity.cluster_id.clone());
        let listed = self.list(&cluster).await?;
        let mut others = listed.machines.iter();
        Ok(others.any(|machine| {
            let is_elder = machine.tags.get(REQUEST) != launch.tags.get(REQUEST);
            is_elder
                && machine.identity().is_some_and(|other| {
                    other.owner == slot.identity.owner && endpoint.is_for(&other.group)
                })
        }))
    }
}
