//! The reference node agent, which only reports the identity and the health of its node.
//!
//! Serves `grpc.health.v1`, `drover.agent.v1.AgentService`, reflection and, over HTTP on the same port, `/healthz`,
//! `/readyz` and `/metrics`. While it is unhealthy, the health service returns `NOT_SERVING` and both HTTP checks
//! return 503. It becomes unhealthy while `--unhealthy-file` exists, and is toggled by SIGUSR1.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context, bail};
use clap::Args;
use drover_proto::agent::v1::{
    GetInfoRequest, GetInfoResponse,
    agent_service_server::{AgentService, AgentServiceServer},
};
use drover_server::{Readiness, Running, ServerSettings, Service, Shutdown, settings::duration};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinSet,
};
use tonic::{Request, Response, Status};

/// Interval at which the unhealthy file is checked: far below any probe interval.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Grace period for calls in flight at shutdown: all of them are answered from memory.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// Maximum number of connections: a few probers, and people who debug.
const MAX_CONNECTIONS: usize = 256;

/// Which node this is and where it listens.
#[derive(Clone, Debug, Args)]
pub struct AgentSettings {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Serve plaintext even where others can reach it
    #[arg(long)]
    pub insecure: bool,
    /// Name by which it is called, besides addresses and localhost; repeatable
    #[arg(
        long = "allowed-host",
        env = "DROVER_ADDRESS",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub allowed_hosts: Vec<String>,
    /// Id of the node
    #[arg(long, value_name = "ID")]
    pub node_id: String,
    /// Id of its cluster
    #[arg(long, value_name = "ID", default_value = "")]
    pub cluster_id: String,
    /// Store software that the node runs
    #[arg(long, value_name = "NAME", default_value = "")]
    pub store: String,
    /// Version of that software
    #[arg(long = "version", value_name = "VERSION", default_value = "")]
    pub version: String,
    /// Report unhealthy while this file exists
    #[arg(long, value_name = "PATH")]
    pub unhealthy_file: Option<PathBuf>,
    /// Wait this long before listening
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub start_delay: Option<Duration>,
    /// Exit with an error after this long
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub fail_after: Option<Duration>,
}

/// Runs the agent on a single-threaded runtime until SIGTERM or SIGINT. Fails if it cannot listen on the address, or
/// when `fail_after` has passed.
pub fn run_blocking(settings: AgentSettings) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    runtime.block_on(async {
        // Installed first, so that a signal during startup does not kill the process.
        let mut signals = Signals::new().context("signals cannot be caught")?;
        let fail_after = settings.fail_after;
        let start_delay = settings.start_delay.unwrap_or_default();
        tokio::select! {
            () = tokio::time::sleep(start_delay) => {}
            () = signals.stop() => return Ok(()),
        }
        let agent = start(settings, Shutdown::new()).await?;
        tokio::select! {
            () = agent.serve_signals(&mut signals) => {}
            () = after(fail_after) => bail!("failing, as --fail-after says"),
        }
        agent.shutdown().await;
        Ok(())
    })
}

async fn after(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

/// An agent in the background. Dropping it stops it immediately.
#[derive(Debug)]
pub struct Agent {
    running: Running,
    unwell: watch::Sender<bool>,
    /// Owns the tasks that watch the health.
    _helpers: JoinSet<()>,
}

impl Agent {
    /// Address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.running.address()
    }

    /// Toggles between healthy and unhealthy, like SIGUSR1.
    pub fn toggle(&self) {
        self.unwell.send_modify(|unwell| *unwell = !*unwell);
    }

    /// Stops the agent.
    pub async fn shutdown(self) {
        self.running.shutdown().await;
    }

    async fn serve_signals(&self, signals: &mut Signals) {
        loop {
            match signals.next().await {
                Asked::Stop => return,
                Asked::Toggle => self.toggle(),
            }
        }
    }
}

/// Starts an agent. `start_delay` and `fail_after` are left to the owner of the process. Fails if it cannot listen on
/// the address.
pub async fn start(settings: AgentSettings, stop: Shutdown) -> anyhow::Result<Agent> {
    let server = ServerSettings {
        listen: settings.listen,
        insecure: settings.insecure,
        allowed_hosts: settings.allowed_hosts,
        shutdown_grace: SHUTDOWN_GRACE,
        max_connections: MAX_CONNECTIONS,
        ..ServerSettings::default()
    };
    let listener = drover_server::listen(&server).await?;
    let (unwell, toggled) = watch::channel(false);
    let (health, readiness) = watch::channel(judge(settings.unhealthy_file.as_deref(), false));
    let mut helpers = JoinSet::new();
    helpers.spawn(watch_health(settings.unhealthy_file, toggled, health));
    let info = GetInfoResponse {
        node_id: settings.node_id,
        cluster_id: settings.cluster_id,
        store: settings.store,
        version: settings.version,
        start_time: Some(SystemTime::now().into()),
    };
    let service = Service::new("drover-agent", env!("CARGO_PKG_VERSION"))
        .add(AgentServiceServer::new(Info(info)))
        .liveness(readiness.clone())
        .readiness(readiness);
    let running = drover_server::spawn(service, listener, &server, stop)?;
    Ok(Agent {
        running,
        unwell,
        _helpers: helpers,
    })
}

async fn watch_health(
    file: Option<PathBuf>,
    mut toggled: watch::Receiver<bool>,
    health: watch::Sender<Readiness>,
) {
    loop {
        let now = judge(file.as_deref(), *toggled.borrow_and_update());
        health.send_if_modified(|before| {
            let changed = *before != now;
            *before = now;
            changed
        });
        let changed = toggled.changed();
        let outcome = match &file {
            Some(_) => tokio::time::timeout(POLL_INTERVAL, changed)
                .await
                .unwrap_or(Ok(())),
            None => changed.await,
        };
        if outcome.is_err() {
            return;
        }
    }
}

fn judge(file: Option<&Path>, unwell: bool) -> Readiness {
    if unwell {
        Readiness::NotReady("made unhealthy by SIGUSR1".to_owned())
    } else if file.is_some_and(Path::exists) {
        Readiness::NotReady("made unhealthy by the unhealthy file".to_owned())
    } else {
        Readiness::Ready
    }
}

struct Info(GetInfoResponse);

#[tonic::async_trait]
impl AgentService for Info {
    async fn get_info(
        &self,
        _: Request<GetInfoRequest>,
    ) -> Result<Response<GetInfoResponse>, Status> {
        Ok(Response::new(self.0.clone()))
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    user: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            user: signal(SignalKind::user_defined1())?,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.user.recv() => Asked::Toggle,
        }
    }

    async fn stop(&mut self) {
        while self.next().await == Asked::Toggle {}
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Stop,
    Toggle,
}
