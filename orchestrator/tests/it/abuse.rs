//! Ten thousand idle connections and a flood of unread watches against the orchestrator as a process: its memory stays
//! bounded, and another caller is served all the while.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use std::{
    net::SocketAddr,
    path::Path,
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use drover_client::{Authorities, Bearer, Channel, ClientSettings, Target, connect};
use drover_platform_cloud::{
    PlatformServer, Settings as PlatformSettings, drivers::simulated::SimulatedSettings,
};
use drover_proto::orchestrator::v1::{
    self as pb, cluster_service_client::ClusterServiceClient,
    platform_registry_service_client::PlatformRegistryServiceClient,
};
use drover_server::{Running, ServerSettings, Shutdown};
use drover_testing::certs::Authority;
use futures::StreamExt as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::Instant};

/// HTTP/2 preface and empty SETTINGS.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const PATIENCE: Duration = Duration::from_secs(120);
/// Maximum response time for the other caller on a busy machine.
const PROMPT: Duration = Duration::from_secs(10);
/// Maximum memory per idle connection, without and with TLS, in bytes.
const IDLE: (usize, usize) = (32 * 1024, 96 * 1024);
/// Maximum memory per unread watch, in bytes: a batch of objects, both in memory and encoded, plus buffers.
const WATCH: usize = 1024 * 1024;

struct Orchestrator {
    child: Child,
    address: SocketAddr,
    target: Target,
}

impl Drop for Orchestrator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Orchestrator {
    async fn start(directory: &Path, more: &[&str], tls: Option<ClientSettings>) -> Self {
        Self::start_as(directory, more, tls, None).await
    }

    /// Like `start`, with callers authenticated by a token.
    async fn start_as(
        directory: &Path,
        more: &[&str],
        tls: Option<ClientSettings>,
        token: Option<&str>,
    ) -> Self {
        let address = drover_testing::ports::free_address();
        let child = drover_testing::processes::program(env!("CARGO_BIN_EXE_drover-orchestrator"))
            .arg("--data-dir")
            .arg(directory.join("store"))
            .args(["--listen", &address.to_string()])
            .args(more)
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut target: Target = format!("{scheme}://{address}").parse().unwrap();
        if let Some(tls) = tls {
            target = target.with_tls(tls).unwrap();
        }
        if let Some(token) = token {
            target = target.with_bearer(Bearer::Token(token.to_owned()));
        }
        let started = Self {
            child,
            address,
            target,
        };
        let begin = Instant::now();
        while started.list().await.is_err() {
            assert!(begin.elapsed() < PATIENCE, "it does not start");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        started
    }

    fn channel(&self) -> Channel {
        connect(&self.target)
    }

    /// On a connection of its own.
    async fn list(&self) -> Result<(), tonic::Status> {
        let mut client = ClusterServiceClient::new(self.channel());
        let request = pb::ListClustersRequest {
            page_size: 1,
            ..Default::default()
        };
        client.list_clusters(request).await.map(drop)
    }

    /// Resident memory in bytes.
    fn memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kib = line.unwrap().split_whitespace().nth(1).unwrap();
        kib.parse::<usize>().unwrap() * 1024
    }

