//! Commits whose responses may be lost.

use std::time::Duration;

use bytes::Bytes;
use drover_core::{Error, Reason, Result};
use prost::Message;
use tokio::time::sleep;

use super::{Store, outcome_unknown};
use crate::{
    backend::{Backend, CommitError, Expect, Fence, Lane, Revision, Txn},
    keys::{Key, Name},
    value::{Mark, marked, new_txn_id},
};

/// The value in which a transaction leaves its id.
pub(super) struct Marker {
    pub(super) key: Key,
    pub(super) txn: Bytes,
}

/// Times that a transaction of unknown outcome is sent again. With the pauses in between about 6 s, longer than a
/// change of the leader of etcd.
const RESENDS: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Commits a transaction. A lost response is resolved by reading where the transaction left its id; if it is not there,
/// the same transaction is sent again. It must expect a revision of that key, so that it can apply only once.
pub(super) async fn commit(
    backend: &dyn Backend,
    txn: Txn,
    lane: Lane,
    marker: &Marker,
) -> Result<Revision, CommitError> {
    let mut pause = FIRST_PAUSE;
    match backend.commit(txn.clone(), lane).await {
        Err(CommitError::Unknown) => {}
        Err(CommitError::StorageFull) => {
            // Etcd may say so of what it has just written (etcd issue 16659).
            return match committed(backend, marker).await {
                Ok(written) => written.ok_or(CommitError::StorageFull),
                Err(_) => Err(CommitError::Unknown),
            };
        }
        outcome => return outcome,
    }
    for _ in 0..RESENDS {
        sleep(pause).await;
        pause = (pause * 3).min(LONGEST_PAUSE);
        if let Ok(Some(revision)) = committed(backend, marker).await {
            return Ok(revision);
        }
        match backend.commit(txn.clone(), lane).await {
            Ok(revision) => return Ok(revision),
            // The first attempt may be the cause.
            Err(refusal @ (CommitError::Conflict(_) | CommitError::Fenced)) => {
                match committed(backend, marker).await {
                    Ok(Some(revision)) => return Ok(revision),
                    Ok(None) if refusal != CommitError::Fenced => return Err(refusal),
                    // Whoever leads now may have read what the first attempt wrote, and written over it.
                    Ok(None) => return Err(CommitError::Unknown),
                    Err(_) => {}
                }
            }
            // Says nothing about the first attempt.
            Err(_) => {}
        }
    }
    Err(CommitError::Unknown)
}

async fn committed(backend: &dyn Backend, marker: &Marker) -> Result<Option<Revision>> {
    let entry = backend.get(&marker.key).await?;
    Ok(entry.and_then(|entry| {
        let mark = Mark::decode(entry.value).ok()?;
        (mark.last_txn == marker.txn).then_some(entry.revision)
    }))
}

/// Writes one marked value. `expected` is its present revision: 0 if it must not exist, `None` for any.
pub(super) async fn put(
    backend: &dyn Backend,
    key: Key,
    value: impl Message,
    expected: Option<Revision>,
    max_wait: Option<Duration>,
) -> Result<Revision> {
    let marker = Marker {
        key: key.clone(),
        txn: new_txn_id(),
    };
    let mut txn = Txn {
        max_wait,
        ..Txn::default()
    }
    .put(key.clone(), marked(&value, &marker.txn));
    if let Some(expected) = expected {
        txn = txn.expect(key, Expect::at(expected));
    }
    match commit(backend, txn, Lane::Bulk, &marker).await {
        Ok(revision) => Ok(revision),
        Err(CommitError::Conflict(key)) => Err(mismatch(backend, &key).await),
        Err(error) => Err(error.into()),
    }
}

/// Writes one unmarked value over one of this revision. If the outcome is not known, the next attempt finds out.
pub(super) async fn put_plain(
    backend: &dyn Backend,
    key: Key,
    value: Bytes,
    expected: Revision,
) -> Result<()> {
    let txn = Txn::default()
        .put(key.clone(), value)
        .expect(key, Expect::at(expected));
    backend.commit(txn, Lane::Bulk).await?;
    Ok(())
}

/// The error of a write that expected another revision, with the present one.
pub(super) async fn mismatch(backend: &dyn Backend, key: &Key) -> Error {
    match backend.get(key).await {
        Ok(entry) => {
            let revision = entry.map_or(0, |entry| entry.revision);
            let message = match (key.parse(), revision) {
                (Some(Name::Desired(uid)), 0) => {
                    return Error::not_found("cluster", uid.to_string());
                }
                (_, 0) => "it does not exist any more; read again".to_owned(),
                _ => format!("it was changed since it was read; its revision is {revision} now"),
            };
            Error::new(Reason::RevisionMismatch, message).with_metadata("revision", revision)
        }
        Err(error) => error,
    }
}

impl Store {
    pub(super) async fn commit_owned(
        &self,
        fence: Fence,
        mut txn: Txn,
        lane: Lane,
        marker: &Marker,
    ) -> Result<Revision> {
        txn.fence = Some(fence);
        commit(&*self.backend, txn, lane, marker)
            .await
            .map_err(|error| match error {
                CommitError::Conflict(key) => {
                    let what = match key.parse() {
                        Some(Name::Desired(_)) => "desired",
                        Some(Name::Head(_)) => "head",
                        _ => "other",
                    };
                    Error::new(
                        Reason::Conflict,
                        format!("{key} was changed since the plan was made; plan again"),
                    )
                    .with_metadata("changed", what)
                }
                CommitError::Unknown => outcome_unknown(),
                error => error.into(),
            })
    }
}
