//! Change notification for watches: a ring of cluster uids without content, so that a slow reader costs nothing.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

/// Number of changes that are remembered. A watch that falls further behind is ended and must start over.
const REMEMBERED: usize = 65_536;

#[derive(Debug)]
pub(crate) struct Changes {
    ring: Mutex<Ring>,
    newest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Ring {
    first: u64,
    uids: VecDeque<Uuid>,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            ring: Mutex::new(Ring {
                first: 1,
                uids: VecDeque::new(),
            }),
            newest: watch::Sender::new(0),
        }
    }
}

impl Changes {
    /// Notes a change of a cluster or of its nodes.
    pub(crate) fn cluster(&self, uid: Uuid) {
        if self.newest.receiver_count() == 0 {
            return;
        }
        let newest = {
            let mut ring = self.ring.lock();
            ring.uids.push_back(uid);
            if ring.uids.len() > REMEMBERED {
                ring.uids.pop_front();
                ring.first += 1;
            }
            ring.first + ring.uids.len() as u64 - 1
        };
        self.newest.send_replace(newest);
    }

    /// Follows the changes from now on.
    pub(crate) fn follow(self: &Arc<Self>) -> Follower {
        let changed = self.newest.subscribe();
        let ring = self.ring.lock();
        Follower {
            changes: self.clone(),
            next: ring.first + ring.uids.len() as u64,
            changed,
        }
    }
}

/// The position of a reader in the ring.
#[derive(Debug)]
pub(crate) struct Follower {
    changes: Arc<Changes>,
    next: u64,
    changed: watch::Receiver<u64>,
}

impl Follower {
    /// Waits for changes and returns the clusters that changed since the last call, without duplicates. `None` if more
    /// changed than the ring remembers.
    pub(crate) async fn next(&mut self) -> Option<Vec<Uuid>> {
        loop {
            {
                let ring = self.changes.ring.lock();
                if self.next < ring.first {
                    return None;
                }
                let skip = usize::try_from(self.next - ring.first).unwrap_or(usize::MAX);
                if skip < ring.uids.len() {
                    let mut uids: Vec<Uuid> = ring.uids.iter().skip(skip).copied().collect();
                    self.next = ring.first + ring.uids.len() as u64;
                    uids.sort_unstable();
                    uids.dedup();
                    return Some(uids);
                }
            }
            // The sender lives as long as the ring does.
            self.changed.changed().await.ok()?;
        }
    }
}
