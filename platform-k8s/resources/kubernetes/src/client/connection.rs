//! Endpoint and credentials of the API server. Reloaded when their files change.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use drover_core::{Error, Reason, Result};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt as _},
    config::{KubeConfigOptions, Kubeconfig},
};
use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use tower::{BoxError, ServiceBuilder};

use super::limits::LimitLayer;

/// Interval of the checks for changed files.
const INTERVAL: Duration = Duration::from_secs(5);
/// Timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Silence after which TCP keepalive probes the peer.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(60);
/// Size of the read buffer of a connection, that of a record of TLS. By itself it would grow with every list and stay so
/// for the watch after it.
const BUFFER: usize = 16 * 1024;

/// Directory of a pod with its service account credentials.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A client that reloads its credentials from disk.
pub(super) struct Connection {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    limits: LimitLayer,
    state: RwLock<LoadedCredentials>,
    /// Held while credentials are read.
    reloading: tokio::sync::Mutex<()>,
}

struct LoadedCredentials {
    client: Client,
    namespace: String,
    files: BTreeSet<PathBuf>,
    digest: Digested,
}

/// What distinguishes credentials from others: the contents of their files.
pub(super) type Digested = [u8; 32];

impl Connection {
    /// Reads the credentials of a kubeconfig and one of its contexts; without, those of the environment, of the home
    /// directory, or of the pod that this runs in. Does not contact the API server.
    ///
    /// # Errors
    /// `Precondition` if there are none, or they cannot be used.
    pub(super) async fn open(
        kubeconfig: Option<PathBuf>,
        context: Option<String>,
        limits: LimitLayer,
    ) -> Result<Self> {
        // One crypto provider per process; an error means that one is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let state = load(kubeconfig.as_deref(), context.as_deref(), limits.clone()).await?;
        Ok(Self {
            kubeconfig,
            context,
            limits,
            state: RwLock::new(state),
            reloading: tokio::sync::Mutex::new(()),
        })
    }

    /// A client with the present credentials.
    pub(super) fn client(&self) -> Client {
        self.state.read().client.clone()
    }

    /// Namespace of the context, or of the pod that this runs in.
    pub(super) fn default_namespace(&self) -> String {
        self.state.read().namespace.clone()
    }

    /// The present credentials.
    pub(super) fn digest(&self) -> Digested {
        self.state.read().digest
    }

    /// Checks the files now. Returns whether there are other credentials than those that were used.
    pub(super) async fn reload(&self, used: &Digested) -> bool {
        let _reloading = self.reloading.lock().await;
        let (files, before) = {
            let state = self.state.read();
            (state.files.clone(), state.digest)
        };
        if digest(&files).await == before {
            return before != *used;
        }
        let (kubeconfig, context) = (self.kubeconfig.as_deref(), self.context.as_deref());
        match load(kubeconfig, context, self.limits.clone()).await {
            Ok(state) => {
                tracing::info!("credentials have changed on disk and are used from now on");
                *self.state.write() = state;
            }
            Err(error) => {
                // The files may be half written. The old credentials may still work, and the files are checked again.
                tracing::warn!(
                    error = error.message(),
                    "changed credentials cannot be used"
                );
            }
        }
        self.digest() != *used
    }

    /// Checks the files from time to time, and whenever the API server refused the credentials. Runs until it is dropped.
    pub(super) async fn follow(&self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = self.limits.refused() => {}
            }
            self.reload(&self.digest()).await;
        }
    }
}

async fn load(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    limits: LimitLayer,
) -> Result<LoadedCredentials> {
    let file = kubeconfig.map(Path::to_owned);
    let found = tokio::task::spawn_blocking(move || match file {
        Some(path) => Kubeconfig::read_from(path).map(Some),
        None => find(),
    })
    .await
    .map_err(|_| Error::internal("reading the kubeconfig was interrupted"))?
    .map_err(|error| unusable("the kubeconfig cannot be used", &error))?;
    let (config, files) = match found {
        Some(found) => {
            let mut files = referred(&found);
            files.extend(sources(kubeconfig));
            let options = KubeConfigOptions {
                context: context.map(str::to_owned),
                ..KubeConfigOptions::default()
            };
            let config = Config::from_custom_kubeconfig(found, &options)
                .await
                .map_err(|error| unusable("the kubeconfig cannot be used", &error))?;
            (config, files)
        }
        None => {
            let config = Config::incluster_env().map_err(|error| {
                unusable("there is no kubeconfig and no service account", &error)
            })?;
            let files = ["token", "ca.crt", "namespace"];
            let files = files.map(|file| Path::new(SERVICE_ACCOUNT).join(file));
            (config, files.into())
        }
    };
    let digest = digest(&files).await;
    let namespace = config.default_namespace.clone();
    let client = client(config, limits)
        .map_err(|error| unusable("the credentials cannot be used", &error))?;
    Ok(LoadedCredentials {
        client,
        namespace,
        files,
        digest,
    })
}

/// A client without kube's middleware: nothing below retries, timeouts are ours, and URLs are not logged, as the URL of
/// an exec contains its command.
fn client(config: Config, limits: LimitLayer) -> kube::Result<Client> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    // Detects a vanished peer below the watches.
    tcp.set_keepalive(Some(KEEPALIVE));
    let connector = config.rustls_https_connector_with_connector(tcp)?;
    let http = HttpClient::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE)
        .http1_read_buf_exact_size(BUFFER)
        .build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .layer(limits)
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}

/// The kubeconfig of the environment, or of the home directory. `None` if there is none.
fn find() -> std::result::Result<Option<Kubeconfig>, kube::config::KubeconfigError> {
    if let Some(found) = Kubeconfig::from_env()? {
        return Ok(Some(found));
    }
    match home() {
        Some(path) if path.exists() => Kubeconfig::read_from(path).map(Some),
        _ => Ok(None),
    }
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"))
}

/// The files that the kubeconfig was read from.
fn sources(kubeconfig: Option<&Path>) -> Vec<PathBuf> {
    if let Some(path) = kubeconfig {
        return vec![path.to_owned()];
    }
    match std::env::var_os("KUBECONFIG") {
        Some(paths) if !paths.is_empty() => std::env::split_paths(&paths).collect(),
        _ => home().into_iter().collect(),
    }
}

/// The files that a kubeconfig refers to.
fn referred(config: &Kubeconfig) -> BTreeSet<PathBuf> {
    let clusters = config
        .clusters
        .iter()
        .filter_map(|named| named.cluster.as_ref());
    let users = config
        .auth_infos
        .iter()
        .filter_map(|named| named.auth_info.as_ref());
    clusters
        .filter_map(|cluster| cluster.certificate_authority.clone())
        .chain(users.flat_map(|user| {
            [
                user.token_file.clone(),
                user.client_certificate.clone(),
                user.client_key.clone(),
            ]
            .into_iter()
            .flatten()
        }))
        .map(PathBuf::from)
        .collect()
}

/// Digest of the contents of the files; a missing file counts as empty.
async fn digest(files: &BTreeSet<PathBuf>) -> Digested {
    let mut hash = Sha256::new();
    for file in files {
        let content = tokio::fs::read(file).await.unwrap_or_default();
        hash.update((content.len() as u64).to_be_bytes());
        hash.update(&content);
    }
    hash.finalize().into()
}

fn unusable(what: &str, error: &dyn std::error::Error) -> Error {
    Error::new(
        Reason::Precondition,
        format!("{what}: {}", crate::errors::chain(error)),
    )
}
