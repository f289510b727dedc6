//! The resources one by one (`drover.kubernetes.v1`), each beside a plain `kube` client in the same run. The server runs
//! in a process of its own, as it does for people; the plain client runs here.

pub(crate) mod files;
pub(crate) mod paths;
pub(crate) mod pods;
pub(crate) mod waits;

use std::path::Path;

use crate::server::Server;

/// The header of a table of results.
const HEAD: &str = "| what | Drover | plain client | ratio | goal |\n|---|---|---|---|---|";

async fn server(kubeconfig: &Path, namespace: &str) -> Server {
    // One caller has all waits here.
    let settings = "resources: {enabled: true, max_waits_per_caller: 256}";
    Server::start(kubeconfig, namespace, settings).await
}

fn row(what: &str, ours: &str, plain: &str, ratio: &str, goal: &str) {
    println!("| {what} | {ours} | {plain} | {ratio} | {goal} |");
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.2} ms", seconds * 1e3)
}
