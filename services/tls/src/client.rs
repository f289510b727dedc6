//! The client side.

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    version::TLS13,
};

use crate::{
    TlsError,
    peer::Certificate,
    pem::{self, Source},
    provider,
};

const CA: &str = "authorities (ca)";
const CRL: &str = "revoked certificates (crl)";
const CERT: &str = "client certificate (cert)";
const KEY: &str = "key of the client certificate (key)";

/// Trust anchors for server certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Authorities {
    /// The system's CAs.
    #[default]
    System,
    /// A PEM file with CAs.
    File(PathBuf),
    /// CAs in PEM format.
    Pem(String),
    /// Any certificate is accepted. Only for clients that just check the health of a server.
    Any,
}

/// A client certificate (with its intermediates) and its private key.
#[derive(Clone, PartialEq, Eq)]
pub enum Identity {
    /// PEM files with certificate and key, reloaded when they change.
    Files(PathBuf, PathBuf),
    /// PEM contents of certificate and key. Never shown.
    Pem(Arc<[u8]>, Arc<[u8]>),
}

impl From<(PathBuf, PathBuf)> for Identity {
    fn from((cert, key): (PathBuf, PathBuf)) -> Self {
        Self::Files(cert, key)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(cert, key) => f.debug_tuple("Files").field(cert).field(key).finish(),
            Self::Pem(..) => f.write_str("Pem"),
        }
    }
}

/// TLS settings for calling a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientSettings {
    /// Trust anchors for server certificates. Default: the system's CAs.
    pub authorities: Authorities,
    /// Client certificate. Default: none is presented.
    pub certificate: Option<Identity>,
    /// Name that the server's certificate must match. Default: the host of the endpoint.
    pub server_name: Option<String>,
    /// PEM file with certificate revocation lists, one per issuing CA; reloaded when it changes. If set, a server is
    /// also rejected if no list covers it, and every server is rejected once the lists have expired. Default: no
    /// revocation check.
    pub crl: Option<PathBuf>,
    /// Whether to reject servers whose certificate states no role if the caller requires one
    /// ([`check_role`](crate::peer::check_role)). Default false: only certificates that state a different role are
    /// rejected.
    pub require_role: bool,
}

impl ClientSettings {
    /// Reads all files once. Fails if a file is missing, unreadable or invalid.
    pub fn check(&self) -> Result<(), TlsError> {
        if let Some(name) = &self.server_name {
            server_name(name)?;
        }
        Client::new(self.clone()).config().map(drop)
    }

    /// Reads the configured files once, but not the system's CAs. Fails as [`ClientSettings::check`] does.
    pub fn check_files(&self) -> Result<(), TlsError> {
        let client = Client::new(self.clone());
        let sources = client.read()?;
        if let Some(source) = &sources.ca {
            pem::authorities(CA, source)?;
        }
        if let Some(source) = &sources.crl {
            pem::revoked(CRL, source)?;
        }
        client
            .build_with(Arc::new(RootCertStore::empty()), &sources)
            .map(drop)
    }
}

/// Parses the name of a TLS server: a DNS name or an IP address.
pub fn server_name(host: &str) -> Result<ServerName<'static>, TlsError> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(bare.to_owned())
        .map_err(|_| TlsError::new("server name", None, format!("{host:?} is not a host name")))
}

/// TLS client that follows changes of its files.
pub struct Client {
    settings: ClientSettings,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ready: Option<(Arc<Ready>, Sources)>,
    /// The last error about changed files, so that it is logged only once.
    said: Option<TlsError>,
}

/// The TLS configuration of a connection.
#[derive(Debug)]
pub struct Ready {
    /// Configuration for rustls.
    pub config: Arc<ClientConfig>,
    /// The client certificate, used to explain its rejection.
    pub own: Option<Certificate>,
    /// Verifier for server certificates, if there are revocation lists.
    servers: Option<Arc<WebPkiServerVerifier>>,
    /// Whether CAs and certificate are set by flags of this program, which error messages may then mention.
    pub by_flags: bool,
}

impl Ready {
    /// Whether the trust in a server can end later.
    #[must_use]
    pub fn may_revoke(&self) -> bool {
        self.servers.is_some()
    }

    /// Checks whether a server of this name with this certificate chain (leaf first) would be trusted now. Returns the
    /// reason if not.
    pub fn still_trusts(
        &self,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
    ) -> Result<(), rustls::Error> {
        let (Some(servers), Some((own, between))) = (&self.servers, chain.split_first()) else {
            return Ok(());
        };
        servers
            .verify_server_cert(own, between, name, &[], UnixTime::now())
            .map(drop)
    }
}

