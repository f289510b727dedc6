//! Serves a connection: TLS, HTTP, and timeouts.

use std::{net::SocketAddr, pin::pin, sync::Arc, task::Poll, time::Duration};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, poll_fn},
    stream::FuturesUnordered,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpConnectInfo;

use crate::{
    connection_limiter::{ConnectionHandle, ConnectionSlot},
    cork::cork,
    encryption::{Credential, Encryption},
    net::PrefaceTimeout,
};

use super::entrance::{Entrance, Visit};
use super::listener::Stream;
use super::{FAREWELL, REFUSAL_TIME};

/// Timeout for the connection preface and for request headers, so that slow clients do not pile up.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long unary calls may still take on a connection whose client certificate has ceased to be valid: most are
/// complete by then, and a client that ignores the GOAWAY gets no more time.
const LAST_CALLS: Duration = Duration::from_secs(10);

pub(super) struct Connection {
    pub(super) entrance: Entrance,
    pub(super) stream: Stream,
    pub(super) stop: CancellationToken,
    pub(super) encryption: Option<Arc<Encryption>>,
}

impl Connection {
    pub(super) async fn serve(self, builder: &auto::Builder<TokioExecutor>, slot: &ConnectionSlot) {
        let handle = Some(slot.handle());
        let over = async {
            tokio::select! {
                () = given_up(slot) => {}
                () = outlived(slot) => {}
            }
        };
        let mut over: FuturesUnordered<_> = std::iter::once(over).collect();
        tokio::select! {
            () = self.run(builder, handle, Some(slot)) => {}
            _ = over.next() => {}
        }
    }

    /// Refuses the connection with an error in whichever protocol the client speaks.
    pub(super) async fn refuse(self, builder: &auto::Builder<TokioExecutor>) {
        // Slow clients do not receive the error.
        let _ = tokio::time::timeout(REFUSAL_TIME, self.run(builder, None, None)).await;
    }

    pub(super) async fn run(
        mut self,
        builder: &auto::Builder<TokioExecutor>,
        handle: Option<ConnectionHandle>,
        slot: Option<&ConnectionSlot>,
    ) {
        let mut visit = Visit {
            entrance: self.entrance,
            info: TcpConnectInfo {
                local_addr: None,
                remote_addr: None,
            },
            who: None,
            handle,
        };
        let (stream, peer) = match self.stream {
            Stream::Port(stream, peer) => (stream, peer),
            Stream::Socket(stream) => {
                return converse(builder, stream, visit, None, &self.stop, slot).await;
            }
        };
        // Nagle's algorithm would delay small responses; a socket that rejects the option still works.
        let _ = stream.set_nodelay(true);
        visit.info = TcpConnectInfo {
            local_addr: stream.local_addr().ok(),
            remote_addr: Some(peer),
        };
        let Some(encryption) = self.encryption.take() else {
            return converse(builder, stream, visit, None, &self.stop, slot).await;
        };
        let shaken = tokio::select! {
            shaken = encryption.accept(stream, peer) => shaken,
            () = self.stop.cancelled() => return,
        };
        let Some((stream, shown)) = shaken else {
            return;
        };
        visit.who = shown.as_ref().map(|shown| shown.who().clone());
        converse(builder, stream, visit, shown, &self.stop, slot).await;
    }
}

/// Resolves when a displaced connection has used up its time to close, and has no calls in flight.
async fn given_up(slot: &ConnectionSlot) {
    slot.displaced().await;
    tokio::time::sleep(FAREWELL).await;
    while !slot.state().is_idle() {
        tokio::time::sleep(FAREWELL).await;
    }
}

/// Resolves when a connection whose client certificate has ceased to be valid has used up its time to close.
async fn outlived(slot: &ConnectionSlot) {
    slot.ending().over().await;
    tokio::time::sleep(FAREWELL).await;
    let idle = async {
        while !slot.state().is_idle() {
            tokio::time::sleep(FAREWELL).await;
        }
    };
    // Either result is fine.
    let _ = tokio::time::timeout(LAST_CALLS, idle).await;
}

/// Resolves when a client certificate has ceased to be valid. Streams are ended, and the client reconnects with its
/// current certificate.
async fn ends(shown: Credential, peer: SocketAddr, slot: &ConnectionSlot) {
    let who = shown.who().clone();
    let over = shown.over().await;
    let who = who.as_ref().as_ref().map_or("", |peer| peer.name());
    let why = over.why;
    tracing::info!(%peer, who, why, "a connection is closed: its client certificate holds no longer");
    slot.ending().end(over.told);
}

/// Serves a connection until it ends or has to end.
async fn converse(
    builder: &auto::Builder<TokioExecutor>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    visit: Visit,
    shown: Option<Credential>,
    stop: &CancellationToken,
    slot: Option<&ConnectionSlot>,
) {
    let peer = visit.info.remote_addr;
    let (stream, uncork) = cork(PrefaceTimeout::new(stream, HEADER_TIMEOUT));
    let service = TowerToHyperService::new(visit);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // Signals for a graceful shutdown. In a `FuturesUnordered`, so that each is polled only after its own wake-up: the
    // first signal is shared by all connections.
    let mut leaving: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
    leaving.push(stop.cancelled().boxed());
    if let Some(slot) = slot {
        leaving.push(slot.displaced().boxed());
        if let (Some(shown), Some(peer)) = (shown, peer) {
            leaving.push(ends(shown, peer, slot).boxed());
        }
    }
    let mut told = false;
    let outcome = poll_fn(|cx| {
        // Polled to completion, because a certificate can also expire on a connection that was told to shut down
        // before.
        while let Poll::Ready(Some(())) = leaving.poll_next_unpin(cx) {
            if !std::mem::replace(&mut told, true) {
                connection.as_mut().graceful_shutdown();
            }
        }
        let outcome = connection.as_mut().poll(cx);
        // The connection gets the error at its next read or write.
        let _ = uncork.poll(cx);
        outcome
    })
    .await;
    // Flush the last writes; a client that does not read them is dropped with the connection.
    let _ = tokio::time::timeout(FAREWELL, poll_fn(|cx| uncork.poll(cx))).await;
    if let Err(error) = outcome {
        // Clients may disconnect in any way.
        tracing::debug!(?peer, error, "connection ended");
    }
}
