//! Limits around the calls to one API server, as a layer of the client: calls in flight, a time limit, and a pause when
//! the server asks for one. Nothing that changes something is sent twice.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited, combinators::UnsyncBoxBody};
use kube::client::Body;
use parking_lot::Mutex;
use serde::de::IgnoredAny;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tower::{BoxError, Layer, Service, ServiceExt as _};

use super::protobuf;
use crate::errors::{self, redact};

/// Longest pause that a server can request.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Pause if the server names none.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);

/// Largest answer that is read as a whole.
const MAX_ANSWER: usize = 32 * 1024 * 1024;

/// The body of an answer: read already, or as it comes.
pub type Answer = UnsyncBoxBody<Bytes, BoxError>;

/// Why a call has no answer, besides what the connection says.
#[derive(Debug)]
pub enum LimitError {
    /// Nothing came within the time limit.
    Timeout(Duration),
    /// The answer ended too early.
    CutOff(BoxError),
    /// The answer is larger than is read.
    TooLarge,
    /// The answer is neither JSON nor protobuf.
    Unreadable {
        /// Line of the first fault.
        line: usize,
        /// Column of the first fault.
        column: usize,
    },
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout(limit) => write!(f, "no answer within {} s", limit.as_secs_f64()),
            Self::CutOff(_) => f.write_str("the answer was cut off"),
            Self::TooLarge => write!(f, "the answer is larger than {MAX_ANSWER} bytes"),
            Self::Unreadable { line, column } => {
                write!(
                    f,
                    "the answer cannot be read (line {line}, column {column})"
                )
            }
        }
    }
}

impl std::error::Error for LimitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::CutOff(error) => Some(&**error),
            Self::Timeout(_) | Self::TooLarge | Self::Unreadable { .. } => None,
        }
    }
}

/// Whether a call failed for the size of its answer alone.
#[must_use]
pub fn is_too_large(error: &kube::Error) -> bool {
    let kube::Error::Service(error) = error else {
        return false;
    };
    let error = error.downcast_ref::<LimitError>();
    matches!(error, Some(LimitError::TooLarge))
}

/// The limits of one API server. All clients that are made with clones of it share them.
#[derive(Clone)]
pub struct LimitLayer(Arc<Limits>);

/// Permission to make one call now. In the extensions of a request it stands for the one that the layer waits for
/// otherwise, so that a caller can look, once it may call, whether it still wants to.
#[derive(Clone, Debug)]
pub struct CallPermit(
    // `None` only if the semaphore is closed, which it never is.
    #[expect(dead_code, reason = "held, not read")] Option<Arc<OwnedSemaphorePermit>>,
);

struct Limits {
    permits: Arc<Semaphore>,
    timeout: Duration,
    /// No call is made before this time, as the server requested.
    pause: Mutex<Option<Instant>>,
    /// The server refused the credentials.
    refused: Notify,
}

impl LimitLayer {
    /// At most so many calls in flight, and each so long.
    #[must_use]
    pub fn new(max_concurrent_calls: usize, timeout: Duration) -> Self {
        Self(Arc::new(Limits {
            permits: Arc::new(Semaphore::new(
                max_concurrent_calls.clamp(1, Semaphore::MAX_PERMITS),
            )),
            timeout,
            pause: Mutex::new(None),
            refused: Notify::new(),
        }))
    }

    /// Waits until a call may be made.
    pub async fn permit(&self) -> CallPermit {
        self.0.permit().await
    }

    /// Until the server refuses the credentials.
    pub async fn refused(&self) {
        self.0.refused.notified().await;
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = LimitService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        LimitService {
            inner,
            limits: Arc::clone(&self.0),
        }
    }
}

/// A client within limits.
#[derive(Clone)]
pub struct LimitService<S> {
    inner: S,
    limits: Arc<Limits>,
}

type Sent = Pin<Box<dyn Future<Output = Result<Response<Answer>, BoxError>> + Send>>;

impl<S, B> Service<Request<Body>> for LimitService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Answer>;
    type Error = BoxError;
    type Future = Sent;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Sent {
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let limits = Arc::clone(&self.limits);
        Box::pin(async move {
            let span = Span::of(&request);
            let again = again(&request);
            let answer = limits.send(&mut inner, request, span).await?;
            match again {
                Some(request) if answer.status() == StatusCode::TOO_MANY_REQUESTS => {
                    limits.send(&mut inner, request, span).await
                }
                _ => Ok(answer),
            }
        })
    }
}

/// The same request once more, if it changes nothing.
fn again(request: &Request<Body>) -> Option<Request<Body>> {
    if request.method() != Method::GET {
        return None;
    }
    let mut copy = Request::new(Body::empty());
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    copy.headers_mut().clone_from(request.headers());
    Some(copy)
}

/// What of a call is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    /// All of it.
    Whole,
    /// An eviction: all of it, but 429 is the word of a disruption budget and no reason to pause.
    Eviction,
    /// Its opening: a watch, or a command.
    Opening,
    /// Nothing: a log, whose first byte may come after hours.
    Unlimited,
}

