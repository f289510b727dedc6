//! How the lead gets from one replica to another. Whoever ends gives it away: it writes the next one into the keys of all
//! shards, under the lease of that one, so that no shard lacks an owner. Without one to give it to it deletes them.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use bytes::Bytes;
use drover_core::{Error, Result};
use futures::future::join_all;
use prost::Message;
use tokio::time::sleep;

use super::{
    Store, commit,
    commit::Marker,
    own::{Owned, Shards, TOGETHER, all_epochs},
    replicas::now_ms,
};
use crate::{
    backend::{CommitError, Expect, Lane, LeaseId, Op, PAGE, Range, Revision, Txn},
    history::{Batch, WatchEnd},
    keys::{self, Key, Name},
    value::{Epoch, Owner, marked, new_txn_id},
};

/// Delay before a lost watch is opened again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Shards that another replica has given to this one.
pub(super) type Given = HashMap<u8, Owned>;

/// How the lead can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vacant {
    /// Nobody has it.
    Free,
    /// The one that had it has given it to this replica: nobody else can take it.
    Given {
        /// Epoch of the first shard.
        epoch: u64,
    },
}

/// Who has the shards, as a replica sees it that waits for the lead.
#[derive(Debug, Default)]
struct Owners {
    others: HashSet<u8>,
    given: Given,
}

impl Owners {
    fn note(&mut self, store: &Store, key: &Key, value: Option<&Bytes>, revision: Revision) {
        let Some(Name::Owner(shard)) = key.parse() else {
            return;
        };
        self.others.remove(&shard);
        self.given.remove(&shard);
        let Some(value) = value else {
            return;
        };
        // Another one's, if it cannot be read.
        let owner = Owner::decode(value.clone()).unwrap_or_default();
        if store.is_bound(&owner) {
            let owned = store.owned(shard, owner.epoch, revision);
            self.given.insert(shard, owned);
        } else {
            self.others.insert(shard);
        }
    }

    fn vacant(&self) -> Option<Vacant> {
        let Some(first) = self.given.get(&0) else {
            return (!self.others.contains(&0)).then_some(Vacant::Free);
        };
        // The rest follows, or its lease ends.
        let epoch = first.epoch();
        self.others.is_empty().then_some(Vacant::Given { epoch })
    }
}

impl Store {
    /// Whether a claim is under the lease of this replica.
    fn is_bound(&self, owner: &Owner) -> bool {
        owner.replica == self.replica.name && owner.lease == self.holding.id().0
    }

    /// Gives the lead to another replica, and stays one. What is in memory is of the past from then on, so
    /// [`Self::in_touch`] is an error. Returns the epoch of the first shard; `None` if that one has ended: the lead is still to
    /// be released. After an error a part of it may be given, and the other is this one's until it resigns.
    pub async fn hand_over(
        &self,
        shards: &Shards,
        name: &str,
        lease: LeaseId,
    ) -> Result<Option<u64>> {
        self.holding.release();
        let parts = shards.all().chunks(TOGETHER);
        // They are written down together, at the price of one.
        let parts = parts.map(|part| self.give(part, name, lease));
        let parts: Vec<Option<u64>> = join_all(parts).await.into_iter().collect::<Result<_>>()?;
        if parts.iter().any(Option::is_some) && parts.iter().any(Option::is_none) {
            return Err(Error::unavailable("a part of the lead was handed over"));
        }
        Ok(parts.first().copied().flatten())
    }

    /// Returns the epoch of the first one. `None` if nothing was written: the next one is gone, or they were not there to be
    /// given.
    async fn give(&self, shards: &[Owned], name: &str, lease: LeaseId) -> Result<Option<u64>> {
        let Some(first) = shards.first() else {
            return Ok(None);
        };
        let now = now_ms();
        let next = |owned: &Owned| (owned.epoch() + 1).max(now);
        let id = new_txn_id();
        let mut txn = Txn {
            // The claim of the first shard, which all other transactions have, may be another one's already.
            fence: Some(first.fence.clone()),
            ..Txn::default()
        };
        for owned in shards {
            let (key, made_at) = (owned.fence.key.clone(), owned.fence.made_at);
            let epoch_key: Key = Name::Epoch(owned.shard()).into();
            let next = next(owned);
            // Both were written by the claim.
            txn = txn
                .expect(key.clone(), Expect::Revision(made_at))
                .expect(epoch_key.clone(), Expect::Revision(made_at))
                .put(epoch_key, Epoch { epoch: next }.encode_to_vec());
            let claim = Owner {
                replica: name.to_owned(),
                epoch: next,
                lease: lease.0,
            };
            txn.ops.push(Op::PutLeased {
                key,
                value: marked(&claim, &id),
                lease,
            });
        }
        let marker = Marker {
            key: first.fence.key.clone(),
            txn: id,
        };
        match commit::commit(&*self.backend, txn, Lane::Urgent, &marker).await {
            Ok(_) => Ok(Some(next(first))),
            Err(CommitError::Fenced | CommitError::Conflict(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until nobody has the lead, or it was given to this replica. What nobody has may be taken by another one in the
    /// meantime.
    pub async fn vacancy(&self) -> Result<Vacant> {
        loop {
            let scan = Range::prefix(&keys::kind(b'o'));
            let scan = self.backend.scan(scan, PAGE).await?;
            let revision = scan.revision();
            let mut owners = Owners::default();
            for entry in scan.collect().await? {
                owners.note(self, &entry.key, Some(&entry.value), entry.revision);
            }
            if let Some(vacant) = self.awaited(revision, &mut owners).await? {
                *self.given.lock() = owners.given;
                return Ok(vacant);
            }
        }
    }

    /// Follows the owners. `None` if they are to be read again.
    async fn awaited(&self, after: Revision, owners: &mut Owners) -> Result<Option<Vacant>> {
        if let Some(vacant) = owners.vacant() {
            return Ok(Some(vacant));
        }
        let mut watch = self.backend.watch(after).await?;
        // One read less for whoever takes it.
        let epochs = self.epochs(all_epochs()).await?;
        *self.epochs.lock() = Some(epochs);
        loop {
            match watch.next().await {
                Ok(batch) => {
                    self.note_epochs(&batch);
                    for change in &batch.changes {
                        owners.note(self, &change.key, change.value.as_ref(), batch.revision);
                    }
                }
                Err(WatchEnd::Compacted) => return Ok(None),
                Err(WatchEnd::Closed) => {
                    sleep(LOOK_AGAIN).await;
                    return Ok(None);
                }
            }
            if let Some(vacant) = owners.vacant() {
                return Ok(Some(vacant));
            }
        }
    }

    /// Follows the epochs that were read.
    fn note_epochs(&self, batch: &Batch) {
        let of_epochs = keys::kind(b'e');
        let mut known = self.epochs.lock();
        let Some(epochs) = known.as_mut() else {
            return;
        };
        for change in &batch.changes {
            if change.key.as_bytes().starts_with(of_epochs.as_bytes())
                && let Some(Name::Epoch(shard)) = change.key.parse()
                && let Some(value) = &change.value
                && let Ok(value) = Epoch::decode(value.clone())
                && epochs
                    .get(&shard)
                    .is_none_or(|known| known.revision < batch.revision)
            {
                let revision = batch.revision;
                epochs.insert(shard, super::Versioned { value, revision });
            }
        }
    }
}