#[derive(Clone, PartialEq, Eq)]
struct Sources {
    ca: Option<Source>,
    crl: Option<Source>,
    own: Option<(Source, Source)>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a client without reading any files.
    #[must_use]
    pub fn new(settings: ClientSettings) -> Self {
        Self {
            settings,
            state: Mutex::default(),
        }
    }

    /// Returns the configuration for the next connection, after checking the files for changes. If changed files are
    /// invalid, this is logged once and the last valid ones stay in use. Fails if there are no valid ones yet.
    pub fn config(&self) -> Result<Arc<Ready>, TlsError> {
        let found = self.read();
        let mut state = self.state.lock();
        if let (Ok(found), Some((ready, loaded))) = (&found, &state.ready)
            && found == loaded
        {
            return Ok(ready.clone());
        }
        let built = found.and_then(|found| Ok((Arc::new(self.build(&found)?), found)));
        match (built, &state.ready) {
            (Ok((ready, sources)), _) => {
                state.ready = Some((ready.clone(), sources));
                state.said = None;
                Ok(ready)
            }
            (Err(error), Some((ready, _))) => {
                let ready = ready.clone();
                if state.said.as_ref() != Some(&error) {
                    tracing::warn!(%error, "changed files of TLS cannot be used; the last good ones stay");
                    state.said = Some(error);
                }
                Ok(ready)
            }
            (Err(error), None) => Err(error),
        }
    }

    fn read(&self) -> Result<Sources, TlsError> {
        let ca = match &self.settings.authorities {
            Authorities::System | Authorities::Any => None,
            Authorities::File(path) => Some(Source::read(CA, path)?),
            Authorities::Pem(text) => Some(Source::given(text.as_bytes().to_vec())),
        };
        let own = match &self.settings.certificate {
            None => None,
            Some(Identity::Files(cert, key)) => {
                Some((Source::read(CERT, cert)?, Source::read(KEY, key)?))
            }
            Some(Identity::Pem(cert, key)) => {
                Some((Source::given(cert.to_vec()), Source::given(key.to_vec())))
            }
        };
        let crl = self.settings.crl.as_deref();
        let crl = crl.map(|path| Source::read(CRL, path)).transpose()?;
        Ok(Sources { ca, crl, own })
    }

    fn build(&self, sources: &Sources) -> Result<Ready, TlsError> {
        let roots = match &sources.ca {
            None if self.settings.authorities == Authorities::Any => {
                Arc::new(RootCertStore::empty())
            }
            None => system()?,
            Some(source) => pem::authorities(CA, source)?,
        };
        self.build_with(roots, sources)
    }

    fn build_with(&self, roots: Arc<RootCertStore>, sources: &Sources) -> Result<Ready, TlsError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| TlsError::new(CA, None, e))?;
        let mut servers = None;
        let builder = match (&self.settings.authorities, &sources.crl) {
            (Authorities::Any, _) => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Anybody)),
            (_, Some(source)) if !roots.is_empty() => {
                let known = WebPkiServerVerifier::builder_with_provider(roots, provider())
                    .with_crls(pem::revoked(CRL, source)?.lists)
                    .enforce_revocation_expiration()
                    .build()
                    .map_err(|e| source.wrong(CRL, e))?;
                servers = Some(known.clone());
                builder.with_webpki_verifier(known)
            }
            _ => builder.with_root_certificates(roots),
        };
        let mut own = None;
        let mut config = match &sources.own {
            Some((cert, key)) => {
                let chain = pem::chain(CERT, cert)?;
                own = Some(Certificate::read(&chain[0]).map_err(|why| cert.wrong(CERT, why))?);
                builder
                    .with_client_auth_cert(chain, pem::key(KEY, key)?)
                    .map_err(|e| match e {
                        rustls::Error::InconsistentKeys(_) => {
                            key.wrong(KEY, format!("is not the key of {}", cert.name()))
                        }
                        e => cert.wrong(CERT, e),
                    })?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        // Every connection must present the certificate that is current at the time.
        config.resumption = Resumption::disabled();
        Ok(Ready {
            config: Arc::new(config),
            own,
            servers,
            by_flags: self.by_flags(),
        })
    }

    fn by_flags(&self) -> bool {
        let authorities = &self.settings.authorities;
        let own = &self.settings.certificate;
        matches!(authorities, Authorities::System | Authorities::File(_))
            && !matches!(own, Some(Identity::Pem(..)))
    }
}

/// Accepts every certificate, as long as the server proves that it has the key.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &provider().signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &provider().signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// The system's CAs, read once per process.
fn system() -> Result<Arc<RootCertStore>, TlsError> {
    static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let store = SYSTEM.get_or_init(|| {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(store)
    });
    if store.is_empty() {
        return Err(TlsError::new(
            CA,
            None,
            "the system has none; name a file with those to trust (--ca FILE)",
        ));
    }
    Ok(store.clone())
}
