//! Ownership of clusters: shards and epochs.

use std::{collections::HashMap, sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result};
use futures::try_join;
use prost::Message;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    Store, Versioned, commit,
    commit::Marker,
    hand_over::Given,
    replicas::{Holding, now_ms},
};
use crate::{
    backend::{CommitError, Expect, Fence, Lane, Op, PAGE, RETRY_AFTER, Range, Revision, Txn},
    keys::{self, Key, Name},
    value::{Epoch, Owner, marked, new_txn_id},
};

/// Delay before epochs that turn out to be others are read again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Attempts to take shards whose epochs turn out to be others than was known.
const CLAIMS: u32 = 5;

/// Number of shards that clusters are distributed over. Part of the stored format.
pub const SHARDS: u8 = 64;

/// Shards that are taken in one transaction. Each is two of what a transaction may expect and do.
pub(super) const TOGETHER: usize = 32;

/// Requests that a process may make for one cluster per ms of its life without reaching the sequence numbers of the
/// next process. For two centuries all numbers fit into a double, for consumers that read them as such.
const REQUESTS: u64 = 1 << 10;

/// Sequence number of the first request under an epoch.
pub(super) fn first_sequence(epoch: u64) -> u64 {
    epoch.saturating_mul(REQUESTS)
}

/// Shard of a cluster. FNV-1a, because it must be the same in every version.
#[must_use]
pub fn shard_of(uid: Uuid) -> u8 {
    let hash = uid
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    // The high half is mixed better.
    u8::try_from((hash >> 32) % u64::from(SHARDS)).unwrap_or(0)
}

/// Proof that this process took a shard. The claim of a later owner invalidates it, with all its copies.
#[derive(Clone, Debug)]
pub struct Owned {
    shard: u8,
    epoch: u64,
    pub(super) fence: Fence,
    holding: Arc<Holding>,
}

impl Owned {
    /// Number of the shard.
    #[must_use]
    pub fn shard(&self) -> u8 {
        self.shard
    }

    /// Epoch of the claim, higher than that of every claim before, also across restores. Platforms reject lower ones.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Sequence number of the first request under this claim: above those of every claim before, including those that a
    /// copy of the store does not know.
    #[must_use]
    pub fn first_sequence(&self) -> u64 {
        first_sequence(self.epoch)
    }

    /// Whether new work may be started with it. The store itself decides at each write.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.holding.holds()
    }

    /// The fence for a cluster of this shard.
    pub(super) fn fence(&self, uid: Uuid) -> Result<Fence> {
        if shard_of(uid) != self.shard {
            return Err(Error::internal(format!(
                "cluster {uid} is not in shard {}",
                self.shard
            )));
        }
        if self.holding.lost().is_cancelled() {
            return Err(CommitError::Fenced.into());
        }
        if !self.holds() {
            return Err(out_of_touch());
        }
        Ok(self.fence.clone())
    }
}

/// Nobody else owns the shards as far as is known, and they may well be kept: while etcd has no leader, no lease ends.
pub(super) fn out_of_touch() -> Error {
    Error::unavailable(OUT_OF_TOUCH).with_retry_after(RETRY_AFTER)
}

const OUT_OF_TOUCH: &str =
    "the store has not answered for so long that another replica may have taken over";

const LOST: &str = "the lease of this replica has ended, and with it its lead";

/// Whoever has a part of the lead has to give it up: nobody else can lead meanwhile.
fn half_taken(error: Error) -> Error {
    match error.reason() {
        Reason::NotLeader => Error::unavailable("another replica has a part of the lead"),
        _ => error,
    }
}

/// Epochs by shard, with the revision of each.
pub(super) type Epochs = HashMap<u8, Versioned<Epoch>>;

pub(super) fn all_epochs() -> Range {
    Range::prefix(&keys::kind(b'e'))
}

/// What became of a claim.
enum Taken {
    All(Vec<Owned>),
    /// There were later claims than those that it knew of.
    Since,
}

/// Ownership of all shards.
#[derive(Clone, Debug)]
pub struct Shards(Vec<Owned>);

impl Shards {
    /// The proof for the shard of a cluster.
    #[must_use]
    pub fn of(&self, uid: Uuid) -> &Owned {
        &self.0[usize::from(shard_of(uid))]
    }

