//! What is stored under the keys. The stored format and the wire contract change separately, so these messages are the
//! store's own; what the orchestrator encodes itself is bytes here.

use std::fmt;

use bytes::Bytes;
use prost::Message;
use uuid::Uuid;

/// What the user wants of a cluster.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct Desired {
    /// Name, unique among the clusters that are not deleted. Never changes.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Labels.
    #[prost(btree_map = "string, string", tag = "2")]
    pub labels: std::collections::BTreeMap<String, String>,
    /// The encoded spec, at most 128 KiB. Never shown: it may hold user data.
    #[prost(bytes = "bytes", tag = "3")]
    pub spec: Bytes,
    /// Counts the changes of the spec, from 1.
    #[prost(uint64, tag = "4")]
    pub generation: u64,
    /// Who wanted the present generation. Empty: not known.
    #[prost(string, tag = "5")]
    pub author: String,
    /// When it was applied last, in ms since 1970.
    #[prost(int64, tag = "6")]
    pub apply_time_ms: i64,
    /// When it was made, in ms since 1970.
    #[prost(int64, tag = "7")]
    pub create_time_ms: i64,
    /// Absent: not paused.
    #[prost(message, optional, tag = "8")]
    pub paused: Option<Pause>,
    /// When its deletion was asked for, in ms since 1970. Absent: it was not.
    #[prost(int64, optional, tag = "9")]
    pub delete_time_ms: Option<i64>,
    /// Ids of nodes that the user wants replaced.
    #[prost(string, repeated, tag = "10")]
    pub marks: Vec<String>,
    /// More of the user's state, each encoded by who knows the name.
    #[prost(btree_map = "string, bytes", tag = "11")]
    pub extra: std::collections::BTreeMap<String, Vec<u8>>,
    /// Who paused it, or ended that, last. Empty: not known.
    #[prost(string, tag = "12")]
    pub pause_author: String,
    /// Those of `marks` that were named when a group was made smaller.
    #[prost(string, repeated, tag = "13")]
    pub scaled_away: Vec<String>,
}

/// The user stopped all changes.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Pause {
    /// Why, as the user said.
    #[prost(string, tag = "1")]
    pub reason: String,
    /// Since when, in ms since 1970.
    #[prost(int64, tag = "2")]
    pub time_ms: i64,
}

/// A spec that a cluster had.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct RevisionRow {
    /// The encoded spec. Never shown: it may hold what its user keeps to himself.
    #[prost(bytes = "bytes", tag = "1")]
    pub spec: Bytes,
    /// When it was applied, in ms since 1970.
    #[prost(int64, tag = "2")]
    pub apply_time_ms: i64,
    /// Who wanted it. Empty: not known.
    #[prost(string, tag = "3")]
    pub author: String,
}

/// What the owner of a cluster knows of it as a whole.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct Head {
    #[prost(uint64, tag = "1")]
    pub(crate) last_seq: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) first_seq: u64,
    /// The next slot; slots are never used again.
    #[prost(uint64, tag = "3")]
    pub next_slot: u64,
    /// Counter of the next provision request.
    #[prost(uint64, tag = "4")]
    pub next_sequence: u64,
    /// Generation that the last pass saw.
    #[prost(uint64, tag = "5")]
    pub observed_generation: u64,
    /// Conditions, back-offs and what else belongs to the whole cluster, encoded by the orchestrator.
    #[prost(bytes = "bytes", tag = "6")]
    pub state: Bytes,
    /// Counters below the next one that no request has: in turns the first of a range, and the one after its last.
    #[prost(uint64, repeated, tag = "7")]
    pub skipped: Vec<u64>,
}

impl Head {
    /// Number of the newest event; 0 when there was none.
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Number of the oldest event that is kept; 1 when none was trimmed.
    #[must_use]
    pub fn first_seq(&self) -> u64 {
        self.first_seq.max(1)
    }
}

/// A registered platform.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct PlatformRow {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The encoded registration. Never shown: it may hold credentials.
    #[prost(bytes = "bytes", tag = "2")]
    pub spec: Bytes,
    /// Counts the changes of the registration, from 1.
    #[prost(uint64, tag = "3")]
    pub generation: u64,
    /// Uid of the backend behind it, once known.
    #[prost(string, tag = "4")]
    pub uid: String,
    /// When it was registered, in ms since 1970.
    #[prost(int64, tag = "5")]
    pub create_time_ms: i64,
    /// More of it, encoded by the orchestrator.
    #[prost(bytes = "bytes", tag = "6")]
    pub state: Bytes,
}

/// A secret, encrypted.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct SecretRow {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) value: Bytes,
}

/// What is left of a deleted cluster.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct Tombstone {
    /// Name that it had.
    #[prost(string, tag = "1")]
    pub name: String,
    /// When it was finished, in ms since 1970.
    #[prost(int64, tag = "2")]
    pub delete_time_ms: i64,
    /// Counter of the provision request that it would have made next.
    #[prost(uint64, tag = "3")]
    pub next_sequence: u64,
    /// The platforms that it ever used, encoded by the orchestrator.
    #[prost(bytes = "bytes", tag = "4")]
    pub platforms: Bytes,
    #[prost(uint64, tag = "5")]
    pub(crate) last_seq: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) first_seq: u64,
}

