//! Fair distribution of rendering turns.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places that are distributed so that nobody makes others wait longer than one text takes: a caller can have all
/// places but one, and so can each cluster of a caller. Further requests queue behind those of the same caller or
/// cluster.
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    share: usize,
    shares: Arc<Shares>,
}

type Shares = Mutex<HashMap<Key, Arc<Semaphore>>>;

/// A caller, or a cluster of a caller.
type Key = (String, Option<String>);

/// An occupied place, returned on drop.
pub(crate) struct Turn {
    held: Vec<OwnedSemaphorePermit>,
    keys: [Key; 2],
    shares: Arc<Shares>,
}

impl Turns {
    pub(crate) fn new(places: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(places)),
            share: places.saturating_sub(1).max(1),
            shares: Arc::default(),
        }
    }

    /// Waits for a place.
    pub(crate) async fn take(&self, caller: &str, cluster: &str) -> Turn {
        let mut turn = Turn {
            held: Vec::with_capacity(3),
            keys: [
                (caller.to_owned(), Some(cluster.to_owned())),
                (caller.to_owned(), None),
            ],
            shares: Arc::clone(&self.shares),
        };
        // The narrowest share first: while waiting for its own share, a request holds nothing that others wait for.
        for key in turn.keys.clone() {
            let share = self.share_of(key);
            turn.held.extend(share.acquire_owned().await.ok());
        }
        let all = Arc::clone(&self.all);
        turn.held.extend(all.acquire_owned().await.ok());
        turn
    }

    fn share_of(&self, key: Key) -> Arc<Semaphore> {
        let mut shares = self.shares.lock();
        let share = shares
            .entry(key)
            .or_insert_with(|| Arc::new(Semaphore::new(self.share)));
        Arc::clone(share)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.held.clear();
        let mut shares = self.shares.lock();
        for key in &self.keys {
            // Every holder or waiter of a place holds a reference to its share.
            if shares
                .get(key)
                .is_some_and(|share| Arc::strong_count(share) == 1)
            {
                shares.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn now(turns: &Turns, caller: &str, cluster: &str) -> Option<Turn> {
        turns.take(caller, cluster).now_or_never()
    }

    #[test]
    fn one_caller_leaves_a_place_for_others_and_gets_it_when_it_gives_one_back() {
        let turns = Turns::new(3);
        let mut held: Vec<_> = ["a", "b"]
            .into_iter()
            .filter_map(|cluster| now(&turns, "one", cluster))
            .collect();
        assert_eq!(held.len(), 2);
        assert!(now(&turns, "one", "c").is_none());
        let other = now(&turns, "other", "c");
        assert!(other.is_some());
        held.pop();
        assert!(now(&turns, "one", "c").is_some());
    }

    #[tokio::test]
    async fn a_cluster_that_waits_for_many_is_not_before_one_that_waits_for_its_first() {
        let turns = Arc::new(Turns::new(2));
        let first = turns.take("one", "greedy").await;
        let (said, mut heard) = tokio::sync::mpsc::channel(8);
        let wait = |cluster: &'static str| {
            let (turns, said) = (Arc::clone(&turns), said.clone());
            tokio::spawn(async move {
                let turn = turns.take("one", cluster).await;
                said.send((cluster, turn)).await.unwrap();
            })
        };
        let mut waiting: Vec<_> = (0..4).map(|_| wait("greedy")).collect();
        while turns.shares.lock().len() < 2 {
            tokio::task::yield_now().await;
        }
        waiting.push(wait("modest"));
        while turns.shares.lock().len() < 3 {
            tokio::task::yield_now().await;
        }
        drop(first);
        let mut order = Vec::new();
        for _ in 0..5 {
            let (cluster, turn) = heard.recv().await.unwrap();
            order.push(cluster);
            drop(turn);
        }
        assert!(
            order.iter().position(|it| *it == "modest").unwrap() <= 1,
            "{order:?}"
        );
        for task in waiting {
            task.await.unwrap();
        }
        assert!(turns.shares.lock().is_empty(), "nobody is remembered");
    }
}
