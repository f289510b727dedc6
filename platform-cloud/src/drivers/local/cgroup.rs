//! What the nodes of a cluster take together: control groups of the kernel, of version 1 or 2.
//!
//! A cluster with a user of its own has a group `drover/STATE-UID` below the root of a hierarchy, beside those that container
//! runtimes make there. A launcher makes it, as it goes with the last node, and enters it before it becomes a node, or a command
//! in one. Files and values: <https://docs.kernel.org/admin-guide/cgroup-v2.html>,
//! <https://docs.kernel.org/admin-guide/cgroup-v1/index.html>.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use drover_core::{Error, Result};
use parking_lot::Mutex;
use rustix::fs::statfs;
use serde::{Deserialize, Serialize};
use tracing::warn;
use uuid::Uuid;

/// Where the kernel's groups are.
const ROOT: &str = "/sys/fs/cgroup";
/// What the file system of version 2 says that it is.
const VERSION_2: u64 = 0x6367_7270;
/// Ours among the groups of a machine.
const OURS: &str = "drover";
/// In it a process is moved by writing its number; 0 is whoever writes.
const PROCESSES: &str = "cgroup.procs";
/// Time over which processors are shared out, in microseconds: that of the kernel.
const PERIOD: u64 = 100_000;
/// How often a group is made again that went before it was entered.
const TRIES: u32 = 100;

/// Least values: below them no node starts.
const LEAST_MEMORY: u64 = 4 * 1024 * 1024;
const LEAST_PROCESSES: u32 = 8;
const LEAST_CPUS: f64 = 0.01;

/// What all nodes of a cluster may take together, and commands in them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterLimits {
    /// Memory in bytes, with what the kernel keeps of their files; who needs more is killed. Default: no limit.
    pub memory_bytes: Option<u64>,
    /// Processes and threads. Default 8192.
    pub processes: Option<u32>,
    /// Processors; 0.5 is half of one. Default: no limit.
    pub cpus: Option<f64>,
}

impl Default for ClusterLimits {
    fn default() -> Self {
        Self {
            memory_bytes: None,
            processes: Some(8192),
            cpus: None,
        }
    }
}

impl ClusterLimits {
    pub(super) fn check(&self) -> Result<()> {
        let wrong = |field: &str, least: &dyn std::fmt::Display| {
            let field = format!("local.cluster_limits.{field}");
            Err(Error::invalid(field, format!("expected at least {least}")))
        };
        if self.memory_bytes.is_some_and(|it| it < LEAST_MEMORY) {
            return wrong("memory_bytes", &LEAST_MEMORY);
        }
        if self.processes.is_some_and(|it| it < LEAST_PROCESSES) {
            return wrong("processes", &LEAST_PROCESSES);
        }
        if self
            .cpus
            .is_some_and(|it| !(LEAST_CPUS..=4096.0).contains(&it))
        {
            return wrong("cpus", &LEAST_CPUS);
        }
        Ok(())
    }

    /// Whether somebody has asked for more than the default.
    pub(super) fn is_asked_for(&self) -> bool {
        *self != Self::default() && !self.is_none()
    }

    fn is_none(&self) -> bool {
        self.memory_bytes.is_none() && self.processes.is_none() && self.cpus.is_none()
    }

    fn of(&self, controller: Controller) -> bool {
        match controller {
            Controller::Memory => self.memory_bytes.is_some(),
            Controller::Pids => self.processes.is_some(),
            Controller::Cpu => self.cpus.is_some(),
        }
    }
}

/// What the kernel limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Controller {
    Memory,
    Pids,
    Cpu,
}

const CONTROLLERS: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

impl Controller {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }
}

/// The kernel has had two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// A hierarchy for each controller.
    One,
    /// One hierarchy.
    Two,
}

