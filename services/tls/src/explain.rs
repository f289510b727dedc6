//! Explains handshake failures: which side rejects what, and why.

use std::error::Error as StdError;

use rustls::{AlertDescription, CertificateError, Error};

use crate::{client::Ready, peer::Certificate};

/// Finds the rustls error in an error chain.
#[must_use]
pub fn find<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Error> {
    let mut next = Some(error);
    while let Some(at) = next {
        if let Some(found) = at.downcast_ref::<Error>() {
            return Some(found);
        }
        // `source` of an I/O error skips the error that it wraps.
        let hidden = at
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref);
        if let Some(found) = hidden.and_then(|inner| find(inner)) {
            return Some(found);
        }
        next = at.source();
    }
    None
}

/// Prefix of messages about a client certificate that the server rejects.
const REFUSED: &str = "the server refuses the client's certificate: ";
/// Prefix of messages about a server certificate that the client rejects.
const REFUSES: &str = "the server's certificate is refused: ";
/// Prefix of messages about a missing client certificate.
const WANTED: &str = "the server wants a client certificate";

/// Whether a message of [`to_client`] says that the server rejects the client, which implies nothing about the server.
#[must_use]
pub fn is_of_client(message: &str) -> bool {
    message.contains(REFUSED) || message.contains(WANTED)
}

/// Explains a failure between a client that is configured by flags and a server at `host`; `own` is the client's
/// certificate.
#[must_use]
pub fn to_client(error: &Error, host: &str, own: Option<&Certificate>) -> String {
    between(error, host, own, true)
}

/// Explains a failure between a client that is configured by `ready` and a server at `host`.
#[must_use]
pub fn to_caller(error: &Error, host: &str, ready: &Ready) -> String {
    between(error, host, ready.own.as_ref(), ready.by_flags)
}

fn between(error: &Error, host: &str, own: Option<&Certificate>, by_flags: bool) -> String {
    match error {
        Error::InvalidCertificate(why) => {
            let trusted = if by_flags {
                "name those to trust with --ca"
            } else {
                "it is none of those given"
            };
            format!("{REFUSES}{}", certificate(why, host, trusted))
        }
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            let flags = if by_flags { " (--cert and --key)" } else { "" };
            format!("{WANTED}{flags}, and none was shown")
        }
        Error::AlertReceived(alert) => refused_by_server(*alert, own),
        Error::InvalidMessage(_) => {
            "the server does not speak TLS there: is it http:// instead of https://?".to_owned()
        }
        Error::PeerIncompatible(why) => {
            format!("the server speaks no TLS that this client does (1.3): {why:?}")
        }
        other => format!("TLS with the server failed: {other}"),
    }
}

fn refused_by_server(alert: AlertDescription, own: Option<&Certificate>) -> String {
    use AlertDescription as A;
    let refused = |why: &str| format!("{REFUSED}{why}");
    match alert {
        A::UnknownCA => refused(
            "it is of an authority that the server does not trust, or of which it has no list of revoked certificates \
             that holds",
        ),
        // A CA with the same name but a different key.
        A::DecryptError => refused("its signature is not of an authority that the server trusts"),
        A::CertificateExpired => {
            let now = now();
            refused(&match own {
                Some(own) if own.not_after < now => {
                    format!("it expired at {}", utc(own.not_after))
                }
                Some(own) if own.not_before > now => {
                    format!("it is not valid before {}", utc(own.not_before))
                }
                _ => "it is expired, or not valid yet (do the clocks agree?)".to_owned(),
            })
        }
        A::CertificateRevoked => refused("it is revoked"),
        A::UnsupportedCertificate => refused("it is not for clients"),
        A::BadCertificate | A::CertificateUnknown | A::AccessDenied => {
            refused(&format!("{alert:?}"))
        }
        A::ProtocolVersion => "the server does not speak TLS 1.3".to_owned(),
        A::UnrecognisedName => "the server has no certificate for that name".to_owned(),
        A::NoApplicationProtocol => "the server does not speak HTTP/2 there".to_owned(),
        other => format!("the server ended the handshake: {other:?}"),
    }
}

/// Message for a server whose certificate does not have the required role.
#[must_use]
pub fn wrong_role(why: &str) -> String {
    format!("{REFUSES}{why}")
}

