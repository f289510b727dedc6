//! OpenID Connect tokens: JWTs that are signed with one of the provider's published keys. Signatures are ring's. A library
//! for the rest would bring a second implementation of RSA: `jsonwebtoken` needs that of aws-lc or of `rsa`, which leaks
//! keys by its timing (RUSTSEC-2023-0071).

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use drover_core::{Error, Reason};
use drover_tls::{Authorities, Client, ClientSettings};
use http::{Request, Uri, header, uri::Scheme};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::{net::TcpStream, time::Instant};

use super::Identity;

/// Age after which keys are fetched again.
const REFRESH: Duration = Duration::from_secs(10 * 60);
/// Minimum interval between two fetches, so that forged tokens cannot flood the provider.
const PAUSE: Duration = Duration::from_secs(10);
/// Retry interval as long as no call needs an unknown key, so that an unreachable provider is not constantly queried
/// and logged.
const RETRY: Duration = Duration::from_secs(60);
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_KEYS_BYTES: usize = 512 * 1024;
/// Longer than any stream lasts.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// Tolerated clock skew in seconds.
const LEEWAY: i64 = 30;
/// Claim that an attacker can obtain by registering with someone else's address, unless the provider has verified it.
const EMAIL: &str = "email";
/// Maximum length of a name taken from a token.
const MAX_NAME: usize = 256;
/// Maximum number of groups in a token; Entra ID emits up to 200. A token with more is rejected, because a group that
/// is not read may be denied by a rule.
const MAX_GROUPS: usize = 256;
/// Default claim of the groups.
const GROUPS: &str = "groups";
/// Claims of tokens from which groups were omitted: the names of claims that must be queried elsewhere, and a flag that
/// there are groups (Entra ID).
const CLAIM_NAMES: &str = "_claim_names";
const HAS_GROUPS: &str = "hasgroups";

/// Whose tokens are believed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OidcSettings {
    /// `iss` that a token must have.
    issuer: String,
    /// `aud` that a token must have.
    audience: String,
    /// File or URL of the keys (JWKS).
    jwks: String,
    /// Authorities of that URL, PEM. Default: those of the system.
    #[serde(default)]
    ca: Option<PathBuf>,
    /// Claim that is the name. Default `sub`.
    #[serde(default = "subject")]
    username_claim: String,
    /// Whether a token whose name is its email address has to state that the address is verified. Default true. One that
    /// states anything but `true` is never believed.
    #[serde(default = "required")]
    require_email_verified: bool,
    /// Claim that lists groups, or is one. Default `groups`.
    #[serde(default = "groups")]
    groups_claim: String,
    /// How long keys hold that cannot be fetched again: one that the provider has withdrawn meanwhile holds no longer than
    /// that. At least 10 s; default 1 h.
    #[serde(default = "hour", with = "crate::settings::duration")]
    keys_max_age: Duration,
}

fn hour() -> Duration {
    Duration::from_secs(60 * 60)
}

fn subject() -> String {
    "sub".to_owned()
}

fn required() -> bool {
    true
}

fn groups() -> String {
    GROUPS.to_owned()
}

#[derive(Debug)]
enum Source {
    File(PathBuf),
    Url(Uri, Option<Arc<Client>>),
}

/// An OIDC provider and its most recently fetched keys.
#[derive(Debug)]
pub(crate) struct Oidc {
    settings: OidcSettings,
    source: Source,
    keys: Mutex<Keys>,
    /// Held during a fetch.
    fetching: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Keys {
    known: Arc<[Key]>,
    fetched: Option<Instant>,
    tried: Option<Instant>,
}

#[derive(Debug)]
struct Key {
    id: Option<String>,
    kind: KeyKind,
}

#[derive(Debug)]
enum KeyKind {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    crit: Option<Value>,
}

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<BTreeMap<String, Value>>,
}

pub(super) fn refused(why: impl std::fmt::Display) -> Error {
    Error::new(
        Reason::Unauthenticated,
        format!("the token is not accepted: {why}"),
    )
}

