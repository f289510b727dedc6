//! Bounds the arrival of a request body, and checks the caller's rights until it is complete. A client that sends one
//! byte per minute would otherwise occupy a slot as long as a working one, and a caller that is locked out in the
//! meantime could still complete a call that it has begun and held back.

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

/// Deadline for the arrival of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    /// For the complete request.
    Whole(Duration),
    /// For its first message; there is no deadline for the others.
    First(Duration),
}

/// State that is needed while a request is incomplete.
struct Waiting {
    rights: Watched,
    sleep: Option<Pin<Box<Sleep>>>,
}

pin_project_lite::pin_project! {
    /// A request body with a timeout.
    pub(crate) struct BodyTimeout<B> {
        #[pin]
        inner: B,
        due: Due,
        rights: Rights,
        // Created on first use: most messages are available immediately, so that the rights just checked need not be
        // checked again, and no timer is needed.
        waiting: Option<Box<Waiting>>,
    }
}

impl<B> BodyTimeout<B> {
    /// The timeout starts when the body is first waited for.
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

    /// Resolves when no more of the request may reach its handler.
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

impl<B> Body for BodyTimeout<B>
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
        // Checked first, so that nothing that has arrived in the meantime is passed on.
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
