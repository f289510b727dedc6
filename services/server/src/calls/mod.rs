//! The middleware around every gRPC call.

mod admission;
mod body;
mod body_timeout;
mod call;
mod methods;
mod plain;
mod rights;
mod timeout;

use std::{
    convert::Infallible,
    net::SocketAddr,
    panic::AssertUnwindSafe,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use drover_convert::error::to_status;
use drover_core::{Error, Reason};
use drover_telemetry::{Context as TraceContext, Span as TraceSpan, context, rpc};
use futures::{FutureExt, future::BoxFuture};
use http::{HeaderMap, Request, Response, header};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tonic::{body::Body, service::Routes, transport::server::TcpConnectInfo};
use tower::Service;
use tracing::Instrument;

pub use self::call::{Arrival, CallContext, caller_name, deadline, shutdown, trace_id};
pub(crate) use self::{
    admission::Permit,
    body::CallBody,
    body_timeout::{BodyTimeout, Due},
    call::TraceId,
    methods::Methods,
    rights::Rights,
};
use self::{
    body::{Limits, Record},
    methods::{Kind, Method},
};
use crate::{
    ServerSettings, Shutdown,
    access::{self, Access, Asked, Caller, Forwarded, Identity, Judgement, Permission, Replicas},
    audit::{Audit, CallRecord, Digested, Entry},
    connection_limiter::ConnectionHandle,
    encryption::Shown,
    ending::Ending,
    quota::Shares,
};

/// Size of the gRPC message header: the compression flag and the length.
const GRPC_HEADER: usize = 5;
/// Timeout for the arrival of the first message of a request: enough for the largest one over a slow connection.
pub(crate) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for calls that require no permission, and also their deadline: they are just a few bytes.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Who may call, and where that is recorded.
#[derive(Clone, Default)]
pub(crate) struct Guards {
    pub(crate) access: Access,
    pub(crate) replicas: Option<Arc<dyn Replicas>>,
    pub(crate) audit: Option<Arc<Audit>>,
}

/// The services with the middleware around them.
#[derive(Clone)]
pub(crate) struct Calls(Arc<Shared>, Routes);

struct Shared {
    methods: Methods,
    access: Access,
    /// Those that may forward calls.
    replicas: Option<Arc<dyn Replicas>>,
    /// What other replicas have said of callers.
    believed: access::Believed,
    audit: Option<Arc<Audit>>,
    unary: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// Share of the limits that a single caller may use.
    unary_shares: Shares,
    stream_shares: Shares,
    /// The same for connections with calls in flight.
    connection_shares: Shares,
    default_deadline: Duration,
    max_deadline: Duration,
    /// Whether metrics require no permission.
    open_metrics: bool,
    /// Tells handlers to end.
    asked: Shutdown,
    /// Terminates streams.
    closing: Shutdown,
    /// Tracks calls in flight.
    tracker: TaskTracker,
}

impl Calls {
    pub(crate) fn new(
        routes: Routes,
        methods: Methods,
        guards: Guards,
        settings: &ServerSettings,
        asked: Shutdown,
        closing: Shutdown,
    ) -> Self {
        let shared = Shared {
            methods,
            access: guards.access,
            replicas: guards.replicas,
            believed: access::Believed::default(),
            audit: guards.audit,
            unary: Arc::new(Semaphore::new(
                settings.max_concurrent_requests.min(Semaphore::MAX_PERMITS),
            )),
            streams: Arc::new(Semaphore::new(
                settings.max_concurrent_streams.min(Semaphore::MAX_PERMITS),
            )),
            unary_shares: Shares::of(settings.max_concurrent_requests),
            stream_shares: Shares::of(settings.max_concurrent_streams),
            connection_shares: Shares::of(settings.max_connections),
            default_deadline: settings.default_deadline,
            max_deadline: settings.max_deadline,
            open_metrics: !settings.metrics_auth,
            asked,
            closing,
            tracker: TaskTracker::new(),
        };
        Self(Arc::new(shared), routes.prepare())
    }

    /// Tracks the calls in flight, including plain HTTP requests.
    pub(crate) fn tracker(&self) -> &TaskTracker {
        &self.0.tracker
    }
}

impl<B> Service<Request<B>> for Calls
where
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let shared = self.0.clone();
        let routes = self.1.clone();
        Box::pin(async move { Ok(shared.handle(routes, request).await) })
    }
}

