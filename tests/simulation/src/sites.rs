//! Simulated backends and their platform servers.

use std::{collections::HashMap, sync::Arc};

use drover_client::in_process;
use drover_core::Error;
use drover_orchestrator::Connector;
use drover_platform::{clock::Clock, templates::Templates};
use drover_platform_cloud::{
    PlatformServer,
    drivers::simulated::{Simulated, SimulatedHandle, SimulatedSettings},
};
use drover_proto::platform::v1::{Node, NodePhase};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::service::Routes;
use tower::util::MapRequestLayer;

use crate::Host;

/// A simulated backend, and its platform server if one is running.
pub struct Site {
    driver: Arc<Simulated>,
    pub backend: SimulatedHandle,
    server: Mutex<Option<Arc<PlatformServer>>>,
    /// Times of all calls, of any kind.
    calls: Arc<Mutex<Vec<Instant>>>,
}

impl Site {
    pub fn new(settings: SimulatedSettings) -> Arc<Self> {
        let driver = Simulated::open(settings, Clock::start()).unwrap();
        let site = Arc::new(Self {
            backend: driver.handle(),
            driver,
            server: Mutex::default(),
            calls: Arc::default(),
        });
        site.start();
        site
    }

    /// Starts the platform server.
    pub fn start(&self) {
        let server = PlatformServer::with_driver(self.driver.clone(), Templates::Anything).unwrap();
        *self.server.lock() = Some(Arc::new(server));
    }

    /// Stops the platform server like a crash does: the backend and its nodes are unaffected.
    pub fn stop(&self) {
        *self.server.lock() = None;
    }

    /// Routes of the server, which must be running.
    pub fn routes(&self) -> Routes {
        self.server.lock().as_ref().unwrap().routes()
    }

    /// Actual nodes of the backend, except terminated ones that it only remembers.
    pub fn all(&self) -> Vec<Node> {
        let all = self.backend.nodes().into_iter();
        all.filter(|node| node.phase() != NodePhase::Terminated)
            .collect()
    }

    /// Times of all calls, of any kind.
    pub fn calls(&self) -> Vec<Instant> {
        self.calls.lock().clone()
    }

    fn counted(&self, routes: Routes) -> Routes {
        let calls = self.calls.clone();
        let count = MapRequestLayer::new(move |request: http::Request<_>| {
            calls.lock().push(Instant::now());
            request
        });
        routes.into_axum_router().layer(count).into()
    }

    /// Actual nodes of a cluster.
    pub fn nodes(&self, cluster: &str) -> Vec<Node> {
        self.all()
            .into_iter()
            .filter(|node| node.cluster_id == cluster)
            .collect()
    }
}

/// Sites by endpoint.
#[derive(Clone, Default)]
pub struct Sites(Arc<Mutex<HashMap<String, Arc<Site>>>>);

impl Sites {
    /// Makes an endpoint unreachable.
    pub fn remove(&self, endpoint: &str) {
        self.0.lock().remove(endpoint);
    }

    pub fn put(&self, endpoint: &str, site: &Arc<Site>) {
        self.0.lock().insert(endpoint.to_owned(), site.clone());
    }

    /// How the orchestrator of a host reaches them.
    pub fn connector(&self, host: Arc<Host>) -> Connector {
        let sites = self.clone();
        Arc::new(move |spec, _| {
            let endpoint = spec.endpoint.as_str();
            let site = sites.0.lock().get(endpoint).cloned();
            let running = site.and_then(|site| {
                let server = site.server.lock().clone()?;
                let routes = site.counted(server.routes()).into_axum_router();
                Some(Routes::from(routes.layer(host.lateness(&server))))
            });
            let routes = running
                .ok_or_else(|| Error::unavailable(format!("nobody listens at {endpoint}")))?;
            Ok(in_process(routes))
        })
    }
}
