//! The stored record of a cluster: our own messages, independent of the wire format.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use drover_core::{
    Error, Millis, Node, NodeState, Result, Sym,
    node::{
        Adopted, CHANGING, Former, Origin, Reached, Record, Removal, RemovalReason, Request,
        RequestInFlight, Role, Seen, SeenAddress,
    },
    storage::{Policy, Retention},
};
use drover_planner::{
    BackOff, BackOffKey, BackOffKind, Condition, ConditionKey, ConditionKind, Rollout, SmallMap,
    SmallSet, Sole, State, Subject,
};
use parking_lot::Mutex;
use prost::Message;
use uuid::Uuid;

mod rows;

use rows::*;
pub use rows::{Used, UsedList};

/// Interner: strings that many records share are kept once.
#[derive(Debug, Default)]
pub struct Interner(Mutex<HashMap<Box<str>, Sym>>);

/// Above this many strings, new ones are not interned: names come from outside and must not fill the memory.
const MAX_INTERNED: usize = 100_000;
/// Maximum size of a head in bytes: it is written with every step, together with requests and nodes.
const MAX_HEAD: usize = 128 * 1024;

impl Interner {
    /// The shared form of a text.
    pub fn get(&self, text: &str) -> Sym {
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
    /// Like `get`, but first compares with a likely candidate: nodes that are stored together have most strings in
    /// common.
    fn like(&self, text: &str, likely: Option<&Sym>) -> Sym {
        match likely {
            Some(likely) if **likely == *text => likely.clone(),
            _ => self.get(text),
        }
    }
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

/// Active is 0, the default, and not stored.
const ROLES: [Role; 3] = [Role::Promoting, Role::Demoting, Role::Standby];

const REMOVALS: [RemovalReason; 8] = [
    RemovalReason::User,
    RemovalReason::Dead,
    RemovalReason::Sick,
    RemovalReason::Surplus,
    RemovalReason::Orphan,
    RemovalReason::Outdated,
    RemovalReason::Lifetime,
    RemovalReason::Maintenance,
];

/// Without Impaired, which probes find again: the version before would not read what it does not know.
const KINDS: [ConditionKind; 22] = [
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
    ConditionKind::PromotionFailed,
    ConditionKind::Orphans,
    ConditionKind::AddonsReady,
    ConditionKind::AddonsFailed,
    ConditionKind::HostLost,
    ConditionKind::MaintenanceScheduled,
];

const BACK_OFFS: [BackOffKind; 4] = [
    BackOffKind::Failure,
    BackOffKind::Rejected,
    BackOffKind::Credentials,
    BackOffKind::NoCapacity,
];

fn number<T: PartialEq>(list: &[T], item: &T) -> u32 {
    // Numbers begin at 1, because 0 is an absent field.
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

/// Encodes the record of a node.
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
        storage_size: node.storage_size,
        template: node.template.to_string(),
        labels_hash: Some(node.labels_hash.to_string()),
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
        role: number(&ROLES, &node.role),
        storage: node.storage,
        retain: node.removal.is_some_and(|removal| removal.retain),
        drain: node.removal.map_or(0, |removal| removal.drain),
        agent_address: node.seen.agent_address.to_string(),
        adoption: node.adopted.former.as_ref().map(|former| FormerRow {
            owner: former.owner.to_string(),
            request: former.request.to_string(),
            index: former.index,
        }),
        given_id: node.adopted.given_id.as_ref().map(ToString::to_string),
        reached: node.reached.as_deref().map(encode_reached),
    }
    .encode_to_vec()
    .into()
}

fn encode_reached(reached: &Reached) -> ReachedRow {
    let addresses = reached.addresses.iter().map(|one| AddressRow {
        kind: one.kind,
        value: one.value.to_string(),
        interface: one.interface.to_string(),
    });
    let endpoints = reached.endpoints.iter().map(|(name, address)| EndpointRow {
        name: name.to_string(),
        address: address.to_string(),
    });
    ReachedRow {
        addresses: addresses.collect(),
        endpoints: endpoints.collect(),
    }
}

fn decode_reached(row: ReachedRow, interner: &Interner) -> Reached {
    let addresses = row.addresses.into_iter().map(|one| SeenAddress {
        kind: one.kind,
        value: one.value.into(),
        interface: interner.get(&one.interface),
    });
    let endpoints = row.endpoints.into_iter();
    let endpoints = endpoints.map(|one| (interner.get(&one.name), one.address.into()));
    Reached {
        addresses: addresses.collect(),
        endpoints: endpoints.collect(),
    }
}

/// What a node has in common with the other nodes of its request: most often the one `before` it is of the same.
fn origin(row: &NodeRow, interner: &Interner, before: Option<&Node>) -> Result<Arc<Origin>> {
    let request = uuid(&row.request, "node")?;
    let is_same = |origin: &Origin| {
        (origin.request, origin.sequence) == (request, row.sequence)
            && *origin.spec_hash == *row.spec_hash
            && *origin.group == *row.group
            && *origin.platform == *row.platform
            && *origin.platform_uid == *row.platform_uid
            && *origin.class == *row.class
            && *origin.version == *row.version
            && origin.storage_size == row.storage_size
            && origin.storage == row.storage
    };
    let before = before.map(|node| &node.origin);
    if let Some(before) = before.filter(|origin| is_same(origin)) {
        return Ok(before.clone());
    }
    let like = |text: &str, of: fn(&Origin) -> &Sym| interner.like(text, before.map(|it| of(it)));
    Ok(Arc::new(Origin {
        request,
        sequence: row.sequence,
        group: like(&row.group, |it| &it.group),
        platform: like(&row.platform, |it| &it.platform),
        platform_uid: like(&row.platform_uid, |it| &it.platform_uid),
        class: like(&row.class, |it| &it.class),
        version: like(&row.version, |it| &it.version),
        spec_hash: like(&row.spec_hash, |it| &it.spec_hash),
        storage_size: row.storage_size,
        storage: row.storage,
    }))
}

/// Decodes the record of a node, which has most texts in common with the one `before` it.
///
/// # Errors
/// `Internal` if it is damaged, or of a newer version.
pub fn decode_node(
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
            retain: row.retain,
            drain: row.drain,
        }),
    };
    let role = match row.role {
        0 => Role::Active,
        role => item(&ROLES, role).ok_or_else(|| damaged("node"))?,
    };
    let origin = origin(&row, interner, before)?;
    Ok(Node {
        // A node that is not listed is only given up if its agent is silent, so its address has to survive a restart.
        seen: Seen {
            agent_address: row.agent_address.into(),
            ..Seen::default()
        },
        ..Node::new(Record {
            origin,
            slot,
            index: row.index,
            ordinal: row.ordinal,
            host: interner.get(&row.host),
            template: interner.like(&row.template, before.map(|node| &node.template)),
            labels_hash: interner.like(
                row.labels_hash.as_deref().unwrap_or(CHANGING),
                before.map(|node| &node.labels_hash),
            ),
            attempts: row.attempts,
            create_time: row.create_time,
            state: item(&STATES, row.state).ok_or_else(|| damaged("node"))?,
            state_time: row.state_time,
            reason: interner.like(&row.reason, before.map(|node| &node.reason)),
            message: row.message.into(),
            marked: false,
            stable: row.stable,
            role,
            node_id: row.node_id.map(Into::into),
            removal,
            settled: row.settled,
            maybe_until: row.maybe_until,
            reached: (row.reached).map(|reached| Box::new(decode_reached(reached, interner))),
            adopted: Adopted {
                given_id: row.given_id.map(Into::into),
                former: row.adoption.map(|former| Former {
                    owner: former.owner.into(),
                    request: former.request.into(),
                    index: former.index,
                }),
            }
            .into(),
        })
    })
}

