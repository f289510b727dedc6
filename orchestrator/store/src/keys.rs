//! Keys of stored values.
//!
//! Binary, so that node slots and event numbers sort numerically and a uid takes 16 bytes. [`Key::parse`] distinguishes
//! them by their fixed lengths.

use std::fmt;

use uuid::Uuid;

/// An encoded key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Vec<u8>);

/// The meaning of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// A live replica (leased).
    Replica(String),
    /// A question to a replica whether it lives (leased by who asks).
    Doubt(String),
    /// Desired state of a cluster.
    Desired(Uuid),
    /// The owner's head of a cluster.
    Head(Uuid),
    /// A node record, by slot.
    Node(Uuid, u64),
    /// An open provision request, by id.
    Request(Uuid, String),
    /// A record of an infrastructure resource or addon, by kind and name.
    Resource(Uuid, String, String),
    /// The last epoch of a shard.
    Epoch(u8),
    /// The present owner of a shard (leased).
    Owner(u8),
    /// Metadata of the store.
    Meta,
    /// Uid of the cluster with this name.
    ClusterName(String),
    /// A platform's registration, by name.
    Platform(String),
    /// A secret, by name.
    Secret(String),
    /// User data of a cluster, by its SHA-256 (64 hexadecimal digits). Under the nil uid, the key of digests.
    UserData(Uuid, String),
    /// A former or present spec of a cluster, by its generation.
    Revision(Uuid, u64),
    /// Tombstone of a deleted cluster.
    Tombstone(Uuid),
    /// A chunk of events, by the number of its first event.
    Events(Uuid, u64),
}

impl Key {
    /// Restores a key from the bytes that a backend stored.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The encoded key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The encoded key, without a copy.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no stored key is empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it belongs to the log, which is neither watched nor leased.
    #[must_use]
    pub fn is_log(&self) -> bool {
        self.0.starts_with(LOG)
    }

