//! The authority of a group, and the certificate that its nodes show. Performs no I/O.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drover_core::{Error, Result};
use drover_platform::identity::digest;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::issued::{BEFORE, RENEWED, issue};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long an authority is valid.
const AUTHORITY: Duration = YEAR.saturating_mul(10);
/// When it is replaced, if no person asks for that before.
pub(super) const AUTHORITY_RENEWED: Duration = YEAR.saturating_mul(8);
/// So many authorities of before are trusted at most.
const MOST_FORMER: usize = 2;
/// A certificate that should have been replaced so long ago is replaced in any case, before it ends.
const LAST: Duration = Duration::from_secs(20 * 24 * 3600);
/// How long nodes know of another authority before certificates of it are shown: the kubelet needs up to two minutes to
/// pass on a change, and a node some seconds.
const KNOWN: Duration = Duration::from_secs(300);
/// Time by which a server that begins after a change is surely newer than that, by the clocks of two machines.
const SKEW: Duration = Duration::from_secs(60);

const END: &str = "-----END CERTIFICATE-----\n";

/// An authority whose certificates the nodes of a group trust.
pub(super) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// The authority of a group, and the one in whose place it came, as long as that still has to issue certificates.
pub(super) struct Authorities {
    pub(super) current: Authority,
    pub(super) former: Option<Authority>,
}

/// What the nodes of a group show, and whom they trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    /// The authority and those of before that somebody may still show, PEM.
    pub(super) trusted: String,
    pub(super) certificate: String,
    pub(super) key: String,
    /// Digest of the authority and of the names that it was issued for.
    pub(super) of: String,
    pub(super) renew_after: SystemTime,
    /// Since when `trusted` is as it is.
    pub(super) trusted_since: SystemTime,
}

/// What a certificate is for.
#[derive(Clone, Debug)]
pub(super) struct Purpose {
    pub(super) names: Vec<String>,
    /// Whether a server shows it. A client otherwise.
    pub(super) server: bool,
    /// When the oldest of the servers began, if they learn of another authority only then.
    pub(super) oldest: Option<SystemTime>,
}

impl Default for Shown {
    fn default() -> Self {
        Self {
            trusted: String::new(),
            certificate: String::new(),
            key: String::new(),
            of: String::new(),
            renew_after: UNIX_EPOCH,
            trusted_since: UNIX_EPOCH,
        }
    }
}

impl Authority {
    /// A new authority, and its key as PEM.
    ///
    /// # Errors
    /// `Internal` if there is no randomness.
    pub(super) fn new(name: &str, now: SystemTime) -> Result<(Self, String)> {
        let none = |_| Error::internal("no authority could be made");
        let key = KeyPair::generate().map_err(none)?;
        let mut params = CertificateParams::default();
        // A common name has at most 64 characters.
        let name: String = name.chars().take(64).collect();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // Also for whoever's clock is right while this one is ahead.
        (params.not_before, params.not_after) = ((now - YEAR).into(), (now + AUTHORITY).into());
        let pem = params.self_signed(&key).map_err(none)?.pem();
        let text = key.serialize_pem();
        let issuer = Issuer::new(params, key);
        Ok((
            Self {
                pem: unix(&pem),
                issuer,
            },
            text,
        ))
    }

    /// One that was made before. `None` if it is none.
    pub(super) fn read(certificate: &str, key: &str) -> Option<Self> {
        let key = KeyPair::from_pem(key).ok()?;
        let issuer = Issuer::from_ca_cert_pem(certificate, key).ok()?;
        let pem = unix(certificate);
        Some(Self { pem, issuer })
    }

    /// Its certificate.
    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    fn issue(
        &self,
        purpose: &Purpose,
        (trusted, trusted_since): (String, SystemTime),
        now: SystemTime,
    ) -> Result<(Shown, SystemTime)> {
        let wrong = |_| Error::internal("no certificate could be issued");
        let params = CertificateParams::new(purpose.names.clone()).map_err(wrong)?;
        let mut usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        usages.extend(
            purpose
                .server
                .then_some(ExtendedKeyUsagePurpose::ServerAuth),
        );
        let (certificate, key) = issue(&self.issuer, params, ("", usages), now).map_err(wrong)?;
        let shown = Shown {
            trusted,
            certificate: unix(&certificate),
            key,
            of: self.digest(&purpose.names),
            renew_after: now + RENEWED,
            trusted_since,
        };
        let until = shown.renew_after;
        Ok((shown, until))
    }

