//! Limits the number of connections. At the limit, a new connection displaces the one that has been idle longest, so
//! that idle connections cannot lock others out.

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

/// Maximum number of concurrent connections that are informed of their refusal. Further ones are closed without a
/// response.
const REFUSALS: usize = 256;
/// Maximum number of concurrent calls per connection that require no permission (health checks), because each costs a
/// few kilobytes.
const OPEN_CALLS: usize = 32;
/// Minimum interval between two warnings about too many connections.
const SAID_FOR: Duration = Duration::from_secs(60);

/// All connections of a server.
#[derive(Debug)]
pub(crate) struct ConnectionLimiter {
    most: usize,
    begin: Instant,
    open: Mutex<OpenConnections>,
    refusals: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    connections: HashMap<u64, Arc<ConnectionState>>,
    said: Option<Instant>,
}

/// State of a connection, shared with the task that serves it.
#[derive(Debug, Default)]
pub(crate) struct ConnectionState {
    /// Number of authorized calls in flight.
    working: AtomicUsize,
    /// Share of the caller's connection quota, held while there are such calls, on behalf of the caller of the first
    /// one.
    held: Mutex<Option<Share>>,
    /// Number of calls in flight that require no permission.
    open: AtomicUsize,
    /// Time of the last activity, in milliseconds since the server's start.
    last: AtomicU64,
    /// Cancelled when the connection is displaced.
    leave: CancellationToken,
    /// State of its client certificate.
    ending: Ending,
}

/// A slot for an open connection, released on drop.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    limiter: Arc<ConnectionLimiter>,
    number: u64,
    state: Arc<ConnectionState>,
}

/// Decision about a new connection.
#[derive(Debug)]
pub(crate) enum Entry {
    /// Served.
    Admitted(ConnectionSlot),
    /// Informed that the server is at its limit.
    Refused(OwnedSemaphorePermit),
    /// Closed without a response.
    Ignored,
}

