//! The connection to a collector, established on demand and re-established when lost.

use std::{
    error::Error as StdError,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use drover_tls::{Client, Connector, Line};
use http::{Uri, uri::Scheme};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use tonic::transport::{Channel, Endpoint};
use tower::Service;

use crate::settings::{Settings, TelemetryError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Keep-alive interval while a call is in flight.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Creates a channel without connecting yet.
pub(super) fn open(settings: &Settings) -> Result<Channel, TelemetryError> {
    let uri = settings.endpoint.clone();
    let endpoint = |uri: Uri| {
        Endpoint::from(uri)
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE)
    };
    if uri.scheme() != Some(&Scheme::HTTPS) {
        return Ok(endpoint(uri).connect_lazy());
    }
    settings
        .tls
        .check_files()
        .map_err(|why| TelemetryError::of(&why))?;
    let tls = Tls {
        connector: Connector::new(
            Client::new(settings.tls.clone()),
            uri.host().unwrap_or_default().to_owned(),
            CONNECT_TIMEOUT,
        ),
        tcp: {
            let mut tcp = HttpConnector::new();
            tcp.enforce_http(false);
            tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
            tcp
        },
    };
    // The scheme must be `http`, because tonic would otherwise do its own TLS.
    let mut parts = uri.clone().into_parts();
    if uri.port().is_none()
        && let Some(host) = uri.host()
    {
        parts.authority = format!("{host}:443").parse().ok();
    }
    parts.scheme = Some(Scheme::HTTP);
    let plain = Uri::from_parts(parts).map_err(|why| TelemetryError::of(&why))?;
    Ok(endpoint(plain).origin(uri).connect_with_connector_lazy(tls))
}

/// Describes an error including its causes.
pub(super) fn words(error: &(dyn StdError + 'static)) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        next = cause.source();
    }
    words
}

#[derive(Clone)]
struct Tls {
    connector: Connector,
    tcp: HttpConnector,
}

type BoxError = Box<dyn StdError + Send + Sync>;
type Connecting = Pin<Box<dyn Future<Output = Result<TokioIo<Line>, BoxError>> + Send>>;

impl Service<Uri> for Tls {
    type Response = TokioIo<Line>;
    type Error = BoxError;
    type Future = Connecting;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        let tcp = self.tcp.call(uri);
        let connector = self.connector.clone();
        Box::pin(async move {
            let line = connector.connect(tcp.await?.into_inner()).await?;
            Ok(TokioIo::new(line))
        })
    }
}
