//! A channel to a server, independent of the transport.

use std::{
    error::Error as StdError,
    fmt,
    net::{Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
    task::{Context, Poll},
    time::Duration,
};

use drover_convert::secrecy::clean_status;
use drover_core::{Error, Reason, secrecy::Hidden};
use drover_tls::{Client, ClientSettings};
use futures::{FutureExt, future::BoxFuture};
use http::{Request, Response, Uri, header, uri::Scheme};
use http_body_util::BodyExt;
use tonic::{
    ConnectError, Status, TimeoutExpired, body::Body, service::Routes, transport::Endpoint,
};
use tower::Service;

use crate::{
    bearer::{self, Bearer, Header},
    dial::{Dial, Trouble},
    observe::{Observed, Peer},
    role::{Role, Wanted},
    several::Several,
    turn::After,
};

/// Keep-alive interval. A partition is noticed after at most this plus [`KEEP_ALIVE_TIMEOUT`].
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Keep-alive timeout: far more than a busy server needs, far less than a person would wait.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Connect timeout: a lost SYN is retransmitted after 1 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Streams of a connection, at most: what servers of this project allow.
const STREAMS: u32 = 1024;

/// Location of a server, and the settings of its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    uri: Uri,
    socket: Option<PathBuf>,
    /// Interval between keep-alive pings, also while no call is in flight. Default 10 s.
    pub keep_alive_interval: Duration,
    /// Time without a ping response after which the connection is closed. Default 5 s.
    pub keep_alive_timeout: Duration,
    /// Timeout for establishing a connection. Default 3 s.
    pub connect_timeout: Duration,
    /// Bytes of a stream that are received ahead of its reader. If set, a connection takes so much of each of 1024 streams,
    /// so that one that is not read holds up no other. Default: what the HTTP/2 library takes.
    pub stream_window: Option<u32>,
    /// TLS settings for `https`. Default: the system's CAs and no client certificate.
    pub tls: ClientSettings,
    /// Bearer token for every call. Default: none.
    pub bearer: Option<Bearer>,
    /// Address to connect to instead of resolving the host, for callers that have already resolved and vetted it.
    /// Default: none.
    pub at: Option<SocketAddr>,
}

impl Target {
    /// Creates a target for a server on this machine that listens on a unix socket.
    #[must_use]
    pub fn on_socket(path: impl Into<PathBuf>) -> Self {
        Self {
            socket: Some(path.into()),
            ..Self::at(Uri::from_static("http://localhost"))
        }
    }

    fn at(uri: Uri) -> Self {
        Self {
            uri,
            socket: None,
            keep_alive_interval: KEEP_ALIVE_INTERVAL,
            keep_alive_timeout: KEEP_ALIVE_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            stream_window: None,
            tls: ClientSettings::default(),
            bearer: None,
            at: None,
        }
    }

    /// The unix socket, if the target is one.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Whether TLS is used.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.uri.scheme() == Some(&Scheme::HTTPS)
    }

    /// Sets the TLS settings, after checking that the certificates can be read. Returns `Invalid` if they cannot,
    /// naming the file and the cause, or if the endpoint is not `https`.
    pub fn with_tls(mut self, tls: ClientSettings) -> Result<Self, Error> {
        if !self.is_encrypted() && tls != ClientSettings::default() {
            return Err(Error::invalid(
                "endpoint",
                format!("{self} is plaintext: certificates are for https://"),
            ));
        }
        tls.check()
            .map_err(|why| Error::invalid("tls", why.to_string()))?;
        self.tls = tls;
        Ok(self)
    }

    /// Sets the bearer token for every call.
    #[must_use]
    pub fn with_bearer(mut self, bearer: Bearer) -> Self {
        self.bearer = Some(bearer);
        self
    }

    /// The endpoint as given.
    #[must_use]
    pub fn uri(&self) -> &Uri {
        &self.uri
    }
}

impl FromStr for Target {
    type Err = Error;

