//! TLS connections, and handling of connections that should use TLS but do not.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use drover_tls::{Peer, explain};
use parking_lot::Mutex;
use rustls::{CertificateError, pki_types::CertificateDer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    time::Instant,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;

use crate::audit::Audit;

/// Handshake timeout: enough for several round trips around the world, but not for abuse.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a rejected client has to read the reason. Closing immediately would reset the connection before that.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum number of bytes read and discarded from a rejected client during that time.
const LINGER_BYTES: u64 = 64 * 1024;
/// First byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;
/// Response to clients without TLS, in HTTP/1.0, which gRPC libraries can display as well.
const SPEAK_TLS: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n\
this port speaks TLS: use https://\n";
/// Minimum interval between two log messages about the same problem of the same client.
const SAID_FOR: Duration = Duration::from_secs(60);
/// Maximum interval between two checks of certificate validity: the clock may be adjusted, and timers stand still while
/// a machine is suspended.
const CLOCK_INTERVAL: Duration = Duration::from_secs(60);
/// Error of calls whose certificate has expired.
const EXPIRED: &str = "the client certificate has expired; connect again with a new one";
/// Error of calls whose certificate is no longer trusted.
const WITHDRAWN: &str = "the client certificate was revoked, or its authority is not trusted any more; connect again with another one";
/// Error of calls whose certificate can no longer be checked for revocation.
const UNKNOWN: &str =
    "the server's list of revoked certificates has ended; connect again when it has a new one";
/// Maximum number of remembered clients with problems.
const MAX_SAID: usize = 256;

/// Identity in the certificate of a client. An error if the certificate is valid but contains no usable identity.
pub(crate) type Shown = Result<Peer, String>;

/// The client certificate of a connection.
pub(crate) struct Credential {
    who: Arc<Shown>,
    /// Certificate chain, leaf first.
    chain: Vec<CertificateDer<'static>>,
    tls: Arc<drover_tls::Server>,
    /// Notifies about changes of trust since before the handshake.
    trust: watch::Receiver<u64>,
}

/// Why a certificate is no longer valid: the error for its calls, and the reason for the log.
pub(crate) struct Over {
    pub(crate) told: &'static str,
    pub(crate) why: String,
}

impl Credential {
    pub(crate) fn who(&self) -> &Arc<Shown> {
        &self.who
    }

    /// Resolves when the certificate is no longer valid: it has expired or was revoked, its CA is no longer trusted, or
    /// the revocation list has expired.
    pub(crate) async fn over(mut self) -> Over {
        loop {
            let left = self.left();
            if left.is_zero() {
                return Over {
                    told: EXPIRED,
                    why: "it has expired".to_owned(),
                };
            }
            let list = self.tls.list_expires().map(left_until);
            // An expired list is only checked at the clock interval.
            let list = list.filter(|left| !left.is_zero());
            let nap = left.min(CLOCK_INTERVAL).min(list.unwrap_or(CLOCK_INTERVAL));
            tokio::select! {
                () = tokio::time::sleep(nap) => {}
                Ok(()) = self.trust.changed() => {}
            }
            // An expired certificate is not trusted either, but gets its own error above.
            if let Err(error) = self.tls.still_trusts(&self.chain)
                && !self.left().is_zero()
            {
                return Over {
                    told: told(&error),
                    why: explain::to_server(&error).1,
                };
            }
        }
    }

    /// Remaining validity of the certificate itself.
    fn left(&self) -> Duration {
        match &*self.who {
            Ok(peer) => left_until(peer.expires()),
            // Without an identity it grants nothing, so its expiry does not matter.
            Err(_) => CLOCK_INTERVAL,
        }
    }
}

fn told(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidCertificate(
            CertificateError::ExpiredRevocationList
            | CertificateError::ExpiredRevocationListContext { .. },
        ) => UNKNOWN,
        _ => WITHDRAWN,
    }
}

/// Remaining time until the end of a validity period, given in seconds since the Unix epoch.
fn left_until(end: i64) -> Duration {
    // The last second is still valid.
    let end = u64::try_from(end).unwrap_or_default().saturating_add(1);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Duration::from_secs(end).saturating_sub(now)
}

/// The TLS side of a server.
pub(crate) struct Encryption {
    tls: Arc<drover_tls::Server>,
    audit: Option<Arc<Audit>>,
    said: Mutex<HashMap<(IpAddr, &'static str), Instant>>,
    shaking: Mutex<Shaking>,
    /// Maximum number of concurrent handshakes. Beyond it the oldest one is aborted: honest ones take only an instant.
    most: usize,
}

/// Handshakes in progress, oldest first.
#[derive(Default)]
struct Shaking {
    next: u64,
    under_way: BTreeMap<u64, CancellationToken>,
}

/// A handshake in progress, removed on drop.
struct Attempt<'a> {
    of: &'a Mutex<Shaking>,
    number: u64,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.of.lock().under_way.remove(&self.number);
    }
}

