//! Where programs of this machine find the nodes of a group: `endpoints/CLUSTER-GROUP.env` in the state directory,
//! rewritten as nodes become ready, change their role and end, and removed with the last node. Only for groups whose
//! nodes hear of one another.

mod content;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs, io, mem,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use drover_platform::identity::Identity;
use drover_proto::platform::v1::NodeRole;
use tracing::warn;

use self::content::Server;
use super::{
    Shared,
    make::short_hash,
    node::{Node, blocking},
    peers,
    users::Tenancy,
};

const DIRECTORY: &str = "endpoints";
/// Port for clients in the templates of stores.
const CLIENT: &str = "client";
/// Maximum length of cluster and group in the name of a file, which is limited to 255 bytes.
const MAX_NAME: usize = 200;

/// The files of all groups.
pub(super) struct Endpoints {
    directory: PathBuf,
    /// Mode of the directory.
    mode: u32,
    /// Files by name, with the tags of their groups.
    files: BTreeMap<String, String>,
    /// Files that could not be written or removed in the last round, and why.
    failed: BTreeMap<String, String>,
    /// The same of the round before, so that a lasting error is logged once.
    said: BTreeMap<String, String>,
}

/// A group and its nodes.
struct Group {
    cluster: String,
    /// Name of its file without the suffix, unless another group has it.
    name: String,
    /// Tells it from groups of the same name.
    tag: String,
    store: String,
    members: Vec<Member>,
}

struct Member {
    ordinal: u32,
    server: Server,
    /// Whether it takes clients. `None`: not known.
    serves: Option<bool>,
}

impl Endpoints {
    /// Reads which files there are.
    pub(super) async fn open(shared: &Shared) -> Self {
        let directory = shared.state.root().join(DIRECTORY);
        let mode = match &*shared.tenancy {
            // The names reveal other clusters, as those of nodes do.
            Tenancy::Separate(..) => 0o711,
            Tenancy::Shared(_) => 0o755,
        };
        let place = directory.clone();
        let files = blocking(move || known(&place, mode))
            .await
            .unwrap_or_else(|error| {
                warn!(directory = %directory.display(), %error, "the files with endpoints of nodes cannot be read");
                BTreeMap::new()
            });
        Self {
            directory,
            mode,
            files,
            failed: BTreeMap::new(),
            said: BTreeMap::new(),
        }
    }

    /// Whether something is to be tried again.
    pub(super) fn is_behind(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Removes the files of groups without nodes, and writes those of changed clusters.
    pub(super) async fn update(&mut self, shared: &Shared, changed: &BTreeSet<String>) {
        self.said = mem::take(&mut self.failed);
        let groups = groups(shared);
        // First, because others may have waited for a name.
        let orphans = self.release(&groups);
        for group in groups {
            let file = self.file(&group);
            let is_new = self.files.get(&file) != Some(&group.tag);
            if is_new || changed.contains(&group.cluster) || self.said.contains_key(&file) {
                self.write(file, group).await;
            }
        }
        for (file, tag) in orphans {
            if !self.files.contains_key(&file) {
                self.files.insert(file.clone(), tag);
                self.remove(file).await;
            }
        }
    }

    /// Gives up the files of groups without nodes.
    fn release(&mut self, groups: &[Group]) -> BTreeMap<String, String> {
        let tags: BTreeSet<&str> = groups.iter().map(|group| group.tag.as_str()).collect();
        let files = mem::take(&mut self.files).into_iter();
        let (kept, orphans) = files.partition(|(_, tag)| tags.contains(tag.as_str()));
        self.files = kept;
        orphans
    }

    /// The file of a group. One that another group has is left to it, so that no program is led to other data.
    fn file(&self, group: &Group) -> String {
        let Group { name, tag, .. } = group;
        let usual = format!("{name}.env");
        match self.files.get(&usual) {
            Some(owner) if owner != tag => format!("{name}-{tag}.env"),
            _ => usual,
        }
    }

    async fn write(&mut self, file: String, group: Group) {
        let tag = group.tag.clone();
        let is_usual = file == format!("{}.env", group.name);
        let path = self.directory.join(&file);
        let before: Vec<String> = self
            .files
            .iter()
            .filter(|(_, owner)| **owner == tag)
            .map(|(file, _)| file.clone())
            .collect();
        let former = before.first().map(|file| self.directory.join(file));
        let (directory, mode) = (self.directory.clone(), self.mode);
        let written = blocking(move || {
            let former = former.and_then(|former| fs::read_to_string(former).ok());
            let listed = content::listed(&former.unwrap_or_default());
            make(&directory, mode)?;
            peers::rewrite(&path, group.content(&listed).as_bytes())
        });
        match written.await {
            Ok(()) => {
                if !is_usual && !before.contains(&file) {
                    let path = self.directory.join(&file);
                    warn!(path = %path.display(), "another group has the usual file for endpoints of nodes");
                }
                for other in before.into_iter().filter(|other| *other != file) {
                    self.remove(other).await;
                }
                self.files.insert(file, tag);
            }
            Err(error) => self.fail(file, &error),
        }
    }

    async fn remove(&mut self, file: String) {
        let path = self.directory.join(&file);
        match blocking(move || fs::remove_file(path)).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => self.fail(file, &error),
            _ => {
                self.files.remove(&file);
            }
        }
    }

