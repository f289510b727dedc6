//! Identities in certificates.

use rustls::pki_types::CertificateDer;
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer};

/// Trust domain of the identities that `drover certs` issues.
const TRUST_DOMAIN: &str = "spiffe://drover/";

/// The relevant fields of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Start of validity, in seconds since the Unix epoch.
    pub not_before: i64,
    /// End of validity (inclusive), in seconds since the Unix epoch.
    pub not_after: i64,
    /// Common name of the subject.
    pub common_name: Option<String>,
    /// Subject alternative names: DNS names and IP addresses.
    pub names: Vec<String>,
    /// Subject alternative names: URIs.
    pub uris: Vec<String>,
    /// Issuer name as text.
    pub issuer: String,
    /// Whether it is a CA certificate.
    pub is_authority: bool,
    /// Serial number.
    pub serial: Vec<u8>,
    der: CertificateDer<'static>,
}

impl Certificate {
    /// Parses a DER certificate. The error is human-readable.
    pub fn read(der: &CertificateDer<'_>) -> Result<Self, String> {
        let (_, parsed) = X509Certificate::from_der(der)
            .map_err(|_| "holds a certificate that cannot be read".to_owned())?;
        let common_name = parsed
            .subject()
            .iter_common_name()
            .next()
            .and_then(|name| name.as_str().ok())
            .map(ToOwned::to_owned);
        let (mut names, mut uris) = (Vec::new(), Vec::new());
        if let Ok(Some(alternative)) = parsed.subject_alternative_name() {
            for name in &alternative.value.general_names {
                match name {
                    GeneralName::DNSName(name) => names.push((*name).to_owned()),
                    GeneralName::URI(uri) => uris.push((*uri).to_owned()),
                    GeneralName::IPAddress(bytes) => names.extend(address(bytes)),
                    _ => {}
                }
            }
        }
        Ok(Self {
            not_before: parsed.validity().not_before.timestamp(),
            not_after: parsed.validity().not_after.timestamp(),
            common_name,
            names,
            uris,
            issuer: parsed.issuer().to_string(),
            is_authority: parsed.is_ca(),
            serial: parsed.tbs_certificate.raw_serial().to_vec(),
            der: der.clone().into_owned(),
        })
    }

    /// Whether this CA has signed it with its key, regardless of names.
    #[must_use]
    pub fn is_signed_by(&self, authority: &Self) -> bool {
        let (Ok((_, own)), Ok((_, authority))) = (
            X509Certificate::from_der(&self.der),
            X509Certificate::from_der(&authority.der),
        ) else {
            return false;
        };
        own.issuer() == authority.subject()
            && own.verify_signature(Some(authority.public_key())).is_ok()
    }

    /// Reads all certificates of a PEM file. Fails if the file cannot be read or contains none.
    pub fn read_file(path: &std::path::Path) -> Result<Vec<Self>, crate::TlsError> {
        const WHAT: &str = "certificate";
        let source = crate::pem::Source::read(WHAT, path)?;
        crate::pem::chain(WHAT, &source)?
            .iter()
            .map(|der| {
                Self::read(der).map_err(|why| crate::TlsError::new(WHAT, Some(path.into()), why))
            })
            .collect()
    }
}

fn address(bytes: &[u8]) -> Option<String> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(std::net::Ipv4Addr::from(v4).to_string());
    }
    let v6 = <[u8; 16]>::try_from(bytes).ok()?;
    Some(std::net::Ipv6Addr::from(v6).to_string())
}

/// Identity of the remote side, from a verified certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    name: String,
    expires: i64,
}

impl Peer {
    /// Returns the SPIFFE URI of a verified certificate, or else its common name. Fails with a human-readable error if
    /// it has neither, or several URIs.
    pub fn of(der: &CertificateDer<'_>) -> Result<Self, String> {
        let certificate = Certificate::read(der)?;
        let mut spiffe = certificate
            .uris
            .into_iter()
            .filter(|uri| uri.starts_with("spiffe://"));
        let name = match (spiffe.next(), spiffe.next()) {
            (Some(one), None) => one,
            // The SPIFFE standard allows one URI; with several, it would be ambiguous which one counts.
            (Some(_), Some(_)) => {
                return Err("the client certificate has several SPIFFE URIs".to_owned());
            }
            (None, _) => match certificate.common_name {
                // A common name must not be mistaken for a URI.
                Some(name) if !name.is_empty() && !name.contains("://") => name,
                _ => {
                    return Err(
                        "the client certificate names nobody: it has neither a SPIFFE URI nor a common name"
                            .to_owned(),
                    );
                }
            },
        };
        Ok(Self {
            name,
            expires: certificate.not_after,
        })
    }

    /// SPIFFE URI or common name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// End of the certificate's validity (inclusive), in seconds since the Unix epoch.
    #[must_use]
    pub fn expires(&self) -> i64 {
        self.expires
    }

    /// The role in a Drover URI (`spiffe://drover/ROLE/NAME`).
    #[must_use]
    pub fn role(&self) -> Option<&str> {
        role_of(&self.name)
    }
}

/// Checks that the certificate of a server has the role that its caller requires (`orchestrator`, `platform`). A
/// certificate without a Drover role, such as one of a public CA, matches any role unless a role is `required`. The
/// error describes the required and the actual role.
pub fn check_role(der: &CertificateDer<'_>, wanted: &str, required: bool) -> Result<(), String> {
    let certificate = Certificate::read(der)?;
    let mut ours = certificate
        .uris
        .iter()
        .filter(|uri| uri.starts_with(TRUST_DOMAIN))
        .peekable();
    if ours.peek().is_none() && required {
        return Err(format!(
            "it is that of no {wanted}: it has no {TRUST_DOMAIN}{wanted}/NAME"
        ));
    }
    match ours.find(|uri| role_of(uri) != Some(wanted)) {
        Some(other) => Err(format!(
            "it is that of {other}, and {TRUST_DOMAIN}{wanted}/NAME was expected"
        )),
        None => Ok(()),
    }
}

fn role_of(uri: &str) -> Option<&str> {
    let (role, name) = uri.strip_prefix(TRUST_DOMAIN)?.split_once('/')?;
    (!role.is_empty() && !name.is_empty()).then_some(role)
}

/// Builds the URI of a role and a name.
#[must_use]
pub fn uri(role: &str, name: &str) -> String {
    format!("{TRUST_DOMAIN}{role}/{name}")
}
