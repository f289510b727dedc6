//! The side that is called.

use std::{
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use rustls::{
    ServerConfig,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::TLS13,
};

use crate::{
    TlsError,
    explain::utc,
    peer::Certificate,
    pem::{self, Source},
    provider,
};

/// How often the files are looked at. What changed is used when two looks in a row find the same, so that a certificate
/// is not read together with the key of another.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Protocols that are offered, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

const CERT: &str = "certificate (tls.cert)";
const KEY: &str = "key (tls.key)";
const CLIENT_CA: &str = "authorities of clients (tls.client_ca)";

/// Where the certificate of a server is, and whom it lets in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// Certificate and what lies between it and its authority, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM, PKCS#8, SEC1 or PKCS#1.
    pub key: PathBuf,
    /// Authorities of client certificates, PEM. Absent: no certificate is asked for.
    pub client_ca: Option<PathBuf>,
}

/// The certificate of a server, as it is now.
pub struct Server {
    files: ServerFiles,
    state: Mutex<State>,
}

struct State {
    config: Arc<ServerConfig>,
    expires: i64,
    names: Arc<[String]>,
    loaded: Sources,
    /// What was found at the last look and is not in use.
    pending: Option<Found>,
    /// What was found and could not be used; said once.
    refused: Option<Found>,
}

type Found = Result<Sources, TlsError>;

#[derive(Clone, PartialEq, Eq)]
struct Sources {
    cert: Source,
    key: Source,
    client_ca: Option<Source>,
}

/// What a look at the files found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing that is new or settled.
    Same,
    /// New connections get a new certificate.
    Changed,
    /// What is there now cannot be used; the last good one stays. Answered once for each content.
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
    /// Reads the files. Errors: one of them is missing, unreadable or not what it should be, or key and certificate do not
    /// belong together.
    pub fn load(files: ServerFiles) -> Result<Self, TlsError> {
        let sources = read(&files)?;
        let (config, certificate) = build(&files, &sources)?;
        warn_of(&certificate);
        let state = Mutex::new(State {
            config,
            expires: certificate.not_after,
            names: certificate.names.into(),
            loaded: sources,
            pending: None,
            refused: None,
        });
        Ok(Self { files, state })
    }

    /// For the next connection.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.state.lock().config.clone()
    }

    /// When the certificate in use expires, in seconds since 1970.
    #[must_use]
    pub fn expires(&self) -> i64 {
        self.state.lock().expires
    }

    /// Names and addresses that the certificate in use is for; `*` may be the first label of a name.
    #[must_use]
    pub fn names(&self) -> Arc<[String]> {
        self.state.lock().names.clone()
    }

    /// Looks at the files once. Connections that are there are left alone.
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
            (Ok((config, certificate)), Ok(sources)) => {
                warn_of(&certificate);
                state.config = config;
                state.expires = certificate.not_after;
                state.names = certificate.names.into();
                state.loaded = sources;
                state.refused = None;
                Look::Changed
            }
            (Err(error), found) => {
                state.refused = Some(found);
                Look::Refused(error)
            }
            (Ok(_), Err(error)) => Look::Refused(error),
        }
    }

    /// Looks at the files again and again, and says what became of them. Never ends.
    pub async fn follow(self: Arc<Self>, mut changed: impl FnMut(&Self) + Send) {
        changed(&self);
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
                // The runtime ends.
                Err(_) => return,
            }
        }
    }
}

fn warn_of(certificate: &Certificate) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        });
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
    })
}

fn build(
    files: &ServerFiles,
    sources: &Sources,
) -> Result<(Arc<ServerConfig>, Certificate), TlsError> {
    let chain = pem::chain(CERT, &sources.cert)?;
    let certificate = Certificate::read(&chain[0])
        .map_err(|why| TlsError::new(CERT, Some(files.cert.clone()), why))?;
    let key = pem::key(KEY, &sources.key)?;
    let wrong =
        |what, path: &PathBuf, why: &dyn fmt::Display| TlsError::new(what, Some(path.clone()), why);
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|e| wrong(CERT, &files.cert, &e))?;
    let builder = match (&sources.client_ca, &files.client_ca) {
        (Some(source), Some(path)) => {
            let roots = pem::authorities(CLIENT_CA, source)?;
            // Asked for, not demanded: health checks have none. Who may do what is judged call by call.
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                .allow_unauthenticated()
                .build()
                .map_err(|e| wrong(CLIENT_CA, path, &e))?;
            builder.with_client_cert_verifier(verifier)
        }
        _ => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|e| match e {
        rustls::Error::InconsistentKeys(_) => wrong(
            KEY,
            &files.key,
            &format!("is not the key of {}", files.cert.display()),
        ),
        e => wrong(CERT, &files.cert, &e),
    })?;
    config.alpn_protocols = PROTOCOLS.iter().map(|name| name.to_vec()).collect();
    // A resumed session would bring back a client certificate without a look at whether it still holds.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok((Arc::new(config), certificate))
}
