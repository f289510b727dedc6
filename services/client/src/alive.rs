//! A stream with liveness detection.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use drover_core::{Error, Result};
use futures::{Stream, StreamExt};
use tokio::time::{Instant, Sleep};
use tonic::Streaming;

use crate::call::{silent, to_error};

/// Default heartbeat interval of a watch, as documented in the protos.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);
/// Bounds of the heartbeat interval, as documented in the protos; other values are clamped.
const INTERVALS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Number of missed heartbeats after which a watch is considered dead.
const SILENT_INTERVALS: u32 = 3;

/// The messages of a watch. Always ends with an error: `Unavailable` if the server ended it, `DeadlineExceeded` if it
/// was silent for three heartbeat intervals.
#[derive(Debug)]
pub(crate) struct Alive<M> {
    inner: Option<Streaming<M>>,
    stated: fn(&M) -> Option<&prost_types::Duration>,
    limit: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl<M> Alive<M> {
    /// `asked` is the interval of the request; `stated` extracts the interval that the server announces.
    pub(crate) fn new(
        inner: Streaming<M>,
        asked: Option<&prost_types::Duration>,
        stated: fn(&M) -> Option<&prost_types::Duration>,
    ) -> Self {
        let limit = limit(asked).unwrap_or(DEFAULT_INTERVAL * SILENT_INTERVALS);
        Self {
            inner: Some(inner),
            stated,
            limit,
            sleep: Box::pin(tokio::time::sleep(limit)),
        }
    }
}

fn limit(interval: Option<&prost_types::Duration>) -> Option<Duration> {
    let interval = Duration::try_from(*interval?).ok()?;
    Some(interval.clamp(INTERVALS.0, INTERVALS.1) * SILENT_INTERVALS)
}

impl<M> Stream for Alive<M> {
    type Item = Result<M>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<M>>> {
        let this = &mut *self;
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        let error = match inner.poll_next_unpin(cx) {
            Poll::Ready(Some(Ok(message))) => {
                this.limit = limit((this.stated)(&message)).unwrap_or(this.limit);
                this.sleep.as_mut().reset(Instant::now() + this.limit);
                return Poll::Ready(Some(Ok(message)));
            }
            Poll::Ready(Some(Err(status))) => to_error(&status),
            Poll::Ready(None) => Error::unavailable("the server ended the watch"),
            Poll::Pending => match this.sleep.as_mut().poll(cx) {
                Poll::Ready(()) => silent(this.limit).context("the watch is dead"),
                Poll::Pending => return Poll::Pending,
            },
        };
        this.inner = None;
        Poll::Ready(Some(Err(error)))
    }
}
