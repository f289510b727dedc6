//! Users of clusters: each cluster has its own, if the platform runs as root.
//!
//! Uids come from a range without accounts on the machine. An assignment is recorded durably before anything is created
//! with the uid. A uid is reassigned only after all others have been assigned, and only if nothing of its cluster
//! exists: no node directory, no storage, no process.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    ops::RangeInclusive,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use drover_core::{Error, Reason, Result};
use drover_platform::identity::Identity;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    cgroup::{Group, Groups},
    files,
    settings::{Isolation, Settings},
    spec::{ProcessSpec, User},
    state::{DATA, StateDir},
};

/// File with the assignments.
const USERS: &str = "users.json";

/// Maximum number of nodes named in a warning.
const NAMED: usize = 5;
/// How long after a call has received a uid the uid counts as used, until files or processes of it exist.
const UNDER_WAY: Duration = Duration::from_secs(15 * 60);

/// Isolation between clusters.
pub(super) enum Tenancy {
    /// Each has its own user; the resource limits, or why there are none.
    Separate(Box<Users>, Result<Option<Groups>, String>),
    /// All share one user, for this reason.
    Shared(String),
}

impl Tenancy {
    /// Applies the settings as far as this machine supports them.
    ///
    /// # Errors
    /// `Precondition` if isolation is required but not possible, or if the users cannot be read.
    pub(super) fn open(settings: &Settings, state: &StateDir) -> Result<Self> {
        // Explicit limits are enforced or rejected; the default limits are best effort.
        let asked = settings.cluster_limits.is_asked_for();
        let unlimited = |why: &str| {
            let why = format!("local.cluster_limits cannot be kept: {why}");
            Error::new(Reason::Precondition, why)
        };
        if settings.isolation == Isolation::None && asked {
            return Err(unlimited("local.isolation is none"));
        }
        if settings.isolation == Isolation::None {
            return Ok(Self::Shared("local.isolation is none".to_owned()));
        }
        let obstacle = match obstacle(state.root(), &settings.launcher) {
            Ok(obstacle) => obstacle,
            Err(error) => Some(error.to_string()),
        };
        match obstacle {
            None => {
                let users = Users::open(state, settings.users()).map_err(|error| {
                    let path = state.root().join(USERS);
                    Error::new(Reason::Precondition, format!("{}: {error}", path.display()))
                })?;
                let groups = Groups::open(state.uuid(), &settings.cluster_limits);
                match groups.map_err(|error| error.to_string()) {
                    Err(why) if asked => Err(unlimited(&why)),
                    groups => Ok(Self::Separate(Box::new(users), groups)),
                }
            }
            Some(why) if settings.isolation == Isolation::Required => Err(Error::new(
                Reason::Precondition,
                format!("local.isolation is required, and clusters would share one user: {why}"),
            )),
            Some(why) if asked => Err(unlimited(&why)),
            Some(why) => Ok(Self::Shared(why)),
        }
    }

    /// The control group of a node. `None` if it is not limited.
    pub(super) fn group(&self, spec: &ProcessSpec) -> Option<Group> {
        Some(self.groups()?.of(spec.tenant?))
    }

    pub(super) fn groups(&self) -> Option<&Groups> {
        match self {
            Self::Separate(_, Ok(groups)) => groups.as_ref(),
            Self::Separate(_, Err(_)) | Self::Shared(_) => None,
        }
    }

    /// Warnings for the operator. `unconfined` are the nodes that run with the platform's privileges.
    pub(super) fn warnings(&self, unconfined: &BTreeSet<String>) -> Vec<String> {
        let mut said = Vec::new();
        match self {
            Self::Shared(why) => said.push(format!(
                "clusters share one user, so whoever runs something in a node of one reaches the files and processes of \
                 all: {why}"
            )),
            Self::Separate(_, Err(why)) => said.push(format!(
                "nothing limits how many processes a cluster runs, so one of them may leave none to the others: {why}"
            )),
            Self::Separate(_, Ok(_)) => {}
        }
        if matches!(self, Self::Separate(..)) && !unconfined.is_empty() {
            let mut ids: Vec<&str> = unconfined.iter().map(String::as_str).collect();
            let more = ids.len().saturating_sub(NAMED);
            ids.truncate(NAMED);
            let ids = ids.join(", ");
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            said.push(format!(
                "nodes from before each cluster had a user of its own run as root, and whoever runs something in them \
                 reaches all clusters; replace them: {ids}{more}"
            ));
        }
        said
    }

