//! Bounds of reading a platform: clients neither trust nor buffer endless lists.
#![allow(clippy::unwrap_used, reason = "tests fail when they cannot go on")]

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use drover_client::{in_process, platform::PlatformClient};
use drover_core::{Error, Reason};
use drover_proto::platform::v1::{
    self as wire, infrastructure_service_server as infrastructure,
    platform_service_server::{PlatformService, PlatformServiceServer},
    storage_service_server as storage,
};
use futures::Stream;
use tonic::{Request, Response, Status, service::Routes};

/// Far longer than a bounded read takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// The kind of endless list.
#[derive(Clone, Copy)]
enum Endless {
    /// Page tokens that form a cycle.
    Circle,
    /// Endless pages without items.
    Empty,
    /// Endless pages with many items.
    Full,
    /// Endless pages of the maximum message size.
    Heavy,
}

struct Liar {
    how: Endless,
    pages: Arc<AtomicUsize>,
}

impl Liar {
    fn token(&self) -> String {
        let page = self.pages.fetch_add(1, Ordering::Relaxed);
        match self.how {
            Endless::Circle => ["a", "b", "c"][page % 3].to_owned(),
            Endless::Empty | Endless::Full | Endless::Heavy => page.to_string(),
        }
    }

    /// The items of a page, each containing this text.
    fn things<T: Clone>(&self, thing: impl Fn(String) -> T) -> Vec<T> {
        match self.how {
            Endless::Circle => vec![thing(String::new())],
            Endless::Empty => Vec::new(),
            Endless::Full => vec![thing(String::new()); 10_000],
            Endless::Heavy => vec![thing("x".repeat(3_900_000))],
        }
    }
}

fn not_here<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not in this fake"))
}

#[tonic::async_trait]
impl PlatformService for Liar {
    type WatchNodesStream =
        Pin<Box<dyn Stream<Item = Result<wire::WatchNodesResponse, Status>> + Send>>;

    async fn discover(
        &self,
        _: Request<wire::DiscoverRequest>,
    ) -> Result<Response<wire::DiscoverResponse>, Status> {
        let node = |message| wire::Node {
            message,
            ..Default::default()
        };
        Ok(Response::new(wire::DiscoverResponse {
            nodes: self.things(node),
            next_page_token: self.token(),
            ..Default::default()
        }))
    }

    async fn get_platform(
        &self,
        _: Request<wire::GetPlatformRequest>,
    ) -> Result<Response<wire::GetPlatformResponse>, Status> {
        not_here()
    }

    async fn watch_nodes(
        &self,
        _: Request<wire::WatchNodesRequest>,
    ) -> Result<Response<Self::WatchNodesStream>, Status> {
        not_here()
    }

    async fn fence(
        &self,
        _: Request<wire::FenceRequest>,
    ) -> Result<Response<wire::FenceResponse>, Status> {
        not_here()
    }

    async fn provision(
        &self,
        _: Request<wire::ProvisionRequest>,
    ) -> Result<Response<wire::ProvisionResponse>, Status> {
        not_here()
    }

    async fn deprovision(
        &self,
        _: Request<wire::DeprovisionRequest>,
    ) -> Result<Response<wire::DeprovisionResponse>, Status> {
        not_here()
    }

    async fn update_node(
        &self,
        _: Request<wire::UpdateNodeRequest>,
    ) -> Result<Response<wire::UpdateNodeResponse>, Status> {
        not_here()
    }
}

#[tonic::async_trait]
impl storage::StorageService for Liar {
    async fn list_storage(
        &self,
        _: Request<wire::ListStorageRequest>,
    ) -> Result<Response<wire::ListStorageResponse>, Status> {
        let kept = |id| wire::KeptStorage {
            id,
            ..Default::default()
        };
        Ok(Response::new(wire::ListStorageResponse {
            storage: self.things(kept),
            next_page_token: self.token(),
        }))
    }

    async fn delete_storage(
        &self,
        _: Request<wire::DeleteStorageRequest>,
    ) -> Result<Response<wire::DeleteStorageResponse>, Status> {
        not_here()
    }
}

#[tonic::async_trait]
impl infrastructure::InfrastructureService for Liar {
    async fn list_infrastructure(
        &self,
        _: Request<wire::ListInfrastructureRequest>,
    ) -> Result<Response<wire::ListInfrastructureResponse>, Status> {
        let resource = |message| wire::Resource {
            message,
            ..Default::default()
        };
        Ok(Response::new(wire::ListInfrastructureResponse {
            resources: self.things(resource),
            next_page_token: self.token(),
            ..Default::default()
        }))
    }

    async fn get_infrastructure(
        &self,
        _: Request<wire::GetInfrastructureRequest>,
    ) -> Result<Response<wire::GetInfrastructureResponse>, Status> {
        not_here()
    }

    async fn ensure_infrastructure(
        &self,
        _: Request<wire::EnsureInfrastructureRequest>,
    ) -> Result<Response<wire::EnsureInfrastructureResponse>, Status> {
        not_here()
    }

    async fn release_infrastructure(
        &self,
        _: Request<wire::ReleaseInfrastructureRequest>,
    ) -> Result<Response<wire::ReleaseInfrastructureResponse>, Status> {
        not_here()
    }
}

/// A malicious platform, and the number of pages that were read from it.
fn liar(how: Endless) -> (PlatformClient, Arc<AtomicUsize>) {
    let pages = Arc::new(AtomicUsize::new(0));
    let liar = Arc::new(Liar {
        how,
        pages: pages.clone(),
    });
    let routes = Routes::new(PlatformServiceServer::from_arc(liar.clone()))
        .add_service(storage::StorageServiceServer::from_arc(liar.clone()))
        .add_service(infrastructure::InfrastructureServiceServer::from_arc(liar));
    (PlatformClient::new(in_process(routes)), pages)
}

/// Asserts that every kind of read fails for this reason after at most `most` pages.
async fn ends(how: Endless, most: usize, why: &str) {
    let (client, pages) = liar(how);
    let check = |error: Error| {
        assert_eq!(error.reason(), Reason::Internal, "{error}");
        assert!(error.message().contains(why), "{error}");
        assert!(pages.swap(0, Ordering::Relaxed) <= most);
    };
    check(
        client
            .discover_all(Default::default(), PATIENCE)
            .await
            .unwrap_err(),
    );
    check(
        client
            .list_storage(Default::default(), PATIENCE)
            .await
            .unwrap_err(),
    );
    check(
        client
            .list_infrastructure(Default::default(), PATIENCE)
            .await
            .unwrap_err(),
    );
}

#[tokio::test]
async fn a_list_that_leads_back_to_a_page_that_was_read_fails() {
    ends(Endless::Circle, 4, "page token").await;
}

#[tokio::test]
async fn a_list_of_too_many_pages_fails() {
    ends(Endless::Empty, 10_001, "more than 10000 pages").await;
}

#[tokio::test]
async fn a_list_of_too_many_things_fails() {
    ends(Endless::Full, 21, "more than 200000").await;
}

#[tokio::test]
async fn a_list_of_too_many_bytes_fails() {
    ends(Endless::Heavy, 36, "more than 128 MiB").await;
}
