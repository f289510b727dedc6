//! Resource limits of a cluster's nodes, as control groups (cgroups) of version 1 or 2.
//!
//! A cluster with its own user has a group `drover/STATE-UID` below the root of a hierarchy, next to those of container
//! runtimes. The group is removed with the last node, so each launcher creates it if necessary and enters it before it
//! becomes a node, or a command in one. Files and values: <https://docs.kernel.org/admin-guide/cgroup-v2.html>,
//! <https://docs.kernel.org/admin-guide/cgroup-v1/index.html>.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fmt::Display,
    fs, io,
    path::{Path, PathBuf},
};

use drover_core::{Error, Result};
use parking_lot::Mutex;
use rustix::fs::statfs;
use serde::{Deserialize, Serialize};
use tracing::warn;
use uuid::Uuid;

/// Mount point of the cgroup file system.
const ROOT: &str = "/sys/fs/cgroup";
/// File system magic of version 2.
const VERSION_2: u64 = 0x6367_7270;
/// Parent of Drover's groups.
const OURS: &str = "drover";
/// File to which a pid is written to move a process into the group; 0 is the writing process.
const PROCESSES: &str = "cgroup.procs";
/// CPU bandwidth period in microseconds: the kernel's default.
const PERIOD: u64 = 100_000;
/// How often a group is created again if it was removed before it could be entered.
const TRIES: u32 = 100;

/// Environment variable that passes the group to a launcher. This way the current settings apply, and not those at the
/// creation of the node.
const TOLD: &str = "DROVER_LOCAL_GROUP";
/// Files that only exist if the kernel has swap accounting.
const SWAP: [&str; 2] = ["memory.swap.max", "memory.memsw.limit_in_bytes"];
/// Values from here on mean "no limit" in version 1, which reports the maximum number of pages.
const NO_MEMORY_LIMIT: u64 = 1 << 62;

/// Ranges: below the minimum no node starts, above the maximum the kernel rejects the value.
const MEMORY: (u64, u64) = (4 * 1024 * 1024, NO_MEMORY_LIMIT - 1);
const PROCESS_COUNT: (u32, u32) = (8, 4_194_304);
const CPUS: (f64, f64) = (0.01, 4096.0);

/// Limits for all nodes of a cluster together, including commands in them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterLimits {
    /// Memory in bytes, including the page cache of their files and without swap; a process that exceeds it is killed.
    /// Default: no limit.
    pub memory_bytes: Option<u64>,
    /// Number of processes and threads. Default: 8192, but not applied if the platform itself is in a group with
    /// limits, since its nodes would escape those.
    pub processes: Option<u32>,
    /// Number of CPUs; 0.5 is half a CPU. Default: no limit.
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
        fn within<T: PartialOrd + Display>(
            field: &str,
            value: Option<T>,
            (least, most): (T, T),
        ) -> Result<()> {
            if value.is_none_or(|value| least <= value && value <= most) {
                return Ok(());
            }
            let field = format!("local.cluster_limits.{field}");
            Err(Error::invalid(field, format!("expected {least} to {most}")))
        }
        within("memory_bytes", self.memory_bytes, MEMORY)?;
        within("processes", self.processes, PROCESS_COUNT)?;
        within("cpus", self.cpus, CPUS)
    }

    /// Whether limits other than the defaults were configured.
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

/// Version of the cgroup interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// One hierarchy per controller.
    One,
    /// A single unified hierarchy.
    Two,
}

impl Version {
    /// The files of a group and the values to write into them to set or reset its limits.
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
            (Controller::Memory, Self::One) => vec![
                ("memory.limit_in_bytes", or(memory.clone(), "-1")),
                // Memory and swap together.
                (SWAP[1], or(memory, "-1")),
            ],
            (Controller::Memory, Self::Two) => {
                let swap = memory.as_ref().map(|_| "0".to_owned());
                vec![
                    ("memory.max", or(memory, "max")),
                    (SWAP[0], or(swap, "max")),
                ]
            }
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
    /// Prefix of this platform's groups.
    state: String,
    limits: ClusterLimits,
    /// Reported OOM kills, by group.
    deaths: Mutex<BTreeMap<PathBuf, u64>>,
}

