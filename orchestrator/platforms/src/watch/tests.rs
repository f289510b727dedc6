//! What others are told of a platform, and which platforms are believed. The clock is paused.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use drover_client::in_process;
use drover_core::Urgency;
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::platform_service_server::{PlatformService, PlatformServiceServer},
};
use drover_secrets::Vault;
use drover_store::{Clock, Revision, Store, backend::Backend};
use drover_testing::{store::MemoryBackend, wait::until};
use futures::{Stream, stream};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tonic::{Request, Response, Status, service::Routes};

use super::*;
use crate::{Listener, Registration};

type Answer<T> = std::result::Result<Response<T>, Status>;

/// A platform that says what a test has it say.
#[derive(Clone, Default)]
struct Script {
    handshake: Arc<Mutex<wire::Platform>>,
    /// Events of the next watches, each of which goes on after them.
    watches: Arc<Mutex<VecDeque<Vec<Event>>>>,
    /// Ends the watches.
    cut: Arc<Notify>,
    list: Arc<Mutex<wire::DiscoverResponse>>,
    fences: Arc<AtomicUsize>,
    handshakes: Arc<AtomicUsize>,
    refuses_fences: Arc<Mutex<Option<Error>>>,
}

#[tonic::async_trait]
impl PlatformService for Script {
    type WatchNodesStream =
        Pin<Box<dyn Stream<Item = std::result::Result<wire::WatchNodesResponse, Status>> + Send>>;

    async fn get_platform(
        &self,
        _: Request<wire::GetPlatformRequest>,
    ) -> Answer<wire::GetPlatformResponse> {
        self.handshakes.fetch_add(1, Ordering::Relaxed);
        let platform = Some(self.handshake.lock().clone());
        Ok(Response::new(wire::GetPlatformResponse { platform }))
    }

    async fn discover(&self, _: Request<wire::DiscoverRequest>) -> Answer<wire::DiscoverResponse> {
        Ok(Response::new(self.list.lock().clone()))
    }

    async fn watch_nodes(
        &self,
        _: Request<wire::WatchNodesRequest>,
    ) -> Answer<Self::WatchNodesStream> {
        let events = self.watches.lock().pop_front();
        let events = events.unwrap_or_default().into_iter().map(|event| {
            let event = Some(event);
            Ok(wire::WatchNodesResponse { event })
        });
        let cut = self.cut.clone();
        let cut = async move { cut.notified().await };
        let events = stream::iter(events).chain(stream::pending());
        Ok(Response::new(Box::pin(events.take_until(Box::pin(cut)))))
    }

    async fn fence(&self, _: Request<wire::FenceRequest>) -> Answer<wire::FenceResponse> {
        if let Some(error) = &*self.refuses_fences.lock() {
            return Err(drover_convert::error::to_status(error));
        }
        self.fences.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(wire::FenceResponse::default()))
    }

    async fn provision(
        &self,
        _: Request<wire::ProvisionRequest>,
    ) -> Answer<wire::ProvisionResponse> {
        Err(Status::unimplemented("nothing is made here"))
    }

    async fn deprovision(
        &self,
        _: Request<wire::DeprovisionRequest>,
    ) -> Answer<wire::DeprovisionResponse> {
        Err(Status::unimplemented("nothing is removed here"))
    }

    async fn update_node(
        &self,
        _: Request<wire::UpdateNodeRequest>,
    ) -> Answer<wire::UpdateNodeResponse> {
        Err(Status::unimplemented("nothing is changed here"))
    }
}

/// Notes what it is told.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Notes {
    fn add(&self, note: String) {
        self.0.lock().push(note);
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    /// Without those that only say that something about a platform has changed.
    fn of_nodes(&self) -> Vec<String> {
        let mut all = self.all();
        all.retain(|note| !note.starts_with("changed"));
        all
    }

    /// Waits until this was told, and returns everything up to then.
    async fn until(&self, last: &str) -> Vec<String> {
        until(&format!("{last:?} was told"), async || {
            let all = self.all();
            all.iter().any(|note| note == last).then_some(all)
        })
        .await
    }
}

#[async_trait]
impl Listener for Notes {
    fn changed(&self, platform: &str, _: Urgency) {
        self.add(format!("changed {platform}"));
    }

