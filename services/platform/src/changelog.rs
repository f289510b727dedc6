//! Change log that keeps only the latest entry of each node. A watcher is just a position in it, without a queue of its
//! own: it sees every change, or a later one of the same node, and gets an error if it falls behind the retained
//! entries.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::Arc,
};

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::RemovalEvidence;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::feed::Listener;

/// Maximum number of removals retained for watchers. At 1,000 removals per second a client may stall for a minute.
pub(crate) const MAX_REMOVALS: usize = 65_536;

/// Identifies a node. Ordered by cluster, so that the nodes of a cluster are adjacent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    /// Cluster id. Empty if none.
    pub(crate) cluster_id: Box<str>,
    /// Node id, unique within the cluster.
    pub(crate) node_id: Box<str>,
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Entry {
    /// The node is new or has changed.
    Changed(Arc<Key>),
    /// The node is gone.
    Removed(Arc<Key>, RemovalEvidence),
}

/// The existing nodes, and the log of their changes.
#[derive(Debug)]
pub(crate) struct Changelog {
    state: Mutex<State>,
    last: watch::Sender<u64>,
    max_removals: usize,
}

#[derive(Debug, Default)]
struct State {
    /// All existing nodes, each with the position of its latest change.
    nodes: BTreeMap<Arc<Key>, u64>,
    entries: BTreeMap<u64, Entry>,
    removals: VecDeque<u64>,
    last: u64,
    /// Removals up to this position are no longer retained.
    trimmed: u64,
}

impl Changelog {
    /// Creates an empty log that retains this many removals.
    #[must_use]
    pub(crate) fn new(max_removals: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            last: watch::Sender::new(0),
            max_removals,
        })
    }

    /// Position of the newest entry.
    #[must_use]
    pub(crate) fn last(&self) -> u64 {
        self.state.lock().last
    }

    /// Notifies about new entries.
    #[must_use]
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// Returns up to `limit` existing nodes after a key, in order; of one cluster, if given.
    #[must_use]
    pub(crate) fn nodes_after(
        &self,
        after: Option<&Arc<Key>>,
        cluster: Option<&str>,
        limit: usize,
    ) -> Vec<Arc<Key>> {
        let state = self.state.lock();
        let first = cluster.map(|cluster| {
            Arc::new(Key {
                cluster_id: cluster.into(),
                node_id: "".into(),
            })
        });
        let from = match (after, &first) {
            (Some(key), _) => Bound::Excluded(key),
            (None, Some(key)) => Bound::Included(key),
            (None, None) => Bound::Unbounded,
        };
        let keys = state
            .nodes
            .range::<Arc<Key>, _>((from, Bound::Unbounded))
            .map(|(key, _)| key);
        keys.take_while(|key| cluster.is_none_or(|cluster| &*key.cluster_id == cluster))
            .take(limit)
            .cloned()
            .collect()
    }

    /// Returns up to `limit` entries after a position, of one cluster if given, and the position to continue from. No
    /// entries and the position of the newest entry mean that there are no more.
    ///
    /// # Errors
    ///
    /// `WatchTooSlow` if removals after the position are no longer retained.
    pub(crate) fn after(
        &self,
        position: u64,
        cluster: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<Entry>, u64)> {
        let state = self.state.lock();
        if position < state.trimmed {
            return Err(Error::new(
                Reason::WatchTooSlow,
                "the client did not keep up with the changes; open the watch again",
            ));
        }
        let mut entries = Vec::new();
        let mut reached = state.last;
        for (&at, entry) in state.entries.range(position + 1..) {
            let (Entry::Changed(key) | Entry::Removed(key, _)) = entry;
            if cluster.is_none_or(|cluster| &*key.cluster_id == cluster) {
                entries.push(entry.clone());
                if entries.len() == limit {
                    reached = at;
                    break;
                }
            }
        }
        Ok((entries, reached))
    }
}

impl State {
    fn push(&mut self, entry: Entry) -> u64 {
        self.last += 1;
        self.entries.insert(self.last, entry);
        self.last
    }
}

impl Listener for Changelog {
    fn changed(&self, cluster_id: &str, node_id: &str) {
        let key = Key {
            cluster_id: cluster_id.into(),
            node_id: node_id.into(),
        };
        let mut state = self.state.lock();
        let state = &mut *state;
        let position = state.last + 1;
        let key = match state.nodes.get_key_value(&key) {
            Some((known, &before)) => {
                state.entries.remove(&before);
                Arc::clone(known)
            }
            None => Arc::new(key),
        };
        state.nodes.insert(Arc::clone(&key), position);
        let last = state.push(Entry::Changed(key));
        self.last.send_replace(last);
    }

    fn removed(&self, cluster_id: &str, node_id: &str, evidence: RemovalEvidence) {
        let key = Key {
            cluster_id: cluster_id.into(),
            node_id: node_id.into(),
        };
        let mut state = self.state.lock();
        let Some((key, before)) = state.nodes.remove_entry(&key) else {
            return;
        };
        state.entries.remove(&before);
        let last = state.push(Entry::Removed(key, evidence));
        state.removals.push_back(last);
        if state.removals.len() > self.max_removals
            && let Some(oldest) = state.removals.pop_front()
        {
            state.entries.remove(&oldest);
            state.trimmed = oldest;
        }
        self.last.send_replace(last);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;

    fn name(entry: &Entry) -> String {
        match entry {
            Entry::Changed(key) => format!("+{}", key.node_id),
            Entry::Removed(key, _) => format!("-{}", key.node_id),
        }
    }

    fn all(log: &Changelog, position: u64) -> Vec<String> {
        log.after(position, None, usize::MAX)
            .unwrap()
            .0
            .iter()
            .map(name)
            .collect()
    }

    #[test]
    fn only_the_latest_change_of_a_node_is_kept() {
        let log = Changelog::new(10);
        for node in ["a", "b", "a", "c", "a"] {
            log.changed("x", node);
        }
        assert_eq!(all(&log, 0), ["+b", "+c", "+a"]);
        assert_eq!(
            all(&log, 4),
            ["+a"],
            "a watcher that has seen four changes misses the fifth"
        );
        log.removed("x", "b", RemovalEvidence::Confirmed);
        assert_eq!(all(&log, 0), ["+c", "+a", "-b"]);
    }

    #[test]
    fn who_falls_behind_the_removals_that_are_kept_is_too_slow() {
        let log = Changelog::new(2);
        for node in ["a", "b", "c"] {
            log.changed("x", node);
            log.removed("x", node, RemovalEvidence::Confirmed);
        }
        let error = log.after(1, None, 10).unwrap_err();
        assert_eq!(error.reason(), Reason::WatchTooSlow);
        assert_eq!(
            all(&log, 2),
            ["-b", "-c"],
            "who has seen the first removal misses nothing"
        );
    }

    #[test]
    fn a_position_passes_over_other_clusters() {
        let log = Changelog::new(10);
        for at in 0..10 {
            log.changed(if at == 7 { "x" } else { "y" }, &format!("n{at}"));
        }
        let (entries, reached) = log.after(0, Some("x"), 5).unwrap();
        assert_eq!((entries.len(), reached), (1, 10));
        let (entries, reached) = log.after(0, Some("y"), 5).unwrap();
        assert_eq!((entries.len(), reached), (5, 5));
        assert_eq!(log.nodes_after(None, Some("x"), 10).len(), 1);
        assert_eq!(log.nodes_after(None, None, 4).len(), 4);
    }
}
