//! Files of containers: what was put or written there, and configurations that are mounted.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1::{self as api, volume};

use crate::store::Store;

/// Files by uid of the pod, container and path.
#[derive(Default)]
pub(crate) struct Files(BTreeMap<(String, String, String), Vec<u8>>);

impl Files {
    pub(crate) fn put(&mut self, uid: &str, container: &str, path: &str, data: Vec<u8>) {
        let key = (uid.to_owned(), container.to_owned(), path.to_owned());
        self.0.insert(key, data);
    }

    pub(crate) fn remove(&mut self, uid: &str, container: &str, path: &str) -> bool {
        let key = (uid.to_owned(), container.to_owned(), path.to_owned());
        self.0.remove(&key).is_some()
    }

    pub(crate) fn forget(&mut self, uid: &str) {
        self.0.retain(|(owner, _, _), _| owner != uid);
    }

    fn get(&self, uid: &str, container: &str, path: &str) -> Option<&Vec<u8>> {
        let key = (uid.to_owned(), container.to_owned(), path.to_owned());
        self.0.get(&key)
    }

    fn is_directory(&self, uid: &str, container: &str, path: &str) -> bool {
        let inside = format!("{}/", path.trim_end_matches('/'));
        let mut all = self.0.keys();
        all.any(|(owner, name, file)| {
            owner == uid && name == container && file.starts_with(&inside)
        })
    }
}

/// Directories of every image.
const DIRECTORIES: [&str; 4] = ["/", "/tmp", "/etc", "/bin"];

impl Store {
    /// The content of a file in a container.
    pub(crate) fn read(&self, pod: &api::Pod, container: &str, path: &str) -> Result<Vec<u8>> {
        let uid = crate::store::uid(pod);
        if let Some(data) = self.files.get(&uid, container, path) {
            return Ok(data.clone());
        }
        if let Some(found) = self.mounted(pod, container, path) {
            return found;
        }
        let plain = path.trim_end_matches('/');
        if DIRECTORIES.contains(&plain)
            || plain.is_empty()
            || self.files.is_directory(&uid, container, path)
        {
            return Err(not_a_file(path));
        }
        Err(missing(path))
    }

    /// A file of a configuration that is mounted there.
    fn mounted(&self, pod: &api::Pod, container: &str, path: &str) -> Option<Result<Vec<u8>>> {
        let spec = pod.spec.as_ref()?;
        let all = spec.containers.iter().chain(&spec.init_containers);
        let container = all.into_iter().find(|one| one.name == container)?;
        let inside = |mount: &&api::VolumeMount| {
            let rest = path.strip_prefix(mount.path.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let mounts = container.volume_mounts.iter().filter(inside);
        let mount = mounts.max_by_key(|mount| mount.path.len())?;
        let rest = path.strip_prefix(mount.path.trim_end_matches('/'))?;
        let name = format!("{}/{}", mount.sub_path, rest.trim_matches('/'));
        let name = name.trim_matches('/');
        let volume = spec.volumes.iter().find(|one| one.name == mount.volume)?;
        let Some(volume::Source::Configuration(files)) = &volume.source else {
            return name.is_empty().then(|| Err(not_a_file(path)));
        };
        if name.is_empty() {
            return Some(Err(not_a_file(path)));
        }
        let namespace = pod.metadata.as_ref().map(|one| one.namespace.clone())?;
        let configuration = self.configurations.get(&(namespace, files.name.clone()))?;
        let item = files.items.iter().find(|item| item.path == name);
        let key = match item {
            Some(item) => item.key.as_str(),
            None if files.items.is_empty() => name,
            None => return Some(Err(missing(path))),
        };
        let text = configuration
            .data
            .get(key)
            .map(|text| text.clone().into_bytes());
        let data = text.or_else(|| configuration.binary_data.get(key).cloned());
        Some(data.ok_or_else(|| missing(path)))
    }
}

fn missing(path: &str) -> Error {
    let message = format!("there is no file {path:?} in the container");
    Error::new(Reason::FileNotFound, message).with_resource("file", path)
}

fn not_a_file(path: &str) -> Error {
    let message = format!("{path:?} is a directory");
    Error::new(Reason::NotAFile, message).with_resource("file", path)
}
