//! Files that hold the state of one part of the backend, whole.

use std::{fs, io, path::Path};

use serde::{Serialize, de::DeserializeOwned};

/// Reads the state. The default if there is no file.
pub(super) fn load<T: DeserializeOwned + Default>(file: &Path) -> io::Result<T> {
    match fs::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(error),
    }
}

/// Replaces the state. A failure is logged, because the backend would go on.
pub(super) fn save(file: &Path, state: &impl Serialize) {
    let mut new = file.as_os_str().to_owned();
    new.push("-new");
    let written = serde_json::to_vec(state)
        .map_err(io::Error::other)
        .and_then(|bytes| fs::write(&new, bytes))
        .and_then(|()| fs::rename(&new, file));
    if let Err(error) = written {
        tracing::error!(%error, "a state file cannot be written; what it holds will be forgotten");
    }
}
