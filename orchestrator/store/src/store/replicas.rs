//! The replicas of a store: the lease of each, and what they tell the others.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use drover_core::{Error, Reason, Result};
use parking_lot::Mutex;
use prost::Message;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Store, VALUE_FORMAT, Versioned, feed::Feed};
use crate::{
    backend::{Backend, CommitError, Expect, Lane, Lease, LeaseId, Op, PAGE, Range, Revision, Txn},
    keys::{self, Key, Name},
    value::{Owner, Replica, ReplicaReport},
};

/// This process among the replicas of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Me {
    /// Name, which no other replica has.
    pub name: String,
    /// URL at which clients reach it. Empty if not known.
    pub address: String,
    /// Its version.
    pub version: String,
    /// Public key with which it vouches for callers. Empty if it does not.
    pub key: Bytes,
}

impl Me {
    /// A process that is alone, or has no name that matters.
    pub(super) fn nameless() -> Self {
        Self::named(Uuid::new_v4().to_string())
    }

    /// A process of which nothing but its name is known.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            address: String::new(),
            version: String::new(),
            key: Bytes::new(),
        }
    }
}

/// A replica that lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaRow {
    /// Its name.
    pub name: String,
    /// URL at which clients reach it. Empty if it has told none.
    pub address: String,
    /// Its version.
    pub version: String,
    /// Public key with which it vouches for callers. Empty if it does not.
    pub key: Bytes,
    /// Since when it runs, in ms since 1970.
    pub since_ms: u64,
    /// Whether it has the lead.
    pub leads: bool,
    /// The epoch of the lead.
    pub epoch: u64,
    /// Whether it is this process.
    pub is_this: bool,
    /// Its lease. `None` if it has told none.
    pub lease: Option<LeaseId>,
    /// Revision of what it has told last.
    pub revision: Revision,
    /// What it has reported last. `None` if nothing yet.
    pub report: Option<ReplicaReport>,
}

/// How long a replica waits for another of its name to end, which one that was killed does with its lease.
const SAME_NAME: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long a dead replica keeps its shards: the shortest lease that etcd grants with its default election timeout.
const TTL: Duration = Duration::from_secs(2);
const RENEW_EVERY: Duration = Duration::from_millis(400);
/// Safety margin: work that starts this long before the lease ends is over, or fenced, when it does.
const MARGIN: Duration = Duration::from_millis(500);
/// How long a replica that lives may take to say so.
const ANSWERS: Duration = Duration::from_millis(300);
/// Looks for the answer in that time, all of which have to be in vain.
const LOOKS: u32 = 8;
/// If no other process can take the shards, a pause of this process must not lose them.
const EXCLUSIVE_TTL: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The lease of this replica.
#[derive(Debug)]
pub(super) struct Holding {
    id: LeaseId,
    deadline: Mutex<Instant>,
    /// What was owned under it was given up, while the replica lives on.
    released: AtomicBool,
    lost: CancellationToken,
}

impl Holding {
    pub(super) fn id(&self) -> LeaseId {
        self.id
    }

    pub(super) fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// What was owned under it is given up from now on.
    pub(super) fn release(&self) {
        self.released.store(true, Ordering::Release);
    }

    pub(super) fn holds(&self) -> bool {
        let in_time = || Instant::now() + MARGIN < *self.deadline.lock();
        !self.lost.is_cancelled() && !self.released.load(Ordering::Acquire) && in_time()
    }
}

