//! The orchestrator server.

mod one_of_several;
mod store_command;

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::Parser;

use drover_orchestrator::{Orchestrator, Settings, VERSION};
use drover_server::{Binary, ServerSettings, Shutdown};

/// Steps and answers are many small pieces of memory, of which the system's allocator takes a fourth of all time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Flags of the orchestrator, beside those of every server.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
struct Flags {
    /// Directory of the store [default: drover-data]
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    data_dir: Option<PathBuf>,
    /// How platforms are called
    #[command(flatten)]
    #[serde(skip_serializing_if = "PlatformFlags::is_empty")]
    platform_tls: PlatformFlags,
    /// How secrets are kept
    #[command(flatten)]
    #[serde(skip_serializing_if = "SecretsFlags::is_empty")]
    secrets: SecretsFlags,
    /// Where nodes may be probed
    #[command(flatten)]
    #[serde(skip_serializing_if = "ProbeFlags::is_empty")]
    probes: ProbeFlags,
    /// What one caller may take
    #[command(flatten)]
    #[serde(skip_serializing_if = "LimitFlags::is_empty")]
    limits: LimitFlags,
    /// Where the store is, for several orchestrators
    #[command(flatten)]
    #[serde(skip_serializing_if = "EtcdFlags::is_empty")]
    etcd: EtcdFlags,
    /// What this one is called among them
    #[command(flatten)]
    #[serde(skip_serializing_if = "ReplicaFlags::is_empty")]
    replica: ReplicaFlags,
}

/// Flags of a store in etcd.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
struct EtcdFlags {
    /// Client URL of a member of the etcd that holds the store, for several orchestrators; repeat for each
    /// [default: none, the store is in --data-dir]
    #[arg(long = "etcd-endpoint", value_name = "URL")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    endpoints: Vec<String>,
    /// What all keys in etcd begin with [default: drover/]
    #[arg(id = "etcd_prefix", long = "etcd-prefix", value_name = "PREFIX")]
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    /// Authorities of etcd, PEM [default: the system's]
    #[arg(id = "etcd_ca", long = "etcd-ca", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    ca: Option<PathBuf>,
    /// Certificate that is shown to etcd, PEM [default: none]
    #[arg(id = "etcd_cert", long = "etcd-cert", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(id = "etcd_key", long = "etcd-key", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<PathBuf>,
    /// User who logs in to etcd with a password [default: none]
    #[arg(id = "etcd_user", long = "etcd-user", value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// File that holds only the password
    #[arg(
        id = "etcd_password_file",
        long = "etcd-password-file",
        value_name = "FILE"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    password_file: Option<PathBuf>,
    /// Bytes that its database may have, unless it says so itself; from 70 % of it on, new clusters and groups are
    /// refused [default: 2147483648]
    #[arg(id = "etcd_quota", long = "etcd-quota", value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<u64>,
}

impl EtcdFlags {
    fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
            && self.prefix.is_none()
            && self.ca.is_none()
            && self.cert.is_none()
            && self.key.is_none()
            && self.user.is_none()
            && self.password_file.is_none()
            && self.quota.is_none()
    }
}

/// Flags of one of several orchestrators.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
struct ReplicaFlags {
    /// Name of this orchestrator among those on the same etcd [default: the name of the machine]
    #[arg(id = "replica_name", long = "replica-name", value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// URL at which clients reach this orchestrator [default: where it listens]
    #[arg(id = "replica_address", long = "replica-address", value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
}

impl ReplicaFlags {
    fn is_empty(&self) -> bool {
        self.name.is_none() && self.address.is_none()
    }
}

/// Flags of what one caller may take.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
struct LimitFlags {
    /// Bytes that the watches, logs and commands of one caller may hold [default: 67108864]
    #[arg(long, value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    watch_bytes_per_caller: Option<usize>,
    /// Plans of one caller under way at once [default: 8]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    plans_per_caller: Option<usize>,
    /// Plans of one caller a second, and five times as many at once [default: 20]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    plans_per_second_per_caller: Option<u32>,
}

