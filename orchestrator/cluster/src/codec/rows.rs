//! The stored messages.

use bytes::Bytes;
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeRow {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) request: Bytes,
    #[prost(uint32, tag = "2")]
    pub(super) index: u32,
    #[prost(uint32, tag = "3")]
    pub(super) ordinal: u32,
    #[prost(uint64, tag = "4")]
    pub(super) sequence: u64,
    #[prost(string, tag = "5")]
    pub(super) group: String,
    #[prost(string, tag = "6")]
    pub(super) platform: String,
    #[prost(string, tag = "7")]
    pub(super) platform_uid: String,
    #[prost(string, tag = "8")]
    pub(super) class: String,
    #[prost(string, tag = "9")]
    pub(super) version: String,
    #[prost(string, tag = "10")]
    pub(super) spec_hash: String,
    #[prost(uint32, tag = "11")]
    pub(super) attempts: u32,
    #[prost(uint64, tag = "12")]
    pub(super) create_time: u64,
    #[prost(uint32, tag = "13")]
    pub(super) state: u32,
    #[prost(uint64, tag = "14")]
    pub(super) state_time: u64,
    #[prost(string, tag = "15")]
    pub(super) reason: String,
    #[prost(string, tag = "16")]
    pub(super) message: String,
    #[prost(bool, tag = "17")]
    pub(super) stable: bool,
    #[prost(string, optional, tag = "18")]
    pub(super) node_id: Option<String>,
    #[prost(uint32, tag = "19")]
    pub(super) removal: u32,
    #[prost(uint64, tag = "20")]
    pub(super) removal_since: u64,
    #[prost(uint64, tag = "21")]
    pub(super) settled: u64,
    #[prost(uint64, tag = "22")]
    pub(super) maybe_until: u64,
    #[prost(string, tag = "23")]
    pub(super) host: String,
    /// 0: active, which includes all rows from before there were standby nodes.
    #[prost(uint32, tag = "24")]
    pub(super) role: u32,
    #[prost(bool, tag = "40")]
    pub(super) storage: bool,
    #[prost(bool, tag = "41")]
    pub(super) retain: bool,
    /// Empty if unknown, as in all rows from before templates had digests.
    #[prost(string, tag = "50")]
    pub(super) template: String,
    #[prost(message, optional, tag = "30")]
    pub(super) adoption: Option<FormerRow>,
    #[prost(uint64, tag = "31")]
    pub(super) drain: u64,
    /// Address of the agent when the row was written. Empty if unknown.
    #[prost(string, tag = "51")]
    pub(super) agent_address: String,
    /// Absent if the id is that of the slot.
    #[prost(string, optional, tag = "52")]
    pub(super) given_id: Option<String>,
    /// Empty if its host has no labels of its group. Absent in rows from before they were recorded.
    #[prost(string, optional, tag = "53")]
    pub(super) labels_hash: Option<String>,
    #[prost(message, optional, tag = "54")]
    pub(super) reached: Option<ReachedRow>,
    /// Absent if not known, as in rows from before it was recorded.
    #[prost(uint64, optional, tag = "55")]
    pub(super) storage_size: Option<u64>,
}

/// Where a node was last reached.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ReachedRow {
    #[prost(message, repeated, tag = "1")]
    pub(super) addresses: Vec<AddressRow>,
    #[prost(message, repeated, tag = "2")]
    pub(super) endpoints: Vec<EndpointRow>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AddressRow {
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(string, tag = "2")]
    pub(super) value: String,
    #[prost(string, tag = "3")]
    pub(super) interface: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EndpointRow {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) address: String,
}

/// The slot of a node under adoption, until the adoption is complete.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FormerRow {
    /// Empty if there was none.
    #[prost(string, tag = "1")]
    pub(super) owner: String,
    #[prost(string, tag = "2")]
    pub(super) request: String,
    #[prost(uint32, optional, tag = "3")]
    pub(super) index: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestRow {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) id: Bytes,
    #[prost(uint64, tag = "2")]
    pub(super) sequence: u64,
    #[prost(string, tag = "3")]
    pub(super) group: String,
    #[prost(string, tag = "4")]
    pub(super) platform: String,
    #[prost(string, tag = "5")]
    pub(super) platform_uid: String,
    #[prost(string, tag = "6")]
    pub(super) class: String,
    #[prost(string, tag = "7")]
    pub(super) spec_hash: String,
    #[prost(uint64, tag = "8")]
    pub(super) first_sent: u64,
    #[prost(uint64, tag = "9")]
    pub(super) deadline: u64,
    #[prost(uint32, tag = "10")]
    pub(super) attempts: u32,
    #[prost(uint32, tag = "11")]
    pub(super) made_nothing: u32,
    #[prost(bytes = "bytes", tag = "15")]
    pub(super) body: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HeadState {
    #[prost(message, repeated, tag = "1")]
    pub(super) back_offs: Vec<BackOffRow>,
    #[prost(message, repeated, tag = "2")]
    pub(super) conditions: Vec<ConditionRow>,
    #[prost(message, repeated, tag = "3")]
    pub(super) used: Vec<Used>,
    #[prost(message, repeated, tag = "4")]
    pub(super) rollouts: Vec<RolloutRow>,
    #[prost(message, repeated, tag = "40")]
    pub(super) storage: Vec<PolicyRow>,
    /// Number of the last adoption request that was carried out.
    #[prost(uint64, tag = "10")]
    pub(super) adopted: u64,
    #[prost(message, repeated, tag = "11")]
    pub(super) grown: Vec<GrownRow>,
    #[prost(message, repeated, tag = "12")]
    pub(super) vacated: Vec<VacatedRow>,
    #[prost(message, repeated, tag = "13")]
    pub(super) abandoned: Vec<Used>,
    #[prost(message, repeated, tag = "14")]
    pub(super) sole: Vec<SoleRow>,
}

