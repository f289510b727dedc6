//! Storage of the nodes of a group, and its retention when they are removed.

use crate::node::RemovalReason;

/// Storage of each node of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// Size in bytes. `None` for the default of the template or the platform.
    pub size: Option<u64>,
    /// Storage class, in the platform's terms. Empty for its default.
    pub class: String,
    /// Retention of the storage when its node is removed.
    pub policy: Policy,
}

/// Retention of storage by the reason for which its node is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Retention when its node is replaced.
    pub replaced: Retention,
    /// Retention when its node is removed by scaling down.
    pub scaled: Retention,
    /// Retention when its group or cluster is deleted.
    pub deleted: Retention,
}

/// Whether storage is kept or deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retention {
    /// Kept for a node of the same ordinal.
    #[default]
    Retain,
    /// Deleted together with its node.
    Delete,
}

impl Policy {
    /// Whether storage may be retained in any case.
    #[must_use]
    pub fn keeps(self) -> bool {
        [self.replaced, self.scaled, self.deleted].contains(&Retention::Retain)
    }

    /// Retention of the storage of a node that is removed for this reason. `unwanted` means that its group or cluster
    /// is deleted, which takes precedence.
    #[must_use]
    pub fn of(self, reason: RemovalReason, unwanted: bool) -> Retention {
        match reason {
            _ if unwanted => self.deleted,
            RemovalReason::Surplus => self.scaled,
            RemovalReason::User
            | RemovalReason::Dead
            | RemovalReason::Sick
            | RemovalReason::Outdated
            | RemovalReason::Lifetime
            | RemovalReason::Maintenance => self.replaced,
            // The original owner of an orphan's storage is no longer known.
            RemovalReason::Orphan if self.keeps() => Retention::Retain,
            RemovalReason::Orphan => Retention::Delete,
        }
    }
}

impl Retention {
    /// Converts from whether the storage is retained.
    #[must_use]
    pub fn of(retain: bool) -> Self {
        if retain { Self::Retain } else { Self::Delete }
    }
}

/// Parses a quantity (`50Gi`, `1.5G`, `1024`) to bytes; a fraction of a byte is rounded up. `None` if it is not a
/// quantity, or exceeds the size of any storage.
#[must_use]
pub fn parse_quantity(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let plain = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !plain(whole) || !plain(fraction) || fraction.len() > 18 {
        return None;
    }
    let scale: u128 = match unit {
        "" => 1,
        "k" => 1000,
        "M" => 1000_u128.pow(2),
        "G" => 1000_u128.pow(3),
        "T" => 1000_u128.pow(4),
        "P" => 1000_u128.pow(5),
        "E" => 1000_u128.pow(6),
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        "Ei" => 1 << 60,
        _ => return None,
    };
    let power = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let whole = whole.parse::<u128>().ok()?.checked_mul(scale)?;
    let part = fraction.parse::<u128>().ok()?.checked_mul(scale)?;
    u64::try_from(whole.checked_add(part.div_ceil(power))?).ok()
}

/// Formats bytes in the largest unit that yields a whole number (`50Gi`).
#[must_use]
pub fn quantity(bytes: u64) -> String {
    ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
        .iter()
        .scan(bytes, |rest, unit| {
            (*rest > 0 && rest.is_multiple_of(1024)).then(|| {
                *rest /= 1024;
                format!("{rest}{unit}")
            })
        })
        .last()
        .unwrap_or_else(|| bytes.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_and_written() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("1024", Some(1024)),
            ("50Gi", Some(50 << 30)),
            ("1.5G", Some(1_500_000_000)),
            ("0.5Ki", Some(512)),
            ("1.0001Ki", Some(1025)),
            ("15Ei", Some(15 << 60)),
            ("16Ei", None),
            ("", None),
            ("Gi", None),
            (".5Gi", None),
            ("5.Gi", None),
            ("5.5.5Gi", None),
            ("-5", None),
            ("5gb", None),
            ("99999999999999999999999999999999999999999", None),
        ] {
            assert_eq!(parse_quantity(text), bytes, "{text:?}");
        }
        for bytes in [0, 1, 1000, 1024, 5 << 30, (1 << 20) + 1024, u64::MAX] {
            assert_eq!(parse_quantity(&quantity(bytes)), Some(bytes));
        }
        assert_eq!(quantity(50 << 30), "50Gi");
    }

    #[test]
    fn why_a_node_goes_decides_over_its_storage() {
        use RemovalReason::{Dead, Lifetime, Maintenance, Orphan, Outdated, Sick, Surplus, User};
        let only = |replaced, scaled, deleted| Policy {
            replaced,
            scaled,
            deleted,
        };
        use Retention::{Delete, Retain};
        let policy = only(Retain, Delete, Delete);
        for reason in [Dead, Sick, Outdated, Lifetime, Maintenance, User] {
            assert_eq!(policy.of(reason, false), Retain);
            assert_eq!(policy.of(reason, true), Delete);
        }
        assert_eq!(policy.of(Surplus, false), Delete);
        assert_eq!(only(Delete, Retain, Delete).of(Surplus, false), Retain);
        assert_eq!(only(Delete, Delete, Retain).of(Surplus, true), Retain);
        assert_eq!(only(Delete, Delete, Retain).of(User, false), Delete);
        // Orphan storage, whose history is unknown, is kept if the policy retains any.
        assert_eq!(only(Delete, Delete, Retain).of(Orphan, false), Retain);
        assert_eq!(only(Delete, Delete, Delete).of(Orphan, false), Delete);
        assert!(Policy::default().keeps());
        assert!(!only(Delete, Delete, Delete).keeps());
    }
}
