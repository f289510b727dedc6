//! The audit log: who did what to which object, with which result. One JSON object per line, each referring to the
//! previous line.

pub mod chain;
mod digest;
mod line;
mod log;

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use drover_core::{Error, Result};
use parking_lot::Mutex;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};
use tonic::Code;

pub(crate) use self::digest::Digested;
pub use self::digest::{Command, Digest, DigestKey};
use self::{
    digest::Sum,
    line::{Line, time},
    log::{Output, Pending},
};
use crate::{
    ServerSettings,
    access::{Caller, Identity, Permission},
    calls::TraceId,
    quota::Bucket,
};

/// Maximum number of lines that wait for the disk. Further lines are dropped, counted and reported: a full disk must
/// not stop the server.
const QUEUE: usize = 8192;
/// Maximum time that a call waits for its line to be durable: far longer than a working disk needs.
const DURABLE_WAIT: Duration = Duration::from_secs(5);
/// Rate limit for the audit of refused strangers: a burst, and then a number per second. Others are only counted, and
/// the next line records their number. At this rate a disk can hold a year of lines.
const STRANGERS: (u32, u32) = (100, 2);
/// The same for refused callers who are known, whose identity is worth recording.
const KNOWN: (u32, u32) = (1000, 20);
/// Read-only calls that are always audited, because they can reveal what secrets give access to, or what nodes output.
const TELLING: [&str; 3] = [
    "drover.orchestrator.v1.ClusterService/PlanCluster",
    "drover.orchestrator.v1.ClusterService/StreamNodeLogs",
    "drover.platform.v1.NodeAccessService/StreamLogs",
];

/// An audit log that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("audit log {}: {source}", path.display())]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

/// Validates combinations of settings.
pub(crate) fn check(settings: &ServerSettings) -> Result<(), String> {
    let file = settings.audit_log.as_deref();
    let file = file.filter(|path| path.as_os_str() != log::STDOUT);
    if settings.audit_required && file.is_none() {
        return Err("audit_required is true, and audit_log names no file".to_owned());
    }
    Ok(())
}

/// The audit log of a server. Flushes the remaining lines on drop.
#[derive(Debug)]
pub(crate) struct Audit {
    lines: Option<SyncSender<Pending>>,
    reads: bool,
    /// Whether calls that cannot be recorded are refused.
    required: bool,
    key: DigestKey,
    /// Number of lines dropped since the last line that records such a number.
    lost: Arc<AtomicU64>,
    strangers: Mutex<Allowance>,
    known: Mutex<Allowance>,
    writer: Option<JoinHandle<()>>,
}

/// The audit entry of a call, completed when the call ends.
#[derive(Clone, Debug)]
pub(crate) struct Entry(Arc<Call>);

#[derive(Debug)]
struct Call {
    audit: Arc<Audit>,
    who: Identity,
    peer: Option<SocketAddr>,
    /// Replica that has forwarded the call.
    via: OnceLock<String>,
    what: Arc<str>,
    /// A health check, which must be answered in any case.
    open: bool,
    read: bool,
    telling: bool,
    caller: Caller,
    trace_id: TraceId,
    generation: OnceLock<u64>,
    /// `None` if the call is only recorded when it is refused.
    request: Option<Arc<Mutex<Sum>>>,
    command: OnceLock<Command>,
    /// Sequence number of the line that was durable before the call began.
    asked: OnceLock<u64>,
    begun: AtomicBool,
    /// Whether the call was admitted and passed to its handler.
    let_in: AtomicBool,
    start: Instant,
}

/// The caller of a request, and the means by which its handler adds details to the audit log. An extension of the
/// request.
#[derive(Clone, Debug, Default)]
pub struct CallRecord {
    author: Arc<str>,
    payer: Arc<str>,
    entry: Option<Entry>,
}

impl CallRecord {
    /// The record of a request. A request that did not pass through a server of this crate has no caller and is not
    /// audited.
    #[must_use]
    pub fn of<T>(request: &tonic::Request<T>) -> Self {
        let record = request.extensions().get::<Self>();
        record.cloned().unwrap_or_default()
    }

    pub(crate) fn new(who: &Identity, peer: Option<SocketAddr>, entry: Option<Entry>) -> Self {
        let (author, payer) = match peer {
            _ if !who.is_anonymous() => (who.name(), who.name()),
            Some(peer) => (Arc::default(), format!("address:{}", peer.ip()).into()),
            None => (Arc::default(), who.name()),
        };
        Self {
            author,
            payer,
            entry,
        }
    }

