//! Request throughput of one orchestrator with 10,000 clusters, compared to a Kubernetes API server with as many
//! objects of the same size: on the same machine, in the same run, interleaved, with the same clients. Both use TLS and
//! a token that is verified for each request; Drover also has client certificates, metrics and an audit log. Run by
//! `tests/bench`.
//!
//! `BENCH_RUNS` (5): rounds of each side, `BENCH_SECONDS` (3) each; all of them count. `BENCH_SMALL=1`: ten times
//! smaller.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

mod generator;

use std::{process::Stdio, sync::Arc, time::Duration};

use bytes::{BufMut as _, Bytes, BytesMut};
use drover_client::{Authorities, Bearer, Channel, Target, connect};
use drover_platform_cloud::{PlatformServer, Settings, drivers::simulated::SimulatedSettings};
use drover_proto::orchestrator::v1::{
    self as pb, cluster_service_client::ClusterServiceClient,
    platform_registry_service_client::PlatformRegistryServiceClient,
};
use drover_server::{Running, ServerSettings, Shutdown};
use drover_testing::certs::Authority;
use drover_testing::kubernetes::{Options, Rig};
use drover_tests::process::Process;
use futures::StreamExt as _;
use generator::{Client, Measured, Question, Server, measure};
use http::{HeaderMap, Request, header};
use http_body_util::Full;
use prost::Message as _;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Number of clients, each with a connection of its own.
const CLIENTS: usize = 64;
/// Nodes per cluster.
const NODES: u32 = 3;
/// Concurrent calls during the setup.
const MAKERS: usize = 32;
/// Timeout of the setup.
const PATIENCE: Duration = Duration::from_secs(300);
/// Warm-up whose results are discarded.
const WARM_UP: Duration = Duration::from_millis(500);
const TOKEN: &str = "bench-0123456789abcdef";
/// Length of the frame header of gRPC.
const PREFIX: usize = 5;
const API: &str = "/drover.orchestrator.v1.ClusterService";

fn name(number: usize) -> String {
    format!("bench-{number:05}")
}

/// A unary gRPC call.
struct Call {
    path: String,
    message: fn(usize) -> Vec<u8>,
}

impl Question for Call {
    fn request(&self, server: &Server, number: usize) -> Request<Full<Bytes>> {
        let message = (self.message)(number);
        let mut body = BytesMut::with_capacity(PREFIX + message.len());
        body.put_u8(0);
        body.put_u32(u32::try_from(message.len()).unwrap());
        body.put_slice(&message);
        Request::post(format!("https://{}{}", server.address, self.path))
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .header(header::AUTHORIZATION, &server.authorization)
            .body(Full::new(body.freeze()))
            .unwrap()
    }

    fn check(&self, headers: &HeaderMap, body: &[u8], trailers: Option<&HeaderMap>) {
        let status = trailers.unwrap_or(headers).get("grpc-status");
        assert!(
            status.is_some_and(|status| status == "0") && body.len() > PREFIX,
            "{}: {headers:?} {trailers:?}",
            self.path
        );
    }
}

fn get(number: usize) -> Vec<u8> {
    let request = pb::GetClusterRequest {
        name: name(number),
        ..Default::default()
    };
    request.encode_to_vec()
}

fn nodes(number: usize) -> Vec<u8> {
    let request = pb::ListNodesRequest {
        cluster: Some(name(number)),
        ..Default::default()
    };
    request.encode_to_vec()
}

/// A GET of one of many Kubernetes objects in protobuf, which is cheaper for the server than JSON.
struct Get {
    folder: String,
    query: &'static str,
}

impl Question for Get {
    fn request(&self, server: &Server, number: usize) -> Request<Full<Bytes>> {
        let (address, folder, query) = (server.address, &self.folder, self.query);
        Request::get(format!("https://{address}{folder}/{}{query}", name(number)))
            .header(header::ACCEPT, "application/vnd.kubernetes.protobuf")
            .header(header::AUTHORIZATION, &server.authorization)
            .body(Full::default())
            .unwrap()
    }

    fn check(&self, _: &HeaderMap, body: &[u8], _: Option<&HeaderMap>) {
        assert!(
            body.starts_with(b"k8s\0"),
            "{} is not an object",
            self.folder
        );
    }
}

/// An orchestrator in a process of its own, and a platform in this process.
struct Drover {
    process: Process,
    authority: Authority,
    _directory: TempDir,
    platform: PlatformServer,
    served: Running,
}

const RULES: &str = "\
tokens: [{name: bench, token: bench-0123456789abcdef}]
bindings:
  - {role: viewer, subjects: ['token:nobody'], clusters: ['other-*']}
  - {role: admin, subjects: ['token:bench', 'spiffe://drover/admin/*']}
";

