//! Locks of clusters that are held across awaits.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{Mutex as Lock, OwnedMutexGuard};
use uuid::Uuid;

/// One lock per cluster, for as long as somebody holds it or waits for it.
#[derive(Debug, Default)]
pub(crate) struct Locks(Mutex<HashMap<Uuid, Weak<Lock<()>>>>);

impl Locks {
    /// Waits for the lock of a cluster.
    pub(crate) async fn lock(&self, cluster: Uuid) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock();
            let known = locks.get(&cluster).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                locks.retain(|_, lock| lock.strong_count() > 0);
                let lock = Arc::new(Lock::new(()));
                locks.insert(cluster, Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_holds_the_lock_of_a_cluster_and_other_clusters_have_their_own() {
        let locks = Locks::default();
        let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let held = locks.lock(a).await;
        let mut waiting = Box::pin(locks.lock(a));
        assert!((&mut waiting).now_or_never().is_none());
        drop(locks.lock(b).await);
        drop(held);
        drop(waiting.await);
    }

    #[tokio::test]
    async fn locks_that_nobody_holds_are_forgotten() {
        let locks = Locks::default();
        for n in 0..100 {
            drop(locks.lock(Uuid::from_u128(n)).await);
        }
        assert_eq!(locks.0.lock().len(), 1);
    }
}