    /// The user of a cluster. `None` if it has none of its own. Blocks while a new assignment is recorded.
    pub(super) fn user(&self, identity: &Identity) -> io::Result<Option<User>> {
        match self {
            Self::Shared(_) => Ok(None),
            Self::Separate(users, _) => users.of(identity).map(Some),
        }
    }
}

/// The reason why clusters cannot have their own users.
fn obstacle(state: &Path, launcher: &Path) -> io::Result<Option<String>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Some("the platform does not run as root".to_owned()));
    }
    for (path, what) in [
        (state, "its state directory"),
        (launcher, "the program that starts nodes"),
    ] {
        let path = fs::canonicalize(path)?;
        // The kernel requires search permission on every ancestor.
        for part in path.ancestors() {
            if fs::metadata(part)?.permissions().mode() & 0o001 == 0 {
                return Ok(Some(format!(
                    "{what} is below {}, which other users may not enter",
                    part.display()
                )));
            }
        }
    }
    Ok(None)
}

/// Uids by cluster.
pub(super) struct Users {
    root: PathBuf,
    range: RangeInclusive<u32>,
    assigned: Mutex<Assigned>,
    /// When each uid was last returned to a caller.
    told: Mutex<BTreeMap<u32, Instant>>,
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct Assigned {
    /// By owner and id of the cluster.
    users: BTreeMap<String, u32>,
    /// The last assigned uid. 0 if none was.
    last: u32,
}

impl Users {
    fn open(state: &StateDir, range: RangeInclusive<u32>) -> io::Result<Self> {
        let root = state.root().to_owned();
        let assigned = files::read_json(&root.join(USERS))?.unwrap_or_default();
        // The names in these directories reveal other clusters, so they are not listable.
        for directory in ["nodes", "storage", "volumes"] {
            fs::set_permissions(root.join(directory), fs::Permissions::from_mode(0o711))?;
        }
        Ok(Self {
            root,
            range,
            assigned: Mutex::new(assigned),
            told: Mutex::default(),
        })
    }

    fn of(&self, identity: &Identity) -> io::Result<User> {
        let cluster = format!("{}/{}", identity.owner, identity.cluster_id);
        let mut assigned = self.assigned.lock();
        let uid = match assigned.users.get(&cluster) {
            Some(uid) => *uid,
            None => {
                let mut next = assigned.clone();
                let uid = self.choose(&mut next)?;
                next.users.insert(cluster, uid);
                next.last = uid;
                // Durable before anything is created with the uid.
                files::replace(&self.root.join(USERS), &files::to_json(&next)?, 0o600)?;
                *assigned = next;
                uid
            }
        };
        self.told.lock().insert(uid, Instant::now());
        Ok(User { uid, gid: uid })
    }

    /// The next unassigned uid. When all are assigned, uids without files or processes become free again.
    fn choose(&self, assigned: &mut Assigned) -> io::Result<u32> {
        let used = self.used()?;
        let free = |taken: &BTreeMap<String, u32>| {
            let taken: BTreeSet<u32> = taken.values().copied().collect();
            let (first, last) = (*self.range.start(), *self.range.end());
            let after = match assigned.last {
                given if (first..last).contains(&given) => given + 1,
                _ => first,
            };
            let mut order = (after..=last).chain(first..after);
            order.find(|uid| !taken.contains(uid) && !used.contains(uid))
        };
        if let Some(uid) = free(&assigned.users) {
            return Ok(uid);
        }
        let mut told = self.told.lock();
        told.retain(|_, at| at.elapsed() < UNDER_WAY);
        let mut kept = assigned.users.clone();
        kept.retain(|_, uid| used.contains(uid) || told.contains_key(uid));
        let found = free(&kept);
        assigned.users = kept;
        found.ok_or_else(|| {
            io::Error::other(format!(
                "all users from {} to {} are in use; local.user_range has more",
                self.range.start(),
                self.range.end()
            ))
        })
    }