    /// Parses `http://host:port` or `https://host:port`. Returns `Invalid` for anything else.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            Error::invalid(
                "endpoint",
                format!("{text:?} {why}; expected http://HOST:PORT or https://HOST:PORT"),
            )
        };
        let uri: Uri = text.parse().map_err(|_| wrong("is not a URL"))?;
        match uri.scheme_str() {
            Some("http" | "https") => {}
            Some(_) => return Err(wrong("has a scheme that is not supported")),
            None => return Err(wrong("has no scheme")),
        }
        if uri.host().is_none_or(str::is_empty) {
            return Err(wrong("has no host"));
        }
        let port = uri
            .authority()
            .and_then(|authority| authority.as_str().rsplit_once(':'));
        if port.is_some_and(|(_, port)| !port.ends_with(']') && port.parse::<u16>().is_err()) {
            return Err(wrong("has a port that cannot be"));
        }
        if uri
            .path_and_query()
            .is_some_and(|path| path.as_str() != "/")
        {
            return Err(wrong("has a path"));
        }
        Ok(Self::at(uri))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.socket {
            Some(path) => write!(f, "unix:{}", path.display()),
            None => write!(f, "{}", self.uri.to_string().trim_end_matches('/')),
        }
    }
}

/// A channel to a server, usable with every generated client. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Channel {
    way: Way,
    bearer: Option<Header>,
    peer: Peer,
    wanted: Wanted,
}

impl Channel {
    /// Requires the server to have this role. Must be set before the first call, which establishes the connection.
    pub(crate) fn to(mut self, role: Role) -> Self {
        self.each(|channel| channel.wanted.want(role));
        self
    }

    /// Requires the server to be an orchestrator, as far as its certificate tells. Must be set before the first call.
    #[must_use]
    pub fn to_orchestrator(self) -> Self {
        self.to(Role::Orchestrator)
    }

    /// Whether there are several servers of which one leads.
    pub(crate) fn is_several(&self) -> bool {
        matches!(self.way, Way::Several(_))
    }

    /// Changes the settings of every server.
    fn each(&mut self, change: impl Fn(&mut Self)) {
        match &mut self.way {
            Way::Several(servers) => servers.each(change),
            Way::Network(..) | Way::InProcess(_) => change(self),
        }
    }

    /// Marks the channel as leading to the platform of this name, under which its calls are counted and timed.
    #[must_use]
    pub fn to_platform(mut self, name: &str) -> Self {
        self.each(|channel| channel.peer.platform = Some(name.into()));
        self
    }

    /// Sets the bearer token for every call.
    #[must_use]
    pub fn with_bearer(mut self, bearer: Bearer) -> Self {
        let header = Header::new(bearer);
        self.each(|channel| channel.bearer = Some(header.clone()));
        self
    }
}

#[derive(Clone, Debug)]
enum Way {
    Network(tonic::transport::Channel, Trouble),
    InProcess(Routes),
    Several(Several),
}

/// Creates a channel to a server on the network. Never blocks: the connection is established by the first call, and
/// re-established by the next call after it is lost. Must be called within a tokio runtime.
#[must_use]
pub fn connect(target: &Target) -> Channel {
    let uri = match target.at {
        Some(at) => Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(at.to_string())
            .path_and_query("/")
            .build()
            .unwrap_or_else(|_| address(&target.uri)),
        None => address(&target.uri),
    };
    let endpoint = Endpoint::from(uri);
    let endpoint = match endpoint
        .clone()
        .user_agent(concat!("drover/", env!("CARGO_PKG_VERSION")))
    {
        Ok(named) => named,
        Err(_) => endpoint,
    };
    let endpoint = endpoint
        .origin(origin(target))
        .initial_stream_window_size(target.stream_window)
        .initial_connection_window_size(target.stream_window.map(|bytes| bytes * STREAMS))
        .http2_keep_alive_interval(target.keep_alive_interval)
        .keep_alive_timeout(target.keep_alive_timeout)
        .keep_alive_while_idle(true);
    let wanted = Wanted::new(target.tls.require_role);
    let tls = target.is_encrypted().then(|| {
        let host = target.uri.host().unwrap_or_default();
        let name = target.tls.server_name.as_deref().unwrap_or(host);
        let client = Client::new(target.tls.clone());
        (client, name.to_owned(), wanted.clone())
    });
    let dial = Dial::new(target.connect_timeout, tls, target.socket.clone());
    let trouble = dial.trouble();
    Channel {
        way: Way::Network(endpoint.connect_with_connector_lazy(dial), trouble),
        bearer: target.bearer.clone().map(Header::new),
        peer: Peer {
            uri: Some(target.uri.clone()),
            ..Peer::default()
        },
        wanted,
    }
}

