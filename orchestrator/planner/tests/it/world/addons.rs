//! Addons in the world, and what always holds of them.

use std::sync::Arc;

use drover_core::{
    Millis, Sym,
    addon::{AddonTarget, WantedAddon},
    node::{RemovalReason, SeenAddress},
    resource::{ResourceKey, ResourceRecord, Wanted},
};
use drover_planner::{Call, Plan};

use super::{World, backend::Thing, infrastructure::Site};

/// A desired addon over groups.
pub fn addon(name: &str, platform: &str, groups: &[&str]) -> WantedAddon {
    WantedAddon {
        name: name.into(),
        wanted: Wanted::new(platform, b"proxy"),
        targets: groups.iter().map(|group| (*group).into()).collect(),
        secrets: Vec::new(),
        ports: Vec::new(),
    }
}

/// The key of an addon.
pub fn key(name: &str, platform: &str) -> ResourceKey {
    ResourceKey::addon(name, platform, format!("uid-of-{platform}"))
}

pub(super) fn address(thing: &Thing) -> SeenAddress {
    SeenAddress {
        kind: 1,
        value: thing.id.as_str().into(),
        interface: Sym::default(),
    }
}

impl Site {
    pub(super) fn serve(&mut self, targets: &Arc<[AddonTarget]>, now: Millis) {
        if self.targets != *targets {
            self.targets = Arc::clone(targets);
            self.serves_at = now + self.reload;
        }
    }
}

impl World {
    /// Changes the desired addons.
    pub fn want_addons(&mut self, addons: Vec<WantedAddon>) {
        self.addon_secrets = vec![Sym::default(); addons.len()];
        self.addons = addons;
        self.state.generation += 1;
        self.durable.generation += 1;
    }

    pub fn addon(&mut self, name: &str, platform: &str) -> &mut Site {
        self.sites.entry(key(name, platform)).or_default()
    }

    pub fn addon_record(&self, name: &str, platform: &str) -> Option<&ResourceRecord> {
        self.state.resources.get(&key(name, platform))
    }

    /// Whether a list sends new connections to a node.
    pub fn is_served(&self, slot: u64) -> bool {
        let there = |site: &Site| site.is_there(self.now);
        let addons = self
            .sites
            .iter()
            .filter(|(key, site)| key.is_addon() && there(site));
        let mut targets = addons.flat_map(|(_, site)| site.targets.iter());
        targets.any(|target| target.slot == slot && !target.draining)
    }

    /// No node goes while an addon sends connections to it, unless its grace is over or it is dead.
    pub(super) fn check_addons(&self, planned: &Plan) {
        for call in &planned.calls {
            let Call::Deprovision { slot } = call else {
                continue;
            };
            let Some(node) = self.state.node(*slot) else {
                continue;
            };
            let Some(removal) = node.removal.filter(|_| self.is_served(*slot)) else {
                continue;
            };
            let grace = 30_000;
            let dead = matches!(removal.reason, RemovalReason::Dead | RemovalReason::Orphan);
            assert!(
                dead || node.is_dead() || self.now >= removal.since + grace,
                "goes while it is served: {node:?}"
            );
        }
    }
}
