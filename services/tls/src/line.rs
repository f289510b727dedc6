//! Connections of clients: over TCP, TLS or a Unix socket, with descriptive errors for what fails on them.

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    client::{Client, Ready, server_name},
    explain,
};

/// Interval at which an open connection is checked for revocation of the server's certificate.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// First byte of a TLS alert.
const ALERT: u8 = 0x15;
/// First byte of an HTTP/1 response. As an HTTP/2 frame length it would exceed anything a server sends.
const HTTP1: u8 = b'H';

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Revoked = Pin<Box<dyn Future<Output = String> + Send>>;
/// Looks at the certificate of a server beyond its name. The error is human-readable.
type Check = Arc<dyn Fn(Option<&CertificateDer<'_>>) -> Result<(), String> + Send + Sync>;

/// Establishes TLS on connections to servers of one name.
#[derive(Clone)]
pub struct Connector {
    client: Arc<Client>,
    /// Name that the certificate must match.
    name: String,
    check: Check,
    timeout: Duration,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("client", &self.client)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Why the last connection ended. The connection is owned by a task of its own that does not expose the reason: a call
/// only learns that it was closed.
#[derive(Clone, Debug, Default)]
pub struct Trouble(Arc<Mutex<Option<String>>>);

impl Trouble {
    /// The reason, if there is one.
    #[must_use]
    pub fn get(&self) -> Option<String> {
        self.0.lock().clone()
    }

    /// Remembers a reason, or forgets the last one.
    pub fn set(&self, why: Option<String>) {
        *self.0.lock() = why;
    }
}

/// Human-readable cause of a failed connection.
#[derive(Debug)]
pub struct LineError(String);

impl LineError {
    /// An error of these words.
    #[must_use]
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LineError {}

impl Connector {
    /// A connector for servers of this name, with a time limit for the handshake.
    #[must_use]
    pub fn new(client: Client, name: String, timeout: Duration) -> Self {
        Self {
            client: Arc::new(client),
            name,
            check: Arc::new(|_| Ok(())),
            timeout,
        }
    }

    /// Looks at the server's certificate beyond its name, before anything is sent over the connection.
    #[must_use]
    pub fn checking(
        mut self,
        check: impl Fn(Option<&CertificateDer<'_>>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.check = Arc::new(check);
        self
    }

    /// Does the handshake.
    pub async fn connect(self, stream: TcpStream) -> Result<Line, BoxError> {
        let timeout = self.timeout;
        match tokio::time::timeout(timeout, self.handshake(stream)).await {
            Ok(line) => line,
            Err(_) => {
                let why = format!("the TLS handshake took longer than {timeout:?}");
                Err(LineError(why).into())
            }
        }
    }

    async fn handshake(self, stream: TcpStream) -> Result<Line, BoxError> {
        let client = self.client.clone();
        // Reading the certificate files blocks.
        let ready = tokio::task::spawn_blocking(move || client.config()).await??;
        let name = server_name(&self.name)?;
        let connector = TlsConnector::from(ready.config.clone());
        match connector.connect(name, stream).await {
            Ok(stream) => {
                // Before anything is sent over the connection, in particular a token.
                let server = stream.get_ref().1.peer_certificates();
                let server = server.and_then(<[_]>::first);
                (self.check)(server).map_err(LineError)?;
                let revoked = ready.may_revoke().then(|| {
                    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
                    let revoked = revoked(self.client, self.name.clone(), chain.to_vec());
                    Box::pin(revoked) as Revoked
                });
                let mut line = Line::on(Stream::Secure {
                    stream: Box::new(stream),
                    name: self.name,
                    ready,
                });
                line.revoked = revoked;
                Ok(line)
            }
            Err(error) => Err(LineError(match explain::find(&error) {
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
pub struct Line {
    stream: Stream,
    /// Whether nothing was read yet.
    fresh: bool,
    trouble: Trouble,
    /// Resolves with a description once the server's certificate is revoked. `None` if there is no revocation check.
    revoked: Option<Revoked>,
}

/// Resolves once this certificate chain is no longer trusted for this server name, according to the current files.
async fn revoked(client: Arc<Client>, name: String, chain: Vec<CertificateDer<'static>>) -> String {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let (client, name, chain) = (client.clone(), name.clone(), chain.clone());
        let looked = tokio::task::spawn_blocking(move || {
            // A connection exists, so valid files were loaded; they stay in use if the current ones are unreadable.
            let ready = client.config().ok()?;
            let host = server_name(&name).ok()?;
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

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

impl Line {
    /// A connection without TLS.
    #[must_use]
    pub fn plain(stream: TcpStream) -> Self {
        Self::on(Stream::Plain(stream))
    }

    /// A connection to a Unix socket.
    #[must_use]
    pub fn local(stream: UnixStream) -> Self {
        Self::on(Stream::Local(stream))
    }

    /// Tells why it ends.
    #[must_use]
    pub fn telling(mut self, trouble: Trouble) -> Self {
        self.trouble = trouble;
        self
    }

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
        let Poll::Ready(why) = self.revoked.as_mut()?.as_mut().poll(cx) else {
            return None;
        };
        self.revoked = None;
        self.trouble.set(Some(why.clone()));
        let kind = io::ErrorKind::ConnectionAborted;
        Some(io::Error::new(kind, LineError(why)))
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
                io::Error::new(error.kind(), LineError(why))
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
            LineError(why.to_owned()),
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
