//! Client-side observability of calls: a span if the call belongs to a trace, and metrics if the server has a name.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use bytes::Bytes;
use drover_convert::error::{reason_name, stated_reason};
use drover_telemetry::{Span, rpc};
use http::{HeaderMap, Request, Response, Uri};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;
use tonic::{Code, Status, body::Body};

use crate::TransportError;

/// Streaming calls, whose duration depends on the reader and is therefore not recorded.
const STREAMS: [&str; 8] = [
    "WatchNodes",
    "StreamLogs",
    "Exec",
    "RunScript",
    "ReadFile",
    "WaitPods",
    "WaitNodes",
    "DrainNode",
];

/// The server that calls are sent to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// Metric label.
    pub(crate) platform: Option<Arc<str>>,
    /// Address of the server.
    pub(crate) uri: Option<Uri>,
}

/// A call in flight. It ends with its status, or when it is dropped.
pub(crate) struct Observed {
    span: Option<Span>,
    platform: Option<Arc<str>>,
    path: String,
    began: Instant,
    timeout: Option<Duration>,
    done: bool,
}

impl Observed {
    /// Begins to observe a call, and injects the trace context into the request.
    pub(crate) fn begin(request: &mut Request<Body>, peer: &Peer) -> Option<Self> {
        let path = request.uri().path();
        let mut span = Span::client(path.trim_start_matches('/').to_owned());
        if let Some(span) = &mut span {
            rpc::describe(span, path);
            if let Some(uri) = &peer.uri {
                span.set("server.address", uri.host().unwrap_or_default().to_owned());
                if let Some(port) = uri.port_u16() {
                    span.set("server.port", i64::from(port));
                }
            }
            if let Some(platform) = &peer.platform {
                span.set("drover.platform.name", platform.to_string());
            }
        }
        if span.is_none() && peer.platform.is_none() {
            return None;
        }
        let path = path.to_owned();
        let timeout = timeout(request.headers());
        if let Some(span) = &span {
            span.context().put(request.headers_mut());
        }
        Some(Self {
            span,
            platform: peer.platform.clone(),
            path,
            began: Instant::now(),
            timeout,
            done: false,
        })
    }

    /// Observes the response until its end.
    pub(crate) fn answered(
        mut self,
        answer: Result<Response<Body>, TransportError>,
    ) -> Result<Response<Body>, TransportError> {
        match answer {
            Ok(response) => {
                self.see(response.headers());
                if self.done {
                    return Ok(response);
                }
                Ok(response.map(|inner| {
                    Body::new(Watched {
                        inner,
                        observed: self,
                    })
                }))
            }
            Err(error) => {
                self.end_with(error.status());
                Err(error)
            }
        }
    }

    /// Takes the status from headers or trailers, if present.
    fn see(&mut self, headers: &HeaderMap) {
        match headers.get("grpc-status") {
            None => {}
            Some(code) if code.as_bytes() == b"0" => self.end(Code::Ok, ""),
            Some(_) => match Status::from_header_map(headers) {
                Some(status) => self.end_with(&status),
                None => self.end(Code::Unknown, ""),
            },
        }
    }

    /// Records the status. Its message is ignored, because it may repeat a secret.
    fn end_with(&mut self, status: &Status) {
        let recorded = self.span.as_ref().is_some_and(Span::is_recorded);
        let reason = recorded.then(|| stated_reason(status)).flatten();
        self.end(status.code(), reason.map_or("", reason_name));
    }

    fn end(&mut self, code: Code, why: &'static str) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        if let Some(mut span) = self.span.take() {
            rpc::end_client(&mut span, code, why);
        }
        let Some(platform) = self.platform.take() else {
            return;
        };
        let platform = platform.to_string();
        let (_, method) = rpc::split(&self.path);
        let labels = [
            ("platform", platform.clone()),
            ("method", method.to_owned()),
            ("code", rpc::code_name(code).to_owned()),
        ];
        metrics::counter!("drover_platform_calls_total", &labels).increment(1);
        if !STREAMS.contains(&method) {
            let labels = [("platform", platform), ("method", method.to_owned())];
            metrics::histogram!("drover_platform_call_duration_seconds", &labels)
                .record(self.began.elapsed().as_secs_f64());
        }
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // Dropped before it ended: the deadline passed, or the caller cancelled it.
        let late = self.timeout.is_some_and(|it| self.began.elapsed() >= it);
        let code = if late {
            Code::DeadlineExceeded
        } else {
            Code::Cancelled
        };
        self.end(code, "");
    }
}

/// The deadline that the call sent to the server. tonic encodes it in whole microseconds, or coarser.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "n" => Duration::from_nanos(count),
        "u" => Duration::from_micros(count),
        "m" => Duration::from_millis(count),
        "S" => Duration::from_secs(count),
        "M" => Duration::from_secs(count.saturating_mul(60)),
        "H" => Duration::from_secs(count.saturating_mul(3600)),
        _ => return None,
    })
}

pin_project_lite::pin_project! {
    /// A body that is inspected for trailers.
    struct Watched {
        #[pin]
        inner: Body,
        observed: Observed,
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.project();
        let polled = this.inner.poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_ref() {
                    this.observed.see(trailers);
                }
            }
            Poll::Ready(Some(Err(status))) => this.observed.end_with(status),
            Poll::Ready(None) => this.observed.end(Code::Unknown, "the answer has no status"),
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
