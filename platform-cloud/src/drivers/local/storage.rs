//! Retained storage: listing, and deletion that excludes concurrent use by nodes.

use std::{
    collections::BTreeSet,
    io,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{DeprovisionState, KeptStorage, Storage};

use super::{
    LocalDriver, Shared, make::cannot_write, node::blocking, place::NodePlacement, state::Volume,
};
use drover_platform::{
    clock::timestamp,
    storage::{in_use, is_meant},
};

/// Reserves storage while it is deleted, so that no node gets it.
struct Held {
    shared: Arc<Shared>,
    name: String,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.placements.lock().remove(&self.name);
    }
}

impl Shared {
    /// Keys of storage that is in use by or reserved for nodes.
    pub(super) fn taken_storage(&self) -> BTreeSet<String> {
        let placements = self.placements.lock();
        let taken = placements
            .values()
            .filter_map(|placement| placement.storage.clone());
        taken.collect()
    }
}

impl LocalDriver {
    pub(super) async fn list_kept(&self) -> Result<Vec<KeptStorage>> {
        let state = Arc::clone(&self.shared.state);
        let volumes = blocking(move || state.volumes())
            .await
            .map_err(|error| cannot_read(&error))?;
        let taken = self.shared.taken_storage();
        let free = |key: &str| !taken.contains(key) && self.shared.state.storage(key).exists();
        Ok(volumes
            .into_iter()
            // It may have been removed with its node since it was read.
            .filter(|(key, _)| free(key))
            .map(|(key, volume)| kept(key, volume))
            .collect())
    }

    pub(super) async fn delete_kept(&self, meant: &KeptStorage) -> Result<DeprovisionState> {
        let _open = self.while_open().await?;
        let key = meant.id.clone();
        // The id is a directory name, so it must not traverse paths.
        if key.starts_with('.') || key.contains(['/', '\0']) {
            return Ok(DeprovisionState::Gone);
        }
        let _held = self.hold_storage(&key)?;
        let state = Arc::clone(&self.shared.state);
        let asked = key.clone();
        let volumes = blocking(move || state.volumes())
            .await
            .map_err(|error| cannot_read(&error))?;
        let Some((_, volume)) = volumes.into_iter().find(|(found, _)| *found == asked) else {
            return Ok(DeprovisionState::Gone);
        };
        is_meant(meant, &kept(key.clone(), volume))?;
        let state = Arc::clone(&self.shared.state);
        blocking(move || state.remove_storage(&key))
            .await
            .map_err(|error| cannot_write(&error))?;
        Ok(DeprovisionState::Gone)
    }

    /// Records that the storage of a node is larger, unless it is. Nothing enforces sizes here.
    pub(super) async fn grow(&self, key: Option<String>, size: u64) -> Result<()> {
        let missing = || Error::new(Reason::Precondition, "the node has no storage");
        let key = key.ok_or_else(missing)?;
        let state = Arc::clone(&self.shared.state);
        blocking(move || state.grow(&key, size))
            .await
            .map_err(|error| cannot_write(&error))
    }

    fn hold_storage(&self, key: &str) -> Result<Held> {
        let mut placements = self.shared.placements.lock();
        let taken = |placement: &NodePlacement| placement.storage.as_deref() == Some(key);
        if let Some((node, _)) = placements.iter().find(|(_, placement)| taken(placement)) {
            return Err(in_use(key, node));
        }
        // Node ids never start with a dot, so the reservation does not collide with one.
        let name = format!(".storage-{key}");
        let placement = NodePlacement {
            cluster_id: String::new(),
            group: String::new(),
            failure_domain: String::new(),
            ports: BTreeSet::new(),
            storage: Some(key.to_owned()),
        };
        placements.insert(name.clone(), placement);
        Ok(Held {
            shared: Arc::clone(&self.shared),
            name,
        })
    }
}

fn kept(id: String, volume: Option<Volume>) -> KeptStorage {
    let Some(volume) = volume else {
        return KeptStorage {
            id,
            ..KeptStorage::default()
        };
    };
    let since = UNIX_EPOCH + Duration::from_millis(volume.kept);
    KeptStorage {
        id,
        owner: volume.owner,
        cluster_id: volume.cluster_id,
        group: volume.group,
        ordinal: volume.ordinal,
        storage: Some(Storage {
            size_bytes: volume.size_bytes,
            class: volume.class,
        }),
        kept_time: (volume.kept > 0).then(|| timestamp(since)),
        store_id: volume.store_id,
    }
}

fn cannot_read(error: &io::Error) -> Error {
    Error::unavailable(format!("the state directory cannot be read: {error}"))
}