impl Version {
    /// What is written to which file of a group, so that it has a limit, or none any more.
    fn values(self, controller: Controller, limits: &ClusterLimits) -> Vec<(String, String)> {
        let or = |limit: Option<String>, none: &str| limit.unwrap_or_else(|| none.to_owned());
        let memory = limits.memory_bytes.map(|bytes| bytes.to_string());
        let processes = limits.processes.map(|count| count.to_string());
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be between a hundredth and a few thousand"
        )]
        let quota = (limits.cpus).map(|cpus| ((cpus * PERIOD as f64) as u64).to_string());
        let values = match (controller, self) {
            (Controller::Memory, Self::One) => vec![("memory.limit_in_bytes", or(memory, "-1"))],
            (Controller::Memory, Self::Two) => vec![("memory.max", or(memory, "max"))],
            (Controller::Pids, _) => vec![("pids.max", or(processes, "max"))],
            (Controller::Cpu, Self::One) => vec![
                ("cpu.cfs_period_us", PERIOD.to_string()),
                ("cpu.cfs_quota_us", or(quota, "-1")),
            ],
            (Controller::Cpu, Self::Two) => {
                vec![("cpu.max", format!("{} {PERIOD}", or(quota, "max")))]
            }
        };
        (values.into_iter())
            .map(|(file, value)| (file.to_owned(), value))
            .collect()
    }
}

/// The groups of one platform.
#[derive(Debug)]
pub(super) struct Groups {
    version: Version,
    root: PathBuf,
    /// Which of all platforms' groups are its own.
    state: String,
    limits: ClusterLimits,
    /// Deaths of want of memory by group, as far as they were told.
    deaths: Mutex<BTreeMap<PathBuf, u64>>,
}

impl Groups {
    /// Those of the platform with this state. `None`: nothing is limited. The error says why nothing can be.
    pub(super) fn open(state: Uuid, limits: &ClusterLimits) -> io::Result<Option<Self>> {
        let root = Path::new(ROOT);
        #[allow(clippy::cast_sign_loss, reason = "a number of 32 bits in a wider type")]
        let version = match statfs(root)?.f_type as u64 & 0xffff_ffff {
            VERSION_2 => Version::Two,
            _ => Version::One,
        };
        Self::over(version, root, state, limits)
    }

    fn over(
        version: Version,
        root: &Path,
        state: Uuid,
        limits: &ClusterLimits,
    ) -> io::Result<Option<Self>> {
        let groups = Self {
            version,
            root: root.to_owned(),
            state: short(state),
            limits: limits.clone(),
            deaths: Mutex::default(),
        };
        groups.prepare()?;
        groups.renew();
        Ok((!limits.is_none()).then_some(groups))
    }

    /// Where the groups of a controller are.
    fn hierarchy(&self, controller: Controller) -> PathBuf {
        match self.version {
            Version::One => self.root.join(controller.name()),
            Version::Two => self.root.clone(),
        }
    }

    fn wanted(&self) -> impl Iterator<Item = Controller> {
        (CONTROLLERS.into_iter()).filter(|controller| self.limits.of(*controller))
    }

