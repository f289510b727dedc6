//! The processes of this machine, as seen by tests.
#![allow(clippy::unwrap_used, reason = "a test that cannot read /proc fails")]

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A program of ours without the settings and the seed in the environment of the test, because it refuses variables
/// that it does not know.
pub fn program(path: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DROVER_") {
            command.env_remove(name);
        }
    }
    command
}

/// Running processes (no zombies) that belong to a state directory, with their node ids. They are identified by their
/// environment, or by their directory if they have overwritten that (redis); then without an id.
#[must_use]
pub fn processes_of(state: &Path) -> BTreeMap<u32, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(environment) = fs::read(entry.path().join("environ")) else {
            continue;
        };
        let value = |name: &str| {
            let mut variables = environment
                .split(|&byte| byte == 0)
                .map(String::from_utf8_lossy);
            variables.find_map(|text| text.strip_prefix(name).map(str::to_owned))
        };
        let directory = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        let belongs = value("DROVER_DIR=")
            .map_or(directory, PathBuf::from)
            .starts_with(state);
        if belongs && lives(pid) {
            found.insert(pid, value("DROVER_NODE_ID=").unwrap_or_default());
        }
    }
    found
}

/// Whether a process exists and is not a zombie. It lives as long as any of its threads: they hold its ports.
#[must_use]
pub fn lives(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let Some((_, behind)) = stat.rsplit_once(')') else {
        return false;
    };
    // proc(5): field 3 is the state, 20 the number of threads.
    let fields: Vec<&str> = behind.split_ascii_whitespace().collect();
    let threads = fields.get(17).and_then(|threads| threads.parse().ok());
    fields.first() != Some(&"Z") || threads.unwrap_or(0_u32) > 1
}
