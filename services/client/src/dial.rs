//! Establishes connections: TCP, TLS if requested, and descriptive errors for the failures in between.

use std::{
    fmt,
    future::Future,
    io,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use drover_tls::{Client, client::Ready, explain};
use futures::{FutureExt, future::BoxFuture};
use http::Uri;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower::Service;

use crate::role::Wanted;

/// Interval at which an open connection is checked for revocation of the server's certificate.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// First byte of a TLS alert.
const ALERT: u8 = 0x15;
/// First byte of an HTTP/1 response. As an HTTP/2 frame length it would exceed anything a server sends.
const HTTP1: u8 = b'H';

/// Connector of a target.
#[derive(Clone, Debug)]
pub(crate) struct Dial {
    trouble: Trouble,
    tcp: HttpConnector,
    tls: Option<Secure>,
    /// Unix socket to connect to instead of TCP.
    socket: Option<PathBuf>,
    timeout: Duration,
}

#[derive(Clone, Debug)]
struct Secure {
    client: Arc<Client>,
    /// Name that the certificate must match.
    name: String,
    /// Role that the server must have.
    wanted: Wanted,
}

/// Why the last connection ended. The connection is owned by a task of its own that does not expose the reason: a call
/// only learns that it was closed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trouble(Arc<Mutex<Option<String>>>);

impl Trouble {
    pub(crate) fn get(&self) -> Option<String> {
        self.0.lock().clone()
    }

    fn set(&self, why: Option<String>) {
        *self.0.lock() = why;
    }
}

/// Human-readable cause of a failed connection.
#[derive(Debug)]
pub(crate) struct DialError(String);

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DialError {}

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
        let tls = tls.map(|(client, name, wanted)| Secure {
            client: Arc::new(client),
            name,
            wanted,
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
                    .map_err(|error| DialError(error.to_string()))?;
                let mut line = Line::on(Stream::Local(stream));
                line.trouble = trouble;
                Ok(TokioIo::new(line))
            });
        }
        let tcp = self.tcp.call(uri);
        let (tls, timeout) = (self.tls.clone(), self.timeout);
        let trouble = self.trouble.clone();
        // The previous problem may have been fixed meanwhile.
        trouble.set(None);
        Box::pin(async move {
            let stream = tcp.await?.into_inner();
            let mut line = match tls {
                None => Line::on(Stream::Plain(stream)),
                Some(secure) => match tokio::time::timeout(timeout, secure.handshake(stream)).await
                {
                    Ok(line) => line?,
                    Err(_) => {
                        let why = format!("the TLS handshake took longer than {timeout:?}");
                        return Err(DialError(why).into());
                    }
                },
            };
            line.trouble = trouble;
            Ok(TokioIo::new(line))
        })
    }
}

impl Secure {
    async fn handshake(self, stream: TcpStream) -> Result<Line, BoxError> {
        let client = self.client.clone();
        // Reading the certificate files blocks.
        let ready = tokio::task::spawn_blocking(move || client.config()).await??;
        let name = drover_tls::client::server_name(&self.name)?;
        let connector = TlsConnector::from(ready.config.clone());
        match connector.connect(name, stream).await {
            Ok(stream) => {
                // Before anything is sent over the connection, in particular a token.
                let server = stream.get_ref().1.peer_certificates();
                let server = server.and_then(<[_]>::first);
                self.wanted.check(server).map_err(DialError)?;
                let revoked = ready.may_revoke().then(|| {
                    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
                    revoked(self.client, self.name.clone(), chain.to_vec()).boxed()
                });
                let mut line = Line::on(Stream::Secure {
                    stream: Box::new(stream),
                    name: self.name,
                    ready,
                });
                line.revoked = revoked;
                Ok(line)
            }
            Err(error) => Err(DialError(match explain::find(&error) {
                Some(error) => explain::to_caller(error, &self.name, &ready),
                None if error.kind() == io::ErrorKind::UnexpectedEof => {
                    "the server closed the connection during the TLS handshake: does it speak TLS there?"
                        .to_owned()
                }
                None => format!("the connection broke during the TLS handshake: {error}"),
            })
            .into()),
        }
    }
}

/// A connection that describes errors of the remote side in readable terms.
pub(crate) struct Line {
    stream: Stream,
    /// Whether nothing was read yet.
    fresh: bool,
    trouble: Trouble,
    /// Resolves with a description once the server's certificate is revoked. `None` if there is no revocation check.
    revoked: Option<BoxFuture<'static, String>>,
}

