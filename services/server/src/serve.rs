//! The lifecycle of a server, from start to shutdown.

mod connection;
mod entrance;
mod hosts;
mod listener;
mod rest;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto,
};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    Readiness, ServerSettings, Service,
    access::Access,
    audit::Audit,
    calls::{Calls, Guards},
    connection_limiter::{ConnectionLimiter, Entry},
    encryption::Encryption,
    http::routes,
    net::holder,
    telemetry,
};
use connection::{Connection, HEADER_TIMEOUT};
use entrance::Entrance;
use hosts::Hosts;
pub(crate) use hosts::check as check_hosts;
pub use listener::{Listener, Place};

/// Keep-alive interval; a dead connection occupies its slot for at most this plus [`KEEP_ALIVE_TIMEOUT`].
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent calls per connection: enough for an orchestrator with a watch per cluster, and less
/// than the limits of the whole server.
const MAX_STREAMS_PER_CONNECTION: u32 = 1024;
/// Flow-control window of a stream: request bytes that a client may send before they are read. They are buffered until
/// then.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Flow-control window of all streams of a connection.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Maximum number of buffered response bytes per stream.
const SEND_BUFFER: usize = 64 * 1024;
/// Maximum number of calls that a client may reset before they were processed. More at once is an attack
/// (CVE-2023-44487), and ends the connection.
const MAX_RESETS: usize = 64;
/// The same for calls that violate the protocol (CVE-2025-8671).
const MAX_ERRORS: usize = 128;
/// How long a refused connection has to send a request and receive the refusal.
const REFUSAL_TIME: Duration = Duration::from_secs(5);
/// How long a displaced connection has to close. A call that crosses the GOAWAY is still answered.
const FAREWELL: Duration = Duration::from_millis(250);
/// Maximum size of all request headers; Drover's own are a few hundred bytes.
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// How long streams have to end on their own at shutdown: enough to send a last message.
const STREAM_DRAIN: Duration = Duration::from_millis(250);
/// How long connections may stay open after the last call: enough to send its response, but no more, because an
/// unresponsive client would delay the shutdown.
const LINGER: Duration = Duration::from_millis(500);
/// Pause after a failed accept: usually there are no file descriptors left, and an immediate retry would fail again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Interval at which recorded metrics are moved to their buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port is already in use.
    #[error("port {} is taken{}; stop that process or choose another port with --listen", address.port(), by(holder))]
    PortTaken {
        /// Requested address.
        address: SocketAddr,
        /// The process that uses it: pid, program and directory.
        holder: Option<String>,
    },
    /// Listening on the address failed.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Requested address.
        address: SocketAddr,
        /// Cause of the failure.
        source: io::Error,
    },
    /// Listening on the unix socket failed.
    #[error(transparent)]
    Socket(#[from] crate::SocketError),
    /// An address that others can reach would be served in plaintext.
    #[error(
        "{address} can be reached from outside and would be served as plaintext; give a certificate (--tls-cert, \
         --tls-key, --tls-client-ca), listen on loopback (127.0.0.1), or say --insecure if the network is trusted"
    )]
    Plaintext {
        /// Requested address.
        address: SocketAddr,
    },
    /// An address that others can reach would be served without authentication.
    #[error(
        "{address} can be reached from outside and would be served to everybody; say whose certificates to believe \
         (--tls-client-ca), or who may do what (--access), or --insecure if the network is trusted"
    )]
    Anonymous {
        /// Requested address.
        address: SocketAddr,
    },
    /// Certificate, key or CAs are invalid.
    #[error(transparent)]
    Tls(#[from] drover_tls::TlsError),
    /// The access rules are invalid.
    #[error(transparent)]
    Access(#[from] crate::access::AccessError),
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] crate::AuditError),
    /// One of the allowed host names is invalid.
    #[error("{0}")]
    AllowedHosts(String),
    /// The services are inconsistent.
    #[error(transparent)]
    Services(#[from] drover_core::Error),
}

fn by(holder: &Option<String>) -> String {
    holder
        .as_ref()
        .map(|holder| format!(" by {holder}"))
        .unwrap_or_default()
}

