//! Certificates that are issued here, of whatever authority: for how long, and when another one takes their place.

use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, DistinguishedName, DnType, Error, ExtendedKeyUsagePurpose, Issuer, KeyPair,
};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long a certificate is valid.
pub(crate) const VALID: Duration = DAY.saturating_mul(90);
/// When it is replaced.
pub(crate) const RENEWED: Duration = DAY.saturating_mul(60);
/// Clocks may differ.
pub(crate) const BEFORE: Duration = Duration::from_secs(3600);

/// A certificate for a common name, which may be empty, and these uses, and its key, both as PEM.
pub(crate) fn issue(
    authority: &Issuer<'_, KeyPair>,
    mut params: CertificateParams,
    (name, usages): (&str, Vec<ExtendedKeyUsagePurpose>),
    now: SystemTime,
) -> Result<(String, String), Error> {
    let key = KeyPair::generate()?;
    (params.not_before, params.not_after) = ((now - BEFORE).into(), (now + VALID).into());
    params.distinguished_name = DistinguishedName::new();
    if !name.is_empty() {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    params.extended_key_usages = usages;
    let signed = params.signed_by(&key, authority)?;
    Ok((signed.pem(), key.serialize_pem()))
}
