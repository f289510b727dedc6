//! What is stored of a secret, and what memory holds of it.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use drover_convert::value::to_timestamp;
use drover_proto::orchestrator::v1::{self as pb, SecretPurpose};
use drover_store::{DigestKey, Revision};
use prost::Message;
use uuid::Uuid;

/// A secret, without its content.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    /// Its keys.
    pub keys: BTreeMap<String, KnownKey>,
    /// Revision of the stored secret.
    pub revision: Revision,
    /// When it was created, in milliseconds since the Unix epoch.
    pub create_time_ms: u64,
    /// When it was changed last.
    pub update_time_ms: u64,
    /// The stored purpose, which may be unspecified.
    purpose: SecretPurpose,
}

/// A key of a secret, without its content.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownKey {
    /// The digest as shown to users.
    pub digest: String,
    /// Changes with the content and reveals nothing about it. Stored in requests.
    pub version: Bytes,
    /// Whether the content is text.
    pub text: bool,
}

/// The stored content of a secret.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct Content {
    /// At most one of each name.
    #[prost(message, repeated, tag = "1")]
    pub keys: Vec<ContentKey>,
    /// When it was created, in milliseconds since the Unix epoch.
    #[prost(uint64, tag = "2")]
    pub create_time_ms: u64,
    /// When it was changed last.
    #[prost(uint64, tag = "3")]
    pub update_time_ms: u64,
    /// [`SecretPurpose`]. Unspecified counts as workload.
    #[prost(enumeration = "SecretPurpose", tag = "4")]
    pub purpose: i32,
}

/// A key with its content.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct ContentKey {
    /// Name of the key.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What it holds.
    #[prost(bytes = "bytes", tag = "2")]
    pub content: Bytes,
    /// Changes with the content and reveals nothing about it.
    #[prost(bytes = "bytes", tag = "3")]
    pub version: Bytes,
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.keys).finish()
    }
}

impl fmt::Debug for ContentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({} bytes)", self.name, self.content.len())
    }
}

impl ContentKey {
    /// A key with new content and therefore a new version.
    pub fn new(name: &str, content: Bytes) -> Self {
        Self {
            name: name.to_owned(),
            content,
            version: Bytes::copy_from_slice(Uuid::new_v4().as_bytes()),
        }
    }
}

impl Content {
    /// A key with its content.
    pub fn get(&self, key: &str) -> Option<&ContentKey> {
        self.keys.iter().find(|own| own.name == key)
    }

    /// Strips the content.
    pub fn known(&self, revision: Revision, digests: &DigestKey) -> Known {
        let keys = self.keys.iter().map(|key| {
            let known = KnownKey {
                digest: digests.secret(&key.content),
                version: key.version.clone(),
                text: std::str::from_utf8(&key.content).is_ok(),
            };
            (key.name.clone(), known)
        });
        Known {
            keys: keys.collect(),
            revision,
            create_time_ms: self.create_time_ms,
            update_time_ms: self.update_time_ms,
            purpose: self.purpose(),
        }
    }
}

/// The purpose as users write it.
pub fn word(purpose: SecretPurpose) -> &'static str {
    match purpose {
        SecretPurpose::Unspecified | SecretPurpose::Workload => "workload",
        SecretPurpose::Probe => "probe",
        SecretPurpose::Platform => "platform",
    }
}

impl Known {
    /// The effective purpose.
    pub fn purpose(&self) -> SecretPurpose {
        match self.purpose {
            SecretPurpose::Unspecified => SecretPurpose::Workload,
            purpose => purpose,
        }
    }

    /// Whether it was given a purpose, by a user or for its users.
    #[must_use]
    pub fn is_given_purpose(&self) -> bool {
        self.purpose != SecretPurpose::Unspecified
    }

    /// The secret in the wire format.
    pub fn to_proto(&self, name: &str, users: Vec<String>) -> pb::Secret {
        let keys = self.keys.iter().map(|(name, key)| pb::SecretKey {
            name: name.clone(),
            sha256: key.digest.clone(),
        });
        pb::Secret {
            name: name.to_owned(),
            keys: keys.collect(),
            revision: self.revision,
            create_time: Some(to_timestamp(self.create_time_ms)),
            update_time: Some(to_timestamp(self.update_time_ms)),
            users,
            purpose: self.purpose().into(),
        }
    }
}