    fn fail(&mut self, file: String, error: &io::Error) {
        let message = error.to_string();
        if self.said.get(&file) != Some(&message) {
            let path = self.directory.join(&file);
            warn!(path = %path.display(), %error, "a file with endpoints of nodes is not up to date; trying again");
        }
        self.failed.insert(file, message);
    }
}

impl Group {
    fn new(identity: &Identity) -> Self {
        let Identity {
            owner,
            cluster_id,
            group,
            ..
        } = identity;
        let tag = short_hash(&[owner, cluster_id, group]);
        Self {
            cluster: cluster_id.clone(),
            name: name(cluster_id, group, &tag),
            tag,
            store: String::new(),
            members: Vec::new(),
        }
    }

    /// The content of its file. `listed` are the addresses that were in it.
    fn content(mut self, listed: &BTreeSet<String>) -> String {
        self.members.sort_by_key(|member| member.ordinal);
        let servers: Vec<Server> = self
            .members
            .into_iter()
            .filter(|member| {
                // A node that was ready is so until it ends, though a new platform has not looked at it yet.
                member
                    .serves
                    .unwrap_or_else(|| listed.contains(&member.server.address()))
            })
            .map(|member| member.server)
            .collect();
        content::content(&self.tag, &self.store, &servers)
    }
}

/// All groups whose nodes hear of one another and take clients.
fn groups(shared: &Shared) -> Vec<Group> {
    let nodes: Vec<_> = shared.nodes.lock().values().cloned().collect();
    let mut groups = BTreeMap::new();
    for node in nodes {
        add(&mut groups, &node);
    }
    groups.into_values().collect()
}

fn add(groups: &mut BTreeMap<(String, String, String), Group>, node: &Node) {
    let serves = node.serves();
    let record = node.record();
    let Some(port) = client_port(&record.ports).filter(|_| record.peers) else {
        return;
    };
    let identity = &record.identity;
    let key = (
        identity.owner.clone(),
        identity.cluster_id.clone(),
        identity.group.clone(),
    );
    let group = groups.entry(key).or_insert_with(|| Group::new(identity));
    // Records from before it was written down have none.
    if !record.store.is_empty() {
        group.store = record.store;
    }
    group.members.push(Member {
        ordinal: identity.ordinal,
        server: Server {
            host: record.host,
            port,
            standby: identity.role() == NodeRole::Standby,
        },
        serves,
    });
}

/// The port `client`, or else the only one.
fn client_port(ports: &BTreeMap<String, u16>) -> Option<u16> {
    let only = || ports.values().next().filter(|_| ports.len() == 1);
    ports.get(CLIENT).or_else(only).copied()
}

/// Cluster and group as part of a file name.
fn name(cluster: &str, group: &str, tag: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name = format!("{cluster}-{group}").replace(|c: char| !fits(c), "-");
    if name.len() <= MAX_NAME {
        return name;
    }
    format!("{}-{tag}", &name[..MAX_NAME])
}

