//! Operating system processes, identified safely despite pid reuse.

use std::{fs, io, os::fd::OwnedFd};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal},
};
use serde::{Deserialize, Serialize};
use tokio::io::{Interest, unix::AsyncFd};

/// Unique identity of a process: pids are reused, but a pid with its start time and boot id is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessId {
    /// Pid; also the id of its session and process group.
    pub(super) pid: u32,
    /// Start time in clock ticks since boot.
    pub(super) start: u64,
    /// Id of the boot it was started in.
    pub(super) boot: String,
}

/// The relevant fields of `/proc/PID/stat`.
struct Stat {
    state: u8,
    session: u32,
    threads: u32,
    start: u64,
}

/// A handle (pidfd) to a process, which the kernel never confuses with another one.
pub(super) struct Process {
    id: ProcessId,
    fd: AsyncFd<OwnedFd>,
}

impl ProcessId {
    /// The identity of the current process. Start time and boot id survive `exec`.
    pub(super) fn own() -> io::Result<Self> {
        Self::of(std::process::id())?
            .ok_or_else(|| io::Error::other("/proc does not know this process"))
    }

    /// The process that currently has this pid. `None` if there is none.
    pub(super) fn of(pid: u32) -> io::Result<Option<Self>> {
        let boot = boot()?;
        Ok(stat(pid)?.map(|stat| Self {
            pid,
            start: stat.start,
            boot,
        }))
    }

    /// Whether it is alive. A zombie is not.
    pub(super) fn lives(&self) -> io::Result<bool> {
        if self.boot != boot()? {
            return Ok(false);
        }
        Ok(stat(self.pid)?.is_some_and(|stat| stat.start == self.start && !stat.is_dead()))
    }

    /// Opens a handle. `None` if the process is dead.
    pub(super) fn hold(&self) -> io::Result<Option<Process>> {
        let Some(pid) = raw(self.pid) else {
            return Ok(None);
        };
        let fd = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Ok(None),
            // The pid may have become a thread id, for which pidfd_open fails; common where pids are few, as in a
            // restarted container.
            Err(_) if !self.lives()? => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Checked after opening, so that the handle is guaranteed to refer to the same process.
        if !self.lives()? {
            return Ok(None);
        }
        #[expect(
            deprecated,
            reason = "its successor is unsafe; a descriptor that is owned is what both ask for"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Some(Process {
            id: self.clone(),
            fd,
        }))
    }

    /// Kills all remaining members of its session, including itself. Returns the number of processes hit.
    pub(super) fn kill_session(&self) -> io::Result<usize> {
        if self.boot != boot()? {
            return Ok(0);
        }
        let mut hit = 0;
        for entry in fs::read_dir("/proc")? {
            let Some(pid) = entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<u32>().ok())
            else {
                continue;
            };
            if !self.has(pid)? {
                continue;
            }
            let Some(raw) = raw(pid) else { continue };
            let Ok(fd) = pidfd_open(raw, PidfdFlags::empty()) else {
                continue;
            };
            // Checked again now that the pid is held.
            if self.has(pid)? && pidfd_send_signal(&fd, Signal::KILL).is_ok() {
                hit += 1;
            }
        }
        Ok(hit)
    }

    /// Whether a process is a living member of the session. A session id is not reused while the session has members;
    /// processes older than its leader belong to another session, and so do all once another process has the leader's
    /// pid.
    fn has(&self, pid: u32) -> io::Result<bool> {
        let member = stat(pid)?.is_some_and(|stat| {
            stat.session == self.pid && stat.start >= self.start && !stat.is_dead()
        });
        Ok(member && stat(self.pid)?.is_none_or(|leader| leader.start == self.start))
    }
}

impl Process {
    pub(super) fn id(&self) -> &ProcessId {
        &self.id
    }

