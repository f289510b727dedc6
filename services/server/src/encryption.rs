//! Connections that begin with a TLS handshake, and those that should.

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

/// How long a handshake may take: several round trips around the world, and no time for who means harm.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a refused client has to read why. Closing at once would reset the connection under its eyes.
const LINGER: Duration = Duration::from_secs(1);
/// What is read and thrown away of a refused client meanwhile.
const LINGER_BYTES: u64 = 64 * 1024;
/// First byte of every handshake.
const HANDSHAKE: u8 = 0x16;
/// What a client without TLS is told, in the oldest words there are: gRPC libraries know them, too.
const SPEAK_TLS: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n\
this port speaks TLS: use https://\n";
/// How long the same trouble with the same client is not said again.
const SAID_FOR: Duration = Duration::from_secs(60);
/// How often the clock is looked at for certificates: it may be set, and timers stand still while a machine sleeps.
const CLOCK_INTERVAL: Duration = Duration::from_secs(60);
/// What calls are told whose certificate has come to its end.
const EXPIRED: &str = "the client certificate has expired; connect again with a new one";
/// The same of one that is not believed any more.
const WITHDRAWN: &str = "the client certificate was revoked, or its authority is not trusted any more; connect again with another one";
/// The same when nobody can know whether it is.
const UNKNOWN: &str =
    "the server's list of revoked certificates has ended; connect again when it has a new one";
/// Clients with trouble that are remembered.
const MAX_SAID: usize = 256;

/// Who a client says it is, by its certificate. Errors: the certificate holds, but names nobody.
pub(crate) type Shown = Result<Peer, String>;

/// The certificate that a client has shown on one connection.
pub(crate) struct Credential {
    who: Arc<Shown>,
    /// Its own first, then what lies between it and its authority.
    chain: Vec<CertificateDer<'static>>,
    tls: Arc<drover_tls::Server>,
    /// Whom the server has trusted since before the handshake.
    trust: watch::Receiver<u64>,
}

/// Why a certificate holds no longer: for its calls, and for the log.
pub(crate) struct Over {
    pub(crate) told: &'static str,
    pub(crate) why: String,
}

impl Credential {
    pub(crate) fn who(&self) -> &Arc<Shown> {
        &self.who
    }

    /// Ends when it holds no longer: it expires, it is revoked, its authority is trusted no more, or the list by which that
    /// is known ends.
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
            // One that has ended is looked at again like the clock.
            let list = list.filter(|left| !left.is_zero());
            let nap = left.min(CLOCK_INTERVAL).min(list.unwrap_or(CLOCK_INTERVAL));
            tokio::select! {
                () = tokio::time::sleep(nap) => {}
                Ok(()) = self.trust.changed() => {}
            }
            // What has expired is not trusted either, and is told so above.
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

    /// How long it still holds by itself.
    fn left(&self) -> Duration {
        match &*self.who {
            Ok(peer) => left_until(peer.expires()),
            // It opens nothing that its end could close.
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

/// How long something holds that ends then, in seconds since 1970.
fn left_until(end: i64) -> Duration {
    // The last valid second is one.
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
    /// Handshakes at once. The oldest gives way to a new one: honest ones are over in an instant.
    most: usize,
}

/// Handshakes under way, the oldest first.
#[derive(Default)]
struct Shaking {
    next: u64,
    under_way: BTreeMap<u64, CancellationToken>,
}

/// One handshake under way; it is none any more when this is dropped.
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
    /// For a server with so many connections at most.
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
            // Who only says hello never takes the places of those who work.
            most: (connections / 2).max(1),
        }
    }

    /// Takes a place among the handshakes; the oldest one is told to give way if there are too many.
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

    /// The stream after its handshake, and who is there. None: it failed, and the client was told.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Option<(TlsStream<TcpStream>, Option<Credential>)> {
        // Before it is judged: what changes meanwhile is not missed.
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
                    // Nobody waits for this one.
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
                // It may have gone already.
                let _ = stream.write_all(SPEAK_TLS).await;
                return Err(Failure {
                    reason: "not_tls",
                    why: "the client does not speak TLS".to_owned(),
                    stream: Some(stream),
                });
            }
            // Port scanners and load balancers look whether somebody listens.
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

    /// Says it once a minute for each client and kind of trouble; counts it always.
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