    /// Uids that own files or processes, regardless of assignments.
    fn used(&self) -> io::Result<BTreeSet<u32>> {
        let mut used = BTreeSet::new();
        let mut add = |path: &Path| match fs::symlink_metadata(path) {
            Ok(meta) => {
                used.insert(meta.uid());
                Ok(())
            }
            // It was removed in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        for entry in fs::read_dir(self.root.join("nodes"))? {
            add(&entry?.path().join(DATA))?;
        }
        for entry in fs::read_dir(self.root.join("storage"))? {
            add(&entry?.path())?;
        }
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes()[0].is_ascii_digit() {
                // A process that cannot be read any more is exiting.
                let status = fs::read_to_string(entry.path().join("status"));
                used.extend(status.iter().flat_map(|status| users_of(status)));
            }
        }
        Ok(used)
    }
}

/// The real, effective, saved and file system uids of a process. The owner of its /proc directory is root if the
/// process is not dumpable.
fn users_of(status: &str) -> impl Iterator<Item = u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.into_iter()
        .flat_map(str::split_whitespace)
        .filter_map(|uid| uid.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(owner: &str, cluster: &str) -> Identity {
        Identity {
            owner: owner.to_owned(),
            cluster_id: cluster.to_owned(),
            ..Identity::default()
        }
    }

    fn users(root: &Path, range: RangeInclusive<u32>) -> Users {
        let state = StateDir::open(root).unwrap();
        let users = Users::open(&state, range).unwrap();
        state.release();
        users
    }

    #[test]
    fn a_cluster_keeps_its_user_over_starts_and_another_owner_of_the_name_has_another() {
        let directory = tempfile::tempdir().unwrap();
        let before = users(directory.path(), 700_000..=700_009);
        let first = before.of(&identity("a", "orders")).unwrap();
        let second = before.of(&identity("b", "orders")).unwrap();
        assert_ne!(first, second);
        let after = users(directory.path(), 700_000..=700_009);
        assert_eq!(after.of(&identity("a", "orders")).unwrap(), first);
        assert_eq!(after.of(&identity("b", "orders")).unwrap(), second);
        assert_ne!(after.of(&identity("c", "orders")).unwrap(), second);
    }

    #[test]
    fn a_user_is_given_again_only_when_all_were_and_nothing_of_its_cluster_exists() {
        let directory = tempfile::tempdir().unwrap();
        let users = users(directory.path(), 4_100_000_000..=4_100_000_001);
        let uid = |cluster: &str| {
            let given = users.of(&identity("a", cluster));
            given
                .map(|user| user.uid)
                .map_err(|error| error.to_string())
        };
        assert_eq!(uid("one"), Ok(4_100_000_000));
        assert_eq!(uid("two"), Ok(4_100_000_001));
        // A caller that received a uid may be about to create something.
        assert!(uid("three").unwrap_err().contains("local.user_range"));
        let long_ago = Instant::now().checked_sub(2 * UNDER_WAY).unwrap();
        users.told.lock().insert(4_100_000_000, long_ago);
        assert_eq!(uid("three"), Ok(4_100_000_000));
        assert_eq!(uid("two"), Ok(4_100_000_001));
    }

    #[test]
    fn the_users_of_a_process_are_read_though_nobody_may_look_into_it() {
        let status = "Name:\tx\nUid:\t1000\t1001\t1002\t1003\nGid:\t5\t5\t5\t5\n";
        assert!(users_of(status).eq([1000, 1001, 1002, 1003]));
        assert_eq!(users_of("Name:\tx\n").count(), 0);
    }

    #[test]
    fn a_user_that_something_runs_as_is_not_given_to_a_cluster() {
        let directory = tempfile::tempdir().unwrap();
        let own = rustix::process::getuid().as_raw();
        let users = users(directory.path(), own..=own);
        let error = users.of(&identity("a", "one")).unwrap_err();
        assert!(error.to_string().contains("local.user_range"), "{error}");
    }
}
