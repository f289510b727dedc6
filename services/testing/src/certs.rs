//! Certificate authorities and certificates for tests.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "tests that cannot go on fail, and what is not said here the tests say"
)]

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber,
};
use tempfile::TempDir;

/// One day in seconds.
pub const DAY: i64 = 24 * 60 * 60;

/// An authority, with a directory for its files.
pub struct Authority {
    pub directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

/// Files of one certificate.
#[derive(Clone, Debug)]
pub struct Pair {
    pub cert: PathBuf,
    pub key: PathBuf,
    pub serial: u64,
}

/// Contents of a certificate.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub file: &'static str,
    pub common_name: Option<&'static str>,
    pub uris: Vec<&'static str>,
    pub names: Vec<&'static str>,
    /// Validity, in seconds from now.
    pub valid: (i64, i64),
}

impl Wanted {
    pub fn server(file: &'static str) -> Self {
        Self {
            file,
            common_name: None,
            uris: Vec::new(),
            names: vec!["localhost", "127.0.0.1"],
            valid: (-DAY, DAY),
        }
    }

    pub fn client(file: &'static str, uri: &'static str) -> Self {
        Self {
            uris: vec![uri],
            names: Vec::new(),
            ..Self::server(file)
        }
    }
}

fn next_serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn at(seconds: i64) -> SystemTime {
    let span = Duration::from_secs(seconds.unsigned_abs());
    let now = SystemTime::now();
    if seconds < 0 { now - span } else { now + span }
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let directory = TempDir::new().unwrap();
        std::fs::write(directory.path().join("ca.pem"), &pem).unwrap();
        Self {
            directory,
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    pub fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Creates a certificate and its key, as PEM.
    pub fn make(&self, wanted: &Wanted) -> (String, String) {
        self.numbered(wanted, next_serial())
    }

    fn numbered(&self, wanted: &Wanted, serial: u64) -> (String, String) {
        let mut params = CertificateParams::new(
            wanted
                .names
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
        )
        .unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(name) = wanted.common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        for uri in &wanted.uris {
            let uri = SanType::URI((*uri).try_into().unwrap());
            params.subject_alt_names.push(uri);
        }
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.serial_number = Some(SerialNumber::from(serial));
        params.not_before = at(wanted.valid.0).into();
        params.not_after = at(wanted.valid.1).into();
        let key = KeyPair::generate().unwrap();
        let made = params.signed_by(&key, &self.issuer).unwrap();
        (made.pem(), key.serialize_pem())
    }

    pub fn write(&self, wanted: &Wanted) -> Pair {
        let pair = Pair {
            cert: self.path(&format!("{}.pem", wanted.file)),
            key: self.path(&format!("{}.key", wanted.file)),
            serial: next_serial(),
        };
        let (cert, key) = self.numbered(wanted, pair.serial);
        replace(&pair.cert, &cert);
        replace(&pair.key, &key);
        pair
    }

    /// Creates a list of revoked certificates, as PEM, which expires `end` seconds from now.
    pub fn revoke(&self, revoked: &[&Pair], end: i64) -> String {
        let revoked = revoked.iter().map(|pair| RevokedCertParams {
            serial_number: SerialNumber::from(pair.serial),
            revocation_time: at(-60).into(),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: at(end.min(0) - 60).into(),
            next_update: at(end).into(),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    pub fn server(&self) -> Pair {
        self.write(&Wanted::server("server"))
    }

    /// Creates a client certificate with a role and a name of ours.
    pub fn client(&self, file: &'static str, uri: &'static str) -> Pair {
        self.write(&Wanted::client(file, uri))
    }
}

/// Replaces a file atomically, like tools that rotate certificates.
pub fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, path).unwrap();
}
