//! A request that has to arrive in time, from who still may make it: who sends a byte a minute holds a place as long as who
//! works, and what is begun and held back must not be ended by somebody who was locked out meanwhile.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use drover_convert::error::to_status;
use drover_core::{Error, Reason};
use http_body::{Body, Frame, SizeHint};
use tokio::time::Sleep;

use super::rights::{Rights, Watched};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// By when a request has to be here.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    /// All of it.
    Whole(Duration),
    /// The first of its messages; others come when they like.
    First(Duration),
}

/// Looked at while a request is waited for.
struct Waiting {
    rights: Watched,
    sleep: Option<Pin<Box<Sleep>>>,
}

pin_project_lite::pin_project! {
    /// The messages of a request.
    pub(crate) struct Prompt<B> {
        #[pin]
        inner: B,
        due: Due,
        rights: Rights,
        // Most messages are there when they are asked for: who has just been judged is not looked at again, and no timer set.
        waiting: Option<Box<Waiting>>,
    }
}

impl<B> Prompt<B> {
    /// Time counts from when the request is first waited for.
    pub(crate) fn new(inner: B, due: Due, rights: Rights) -> Self {
        Self {
            inner,
            due,
            rights,
            waiting: None,
        }
    }
}

impl Waiting {
    fn new(due: Due, rights: &mut Rights) -> Self {
        let (Due::Whole(within) | Due::First(within)) = due;
        Self {
            rights: std::mem::take(rights).watch(),
            sleep: Some(Box::pin(tokio::time::sleep(within))),
        }
    }

    /// Ready when nothing of the request may reach its handler any more.
    fn poll(&mut self, due: Due, cx: &mut Context<'_>) -> Poll<Error> {
        if let Poll::Ready(error) = self.rights.poll(cx) {
            return Poll::Ready(error);
        }
        if let Some(sleep) = &mut self.sleep
            && sleep.as_mut().poll(cx).is_ready()
        {
            let (Due::Whole(within) | Due::First(within)) = due;
            let message = format!("the request did not arrive within {within:?}");
            return Poll::Ready(Error::new(Reason::DeadlineExceeded, message));
        }
        Poll::Pending
    }
}

impl<B> Body for Prompt<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.project();
        // What has arrived meanwhile, too.
        if let Some(waiting) = this.waiting
            && let Poll::Ready(error) = waiting.poll(*this.due, cx)
        {
            return Poll::Ready(Some(Err(to_status(&error).into())));
        }
        if let Poll::Ready(frame) = this.inner.poll_frame(cx) {
            if let (Due::First(_), Some(waiting)) = (*this.due, this.waiting) {
                waiting.sleep = None;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if this.waiting.is_some() {
            return Poll::Pending;
        }
        let waiting = this
            .waiting
            .insert(Box::new(Waiting::new(*this.due, this.rights)));
        let over = waiting.poll(*this.due, cx);
        over.map(|error| Some(Err(to_status(&error).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