    fn digest(&self, names: &[String]) -> String {
        digest([&self.pem].into_iter().chain(names), 16)
    }
}

impl Authorities {
    /// Those that are to be trusted, PEM.
    pub(super) fn pems(&self) -> impl Iterator<Item = &str> {
        let all = [Some(&self.current), self.former.as_ref()].into_iter();
        all.flatten().map(Authority::pem)
    }

    /// Whether the authority before is needed no more: all that is shown is of the current one.
    pub(super) fn is_through(&self, purpose: &Purpose, shown: &Shown) -> bool {
        shown.of == self.current.digest(&purpose.names)
    }

    /// What is shown for this purpose from now on, and when to look again. Another authority is trusted for a while before
    /// certificates of it are shown, and the former one is trusted from then on, too: nodes hear of both at different times.
    /// `trusted` has these and others whose certificates nodes of the group show.
    ///
    /// # Errors
    /// `Internal` if the certificate cannot be issued.
    pub(super) fn next(
        &self,
        purpose: &Purpose,
        trusted: &[&str],
        shown: &Shown,
        now: SystemTime,
    ) -> Result<(Shown, SystemTime)> {
        let former = self.former.as_ref();
        if shown.certificate.is_empty() || shown.key.is_empty() {
            // Servers that began before do not know another authority than the former one.
            let issuer = former.filter(|_| purpose.oldest.is_some());
            let issuer = issuer.unwrap_or(&self.current);
            return issuer.issue(purpose, (trusted.concat(), now), now);
        }
        let known = shown.trusted.split_inclusive(END).map(str::trim_start);
        let known: Vec<&str> = known.filter(|it| it.ends_with(END)).collect();
        let left = known.iter().copied().filter(|it| !trusted.contains(it));
        let left: Vec<&str> = left.take(MOST_FORMER).collect();
        let bundle = format!("{}{}", trusted.concat(), left.concat());
        if bundle != shown.trusted {
            // Of one that is trusted no more nobody has to hear first.
            let gains = trusted.iter().any(|it| !known.contains(it));
            let told = Shown {
                trusted: bundle,
                trusted_since: if gains { now } else { shown.trusted_since },
                ..shown.clone()
            };
            let again = if gains { now + KNOWN } else { now };
            return Ok((told, again.min(shown.renew_after.max(now))));
        }
        // What was issued by a clock that was ahead is not valid yet, and would be kept for too long.
        let renew_after = shown.renew_after.min(now + RENEWED + BEFORE);
        let is_due = now >= shown.renew_after || renew_after < shown.renew_after;
        // Of an authority whose key is gone none can be issued any more, and one that has ended is of no use to anybody.
        let last = shown.renew_after + LAST;
        let is_changing = !left.is_empty() || former.is_some();
        let known = match purpose.oldest {
            _ if !is_changing => now,
            None if shown.trusted_since > now => now,
            None => (shown.trusted_since + KNOWN).min(last),
            Some(oldest) if oldest > shown.trusted_since + SKEW => now,
            Some(_) => last,
        };
        let issuer = if known <= now {
            Some(&self.current)
        } else {
            former
        };
        let Some(issuer) = issuer else {
            return Ok((shown.clone(), known));
        };
        if shown.of == issuer.digest(&purpose.names) && !is_due {
            let until = if known > now { known } else { renew_after };
            return Ok((shown.clone(), until.min(renew_after)));
        }
        issuer.issue(purpose, (bundle, shown.trusted_since), now)
    }
}

/// With ends of lines as everybody compares them.
fn unix(pem: &str) -> String {
    format!("{}\n", pem.replace("\r\n", "\n").trim())
}

#[cfg(test)]
mod tests {
    use x509_parser::prelude::{FromDer as _, X509Certificate};

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn nodes() -> Purpose {
        Purpose {
            names: vec!["db.prod.svc".to_owned(), "127.0.0.1".to_owned()],
            server: true,
            oldest: None,
        }
    }

    /// What is shown next by an authority that nobody else is trusted beside.
    fn next(
        authorities: &Authorities,
        purpose: &Purpose,
        shown: &Shown,
        now: SystemTime,
    ) -> (Shown, SystemTime) {
        let trusted: Vec<&str> = authorities.pems().collect();
        authorities.next(purpose, &trusted, shown, now).unwrap()
    }