impl Groups {
    /// The groups of the platform with this state. `None` if no limits are configured. The error says why limits are
    /// not possible.
    pub(super) fn open(state: Uuid, limits: &ClusterLimits) -> io::Result<Option<Self>> {
        let root = Path::new(ROOT);
        #[allow(clippy::cast_sign_loss, reason = "a number of 32 bits in a wider type")]
        let version = match statfs(root)?.f_type as u64 & 0xffff_ffff {
            VERSION_2 => Version::Two,
            _ => Version::One,
        };
        if !limits.is_asked_for()
            && !limits.is_none()
            && let Some(own) = own_limit(version, root, &fs::read_to_string("/proc/self/cgroup")?)
        {
            return Err(io::Error::other(format!(
                "the platform itself is in a group with limits ({}), which its nodes would leave; with \
                 local.cluster_limits they do",
                own.display()
            )));
        }
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

    /// The root of a controller's hierarchy.
    fn hierarchy(&self, controller: Controller) -> PathBuf {
        match self.version {
            Version::One => self.root.join(controller.name()),
            Version::Two => self.root.clone(),
        }
    }

    fn wanted(&self) -> impl Iterator<Item = Controller> {
        (CONTROLLERS.into_iter()).filter(|controller| self.limits.of(*controller))
    }

    /// Creates the parent of all groups and enables the controllers below it.
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

    /// Applies the current limits to existing groups and removes empty ones.
    fn renew(&self) {
        for controller in CONTROLLERS {
            for entry in groups_in(&self.hierarchy(controller)) {
                let name = entry.file_name();
                let is_own = (name.to_string_lossy()).starts_with(&format!("{}-", self.state));
                if fs::remove_dir(entry.path()).is_ok() || !is_own {
                    continue;
                }
                let values = self.version.values(controller, &self.limits);
                // The file is missing if the group was created without limits.
                let there = |now: &str| !now.is_empty();
                // Of two related limits, the larger one has to be raised first.
                if let Err(error) = set(&entry.path(), &values, there)
                    .or_else(|_| set(&entry.path(), values.iter().rev(), there))
                {
                    warn!(%error, "a cluster keeps the limit that it had");
                }
            }
        }
    }

    /// The group of the cluster with this uid.
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

    /// Marks all previous OOM kills of a group as reported.
    pub(super) fn know(&self, group: &Group) {
        if let Some((path, count)) = group.deaths() {
            self.deaths.lock().insert(path, count);
        }
    }

    /// The next OOM kill of a group that was not reported yet, each exactly once.
    pub(super) fn death(&self, group: &Group) -> Option<String> {
        let (path, count) = group.deaths()?;
        let mut deaths = self.deaths.lock();
        let told = deaths.entry(path).or_default();
        // The counter restarts when the group is created again.
        *told = (*told).min(count);
        if *told == count {
            return None;
        }
        *told += 1;
        Some(match self.limits.memory_bytes {
            Some(bytes) if group.was_full() => format!(
                "the kernel killed a process of this cluster, which had all of its local.cluster_limits.memory_bytes ({bytes})"
            ),
            _ => "the kernel killed a process of this cluster for want of memory".to_owned(),
        })
    }

    /// Removes all empty groups, of any platform: a launcher that is about to enter one creates it again.
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

/// Distinguishes the groups of several platforms on one machine.
fn short(state: Uuid) -> String {
    state.simple().to_string()[..12].to_owned()
}

/// The group of a cluster, with all information needed to create it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Group {
    parts: Vec<Part>,
}

/// One directory of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    path: PathBuf,
    /// File names and the values to write.
    values: Vec<(String, String)>,
}

impl Group {
    /// Encodes the group as an environment variable for a launcher.
    pub(super) fn tell(&self) -> (&'static str, String) {
        (TOLD, serde_json::to_string(self).unwrap_or_default())
    }

    /// The group passed to this process, which is a launcher. `None` if it is not limited.
    pub(super) fn told() -> io::Result<Option<Self>> {
        let told: Option<OsString> = env::var_os(TOLD);
        let read = |text: OsString| serde_json::from_slice(text.as_encoded_bytes());
        Ok(told.map(read).transpose()?)
    }

