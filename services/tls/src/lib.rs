//! Certificates: loading, validation, reloading, and explanations of rejections.
//!
//! TLS 1.3 only, with ring. [`server`] and [`client`] are the two sides, [`peer`] identifies the subject of a
//! certificate, and [`explain`] describes handshake failures: which side rejects what, and why. [`line`] is the
//! connection of a client.

pub mod client;
pub mod explain;
pub mod line;
pub mod peer;
mod pem;
pub mod server;

use std::{path::PathBuf, sync::Arc};

use rustls::crypto::CryptoProvider;

pub use self::{
    client::{Authorities, Client, ClientSettings, Identity},
    line::{Connector, Line, LineError, Trouble},
    peer::{Certificate, Peer},
    server::{Server, ServerFiles},
};

/// An invalid certificate, key or CA list. Never shows any of their content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {}: {why}", place(path.as_ref()))]
pub struct TlsError {
    what: &'static str,
    path: Option<PathBuf>,
    why: String,
}

fn place(path: Option<&PathBuf>) -> String {
    path.map_or_else(|| "given".to_owned(), |path| path.display().to_string())
}

impl TlsError {
    pub(crate) fn new(what: &'static str, path: Option<PathBuf>, why: impl ToString) -> Self {
        Self {
            what,
            path,
            why: why.to_string(),
        }
    }
}

/// The cryptography provider that all connections use.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Validates a list of CAs in PEM format. Fails if it is empty or contains anything else.
pub fn check_authorities(text: &str) -> Result<(), TlsError> {
    pem::authorities("authorities", &pem::Source::given(text.as_bytes().to_vec())).map(drop)
}
