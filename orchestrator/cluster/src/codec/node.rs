//! The record of a node.

use std::sync::Arc;

use bytes::Bytes;
use drover_core::{
    Node, NodeState, Result, Sym,
    node::{
        Adopted, CHANGING, Former, Origin, Reached, Record, Removal, RemovalReason, Role, Seen,
        SeenAddress,
    },
};
use prost::Message;

use super::{
    Interner, damaged, item, number,
    rows::{AddressRow, EndpointRow, FormerRow, NodeRow, ReachedRow},
    uuid,
};

pub(super) const STATES: [NodeState; 8] = [
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
pub(super) const ROLES: [Role; 3] = [Role::Promoting, Role::Demoting, Role::Standby];

pub(super) const REMOVALS: [RemovalReason; 8] = [
    RemovalReason::User,
    RemovalReason::Dead,
    RemovalReason::Sick,
    RemovalReason::Surplus,
    RemovalReason::Orphan,
    RemovalReason::Outdated,
    RemovalReason::Lifetime,
    RemovalReason::Maintenance,
];

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