/// Creates a channel to several servers of which one leads. Calls go to the present server, at first the first one. When
/// it cannot be reached, loses the connection, or answers `NOT_LEADER`, that call fails, and later ones go to the next
/// server, or to the one that it named as `leader` if that is one of the targets.
///
/// Nothing is repeated here: [`Policy`](crate::retry::Policy) tries again, at once while there is a server that was not
/// tried yet. Each server has its own connection, established by the first call to it.
///
/// Without a target, every call fails with `Invalid`.
#[must_use]
pub fn connect_any(targets: &[Target]) -> Channel {
    if let [target] = targets {
        return connect(target);
    }
    Channel {
        way: Way::Several(Several::new(targets)),
        bearer: None,
        peer: Peer::default(),
        wanted: Wanted::default(),
    }
}

/// The authority of calls: the name that the certificate must match, if it differs from the address.
fn origin(target: &Target) -> Uri {
    let uri = &target.uri;
    let Some(name) = target.tls.server_name.as_ref() else {
        return uri.clone();
    };
    if !target.is_encrypted() {
        return uri.clone();
    }
    let name = match name.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]"),
        Err(_) => name.clone(),
    };
    let authority = match uri.port_u16() {
        Some(port) => format!("{name}:{port}"),
        None => name,
    };
    let mut parts = uri.clone().into_parts();
    parts.authority = authority.parse().ok().or(parts.authority);
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

/// The address to connect to. The scheme becomes `http`, because tonic would otherwise do its own TLS for `https`, with
/// files that it reads only once.
fn address(uri: &Uri) -> Uri {
    /// Default port of `https`.
    const HTTPS_PORT: u16 = 443;
    let mut parts = uri.clone().into_parts();
    if uri.scheme() == Some(&Scheme::HTTPS) {
        if uri.port().is_none()
            && let Some(host) = uri.host()
        {
            parts.authority = format!("{host}:{HTTPS_PORT}").parse().ok();
        }
        parts.scheme = Some(Scheme::HTTP);
    }
    // Cannot fail, since only the scheme and the port changed.
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

/// Creates a channel to services in the same process, without socket, connection or HTTP/2. Works with a paused clock.
#[must_use]
pub fn in_process(routes: Routes) -> Channel {
    Channel {
        way: Way::InProcess(routes.prepare()),
        bearer: None,
        peer: Peer::default(),
        wanted: Wanted::default(),
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = TransportError;
    type Future = BoxFuture<'static, Result<Response<Body>, TransportError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        match &mut self.way {
            Way::Network(channel, trouble) => channel
                .poll_ready(cx)
                .map_err(|error| TransportError::new(error).because(trouble)),
            // Which server a call goes to is decided when it is made.
            Way::InProcess(_) | Way::Several(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Way::Several(servers) = &self.way {
            // The channel of the server observes the call.
            return servers.call(request);
        }
        let observed = Observed::begin(&mut request, &self.peer);
        let answer = self.send(request);
        match observed {
            Some(observed) => async move { observed.answered(answer.await) }.boxed(),
            None => answer,
        }
    }
}

impl Channel {
    fn send(
        &mut self,
        mut request: Request<Body>,
    ) -> BoxFuture<'static, Result<Response<Body>, TransportError>> {
        match &mut self.way {
            Way::Several(servers) => servers.call(request),
            Way::Network(channel, trouble) => {
                let trouble = trouble.clone();
                let Some(bearer) = self.bearer.clone() else {
                    let answer = channel.call(request);
                    return answer.map(move |answer| outcome(answer, &trouble)).boxed();
                };
                // Take the instance that is ready; the clone becomes ready for the next call.
                let fresh = channel.clone();
                let mut channel = std::mem::replace(channel, fresh);
                async move {
                    let value = bearer.value().await.map_err(TransportError::of)?;
                    let token = bearer::hidden(&value);
                    request.headers_mut().insert(header::AUTHORIZATION, value);
                    let answer = outcome(channel.call(request).await, &trouble)?;
                    Ok(without(token, answer))
                }
                .boxed()
            }
            Way::InProcess(routes) => {
                let mut routes = routes.clone();
                async move {
                    futures::future::poll_fn(|cx| {
                        Service::<Request<Body>>::poll_ready(&mut routes, cx)
                    })
                    .await
                    .unwrap_or_else(|never| match never {});
                    Ok(routes
                        .call(request)
                        .await
                        .unwrap_or_else(|never| match never {}))
                }
                .boxed()
            }
        }
    }
}

/// Redacts the token of the request from its response.
fn without(token: Hidden, answer: Response<Body>) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    clean_status(&token, &mut head.headers);
    let body = body.map_frame(move |mut frame| {
        if let Some(trailers) = frame.trailers_mut() {
            clean_status(&token, trailers);
        }
        frame
    });
    Response::from_parts(head, Body::new(body))
}

