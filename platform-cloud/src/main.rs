//! The platform server `drover-platform-cloud`, and its subcommands for nodes on this machine.

use std::{
    error::Error as StdError,
    ffi::OsStr,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, FromArgMatches, ValueEnum};
use drover_agent::AgentSettings;
use drover_platform::PolicySettings;
use drover_platform_cloud::{
    DriverSettings, PlatformServer, Settings,
    drivers::{
        local::{self, ClusterLimits, Isolation},
        simulated::SimulatedSettings,
    },
};
use drover_replicante::ReplicanteSettings;
use drover_server::{Binary, ServerSettings, Shutdown};
use serde::{Deserialize, Serialize};

/// Nodes are many small pieces of memory, of which the system's allocator takes a noticeable part of all time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BINARY: Binary = Binary {
    name: "drover-platform-cloud",
    version: env!("CARGO_PKG_VERSION"),
    about: "Runs nodes as local processes, simulated or in a cloud, for a Drover orchestrator",
    port: 7402,
};

/// Selects the backend of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Driver {
    /// Processes of this machine
    #[default]
    Local,
    /// Nodes in memory
    Simulated,
    /// EC2 instances (feature aws)
    Aws,
    /// Compute Engine instances (feature gcp)
    Gcp,
    /// DigitalOcean droplets (feature digitalocean)
    #[serde(rename = "digitalocean")]
    #[value(name = "digitalocean")]
    DigitalOcean,
    /// metal-stack machines (feature metal)
    Metal,
}

/// Placeholder for the settings of a driver that is not built in. They are accepted and ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
#[allow(dead_code, reason = "which of the drivers are built in varies")]
struct NotBuilt(serde_json::Map<String, serde_json::Value>);

#[cfg(feature = "aws")]
use drover_platform_cloud::drivers::aws::Settings as AwsSettings;
#[cfg(not(feature = "aws"))]
type AwsSettings = NotBuilt;
#[cfg(feature = "gcp")]
use drover_platform_cloud::drivers::gcp::Settings as GcpSettings;
#[cfg(not(feature = "gcp"))]
type GcpSettings = NotBuilt;
#[cfg(feature = "digitalocean")]
use drover_platform_cloud::drivers::digitalocean::Settings as DigitalOceanSettings;
#[cfg(not(feature = "digitalocean"))]
type DigitalOceanSettings = NotBuilt;
#[cfg(feature = "metal")]
use drover_platform_cloud::drivers::metal::Settings as MetalSettings;
#[cfg(not(feature = "metal"))]
type MetalSettings = NotBuilt;

/// Settings of local processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LocalSettings {
    /// Listen address of nodes. Default 127.0.0.1.
    host: IpAddr,
    /// Host name or address by which others reach nodes. Default: `host`.
    advertise: Option<String>,
    /// Whether nodes may listen on non-loopback addresses although their protocols are not encrypted. Default false.
    insecure: bool,
    /// Maximum number of nodes. Default: no limit.
    max_nodes: Option<usize>,
    /// Whether the nodes of each cluster run as a user of their own, which needs root: `auto` (default) where it is
    /// possible, otherwise the platform warns; `required`: the platform does not start where it is not possible;
    /// `none`: never.
    isolation: Isolation,
    /// First and last uid of these users. Default 700000 and 765535.
    user_range: (u32, u32),
    /// Limits for the total resources of a cluster's nodes and the commands in them. Only for clusters with a user of
    /// their own.
    cluster_limits: ClusterLimits,
}

impl Default for LocalSettings {
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            advertise: None,
            insecure: false,
            max_nodes: None,
            isolation: Isolation::default(),
            user_range: local::USERS,
            cluster_limits: ClusterLimits::default(),
        }
    }
}

impl LocalSettings {
    fn driver(self, state_dir: PathBuf) -> drover_core::Result<local::Settings> {
        Ok(local::Settings {
            host: self.host,
            advertise: self.advertise,
            insecure: self.insecure,
            max_nodes: self.max_nodes,
            isolation: self.isolation,
            user_range: self.user_range,
            cluster_limits: self.cluster_limits,
            ..local::Settings::new(state_dir)?
        })
    }
}

/// The settings of this server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FileSettings {
    driver: Driver,
    /// Directory of a template catalogue that takes precedence over the built-in one. Absent: only the built-in one.
    templates: Option<PathBuf>,
    /// State directory of local processes.
    state_dir: PathBuf,
    local: LocalSettings,
    simulated: SimulatedSettings,
    aws: AwsSettings,
    gcp: GcpSettings,
    digitalocean: DigitalOceanSettings,
    metal: MetalSettings,
    /// The Replicante Platform API, which every driver supports.
    replicante: ReplicanteSettings,
    /// Restrictions on what callers may set.
    policy: PolicySettings,
}