/// Encodes the record of an open request.
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

/// Decodes the record of an open request, and the request as it was sent.
///
/// # Errors
/// `Internal` if it is damaged, or of a newer version.
pub fn decode_request(bytes: &Bytes, interner: &Interner) -> Result<(Request, Bytes)> {
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
        in_flight: RequestInFlight::default(),
    };
    Ok((request, row.body))
}

/// Encodes what a record says of its cluster as a whole.
pub(crate) fn encode_head(state: &State) -> Bytes {
    let backends = |all: &SmallSet<(Sym, Sym)>| -> Vec<Used> {
        let all = all.iter();
        all.map(|(platform, uid)| Used {
            platform: platform.to_string(),
            uid: uid.to_string(),
        })
        .collect()
    };
    let mut head = HeadState {
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
                template: back_off.template.to_string(),
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
            .filter(|(key, _)| KINDS.contains(&key.kind))
            .map(|(key, condition)| ConditionRow {
                group: key.group.to_string(),
                kind: number(&KINDS, &key.kind),
                reason: condition.reason.to_string(),
                message: condition.message.to_string(),
                since: condition.since,
            })
            .collect(),
        used: backends(&state.used),
        abandoned: backends(&state.abandoned),
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
                size: rollout.size,
                surplus: rollout.surplus,
            })
            .collect(),
        storage: state
            .storage
            .iter()
            .map(|(group, policy)| PolicyRow {
                group: group.to_string(),
                replaced: policy.replaced == Retention::Delete,
                scaled: policy.scaled == Retention::Delete,
                deleted: policy.deleted == Retention::Delete,
            })
            .collect(),
        grown: state
            .grown
            .iter()
            .map(|(group, most)| GrownRow {
                group: group.to_string(),
                most: *most,
            })
            .collect(),
        vacated: state
            .vacated
            .iter()
            .map(|(group, ordinals)| VacatedRow {
                group: group.to_string(),
                ordinals: ordinals.iter().copied().collect(),
            })
            .collect(),
        sole: state
            .sole
            .iter()
            .map(|(group, sole)| SoleRow {
                group: group.to_string(),
                slot: sole.slot,
                ordinal: sole.ordinal,
            })
            .collect(),
        adopted: state.adopted,
    };
    fit(&mut head);
    head.encode_to_vec().into()
}