    /// Whether it exists only as long as a lease.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        LEASED.iter().any(|kind| self.0.starts_with(kind))
    }

    /// The first key after all keys with this prefix. `None` if there is none.
    #[must_use]
    pub fn after_prefix(&self) -> Option<Self> {
        let mut bytes = self.0.clone();
        while let Some(last) = bytes.last_mut() {
            if *last < u8::MAX {
                *last += 1;
                return Some(Self(bytes));
            }
            bytes.pop();
        }
        None
    }

    /// Decodes the key. `None` if this version does not know it.
    #[must_use]
    pub fn parse(&self) -> Option<Name> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        if self.0 == b"m" {
            return Some(Name::Meta);
        }
        let (kind, rest) = self.0.split_at_checked(2)?;
        match kind {
            b"a/" => Some(Name::Replica(text(rest)?)),
            b"w/" => Some(Name::Doubt(text(rest)?)),
            b"n/" => Some(Name::ClusterName(text(rest)?)),
            b"p/" => Some(Name::Platform(text(rest)?)),
            b"s/" => Some(Name::Secret(text(rest)?)),
            b"e/" => Some(Name::Epoch(*rest.first()?)),
            b"o/" => Some(Name::Owner(*rest.first()?)),
            b"t/" => Some(Name::Tombstone(Uuid::from_slice(rest).ok()?)),
            b"u/" => {
                let (uid, rest) = split_uid(rest)?;
                Some(Name::UserData(uid, text(rest.strip_prefix(b"/")?)?))
            }
            b"z/" => {
                let (uid, rest) = split_uid(rest)?;
                Some(Name::Events(uid, number(rest.strip_prefix(b"/")?)?))
            }
            b"v/" => {
                let (uid, rest) = split_uid(rest)?;
                Some(Name::Revision(uid, number(rest.strip_prefix(b"/")?)?))
            }
            b"c/" => {
                let (uid, rest) = split_uid(rest)?;
                match rest.split_at_checked(2)? {
                    (b"/d", []) => Some(Name::Desired(uid)),
                    (b"/h", []) => Some(Name::Head(uid)),
                    (b"/n", rest) => Some(Name::Node(uid, number(rest.strip_prefix(b"/")?)?)),
                    (b"/q", rest) => Some(Name::Request(uid, text(rest.strip_prefix(b"/")?)?)),
                    (b"/r", rest) => {
                        let rest = text(rest.strip_prefix(b"/")?)?;
                        let (kind, name) = rest.split_once('/')?;
                        Some(Name::Resource(uid, kind.into(), name.into()))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

const LOG: &[u8] = b"z/";

/// Prefixes of leased keys: replicas and owners.
pub const LEASED: [&[u8]; 3] = [b"a/", b"o/", b"w/"];

fn split_uid(bytes: &[u8]) -> Option<(Uuid, &[u8])> {
    let (uid, rest) = bytes.split_at_checked(16)?;
    Some((Uuid::from_slice(uid).ok()?, rest))
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

impl From<&Name> for Key {
    fn from(name: &Name) -> Self {
        match name {
            Name::Replica(id) => join(b"a/", &[id.as_bytes()]),
            Name::Doubt(id) => join(b"w/", &[id.as_bytes()]),
            Name::Desired(uid) => join(b"c/", &[uid.as_bytes(), b"/d"]),
            Name::Head(uid) => join(b"c/", &[uid.as_bytes(), b"/h"]),
            Name::Node(uid, slot) => join(b"c/", &[uid.as_bytes(), b"/n/", &slot.to_be_bytes()]),
            Name::Request(uid, id) => join(b"c/", &[uid.as_bytes(), b"/q/", id.as_bytes()]),
            Name::Resource(uid, kind, name) => join(
                b"c/",
                &[
                    uid.as_bytes(),
                    b"/r/",
                    kind.as_bytes(),
                    b"/",
                    name.as_bytes(),
                ],
            ),
            Name::Epoch(shard) => join(b"e/", &[&[*shard]]),
            Name::Owner(shard) => join(b"o/", &[&[*shard]]),
            Name::Meta => join(b"m", &[]),
            Name::ClusterName(name) => join(b"n/", &[name.as_bytes()]),
            Name::Platform(name) => join(b"p/", &[name.as_bytes()]),
            Name::Secret(name) => join(b"s/", &[name.as_bytes()]),
            Name::UserData(uid, digest) => join(b"u/", &[uid.as_bytes(), b"/", digest.as_bytes()]),
            Name::Revision(uid, generation) => {
                join(b"v/", &[uid.as_bytes(), b"/", &generation.to_be_bytes()])
            }
            Name::Tombstone(uid) => join(b"t/", &[uid.as_bytes()]),
            Name::Events(uid, first) => join(LOG, &[uid.as_bytes(), b"/", &first.to_be_bytes()]),
        }
    }
}

impl From<Name> for Key {
    fn from(name: Name) -> Self {
        Self::from(&name)
    }
}

/// Prefix of the keys of all clusters.
pub(crate) fn clusters() -> Key {
    join(b"c/", &[])
}

/// Prefix of the keys of one cluster.
pub(crate) fn cluster(uid: Uuid) -> Key {
    join(b"c/", &[uid.as_bytes(), b"/"])
}

/// The cluster that a key is of, if it is one of those under [`clusters`].
pub(crate) fn cluster_of(key: &Key) -> Option<Uuid> {
    let uid = key.as_bytes().strip_prefix(b"c/")?.first_chunk()?;
    Some(Uuid::from_bytes(*uid))
}

/// Prefix of the user data of one cluster.
pub(crate) fn user_data(uid: Uuid) -> Key {
    join(b"u/", &[uid.as_bytes(), b"/"])
}

/// Prefix of the retained specs of one cluster.
pub(crate) fn revisions(uid: Uuid) -> Key {
    join(b"v/", &[uid.as_bytes(), b"/"])
}

/// Prefix of all platforms, secrets, tombstones, owners or replicas.
pub(crate) fn kind(letter: u8) -> Key {
    join(&[letter], &[b"/"])
}

fn join(first: &[u8], rest: &[&[u8]]) -> Key {
    let mut key =
        Vec::with_capacity(first.len() + rest.iter().map(|part| part.len()).sum::<usize>());
    key.extend_from_slice(first);
    for part in rest {
        key.extend_from_slice(part);
    }
    Key(key)
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replica(id) => write!(f, "a/{id}"),
            Self::Doubt(id) => write!(f, "w/{id}"),
            Self::Desired(uid) => write!(f, "c/{uid}/d"),
            Self::Head(uid) => write!(f, "c/{uid}/h"),
            Self::Node(uid, slot) => write!(f, "c/{uid}/n/{slot}"),
            Self::Request(uid, id) => write!(f, "c/{uid}/q/{id}"),
            Self::Resource(uid, kind, name) => write!(f, "c/{uid}/r/{kind}/{name}"),
            Self::Epoch(shard) => write!(f, "e/{shard}"),
            Self::Owner(shard) => write!(f, "o/{shard}"),
            Self::Meta => f.write_str("m"),
            Self::ClusterName(name) => write!(f, "n/{name}"),
            Self::Platform(name) => write!(f, "p/{name}"),
            Self::Secret(name) => write!(f, "s/{name}"),
            Self::UserData(uid, digest) => write!(f, "u/{uid}/{digest}"),
            Self::Revision(uid, generation) => write!(f, "v/{uid}/{generation}"),
            Self::Tombstone(uid) => write!(f, "t/{uid}"),
            Self::Events(uid, first) => write!(f, "z/{uid}/{first}"),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parse() {
            Some(name) => write!(f, "{name}"),
            None => write!(f, "{}", self.0.escape_ascii()),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_survives_its_key() {
        // A uid that consists of separators shows that nothing is split at them.
        let uid = Uuid::from_bytes([b'/'; 16]);
        for name in [
            Name::Replica("r-1".into()),
            Name::Doubt("r-1".into()),
            Name::Desired(uid),
            Name::Head(uid),
            Name::Node(uid, 0x2f2f_2f2f_2f2f_2f2f),
            Name::Request(uid, "a/b".into()),
            Name::Resource(uid, "infrastructure".into(), "net/a".into()),
            Name::Epoch(b'/'),
            Name::Owner(63),
            Name::Meta,
            Name::ClusterName("shop".into()),
            Name::Platform("eu".into()),
            Name::Secret("db".into()),
            Name::UserData(uid, "0f/".into()),
            Name::Revision(uid, 0x2f2f_2f2f_2f2f_2f2f),
            Name::Tombstone(uid),
            Name::Events(uid, u64::MAX),
        ] {
            assert_eq!(Key::from(&name).parse(), Some(name));
        }
    }

    #[test]
    fn slots_and_event_numbers_sort_as_numbers() {
        let uid = Uuid::now_v7();
        assert!(Key::from(Name::Node(uid, 9)) < Key::from(Name::Node(uid, 10)));
        assert!(Key::from(Name::Events(uid, 255)) < Key::from(Name::Events(uid, 256)));
    }

    #[test]
    fn an_unknown_key_has_no_name_and_is_shown_escaped() {
        let key = Key::from_bytes(b"q/\x00".to_vec());
        assert_eq!(key.parse(), None);
        assert_eq!(key.to_string(), "q/\\x00");
    }

    #[test]
    fn a_prefix_ends_where_the_next_begins() {
        assert_eq!(
            kind(b'c').after_prefix(),
            Some(Key::from_bytes(b"c0".to_vec()))
        );
        assert_eq!(
            Key::from_bytes(vec![1, 255]).after_prefix(),
            Some(Key::from_bytes(vec![2]))
        );
        assert_eq!(Key::from_bytes(vec![255]).after_prefix(), None);
    }
}
