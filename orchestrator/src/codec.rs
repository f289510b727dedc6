//! The record of a cluster as it is stored: our own messages, independent of what travels.

use std::collections::HashMap;

use bytes::Bytes;
use drover_core::{
    Error, Millis, Node, NodeState, Result, Sym,
    node::{Call, ProbeResult, Removal, RemovalReason, Request, Seen},
};
use drover_planner::{
    BackOff, BackOffKey, BackOffKind, Condition, ConditionKey, ConditionKind, Rollout, SmallMap,
    State, Subject,
};
use parking_lot::Mutex;
use prost::Message;
use uuid::Uuid;

/// Strings that many records share, each kept once.
#[derive(Debug, Default)]
pub(crate) struct Interner(Mutex<HashMap<Box<str>, Sym>>);

/// Above this many strings nothing new is shared: names come from outside and must not fill the memory.
const MAX_INTERNED: usize = 100_000;

impl Interner {
    pub(crate) fn get(&self, text: &str) -> Sym {
        if text.is_empty() {
            return Sym::default();
        }
        let mut known = self.0.lock();
        if let Some(sym) = known.get(text) {
            return sym.clone();
        }
        let sym: Sym = text.into();
        if known.len() < MAX_INTERNED {
            known.insert(text.into(), sym.clone());
        }
        sym
    }
}