impl LimitFlags {
    fn is_empty(&self) -> bool {
        self.watch_bytes_per_caller.is_none()
            && self.plans_per_caller.is_none()
            && self.plans_per_second_per_caller.is_none()
    }
}

/// Flags of where nodes may be probed.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
struct ProbeFlags {
    /// Range of addresses outside of which no node is probed; repeat for more [default: all addresses]
    #[arg(long = "probes-allow", value_name = "CIDR")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allow: Vec<String>,
    /// Range of addresses at which no node is probed; repeat for more [default: none]
    #[arg(long = "probes-deny", value_name = "CIDR")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deny: Vec<String>,
}

impl ProbeFlags {
    fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}

/// Flags of how secrets are kept.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
struct SecretsFlags {
    /// File with the keys that secrets and user data are encrypted with [default: none]
    #[arg(long = "secrets-key-file", value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl SecretsFlags {
    fn is_empty(&self) -> bool {
        self.key_file.is_none()
    }
}

/// Flags of how platforms are called.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
struct PlatformFlags {
    /// Authorities of platforms whose registration names none, PEM [default: the system's]
    #[arg(long = "platform-ca", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    ca: Option<PathBuf>,
    /// Lists of revoked certificates of platforms (CRL), PEM; read again when they change
    #[arg(id = "platform_crl", long = "platform-crl", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    crl: Option<PathBuf>,
    /// Refuse a platform whose certificate does not say that it is one (spiffe://drover/platform/NAME)
    #[arg(long = "platform-require-role")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    require_role: bool,
}

impl PlatformFlags {
    fn is_empty(&self) -> bool {
        self.ca.is_none() && self.crl.is_none() && !self.require_role
    }
}

fn main() -> ExitCode {
    let binary = Binary {
        name: "drover-orchestrator",
        version: VERSION,
        about: "Keeps clusters as they are declared, on whatever platforms are registered \
                (`store --help`: backup, restore, dump, maintenance)",
        port: 7400,
    };
    // Store maintenance is separate from serving and needs neither settings nor a port.
    if std::env::args().nth(1).as_deref() == Some("store") {
        return look_after_store();
    }
    drover_server::run::<Flags, Settings, _>(binary, serve)
}

fn look_after_store() -> ExitCode {
    let command = match store_command::Command::try_parse_from(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(error) => {
            // There is nobody left to report a failure to.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(64)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(store_command::run(command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Where clients reach this process, as far as it can know.
fn address(server: &ServerSettings, listens: SocketAddr) -> String {
    let scheme = if server.tls.cert.is_some() {
        "https"
    } else {
        "http"
    };
    if listens.ip().is_unspecified() {
        let host = drover_orchestrator::host_name();
        return format!("{scheme}://{host}:{}", listens.port());
    }
    format!("{scheme}://{listens}")
}

async fn serve(server: ServerSettings, mut settings: Settings, stop: Shutdown) -> Outcome {
    settings.platform_tls = settings
        .platform_tls
        .or(server.tls.cert.as_ref(), server.tls.key.as_ref());
    // The port is bound first, so that a second orchestrator fails on that before it opens the store.
    let listener = drover_server::listen(&server).await?;
    if settings.replica.address.is_none() {
        settings.replica.address = Some(address(&server, listener.local_addr()?));
    }
    if settings.etcd.is_used() {
        return one_of_several::serve(&server, settings, listener, stop).await;
    }
    let orchestrator = Orchestrator::open(&settings).await?;
    let lost = orchestrator.stopped();
    let ended = stop.child_token();
    let running = drover_server::spawn(orchestrator.service(), listener, &server, ended.clone())?;
    tokio::select! {
        () = stop.cancelled() => {}
        () = lost.cancelled() => ended.cancel(),
    }
    running.finished().await;
    orchestrator.shutdown().await;
    Ok(())
}
