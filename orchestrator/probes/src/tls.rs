//! Probes over TLS: HTTPS and gRPC. The secrets that they refer to are read again once they have changed.

use std::{collections::HashMap, io, sync::Arc};

use bytes::Bytes;
use drover_client::{Authorities, ClientSettings};
use drover_core::spec::{CA_CERT, ProbeTls, SecretRef, Trust};
use drover_platforms::connect;
use drover_secrets::Vault;
use drover_tls::{Client, client::Ready, explain};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::Failed;

/// Maximum number of cached TLS configurations, far more than groups differ in. When it is exceeded, all are rebuilt.
const MAX_KEPT: usize = 1_024;
/// ALPN protocol.
const HTTP1: &[u8] = b"http/1.1";

/// Cached TLS configurations of probes, by the secrets that they refer to.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<HashMap<ProbeTls, (Vec<Bytes>, Secure)>>);

/// A loaded TLS configuration.
#[derive(Clone, Debug)]
pub(crate) struct Secure {
    pub(super) settings: ClientSettings,
    client: Arc<Client>,
}

impl Secure {
    fn new(settings: ClientSettings) -> Self {
        let client = Arc::new(Client::new(settings.clone()));
        Self { settings, client }
    }
}

impl Kept {
    /// The TLS configuration for `tls`, with the current secrets. Fails if a secret is missing or unusable.
    pub(super) async fn get(&self, vault: &Vault, tls: &ProbeTls) -> Result<Secure, Failed> {
        let named = tls.secrets();
        // Read before the contents, so that a change in between is noticed by the next probe.
        let version = |(_, of): &(_, SecretRef)| vault.version(of);
        let versions: Vec<Bytes> = named.iter().map(version).collect();
        if let Some((known, secure)) = self.0.lock().get(tls)
            && *known == versions
        {
            return Ok(secure.clone());
        }
        let settings = read(vault, tls).await;
        let secure = Secure::new(settings.map_err(|(_, why)| Failed::Way(format!("tls: {why}")))?);
        let mut kept = self.0.lock();
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(tls.clone(), (versions, secure.clone()));
        Ok(secure)
    }
}

/// Loads the TLS configuration of `tls`. The error names the field that is unusable and the cause, never the content of
/// a secret.
///
/// # Errors
/// The field, and why.
pub async fn read(vault: &Vault, tls: &ProbeTls) -> Result<ClientSettings, (&'static str, String)> {
    let authorities = match &tls.trust {
        Trust::Any => Authorities::Any,
        Trust::System => Authorities::System,
        Trust::Secret(name) => {
            let wrong = |why: String| ("ca_secret", why);
            let of = SecretRef {
                name: name.clone(),
                key: CA_CERT.to_owned(),
            };
            let found = vault.read(&of).await;
            let found = found.map_err(|error| wrong(error.message().to_owned()))?;
            let text = String::from_utf8_lossy(&found.content).into_owned();
            drover_client::check_authorities(&text)
                .map_err(|why| wrong(format!("secret {name:?}: {why}")))?;
            Authorities::Pem(text)
        }
    };
    let certificate = match &tls.client_certificate {
        None => None,
        Some(name) => {
            let identity = connect::identity(vault, name).await;
            Some(identity.map_err(|error| {
                let field = "client_certificate_secret";
                (field, error.message().to_owned())
            })?)
        }
    };
    Ok(ClientSettings {
        authorities,
        certificate,
        server_name: tls.server_name.clone(),
        ..ClientSettings::default()
    })
}

/// A TLS connection, with the means to explain its failures.
pub(super) struct Spoken {
    pub(super) stream: TlsStream<TcpStream>,
    pub(super) words: Words,
}

/// Explains errors of a connection.
pub(super) struct Words {
    ready: Arc<Ready>,
    name: String,
}

impl Words {
    /// Explains an error of the connection.
    pub(super) fn of(&self, error: &io::Error) -> Failed {
        match explain::find(error) {
            Some(found) => judged(explain::to_caller(found, &self.name, &self.ready)),
            None => Failed::Node(super::plain(error)),
        }
    }
}

/// A server that rejects the probe's client certificate is not at fault: replacing the node would not help.
pub(super) fn judged(why: String) -> Failed {
    if explain::is_of_client(&why) {
        Failed::Way(why)
    } else {
        Failed::Node(why)
    }
}

/// Establishes TLS with the node at this address.
pub(super) async fn speak(
    stream: TcpStream,
    address: &str,
    secure: &Secure,
) -> Result<Spoken, Failed> {
    let way = |why: &dyn std::fmt::Display| Failed::Way(format!("tls: {why}"));
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let name = secure.settings.server_name.as_deref().unwrap_or(host);
    let ready = secure.client.config().map_err(|why| way(&why))?;
    let server = drover_tls::client::server_name(name).map_err(|why| way(&why))?;
    let mut config = (*ready.config).clone();
    config.alpn_protocols = vec![HTTP1.to_vec()];
    let words = Words {
        ready,
        name: name.to_owned(),
    };
    match TlsConnector::from(Arc::new(config))
        .connect(server, stream)
        .await
    {
        Ok(stream) => Ok(Spoken { stream, words }),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Failed::Node(
            "it closed the connection during the TLS handshake: does it speak TLS there?"
                .to_owned(),
        )),
        Err(error) => Err(words.of(&error)),
    }
}

#[cfg(test)]
mod tests;
