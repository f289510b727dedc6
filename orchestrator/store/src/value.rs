//! Stored values. The stored format and the wire contract evolve separately, so these messages are the store's own;
//! values that the orchestrator encodes itself are opaque bytes here.

use std::fmt;

use bytes::Bytes;
use prost::Message;
use uuid::Uuid;

/// Desired state of a cluster.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct Desired {
    /// Name, unique among the clusters that are not deleted. Never changes.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Labels set by the user.
    #[prost(btree_map = "string, string", tag = "2")]
    pub labels: std::collections::BTreeMap<String, String>,
    /// The encoded spec, at most 128 KiB. Never shown: it may contain user data.
    #[prost(bytes = "bytes", tag = "3")]
    pub spec: Bytes,
    /// Generation of the spec, starting at 1.
    #[prost(uint64, tag = "4")]
    pub generation: u64,
    /// Author of the present generation. Empty if not known.
    #[prost(string, tag = "5")]
    pub author: String,
    /// Time of the last apply, in ms since 1970.
    #[prost(int64, tag = "6")]
    pub apply_time_ms: i64,
    /// Creation time, in ms since 1970.
    #[prost(int64, tag = "7")]
    pub create_time_ms: i64,
    /// The present pause. Absent if not paused.
    #[prost(message, optional, tag = "8")]
    pub paused: Option<Pause>,
    /// When its deletion was requested, in ms since 1970. Absent if it was not.
    #[prost(int64, optional, tag = "9")]
    pub delete_time_ms: Option<i64>,
    /// Ids of nodes that the user wants replaced.
    #[prost(string, repeated, tag = "10")]
    pub marks: Vec<String>,
    /// Further state of the user by name, each in the encoding of the code that uses that name.
    #[prost(btree_map = "string, bytes", tag = "11")]
    pub extra: std::collections::BTreeMap<String, Vec<u8>>,
    /// Author of the last pause or of its end. Empty if not known.
    #[prost(string, tag = "12")]
    pub pause_author: String,
    /// Those of `marks` that were named when a group was scaled down.
    #[prost(string, repeated, tag = "13")]
    pub scaled_away: Vec<String>,
}

/// A pause of all changes by the user.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Pause {
    /// Reason given by the user.
    #[prost(string, tag = "1")]
    pub reason: String,
    /// When it began, in ms since 1970.
    #[prost(int64, tag = "2")]
    pub time_ms: i64,
}

/// A former or present spec of a cluster.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct RevisionRow {
    /// The encoded spec. Never shown: it may contain private data of its user.
    #[prost(bytes = "bytes", tag = "1")]
    pub spec: Bytes,
    /// When it was applied, in ms since 1970.
    #[prost(int64, tag = "2")]
    pub apply_time_ms: i64,
    /// Author of the spec. Empty if not known.
    #[prost(string, tag = "3")]
    pub author: String,
}

/// The owner's state of a cluster as a whole.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct Head {
    #[prost(uint64, tag = "1")]
    pub(crate) last_seq: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) first_seq: u64,
    /// The next slot; slots are never reused.
    #[prost(uint64, tag = "3")]
    pub next_slot: u64,
    /// Sequence number of the next provision request.
    #[prost(uint64, tag = "4")]
    pub next_sequence: u64,
    /// Observed generation: the one that the last pass saw.
    #[prost(uint64, tag = "5")]
    pub observed_generation: u64,
    /// Conditions, back-offs and other state of the whole cluster, encoded by the orchestrator.
    #[prost(bytes = "bytes", tag = "6")]
    pub state: Bytes,
    /// Lower sequence numbers that no request has: alternately the first number of a range and the one after its last.
    #[prost(uint64, repeated, tag = "7")]
    pub skipped: Vec<u64>,
}

impl Head {
    /// Number of the newest event, 0 if there was none.
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Number of the oldest retained event, 1 if none was trimmed.
    #[must_use]
    pub fn first_seq(&self) -> u64 {
        self.first_seq.max(1)
    }
}

/// A registered platform.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct PlatformRow {
    /// Name under which it is registered.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The encoded registration. Never shown: it may contain credentials.
    #[prost(bytes = "bytes", tag = "2")]
    pub spec: Bytes,
    /// Generation of the registration, starting at 1.
    #[prost(uint64, tag = "3")]
    pub generation: u64,
    /// Uid of its backend. Empty until known.
    #[prost(string, tag = "4")]
    pub uid: String,
    /// Registration time, in ms since 1970.
    #[prost(int64, tag = "5")]
    pub create_time_ms: i64,
    /// Further state, encoded by the orchestrator.
    #[prost(bytes = "bytes", tag = "6")]
    pub state: Bytes,
}

/// An encrypted secret.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct SecretRow {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) value: Bytes,
}