/// Truncates the messages of failures if there are many, so that the essential state fits into every step. If that is
/// not enough, the backoffs that end soonest are dropped, which only means that their retries happen early.
fn fit(head: &mut HeadState) {
    if head.encoded_len() <= MAX_HEAD {
        return;
    }
    let messages = (head.back_offs.iter_mut().map(|row| &mut row.message))
        .chain(head.conditions.iter_mut().map(|row| &mut row.message));
    let mut messages: Vec<&mut String> = messages.collect();
    let share = MAX_HEAD / 2 / messages.len().max(1);
    for message in &mut messages {
        let end = message.floor_char_boundary(share);
        message.truncate(end);
    }
    if head.encoded_len() > MAX_HEAD {
        (head.back_offs).sort_by_key(|row| std::cmp::Reverse(row.next));
    }
    while head.encoded_len() > MAX_HEAD && !head.back_offs.is_empty() {
        let half = head.back_offs.len() / 2;
        head.back_offs.truncate(half);
    }
}

/// Decodes what a record says of its cluster as a whole.
///
/// # Errors
/// `Internal` if it is damaged, or of a newer version.
pub fn decode_head(bytes: &[u8], state: &mut State, interner: &Interner) -> Result<()> {
    let head = HeadState::decode(bytes).map_err(|_| damaged("head"))?;
    state.adopted = head.adopted;
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
                template: interner.get(&row.template),
                message: row.message.into(),
            };
            Ok((key, back_off))
        })
        .collect::<Result<SmallMap<_, _>>>()?;
    state.conditions = head
        .conditions
        .into_iter()
        .filter_map(|row| {
            // One of a newer version is found again by whoever knows it.
            let kind = item(&KINDS, row.kind)?;
            let key = ConditionKey {
                group: interner.get(&row.group),
                kind,
            };
            let condition = Condition {
                reason: interner.get(&row.reason),
                message: row.message.into(),
                since: row.since as Millis,
            };
            Some((key, condition))
        })
        .collect();
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
                size: row.size,
                surplus: row.surplus,
            };
            (interner.get(&row.group), rollout)
        })
        .collect();
    state.storage = head
        .storage
        .into_iter()
        .map(|row| {
            let policy = Policy {
                replaced: Retention::of(!row.replaced),
                scaled: Retention::of(!row.scaled),
                deleted: Retention::of(!row.deleted),
            };
            (interner.get(&row.group), policy)
        })
        .collect();
    state.grown = head
        .grown
        .into_iter()
        .map(|row| (interner.get(&row.group), row.most))
        .collect();
    state.vacated = head
        .vacated
        .into_iter()
        .map(|row| (interner.get(&row.group), row.ordinals.into_iter().collect()))
        .collect();
    state.sole = head
        .sole
        .into_iter()
        .map(|row| {
            let (slot, ordinal) = (row.slot, row.ordinal);
            (interner.get(&row.group), Sole { slot, ordinal })
        })
        .collect();
    let backends = |rows: Vec<Used>| {
        let rows = rows.into_iter();
        rows.map(|used| (interner.get(&used.platform), interner.get(&used.uid)))
            .collect()
    };
    state.used = backends(head.used);
    state.abandoned = backends(head.abandoned);
    Ok(())
}

#[cfg(test)]
mod tests;
