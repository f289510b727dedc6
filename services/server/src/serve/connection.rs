//! One connection: TLS, HTTP, and how long it may do nothing.

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
    cork::cork,
    crowd::{Place, Visitor},
    encryption::{Credential, Encryption},
    net::Impatient,
};

use super::entrance::{Entrance, Visit};
use super::listener::Stream;
use super::{FAREWELL, REFUSAL_TIME};

/// How long a connection may take to send what it wants, so that slow ones do not pile up.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long calls with one answer may still take on a connection whose client certificate holds no longer: most are over by
/// then, and who ignores that it has to go has no more of it.
const LAST_CALLS: Duration = Duration::from_secs(10);

pub(super) struct Connection {
    pub(super) entrance: Entrance,
    pub(super) stream: Stream,
    pub(super) stop: CancellationToken,
    pub(super) encryption: Option<Arc<Encryption>>,
}

impl Connection {
    pub(super) async fn serve(self, builder: &auto::Builder<TokioExecutor>, place: &Place) {
        let visitor = Some(place.visitor());
        let over = async {
            tokio::select! {
                () = given_up(place) => {}
                () = outlived(place) => {}
            }
        };
        let mut over: FuturesUnordered<_> = std::iter::once(over).collect();
        tokio::select! {
            () = self.run(builder, visitor, Some(place)) => {}
            _ = over.next() => {}
        }
    }

    /// Says in words of whatever protocol it speaks that there is no place.
    pub(super) async fn refuse(self, builder: &auto::Builder<TokioExecutor>) {
        // Who is not quick is not told.
        let _ = tokio::time::timeout(REFUSAL_TIME, self.run(builder, None, None)).await;
    }

    pub(super) async fn run(
        mut self,
        builder: &auto::Builder<TokioExecutor>,
        visitor: Option<Visitor>,
        place: Option<&Place>,
    ) {
        let mut visit = Visit {
            entrance: self.entrance,
            info: TcpConnectInfo {
                local_addr: None,
                remote_addr: None,
            },
            who: None,
            visitor,
        };
        let (stream, peer) = match self.stream {
            Stream::Port(stream, peer) => (stream, peer),
            Stream::Socket(stream) => {
                return converse(builder, stream, visit, None, &self.stop, place).await;
            }
        };
        // Without it small answers wait for acknowledgements; a socket that refuses it works all the same.
        let _ = stream.set_nodelay(true);
        visit.info = TcpConnectInfo {
            local_addr: stream.local_addr().ok(),
            remote_addr: Some(peer),
        };
        let Some(encryption) = self.encryption.take() else {
            return converse(builder, stream, visit, None, &self.stop, place).await;
        };
        let shaken = tokio::select! {
            shaken = encryption.accept(stream, peer) => shaken,
            () = self.stop.cancelled() => return,
        };
        let Some((stream, shown)) = shaken else {
            return;
        };
        visit.who = shown.as_ref().map(|shown| shown.who().clone());
        converse(builder, stream, visit, shown, &self.stop, place).await;
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

/// Ends when a connection whose client certificate holds no longer has had its time.
async fn outlived(place: &Place) {
    place.ending().over().await;
    tokio::time::sleep(FAREWELL).await;
    let idle = async {
        while !place.guest().is_idle() {
            tokio::time::sleep(FAREWELL).await;
        }
    };
    // Either will do.
    let _ = tokio::time::timeout(LAST_CALLS, idle).await;
}

/// Ends when a client certificate holds no longer: streams are told, and who is there connects again with what it has now.
async fn ends(shown: Credential, peer: SocketAddr, place: &Place) {
    let who = shown.who().clone();
    let over = shown.over().await;
    let who = who.as_ref().as_ref().map_or("", |peer| peer.name());
    let why = over.why;
    tracing::info!(%peer, who, why, "a connection is closed: its client certificate holds no longer");
    place.ending().end(over.told);
}

/// Serves one connection until it ends, or until it has to.
async fn converse(
    builder: &auto::Builder<TokioExecutor>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    visit: Visit,
    shown: Option<Credential>,
    stop: &CancellationToken,
    place: Option<&Place>,
) {
    let peer = visit.info.remote_addr;
    let (stream, uncork) = cork(Impatient::new(stream, HEADER_TIMEOUT));
    let service = TowerToHyperService::new(visit);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // Told to go by any; polled only when something happened, since all connections share the first.
    let mut leaving: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
    leaving.push(stop.cancelled().boxed());
    if let Some(place) = place {
        leaving.push(place.displaced().boxed());
        if let (Some(shown), Some(peer)) = (shown, peer) {
            leaving.push(ends(shown, peer, place).boxed());
        }
    }
    let mut told = false;
    let outcome = poll_fn(|cx| {
        // To the end: a certificate also expires on a connection that was told to go before.
        while let Poll::Ready(Some(())) = leaving.poll_next_unpin(cx) {
            if !std::mem::replace(&mut told, true) {
                connection.as_mut().graceful_shutdown();
            }
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
