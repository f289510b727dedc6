//! One way to a server, whatever lies between.

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
use tonic::{Status, TimeoutExpired, body::Body, service::Routes, transport::Endpoint};
use tower::Service;

use crate::{
    bearer::{self, Bearer, Header},
    dial::{Dial, Trouble},
    observe::{Observed, Peer},
    role::{Role, Wanted},
};

/// How often a connection is pinged. A partition is noticed after this and [`KEEP_ALIVE_TIMEOUT`] at most.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long a ping may stay unanswered: far more than a busy server takes, far less than a person waits.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may take to be made: a lost SYN is sent again after 1 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Where a server is and how its connection is watched over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    uri: Uri,
    socket: Option<PathBuf>,
    /// Time between pings, also while no call is in flight. Default 10 s.
    pub keep_alive_interval: Duration,
    /// How long a ping may stay unanswered before the connection is given up. Default 5 s.
    pub keep_alive_timeout: Duration,
    /// How long a connection may take to be made. Default 3 s.
    pub connect_timeout: Duration,
    /// How TLS is spoken, for `https`. Default: the authorities of the system, no certificate of the client's own.
    pub tls: ClientSettings,
    /// Token that goes with every call. Default: none.
    pub bearer: Option<Bearer>,
    /// Address to connect to in the place of what the host leads to, for who has resolved and judged it. Default: none.
    pub at: Option<SocketAddr>,
}

impl Target {
    /// A server of this machine that listens on a unix socket.
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
            tls: ClientSettings::default(),
            bearer: None,
            at: None,
        }
    }

    /// The unix socket, if it is one.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Whether TLS is spoken.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.uri.scheme() == Some(&Scheme::HTTPS)
    }

    /// The same with certificates, read once to see that they can be. Errors: `Invalid` if they cannot, with which and
    /// why, or if the endpoint is not `https`.
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

    /// The same with a token for every call.
    #[must_use]
    pub fn with_bearer(mut self, bearer: Bearer) -> Self {
        self.bearer = Some(bearer);
        self
    }

    /// The endpoint, as it was given.
    #[must_use]
    pub fn uri(&self) -> &Uri {
        &self.uri
    }
}

impl FromStr for Target {
    type Err = Error;

    /// `http://host:port` or `https://host:port`. Errors: `Invalid` for anything else.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            Error::invalid(
                "endpoint",
                format!("{text:?} {why}; expected http://HOST:PORT or https://HOST:PORT"),
            )
        };
        let uri: Uri = text.parse().map_err(|_| wrong("is no URL"))?;
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

/// A way to a server, usable with every generated client. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Channel {
    way: Way,
    bearer: Option<Header>,
    peer: Peer,
    wanted: Wanted,
}

impl Channel {
    /// The same to a server that must have a role. Connections are not made before the first call.
    pub(crate) fn to(self, role: Role) -> Self {
        self.wanted.want(role);
        self
    }

    /// The same to a platform of this name: its calls are counted and timed under it.
    #[must_use]
    pub fn to_platform(mut self, name: &str) -> Self {
        self.peer.platform = Some(name.into());
        self
    }

    /// The same with a token for every call.
    #[must_use]
    pub fn with_bearer(mut self, bearer: Bearer) -> Self {
        self.bearer = Some(Header::new(bearer));
        self
    }
}

#[derive(Clone, Debug)]
enum Way {
    Network(tonic::transport::Channel, Trouble),
    InProcess(Routes),
}

/// A channel to a server on the network. Never blocks: the connection is made by the first call, and made again by the
/// next one when it is lost. Has to be called within a tokio runtime.
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

/// What calls say whom they are for: the name that the certificate must have, where that is another than the address.
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

/// Where to connect to. tonic would do its own TLS for `https`, with files that it reads once.
fn address(uri: &Uri) -> Uri {
    /// Where `https` is spoken if nothing is said.
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
    // Nothing but the scheme and the port changed, so it is one.
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

/// A channel to services in the same process: no socket, no connection, no HTTP/2. Works with a paused clock.
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
            Way::InProcess(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
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
            Way::Network(channel, trouble) => {
                let trouble = trouble.clone();
                let Some(bearer) = self.bearer.clone() else {
                    let answer = channel.call(request);
                    return answer.map(move |answer| outcome(answer, &trouble)).boxed();
                };
                // The one that is ready; the clone that stays becomes ready for the next call.
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

/// An answer that does not repeat the token that it was asked with.
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

/// What went wrong between the two sides, as opposed to what the server answered.
///
/// tonic sees `Unavailable` in it (or `DeadlineExceeded`), whatever the layers below called it: the outcome of the call
/// is unknown, and a retry may reach the server.
#[derive(Debug)]
pub struct TransportError(Status);

impl TransportError {
    /// With what the connection ended with, if that says more.
    fn because(self, trouble: &Trouble) -> Self {
        match trouble.get() {
            Some(why) if !self.0.message().contains(&why) => {
                Self::of(Error::new(Reason::Unavailable, why))
            }
            _ => self,
        }
    }

    pub(crate) fn status(&self) -> &Status {
        &self.0
    }

    /// What kept a call from being sent.
    fn of(error: Error) -> Self {
        Self(drover_convert::error::to_status(&error))
    }

    fn new(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let error = error.into();
        let mut reason = Reason::Unavailable;
        // The outermost text of tonic says only "transport error"; what helps is further down.
        let mut message = String::new();
        let mut next: Option<&(dyn StdError + 'static)> = Some(&*error);
        while let Some(cause) = next {
            if cause.is::<TimeoutExpired>() {
                reason = Reason::DeadlineExceeded;
            }
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
        Self(drover_convert::error::to_status(&Error::new(
            reason, message,
        )))
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.message())
    }
}

impl StdError for TransportError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}