/// An event to be stored.
#[derive(Clone, PartialEq, Message)]
pub struct NewEvent {
    /// When it happened, in ms since 1970.
    #[prost(int64, tag = "1")]
    pub time_ms: i64,
    /// `orchestrator.v1.EventSeverity`.
    #[prost(int32, tag = "2")]
    pub severity: i32,
    /// What happened, one word.
    #[prost(string, tag = "3")]
    pub reason: String,
    /// What happened, for people; at most 4 KiB, no secrets.
    #[prost(string, tag = "4")]
    pub message: String,
    /// Path of the group.
    #[prost(string, optional, tag = "5")]
    pub group: Option<String>,
    /// Node id.
    #[prost(string, optional, tag = "6")]
    pub node: Option<String>,
    /// Name of the platform.
    #[prost(string, optional, tag = "7")]
    pub platform: Option<String>,
    /// Step of the plan that did it.
    #[prost(string, optional, tag = "8")]
    pub step: Option<String>,
    /// Trace in which it happened.
    #[prost(string, optional, tag = "9")]
    pub trace_id: Option<String>,
    /// How often it happened.
    #[prost(uint32, tag = "10")]
    pub count: u32,
    /// Events of one lasting state share a number; 0: it stands alone.
    #[prost(uint64, tag = "11")]
    pub series: u64,
    /// Who asked for it. Empty: nobody did, or it is not known.
    #[prost(string, tag = "12")]
    pub author: String,
}

/// A stored event.
#[derive(Clone, Debug, PartialEq)]
pub struct EventRow {
    /// Number in the cluster's log, from 1, without gaps.
    pub seq: u64,
    /// What happened.
    pub event: NewEvent,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Chunk {
    #[prost(message, repeated, tag = "1")]
    pub(crate) events: Vec<NewEvent>,
}

/// The store itself.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Meta {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) id: Bytes,
    #[prost(uint32, tag = "2")]
    pub(crate) format: u32,
    /// Counts the restores, from 1.
    #[prost(uint64, tag = "3")]
    pub(crate) incarnation: u64,
    /// Nobody has confirmed yet that the restored state may be acted upon.
    #[prost(bool, tag = "4")]
    pub(crate) held: bool,
    /// Secrets and user data may be encrypted.
    #[prost(bool, tag = "5")]
    pub(crate) sealed: bool,
    /// Id of the key that all of them are encrypted with. Empty: not all by the same one.
    #[prost(bytes = "bytes", tag = "6")]
    pub(crate) sealed_with: Bytes,
    /// The numbers of the last writings of all secrets ([`SecretNumbers`]), encrypted: a secret that was put back is not the
    /// one of its number.
    #[prost(bytes = "bytes", tag = "7")]
    pub(crate) secrets: Bytes,
}

/// Numbers of the writings of secrets.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SecretNumbers {
    /// The last one that was given out.
    #[prost(uint64, tag = "1")]
    pub(crate) last: u64,
    /// That of each secret, by its name.
    #[prost(btree_map = "string, uint64", tag = "2")]
    pub(crate) of: std::collections::BTreeMap<String, u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Owner {
    #[prost(string, tag = "1")]
    pub(crate) replica: String,
    #[prost(uint64, tag = "2")]
    pub(crate) epoch: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Epoch {
    #[prost(uint64, tag = "1")]
    pub(crate) epoch: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Replica {
    #[prost(uint32, tag = "1")]
    pub(crate) reads: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) writes: u32,
}

/// The id of the transaction that wrote a value, by which a lost answer is resolved. It is appended to the message under a
/// tag that no message here uses.

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mark {
    #[prost(bytes = "bytes", tag = "15")]
    pub(crate) last_txn: Bytes,
}

/// Encodes a value with the id of its transaction.
pub(crate) fn marked(value: &impl Message, txn: &Bytes) -> Bytes {
    let mark = Mark {
        last_txn: txn.clone(),
    };
    let mut bytes = Vec::with_capacity(value.encoded_len() + mark.encoded_len());
    value.encode_raw(&mut bytes);
    mark.encode_raw(&mut bytes);
    bytes.into()
}

pub(crate) fn new_txn_id() -> Bytes {
    Bytes::copy_from_slice(Uuid::new_v4().as_bytes())
}

impl fmt::Debug for Desired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desired")
            .field("name", &self.name)
            .field("generation", &self.generation)
            .field("spec_bytes", &self.spec.len())
            .field("paused", &self.paused.is_some())
            .field("deleting", &self.delete_time_ms.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Head")
            .field("last_seq", &self.last_seq)
            .field("first_seq", &self.first_seq)
            .field("next_slot", &self.next_slot)
            .field("next_sequence", &self.next_sequence)
            .field("skipped", &self.skipped)
            .field("observed_generation", &self.observed_generation)
            .field("state_bytes", &self.state.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PlatformRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlatformRow")
            .field("name", &self.name)
            .field("uid", &self.uid)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SecretRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretRow({} bytes)", self.value.len())
    }
}

impl fmt::Debug for Tombstone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tombstone")
            .field("name", &self.name)
            .field("delete_time_ms", &self.delete_time_ms)
            .field("next_sequence", &self.next_sequence)
            .finish_non_exhaustive()
    }
}