    /// The proofs of all shards, in order.
    #[must_use]
    pub fn all(&self) -> &[Owned] {
        &self.0
    }
}

impl Store {
    /// Takes a shard that has no owner. `NOT_LEADER` if it has one.
    pub async fn take_shard(&self, shard: u8) -> Result<Owned> {
        if shard >= SHARDS {
            return Err(Error::internal(format!(
                "there are {SHARDS} shards, no {shard}"
            )));
        }
        let epochs = Range::one(&Name::Epoch(shard).into());
        let mut epochs = self.epochs(epochs).await?;
        let taken = self.take_some(&[shard], &mut epochs).await?;
        let owned = taken.into_iter().next();
        owned.ok_or_else(|| Error::internal("a shard was taken, and is not there"))
    }

    /// Takes all shards, and with them the lead: from then on every write of this process is refused once another has
    /// taken them. `NOT_LEADER` if another replica has them. After another error it may have a part of them, until it
    /// resigns.
    pub async fn take_all(&self) -> Result<Shards> {
        let given = std::mem::take(&mut *self.given.lock());
        let known = self.epochs.lock().take();
        let mut epochs = match known {
            Some(epochs) => epochs,
            None if given.len() == usize::from(SHARDS) => Epochs::default(),
            None => self.epochs(all_epochs()).await?,
        };
        let all: Vec<u8> = (0..SHARDS).collect();
        let mut parts = all.chunks(TOGETHER);
        // Who has the first has them all, so that two that begin at the same time do not get a part each.
        let mut shards = match parts.next() {
            Some(first) => self.take_part(first, &given, &mut epochs).await?,
            None => Vec::new(),
        };
        if let Some(first) = shards.first() {
            self.led.wrote(first.fence.made_at);
        }
        let rest = async {
            let mut taken = Vec::new();
            for part in parts {
                let part = self.take_part(part, &given, &mut epochs).await;
                taken.extend(part.map_err(half_taken)?);
            }
            Ok(taken)
        };
        // Another replica may have changed it since this one has opened the store.
        let (rest, meta) = try_join!(rest, super::read_meta(&*self.backend))?;
        shards.extend(rest);
        // Whoever has handed over may have written clusters of the last part after the first was given.
        for owned in &shards {
            self.led.wrote(owned.fence.made_at);
        }
        if let Some(first) = shards.first() {
            self.led.lead(first.fence.clone());
        }
        *self.meta.lock() = meta.ok_or_else(|| super::damaged(&Name::Meta.into()))?;
        Ok(Shards(shards))
    }

    /// Takes these shards, unless they were given to this replica.
    async fn take_part(
        &self,
        shards: &[u8],
        given: &Given,
        epochs: &mut Epochs,
    ) -> Result<Vec<Owned>> {
        let given: Option<Vec<Owned>> = shards.iter().map(|it| given.get(it).cloned()).collect();
        match given {
            Some(given) => Ok(given),
            None => self.take_some(shards, epochs).await,
        }
    }

    /// Epochs by shard, with the revision of each.
    pub(super) async fn epochs(&self, range: Range) -> Result<Epochs> {
        let entries = self.backend.scan(range, PAGE).await?.collect().await?;
        let mut epochs = HashMap::new();
        for entry in entries {
            if let Some(Name::Epoch(shard)) = entry.key.parse() {
                epochs.insert(shard, super::decode(&entry)?);
            }
        }
        Ok(epochs)
    }

    /// Takes these shards in one transaction, all or none. The epochs may be those of earlier claims than the last ones.
    async fn take_some(&self, shards: &[u8], epochs: &mut Epochs) -> Result<Vec<Owned>> {
        for attempt in 0..CLAIMS {
            if attempt > 1 {
                sleep(LOOK_AGAIN).await;
            }
            match self.take_at(shards, epochs).await? {
                Taken::All(owned) => return Ok(owned),
                Taken::Since => *epochs = self.epochs(all_epochs()).await?,
            }
        }
        Err(Error::unavailable(
            "the epochs of the shards are others each time that they are read",
        ))
    }

