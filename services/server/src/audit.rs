//! Who did what, to which object, and how it ended: one JSON object a line.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    net::SocketAddr,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;
use tonic::Code;

use crate::{
    access::{Caller, Identity, Permission},
    calls::TraceId,
};

/// Lines that wait for the disk. More are dropped, counted and complained of: a full disk must not stop the server.
const QUEUE: usize = 8192;
/// How often it is looked whether the file was moved away, as those do who rotate logs.
const ROTATION_LOOK: Duration = Duration::from_secs(1);
/// Standard output instead of a file.
const STDOUT: &str = "-";
/// Refusals of strangers that are written: so many at once, and then so many a second. The others are counted, and the
/// next line says how many they were: a disk holds a year of it.
const STRANGERS: (u32, u32) = (100, 2);
/// The same for refusals of callers who are known: who they are is worth more.
const KNOWN: (u32, u32) = (1000, 20);
/// Only its owner reads what people did.
const MODE: u32 = 0o600;

/// Why there is no audit log.
#[derive(Debug, thiserror::Error)]
#[error("audit log {}: {source}", path.display())]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

/// The audit log of a server. Dropped, it writes what is left.
#[derive(Debug)]
pub(crate) struct Audit {
    lines: Option<SyncSender<String>>,
    reads: bool,
    strangers: Mutex<Allowance>,
    known: Mutex<Allowance>,
    writer: Option<JoinHandle<()>>,
}

/// One call, to be completed when its end is known.
#[derive(Debug)]
pub(crate) struct Entry {
    audit: Arc<Audit>,
    who: Identity,
    peer: Option<SocketAddr>,
    what: Arc<str>,
    read: bool,
    caller: Caller,
    trace_id: TraceId,
}

/// How many refusals may be written yet.
#[derive(Debug)]
struct Allowance {
    most: f64,
    a_second: f64,
    left: f64,
    at: Instant,
    /// Those that were not written since the last one that was.
    omitted: u64,
}

impl Allowance {
    fn new((most, a_second): (u32, u32)) -> Self {
        Self {
            most: most.into(),
            a_second: a_second.into(),
            left: most.into(),
            at: Instant::now(),
            omitted: 0,
        }
    }

    /// Whether one more may be written, and then how many were not before it.
    fn take(&mut self) -> Option<u64> {
        let now = Instant::now();
        let gained = (now - self.at).as_secs_f64() * self.a_second;
        self.left = (self.left + gained).min(self.most);
        self.at = now;
        if self.left < 1.0 {
            self.omitted += 1;
            return None;
        }
        self.left -= 1.0;
        Some(std::mem::take(&mut self.omitted))
    }
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    who: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<SocketAddr>,
    what: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<&'a str>,
    code: &'a str,
    denied: bool,
    /// Why, where there is no call that would say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    elapsed_ms: Option<u64>,
    /// Refusals before this one that were not written, because they were too many.
    #[serde(skip_serializing_if = "is_zero")]
    omitted: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Audit {
    /// Opens the log. Errors: the file cannot be written.
    pub(crate) fn open(path: &Path, reads: bool) -> Result<Arc<Self>, AuditError> {
        let failed = |source| AuditError {
            path: path.to_owned(),
            source,
        };
        let output = if path.as_os_str() == STDOUT {
            Output::Stdout
        } else {
            Output::File(LogFile::open(path).map_err(failed)?)
        };
        let (sender, receiver) = sync_channel(QUEUE);
        let writer = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write(&receiver, output))
            .map_err(failed)?;
        Ok(Arc::new(Self {
            lines: Some(sender),
            reads,
            strangers: Mutex::new(Allowance::new(STRANGERS)),
            known: Mutex::new(Allowance::new(KNOWN)),
            writer: Some(writer),
        }))
    }

    /// A call of somebody. It is written when it ends, if it changes something or is refused, or if reads are wanted, too.
    pub(crate) fn entry(
        self: &Arc<Self>,
        who: Identity,
        peer: Option<SocketAddr>,
        what: Arc<str>,
        permission: Option<Permission>,
        caller: Caller,
        trace_id: TraceId,
    ) -> Entry {
        Entry {
            audit: self.clone(),
            who,
            peer,
            what,
            read: permission.is_some_and(Permission::is_read),
            caller,
            trace_id,
        }
    }

    /// A connection or a request that was refused before it was known who calls what.
    pub(crate) fn turned_away(&self, peer: Option<SocketAddr>, what: &str, code: &str, why: &str) {
        let Some(omitted) = self.allow(true) else {
            return;
        };
        self.line(&Line {
            time: time(),
            who: "anonymous",
            peer,
            what,
            object: None,
            code,
            denied: true,
            why: Some(why),
            trace_id: None,
            elapsed_ms: None,
            omitted,
        });
    }

