//! The production orchestrator in a process of its own; stopped on drop.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark that cannot go on fails"
)]

use std::{
    net::SocketAddr,
    path::Path,
    process::{Child, Command},
    time::Duration,
};

pub struct Process {
    child: Child,
    pub address: SocketAddr,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Process {
    /// Starts the orchestrator on a directory, with the additional settings of `more`.
    pub fn start(directory: &Path, more: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        Self::start_at(None, directory, more)
    }

    /// The same at a given port.
    pub fn start_at(
        port: Option<u16>,
        directory: &Path,
        more: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Self {
        let own = std::env::current_exe().unwrap();
        let target = own
            .ancestors()
            .find(|dir| dir.join("drover-orchestrator").is_file());
        let binary = target
            .expect("drover-orchestrator is not built; run tests/bench")
            .join("drover-orchestrator");
        let free = std::net::TcpListener::bind(("127.0.0.1", port.unwrap_or(0))).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let mut command = Command::new(binary);
        command
            .arg("--data-dir")
            .arg(directory.join("store"))
            .args(["--listen", &address.to_string()]);
        let child = more(&mut command).spawn().unwrap();
        Self { child, address }
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end.
    pub fn terminate(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// CPU time used so far.
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// Resident memory in bytes that is this process's alone: without the pages of its program that the kernel has mapped,
    /// which are as many as the page cache happens to have together.
    pub fn own_memory(&self) -> u64 {
        self.status("RssAnon:")
    }

    fn status(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            * 1024
    }
}
