//! The rest of a request that was answered before all of it had arrived.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// How long the rest is read: what a client had sent before it heard the answer arrives within that.
const REST_TIME: Duration = Duration::from_secs(1);

/// The body of a request. If nobody reads all of it, the rest is read and discarded with HTTP/2: a stream that is reset
/// while the client still sends counts as its violation of the protocol, and a connection that has too many of them is
/// closed with all of its calls.
pub(super) struct Whole {
    /// Until it has ended.
    body: Option<Incoming>,
    version: Version,
}

impl Whole {
    pub(super) fn of(request: Request<Incoming>) -> Request<Self> {
        let version = request.version();
        request.map(|body| Self {
            body: Some(body),
            version,
        })
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let body = self.body.take().filter(|body| !body.is_end_stream());
        let (Some(mut body), Version::HTTP_2) = (body, self.version) else {
            return;
        };
        // Without a runtime the connection has ended, too.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let rest = async { while let Some(Ok(_)) = body.frame().await {} };
            let _ = tokio::time::timeout(REST_TIME, rest).await;
        });
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = std::task::ready!(Pin::new(body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}
