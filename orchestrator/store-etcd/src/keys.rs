//! Keys in etcd: the prefix, then the bytes of the store's keys, so that their order stays.

use drover_store::{Bytes, backend::Range, keys::Key};

/// A key beside the store's: every transaction writes it, so that each has a revision of its own, is seen by watches
/// whatever else it writes, and counts towards etcd's quota. It comes after all of them.
const CLOCK: &[u8] = b"~";

/// Where keys are.
#[derive(Clone, Debug)]
pub(crate) struct Prefix(Vec<u8>);

impl Prefix {
    pub(crate) fn new(prefix: &str) -> Self {
        Self(prefix.as_bytes().to_vec())
    }

    pub(crate) fn of(&self, key: &Key) -> Bytes {
        self.join(key.as_bytes())
    }

    pub(crate) fn clock(&self) -> Bytes {
        self.join(CLOCK)
    }

    fn join(&self, rest: &[u8]) -> Bytes {
        let mut bytes = Vec::with_capacity(self.0.len() + rest.len());
        bytes.extend_from_slice(&self.0);
        bytes.extend_from_slice(rest);
        bytes.into()
    }

    /// First and last key (exclusive) of a range, never with the clock. `None` if it can hold no key.
    pub(crate) fn bounds(&self, range: &Range) -> Option<(Bytes, Bytes)> {
        let from = self.of(&range.from);
        let below = match &range.below {
            Some(below) => self.of(below),
            None => self.clock(),
        };
        (from < below).then_some((from, below))
    }

    /// All keys, the clock among them.
    pub(crate) fn all(&self) -> (Bytes, Bytes) {
        (self.0.clone().into(), self.end())
    }

    fn end(&self) -> Bytes {
        let end = Key::from_bytes(self.0.clone()).after_prefix();
        // To etcd a single zero is the end of all keys.
        end.map_or_else(|| Bytes::from_static(&[0]), |end| end.into_bytes().into())
    }

    /// The store's key. `None` for what is not one.
    pub(crate) fn strip(&self, key: &[u8]) -> Option<Key> {
        let rest = key.strip_prefix(self.0.as_slice())?;
        (rest != CLOCK).then(|| Key::from_bytes(rest.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use drover_store::keys::Name;

    use super::*;

    #[test]
    fn a_key_comes_back_and_the_clock_is_not_one() {
        let prefix = Prefix::new("drover/");
        let key: Key = Name::Epoch(255).into();
        assert_eq!(prefix.strip(&prefix.of(&key)), Some(key));
        assert_eq!(prefix.strip(&prefix.clock()), None);
        assert_eq!(prefix.strip(b"other/m"), None);
    }

    #[test]
    fn a_range_stays_within_the_prefix() {
        let prefix = Prefix::new("a/");
        let (from, below) = prefix.bounds(&Range::all()).unwrap();
        assert_eq!((&from[..], &below[..]), (&b"a/"[..], &b"a/~"[..]));
        let nothing = Range {
            from: Key::from_bytes(b"n/c".to_vec()),
            below: Some(Key::from_bytes(b"n/b".to_vec())),
            limit: None,
        };
        assert_eq!(prefix.bounds(&nothing), None);
    }

    #[test]
    fn the_clock_comes_after_every_key() {
        let prefix = Prefix::new("drover/");
        let last: Key = Name::Events(uuid::Uuid::max(), u64::MAX).into();
        assert!(prefix.of(&last) < prefix.clock());
        assert_eq!(Key::from_bytes(CLOCK.to_vec()).parse(), None);
    }
}