impl Oidc {
    pub(crate) fn new(settings: OidcSettings) -> Result<Self, String> {
        if settings.issuer.is_empty() || settings.audience.is_empty() {
            return Err("issuer or audience is empty".to_owned());
        }
        if settings.keys_max_age < PAUSE {
            return Err(format!("keys_max_age: expected at least {PAUSE:?}"));
        }
        let source = if settings.jwks.contains("://") {
            let uri: Uri = settings
                .jwks
                .parse()
                .map_err(|_| "jwks: is not a URL".to_owned())?;
            let host = uri.host().ok_or("jwks: has no host")?;
            let here = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
            match uri.scheme_str() {
                Some("https") => {
                    let tls = ClientSettings {
                        authorities: settings
                            .ca
                            .clone()
                            .map_or(Authorities::System, Authorities::File),
                        ..ClientSettings::default()
                    };
                    tls.check().map_err(|e| e.to_string())?;
                    Source::Url(uri.clone(), Some(Arc::new(Client::new(tls))))
                }
                // Without TLS, anyone on the network could replace the keys.
                Some("http") if here => Source::Url(uri.clone(), None),
                _ => return Err("jwks: expected a file or https://…".to_owned()),
            }
        } else {
            let path = PathBuf::from(&settings.jwks);
            let text = std::fs::read(&path).map_err(|e| format!("jwks {}: {e}", path.display()))?;
            parse(&text).map_err(|e| format!("jwks {}: {e}", path.display()))?;
            Source::File(path)
        };
        Ok(Self {
            settings,
            source,
            keys: Mutex::default(),
            fetching: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) fn settings(&self) -> &OidcSettings {
        &self.settings
    }

    /// Returns the identity of a token and its expiry. Fails with `Unauthenticated`, with a reason that reveals nothing
    /// of the token's content, or with `Unavailable` if the keys cannot be fetched.
    pub(crate) async fn identify(&self, token: &str) -> Result<(Identity, Instant), Error> {
        let mut parts = token.split('.');
        let (Some(header), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(refused("it is neither known here nor a JWT"));
        };
        let signed = &token[..header.len() + 1 + claims.len()];
        let header: Header = json(header).ok_or_else(|| refused("its header cannot be read"))?;
        if header.crit.is_some() {
            return Err(refused("its header demands what is not known here"));
        }
        let signature = URL_SAFE_NO_PAD
            .decode(signature)
            .map_err(|_| refused("its signature cannot be read"))?;
        self.verify(&header, signed.as_bytes(), &signature).await?;
        let claims: Value = json(claims).ok_or_else(|| refused("its claims cannot be read"))?;
        self.accept(&claims, now())
    }

    async fn verify(&self, header: &Header, signed: &[u8], signature: &[u8]) -> Result<(), Error> {
        if !matches!(header.alg.as_str(), "RS256" | "ES256") {
            return Err(refused("it is signed neither with RS256 nor with ES256"));
        }
        let held = self.held();
        // An unknown key may be new, and an expired one may have been withdrawn. Only calls with such keys wait for the
        // provider.
        let known = match held {
            Ok(known) if known.iter().any(|key| key.fits(header)) => known,
            _ => self.fetch().await?,
        };
        let mut fitting = known.iter().filter(|key| key.fits(header)).peekable();
        if fitting.peek().is_none() {
            return Err(refused("its key is none of the provider's"));
        }
        if fitting.any(|key| key.verifies(signed, signature)) {
            Ok(())
        } else {
            Err(refused("its signature is wrong"))
        }
    }

    /// Fetches keys that are due for a refresh.
    pub(super) async fn refresh(&self) {
        // Several attempts before the keys expire.
        let (refresh, retry) = (
            REFRESH.min(self.settings.keys_max_age / 2),
            RETRY.min(self.settings.keys_max_age / 4),
        );
        let due = {
            let keys = self.keys.lock();
            let tried = keys.tried.is_some_and(|at| at.elapsed() < retry);
            keys.fetched.is_some_and(|at| at.elapsed() > refresh) && !tried
        };
        if due {
            // Calls that need a missing key fetch it themselves and get the error.
            let _ = self.fetch().await;
        }
    }

    /// The most recent keys, unless they have expired.
    fn held(&self) -> Result<Arc<[Key]>, Error> {
        usable(&self.keys.lock(), self.settings.keys_max_age)
    }

    /// Fetches the current keys, falling back to the most recent ones.
    async fn fetch(&self) -> Result<Arc<[Key]>, Error> {
        let asked = Instant::now();
        let _only = self.fetching.lock().await;
        {
            let keys = self.keys.lock();
            // A concurrent call has just fetched them.
            let fresh = keys.fetched.is_some_and(|at| at >= asked);
            if fresh || keys.tried.is_some_and(|at| at.elapsed() < PAUSE) {
                return usable(&keys, self.settings.keys_max_age);
            }
        }
        let found = match &self.source {
            Source::File(path) => tokio::fs::read(path).await.map_err(|e| e.to_string()),
            Source::Url(uri, tls) => {
                match tokio::time::timeout(FETCH_TIMEOUT, get(uri, tls.as_deref())).await {
                    Ok(found) => found,
                    Err(_) => Err(format!("no answer within {FETCH_TIMEOUT:?}")),
                }
            }
        };
        let found = found.and_then(|bytes| parse(&bytes));
        let mut keys = self.keys.lock();
        let now = Instant::now();
        keys.tried = Some(now);
        match found {
            Ok(found) => {
                keys.known = found.into();
                keys.fetched = Some(now);
            }
            Err(why) => {
                tracing::warn!(
                    jwks = self.settings.jwks,
                    why,
                    max_age = %crate::settings::duration::format(self.settings.keys_max_age),
                    "the keys of the identity provider cannot be had; the last ones hold until they are too old"
                );
            }
        }
        usable(&keys, self.settings.keys_max_age)
    }

    fn accept(&self, claims: &Value, now: i64) -> Result<(Identity, Instant), Error> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let time = |name: &str| claims.get(name).and_then(Value::as_f64);
        if text("iss") != Some(&self.settings.issuer) {
            return Err(refused("it is of another issuer"));
        }
        let wanted = self.settings.audience.as_str();
        let meant = match claims.get("aud") {
            Some(Value::String(one)) => one == wanted,
            Some(Value::Array(all)) => all.iter().any(|one| one.as_str() == Some(wanted)),
            _ => false,
        };
        if !meant {
            return Err(refused("it is meant for another audience"));
        }
        #[expect(clippy::cast_precision_loss, reason = "seconds are far below 2^52")]
        let (early, late) = ((now - LEEWAY) as f64, (now + LEEWAY) as f64);
        let left = match time("exp") {
            Some(expires) if expires > early => expires - early,
            Some(_) => return Err(refused("it has expired")),
            None => return Err(refused("it never expires")),
        };
        // An expiry that cannot be represented is never reached.
        let expires = Duration::try_from_secs_f64(left)
            .ok()
            .and_then(|left| Instant::now().checked_add(left))
            .unwrap_or_else(|| Instant::now() + FOREVER);
        if time("nbf").is_some_and(|from| from > late) {
            return Err(refused("it is not valid yet"));
        }
        let claim = self.settings.username_claim.as_str();
        if claim == EMAIL {
            match claims.get("email_verified") {
                Some(Value::Bool(true)) => {}
                None if !self.settings.require_email_verified => {}
                None => {
                    return Err(refused(
                        "it does not state that its email address is verified (require_email_verified)",
                    ));
                }
                // Some providers emit the string "false"; only a boolean is accepted.
                Some(_) => return Err(refused("its email address is not verified")),
            }
        }
        let name = text(claim)
            .filter(|name| {
                !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control)
            })
            .ok_or_else(|| refused(format!("it has no usable claim {claim:?}")))?;
        let identity = Identity {
            name: format!("oidc:{name}").into(),
            groups: self.groups(claims)?,
            groups_withheld: self.withholds_groups(claims),
            claimed: None,
        };
        Ok((identity, expires))
    }

