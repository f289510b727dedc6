//! The log file: each line refers to the previous one, and losses are recorded as lines, too.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::{
    chain::{Row, START, hash},
    line::{Line, Note},
};

/// Interval at which to check whether the file was moved away by log rotation.
const ROTATION_LOOK: Duration = Duration::from_secs(1);
/// Maximum time until lines are synced to disk if no call waits for them.
const SYNC: Duration = Duration::from_secs(1);
/// Maximum number of lines that are written and synced together.
const BATCH: usize = 256;
/// Size of the end of a file in which its last line is searched, in bytes; far longer than any line.
const TAIL: u64 = 256 * 1024;
/// File mode: only the owner can read the log.
const MODE: u32 = 0o600;
/// File name that stands for standard output.
pub(super) const STDOUT: &str = "-";

/// A line to be written, without the fields of the chain.
pub(super) struct Pending {
    pub(super) fields: String,
    /// Receives the sequence number once the line is durable; dropped if it never will be.
    pub(super) durable: Option<oneshot::Sender<u64>>,
}

/// The current end of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Head {
    /// Sequence number of the last line.
    seq: u64,
    /// Hash of the last line.
    hash: String,
}

impl Head {
    fn start() -> Self {
        Self {
            seq: 0,
            hash: START.to_owned(),
        }
    }

    /// Appends a line to the chain.
    fn push(&mut self, fields: &str, text: &mut String) {
        self.seq += 1;
        let line = format!(
            "{{\"seq\":{},\"prev\":\"{}\",{}",
            self.seq,
            self.hash,
            fields.strip_prefix('{').unwrap_or(fields)
        );
        self.hash = hash(line.as_bytes());
        text.push_str(&line);
        text.push('\n');
    }
}

/// Returns the path `FILE.EXTENSION`.
pub(super) fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".");
    name.push(extension);
    name.into()
}

struct LogFile {
    file: File,
    inode: u64,
    looked: Instant,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(MODE)
            .open(path)?;
        // Locked, because two writers would break each other's chain. Devices are not locked.
        let held = file.metadata()?.is_file().then(|| file.try_lock());
        match held.unwrap_or(Ok(())) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "another process writes to it; every server needs an audit log of its own",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // A new file is only durable once its directory entry is.
        if let Some(Ok(directory)) = path.parent().map(File::open) {
            let _ = directory.sync_all();
        }
        Ok(Self {
            inode: file.metadata()?.ino(),
            file,
            looked: Instant::now(),
        })
    }

    /// Whether the path still refers to this file.
    fn is_at(&mut self, path: &Path) -> bool {
        if self.looked.elapsed() < ROTATION_LOOK {
            return true;
        }
        self.looked = Instant::now();
        let there = std::fs::metadata(path).map(|found| found.ino()).ok();
        there == Some(self.inode)
    }

    /// Appends the text completely or not at all.
    fn append(&mut self, text: &str, durable: bool) -> io::Result<()> {
        let before = self.file.metadata()?.len();
        let written = self.file.write_all(text.as_bytes()).and_then(|()| {
            if durable {
                self.file.sync_data()
            } else {
                Ok(())
            }
        });
        if written.is_err() {
            // If this fails as well, the rest is later treated as a torn line.
            let _ = self.file.set_len(before);
        }
        written
    }

    /// Returns the last complete line, and an incomplete one after it, if any.
    fn tail(&mut self) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let metadata = self.file.metadata()?;
        if !metadata.is_file() || metadata.len() == 0 {
            return Ok((Vec::new(), Vec::new()));
        }
        self.file
            .seek(SeekFrom::Start(metadata.len().saturating_sub(TAIL)))?;
        let mut text = Vec::new();
        Read::by_ref(&mut self.file)
            .take(TAIL)
            .read_to_end(&mut text)?;
        let end = text.iter().rposition(|byte| *byte == b'\n');
        let torn = text.split_off(end.map_or(0, |end| end + 1));
        text.pop();
        let start = text.iter().rposition(|byte| *byte == b'\n');
        Ok((text.split_off(start.map_or(0, |start| start + 1)), torn))
    }
}