impl Default for FileSettings {
    fn default() -> Self {
        Self {
            driver: Driver::default(),
            templates: None,
            state_dir: PathBuf::from("/var/lib/drover/local"),
            local: LocalSettings::default(),
            simulated: SimulatedSettings::default(),
            aws: AwsSettings::default(),
            gcp: GcpSettings::default(),
            digitalocean: DigitalOceanSettings::default(),
            metal: MetalSettings::default(),
            replicante: ReplicanteSettings::default(),
            policy: PolicySettings::default(),
        }
    }
}

/// The flags of this server.
#[derive(Clone, Debug, Args, Serialize)]
struct Flags {
    /// Backend of this process (local)
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<Driver>,
    /// Directory of a template catalogue that takes precedence over the built-in one
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    templates: Option<PathBuf>,
    /// State directory of local processes (/var/lib/drover/local)
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    state_dir: Option<PathBuf>,
}

fn main() -> ExitCode {
    if let Some(code) = drover_templates::worker::enter() {
        return code;
    }
    let arguments: Vec<_> = std::env::args_os().collect();
    match arguments
        .get(1)
        .map(AsRef::<OsStr>::as_ref)
        .and_then(OsStr::to_str)
    {
        Some("launch") => launch(&arguments),
        Some("agent") => agent(&arguments),
        _ => drover_server::run::<Flags, FileSettings, _>(BINARY, start),
    }
}

/// `launch NODE_DIRECTORY`: becomes the process of a local node, or the given command next to it.
fn launch(arguments: &[std::ffi::OsString]) -> ExitCode {
    let Some(directory) = arguments.get(2) else {
        return ExitCode::from(64);
    };
    let directory = Path::new(directory);
    let code = match arguments.get(3) {
        None => local::launch_main(directory),
        Some(program) => local::command_main(directory, program, &arguments[4..]),
    };
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// `agent`: runs the reference agent, for local nodes that run nothing else.
fn agent(arguments: &[std::ffi::OsString]) -> ExitCode {
    // Here, `--version` is the version of the node's software.
    let command =
        AgentSettings::augment_args(clap::Command::new("agent").disable_version_flag(true));
    let settings = command
        .try_get_matches_from(&arguments[1..])
        .and_then(|m| AgentSettings::from_arg_matches(&m));
    match settings {
        Err(error) => {
            // If stderr fails, there is no one left to tell.
            let _ = error.print();
            ExitCode::from(64)
        }
        Ok(settings) => match drover_agent::run_blocking(settings) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

async fn start(
    server: ServerSettings,
    settings: FileSettings,
    stop: Shutdown,
) -> Result<(), Box<dyn StdError + Send + Sync>> {
    let templates = settings.templates.clone();
    let replicante = settings.replicante.clone();
    let policy = settings.policy.clone().read()?;
    let driver = driver(settings)?;
    // Listen first: two servers with the same port must not both touch the state.
    let listener = drover_server::listen(&server).await?;
    let platform = PlatformServer::open(Settings { driver, templates })
        .await?
        .with_replicante(replicante)
        .with_policy(policy);
    let running = drover_server::spawn(platform.service(), listener, &server, stop)?;
    tracing::info!(address = %running.address(), "serving");
    running.finished().await;
    platform.shutdown().await;
    Ok(())
}

fn driver(settings: FileSettings) -> Result<DriverSettings, Box<dyn StdError + Send + Sync>> {
    Ok(match settings.driver {
        Driver::Local => DriverSettings::Local(settings.local.driver(settings.state_dir)?),
        Driver::Simulated => DriverSettings::Simulated(Box::new(settings.simulated)),
        #[cfg(feature = "aws")]
        Driver::Aws => settings.aws.into(),
        #[cfg(feature = "gcp")]
        Driver::Gcp => settings.gcp.into(),
        #[cfg(feature = "digitalocean")]
        Driver::DigitalOcean => settings.digitalocean.into(),
        #[cfg(feature = "metal")]
        Driver::Metal => settings.metal.into(),
        #[cfg(not(all(
            feature = "aws",
            feature = "gcp",
            feature = "digitalocean",
            feature = "metal"
        )))]
        missing => return Err(not_built(missing).into()),
    })
}

#[cfg(not(all(
    feature = "aws",
    feature = "gcp",
    feature = "digitalocean",
    feature = "metal"
)))]
fn not_built(driver: Driver) -> String {
    let name = driver
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default();
    format!(
        "this binary was built without the driver {name}; build it with: \
         cargo build --release -p drover-platform-cloud --features {name}"
    )
}
