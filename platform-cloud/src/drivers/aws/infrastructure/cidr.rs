//! IPv4 address ranges.

use std::{fmt, net::Ipv4Addr, str::FromStr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cidr {
    network: u32,
    length: u32,
}

impl Cidr {
    /// The range of this prefix length that contains the address.
    pub(super) fn new(address: Ipv4Addr, length: u32) -> Option<Self> {
        (length <= 32).then(|| Self {
            network: u32::from(address) & mask(length),
            length,
        })
    }

    pub(super) fn length(self) -> u32 {
        self.length
    }

    pub(super) fn overlaps(self, other: Self) -> bool {
        let shorter = mask(self.length.min(other.length));
        self.network & shorter == other.network & shorter
    }

    pub(super) fn contains(self, other: Self) -> bool {
        self.length <= other.length && self.overlaps(other)
    }

    /// Splits the range into ranges of this prefix length, in order.
    pub(super) fn split(self, length: u32) -> impl Iterator<Item = Self> {
        let count = if length < self.length {
            0
        } else {
            1u64 << (length - self.length).min(32)
        };
        let size = 1u64 << (32 - length.min(32));
        (0..count).filter_map(move |at| {
            let network = u64::from(self.network) + at * size;
            Some(Self {
                network: u32::try_from(network).ok()?,
                length,
            })
        })
    }
}

fn mask(length: u32) -> u32 {
    u32::MAX.checked_shl(32 - length.min(32)).unwrap_or(0)
}

impl FromStr for Cidr {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, length) = text.split_once('/').ok_or(())?;
        Self::new(
            address.parse().map_err(|_| ())?,
            length.parse().map_err(|_| ())?,
        )
        .ok_or(())
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.network), self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_are_read_and_written() {
        assert_eq!(cidr("10.1.2.3/16").to_string(), "10.1.0.0/16");
        assert_eq!(cidr("0.0.0.0/0").to_string(), "0.0.0.0/0");
        for wrong in ["10.0.0.0", "10.0.0.0/33", "::/0", "10.0.0/8", ""] {
            assert!(wrong.parse::<Cidr>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranges_are_split_and_compared() {
        let parts: Vec<String> = cidr("10.0.0.0/16")
            .split(18)
            .map(|c| c.to_string())
            .collect();
        assert_eq!(
            parts,
            [
                "10.0.0.0/18",
                "10.0.64.0/18",
                "10.0.128.0/18",
                "10.0.192.0/18"
            ]
        );
        assert_eq!(cidr("10.0.0.0/16").split(8).count(), 0);
        assert!(cidr("10.0.0.0/16").overlaps(cidr("10.0.64.0/18")));
        assert!(cidr("10.0.64.0/18").overlaps(cidr("10.0.0.0/16")));
        assert!(!cidr("10.0.64.0/18").overlaps(cidr("10.0.128.0/18")));
        assert!(cidr("10.0.0.0/16").contains(cidr("10.0.64.0/18")));
        assert!(!cidr("10.0.64.0/18").contains(cidr("10.0.0.0/16")));
        assert!(cidr("0.0.0.0/0").contains(cidr("255.255.255.255/32")));
    }
}