/// Binds the port, after validating the settings. Port 0 binds a free port.
pub async fn listen(settings: &ServerSettings) -> Result<TcpListener, StartError> {
    let address = settings.listen;
    let files = settings.tls.files();
    if !address.ip().to_canonical().is_loopback() && !settings.insecure {
        match &files {
            None => return Err(StartError::Plaintext { address }),
            Some(files) if files.client_ca.is_none() && settings.access.is_none() => {
                return Err(StartError::Anonymous { address });
            }
            Some(_) => {}
        }
    }
    if let Some(files) = files {
        // Validated before anything else of the server starts.
        drover_tls::Server::load(files)?;
    }
    Access::of(settings)?;
    check_hosts(&settings.allowed_hosts).map_err(StartError::AllowedHosts)?;
    TcpListener::bind(address)
        .await
        .map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => StartError::PortTaken {
                address,
                holder: holder(address),
            },
            _ => StartError::Listen { address, source },
        })
}

/// Binds a unix socket that only this user can connect to (mode 0600). A socket left by a dead process is replaced; the
/// file is removed when the server ends. Fails if a live process listens on it, or if others can write to its
/// directory.
pub async fn listen_on_socket(path: &Path) -> Result<Listener, StartError> {
    Ok(crate::socket::bind(path).await?.into())
}

/// Serves until `stop` is cancelled and all calls in flight have ended, or until the grace period is over.
pub async fn serve(
    service: Service,
    settings: &ServerSettings,
    stop: CancellationToken,
) -> Result<(), StartError> {
    let listener = listen(settings).await?;
    let running = spawn(service, listener, settings, stop)?;
    running.finished().await;
    Ok(())
}

/// Serves in the background on a listener from [`listen`] or [`listen_on_socket`]. Connections over a socket are
/// plaintext regardless of the TLS settings, because they do not leave the machine.
pub fn spawn(
    service: Service,
    listener: impl Into<Listener>,
    settings: &ServerSettings,
    stop: CancellationToken,
) -> Result<Running, StartError> {
    let listener = listener.into();
    let place = listener.place().map_err(|source| StartError::Listen {
        address: settings.listen,
        source,
    })?;
    let (always, ready) = watch::channel(Readiness::Ready);
    let readiness = service.readiness.clone().unwrap_or(ready);
    let liveness = service.liveness.clone();
    let health_names = service.names.clone();
    let (service, methods, reporter) = service.complete()?;
    let (name, version) = (service.name, service.version);
    let tls = settings
        .tls
        .files()
        .map(drover_tls::Server::load)
        .transpose()?
        .map(Arc::new);
    let settings = &ServerSettings {
        max_connections: affordable(settings.max_connections),
        ..settings.clone()
    };
    let access = Access::of(settings)?;
    let audit = Audit::of(settings)?;
    let closing = CancellationToken::new();
    let grpc = Calls::new(
        service.routes,
        methods,
        Guards {
            access: access.clone(),
            replicas: service.replicas,
            audit: audit.clone(),
        },
        settings,
        stop.clone(),
        closing.clone(),
    );
    let entrance = Entrance {
        grpc,
        http: service
            .http
            .merge(routes(liveness, readiness.clone(), service.collectors)),
        paths: service.paths.into(),
        hosts: Hosts::new(&settings.allowed_hosts, tls.clone())
            .map_err(StartError::AllowedHosts)?,
        audit: audit.clone(),
    };

    let server = Server {
        entrance,
        settings: settings.clone(),
        stop: stop.clone(),
        closing,
        tls,
        access,
        audit,
        health: Health {
            reporter,
            names: health_names,
            readiness,
            _always: always,
        },
    };
    tracing::info!(name, version, address = %place, "listening");
    Ok(Running {
        place,
        stop,
        task: Some(tokio::spawn(server.run(listener))),
    })
}

/// A server in the background. Dropping it stops it immediately.
#[derive(Debug)]
pub struct Running {
    place: Place,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Running {
    /// Where it listens.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Address that it listens on; for a unix socket 0.0.0.0:0, on which nothing can listen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        match self.place {
            Place::Port(address) => address,
            Place::Socket(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        }
    }

