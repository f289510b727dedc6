//! A rendering process, and the communication with it.

use std::{
    io::{self, ErrorKind, Read, Write},
    os::{fd::AsFd, unix::process::ExitStatusExt},
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus},
};

use drover_core::{Error, Result};
use drover_templates::worker::{self, Answer, Incoming};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_setfl},
    process::Signal,
};

/// Maximum time without output. The limit on processor time is far lower, so exceeding this means that the machine is
/// overloaded or the process was stopped.
const MAX_SILENCE: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// Read size: the capacity of a pipe.
const PIECE: usize = 64 << 10;

/// Signals by which a process dies when it runs out of memory or stack.
const FULL: [Signal; 5] = [
    Signal::ABORT,
    Signal::SEGV,
    Signal::BUS,
    Signal::ILL,
    Signal::TRAP,
];
/// Exit code of a panic.
const PANIC: i32 = 101;

/// A process, killed on drop.
pub(super) struct Process {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    buffer: Box<[u8]>,
    session: Option<u64>,
}

/// Why a process returned no answer.
pub(super) enum Ended {
    /// The text used up its processor time.
    Late,
    /// It ran out of memory, possibly because earlier texts left less of it.
    Full,
    /// Killed for another reason.
    Killed(String),
    /// Still running, but without output.
    Silent(String),
}

impl Process {
    /// Starts a process, and waits until it has confined itself.
    ///
    /// # Errors
    ///
    /// `Unavailable`.
    pub(super) fn start() -> Result<Self> {
        Self::start_as(worker::command())
    }

    /// Like [`Process::start`] with a given command.
    pub(super) fn start_as(command: Result<Command>) -> Result<Self> {
        Self::try_start(command).map_err(|why| {
            Error::unavailable(format!(
                "user data cannot be rendered here: the process for it cannot be started: {why}"
            ))
        })
    }

    fn try_start(command: Result<Command>) -> Result<Self, String> {
        let mut command = command.map_err(|error| error.message().to_owned())?;
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("it has no pipes".to_owned());
        };
        let mut process = Self {
            child,
            input,
            output,
            buffer: vec![0; PIECE].into(),
            session: None,
        };
        for end in [process.input.as_fd(), process.output.as_fd()] {
            fcntl_setfl(end, OFlags::NONBLOCK).map_err(|error| error.to_string())?;
        }
        match process.exchange(&[]) {
            Ok(Ok(_)) => Ok(process),
            Ok(Err(error)) => Err(error.message().to_owned()),
            Err(Ended::Late | Ended::Full) => Err("it ended".to_owned()),
            Err(Ended::Killed(how) | Ended::Silent(how)) => Err(format!("it {how}")),
        }
    }

    #[cfg(test)]
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether this text is the one that it has loaded.
    pub(super) fn knows(&self, session: u64) -> bool {
        self.session == Some(session)
    }

    /// Sends a question. The process is unusable after an error.
    pub(super) fn ask(
        &mut self,
        session: u64,
        frame: &[u8],
        question: &[u8],
    ) -> Result<Answer, Ended> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Err(Ended::Killed(told(status)));
        }
        if self.knows(session) {
            return self.exchange(&[question]);
        }
        let answer = self.exchange(&[frame, question]);
        self.session = Some(session);
        answer
    }

    fn exchange(&mut self, frames: &[&[u8]]) -> Result<Answer, Ended> {
        for frame in frames {
            let mut rest = *frame;
            while !rest.is_empty() {
                match self.input.write(rest) {
                    Ok(0) => return Err(self.ended()),
                    Ok(written) => rest = &rest[written..],
                    Err(error) => self.wait_after(&error, PollFlags::OUT)?,
                }
            }
        }
        let mut incoming = Incoming::default();
        loop {
            match self.output.read(&mut self.buffer) {
                Ok(0) => return Err(self.ended()),
                Ok(read) => match incoming.take(&self.buffer[..read]) {
                    Ok(Some(answer)) => return Ok(answer),
                    Ok(None) => {}
                    Err(error) => return Err(Ended::Silent(error.message().to_owned())),
                },
                Err(error) => self.wait_after(&error, PollFlags::IN)?,
            }
        }
    }

    /// Waits for readiness if an error is `WouldBlock`.
    fn wait_after(&mut self, error: &io::Error, until: PollFlags) -> Result<(), Ended> {
        match error.kind() {
            ErrorKind::Interrupted => return Ok(()),
            ErrorKind::WouldBlock => {}
            _ => return Err(self.ended()),
        }
        let end = if until == PollFlags::OUT {
            self.input.as_fd()
        } else {
            self.output.as_fd()
        };
        match poll(
            &mut [PollFd::from_borrowed_fd(end, until)],
            Some(&MAX_SILENCE),
        ) {
            Ok(0) => Err(Ended::Silent(format!(
                "did not answer within {} s",
                MAX_SILENCE.tv_sec
            ))),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Ended::Silent(format!("cannot be waited for: {error}"))),
        }
    }

    /// Returns how the process ended, which has happened or is imminent.
    fn ended(&mut self) -> Ended {
        // Its ends of the pipes are closed, so its exit status is already determined and not affected by the kill.
        let _ = self.child.kill();
        match self.child.wait() {
            Ok(status) => match status.signal() {
                Some(signal) if signal == Signal::XCPU.as_raw() => Ended::Late,
                Some(signal) if FULL.map(Signal::as_raw).contains(&signal) => Ended::Full,
                None if status.code() == Some(PANIC) => Ended::Full,
                _ => Ended::Killed(told(status)),
            },
            Err(error) => Ended::Killed(format!("is gone: {error}")),
        }
    }
}

fn told(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("was ended by signal {signal}"),
        None => format!("ended with code {}", status.code().unwrap_or_default()),
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
