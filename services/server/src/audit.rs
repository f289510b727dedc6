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
    writer: Option<JoinHandle<()>>,
}

/// One call, to be completed when its end is known.
#[derive(Debug)]
pub(crate) struct Entry {
    audit: Arc<Audit>,
    who: Identity,
    peer: Option<SocketAddr>,
    what: String,
    read: bool,
    caller: Caller,
    trace_id: TraceId,
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
    trace_id: String,
    elapsed_ms: u64,
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
            writer: Some(writer),
        }))
    }

    /// A call of somebody. It is written when it ends, if it changes something or is refused, or if reads are wanted, too.
    pub(crate) fn entry(
        self: &Arc<Self>,
        who: Identity,
        peer: Option<SocketAddr>,
        what: String,
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
        let who = self.who.to_string();
        let line = Line {
            time: time(),
            who: &who,
            peer: self.peer,
            what: &self.what,
            object: self.caller.object(),
            code,
            denied,
            trace_id: self.trace_id.to_string(),
            elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        };
        if let Ok(text) = serde_json::to_string(&line) {
            self.audit.send(text);
        }
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