impl Drover {
    async fn start() -> Self {
        let authority = Authority::new("bench");
        let own = authority.server();
        authority.client("client", "spiffe://drover/admin/bench");
        let directory = tempfile::tempdir().unwrap();
        let rules = directory.path().join("access.yaml");
        std::fs::write(&rules, RULES).unwrap();
        let process = Process::start(directory.path(), |command| {
            command
                .arg("--tls-cert")
                .arg(&own.cert)
                .arg("--tls-key")
                .arg(&own.key)
                .arg("--tls-client-ca")
                .arg(authority.ca())
                .arg("--access")
                .arg(&rules)
                .arg("--audit-log")
                .arg(directory.path().join("audit.jsonl"))
                // The default log level, as in production.
                .stderr(Stdio::null())
        });
        let settings = Settings::from(SimulatedSettings {
            seed: Some(1),
            ..SimulatedSettings::default()
        });
        let platform = PlatformServer::open(settings).await.unwrap();
        let settings = ServerSettings::on_port(0);
        let listener = drover_server::listen(&settings).await.unwrap();
        let service = platform.service();
        let served = drover_server::spawn(service, listener, &settings, Shutdown::new()).unwrap();
        Self {
            process,
            authority,
            _directory: directory,
            platform,
            served,
        }
    }

    fn channel(&self) -> Channel {
        let target: Target = format!("https://{}", self.process.address).parse().unwrap();
        let tls = drover_client::ClientSettings {
            authorities: Authorities::File(self.authority.ca()),
            ..Default::default()
        };
        connect(
            &target
                .with_tls(tls)
                .unwrap()
                .with_bearer(Bearer::Token(TOKEN.to_owned())),
        )
    }

    fn server(&self) -> Server {
        let read = |file: &str| std::fs::read(self.authority.path(file)).unwrap();
        let own = (read("client.pem"), read("client.key"));
        Server {
            address: self.process.address,
            tls: generator::tls(self.authority.pem.as_bytes(), Some((&own.0, &own.1))),
            authorization: format!("Bearer {TOKEN}"),
        }
    }

