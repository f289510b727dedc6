//! A request that has to arrive in time: who sends a byte a minute holds a place as long as who works.

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

type BoxError = Box<dyn std::error::Error + Send + Sync>;

pin_project_lite::pin_project! {
    /// The message of a call that has one.
    pub(super) struct Prompt<B> {
        #[pin]
        inner: B,
        // None: nothing has to be here by a time.
        within: Option<Duration>,
        // Most messages are there when they are asked for, and need no timer.
        sleep: Option<Pin<Box<Sleep>>>,
    }
}

impl<B> Prompt<B> {
    /// `within`: how long the whole message may take from now on; none for calls with a message at any time.
    pub(super) fn new(inner: B, within: Option<Duration>) -> Self {
        Self {
            inner,
            within,
            sleep: None,
        }
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
        if let Poll::Ready(frame) = this.inner.poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let Some(within) = *this.within else {
            return Poll::Pending;
        };
        let sleep = this
            .sleep
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(within)));
        sleep.as_mut().poll(cx).map(|()| {
            let message = format!("the request did not arrive within {within:?}");
            let error = Error::new(Reason::DeadlineExceeded, message);
            Some(Err(to_status(&error).into()))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
