//! Overhead of Drover over the EC2 API: the same instances through orchestrator and driver, and through one SDK call
//! with as many tags, until all of them are running, on the same server in the same run. Run by `tests/bench`. The last
//! column is the ratio to a call without tags whose instances are not waited for.
//!
//! `BENCH_RUNS` (5): number of runs of each side; the median counts. moto is looked up on the path. `BENCH_ONLY=launches`:
//! only the launches, `BENCH_ONLY=terraform`: only droplets beside Terraform ([`droplets`]), `BENCH_ONLY=idle`: only what
//! an idle account costs ([`idle`]; `BENCH_CLOUD=metal`: of one cloud only).
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod droplets;
mod drover;
mod idle;
mod terraform;

use std::{
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use aws_config::{BehaviorVersion, Region};
use aws_credential_types::Credentials;
use aws_sdk_ec2::{
    Client,
    types::{Filter, InstanceStateName, InstanceType, ResourceType, Tag, TagSpecification},
};
use aws_smithy_http_client::{
    Builder as HttpBuilder,
    tls::{Provider, rustls_provider::CryptoMode},
};
use drover_emulators::ec2::{Ec2, Ec2Settings};
use drover_platform_cloud::{DriverSettings, drivers::aws};
use tokio::time::{Instant, sleep};

use drover::Drover;

/// Poll interval of the raw side, and of the driver while instances are pending.
const LOOK: Duration = Duration::from_millis(50);
/// Timeout of a measurement.
const PATIENCE: Duration = Duration::from_secs(600);
const REGION: &str = "eu-central-1";
const TYPE: &str = "t3.micro";
/// As many tags as on an instance created by Drover.
const TAGS: usize = 12;
/// Neither server checks it.
const KEY: &str = "bench";

/// A server that implements the EC2 API.
struct Backend {
    url: String,
    image: String,
    _moto: Option<Process>,
    emulator: Option<Ec2>,
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Backend {
    /// Starts a new moto each time, because it becomes slower with every instance it has ever had.
    async fn moto() -> Self {
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let child = Command::new("moto_server")
            .args(["-H", "127.0.0.1", "-p", &free.port().to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("moto_server is missing; tests/run install brings it");
        let process = Process(child);
        while TcpStream::connect(free).is_err() {
            sleep(Duration::from_millis(20)).await;
        }
        let url = format!("http://{free}");
        let client = client(&url).await;
        let images = client
            .describe_images()
            .owners("136693071363")
            .send()
            .await
            .unwrap();
        let image = images
            .images()
            .first()
            .and_then(|image| image.image_id())
            .map(str::to_owned);
        let image = match image {
            Some(image) => image,
            // moto's catalogue has other images.
            None => {
                let images = client.describe_images().send().await.unwrap();
                images.images()[0].image_id().unwrap().to_owned()
            }
        };
        Self {
            url,
            image,
            _moto: Some(process),
            emulator: None,
        }
    }

    async fn emulator(pending: Duration) -> Self {
        let mut settings = Ec2Settings::default();
        settings.common.pending_delay = pending;
        let emulator = Ec2::start(settings).await.unwrap();
        let url = emulator.url();
        let client = client(&url).await;
        let images = client.describe_images().send().await.unwrap();
        Self {
            url,
            image: images.images()[0].image_id().unwrap().to_owned(),
            _moto: None,
            emulator: Some(emulator),
        }
    }

    async fn end(self) {
        if let Some(emulator) = self.emulator {
            emulator.shutdown().await;
        }
    }
}

async fn client(url: &str) -> Client {
    let http = HttpBuilder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https();
    let config = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http)
        .region(Region::new(REGION))
        .credentials_provider(Credentials::new(KEY, KEY, None, None, "bench"))
        .load()
        .await;
    Client::from_conf(
        aws_sdk_ec2::config::Builder::from(&config)
            .endpoint_url(url)
            .build(),
    )
}

/// Kinds of raw SDK calls.
#[derive(Clone, Copy)]
enum Raw {
    /// Equivalent to Drover: as many tags on instances and volumes, until all instances are running.
    Same,
    /// Instances without tags, until the response arrives.
    Bare,
}

/// Makes one SDK call.
async fn raw(backend: &Backend, count: usize, what: Raw) -> Duration {
    let client = client(&backend.url).await;
    // Opens the connection, as the driver's is open by then.
    client.describe_availability_zones().send().await.unwrap();
    let began = Instant::now();
    let tags = match what {
        Raw::Same => [ResourceType::Instance, ResourceType::Volume]
            .map(|of| {
                let tags = (0..TAGS).map(|tag| {
                    Tag::builder()
                        .key(format!("bench/{tag}"))
                        .value("a".repeat(36))
                        .build()
                });
                TagSpecification::builder()
                    .resource_type(of)
                    .set_tags(Some(tags.collect()))
                    .build()
            })
            .into(),
        Raw::Bare => Vec::new(),
    };
    let made = client
        .run_instances()
        .image_id(&backend.image)
        .instance_type(InstanceType::from(TYPE))
        .min_count(count as i32)
        .max_count(count as i32)
        .set_tag_specifications(Some(tags))
        .send()
        .await
        .unwrap();
    assert_eq!(made.instances().len(), count);
    while matches!(what, Raw::Same) && running(&client).await < count {
        assert!(began.elapsed() < PATIENCE, "the instances do not run");
        sleep(LOOK).await;
    }
    began.elapsed()
}

async fn running(client: &Client) -> usize {
    let only = Filter::builder()
        .name("instance-state-name")
        .values(InstanceStateName::Running.as_str())
        .build();
    let mut pages = client
        .describe_instances()
        .filters(only)
        .max_results(1000)
        .into_paginator()
        .send();
    let mut count = 0;
    while let Some(page) = pages.next().await {
        for reservation in page.unwrap().reservations() {
            count += reservation.instances().len();
        }
    }
    count
}

async fn ours_at(backend: &Backend) -> Drover {
    let data = tempfile::tempdir().unwrap();
    let credentials = data.path().join("credentials");
    let text = format!("[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {KEY}\n");
    std::fs::write(&credentials, text).unwrap();
    let mut settings = aws::Settings {
        credentials_file: Some(credentials),
        region: REGION.to_owned(),
        endpoint: backend.url.clone(),
        image: backend.image.clone(),
        instance_type: TYPE.to_owned(),
        ..aws::Settings::default()
    };
    // moto creates only the minimum count of a request.
    settings.partial_launches = backend.emulator.is_some();
    settings.common.calls_per_second = 1000.0;
    settings.common.pending_poll_interval_seconds = LOOK.as_secs_f64();
    Drover::start(DriverSettings::from(settings), data).await
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

async fn compare(name: &str, count: u32, runs: usize, moto: bool, pending: Duration) {
    let (mut ours, mut same, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..runs {
        // Interleaved, so that no side has a quieter machine.
        for side in 0..3 {
            let backend = if moto {
                Backend::moto().await
            } else {
                Backend::emulator(pending).await
            };
            match (run + side) % 3 {
                0 => same.push(raw(&backend, count as usize, Raw::Same).await),
                1 => bare.push(raw(&backend, count as usize, Raw::Bare).await),
                _ => {
                    let drover = ours_at(&backend).await;
                    ours.push(drover.make(count).await);
                    drover.end().await;
                }
            }
            backend.end().await;
        }
    }
    let [ours, same, bare] = [ours, same, bare].map(|times| median(times).as_secs_f64());
    println!(
        "| {name} | {ours:.2} s | {same:.2} s | {:.2} | {bare:.2} s | {:.2} |",
        ours / same,
        ours / bare
    );
}

fn main() {
    // `cargo bench` and `cargo test` pass flags of their harness.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let only = std::env::var("BENCH_ONLY").unwrap_or_default();
    let all = only.is_empty();
    let runs = std::env::var("BENCH_RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok())
        .unwrap_or(5);
    if all || only == "launches" {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(launches(runs));
    }
    if all || only == "terraform" {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(droplets::all(runs));
    }
    if all || only == "idle" {
        // Its time is moved by hand, which only this kind of runtime allows.
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(idle::all());
    }
}

async fn launches(runs: usize) {
    println!(
        "| apply to all nodes recorded and running | Drover | one call of the SDK, the same | ratio | bare call, \
         answered | ratio |"
    );
    println!("|---|---|---|---|---|---|");
    compare("200 instances, moto", 200, runs, true, Duration::ZERO).await;
    compare(
        "1,000 instances, emulator, 2 s pending",
        1000,
        runs,
        false,
        Duration::from_secs(2),
    )
    .await;
}
