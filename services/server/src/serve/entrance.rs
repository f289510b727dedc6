//! Entry point of all requests: plain HTTP, gRPC, and refusals.

use std::{
    convert::Infallible,
    net::SocketAddr,
    panic::AssertUnwindSafe,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tonic::{body::Body, transport::server::TcpConnectInfo};
use tracing::Instrument;

use super::{
    hosts::{Hosts, Wrong},
    rest::Whole,
};
use crate::{
    audit::{Audit, Digested, Entry},
    calls::{BodyTimeout, Calls, Due, MESSAGE_TIMEOUT, Rights},
    connection_limiter::ConnectionHandle,
    encryption::Shown,
    http::{OWN_PATHS, Record},
};

/// Retry delay for refused connections.
const CROWDED_RETRY: Duration = Duration::from_secs(5);

/// Content type of plain-text bodies.
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Routes gRPC to the services, and everything else to the HTTP routes.
#[derive(Clone)]
pub(super) struct Entrance {
    pub(super) grpc: Calls,
    pub(super) http: axum::Router,
    pub(super) paths: Arc<[&'static str]>,
    pub(super) hosts: Hosts,
    pub(super) audit: Option<Arc<Audit>>,
}

#[derive(Clone)]
pub(super) struct Visit {
    pub(super) entrance: Entrance,
    pub(super) info: TcpConnectInfo,
    pub(super) who: Option<Arc<Shown>>,
    /// `None` if the connection was refused a slot.
    pub(super) handle: Option<ConnectionHandle>,
}

impl tower::Service<Request<Incoming>> for Visit {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let mut request = Whole::of(request);
        let content = request.headers().get(header::CONTENT_TYPE);
        let grpc = content.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
        if let Err(wrong) = self.entrance.hosts.judge(&request, grpc) {
            let response = self.entrance.turn_away(&wrong, self.info.remote_addr, grpc);
            return futures::future::ready(Ok(response)).boxed();
        }
        let Some(handle) = &self.handle else {
            let response = if grpc {
                crowded().into_http()
            } else {
                refusal(StatusCode::SERVICE_UNAVAILABLE)
            };
            return futures::future::ready(Ok(response)).boxed();
        };
        request.extensions_mut().insert(handle.clone());
        request.extensions_mut().insert(self.info.clone());
        if let Some(who) = &self.who {
            request.extensions_mut().insert(who.clone());
        }
        if grpc {
            return self.entrance.grpc.call(request);
        }
        let entrance = self.entrance.clone();
        async move { Ok(entrance.plain(request).await) }.boxed()
    }
}

impl Entrance {
    /// Rejects a request with an explanation. gRPC clients understand the headers as well.
    fn turn_away(&self, wrong: &Wrong, peer: Option<SocketAddr>, grpc: bool) -> Response<Body> {
        let (status, reason, why) = match wrong {
            Wrong::Host(why) => (StatusCode::MISDIRECTED_REQUEST, "host", why.clone()),
            Wrong::Browser(name) => (
                StatusCode::FORBIDDEN,
                "browser",
                format!("requests of browsers are not served, and this one has the header {name}"),
            ),
            Wrong::Version => (
                StatusCode::HTTP_VERSION_NOT_SUPPORTED,
                "version",
                "gRPC is spoken over HTTP/2 only".to_owned(),
            ),
        };
        metrics::counter!("drover_requests_turned_away_total", "reason" => reason).increment(1);
        if let Some(audit) = &self.audit {
            audit.turned_away(peer, "request", status.as_str(), &why);
        }
        tracing::debug!(?peer, reason, why, "a request was turned away");
        let mut response = refusal(status);
        if grpc {
            let error = drover_core::Error::new(drover_core::Reason::PermissionDenied, &*why);
            let mut headers = HeaderMap::new();
            if drover_convert::error::to_status(&error)
                .add_header(&mut headers)
                .is_ok()
            {
                *response.headers_mut() = headers;
            }
        }
        response.headers_mut().insert(header::CONTENT_TYPE, PLAIN);
        response.map(|_| words(&why))
    }

    /// Handles a plain HTTP request, with the same limits as gRPC.
    async fn plain(mut self, mut request: Request<Whole>) -> Response<Body> {
        let _in_flight = self.grpc.tracker().token();
        let exempt = OWN_PATHS.contains(&request.uri().path());
        let mut record = Record::start(&self.paths, &request);
        let trace = record.trace();
        let context = self.grpc.http_context(trace);
        let known = exempt || self.paths.contains(&request.uri().path());
        let (asked, entry) = self
            .grpc
            .judge_http(&request, known, context.trace_id)
            .await;
        if let Some(entry) = &entry {
            record.audit(entry.clone());
        }
        // Before a permit is acquired, so that strangers cannot exhaust the permits.
        let (caller, call, terms) = match asked {
            Ok(asked) => asked,
            Err(error) => return record.end(denied(&error)),
        };
        let (_permit, busy) = match self.grpc.occupy_http(&mut request, call.payer(), exempt) {
            Ok(held) => held,
            Err(error) => return record.end(denied(&error)),
        };
        if let Some(entry) = &entry
            && let Err(error) = entry.ask().await
        {
            return record.end(denied(&error));
        }
        request.headers_mut().remove(header::AUTHORIZATION);
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(call);
        let deadline = context.deadline;
        request.extensions_mut().insert(context);
        let content = entry.as_ref().and_then(Entry::request);
        let rights = Rights {
            terms,
            certificate: busy.as_ref().map(|busy| busy.ending().clone()),
        };
        let request = request.map(|body| {
            let body = Digested::new(body, content, 0);
            BodyTimeout::new(body, Due::Whole(MESSAGE_TIMEOUT), rights)
        });
        let answer = tower::Service::call(&mut self.http, request);
        let answer = AssertUnwindSafe(drover_telemetry::context::scope(Some(trace), answer))
            .catch_unwind()
            .instrument(record.span());
        let answer = match deadline {
            Some(at) => tokio::time::timeout_at(at, answer).await.ok(),
            None => Some(answer.await),
        };
        drop(busy);
        record.end(match answer {
            Some(Ok(Ok(response))) => response.map(Body::new),
            Some(Ok(Err(never))) => match never {},
            Some(Err(_)) => refusal(StatusCode::INTERNAL_SERVER_ERROR),
            None => refusal(StatusCode::GATEWAY_TIMEOUT),
        })
    }
}

fn crowded() -> tonic::Status {
    let error = drover_core::Error::new(
        drover_core::Reason::Overloaded,
        "too many connections, and all of them have calls in flight (max_connections)",
    );
    drover_convert::error::to_status(&error.with_retry_after(CROWDED_RETRY))
}

fn refusal(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Converts a refusal to an HTTP response.
fn denied(error: &drover_core::Error) -> Response<Body> {
    let answer = refusal(match error.reason() {
        drover_core::Reason::PermissionDenied => StatusCode::FORBIDDEN,
        drover_core::Reason::Unavailable | drover_core::Reason::Overloaded => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::UNAUTHORIZED,
    });
    answer.map(|_| words(error.message()))
}

/// Creates a plain-text body that ends with a line break.
fn words(text: &str) -> Body {
    Body::new(http_body_util::Full::from(format!("{text}\n")))
}
