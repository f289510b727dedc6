//! The services of a server.

use std::{convert::Infallible, sync::Arc};

use axum::routing::MethodRouter;
use drover_core::{Error, Result};
use tokio::sync::watch;
use tonic::{body::Body, server::NamedService, service::Routes};
use tonic_health::server::HealthReporter;
use tower::Service as TowerService;

use crate::{
    ServerSettings, Shutdown,
    access::Replicas,
    calls::{Calls, Guards, Methods},
    descriptors,
    telemetry::{Collector, Exposition},
};

/// Whether a server is able to work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It is ready.
    Ready,
    /// It is not ready, for this human-readable reason, which must not contain secrets.
    NotReady(String),
}

/// The gRPC services and HTTP routes of a server. Health, reflection and metrics are added when it is served.
pub struct Service {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) routes: Routes,
    pub(crate) names: Vec<&'static str>,
    pub(crate) descriptors: Vec<&'static [u8]>,
    pub(crate) http: axum::Router,
    /// Paths of `http`, each of which is a metric label.
    pub(crate) paths: Vec<&'static str>,
    pub(crate) readiness: Option<watch::Receiver<Readiness>>,
    pub(crate) liveness: Option<watch::Receiver<Readiness>>,
    pub(crate) collectors: Vec<Collector>,
    pub(crate) replicas: Option<Arc<dyn Replicas>>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service")
            .field("name", &self.name)
            .field("version", &self.version)
            .field("names", &self.names)
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

impl Service {
    /// Creates a server without services; `name` identifies it in logs and metrics.
    #[must_use]
    pub fn new(name: &'static str, version: &'static str) -> Self {
        Self {
            name,
            version,
            routes: Routes::default(),
            names: Vec::new(),
            descriptors: vec![
                drover_proto::DESCRIPTORS,
                tonic_health::pb::FILE_DESCRIPTOR_SET,
            ],
            http: axum::Router::new(),
            paths: Vec::new(),
            readiness: None,
            liveness: None,
            collectors: Vec::new(),
            replicas: None,
        }
    }

    /// Adds a generated gRPC server.
    #[must_use]
    #[expect(
        clippy::should_implement_trait,
        reason = "a builder, and `a + b` would not read like one"
    )]
    pub fn add<S>(mut self, service: S) -> Self
    where
        S: TowerService<
                ::http::Request<Body>,
                Response = ::http::Response<Body>,
                Error = Infallible,
            > + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        self.names.push(S::NAME);
        self.routes = self.routes.add_service(service);
        self
    }

    /// Adds a serialized `FileDescriptorSet` of services other than Drover's own.
    #[must_use]
    pub fn descriptors(mut self, encoded: &'static [u8]) -> Self {
        self.descriptors.push(encoded);
        self
    }

    /// Adds a plain HTTP route on the same port, besides `/healthz`, `/readyz` and `/metrics`; the path has no
    /// parameters. It is limited, timed out, drained and counted like a unary call. Handlers find a
    /// [`crate::CallContext`] in the extensions of the request; its deadline is the server's default.
    #[must_use]
    pub fn route(mut self, path: &'static str, methods: MethodRouter) -> Self {
        self.http = self.http.route(path, methods);
        self.paths.push(path);
        self
    }

    /// Adds metrics that are collected whenever `/metrics` is read. `collect` must be fast.
    #[must_use]
    pub fn metrics(mut self, collect: impl Fn(&mut Exposition) + Send + Sync + 'static) -> Self {
        self.collectors.push(Arc::new(collect));
        self
    }

    /// Believes other replicas of this server who the caller is of a call that they forward. Handlers then find an
    /// [`Arrival`](crate::Arrival) in the extensions of a request.
    #[must_use]
    pub fn replicas(mut self, replicas: Arc<dyn Replicas>) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// Sets the source of `grpc.health.v1` and `/readyz`. Without it, the server is ready from the start.
    #[must_use]
    pub fn readiness(mut self, readiness: watch::Receiver<Readiness>) -> Self {
        self.readiness = Some(readiness);
        self
    }

    /// Sets the source of `/healthz`. Without it, the server is alive as long as it responds.
    #[must_use]
    pub fn liveness(mut self, liveness: watch::Receiver<Readiness>) -> Self {
        self.liveness = Some(liveness);
        self
    }

    /// Returns the services with the middleware of every call (deadline, limits, panics, metrics, span) but without a
    /// network, for `drover_client::in_process`. `shutdown` ends the streams. Fails with `Internal` if a descriptor set
    /// is corrupt.
    pub fn into_routes(self, settings: &ServerSettings, shutdown: Shutdown) -> Result<Routes> {
        let methods = Methods::of(&self.names, &self.descriptors)?;
        let calls = Calls::new(
            self.routes,
            methods,
            Guards::default(),
            settings,
            shutdown.clone(),
            shutdown,
        );
        Ok(Routes::from(axum::Router::new().fallback_service(calls)))
    }

    /// Adds health and reflection, and collects the methods of all services.
    pub(crate) fn complete(mut self) -> Result<(Self, Methods, HealthReporter)> {
        let (reporter, health) = tonic_health::server::health_reporter();
        self = self.add(health);
        let listed = self.names.clone();
        let files = descriptors::needed(&self.descriptors, &listed)?;
        let damaged =
            |e: tonic_reflection::server::Error| Error::internal(format!("descriptors: {e}"));
        let reflection = |version| {
            let builder = tonic_reflection::server::Builder::configure()
                .register_file_descriptor_set(files.clone());
            listed
                .iter()
                .chain([&version])
                .fold(builder, |builder, name| builder.with_service_name(*name))
        };
        let v1 = reflection(REFLECTION[0]).build_v1().map_err(damaged)?;
        let v1alpha = reflection(REFLECTION[1]).build_v1alpha().map_err(damaged)?;
        self = self.add(v1).add(v1alpha);
        self.descriptors
            .push(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET);
        self.descriptors
            .push(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET);
        let methods = Methods::of(&self.names, &self.descriptors)?;
        Ok((self, methods, reporter))
    }
}

/// Full name of the health service.
pub(crate) const HEALTH: &str = "grpc.health.v1.Health";
/// Full names of the reflection services.
pub(crate) const REFLECTION: [&str; 2] = [
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];
