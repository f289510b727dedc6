//! Restricts the targets of probes. Addresses come from platforms, and may contain text that others control: a name
//! that resolves to anything, an annotation. Therefore each name is resolved once, every address is checked, and the
//! connection goes to the checked address.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use drover_core::{Error, Result};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::{Failed, plain};

/// Where nodes may be probed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProbeSettings {
    /// Ranges of addresses (`10.0.0.0/8`) outside of which no node is probed. Default: none, all are. Link-local addresses,
    /// those of the metadata of clouds, multicast and unspecified ones are never probed, and loopback only on platforms
    /// whose own endpoint is loopback.
    pub allow: Vec<String>,
    /// Ranges of addresses at which no node is probed, whatever is allowed. Default: none.
    pub deny: Vec<String>,
}

/// Metadata services of clouds that are not link-local.
const METADATA: [IpAddr; 7] = [
    // Alibaba Cloud, Azure, Oracle Cloud.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    // EC2, Compute Engine, Oracle Cloud, Scaleway.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
];
/// Well-known prefix of NAT64 translators, which embed an IPv4 address in the last bits (RFC 6052).
const TRANSLATED: u128 = 0x64_ff9b << 96;

/// Resolver of `host:port`.
type Lookup = fn(String) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>>;

/// Decides which addresses may be probed.
#[derive(Clone, Debug)]
pub struct Reach {
    allow: Vec<Range>,
    deny: Vec<Range>,
    pub(crate) lookup: Lookup,
}

/// The restrictions for probes of one node.
#[derive(Clone, Copy, Debug)]
pub struct Gate<'a> {
    pub(crate) reach: &'a Reach,
    /// Whether the platform of the node runs on this machine.
    pub(crate) local: bool,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            deny: Vec::new(),
            lookup: |address| {
                Box::pin(async move { Ok(tokio::net::lookup_host(address).await?.collect()) })
            },
        }
    }
}

impl Reach {
    /// What these settings allow.
    ///
    /// # Errors
    /// `Invalid`, with the range that cannot be parsed.
    pub fn of(settings: &ProbeSettings) -> Result<Self> {
        let read = |list: &str, ranges: &[String]| -> Result<Vec<Range>> {
            let ranges = ranges.iter().enumerate();
            let ranges = ranges.map(|(at, text)| {
                let why = |why: String| Error::invalid(format!("probes.{list}[{at}]"), why);
                text.parse().map_err(why)
            });
            ranges.collect()
        };
        Ok(Self {
            allow: read("allow", &settings.allow)?,
            deny: read("deny", &settings.deny)?,
            ..Self::default()
        })
    }

    /// Why an address must not be probed. `None` if it may be.
    fn refusal(&self, ip: IpAddr, local: bool) -> Option<&'static str> {
        let ip = ip.to_canonical();
        for face in [Some(ip), embedded(ip)].into_iter().flatten() {
            if is_never(face) {
                return Some("link-local, metadata and unspecified addresses are never probed");
            }
            if face.is_loopback() && !local {
                return Some(
                    "loopback is another machine for its platform, whose own endpoint is not loopback",
                );
            }
            if self.deny.iter().any(|range| range.has(face)) {
                return Some("it is in probes.deny of the orchestrator's settings");
            }
        }
        let allowed = self.allow.is_empty() || self.allow.iter().any(|range| range.has(ip));
        (!allowed).then_some("it is not in probes.allow of the orchestrator's settings")
    }
}

impl Gate<'_> {
    /// Resolves `host:port` to the addresses that may be connected to. Fails if there are none.
    pub(super) async fn pass(self, address: &str) -> std::result::Result<Vec<SocketAddr>, Failed> {
        let found = (self.reach.lookup)(address.to_owned()).await;
        let found = found.map_err(|error| Failed::Node(plain(&error)))?;
        let mut refused = None;
        let mut passed = Vec::with_capacity(found.len());
        for at in found {
            match self.reach.refusal(at.ip(), self.local) {
                None => passed.push(at),
                Some(why) => refused = refused.or(Some((at.ip(), why))),
            }
        }
        match refused {
            // Not a failure of the node: a replacement would fare no better.
            Some((ip, why)) if passed.is_empty() => {
                Err(Failed::Way(format!("{ip} is not probed: {why}")))
            }
            _ if passed.is_empty() => Err(Failed::Node(format!("{address:?} leads to no address"))),
            _ => Ok(passed),
        }
    }
}

fn is_never(ip: IpAddr) -> bool {
    let unusable = match ip {
        // All of 0.0.0.0/8 is this machine.
        IpAddr::V4(ip) => {
            ip.octets()[0] == 0 || ip.is_link_local() || ip.is_multicast() || ip.is_broadcast()
        }
        IpAddr::V6(ip) => ip.is_unspecified() || ip.is_unicast_link_local() || ip.is_multicast(),
    };
    unusable || METADATA.contains(&ip)
}

/// The IPv4 address that an IPv6 address leads to through a translator or a tunnel.
fn embedded(ip: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(ip) = ip else {
        return None;
    };
    let bits = ip.to_bits();
    let v4 = |bits: u128| {
        let low = u32::try_from(bits & u128::from(u32::MAX)).unwrap_or_default();
        Some(IpAddr::V4(Ipv4Addr::from_bits(low)))
    };
    match bits >> 32 {
        // The deprecated IPv4-compatible addresses, without `::` and `::1`.
        0 if bits > 1 => v4(bits),
        high if high == TRANSLATED >> 32 => v4(bits),
        // 6to4.
        high if high >> 80 == 0x2002 => v4(bits >> 80),
        _ => None,
    }
}

/// A range of addresses in CIDR notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    ip: IpAddr,
    length: u32,
}

impl Range {
    fn has(&self, ip: IpAddr) -> bool {
        let same = |bits: u128, own: u128, width: u32| {
            // `checked_shr` by the full width returns `None`.
            let differ = (bits ^ own).checked_shr(width - self.length);
            differ.unwrap_or_default() == 0
        };
        match (self.ip, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                same(ip.to_bits().into(), own.to_bits().into(), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => same(ip.to_bits(), own.to_bits(), 128),
            _ => false,
        }
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong =
            || format!("{text:?} is not a range; expected an address and a length (10.0.0.0/8)");
        let (ip, length) = text.split_once('/').unwrap_or((text, ""));
        let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let length = match length {
            "" if !text.contains('/') => most,
            // `u32::from_str` alone would accept a sign.
            digits if digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().map_err(|_| wrong())?
            }
            _ => return Err(wrong()),
        };
        if length > most {
            return Err(wrong());
        }
        match (ip, ip.to_canonical()) {
            (IpAddr::V6(_), IpAddr::V4(ip)) if length >= 96 => Ok(Self {
                ip: IpAddr::V4(ip),
                length: length - 96,
            }),
            _ => Ok(Self { ip, length }),
        }
    }
}

#[cfg(test)]
mod tests;