    /// Calls repeatedly, on a kept connection and on new ones, until stopped. Returns the number of calls and the
    /// longest response time.
    fn ask(&self) -> (Arc<AtomicBool>, tokio::task::JoinHandle<(u32, Duration)>) {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, target) = (stop.clone(), self.target.clone());
        let asking = tokio::spawn(async move {
            let kept = connect(&target);
            let (mut asked, mut longest) = (0, Duration::ZERO);
            while !told.load(Ordering::Relaxed) || asked == 0 {
                for channel in [kept.clone(), connect(&target)] {
                    let began = Instant::now();
                    let mut client = PlatformRegistryServiceClient::new(channel);
                    let answer = client.list_platforms(pb::ListPlatformsRequest::default());
                    let answer = tokio::time::timeout(PROMPT, answer).await;
                    answer.expect("an answer in time").unwrap();
                    longest = longest.max(began.elapsed());
                    asked += 1;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            (asked, longest)
        });
        (stop, asking)
    }
}

/// Raises the file descriptor limit to its maximum and returns it.
fn files() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    limit.maximum.map_or(usize::MAX, |files| {
        usize::try_from(files).unwrap_or(usize::MAX)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_connections_take_little_and_others_are_answered() {
    let crowd = 10_000.min(files().saturating_sub(1000));
    let places = (crowd + 100).to_string();
    let directory = tempfile::tempdir().unwrap();
    let more = ["--max-connections", &places];
    let orchestrator = Orchestrator::start(directory.path(), &more, None).await;
    let before = orchestrator.memory();
    let (stop, asking) = orchestrator.ask();
    let mut idle = Vec::with_capacity(crowd);
    for _ in 0..crowd {
        let mut stream = TcpStream::connect(orchestrator.address).await.unwrap();
        stream.write_all(HELLO).await.unwrap();
        idle.push(stream);
    }
    // All earlier connections have been accepted by the time of this response.
    orchestrator.list().await.unwrap();
    let each = orchestrator.memory().saturating_sub(before) / crowd;
    stop.store(true, Ordering::Relaxed);
    let (asked, longest) = asking.await.unwrap();
    println!(
        "{crowd} idle connections: {each} bytes each; {asked} answers meanwhile, the slowest after {longest:?}"
    );
    assert!(each < IDLE.0, "{each} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_over_mutual_tls_take_little_and_give_way() {
    /// TLS handshakes are slow in unoptimised builds.
    const CROWD: usize = 600;
    const PLACES: usize = 400;
    files();
    let authority = Authority::new("ours");
    let (server, own) = (
        authority.server(),
        authority.client("own", "spiffe://drover/admin/test"),
    );
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let directory = tempfile::tempdir().unwrap();
    let (cert, key, ca, places) = (
        text(&server.cert),
        text(&server.key),
        text(&authority.ca()),
        PLACES.to_string(),
    );
    let more = [
        "--max-connections",
        &places,
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--tls-client-ca",
        &ca,
    ];
    let tls = ClientSettings {
        authorities: Authorities::File(authority.ca()),
        certificate: Some((own.cert.clone(), own.key.clone()).into()),
        ..Default::default()
    };
    let orchestrator = Orchestrator::start(directory.path(), &more, Some(tls)).await;
    let before = orchestrator.memory();
    let (stop, asking) = orchestrator.ask();
    let read = |path: &Path| std::fs::read(path).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    for one in CertificateDer::pem_slice_iter(authority.pem.as_bytes()) {
        roots.add(one.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            CertificateDer::pem_slice_iter(&read(&own.cert))
                .map(Result::unwrap)
                .collect(),
            PrivateKeyDer::from_pem_slice(&read(&own.key)).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut idle = Vec::new();
    let mut each = 0;
    for number in 0..CROWD {
        let stream = TcpStream::connect(orchestrator.address).await.unwrap();
        let name = ServerName::from(orchestrator.address.ip());
        let mut stream = connector.connect(name, stream).await.unwrap();
        stream.write_all(HELLO).await.unwrap();
        stream.flush().await.unwrap();
        idle.push(stream);
        if number + 20 == PLACES {
            orchestrator.list().await.unwrap();
            each = orchestrator.memory().saturating_sub(before) / number;
        }
    }
    orchestrator.list().await.unwrap();
    stop.store(true, Ordering::Relaxed);
    let (asked, longest) = asking.await.unwrap();
    println!(
        "idle connections with TLS: {each} bytes each; {asked} answers meanwhile, the slowest after {longest:?}"
    );
    assert!(each < IDLE.1, "{each} bytes");
}

async fn platform() -> (PlatformServer, Running) {
    let platform = PlatformServer::open(PlatformSettings::from(SimulatedSettings::default()))
        .await
        .unwrap();
    let settings = ServerSettings::default();
    let listener = drover_server::listen(&settings).await.unwrap();
    let running =
        drover_server::spawn(platform.service(), listener, &settings, Shutdown::new()).unwrap();
    (platform, running)
}

async fn register(orchestrator: &Orchestrator, running: &Running) {
    let registered = pb::RegisterPlatformRequest {
        platform: Some(pb::Platform {
            name: "sim".into(),
            spec: Some(pb::PlatformSpec {
                endpoint: format!("http://{}", running.address()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    PlatformRegistryServiceClient::new(orchestrator.channel())
        .register_platform(registered)
        .await
        .unwrap();
}

fn document(number: usize, generation: usize) -> pb::ApplyClusterRequest {
    let cluster = pb::Cluster {
        name: format!("cluster-{number:04}"),
        labels: [
            ("generation".to_owned(), generation.to_string()),
            ("padding".to_owned(), "x".repeat(60)),
        ]
        .into(),
        spec: Some(pb::ClusterSpec {
            platforms: vec![pb::PlatformChoice {
                name: "sim".into(),
                ..Default::default()
            }],
            groups: vec![pb::GroupSpec {
                name: "web".into(),
                size: Some(1),
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..Default::default()
    };
    pb::ApplyClusterRequest {
        cluster: Some(cluster),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_nobody_reads_are_bounded_and_others_are_answered() {
    const CLUSTERS: usize = 1500;
    /// Number of watches of clusters, of nodes and of events, each.
    const WATCHES: usize = 60;
    let directory = tempfile::tempdir().unwrap();
    let orchestrator = Orchestrator::start(directory.path(), &[], None).await;
    let (_platform, running) = platform().await;
    register(&orchestrator, &running).await;
    let apply = async |generation: usize| {
        let channel = orchestrator.channel();
        futures::stream::iter(0..CLUSTERS)
            .for_each_concurrent(16, |number| {
                let mut client = ClusterServiceClient::new(channel.clone());
                async move {
                    client
                        .apply_cluster(document(number, generation))
                        .await
                        .unwrap();
                }
            })
            .await;
    };
    apply(0).await;

    let endpoint = format!("http://{}", orchestrator.address);
    let slow = tonic::transport::Endpoint::from_shared(endpoint)
        .unwrap()
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(64 << 20)
        .connect()
        .await
        .unwrap();
    let before = orchestrator.memory();
    let (stop, asking) = orchestrator.ask();
    let mut held: Vec<Box<dyn std::any::Any + Send>> = Vec::new();
    for number in 0..WATCHES {
        let mut client = ClusterServiceClient::new(slow.clone());
        let request = pb::WatchClustersRequest {
            view: pb::ClusterView::Full.into(),
            ..Default::default()
        };
        held.push(Box::new(client.watch_clusters(request).await.unwrap()));
        let request = pb::WatchNodesRequest::default();
        held.push(Box::new(client.watch_nodes(request).await.unwrap()));
        let request = pb::WatchEventsRequest {
            cluster: format!("cluster-{number:04}"),
            after_sequence: Some(0),
            ..Default::default()
        };
        held.push(Box::new(client.watch_events(request).await.unwrap()));
    }
    // Everything changes three times while the watches are not read.
    for generation in 1..4 {
        apply(generation).await;
    }
    let each = orchestrator.memory().saturating_sub(before) / held.len();
    stop.store(true, Ordering::Relaxed);
    let (asked, longest) = asking.await.unwrap();
    println!(
        "{} watches: {each} bytes each; {asked} answers meanwhile, the slowest after {longest:?}",
        held.len()
    );
    assert!(each < WATCH, "{each} bytes");

    // A caller that does read still receives everything.
    let mut client = ClusterServiceClient::new(orchestrator.channel());
    let mut watch = client
        .watch_clusters(pb::WatchClustersRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut seen = std::collections::HashSet::new();
    loop {
        use pb::watch_clusters_response::Event;
        let message = tokio::time::timeout(PATIENCE, watch.message()).await;
        match message.unwrap().unwrap().unwrap().event {
            Some(Event::Upserts(upserts)) => {
                seen.extend(upserts.clusters.into_iter().map(|cluster| cluster.name));
            }
            Some(Event::SnapshotComplete(_)) => break,
            _ => {}
        }
    }
    assert_eq!(seen.len(), CLUSTERS);
}

/// A caller with all permissions, and a read-only one.
const RULES: &str = "
tokens:
  - {name: admin, token: admin-0123456789abcdef}
  - {name: greedy, token: greedy-0123456789abcdef}
bindings:
  - {role: admin, subjects: ['token:admin']}
  - {role: viewer, subjects: ['token:greedy']}
";

/// Whether a caller was rejected for its limit, with a retry delay.
fn is_told(status: &tonic::Status) -> bool {
    let error = drover_client::to_error(status);
    status.code() == tonic::Code::ResourceExhausted && error.retry_after().is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_greedy_viewer_of_ten_thousand_nodes_takes_what_is_set_and_no_more() {
    const CLUSTERS: usize = 10;
    const NODES: u32 = 1_000;
    /// Memory limit of one caller for watches, and what the process may grow by: buffers and memory retained by the
    /// allocator.
    const SET: usize = 4 << 20;
    const BOUND: usize = 3 * SET + (32 << 20);
    const TRIES: usize = 200;
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("access.yaml");
    std::fs::write(&rules, RULES).unwrap();
    let set = SET.to_string();
    let more = [
        "--access",
        rules.to_str().unwrap(),
        "--watch-bytes-per-caller",
        &set,
    ];
    let orchestrator = Orchestrator::start_as(
        directory.path(),
        &more,
        None,
        Some("admin-0123456789abcdef"),
    )
    .await;
    let (_platform, running) = platform().await;
    register(&orchestrator, &running).await;
    let mut admin = ClusterServiceClient::new(orchestrator.channel());
    for number in 0..CLUSTERS {
        let mut request = document(number, 0);
        let spec = request
            .cluster
            .as_mut()
            .and_then(|cluster| cluster.spec.as_mut());
        spec.unwrap().groups[0].size = Some(NODES);
        admin.apply_cluster(request).await.unwrap();
    }
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        let request = pb::ListClustersRequest::default();
        let clusters = admin
            .list_clusters(request)
            .await
            .unwrap()
            .into_inner()
            .clusters;
        let ready = |cluster: &pb::Cluster| {
            cluster.status.as_ref().unwrap().phase() == pb::ClusterPhase::Ready
        };
        if clusters.iter().all(ready) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("10,000 nodes after {:?}", begin.elapsed());

    let target: Target = format!("http://{}", orchestrator.address).parse().unwrap();
    let greedy = target.with_bearer(Bearer::Token("greedy-0123456789abcdef".into()));
    let before = orchestrator.memory();
    let (stop, asking) = orchestrator.ask();
    let (mut held, mut told, mut most) = (Vec::new(), 0, 0);
    let mut open = async |channel: &Channel| {
        let mut client = ClusterServiceClient::new(channel.clone());
        let watch = client.watch_nodes(pb::WatchNodesRequest::default()).await;
        most = most.max(orchestrator.memory().saturating_sub(before));
        assert!(most < BOUND, "{most} bytes more");
        watch.map(tonic::Response::into_inner)
    };
    // As many unread watches as are permitted.
    let channel = connect(&greedy);
    for _ in 0..TRIES {
        match open(&channel).await {
            Ok(watch) => held.push(watch),
            Err(status) => {
                assert!(is_told(&status), "{status:?}");
                told += 1;
            }
        }
    }
    let unread = held.len();
    drop((held, channel));
    // And as many watches as are permitted that are read to the end, each on a connection of its own.
    let (mut kept, mut full) = (Vec::new(), false);
    while !full {
        let mut watch = match open(&connect(&greedy)).await {
            Ok(watch) => watch,
            Err(status) => {
                assert!(is_told(&status), "{status:?}");
                // The server may not have noticed yet that the previous watches ended.
                full = !kept.is_empty();
                continue;
            }
        };
        loop {
            use pb::watch_nodes_response::Event;
            match tokio::time::timeout(PATIENCE, watch.message())
                .await
                .unwrap()
            {
                Ok(Some(message)) => {
                    if matches!(message.event, Some(Event::SnapshotComplete(_))) {
                        kept.push(watch);
                        break;
                    }
                }
                Ok(None) => panic!("it ended without a word"),
                Err(status) => {
                    assert!(is_told(&status), "{status:?}");
                    full = !kept.is_empty();
                    break;
                }
            }
        }
    }
    let (read, channel) = (kept.len(), connect(&greedy));
    most = most.max(orchestrator.memory().saturating_sub(before));
    assert!(most < BOUND, "{most} bytes more");
    let plans = (0..400).map(|_| {
        let mut client = ClusterServiceClient::new(channel.clone());
        async move {
            let cluster = document(CLUSTERS, 0).cluster.unwrap();
            let request = pb::PlanClusterRequest {
                subject: Some(pb::plan_cluster_request::Subject::Cluster(cluster)),
                ..Default::default()
            };
            client.plan_cluster(request).await
        }
    });
    let plans = futures::future::join_all(plans).await;
    let refused: Vec<_> = plans
        .iter()
        .filter_map(|plan| plan.as_ref().err())
        .collect();
    assert!(refused.iter().all(|status| is_told(status)), "{refused:?}");
    let planned = plans.len() - refused.len();
    stop.store(true, Ordering::Relaxed);
    let (asked, longest) = asking.await.unwrap();
    println!(
        "one greedy viewer: {unread} watches unread, {told} refused, {read} read to the end, {planned} plans, {most} bytes; \
         {asked} answers to another meanwhile, the slowest after {longest:?}"
    );
    assert!(told > 0 && planned > 0 && !refused.is_empty());
}
