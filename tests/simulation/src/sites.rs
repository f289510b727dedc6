//! Simulated backends, and the platform servers over them.

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

/// A simulated backend, and the platform server over it, if one runs.
pub struct Site {
    driver: Arc<Simulated>,
    pub backend: SimulatedHandle,
    server: Mutex<Option<Arc<PlatformServer>>>,
    /// When it was called, by whatever call.
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

    /// Starts the server.
    pub fn start(&self) {
        let server = PlatformServer::with_driver(self.driver.clone(), Templates::Anything).unwrap();
        *self.server.lock() = Some(Arc::new(server));
    }

    /// Ends it, as a crash does: the backend and its nodes know nothing of it.
    pub fn stop(&self) {
        *self.server.lock() = None;
    }

    /// A way to the server, which runs.
    pub fn routes(&self) -> Routes {
        self.server.lock().as_ref().unwrap().routes()
    }

    /// All nodes as they really are, but for those of which a backend only remembers that they have ended.
    pub fn all(&self) -> Vec<Node> {
        let all = self.backend.nodes().into_iter();
        all.filter(|node| node.phase() != NodePhase::Terminated)
            .collect()
    }

    /// When it was called, by whatever call.
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

    /// Those of a cluster.
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
    /// Nobody listens there any more.
    pub fn remove(&self, endpoint: &str) {
        self.0.lock().remove(endpoint);
    }

    pub fn put(&self, endpoint: &str, site: &Arc<Site>) {
        self.0.lock().insert(endpoint.to_owned(), site.clone());
    }

    pub fn connector(&self) -> Connector {
        let sites = self.clone();
        Arc::new(move |spec, _| {
            let endpoint = spec.endpoint.as_str();
            let site = sites.0.lock().get(endpoint).cloned();
            let running = site.and_then(|site| {
                let server = site.server.lock().clone()?;
                Some(site.counted(server.routes()))
            });
            let routes = running
                .ok_or_else(|| Error::unavailable(format!("nobody listens at {endpoint}")))?;
            Ok(in_process(routes))
        })
    }
}
