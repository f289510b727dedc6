//! Plain HTTP endpoints.

use std::sync::Arc;

use axum::{
    Router,
    http::{Method, Request, Response, StatusCode},
    routing::get,
};
use tokio::{sync::watch, time::Instant};
use tonic::transport::server::TcpConnectInfo;
use tracing::Span;

use drover_telemetry::{Context as TraceContext, Span as TraceSpan};

use crate::{
    Readiness,
    audit::Entry,
    calls::TraceId,
    telemetry::{self, Collector},
};

/// Paths that must always be answered.
pub(crate) const OWN_PATHS: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// Label of all unknown paths and methods, so that clients cannot create labels.
const OTHER: &str = "other";

/// Records a request when it ends, however it ends. The server's own paths are not counted.
pub(crate) struct Record {
    path: Option<&'static str>,
    method: &'static str,
    span: Span,
    trace: Option<TraceSpan>,
    start: Instant,
    audit: Option<Entry>,
}

impl Record {
    pub(crate) fn start<B>(paths: &[&'static str], request: &Request<B>) -> Self {
        let asked = request.uri().path();
        let known = paths.iter().find(|path| **path == asked).copied();
        let path = (!OWN_PATHS.contains(&asked)).then(|| known.unwrap_or(OTHER));
        let method = method(request.method());
        let parent = TraceContext::of(request.headers());
        let parent = match path {
            Some(_) => parent,
            // Health checks do not start a trace.
            None => Some(TraceContext::root(Some(false))),
        };
        let mut trace = TraceSpan::server(format!("{method} {}", path.unwrap_or_default()), parent);
        trace.set("http.request.method", method);
        trace.set("http.route", path.unwrap_or_default());
        let trace_id = TraceId::from(trace.context());
        let span = match path {
            None => Span::none(),
            Some(path) => {
                let peer = tracing::field::Empty;
                tracing::info_span!("request", method, path, %trace_id, peer)
            }
        };
        let peer = request.extensions().get::<TcpConnectInfo>();
        if let Some(peer) = peer.and_then(TcpConnectInfo::remote_addr) {
            span.record("peer", tracing::field::display(peer));
        }
        if let Some(path) = path {
            metrics::gauge!("drover_http_in_flight", "path" => path).increment(1.0);
        }
        Self {
            path,
            method,
            span,
            trace: Some(trace),
            start: Instant::now(),
            audit: None,
        }
    }

    /// The trace of the request.
    pub(crate) fn trace(&self) -> TraceContext {
        let trace = self.trace.as_ref().map(TraceSpan::context);
        trace.unwrap_or_else(|| TraceContext::root(Some(false)))
    }

    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Adds the request to the audit log.
    pub(crate) fn audit(&mut self, entry: Entry) {
        self.audit = Some(entry);
    }

    /// Ends the request with its response.
    pub(crate) fn end<B>(mut self, response: Response<B>) -> Response<B> {
        self.count(response.status().as_str());
        response
    }

    fn count(&mut self, code: &str) {
        if let Some(entry) = self.audit.take() {
            entry.end_http(code, self.start.elapsed());
        }
        if let Some(mut trace) = self.trace.take() {
            if let Ok(status) = code.parse::<i64>() {
                trace.set("http.response.status_code", status);
            }
            if code.starts_with('5') {
                trace.fail("5xx", "");
            }
        }
        let Some(path) = self.path.take() else {
            return;
        };
        let elapsed = self.start.elapsed();
        metrics::gauge!("drover_http_in_flight", "path" => path).decrement(1.0);
        let labels = [
            ("path", path.to_owned()),
            ("method", self.method.to_owned()),
            ("code", code.to_owned()),
        ];
        metrics::counter!("drover_http_requests_total", &labels).increment(1);
        metrics::histogram!("drover_http_duration_seconds", "path" => path)
            .record(elapsed.as_secs_f64());
        let _entered = self.span.enter();
        tracing::debug!(code, ?elapsed, "request");
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // There was no response, because the client went away.
        self.count("cancelled");
    }
}

/// The metric label of a method.
fn method(method: &Method) -> &'static str {
    [
        (Method::GET, "GET"),
        (Method::HEAD, "HEAD"),
        (Method::POST, "POST"),
        (Method::PUT, "PUT"),
        (Method::PATCH, "PATCH"),
        (Method::DELETE, "DELETE"),
        (Method::OPTIONS, "OPTIONS"),
    ]
    .into_iter()
    .find_map(|(known, name)| (known == *method).then_some(name))
    .unwrap_or(OTHER)
}

/// The routes that all servers have.
pub(crate) fn routes(
    liveness: Option<watch::Receiver<Readiness>>,
    readiness: watch::Receiver<Readiness>,
    collectors: Vec<Collector>,
) -> Router {
    let collectors: Arc<[Collector]> = collectors.into();
    Router::new()
        .route("/healthz", get(async move || answer(liveness.as_ref())))
        .route("/readyz", get(async move || answer(Some(&readiness))))
        .route(
            "/metrics",
            get(async move || {
                (
                    [("content-type", "text/plain; version=0.0.4; charset=utf-8")],
                    telemetry::expose(&collectors),
                )
            }),
        )
}

fn answer(state: Option<&watch::Receiver<Readiness>>) -> (StatusCode, String) {
    match state.map(|state| state.borrow().clone()) {
        None | Some(Readiness::Ready) => (StatusCode::OK, "ok\n".to_owned()),
        Some(Readiness::NotReady(why)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}
