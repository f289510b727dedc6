//! TLS settings of probes.

use super::{Probe, SecretRef};

/// Key of the CA certificates in a secret, PEM.
pub const CA_CERT: &str = "ca.crt";
/// Key of the certificate in a secret, PEM.
pub const TLS_CERT: &str = "tls.crt";
/// Key of the certificate's private key in a secret, PEM.
pub const TLS_KEY: &str = "tls.key";

/// TLS settings of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProbeTls {
    /// Trusted certificate authorities.
    pub trust: Trust,
    /// Name that the certificate must match. `None` for the host of the node's address.
    pub server_name: Option<String>,
    /// Secret with a client certificate and its key. `None` to present no certificate.
    pub client_certificate: Option<String>,
}

/// Trust anchors for the certificates of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Trust {
    /// Any certificate is accepted.
    Any,
    /// The system's CAs.
    System,
    /// The CAs in this secret.
    Secret(String),
}

impl ProbeTls {
    /// The secrets that it refers to, each with the referring field.
    #[must_use]
    pub fn secrets(&self) -> Vec<(&'static str, SecretRef)> {
        let of = |name: &str, key: &str| SecretRef {
            name: name.to_owned(),
            key: key.to_owned(),
        };
        let mut found = Vec::new();
        if let Trust::Secret(name) = &self.trust {
            found.push(("ca_secret", of(name, CA_CERT)));
        }
        if let Some(name) = &self.client_certificate {
            for key in [TLS_CERT, TLS_KEY] {
                found.push(("client_certificate_secret", of(name, key)));
            }
        }
        found
    }
}

impl Probe {
    /// The TLS settings and their field below `health`. `None` for plaintext.
    #[must_use]
    pub fn tls(&self) -> Option<(&'static str, &ProbeTls)> {
        match self {
            Self::Grpc { tls, .. } => Some(("grpc.tls_settings", tls.as_ref()?)),
            Self::Http { tls, .. } => Some(("http.tls_settings", tls.as_ref()?)),
            Self::Phase | Self::Tcp { .. } | Self::Exec { .. } => None,
        }
    }
}