    /// Makes what all groups are in, and has the kernel limit what is below.
    fn prepare(&self) -> io::Result<()> {
        for controller in self.wanted() {
            let name = controller.name();
            let hierarchy = self.hierarchy(controller);
            if self.version == Version::One && !hierarchy.join(PROCESSES).exists() {
                let text = format!("{}: this kernel does not limit {name}", hierarchy.display());
                return Err(io::Error::new(io::ErrorKind::NotFound, text));
            }
            let ours = hierarchy.join(OURS);
            fs::create_dir_all(&ours).map_err(|error| at(&ours, error))?;
            if self.version == Version::Two {
                for path in [&hierarchy, &ours] {
                    let below = path.join("cgroup.subtree_control");
                    let enabled = fs::read_to_string(&below);
                    if !enabled.is_ok_and(|all| all.split_whitespace().any(|one| one == name)) {
                        write(&below, &format!("+{name}"))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Has those that are there have the limits of now, and removes those in which nothing is.
    fn renew(&self) {
        for controller in CONTROLLERS {
            for entry in groups_in(&self.hierarchy(controller)) {
                let name = entry.file_name();
                let is_own = (name.to_string_lossy()).starts_with(&format!("{}-", self.state));
                if fs::remove_dir(entry.path()).is_ok() || !is_own {
                    continue;
                }
                for (file, value) in self.version.values(controller, &self.limits) {
                    let file = entry.path().join(file);
                    // It has no such file if nothing was limited when it was made.
                    if file.exists()
                        && let Err(error) = write(&file, &value)
                    {
                        warn!(%error, "a cluster keeps the limit that it had");
                    }
                }
            }
        }
    }

    /// The group of the cluster with this user.
    pub(super) fn of(&self, uid: u32) -> Group {
        let mut parts: Vec<Part> = Vec::new();
        for controller in self.wanted() {
            let name = format!("{}-{uid}", self.state);
            let path = self.hierarchy(controller).join(OURS).join(name);
            let values = self.version.values(controller, &self.limits);
            match parts.iter_mut().find(|part| part.path == path) {
                Some(part) => part.values.extend(values),
                None => parts.push(Part { path, values }),
            }
        }
        Group { parts }
    }

    /// What has died of want of memory in a group until now is known.
    pub(super) fn know(&self, group: &Group) {
        if let Some((path, count)) = group.deaths() {
            self.deaths.lock().insert(path, count);
        }
    }

    /// What the kernel has killed in a group for want of memory since this was asked last, once for each.
    pub(super) fn death(&self, group: &Group) -> Option<String> {
        let (path, count) = group.deaths()?;
        let mut deaths = self.deaths.lock();
        let told = deaths.entry(path).or_default();
        // It begins again with the group.
        *told = (*told).min(count);
        if *told == count {
            return None;
        }
        *told += 1;
        let bytes = self.limits.memory_bytes?;
        Some(format!(
            "the kernel killed a process of this cluster, which had all of its local.cluster_limits.memory_bytes ({bytes})"
        ))
    }

    /// Removes all in which nothing is, of whichever platform: whoever is about to enter one makes it again.
    pub(super) fn remove_empty() {
        let root = Path::new(ROOT);
        let hierarchies = CONTROLLERS.iter().map(|one| root.join(one.name()));
        for hierarchy in hierarchies.chain([root.to_owned()]) {
            for entry in groups_in(&hierarchy) {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

fn groups_in(hierarchy: &Path) -> impl Iterator<Item = fs::DirEntry> {
    let entries = fs::read_dir(hierarchy.join(OURS)).into_iter().flatten();
    (entries.flatten()).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
}

/// What tells the groups of one platform from those of another one on the machine.
fn short(state: Uuid) -> String {
    state.simple().to_string()[..12].to_owned()
}

/// The group of a cluster, with all that it takes to make it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Group {
    parts: Vec<Part>,
}

/// A directory of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    path: PathBuf,
    /// What is written to which file.
    values: Vec<(String, String)>,
}

impl Group {
    /// Has this process and all that it will start be in it.
    pub(super) fn enter(&self) -> io::Result<()> {
        for part in &self.parts {
            let mut tries = 1;
            while let Err(error) = part.enter() {
                // It went with the last node just now.
                let is_gone = error.kind() == io::ErrorKind::NotFound
                    || rustix::io::Errno::from_io_error(&error) == Some(rustix::io::Errno::NODEV);
                if !is_gone || tries == TRIES {
                    return Err(at(&part.path, error));
                }
                tries += 1;
            }
        }
        Ok(())
    }

    /// Removes it, unless something is in it.
    pub(super) fn remove(&self) {
        for part in &self.parts {
            let _ = fs::remove_dir(&part.path);
        }
    }

    /// How many processes the kernel has killed in it for want of memory, and where it says so.
    fn deaths(&self) -> Option<(PathBuf, u64)> {
        for part in &self.parts {
            for file in ["memory.events", "memory.oom_control"] {
                let Ok(text) = fs::read_to_string(part.path.join(file)) else {
                    continue;
                };
                let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
                if let Some(count) = count.and_then(|count| count.trim().parse().ok()) {
                    return Some((part.path.clone(), count));
                }
            }
        }
        None
    }
}

impl Part {
    fn enter(&self) -> io::Result<()> {
        match fs::create_dir(&self.path) {
            Ok(()) => {
                for (file, value) in &self.values {
                    fs::write(self.path.join(file), value)?;
                }
            }
            // It has the limits of now, which may be others than when this node was made.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        fs::write(self.path.join(PROCESSES), "0")
    }
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    fs::write(path, value).map_err(|error| at(path, error))
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: ClusterLimits = ClusterLimits {
        memory_bytes: Some(64 * 1024 * 1024),
        processes: Some(100),
        cpus: Some(1.5),
    };

    /// A root as a kernel shows it, but that files are only written.
    fn root(version: Version) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for controller in CONTROLLERS {
            let hierarchy = match version {
                Version::One => root.path().join(controller.name()),
                Version::Two => root.path().to_owned(),
            };
            fs::create_dir_all(&hierarchy).unwrap();
            fs::write(hierarchy.join(PROCESSES), "").unwrap();
        }
        root
    }

    fn read(root: &Path, file: &str) -> String {
        fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    #[test]
    fn of_version_1_each_controller_has_a_group_and_of_version_2_one_group_has_all() {
        for (version, files) in [
            (
                Version::One,
                &[
                    (
                        "memory/drover/000000000000-7/memory.limit_in_bytes",
                        "67108864",
                    ),
                    ("memory/drover/000000000000-7/cgroup.procs", "0"),
                    ("pids/drover/000000000000-7/pids.max", "100"),
                    ("pids/drover/000000000000-7/cgroup.procs", "0"),
                    ("cpu/drover/000000000000-7/cpu.cfs_period_us", "100000"),
                    ("cpu/drover/000000000000-7/cpu.cfs_quota_us", "150000"),
                    ("cpu/drover/000000000000-7/cgroup.procs", "0"),
                ][..],
            ),
            (
                Version::Two,
                &[
                    ("drover/000000000000-7/memory.max", "67108864"),
                    ("drover/000000000000-7/pids.max", "100"),
                    ("drover/000000000000-7/cpu.max", "150000 100000"),
                    ("drover/000000000000-7/cgroup.procs", "0"),
                    ("drover/cgroup.subtree_control", "+cpu"),
                    ("cgroup.subtree_control", "+cpu"),
                ],
            ),
        ] {
            let root = root(version);
            let groups = Groups::over(version, root.path(), Uuid::nil(), &SOME).unwrap();
            groups.unwrap().of(7).enter().unwrap();
            for (file, value) in files {
                assert_eq!(read(root.path(), file), *value, "{file}");
            }
        }
    }

    #[test]
    fn what_is_there_has_the_limits_of_now_also_if_there_are_none_any_more() {
        let root = root(Version::Two);
        let over =
            |limits: &ClusterLimits| Groups::over(Version::Two, root.path(), Uuid::nil(), limits);
        over(&SOME).unwrap().unwrap().of(7).enter().unwrap();
        let none = ClusterLimits {
            processes: None,
            ..ClusterLimits::default()
        };
        assert!(over(&none).unwrap().is_none());
        for (file, value) in [
            ("drover/000000000000-7/memory.max", "max"),
            ("drover/000000000000-7/pids.max", "max"),
            ("drover/000000000000-7/cpu.max", "max 100000"),
        ] {
            assert_eq!(read(root.path(), file), value, "{file}");
        }
    }

    #[test]
    fn a_kernel_that_does_not_limit_something_is_an_error_that_says_what() {
        let root = root(Version::One);
        fs::remove_dir_all(root.path().join("pids")).unwrap();
        let error = Groups::over(Version::One, root.path(), Uuid::nil(), &SOME).unwrap_err();
        assert!(error.to_string().contains("does not limit pids"), "{error}");
    }

    #[test]
    fn a_death_of_want_of_memory_is_told_once() {
        let root = root(Version::Two);
        let groups = Groups::over(Version::Two, root.path(), Uuid::nil(), &SOME)
            .unwrap()
            .unwrap();
        let group = groups.of(7);
        group.enter().unwrap();
        let events = root.path().join("drover/000000000000-7/memory.events");
        let killed = |count: u64| fs::write(&events, format!("oom 9\noom_kill {count}\n")).unwrap();
        killed(3);
        groups.know(&group);
        assert_eq!(groups.death(&group), None);
        killed(5);
        for told in [true, true, false] {
            let said = groups.death(&group);
            assert_eq!(said.is_some_and(|said| said.contains("67108864")), told);
        }
        // The group went, and came again.
        killed(1);
        assert_eq!(groups.death(&group), None);
        killed(2);
        assert!(groups.death(&group).is_some());
    }

    #[test]
    fn limits_with_which_no_node_starts_are_refused_with_their_field() {
        for (limits, field) in [
            (
                ClusterLimits {
                    memory_bytes: Some(1),
                    ..SOME
                },
                "memory_bytes",
            ),
            (
                ClusterLimits {
                    processes: Some(0),
                    ..SOME
                },
                "processes",
            ),
            (
                ClusterLimits {
                    cpus: Some(f64::NAN),
                    ..SOME
                },
                "cpus",
            ),
        ] {
            let error = limits.check().unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
        SOME.check().unwrap();
    }
}
