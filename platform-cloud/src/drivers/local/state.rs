//! The state directory: locked by the platform that uses it, with one directory per node.
//!
//! ```text
//! uuid                     identity of the state directory
//! users.json               users by cluster
//! lock                     held by the platform that uses it; contains its pid
//! nodes/NODE_ID/
//!   node.json              identity, ports, placement: everything that Discover reports
//!   spec.json              what the launcher runs; secret
//!   lock                   held by the launcher and by the process that it becomes
//!   process.json           the process, once there is one
//!   exit.json              how it ended, once that is known
//!   removal.json           exists while the node is being removed
//!   peers.json             the node's peers, if its template requests them
//!   log, log.1             output of the process
//!   data/                  data directory of the node
//! endpoints/CLUSTER-GROUP.env  where programs find the nodes of a group
//! nodes/.new-…, .gone-…    partially created and partially removed nodes, to be ignored
//! storage/KEY/             storage that outlives nodes
//! volumes/KEY.json         its owner; while a node has it, the node's record is authoritative
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::IpAddr,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, PermissionsExt, chown},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use drover_core::{Error, Reason, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    files, give,
    process::ProcessId,
    spec::{File, ProcessSpec, User},
};
use drover_platform::identity::Identity;

pub(super) const DATA: &str = "data";
pub(super) const EXIT: &str = "exit.json";
pub(super) const LOCK: &str = "lock";
pub(super) const LOG: &str = "log";
pub(super) const PEERS: &str = "peers.json";
pub(super) const OLD_LOG: &str = "log.1";
pub(super) const NODE: &str = "node.json";
pub(super) const PROCESS: &str = "process.json";
pub(super) const REMOVAL: &str = "removal.json";
pub(super) const SPEC: &str = "spec.json";
const UUID: &str = "uuid";
const NEW: &str = ".new-";
const GONE: &str = ".gone-";
const VOLUMES: &str = "volumes";

/// How often and at which interval the lock is retried if the recorded holder is dead. A child of the dead platform
/// also holds the lock from fork until exec.
const DEAD_HOLDER_LOOKS: u32 = 100;
const DEAD_HOLDER_POLL: Duration = Duration::from_millis(5);

/// A state directory, locked exclusively by this process.
pub(super) struct StateDir {
    root: PathBuf,
    uuid: Uuid,
    /// Released when the process ends for any reason.
    lock: Mutex<Option<OwnedFd>>,
}

/// Everything that Discover reports about a node and that its supervisor needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) node_id: String,
    pub(super) identity: Identity,
    /// Creation time in milliseconds since the Unix epoch.
    pub(super) created: u64,
    pub(super) failure_domain: String,
    /// Host name or address by which others reach it.
    pub(super) host: String,
    /// Listen address. If absent (older records), `host`.
    #[serde(default)]
    pub(super) listen: Option<IpAddr>,
    pub(super) ports: BTreeMap<String, u16>,
    pub(super) agent_address: Option<String>,
    pub(super) readiness: Option<u16>,
    /// File below the data directory that exists once the node is ready.
    #[serde(default)]
    pub(super) readiness_file: Option<PathBuf>,
    pub(super) stop_signal: i32,
    /// Whether it gets the list of its peers.
    #[serde(default)]
    pub(super) peers: bool,
    /// Key of its storage. `None` if none was declared.
    pub(super) storage: Option<String>,
    /// Store software of its cluster. Empty if none is named, and in older records.
    #[serde(default)]
    pub(super) store: String,
}

/// Owner record of storage.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Volume {
    pub(super) owner: String,
    pub(super) cluster_id: String,
    pub(super) group: String,
    pub(super) ordinal: u32,
    pub(super) store_id: String,
    /// As requested; not enforced.
    pub(super) size_bytes: Option<u64>,
    pub(super) class: String,
    /// When it was last detached from a node, in milliseconds since the Unix epoch; 0 if it never was.
    pub(super) kept: u64,
}

impl Volume {
    /// Whether the storage belongs to this node's owner, cluster, group and ordinal.
    fn is_of(&self, identity: &Identity) -> bool {
        (&self.owner, &self.cluster_id, &self.group, self.ordinal)
            == (
                &identity.owner,
                &identity.cluster_id,
                &identity.group,
                identity.ordinal,
            )
    }