impl ConnectionLimiter {
    /// Creates a limiter for this maximum number of connections.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            begin: Instant::now(),
            open: Mutex::default(),
            refusals: Arc::new(Semaphore::new(REFUSALS)),
        })
    }

    /// Registers a new connection.
    pub(crate) fn enter(self: &Arc<Self>) -> Entry {
        let mut open = self.open.lock();
        if open.connections.len() >= self.most && !open.make_room() {
            let now = Instant::now();
            let silent = open.said.is_some_and(|at| now - at < SAID_FOR);
            if !silent {
                open.said = Some(now);
            }
            drop(open);
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
        let state = Arc::new(ConnectionState::default());
        state.last.store(self.now(), Ordering::Relaxed);
        let number = open.next;
        open.next += 1;
        open.connections.insert(number, state.clone());
        count(open.connections.len());
        Entry::Admitted(ConnectionSlot {
            limiter: self.clone(),
            number,
            state,
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl OpenConnections {
    /// Displaces the connection that has been idle longest. Returns false if none is idle.
    fn make_room(&mut self) -> bool {
        let idle = self.connections.iter().filter(|(_, state)| state.is_idle());
        let longest =
            idle.min_by_key(|(number, state)| (state.last.load(Ordering::Relaxed), **number));
        let Some(number) = longest.map(|(number, _)| *number) else {
            return false;
        };
        if let Some(state) = self.connections.remove(&number) {
            state.leave.cancel();
            metrics::counter!("drover_connections_displaced_total").increment(1);
        }
        true
    }
}

#[expect(clippy::cast_precision_loss, reason = "connections are far below 2^52")]
fn count(connections: usize) {
    metrics::gauge!("drover_connections").set(connections as f64);
}

impl ConnectionSlot {
    pub(crate) fn state(&self) -> &Arc<ConnectionState> {
        &self.state
    }

    /// Resolves when the connection has been displaced.
    pub(crate) async fn displaced(&self) {
        self.state.leave.cancelled().await;
    }

    /// State of the client certificate, shared with the calls of the connection.
    pub(crate) fn ending(&self) -> &Ending {
        &self.state.ending
    }

    /// Creates a handle for the calls of this connection.
    pub(crate) fn handle(&self) -> ConnectionHandle {
        ConnectionHandle {
            limiter: self.limiter.clone(),
            state: self.state.clone(),
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.limiter.open.lock();
        if open.connections.remove(&self.number).is_some() {
            count(open.connections.len());
        }
    }
}

impl ConnectionState {
    pub(crate) fn is_idle(&self) -> bool {
        self.working.load(Ordering::Relaxed) == 0
    }

    /// Ends a call.
    fn rest(&self) {
        if self.working.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let mut held = self.held.lock();
        // Another call may have started in the meantime and rely on the share.
        if self.is_idle() {
            *held = None;
        }
    }
}

/// The connection from the perspective of its calls. An extension of requests.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionHandle {
    limiter: Arc<ConnectionLimiter>,
    state: Arc<ConnectionState>,
}

/// A call in flight, ended on drop.
#[derive(Debug)]
pub(crate) struct Busy {
    handle: ConnectionHandle,
    open: bool,
}

impl ConnectionHandle {
    /// Starts an authorized call, during which the connection is not idle.
    pub(crate) fn working(self) -> Busy {
        self.state.working.fetch_add(1, Ordering::Relaxed);
        Busy {
            handle: self,
            open: false,
        }
    }

    /// Like [`working`](Self::working), and counts the connection against the caller's quota with `take`. `None` if the
    /// quota is used up; the idle time is not affected then.
    pub(crate) fn working_of(self, take: impl FnOnce() -> Option<Share>) -> Option<Busy> {
        self.state.working.fetch_add(1, Ordering::Relaxed);
        let mut held = self.state.held.lock();
        if held.is_none() {
            *held = take();
        }
        let counted = held.is_some();
        drop(held);
        if !counted {
            self.state.rest();
            return None;
        }
        Some(Busy {
            handle: self,
            open: false,
        })
    }

    /// Starts a call that requires no permission and does not affect the idle time. `None` if there are too many of
    /// them on the connection.
    pub(crate) fn open(self) -> Option<Busy> {
        let before = self.state.open.fetch_add(1, Ordering::Relaxed);
        let busy = Busy {
            handle: self,
            open: true,
        };
        (before < OPEN_CALLS).then_some(busy)
    }
}

impl Busy {
    /// State of the client certificate of the connection.
    pub(crate) fn ending(&self) -> &Ending {
        &self.handle.state.ending
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let ConnectionHandle { limiter, state } = &self.handle;
        if self.open {
            state.open.fetch_sub(1, Ordering::Relaxed);
        } else {
            // Updated before the connection becomes idle, or else it would appear to have been idle for longer.
            state.last.store(limiter.now(), Ordering::Relaxed);
            state.rest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Shares;

    fn admitted(limiter: &Arc<ConnectionLimiter>) -> ConnectionSlot {
        match limiter.enter() {
            Entry::Admitted(slot) => slot,
            other => unreachable!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_place_of_the_one_that_was_idle_longest_is_given_away_and_no_others() {
        let limiter = ConnectionLimiter::new(3);
        let slots: Vec<_> = (0..3).map(|_| admitted(&limiter)).collect();
        let working = slots[0].handle().working();
        let check = slots[1].handle().open();
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(slots[1].handle().working());
        // The third one has been idle longest; after it, the one that has only made health checks.
        let fourth = admitted(&limiter);
        assert!(slots[2].state.leave.is_cancelled());
        let work: Vec<_> = [&fourth].iter().map(|it| it.handle().working()).collect();
        let fifth = admitted(&limiter);
        assert!(slots[1].state.leave.is_cancelled());
        let last = fifth.handle().working();
        assert!(matches!(limiter.enter(), Entry::Refused(_)));
        assert!(!slots[0].state.leave.is_cancelled());
        drop(working);
        admitted(&limiter);
        assert!(slots[0].state.leave.is_cancelled());
        drop((check, work, last));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_counted_once_while_it_has_calls_and_not_at_all_if_there_are_too_many()
    {
        let limiter = ConnectionLimiter::new(8);
        let shares = Shares::of(1);
        let caller = "a".into();
        let (first, second) = (admitted(&limiter), admitted(&limiter));
        let work = |slot: &ConnectionSlot| slot.handle().working_of(|| shares.take(&caller, 1));
        let one = work(&first).unwrap();
        let two = work(&first).unwrap();
        drop(one);
        let before = second.state.last.load(Ordering::Relaxed);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(work(&second).is_none());
        assert!(second.state.is_idle());
        assert_eq!(second.state.last.load(Ordering::Relaxed), before);
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
        let slot = admitted(&ConnectionLimiter::new(1));
        let state = &slot.state;
        let shares = Shares::of(1);
        let caller = "a".into();
        let work = || slot.handle().working_of(|| shares.take(&caller, 1));
        let until = |working: usize| {
            while state.working.load(Ordering::SeqCst) != working {
                std::thread::yield_now();
            }
        };
        for _ in 0..ROUNDS {
            let last = work().unwrap();
            // Both have reached the lock; either may acquire it first.
            let held = state.held.lock();
            let next = std::thread::scope(|scope| {
                scope.spawn(move || drop(last));
                until(0);
                let next = scope.spawn(work);
                until(1);
                drop(held);
                next.join().unwrap()
            });
            assert!(next.is_some() && state.held.lock().is_some());
            drop(next);
            assert!(state.is_idle() && state.held.lock().is_none());
        }
    }

    #[tokio::test]
    async fn a_place_is_free_again_and_refusals_are_bounded() {
        let limiter = ConnectionLimiter::new(1);
        let slot = admitted(&limiter);
        let busy = slot.handle().working();
        let refused: Vec<_> = (0..REFUSALS).map(|_| limiter.enter()).collect();
        assert!(refused.iter().all(|it| matches!(it, Entry::Refused(_))));
        assert!(matches!(limiter.enter(), Entry::Ignored));
        drop((slot, busy));
        let slot = admitted(&limiter);
        let open: Vec<_> = (0..OPEN_CALLS).map(|_| slot.handle().open()).collect();
        assert!(open.iter().all(Option::is_some));
        assert!(slot.handle().open().is_none());
        drop(open);
        assert!(slot.handle().open().is_some());
    }
}
