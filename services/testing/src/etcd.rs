//! A real etcd, of one member or several.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test without its etcd fails"
)]

use std::{
    fs::File,
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use tempfile::TempDir;
use tokio::time::Instant;

use crate::ports::free_port;

/// How long all members may take to find each other on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
/// Attempts to start on ports that nobody took in between.
const ATTEMPTS: usize = 5;

/// An etcd on loopback, whose processes and data go when it is dropped.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    flags: Vec<String>,
    directory: TempDir,
}

#[derive(Debug)]
struct Member {
    process: Option<Child>,
    client: u16,
    peer: u16,
}

impl Etcd {
    /// Starts this many members and waits until they have a leader.
    #[must_use]
    pub fn start(members: usize) -> Self {
        Self::with_flags(members, &[])
    }

    /// Starts members with further flags.
    #[must_use]
    pub fn with_flags(members: usize, flags: &[&str]) -> Self {
        for _ in 0..ATTEMPTS {
            let mut etcd = Self {
                members: (0..members).map(|_| Member::new()).collect(),
                flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
                directory: tempfile::tempdir().unwrap(),
            };
            for i in 0..members {
                etcd.restart(i);
            }
            if etcd.is_up() {
                return etcd;
            }
        }
        panic!("etcd does not start");
    }

    /// Client URLs of all members.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Member::url).collect()
    }

    /// A metric without labels of a member, if it has it.
    #[must_use]
    pub fn metric(&self, at: usize, name: &str) -> Option<f64> {
        let metrics = self.members[at].get("/metrics")?;
        let mut values = metrics.lines().filter_map(|line| line.strip_prefix(name));
        values.find_map(|value| value.trim().parse().ok())
    }

    /// Number of the member that leads. Waits until there is one.
    #[must_use]
    pub fn leader(&self) -> usize {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let leads = |member: &Member| {
                let metrics = member.get("/metrics").unwrap_or_default();
                metrics.contains("\netcd_server_is_leader 1")
            };
            if let Some(at) = self
                .members
                .iter()
                .position(|member| member.process.is_some() && leads(member))
            {
                return at;
            }
            sleep(LOOK);
        }
        panic!("etcd has no leader");
    }

    /// Starts a member, again if it was killed.
    pub fn restart(&mut self, at: usize) {
        let cluster: Vec<String> = (0..self.members.len())
            .map(|i| format!("m{i}=http://127.0.0.1:{}", self.members[i].peer))
            .collect();
        let log = self.directory.path().join(format!("m{at}.log"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let data = self.directory.path().join(format!("m{at}"));
        let member = &mut self.members[at];
        let (client, peer) = (member.url(), format!("http://127.0.0.1:{}", member.peer));
        let process = Command::new("etcd")
            .args(["--name", &format!("m{at}"), "--logger", "zap"])
            .args(["--initial-cluster", &cluster.join(",")])
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .arg("--data-dir")
            .arg(data)
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("etcd is installed (Debian: etcd-server)");
        member.process = Some(process);
    }

    /// Kills a member.
    pub fn kill(&mut self, at: usize) {
        if let Some(mut process) = self.members[at].process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Copies the data of a member that does not run.
    pub fn keep(&self, at: usize) {
        self.copy(&format!("m{at}"), &format!("kept{at}"));
    }

    /// Puts a member that does not run back to what was kept of it.
    pub fn put_back(&self, at: usize) {
        std::fs::remove_dir_all(self.directory.path().join(format!("m{at}"))).unwrap();
        self.copy(&format!("kept{at}"), &format!("m{at}"));
    }

    fn copy(&self, from: &str, to: &str) {
        let [from, to] = [from, to].map(|name| self.directory.path().join(name));
        let done = Command::new("cp").arg("-r").args([from, to]).status();
        assert!(done.unwrap().success());
    }

    /// Stops a member, or has it go on, as if its machine stood still.
    pub fn pause(&self, at: usize, paused: bool) {
        let process = self.members[at].process.as_ref().unwrap();
        let signal = if paused { "-STOP" } else { "-CONT" };
        let done = Command::new("kill")
            .args([signal, &process.id().to_string()])
            .status()
            .unwrap();
        assert!(done.success());
    }

    /// Waits until every member that runs says that it is healthy. False if one of them ended.
    #[must_use]
    pub fn is_up(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let mut running = self.members.iter_mut().filter_map(|m| m.process.as_mut());
            if running.any(|process| process.try_wait().unwrap().is_some()) {
                return false;
            }
            let healthy = |member: &Member| {
                let health = member.get("/health").unwrap_or_default();
                health.contains("\"health\":\"true\"")
            };
            let mut running = self.members.iter().filter(|m| m.process.is_some());
            if running.all(healthy) {
                return true;
            }
            sleep(LOOK);
        }
        panic!("etcd does not become healthy");
    }
}

impl Member {
    fn new() -> Self {
        Self {
            process: None,
            client: free_port(),
            peer: free_port(),
        }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client)
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.client)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        Some(String::from_utf8_lossy(&answer).into_owned())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for at in 0..self.members.len() {
            self.kill(at);
        }
    }
}