impl Span {
    fn of<B>(request: &Request<B>) -> Self {
        let path: Vec<&str> = request.uri().path().split('/').skip(1).collect();
        let watches = |query: &str| query.split('&').any(|it| it == "watch=true");
        match path.as_slice() {
            ["api", "v1", "namespaces", _, "pods", _, "log"] => Self::Unlimited,
            ["api", "v1", "namespaces", _, "pods", _, "eviction"] => Self::Eviction,
            _ if request.headers().contains_key(header::UPGRADE)
                || request.uri().query().is_some_and(watches) =>
            {
                Self::Opening
            }
            _ => Self::Whole,
        }
    }
}

impl Limits {
    async fn send<S, B>(
        &self,
        inner: &mut S,
        mut request: Request<Body>,
        span: Span,
    ) -> Result<Response<Answer>, BoxError>
    where
        S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if span == Span::Unlimited {
            self.wait_for_pause().await;
            let answer = inner.ready().await?.call(request).await?;
            return self.read(answer, span).await;
        }
        let _permit = match request.extensions_mut().remove::<CallPermit>() {
            Some(held) => held,
            None => self.permit().await,
        };
        let answered = async {
            let answer = inner.ready().await?.call(request).await?;
            self.read(answer, span).await
        };
        match tokio::time::timeout(self.timeout, answered).await {
            Ok(answer) => answer,
            Err(_) => Err(LimitError::Timeout(self.timeout).into()),
        }
    }

    async fn permit(&self) -> CallPermit {
        loop {
            self.wait_for_pause().await;
            let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
            if self.paused().is_none() {
                return CallPermit(permit.map(Arc::new));
            }
        }
    }

    fn paused(&self) -> Option<Instant> {
        self.pause.lock().filter(|until| Instant::now() < *until)
    }

    async fn wait_for_pause(&self) {
        while let Some(until) = self.paused() {
            tokio::time::sleep_until(until).await;
        }
    }

    /// Reads the answer as far as it belongs to the call: failures always, what lasts never.
    async fn read<B>(&self, answer: Response<B>, span: Span) -> Result<Response<Answer>, BoxError>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (head, body) = answer.into_parts();
        let succeeded = head.status.is_success() || head.status == StatusCode::SWITCHING_PROTOCOLS;
        if !succeeded {
            let limited = Limited::new(body, errors::MAX_STATUS).collect().await;
            // Without a readable body the status code still tells what is wrong.
            let body = limited
                .map(http_body_util::Collected::to_bytes)
                .unwrap_or_default();
            let status = self.refuse(head.status, &head.headers, &body, span);
            let body = serde_json::to_vec(&status)?;
            let mut answer = Response::new(whole(body.into()));
            *answer.status_mut() = head.status;
            return Ok(answer);
        }
        if matches!(span, Span::Opening | Span::Unlimited) {
            let body = body.map_err(Into::into).boxed_unsync();
            return Ok(Response::from_parts(head, body));
        }
        let body = Limited::new(body, MAX_ANSWER).collect().await;
        let body = body
            .map_err(|error| match error.is::<LengthLimitError>() {
                true => LimitError::TooLarge,
                false => LimitError::CutOff(error),
            })?
            .to_bytes();
        if !protobuf::is_protobuf(&body) && !is_object(&body) {
            // kube logs an answer that it cannot read, whatever stands in it.
            serde_json::from_slice::<IgnoredAny>(&body).map_err(|error| {
                LimitError::Unreadable {
                    line: error.line(),
                    column: error.column(),
                }
            })?;
        }
        Ok(Response::from_parts(head, whole(body)))
    }

    /// What a failure says, in the words that may be repeated: kube logs them too.
    fn refuse(
        &self,
        code: StatusCode,
        headers: &HeaderMap,
        body: &Bytes,
        span: Span,
    ) -> kube::core::Status {
        let said = match protobuf::is_protobuf(body) {
            true => protobuf::status(body.clone()),
            false => errors::read(&serde_json::from_slice(body).unwrap_or_default()),
        };
        let status = redact::status(errors::told(code, headers, said, errors::line(body)));
        if code == StatusCode::UNAUTHORIZED {
            self.refused.notify_one();
        }
        if code == StatusCode::TOO_MANY_REQUESTS && span != Span::Eviction {
            let asked = status.details.as_ref().map(|it| it.retry_after_seconds);
            let asked = asked.filter(|seconds| *seconds > 0);
            let pause = asked.map_or(DEFAULT_PAUSE, |it| Duration::from_secs(it.into()));
            self.pause(pause);
        }
        status
    }

    /// Suspends calls for a while.
    fn pause(&self, span: Duration) {
        let until = Instant::now() + span.min(MAX_PAUSE);
        let mut pause = self.pause.lock();
        *pause = Some(pause.map_or(until, |now| now.max(until)));
    }
}

/// Whether it begins and ends as an object does: to parse all of it here as well would cost a list a fifth of its time.
fn is_object(body: &[u8]) -> bool {
    let body = body.trim_ascii();
    body.starts_with(b"{") && body.ends_with(b"}")
}

fn whole(body: Bytes) -> Answer {
    Full::new(body)
        .map_err(|never| match never {})
        .boxed_unsync()
}

#[cfg(test)]
mod tests;
