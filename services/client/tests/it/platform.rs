//! The platform client: deadlines, pages, watches, partitions.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use drover_client::{
    Channel, Target, connect, in_process, is_unreachable, platform::PlatformClient,
};
use drover_convert::error::to_status;
use drover_core::{Error, Reason};
use drover_proto::platform::v1::{
    DeprovisionRequest, DeprovisionResponse, DiscoverRequest, DiscoverResponse, FenceRequest,
    FenceResponse, GetPlatformRequest, GetPlatformResponse, Node, Platform, ProvisionRequest,
    ProvisionResponse, UpdateNodeRequest, UpdateNodeResponse, Warning, WatchMark,
    WatchNodesRequest, WatchNodesResponse, WatchStarted,
    platform_service_server::{PlatformService, PlatformServiceServer},
    watch_nodes_response::Event,
};
use futures::{Stream, StreamExt, stream};
use prost_types::Timestamp;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::Instant,
};
use tonic::{Request, Response, Status, service::Routes};

/// Far longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A platform with configurable behaviour.
#[derive(Default)]
struct Demo {
    /// Whether GetPlatform never responds.
    silent: AtomicBool,
    reads: AtomicU32,
}

#[tonic::async_trait]
impl PlatformService for Demo {
    type WatchNodesStream = Pin<Box<dyn Stream<Item = Result<WatchNodesResponse, Status>> + Send>>;

    async fn get_platform(
        &self,
        _: Request<GetPlatformRequest>,
    ) -> Result<Response<GetPlatformResponse>, Status> {
        if self.silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let platform = Platform {
            uid: "u1".to_owned(),
            ..Default::default()
        };
        Ok(Response::new(GetPlatformResponse {
            platform: Some(platform),
        }))
    }

    /// Three pages, each older than the previous one; the token of the second page expires during the first read.
    async fn discover(
        &self,
        request: Request<DiscoverRequest>,
    ) -> Result<Response<DiscoverResponse>, Status> {
        let page: i64 = request.into_inner().page_token.parse().unwrap_or(0);
        if page == 0 {
            self.reads.fetch_add(1, Ordering::SeqCst);
        }
        if page == 1 && self.reads.load(Ordering::SeqCst) == 1 {
            return Err(to_status(&Error::new(Reason::PageTokenExpired, "too late")));
        }
        Ok(Response::new(DiscoverResponse {
            nodes: vec![Node {
                node_id: format!("n{page}"),
                ..Default::default()
            }],
            warnings: vec![Warning::default()],
            next_page_token: if page < 2 {
                (page + 1).to_string()
            } else {
                String::new()
            },
            observe_time: Some(Timestamp {
                seconds: 100 - page,
                nanos: 0,
            }),
            platform_etag: format!("e{page}"),
        }))
    }

    async fn watch_nodes(
        &self,
        request: Request<WatchNodesRequest>,
    ) -> Result<Response<Self::WatchNodesStream>, Status> {
        let started = WatchStarted {
            heartbeat_interval: Some(prost_types::Duration {
                seconds: 5,
                nanos: 0,
            }),
            ..Default::default()
        };
        let event = |event| Ok(WatchNodesResponse { event });
        let begin = stream::iter([event(Some(Event::Started(started))), event(None)]);
        let heartbeats = stream::unfold(0, move |n| async move {
            tokio::time::sleep(Duration::from_secs(14)).await;
            Some((event(Some(Event::Heartbeat(WatchMark::default()))), n + 1))
        });
        Ok(Response::new(match request.get_ref().cluster_id.as_str() {
            "ends" => begin.boxed(),
            "lives" => begin.chain(heartbeats).boxed(),
            _ => begin.chain(stream::pending()).boxed(),
        }))
    }

    async fn fence(&self, _: Request<FenceRequest>) -> Result<Response<FenceResponse>, Status> {
        Err(to_status(&Error::new(
            Reason::Fenced,
            "a higher epoch is known",
        )))
    }

    async fn provision(
        &self,
        _: Request<ProvisionRequest>,
    ) -> Result<Response<ProvisionResponse>, Status> {
        Ok(Response::new(Default::default()))
    }

