//! Several orchestrators of which one leads: clients find it, stay with it, and go on with the next.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::{
    convert::Infallible,
    future::ready,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use drover_client::{
    Channel, Target, connect_any, is_unreachable,
    orchestrator::OrchestratorClient,
    retry::Policy,
    watch::{EventUpdate, Update, Watch},
};
use drover_convert::error::to_status;
use drover_core::{Error, Reason};
use drover_proto::orchestrator::v1::{
    GetClusterRequest, StreamNodeLogsRequest, WatchClustersRequest,
    cluster_service_server::ClusterServiceServer,
};
use drover_server::{Running, ServerSettings, Shutdown};
use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, join_all},
};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::Instant,
};
use tonic::{body::Body, server::NamedService};
use tower::Service;

use crate::fake::Fake;

/// Far longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Shorter than any step here takes: who gave up a server that cannot be reached would do so after the first failure.
const AT_ONCE: Policy = Policy {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(5),
    attempt: Duration::from_secs(30),
    unreachable: Duration::ZERO,
};

/// An orchestrator that refuses all calls while it does not lead.
#[derive(Clone, Default)]
struct Replica {
    fake: Fake,
    calls: Arc<AtomicU32>,
    refusal: Arc<Mutex<Option<Error>>>,
}

impl Replica {
    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }

    fn lead(&self) {
        *self.refusal.lock() = None;
    }

    fn follow(&self, leader: Option<String>) {
        let error = Error::new(Reason::NotLeader, "another one leads");
        *self.refusal.lock() = Some(match leader {
            Some(leader) => error.with_metadata("leader", leader),
            None => error,
        });
    }

    async fn serve(&self, address: Option<SocketAddr>) -> Running {
        let mut settings = ServerSettings::default();
        settings.listen = address.unwrap_or(settings.listen);
        let listener = drover_server::listen(&settings).await.unwrap();
        let service = drover_server::Service::new("fake", "0.0.0").add(self.clone());
        drover_server::spawn(service, listener, &settings, Shutdown::new()).unwrap()
    }
}

impl NamedService for Replica {
    const NAME: &'static str = <ClusterServiceServer<Fake> as NamedService>::NAME;
}

impl Service<http::Request<Body>> for Replica {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match &*self.refusal.lock() {
            Some(error) => ready(Ok(to_status(error).into_http())).boxed(),
            None => self.fake.server().call(request),
        }
    }
}

/// This many that lead, each with a cluster `a`.
async fn replicas(count: usize) -> (Vec<Replica>, Vec<Running>, Vec<SocketAddr>) {
    let replicas: Vec<Replica> = (0..count).map(|_| Replica::default()).collect();
    let mut servers = Vec::new();
    for replica in &replicas {
        replica.fake.put("a");
        servers.push(replica.serve(None).await);
    }
    let addresses = servers.iter().map(Running::address).collect();
    (replicas, servers, addresses)
}

/// An address at which connections are refused.
async fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

fn channel(addresses: &[SocketAddr]) -> Channel {
    let targets = addresses.iter().map(|address| {
        let mut target: Target = format!("http://{address}").parse().unwrap();
        target.keep_alive_interval = Duration::from_millis(200);
        target.keep_alive_timeout = Duration::from_millis(200);
        target
    });
    connect_any(&targets.collect::<Vec<_>>())
}

fn client(addresses: &[SocketAddr]) -> OrchestratorClient {
    OrchestratorClient::new(channel(addresses))
}

async fn get(client: &OrchestratorClient) -> Result<String, Error> {
    let request = GetClusterRequest {
        name: "a".to_owned(),
        ..Default::default()
    };
    let answer = client.get_cluster(request, PATIENCE).await?;
    Ok(answer.cluster.unwrap().name)
}

async fn next<T>(watch: &mut Watch<T>) -> T {
    let next = tokio::time::timeout(PATIENCE, watch.next()).await;
    next.unwrap().unwrap().unwrap()
}

/// The next event, however often the watch reconnects before.
async fn event(watch: &mut Watch<EventUpdate>) -> u64 {
    loop {
        match next(watch).await {
            EventUpdate::Event(event) => return event.sequence,
            EventUpdate::Reconnecting(_) => {}
            EventUpdate::Closed(_) => panic!("closed"),
        }
    }
}

