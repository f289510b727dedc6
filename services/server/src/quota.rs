//! Quotas per caller for shared resources, so that one caller cannot take everything.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Number of callers above which entries without any usage are removed.
const REMEMBERED: usize = 1024;

/// A resource with a quota per caller, such as slots or bytes.
#[derive(Debug)]
pub struct Shares {
    most: usize,
    taken: Mutex<HashMap<Arc<str>, Arc<AtomicUsize>>>,
}

/// The part of a resource that a caller holds, released on drop.
#[derive(Debug)]
pub struct Share {
    own: usize,
    most: usize,
    taken: Arc<AtomicUsize>,
}

impl Shares {
    /// Creates a quota of this amount per caller.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            taken: Mutex::default(),
        }
    }

    /// Creates the quota for this number of slots. A single caller gets three quarters of them, because an orchestrator
    /// is often the only caller of a platform.
    #[must_use]
    pub fn of(places: usize) -> Self {
        Self::new((places - places / 4).max(1))
    }

    /// Takes an amount for a caller. `None` if that would exceed its quota.
    #[must_use]
    pub fn take(&self, caller: &Arc<str>, amount: usize) -> Option<Share> {
        let taken = {
            let mut all = self.taken.lock();
            match all.get(caller) {
                Some(taken) => taken.clone(),
                None => {
                    if all.len() >= REMEMBERED {
                        all.retain(|_, taken| Arc::strong_count(taken) > 1);
                    }
                    all.entry(caller.clone()).or_default().clone()
                }
            }
        };
        let mut share = Share {
            own: 0,
            most: self.most,
            taken,
        };
        share.resize(amount).then_some(share)
    }
}

impl Share {
    /// Changes the amount. Returns false, without any change, if that would exceed the caller's quota.
    #[must_use]
    pub fn resize(&mut self, amount: usize) -> bool {
        let more = amount.saturating_sub(self.own);
        let before = self.taken.fetch_add(more, Ordering::Relaxed);
        if more > 0 && before.saturating_add(more) > self.most {
            self.taken.fetch_sub(more, Ordering::Relaxed);
            return false;
        }
        let less = self.own.saturating_sub(amount);
        self.taken.fetch_sub(less, Ordering::Relaxed);
        self.own = amount;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.own, Ordering::Relaxed);
    }
}

/// Token bucket.
#[derive(Debug)]
pub(crate) struct Bucket {
    most: f64,
    a_second: f64,
    left: f64,
    at: Instant,
}

impl Bucket {
    pub(crate) fn new(most: f64, a_second: f64) -> Self {
        Self {
            most,
            a_second,
            left: most,
            at: Instant::now(),
        }
    }

    fn fill(&mut self) {
        let now = Instant::now();
        let gained = (now - self.at).as_secs_f64() * self.a_second;
        self.left = (self.left + gained).min(self.most);
        self.at = now;
    }

    /// Takes a token. If there is none, returns the time until there is one.
    pub(crate) fn take(&mut self) -> Result<(), Duration> {
        self.fill();
        if self.left < 1.0 {
            let wait = (1.0 - self.left) / self.a_second;
            return Err(Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX));
        }
        self.left -= 1.0;
        Ok(())
    }

    fn is_full(&mut self) -> bool {
        self.fill();
        self.left >= self.most
    }
}

/// Rate limits per caller.
#[derive(Debug)]
pub struct Rates {
    /// Burst, and tokens per second.
    rate: (u32, u32),
    callers: Mutex<HashMap<Arc<str>, Bucket>>,
}

impl Rates {
    /// Creates rate limits with this burst and this rate per second, both at least one.
    #[must_use]
    pub fn new(at_once: u32, a_second: u32) -> Self {
        Self {
            rate: (at_once.max(1), a_second.max(1)),
            callers: Mutex::default(),
        }
    }

    /// Takes a token of a caller. If there is none, returns the time until there is one.
    pub fn take(&self, caller: &Arc<str>) -> Result<(), Duration> {
        let mut callers = self.callers.lock();
        if callers.len() >= REMEMBERED && !callers.contains_key(caller) {
            callers.retain(|_, bucket| !bucket.is_full());
        }
        let (at_once, a_second) = self.rate;
        callers
            .entry(caller.clone())
            .or_insert_with(|| Bucket::new(at_once.into(), a_second.into()))
            .take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_leaves_some_places_for_others() {
        let shares = Shares::of(8);
        let (greedy, other): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let mut held: Vec<_> = (0..6).map(|_| shares.take(&greedy, 1).unwrap()).collect();
        assert!(shares.take(&greedy, 1).is_none());
        assert!(shares.take(&other, 1).is_some());
        held.pop();
        assert!(shares.take(&greedy, 1).is_some());
        assert!(Shares::of(1).take(&greedy, 1).is_some());
    }

    #[test]
    fn what_grows_is_bounded_with_all_that_the_caller_holds() {
        let shares = Shares::new(100);
        let caller: Arc<str> = "a".into();
        let mut one = shares.take(&caller, 10).unwrap();
        let mut two = shares.take(&caller, 20).unwrap();
        assert!(one.resize(80));
        assert!(!two.resize(21));
        assert!(!one.resize(81));
        assert!(one.resize(0));
        assert!(two.resize(100));
        assert!(!one.resize(1));
        drop(two);
        assert!(one.resize(100));
    }

    #[test]
    fn callers_who_hold_nothing_are_forgotten() {
        let shares = Shares::of(8);
        let stays = shares.take(&"stays".into(), 1);
        for number in 0..3 * REMEMBERED {
            drop(shares.take(&number.to_string().into(), 1));
        }
        assert!(shares.taken.lock().len() <= REMEMBERED);
        assert!(shares.taken.lock().contains_key("stays"));
        drop(stays);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_who_asks_too_often_is_told_when_it_may_again() {
        let rates = Rates::new(2, 4);
        let (greedy, other): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        assert_eq!([(); 2].map(|()| rates.take(&greedy)), [Ok(()); 2]);
        let wait = rates.take(&greedy).unwrap_err();
        assert_eq!(wait, Duration::from_millis(250));
        assert_eq!(rates.take(&other), Ok(()));
        tokio::time::advance(wait).await;
        assert_eq!(rates.take(&greedy), Ok(()));
        assert!(rates.take(&greedy).is_err());
        for number in 0..3 * REMEMBERED {
            let _ = rates.take(&number.to_string().into());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(rates.callers.lock().len() <= REMEMBERED);
    }
}