    /// The caller: `spiffe://…`, `cn:…`, `token:…` or `oidc:…`. Empty if no authentication was required.
    #[must_use]
    pub fn author(&self) -> &str {
        &self.author
    }

    /// Whose quota the call counts against: the caller, or `address:…` if no authentication was required.
    #[must_use]
    pub fn payer(&self) -> &Arc<str> {
        &self.payer
    }

    /// Records the generation of the object that this call has created.
    pub fn generation(&self, generation: u64) {
        if let Some(Entry(call)) = &self.entry {
            call.generation.get_or_init(|| generation);
        }
    }

    /// Records the command that is about to be run in a node, and waits until it is durable if that is required. Fails
    /// with `Unavailable` if it cannot be recorded; the command must not be run then.
    pub async fn runs(&self, command: &[String]) -> Result<()> {
        let Some(entry) = &self.entry else {
            return Ok(());
        };
        let call = &entry.0;
        call.command.get_or_init(|| call.audit.key.command(command));
        if call.begun.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let line = entry.line("STARTED", false, call.start.elapsed(), 0);
        if call.audit.required {
            call.audit.durable(line).await.map(drop)
        } else {
            call.audit.send(line);
            Ok(())
        }
    }
}

/// Rate limit of audited refusals.
#[derive(Debug)]
struct Allowance {
    bucket: Bucket,
    /// Number of refusals omitted since the last one that was written.
    omitted: u64,
}

impl Allowance {
    fn new((most, a_second): (u32, u32)) -> Self {
        Self {
            bucket: Bucket::new(most.into(), a_second.into()),
            omitted: 0,
        }
    }

    /// Returns the number of omitted refusals before this one if it may be written, else `None`.
    fn take(&mut self) -> Option<u64> {
        if self.bucket.take().is_err() {
            self.omitted += 1;
            return None;
        }
        Some(std::mem::take(&mut self.omitted))
    }
}

impl Audit {
    /// Opens the configured log. Fails if a file cannot be opened.
    pub(crate) fn of(settings: &ServerSettings) -> Result<Option<Arc<Self>>, AuditError> {
        let Some(path) = &settings.audit_log else {
            return Ok(None);
        };
        Self::open(path, settings).map(Some)
    }