    fn wrote(&self, _: Revision) {
        self.add("wrote".to_owned());
    }

    fn watch_begun(&self, registered: &Registered) {
        self.add(format!("begun {}", registered.platform.name));
    }

    async fn shown(
        &self,
        _: &Registered,
        nodes: Vec<wire::Node>,
        foreign: &mut Foreign,
    ) -> Result<()> {
        for node in nodes {
            self.add(format!("shown {}", node.node_id));
            // As if nobody knew them.
            let nodes = foreign.entry(node.cluster_id).or_default();
            nodes.insert(node.node_id, String::new());
        }
        Ok(())
    }

    fn removed(&self, _: &Registered, nodes: &[wire::NodeRemoved]) {
        for node in nodes {
            self.add(format!("removed {}", node.node_id));
        }
    }

    fn snapshot_complete(&self, _: &Arc<Registered>, _: Millis, foreign: Foreign) {
        let nodes: Vec<_> = foreign.into_values().flatten().map(|(id, _)| id).collect();
        self.add(format!("complete {}", nodes.join(",")));
    }
}

/// Platforms that are followed until they are dropped.
struct World {
    script: Script,
    notes: Arc<Notes>,
    platforms: Arc<Platforms>,
    store: Arc<Store>,
    backend: Arc<MemoryBackend>,
    stop: CancellationToken,
}

impl World {
    async fn new(handshake: wire::Platform) -> Self {
        let script = Script::default();
        *script.handshake.lock() = handshake;
        let backend = Arc::new(MemoryBackend::new());
        let store = Store::open(backend.clone()).await.unwrap();
        let shards = store.take_all().await.unwrap();
        let store = Arc::new(store);
        let digests = Arc::new(store.digest_key().await.unwrap());
        let vault = Arc::new(Vault::load(store.clone(), digests).await.unwrap());
        let channel = in_process(Routes::new(PlatformServiceServer::new(script.clone())));
        let platforms = Arc::new(Platforms::new(
            Arc::new(move |_, _| Ok(channel.clone())),
            vault,
            store.clone(),
            shards,
            Arc::new(Clock::new(1_000_000)),
        ));
        let notes = Arc::new(Notes::default());
        let listener: Weak<Notes> = Arc::downgrade(&notes);
        platforms.listen(listener);
        Self {
            script,
            notes,
            platforms,
            store,
            backend,
            stop: CancellationToken::new(),
        }
    }

    /// Another replica takes the lead, as it does of one that it found dead. This one has not noticed yet.
    async fn lead_is_taken(&self) -> Store {
        let replicas = self.store.replicas().await.unwrap();
        let this = replicas.iter().find(|replica| replica.is_this).unwrap();
        self.backend.revoke(this.lease.unwrap()).await.unwrap();
        let other = Store::open(self.backend.clone()).await.unwrap();
        other.take_all().await.unwrap();
        assert!(self.store.holds(), "as far as it knows");
        other
    }

