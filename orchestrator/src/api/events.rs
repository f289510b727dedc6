//! Events: listed, and watched without gaps.

use std::{sync::Arc, time::Duration};

use drover_convert::value::{self, to_duration, to_timestamp};
use drover_core::{Error, Millis, Reason, Result};
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Clock, EventRow, EventWatch, Store};
use futures::stream;
use uuid::Uuid;

use super::{
    access::{Access, per_call},
    nodes::Answers,
    paging::{self, Page},
    watch::{STREAM_BYTES, WAITING},
};
use crate::{
    limits::{Held, Limits},
    readiness::ReadinessReporter,
    records::Records,
    tombstones::Tombstones,
};

/// Number of events per read.
const BATCH: usize = 256;
/// Default heartbeat interval.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Bounds of the heartbeat interval.
const HEARTBEATS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The event log of a cluster: an existing one, or else the most recently deleted one of the name.
struct Log {
    uid: Uuid,
    name: String,
}

/// Lists and watches events.
#[derive(Clone)]
pub(crate) struct Events {
    pub(crate) access: Access,
    pub(crate) store: Arc<Store>,
    pub(crate) records: Arc<Records>,
    pub(crate) tombstones: Arc<Tombstones>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) readiness: ReadinessReporter,
    pub(crate) clock: Arc<Clock>,
}

per_call!(Events: access);

impl Events {
    fn log(&self, name: &str, uid: &str) -> Result<Log> {
        let found = match self.records.clusters().find(name) {
            Ok(_) => self.access.find(name)?.uid(),
            Err(error) => {
                let gone = self.tombstones.find(name);
                gone.filter(|_| self.access.sees_name(name)).ok_or(error)?
            }
        };
        if uid.is_empty() {
            return Ok(Log {
                uid: found,
                name: name.to_owned(),
            });
        }
        let wanted =
            Uuid::parse_str(uid).map_err(|_| Error::invalid("cluster_uid", "is not a UUID"))?;
        if wanted != found {
            let message = format!("cluster {name:?} has another uid now, {found}");
            return Err(Error::new(Reason::NotFound, message).with_resource("cluster", name));
        }
        Ok(Log {
            uid: found,
            name: name.to_owned(),
        })
    }

