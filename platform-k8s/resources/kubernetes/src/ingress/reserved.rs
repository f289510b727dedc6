//! Hosts that somebody in this process is about to route: between the look whether one is free and the write, nobody else
//! may look.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{Mutex as Lock, OwnedMutexGuard};

use super::discovery::Kind;

type Locks = HashMap<(&'static str, String), Weak<Lock<()>>>;

/// Who is about to route which hosts.
#[derive(Clone, Default)]
pub(super) struct Reservations(Arc<Mutex<Locks>>);

/// Hosts that are reserved for as long as this is kept.
pub(super) type Reserved = Vec<OwnedMutexGuard<()>>;

impl Reservations {
    /// Waits until nobody else has any of these. The rule for every host is nobody's alone.
    pub(super) async fn take(&self, kind: Kind, hosts: &BTreeSet<&str>) -> Reserved {
        let mut reserved = Reserved::new();
        // All take them in the same order, so that no two wait for each other.
        for host in hosts.iter().filter(|host| !host.is_empty()) {
            let lock = self.lock(kind, host);
            reserved.push(lock.lock_owned().await);
        }
        reserved
    }

    fn lock(&self, kind: Kind, host: &str) -> Arc<Lock<()>> {
        let mut locks = self.0.lock();
        locks.retain(|_, lock| lock.strong_count() > 0);
        let place = locks.entry((kind.name(), host.to_owned())).or_default();
        place.upgrade().unwrap_or_else(|| {
            let lock = Arc::new(Lock::new(()));
            *place = Arc::downgrade(&lock);
            lock
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_host_is_one_takers_at_a_time_and_other_hosts_are_free() {
        let all = Reservations::default();
        let both = all
            .take(Kind::Ingress, &["a.example", "b.example"].into())
            .await;
        let b = ["b.example"].into();
        let mut waits = Box::pin(all.take(Kind::Ingress, &b));
        assert!(futures::poll!(&mut waits).is_pending());
        let others = all.take(Kind::Ingress, &["c.example", ""].into()).await;
        all.take(Kind::HttpRoute, &b).await;
        drop(both);
        waits.await;
        drop(others);
        let after = all.take(Kind::Ingress, &["d.example"].into()).await;
        assert_eq!((all.0.lock().len(), after.len()), (1, 1));
    }
}
