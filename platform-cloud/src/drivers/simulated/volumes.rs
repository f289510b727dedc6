//! Storage of simulated nodes: it has no content, but an id, an owner and at most one node.

use std::collections::BTreeMap;

use drover_core::Result;
use drover_proto::platform::v1::{KeptStorage, Storage};
use serde::{Deserialize, Serialize};

use super::world::node_id;
use drover_platform::{
    clock::timestamp,
    identity::Identity,
    storage::{in_use, is_meant},
};

/// Storage, in memory and in the state file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Volume {
    pub(super) id: String,
    owner: String,
    cluster_id: String,
    group: String,
    ordinal: u32,
    store_id: String,
    size_bytes: Option<u64>,
    class: String,
    /// Number of the node that has it.
    node: Option<u32>,
    /// Whether it is retained when the node is deleted. A node that vanishes on its own retains it.
    retain: bool,
    /// When it was detached from a node, in milliseconds since the Unix epoch. 0 while a node has it.
    kept: u64,
}

impl Volume {
    pub(super) fn is_kept(&self) -> bool {
        self.retain
    }

    fn hand_to(&mut self, identity: &Identity) {
        self.owner.clone_from(&identity.owner);
        self.cluster_id.clone_from(&identity.cluster_id);
        self.group.clone_from(&identity.group);
        self.ordinal = identity.ordinal;
        self.store_id.clone_from(&identity.store_id);
    }
}

/// The fate of the storage of a deleted node.
pub(super) enum Left {
    /// Retained.
    Kept(Volume),
    /// Deleted with its node.
    Gone(String),
}

#[derive(Default)]
pub(super) struct Volumes(BTreeMap<String, Volume>);

impl Volumes {
    /// Restores storage from the state file. Storage of missing nodes is detached. The identity of an attached node is
    /// authoritative, as the state file may end in the middle of its adoption.
    pub(super) fn restore<'a>(
        past: BTreeMap<String, Volume>,
        node: impl Fn(u32) -> Option<&'a Identity>,
    ) -> Self {
        let mut volumes = past;
        for volume in volumes.values_mut() {
            match volume.node.and_then(&node) {
                Some(identity) => volume.hand_to(identity),
                None => volume.node = None,
            }
        }
        Self(volumes)
    }

    fn of(&self, identity: &Identity) -> Option<&Volume> {
        let own = self.0.values().filter(|volume| {
            volume.owner == identity.owner
                && volume.cluster_id == identity.cluster_id
                && volume.group == identity.group
                && volume.ordinal == identity.ordinal
        });
        // Adoption into an ordinal with retained storage leaves two. The one used last has the latest data.
        own.max_by_key(|volume| (volume.node.is_some(), volume.kept))
    }

    /// Checks that a node with this identity can get its storage.
    ///
    /// # Errors
    /// `Precondition` if another node has it.
    pub(super) fn check(&self, identity: &Identity) -> Result<()> {
        match self.of(identity) {
            Some(Volume {
                id,
                node: Some(node),
                ..
            }) => Err(in_use(id, &node_id(*node))),
            _ => Ok(()),
        }
    }

    /// Attaches the retained storage of a node's identity, or new storage.
    pub(super) fn attach(&mut self, identity: &Identity, storage: &Storage, number: u32) -> Volume {
        let there = self.of(identity);
        let id = there.map_or_else(|| format!("vol-{number:08x}"), |volume| volume.id.clone());
        // It never shrinks.
        let least = there.and_then(|volume| volume.size_bytes);
        let volume = Volume {
            id: id.clone(),
            owner: identity.owner.clone(),
            cluster_id: identity.cluster_id.clone(),
            group: identity.group.clone(),
            ordinal: identity.ordinal,
            store_id: identity.store_id.clone(),
            size_bytes: storage.size_bytes.max(least),
            class: storage.class.clone(),
            node: Some(number),
            retain: true,
            kept: 0,
        };
        self.0.insert(id, volume.clone());
        volume
    }

    /// Passes the storage of an adopted node to its new owner.
    pub(super) fn hand_over(&mut self, number: u32, identity: &Identity) -> Option<Volume> {
        let volume = self.attached(number)?;
        volume.hand_to(identity);
        Some(volume.clone())
    }

    /// Whether a node has storage.
    pub(super) fn has(&self, number: u32) -> bool {
        self.0.values().any(|volume| volume.node == Some(number))
    }

    /// Enlarges the storage of a node, unless it is larger.
    pub(super) fn grow(&mut self, number: u32, size: u64) -> Option<Volume> {
        let volume = self.attached(number)?;
        volume.size_bytes = volume.size_bytes.max(Some(size));
        Some(volume.clone())
    }

    /// Sets whether the storage of a node is retained on deletion. With `again`, a repeated request cannot revoke
    /// retention.
    pub(super) fn release(&mut self, number: u32, retain: bool, again: bool) -> Option<Volume> {
        let volume = self.attached(number)?;
        volume.retain = retain || again && volume.retain;
        Some(volume.clone())
    }

    /// Detaches or deletes the storage of a deleted node.
    pub(super) fn detach(&mut self, number: u32, now: u64) -> Option<Left> {
        let volume = self.attached(number)?;
        if volume.retain {
            volume.node = None;
            volume.kept = now;
            return Some(Left::Kept(volume.clone()));
        }
        let id = volume.id.clone();
        self.0.remove(&id);
        Some(Left::Gone(id))
    }

    fn attached(&mut self, number: u32) -> Option<&mut Volume> {
        self.0
            .values_mut()
            .find(|volume| volume.node == Some(number))
    }

    /// All storage, each with the node that has it.
    pub(super) fn all(&self) -> Vec<(KeptStorage, Option<String>)> {
        let all = self.0.values();
        all.map(|volume| (shown(volume), volume.node.map(node_id)))
            .collect()
    }

    /// Detached storage.
    pub(super) fn kept(&self) -> Vec<KeptStorage> {
        let free = self.0.values().filter(|volume| volume.node.is_none());
        free.map(shown).collect()
    }

    /// Deletes storage if it matches `meant`. Returns false if it does not exist.
    ///
    /// # Errors
    /// As the platform documents them for DeleteStorage.
    pub(super) fn delete(&mut self, meant: &KeptStorage) -> Result<bool> {
        let Some(volume) = self.0.get(&meant.id) else {
            return Ok(false);
        };
        is_meant(meant, &shown(volume))?;
        if let Some(node) = volume.node {
            return Err(in_use(&meant.id, &node_id(node)));
        }
        self.0.remove(&meant.id);
        Ok(true)
    }
}

fn shown(volume: &Volume) -> KeptStorage {
    let since = std::time::UNIX_EPOCH + std::time::Duration::from_millis(volume.kept);
    KeptStorage {
        id: volume.id.clone(),
        owner: volume.owner.clone(),
        cluster_id: volume.cluster_id.clone(),
        group: volume.group.clone(),
        ordinal: volume.ordinal,
        storage: Some(Storage {
            size_bytes: volume.size_bytes,
            class: volume.class.clone(),
        }),
        kept_time: (volume.kept > 0).then(|| timestamp(since)),
        store_id: volume.store_id.clone(),
    }
}
