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
    followers: usize,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            ring: Mutex::new(Ring {
                first: 1,
                uids: VecDeque::new(),
                followers: 0,
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
            // Before the new one is added, because a full ring would double its memory for it.
            if ring.uids.len() == REMEMBERED {
                ring.uids.pop_front();
                ring.first += 1;
            }
            ring.uids.push_back(uid);
            ring.first + ring.uids.len() as u64 - 1
        };
        self.newest.send_replace(newest);
    }

    /// Follows the changes from now on.
    pub(crate) fn follow(self: &Arc<Self>) -> Follower {
        let changed = self.newest.subscribe();
        let mut ring = self.ring.lock();
        ring.followers += 1;
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

impl Drop for Follower {
    fn drop(&mut self) {
        let mut ring = self.changes.ring.lock();
        ring.followers -= 1;
        if ring.followers == 0 {
            // Nobody else can read them: a follower begins after the newest change.
            ring.first += ring.uids.len() as u64;
            ring.uids = VecDeque::new();
        }
    }
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

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn id(n: usize) -> Uuid {
        Uuid::from_u128(n as u128)
    }

    fn next(follower: &mut Follower) -> Option<Vec<Uuid>> {
        follower.next().now_or_never().unwrap()
    }

    #[test]
    fn a_follower_reads_what_changes_after_it_began_whether_others_have_ended_or_not() {
        let changes = Arc::new(Changes::default());
        changes.cluster(id(1));
        let mut first = changes.follow();
        changes.cluster(id(2));
        let mut second = changes.follow();
        changes.cluster(id(3));
        assert_eq!(next(&mut first), Some(vec![id(2), id(3)]));
        drop(first);
        changes.cluster(id(4));
        assert_eq!(next(&mut second), Some(vec![id(3), id(4)]));
        changes.cluster(id(5));
        drop(second);
        assert_eq!(changes.ring.lock().uids.capacity(), 0);
        changes.cluster(id(6));
        let mut third = changes.follow();
        assert!(third.next().now_or_never().is_none());
        changes.cluster(id(7));
        assert_eq!(next(&mut third), Some(vec![id(7)]));
    }

    #[test]
    fn the_ring_remembers_so_many_changes_and_takes_no_more_memory() {
        let changes = Arc::new(Changes::default());
        let (mut behind, mut just) = (changes.follow(), changes.follow());
        changes.cluster(id(0));
        assert_eq!(next(&mut just), Some(vec![id(0)]));
        for n in 1..=REMEMBERED {
            changes.cluster(id(n));
        }
        assert_eq!(next(&mut just).unwrap().len(), REMEMBERED);
        assert_eq!(next(&mut behind), None);
        assert!(changes.ring.lock().uids.capacity() <= REMEMBERED);
    }
}