/// Files in the directory, with the tags of their groups. Sets the mode of the directory.
fn known(directory: &Path, mode: u32) -> io::Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(files),
        entries => entries?,
    };
    fs::set_permissions(directory, fs::Permissions::from_mode(mode))?;
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        let Ok(file) = entry.file_name().into_string() else {
            continue;
        };
        match path.extension().and_then(OsStr::to_str) {
            Some("env") => {
                // One that cannot be read is nobody's.
                let text = fs::read_to_string(&path).unwrap_or_default();
                if let Some(tag) = content::tag(&text) {
                    files.insert(file, tag.to_owned());
                }
            }
            Some("new") => {
                // Partially written. A leftover does no harm.
                let _ = fs::remove_file(&path);
            }
            _ => {}
        }
    }
    Ok(files)
}

/// Creates the directory if it does not exist; not the state directory, which may have been removed.
fn make(directory: &Path, mode: u32) -> io::Result<()> {
    match fs::create_dir(directory) {
        // The mode of a new directory is subject to the umask.
        Ok(()) => fs::set_permissions(directory, fs::Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(serves: &[Option<bool>]) -> Group {
        let members = serves.iter().zip(0..).map(|(serves, number)| Member {
            ordinal: number,
            server: Server {
                host: "db".to_owned(),
                port: 9 - u16::try_from(number).unwrap(),
                standby: false,
            },
            serves: *serves,
        });
        let mut group = Group::new(&Identity {
            owner: "a".to_owned(),
            cluster_id: "orders".to_owned(),
            group: "db".to_owned(),
            ..Identity::default()
        });
        group.members = members.collect();
        // Nodes come in any order.
        group.members.reverse();
        group
    }

    #[test]
    fn nodes_that_are_ready_are_listed_and_those_that_were_until_more_is_known() {
        let listed = |serves: &[Option<bool>], before: &[&str]| {
            let before: BTreeSet<String> = before.iter().map(|it| (*it).to_owned()).collect();
            let text = group(serves).content(&before);
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("STORE_ADDRESSES="));
            line.unwrap_or_default().to_owned()
        };
        assert_eq!(listed(&[Some(true), Some(true)], &[]), "db:9,db:8");
        assert_eq!(listed(&[Some(false), Some(true)], &["db:9"]), "db:8");
        assert_eq!(listed(&[None, Some(true)], &[]), "db:8");
        assert_eq!(listed(&[None, Some(true)], &["db:9"]), "db:9,db:8");
        assert_eq!(listed(&[None, None], &[]), "");
    }

    #[test]
    fn clients_use_their_port_or_the_only_one() {
        let port = |ports: &[(&str, u16)]| {
            let ports = ports.iter().map(|(name, port)| ((*name).to_owned(), *port));
            let ports: BTreeMap<String, u16> = ports.collect();
            client_port(&ports)
        };
        assert_eq!(port(&[("admin", 1), ("client", 2)]), Some(2));
        assert_eq!(port(&[("admin", 1)]), Some(1));
        assert_eq!(port(&[("admin", 1), ("peer", 2)]), None);
        assert_eq!(port(&[]), None);
    }

    #[test]
    fn a_file_is_named_after_cluster_and_group_and_never_elsewhere() {
        assert_eq!(name("orders", "db", "1a2b"), "orders-db");
        assert_eq!(name("orders", "data/hot", "1a2b"), "orders-data-hot");
        assert_eq!(name("../etc", "a\nb'c", "1a2b"), "..-etc-a-b-c");
        let long = name("orders", &"x".repeat(500), "1a2b");
        assert_eq!(long.len(), MAX_NAME + "-1a2b".len());
        assert!(long.ends_with("x-1a2b"), "{long}");
    }

    #[test]
    fn a_file_of_another_group_is_left_to_it() {
        let mut endpoints = Endpoints {
            directory: PathBuf::new(),
            mode: 0,
            files: BTreeMap::new(),
            failed: BTreeMap::new(),
            said: BTreeMap::new(),
        };
        let group = group(&[]);
        assert_eq!(endpoints.file(&group), "orders-db.env");
        let usual = "orders-db.env".to_owned();
        endpoints.files.insert(usual.clone(), group.tag.clone());
        assert_eq!(endpoints.file(&group), usual);
        assert!(endpoints.release(std::slice::from_ref(&group)).is_empty());
        endpoints.files.insert(usual.clone(), "other".to_owned());
        assert_eq!(
            endpoints.file(&group),
            format!("orders-db-{}.env", group.tag)
        );
        let released = endpoints.release(std::slice::from_ref(&group));
        assert!(released.keys().eq([&usual]), "nobody has it any more");
        assert_eq!(endpoints.file(&group), usual);
    }
}