/// A log in a file. The end of the chain is also stored in a second file beside it, because the log may be moved away
/// while no server is writing.
pub(super) struct Log {
    path: PathBuf,
    /// `None` after a failed write; the file is then reopened.
    open: Option<LogFile>,
    aside: File,
    head: Head,
    /// Notes that precede the next lines.
    notes: Vec<Note>,
}

impl Log {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let aside = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(MODE)
            .open(beside(path, "head"))?;
        let mut log = Self {
            path: path.to_owned(),
            open: None,
            aside,
            head: Head::start(),
            notes: Vec::new(),
        };
        log.resume()?;
        Ok(log)
    }

    /// Continues the chain at the end of the file. If the stored end is newer, lines are missing in the file, and the
    /// stored end is used.
    fn resume(&mut self) -> io::Result<()> {
        let mut file = LogFile::open(&self.path)?;
        let (last, torn) = file.tail()?;
        let mut found = match Row::parse(&last) {
            Some(row) => Head {
                seq: row.seq,
                hash: hash(&last),
            },
            None if last.is_empty() => Head::start(),
            // From a version without chaining.
            None => Head {
                seq: 0,
                hash: hash(&last),
            },
        };
        let mut fragment = None;
        if !torn.is_empty() {
            file.append("\n", false)?;
            found = match Row::parse(&torn) {
                Some(row) => Head {
                    seq: row.seq,
                    hash: hash(&torn),
                },
                None => {
                    fragment = Some(torn.len());
                    Head {
                        seq: found.seq + 1,
                        hash: hash(&torn),
                    }
                }
            };
        }
        let remembered = self.remembered();
        let empty = last.is_empty() && torn.is_empty();
        let known = remembered.filter(|remembered| remembered.seq >= found.seq);
        self.notes.clear();
        match known {
            Some(known) => {
                if !empty && known.seq > found.seq {
                    self.notes.push(Note::Missing(known.seq - found.seq));
                }
                self.head = known;
            }
            None => {
                self.head = found;
                self.notes.extend(fragment.map(Note::Torn));
            }
        }
        self.open = Some(file);
        Ok(())
    }

    fn remembered(&self) -> Option<Head> {
        let mut text = [0; 85];
        self.aside.read_exact_at(&mut text, 0).ok()?;
        let (seq, hash) = std::str::from_utf8(&text).ok()?.split_once(' ')?;
        let whole = hash.len() == START.len() && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        Some(Head {
            seq: seq.parse().ok()?,
            hash: whole.then(|| hash.to_owned())?,
        })
    }

    /// Appends lines, all or none of them.
    fn append(&mut self, lines: &[String], durable: bool) -> io::Result<()> {
        if let Some(file) = &mut self.open
            && !file.is_at(&self.path)
        {
            if let Err(error) = file.file.sync_data() {
                tracing::warn!(%error, "the end of the audit log that was moved away may not be durable");
            }
            // Closed for good even if the new file cannot be opened, because nobody would look for further lines in the
            // old one.
            self.open = None;
            self.open = Some(LogFile::open(&self.path)?);
        }
        if self.open.is_none() {
            self.resume()?;
        }
        let Some(file) = &mut self.open else {
            return Ok(());
        };
        let (mut head, mut text) = (self.head.clone(), String::new());
        for note in &self.notes {
            head.push(&Line::note(*note).text(), &mut text);
        }
        for line in lines {
            head.push(line, &mut text);
        }
        if let Err(error) = file.append(&text, durable) {
            self.open = None;
            return Err(error);
        }
        self.head = head;
        self.notes.clear();
        let remembered = format!("{:020} {}\n", self.head.seq, self.head.hash);
        // Only needed if the file is moved away while no server is writing: without it, lines would then appear to be
        // missing.
        let _ = self.aside.write_all_at(remembered.as_bytes(), 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.open
            .as_ref()
            .map_or(Ok(()), |log| log.file.sync_data())
    }
}

