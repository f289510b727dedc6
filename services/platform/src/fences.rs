//! Fencing: the highest known epoch of each (store, shard), and the calls in flight for lower epochs.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::Fence;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Maximum time to wait for older calls to end, as promised in the protos.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Maximum number of (store, shard) pairs. With 64 shards per store this allows a thousand stores; more is an attack on
/// memory. Pairs are never evicted, because that would forget their epoch.
const MAX_SHARDS: usize = 65_536;

/// The epochs of all shards.
#[derive(Debug)]
pub(crate) struct Fences {
    shards: Mutex<HashMap<(String, u32), Shard>>,
    ended: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Shard {
    epoch: u64,
    /// Number of calls in flight by epoch.
    under_way: BTreeMap<u64, usize>,
}

/// A mutating call in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay {
    fences: Arc<Fences>,
    key: (String, u32),
    epoch: u64,
}

impl Fences {
    /// Starts without any known epoch.
    #[must_use]
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            shards: Mutex::default(),
            ended: watch::Sender::new(()),
        })
    }

    /// Begins a mutating call.
    ///
    /// # Errors
    ///
    /// `Fenced` if a higher epoch is known.
    pub(crate) fn begin(self: &Arc<Self>, fence: &Fence) -> Result<UnderWay> {
        let key = (fence.store_id.clone(), fence.shard);
        let mut shards = self.shards.lock();
        let shard = raise(&mut shards, &key, fence.epoch)?;
        *shard.under_way.entry(fence.epoch).or_default() += 1;
        Ok(UnderWay {
            fences: Arc::clone(self),
            key,
            epoch: fence.epoch,
        })
    }

    /// Checks a read-only call.
    ///
    /// # Errors
    ///
    /// `Fenced` if a higher epoch is known.
    pub(crate) fn check(&self, fence: &Fence) -> Result<()> {
        let known = self
            .shards
            .lock()
            .get(&(fence.store_id.clone(), fence.shard))
            .map_or(0, |shard| shard.epoch);
        if fence.epoch < known {
            Err(fenced(known))
        } else {
            Ok(())
        }
    }

    /// Raises the epoch and waits until all calls with a lower epoch have ended.
    ///
    /// # Errors
    ///
    /// `Fenced` if a higher epoch is known; `DeadlineExceeded` if a call does not end within 10 s.
    pub(crate) async fn raise(&self, fence: &Fence) -> Result<()> {
        let key = (fence.store_id.clone(), fence.shard);
        let mut ended = self.ended.subscribe();
        raise(&mut self.shards.lock(), &key, fence.epoch)?;
        let wait = async {
            while self.older(&key, fence.epoch) {
                // Cannot fail, because the sender lives in `self`.
                let _ = ended.changed().await;
            }
        };
        tokio::time::timeout(MAX_WAIT, wait).await.map_err(|_| {
            Error::new(
                Reason::DeadlineExceeded,
                "an older call of this shard has not ended within 10 s; ask again",
            )
        })
    }

    fn older(&self, key: &(String, u32), epoch: u64) -> bool {
        let shards = self.shards.lock();
        shards
            .get(key)
            .is_some_and(|shard| shard.under_way.range(..epoch).next().is_some())
    }
}

fn raise<'a>(
    shards: &'a mut HashMap<(String, u32), Shard>,
    key: &(String, u32),
    epoch: u64,
) -> Result<&'a mut Shard> {
    if shards.len() >= MAX_SHARDS && !shards.contains_key(key) {
        return Err(Error::new(
            Reason::Overloaded,
            "too many stores and shards use this platform",
        ));
    }
    let shard = shards.entry(key.clone()).or_default();
    if epoch < shard.epoch {
        return Err(fenced(shard.epoch));
    }
    shard.epoch = epoch;
    Ok(shard)
}

fn fenced(known: u64) -> Error {
    Error::new(
        Reason::Fenced,
        format!("the shard has another owner since: its epoch is {known}"),
    )
    .with_metadata("epoch", known)
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(shard) = self.fences.shards.lock().get_mut(&self.key)
            && let Some(count) = shard.under_way.get_mut(&self.epoch)
        {
            *count -= 1;
            if *count == 0 {
                shard.under_way.remove(&self.epoch);
            }
        }
        self.fences.ended.send_replace(());
    }
}