    pub(super) async fn list_events(
        &self,
        request: pb::ListEventsRequest,
    ) -> Result<pb::ListEventsResponse> {
        self.records.reach(request.min_revision).await?;
        let log = self.log(&request.cluster, &request.cluster_uid)?;
        let mut page = Page::new(request.page_size)?;
        let mut after = request.after_sequence;
        if let Some(token) = paging::start(&request.page_token)? {
            after = token.parse().map_err(|_| {
                Error::new(Reason::PageTokenExpired, "the page token is none of ours")
            })?;
        }
        let revision = self.records.revision();
        let (mut first, last) = self.bounds(log.uid).await?;
        // From the oldest retained event, whichever that is at the time of the read.
        let mut oldest = after == 0;
        if after > last {
            // The store reports the precise error.
            self.read(log.uid, after, 1).await?;
        }
        if oldest {
            after = first - 1;
        }
        'reading: while after < last {
            let read = match self.read(log.uid, after, BATCH).await {
                Ok(read) => read,
                Err(error) if oldest && error.reason() == Reason::EventsTrimmed => {
                    (first, _) = self.bounds(log.uid).await?;
                    after = first - 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            oldest = false;
            if read.is_empty() {
                break;
            }
            for row in read {
                after = row.seq;
                if !page.push(row.seq.to_string(), event(&log, row)) {
                    break 'reading;
                }
            }
        }
        Ok(pb::ListEventsResponse {
            events: page.rows,
            next_page_token: page.next,
            oldest_sequence: first,
            revision,
        })
    }

    pub(super) async fn watch_events(
        &self,
        request: pb::WatchEventsRequest,
    ) -> Result<Answers<pb::WatchEventsResponse>> {
        self.records.reach(request.min_revision).await?;
        let log = self.log(&request.cluster, &request.cluster_uid)?;
        let heartbeat = heartbeat(request.heartbeat_interval.as_ref())?;
        let (first, last) = self.bounds(log.uid).await?;
        let after = match request.after_sequence {
            None => last,
            Some(0) => first - 1,
            Some(after) => after,
        };
        if after > last || after + 1 < first {
            // The store reports the precise error, with the available sequence numbers.
            self.read(log.uid, after, 1).await?;
        }
        let watch = self.store.watch_events(log.uid, after);
        let oldest = request.after_sequence == Some(0);
        let ready = vec![started(heartbeat)];
        let state = Watching {
            events: self.clone(),
            log,
            watch,
            oldest,
            heartbeat,
            ready,
            ended: false,
            held: self.limits.hold(self.access.record.payer(), STREAM_BYTES)?,
        };
        let end = self.readiness.ended();
        Ok(Box::pin(futures::StreamExt::take_until(
            stream::unfold(state, step),
            Box::pin(end),
        )))
    }

    /// Sequences of the oldest and the newest retained event: `(1, 0)` if the cluster was never planned.
    async fn bounds(&self, uid: Uuid) -> Result<(u64, u64)> {
        match self.store.event_bounds(uid).await {
            Ok(page) => Ok((page.first_seq.max(1), page.last_seq)),
            Err(error)
                if error.reason() == Reason::NotFound
                    && self.records.clusters().get(uid).is_some() =>
            {
                Ok((1, 0))
            }
            Err(error) => Err(error),
        }
    }

    async fn read(&self, uid: Uuid, after: u64, limit: usize) -> Result<Vec<EventRow>> {
        self.store
            .events(uid, after, limit)
            .await
            .map(|page| page.events)
    }
}

struct Watching {
    events: Events,
    log: Log,
    watch: EventWatch,
    /// The watch begins with the oldest retained event, and nothing was read yet.
    oldest: bool,
    heartbeat: Duration,
    /// Items to send, in reverse order.
    ready: Vec<pb::watch_events_response::Item>,
    ended: bool,
    /// Memory held on behalf of the caller.
    held: Held,
}

async fn step(
    mut state: Watching,
) -> Option<(Result<pb::WatchEventsResponse, tonic::Status>, Watching)> {
    use pb::watch_events_response::Item;
    loop {
        if let Some(item) = state.ready.pop() {
            return Some((Ok(pb::WatchEventsResponse { item: Some(item) }), state));
        }
        if state.ended {
            return None;
        }
        // Determined before the log is read, because later events may not have been sent.
        let revision = state.events.records.revision();
        match tokio::time::timeout(state.heartbeat, state.watch.next(BATCH)).await {
            Err(_) => {
                let mark = pb::WatchMark {
                    revision,
                    ..mark(&state.events.records, state.events.clock.now())
                };
                state.ready.push(Item::Heartbeat(mark));
            }
            Ok(Ok(Some(_))) if !state.events.access.sees_name(&state.log.name) => {
                // The labels of the cluster were changed meanwhile.
                state.ended = true;
                let error = Error::not_found("cluster", state.log.name.as_str());
                return Some((Err(drover_convert::error::to_status(&error)), state));
            }
            Ok(Ok(Some(rows))) => {
                state.oldest = false;
                state.ready = rows
                    .into_iter()
                    .rev()
                    .map(|row| Item::Event(event(&state.log, row)))
                    .collect();
                let bytes = state.ready.iter().map(Item::encoded_len).sum::<usize>();
                if let Err(error) = state.held.resize(STREAM_BYTES + WAITING * bytes) {
                    state.ended = true;
                    return Some((Err(drover_convert::error::to_status(&error)), state));
                }
            }
            Ok(Ok(None)) => {
                state.ended = true;
                let events = &state.events;
                let since = events
                    .tombstones
                    .deleted(state.log.uid)
                    .unwrap_or_else(|| events.clock.now());
                state.ready.push(Item::Closed(to_timestamp(since)));
            }
            Ok(Err(error)) if state.oldest && error.reason() == Reason::EventsTrimmed => {
                match state.events.bounds(state.log.uid).await {
                    Ok((first, _)) => {
                        state.watch = state.events.store.watch_events(state.log.uid, first - 1);
                    }
                    Err(error) => {
                        state.ended = true;
                        return Some((Err(drover_convert::error::to_status(&error)), state));
                    }
                }
            }
            Ok(Err(error)) => {
                state.ended = true;
                return Some((Err(drover_convert::error::to_status(&error)), state));
            }
        }
    }
}

fn started(heartbeat: Duration) -> pb::watch_events_response::Item {
    pb::watch_events_response::Item::Started(pb::WatchStarted {
        heartbeat_interval: Some(to_duration(heartbeat)),
    })
}

pub(super) fn mark(records: &Records, now: Millis) -> pb::WatchMark {
    pb::WatchMark {
        send_time: Some(to_timestamp(now)),
        revision: records.revision(),
    }
}

/// The heartbeat interval of a watch.
pub(super) fn heartbeat(wanted: Option<&prost_types::Duration>) -> Result<Duration> {
    let wanted = wanted
        .map(|span| value::duration("heartbeat_interval", span))
        .transpose()?;
    Ok(wanted
        .unwrap_or(HEARTBEAT)
        .clamp(HEARTBEATS.0, HEARTBEATS.1))
}

fn event(log: &Log, row: EventRow) -> pb::Event {
    let event = row.event;
    pb::Event {
        cluster: log.name.clone(),
        cluster_uid: log.uid.to_string(),
        sequence: row.seq,
        event_time: Some(to_timestamp(u64::try_from(event.time_ms).unwrap_or(0))),
        severity: event.severity,
        reason: event.reason,
        message: event.message,
        group: event.group,
        node: event.node,
        platform: event.platform,
        step: event.step,
        trace_id: event.trace_id,
        count: event.count.max(1),
        author: event.author,
    }
}
