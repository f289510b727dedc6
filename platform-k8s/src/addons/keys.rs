//! Keys and certificates that are made here.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use drover_core::{Error, Result};
use drover_platform::identity::digest;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use serde_json::{Value, json};

use crate::issued;

/// A new private key of ECDSA P-256, PEM of PKCS #8, in base64.
///
/// # Errors
/// `Internal` if there is no randomness.
pub(super) fn private_key() -> Result<String> {
    let key = KeyPair::generate().map_err(|_| Error::internal("no key could be made"))?;
    Ok(BASE64.encode(key.serialize_pem()))
}

/// Names and addresses under which an OIDC provider is reached.
pub(super) fn names(issuer: &str, service: &str, address: &str) -> Vec<String> {
    let authority = issuer.split_once("://").map_or(issuer, |(_, rest)| rest);
    let authority = authority.split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let mut names = vec![host.to_owned()];
    names.extend([service.to_owned(), format!("{service}.svc")]);
    if !address.is_empty() {
        names.push(address.to_owned());
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// The certificate of a secret, or one that its authority issues for these names: `crt` and `key` in base64, `once` (the
/// digest of what it was made from) and, if it was issued, `renew_after`.
///
/// # Errors
/// `Invalid` if the authority cannot be read.
pub(super) fn certificate(secret: &BTreeMap<String, Vec<u8>>, names: &[String]) -> Result<Value> {
    let pem = |key: &str| {
        let content = secret.get(key).map(Vec::as_slice).unwrap_or_default();
        String::from_utf8_lossy(content).into_owned()
    };
    let texts = secret.values().map(Vec::as_slice);
    let once = digest(texts.chain(names.iter().map(String::as_bytes)), 16);
    let has = |key: &str| secret.get(key).is_some_and(|it| !it.is_empty());
    if has("tls.crt") && has("tls.key") {
        return Ok(json!({
            "crt": BASE64.encode(pem("tls.crt")), "key": BASE64.encode(pem("tls.key")), "once": once,
        }));
    }
    let refused = |what: &str| {
        Error::invalid(
            "spec.oidc_provider.tls_secret",
            format!("its {what} cannot be used"),
        )
    };
    let authority = KeyPair::from_pem(&pem("ca.key")).map_err(|_| refused("ca.key"))?;
    let issuer =
        Issuer::from_ca_cert_pem(&pem("ca.crt"), authority).map_err(|_| refused("ca.crt"))?;
    let params = CertificateParams::new(names.to_vec()).map_err(|_| {
        Error::invalid(
            "spec.oidc_provider.issuer",
            "has a host for which no certificate can be issued",
        )
    })?;
    let now = SystemTime::now();
    let name = names.first().cloned().unwrap_or_default();
    let usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let (signed, key) =
        issued::issue(&issuer, params, (&name, usages), now).map_err(|_| refused("ca.key"))?;
    let renew = now + issued::RENEWED;
    let renew = renew
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let chain = format!("{signed}{}", pem("ca.crt"));
    Ok(json!({
        "crt": BASE64.encode(chain), "key": BASE64.encode(key), "once": once,
        "renew_after": renew.to_string(),
    }))
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, IsCa};

    use super::*;

    #[test]
    fn half_a_pair_beside_an_authority_is_no_certificate() {
        let key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::new(Vec::<String>::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = authority.self_signed(&key).unwrap();
        let mut secret = BTreeMap::from([
            ("ca.crt".to_owned(), authority.pem().into_bytes()),
            ("ca.key".to_owned(), key.serialize_pem().into_bytes()),
            ("tls.crt".to_owned(), b"certificate".to_vec()),
        ]);
        for half in ["", "tls.key"] {
            secret.insert(half.to_owned(), Vec::new());
            let pair = certificate(&secret, &["login.example".to_owned()]).unwrap();
            assert!(pair["renew_after"].is_string(), "it is issued");
            assert_ne!(pair["key"], "");
        }
        secret.insert("tls.key".to_owned(), b"key".to_vec());
        let pair = certificate(&secret, &["login.example".to_owned()]).unwrap();
        assert_eq!(pair["key"], BASE64.encode("key"));
    }
}
