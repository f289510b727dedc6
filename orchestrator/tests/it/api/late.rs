//! Late observations: nodes of deleted clusters, and nodes whose ids were reused.

use std::{
    collections::BTreeSet,
    future::pending,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use drover_client::{Channel, in_process};
use drover_core::Reason;
use drover_platform::identity::Identity;
use drover_platform_cloud::drivers::simulated::SimulatedSettings;
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{
        self as wire,
        platform_service_client::PlatformServiceClient,
        platform_service_server::{PlatformService, PlatformServiceServer},
        watch_nodes_response::Event,
    },
};
use futures::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, service::Routes};

use crate::api::support::{Site, World, document, refused, until};

/// How the platform responds to a removal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removes {
    It,
    /// Accepts it without doing anything.
    Nothing,
    /// Never responds.
    Hangs,
}

/// A platform whose watch events and removals are controlled by the test.
#[derive(Clone)]
pub(super) struct Told {
    client: PlatformServiceClient<Channel>,
    says: Arc<Mutex<Option<mpsc::Sender<Event>>>>,
    /// From 1 on, removals fail, and this counts them.
    refused: Arc<AtomicUsize>,
    removes: Arc<Mutex<Removes>>,
    /// Ids of nodes whose removal was requested.
    asked: Arc<Mutex<BTreeSet<String>>>,
    /// Number of removals without a response.
    hangs: Arc<AtomicUsize>,
}

impl Told {
    /// Takes the place of the simulated platform of a world.
    pub(super) async fn in_front_of(world: &World) -> Self {
        Self::beside(world, |routes| routes).await
    }

    /// Like [`Self::in_front_of`], with additional services.
    pub(super) async fn beside(world: &World, more: impl FnOnce(Routes) -> Routes) -> Self {
        let told = Self {
            client: PlatformServiceClient::new(world.site.channel()),
            says: Arc::default(),
            refused: Arc::default(),
            removes: Arc::new(Mutex::new(Removes::It)),
            asked: Arc::default(),
            hangs: Arc::default(),
        };
        let routes = Routes::new(PlatformServiceServer::new(told.clone()));
        let channel = in_process(more(routes));
        world.sites.put("http://told", channel);
        world.register("sim", "http://told").await.unwrap();
        told
    }

