//! A directory in which `drover dev` runs on a socket, started as by a user.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use drover_testing::processes::program;
use tempfile::TempDir;

const CLUSTER: &str = "\
apiVersion: drover.dev/v1
kind: Cluster
metadata: {name: quiet}
spec: {groups: {web: {size: 2, platform: simulated}}}
";

/// A directory with a socket, data and a manifest.
pub(crate) struct Home(TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("quiet.yaml"), CLUSTER).unwrap();
        Self(home)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.path().join("api.sock")
    }

    pub(crate) fn drover(&self, line: &str) -> Command {
        let mut command = program(env!("CARGO_BIN_EXE_drover"));
        command
            .args(line.split_whitespace())
            .current_dir(self.0.path())
            .env("XDG_CONFIG_HOME", self.0.path().join("config"))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, line: &str) -> Output {
        self.drover(line).output().unwrap()
    }

    pub(crate) fn succeeds(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts `drover dev` and waits until it suggests the next commands.
    pub(crate) fn dev(&self) -> Dev {
        let child = self
            .drover("dev --socket api.sock --data-dir data")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Vec::new();
        let mut dev = Dev { child, said };
        for line in BufReader::new(dev.child.stdout.take().unwrap()).lines() {
            dev.said.push(line.unwrap());
            if dev.said.iter().any(|line| line.starts_with("Next,")) {
                return dev;
            }
        }
        panic!("it ended: {:?}", dev.said);
    }

    /// Existing sockets.
    pub(crate) fn sockets(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.path()).unwrap().flatten();
        let is_socket = |path: &PathBuf| {
            fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        };
        entries
            .map(|entry| entry.path())
            .filter(is_socket)
            .collect()
    }
}

pub(crate) struct Dev {
    pub(crate) child: Child,
    pub(crate) said: Vec<String>,
}

impl Dev {
    /// Inodes of its listening TCP sockets.
    pub(crate) fn listening(&self) -> Vec<String> {
        let tables = ["tcp", "tcp6"].map(|table| {
            fs::read_to_string(format!("/proc/{}/net/{table}", self.child.id())).unwrap_or_default()
        });
        // State 0A: listening.
        let inodes: Vec<String> = tables
            .iter()
            .flat_map(|table| table.lines().skip(1))
            .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
            .filter(|fields| fields[3] == "0A")
            .map(|fields| format!("socket:[{}]", fields[9]))
            .collect();
        let files = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        files
            .flatten()
            .filter_map(|file| fs::read_link(file.path()).ok())
            .filter_map(|target| target.to_str().map(str::to_owned))
            .filter(|target| inodes.contains(target))
            .collect()
    }

    pub(crate) fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
