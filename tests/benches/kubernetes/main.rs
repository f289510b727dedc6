//! Drover beside plain clients of a Kubernetes API server, on one API server in one run: the platform ([`platform`]), hosts
//! of metal3 ([`hosts`]), and the resources one by one ([`resources`]). Run by `tests/bench`.
//!
//! `BENCH_RUNS` (5): number of runs of each side; the median counts. `BENCH_SMALL=1`: ten times smaller.
//! `BENCH_ONLY=creation|memory|replacement|waits|paths|pods|files|hosts|claims|choice`: one part.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss
)]

mod hosts;
mod platform;
mod resources;
mod server;

use std::time::Duration;

use drover_testing::kubernetes::{Namespace, Options, Raw, Rig};
use futures::future::join_all;
use serde_json::{Value, json};

/// Timeout of a measurement.
const PATIENCE: Duration = Duration::from_secs(300);
const CALL: Duration = Duration::from_secs(30);
const CONNECTIONS: usize = 8;

/// No scheduler picks up these pods: only what is measured changes them.
fn spec() -> Value {
    json!({
        "schedulerName": "nobody",
        "automountServiceAccountToken": false,
        "containers": [{
            "name": "main", "image": "example.invalid/main:1", "ports": [{"name": "client", "containerPort": 7000}],
        }],
    })
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

/// Creates so many pods over all connections.
async fn create_pods(rig: &Rig, namespace: &Namespace, count: usize, pod: impl Fn(usize) -> Value) {
    let clients: Vec<Raw> = join_all((0..CONNECTIONS).map(|_| rig.raw())).await;
    let (path, pod) = (namespace.path("pods"), &pod);
    let all = clients.iter().enumerate().map(|(client, raw)| {
        let path = path.as_str();
        async move {
            for number in (client..count).step_by(CONNECTIONS) {
                raw.create(path, &pod(number)).await.unwrap();
            }
        }
    });
    join_all(all).await;
}

#[tokio::main]
async fn main() {
    // `cargo bench` and `cargo test` pass flags of their harness.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let runs = std::env::var("BENCH_RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok())
        .unwrap_or(5);
    let small = std::env::var_os("BENCH_SMALL").is_some();
    let of = |whole: usize| if small { whole / 10 } else { whole };
    let only = std::env::var("BENCH_ONLY").ok();
    let wanted = |part: &str| only.as_deref().is_none_or(|only| only == part);
    if wanted("files") {
        resources::files::read(of(256), runs).await;
        if only.is_some() {
            return;
        }
    }
    if wanted("choice") {
        hosts::choice(of(10_000), of(1000), runs);
        if only.is_some() {
            return;
        }
    }
    let rig = Rig::shared(Options::kwok(3));
    if wanted("hosts") {
        hosts::start(rig, of(10_000), runs).await;
    }
    if wanted("claims") {
        hosts::claims(rig, of(1000), runs.min(3)).await;
    }
    if wanted("creation") {
        platform::creation(rig, of(1000), runs).await;
    }
    if wanted("memory") {
        platform::memory(rig, of(20_000)).await;
    }
    if wanted("replacement") {
        platform::replacement(rig, of(200)).await;
    }
    if wanted("pods") {
        resources::pods::reads(rig, of(500)).await;
        resources::pods::creation(rig, of(1000), runs).await;
    }
    if wanted("waits") {
        resources::waits::latency(rig, of(500), of(200).min(20)).await;
        resources::waits::memory(rig, of(500), of(2000).min(200)).await;
    }
    if wanted("paths") {
        resources::paths::upserts(rig, of(1000), runs.min(3)).await;
    }
}
