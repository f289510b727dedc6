//! Checks the host names that a server accepts, and rejects all requests from browsers.
//!
//! A web page can point its own name at an address that only this machine can reach (DNS rebinding). The browser then
//! considers the server part of the page's origin and sends whatever the page wants, but only ever with the page's own
//! host name.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use http::{HeaderName, Request, Version, header, uri::Authority};

/// Maximum number of bytes of a wrong name that are shown.
const MAX_SHOWN: usize = 64;
/// Name of loopback, also as the last label of a name.
const LOCALHOST: &str = "localhost";
/// Prefix of the headers by which browsers describe a request. Pages cannot suppress them.
const FETCH: &str = "sec-fetch-";

/// Why a request is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// It names a host that is not this server, or none.
    Host(String),
    /// It comes from a browser.
    Browser(HeaderName),
    /// It is gRPC over a version below HTTP/2.
    Version,
}

/// The accepted host names of a server.
#[derive(Clone, Debug)]
pub(super) struct Hosts {
    /// Names from the settings.
    listed: Arc<[Pattern]>,
    /// Provides the names of the current certificate.
    tls: Option<Arc<drover_tls::Server>>,
}

impl Hosts {
    /// Fails if a name is invalid.
    pub(super) fn new(
        listed: &[String],
        tls: Option<Arc<drover_tls::Server>>,
    ) -> Result<Self, String> {
        let listed: Result<_, String> = listed.iter().map(|name| Pattern::listed(name)).collect();
        Ok(Self {
            listed: listed?,
            tls,
        })
    }

    /// Checks whether a request is accepted.
    pub(super) fn judge<B>(&self, request: &Request<B>, grpc: bool) -> Result<(), Wrong> {
        if let Some(host) = named(request).map_err(Wrong::Host)? {
            self.knows(&host).map_err(Wrong::Host)?;
        }
        let browser = request
            .headers()
            .keys()
            .find(|name| **name == header::ORIGIN || name.as_str().starts_with(FETCH));
        if let Some(name) = browser {
            return Err(Wrong::Browser(name.clone()));
        }
        if grpc && request.version() < Version::HTTP_2 {
            return Err(Wrong::Version);
        }
        Ok(())
    }

    fn knows(&self, host: &Host) -> Result<(), String> {
        let Host::Name(name) = host else {
            return Ok(());
        };
        let here = name == LOCALHOST
            || name
                .strip_suffix(LOCALHOST)
                .is_some_and(|rest| rest.ends_with('.'));
        if here || self.listed.iter().any(|pattern| pattern.fits(name)) {
            return Ok(());
        }
        let certified = self.tls.as_ref().is_some_and(|tls| {
            let names = tls.names();
            names.iter().any(|known| Pattern::new(known).fits(name))
        });
        if certified {
            return Ok(());
        }
        Err(format!(
            "this server is not called {:?}: it answers to addresses, localhost, the names of its certificate and those \
             of --allowed-host (allowed_hosts)",
            shown(name)
        ))
    }
}

/// Validates the names of the settings.
pub(crate) fn check(names: &[String]) -> Result<(), String> {
    Hosts::new(names, None).map(drop)
}

/// Returns the host that a request names. `None` if it names none and does not have to. Fails if it is invalid or
/// contradictory.
fn named<B>(request: &Request<B>) -> Result<Option<Host>, String> {
    let mut headers = request.headers().get_all(header::HOST).iter();
    let header = match (headers.next(), headers.next()) {
        (_, Some(_)) => return Err("the request names two hosts".to_owned()),
        (Some(value), None) => Some(place(value.as_bytes())?),
        (None, None) => None,
    };
    // From an absolute request target or `:authority`.
    let target = request.uri().authority().map(Authority::as_str);
    let target = target.map(|text| place(text.as_bytes())).transpose()?;
    match (target, header) {
        (Some(target), Some(header)) if target != header => {
            Err("the request is for one host and names another".to_owned())
        }
        (Some((host, _)), _) | (None, Some((host, _))) => Ok(Some(host)),
        // HTTP/1.0 has no host header, and no browser speaks it.
        (None, None) if request.version() < Version::HTTP_11 => Ok(None),
        (None, None) => Err("the request names no host".to_owned()),
    }
}

/// Parses host and port.
fn place(bytes: &[u8]) -> Result<(Host, Option<u16>), String> {
    let wrong = || {
        let text = String::from_utf8_lossy(bytes);
        format!("the request is for {:?}, which is not a host", shown(&text))
    };
    let text = std::str::from_utf8(bytes).map_err(|_| wrong())?;
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (inside, rest) = rest.split_once(']').ok_or_else(wrong)?;
            let address: Ipv6Addr = inside.parse().map_err(|_| wrong())?;
            let port = match rest {
                "" => "",
                _ => rest.strip_prefix(':').ok_or_else(wrong)?,
            };
            (Host::Address(address.into()), port)
        }
        None => {
            let (host, port) = text.split_once(':').unwrap_or((text, ""));
            (Host::read(host).ok_or_else(wrong)?, port)
        }
    };
    let port = match port {
        "" => None,
        _ if port.bytes().all(|b| b.is_ascii_digit()) => Some(port.parse().map_err(|_| wrong())?),
        _ => return Err(wrong()),
    };
    Ok((host, port))
}

/// The host that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    /// An IP address cannot be rebound, so it is always accepted.
    Address(IpAddr),
    /// Lower-cased, without a trailing dot.
    Name(String),
}