    async fn deprovision(
        &self,
        _: Request<DeprovisionRequest>,
    ) -> Result<Response<DeprovisionResponse>, Status> {
        Ok(Response::new(Default::default()))
    }

    async fn update_node(
        &self,
        _: Request<UpdateNodeRequest>,
    ) -> Result<Response<UpdateNodeResponse>, Status> {
        Ok(Response::new(Default::default()))
    }
}

fn local() -> (Arc<Demo>, PlatformClient) {
    let demo = Arc::new(Demo::default());
    let routes = Routes::new(PlatformServiceServer::from_arc(demo.clone()));
    (demo, PlatformClient::new(in_process(routes)))
}

#[tokio::test]
async fn calls_in_the_same_process_answer_and_fail_as_over_the_network() {
    let (_, client) = local();
    assert_eq!(client.get_platform(PATIENCE).await.unwrap().uid, "u1");
    let error = client
        .fence(FenceRequest::default(), PATIENCE)
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::Fenced);
    let error = client
        .list_hosts(Default::default(), PATIENCE)
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::Unimplemented);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_left_at_the_deadline() {
    let (demo, client) = local();
    demo.silent.store(true, Ordering::SeqCst);
    let start = Instant::now();
    let error = client
        .get_platform(Duration::from_secs(7))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::DeadlineExceeded);
    assert_eq!(start.elapsed().as_secs(), 7);
}

#[tokio::test]
async fn all_pages_are_one_answer_as_old_as_the_oldest_and_an_expired_read_starts_again() {
    let (demo, client) = local();
    let all = client
        .discover_all(DiscoverRequest::default(), PATIENCE)
        .await
        .unwrap();
    let ids: Vec<_> = all.nodes.iter().map(|node| node.node_id.as_str()).collect();
    assert_eq!(ids, ["n0", "n1", "n2"]);
    assert_eq!(all.warnings.len(), 1, "every page repeats them");
    assert_eq!(
        (
            all.observe_time.unwrap().seconds,
            all.platform_etag.as_str()
        ),
        (98, "e2")
    );
    assert_eq!(demo.reads.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_ends_after_three_heartbeat_intervals_and_a_living_one_goes_on() {
    let (_, client) = local();
    let ask = |what: &str| WatchNodesRequest {
        cluster_id: what.to_owned(),
        ..Default::default()
    };
    let start = Instant::now();
    let mut silent = client.watch_nodes(ask("silent"), PATIENCE).await.unwrap();
    assert!(matches!(silent.next().await, Some(Ok(Event::Started(_)))));
    assert_eq!(
        silent.next().await.unwrap().unwrap_err().reason(),
        Reason::DeadlineExceeded
    );
    assert_eq!(
        start.elapsed().as_secs(),
        15,
        "three times what the server stated"
    );
    assert!(silent.next().await.is_none());

    let lives = client.watch_nodes(ask("lives"), PATIENCE).await.unwrap();
    let beats = lives
        .skip(1)
        .take(20)
        .filter(|beat| std::future::ready(beat.is_ok()))
        .count()
        .await;
    assert_eq!(beats, 20);

    let mut ends = client.watch_nodes(ask("ends"), PATIENCE).await.unwrap();
    assert!(ends.next().await.unwrap().is_ok());
    assert_eq!(
        ends.next().await.unwrap().unwrap_err().reason(),
        Reason::Unavailable
    );
}

#[tokio::test]
async fn nobody_at_the_address_is_told_apart_from_an_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = PlatformClient::new(over(address));
    let error = client.get_platform(PATIENCE).await.unwrap_err();
    assert!(is_unreachable(&error), "{error:?}");
    assert!(error.message().contains("refused"), "{error:?}");
    let (_, client) = local();
    assert!(!is_unreachable(
        &client
            .fence(FenceRequest::default(), PATIENCE)
            .await
            .unwrap_err()
    ));
}

#[test]
fn only_http_and_https_endpoints_are_accepted() {
    assert_eq!(
        "http://localhost:7400"
            .parse::<Target>()
            .unwrap()
            .to_string(),
        "http://localhost:7400"
    );
    assert!("https://x:1".parse::<Target>().unwrap().is_encrypted());
    for wrong in [
        "",
        "localhost:7400",
        "ftp://x",
        "http://x:1/path",
        "http://:1",
        "http://x:99999",
    ] {
        let error = wrong.parse::<Target>().unwrap_err();
        assert_eq!(error.fields()[0].field, "endpoint", "{wrong:?}");
    }
}

fn over(address: SocketAddr) -> Channel {
    let mut target: Target = format!("http://{address}").parse().unwrap();
    target.keep_alive_interval = Duration::from_millis(200);
    target.keep_alive_timeout = Duration::from_millis(200);
    target.connect_timeout = Duration::from_millis(500);
    connect(&target)
}

/// Forwards connections while `open`. Otherwise it neither forwards nor closes them, like a network partition.
struct Proxy {
    address: SocketAddr,
    open: watch::Sender<bool>,
    _task: JoinSet<()>,
}

impl Proxy {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (open, gate) = watch::channel(true);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                connections.spawn(forward(client, server, gate.clone()));
            }
        });
        Self {
            address,
            open,
            _task: task,
        }
    }
}