    /// Returns the groups in a token. All of them must be readable, because any of them may be denied by a rule.
    fn groups(&self, claims: &Value) -> Result<Vec<String>, Error> {
        let claim = self.settings.groups_claim.as_str();
        let unreadable = |why: String| {
            refused(format!(
                "its groups cannot be read in full: claim {claim:?} {why}"
            ))
        };
        let mut groups = match claims.get(claim) {
            // Some providers emit null for an empty list.
            None | Some(Value::Null) => Vec::new(),
            Some(Value::String(one)) => vec![one.clone()],
            Some(Value::Array(all)) if all.len() > MAX_GROUPS => {
                return Err(unreadable(format!("has more than {MAX_GROUPS} of them")));
            }
            Some(Value::Array(all)) => all
                .iter()
                .map(|one| one.as_str().map(ToOwned::to_owned))
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| unreadable("has an entry that is not text".to_owned()))?,
            Some(_) => {
                return Err(unreadable("is neither text nor a list of texts".to_owned()));
            }
        };
        // An empty name is not a group: `group:*` matches everyone with any group.
        groups.retain(|one| !one.is_empty());
        Ok(groups)
    }

    /// Whether a token indicates that groups were omitted from it.
    fn withholds_groups(&self, claims: &Value) -> bool {
        let claim = self.settings.groups_claim.as_str();
        let elsewhere = match claims.get(CLAIM_NAMES) {
            None | Some(Value::Null) => false,
            Some(Value::Object(names)) => names.contains_key(claim),
            // Malformed, so it is unknown which claims were omitted.
            Some(_) => true,
        };
        let hinted = claim == GROUPS
            && !matches!(
                claims.get(HAS_GROUPS),
                None | Some(Value::Null | Value::Bool(false))
            );
        elsewhere || hinted
    }
}

