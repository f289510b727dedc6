//! How many of the places for calls and connections one caller may take, so that some are left for others.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

/// Callers that are remembered before those are forgotten who have no call in flight.
const REMEMBERED: usize = 1024;

/// Places of one kind, shared by callers.
#[derive(Debug)]
pub(crate) struct Shares {
    most: usize,
    taken: Mutex<HashMap<Arc<str>, Arc<AtomicUsize>>>,
}

/// A place of a caller, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share(Arc<AtomicUsize>);

impl Shares {
    /// Of so many places. Three quarters are for one caller: an orchestrator is often the only one of a platform.
    pub(crate) fn of(places: usize) -> Self {
        Self {
            most: (places - places / 4).max(1),
            taken: Mutex::default(),
        }
    }

    /// A place for a caller. None: it has as many as it may.
    pub(crate) fn take(&self, caller: &Arc<str>) -> Option<Share> {
        let count = {
            let mut taken = self.taken.lock();
            match taken.get(caller) {
                Some(count) => count.clone(),
                None => {
                    if taken.len() >= REMEMBERED {
                        taken.retain(|_, count| Arc::strong_count(count) > 1);
                    }
                    taken.entry(caller.clone()).or_default().clone()
                }
            }
        };
        let before = count.fetch_add(1, Ordering::Relaxed);
        let share = Share(count);
        (before < self.most).then_some(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_leaves_some_places_for_others() {
        let shares = Shares::of(8);
        let (greedy, other): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let mut held: Vec<_> = (0..6).map(|_| shares.take(&greedy).unwrap()).collect();
        assert!(shares.take(&greedy).is_none());
        assert!(shares.take(&other).is_some());
        held.pop();
        assert!(shares.take(&greedy).is_some());
        assert!(Shares::of(1).take(&greedy).is_some());
    }

    #[test]
    fn callers_without_a_call_are_forgotten() {
        let shares = Shares::of(8);
        let stays = shares.take(&"stays".into());
        for number in 0..3 * REMEMBERED {
            drop(shares.take(&number.to_string().into()));
        }
        assert!(shares.taken.lock().len() <= REMEMBERED);
        assert!(shares.taken.lock().contains_key("stays"));
        drop(stays);
    }
}
