//! A channel over several servers of which one leads: calls go to the present one until it fails.

use std::{
    error::Error as StdError,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use drover_convert::error::from_status;
use drover_core::{Error, Reason};
use futures::{FutureExt, future::BoxFuture};
use http::{HeaderMap, Request, Response, uri::Authority};
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tonic::{Code, Status, body::Body};
use tower::Service;

use crate::{
    Channel, Target, TransportError, connect,
    turn::{After, Ticket, Turn},
};

/// Metadata with the address of the server that leads.
const LEADER: &str = "leader";

#[derive(Clone, Debug)]
struct Server {
    target: Target,
    channel: Channel,
}

/// Several servers, each with a connection of its own. Clones share the connections and whose turn it is.
#[derive(Clone, Debug)]
pub(crate) struct Several {
    servers: Arc<[Server]>,
    turn: Arc<Mutex<Turn>>,
}

impl Several {
    pub(crate) fn new(targets: &[Target]) -> Self {
        let servers = targets.iter().map(|target| Server {
            target: target.clone(),
            channel: connect(target),
        });
        let names = targets.iter().map(ToString::to_string).collect();
        Self {
            servers: servers.collect(),
            turn: Arc::new(Mutex::new(Turn::new(names))),
        }
    }

    /// Changes the settings of every server's channel.
    pub(crate) fn each(&mut self, change: impl Fn(&mut Channel)) {
        let servers = Arc::make_mut(&mut self.servers);
        servers.iter_mut().for_each(|it| change(&mut it.channel));
    }

    /// Makes a call to the present server. If that fails, the next call goes to another one.
    pub(crate) fn call(
        &self,
        request: Request<Body>,
    ) -> BoxFuture<'static, Result<Response<Body>, TransportError>> {
        let ticket = self.turn.lock().ticket();
        let Some(mut channel) = self.servers.get(ticket.at).map(|it| it.channel.clone()) else {
            let error = Error::invalid("targets", "name no server");
            return std::future::ready(Err(TransportError::of(error))).boxed();
        };
        let this = self.clone();
        async move {
            let sent = match std::future::poll_fn(|cx| channel.poll_ready(cx)).await {
                Ok(()) => channel.call(request).await,
                Err(error) => Err(error),
            };
            this.judged(ticket, sent)
        }
        .boxed()
    }

    fn judged(
        self,
        ticket: Ticket,
        answer: Result<Response<Body>, TransportError>,
    ) -> Result<Response<Body>, TransportError> {
        let response = match answer {
            Ok(response) => response,
            Err(error) if is_lost(error.status()) => {
                return Err(self.failed(ticket, from_status(error.status())));
            }
            // A token that cannot be read, or a deadline: another server would not help.
            Err(error) => return Err(error),
        };
        if let Some(error) = not_leading(response.headers()) {
            return Err(self.failed(ticket, error));
        }
        if response.headers().contains_key(Status::GRPC_STATUS) {
            self.turn.lock().answered(ticket);
            return Ok(response);
        }
        Ok(response.map(|inner| {
            Body::new(Followed {
                inner,
                servers: self,
                ticket,
                answered: false,
            })
        }))
    }

    /// Leaves a server that cannot be reached, or that does not lead.
    fn failed(&self, ticket: Ticket, error: Error) -> TransportError {
        let leader = error.metadata().get(LEADER).and_then(|leader| {
            let mut targets = self.servers.iter().map(|it| &it.target);
            targets.position(|target| is_at(target, leader))
        });
        let (error, after) = self.turn.lock().failed(ticket, error, leader);
        TransportError::of(error).and(after)
    }

    /// The same, if the answer had begun: that it is tried again takes a wait, because a server that answers and dies
    /// again and again would otherwise be called without one.
    fn broken_off(&self, ticket: Ticket, error: Error) -> TransportError {
        let named = self.turn.lock().named(ticket.at, error.clone());
        self.failed(ticket, error);
        TransportError::of(named).and(After::Usual)
    }
}

/// Whether the connection failed, as opposed to the call.
fn is_lost(status: &Status) -> bool {
    status.code() == Code::Unavailable
}

