//! Certificate and key files.

use std::{collections::BTreeSet, fmt, path::Path, path::PathBuf, sync::Arc};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, pem::PemObject},
};

use x509_parser::{
    oid_registry::OID_X509_EXT_ISSUER_DISTRIBUTION_POINT as DISTRIBUTION_POINT, prelude::FromDer,
    revocation_list::CertificateRevocationList,
};

use zeroize::Zeroize;

use crate::TlsError;

/// Maximum file size: a system's complete CA bundle has a few hundred kilobytes.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// The content of a file, and its path.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Source {
    path: Option<PathBuf>,
    bytes: Vec<u8>,
}

impl Drop for Source {
    fn drop(&mut self) {
        // May be a private key.
        self.bytes.zeroize();
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // May be a private key.
        write!(f, "Source({:?})", self.path)
    }
}

impl Source {
    pub(crate) fn given(bytes: Vec<u8>) -> Self {
        Self { path: None, bytes }
    }

    pub(crate) fn read(what: &'static str, path: &Path) -> Result<Self, TlsError> {
        let wrong = |why: &dyn fmt::Display| TlsError::new(what, Some(path.to_owned()), why);
        let size = std::fs::metadata(path).map_err(|e| wrong(&e))?.len();
        if size > MAX_BYTES {
            return Err(wrong(&format!(
                "has {size} bytes, which no certificate has"
            )));
        }
        let bytes = std::fs::read(path).map_err(|e| wrong(&e))?;
        Ok(Self {
            path: Some(path.to_owned()),
            bytes,
        })
    }

    /// Description of the location.
    pub(crate) fn name(&self) -> String {
        self.path.as_ref().map_or_else(
            || "the one beside it".to_owned(),
            |path| path.display().to_string(),
        )
    }

    pub(crate) fn wrong(&self, what: &'static str, why: impl ToString) -> TlsError {
        TlsError::new(what, self.path.clone(), why)
    }
}

/// Parses a certificate chain, leaf first.
pub(crate) fn chain(
    what: &'static str,
    source: &Source,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain = CertificateDer::pem_slice_iter(&source.bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| source.wrong(what, "is not PEM"))?;
    if chain.is_empty() {
        return Err(source.wrong(what, "holds no certificate (PEM, BEGIN CERTIFICATE)"));
    }
    Ok(chain)
}

pub(crate) fn key(what: &'static str, source: &Source) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&source.bytes).map_err(|_| {
        source.wrong(
            what,
            "holds no private key (PEM, BEGIN PRIVATE KEY, not encrypted)",
        )
    })
}

pub(crate) fn authorities(
    what: &'static str,
    source: &Source,
) -> Result<Arc<RootCertStore>, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in chain(what, source)? {
        store
            .add(certificate)
            .map_err(|e| source.wrong(what, format!("holds a certificate that is none: {e}")))?;
    }
    Ok(Arc::new(store))
}

/// Certificate revocation lists, and when the first of them expires, in seconds since the Unix epoch.
#[derive(Debug)]
pub(crate) struct Revoked {
    pub(crate) lists: Vec<CertificateRevocationListDer<'static>>,
    pub(crate) expires: i64,
}

pub(crate) fn revoked(what: &'static str, source: &Source) -> Result<Revoked, TlsError> {
    let lists = CertificateRevocationListDer::pem_slice_iter(&source.bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| source.wrong(what, "is not PEM"))?;
    if lists.is_empty() {
        return Err(source.wrong(
            what,
            "holds no list of revoked certificates (PEM, BEGIN X509 CRL)",
        ));
    }
    let mut expires = i64::MAX;
    let mut of = BTreeSet::new();
    for list in &lists {
        let (_, read) = CertificateRevocationList::from_der(list)
            .map_err(|_| source.wrong(what, "holds a list that cannot be read"))?;
        // Without an expiry, a withheld newer list could not be detected.
        let end = read
            .next_update()
            .ok_or_else(|| source.wrong(what, "holds a list that does not say when it ends"))?;
        expires = expires.min(end.timestamp());
        // Of two lists with the same scope only the first would be checked, which may be the older one.
        let points = read
            .extensions()
            .iter()
            .find(|it| it.oid == DISTRIBUTION_POINT);
        let points = points.map(|it| it.value.to_vec());
        if !of.insert((read.issuer().as_raw().to_vec(), points)) {
            let why = format!("holds two lists of {}; keep the newest only", read.issuer());
            return Err(source.wrong(what, why));
        }
    }
    Ok(Revoked { lists, expires })
}
