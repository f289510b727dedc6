//! The platform server `drover-platform-cloud`, and what it becomes when it starts nodes on this machine.

use std::{
    error::Error as StdError,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, FromArgMatches, ValueEnum};
use drover_agent::AgentSettings;
use drover_platform_cloud::{
    DriverSettings, PlatformServer, Settings,
    drivers::{local, simulated::SimulatedSettings},
};
use drover_server::{Binary, ServerSettings, Shutdown};
use serde::{Deserialize, Serialize};

const BINARY: Binary = Binary {
    name: "drover-platform-cloud",
    version: env!("CARGO_PKG_VERSION"),
    about: "Runs nodes as local processes, simulated or in a cloud, for a Drover orchestrator",
    port: 7402,
};

/// Which backend this process serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Driver {
    /// Processes of this machine
    #[default]
    Local,
    /// Nodes in memory
    Simulated,
}

/// The settings of this server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FileSettings {
    driver: Driver,
    /// Directory of a template catalogue.
    templates: Option<PathBuf>,
    /// State directory of local processes.
    state_dir: PathBuf,
    simulated: SimulatedSettings,
}

impl Default for FileSettings {
    fn default() -> Self {
        Self {
            driver: Driver::default(),
            templates: None,
            state_dir: PathBuf::from("/var/lib/drover/local"),
            simulated: SimulatedSettings::default(),
        }
    }
}

/// The flags of this server.
#[derive(Clone, Debug, Args, Serialize)]
struct Flags {
    /// Which backend this process serves (local)
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<Driver>,
    /// Directory of a template catalogue, before the built-in one
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    templates: Option<PathBuf>,
    /// State directory of local processes (/var/lib/drover/local)
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    state_dir: Option<PathBuf>,
}

fn main() -> ExitCode {
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

/// `launch NODE_DIRECTORY`: becomes the process of a local node.
fn launch(arguments: &[std::ffi::OsString]) -> ExitCode {
    let Some(directory) = arguments.get(2) else {
        return ExitCode::from(64);
    };
    ExitCode::from(u8::try_from(local::launch_main(Path::new(directory))).unwrap_or(1))
}

/// `agent`: the reference agent, for local nodes that run nothing else.
fn agent(arguments: &[std::ffi::OsString]) -> ExitCode {
    // `--version` is the version of the node's software here.
    let command =
        AgentSettings::augment_args(clap::Command::new("agent").disable_version_flag(true));
    let settings = command
        .try_get_matches_from(&arguments[1..])
        .and_then(|m| AgentSettings::from_arg_matches(&m));
    match settings {
        Err(error) => {
            // Nobody is left to tell when this fails.
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
    let driver = match settings.driver {
        Driver::Local => DriverSettings::Local(local::Settings::new(settings.state_dir)?),
        Driver::Simulated => DriverSettings::Simulated(Box::new(settings.simulated)),
    };
    // The port first: two servers on one port must not both touch the state.
    let listener = drover_server::listen(&server).await?;
    let platform = PlatformServer::open(Settings {
        driver,
        templates: settings.templates,
    })
    .await?;
    let running = drover_server::spawn(platform.service(), listener, &server, stop)?;
    tracing::info!(address = %running.address(), "serving");
    running.finished().await;
    platform.shutdown().await;
    Ok(())
}