    /// An authority in whose place none came, and its key.
    fn made(now: SystemTime) -> (Authorities, String) {
        let (current, key) = Authority::new("orders db", now).unwrap();
        let former = None;
        (Authorities { current, former }, key)
    }

    fn first(authority: &Authorities, purpose: &Purpose, now: SystemTime) -> (Shown, SystemTime) {
        next(authority, purpose, &Shown::default(), now)
    }

    /// Whether a program that trusts these accepts the certificate.
    fn accepted(shown: &Shown) -> bool {
        let (_, own) = x509_parser::pem::parse_x509_pem(shown.certificate.as_bytes()).unwrap();
        let own = own.parse_x509().unwrap();
        x509_parser::pem::Pem::iter_from_buffer(shown.trusted.as_bytes()).any(|authority| {
            let authority = authority.unwrap();
            let (_, authority) = X509Certificate::from_der(&authority.contents).unwrap();
            authority.is_ca() && own.verify_signature(Some(authority.public_key())).is_ok()
        })
    }

    #[test]
    fn a_certificate_is_kept_for_sixty_days_and_then_replaced_under_the_same_authority() {
        let now = SystemTime::now();
        let (authority, key) = made(now);
        let (shown, until) = first(&authority, &nodes(), now);
        assert!(accepted(&shown));
        assert_eq!(until, now + 60 * DAY);
        // As after a restart of the platform.
        let authority = Authorities {
            current: Authority::read(authority.current.pem(), &key).unwrap(),
            former: None,
        };
        let later = now + 59 * DAY;
        let kept = next(&authority, &nodes(), &shown, later);
        assert_eq!(kept, (shown.clone(), until));
        let (second, _) = next(&authority, &nodes(), &shown, until);
        assert!(accepted(&second));
        assert_ne!(second.key, shown.key);
        assert_eq!(second.trusted, shown.trusted);
        let mut more = nodes();
        more.names.push("10.0.0.7".to_owned());
        let (third, _) = next(&authority, &more, &second, until);
        assert_ne!(third.certificate, second.certificate, "other names");
    }

    #[test]
    fn one_of_a_clock_that_was_ahead_is_issued_anew() {
        let now = SystemTime::now();
        let (authority, _) = made(now);
        let (ahead, _) = first(&authority, &nodes(), now + 3 * DAY);
        let (shown, until) = next(&authority, &nodes(), &ahead, now);
        assert_ne!(shown.key, ahead.key);
        assert_eq!(until, now + 60 * DAY);
    }

    /// As when the Secret of the authority was deleted, or when another one was asked for.
    fn changes(now: SystemTime) -> [(Authorities, Shown, Authorities); 2] {
        [false, true].map(|keeps| {
            let (former, key) = made(now);
            let mut all = nodes();
            all.oldest = Some(now);
            let (before, _) = first(&former, &all, now);
            let pem = former.current.pem().to_owned();
            let (current, _) = Authority::new("orders db", now).unwrap();
            let kept = keeps.then(|| Authority::read(&pem, &key).unwrap());
            let after = Authorities {
                current,
                former: kept,
            };
            (former, before, after)
        })
    }

    #[test]
    fn another_authority_is_trusted_before_its_certificates_are_shown() {
        let now = SystemTime::now();
        for (former, before, after) in changes(now) {
            let (told, until) = next(&after, &nodes(), &before, now);
            let pairs = [&told, &before].map(|it| (&it.certificate, &it.key));
            assert_eq!(pairs[0], pairs[1]);
            assert!(accepted(&told));
            for authority in [&former.current, &after.current] {
                assert!(told.trusted.contains(authority.pem()));
            }
            let soon = now + Duration::from_secs(10);
            assert_eq!(next(&after, &nodes(), &told, soon), (told.clone(), until));
            let (last, _) = next(&after, &nodes(), &told, until);
            assert_ne!(last.certificate, before.certificate);
            assert!(after.is_through(&nodes(), &last) && !after.is_through(&nodes(), &told));
            assert!(accepted(&last));
            // Whoever shows the former one is still accepted.
            let late = Shown {
                certificate: before.certificate,
                ..last
            };
            assert!(accepted(&late));
        }
    }