    /// Registers the platform as bound to the backend `uid`, and follows it.
    async fn follow(&self, name: &str, uid: &str) -> Arc<Registered> {
        let registration = Registration {
            spec: pb::PlatformSpec {
                endpoint: "http://script".to_owned(),
                ..Default::default()
            },
            generation: 1,
            uid: uid.to_owned(),
            create_time: 0,
        };
        let row = registration.row(name);
        let revision = self.store.put_platform(row, Some(0)).await.unwrap();
        let registered = (self.platforms).add(name.into(), registration, revision, (0, 0));
        let (platforms, stop) = (self.platforms.clone(), self.stop.clone());
        tokio::spawn(follow(platforms, registered.clone(), stop));
        registered
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn handshake(capabilities: &[wire::Capability]) -> wire::Platform {
    wire::Platform {
        uid: "backend".to_owned(),
        instance_id: "first".to_owned(),
        etag: "v1".to_owned(),
        capabilities: capabilities.iter().map(|one| (*one).into()).collect(),
        ..Default::default()
    }
}

fn watched() -> wire::Platform {
    handshake(&[wire::Capability::Watch, wire::Capability::Fence])
}

fn upsert(id: &str) -> Event {
    let node = wire::Node {
        node_id: id.to_owned(),
        cluster_id: "orders".to_owned(),
        ..Default::default()
    };
    Event::Upserts(wire::NodeUpserts { nodes: vec![node] })
}

fn removal(id: &str) -> Event {
    let node = wire::NodeRemoved {
        node_id: id.to_owned(),
        ..Default::default()
    };
    Event::Removals(wire::NodeRemovals { nodes: vec![node] })
}

fn complete() -> Event {
    Event::SnapshotComplete(wire::WatchMark::default())
}

fn status(registered: &Registered) -> String {
    let shown = registered.platform.to_proto(1_000_000);
    shown.status.unwrap_or_default().message
}

#[tokio::test(start_paused = true)]
async fn what_a_watch_shows_is_told_in_its_order_and_the_first_snapshot_ends_once() {
    let world = World::new(watched()).await;
    let events = vec![
        upsert("a"),
        complete(),
        upsert("b"),
        removal("a"),
        complete(),
    ];
    world.script.watches.lock().push_back(events);
    let platform = world.follow("sim", "backend").await;
    let told = world.notes.until("removed a").await;
    let visible = told.iter().position(|note| note == "changed sim");
    let known = told.iter().position(|note| note == "complete a");
    assert!(visible > known, "visible once all is known: {told:?}");
    assert_eq!(
        world.notes.of_nodes(),
        ["begun sim", "shown a", "complete a", "shown b", "removed a"]
    );
    // The next watch begins anew. What was foreign in the last one is not that any more.
    world.script.watches.lock().push_back(vec![complete()]);
    world.script.cut.notify_one();
    world.notes.until("complete ").await;
    let told = world.notes.of_nodes();
    assert_eq!(told[5..], ["begun sim", "complete "]);
    assert!(platform.platform.is_fenced());
}

/// A server that was started again knows of no lead: it believes whoever asks first.
#[tokio::test(start_paused = true)]
async fn a_platform_that_was_started_again_is_not_met_by_a_former_leader() {
    let world = World::new(watched()).await;
    let registered = world.follow("sim", "backend").await;
    world.notes.until("begun sim").await;
    let asked = || {
        let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
        (count(&world.script.handshakes), count(&world.script.fences))
    };
    let before = asked();
    let _other = world.lead_is_taken().await;
    world.script.handshake.lock().instance_id = "second".to_owned();
    world.script.cut.notify_one();
    let what = "it is asked several times";
    until(what, async || (asked().0 >= before.0 + 2).then_some(())).await;
    assert_eq!(asked().1, before.1, "it is not fenced");
    assert_eq!(
        registered.platform.identity().1,
        "first",
        "calls mean the first start"
    );
}

/// The catalogue is read anew by a call of its own, which may meet another start of the server than the watch.
#[tokio::test(start_paused = true)]
async fn another_start_of_the_server_is_taken_in_by_the_next_connection_only() {
    let world = World::new(watched()).await;
    let registered = world.follow("sim", "backend").await;
    world.notes.until("begun sim").await;
    let fences = || world.script.fences.load(Ordering::Relaxed);
    let each = fences();
    world.script.handshake.lock().instance_id = "second".to_owned();
    let client = registered.platform.client().unwrap();
    let refreshed = world.platforms.refresh(&registered, &client).await;
    assert_eq!(refreshed.unwrap_err().reason(), Reason::Unavailable);
    assert_eq!(registered.platform.identity().1, "first");
    world.script.cut.notify_one();
    until("the next connection", async || {
        (registered.platform.is_fenced() && fences() == 2 * each).then_some(())
    })
    .await;
    assert_eq!(registered.platform.identity().1, "second");
}

#[tokio::test(start_paused = true)]
async fn a_platform_that_cannot_be_watched_is_read_and_each_list_is_a_snapshot() {
    let world = World::new(handshake(&[])).await;
    let node = |id: &str| wire::Node {
        node_id: id.to_owned(),
        cluster_id: "orders".to_owned(),
        ..Default::default()
    };
    world.script.list.lock().nodes = vec![node("a"), node("b")];
    world.follow("sim", "backend").await;
    world.notes.until("complete a,b").await;
    let told = world.notes.of_nodes();
    assert_eq!(told[..3], ["shown a", "shown b", "complete a,b"]);
    world.script.list.lock().nodes = vec![node("b")];
    world.notes.until("complete b").await;
}

#[tokio::test(start_paused = true)]
async fn the_uid_of_the_first_answer_is_kept_and_another_backend_is_refused() {
    let world = World::new(watched()).await;
    let platform = world.follow("sim", "").await;
    world.notes.until("begun sim").await;
    assert_eq!(platform.platform.registration().uid, "backend");
    let stored = world.store.platforms().await.unwrap();
    assert_eq!(stored[0].value.uid, "backend", "also after a restart");

    let before = world.notes.of_nodes();
    world.script.handshake.lock().uid = "another".to_owned();
    world.script.cut.notify_one();
    let said = until("it is refused", async || {
        let said = status(&platform);
        said.contains("another backend").then_some(said)
    })
    .await;
    assert!(said.contains("another instead of backend"), "{said}");
    assert!(said.contains("drover rebind sim another"), "{said}");
    assert_eq!(world.notes.of_nodes(), before, "nothing of it is believed");
}

#[tokio::test(start_paused = true)]
async fn one_backend_is_not_followed_under_two_names() {
    let world = World::new(watched()).await;
    world.follow("first", "backend").await;
    world.notes.until("begun first").await;
    let second = world.follow("second", "").await;
    world.notes.until("changed second").await;
    let said = status(&second);
    assert!(said.contains("the same backend as first"), "{said}");
    assert_eq!(
        second.platform.registration().uid,
        "",
        "it is bound to none"
    );
}

#[tokio::test(start_paused = true)]
async fn earlier_owners_are_fenced_off_before_anything_is_told_and_once_for_each_start_of_the_server()
 {
    let world = World::new(watched()).await;
    let shards = usize::from(drover_store::SHARDS);
    world.follow("sim", "backend").await;
    let begun = async |times: usize| {
        until("it is watched again", async || {
            let all = world.notes.of_nodes();
            (all.len() == times).then_some(())
        })
        .await;
    };
    begun(1).await;
    assert_eq!(world.script.fences.load(Ordering::Relaxed), shards);
    world.script.cut.notify_one();
    begun(2).await;
    let fences = || world.script.fences.load(Ordering::Relaxed);
    assert_eq!(fences(), shards, "the same start remembers it");
    world.script.handshake.lock().instance_id = "second".to_owned();
    world.script.cut.notify_one();
    begun(3).await;
    assert_eq!(fences(), 2 * shards, "another start does not");
}

#[tokio::test(start_paused = true)]
async fn who_was_fenced_off_says_by_whom_and_what_to_do() {
    let world = World::new(watched()).await;
    let later = Error::new(Reason::Fenced, "no").with_metadata("epoch", 1_900_000_000_000_u64);
    *world.script.refuses_fences.lock() = Some(later);
    let platform = world.follow("sim", "backend").await;
    world.notes.until("changed sim").await;
    let said = status(&platform);
    assert!(
        said.contains("another orchestrator with this store"),
        "{said}"
    );
    assert!(said.contains("which started at 2030-03-17"), "{said}");
    assert!(!world.notes.all().contains(&"begun sim".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn another_etag_has_the_platform_asked_again_what_it_offers() {
    let world = World::new(watched()).await;
    let heartbeat = |etag: &str| {
        Event::Heartbeat(wire::WatchMark {
            platform_etag: etag.to_owned(),
            ..Default::default()
        })
    };
    let events = vec![complete(), heartbeat("v1"), heartbeat("v2"), removal("x")];
    world.script.watches.lock().push_back(events);
    world.follow("sim", "backend").await;
    world.notes.until("removed x").await;
    assert_eq!(world.script.handshakes.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_platform_that_is_unregistered_is_told_of_no_more() {
    let world = World::new(watched()).await;
    let platform = world.follow("sim", "backend").await;
    world.notes.until("begun sim").await;
    platform.stop();
    world.script.watches.lock().push_back(vec![upsert("a")]);
    platform.retry();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.notes.of_nodes(), ["begun sim"]);
}
