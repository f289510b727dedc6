//! The event log of a cluster. Its numbers are in the head, so that a number is assigned by the transaction that stores
//! the event.

use std::sync::Arc;

use drover_core::{Error, Reason, Result};
use prost::Message;
use tokio::sync::watch;
use uuid::Uuid;

use super::{Store, Versioned, feed::Feed};
use crate::{
    backend::{Backend, Entry, Op, PAGE, Range, Revision},
    keys::{Key, Name},
    value::{Chunk, EventRow, Head, NewEvent, Tombstone},
};

/// Maximum number of events in a chunk; a reader finds the chunk of an event by looking this far back.
const CHUNK_EVENTS: usize = 128;
/// Maximum size of a chunk in bytes; one step may write several.
const CHUNK_BYTES: usize = 32 * 1024;

/// Number of events that a cluster retains.
const KEPT: u64 = 1000;
/// Number of further events from which on the log is trimmed, so that not every step does it.
const KEPT_MORE: u64 = 128;

/// Events of a cluster, with the bounds of its log.
#[derive(Clone, Debug, PartialEq)]
pub struct EventPage {
    /// Events in order, without gaps.
    pub events: Vec<EventRow>,
    /// Number of the oldest retained event.
    pub first_seq: u64,
    /// Number of the newest event, 0 if there was none.
    pub last_seq: u64,
    /// Whether the cluster is gone, so that no more events follow.
    pub ended: bool,
}

/// Numbers events and adds their chunks to a transaction.
pub(super) fn append(uid: Uuid, head: &mut Head, events: Vec<NewEvent>, ops: &mut Vec<Op>) {
    let mut chunk = Chunk::default();
    let mut bytes = 0;
    let mut first = head.last_seq + 1;
    let mut close = |chunk: &mut Chunk, first: u64| {
        let full = std::mem::take(chunk);
        ops.push(Op::Put {
            key: Name::Events(uid, first).into(),
            value: full.encode_to_vec().into(),
        });
    };
    for event in events {
        let len = event.encoded_len() + CHUNK_EVENT_OVERHEAD;
        if !chunk.events.is_empty()
            && (chunk.events.len() == CHUNK_EVENTS || bytes + len > CHUNK_BYTES)
        {
            close(&mut chunk, first);
            (first, bytes) = (head.last_seq + 1, 0);
        }
        head.last_seq += 1;
        bytes += len;
        chunk.events.push(event);
    }
    if !chunk.events.is_empty() {
        close(&mut chunk, first);
    }
}

/// Size of the tag and length of an event inside its chunk.
const CHUNK_EVENT_OVERHEAD: usize = 4;

/// Trims a log that has become too long.
pub(super) fn trim_by_number(uid: Uuid, head: &mut Head, ops: &mut Vec<Op>) {
    let first = (head.last_seq + 1).saturating_sub(KEPT);
    if first > head.first_seq() + KEPT_MORE {
        ops.push(trim_to(uid, head, first));
    }
}

/// Makes `first` the oldest event. The chunk that contains it may begin before it, and stays whole.
pub(super) fn trim_to(uid: Uuid, head: &mut Head, first: u64) -> Op {
    head.first_seq = first;
    Op::DeleteBelow {
        from: Name::Events(uid, 0).into(),
        below: first_chunk(uid, first),
    }
}

/// Lower bound for the keys of all chunks that contain this event or a later one.
fn first_chunk(uid: Uuid, seq: u64) -> Key {
    Name::Events(uid, seq.saturating_sub(CHUNK_EVENTS as u64 - 1)).into()
}

/// Key range of a whole log.
pub(super) fn log_of(uid: Uuid) -> (Key, Key) {
    (
        Name::Events(uid, 0).into(),
        Name::Events(uid, u64::MAX).into(),
    )
}

impl Store {
    /// Reads at most `limit` events after a number; 0 starts with the first.
    ///
    /// `NOT_FOUND` if such a cluster neither exists nor existed. `EVENTS_TRIMMED` if the next event is no longer
    /// retained. `STORE_RESTORED` if the number is above all that this store has assigned.
    pub async fn events(&self, uid: Uuid, after: u64, limit: usize) -> Result<EventPage> {
        read(&*self.backend, uid, after, limit).await
    }

    /// Bounds of a cluster's log, without any event.
    pub async fn event_bounds(&self, uid: Uuid) -> Result<EventPage> {
        bounds(&*self.backend, uid).await
    }

    /// Watches the events after a number, both present and future ones.
    #[must_use]
    pub fn watch_events(&self, uid: Uuid, after: u64) -> EventWatch {
        // Before the first read, so that nothing in between is missed.
        let changed = Some(self.feed.subscribe(uid));
        EventWatch {
            backend: Arc::clone(&self.backend),
            feed: Arc::clone(&self.feed),
            uid,
            after,
            changed,
        }
    }
}