/// Announces this replica. The returned task renews its lease, if that is necessary.
pub(super) async fn join(
    backend: &Arc<dyn Backend>,
    replica: &Me,
) -> Result<(Arc<Holding>, Option<JoinHandle<()>>)> {
    let exclusive = backend.info().exclusive;
    let Lease { id, deadline } = backend
        .lease(if exclusive { EXCLUSIVE_TTL } else { TTL })
        .await?;
    let holding = Arc::new(Holding {
        id,
        deadline: Mutex::new(deadline),
        released: AtomicBool::new(false),
        lost: CancellationToken::new(),
    });
    let value = Replica {
        reads: VALUE_FORMAT,
        writes: VALUE_FORMAT,
        address: replica.address.clone(),
        version: replica.version.clone(),
        incarnation: Bytes::copy_from_slice(Uuid::new_v4().as_bytes()),
        since_ms: now_ms(),
        lease: id.0,
        key: replica.key.clone(),
        ..Replica::default()
    };
    let renewer =
        (!exclusive).then(|| tokio::spawn(renew(Arc::downgrade(backend), Arc::clone(&holding))));
    // With a lease that lives on meanwhile: one of the same name may take longer to end than a lease lasts.
    if let Err(error) = announce(&**backend, &replica.name, &value, id).await {
        if let Some(renewer) = renewer {
            renewer.abort();
        }
        return Err(error);
    }
    Ok((holding, renewer))
}

/// Writes the key of a replica. `ALREADY_EXISTS` while another process has its name.
async fn announce(
    backend: &dyn Backend,
    name: &str,
    value: &Replica,
    lease: LeaseId,
) -> Result<()> {
    let key: Key = Name::Replica(name.to_owned()).into();
    let mut txn = Txn::default().expect(key.clone(), Expect::Absent);
    txn.ops.push(Op::PutLeased {
        key: key.clone(),
        value: value.encode_to_vec().into(),
        lease,
    });
    let end = Instant::now() + SAME_NAME;
    loop {
        match backend.commit(txn.clone(), Lane::Urgent).await {
            Ok(_) => return Ok(()),
            Err(CommitError::Unknown) => {}
            Err(CommitError::Conflict(_)) if is_stored(backend, &key, value).await? => {
                return Ok(());
            }
            Err(CommitError::Conflict(_)) if Instant::now() >= end => {
                return Err(Error::new(
                    Reason::AlreadyExists,
                    format!(
                        "another process is the replica {name:?}; each needs a name of its own"
                    ),
                ));
            }
            // One that was killed a moment ago, most likely.
            Err(CommitError::Conflict(_)) => {}
            Err(error) => return Err(error.into()),
        }
        sleep(LOOK_AGAIN).await;
    }
}

/// Says that this process lives, whenever it is asked.
pub(super) async fn answer_doubts(backend: Weak<dyn Backend>, feed: Arc<Feed>) {
    loop {
        let key = feed.doubted().await;
        let Some(backend) = backend.upgrade() else {
            return;
        };
        let txn = Txn::default().delete(key);
        if let Err(error) = backend.commit(txn, Lane::Urgent).await {
            tracing::debug!(%error, "cannot say that this process lives");
        }
    }
}

async fn is_stored(backend: &dyn Backend, key: &Key, value: &Replica) -> Result<bool> {
    let stored = backend.get(key).await?;
    Ok(stored.is_some_and(|entry| entry.value == value.encode_to_vec()))
}

async fn renew(backend: Weak<dyn Backend>, holding: Arc<Holding>) {
    loop {
        sleep_until(Instant::now() + RENEW_EVERY).await;
        let Some(backend) = backend.upgrade() else {
            return;
        };
        // It was given up.
        if holding.lost.is_cancelled() {
            return;
        }
        match backend.renew(holding.id).await {
            Ok(deadline) => *holding.deadline.lock() = deadline,
            Err(_) if holding.lost.is_cancelled() => return,
            Err(error) if error.reason() == Reason::Fenced => {
                tracing::warn!("this replica lost its lease, and with it all shards");
                holding.lost.cancel();
                return;
            }
            // The deadline stands; the next attempt may succeed before it.
            Err(error) => tracing::debug!(%error, "cannot renew the lease"),
        }
    }
}

impl Store {
    /// The replica that leads, if there is one, with its address, if it has told one.
    pub async fn leader(&self) -> Result<Option<ReplicaRow>> {
        let replicas = self.replicas().await?;
        Ok(replicas.into_iter().find(|replica| replica.leads))
    }

    /// Waits until another replica may have the lead. Of several that wait one is told.
    pub async fn lead_changed(&self) {
        self.feed.lead_changed().await;
    }