/// Forwards connections to a server until it is dropped, which resets them like the death of a process.
struct Line {
    address: SocketAddr,
    _task: JoinSet<()>,
}

impl Line {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut from, _) = listener.accept().await.unwrap();
                let mut to = TcpStream::connect(server).await.unwrap();
                connections.spawn(async move {
                    let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                });
            }
        });
        Self {
            address,
            _task: task,
        }
    }
}

#[tokio::test]
async fn when_the_first_is_down_the_second_is_used_and_kept() {
    let (replicas, mut servers, addresses) = replicas(3).await;
    servers.remove(0).shutdown().await;
    let client = client(&addresses).with_policy(AT_ONCE);
    for _ in 0..5 {
        assert_eq!(get(&client).await.unwrap(), "a");
    }
    assert_eq!((replicas[1].calls(), replicas[2].calls()), (5, 0));
    // That the first is there again changes nothing.
    let _first = replicas[0].serve(Some(addresses[0])).await;
    assert_eq!(get(&client).await.unwrap(), "a");
    assert_eq!((replicas[0].calls(), replicas[1].calls()), (0, 6));
}

#[tokio::test]
async fn one_that_does_not_lead_is_left_for_the_next() {
    let (replicas, _servers, addresses) = replicas(2).await;
    replicas[0].follow(None);
    let client = client(&addresses);
    for _ in 0..3 {
        assert_eq!(get(&client).await.unwrap(), "a");
    }
    assert_eq!((replicas[0].calls(), replicas[1].calls()), (1, 3));
}

#[tokio::test]
async fn a_leader_that_is_named_is_asked_next() {
    let (replicas, _servers, addresses) = replicas(4).await;
    replicas[0].follow(Some(addresses[3].to_string()));
    assert_eq!(get(&client(&addresses)).await.unwrap(), "a");
    let calls: Vec<u32> = replicas.iter().map(Replica::calls).collect();
    assert_eq!(calls, [1, 0, 0, 1]);
}

