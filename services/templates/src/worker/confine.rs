//! Confinement of the worker process before it reads any input.

use std::{
    fs::File,
    io::{self, Read, Seek},
    time::{Duration, SystemTime},
};

use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit},
};

/// How long an allowance also covers further texts: querying the kernel takes longer than most texts.
const ALLOWANCE: Duration = Duration::from_millis(100);

/// Proof that the confinement is in effect.
pub(super) struct Confined {
    /// Reports the processor time used. Kept open, because no file can be opened any more.
    stat: File,
    /// When the last allowance was granted.
    allowed: SystemTime,
}

impl Confined {
    /// Confines the process: from here on it can use this much more memory, but can neither open files nor start
    /// processes, and no other process of the same user can inspect it.
    pub(super) fn new(memory: u64) -> io::Result<Self> {
        let stat = File::open("/proc/self/stat")?;
        let limit = |resource, most| {
            let new = Rlimit {
                current: Some(most),
                maximum: Some(most),
            };
            setrlimit(resource, new).map_err(io::Error::from)
        };
        let taken = taken()?;
        limit(Resource::Core, 0)?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        limit(Resource::Fsize, 0)?;
        limit(Resource::Nproc, 0)?;
        limit(Resource::As, taken + memory)?;
        limit(Resource::Nofile, 0)?;
        let mut confined = Self {
            stat,
            allowed: SystemTime::UNIX_EPOCH,
        };
        confined.used()?;
        Ok(confined)
    }

    /// Grants more processor time.
    pub(super) fn allow_seconds(&mut self, seconds: u64) -> io::Result<()> {
        let now = SystemTime::now();
        // A clock that went backwards also starts a new allowance.
        let since = now.duration_since(self.allowed).unwrap_or(ALLOWANCE);
        if since < ALLOWANCE {
            return Ok(());
        }
        self.allowed = now;
        let new = Rlimit {
            current: Some(self.used()? + seconds + 1),
            maximum: getrlimit(Resource::Cpu).maximum,
        };
        Ok(setrlimit(Resource::Cpu, new)?)
    }

    /// Processor time used so far, in seconds.
    fn used(&mut self) -> io::Result<u64> {
        let mut text = [0; 1024];
        self.stat.rewind()?;
        let size = self.stat.read(&mut text)?;
        let text = String::from_utf8_lossy(&text[..size]);
        // The program name, in parentheses, may contain spaces.
        let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
        let ticks = |at| -> Option<u64> { fields.split_whitespace().nth(at)?.parse().ok() };
        let (user, system) = ticks(11).zip(ticks(12)).ok_or_else(unreadable)?;
        Ok((user + system) / clock_ticks_per_second().max(1))
    }
}

/// Address space used by the process, in bytes.
fn taken() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: Option<u64> = text
        .split_whitespace()
        .next()
        .and_then(|it| it.parse().ok());
    Ok(pages.ok_or_else(unreadable)? * page_size() as u64)
}

fn unreadable() -> io::Error {
    io::Error::other("what /proc says cannot be read")
}