/// An active node that may have acknowledged what nobody else has.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SoleRow {
    #[prost(string, tag = "1")]
    pub(super) group: String,
    #[prost(uint64, tag = "2")]
    pub(super) slot: u64,
    #[prost(uint32, tag = "3")]
    pub(super) ordinal: u32,
}

/// Storage policy of a group: `true` if the storage is deleted.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PolicyRow {
    #[prost(string, tag = "1")]
    pub(super) group: String,
    #[prost(bool, tag = "2")]
    pub(super) replaced: bool,
    #[prost(bool, tag = "3")]
    pub(super) scaled: bool,
    #[prost(bool, tag = "4")]
    pub(super) deleted: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GrownRow {
    #[prost(string, tag = "1")]
    pub(super) group: String,
    #[prost(uint32, tag = "2")]
    pub(super) most: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct VacatedRow {
    #[prost(string, tag = "1")]
    pub(super) group: String,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) ordinals: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RolloutRow {
    #[prost(string, tag = "1")]
    pub(super) group: String,
    #[prost(string, tag = "2")]
    pub(super) target: String,
    #[prost(uint64, tag = "3")]
    pub(super) started: u64,
    #[prost(uint64, tag = "4")]
    pub(super) progress: u64,
    #[prost(uint32, tag = "5")]
    pub(super) ready: u32,
    #[prost(uint32, tag = "6")]
    pub(super) left: u32,
    #[prost(uint32, tag = "7")]
    pub(super) size: u32,
    #[prost(uint32, tag = "8")]
    pub(super) surplus: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BackOffRow {
    #[prost(string, tag = "1")]
    pub(super) group: String,
    #[prost(string, tag = "2")]
    pub(super) spec_hash: String,
    #[prost(string, tag = "3")]
    pub(super) platform: String,
    #[prost(uint32, tag = "4")]
    pub(super) kind: u32,
    #[prost(uint32, tag = "5")]
    pub(super) failures: u32,
    #[prost(uint64, tag = "6")]
    pub(super) last: u64,
    #[prost(uint64, tag = "7")]
    pub(super) next: u64,
    #[prost(string, tag = "8")]
    pub(super) etag: String,
    #[prost(string, tag = "9")]
    pub(super) message: String,
    /// Empty unless it applies to a single host.
    #[prost(string, tag = "10")]
    pub(super) host: String,
    #[prost(bool, tag = "11")]
    pub(super) capacity: bool,
    #[prost(string, tag = "20")]
    pub(super) template: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ConditionRow {
    #[prost(string, tag = "1")]
    pub(super) group: String,
    #[prost(uint32, tag = "2")]
    pub(super) kind: u32,
    #[prost(string, tag = "3")]
    pub(super) reason: String,
    #[prost(string, tag = "4")]
    pub(super) message: String,
    #[prost(uint64, tag = "5")]
    pub(super) since: u64,
}

/// A backend that a cluster used.
#[derive(Clone, PartialEq, Message)]
pub struct Used {
    /// Name of the platform.
    #[prost(string, tag = "1")]
    pub platform: String,
    /// Uid of its backend.
    #[prost(string, tag = "2")]
    pub uid: String,
}

/// The tombstone of a deleted cluster: the backends that it used, its last generation, and the sequences that none of
/// its requests has, as range bounds.
#[derive(Clone, PartialEq, Message)]
pub struct UsedList {
    /// The backends on which the cluster may have nodes.
    #[prost(message, repeated, tag = "1")]
    pub used: Vec<Used>,
    /// The generation that was desired last.
    #[prost(uint64, tag = "2")]
    pub generation: u64,
    /// Bounds of the sequences that were never given out.
    #[prost(uint64, repeated, tag = "3")]
    pub skipped: Vec<u64>,
}