    fn open(path: &Path, settings: &ServerSettings) -> Result<Arc<Self>, AuditError> {
        let at = |path: &Path, source| AuditError {
            path: path.to_owned(),
            source,
        };
        let failed = |source| at(path, source);
        let output = Output::open(path).map_err(failed)?;
        let key = match &settings.audit_key {
            Some(file) => DigestKey::read_or_make(file).map_err(|source| at(file, source))?,
            None if path.as_os_str() == log::STDOUT => DigestKey::random().map_err(failed)?,
            None => {
                let file = log::beside(path, "key");
                DigestKey::read_or_make(&file).map_err(|source| at(&file, source))?
            }
        };
        let (sender, receiver) = sync_channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let (told, required) = (lost.clone(), settings.audit_required);
        let writer = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || log::write(&receiver, output, &told, required))
            .map_err(failed)?;
        Ok(Arc::new(Self {
            lines: Some(sender),
            reads: settings.audit_reads,
            required,
            key,
            lost,
            strangers: Mutex::new(Allowance::new(STRANGERS)),
            known: Mutex::new(Allowance::new(KNOWN)),
            writer: Some(writer),
        }))
    }

    /// Creates the entry of a call. It is written at the end of the call if the call is a mutation or refused, or if
    /// auditing of reads is enabled.
    pub(crate) fn entry(
        self: &Arc<Self>,
        who: Identity,
        peer: Option<SocketAddr>,
        what: Arc<str>,
        permission: Option<Permission>,
        caller: Caller,
        trace_id: TraceId,
    ) -> Entry {
        let read = permission.is_some_and(Permission::is_read);
        let telling = TELLING.contains(&&*what);
        let wanted = !read || telling || self.reads;
        Entry(Arc::new(Call {
            audit: self.clone(),
            who,
            peer,
            via: OnceLock::new(),
            open: permission == Some(Permission::Open),
            read,
            telling,
            what,
            caller,
            trace_id,
            generation: OnceLock::new(),
            request: wanted.then(|| Arc::new(Mutex::new(Sum::new(&self.key)))),
            command: OnceLock::new(),
            asked: OnceLock::new(),
            begun: AtomicBool::new(false),
            let_in: AtomicBool::new(false),
            start: Instant::now(),
        }))
    }

    /// Records a connection or a request that was refused before its caller and method were known.
    pub(crate) fn turned_away(&self, peer: Option<SocketAddr>, what: &str, code: &str, why: &str) {
        let Some(omitted) = self.allow(true) else {
            return;
        };
        let line = Line {
            time: time(),
            who: "anonymous",
            peer,
            what,
            code,
            denied: true,
            why: Some(why),
            omitted,
            ..Line::default()
        };
        self.send(line.text());
    }

    /// Returns the number of omitted refusals before this one if it may be written, else `None`.
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

    fn put(&self, fields: String, durable: Option<oneshot::Sender<u64>>) -> bool {
        let pending = Pending { fields, durable };
        let sent = self.lines.as_ref().map(|lines| lines.try_send(pending));
        let sent = matches!(sent, Some(Ok(())));
        if !sent {
            metrics::counter!("drover_audit_dropped_total").increment(1);
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    fn send(&self, fields: String) {
        self.put(fields, None);
    }

    /// Writes a line and waits until it is durable. Returns its sequence number.
    async fn durable(&self, fields: String) -> Result<u64> {
        let (told, durable) = oneshot::channel();
        let sent = self.put(fields, Some(told));
        let unwritten = || {
            Error::unavailable(
                "the call cannot be written down in the audit log, so it was not begun (audit_required)",
            )
        };
        if !sent {
            return Err(unwritten());
        }
        match timeout(DURABLE_WAIT, durable).await {
            Ok(Ok(seq)) => Ok(seq),
            Ok(Err(_)) | Err(_) => Err(unwritten()),
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            // The writer has logged its errors itself.
            let _ = writer.join();
        }
    }
}

impl Entry {
    /// Whether it is written regardless of the result.
    fn is_wanted(&self) -> bool {
        self.0.request.is_some()
    }

    /// The accumulator for the request's digest. `None` if the digest is not needed.
    pub(crate) fn request(&self) -> Option<Arc<Mutex<Sum>>> {
        self.0.request.clone()
    }

    /// Records the call before it has any effect, and waits until the record is durable, if that is required. Fails
    /// with `Unavailable`.
    pub(crate) async fn ask(&self) -> Result<()> {
        self.asked().await?;
        self.0.let_in.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn asked(&self) -> Result<()> {
        if !self.0.audit.required || self.0.open || !self.is_wanted() {
            return Ok(());
        }
        let line = self.line("ASKED", false, self.0.start.elapsed(), 0);
        let seq = self.0.audit.durable(line).await?;
        self.0.asked.get_or_init(|| seq);
        Ok(())
    }

    /// Ends the entry with a gRPC code.
    pub(crate) fn end(&self, code: Code, name: &str, elapsed: Duration) {
        let denied = matches!(code, Code::PermissionDenied | Code::Unauthenticated);
        self.write(name, denied, elapsed);
    }

    /// Records the start of a stream. Mutations are recorded immediately, because the stream may last for days.
    pub(crate) fn begin(&self, elapsed: Duration) {
        let call = &self.0;
        let wanted = !call.read || call.telling;
        if wanted && !call.begun.swap(true, Ordering::Relaxed) {
            self.write("STARTED", false, elapsed);
        }
    }

    /// Ends the entry with an HTTP status.
    pub(crate) fn end_http(&self, status: &str, elapsed: Duration) {
        self.write(status, matches!(status, "401" | "403"), elapsed);
    }

    fn write(&self, code: &str, denied: bool, elapsed: Duration) {
        if !denied && !self.is_wanted() {
            return;
        }
        let audit = &self.0.audit;
        // Rate-limited, because refused requests cost their caller nothing.
        let omitted = if denied || !self.0.let_in.load(Ordering::Relaxed) {
            match audit.allow(self.0.who.is_anonymous()) {
                Some(omitted) => omitted,
                None => return,
            }
        } else {
            0
        };
        audit.send(self.line(code, denied, elapsed, omitted));
    }

    /// Another replica has forwarded the call.
    pub(crate) fn came_by(&self, replica: String) {
        let _ = self.0.via.set(replica);
    }

    fn line(&self, code: &str, denied: bool, elapsed: Duration, omitted: u64) -> String {
        let call = &*self.0;
        Line {
            time: time(),
            who: &call.who.name(),
            peer: call.peer,
            via: call.via.get().map(String::as_str),
            what: &call.what,
            object: call.caller.object(),
            generation: call.generation.get().copied(),
            request: call.request.as_ref().and_then(|sum| sum.lock().so_far()),
            command: call.command.get(),
            code,
            denied,
            trace_id: Some(call.trace_id.to_string()),
            elapsed_ms: Some(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)),
            omitted,
            asked: call.asked.get().copied(),
            ..Line::default()
        }
        .text()
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
