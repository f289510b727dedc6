//! Platforms and tombstones.

use std::time::Duration;

use bytes::Bytes;
use drover_core::{Error, Reason, Result};
use prost::Message;
use uuid::Uuid;

use super::{
    API_WAIT, Owned, Store, Versioned, commit, commit::Marker, decode, events, outcome_unknown,
    replicas::now_ms,
};
use crate::{
    backend::{CommitError, Expect, Lane, Op, PAGE, Range, Revision, Txn},
    keys::{self, Key, Name},
    value::{PlatformRow, Tombstone},
};

/// Minimum age of a tombstone that is removed: a creation that was in flight when the cluster ended may appear this
/// late.
const TOMBSTONE_MIN: Duration = Duration::from_secs(24 * 3600);

impl Store {
    /// All registered platforms, by name.
    pub async fn platforms(&self) -> Result<Vec<Versioned<PlatformRow>>> {
        let entries = self
            .backend
            .scan(Range::prefix(&keys::kind(b'p')), PAGE)
            .await?
            .collect()
            .await?;
        entries.iter().map(decode).collect()
    }

    /// A platform. `None` if it is not registered.
    pub async fn platform(&self, name: &str) -> Result<Option<Versioned<PlatformRow>>> {
        self.read(&Name::Platform(name.into()).into()).await
    }

    /// Registers or changes a platform. `expected` is its present revision: 0 if it must be new, `None` for any.
    /// `REVISION_MISMATCH` otherwise.
    pub async fn put_platform(
        &self,
        platform: PlatformRow,
        expected: Option<Revision>,
    ) -> Result<Revision> {
        self.put_record(
            Name::Platform(platform.name.clone()).into(),
            platform,
            expected,
        )
        .await
    }

    /// A platform, once no change of it of which the outcome is unknown can be made any more. `None` if it is not registered,
    /// which a registration that is still on its way can end.
    pub async fn settled_platform(&self, name: &str) -> Result<Option<Versioned<PlatformRow>>> {
        let Some(mut row) = self
            .read::<PlatformRow>(&Name::Platform(name.into()).into())
            .await?
        else {
            return Ok(None);
        };
        row.revision = self
            .put_platform(row.value.clone(), Some(row.revision))
            .await?;
        Ok(Some(row))
    }

    /// Removes a platform. `expected` is its present revision, `None` for any.
    pub async fn delete_platform(
        &self,
        name: &str,
        expected: Option<Revision>,
    ) -> Result<Revision> {
        self.delete_record(Name::Platform(name.into()), "platform", name, expected)
            .await
    }

    /// All tombstones.
    pub async fn tombstones(&self) -> Result<Vec<(Uuid, Versioned<Tombstone>)>> {
        let entries = self
            .backend
            .scan(Range::prefix(&keys::kind(b't')), PAGE)
            .await?
            .collect()
            .await?;
        let uid = |key: &Key| match key.parse() {
            Some(Name::Tombstone(uid)) => Ok(uid),
            _ => Err(super::damaged(key)),
        };
        entries
            .iter()
            .map(|entry| Ok((uid(&entry.key)?, decode(entry)?)))
            .collect()
    }

    /// Removes the tombstone of a cluster, with its events. Refused within a day of its end.
    pub async fn drop_tombstone(&self, owned: &Owned, uid: Uuid) -> Result<Revision> {
        let fence = owned.fence(uid)?;
        let key: Key = Name::Tombstone(uid).into();
        let tombstone = self.read::<Tombstone>(&key).await?;
        let tombstone =
            tombstone.ok_or_else(|| Error::not_found("deleted cluster", uid.to_string()))?;
        if age(&tombstone.value) < TOMBSTONE_MIN {
            let message =
                "a deleted cluster is remembered for a day: its last creations may still show up";
            return Err(Error::new(Reason::Precondition, message));
        }
        let (from, below) = events::log_of(uid);
        let mut txn = Txn {
            fence: Some(fence),
            ..Txn::default()
        }
        .expect(key.clone(), Expect::Revision(tombstone.revision))
        .delete(key);
        txn.ops.push(Op::DeleteBelow { from, below });
        // The next sweep repeats it if the response was lost.
        Ok(self.backend.commit(txn, Lane::Bulk).await?)
    }

    /// Removes the tombstones in some shards of clusters that ended longer than `keep` ago (at least a day) and for
    /// which `settled` returns true. Returns their number.
    pub async fn sweep_tombstones(
        &self,
        owned: &[Owned],
        keep: Duration,
        settled: impl Fn(Uuid, &Tombstone) -> bool,
    ) -> Result<usize> {
        let keep = keep.max(TOMBSTONE_MIN);
        let mut swept = 0;
        for (uid, tombstone) in self.tombstones().await? {
            let shard = super::shard_of(uid);
            if let Some(owned) = owned.iter().find(|owned| owned.shard() == shard)
                && age(&tombstone.value) >= keep
                && settled(uid, &tombstone.value)
            {
                self.drop_tombstone(owned, uid).await?;
                swept += 1;
            }
        }
        Ok(swept)
    }

    pub(super) async fn put_record(
        &self,
        key: Key,
        value: impl Message,
        expected: Option<Revision>,
    ) -> Result<Revision> {
        commit::put(&*self.backend, key, value, expected, Some(API_WAIT)).await
    }

    pub(super) async fn delete_record(
        &self,
        name: Name,
        kind: &str,
        text: &str,
        expected: Option<Revision>,
    ) -> Result<Revision> {
        let key: Key = name.into();
        let Some(present) = self.backend.get(&key).await? else {
            return Err(Error::not_found(kind, text));
        };
        let expected = expected.unwrap_or(present.revision);
        let txn = Txn {
            max_wait: Some(API_WAIT),
            ..Txn::default()
        }
        .expect(key.clone(), Expect::at(expected))
        .delete(key.clone());
        // The id is gone with the key: if a second attempt finds nothing, the first one succeeded.
        let marker = Marker {
            key: key.clone(),
            txn: Bytes::new(),
        };
        match commit::commit(&*self.backend, txn, Lane::Bulk, &marker).await {
            Ok(revision) => Ok(revision),
            Err(CommitError::Conflict(_)) => match self.backend.get(&key).await? {
                None => Ok(self.revision()),
                Some(_) => Err(commit::mismatch(&*self.backend, &key).await),
            },
            Err(CommitError::Unknown) => Err(outcome_unknown()),
            Err(error) => Err(error.into()),
        }
    }
}

fn age(tombstone: &Tombstone) -> Duration {
    let deleted = u64::try_from(tombstone.delete_time_ms).unwrap_or(0);
    Duration::from_millis(now_ms().saturating_sub(deleted))
}