    #[test]
    fn nodes_of_two_authorities_trust_both() {
        let now = SystemTime::now();
        let pair = [(); 2].map(|()| made(now).0);
        let trusted = [pair[0].current.pem(), pair[1].current.pem()];
        for authority in &pair {
            let (alone, _) = first(authority, &nodes(), now);
            let (told, _) = authority.next(&nodes(), &trusted, &alone, now).unwrap();
            assert_eq!(told.trusted, trusted.concat());
            assert_eq!(told.certificate, alone.certificate);
            let later = now + DAY;
            let kept = authority.next(&nodes(), &trusted, &told, later).unwrap();
            assert_eq!(kept, (told, now + 60 * DAY));
        }
    }

    #[test]
    fn while_a_server_began_before_another_authority_certificates_are_of_the_former_one() {
        let now = SystemTime::now();
        let changed = now + DAY;
        for (former, before, after) in changes(now) {
            let mut all = nodes();
            all.oldest = Some(now);
            let (told, _) = next(&after, &all, &before, changed);
            // The address of another node, which has to be let in.
            all.names.push("10.0.0.7".to_owned());
            let (shown, _) = next(&after, &all, &told, changed + DAY);
            if after.former.is_some() {
                assert_eq!(shown.of, former.current.digest(&all.names));
                assert_ne!(shown.key, told.key);
            } else {
                // Its key is gone.
                assert_eq!(shown, told);
                let last = now + 80 * DAY;
                assert!(after.is_through(&all, &next(&after, &all, &told, last).0));
            }
            assert!(accepted(&shown));
            all.oldest = Some(changed + SKEW + Duration::from_secs(1));
            let (shown, _) = next(&after, &all, &shown, changed + 2 * DAY);
            assert!(after.is_through(&all, &shown));
        }
    }

    #[test]
    fn a_member_gets_in_also_after_several_authorities() {
        let mut now = SystemTime::now();
        let (mut authorities, mut key) = made(now);
        let mut all = nodes();
        all.oldest = Some(now);
        let (mut shown, _) = first(&authorities, &all, now);
        for round in 0..4 {
            now += DAY;
            let (current, new) = Authority::new("orders db", now).unwrap();
            let pem = authorities.current.pem().to_owned();
            authorities = Authorities {
                current,
                former: Authority::read(&pem, &key),
            };
            key = new;
            for step in 0..4 {
                now += Duration::from_secs(600);
                all.names.push(format!("10.0.{round}.{step}"));
                for _ in 0..2 {
                    shown = next(&authorities, &all, &shown, now).0;
                }
                let issuers = [Some(&authorities.current), authorities.former.as_ref()];
                let mut issuers = issuers.into_iter().flatten();
                assert!(
                    issuers.any(|it| shown.of == it.digest(&all.names)),
                    "{round} {step}"
                );
                assert!(accepted(&shown));
            }
            // All are renewed.
            all.oldest = Some(now);
            shown = next(&authorities, &all, &shown, now).0;
            assert!(authorities.is_through(&all, &shown), "{round}");
            authorities.former = None;
            for _ in 0..2 {
                shown = next(&authorities, &all, &shown, now).0;
            }
            all.names.push(format!("10.1.0.{round}"));
            shown = next(&authorities, &all, &shown, now).0;
            assert!(authorities.is_through(&all, &shown), "another one, later");
        }
    }

    #[test]
    fn a_client_cannot_be_taken_for_a_server() {
        let now = SystemTime::now();
        let (authority, _) = made(now);
        for server in [true, false] {
            let purpose = Purpose { server, ..nodes() };
            let (shown, _) = first(&authority, &purpose, now);
            let (_, own) = x509_parser::pem::parse_x509_pem(shown.certificate.as_bytes()).unwrap();
            let own = own.parse_x509().unwrap();
            let usage = own.extended_key_usage().unwrap().unwrap().value;
            assert_eq!((usage.client_auth, usage.server_auth), (true, server));
        }
    }

    #[test]
    fn what_is_no_authority_is_not_taken_for_one() {
        let (authority, key) = Authority::new("orders db", SystemTime::now()).unwrap();
        assert!(Authority::read(authority.pem(), "").is_none());
        assert!(Authority::read("", &key).is_none());
    }

    #[test]
    fn an_incomplete_pair_is_issued_anew() {
        let now = SystemTime::now();
        let (authority, _) = made(now);
        let (shown, _) = first(&authority, &nodes(), now);
        let half = Shown {
            key: String::new(),
            ..shown
        };
        assert!(!next(&authority, &nodes(), &half, now).0.key.is_empty());
    }
}
