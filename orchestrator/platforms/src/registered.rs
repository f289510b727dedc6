//! A registered platform and the task that follows it.

use drover_store::Revision;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

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
}

impl Registered {
    pub(crate) fn new(platform: Platform, revision: Revision) -> Self {
        Self {
            platform,
            stop: CancellationToken::new(),
            retry: Notify::new(),
            revision: Mutex::new(revision),
        }
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
