//! A server from its first connection to its last.

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, poll_fn},
    stream::FuturesUnordered,
};
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;
use tonic::{body::Body, transport::server::TcpConnectInfo};
use tonic_health::{ServingStatus, server::HealthReporter};
use tracing::Instrument;

use crate::{
    Readiness, ServerSettings, Service,
    access::Access,
    audit::Audit,
    calls::Calls,
    cork::cork,
    crowd::{Crowd, Entry, Place, Visitor},
    encryption::{Encryption, Shown},
    http::{OWN_PATHS, Record, routes},
    net::{Impatient, holder},
    telemetry,
};

/// How long a connection may take to send what it wants, so that slow ones do not pile up.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a connection is pinged; a dead one holds its place no longer than this and [`KEEP_ALIVE_TIMEOUT`].
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// How long a ping may stay unanswered.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls at once on one connection: room for an orchestrator with a watch per cluster, and not for more than the server
/// takes in all.
const MAX_STREAMS_PER_CONNECTION: u32 = 1024;
/// Bytes of requests that a client may send ahead, on one call and on all of one connection. They are kept until
/// somebody reads them.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The same for all calls of a connection.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of answers that wait on one call for a client to read them.
const SEND_BUFFER: usize = 64 * 1024;
/// Calls that a client may take back before anybody has looked at them. More at once is an attack (CVE-2023-44487), and
/// ends the connection.
const MAX_RESETS: usize = 64;
/// The same for calls that break the protocol (CVE-2025-8671).
const MAX_ERRORS: usize = 128;
/// How long a connection for which there is no place has to ask something and to be told.
const REFUSAL_TIME: Duration = Duration::from_secs(5);
/// When those may come again.
const CROWDED_RETRY: Duration = Duration::from_secs(5);
/// How long an idle connection has to end when its place is needed. A call that crosses the message is still answered.
const FAREWELL: Duration = Duration::from_millis(250);
/// Largest sum of the headers of a request: ours have a few hundred bytes.
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// How long streams have to end on their own when the server stops: enough to send a last message.
const STREAM_DRAIN: Duration = Duration::from_millis(250);
/// How long connections may stay open after the last call: enough to send its answer, and no more, because a client
/// that has gone silent would hold up the end.
const LINGER: Duration = Duration::from_millis(500);
/// Pause after a failed accept: usually there are no file descriptors left, and trying at once does not help.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often recorded metrics are put into their buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port is taken.
    #[error("port {} is taken{}; stop that process or choose another port with --listen", address.port(), by(holder))]
    PortTaken {
        /// Address that was asked for.
        address: SocketAddr,
        /// Who has it: pid, program and directory.
        holder: Option<String>,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Address that was asked for.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Others could reach an address without encryption.
    #[error(
        "{address} can be reached from outside and would be served as plaintext; give a certificate (--tls-cert, \
         --tls-key, --tls-client-ca), listen on loopback (127.0.0.1), or say --insecure if the network is trusted"
    )]
    Plaintext {
        /// Address that was asked for.
        address: SocketAddr,
    },
    /// Others could call without saying who they are.
    #[error(
        "{address} can be reached from outside and would be served to everybody; say whose certificates to believe \
         (--tls-client-ca), or who may do what (--access), or --insecure if the network is trusted"
    )]
    Anonymous {
        /// Address that was asked for.
        address: SocketAddr,
    },
    /// Certificate, key or authorities cannot be used.
    #[error(transparent)]
    Tls(#[from] drover_tls::TlsError),
    /// The rules of who may do what cannot be used.
    #[error(transparent)]
    Access(#[from] crate::access::AccessError),
    /// The audit log cannot be written.
    #[error(transparent)]
    Audit(#[from] crate::AuditError),
    /// The services do not fit together.
    #[error(transparent)]
    Services(#[from] drover_core::Error),
}

fn by(holder: &Option<String>) -> String {
    holder
        .as_ref()
        .map(|holder| format!(" by {holder}"))
        .unwrap_or_default()
}

/// Takes the port. Port 0 takes a free one.
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
        // Said before anything else of the server starts.
        drover_tls::Server::load(files)?;
    }
    Access::of(settings)?;
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

/// Serves until `stop` is cancelled and everything in flight has ended, or the grace is over.
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

/// Serves in the background on a listener of [`listen`].
pub fn spawn(
    service: Service,
    listener: TcpListener,
    settings: &ServerSettings,
    stop: CancellationToken,
) -> Result<Running, StartError> {
    let address = listener.local_addr().map_err(|source| StartError::Listen {
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
    let access = Access::of(settings)?;
    let audit = settings
        .audit_log
        .as_deref()
        .map(|path| Audit::open(path, settings.audit_reads))
        .transpose()?;
    let closing = CancellationToken::new();
    let grpc = Calls::new(
        service.routes,
        methods,
        (access.clone(), audit.clone()),
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
    tracing::info!(name, version, %address, "listening");
    Ok(Running {
        address,
        stop,
        task: Some(tokio::spawn(server.run(listener))),
    })
}

/// A server in the background. Dropping it ends it at once.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Running {
    /// Address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops it: no new connections, calls in flight finish within the grace, streams are ended.
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
    async fn run(self, listener: TcpListener) {
        let mut helpers = JoinSet::new();
        let reporter = self.health.reporter.clone();
        let names = self.health.names.clone();
        self.health.set().await;
        helpers.spawn(self.health.follow());
        helpers.spawn(upkeep());
        let most = affordable(self.settings.max_connections);
        if let Access::File(file) = self.access {
            helpers.spawn(file.follow());
        }
        let encryption = self.tls.map(|tls| {
            helpers.spawn(tls.clone().follow(|tls| {
                #[expect(clippy::cast_precision_loss, reason = "seconds are far below 2^52")]
                metrics::gauge!("drover_tls_certificate_expiry_timestamp_seconds")
                    .set(tls.expires() as f64);
            }));
            Arc::new(Encryption::new(tls, most, self.audit.clone()))
        });

        let mut connections = JoinSet::new();
        let crowd = Crowd::new(most);
        let builder = Arc::new(builder());
        loop {
            while connections.try_join_next().is_some() {}
            let (stream, peer) = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                accepted = accept(&listener) => accepted,
            };
            let connection = Connection {
                entrance: self.entrance.clone(),
                stream,
                peer,
                stop: self.stop.clone(),
                encryption: encryption.clone(),
            };
            let builder = builder.clone();
            match crowd.enter() {
                Entry::Admitted(place) => {
                    connections.spawn(async move { connection.serve(&builder, &place).await });
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

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(e) => {
                tracing::warn!(error = %e, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

struct Connection {
    entrance: Entrance,
    stream: TcpStream,
    peer: SocketAddr,
    stop: CancellationToken,
    encryption: Option<Arc<Encryption>>,
}

impl Connection {
    async fn serve(self, builder: &auto::Builder<TokioExecutor>, place: &Place) {
        let visitor = Some(place.visitor());
        let mut over: FuturesUnordered<_> = std::iter::once(given_up(place)).collect();
        tokio::select! {
            () = self.run(builder, visitor, Some(place)) => {}
            _ = over.next() => {}
        }
    }

    /// Says in words of whatever protocol it speaks that there is no place.
    async fn refuse(self, builder: &auto::Builder<TokioExecutor>) {
        // Who is not quick is not told.
        let _ = tokio::time::timeout(REFUSAL_TIME, self.run(builder, None, None)).await;
    }

    async fn run(
        mut self,
        builder: &auto::Builder<TokioExecutor>,
        visitor: Option<Visitor>,
        place: Option<&Place>,
    ) {
        // Without it small answers wait for acknowledgements; a socket that refuses it works all the same.
        let _ = self.stream.set_nodelay(true);
        let info = TcpConnectInfo {
            local_addr: self.stream.local_addr().ok(),
            remote_addr: Some(self.peer),
        };
        let mut visit = Visit {
            entrance: self.entrance,
            info,
            who: None,
            visitor,
        };
        let Some(encryption) = self.encryption.take() else {
            return converse(builder, self.stream, visit, &self.stop, place).await;
        };
        let shaken = tokio::select! {
            shaken = encryption.accept(self.stream, self.peer) => shaken,
            () = self.stop.cancelled() => return,
        };
        let Some((stream, who)) = shaken else {
            return;
        };
        visit.who = who;
        converse(builder, stream, visit, &self.stop, place).await;
    }
}

/// Ends when a connection that was told to go has had its time, and nothing is in flight on it.
async fn given_up(place: &Place) {
    place.displaced().await;
    tokio::time::sleep(FAREWELL).await;
    while !place.guest().is_idle() {
        tokio::time::sleep(FAREWELL).await;
    }
}

/// Serves one connection until it ends, or until it has to.
async fn converse(
    builder: &auto::Builder<TokioExecutor>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    visit: Visit,
    stop: &CancellationToken,
    place: Option<&Place>,
) {
    let peer = visit.info.remote_addr;
    let (stream, uncork) = cork(Impatient::new(stream, HEADER_TIMEOUT));
    let service = TowerToHyperService::new(visit);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // Told to go by either; polled only when something happened, since all connections share the first.
    let mut leaving: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
    leaving.push(stop.cancelled().boxed());
    if let Some(place) = place {
        leaving.push(place.displaced().boxed());
    }
    let mut told = false;
    let outcome = poll_fn(|cx| {
        if !told && leaving.poll_next_unpin(cx).is_ready() {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        let outcome = connection.as_mut().poll(cx);
        // The connection is told of an error when it writes again, or reads.
        let _ = uncork.poll(cx);
        outcome
    })
    .await;
    // What was written last; who does not read it is given up with the connection.
    let _ = tokio::time::timeout(FAREWELL, poll_fn(|cx| uncork.poll(cx))).await;
    if let Err(error) = outcome {
        // Clients go away as they like.
        tracing::debug!(?peer, error, "connection ended");
    }
}

/// gRPC to the services, anything else to the HTTP routes.
#[derive(Clone)]
struct Entrance {
    grpc: Calls,
    http: axum::Router,
    paths: Arc<[&'static str]>,
}

#[derive(Clone)]
struct Visit {
    entrance: Entrance,
    info: TcpConnectInfo,
    who: Option<Arc<Shown>>,
    /// None: there is no place for it.
    visitor: Option<Visitor>,
}

impl tower::Service<Request<Incoming>> for Visit {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let content = request.headers().get(header::CONTENT_TYPE);
        let grpc = content.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
        let Some(visitor) = &self.visitor else {
            let response = if grpc {
                crowded().into_http()
            } else {
                refusal(StatusCode::SERVICE_UNAVAILABLE)
            };
            return futures::future::ready(Ok(response)).boxed();
        };
        request.extensions_mut().insert(visitor.clone());
        request.extensions_mut().insert(self.info.clone());
        if let Some(who) = &self.who {
            request.extensions_mut().insert(who.clone());
        }
        if grpc {
            return self.entrance.grpc.call(request);
        }
        let entrance = self.entrance.clone();
        async move { Ok(entrance.plain(request).await) }.boxed()
    }
}

impl Entrance {
    /// Plain HTTP, with the same bounds as gRPC.
    async fn plain(mut self, mut request: Request<Incoming>) -> Response<Body> {
        let _in_flight = self.grpc.tracker().token();
        let exempt = OWN_PATHS.contains(&request.uri().path());
        let place = self.grpc.admit_http();
        let busy = self.grpc.busy_http(&mut request);
        let mut record = Record::start(&self.paths, &request);
        let trace = record.trace();
        let context = self.grpc.http_context(trace);
        let known = exempt || self.paths.contains(&request.uri().path());
        let (asked, entry) = self
            .grpc
            .judge_http(&request, known, context.trace_id)
            .await;
        if let Some(entry) = entry {
            record.audit(entry);
        }
        let caller = match asked {
            Ok(caller) => caller,
            Err(error) => return record.end(denied(&error)),
        };
        request.headers_mut().remove(header::AUTHORIZATION);
        request.extensions_mut().insert(caller);
        if place.is_none() && !exempt {
            return record.end(refusal(StatusCode::SERVICE_UNAVAILABLE));
        }
        let deadline = context.deadline;
        request.extensions_mut().insert(context);
        let answer = tower::Service::call(&mut self.http, request);
        let answer = AssertUnwindSafe(drover_telemetry::context::scope(Some(trace), answer))
            .catch_unwind()
            .instrument(record.span());
        let answer = match deadline {
            Some(at) => tokio::time::timeout_at(at, answer).await.ok(),
            None => Some(answer.await),
        };
        drop(busy);
        record.end(match answer {
            Some(Ok(Ok(response))) => response.map(Body::new),
            Some(Ok(Err(never))) => match never {},
            Some(Err(_)) => refusal(StatusCode::INTERNAL_SERVER_ERROR),
            None => refusal(StatusCode::GATEWAY_TIMEOUT),
        })
    }
}

fn crowded() -> tonic::Status {
    let error = drover_core::Error::new(
        drover_core::Reason::Overloaded,
        "too many connections, and all of them have calls in flight (max_connections)",
    );
    drover_convert::error::to_status(&error.with_retry_after(CROWDED_RETRY))
}

/// How many connections this process can have: each takes a file descriptor, and the store, logs and calls to others
/// need some, too.
fn affordable(wanted: usize) -> usize {
    /// Kept for everything that is no connection of a client.
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

fn refusal(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Who may not, in words of HTTP.
fn denied(error: &drover_core::Error) -> Response<Body> {
    let text = format!("{}\n", error.message());
    let mut response = Response::new(Body::new(http_body_util::Full::from(text)));
    *response.status_mut() = match error.reason() {
        drover_core::Reason::PermissionDenied => StatusCode::FORBIDDEN,
        drover_core::Reason::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::UNAUTHORIZED,
    };
    response
}

struct Health {
    reporter: HealthReporter,
    names: Vec<&'static str>,
    readiness: watch::Receiver<Readiness>,
    /// Keeps the channel of a server that is always ready open.
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
