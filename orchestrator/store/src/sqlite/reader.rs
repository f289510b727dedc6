//! Reader threads, each with a read-only connection of its own.

use std::{pin::pin, sync::Arc, thread::JoinHandle};

use bytes::Bytes;
use drover_core::{Error, Result};
use futures::{
    executor::block_on,
    future::{Either, select},
};
use parking_lot::Mutex;
use rusqlite::{Connection, Row};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::spawn;
use crate::{
    backend::{Entry, Range, Revision, Scan},
    keys::Key,
};

pub(super) struct ScanJob {
    pub(super) range: Range,
    pub(super) page: usize,
    pub(super) answer: oneshot::Sender<Result<Scan>>,
}

/// Maximum number of scans that wait for a reader; further callers wait to enqueue theirs.
const WAITING: usize = 256;
/// Pages read ahead of the caller.
const AHEAD: usize = 2;

pub(super) struct Readers {
    jobs: Option<mpsc::Sender<ScanJob>>,
    threads: Vec<JoinHandle<()>>,
    closed: CancellationToken,
}

impl Readers {
    pub(super) fn start(connections: Vec<Connection>) -> Result<Self> {
        let (jobs, waiting) = mpsc::channel(WAITING);
        let waiting = Arc::new(Mutex::new(waiting));
        let closed = CancellationToken::new();
        let threads = connections
            .into_iter()
            .map(|connection| {
                let (waiting, closed) = (Arc::clone(&waiting), closed.clone());
                spawn("drover-reader", move || run(&connection, &waiting, &closed))
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            jobs: Some(jobs),
            threads,
            closed,
        })
    }

    pub(super) async fn send(&self, job: ScanJob) -> Result<()> {
        let closed = || Error::unavailable("the store is closed");
        self.jobs
            .as_ref()
            .ok_or_else(closed)?
            .send(job)
            .await
            .map_err(|_| closed())
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.jobs = None;
        self.closed.cancel();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a reader thread of the store panicked");
            }
        }
    }
}

fn run(
    connection: &Connection,
    waiting: &Mutex<mpsc::Receiver<ScanJob>>,
    closed: &CancellationToken,
) {
    loop {
        // The lock is held while waiting on purpose: one thread waits for the channel, the other for the lock.
        let job = waiting.lock().blocking_recv();
        let Some(job) = job else { return };
        let (sender, receiver) = mpsc::channel(AHEAD);
        let pages = Pages { sender, closed };
        let mut answer = Some((job.answer, receiver));
        let mut begin = |revision| {
            if let Some((answer, receiver)) = answer.take() {
                // If the caller is gone, the receiver is dropped too, which the first page notices.
                let _ = answer.send(Ok(Scan::new(revision, receiver)));
            }
        };
        if let Err(error) = scan(connection, &job.range, job.page, &pages, &mut begin) {
            let error = Error::unavailable(format!("cannot read the store: {error}"));
            match answer.take() {
                Some((answer, _)) => drop(answer.send(Err(error))),
                None => drop(pages.send(Err(error))),
            }
        }
    }
}

/// Channel to a caller. A caller that stops reading must not keep the store from being closed.
struct Pages<'a> {
    sender: mpsc::Sender<Result<Vec<Entry>>>,
    closed: &'a CancellationToken,
}

impl Pages<'_> {
    /// Sends a page. Returns whether the caller takes more.
    fn send(&self, page: Result<Vec<Entry>>) -> bool {
        let (send, closed) = (pin!(self.sender.send(page)), pin!(self.closed.cancelled()));
        match block_on(select(send, closed)) {
            Either::Left((sent, _)) => sent.is_ok(),
            Either::Right(_) => false,
        }
    }
}

fn scan(
    connection: &Connection,
    range: &Range,
    page: usize,
    pages: &Pages<'_>,
    begin: &mut dyn FnMut(Revision),
) -> rusqlite::Result<()> {
    // Ends with this function: a read transaction that stays open would keep the write-ahead log from being reused.
    let snapshot = connection.unchecked_transaction()?;
    begin(
        snapshot
            .prepare_cached("SELECT v FROM meta WHERE k = 'revision'")?
            .query_row([], |row| row.get(0))?,
    );

    let mut left = range.limit.unwrap_or(usize::MAX);
    let mut full = Vec::with_capacity(page.min(left));
    for sql in tables(range) {
        let mut statement = snapshot.prepare_cached(sql)?;
        let most = i64::try_from(left).unwrap_or(i64::MAX);
        let below = range.below.as_ref().map_or(END, Key::as_bytes);
        let mut rows = statement.query((range.from.as_bytes(), below, most))?;
        while let Some(row) = rows.next()? {
            full.push(entry(row)?);
            left -= 1;
            if full.len() == page {
                let next = Vec::with_capacity(page.min(left));
                if !pages.send(Ok(std::mem::replace(&mut full, next))) {
                    return Ok(());
                }
            }
        }
    }
    if !full.is_empty() {
        pages.send(Ok(full));
    }
    Ok(())
}

/// Sorts after every key, because all keys begin with a letter.
const END: &[u8] = &[u8::MAX];

const STATE: &str = "SELECT k, rev, v FROM state WHERE k >= ?1 AND k < ?2 ORDER BY k LIMIT ?3";
const LOG: &str = "SELECT k, rev, v FROM log WHERE k >= ?1 AND k < ?2 ORDER BY k LIMIT ?3";

/// Log keys sort after all others.
fn tables(range: &Range) -> &'static [&'static str] {
    match (range.from.is_log(), &range.below) {
        (true, _) => &[LOG],
        (false, Some(below)) if !below.is_log() && below.as_bytes() < b"z/".as_slice() => &[STATE],
        (false, _) => &[STATE, LOG],
    }
}

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let value: Vec<u8> = row.get(2)?;
    Ok(Entry {
        key: Key::from_bytes(row.get(0)?),
        revision: row.get(1)?,
        value: Bytes::from(value),
    })
}