/// The error of a server that does not lead.
fn not_leading(headers: &HeaderMap) -> Option<Error> {
    let code = headers.get(Status::GRPC_STATUS)?;
    if Code::from_bytes(code.as_bytes()) != Code::Unavailable {
        return None;
    }
    let error = from_status(&Status::from_header_map(headers)?);
    (error.reason() == Reason::NotLeader).then_some(error)
}

/// Whether an address is that of a target: `HOST:PORT`, a URL, or a unix socket as targets are shown.
fn is_at(target: &Target, address: &str) -> bool {
    if target.socket().is_some() {
        return target.to_string() == address;
    }
    let uri = target.uri();
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, address),
    };
    if scheme.is_some_and(|scheme| uri.scheme_str() != Some(scheme)) {
        return false;
    }
    let Ok(authority) = rest.trim_end_matches('/').parse::<Authority>() else {
        return false;
    };
    let usual = if target.is_encrypted() { 443 } else { 80 };
    let port = |port: Option<u16>| port.unwrap_or(usual);
    port(authority.port_u16()) == port(uri.port_u16())
        && uri
            .host()
            .is_some_and(|host| host.eq_ignore_ascii_case(authority.host()))
}

pin_project_lite::pin_project! {
    /// An answer that may still turn out to come from a server that is lost or no longer leads.
    struct Followed {
        #[pin]
        inner: Body,
        servers: Several,
        ticket: Ticket,
        answered: bool,
    }
}

impl HttpBody for Followed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.project();
        let polled = ready!(this.inner.poll_frame(cx));
        let error = match &polled {
            Some(Ok(frame)) => frame.trailers_ref().and_then(not_leading),
            Some(Err(status)) => transport(status).map(from_status),
            None => None,
        };
        if let Some(error) = error {
            let failure = if *this.answered {
                this.servers.broken_off(*this.ticket, error)
            } else {
                this.servers.failed(*this.ticket, error)
            };
            return Poll::Ready(Some(Err(Status::from_error(Box::new(failure)))));
        }
        if matches!(polled, Some(Ok(_))) && !std::mem::replace(this.answered, true) {
            this.servers.turn.lock().answered(*this.ticket);
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The transport failure that a status stands for, if it is one of a lost connection.
fn transport(status: &Status) -> Option<&Status> {
    let mut cause: Option<&(dyn StdError + 'static)> = status.source();
    while let Some(at) = cause {
        if let Some(failure) = at.downcast_ref::<TransportError>() {
            return Some(failure.status()).filter(|status| is_lost(status));
        }
        cause = at.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use drover_convert::error::to_status;

    use super::*;

    #[test]
    fn an_address_is_compared_by_host_and_port() {
        for (target, address, same) in [
            ("http://a:7400", "a:7400", true),
            ("http://a:7400", "http://A:7400/", true),
            ("https://a:7400", "a:7400", true),
            ("https://a", "a:443", true),
            ("http://[::1]:7400", "[::1]:7400", true),
            ("http://a:7400", "https://a:7400", false),
            ("http://a:7400", "a:7401", false),
            ("http://a:7400", "b:7400", false),
            ("http://a:7400", "a", false),
            ("http://a:7400", "", false),
            ("http://a:7400", "a b", false),
        ] {
            let target: Target = target.parse().unwrap();
            assert_eq!(is_at(&target, address), same, "{target} {address:?}");
        }
        let socket = Target::on_socket("/run/a");
        assert!(is_at(&socket, "unix:/run/a") && !is_at(&socket, "unix:/run/b"));
        assert!(!is_at(&socket, "localhost"));
    }

    #[test]
    fn only_unavailable_with_its_reason_means_that_a_server_does_not_lead() {
        let headers = |error: &Error| {
            let mut headers = HeaderMap::new();
            to_status(error).add_header(&mut headers).unwrap();
            headers
        };
        let error = Error::new(Reason::NotLeader, "x").with_metadata(LEADER, "a:1");
        assert_eq!(not_leading(&headers(&error)), Some(error));
        for other in [
            Error::unavailable("x"),
            Error::not_found("cluster", "x"),
            Error::new(Reason::Overloaded, "x"),
        ] {
            assert_eq!(not_leading(&headers(&other)), None);
        }
        assert_eq!(not_leading(&HeaderMap::new()), None);
    }
}
