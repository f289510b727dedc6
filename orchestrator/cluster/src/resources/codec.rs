//! The stored records of infrastructure and addons.

use std::collections::BTreeSet;

use bytes::Bytes;
use drover_core::{
    Error, Result,
    resource::{Resource, ResourceKey, ResourceKind, ResourcePhase, ResourceRecord},
};
use drover_planner::State;
use prost::Message;

use super::{ADDON, INFRASTRUCTURE, KINDS};
use crate::Interner;

#[derive(Clone, PartialEq, Message)]
struct RecordRow {
    #[prost(string, tag = "1")]
    platform: String,
    #[prost(string, tag = "2")]
    platform_uid: String,
    #[prost(uint64, tag = "3")]
    sequence: u64,
    #[prost(string, tag = "4")]
    spec_hash: String,
    #[prost(bytes = "bytes", tag = "5")]
    body: Bytes,
    #[prost(bool, tag = "6")]
    releasing: bool,
    #[prost(uint32, tag = "7")]
    phase: u32,
    #[prost(uint64, tag = "8")]
    phase_time: u64,
    #[prost(message, repeated, tag = "9")]
    resources: Vec<ResourceRow>,
    #[prost(bytes = "bytes", tag = "10")]
    outputs: Bytes,
    #[prost(uint64, tag = "11")]
    deadline: u64,
    #[prost(uint64, tag = "12")]
    unsettled: u64,
    #[prost(uint32, tag = "13")]
    failures: u32,
    #[prost(uint64, tag = "14")]
    next: u64,
    #[prost(string, tag = "15")]
    reason: String,
    #[prost(string, tag = "16")]
    message: String,
    #[prost(string, tag = "17")]
    etag: String,
    #[prost(uint64, tag = "18")]
    doubt: u64,
    /// Name of the addon. Empty for infrastructure.
    #[prost(string, tag = "19")]
    addon: String,
    #[prost(string, tag = "20")]
    targets_hash: String,
    #[prost(string, tag = "21")]
    secrets_hash: String,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceRow {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    id: String,
    #[prost(uint32, tag = "4")]
    phase: u32,
    #[prost(string, tag = "5")]
    message: String,
    #[prost(uint64, tag = "6")]
    sequence: u64,
    #[prost(uint64, tag = "7")]
    create_time: u64,
}

/// Phases by their stored number, which starts at 1, because 0 is an absent field.
const PHASES: [ResourcePhase; 6] = [
    ResourcePhase::Pending,
    ResourcePhase::Ready,
    ResourcePhase::Failed,
    ResourcePhase::Releasing,
    ResourcePhase::Gone,
    ResourcePhase::Unknown,
];

fn number(phase: ResourcePhase) -> u32 {
    let at = PHASES.iter().position(|one| *one == phase);
    at.and_then(|at| u32::try_from(at + 1).ok()).unwrap_or(0)
}

fn phase(number: u32) -> Result<ResourcePhase> {
    usize::try_from(number)
        .ok()
        .and_then(|number| PHASES.get(number.checked_sub(1)?).copied())
        .ok_or_else(damaged)
}

fn damaged() -> Error {
    Error::internal(
        "the stored record of infrastructure or of an addon cannot be read: it is damaged, or of a newer version",
    )
}

/// The row key of a record: its kind, and its name within that.
fn row_name(key: &ResourceKey) -> (String, String) {
    let backend = format!("{}/{}", key.platform, key.uid);
    match &key.kind {
        ResourceKind::Infrastructure => (INFRASTRUCTURE.to_owned(), backend),
        ResourceKind::Addon(name) => (ADDON.to_owned(), format!("{name}/{backend}")),
    }
}

/// Encodes a record.
pub(crate) fn encode(key: &ResourceKey, record: &ResourceRecord) -> Bytes {
    let resource = |resource: &Resource| ResourceRow {
        kind: resource.kind.to_string(),
        name: resource.name.to_string(),
        id: resource.id.to_string(),
        phase: number(resource.phase),
        message: resource.message.to_string(),
        sequence: resource.sequence,
        create_time: resource.create_time,
    };
    RecordRow {
        platform: key.platform.to_string(),
        platform_uid: key.uid.to_string(),
        addon: key
            .addon_name()
            .map(ToString::to_string)
            .unwrap_or_default(),
        targets_hash: record.targets_hash.to_string(),
        secrets_hash: record.secrets_hash.to_string(),
        sequence: record.sequence,
        spec_hash: record.spec_hash.to_string(),
        body: Bytes::copy_from_slice(&record.body),
        releasing: record.releasing,
        phase: number(record.phase),
        phase_time: record.phase_time,
        resources: record.resources.iter().map(resource).collect(),
        outputs: Bytes::copy_from_slice(&record.outputs),
        deadline: record.deadline,
        unsettled: record.unsettled,
        failures: record.failures,
        next: record.next,
        reason: record.reason.to_string(),
        message: record.message.to_string(),
        etag: record.etag.to_string(),
        doubt: record.doubt,
    }
    .encode_to_vec()
    .into()
}

/// Decodes a record and its key.
///
/// # Errors
/// `Internal` if it is damaged, or of a newer version.
pub fn decode(bytes: &[u8], interner: &Interner) -> Result<(ResourceKey, ResourceRecord)> {
    let row = RecordRow::decode(bytes).map_err(|_| damaged())?;
    let resource = |row: ResourceRow| -> Result<Resource> {
        Ok(Resource {
            kind: interner.get(&row.kind),
            name: row.name.into(),
            id: row.id.into(),
            phase: phase(row.phase)?,
            message: row.message.into(),
            sequence: row.sequence,
            create_time: row.create_time,
        })
    };
    let key = ResourceKey {
        kind: if row.addon.is_empty() {
            ResourceKind::Infrastructure
        } else {
            ResourceKind::Addon(interner.get(&row.addon))
        },
        platform: interner.get(&row.platform),
        uid: interner.get(&row.platform_uid),
    };
    let record = ResourceRecord {
        sequence: row.sequence,
        spec_hash: interner.get(&row.spec_hash),
        body: (*row.body).into(),
        releasing: row.releasing,
        phase: phase(row.phase)?,
        phase_time: row.phase_time,
        resources: row
            .resources
            .into_iter()
            .map(resource)
            .collect::<Result<_>>()?,
        outputs: (*row.outputs).into(),
        deadline: row.deadline,
        unsettled: row.unsettled,
        failures: row.failures,
        next: row.next,
        reason: interner.get(&row.reason),
        message: row.message.into(),
        etag: interner.get(&row.etag),
        doubt: row.doubt,
        targets_hash: interner.get(&row.targets_hash),
        secrets_hash: interner.get(&row.secrets_hash),
        ..ResourceRecord::default()
    };
    Ok((key, record))
}

/// Loads the records of a cluster from the store into its state.
pub(crate) fn load(
    rows: Vec<drover_store::ResourceRow>,
    state: &mut State,
    interner: &Interner,
) -> Result<()> {
    for row in rows {
        if !KINDS.contains(&&*row.kind) {
            return Err(damaged());
        }
        let (key, record) = decode(&row.value, interner)?;
        state.resources.insert(key, record);
    }
    Ok(())
}

/// Adds the rows to write and to delete: the records that operations touched, as they are in `after`.
pub(crate) fn fill(
    step: &mut drover_store::Step,
    keys: &BTreeSet<ResourceKey>,
    before: &State,
    after: &State,
) {
    for key in keys {
        let (kind, name) = row_name(key);
        if let Some(record) = after.resources.get(key) {
            step.put_resources.push((kind, name, encode(key, record)));
        } else if before.resources.contains_key(key) {
            step.delete_resources.push((kind, name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_durable_part_of_a_record_survives() {
        let interner = Interner::default();
        for at in PHASES {
            let record = ResourceRecord {
                sequence: 3,
                spec_hash: "i1-x".into(),
                body: (*b"body").into(),
                releasing: at == ResourcePhase::Releasing,
                phase: at,
                phase_time: 4,
                resources: vec![Resource {
                    kind: "network".into(),
                    name: "main".into(),
                    id: "n-1".into(),
                    phase: at,
                    message: "why".into(),
                    sequence: 3,
                    create_time: 5,
                }],
                outputs: (*b"outputs").into(),
                deadline: 6,
                unsettled: 7,
                failures: 8,
                next: 9,
                reason: "Rejected".into(),
                message: "no".into(),
                etag: "e".into(),
                doubt: 10,
                targets_hash: "i1-t".into(),
                secrets_hash: "i1-s".into(),
                ..ResourceRecord::default()
            };
            let keys = [
                ResourceKey::infrastructure("p", "u"),
                ResourceKey::addon("front", "p", "u"),
            ];
            assert_ne!(row_name(&keys[0]), row_name(&keys[1]));
            for key in keys {
                let stored = encode(&key, &record);
                assert_eq!(decode(&stored, &interner).unwrap(), (key, record.clone()));
            }
        }
        assert!(decode(b"\xff", &interner).is_err());
    }
}