/// The tombstone of a deleted cluster.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct Tombstone {
    /// Former name of the cluster.
    #[prost(string, tag = "1")]
    pub name: String,
    /// When its deletion was finished, in ms since 1970.
    #[prost(int64, tag = "2")]
    pub delete_time_ms: i64,
    /// Sequence number that its next provision request would have had.
    #[prost(uint64, tag = "3")]
    pub next_sequence: u64,
    /// All platforms that it ever used, encoded by the orchestrator.
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
    /// Severity, as in `orchestrator.v1.EventSeverity`.
    #[prost(int32, tag = "2")]
    pub severity: i32,
    /// What happened, as a single word.
    #[prost(string, tag = "3")]
    pub reason: String,
    /// What happened, for people; at most 4 KiB, no secrets.
    #[prost(string, tag = "4")]
    pub message: String,
    /// Path of the group, if it concerns one.
    #[prost(string, optional, tag = "5")]
    pub group: Option<String>,
    /// Id of the node, if it concerns one.
    #[prost(string, optional, tag = "6")]
    pub node: Option<String>,
    /// Name of the platform, if it concerns one.
    #[prost(string, optional, tag = "7")]
    pub platform: Option<String>,
    /// Step of the plan that caused it, if known.
    #[prost(string, optional, tag = "8")]
    pub step: Option<String>,
    /// Id of the trace in which it happened, if known.
    #[prost(string, optional, tag = "9")]
    pub trace_id: Option<String>,
    /// Number of occurrences.
    #[prost(uint32, tag = "10")]
    pub count: u32,
    /// Number shared by the events of one lasting state. 0 if it stands alone.
    #[prost(uint64, tag = "11")]
    pub series: u64,
    /// Author of the request that caused it. Empty if there is none, or if not known.
    #[prost(string, tag = "12")]
    pub author: String,
}

/// A stored event.
#[derive(Clone, Debug, PartialEq)]
pub struct EventRow {
    /// Number in the cluster's log, starting at 1, without gaps.
    pub seq: u64,
    /// Content of the event.
    pub event: NewEvent,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Chunk {
    #[prost(message, repeated, tag = "1")]
    pub(crate) events: Vec<NewEvent>,
}

/// Metadata of the store.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Meta {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) id: Bytes,
    #[prost(uint32, tag = "2")]
    pub(crate) format: u32,
    /// Starts at 1 and increases with each restore.
    #[prost(uint64, tag = "3")]
    pub(crate) incarnation: u64,
    /// Whether a person has still to confirm that the restored state may be acted upon.
    #[prost(bool, tag = "4")]
    pub(crate) held: bool,
    /// Whether secrets and user data may be encrypted.
    #[prost(bool, tag = "5")]
    pub(crate) sealed: bool,
    /// Id of the key that all of them are encrypted with. Empty if they do not all have the same one.
    #[prost(bytes = "bytes", tag = "6")]
    pub(crate) sealed_with: Bytes,
    /// The write numbers of all secrets ([`SecretNumbers`]), encrypted: a former value of a secret that was put back
    /// does not match its number.
    #[prost(bytes = "bytes", tag = "7")]
    pub(crate) secrets: Bytes,
}

/// Write numbers of secrets.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SecretNumbers {
    /// The last number that was assigned.
    #[prost(uint64, tag = "1")]
    pub(crate) last: u64,
    /// Number of the last write of each secret, by name.
    #[prost(btree_map = "string, uint64", tag = "2")]
    pub(crate) of: std::collections::BTreeMap<String, u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Owner {
    #[prost(string, tag = "1")]
    pub(crate) replica: String,
    #[prost(uint64, tag = "2")]
    pub(crate) epoch: u64,
    /// The lease that the key is bound to, which is the owner's. 0 if it was not told.
    #[prost(uint64, tag = "3")]
    pub(crate) lease: u64,
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
    /// URL at which clients reach it. Empty if not known.
    #[prost(string, tag = "3")]
    pub(crate) address: String,
    #[prost(string, tag = "4")]
    pub(crate) version: String,
    /// Tells two processes of one name apart.
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) incarnation: Bytes,
    /// When it started, in ms since 1970.
    #[prost(uint64, tag = "6")]
    pub(crate) since_ms: u64,
    /// Its lease. 0 if not known.
    #[prost(uint64, tag = "7")]
    pub(crate) lease: u64,
    /// Public key with which it vouches for callers. Empty if it does not.
    #[prost(bytes = "bytes", tag = "8")]
    pub(crate) key: Bytes,
    /// Absent before it has told anything.
    #[prost(message, optional, tag = "9")]
    pub(crate) report: Option<ReplicaReport>,
}

/// What a replica tells the others again and again.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ReplicaReport {
    /// Its clock when it told this, in ms since 1970.
    #[prost(uint64, tag = "1")]
    pub time_ms: u64,
    /// Platforms that it reaches, by name, in order.
    #[prost(string, repeated, tag = "2")]
    pub platforms: Vec<String>,
    /// Why it should not lead while there is another one. Empty if nothing is known.
    #[prost(string, tag = "3")]
    pub unfit: String,
    /// Ids of the keys with which it can read secrets.
    #[prost(bytes = "bytes", repeated, tag = "4")]
    pub secret_keys: Vec<Bytes>,
    /// Replicas whose clock is ahead of this one's, for certain, by name.
    #[prost(string, repeated, tag = "5")]
    pub ahead: Vec<String>,
    /// Whether the lead can be handed to it: it stands by and has read all clusters. `None` of a version that is handed none.
    #[prost(bool, optional, tag = "6")]
    pub takes: Option<bool>,
}

/// Id of the transaction that wrote a value, by which a lost response is resolved. It is appended to the message under
/// a tag that no message here uses.

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mark {
    #[prost(bytes = "bytes", tag = "15")]
    pub(crate) last_txn: Bytes,
}

/// Encodes a value together with the id of its transaction.
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
