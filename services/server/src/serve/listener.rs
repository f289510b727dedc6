//! Sources of connections: a TCP port or a unix socket.

use std::{fmt, io, net::SocketAddr, path::PathBuf};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::ACCEPT_PAUSE;
use crate::socket::SocketFile;

/// A bound listener.
#[derive(Debug)]
pub struct Listener(Kind);

#[derive(Debug)]
enum Kind {
    Port(TcpListener),
    Socket(UnixListener, SocketFile),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self(Kind::Port(listener))
    }
}

impl From<(UnixListener, SocketFile)> for Listener {
    fn from((listener, file): (UnixListener, SocketFile)) -> Self {
        Self(Kind::Socket(listener, file))
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On a TCP port.
    Port(SocketAddr),
    /// On a unix socket.
    Socket(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(address) => address.fmt(f),
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// An accepted connection.
pub(super) enum Stream {
    Port(TcpStream, SocketAddr),
    Socket(UnixStream),
}

impl Listener {
    /// Where it listens. Fails if the system does not report the address.
    pub fn place(&self) -> io::Result<Place> {
        Ok(match &self.0 {
            Kind::Port(listener) => Place::Port(listener.local_addr()?),
            Kind::Socket(_, file) => Place::Socket(file.path().to_owned()),
        })
    }

    pub(super) async fn accept(&self) -> Stream {
        loop {
            let accepted = match &self.0 {
                Kind::Port(listener) => listener
                    .accept()
                    .await
                    .map(|(stream, peer)| Stream::Port(stream, peer)),
                Kind::Socket(listener, _) => listener
                    .accept()
                    .await
                    .map(|(stream, _)| Stream::Socket(stream)),
            };
            match accepted {
                Ok(stream) => return stream,
                Err(e) => {
                    tracing::warn!(error = %e, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}
