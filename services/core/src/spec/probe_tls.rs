//! How probes speak TLS.

use super::{Probe, SecretRef};

/// Key of a secret with authorities, PEM.
pub const CA_CERT: &str = "ca.crt";
/// Key of a secret with a certificate, PEM.
pub const TLS_CERT: &str = "tls.crt";
/// Key of a secret with the private key of the certificate beside it, PEM.
pub const TLS_KEY: &str = "tls.key";

/// How a probe speaks TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProbeTls {
    /// Whose certificates are believed.
    pub trust: Trust,
    /// Name that the certificate must have. Absent: the host of the node's address.
    pub server_name: Option<String>,
    /// Secret with a client certificate and its key. Absent: none is shown.
    pub client_certificate: Option<String>,
}

/// Whose certificates of nodes are believed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Trust {
    /// Everybody's.
    Any,
    /// Those of the system's authorities.
    System,
    /// Those of the authorities in this secret.
    Secret(String),
}

impl ProbeTls {
    /// What it names of secrets, each with the field that does.
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
    /// How it speaks TLS, with the field that says so below `health`. Absent: it does not.
    #[must_use]
    pub fn tls(&self) -> Option<(&'static str, &ProbeTls)> {
        match self {
            Self::Grpc { tls, .. } => Some(("grpc.tls_settings", tls.as_ref()?)),
            Self::Http { tls, .. } => Some(("http.tls_settings", tls.as_ref()?)),
            Self::Phase | Self::Tcp { .. } | Self::Exec { .. } => None,
        }
    }
}