    async fn take_at(&self, shards: &[u8], epochs: &Epochs) -> Result<Taken> {
        let id = new_txn_id();
        let owner = |shard: u8| -> Key { Name::Owner(shard).into() };
        let mut txn = Txn::default();
        let mut claimed = Vec::with_capacity(shards.len());
        for &shard in shards {
            let last = epochs.get(&shard);
            let (epoch, revision) = last.map_or((0, 0), |last| (last.value.epoch, last.revision));
            let next = (epoch + 1).max(now_ms());
            let key: Key = Name::Epoch(shard).into();
            txn = txn
                .expect(owner(shard), Expect::Absent)
                .expect(key.clone(), Expect::at(revision))
                .put(key, Epoch { epoch: next }.encode_to_vec());
            let claim = Owner {
                replica: self.replica.name.clone(),
                epoch: next,
                lease: self.holding.id().0,
            };
            txn.ops.push(Op::PutLeased {
                key: owner(shard),
                value: marked(&claim, &id),
                lease: self.holding.id(),
            });
            claimed.push((shard, next));
        }
        let Some(&(first, _)) = claimed.first() else {
            return Ok(Taken::All(Vec::new()));
        };
        let marker = Marker {
            key: owner(first),
            txn: id,
        };
        let made_at = match commit::commit(&*self.backend, txn, Lane::Urgent, &marker).await {
            Ok(made_at) => made_at,
            Err(CommitError::Conflict(key)) if matches!(key.parse(), Some(Name::Epoch(_))) => {
                return Ok(Taken::Since);
            }
            Err(CommitError::Conflict(_)) => {
                let message = format!("shard {first} is owned by another replica");
                return Err(Error::new(Reason::NotLeader, message));
            }
            Err(error) => return Err(error.into()),
        };
        let owned = |(shard, epoch)| self.owned(shard, epoch, made_at);
        Ok(Taken::All(claimed.into_iter().map(owned).collect()))
    }

    /// The proof for a shard that this process was written down for at a revision.
    pub(super) fn owned(&self, shard: u8, epoch: u64, made_at: Revision) -> Owned {
        Owned {
            shard,
            epoch,
            fence: Fence {
                key: Name::Owner(shard).into(),
                made_at,
            },
            holding: Arc::clone(&self.holding),
        }
    }

    /// Whether new work may be begun, and what is in memory be shown: this process has renewed its lease in time.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.holding.holds()
    }

    /// `NOT_LEADER` while another replica may have taken over without this one knowing.
    pub fn in_touch(&self) -> Result<()> {
        if self.holds() {
            return Ok(());
        }
        Err(Error::new(Reason::NotLeader, OUT_OF_TOUCH))
    }

    /// Looks in the store whether this process still has what it took. `NOT_LEADER` if it has not: a lease may end before
    /// its holder can know.
    pub async fn confirm(&self, shards: &Shards) -> Result<()> {
        // They have one lease. Nobody else can take those of an exclusive backend.
        let Some(first) = shards.0.first().filter(|_| !self.backend.info().exclusive) else {
            return Ok(());
        };
        let claim = self.backend.get(&first.fence.key).await?;
        if claim.is_some_and(|claim| claim.revision == first.fence.made_at) {
            return Ok(());
        }
        Err(Error::new(Reason::NotLeader, LOST))
    }

    /// Cancelled when the lease of this process has ended, and with it all that it owned.
    #[must_use]
    pub fn lost(&self) -> CancellationToken {
        self.holding.lost().clone()
    }

    /// Gives up the lead, and stays a replica: another one can take it at once. What is in memory is of the past from then
    /// on, so [`Self::in_touch`] is an error.
    pub async fn release_all(&self, shards: &Shards) -> Result<()> {
        self.holding.release();
        let mut txn = Txn::default();
        for owned in shards.all() {
            let fence = &owned.fence;
            txn = txn
                .expect(fence.key.clone(), Expect::Revision(fence.made_at))
                .delete(fence.key.clone());
        }
        match self.backend.commit(txn, Lane::Urgent).await {
            // They have one lease, so that none is ours any more if one is not: what was handed over in part is not released.
            Ok(_) | Err(CommitError::Conflict(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives up a shard, so that another replica can take it immediately. None of its work may be in flight any more.
    pub async fn release_shard(&self, owned: Owned) -> Result<()> {
        let txn = Txn {
            fence: Some(owned.fence.clone()),
            ..Txn::default()
        }
        .delete(owned.fence.key);
        match self.backend.commit(txn, Lane::Urgent).await {
            // It is not ours any more in either case.
            Ok(_) | Err(CommitError::Fenced) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
