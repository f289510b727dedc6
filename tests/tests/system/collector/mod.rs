//! A trace collector that implements OpenTelemetry's service and keeps the spans that it receives.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    reason = "shared by several tests, which fail when they cannot go on"
)]

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{FutureExt, future::BoxFuture};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use parking_lot::Mutex;
use tonic::{Request, Response, Status, body::Body, server::NamedService};
use tonic_prost::ProstCodec;

/// A span and the service that sent it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub service: String,
    pub span: Span,
}

impl Seen {
    fn value(&self, key: &str) -> Option<&Value> {
        value(&self.span.attributes, key)
    }

    pub fn text(&self, key: &str) -> &str {
        match self.value(key) {
            Some(Value::StringValue(text)) => text,
            other => panic!("{key} is {other:?} in {self:#?}"),
        }
    }

    pub fn number(&self, key: &str) -> Option<i64> {
        match self.value(key) {
            Some(Value::IntValue(number)) => Some(*number),
            _ => None,
        }
    }
}

fn value<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Value> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    found.value.as_ref()?.value.as_ref()
}

/// A running collector.
#[derive(Clone)]
pub struct Collector {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Collector {
    pub async fn start() -> Self {
        Self::on(0).await
    }

    pub async fn on(port: u16) -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
            .await
            .unwrap();
        let collector = Self {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
        };
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let server = tonic::transport::Server::builder().add_service(collector.clone());
        tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() });
        collector
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    fn take(&self, request: ExportTraceServiceRequest) {
        for resource in request.resource_spans {
            let attributes = resource.resource.unwrap_or_default().attributes;
            let Some(Value::StringValue(service)) = value(&attributes, "service.name") else {
                panic!("no service.name in {attributes:?}");
            };
            for scope in resource.scope_spans {
                for span in scope.spans {
                    assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
                    let service = service.clone();
                    self.seen.lock().push(Seen { service, span });
                }
            }
        }
    }
}

impl NamedService for Collector {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

impl tower::Service<http::Request<Body>> for Collector {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let collector = self.clone();
        async move {
            assert!(request.uri().path().ends_with("TraceService/Export"));
            let export = tower::service_fn(move |request: Request<ExportTraceServiceRequest>| {
                collector.take(request.into_inner());
                let answer = ExportTraceServiceResponse::default();
                std::future::ready(Ok::<_, Status>(Response::new(answer)))
            });
            let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
            Ok(grpc.unary(export, request).await)
        }
        .boxed()
    }
}
