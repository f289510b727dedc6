//! Ownership of clusters: shards, epochs and the lease of a replica.

use std::{
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

use drover_core::{Error, Reason, Result};
use futures::future::try_join_all;
use parking_lot::Mutex;
use prost::Message;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until},
};
use uuid::Uuid;

use super::{Store, VALUE_FORMAT, Versioned, commit, commit::Marker};
use crate::{
    backend::{Backend, CommitError, Expect, Fence, Lane, Lease, LeaseId, Op, Txn},
    keys::{Key, Name},
    value::{Epoch, Owner, Replica, marked, new_txn_id},
};

/// Number of shards that clusters are distributed over. Part of the stored format.
pub const SHARDS: u8 = 64;

/// How long a dead replica keeps its shards.
const TTL: Duration = Duration::from_secs(5);
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// Safety margin: work that starts this long before the lease ends is over, or fenced, when it does.
const MARGIN: Duration = Duration::from_secs(1);
/// If no other process can take the shards, a pause of this process must not lose them.
const EXCLUSIVE_TTL: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

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

/// The lease of this replica.
#[derive(Debug)]
pub(super) struct Holding {
    id: LeaseId,
    deadline: Mutex<Instant>,
}

impl Holding {
    pub(super) fn id(&self) -> LeaseId {
        self.id
    }

    fn holds(&self) -> bool {
        Instant::now() + MARGIN < *self.deadline.lock()
    }
}

/// Proof that this process took a shard. The claim of a later owner invalidates it, with all its copies.
#[derive(Clone, Debug)]
pub struct Owned {
    shard: u8,
    epoch: u64,
    fence: Fence,
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
        if !self.holds() {
            return Err(lost());
        }
        Ok(self.fence.clone())
    }
}

fn lost() -> Error {
    CommitError::Fenced.into()
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

/// Announces this replica. The returned task renews its lease, if that is necessary.
pub(super) async fn join(
    backend: &Arc<dyn Backend>,
    replica: &str,
) -> Result<(Arc<Holding>, Option<JoinHandle<()>>)> {
    let exclusive = backend.info().exclusive;
    let Lease { id, deadline } = backend
        .lease(if exclusive { EXCLUSIVE_TTL } else { TTL })
        .await?;
    let holding = Arc::new(Holding {
        id,
        deadline: Mutex::new(deadline),
    });
    let value = Replica {
        reads: VALUE_FORMAT,
        writes: VALUE_FORMAT,
    };
    let key = Name::Replica(replica.to_owned()).into();
    let mut txn = Txn::default();
    txn.ops.push(Op::PutLeased {
        key,
        value: value.encode_to_vec().into(),
        lease: id,
    });
    // The key is our own, so a lost response can be ignored: at worst the other replicas see us later.
    match backend.commit(txn, Lane::Urgent).await {
        Ok(_) | Err(CommitError::Unknown) => {}
        Err(error) => return Err(error.into()),
    }
    let renewer =
        (!exclusive).then(|| tokio::spawn(renew(Arc::downgrade(backend), Arc::clone(&holding))));
    Ok((holding, renewer))
}

async fn renew(backend: Weak<dyn Backend>, holding: Arc<Holding>) {
    loop {
        sleep_until(Instant::now() + RENEW_EVERY).await;
        let Some(backend) = backend.upgrade() else {
            return;
        };
        match backend.renew(holding.id).await {
            Ok(deadline) => *holding.deadline.lock() = deadline,
            Err(error) if error.reason() == Reason::Fenced => {
                tracing::warn!("this replica lost its lease, and with it all shards");
                return;
            }
            // The deadline stands; the next attempt may succeed before it.
            Err(error) => tracing::debug!(%error, "cannot renew the lease"),
        }
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
        let (owner, epoch): (Key, Key) = (Name::Owner(shard).into(), Name::Epoch(shard).into());
        let last = self.read::<Epoch>(&epoch).await?.unwrap_or(Versioned {
            value: Epoch::default(),
            revision: 0,
        });
        let next = (last.value.epoch + 1).max(now_ms());
        let marker = Marker {
            key: owner.clone(),
            txn: new_txn_id(),
        };
        let claim = Owner {
            replica: self.replica.clone(),
            epoch: next,
        };
        let mut txn = Txn::default()
            .expect(owner.clone(), Expect::Absent)
            .expect(epoch.clone(), Expect::at(last.revision))
            .put(epoch, Epoch { epoch: next }.encode_to_vec());
        let value = marked(&claim, &marker.txn);
        txn.ops.push(Op::PutLeased {
            key: owner.clone(),
            value,
            lease: self.holding.id,
        });
        match commit::commit(&*self.backend, txn, Lane::Urgent, &marker).await {
            Ok(made_at) => Ok(Owned {
                shard,
                epoch: next,
                fence: Fence {
                    key: owner,
                    made_at,
                },
                holding: Arc::clone(&self.holding),
            }),
            Err(CommitError::Conflict(_)) => Err(Error::new(
                Reason::NotLeader,
                format!("shard {shard} is owned by another replica"),
            )),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes all shards.
    pub async fn take_all(&self) -> Result<Shards> {
        Ok(Shards(
            try_join_all((0..SHARDS).map(|shard| self.take_shard(shard))).await?,
        ))
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

pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
