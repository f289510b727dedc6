//! The servers that `drover dev` runs in this process, each on a port of its own on loopback.

use std::{collections::BTreeMap, net::SocketAddr};

use anyhow::Context;
use drover_orchestrator::{Orchestrator, PlatformTlsSettings, SecretsSettings};
use drover_platform_cloud::{
    PlatformServer, Settings as PlatformSettings,
    drivers::{local, simulated::SimulatedSettings},
};
use drover_server::{Running, ServerSettings, Shutdown, StartError};
use tokio::net::TcpListener;

use super::{
    data::DataDir,
    emulate::{Emulated, Emulators},
};

/// Orchestrator and platforms.
pub(super) struct Servers {
    orchestrator: Orchestrator,
    api: Running,
    platforms: Vec<(PlatformServer, Running)>,
    emulators: Emulators,
    /// Endpoints of the platforms, by name.
    pub(super) endpoints: BTreeMap<String, String>,
}

/// Takes the port of the API. Before anything else starts, so that a second `drover dev` disturbs nothing.
pub(super) async fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    drover_server::listen(&settings(address)).await
}

fn settings(listen: SocketAddr) -> ServerSettings {
    ServerSettings {
        listen,
        ..ServerSettings::default()
    }
}

/// Any free port on loopback.
fn ephemeral() -> ServerSettings {
    ServerSettings::on_port(0)
}

impl Servers {
    /// Starts the local platform, the simulated and the emulated ones and the orchestrator.
    pub(super) async fn start(
        data: &DataDir,
        simulated: &[String],
        emulated: &[Emulated],
        listener: TcpListener,
        platform_tls: PlatformTlsSettings,
    ) -> anyhow::Result<Self> {
        let mut platforms = Vec::new();
        let mut endpoints = BTreeMap::new();
        let local = local::Settings::new(data.local())?;
        let mut kinds: Vec<(String, PlatformSettings)> = vec![("local".into(), local.into())];
        for name in simulated {
            let state_file = Some(data.simulated(name));
            kinds.push((
                name.clone(),
                SimulatedSettings {
                    name: name.clone(),
                    state_file,
                    ..Default::default()
                }
                .into(),
            ));
        }
        let (emulators, clouds) = Emulators::start(emulated, data).await?;
        kinds.extend(clouds);
        for (name, settings) in kinds {
            let (platform, running) = start_platform(settings)
                .await
                .with_context(|| format!("platform {name}"))?;
            endpoints.insert(name, format!("http://{}", running.address()));
            platforms.push((platform, running));
        }
        let settings = drover_orchestrator::Settings {
            data_dir: data.store(),
            platform_tls,
            secrets: SecretsSettings {
                key_file: Some(data.keys()?),
            },
            ..drover_orchestrator::Settings::default()
        };
        let (orchestrator, api) = start_orchestrator(&settings, listener).await?;
        Ok(Self {
            orchestrator,
            api,
            platforms,
            emulators,
            endpoints,
        })
    }

    /// Names of platforms on emulated clouds, and where those are.
    pub(super) fn emulators(&self) -> &[(String, String)] {
        self.emulators.urls()
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.api.address()
    }

    /// Ends everything but the nodes: first who calls, then who is called.
    pub(super) async fn shutdown(self) {
        self.api.shutdown().await;
        self.orchestrator.shutdown().await;
        for (platform, running) in self.platforms {
            platform.shutdown().await;
            running.shutdown().await;
        }
        self.emulators.shutdown().await;
    }
}

async fn start_platform(settings: PlatformSettings) -> anyhow::Result<(PlatformServer, Running)> {
    let platform = PlatformServer::open(settings).await?;
    let server = ephemeral();
    let listener = drover_server::listen(&server).await?;
    let running = drover_server::spawn(platform.service(), listener, &server, Shutdown::new())?;
    Ok((platform, running))
}

async fn start_orchestrator(
    settings: &drover_orchestrator::Settings,
    listener: TcpListener,
) -> anyhow::Result<(Orchestrator, Running)> {
    let orchestrator = Orchestrator::open(settings).await?;
    let server = ServerSettings::default();
    let running = drover_server::spawn(orchestrator.service(), listener, &server, Shutdown::new())?;
    Ok((orchestrator, running))
}