pub(super) enum Output {
    Stdout(StdoutHead),
    File(Box<Log>),
}

/// The chain of lines on standard output. Earlier lines are not known.
pub(super) struct StdoutHead(Head);

impl Output {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(if path.as_os_str() == STDOUT {
            Self::Stdout(StdoutHead(Head::start()))
        } else {
            Self::File(Box::new(Log::open(path)?))
        })
    }

    fn append(&mut self, lines: &[String], durable: bool) -> io::Result<()> {
        match self {
            Self::File(log) => log.append(lines, durable),
            Self::Stdout(StdoutHead(at)) => {
                let (mut head, mut text) = (at.clone(), String::new());
                for line in lines {
                    head.push(line, &mut text);
                }
                let mut out = io::stdout().lock();
                out.write_all(text.as_bytes())?;
                out.flush()?;
                *at = head;
                Ok(())
            }
        }
    }

    fn seq(&self) -> u64 {
        match self {
            Self::File(log) => log.head.seq,
            Self::Stdout(StdoutHead(head)) => head.seq,
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self {
            Self::File(log) => log.sync(),
            Self::Stdout(_) => Ok(()),
        }
    }
}

/// Writes lines until all senders are gone.
pub(super) fn write(
    lines: &Receiver<Pending>,
    mut output: Output,
    lost: &Arc<AtomicU64>,
    required: bool,
) {
    let mut writer = Writer {
        lost,
        required,
        complained: false,
        unsynced: None,
    };
    loop {
        let idle = writer.unsynced.is_none() && lost.load(Ordering::Relaxed) == 0;
        let first = if idle {
            lines.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            lines.recv_timeout(SYNC)
        };
        let mut batch = match first {
            Ok(first) => vec![first],
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        batch.extend(lines.try_iter().take(BATCH));
        writer.write(&mut output, batch);
    }
    writer.write(&mut output, Vec::new());
    if let Err(error) = output.sync() {
        writer.complain(&error);
    }
}

struct Writer<'a> {
    lost: &'a AtomicU64,
    /// Whether each batch is synced before calls continue.
    required: bool,
    complained: bool,
    /// Since when there have been lines that may not be durable.
    unsynced: Option<Instant>,
}

impl Writer<'_> {
    fn write(&mut self, output: &mut Output, batch: Vec<Pending>) {
        // Any lost lines precede this batch, because they would be queued behind it otherwise.
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let note = (lost > 0).then(|| Line::note(Note::Lost(lost)).text());
        let count = batch.len() as u64;
        let (fields, waiting): (Vec<_>, Vec<_>) = (batch.into_iter())
            .map(|pending| (pending.fields, pending.durable))
            .unzip();
        let texts: Vec<String> = note.into_iter().chain(fields).collect();
        if !texts.is_empty() {
            if let Err(error) = output.append(&texts, self.required) {
                self.lost.fetch_add(lost + count, Ordering::Relaxed);
                metrics::counter!("drover_audit_dropped_total").increment(count);
                self.complain(&error);
                return;
            }
            self.complained = false;
            let first = output.seq() + 1 - count;
            for (seq, waiting) in (first..).zip(waiting) {
                // The receiver may have stopped waiting.
                let _ = waiting.map(|waiting| waiting.send(seq));
            }
            if !self.required {
                self.unsynced.get_or_insert_with(Instant::now);
            }
        }
        if self.unsynced.is_some_and(|since| since.elapsed() >= SYNC) {
            self.unsynced = None;
            if let Err(error) = output.sync() {
                self.complain(&error);
            }
        }
    }

    fn complain(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.complained, true) {
            tracing::error!(%error, "the audit log cannot be written");
        }
    }
}