/// Resolves once this certificate chain is no longer trusted for this server name, according to the current files.
async fn revoked(client: Arc<Client>, name: String, chain: Vec<CertificateDer<'static>>) -> String {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let (client, name, chain) = (client.clone(), name.clone(), chain.clone());
        let looked = tokio::task::spawn_blocking(move || {
            // A connection exists, so valid files were loaded; they stay in use if the current ones are unreadable.
            let ready = client.config().ok()?;
            let host = drover_tls::client::server_name(&name).ok()?;
            let wrong = ready.still_trusts(&chain, &host).err()?;
            Some(explain::to_caller(&wrong, &name, &ready))
        });
        if let Ok(Some(why)) = looked.await {
            return why;
        }
    }
}

enum Stream {
    Plain(TcpStream),
    Local(UnixStream),
    Secure {
        stream: Box<TlsStream<TcpStream>>,
        name: String,
        ready: Arc<Ready>,
    },
}

trait Io: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Io for S {}

impl Stream {
    fn io(&mut self) -> Pin<&mut dyn Io> {
        match self {
            Self::Plain(stream) => Pin::new(stream),
            Self::Local(stream) => Pin::new(stream),
            Self::Secure { stream, .. } => Pin::new(stream.as_mut()),
        }
    }
}

impl Line {
    fn on(stream: Stream) -> Self {
        Self {
            stream,
            fresh: true,
            trouble: Trouble::default(),
            revoked: None,
        }
    }

    /// Returns an error once the server's certificate was revoked.
    fn judge_server(&mut self, cx: &mut Context<'_>) -> Option<io::Error> {
        let Poll::Ready(why) = self.revoked.as_mut()?.poll_unpin(cx) else {
            return None;
        };
        self.revoked = None;
        self.trouble.set(Some(why.clone()));
        let kind = io::ErrorKind::ConnectionAborted;
        Some(io::Error::new(kind, DialError(why)))
    }

    /// The server judges the client certificate only after the client considers the handshake complete.
    fn told(&self, error: io::Error) -> io::Error {
        let Stream::Secure { name, ready, .. } = &self.stream else {
            return error;
        };
        match explain::find(&error) {
            Some(found) => {
                let why = explain::to_caller(found, name, ready);
                self.trouble.set(Some(why.clone()));
                io::Error::new(error.kind(), DialError(why))
            }
            None => error,
        }
    }

    /// A server that rejects a certificate closes the connection, and its alert may still be unread when a write fails.
    fn told_in_writing(&mut self, cx: &mut Context<'_>, error: io::Error) -> io::Error {
        if let Stream::Secure { stream, .. } = &mut self.stream
            && self.fresh
        {
            let mut byte = [0];
            let read = Pin::new(stream.as_mut()).poll_read(cx, &mut ReadBuf::new(&mut byte));
            if let Poll::Ready(Err(why)) = read {
                return self.told(why);
            }
        }
        self.told(error)
    }

    /// Recognizes from its first byte a server that speaks another protocol.
    fn judge(&self, first: u8) -> Option<io::Error> {
        let plain = matches!(self.stream, Stream::Plain(_));
        let why = match first {
            ALERT if plain => "the server speaks TLS there: https:// instead of http://",
            HTTP1 if plain => {
                "the server does not speak HTTP/2 there; if it speaks TLS: https:// instead of http://"
            }
            HTTP1 => "the server does not speak HTTP/2 there",
            _ => return None,
        };
        self.trouble.set(Some(why.to_owned()));
        Some(io::Error::new(
            io::ErrorKind::InvalidData,
            DialError(why.to_owned()),
        ))
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(error) = self.judge_server(cx) {
            return Poll::Ready(Err(error));
        }
        let before = buf.filled().len();
        match self.stream.io().poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {
                if self.fresh
                    && let Some(first) = buf.filled().get(before)
                {
                    self.fresh = false;
                    if let Some(error) = self.judge(*first) {
                        return Poll::Ready(Err(error));
                    }
                    self.trouble.set(None);
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(self.told(error))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream.io().poll_write(cx, buf);
        written.map_err(|error| self.told_in_writing(cx, error))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.stream.io().poll_flush(cx);
        flushed.map_err(|error| self.told_in_writing(cx, error))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.stream.io().poll_shutdown(cx);
        shut.map_err(|error| self.told(error))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream.io().poll_write_vectored(cx, bufs);
        written.map_err(|error| self.told_in_writing(cx, error))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Local(stream) => stream.is_write_vectored(),
            Stream::Secure { stream, .. } => stream.is_write_vectored(),
        }
    }
}
