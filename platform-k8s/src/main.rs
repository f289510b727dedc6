//! The platform server `drover-platform-k8s`.

use std::{error::Error as StdError, path::PathBuf, process::ExitCode};

use clap::Args;
use drover_platform_k8s::{PlatformServer, Settings, resources, settings::DriverKind};
use drover_resources_kubernetes::client::Clients;
use drover_server::{Binary, ServerSettings, Service, Shutdown};
use serde::{Serialize, Serializer, ser::SerializeMap};

/// Objects of Kubernetes are many small pieces of memory, of which the system's allocator takes an eighth of all time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BINARY: Binary = Binary {
    name: "drover-platform-k8s",
    version: env!("CARGO_PKG_VERSION"),
    about: "Runs nodes on Kubernetes for a Drover orchestrator",
    port: 7401,
};

/// The flags of this server.
#[derive(Clone, Debug, Args, Serialize)]
struct Flags {
    /// What nodes are (pods)
    #[arg(long, value_name = "KIND")]
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<DriverKind>,
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
    /// Namespace that addons are made in (that of the kubeconfig, or of the pod)
    #[arg(long = "addons-namespace", value_name = "NAME")]
    #[serde(
        rename = "addons",
        skip_serializing_if = "Option::is_none",
        serialize_with = "in_namespace"
    )]
    addons_namespace: Option<String>,
    /// Also serve the resources of this Kubernetes, one by one (drover.kubernetes.v1)
    #[arg(long)]
    #[serde(skip_serializing_if = "is_not_given", serialize_with = "enabled")]
    resources: bool,
    /// Serve a Kubernetes in memory and no platform, for tests of callers; needs no cluster
    #[arg(long)]
    #[serde(skip_serializing_if = "is_not_given")]
    fake: bool,
}

fn is_not_given(flag: &bool) -> bool {
    !flag
}

/// The flag as the setting `addons.namespace`.
fn in_namespace<S: Serializer>(name: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry("namespace", name)?;
    map.end()
}

/// The flag as the setting `resources.enabled`.
fn enabled<S: Serializer>(flag: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry("enabled", flag)?;
    map.end()
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
    if settings.fake {
        let resources = resources::fake(&settings)?;
        let service = resources.add_to(Service::new(BINARY.name, BINARY.version));
        let running = drover_server::spawn(service, listener, &server, stop)?;
        tracing::info!(address = %running.address(), "serving a Kubernetes in memory");
        running.finished().await;
        return Ok(());
    }
    let opened = stop
        .run_until_cancelled(async {
            // Both stay together within the limits of calls.
            let clients = Clients::default();
            let resources = match settings.resources.enabled {
                true => Some(resources::open(&settings, &clients).await?),
                false => None,
            };
            let platform = PlatformServer::open_with(settings, &clients).await?;
            Ok::<_, drover_core::Error>((platform, resources))
        })
        .await;
    let Some(opened) = opened else {
        return Ok(());
    };
    let (platform, resources) = opened?;
    let mut service = platform.service();
    if let Some(resources) = resources {
        service = resources.add_to(service);
    }
    let running = drover_server::spawn(service, listener, &server, stop)?;
    tracing::info!(address = %running.address(), "serving");
    running.finished().await;
    platform.shutdown().await;
    Ok(())
}