impl Host {
    /// Parses a name, or a dotted IPv4 address. `None` if it is neither.
    fn read(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(Self::Address(address.into()));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        let is_name = name
            .split('.')
            .all(|label| !label.is_empty() && label.bytes().all(plain));
        is_name.then(|| Self::Name(name.to_ascii_lowercase()))
    }
}

/// A name, or with the prefix `*.` all names with one more label, as in certificates.
#[derive(Clone, Debug)]
struct Pattern {
    any: bool,
    name: String,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let (any, name) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        Self {
            any,
            name: name.to_ascii_lowercase(),
        }
    }

    /// Parses a name of the settings.
    fn listed(text: &str) -> Result<Self, String> {
        let name = text.strip_prefix("*.").unwrap_or(text);
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        if bare.parse::<IpAddr>().is_ok() || Host::read(name).is_some() {
            return Ok(Self::new(text));
        }
        Err(format!(
            "allowed_hosts: {:?} is not a host name; expected a name without scheme and port, or *. and a name",
            shown(text)
        ))
    }

    fn fits(&self, name: &str) -> bool {
        if !self.any {
            return self.name == name;
        }
        name.split_once('.')
            .is_some_and(|(_, rest)| rest == self.name)
    }
}

fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_SHOWN)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Hosts {
        Hosts::new(&["orders".to_owned(), "*.svc.example".to_owned()], None).unwrap()
    }

    fn judge(host: &str) -> Result<(), Wrong> {
        let request = Request::get("/").header(header::HOST, host);
        hosts().judge(&request.body(()).unwrap(), false)
    }

    #[test]
    fn addresses_loopback_and_listed_names_are_answered() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:7400",
            "0.0.0.0:1",
            "192.0.2.7",
            "[::1]",
            "[::1]:7400",
            "[2001:db8::1]:",
            "localhost",
            "LocalHost:7400",
            "localhost.",
            "a.b.localhost:1",
            "orders:7400",
            "ORDERS.",
            "one.svc.example",
        ] {
            assert_eq!(judge(host), Ok(()), "{host}");
        }
    }

    #[test]
    fn other_names_are_not() {
        for host in [
            "evil.example",
            "evil.example:7400",
            "evil.example.",
            "EVIL.EXAMPLE",
            "localhost.evil.example",
            "notlocalhost",
            ".localhost",
            "localhost..",
            "127.0.0.1.evil.example",
            "127.0.0.1.",
            "127.1",
            "2130706433",
            "0x7f.0.0.1",
            "orders.evil.example",
            "svc.example",
            "a.b.svc.example",
            "*.svc.example",
            "localhost@evil.example",
            "evil.example@localhost",
            "localhost:1@evil.example",
            "localhost, evil.example",
            "localhost evil.example",
            "localhost:x",
            "localhost:70000",
            "localhost:+1",
            "localhost:1:2",
            "localhost/",
            "localhost%00",
            "[::1",
            "[::1]x",
            "[fe80::1%25eth0]",
            "::1",
            "",
            ":7400",
        ] {
            assert!(matches!(judge(host), Err(Wrong::Host(_))), "{host}");
        }
    }

    #[test]
    fn what_is_said_of_a_name_is_short_and_shows_nothing_raw() {
        let long = "x".repeat(10_000);
        let Err(Wrong::Host(why)) = judge(&long) else {
            panic!("it is served");
        };
        assert!(why.len() < 300, "{why}");
        let request = Request::get("/").header(header::HOST, &b"\xff\x9b31m"[..]);
        let Err(Wrong::Host(why)) = hosts().judge(&request.body(()).unwrap(), false) else {
            panic!("it is served");
        };
        assert!(!why.contains(char::is_control), "{why}");
    }

    #[test]
    fn two_names_have_to_be_one() {
        let judge = |target: &str, host: &[&str]| {
            let mut request = Request::get(target);
            for host in host {
                request = request.header(header::HOST, *host);
            }
            hosts().judge(&request.body(()).unwrap(), false)
        };
        assert_eq!(judge("http://localhost:1/", &["LOCALHOST:1"]), Ok(()));
        assert_eq!(judge("http://localhost:1/", &[]), Ok(()));
        for (target, host) in [
            ("http://localhost/", &["evil.example"][..]),
            ("http://evil.example/", &["localhost"]),
            ("http://localhost:1/", &["localhost:2"]),
            ("http://localhost/", &["127.0.0.1"]),
            ("http://localhost@evil.example/", &["localhost"]),
            ("/", &["localhost", "localhost"]),
            ("/", &["localhost", "evil.example"]),
            ("/", &[]),
        ] {
            assert!(
                matches!(judge(target, host), Err(Wrong::Host(_))),
                "{target} {host:?}"
            );
        }
    }

    #[test]
    fn a_request_without_a_name_is_older_than_browsers() {
        let request = |version| Request::get("/").version(version).body(()).unwrap();
        assert_eq!(hosts().judge(&request(Version::HTTP_10), false), Ok(()));
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let outcome = hosts().judge(&request(version), false);
            assert!(matches!(outcome, Err(Wrong::Host(_))), "{version:?}");
        }
    }

    #[test]
    fn settings_name_what_is_no_name() {
        for wrong in [
            "", "*", "*.", "a b", "http://x", "x:1", "x/y", "*.*.x", "a..b",
        ] {
            let why = check(&[wrong.to_owned()]).unwrap_err();
            assert!(why.starts_with("allowed_hosts: "), "{wrong}: {why}");
        }
        for right in [
            "x",
            "x.example.",
            "*.x.example",
            "192.0.2.1",
            "::1",
            "[::1]",
        ] {
            assert_eq!(check(&[right.to_owned()]), Ok(()), "{right}");
        }
    }
}
