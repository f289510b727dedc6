//! A registered platform and the task that follows it.

use std::collections::HashMap;

use drover_core::Urgency;
use drover_store::Revision;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Platform;

/// A platform and its watch task.
#[derive(Debug)]
pub struct Registered {
    /// What is known of it.
    pub platform: Platform,
    pub(crate) stop: CancellationToken,
    /// Wakes the watch task to reconnect immediately.
    retry: Notify,
    /// Revision of the stored registration.
    revision: Mutex<Revision>,
    /// Clusters of which it has shown something that no plan would act on yet.
    held: Mutex<HashMap<Uuid, Urgency>>,
}

impl Registered {
    pub(crate) fn new(platform: Platform, revision: Revision) -> Self {
        Self {
            platform,
            stop: CancellationToken::new(),
            retry: Notify::new(),
            revision: Mutex::new(revision),
            held: Mutex::default(),
        }
    }

    /// Keeps the news of a cluster until the platform is visible.
    pub fn hold(&self, cluster: Uuid, urgency: Urgency) {
        let mut held = self.held.lock();
        let known = held.entry(cluster).or_insert(urgency);
        *known = (*known).max(urgency);
    }

    /// The clusters that have waited for it.
    #[must_use]
    pub fn take_held(&self) -> HashMap<Uuid, Urgency> {
        std::mem::take(&mut *self.held.lock())
    }

    /// Ends the task that follows it.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Has it reached again at once, if it is waiting for that.
    pub fn retry(&self) {
        self.retry.notify_one();
    }

    pub(crate) async fn retried(&self) {
        self.retry.notified().await;
    }

    /// Revision of the stored registration.
    #[must_use]
    pub fn revision(&self) -> Revision {
        *self.revision.lock()
    }

    pub(crate) fn set_revision(&self, revision: Revision) {
        *self.revision.lock() = revision;
    }
}
