//! What a record says of its cluster as a whole.

use bytes::Bytes;
use drover_core::{
    Millis, Result, Sym,
    storage::{Policy, Retention},
};
use drover_planner::{
    BackOff, BackOffKey, BackOffKind, Condition, ConditionKey, ConditionKind, Rollout, SmallMap,
    SmallSet, Sole, State, Subject,
};
use prost::Message;

use super::{
    Interner, damaged, item, number,
    rows::{
        BackOffRow, ConditionRow, GrownRow, HeadState, PolicyRow, RolloutRow, SoleRow, Used,
        VacatedRow,
    },
};

/// Maximum size of a head in bytes: it is written with every step, together with requests and nodes.
pub(super) const MAX_HEAD: usize = 128 * 1024;

/// Without Impaired, which probes find again: the version before would not read what it does not know.
pub(super) const KINDS: [ConditionKind; 22] = [
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