impl Shared {
    async fn handle<B>(&self, mut routes: Routes, mut request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let method = self.methods.get(request.uri().path());
        let unknown = self
            .methods
            .is_unknown(&method)
            .then(|| request.uri().path().to_owned());
        let trace = self.trace(&method, request.headers());
        let at = trace.context();
        let trace_id = TraceId::from(at);
        let peer = request
            .extensions()
            .get::<TcpConnectInfo>()
            .and_then(TcpConnectInfo::remote_addr);
        let span = span(&method, trace_id, peer);
        let mut record = Record::start(method.clone(), span.clone(), trace, self.tracker.token());

        // Before a permit is acquired, so that strangers cannot exhaust the permits.
        let permission = if unknown.is_some() {
            Some(Permission::Known)
        } else {
            method.permission
        };
        let shown = request.extensions().get::<Arc<Shown>>().cloned();
        let forwarded = match permission {
            // Everybody may call it.
            Some(Permission::Open) => None,
            _ => {
                self.forwarded(request.headers(), request.uri().path())
                    .await
            }
        };
        let via = forwarded.as_ref().and_then(|it| it.as_ref().ok());
        let via = via.and_then(|forwarded| forwarded.via.clone());
        let Judgement {
            who,
            outcome,
            lease,
        } = self
            .access
            .judge(Asked {
                peer: shown.as_deref(),
                headers: request.headers(),
                forwarded,
                permission,
            })
            .await;
        let caller = outcome
            .as_ref()
            .map_or_else(|_| Caller::nobody(), Clone::clone);
        let entry = self.audit.as_ref().map(|audit| {
            let what = method.full.clone();
            let caller = caller.clone();
            audit.entry(who.clone(), peer, what, permission, caller, trace_id)
        });
        if let Some(entry) = &entry {
            if let Some(replica) = via.clone() {
                entry.came_by(replica);
            }
            record.audit(entry.clone());
        }
        if let Err(error) = outcome {
            return record.refuse(&error);
        }
        let call = CallRecord::new(&who, peer, entry.clone());
        let permit = match self.admit(method.kind, call.payer()) {
            Ok(permit) => permit,
            Err(error) => return record.refuse(&error),
        };
        // Last, because it marks the connection as busy, which refused calls must not do.
        let handle = request.extensions_mut().remove::<ConnectionHandle>();
        match self.occupy(handle, permission, call.payer()) {
            Ok(busy) => record.busy(busy),
            Err(error) => return record.refuse(&error),
        }
        // Without a client certificate there is nothing to expire.
        let certificate = record.certificate().filter(|_| shown.is_some()).cloned();
        if let Some(error) = certificate.as_ref().and_then(Ending::error) {
            return record.refuse(&error);
        }
        // Handlers do not need the credentials.
        request.headers_mut().remove(header::AUTHORIZATION);
        request.headers_mut().remove(access::CALLER);
        request.extensions_mut().insert(caller);
        let deadline = match self.deadline(request.headers(), method.kind) {
            Ok(deadline) => deadline,
            Err(error) => return record.refuse(&error),
        };
        if let Some(entry) = &entry
            && let Err(error) = entry.ask().await
        {
            return record.refuse(&error);
        }
        let content = entry.as_ref().filter(|_| method.one_message);
        let content = content.and_then(Entry::request);
        request.extensions_mut().insert(call);
        request.extensions_mut().insert(CallContext {
            deadline,
            shutdown: self.asked.clone(),
            trace_id,
        });
        if self.replicas.is_some() {
            let shown = shown.as_deref().and_then(|peer| peer.as_ref().ok());
            let shown = shown.map(Identity::peer);
            request.extensions_mut().insert(Arrival {
                caller: Forwarded::at_first_hand(who, shown),
                via,
                one_message: method.one_message,
                is_read: permission.is_some_and(Permission::is_read),
            });
        }
        let within = match method.kind {
            Kind::Own { .. } => OPEN_TIMEOUT,
            Kind::Unary | Kind::Stream => MESSAGE_TIMEOUT,
        };
        let due = if method.one_message {
            Due::Whole(within)
        } else {
            Due::First(within)
        };
        let rights = Rights {
            terms: lease,
            certificate: certificate.clone(),
        };
        let held = rights.clone();
        let request = request.map(|body| {
            let body = Digested::new(body, content, GRPC_HEADER);
            BodyTimeout::new(body, due, held)
        });

        let answer = AssertUnwindSafe(context::scope(Some(at), async move {
            futures::future::poll_fn(|cx| {
                Service::<Request<BodyTimeout<Digested<B>>>>::poll_ready(&mut routes, cx)
            })
            .await
            .unwrap_or_else(|never| match never {});
            routes
                .call(request)
                .await
                .unwrap_or_else(|never| match never {})
        }))
        .catch_unwind()
        .instrument(span);
        let stream = method.kind.is_stream();
        let answer = async {
            if !stream {
                return Ok(answer.await);
            }
            let outlives = async {
                if let Some(certificate) = &certificate {
                    certificate.over().await;
                    if let Some(error) = certificate.error() {
                        return error;
                    }
                }
                std::future::pending().await
            };
            // Also applies to a stream that has not responded yet.
            tokio::select! {
                biased;
                answer = answer => Ok(answer),
                () = self.closing.cancelled() => Err(stopping()),
                error = outlives => Err(error),
            }
        };
        let answer = match deadline {
            None => answer.await,
            Some(at) => match tokio::time::timeout_at(at, answer).await {
                Ok(answer) => answer,
                Err(_) => return record.refuse(&expired()),
            },
        };
        match answer {
            Err(error) => record.refuse(&error),
            Ok(Err(_)) => record.refuse(&defect()),
            Ok(Ok(response)) if unknown.is_some() && nobody(&response) => {
                record.refuse(&no_such(unknown))
            }
            Ok(Ok(response)) if stream => {
                let limits = Limits::new(permit, deadline, self.closing.clone(), rights);
                CallBody::stream(response, record, limits)
            }
            // The permit is released here, so that a client that reads slowly does not block others.
            Ok(Ok(response)) => CallBody::unary(response, record),
        }
    }

