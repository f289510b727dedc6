//! Watches. Those of one process share one of etcd, as long as they keep up with it: what etcd sends once is decoded once. One
//! that does not has its own until it has caught up.

use std::{
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use drover_core::Result;
use drover_store::{
    Revision,
    history::{Batch, Change, History, Watch, WatchEnd},
};
use futures::{Stream, StreamExt, stream};
use tokio::{sync::mpsc, time::sleep};
use tonic::Status;

use crate::{
    api::{
        Event, ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse, event::EventType,
        watch_client::WatchClient, watch_request::RequestUnion,
    },
    backend::Inner,
    keys::Prefix,
    members::with_leader,
    scan::{signed, unsigned},
};

/// Batches that wait for the reader of an own watch, who holds up nobody else.
const AHEAD: usize = 256;
/// Bytes that a watch may be behind the one that it shares.
const BEHIND: usize = 512 * 1024;
/// Delay before a lost watch is opened at the next member.
const AGAIN: Duration = Duration::from_millis(50);
/// How long opening a watch may take.
const OPEN: Duration = Duration::from_secs(2);
/// Larger than any piece that etcd sends.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

type Sender = mpsc::Sender<Result<Arc<Batch>, WatchEnd>>;

/// A watch of etcd that several share.
pub(crate) struct Shared {
    history: Arc<History>,
    /// What etcd has said last, to all who share it.
    ended: OnceLock<WatchEnd>,
}

impl Shared {
    /// Etcd has discarded changes up to that revision.
    pub(crate) fn compact(&self, revision: Revision) {
        self.history.compact(revision);
    }
}

/// Who reads what etcd sends.
enum Readers {
    One(Sender),
    All(Arc<Shared>),
}

impl Readers {
    /// Returns whether anybody reads it.
    async fn put(&self, batch: Batch) -> bool {
        match self {
            Self::One(sender) => sender.send(Ok(Arc::new(batch))).await.is_ok(),
            Self::All(shared) => {
                shared.history.publish([batch]);
                shared.history.is_watched()
            }
        }
    }

    async fn end(&self, end: WatchEnd) {
        match self {
            Self::One(sender) => {
                let _ = sender.send(Err(end)).await;
            }
            Self::All(shared) => {
                let _ = shared.ended.set(end);
                shared.history.end(end);
            }
        }
    }

    /// Waits until nobody reads. Of those who share a watch that is noticed with the next change.
    async fn are_gone(&self) {
        match self {
            Self::One(sender) => sender.closed().await,
            Self::All(_) => std::future::pending().await,
        }
    }
}

/// A watch that has been read up to a revision.
struct Reader {
    inner: Arc<Inner>,
    watch: Watch,
    /// `None` while it has a watch of its own.
    shared: Option<Arc<Shared>>,
    after: Revision,
}

impl Reader {
    async fn next(&mut self) -> Result<Arc<Batch>, WatchEnd> {
        loop {
            match (self.watch.next().await, &self.shared) {
                (Ok(batch), shared) => {
                    self.after = batch.revision;
                    if shared.is_none() {
                        self.share();
                    }
                    return Ok(batch);
                }
                (Err(end), None) => return Err(end),
                (Err(end), Some(shared)) => {
                    // What etcd has said is final: asked again a moment later it may not notice that it was put back.
                    if let Some(end) = shared.ended.get() {
                        return Err(*end);
                    }
                    // It is too far behind the others, or began before them.
                    tracing::debug!(%end, after = self.after, "a watch of its own");
                    self.shared = None;
                    self.watch = self.inner.own_watch(self.after);
                }
            }
        }
    }

    /// Goes on with the others, as soon as it has seen what they have.
    fn share(&mut self) {
        let shared = self.inner.shared.lock().upgrade();
        if let Some(shared) = shared.filter(|shared| shared.history.reaches(self.after)) {
            self.watch = shared.history.watch(self.after);
            self.shared = Some(shared);
        }
    }
}

impl Inner {
    pub(crate) fn watch(self: &Arc<Self>, after: Revision) -> Watch {
        let shared = self.shared(after);
        let reader = Reader {
            inner: Arc::clone(self),
            watch: shared.history.watch(after),
            shared: Some(shared),
            after,
        };
        Watch::new(stream::unfold(Some(reader), async |reader| {
            let mut reader = reader?;
            let next = reader.next().await;
            let rest = next.is_ok().then_some(reader);
            Some((next, rest))
        }))
    }

    fn shared(self: &Arc<Self>, after: Revision) -> Arc<Shared> {
        let mut present = self.shared.lock();
        if let Some(shared) = present.upgrade() {
            return shared;
        }
        let shared = Arc::new(Shared {
            history: History::of_bytes(after, BEHIND),
            ended: OnceLock::new(),
        });
        *present = Arc::downgrade(&shared);
        self.start(after, Readers::All(Arc::clone(&shared)));
        shared
    }

    /// Nobody else begins to read it: etcd may be another one by now than the one that it is of.
    fn share_no_more(&self, readers: &Readers) {
        let Readers::All(shared) = readers else {
            return;
        };
        let mut present = self.shared.lock();
        if std::ptr::eq(present.as_ptr(), Arc::as_ptr(shared)) {
            *present = Weak::new();
        }
    }

    fn own_watch(self: &Arc<Self>, after: Revision) -> Watch {
        let (sender, receiver) = mpsc::channel(AHEAD);
        self.start(after, Readers::One(sender));
        Watch::new(stream::unfold(receiver, async |mut receiver| {
            receiver.recv().await.map(|batch| (batch, receiver))
        }))
    }

    fn start(self: &Arc<Self>, after: Revision, readers: Readers) {
        let (inner, closed) = (Arc::clone(self), self.closed.clone());
        tokio::spawn(async move {
            let end = tokio::select! {
                () = closed.cancelled() => Some(WatchEnd::Closed),
                end = inner.follow(after, &readers) => end,
                () = readers.are_gone() => None,
            };
            inner.share_no_more(&readers);
            match (end, &readers) {
                (Some(end), readers) => readers.end(end).await,
                // Who has begun to read it meanwhile gets a watch of its own.
                (None, Readers::All(shared)) => shared.history.end(WatchEnd::Closed),
                (None, Readers::One(_)) => {}
            }
        });
    }

    /// Sends all batches after a revision, from one member after another, until some of them are known no more, or nobody reads
    /// them.
    async fn follow(&self, mut after: Revision, readers: &Readers) -> Option<WatchEnd> {
        loop {
            let at = self.watches.present();
            let ended = match self.open(after).await {
                Ok(answers) => self.relay(answers, &mut after, readers).await,
                Err(status) => Ended::Lost(status),
            };
            match ended {
                Ended::Compacted => return Some(WatchEnd::Compacted),
                Ended::Unread => return None,
                Ended::Lost(status) => {
                    self.share_no_more(readers);
                    tracing::debug!(
                        why = status.message(),
                        "a watch of the store is opened anew"
                    );
                    self.watches.failed(at);
                    sleep(AGAIN).await;
                }
            }
        }
    }

    async fn open(
        &self,
        after: Revision,
    ) -> Result<impl Stream<Item = Result<WatchResponse, Status>> + Unpin, Status> {
        let (key, range_end) = self.prefix.all();
        let create = WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
                key,
                range_end,
                start_revision: signed(after.saturating_add(1)),
                fragment: true,
            })),
        };
        let opened = self.watches.once(OPEN, |connection| {
            let create = create.clone();
            async move {
                // The stream of requests stays open, or etcd would end the watch with it.
                let requests = with_leader(stream::iter([create]).chain(stream::pending()));
                let mut client = WatchClient::new(connection).max_decoding_message_size(MAX_ANSWER);
                let mut answers = client.watch(requests).await?.into_inner();
                // The first answer says whether there is a watch. That it is refused is no failure of the call to etcd.
                match answers.message().await? {
                    None => Err(Status::unavailable("etcd ended the watch")),
                    Some(first) if first.canceled && first.compact_revision == 0 => {
                        Err(Status::unavailable(first.cancel_reason))
                    }
                    Some(first) => Ok(stream::iter([Ok(first)]).chain(answers)),
                }
            }
        });
        opened.await
    }

    async fn relay(
        &self,
        mut answers: impl Stream<Item = Result<WatchResponse, Status>> + Unpin,
        after: &mut Revision,
        readers: &Readers,
    ) -> Ended {
        let mut pieces = Vec::new();
        loop {
            let answer = match answers.next().await {
                Some(Ok(answer)) => answer,
                Some(Err(status)) => return Ended::Lost(status),
                None => return Ended::Lost(Status::unavailable("etcd ended the watch")),
            };
            if answer.compact_revision > 0 {
                return Ended::Compacted;
            }
            if answer.created {
                match self.is_undone(&answer, *after).await {
                    Ok(true) => return Ended::Compacted,
                    Ok(false) => {}
                    Err(error) => return Ended::Lost(Status::unavailable(error.message())),
                }
            }
            if answer.canceled {
                return Ended::Lost(Status::unavailable(answer.cancel_reason));
            }
            pieces.extend(answer.events);
            if answer.fragment {
                continue;
            }
            for batch in batches(&self.prefix, std::mem::take(&mut pieces)) {
                // What came before a break comes only once.
                if batch.revision <= *after {
                    continue;
                }
                *after = batch.revision;
                if !readers.put(batch).await {
                    return Ended::Unread;
                }
            }
        }
    }
}

