//! Places for connections. Who comes when all are taken gets the place of whoever has been idle longest, so that
//! connections that only are there keep nobody out.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{ending::Ending, quota::Share};

/// Connections that are told at once that there is no place for them. More than these are closed without a word.
const REFUSALS: usize = 256;
/// Calls at once on one connection that anybody may make, health checks: strangers are remembered with a few kilobytes
/// for each.
const OPEN_CALLS: usize = 32;
/// How long the log is silent after it said that there are too many connections.
const SAID_FOR: Duration = Duration::from_secs(60);

/// All connections of a server.
#[derive(Debug)]
pub(crate) struct Crowd {
    most: usize,
    begin: Instant,
    here: Mutex<Here>,
    refusals: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Here {
    next: u64,
    guests: HashMap<u64, Arc<Guest>>,
    said: Option<Instant>,
}

/// One connection, for those who serve it.
#[derive(Debug, Default)]
pub(crate) struct Guest {
    /// Calls that somebody makes who may.
    working: AtomicUsize,
    /// While it has such calls: that it is one of the connections of who made the first of them.
    held: Mutex<Option<Share>>,
    /// Calls that anybody may make.
    open: AtomicUsize,
    /// When it last had something to do, in milliseconds since the server's start.
    last: AtomicU64,
    /// It has to go: others wait.
    leave: CancellationToken,
    /// Its client certificate holds no longer.
    ending: Ending,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    crowd: Arc<Crowd>,
    number: u64,
    guest: Arc<Guest>,
}

/// What a new connection gets.
#[derive(Debug)]
pub(crate) enum Entry {
    /// A place.
    Admitted(Place),
    /// An answer that says that there is none.
    Refused(OwnedSemaphorePermit),
    /// Nothing.
    Ignored,
}

impl Crowd {
    /// For so many at most.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            begin: Instant::now(),
            here: Mutex::default(),
            refusals: Arc::new(Semaphore::new(REFUSALS)),
        })
    }

    /// A new connection is there.
    pub(crate) fn enter(self: &Arc<Self>) -> Entry {
        let mut here = self.here.lock();
        if here.guests.len() >= self.most && !here.make_room() {
            let now = Instant::now();
            let silent = here.said.is_some_and(|at| now - at < SAID_FOR);
            if !silent {
                here.said = Some(now);
            }
            drop(here);
            metrics::counter!("drover_connections_refused_total").increment(1);
            if !silent {
                let most = self.most;
                tracing::warn!(
                    most,
                    "connections are refused: all there may be have calls in flight"
                );
            }
            return match self.refusals.clone().try_acquire_owned() {
                Ok(permit) => Entry::Refused(permit),
                Err(_) => Entry::Ignored,
            };
        }
        let guest = Arc::new(Guest::default());
        guest.last.store(self.now(), Ordering::Relaxed);
        let number = here.next;
        here.next += 1;
        here.guests.insert(number, guest.clone());
        count(here.guests.len());
        Entry::Admitted(Place {
            crowd: self.clone(),
            number,
            guest,
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Here {
    /// Sends the one away that has been idle longest. False: nobody is idle.
    fn make_room(&mut self) -> bool {
        let idle = self.guests.iter().filter(|(_, guest)| guest.is_idle());
        let longest =
            idle.min_by_key(|(number, guest)| (guest.last.load(Ordering::Relaxed), **number));
        let Some(number) = longest.map(|(number, _)| *number) else {
            return false;
        };
        if let Some(guest) = self.guests.remove(&number) {
            guest.leave.cancel();
            metrics::counter!("drover_connections_displaced_total").increment(1);
        }
        true
    }
}

#[expect(clippy::cast_precision_loss, reason = "connections are far below 2^52")]
fn count(connections: usize) {
    metrics::gauge!("drover_connections").set(connections as f64);
}

impl Place {
    pub(crate) fn guest(&self) -> &Arc<Guest> {
        &self.guest
    }

    /// Ends when it has to go.
    pub(crate) async fn displaced(&self) {
        self.guest.leave.cancelled().await;
    }

    /// Its client certificate, as its calls know it.
    pub(crate) fn ending(&self) -> &Ending {
        &self.guest.ending
    }

    /// For the calls of this connection.
    pub(crate) fn visitor(&self) -> Visitor {
        Visitor {
            crowd: self.crowd.clone(),
            guest: self.guest.clone(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut here = self.crowd.here.lock();
        if here.guests.remove(&self.number).is_some() {
            count(here.guests.len());
        }
    }
}

impl Guest {
    pub(crate) fn is_idle(&self) -> bool {
        self.working.load(Ordering::Relaxed) == 0
    }

    /// One call less.
    fn rest(&self) {
        if self.working.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let mut held = self.held.lock();
        // Another one may have begun, and found it held.
        if self.is_idle() {
            *held = None;
        }
    }
}

/// A connection, as its calls know it: among the extensions of a request.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    crowd: Arc<Crowd>,
    guest: Arc<Guest>,
}

/// A call in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct Busy {
    visitor: Visitor,
    open: bool,
}

impl Visitor {
    /// A call of somebody who may make it: the connection is not idle.
    pub(crate) fn working(self) -> Busy {
        self.guest.working.fetch_add(1, Ordering::Relaxed);
        Busy {
            visitor: self,
            open: false,
        }
    }

    /// The same where connections are counted: `take` counts one of the caller's. None: it has as many as it may, and the
    /// connection is as idle as it was.
    pub(crate) fn working_of(self, take: impl FnOnce() -> Option<Share>) -> Option<Busy> {
        self.guest.working.fetch_add(1, Ordering::Relaxed);
        let mut held = self.guest.held.lock();
        if held.is_none() {
            *held = take();
        }
        let counted = held.is_some();
        drop(held);
        if !counted {
            self.guest.rest();
            return None;
        }
        Some(Busy {
            visitor: self,
            open: false,
        })
    }

    /// A call that anybody may make: the connection is as idle as it was. None: there are too many of them on it.
    pub(crate) fn open(self) -> Option<Busy> {
        let before = self.guest.open.fetch_add(1, Ordering::Relaxed);
        let busy = Busy {
            visitor: self,
            open: true,
        };
        (before < OPEN_CALLS).then_some(busy)
    }
}

impl Busy {
    /// The client certificate of the connection.
    pub(crate) fn ending(&self) -> &Ending {
        &self.visitor.guest.ending
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let Visitor { crowd, guest } = &self.visitor;
        if self.open {
            guest.open.fetch_sub(1, Ordering::Relaxed);
        } else {
            // Before it is idle again, or it would be so for longer than it is.
            guest.last.store(crowd.now(), Ordering::Relaxed);
            guest.rest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Shares;

    fn admitted(crowd: &Arc<Crowd>) -> Place {
        match crowd.enter() {
            Entry::Admitted(place) => place,
            other => unreachable!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_place_of_the_one_that_was_idle_longest_is_given_away_and_no_others() {
        let crowd = Crowd::new(3);
        let places: Vec<_> = (0..3).map(|_| admitted(&crowd)).collect();
        let working = places[0].visitor().working();
        let check = places[1].visitor().open();
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(places[1].visitor().working());
        // The last one was idle longest; then the one that only asks for health.
        let fourth = admitted(&crowd);
        assert!(places[2].guest.leave.is_cancelled());
        let work: Vec<_> = [&fourth].iter().map(|it| it.visitor().working()).collect();
        let fifth = admitted(&crowd);
        assert!(places[1].guest.leave.is_cancelled());
        let last = fifth.visitor().working();
        assert!(matches!(crowd.enter(), Entry::Refused(_)));
        assert!(!places[0].guest.leave.is_cancelled());
        drop(working);
        admitted(&crowd);
        assert!(places[0].guest.leave.is_cancelled());
        drop((check, work, last));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_counted_once_while_it_has_calls_and_not_at_all_if_there_are_too_many()
    {
        let crowd = Crowd::new(8);
        let shares = Shares::of(1);
        let caller = "a".into();
        let (first, second) = (admitted(&crowd), admitted(&crowd));
        let work = |place: &Place| place.visitor().working_of(|| shares.take(&caller, 1));
        let one = work(&first).unwrap();
        let two = work(&first).unwrap();
        drop(one);
        let before = second.guest.last.load(Ordering::Relaxed);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(work(&second).is_none());
        assert!(second.guest.is_idle());
        assert_eq!(second.guest.last.load(Ordering::Relaxed), before);
        drop(two);
        assert!(work(&second).is_some());
        assert!(work(&first).is_some());
    }

    #[test]
    fn a_call_that_begins_while_the_last_one_ends_keeps_its_connection_counted() {
        const ROUNDS: usize = 200;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let _entered = runtime.enter();
        let place = admitted(&Crowd::new(1));
        let guest = &place.guest;
        let shares = Shares::of(1);
        let caller = "a".into();
        let work = || place.visitor().working_of(|| shares.take(&caller, 1));
        let until = |working: usize| {
            while guest.working.load(Ordering::SeqCst) != working {
                std::thread::yield_now();
            }
        };
        for _ in 0..ROUNDS {
            let last = work().unwrap();
            // Both have come as far as the lock; either may be the first to get it.
            let held = guest.held.lock();
            let next = std::thread::scope(|scope| {
                scope.spawn(move || drop(last));
                until(0);
                let next = scope.spawn(work);
                until(1);
                drop(held);
                next.join().unwrap()
            });
            assert!(next.is_some() && guest.held.lock().is_some());
            drop(next);
            assert!(guest.is_idle() && guest.held.lock().is_none());
        }
    }

    #[tokio::test]
    async fn a_place_is_free_again_and_refusals_are_bounded() {
        let crowd = Crowd::new(1);
        let place = admitted(&crowd);
        let busy = place.visitor().working();
        let refused: Vec<_> = (0..REFUSALS).map(|_| crowd.enter()).collect();
        assert!(refused.iter().all(|it| matches!(it, Entry::Refused(_))));
        assert!(matches!(crowd.enter(), Entry::Ignored));
        drop((place, busy));
        let place = admitted(&crowd);
        let open: Vec<_> = (0..OPEN_CALLS).map(|_| place.visitor().open()).collect();
        assert!(open.iter().all(Option::is_some));
        assert!(place.visitor().open().is_none());
        drop(open);
        assert!(place.visitor().open().is_some());
    }
}
