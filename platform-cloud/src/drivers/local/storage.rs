//! Kept storage: listed, and deleted while no node can get it.

use std::{
    collections::BTreeSet,
    io,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use drover_core::{Error, Result};
use drover_proto::platform::v1::{DeprovisionState, KeptStorage, Storage};

use super::{LocalDriver, Shared, make::cannot_write, node::blocking, place::Seat, state::Volume};
use drover_platform::{
    clock::timestamp,
    storage::{in_use, is_meant},
};

/// Keeps storage from being promised to a node while it is deleted.
struct Held {
    shared: Arc<Shared>,
    name: String,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.seats.lock().remove(&self.name);
    }
}

impl Shared {
    /// Keys of the storage that nodes have or are promised.
    pub(super) fn taken_storage(&self) -> BTreeSet<String> {
        let seats = self.seats.lock();
        let taken = seats.values().filter_map(|seat| seat.storage.clone());
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
            // It may have gone with its node since it was read.
            .filter(|(key, _)| free(key))
            .map(|(key, volume)| kept(key, volume))
            .collect())
    }

    pub(super) async fn delete_kept(&self, meant: &KeptStorage) -> Result<DeprovisionState> {
        let _open = self.while_open().await?;
        let key = meant.id.clone();
        // The id is the name of a directory.
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

    fn hold_storage(&self, key: &str) -> Result<Held> {
        let mut seats = self.shared.seats.lock();
        let taken = |seat: &Seat| seat.storage.as_deref() == Some(key);
        if let Some((node, _)) = seats.iter().find(|(_, seat)| taken(seat)) {
            return Err(in_use(key, node));
        }
        // No node has such an id.
        let name = format!(".storage-{key}");
        let seat = Seat {
            cluster_id: String::new(),
            group: String::new(),
            failure_domain: String::new(),
            ports: BTreeSet::new(),
            storage: Some(key.to_owned()),
        };
        seats.insert(name.clone(), seat);
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
