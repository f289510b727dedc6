//! The server side.

use std::{
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, UnixTime},
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    version::TLS13,
};
use tokio::sync::watch;

use crate::{
    TlsError,
    explain::utc,
    peer::Certificate,
    pem::{self, Source},
    provider,
};

/// Interval at which the files are checked. A change takes effect once two consecutive checks find the same content, so
/// that a certificate is not combined with the key of another one.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// ALPN protocols in order of preference.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

const CERT: &str = "certificate (tls.cert)";
const KEY: &str = "key (tls.key)";
const CLIENT_CA: &str = "authorities of clients (tls.client_ca)";
const CRL: &str = "revoked certificates (tls.crl)";
/// How long before a revocation list expires a warning is logged, in seconds. Without a new list, all clients would be
/// rejected.
const LIST_ENDS_SOON: i64 = 24 * 60 * 60;

/// Files with the server's certificate and the trust anchors for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// Certificate with its intermediates, PEM.
    pub cert: PathBuf,
    /// Private key of the certificate, PEM (PKCS#8, SEC1 or PKCS#1).
    pub key: PathBuf,
    /// CAs of client certificates, PEM. `None` to request no client certificates.
    pub client_ca: Option<PathBuf>,
    /// Certificate revocation lists, PEM, one per issuing CA. `None` for no revocation check.
    pub crl: Option<PathBuf>,
}

/// TLS server that follows changes of its files.
pub struct Server {
    files: ServerFiles,
    state: Mutex<State>,
    /// Counts changes of the trust in clients.
    trust: watch::Sender<u64>,
}

struct State {
    made: Made,
    /// The last logged warning about the expiry of the revocation list.
    said_of_list: Said,
    loaded: Sources,
    /// Content found by the last check that is not in use yet.
    pending: Option<Found>,
    /// Content that was rejected, so that it is reported only once.
    refused: Option<Found>,
}

/// The configuration built from the files.
struct Made {
    config: Arc<ServerConfig>,
    expires: i64,
    names: Arc<[String]>,
    /// Verifier for client certificates. `None` if they are not requested.
    clients: Option<Arc<dyn ClientCertVerifier>>,
    /// Expiry of the revocation list.
    list_expires: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    #[default]
    Nothing,
    Soon,
    Over,
}

type Found = Result<Sources, TlsError>;

#[derive(Clone, PartialEq, Eq)]
struct Sources {
    cert: Source,
    key: Source,
    client_ca: Option<Source>,
    crl: Option<Source>,
}

impl Sources {
    fn trusts_as(&self, other: &Self) -> bool {
        self.client_ca == other.client_ca && self.crl == other.crl
    }
}

/// Result of checking the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// No change, or a change that is not yet stable.
    Same,
    /// New connections use a new certificate.
    Changed,
    /// The current content is invalid; the last valid one stays in use. Returned once for each content.
    Refused(TlsError),
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Reads the files. Fails if one of them is missing, unreadable or invalid, or if key and certificate do not match.
    pub fn load(files: ServerFiles) -> Result<Self, TlsError> {
        let sources = read(&files)?;
        let made = build(&files, &sources)?;
        let state = Mutex::new(State {
            made,
            said_of_list: Said::default(),
            loaded: sources,
            pending: None,
            refused: None,
        });
        let trust = watch::Sender::new(0);
        Ok(Self {
            files,
            state,
            trust,
        })
    }

    /// The configuration for the next connection.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.state.lock().made.config.clone()
    }

    /// Expiry of the certificate in use, in seconds since the Unix epoch.
    #[must_use]
    pub fn expires(&self) -> i64 {
        self.state.lock().made.expires
    }

    /// DNS names and IP addresses of the certificate in use; the first label of a name may be `*`.
    #[must_use]
    pub fn names(&self) -> Arc<[String]> {
        self.state.lock().made.names.clone()
    }

    /// Expiry of the revocation list, in seconds since the Unix epoch; of several lists, the earliest. From then on all
    /// client certificates are rejected.
    #[must_use]
    pub fn list_expires(&self) -> Option<i64> {
        self.state.lock().made.list_expires
    }

    /// Changes when other CAs are trusted or other certificates are revoked. The result of [`Server::still_trusts`] may
    /// change then, and also when a revocation list expires.
    #[must_use]
    pub fn trust(&self) -> watch::Receiver<u64> {
        self.trust.subscribe()
    }

    /// Checks whether a client that was accepted with this certificate chain (leaf first) would be accepted now.
    /// Returns the reason if not.
    pub fn still_trusts(&self, chain: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        let clients = self.state.lock().made.clients.clone();
        let (Some(clients), Some((own, between))) = (clients, chain.split_first()) else {
            return Ok(());
        };
        clients
            .verify_client_cert(own, between, UnixTime::now())
            .map(drop)
    }

    /// Checks the files once. Existing connections are not affected.
    pub fn look(&self) -> Look {
        let found = read(&self.files);
        {
            let mut state = self.state.lock();
            if found.as_ref().is_ok_and(|found| *found == state.loaded) {
                state.pending = None;
                state.refused = None;
                return Look::Same;
            }
            if state.refused.as_ref() == Some(&found) {
                return Look::Same;
            }
            if state.pending.as_ref() != Some(&found) {
                state.pending = Some(found);
                return Look::Same;
            }
            state.pending = None;
        }
        let built = match &found {
            Ok(sources) => build(&self.files, sources),
            Err(error) => Err(error.clone()),
        };
        let mut state = self.state.lock();
        match (built, found) {
            (Ok(made), Ok(sources)) => {
                let trusts_as_before = sources.trusts_as(&state.loaded);
                state.made = made;
                state.said_of_list = Said::default();
                state.loaded = sources;
                state.refused = None;
                if !trusts_as_before {
                    self.trust.send_modify(|count| *count += 1);
                }
                Look::Changed
            }
            (Err(error), found) => {
                state.refused = Some(found);
                Look::Refused(error)
            }
            (Ok(_), Err(error)) => Look::Refused(error),
        }
    }

    /// Logs the expiry of the revocation list, once a day before and once when it happens.
    fn watch_list(&self, now: i64) {
        let mut state = self.state.lock();
        let Some(end) = state.made.list_expires else {
            return;
        };
        let due = match end - now {
            left if left < 0 => Said::Over,
            left if left < LIST_ENDS_SOON => Said::Soon,
            _ => Said::Nothing,
        };
        if due <= state.said_of_list {
            return;
        }
        state.said_of_list = due;
        drop(state);
        let end = utc(end);
        if due == Said::Over {
            tracing::error!(%end, "the list of revoked certificates has ended: every client certificate is refused until there is a new one");
        } else {
            tracing::warn!(%end, "the list of revoked certificates ends soon; without a new one every client certificate is refused then");
        }
    }

    /// Checks the files periodically and logs the results. Runs until the runtime shuts down.
    pub async fn follow(self: Arc<Self>, mut changed: impl FnMut(&Self) + Send) {
        changed(&self);
        self.watch_list(now());
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let this = self.clone();
            match tokio::task::spawn_blocking(move || this.look()).await {
                Ok(Look::Changed) => {
                    let expires = utc(self.expires());
                    tracing::info!(%expires, "new certificate in use");
                    changed(&self);
                }
                Ok(Look::Refused(error)) => {
                    tracing::error!(%error, "the changed certificate cannot be used; the last good one stays");
                }
                Ok(Look::Same) => {}
                // The runtime is shutting down.
                Err(_) => return,
            }
            self.watch_list(now());
        }
    }
}

fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        })
}

fn warn_of(certificate: &Certificate) {
    let now = now();
    if certificate.not_after < now {
        let expired = utc(certificate.not_after);
        tracing::warn!(%expired, "the certificate of this server has expired; clients will refuse it");
    } else if certificate.not_before > now {
        let from = utc(certificate.not_before);
        tracing::warn!(%from, "the certificate of this server is not valid yet; clients will refuse it");
    }
}

fn read(files: &ServerFiles) -> Result<Sources, TlsError> {
    Ok(Sources {
        cert: Source::read(CERT, &files.cert)?,
        key: Source::read(KEY, &files.key)?,
        client_ca: files
            .client_ca
            .as_deref()
            .map(|path| Source::read(CLIENT_CA, path))
            .transpose()?,
        crl: files
            .crl
            .as_deref()
            .map(|path| Source::read(CRL, path))
            .transpose()?,
    })
}

fn build(files: &ServerFiles, sources: &Sources) -> Result<Made, TlsError> {
    let chain = pem::chain(CERT, &sources.cert)?;
    let certificate = Certificate::read(&chain[0]).map_err(|why| sources.cert.wrong(CERT, why))?;
    let key = pem::key(KEY, &sources.key)?;
    let revoked = sources
        .crl
        .as_ref()
        .map(|source| pem::revoked(CRL, source))
        .transpose()?;
    let list_expires = revoked.as_ref().map(|revoked| revoked.expires);
    let clients = sources
        .client_ca
        .as_ref()
        .map(|source| clients(source, revoked))
        .transpose()?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|e| sources.cert.wrong(CERT, e))?;
    let builder = match &clients {
        Some(clients) => builder.with_client_cert_verifier(clients.clone()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|e| match e {
        rustls::Error::InconsistentKeys(_) => sources
            .key
            .wrong(KEY, format!("is not the key of {}", files.cert.display())),
        e => sources.cert.wrong(CERT, e),
    })?;
    config.alpn_protocols = PROTOCOLS.iter().map(|name| name.to_vec()).collect();
    // A resumed session would restore a client certificate without checking whether it is still valid.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    warn_of(&certificate);
    Ok(Made {
        config: Arc::new(config),
        expires: certificate.not_after,
        names: certificate.names.into(),
        clients,
        list_expires,
    })
}

/// Creates the verifier for client certificates. With revocation lists, it rejects clients that no list covers, and all
/// clients once the lists have expired: anything that is not known to be valid is rejected.
fn clients(
    source: &Source,
    revoked: Option<pem::Revoked>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = pem::authorities(CLIENT_CA, source)?;
    // Requested but not required, because health checks present none. Authorization is decided per call.
    let mut builder =
        WebPkiClientVerifier::builder_with_provider(roots, provider()).allow_unauthenticated();
    if let Some(revoked) = revoked {
        builder = builder
            .with_crls(revoked.lists)
            .enforce_revocation_expiration();
    }
    builder.build().map_err(|e| source.wrong(CLIENT_CA, e))
}