    /// Creates clusters and waits until all of them have converged.
    async fn fill(&self, clusters: usize) {
        let mut registry = PlatformRegistryServiceClient::new(self.channel());
        let platform = pb::Platform {
            name: "simulated".into(),
            spec: Some(pb::PlatformSpec {
                endpoint: format!("http://{}", self.served.address()),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = pb::RegisterPlatformRequest {
            platform: Some(platform),
            ..Default::default()
        };
        let began = Instant::now();
        while let Err(error) = registry.register_platform(request.clone()).await {
            assert!(began.elapsed() < PATIENCE, "{error}");
            sleep(Duration::from_millis(20)).await;
        }
        let channel = self.channel();
        futures::stream::iter(0..clusters)
            .for_each_concurrent(MAKERS, |number| {
                let mut client = ClusterServiceClient::new(channel.clone());
                async move {
                    client.apply_cluster(document(number)).await.unwrap();
                }
            })
            .await;
        let mut client = ClusterServiceClient::new(channel);
        let mut page_token = String::new();
        loop {
            let request = pb::ListClustersRequest {
                page_token: page_token.clone(),
                page_size: 1000,
                ..Default::default()
            };
            let page = client.list_clusters(request).await.unwrap().into_inner();
            let ready = page.clusters.iter().all(|cluster| {
                let status = cluster.status.as_ref();
                status.is_some_and(|status| status.phase() == pb::ClusterPhase::Ready)
            });
            if !ready {
                assert!(began.elapsed() < PATIENCE, "the clusters are not ready");
                sleep(Duration::from_millis(50)).await;
            } else if page.next_page_token.is_empty() {
                return;
            } else {
                page_token = page.next_page_token;
            }
        }
    }

    /// Waits until the orchestrator is idle.
    async fn settle(&self) {
        let began = Instant::now();
        loop {
            let before = self.process.cpu();
            sleep(Duration::from_secs(1)).await;
            if self.process.cpu() - before <= Duration::from_millis(20)
                || began.elapsed() > PATIENCE
            {
                return;
            }
        }
    }

    async fn end(self) {
        self.platform.shutdown().await;
    }
}

fn document(number: usize) -> pb::ApplyClusterRequest {
    let cluster = pb::Cluster {
        name: name(number),
        spec: Some(pb::ClusterSpec {
            platforms: vec![pb::PlatformChoice {
                name: "simulated".into(),
                ..Default::default()
            }],
            groups: vec![pb::GroupSpec {
                name: "web".into(),
                size: Some(NODES),
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

/// The API server, with objects of one size in each namespace.
struct Kubernetes {
    rig: &'static Rig,
    server: Server,
}

impl Kubernetes {
    async fn start() -> Self {
        let rig = Rig::shared(Options::default());
        let config = kube::config::Kubeconfig::read_from(rig.kubeconfig()).unwrap();
        let cluster = config.clusters[0].cluster.clone().unwrap();
        let authority = cluster.certificate_authority_data.unwrap();
        let authority = decode(&authority);
        let url: http::Uri = cluster.server.unwrap().parse().unwrap();
        let user = config.auth_infos[0].auth_info.clone().unwrap();
        let token = serde_json::to_value(&user).unwrap()["token"].clone();
        Self {
            rig,
            server: Server {
                address: url.authority().unwrap().as_str().parse().unwrap(),
                tls: generator::tls(&authority, None),
                authorization: format!("Bearer {}", token.as_str().unwrap()),
            },
        }
    }

    /// Creates objects whose responses have this size in bytes; returns the path of their collection.
    async fn fill(&self, objects: usize, bytes: usize) -> String {
        let namespace = self.rig.namespace().await;
        let folder = namespace.path("configmaps");
        let object = |name: String, pad: usize| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
                "data": {"value": "x".repeat(pad)},
            })
        };
        // The encoded size also depends on the number of digits of lengths, so the padding is found by trial.
        let mut client = Client::connect(&self.server).await;
        let question = Get {
            folder: folder.clone(),
            query: "",
        };
        let mut pad = bytes / 2;
        for _ in 0..4 {
            let made = object(name(0), pad);
            namespace.raw.create(&folder, &made).await.unwrap();
            let now = client.ask(&question, 0).await.len();
            let path = format!("{folder}/{}", name(0));
            namespace.raw.delete(&path).await.unwrap();
            pad = (pad + bytes).saturating_sub(now);
            if now == bytes {
                break;
            }
        }
        futures::stream::iter(0..objects)
            .for_each_concurrent(MAKERS, |number| {
                let (object, folder, raw) = (object(name(number), pad), &folder, &namespace.raw);
                async move {
                    raw.create(folder, &object).await.unwrap();
                }
            })
            .await;
        let now = client.ask(&question, 0).await.len();
        assert!(
            now.abs_diff(bytes) * 50 <= bytes,
            "{now} bytes, not {bytes}"
        );
        folder
    }
}

/// Decodes base64 as found in kubeconfigs.
fn decode(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        bits = (bits << 6) | u32::from(value(byte));
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    bytes
}

/// One kind of request and its measurements.
struct Side {
    what: String,
    clients: Vec<Client>,
    question: Arc<dyn Question>,
    measured: Measured,
}

impl Side {
    async fn new(what: String, server: &Server, question: impl Question) -> Self {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(Client::connect(server).await);
        }
        Self {
            what,
            clients,
            question: Arc::new(question),
            measured: Measured::default(),
        }
    }
}

/// Compares Drover, Kubernetes, and Kubernetes served from its cache, interleaved.
async fn compare(
    (drover, kubernetes): (&Drover, &Kubernetes),
    call: &str,
    message: fn(usize) -> Vec<u8>,
    objects: usize,
    (runs, span): (usize, Duration),
) {
    let ours = Call {
        path: format!("{API}/{call}"),
        message,
    };
    let bytes = Client::connect(&drover.server())
        .await
        .ask(&ours, 0)
        .await
        .len();
    let folder = kubernetes.fill(objects, bytes).await;
    let theirs = |query| Get {
        folder: folder.clone(),
        query,
    };
    let mut sides = [
        Side::new(format!("`{call}`, {bytes} bytes"), &drover.server(), ours).await,
        Side::new(
            "kube-apiserver GET, as many bytes".to_owned(),
            &kubernetes.server,
            theirs(""),
        )
        .await,
        Side::new(
            "the same from its cache (`resourceVersion=0`)".to_owned(),
            &kubernetes.server,
            theirs("?resourceVersion=0"),
        )
        .await,
    ];
    drover.settle().await;
    for run in 0..runs {
        for turn in 0..sides.len() {
            let at = (run + turn) % sides.len();
            let side = &mut sides[at];
            measure(&mut side.clients, side.question.clone(), objects, WARM_UP).await;
            let measured = measure(&mut side.clients, side.question.clone(), objects, span).await;
            side.measured.add(&measured);
        }
    }
    let first = sides[0].measured.clone();
    for side in &sides {
        let (rate, p50, p99) = (
            side.measured.rate(),
            side.measured.percentile(50.0),
            side.measured.percentile(99.0),
        );
        let ratio = first.rate() / rate;
        println!(
            "| {} | {rate:.0} | {p50:.2} ms | {p99:.2} ms | {ratio:.1} |",
            side.what
        );
    }
}

#[tokio::main]
async fn main() {
    // `cargo bench` and `cargo test` pass flags of their harness.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let number = |name: &str, usual: u64| {
        let set = std::env::var(name).ok().and_then(|text| text.parse().ok());
        set.unwrap_or(usual)
    };
    let turns = (
        number("BENCH_RUNS", 5) as usize,
        Duration::from_secs(number("BENCH_SECONDS", 3)),
    );
    let small = std::env::var_os("BENCH_SMALL").is_some();
    let objects = if small { 1_000 } else { 10_000 };
    let kubernetes = Kubernetes::start().await;
    let drover = Drover::start().await;
    drover.fill(objects).await;
    println!(
        "| {CLIENTS} clients, {objects} clusters of {NODES} nodes | requests/s | p50 | p99 | ours to it |"
    );
    println!("|---|---|---|---|---|");
    let both = (&drover, &kubernetes);
    compare(both, "GetCluster", get, objects, turns).await;
    compare(both, "ListNodes", nodes, objects, turns).await;
    println!("\nwanted: 5 times its GET, 2.5 times its cached GET, p99 below both");
    drover.end().await;
}