    /// All replicas that live, by name.
    pub async fn replicas(&self) -> Result<Vec<ReplicaRow>> {
        let owner = self.read::<Owner>(&Name::Owner(0).into()).await?;
        let range = Range::prefix(&keys::kind(b'a'));
        let entries = self.backend.scan(range, PAGE).await?.collect().await?;
        let mut found = Vec::new();
        for entry in entries {
            let Some(Name::Replica(name)) = entry.key.parse() else {
                continue;
            };
            let replica: Versioned<Replica> = super::decode(&entry)?;
            found.push(ReplicaRow {
                leads: owner
                    .as_ref()
                    .is_some_and(|owner| owner.value.replica == name),
                epoch: owner.as_ref().map_or(0, |owner| owner.value.epoch),
                is_this: name == self.replica.name,
                name,
                address: replica.value.address,
                version: replica.value.version,
                key: replica.value.key,
                since_ms: replica.value.since_ms,
                lease: Some(replica.value.lease)
                    .filter(|&lease| lease != 0)
                    .map(LeaseId),
                revision: replica.revision,
                report: replica.value.report,
            });
        }
        Ok(found)
    }

    /// Tells the other replicas. `FENCED` if this one is none of them any more.
    pub async fn report(&self, report: ReplicaReport) -> Result<()> {
        let key: Key = Name::Replica(self.replica.name.clone()).into();
        let row = self.read::<Replica>(&key).await?;
        let Some(row) = row.filter(|row| row.value.lease == self.holding.id().0) else {
            return Err(CommitError::Fenced.into());
        };
        let value = Replica {
            report: Some(report),
            ..row.value
        };
        let mut txn = Txn::default().expect(key.clone(), Expect::Revision(row.revision));
        txn.ops.push(Op::PutLeased {
            key,
            value: value.encode_to_vec().into(),
            lease: self.holding.id(),
        });
        self.backend.commit(txn, Lane::Bulk).await?;
        Ok(())
    }

    /// Ends the lease of a replica whose process seems to have ended, so that nobody has to wait until it runs out. It is
    /// asked before, and `false` if it lives, or somebody else has ended its lease.
    pub async fn bury(&self, name: &str, lease: LeaseId) -> Result<bool> {
        if self.answers(name).await? {
            return Ok(false);
        }
        self.backend.revoke(lease).await?;
        self.answered(name).await?;
        Ok(true)
    }

    /// Asks a replica whether its process lives. `false` if it says nothing for a while in which the store was in time.
    pub async fn lives(&self, name: &str) -> Result<bool> {
        let lives = self.answers(name).await?;
        if !lives {
            self.answered(name).await?;
        }
        Ok(lives)
    }

    async fn answers(&self, name: &str) -> Result<bool> {
        let key: Key = Name::Doubt(name.to_owned()).into();
        let mut txn = Txn::default();
        txn.ops.push(Op::PutLeased {
            key: key.clone(),
            value: Bytes::new(),
            lease: self.holding.id(),
        });
        self.backend.commit(txn, Lane::Urgent).await?;
        let mut silent = 0;
        while silent < LOOKS {
            sleep(ANSWERS / LOOKS).await;
            let began = Instant::now();
            if self.backend.get(&key).await?.is_none() {
                return Ok(true);
            }
            // A store that is slow keeps an answer back as well.
            silent = if began.elapsed() < ANSWERS {
                silent + 1
            } else {
                0
            };
        }
        Ok(false)
    }

    /// Nobody is asked any more.
    async fn answered(&self, name: &str) -> Result<()> {
        let txn = Txn::default().delete(Name::Doubt(name.to_owned()).into());
        self.backend.commit(txn, Lane::Urgent).await?;
        Ok(())
    }

    /// Takes back that the lead can be handed to this replica.
    pub async fn declines(&self) -> Result<()> {
        let this = self.replicas().await?.into_iter().find(|it| it.is_this);
        match this.and_then(|this| this.report) {
            Some(report) if report.takes == Some(true) => {
                let report = ReplicaReport {
                    takes: Some(false),
                    ..report
                };
                self.report(report).await
            }
            Some(_) | None => Ok(()),
        }
    }
}

pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