    /// Sends these events in order, and returns once the orchestrator has received them.
    pub(super) async fn says(&self, world: &World, events: impl IntoIterator<Item = Event>) {
        let says = self.says.lock().clone().unwrap();
        for event in events {
            says.send(event).await.unwrap();
        }
        let last = uuid::Uuid::new_v4().to_string();
        let warning = wire::Warning {
            message: last.clone(),
            ..Default::default()
        };
        let warnings = vec![warning];
        let event = Event::Warnings(wire::WatchWarnings { warnings });
        says.send(event).await.unwrap();
        until("it was heard", async || {
            let status = world.platform("sim").await;
            let mut conditions = status.conditions.iter();
            conditions
                .any(|one| one.message.contains(&last))
                .then_some(())
        })
        .await;
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl PlatformService for Told {
    type WatchNodesStream =
        Pin<Box<dyn Stream<Item = Result<wire::WatchNodesResponse, Status>> + Send>>;

    async fn get_platform(
        &self,
        request: Request<wire::GetPlatformRequest>,
    ) -> Answer<wire::GetPlatformResponse> {
        self.client.clone().get_platform(request.into_inner()).await
    }

    async fn discover(
        &self,
        request: Request<wire::DiscoverRequest>,
    ) -> Answer<wire::DiscoverResponse> {
        self.client.clone().discover(request.into_inner()).await
    }

    async fn watch_nodes(
        &self,
        request: Request<wire::WatchNodesRequest>,
    ) -> Answer<Self::WatchNodesStream> {
        let answer = self
            .client
            .clone()
            .watch_nodes(request.into_inner())
            .await?;
        let (says, said) = mpsc::channel(8);
        *self.says.lock() = Some(says);
        let said = stream::unfold(said, |mut said| async {
            let event = Some(said.recv().await?);
            Some((Ok(wire::WatchNodesResponse { event }), said))
        });
        Ok(Response::new(
            stream::select(answer.into_inner(), said).boxed(),
        ))
    }

    async fn fence(&self, request: Request<wire::FenceRequest>) -> Answer<wire::FenceResponse> {
        self.client.clone().fence(request.into_inner()).await
    }

    async fn provision(
        &self,
        request: Request<wire::ProvisionRequest>,
    ) -> Answer<wire::ProvisionResponse> {
        self.client.clone().provision(request.into_inner()).await
    }

    async fn deprovision(
        &self,
        request: Request<wire::DeprovisionRequest>,
    ) -> Answer<wire::DeprovisionResponse> {
        if self.refused.load(Ordering::Relaxed) > 0 {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Status::unavailable("not now"));
        }
        let removes = *self.removes.lock();
        self.asked.lock().insert(request.get_ref().node_id.clone());
        match removes {
            Removes::It => {}
            Removes::Nothing => {
                let state = wire::DeprovisionState::Deprovisioning.into();
                return Ok(Response::new(wire::DeprovisionResponse {
                    state,
                    ..Default::default()
                }));
            }
            Removes::Hangs => {
                self.hangs.fetch_add(1, Ordering::Relaxed);
                pending::<()>().await;
            }
        }
        self.client.clone().deprovision(request.into_inner()).await
    }

    async fn update_node(
        &self,
        request: Request<wire::UpdateNodeRequest>,
    ) -> Answer<wire::UpdateNodeResponse> {
        self.client.clone().update_node(request.into_inner()).await
    }
}

fn removal(node: &wire::Node, slot: Option<wire::SlotKey>) -> Event {
    let removed = wire::NodeRemoved {
        cluster_id: node.cluster_id.clone(),
        node_id: node.node_id.clone(),
        evidence: wire::RemovalEvidence::Confirmed.into(),
        slot,
    };
    Event::Removals(wire::NodeRemovals {
        nodes: vec![removed],
    })
}

async fn ids(world: &World) -> Vec<String> {
    let nodes = world.nodes("orders").await.into_iter();
    nodes.map(|node| node.id).collect()
}

#[tokio::test]
async fn a_late_word_about_the_one_before_does_not_take_its_successor() {
    let world = World::new().await;
    let told = Told::in_front_of(&world).await;
    world.apply(document("orders", &[("db", 2)])).await.unwrap();
    world.ready("orders").await;
    let before = ids(&world).await;
    let node = world.site.backend().nodes().remove(0);

    let former = wire::SlotKey {
        request_id: uuid::Uuid::new_v4().to_string(),
        ..node.slot.clone().unwrap()
    };
    told.says(&world, [removal(&node, Some(former))]).await;
    let pass = pb::ReconcileClusterRequest {
        name: "orders".into(),
        ..Default::default()
    };
    world.clusters().reconcile_cluster(pass).await.unwrap();
    assert_eq!(ids(&world).await, before);
    assert_eq!(world.site.backend().ledger().len(), 2);

    told.says(&world, [removal(&node, node.slot.clone())]).await;
    until("the one that is meant is replaced", async || {
        (world.site.backend().ledger().len() == 3).then_some(())
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn a_node_that_is_listed_again_is_there() {
    let world = World::new().await;
    let told = Told::in_front_of(&world).await;
    world.apply(document("orders", &[("db", 2)])).await.unwrap();
    world.ready("orders").await;
    let before = ids(&world).await;
    let node = world.site.backend().nodes().remove(0);

    let mut clusters = world.clusters();
    let pause = pb::PauseClusterRequest {
        name: "orders".into(),
        ..Default::default()
    };
    clusters.pause_cluster(pause).await.unwrap();
    let shown = Event::Upserts(wire::NodeUpserts {
        nodes: vec![node.clone()],
    });
    told.says(&world, [removal(&node, None), shown]).await;
    let resume = pb::ResumeClusterRequest {
        name: "orders".into(),
    };
    clusters.resume_cluster(resume).await.unwrap();
    world.ready("orders").await;
    assert_eq!(ids(&world).await, before);
    assert_eq!(world.site.backend().ledger().len(), 2);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn late_nodes_of_deleted_clusters_wait_for_a_platform_that_fails() {
    let world = World::with(SimulatedSettings::default()).await;
    let told = Told::in_front_of(&world).await;
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.ready("orders").await;
    let node = world.site.backend().nodes().remove(0);
    world.delete("orders").await.unwrap();
    world.gone("orders").await;

    told.refused.store(1, Ordering::Relaxed);
    show_late(&world.site, &node, 20);
    until("the platform is left alone", async || {
        let status = world.platform("sim").await;
        let mut conditions = status.conditions.iter();
        conditions
            .any(|one| one.r#type == "CallsSuspended")
            .then_some(())
    })
    .await;
    // For each concurrently permitted call, one more failure than necessary may be in flight.
    let refused = told.refused.load(Ordering::Relaxed) - 1;
    assert!(refused < 5 + 8, "{refused} removals were tried in a row");

    told.refused.store(0, Ordering::Relaxed);
    until("all late nodes are gone", async || {
        world.site.backend().is_empty().then_some(())
    })
    .await;
    world.stop().await;
}

/// The backend shows this many nodes like one that a cluster had before its deletion.
fn show_late(site: &Site, like: &wire::Node, count: u32) {
    let slot = like.slot.clone().unwrap();
    for index in 0..count {
        let late = Identity {
            owner: slot.owner.clone(),
            cluster_id: like.cluster_id.clone(),
            group: "db".into(),
            request_id: slot.request_id.clone(),
            index: 1 + index,
            sequence: like.sequence,
            store_id: like.store_id.clone(),
            ..Identity::default()
        };
        site.backend().create_as(late).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn every_late_node_is_asked_for_although_the_first_ones_do_not_go() {
    const COUNT: u32 = 150;
    let world = World::with(SimulatedSettings::default()).await;
    let told = Told::in_front_of(&world).await;
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.ready("orders").await;
    let node = world.site.backend().nodes().remove(0);
    world.delete("orders").await.unwrap();
    world.gone("orders").await;
    told.asked.lock().clear();

    *told.removes.lock() = Removes::Nothing;
    show_late(&world.site, &node, COUNT);
    until("each of them is asked for", async || {
        (told.asked.lock().len() == COUNT as usize).then_some(())
    })
    .await;

    *told.removes.lock() = Removes::It;
    until("all late nodes are gone", async || {
        world.site.backend().is_empty().then_some(())
    })
    .await;
    world.stop().await;
}

/// Another platform, and a node of a deleted cluster.
async fn deleted_beside_another(world: &World) -> (Site, wire::Node) {
    let other = Site::new(SimulatedSettings::default()).await;
    world.sites.put("http://other", other.channel());
    world.register("other", "http://other").await.unwrap();
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    world.ready("orders").await;
    let node = world.site.backend().nodes().remove(0);
    world.delete("orders").await.unwrap();
    world.gone("orders").await;
    (other, node)
}

#[tokio::test(start_paused = true)]
async fn a_platform_that_does_not_answer_holds_up_no_late_node_of_another_one() {
    let world = World::with(SimulatedSettings::default()).await;
    let told = Told::in_front_of(&world).await;
    let (other, node) = deleted_beside_another(&world).await;

    *told.removes.lock() = Removes::Hangs;
    show_late(&world.site, &node, 1);
    // The removal on the other platform is due while this call is in flight, long before its deadline.
    tokio::time::sleep(Duration::from_secs(10)).await;
    show_late(&other, &node, 1);
    until("the first platform is asked", async || {
        (told.hangs.load(Ordering::Relaxed) == 1).then_some(())
    })
    .await;
    assert_eq!(other.backend().len(), 1, "it is not due yet");
    until("what the other one shows is gone", async || {
        other.backend().is_empty().then_some(())
    })
    .await;
    let asked = told.hangs.load(Ordering::Relaxed);
    assert_eq!(asked, 1, "nobody waited for the first call to be given up");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_platform_that_went_away_with_a_late_node_is_unregistered_once_it_may_be_given_up() {
    let world = World::with(SimulatedSettings::default()).await;
    let (other, node) = deleted_beside_another(&world).await;

    show_late(&other, &node, 1);
    let unregister = async || {
        let request = pb::UnregisterPlatformRequest {
            name: "other".into(),
        };
        world.platforms().unregister_platform(request).await
    };
    // Long after the node was shown, and before it is removed.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let status = refused(unregister().await, Reason::PlatformInUse);
    assert!(status.message().contains("orders"), "{status:?}");
    other.server.shutdown().await;
    world
        .sites
        .put("http://other", in_process(Routes::default()));
    until("nobody waits for it any more", async || {
        match unregister().await {
            Ok(_) => Some(()),
            Err(status) => {
                refused::<()>(Err(status), Reason::PlatformInUse);
                None
            }
        }
    })
    .await;
    assert_eq!(other.backend().len(), 1, "what is there is left there");
    world.stop().await;
}