    /// The same storage with the identity of this node.
    fn handed_to(self, identity: &Identity) -> Self {
        Self {
            owner: identity.owner.clone(),
            cluster_id: identity.cluster_id.clone(),
            group: identity.group.clone(),
            ordinal: identity.ordinal,
            store_id: identity.store_id.clone(),
            ..self
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Exit {
    pub(super) message: String,
}

/// A requested removal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Removal {
    /// When the process is killed, in milliseconds since the Unix epoch.
    pub(super) deadline: u64,
    pub(super) retain_storage: bool,
}

impl StateDir {
    /// Opens a state directory; creates it if it does not exist.
    ///
    /// # Errors
    /// `Precondition` if another process uses it, or if it is unusable.
    pub(super) fn open(root: &Path) -> Result<Self> {
        let unusable = |error: io::Error| {
            Error::new(
                Reason::Precondition,
                format!(
                    "the state directory {} cannot be used: {error}",
                    root.display()
                ),
            )
        };
        let make = |path: &Path| {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(path)
        };
        make(root).map_err(unusable)?;
        let root = fs::canonicalize(root).map_err(unusable)?;
        let lock = root.join(LOCK);
        let held = take(&lock).map_err(unusable)?.map_err(|holder| {
            Error::new(
                Reason::Precondition,
                format!(
                    "the state directory {} is in use by process {holder}; stop it, or use another directory",
                    root.display()
                ),
            )
            .with_metadata("pid", holder)
        })?;
        match fs::write(&lock, std::process::id().to_string()) {
            // The content is only informational. Running nodes must be supervised even if the disk is full.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                tracing::warn!(directory = %root.display(), "the disk is full; no node can be made");
            }
            written => written.map_err(unusable)?,
        }
        make(&root.join("nodes"))
            .and_then(|()| make(&root.join("storage")))
            .and_then(|()| make(&root.join(VOLUMES)))
            .map_err(unusable)?;
        files::create_once(
            &root.join(UUID),
            Uuid::new_v4().to_string().as_bytes(),
            0o644,
        )
        .map_err(unusable)?;
        let uuid = fs::read_to_string(root.join(UUID)).map_err(unusable)?;
        let uuid = uuid.trim().parse().map_err(|_| {
            let path = root.join(UUID);
            Error::new(
                Reason::Precondition,
                format!("{} is damaged: it must hold a UUID", path.display()),
            )
        })?;
        Ok(Self {
            root,
            uuid,
            lock: Mutex::new(Some(held)),
        })
    }

    /// Releases the lock. The directory must not be used afterwards.
    pub(super) fn release(&self) {
        self.lock.lock().take();
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn uuid(&self) -> Uuid {
        self.uuid
    }

    pub(super) fn nodes(&self) -> PathBuf {
        self.root.join("nodes")
    }

    pub(super) fn node(&self, node_id: &str) -> PathBuf {
        self.nodes().join(node_id)
    }

    pub(super) fn storage(&self, key: &str) -> PathBuf {
        self.root.join("storage").join(key)
    }

    fn volume(&self, key: &str) -> PathBuf {
        self.root.join(VOLUMES).join(format!("{key}.json"))
    }

    /// All storage keys, with their owner records if known.
    pub(super) fn volumes(&self) -> io::Result<Vec<(String, Option<Volume>)>> {
        let keys = names(&self.root.join("storage"))?;
        keys.into_iter()
            .map(|key| {
                let volume = self.read_volume(&key)?;
                Ok((key, volume))
            })
            .collect()
    }

    /// Key of the storage for a node with this identity: its existing storage, or a new key, which is `usual` if that
    /// is free. `taken` contains the keys of storage in use.
    pub(super) fn storage_for(
        &self,
        identity: &Identity,
        usual: String,
        taken: &BTreeSet<String>,
    ) -> io::Result<String> {
        let volumes = self.volumes()?;
        // Adoption into an ordinal with retained storage leaves two storages for one identity, as deleting or merging
        // either would lose data. The one used last has the latest data.
        let own = volumes
            .iter()
            .filter_map(|(key, volume)| Some((key, volume.as_ref()?)))
            .filter(|(_, volume)| volume.is_of(identity))
            .max_by_key(|(key, volume)| (taken.contains(*key), volume.kept));
        if let Some((key, _)) = own {
            return Ok(key.clone());
        }
        // Storage that was passed on with an adopted node is still named after its former owner.
        let given_away = |name: &String| {
            let found = volumes.iter().find(|(key, _)| key == name);
            found.is_some_and(|(_, volume)| volume.is_some())
        };
        let mut key = usual.clone();
        let mut number = 1;
        while given_away(&key) {
            number += 1;
            key = format!("{usual}-{number}");
        }
        Ok(key)
    }

    /// The owner record of storage. `None` if the storage does not exist or has no record.
    fn read_volume(&self, key: &str) -> io::Result<Option<Volume>> {
        if !fs::exists(self.storage(key))? {
            return Ok(None);
        }
        files::read_json(&self.volume(key))
            .map_err(|error| io::Error::new(error.kind(), format!("{VOLUMES}/{key}.json: {error}")))
    }

    fn write_volume(&self, key: &str, volume: &Volume) -> io::Result<()> {
        files::replace(&self.volume(key), &files::to_json(volume)?, 0o644)
    }

    /// Updates the owner record to the node's identity, which differs after an adoption.
    pub(super) fn hand_over(&self, key: &str, identity: &Identity) -> io::Result<()> {
        let before = self.read_volume(key)?;
        let settled =
            |volume: &Volume| volume.is_of(identity) && volume.store_id == identity.store_id;
        if before.as_ref().is_some_and(settled) || !fs::exists(self.storage(key))? {
            return Ok(());
        }
        self.write_volume(key, &before.unwrap_or_default().handed_to(identity))
    }

    /// Records that the storage is detached, and that it belongs to the node that had it.
    pub(super) fn keep(&self, key: &str, identity: &Identity, now: u64) -> io::Result<()> {
        if !fs::exists(self.storage(key))? {
            return Ok(());
        }
        let volume = self.read_volume(key)?.unwrap_or_default();
        let volume = Volume {
            kept: now,
            ..volume.handed_to(identity)
        };
        self.write_volume(key, &volume)
    }

    /// Records a larger size of storage.
    pub(super) fn grow(&self, key: &str, size: u64) -> io::Result<()> {
        let Some(volume) = self.read_volume(key)? else {
            return Ok(());
        };
        let size_bytes = volume.size_bytes.max(Some(size));
        self.write_volume(
            key,
            &Volume {
                size_bytes,
                ..volume
            },
        )
    }

    /// Ids of all nodes that have a directory.
    pub(super) fn node_ids(&self) -> io::Result<Vec<String>> {
        names(&self.nodes())
    }

    /// Removes partially created and partially removed nodes of a previous platform process.
    pub(super) fn sweep(&self) -> io::Result<()> {
        for directory in [
            self.nodes(),
            self.root.join("storage"),
            self.root.join(VOLUMES),
        ] {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                if entry.file_name().to_string_lossy().starts_with('.') {
                    if entry.file_type()?.is_dir() {
                        fs::remove_dir_all(entry.path())?;
                    } else {
                        fs::remove_file(entry.path())?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes all files of a new node to a temporary directory.
    pub(super) fn prepare(
        &self,
        record: &Record,
        spec: &ProcessSpec,
        content: &[File],
        volume: Option<&Volume>,
    ) -> io::Result<Prepared> {
        let temporary = self.nodes().join(format!("{NEW}{}", record.node_id));
        if fs::exists(&temporary)? {
            fs::remove_dir_all(&temporary)?;
        }
        let mut prepared = Prepared {
            temporary,
            place: self.node(&record.node_id),
            user: spec.user.filter(|_| spec.confined),
            new_storage: None,
            committed: false,
        };
        // Nobody else may enter while it is written: files in it already belong to the node's user, who could plant a
        // symlink in the path of a later write.
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&prepared.temporary)?;
        let data = prepared.temporary.join(DATA);
        make_owned(&data, spec.user)?;
        for file in content {
            write_owned(&data, file, spec.user)?;
        }
        if let (Some(key), Some(volume)) = (&record.storage, volume) {
            let storage = self.storage(key);
            let is_new = !fs::exists(&storage)?;
            let before = self.read_volume(key)?;
            if before
                .as_ref()
                .is_some_and(|it| !it.is_of(&record.identity))
            {
                // It was passed on and retained after it was chosen.
                return Err(io::Error::other(format!(
                    "storage {key} has become another owner's; ask again"
                )));
            }
            let volume = Volume {
                kept: before.map_or(0, |before| before.kept),
                ..volume.clone()
            };
            // Written before the storage itself, so that existing storage always has an owner.
            self.write_volume(key, &volume)?;
            if is_new {
                prepared.new_storage = Some(storage.clone());
                make_owned(&storage, spec.user)?;
                files::sync_parent(&storage)?;
            } else if let Some(user) = spec.user.filter(|_| spec.confined) {
                // It was created before clusters had users, or came from another owner by adoption.
                give::tree(&storage, user)?;
            }
        }
        files::write_new(
            &prepared.temporary.join(SPEC),
            &files::to_json(spec)?,
            0o600,
        )?;
        files::write_new(
            &prepared.temporary.join(NODE),
            &files::to_json(record)?,
            0o644,
        )?;
        files::sync_directory(&prepared.temporary)?;
        Ok(prepared)
    }

    /// Removes the directory of a node whose process is gone.
    pub(super) fn remove(&self, node_id: &str) -> io::Result<()> {
        self.remove_whole(&self.nodes(), node_id)
    }

    pub(super) fn remove_storage(&self, key: &str) -> io::Result<()> {
        self.remove_whole(&self.root.join("storage"), key)?;
        match fs::remove_file(self.volume(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn remove_whole(&self, parent: &Path, name: &str) -> io::Result<()> {
        let gone = parent.join(format!("{GONE}{name}"));
        match fs::rename(parent.join(name), &gone) {
            Ok(()) => files::sync_directory(parent)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        super::crash::point(super::crash::Point::DirectoryRenamed);
        match fs::remove_dir_all(&gone) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Names in a directory, without partially created and partially removed entries.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        if let Ok(name) = entry?.file_name().into_string()
            && !name.starts_with('.')
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// Takes the lock of a state directory, or returns the pid that holds it.
fn take(lock: &Path) -> io::Result<std::result::Result<OwnedFd, String>> {
    for _ in 0..DEAD_HOLDER_LOOKS {
        if let Some(held) = files::lock(lock, false)? {
            return Ok(Ok(held));
        }
        let holder = fs::read_to_string(lock)?;
        match holder.trim().parse() {
            Ok(pid) if pid == std::process::id() => {}
            Ok(pid) if ProcessId::of(pid)?.map_or(Ok(false), |id| id.lives())? => {
                return Ok(Err(holder));
            }
            // The holder is dead, or has taken the lock but not yet written its pid.
            _ => {}
        }
        thread::sleep(DEAD_HOLDER_POLL);
    }
    fs::read_to_string(lock).map(Err)
}

/// A written node that does not exist yet. Removed on drop unless [committed](Self::commit).
pub(super) struct Prepared {
    temporary: PathBuf,
    place: PathBuf,
    /// The only user besides the platform that may enter it. `None` if everyone may.
    user: Option<User>,
    /// Storage that was created for it.
    new_storage: Option<PathBuf>,
    committed: bool,
}

impl Prepared {
    /// Writes another file into the directory of the node.
    pub(super) fn add(&self, name: &str, content: &[u8]) -> io::Result<()> {
        super::peers::write(&self.temporary.join(name), content)
    }

    /// Makes the node exist.
    pub(super) fn commit(mut self) -> io::Result<()> {
        // Others need search permission for a node that runs as another user; secret files have restrictive modes of
        // their own.
        let mode = match self.user {
            Some(user) => {
                chown(&self.temporary, None, Some(user.gid))?;
                0o710
            }
            None => 0o711,
        };
        fs::set_permissions(&self.temporary, fs::Permissions::from_mode(mode))?;
        fs::rename(&self.temporary, &self.place)?;
        self.committed = true;
        files::sync_parent(&self.place)
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if !self.committed {
            // Leftovers are removed at the next start.
            let _ = fs::remove_dir_all(&self.temporary);
            if let Some(storage) = &self.new_storage {
                // Succeeds only if it is still empty.
                let _ = fs::remove_dir(storage);
            }
        }
    }
}

fn make_owned(path: &Path, user: Option<User>) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)?;
    own(path, user)
}

fn write_owned(data: &Path, file: &File, user: Option<User>) -> io::Result<()> {
    let path = data.join(&file.path);
    let mut directory = data.to_owned();
    for part in file.path.parent().into_iter().flat_map(Path::components) {
        directory.push(part);
        if !fs::exists(&directory)? {
            make_owned(&directory, user)?;
        }
    }
    files::write_new(&path, &file.content, file.mode)?;
    own(&path, user)
}

fn own(path: &Path, user: Option<User>) -> io::Result<()> {
    user.map_or(Ok(()), |user| chown(path, Some(user.uid), Some(user.gid)))
}