/// A position in a cluster's log, which is all the memory that a slow reader takes.
#[derive(Debug)]
pub struct EventWatch {
    backend: Arc<dyn Backend>,
    feed: Arc<Feed>,
    uid: Uuid,
    after: u64,
    changed: Option<watch::Receiver<Revision>>,
}

impl EventWatch {
    /// Waits for the next events, and returns at most `limit`. `None` after the last one of a deleted cluster. Errors
    /// as for [`Store::events`]; the call can be repeated after an error.
    pub async fn next(&mut self, limit: usize) -> Result<Option<Vec<EventRow>>> {
        let Some(changed) = &mut self.changed else {
            return Ok(None);
        };
        loop {
            changed.borrow_and_update();
            let page = read(&*self.backend, self.uid, self.after, limit.max(1)).await?;
            if let Some(last) = page.events.last() {
                self.after = last.seq;
                return Ok(Some(page.events));
            }
            if page.ended {
                return Ok(None);
            }
            if changed.changed().await.is_err() {
                return Err(Error::unavailable("the store was closed"));
            }
        }
    }

    /// Number of the last event that was returned.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.after
    }
}

impl Drop for EventWatch {
    fn drop(&mut self) {
        if let Some(changed) = self.changed.take() {
            self.feed.unsubscribe(self.uid, changed);
        }
    }
}

async fn bounds(backend: &dyn Backend, uid: Uuid) -> Result<EventPage> {
    let page = |first_seq: u64, last_seq, ended| EventPage {
        events: Vec::new(),
        first_seq: first_seq.max(1),
        last_seq,
        ended,
    };
    // The head is read first: when it is gone, the tombstone already exists.
    if let Some(head) = get::<Head>(backend, &Name::Head(uid).into()).await? {
        return Ok(page(head.value.first_seq, head.value.last_seq, false));
    }
    if let Some(tombstone) = get::<Tombstone>(backend, &Name::Tombstone(uid).into()).await? {
        return Ok(page(
            tombstone.value.first_seq,
            tombstone.value.last_seq,
            true,
        ));
    }
    if backend.get(&Name::Desired(uid).into()).await?.is_some() {
        return Ok(page(1, 0, false));
    }
    Err(Error::not_found("cluster", uid.to_string()))
}

async fn get<M: Message + Default>(
    backend: &dyn Backend,
    key: &Key,
) -> Result<Option<Versioned<M>>> {
    backend
        .get(key)
        .await?
        .map(|entry| super::decode(&entry))
        .transpose()
}

/// Attempts to read a log while its beginning is trimmed; each failure needs a step of the cluster in between.
const READ_TRIES: usize = 4;

async fn read(backend: &dyn Backend, uid: Uuid, after: u64, limit: usize) -> Result<EventPage> {
    for _ in 0..READ_TRIES {
        let mut page = bounds(backend, uid).await?;
        if after > page.last_seq {
            let message = format!(
                "there is no event {after}, {} is the newest; if there was one, the store was restored",
                page.last_seq
            );
            return Err(Error::new(Reason::StoreRestored, message)
                .with_metadata("last_sequence", page.last_seq));
        }
        if after + 1 < page.first_seq {
            let message = format!(
                "the events after {after} are no longer kept, {} is the oldest",
                page.first_seq
            );
            return Err(Error::new(Reason::EventsTrimmed, message)
                .with_metadata("oldest_sequence", page.first_seq));
        }
        let last = page
            .last_seq
            .min(after.saturating_add(u64::try_from(limit).unwrap_or(u64::MAX)));
        if last == after {
            return Ok(page);
        }
        page.events = range(backend, uid, after + 1, last).await?;
        if page.events.first().is_some_and(|row| row.seq == after + 1)
            && page.events.len() as u64 == last - after
        {
            return Ok(page);
        }
    }
    Err(Error::internal(format!(
        "the log of cluster {uid} has a gap after event {after}"
    )))
}

async fn range(backend: &dyn Backend, uid: Uuid, first: u64, last: u64) -> Result<Vec<EventRow>> {
    let below = Name::Events(uid, last.saturating_add(1)).into();
    let range = Range {
        from: first_chunk(uid, first),
        below: Some(below),
        limit: None,
    };
    let mut events = Vec::new();
    for entry in backend.scan(range, PAGE).await?.collect().await? {
        events.extend(
            rows(&entry)?
                .into_iter()
                .filter(|row| (first..=last).contains(&row.seq)),
        );
    }
    Ok(events)
}

fn rows(entry: &Entry) -> Result<Vec<EventRow>> {
    let damaged = || super::damaged(&entry.key);
    let Some(Name::Events(_, first)) = entry.key.parse() else {
        return Err(damaged());
    };
    let chunk = Chunk::decode(entry.value.clone()).map_err(|_| damaged())?;
    Ok((first..)
        .zip(chunk.events)
        .map(|(seq, event)| EventRow { seq, event })
        .collect())
}
