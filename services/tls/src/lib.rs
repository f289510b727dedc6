//! Certificates: read, checked, read again when they change, explained when they are refused.
//!
//! TLS 1.3 only, with ring. [`server`] and [`client`] hold the two sides, [`peer`] says whom a certificate names,
//! [`explain`] puts what went wrong in a handshake into words: which side refuses what, and why.

pub mod client;
pub mod explain;
pub mod peer;
mod pem;
pub mod server;

use std::{path::PathBuf, sync::Arc};

use rustls::crypto::CryptoProvider;

pub use self::{
    client::{Authorities, Client, ClientSettings, Identity},
    peer::{Certificate, Peer},
    server::{Server, ServerFiles},
};

/// What is wrong with a certificate, a key or a list of authorities. Never shows what is in them.
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

/// The one provider of cryptography.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A list of authorities as PEM, checked. Errors: it holds none, or what it holds is none.
pub fn check_authorities(text: &str) -> Result<(), TlsError> {
    pem::authorities("authorities", &pem::Source::given(text.as_bytes().to_vec())).map(drop)
}