    pub(super) fn is_dead(&self) -> bool {
        let mut fds = [PollFd::new(self.fd.get_ref(), PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(poll(&mut fds, Some(&now)), Ok(ready) if ready > 0)
    }

    /// Returns once it has died.
    pub(super) async fn died(&self) -> io::Result<()> {
        // A pidfd becomes readable once and stays so.
        self.fd.readable().await.map(|_| ())
    }

    /// Sends a signal to its process group, if it is alive.
    pub(super) fn signal_group(&self, signal: Signal) -> io::Result<()> {
        if self.is_dead() {
            return Ok(());
        }
        match raw(self.id.pid).map_or(Ok(()), |pid| kill_process_group(pid, signal)) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Stat {
    fn is_dead(&self) -> bool {
        // The first thread of a killed process is a zombie while others still hold its ports and files.
        matches!(self.state, b'Z' | b'X' | b'x') && self.threads <= 1
    }
}

/// Id of the current boot.
fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// Name of this machine.
pub(super) fn host_name() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

fn raw(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// `None` if there is no such process.
fn stat(pid: u32) -> io::Result<Option<Stat>> {
    let text = match fs::read(format!("/proc/{pid}/stat")) {
        Ok(text) => text,
        // The process ended while it was read.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                || error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    Ok(parse_stat(&text))
}

/// Fields are counted from the end of the command, which is in parentheses and may contain anything.
fn parse_stat(text: &[u8]) -> Option<Stat> {
    let behind = text.iter().rposition(|&byte| byte == b')')? + 1;
    let rest = std::str::from_utf8(text.get(behind..)?).ok()?;
    let fields = rest.split_ascii_whitespace().collect::<Vec<_>>();
    // proc(5): field 3 is the state, 6 the session, 20 the number of threads, 22 the start time.
    Some(Stat {
        state: *fields.first()?.as_bytes().first()?,
        session: fields.get(3)?.parse().ok()?,
        threads: fields.get(17)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_command_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let text = b"7 (a) b (c) S 1 5 9 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 123456 1 2";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.state, stat.session, stat.start), (b'S', 9, 123_456));
        assert_eq!(stat.threads, 1);
    }

    #[test]
    fn a_zombie_is_dead_once_its_last_thread_is_gone() {
        for (threads, dead) in [(3, false), (1, true), (0, true)] {
            let text = format!("7 (redis) Z 1 5 9 0 -1 4 1 2 3 4 5 6 7 8 20 0 {threads} 0 123 1 2");
            let stat = parse_stat(text.as_bytes()).unwrap();
            assert_eq!((stat.start, stat.is_dead()), (123, dead), "{threads}");
        }
    }

    #[tokio::test]
    async fn a_process_is_held_until_it_dies_and_a_zombie_is_dead() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let id = ProcessId::of(child.id()).unwrap().unwrap();
        let process = id.hold().unwrap().unwrap();
        assert!(id.lives().unwrap() && !process.is_dead());
        child.kill().unwrap();
        process.died().await.unwrap();
        // Not reaped: it is a zombie now.
        assert!(!id.lives().unwrap() && process.is_dead() && id.hold().unwrap().is_none());
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn an_id_that_a_thread_has_by_now_is_that_of_a_dead_process() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let own = fs::read_link("/proc/thread-self").unwrap();
            let tid = own.file_name().unwrap().to_str().unwrap().to_owned();
            tell.send(tid.parse::<u32>().unwrap()).unwrap();
            ended.recv().unwrap_err();
        });
        let tid = told.recv().unwrap();
        assert_ne!(tid, std::process::id());
        let id = ProcessId {
            pid: tid,
            start: 1,
            boot: boot().unwrap(),
        };
        assert!(id.hold().unwrap().is_none() && !id.lives().unwrap());
        assert_eq!(id.kill_session().unwrap(), 0);
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn whoever_has_the_id_of_a_dead_leader_by_now_is_not_killed_for_it() {
        let mut child = Command::new("setsid")
            .args(["sleep", "60"])
            .spawn()
            .unwrap();
        let id = ProcessId::of(child.id()).unwrap().unwrap();
        // Wait until it has become a session leader.
        while stat(id.pid).unwrap().unwrap().session != id.pid {
            std::thread::yield_now();
        }
        let dead = ProcessId {
            start: id.start - 1,
            ..id.clone()
        };
        assert_eq!(dead.kill_session().unwrap(), 0);
        assert!(id.lives().unwrap());
        assert_eq!(id.kill_session().unwrap(), 1);
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn a_reused_id_is_another_process() {
        let own = ProcessId::own().unwrap();
        assert!(own.lives().unwrap());
        for other in [
            ProcessId {
                start: own.start + 1,
                ..own.clone()
            },
            ProcessId {
                boot: "another".to_owned(),
                ..own.clone()
            },
        ] {
            assert!(!other.lives().unwrap());
            assert!(other.hold().unwrap().is_none());
        }
    }
}