fn outcome(
    answer: Result<Response<Body>, tonic::transport::Error>,
    trouble: &Trouble,
) -> Result<Response<Body>, TransportError> {
    match answer {
        Ok(response) => Ok(response.map(|body| Body::new(body.map_err(TransportError::new)))),
        Err(error) => Err(TransportError::new(error).because(trouble)),
    }
}

/// A transport failure, as opposed to an error that the server returned.
///
/// tonic treats it as `Unavailable` (or `DeadlineExceeded`), whatever the lower layers called it: the outcome of the
/// call is unknown, and a retry may reach the server.
///
/// Over several servers it also stands for the answer of one that does not lead.
#[derive(Debug)]
pub struct TransportError {
    status: Status,
    after: After,
    sent: bool,
}

impl TransportError {
    /// Adds the reason for which the connection ended, if it is more specific.
    fn because(self, trouble: &Trouble) -> Self {
        match trouble.get() {
            Some(why) if !self.status.message().contains(&why) => Self {
                sent: self.sent,
                ..Self::of(Error::new(Reason::Unavailable, why))
            },
            _ => self,
        }
    }

    /// The status that stands for it.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Whether the server may have received the call.
    #[must_use]
    pub fn was_sent(&self) -> bool {
        self.sent
    }

    pub(crate) fn after(&self) -> After {
        self.after
    }

    /// Sets what the caller may do.
    pub(crate) fn and(mut self, after: After) -> Self {
        self.after = after;
        self
    }

    /// Wraps an error that prevented the call from being sent, or that stands for its failure.
    pub(crate) fn of(error: Error) -> Self {
        Self {
            status: drover_convert::error::to_status(&error),
            after: After::Unreachable,
            sent: true,
        }
    }

    fn new(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let error = error.into();
        let mut reason = Reason::Unavailable;
        let mut sent = true;
        // tonic's outermost message is only "transport error"; the useful cause is further down the chain.
        let mut message = String::new();
        let mut next: Option<&(dyn StdError + 'static)> = Some(&*error);
        while let Some(cause) = next {
            if cause.is::<TimeoutExpired>() {
                reason = Reason::DeadlineExceeded;
            }
            sent &= !cause.is::<ConnectError>();
            let text = match cause.downcast_ref::<Status>() {
                Some(status) => status.message().to_owned(),
                None => cause.to_string(),
            };
            if !message.contains(&text) && text != "transport error" {
                if !message.is_empty() {
                    message.push_str(": ");
                }
                message.push_str(&text);
            }
            next = cause.source();
        }
        if message.is_empty() {
            message.push_str("the connection failed");
        }
        Self {
            sent,
            ..Self::of(Error::new(reason, message))
        }
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.status.message())
    }
}

impl StdError for TransportError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.status)
    }
}