    /// Whether a refusal may be written, and then how many were not before it.
    fn allow(&self, stranger: bool) -> Option<u64> {
        let of = if stranger {
            &self.strangers
        } else {
            &self.known
        };
        let omitted = of.lock().take();
        if omitted.is_none() {
            metrics::counter!("drover_audit_omitted_total").increment(1);
        }
        omitted
    }

    fn line(&self, line: &Line<'_>) {
        if let Ok(text) = serde_json::to_string(line) {
            self.send(text);
        }
    }

    fn send(&self, line: String) {
        let sent = self.lines.as_ref().map(|lines| lines.try_send(line));
        if !matches!(sent, Some(Ok(()))) {
            metrics::counter!("drover_audit_dropped_total").increment(1);
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            // It has said what went wrong.
            let _ = writer.join();
        }
    }
}

impl Entry {
    /// The call has ended with a code of gRPC.
    pub(crate) fn end(&self, code: Code, name: &str, elapsed: Duration) {
        let denied = matches!(code, Code::PermissionDenied | Code::Unauthenticated);
        self.write(name, denied, elapsed);
    }

    /// A stream has begun. What changes something is written at once: it may go on for days.
    pub(crate) fn begin(&self, elapsed: Duration) {
        if !self.read {
            self.write("STARTED", false, elapsed);
        }
    }

    /// The request has ended with a status of HTTP.
    pub(crate) fn end_http(&self, status: &str, elapsed: Duration) {
        self.write(status, matches!(status, "401" | "403"), elapsed);
    }

    fn write(&self, code: &str, denied: bool, elapsed: Duration) {
        if self.read && !denied && !self.audit.reads {
            return;
        }
        let omitted = if denied {
            match self.audit.allow(self.who.is_anonymous()) {
                Some(omitted) => omitted,
                None => return,
            }
        } else {
            0
        };
        self.audit.line(&Line {
            time: time(),
            who: &self.who.name(),
            peer: self.peer,
            what: &self.what,
            object: self.caller.object(),
            code,
            denied,
            why: None,
            trace_id: Some(self.trace_id.to_string()),
            elapsed_ms: Some(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)),
            omitted,
        });
    }
}

/// Now, as RFC 3339 with milliseconds.
fn time() -> String {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(0);
    let text = drover_tls::explain::utc(seconds);
    let text = text.trim_end_matches(" UTC").replacen(' ', "T", 1);
    format!("{text}.{:03}Z", since.subsec_millis())
}

enum Output {
    Stdout,
    File(LogFile),
}

struct LogFile {
    path: PathBuf,
    file: File,
    inode: u64,
    looked: Instant,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(MODE)
            .open(path)?;
        Ok(Self {
            path: path.to_owned(),
            inode: file.metadata()?.ino(),
            file,
            looked: Instant::now(),
        })
    }

    /// Goes on in a new file when the old one was moved away.
    fn follow(&mut self) -> io::Result<()> {
        if self.looked.elapsed() < ROTATION_LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        let there = std::fs::metadata(&self.path).map(|found| found.ino()).ok();
        if there != Some(self.inode) {
            *self = Self::open(&self.path)?;
        }
        Ok(())
    }
}

fn write(lines: &Receiver<String>, mut output: Output) {
    let mut complained = false;
    while let Ok(mut line) = lines.recv() {
        line.push('\n');
        let written = match &mut output {
            Output::Stdout => io::stdout().lock().write_all(line.as_bytes()),
            // One write a line: those of several processes do not mix.
            Output::File(log) => log
                .follow()
                .and_then(|()| log.file.write_all(line.as_bytes())),
        };
        match written {
            Ok(()) => complained = false,
            Err(error) => {
                metrics::counter!("drover_audit_dropped_total").increment(1);
                if !std::mem::replace(&mut complained, true) {
                    tracing::error!(%error, "the audit log cannot be written");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_refusals_is_written_in_part_and_the_rest_is_counted() {
        let mut allowance = Allowance::new((3, 2));
        let written = (0..10).filter_map(|_| allowance.take()).count();
        assert_eq!(written, 3);
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(allowance.take(), Some(7));
        assert_eq!(allowance.take(), None);
        tokio::time::advance(Duration::from_secs(3600)).await;
        let written: Vec<_> = (0..10).filter_map(|_| allowance.take()).collect();
        assert_eq!(written, [1, 0, 0], "no more than at first");
    }
}
