//! The response of a call on its way to the client: enforces limits of streams and observes the result.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use drover_convert::error::{reason_name, stated_reason, to_status};
use drover_core::Error;
use drover_telemetry::rpc::{self, code_name};
use http::{HeaderMap, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tokio_util::{sync::WaitForCancellationFutureOwned, task::task_tracker::TaskTrackerToken};
use tonic::{Code, Status, body::Body};
use tracing::Span;

use super::{
    Permit, TraceId, defect, expired,
    methods::Method,
    refusal,
    rights::{Rights, Watched},
    stopping,
};
use crate::{Shutdown, audit::Entry, connection_limiter::Busy, ending::Ending};

/// Records a call when it ends, however it ends.
pub(super) struct Record {
    method: Arc<Method>,
    span: Span,
    trace: Option<drover_telemetry::Span>,
    start: Instant,
    done: bool,
    audit: Option<Entry>,
    /// Keeps its connection busy.
    busy: Option<Busy>,
    _in_flight: TaskTrackerToken,
}

impl Record {
    pub(super) fn start(
        method: Arc<Method>,
        span: Span,
        trace: drover_telemetry::Span,
        in_flight: TaskTrackerToken,
    ) -> Self {
        method.in_flight.increment(1.0);
        Self {
            method,
            span,
            trace: Some(trace),
            start: Instant::now(),
            done: false,
            audit: None,
            busy: None,
            _in_flight: in_flight,
        }
    }

    /// Adds the call to the audit log.
    pub(super) fn audit(&mut self, entry: Entry) {
        self.audit = Some(entry);
    }

    /// Keeps its connection busy for the duration of the call.
    pub(super) fn busy(&mut self, busy: Option<Busy>) {
        self.busy = busy;
    }

    /// State of the client certificate of its connection.
    pub(super) fn certificate(&self) -> Option<&Ending> {
        self.busy.as_ref().map(Busy::ending)
    }

    /// Returns an error in place of the handler's response.
    pub(super) fn refuse(&mut self, error: &Error) -> Response<Body> {
        let response = refusal(error);
        self.see(response.headers());
        response
    }

    /// Takes the status from headers or trailers, if present.
    fn see(&mut self, headers: &HeaderMap) {
        let Some(code) = headers.get("grpc-status") else {
            return;
        };
        if code.as_bytes() == b"0" {
            return self.end(Code::Ok, None);
        }
        match Status::from_header_map(headers) {
            Some(status) => self.end(status.code(), Some(&status)),
            None => self.end(Code::Unknown, None),
        }
    }

    fn end(&mut self, code: Code, status: Option<&Status>) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let elapsed = self.start.elapsed();
        self.method.in_flight.decrement(1.0);
        self.method.count(code);
        self.method.duration.record(elapsed.as_secs_f64());
        if let Some(entry) = self.audit.take() {
            entry.end(code, code_name(code), elapsed);
        }
        let mut trace_id = None;
        if let Some(mut trace) = self.trace.take() {
            trace_id = Some(TraceId::from(trace.context()));
            let status = status.filter(|_| trace.is_recorded());
            // The message may repeat a secret that is only redacted by the caller.
            let reason = status.and_then(stated_reason);
            rpc::end_server(&mut trace, code, reason.map_or("", reason_name));
        }
        let message = status.map_or("", Status::message);
        let _entered = self.span.enter();
        match code {
            // These errors are reported nowhere else; all others only concern the caller and the handler.
            Code::Internal | Code::Unknown | Code::DataLoss if self.span.is_disabled() => {
                let (method, trace_id) = (&self.method.full, trace_id.map(tracing::field::display));
                tracing::error!(%method, trace_id, ?code, message, ?elapsed, "a call failed");
            }
            Code::Internal | Code::Unknown | Code::DataLoss => {
                tracing::error!(?code, message, ?elapsed, "a call failed");
            }
            _ => tracing::debug!(?code, message, ?elapsed, "call"),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // There was no result, because the caller went away.
        self.end(Code::Cancelled, None);
    }
}

pin_project_lite::pin_project! {
    /// A response body that ends when its limits are reached, even if the handler would continue.
    pub(crate) struct CallBody {
        #[pin]
        inner: Body,
        record: Record,
        limits: Option<Box<Limits>>,
        ended: bool,
    }
}

/// Limits of a stream, and the permit that it holds.
pub(super) struct Limits {
    deadline: Option<Pin<Box<Sleep>>>,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
    rights: Watched,
    _permit: Permit,
}

impl CallBody {
    pub(super) fn unary(response: Response<Body>, record: Record) -> Response<Body> {
        Self::wrap(response, record, None)
    }

    pub(super) fn stream(
        response: Response<Body>,
        record: Record,
        limits: Limits,
    ) -> Response<Body> {
        Self::wrap(response, record, Some(Box::new(limits)))
    }

    fn wrap(
        response: Response<Body>,
        mut record: Record,
        limits: Option<Box<Limits>>,
    ) -> Response<Body> {
        record.see(response.headers());
        if record.done {
            // The status is in the headers, so there is no body.
            return response;
        }
        if limits.is_some()
            && let Some(entry) = &record.audit
        {
            entry.begin(record.start.elapsed());
        }
        response.map(|inner| {
            Body::new(Self {
                inner,
                record,
                limits,
                ended: false,
            })
        })
    }
}

impl Limits {
    pub(super) fn new(
        permit: Permit,
        deadline: Option<Instant>,
        closing: Shutdown,
        rights: Rights,
    ) -> Self {
        Self {
            deadline: deadline.map(|at| Box::pin(tokio::time::sleep_until(at))),
            closing: Box::pin(closing.cancelled_owned()),
            rights: rights.watch(),
            _permit: permit,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        if self.closing.as_mut().poll(cx).is_ready() {
            return Poll::Ready(stopping());
        }
        if let Poll::Ready(error) = self.rights.poll(cx) {
            return Poll::Ready(error);
        }
        match &mut self.deadline {
            Some(deadline) => deadline.as_mut().poll(cx).map(|()| expired()),
            None => Poll::Pending,
        }
    }
}

impl HttpBody for CallBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut this = self.project();
        if *this.ended {
            return Poll::Ready(None);
        }
        let span = this.record.span.clone();
        let entered = span.enter();
        // Limits first, so that they also end a stream that is always ready.
        let over = this
            .limits
            .as_mut()
            .map_or(Poll::Pending, |limits| limits.poll(cx));
        let failure = match over {
            Poll::Ready(error) => error,
            Poll::Pending => match std::panic::catch_unwind(AssertUnwindSafe(|| {
                this.inner.as_mut().poll_frame(cx)
            })) {
                Ok(Poll::Pending) => return Poll::Pending,
                Ok(Poll::Ready(frame)) => {
                    drop(entered);
                    match &frame {
                        Some(Ok(frame)) => {
                            if let Some(trailers) = frame.trailers_ref() {
                                this.record.see(trailers);
                            }
                        }
                        Some(Err(status)) => this.record.end(status.code(), Some(status)),
                        None => {}
                    }
                    return Poll::Ready(frame);
                }
                Err(_) => defect(),
            },
        };
        drop(entered);
        *this.ended = true;
        // Releases the handler's resources now, not when the client has read the end.
        this.inner.set(Body::empty());
        *this.limits = None;
        let mut trailers = HeaderMap::new();
        if to_status(&failure).add_header(&mut trailers).is_err() {
            return Poll::Ready(Some(Err(to_status(&failure))));
        }
        this.record.see(&trailers);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.limits.is_some() {
            SizeHint::default()
        } else {
            self.inner.size_hint()
        }
    }
}
