//! Which names a server answers to, and that no page of a browser is answered at all.
//!
//! A page can make its own name lead to an address that only this machine reaches (DNS rebinding). The browser then takes
//! the server for the page's own, and sends what the page likes; what it does not send is another name than the page's.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use http::{HeaderName, Request, Version, header, uri::Authority};

/// Bytes of a wrong name that are shown.
const MAX_SHOWN: usize = 64;
/// What loopback is called, also as the last label of a name.
const LOCALHOST: &str = "localhost";
/// How the headers begin with which browsers say what a request is for. No page can keep them from being sent.
const FETCH: &str = "sec-fetch-";

/// Why a request is turned away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// It is for a name that is not this server's, or for none.
    Host(String),
    /// A browser sends it.
    Browser(HeaderName),
    /// It is gRPC below HTTP/2.
    Version,
}

/// The names of a server.
#[derive(Clone, Debug)]
pub(super) struct Hosts {
    /// Those of the settings.
    listed: Arc<[Pattern]>,
    /// Has those of the certificate, as it is now.
    tls: Option<Arc<drover_tls::Server>>,
}

impl Hosts {
    /// Errors: what is wrong with one of the names.
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

    /// Whether a request may go on.
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

/// Whether names of the settings can be used. Errors: which cannot, and why.
pub(crate) fn check(names: &[String]) -> Result<(), String> {
    Hosts::new(names, None).map(drop)
}

/// The host that a request is for. None: it names none, and need not. Errors: what is wrong with what it says.
fn named<B>(request: &Request<B>) -> Result<Option<Host>, String> {
    let mut headers = request.headers().get_all(header::HOST).iter();
    let header = match (headers.next(), headers.next()) {
        (_, Some(_)) => return Err("the request names two hosts".to_owned()),
        (Some(value), None) => Some(place(value.as_bytes())?),
        (None, None) => None,
    };
    // Of an absolute request target, or :authority.
    let target = request.uri().authority().map(Authority::as_str);
    let target = target.map(|text| place(text.as_bytes())).transpose()?;
    match (target, header) {
        (Some(target), Some(header)) if target != header => {
            Err("the request is for one host and names another".to_owned())
        }
        (Some((host, _)), _) | (None, Some((host, _))) => Ok(Some(host)),
        // Before HTTP/1.1 there was no such header; whatever still speaks that, it is no browser.
        (None, None) if request.version() < Version::HTTP_11 => Ok(None),
        (None, None) => Err("the request names no host".to_owned()),
    }
}

/// Host and port, as a request names them.
fn place(bytes: &[u8]) -> Result<(Host, Option<u16>), String> {
    let wrong = || {
        let text = String::from_utf8_lossy(bytes);
        format!("the request is for {:?}, which is no host", shown(&text))
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

/// Whom a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    /// Whoever sends it knows where it goes.
    Address(IpAddr),
    /// In lower case, without the dot that may end a name.
    Name(String),
}

impl Host {
    /// A name, or an IPv4 address as four numbers. None: it is neither.
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

/// A name, or with `*.` before it every name of one label more, as in certificates.
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

    /// One of the settings. Errors: what is wrong with it.
    fn listed(text: &str) -> Result<Self, String> {
        let name = text.strip_prefix("*.").unwrap_or(text);
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        if bare.parse::<IpAddr>().is_ok() || Host::read(name).is_some() {
            return Ok(Self::new(text));
        }
        Err(format!(
            "allowed_hosts: {:?} is no host name; expected a name without scheme and port, or *. and a name",
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