#[tokio::test]
async fn an_address_that_is_not_in_the_list_is_never_connected_to() {
    let (replicas, _servers, addresses) = replicas(2).await;
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    stranger.set_nonblocking(true).unwrap();
    replicas[0].follow(Some(stranger.local_addr().unwrap().to_string()));
    assert_eq!(get(&client(&addresses)).await.unwrap(), "a");
    assert_eq!(replicas[1].calls(), 1);
    let why = stranger.accept().unwrap_err().kind();
    assert_eq!(why, std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn calls_that_fail_together_leave_out_no_server() {
    let (replicas, _servers, addresses) = replicas(4).await;
    replicas[0].follow(None);
    let client = client(&addresses);
    for answer in join_all((0..10).map(|_| get(&client))).await {
        assert_eq!(answer.unwrap(), "a");
    }
    assert_eq!(replicas[0].calls(), 10, "they did not fail together");
    let calls: Vec<u32> = replicas[1..].iter().map(Replica::calls).collect();
    assert_eq!(calls, [10, 0, 0]);
}

#[tokio::test]
async fn when_none_can_be_reached_it_is_said_soon() {
    let addresses = [nobody().await, nobody().await, nobody().await];
    let client = client(&addresses);
    let start = Instant::now();
    let error = get(&client).await.unwrap_err();
    assert!(is_unreachable(&error), "{error:?}");
    assert!(error.message().contains("refused"), "{error:?}");
    let watch = client.watch_events("orders", Some(0), PATIENCE).await;
    assert!(is_unreachable(&watch.unwrap_err()));
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
}

#[tokio::test]
async fn while_one_is_there_none_leads_and_it_is_not_said_to_be_unreachable() {
    let (replicas, _servers, addresses) = replicas(1).await;
    replicas[0].follow(None);
    let gone = nobody().await;
    for addresses in [[gone, addresses[0]], [addresses[0], gone]] {
        let client = client(&addresses).with_policy(AT_ONCE);
        let whole = ["another one leads", "refused", &addresses[1].to_string()];
        let start = Instant::now();
        loop {
            let error = client
                .get_cluster(GetClusterRequest::default(), Duration::from_millis(300))
                .await
                .unwrap_err();
            assert!(!is_unreachable(&error), "{error:?}");
            // Unless the time was up in the middle of a round, after which only one of them is named.
            if whole.iter().all(|word| error.message().contains(word)) {
                assert_eq!(error.reason(), Reason::NotLeader, "{error:?}");
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{error:?}");
        }
    }
}

#[tokio::test]
async fn one_that_does_not_speak_costs_no_more_than_its_keep_alive() {
    let (replicas, _servers, addresses) = replicas(1).await;
    // The kernel accepts the connection, and nobody answers on it.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let first = silent.local_addr().unwrap();
    let client = client(&[first, addresses[0]]).with_policy(AT_ONCE);
    let start = Instant::now();
    assert_eq!(get(&client).await.unwrap(), "a");
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
    assert_eq!(replicas[0].calls(), 1);
}

#[tokio::test]
async fn calls_wait_for_an_election_and_end_with_it() {
    let (replicas, mut servers, addresses) = replicas(3).await;
    let client = client(&addresses).with_policy(AT_ONCE);
    assert_eq!(get(&client).await.unwrap(), "a");
    for follower in &replicas[1..] {
        // They still believe in the dead one.
        follower.follow(Some(addresses[0].to_string()));
    }
    servers.remove(0).shutdown().await;
    let election = async {
        while replicas[2].calls() < 3 {
            tokio::task::yield_now().await;
        }
        replicas[2].lead();
        Instant::now()
    };
    let (answer, since) = tokio::join!(get(&client), election);
    assert_eq!(answer.unwrap(), "a");
    assert!(since.elapsed() < PATIENCE / 2, "{:?}", since.elapsed());
}

#[tokio::test]
async fn a_watch_of_events_goes_on_elsewhere_without_gap() {
    let (replicas, _servers, addresses) = replicas(2).await;
    for replica in &replicas {
        replica.fake.add_events(2);
    }
    let line = Line::to(addresses[0]).await;
    let client = client(&[line.address, addresses[1]]);
    let watched = client.watch_events("orders", Some(0), PATIENCE).await;
    let mut watch = watched.unwrap();
    assert_eq!((event(&mut watch).await, event(&mut watch).await), (1, 2));
    assert_eq!(replicas[1].calls(), 0);

    drop(line);
    for replica in &replicas {
        replica.fake.add_events(2);
    }
    assert_eq!((event(&mut watch).await, event(&mut watch).await), (3, 4));
    assert_eq!(replicas[1].fake.last_watch().after_sequence, Some(2));
}

#[tokio::test]
async fn a_watch_goes_on_elsewhere_when_its_server_stops_to_lead() {
    let (replicas, _servers, addresses) = replicas(2).await;
    replicas[1].fake.put("b");
    let client = client(&addresses);
    let request = WatchClustersRequest::default();
    let mut watch = client.watch_clusters(request, PATIENCE).await.unwrap();
    let Update::Upserts(first) = next(&mut watch).await else {
        panic!("no snapshot")
    };
    assert_eq!(first.len(), 1);
    assert!(matches!(next(&mut watch).await, Update::Synced { .. }));

    replicas[0].follow(None);
    let error = Error::new(Reason::NotLeader, "no longer");
    replicas[0].fake.break_watches(error);
    let Update::Reconnecting(error) = next(&mut watch).await else {
        panic!("it does not reconnect")
    };
    assert_eq!(error.reason(), Reason::NotLeader);
    let Update::Upserts(second) = next(&mut watch).await else {
        panic!("no snapshot")
    };
    assert_eq!(second.len(), 2);
    assert_eq!((replicas[0].calls(), replicas[1].calls()), (1, 1));
}

#[tokio::test]
async fn a_call_that_is_made_once_goes_to_the_one_that_leads() {
    let (replicas, _servers, addresses) = replicas(2).await;
    replicas[0].follow(None);
    let client = client(&[nobody().await, addresses[0], addresses[1]]);
    let logs = client.stream_node_logs(StreamNodeLogsRequest::default(), PATIENCE);
    // From the fake that leads.
    let reason = logs.await.err().map(|error| error.reason());
    assert_eq!(reason, Some(Reason::Unimplemented));
    let exec = client.exec_node(futures::stream::pending(), PATIENCE);
    let reason = exec.await.err().map(|error| error.reason());
    assert_eq!(reason, Some(Reason::Unimplemented));
    assert_eq!(replicas[0].calls(), 1);
}

#[tokio::test]
async fn without_a_server_every_call_is_refused() {
    let error = get(&client(&[])).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Invalid);
    assert_eq!(error.fields()[0].field, "targets");
}