async fn cut(open: &mut watch::Receiver<bool>) {
    drop(open.wait_for(|open| !open).await);
}

async fn forward(mut client: TcpStream, server: SocketAddr, mut open: watch::Receiver<bool>) {
    if !*open.borrow() {
        return std::future::pending().await;
    }
    let mut server = TcpStream::connect(server).await.unwrap();
    let (mut up, mut down) = ([0; 4096], [0; 4096]);
    loop {
        tokio::select! {
            biased;
            // A connection that was cut stays dead: data in transit is lost.
            () = cut(&mut open) => break,
            n = client.read(&mut up) => match n {
                Ok(n) if n > 0 => server.write_all(&up[..n]).await.unwrap(),
                _ => return,
            },
            n = server.read(&mut down) => match n {
                Ok(n) if n > 0 => client.write_all(&down[..n]).await.unwrap(),
                _ => return,
            },
        }
    }
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_partition_is_noticed_by_keep_alive_and_recovered_from() {
    let demo = Arc::new(Demo::default());
    let settings = drover_server::ServerSettings::default();
    let listener = drover_server::listen(&settings).await.unwrap();
    let service = drover_server::Service::new("demo", "0.0.0")
        .add(PlatformServiceServer::from_arc(demo.clone()));
    let server =
        drover_server::spawn(service, listener, &settings, drover_server::Shutdown::new()).unwrap();
    let proxy = Proxy::to(server.address()).await;
    let client = PlatformClient::new(over(proxy.address));
    assert!(client.get_platform(PATIENCE).await.is_ok());
    let mut watch = client
        .watch_nodes(WatchNodesRequest::default(), PATIENCE)
        .await
        .unwrap();
    assert!(matches!(watch.next().await, Some(Ok(Event::Started(_)))));

    demo.silent.store(true, Ordering::SeqCst);
    let start = Instant::now();
    let call = client.get_platform(PATIENCE);
    let cut = async {
        // After the call was sent.
        tokio::task::yield_now().await;
        proxy.open.send(false).unwrap();
    };
    let (outcome, ()) = tokio::join!(call, cut);
    assert!(is_unreachable(&outcome.unwrap_err()));
    assert!(
        is_unreachable(&watch.next().await.unwrap().unwrap_err()),
        "an idle stream notices too"
    );
    assert!(
        start.elapsed() < PATIENCE / 2,
        "{:?}: by keep-alive, not by deadline",
        start.elapsed()
    );

    demo.silent.store(false, Ordering::SeqCst);
    proxy.open.send(true).unwrap();
    let policy = drover_client::retry::Policy {
        unreachable: PATIENCE,
        ..Default::default()
    };
    let again = policy
        .run(PATIENCE, |attempt| client.get_platform(attempt))
        .await;
    assert_eq!(again.unwrap().uid, "u1");
}
