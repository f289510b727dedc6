//! Deterministic machine names and request ids, for idempotent creation.

use drover_core::{Error, Result};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::cloud::Launch;
use drover_platform::identity::{Identity, hex};

/// Maximum length of a machine name.
const MAX: usize = 63;

/// The name of a slot's machine: the sanitized node id and 8 characters of a hash of the slot, so that names do not
/// collide between clusters and the machine can be read by name. Nothing is parsed from it.
pub(super) fn of_slot(identity: &Identity) -> String {
    let mut hash = Sha256::new();
    for part in [&identity.owner, &identity.request_id, &identity.id] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.update(identity.index.to_be_bytes());
    let suffix = hex(&hash.finalize()[..4]);
    let mut name: String = identity
        .id
        .chars()
        .map(|char| match char.to_ascii_lowercase() {
            plain @ ('a'..='z' | '0'..='9') => plain,
            _ => '-',
        })
        .collect();
    if !name.starts_with(|char: char| char.is_ascii_lowercase()) {
        name.insert_str(0, "n-");
    }
    name.truncate(MAX - 1 - suffix.len());
    format!("{}-{suffix}", name.trim_end_matches('-'))
}

/// The `requestId` of a launch in a zone. Compute Engine answers a repeated id with the same operation.
///
/// # Errors
/// `Internal` for a malformed token.
pub(super) fn request_id(launch: &Launch, zone: &str) -> Result<String> {
    if launch.token.is_empty() {
        return Err(Error::internal("a launch without an idempotency token"));
    }
    let mut hash = Sha256::new();
    hash.update(launch.token.as_bytes());
    hash.update([0]);
    hash.update(zone.as_bytes());
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(hash.finalize()) {
        *to = from;
    }
    Ok(uuid::Builder::from_random_bytes(bytes)
        .into_uuid()
        .to_string())
}

/// A request id for a call that is not retried.
pub(super) fn fresh_request_id() -> String {
    Uuid::new_v4().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(id: &str) -> String {
        of_slot(&Identity {
            id: id.to_owned(),
            request_id: "r".to_owned(),
            ..Identity::default()
        })
    }

    #[test]
    fn every_id_becomes_a_valid_name_of_its_own() {
        let long = "x".repeat(80);
        let ids = ["db-1-x7k2p", "DB_1.x", "9lives", "-", "", "ä", "db-", &long];
        let mut names: Vec<String> = ids.iter().map(|id| name(id)).collect();
        for name in &names {
            let valid =
                |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-';
            assert!(name.len() <= MAX && name.chars().all(valid), "{name}");
            assert!(
                name.starts_with(|char: char| char.is_ascii_lowercase()),
                "{name}"
            );
            assert!(!name.ends_with('-'), "{name}");
        }
        assert!(names[0].starts_with("db-1-x7k2p-"));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), ids.len());
    }
}