impl Encryption {
    /// Creates it for a server with this maximum number of connections.
    pub(crate) fn new(
        tls: Arc<drover_tls::Server>,
        connections: usize,
        audit: Option<Arc<Audit>>,
    ) -> Self {
        Self {
            tls,
            audit,
            said: Mutex::default(),
            shaking: Mutex::default(),
            // At most half, so that unfinished handshakes cannot take the slots of established connections.
            most: (connections / 2).max(1),
        }
    }

    /// Registers a handshake; if there are too many, the oldest one is aborted.
    fn attempt(&self) -> (Attempt<'_>, CancellationToken) {
        let give_way = CancellationToken::new();
        let mut shaking = self.shaking.lock();
        let number = shaking.next;
        shaking.next += 1;
        shaking.under_way.insert(number, give_way.clone());
        while shaking.under_way.len() > self.most
            && let Some((_, oldest)) = shaking.under_way.pop_first()
        {
            oldest.cancel();
        }
        drop(shaking);
        let attempt = Attempt {
            of: &self.shaking,
            number,
        };
        (attempt, give_way)
    }

    /// Performs the handshake. Returns the stream and the client's certificate; `None` if it failed, in which case the
    /// client was told why.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Option<(TlsStream<TcpStream>, Option<Credential>)> {
        // Subscribed before the certificate is verified, so that no change is missed.
        let trust = self.tls.trust();
        let (attempt, give_way) = self.attempt();
        let handshake = give_way.run_until_cancelled_owned(self.handshake(stream));
        let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await;
        drop(attempt);
        let shaken = match shaken {
            Ok(Some(shaken)) => Ok(shaken),
            Err(late) => Err(late),
            Ok(None) => {
                self.say(
                    peer,
                    "crowded",
                    "too many handshakes at once, and it was the oldest",
                );
                return None;
            }
        };
        match shaken {
            Ok(Ok(stream)) => {
                let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
                let shown = chain.first().map(|own| Credential {
                    who: Arc::new(Peer::of(own)),
                    chain: chain.to_vec(),
                    tls: self.tls.clone(),
                    trust,
                });
                Some((stream, shown))
            }
            Ok(Err(Failure {
                reason,
                why,
                stream,
            })) => {
                self.say(peer, reason, &why);
                if let Some(stream) = stream {
                    // The client may not be reading any more.
                    let _ = tokio::time::timeout(LINGER, linger(stream)).await;
                }
                None
            }
            Err(_) => {
                self.say(peer, "timeout", "the handshake took too long");
                None
            }
        }
    }

    async fn handshake(&self, mut stream: TcpStream) -> Result<TlsStream<TcpStream>, Failure> {
        let mut first = [0];
        match stream.peek(&mut first).await {
            Ok(1) if first[0] == HANDSHAKE => {}
            Ok(1) => {
                // The client may have gone already.
                let _ = stream.write_all(SPEAK_TLS).await;
                return Err(Failure {
                    reason: "not_tls",
                    why: "the client does not speak TLS".to_owned(),
                    stream: Some(stream),
                });
            }
            // Port scanners and load balancers connect without sending anything.
            _ => return Err(Failure::gone()),
        }
        let acceptor = TlsAcceptor::from(self.tls.config());
        let accepted = acceptor.accept(stream).into_fallible().await;
        accepted.map_err(|(error, stream)| match explain::find(&error) {
            Some(error) => {
                let (reason, why) = explain::to_server(error);
                Failure {
                    reason,
                    why,
                    stream: Some(stream),
                }
            }
            None if error.kind() == io::ErrorKind::UnexpectedEof => Failure::gone(),
            None => Failure {
                reason: "connection",
                why: error.to_string(),
                stream: None,
            },
        })
    }

    /// Counts every failure, and logs it at most once a minute per client and kind.
    fn say(&self, peer: SocketAddr, reason: &'static str, why: &str) {
        metrics::counter!("drover_tls_handshakes_failed_total", "reason" => reason).increment(1);
        if reason == "gone" {
            return;
        }
        if let Some(audit) = &self.audit {
            audit.turned_away(Some(peer), "TLS handshake", reason, why);
        }
        let now = Instant::now();
        let mut said = self.said.lock();
        said.retain(|_, at| now.duration_since(*at) < SAID_FOR);
        if said.len() >= MAX_SAID || said.contains_key(&(peer.ip(), reason)) {
            tracing::debug!(%peer, reason, why, "a TLS handshake failed");
            return;
        }
        said.insert((peer.ip(), reason), now);
        tracing::warn!(%peer, reason, why, "a TLS handshake failed");
    }
}

struct Failure {
    reason: &'static str,
    why: String,
    stream: Option<TcpStream>,
}

impl Failure {
    fn gone() -> Self {
        Self {
            reason: "gone",
            why: String::new(),
            stream: None,
        }
    }
}

async fn linger(mut stream: TcpStream) {
    if stream.shutdown().await.is_ok() {
        let mut rest = stream.take(LINGER_BYTES);
        let _ = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await;
    }
}
