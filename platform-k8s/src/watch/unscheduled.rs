//! Unschedulable pods. After a while they count as failed, so that their nodes can be created elsewhere, and for some
//! time no more pods of the same spec are created.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::group::Key;

/// How long no pods of a spec are created after one of them was given up. Then it is worth another attempt.
const FULL_FOR: Duration = Duration::from_secs(60);

/// Node class and spec hash, which pods have in common that are scheduled alike.
pub(crate) type Likeness = (String, String);

#[derive(Default)]
pub(super) struct Unscheduled {
    waiting: HashMap<u128, Waiting>,
    /// The last message of the scheduler for a spec that is unschedulable, and its time.
    full: BTreeMap<Likeness, (String, Instant)>,
}

struct Waiting {
    since: Instant,
    key: Arc<Key>,
    /// Whether it has waited for too long.
    over: bool,
}

impl Unscheduled {
    /// Adds an unschedulable pod. Returns whether it is new.
    pub(super) fn waits(&mut self, uid: u128, key: &Arc<Key>) -> bool {
        let new = !self.waiting.contains_key(&uid);
        self.waiting.entry(uid).or_insert_with(|| Waiting {
            since: Instant::now(),
            key: Arc::clone(key),
            over: false,
        });
        new
    }

    /// Removes a pod that is scheduled or gone.
    pub(super) fn forget(&mut self, uid: u128) {
        if !self.waiting.is_empty() {
            self.waiting.remove(&uid);
        }
    }

    /// Whether the pod has waited for too long.
    pub(super) fn is_over(&self, uid: u128) -> bool {
        !self.waiting.is_empty() && self.waiting.get(&uid).is_some_and(|it| it.over)
    }

    /// The pods whose time has run out since the last call.
    pub(super) fn expire(&mut self, timeout: Duration) -> Vec<(u128, Arc<Key>)> {
        let now = Instant::now();
        let mut over = Vec::new();
        for (uid, it) in &mut self.waiting {
            if !it.over && it.since + timeout <= now {
                it.over = true;
                over.push((*uid, Arc::clone(&it.key)));
            }
        }
        over
    }

    /// When the time of the next pod runs out.
    pub(super) fn next(&self, timeout: Duration) -> Option<Instant> {
        let waiting = self.waiting.values().filter(|it| !it.over);
        waiting.map(|it| it.since + timeout).min()
    }

    /// Records that pods like these are unschedulable.
    pub(super) fn is_full(&mut self, likeness: Likeness, words: String) {
        let now = Instant::now();
        self.full.retain(|_, (_, since)| *since + FULL_FOR > now);
        self.full.insert(likeness, (words, now));
    }

    /// The scheduler's message about pods like these, if they were unschedulable recently.
    pub(super) fn full(&self, likeness: &Likeness) -> Option<&str> {
        let (words, since) = self.full.get(likeness)?;
        (*since + FULL_FOR > Instant::now()).then_some(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    fn key() -> Arc<Key> {
        Arc::new(Key {
            cluster: "orders".into(),
            node: "db-0-x7k2p".into(),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_is_over_once_after_its_time_and_never_after_it_was_placed() {
        let mut pods = Unscheduled::default();
        assert!(pods.waits(1, &key()) && pods.waits(2, &key()));
        assert!(!pods.waits(1, &key()), "it waits already");
        assert_eq!(pods.next(TIMEOUT), Some(Instant::now() + TIMEOUT));
        assert!(pods.expire(TIMEOUT).is_empty());
        tokio::time::advance(TIMEOUT).await;
        pods.forget(2);
        let over: Vec<u128> = pods.expire(TIMEOUT).iter().map(|(uid, _)| *uid).collect();
        assert_eq!(over, [1]);
        assert!(pods.is_over(1) && !pods.is_over(2));
        assert!(pods.expire(TIMEOUT).is_empty(), "told once");
        assert_eq!(pods.next(TIMEOUT), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_spec_without_a_place_is_tried_again_after_a_while() {
        let mut pods = Unscheduled::default();
        let spec = ("small".to_owned(), "a".to_owned());
        pods.is_full(spec.clone(), "0/3 nodes are available".to_owned());
        assert_eq!(pods.full(&spec), Some("0/3 nodes are available"));
        assert_eq!(pods.full(&("small".to_owned(), "b".to_owned())), None);
        tokio::time::advance(FULL_FOR).await;
        assert_eq!(pods.full(&spec), None);
    }
}