    /// Moves this process, and thereby all its future children, into the group.
    pub(super) fn enter(&self) -> io::Result<()> {
        for part in &self.parts {
            let mut tries = 1;
            while let Err(error) = part.enter() {
                // It was removed with the last node in the meantime.
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

    /// Removes the group unless it contains processes.
    pub(super) fn remove(&self) {
        for part in &self.parts {
            let _ = fs::remove_dir(&part.path);
        }
    }

    /// Whether the group has reached its memory limit.
    fn was_full(&self) -> bool {
        self.parts.iter().any(|part| {
            let read = |file| fs::read_to_string(part.path.join(file)).unwrap_or_default();
            let number = |text: &str| text.trim().parse::<u64>().ok();
            let events = read("memory.events");
            let mut full = events.lines().filter_map(|line| line.strip_prefix("oom "));
            // Version 1 has no such counter, but records the peak usage.
            let most = number(&read("memory.max_usage_in_bytes"));
            let limit = number(&read("memory.limit_in_bytes"));
            full.any(|count| number(count) > Some(0)) || (most.is_some() && most >= limit)
        })
    }

    /// The number of OOM kills in the group, and the file that counts them.
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
                if let Err(error) = set(&self.path, &self.values, |_| true) {
                    // The next launcher creates it completely.
                    let _ = fs::remove_dir(&self.path);
                    return Err(error);
                }
            }
            // Its creator may have died before it set all limits.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                set(&self.path, &self.values, is_unlimited)?;
            }
            Err(error) => return Err(error),
        }
        fs::write(self.path.join(PROCESSES), "0")
    }
}

/// Writes values into those files of a group whose current content satisfies `of`. Swap files that do not exist are
/// skipped.
fn set<'a>(
    group: &Path,
    values: impl IntoIterator<Item = &'a (String, String)>,
    of: impl Fn(&str) -> bool,
) -> io::Result<()> {
    for (file, value) in values {
        let path = group.join(file);
        let now = match fs::read_to_string(&path) {
            Ok(now) => now,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if SWAP.contains(&&**file) {
                    continue;
                }
                String::new()
            }
            Err(error) => return Err(error),
        };
        if of(&now) {
            fs::write(&path, value)?;
        }
    }
    Ok(())
}

/// Whether a file's content means "no limit".
fn is_unlimited(text: &str) -> bool {
    match text.split_whitespace().next() {
        None | Some("max" | "-1") => true,
        Some(number) => number.parse().is_ok_and(|it: u64| it >= NO_MEMORY_LIMIT),
    }
}

/// The group of this process, or an ancestor of it, that has a limit; `own` is the content of `/proc/self/cgroup`.
fn own_limit(version: Version, root: &Path, own: &str) -> Option<PathBuf> {
    for line in own.lines() {
        let names_and_path = line
            .split_once(':')
            .and_then(|(_, rest)| rest.split_once(':'));
        let Some((names, path)) = names_and_path else {
            continue;
        };
        for controller in CONTROLLERS {
            let (hierarchy, is_of) = match version {
                Version::One => {
                    let mut names = names.split(',');
                    (
                        root.join(controller.name()),
                        names.any(|name| name == controller.name()),
                    )
                }
                Version::Two => (root.to_owned(), names.is_empty()),
            };
            let group = hierarchy.join(path.trim_start_matches('/'));
            let mut around = group
                .ancestors()
                .take_while(|it| is_of && **it != *hierarchy);
            if let Some(limited) = around.find(|group| has_limit(version, controller, group)) {
                return Some(limited.to_owned());
            }
        }
    }
    None
}

fn has_limit(version: Version, controller: Controller, group: &Path) -> bool {
    let values = version.values(controller, &ClusterLimits::default());
    let mut files = values
        .iter()
        .map(|(file, _)| file)
        .filter(|file| !file.ends_with("period_us"));
    files.any(|file| fs::read_to_string(group.join(file)).is_ok_and(|text| !is_unlimited(&text)))
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    fs::write(path, value).map_err(|error| at(path, error))
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