impl Inner {
    /// Whether etcd has never heard of what was seen of it, since it was put back to an earlier state: it would say nothing
    /// until its revisions are as high again, and then leave out what came before.
    async fn is_undone(&self, created: &WatchResponse, after: Revision) -> Result<bool> {
        let of = |header: &ResponseHeader| unsigned(header.revision);
        if created
            .header
            .as_ref()
            .is_none_or(|header| of(header) >= after)
        {
            return Ok(false);
        }
        // A member may merely be behind the others.
        let newest = self.newest().await?;
        if newest < after {
            tracing::warn!(
                newest,
                seen = after,
                "etcd was put back to an earlier state; it is read anew"
            );
        }
        Ok(newest < after)
    }
}

/// Why a watch at one member ended.
enum Ended {
    Compacted,
    Unread,
    Lost(Status),
}

/// Whole revisions of the store's keys. The log is not watched.
fn batches(prefix: &Prefix, events: Vec<Event>) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for event in events {
        let is_removal = event.r#type() == EventType::Delete;
        let Some(kv) = event.kv else { continue };
        let revision = unsigned(kv.mod_revision);
        if batches.last().is_none_or(|last| last.revision != revision) {
            batches.push(Batch {
                revision,
                changes: Vec::new(),
            });
        }
        let key = prefix.strip(&kv.key).filter(|key| !key.is_log());
        if let (Some(key), Some(batch)) = (key, batches.last_mut()) {
            batch.changes.push(Change {
                key,
                value: (!is_removal).then_some(kv.value),
            });
        }
    }
    batches
}