    /// Stops it: no new connections are accepted, calls in flight finish within the grace period, streams are ended.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.finished().await;
    }

    /// Waits until it has stopped.
    pub async fn finished(mut self) {
        if let Some(task) = &mut self.task
            && let Err(e) = task.await
        {
            tracing::error!(error = %e, "the server ended unexpectedly");
        }
        self.task = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

struct Server {
    entrance: Entrance,
    settings: ServerSettings,
    stop: CancellationToken,
    closing: CancellationToken,
    tls: Option<Arc<drover_tls::Server>>,
    access: Access,
    audit: Option<Arc<Audit>>,
    health: Health,
}

impl Server {
    async fn run(self, listener: Listener) {
        let mut helpers = JoinSet::new();
        let reporter = self.health.reporter.clone();
        let names = self.health.names.clone();
        self.health.set().await;
        helpers.spawn(self.health.follow());
        helpers.spawn(upkeep());
        let most = self.settings.max_connections;
        if let Access::File(file) = self.access {
            helpers.spawn(file.follow());
        }
        let encryption = self.tls.map(|tls| {
            helpers.spawn(tls.clone().follow(|tls| {
                #[expect(clippy::cast_precision_loss, reason = "seconds are far below 2^52")]
                metrics::gauge!("drover_tls_certificate_expiry_timestamp_seconds")
                    .set(tls.expires() as f64);
                if let Some(end) = tls.list_expires() {
                    #[expect(clippy::cast_precision_loss, reason = "seconds are far below 2^52")]
                    metrics::gauge!("drover_tls_crl_expiry_timestamp_seconds").set(end as f64);
                }
            }));
            Arc::new(Encryption::new(tls, most, self.audit.clone()))
        });

        let mut connections = JoinSet::new();
        let limiter = ConnectionLimiter::new(most);
        let builder = Arc::new(builder());
        loop {
            while connections.try_join_next().is_some() {}
            let stream = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let connection = Connection {
                entrance: self.entrance.clone(),
                stream,
                stop: self.stop.clone(),
                encryption: encryption.clone(),
            };
            let builder = builder.clone();
            match limiter.enter() {
                Entry::Admitted(slot) => {
                    connections.spawn(async move { connection.serve(&builder, &slot).await });
                }
                Entry::Refused(permit) => {
                    connections.spawn(async move {
                        connection.refuse(&builder).await;
                        drop(permit);
                    });
                }
                Entry::Ignored => {}
            }
        }

        drop(listener);
        helpers.abort_all();
        while helpers.join_next().await.is_some() {}
        report(&reporter, &names, ServingStatus::NotServing).await;
        let open = connections.len();
        tracing::info!(open, "stopping");
        let tracker = self.entrance.grpc.tracker();
        tracker.close();
        let idle = async {
            tokio::time::sleep(STREAM_DRAIN).await;
            self.closing.cancel();
            tracker.wait().await;
            tokio::time::sleep(LINGER).await;
        };
        let all = async { while connections.join_next().await.is_some() {} };
        let done = tokio::time::timeout(self.settings.shutdown_grace, async {
            tokio::select! {
                () = all => {}
                () = idle => {}
            }
        });
        let cut = done.await.is_err();
        self.closing.cancel();
        if cut {
            tracing::warn!(grace = ?self.settings.shutdown_grace, "calls were cut off: they took longer than the grace");
        }
        connections.shutdown().await;
        tracing::info!("stopped");
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_ERRORS);
    builder
}

/// The number of connections that this process can have: each needs a file descriptor, and so do the store, logs and
/// outgoing calls.
fn affordable(wanted: usize) -> usize {
    /// File descriptors reserved for everything but client connections.
    const RESERVE: usize = 256;
    let limit = crate::binary::file_limit();
    let most = limit.saturating_sub(RESERVE).max(1);
    if most < wanted {
        tracing::warn!(
            wanted,
            most,
            limit,
            "the limit of open files (ulimit -n) does not allow as many connections as max_connections says"
        );
    }
    wanted.min(most)
}

struct Health {
    reporter: HealthReporter,
    names: Vec<&'static str>,
    readiness: watch::Receiver<Readiness>,
    /// Keeps the channel open if the server has no readiness of its own.
    _always: watch::Sender<Readiness>,
}

impl Health {
    async fn set(&self) {
        let status = match *self.readiness.borrow() {
            Readiness::Ready => ServingStatus::Serving,
            Readiness::NotReady(_) => ServingStatus::NotServing,
        };
        report(&self.reporter, &self.names, status).await;
    }

    async fn follow(mut self) {
        while self.readiness.changed().await.is_ok() {
            self.set().await;
        }
    }
}

async fn report(reporter: &HealthReporter, names: &[&'static str], status: ServingStatus) {
    for name in names.iter().copied().chain([""]) {
        reporter.set_service_status(name, status).await;
    }
}

async fn upkeep() {
    let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        telemetry::metrics().upkeep();
    }
}
