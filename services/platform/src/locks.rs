//! Locks by key.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// Locks by key, each given in the order in which it was asked for.
#[derive(Debug, Default)]
pub struct Locks(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Locks {
    /// Waits for the lock of a key.
    pub async fn take(&self, key: &str) -> OwnedMutexGuard<()> {
        self.of(key).lock_owned().await
    }

    fn of(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.0.lock();
        all.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = all.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        all.insert(key.to_owned(), Arc::downgrade(&lock));
        lock
    }
}
