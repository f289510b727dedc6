//! Establishes connections: TCP, TLS if requested, and descriptive errors for the failures in between.

use std::{
    future::Future,
    path::PathBuf,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use drover_tls::{Client, Connector, Line, LineError};
use http::Uri;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use tokio::net::UnixStream;
use tower::Service;

pub(crate) use drover_tls::Trouble;

use crate::role::Wanted;

/// Connector of a target.
#[derive(Clone, Debug)]
pub(crate) struct Dial {
    trouble: Trouble,
    tcp: HttpConnector,
    tls: Option<Connector>,
    /// Unix socket to connect to instead of TCP.
    socket: Option<PathBuf>,
    timeout: Duration,
}

impl Dial {
    pub(crate) fn new(
        timeout: Duration,
        tls: Option<(Client, String, Wanted)>,
        socket: Option<PathBuf>,
    ) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(timeout));
        let tls = tls.map(|(client, name, wanted)| {
            let connector = Connector::new(client, name, timeout);
            connector.checking(move |server| wanted.check(server))
        });
        Self {
            trouble: Trouble::default(),
            tcp,
            tls,
            socket,
            timeout,
        }
    }

    pub(crate) fn trouble(&self) -> Trouble {
        self.trouble.clone()
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Service<Uri> for Dial {
    type Response = TokioIo<Line>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        if let Some(path) = self.socket.clone() {
            let (timeout, trouble) = (self.timeout, self.trouble.clone());
            trouble.set(None);
            return Box::pin(async move {
                let connected = tokio::time::timeout(timeout, UnixStream::connect(&path)).await;
                let stream = connected
                    .unwrap_or_else(|late| Err(late.into()))
                    .map_err(|error| LineError::new(error.to_string()))?;
                Ok(TokioIo::new(Line::local(stream).telling(trouble)))
            });
        }
        let tcp = self.tcp.call(uri);
        let (tls, trouble) = (self.tls.clone(), self.trouble.clone());
        // The previous problem may have been fixed meanwhile.
        trouble.set(None);
        Box::pin(async move {
            let stream = tcp.await?.into_inner();
            let line = match tls {
                None => Line::plain(stream),
                Some(tls) => tls.connect(stream).await?,
            };
            Ok(TokioIo::new(line.telling(trouble)))
        })
    }
}