fn usable(keys: &Keys, max_age: Duration) -> Result<Arc<[Key]>, Error> {
    let why = match keys.fetched {
        Some(at) if at.elapsed() <= max_age => return Ok(keys.known.clone()),
        Some(_) => {
            "the keys of the identity provider cannot be had now, and the last ones are too old (keys_max_age)"
        }
        None => "the keys of the identity provider cannot be had now",
    };
    Err(Error::unavailable(why).with_retry_after(PAUSE))
}

impl Key {
    fn read(jwk: &BTreeMap<String, Value>) -> Option<Self> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?).ok();
        if text("use").is_some_and(|used| used != "sig") {
            return None;
        }
        let kind = match text("kty")? {
            "RSA" => {
                let n = bytes("n")?;
                let zeros = n.iter().take_while(|byte| **byte == 0).count();
                KeyKind::Rsa {
                    n: n.get(zeros..)?.to_vec(),
                    e: bytes("e")?,
                }
            }
            "EC" if text("crv") == Some("P-256") => {
                /// Prefix of an uncompressed point, with both coordinates.
                const UNCOMPRESSED: u8 = 4;
                let (x, y) = (bytes("x")?, bytes("y")?);
                if x.len() != 32 || y.len() != 32 {
                    return None;
                }
                let mut point = vec![UNCOMPRESSED];
                point.extend(x);
                point.extend(y);
                KeyKind::P256(point)
            }
            _ => return None,
        };
        Some(Self {
            id: text("kid").map(ToOwned::to_owned),
            kind,
        })
    }

    /// The algorithm is determined by the key, regardless of the token.
    fn fits(&self, header: &Header) -> bool {
        let algorithm = match self.kind {
            KeyKind::Rsa { .. } => "RS256",
            KeyKind::P256(_) => "ES256",
        };
        header.alg == algorithm && (header.kid.is_none() || header.kid == self.id)
    }

    fn verifies(&self, signed: &[u8], signature: &[u8]) -> bool {
        match &self.kind {
            KeyKind::Rsa { n, e } => RsaPublicKeyComponents { n, e }
                .verify(&RSA_PKCS1_2048_8192_SHA256, signed, signature)
                .is_ok(),
            KeyKind::P256(point) => UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
                .verify(signed, signature)
                .is_ok(),
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Vec<Key>, String> {
    let set: Jwks = serde_json::from_slice(bytes).map_err(|_| "is not a list of keys (JWKS)")?;
    let keys: Vec<Key> = set.keys.iter().filter_map(Key::read).collect();
    if keys.is_empty() {
        return Err("holds no key for RS256 or ES256".to_owned());
    }
    Ok(keys)
}

fn json<T: serde::de::DeserializeOwned>(part: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        })
}

/// Performs a GET request over HTTP/1.
async fn get(uri: &Uri, tls: Option<&Client>) -> Result<Vec<u8>, String> {
    let host = uri.host().unwrap_or_default();
    let usual = if uri.scheme() == Some(&Scheme::HTTPS) {
        443
    } else {
        80
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((bare, uri.port_u16().unwrap_or(usual)))
        .await
        .map_err(|e| e.to_string())?;
    let Some(tls) = tls else {
        return ask(TokioIo::new(stream), uri).await;
    };
    let ready = tls.config().map_err(|e| e.to_string())?;
    let mut config = (*ready.config).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = drover_tls::client::server_name(host).map_err(|e| e.to_string())?;
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|e| {
            drover_tls::explain::find(&e).map_or_else(
                || e.to_string(),
                |error| drover_tls::explain::to_client(error, host, None),
            )
        })?;
    ask(TokioIo::new(stream), uri).await
}

async fn ask(
    io: impl hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    uri: &Uri,
) -> Result<Vec<u8>, String> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io)
        .await
        .map_err(|e| e.to_string())?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let request = Request::get(path)
        .header(header::HOST, host)
        .header(header::ACCEPT, "application/json")
        .body(Empty::<bytes::Bytes>::new())
        .map_err(|e| e.to_string())?;
    let exchange = async {
        let answer = sender
            .send_request(request)
            .await
            .map_err(|e| e.to_string())?;
        if !answer.status().is_success() {
            return Err(format!("status {}", answer.status().as_u16()));
        }
        let body = Limited::new(answer.into_body(), MAX_KEYS_BYTES)
            .collect()
            .await
            .map_err(|e| e.to_string())?;
        Ok(body.to_bytes().to_vec())
    };
    // Both run in one task, so that nothing is left running after the timeout.
    tokio::pin!(exchange);
    tokio::select! {
        outcome = &mut exchange => outcome,
        ended = connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(error.to_string()),
        },
    }
}
