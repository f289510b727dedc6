//! The connection to another server.

use std::time::Duration;

use drover_core::{Error, Result};
use drover_tls::{Authorities, Client, ClientSettings, Connector, Identity, Line, Trouble};
use http::{Uri, uri::Scheme};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::RemoteSettings;

/// Time for a connection with its TLS handshake: a lost SYN is sent again after 1 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How often a connection proves that it lives, and how long an answer may take.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The channel, and why its last connection has ended.
pub(super) fn open(settings: &RemoteSettings) -> Result<(Channel, Trouble)> {
    let wrong = |why: &str| Error::invalid("endpoint", why.to_owned());
    let uri: Uri = settings
        .endpoint
        .parse()
        .map_err(|_| wrong("is no address; expected http://HOST:PORT or https://HOST:PORT"))?;
    let host = uri.host().map(str::to_owned);
    let Some(host) = host.filter(|host| !host.is_empty()) else {
        return Err(wrong("has no host"));
    };
    let secure = match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTPS => true,
        Some(scheme) if *scheme == Scheme::HTTP => false,
        Some(_) | None => return Err(wrong("expected http:// or https://")),
    };
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let tls = tls(settings, secure)?;
    let name = settings.server_name.clone().unwrap_or_else(|| host.clone());
    let tls = tls.map(|client| Connector::new(client, name, CONNECT_TIMEOUT));
    let (interval, timeout) = KEEP_ALIVE;
    // tonic wants to know of no TLS but its own.
    let mut plain = uri.clone().into_parts();
    plain.scheme = Some(Scheme::HTTP);
    let plain = Uri::from_parts(plain).map_err(|_| wrong("is no address"))?;
    let endpoint = Endpoint::from(plain)
        .origin(uri)
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(interval)
        .keep_alive_timeout(timeout)
        .keep_alive_while_idle(true);
    let at = (host.trim_matches(['[', ']']).to_owned(), port);
    let trouble = Trouble::default();
    let told = trouble.clone();
    let channel = endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| {
        let (at, tls, trouble) = (at.clone(), tls.clone(), told.clone());
        trouble.set(None);
        async move {
            let stream = tcp(at).await?;
            let line = match tls {
                None => Line::plain(stream),
                Some(tls) => tls.connect(stream).await?,
            };
            Ok::<_, BoxError>(TokioIo::new(line.telling(trouble)))
        }
    }));
    Ok((channel, trouble))
}

fn tls(settings: &RemoteSettings, secure: bool) -> Result<Option<Client>> {
    let certificate = match (&settings.cert, &settings.key) {
        (Some(cert), Some(key)) => Some(Identity::Files(cert.clone(), key.clone())),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            return Err(Error::invalid("cert", "certificate and key go together"));
        }
    };
    if !secure {
        if certificate.is_some() || settings.ca.is_some() {
            return Err(Error::invalid("endpoint", "certificates are for https://"));
        }
        return Ok(None);
    }
    let settings = ClientSettings {
        authorities: settings
            .ca
            .clone()
            .map_or(Authorities::System, Authorities::File),
        certificate,
        server_name: settings.server_name.clone(),
        ..ClientSettings::default()
    };
    settings
        .check()
        .map_err(|why| Error::invalid("ca", why.to_string()))?;
    Ok(Some(Client::new(settings)))
}

async fn tcp(at: (String, u16)) -> Result<TcpStream, BoxError> {
    let stream = TcpStream::connect(at).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