/// Explains a client's failure to a server: a label from a small set, and a description.
#[must_use]
pub fn to_server(error: &Error) -> (&'static str, String) {
    use AlertDescription as A;
    match error {
        Error::InvalidCertificate(why) => (
            "client_certificate",
            format!(
                "the client's certificate is refused: {}",
                certificate(why, "", "tls.client_ca names those that are")
            ),
        ),
        Error::AlertReceived(alert) => {
            let why = match alert {
                A::UnknownCA => "it does not trust its authority",
                A::CertificateExpired => "it is expired, or not valid yet, by the client's clock",
                A::BadCertificate => "it is for another name than the one that was called",
                A::UnsupportedCertificate => "it is not for servers",
                _ => "",
            };
            if why.is_empty() {
                (
                    "alert",
                    format!("the client ended the handshake: {alert:?}"),
                )
            } else {
                (
                    "server_certificate",
                    format!("the client refuses the certificate of this server: {why}"),
                )
            }
        }
        Error::InvalidMessage(_) => ("not_tls", "the client does not speak TLS".to_owned()),
        Error::PeerIncompatible(why) => (
            "incompatible",
            format!("the client speaks no TLS that this server does (1.3): {why:?}"),
        ),
        other => ("other", other.to_string()),
    }
}

fn certificate(error: &CertificateError, host: &str, trusted: &str) -> String {
    use CertificateError as E;
    let secs =
        |time: &rustls::pki_types::UnixTime| utc(i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
    match error {
        E::Expired => "it has expired".to_owned(),
        E::ExpiredContext { not_after, .. } => format!("it expired at {}", secs(not_after)),
        E::NotValidYet => "it is not valid yet (is the clock right?)".to_owned(),
        E::NotValidYetContext { not_before, .. } => {
            format!(
                "it is not valid before {} (is the clock right?)",
                secs(not_before)
            )
        }
        E::NotValidForName => format!("it is for another name than {host}"),
        E::NotValidForNameContext { presented, .. } => {
            let names: Vec<String> = presented.iter().filter_map(|name| bare(name)).collect();
            let names = if names.is_empty() {
                "no name".to_owned()
            } else {
                names.join(", ")
            };
            format!("it is for {names} and not for {host}")
        }
        E::UnknownIssuer => {
            format!("it is of an authority that is not trusted here ({trusted})")
        }
        E::BadSignature => {
            format!("its signature is not of an authority that is trusted here ({trusted})")
        }
        E::Revoked => "it is revoked".to_owned(),
        E::UnknownRevocationStatus => {
            "whether it is revoked says no list that is given here (crl) for its authority"
                .to_owned()
        }
        E::ExpiredRevocationListContext { next_update, .. } => format!(
            "the list of revoked certificates (crl) ended at {}",
            secs(next_update)
        ),
        E::ExpiredRevocationList => "the list of revoked certificates (crl) has ended".to_owned(),
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "it is not for this side of a connection (extended key usage)".to_owned()
        }
        other => other.to_string(),
    }
}

/// Extracts the name from the notation of rustls (`DnsName("a")`). `None` if it is not a host name.
fn bare(name: &str) -> Option<String> {
    let (kind, rest) = name.split_once('(').unwrap_or(("", name));
    if kind.starts_with("Uniform") {
        return None;
    }
    let name = rest.trim_end_matches(')').trim_matches('"');
    // Canonical form.
    let address = name.parse::<std::net::IpAddr>().ok();
    Some(address.map_or_else(|| name.to_owned(), |address| address.to_string()))
}

fn now() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        })
}

/// Formats seconds since the Unix epoch (`2026-11-21 16:09:21 UTC`).
#[must_use]
pub fn utc(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days to civil date, based on eras of 400 years that begin in March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        rest / 3600,
        rest % 3600 / 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_shown_as_a_date() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(1_795_277_361), "2026-11-21 16:09:21 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(-1), "1969-12-31 23:59:59 UTC");
    }

    #[test]
    fn names_are_shown_bare() {
        assert_eq!(bare("DnsName(\"localhost\")").as_deref(), Some("localhost"));
        assert_eq!(bare("IpAddress(0::1)").as_deref(), Some("::1"));
        assert_eq!(bare("UniformResourceIdentifier(\"spiffe://a/b\")"), None);
    }
}