    /// The caller according to another replica, if one has forwarded the call.
    async fn forwarded(&self, headers: &HeaderMap, path: &str) -> Option<Result<Forwarded, Error>> {
        access::caller(self.replicas.as_deref()?, &self.believed, headers, path).await
    }

    /// Starts the span of a call. Health checks do not start a trace.
    fn trace(&self, method: &Arc<Method>, headers: &HeaderMap) -> TraceSpan {
        let parent = TraceContext::of(headers);
        let parent = match method.kind {
            Kind::Own { .. } => parent.or_else(|| Some(TraceContext::root(Some(false)))),
            Kind::Unary | Kind::Stream => parent,
        };
        let mut span = TraceSpan::server(method.path(), parent);
        if span.is_recorded() {
            rpc::describe(&mut span, &method.path());
        }
        span
    }
}

/// The span of all log messages during a call. Read-only calls only have one at debug level: it costs as much as such a
/// call itself, and there are many of them with little to log.
fn span(method: &Method, trace_id: TraceId, peer: Option<SocketAddr>) -> tracing::Span {
    let peer = peer.map(tracing::field::display);
    // All fields at once, because fields that are recorded later cause all others to be formatted again.
    macro_rules! span {
        ($level:ident) => {
            tracing::$level!(
                "call",
                service = method.service,
                method = method.name,
                trace_id = %trace_id,
                peer
            )
        };
    }
    if method.permission.is_some_and(Permission::is_read) {
        span!(debug_span)
    } else {
        span!(info_span)
    }
}

fn expired() -> Error {
    Error::new(
        Reason::DeadlineExceeded,
        "the deadline passed before the call was done",
    )
}

/// Whether no service handled the call: tonic returns `Unimplemented` without a message then.
fn nobody(response: &Response<Body>) -> bool {
    let headers = response.headers();
    headers.get("grpc-status").is_some_and(|code| code == "12")
        && !headers.contains_key("grpc-message")
}

fn no_such(path: Option<String>) -> Error {
    let path = path.unwrap_or_default();
    Error::new(
        Reason::Unimplemented,
        format!("this server has no {path}; reflection lists what it has"),
    )
}

fn stopping() -> Error {
    Error::unavailable("the server is stopping")
}

fn defect() -> Error {
    Error::internal("the server failed; its log says why")
}

/// Converts an error to a gRPC response.
fn refusal(error: &Error) -> Response<Body> {
    to_status(error).into_http()
}
