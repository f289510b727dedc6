//! The platform server `drover-platform-k8s`.

use std::{error::Error as StdError, path::PathBuf, process::ExitCode};

use clap::Args;
use drover_platform_k8s::{PlatformServer, Settings};
use drover_server::{Binary, ServerSettings, Shutdown};
use serde::Serialize;

const BINARY: Binary = Binary {
    name: "drover-platform-k8s",
    version: env!("CARGO_PKG_VERSION"),
    about: "Runs nodes on Kubernetes for a Drover orchestrator",
    port: 7401,
};

/// The flags of this server.
#[derive(Clone, Debug, Args, Serialize)]
struct Flags {
    /// Kubeconfig file (KUBECONFIG, ~/.kube/config, or the service account of the pod)
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig (its current one)
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<String>,
    /// Namespace that nodes are found and made in; repeat for more (all)
    #[arg(long = "namespace", value_name = "NAME")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    namespaces: Vec<String>,
    /// Namespace that no node is made in where all are read; repeat for more (none)
    #[arg(long = "excluded-namespace", value_name = "NAME")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    excluded_namespaces: Vec<String>,
    /// Label selector that pods must match besides having a cluster label
    #[arg(long, value_name = "SELECTOR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    selector: Option<String>,
    /// Key of a label of clusters that objects have under its own name; repeat for more (none)
    #[arg(long = "plain-label", value_name = "KEY")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    plain_labels: Vec<String>,
    /// Directory of a template catalogue, before the built-in one
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    templates: Option<PathBuf>,
}

fn main() -> ExitCode {
    if let Some(code) = drover_templates::worker::enter() {
        return code;
    }
    drover_server::run::<Flags, Settings, _>(BINARY, start)
}

async fn start(
    server: ServerSettings,
    settings: Settings,
    stop: Shutdown,
) -> Result<(), Box<dyn StdError + Send + Sync>> {
    let listener = drover_server::listen(&server).await?;
    let opened = stop
        .run_until_cancelled(PlatformServer::open(settings))
        .await;
    let Some(platform) = opened else {
        return Ok(());
    };
    let platform = platform?;
    let running = drover_server::spawn(platform.service(), listener, &server, stop)?;
    tracing::info!(address = %running.address(), "serving");
    running.finished().await;
    platform.shutdown().await;
    Ok(())
}
