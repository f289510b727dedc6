//! The servers that `drover dev` runs in this process, each on a loopback port of its own.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use drover_client::Target;
use drover_orchestrator::{Connector, Orchestrator, PlatformTlsSettings, SecretsSettings};
use drover_platform_cloud::{
    PlatformServer, Settings as PlatformSettings,
    drivers::{local, simulated::SimulatedSettings},
};
use drover_server::{Listener, Place, Running, ServerSettings, Shutdown, StartError};

use super::{
    data::DataDir,
    emulate::{Emulated, Emulators},
    hosts,
};

pub(super) struct Servers {
    orchestrator: Orchestrator,
    /// Where only this process looks for the API, until it is opened.
    inside: Option<Running>,
    api: Option<Running>,
    /// Where the API will be served. Callers that come early wait.
    listener: Option<Listener>,
    place: Place,
    platforms: Vec<(PlatformServer, Running)>,
    emulators: Emulators,
    /// Endpoints of the platforms by name; `unix:PATH` for a server on a socket.
    pub(super) endpoints: BTreeMap<String, String>,
}

/// Binds the port or the socket of the API. Called before anything else starts, so that a second `drover dev` disturbs
/// nothing.
pub(super) async fn listen(
    address: SocketAddr,
    socket: Option<&Path>,
) -> Result<Listener, StartError> {
    match socket {
        Some(path) => drover_server::listen_on_socket(path).await,
        None => Ok(drover_server::listen(&settings(address)).await?.into()),
    }
}

/// Binds a platform to any free port, or to a socket beside that of the API.
async fn listen_beside(api: &Place, platform: &str) -> Result<Listener, StartError> {
    match api {
        Place::Port(_) => Ok(drover_server::listen(&ephemeral()).await?.into()),
        Place::Socket(path) => {
            let mut beside = path.clone().into_os_string();
            beside.push(".");
            beside.push(platform);
            drover_server::listen_on_socket(&PathBuf::from(beside)).await
        }
    }
}

/// Prefix of endpoints that are sockets.
const SOCKET: &str = "unix:";

/// Connects to the platforms of this process through their sockets. No other socket is a platform, whatever is
/// registered.
fn through(own: Vec<String>, usual: Connector) -> Connector {
    Arc::new(move |spec, identity| {
        let socket = own
            .contains(&spec.endpoint)
            .then(|| spec.endpoint.strip_prefix(SOCKET))
            .flatten();
        match socket {
            Some(path) => Ok(drover_client::connect(&Target::on_socket(path))),
            None => usual(spec, identity),
        }
    })
}

fn settings(listen: SocketAddr) -> ServerSettings {
    ServerSettings {
        listen,
        ..ServerSettings::default()
    }
}

/// Settings for any free loopback port.
fn ephemeral() -> ServerSettings {
    ServerSettings::on_port(0)
}

impl Servers {
    /// Starts the local platform, the simulated ones and that of `hosts`, the emulated ones, and the orchestrator.
    pub(super) async fn start(
        data: &DataDir,
        (simulated, hosts): (&[String], Option<SimulatedSettings>),
        emulated: &[Emulated],
        listener: Listener,
        platform_tls: PlatformTlsSettings,
    ) -> anyhow::Result<Self> {
        let place = listener.place()?;
        let mut platforms = Vec::new();
        let mut endpoints = BTreeMap::new();
        let local = local::Settings::new(data.local())?;
        let mut kinds: Vec<(String, PlatformSettings)> = vec![("local".into(), local.into())];
        for name in simulated {
            let settings = hosts.clone().filter(|_| name == hosts::PLATFORM);
            kinds.push((
                name.clone(),
                SimulatedSettings {
                    name: name.clone(),
                    state_file: Some(data.simulated(name)),
                    ..settings.unwrap_or_default()
                }
                .into(),
            ));
        }
        let (emulators, clouds) = Emulators::start(emulated, data).await?;
        kinds.extend(clouds);
        for (name, settings) in kinds {
            let started = async {
                let listener = listen_beside(&place, &name).await?;
                start_platform(settings, listener).await
            };
            let (platform, running) = started.await.with_context(|| format!("platform {name}"))?;
            let endpoint = match running.place() {
                Place::Port(address) => format!("http://{address}"),
                Place::Socket(path) => format!("{SOCKET}{}", path.display()),
            };
            endpoints.insert(name, endpoint);
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
        let own = endpoints.values().cloned().collect();
        let orchestrator =
            Orchestrator::open_through(&settings, |usual| through(own, usual)).await?;
        let inside = listen_beside(&place, "start").await?;
        let inside = serve(&orchestrator, inside)?;
        Ok(Self {
            orchestrator,
            inside: Some(inside),
            api: None,
            listener: Some(listener),
            place,
            platforms,
            emulators,
            endpoints,
        })
    }

    /// Names of the platforms on emulated clouds, and URLs of the emulators.
    pub(super) fn emulators(&self) -> &[(String, String)] {
        self.emulators.urls()
    }

    /// Address of the API.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Client target of the API, also before it is opened.
    pub(super) fn target(&self) -> anyhow::Result<Target> {
        let place = self.inside.as_ref().map_or(&self.place, Running::place);
        Ok(match place {
            Place::Port(address) => format!("http://{address}").parse()?,
            Place::Socket(path) => Target::on_socket(path),
        })
    }

    /// Serves the API to everybody: its platforms are registered, so nobody is told that there are none.
    pub(super) async fn open(&mut self) -> anyhow::Result<()> {
        if let Some(inside) = self.inside.take() {
            inside.shutdown().await;
        }
        if let Some(listener) = self.listener.take() {
            self.api = Some(serve(&self.orchestrator, listener)?);
        }
        Ok(())
    }

    /// Stops everything except the nodes: callers before the servers that they call.
    pub(super) async fn shutdown(self) {
        for running in self.api.into_iter().chain(self.inside) {
            running.shutdown().await;
        }
        self.orchestrator.shutdown().await;
        for (platform, running) in self.platforms {
            platform.shutdown().await;
            running.shutdown().await;
        }
        self.emulators.shutdown().await;
    }
}

async fn start_platform(
    settings: PlatformSettings,
    listener: Listener,
) -> anyhow::Result<(PlatformServer, Running)> {
    let platform = PlatformServer::open(settings).await?;
    let running =
        drover_server::spawn(platform.service(), listener, &ephemeral(), Shutdown::new())?;
    Ok((platform, running))
}

fn serve(orchestrator: &Orchestrator, listener: Listener) -> anyhow::Result<Running> {
    let settings = ServerSettings::default();
    let service = orchestrator.service();
    Ok(drover_server::spawn(
        service,
        listener,
        &settings,
        Shutdown::new(),
    )?)
}