impl Interner {
    /// The same, where it is likely to be this one: nodes that are stored together have most strings in common.
    fn like(&self, text: &str, likely: Option<&Sym>) -> Sym {
        match likely {
            Some(likely) if **likely == *text => likely.clone(),
            _ => self.get(text),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct NodeRow {
    #[prost(bytes = "bytes", tag = "1")]
    request: Bytes,
    #[prost(uint32, tag = "2")]
    index: u32,
    #[prost(uint32, tag = "3")]
    ordinal: u32,
    #[prost(uint64, tag = "4")]
    sequence: u64,
    #[prost(string, tag = "5")]
    group: String,
    #[prost(string, tag = "6")]
    platform: String,
    #[prost(string, tag = "7")]
    platform_uid: String,
    #[prost(string, tag = "8")]
    class: String,
    #[prost(string, tag = "9")]
    version: String,
    #[prost(string, tag = "10")]
    spec_hash: String,
    #[prost(uint32, tag = "11")]
    attempts: u32,
    #[prost(uint64, tag = "12")]
    create_time: u64,
    #[prost(uint32, tag = "13")]
    state: u32,
    #[prost(uint64, tag = "14")]
    state_time: u64,
    #[prost(string, tag = "15")]
    reason: String,
    #[prost(string, tag = "16")]
    message: String,
    #[prost(bool, tag = "17")]
    stable: bool,
    #[prost(string, optional, tag = "18")]
    node_id: Option<String>,
    #[prost(uint32, tag = "19")]
    removal: u32,
    #[prost(uint64, tag = "20")]
    removal_since: u64,
    #[prost(uint64, tag = "21")]
    settled: u64,
    #[prost(uint64, tag = "22")]
    maybe_until: u64,
    #[prost(string, tag = "23")]
    host: String,
}

#[derive(Clone, PartialEq, Message)]
struct RequestRow {
    #[prost(bytes = "bytes", tag = "1")]
    id: Bytes,
    #[prost(uint64, tag = "2")]
    sequence: u64,
    #[prost(string, tag = "3")]
    group: String,
    #[prost(string, tag = "4")]
    platform: String,
    #[prost(string, tag = "5")]
    platform_uid: String,
    #[prost(string, tag = "6")]
    class: String,
    #[prost(string, tag = "7")]
    spec_hash: String,
    #[prost(uint64, tag = "8")]
    first_sent: u64,
    #[prost(uint64, tag = "9")]
    deadline: u64,
    #[prost(uint32, tag = "10")]
    attempts: u32,
    #[prost(uint32, tag = "11")]
    made_nothing: u32,
    #[prost(bytes = "bytes", tag = "15")]
    body: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct HeadState {
    #[prost(message, repeated, tag = "1")]
    back_offs: Vec<BackOffRow>,
    #[prost(message, repeated, tag = "2")]
    conditions: Vec<ConditionRow>,
    #[prost(message, repeated, tag = "3")]
    used: Vec<Used>,
    #[prost(message, repeated, tag = "4")]
    rollouts: Vec<RolloutRow>,
}

#[derive(Clone, PartialEq, Message)]
struct RolloutRow {
    #[prost(string, tag = "1")]
    group: String,
    #[prost(string, tag = "2")]
    target: String,
    #[prost(uint64, tag = "3")]
    started: u64,
    #[prost(uint64, tag = "4")]
    progress: u64,
    #[prost(uint32, tag = "5")]
    ready: u32,
    #[prost(uint32, tag = "6")]
    left: u32,
}

#[derive(Clone, PartialEq, Message)]
struct BackOffRow {
    #[prost(string, tag = "1")]
    group: String,
    #[prost(string, tag = "2")]
    spec_hash: String,
    #[prost(string, tag = "3")]
    platform: String,
    #[prost(uint32, tag = "4")]
    kind: u32,
    #[prost(uint32, tag = "5")]
    failures: u32,
    #[prost(uint64, tag = "6")]
    last: u64,
    #[prost(uint64, tag = "7")]
    next: u64,
    #[prost(string, tag = "8")]
    etag: String,
    #[prost(string, tag = "9")]
    message: String,
    /// Empty: not of one machine.
    #[prost(string, tag = "10")]
    host: String,
    #[prost(bool, tag = "11")]
    capacity: bool,
}

#[derive(Clone, PartialEq, Message)]
struct ConditionRow {
    #[prost(string, tag = "1")]
    group: String,
    #[prost(uint32, tag = "2")]
    kind: u32,
    #[prost(string, tag = "3")]
    reason: String,
    #[prost(string, tag = "4")]
    message: String,
    #[prost(uint64, tag = "5")]
    since: u64,
}

/// A backend that a cluster used.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Used {
    #[prost(string, tag = "1")]
    pub(crate) platform: String,
    #[prost(string, tag = "2")]
    pub(crate) uid: String,
}

/// What is kept of a deleted cluster: backends that it used, and its last generation.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UsedList {
    #[prost(message, repeated, tag = "1")]
    pub(crate) used: Vec<Used>,
    #[prost(uint64, tag = "2")]
    pub(crate) generation: u64,
}

const STATES: [NodeState; 8] = [
    NodeState::Requested,
    NodeState::Provisioning,
    NodeState::Starting,
    NodeState::Ready,
    NodeState::Draining,
    NodeState::Deprovisioning,
    NodeState::Unhealthy,
    NodeState::Failed,
];

const REMOVALS: [RemovalReason; 6] = [
    RemovalReason::User,
    RemovalReason::Dead,
    RemovalReason::Sick,
    RemovalReason::Surplus,
    RemovalReason::Orphan,
    RemovalReason::Outdated,
];

const KINDS: [ConditionKind; 16] = [
    ConditionKind::Ready,
    ConditionKind::StoreBehind,
    ConditionKind::ForeignNodes,
    ConditionKind::DeletionBlocked,
    ConditionKind::Rejected,
    ConditionKind::PlatformUnavailable,
    ConditionKind::NoCapacity,
    ConditionKind::RemediationBlocked,
    ConditionKind::ProbeUnreachable,
    ConditionKind::Failed,
    ConditionKind::Paused,
    ConditionKind::Deleting,
    ConditionKind::InfrastructureReady,
    ConditionKind::InfrastructureFailed,
    ConditionKind::WaitingForInfrastructure,
    ConditionKind::UpdateBlocked,
];

const BACK_OFFS: [BackOffKind; 4] = [
    BackOffKind::Failure,
    BackOffKind::Rejected,
    BackOffKind::Credentials,
    BackOffKind::NoCapacity,
];

fn number<T: PartialEq>(list: &[T], item: &T) -> u32 {
    // Numbers begin at 1: 0 is a field that is not there.
    list.iter()
        .position(|one| one == item)
        .map_or(0, |at| at as u32 + 1)
}

fn item<T: Copy>(list: &[T], number: u32) -> Option<T> {
    list.get((number as usize).checked_sub(1)?).copied()
}

fn damaged(what: &str) -> Error {
    Error::internal(format!(
        "the stored {what} cannot be read: it is damaged, or of a newer version"
    ))
}

fn uuid(bytes: &[u8], what: &str) -> Result<Uuid> {
    Uuid::from_slice(bytes).map_err(|_| damaged(what))
}

pub(crate) fn encode_node(node: &Node) -> Bytes {
    NodeRow {
        request: Bytes::copy_from_slice(node.request.as_bytes()),
        index: node.index,
        ordinal: node.ordinal,
        sequence: node.sequence,
        group: node.group.to_string(),
        platform: node.platform.to_string(),
        platform_uid: node.platform_uid.to_string(),
        class: node.class.to_string(),
        version: node.version.to_string(),
        spec_hash: node.spec_hash.to_string(),
        attempts: node.attempts,
        create_time: node.create_time,
        state: number(&STATES, &node.state),
        state_time: node.state_time,
        reason: node.reason.to_string(),
        message: node.message.to_string(),
        stable: node.stable,
        node_id: node.node_id.as_ref().map(ToString::to_string),
        removal: node
            .removal
            .map_or(0, |removal| number(&REMOVALS, &removal.reason)),
        removal_since: node.removal.map_or(0, |removal| removal.since),
        settled: node.settled,
        maybe_until: node.maybe_until,
        host: node.host.to_string(),
    }
    .encode_to_vec()
    .into()
}

pub(crate) fn decode_node(
    slot: u64,
    bytes: &[u8],
    interner: &Interner,
    before: Option<&Node>,
) -> Result<Node> {
    let row = NodeRow::decode(bytes).map_err(|_| damaged("node"))?;
    let removal = match row.removal {
        0 => None,
        reason => Some(Removal {
            reason: item(&REMOVALS, reason).ok_or_else(|| damaged("node"))?,
            since: row.removal_since,
        }),
    };
    Ok(Node {
        slot,
        request: uuid(&row.request, "node")?,
        index: row.index,
        ordinal: row.ordinal,
        sequence: row.sequence,
        group: interner.like(&row.group, before.map(|node| &node.group)),
        platform: interner.like(&row.platform, before.map(|node| &node.platform)),
        platform_uid: interner.like(&row.platform_uid, before.map(|node| &node.platform_uid)),
        class: interner.like(&row.class, before.map(|node| &node.class)),
        host: interner.get(&row.host),
        version: interner.like(&row.version, before.map(|node| &node.version)),
        spec_hash: interner.like(&row.spec_hash, before.map(|node| &node.spec_hash)),
        attempts: row.attempts,
        create_time: row.create_time,
        state: item(&STATES, row.state).ok_or_else(|| damaged("node"))?,
        state_time: row.state_time,
        reason: interner.like(&row.reason, before.map(|node| &node.reason)),
        message: row.message.into(),
        marked: false,
        stable: row.stable,
        node_id: row.node_id.map(Into::into),
        removal,
        settled: row.settled,
        maybe_until: row.maybe_until,
        seen: Seen::default(),
        probe: ProbeResult::default(),
        call: Call::default(),
    })
}

pub(crate) fn encode_request(request: &Request, body: &Bytes) -> Bytes {
    RequestRow {
        id: Bytes::copy_from_slice(request.id.as_bytes()),
        sequence: request.sequence,
        group: request.group.to_string(),
        platform: request.platform.to_string(),
        platform_uid: request.platform_uid.to_string(),
        class: request.class.to_string(),
        spec_hash: request.spec_hash.to_string(),
        first_sent: request.first_sent,
        deadline: request.deadline,
        attempts: request.attempts,
        made_nothing: request.made_nothing,
        body: body.clone(),
    }
    .encode_to_vec()
    .into()
}

pub(crate) fn decode_request(bytes: &Bytes, interner: &Interner) -> Result<(Request, Bytes)> {
    let row = RequestRow::decode(bytes.clone()).map_err(|_| damaged("request"))?;
    let request = Request {
        id: uuid(&row.id, "request")?,
        sequence: row.sequence,
        group: interner.get(&row.group),
        platform: interner.get(&row.platform),
        platform_uid: interner.get(&row.platform_uid),
        class: interner.get(&row.class),
        spec_hash: interner.get(&row.spec_hash),
        first_sent: row.first_sent,
        deadline: row.deadline,
        attempts: row.attempts,
        made_nothing: row.made_nothing,
        sent: false,
        call: Call::default(),
        answer: None,
    };
    Ok((request, row.body))
}

pub(crate) fn encode_head(state: &State) -> Bytes {
    HeadState {
        back_offs: state
            .backoffs
            .iter()
            .map(|(key, back_off)| BackOffRow {
                group: key.group.to_string(),
                spec_hash: key.spec_hash.to_string(),
                platform: key.platform.to_string(),
                kind: number(&BACK_OFFS, &back_off.kind),
                failures: back_off.failures,
                last: back_off.last,
                next: back_off.next,
                etag: back_off.etag.to_string(),
                message: back_off.message.to_string(),
                host: match &key.subject {
                    Subject::Host(host) => host.to_string(),
                    Subject::Nodes | Subject::Capacity => String::new(),
                },
                capacity: key.subject == Subject::Capacity,
            })
            .collect(),
        conditions: state
            .conditions
            .iter()
            .map(|(key, condition)| ConditionRow {
                group: key.group.to_string(),
                kind: number(&KINDS, &key.kind),
                reason: condition.reason.to_string(),
                message: condition.message.to_string(),
                since: condition.since,
            })
            .collect(),
        used: state
            .used
            .iter()
            .map(|(platform, uid)| Used {
                platform: platform.to_string(),
                uid: uid.to_string(),
            })
            .collect(),
        rollouts: state
            .rollouts
            .iter()
            .map(|(group, rollout)| RolloutRow {
                group: group.to_string(),
                target: rollout.target.to_string(),
                started: rollout.started,
                progress: rollout.progress,
                ready: rollout.ready,
                left: rollout.left,
            })
            .collect(),
    }
    .encode_to_vec()
    .into()
}

pub(crate) fn decode_head(bytes: &[u8], state: &mut State, interner: &Interner) -> Result<()> {
    let head = HeadState::decode(bytes).map_err(|_| damaged("head"))?;
    state.backoffs = head
        .back_offs
        .into_iter()
        .map(|row| {
            let key = BackOffKey {
                group: interner.get(&row.group),
                spec_hash: interner.get(&row.spec_hash),
                platform: interner.get(&row.platform),
                subject: if row.capacity {
                    Subject::Capacity
                } else if row.host.is_empty() {
                    Subject::Nodes
                } else {
                    Subject::Host(interner.get(&row.host))
                },
            };
            let kind = item(&BACK_OFFS, row.kind).ok_or_else(|| damaged("back-off"))?;
            let back_off = BackOff {
                kind,
                failures: row.failures,
                last: row.last,
                next: row.next,
                etag: interner.get(&row.etag),
                message: row.message.into(),
            };
            Ok((key, back_off))
        })
        .collect::<Result<SmallMap<_, _>>>()?;
    state.conditions = head
        .conditions
        .into_iter()
        .map(|row| {
            let kind = item(&KINDS, row.kind).ok_or_else(|| damaged("condition"))?;
            let key = ConditionKey {
                group: interner.get(&row.group),
                kind,
            };
            let condition = Condition {
                reason: interner.get(&row.reason),
                message: row.message.into(),
                since: row.since as Millis,
            };
            Ok((key, condition))
        })
        .collect::<Result<SmallMap<_, _>>>()?;
    state.rollouts = head
        .rollouts
        .into_iter()
        .map(|row| {
            let rollout = Rollout {
                target: interner.get(&row.target),
                started: row.started,
                progress: row.progress,
                ready: row.ready,
                left: row.left,
            };
            (interner.get(&row.group), rollout)
        })
        .collect();
    state.used = head
        .used
        .into_iter()
        .map(|used| (interner.get(&used.platform), interner.get(&used.uid)))
        .collect();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_durable_part_of_a_node_survives() {
        let interner = Interner::default();
        for (at, state) in STATES.iter().enumerate() {
            let node = Node {
                slot: 7,
                request: Uuid::from_u128(3),
                index: 2,
                ordinal: 5,
                sequence: 9,
                group: "data/hot".into(),
                platform: "local".into(),
                platform_uid: "u".into(),
                class: "c".into(),
                host: "m-1".into(),
                version: "1".into(),
                spec_hash: "h".into(),
                attempts: 2,
                create_time: 11,
                state: *state,
                state_time: 12,
                reason: "Sick".into(),
                message: "why".into(),
                marked: false,
                stable: true,
                node_id: Some("i-1".into()),
                removal: REMOVALS.get(at).map(|reason| Removal {
                    reason: *reason,
                    since: 4,
                }),
                settled: 13,
                maybe_until: 14,
                seen: Seen::default(),
                probe: ProbeResult::default(),
                call: Call::default(),
            };
            assert_eq!(
                decode_node(7, &encode_node(&node), &interner, None).unwrap(),
                node
            );
        }
    }

    #[test]
    fn damaged_rows_are_refused_and_never_panic() {
        let interner = Interner::default();
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let bytes: Vec<u8> = (0..random.usize(0..64)).map(|_| random.u8(..)).collect();
            let _ = decode_node(1, &bytes, &interner, None);
            let _ = decode_request(&bytes.clone().into(), &interner);
            let _ = decode_head(&bytes, &mut State::default(), &interner);
        }
    }
}
