//! Call limits of a platform: concurrency, rate, circuit breaker, and capacity backoff.

use std::time::Duration;

use drover_core::{Error, Millis, Reason, Sym, Urgency, back_off};
use tokio::{sync::OwnedSemaphorePermit, time::timeout};

use super::Platform;

/// Consecutive failures that open the circuit breaker.
pub(super) const BREAKER_FAILURES: u32 = 5;

/// Initial open time of the circuit breaker; doubles with each further failure.
pub(super) const BREAKER_FIRST: Millis = 1_000;

/// Maximum open time of the circuit breaker.
const BREAKER_MOST: Millis = 30_000;

/// Initial backoff after a capacity shortage; doubles with each further shortage.
pub(super) const CAPACITY_FIRST: Millis = 5_000;

/// Maximum backoff after a capacity shortage.
const CAPACITY_MOST: Millis = 300_000;

/// Above this number, shortages are forgotten once their backoff has ended.
const MAX_SHORTAGES: usize = 1_000;

/// Maximum wait for a permit; then the call is given up without being sent.
const PERMIT_WAIT: Duration = Duration::from_secs(20);

/// Effect of a call result on the circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerChange {
    /// It is as before.
    Same,
    /// The circuit breaker opened or closed: clusters that wait for the platform must be planned.
    Changed,
}

impl Platform {
    /// Waits for a permit to call. `None` if the wait timed out.
    pub async fn permit(
        &self,
        urgency: Urgency,
        now: impl Fn() -> Millis,
    ) -> Option<OwnedSemaphorePermit> {
        let (normal, urgent) = {
            let inner = self.inner.lock();
            (inner.normal.clone(), inner.urgent.clone())
        };
        let permit = if urgency == Urgency::Bulk {
            timeout(PERMIT_WAIT, normal.acquire_owned()).await
        } else {
            // Whichever is free first: bulk calls may queue for the others by the thousand. Boxed, since those would all
            // have the room for it.
            Box::pin(timeout(PERMIT_WAIT, async {
                tokio::select! {
                    biased;
                    permit = urgent.acquire_owned() => permit,
                    permit = normal.acquire_owned() => permit,
                }
            }))
            .await
        };
        let permit = permit.ok()?.ok()?;
        // Paced after the permit is held, so that callers that wait for one do not accumulate a burst.
        let pause = self.pace(now());
        if pause > 0 {
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        Some(permit)
    }

    /// How long the next call must wait to keep the platform's rate limit.
    fn pace(&self, now: Millis) -> Millis {
        let mut inner = self.inner.lock();
        let handshake = inner.handshake.as_ref();
        let limits = handshake.and_then(|handshake| handshake.limits.as_ref());
        let rate = limits.and_then(|limits| limits.calls_per_second);
        let Some(rate) = rate.filter(|rate| *rate > 0.0) else {
            return 0;
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a span in milliseconds"
        )]
        let gap = (1000.0 / rate).ceil() as Millis;
        let at = inner.next_call.max(now);
        inner.next_call = at + gap;
        at.saturating_sub(now)
    }

    /// Records the result of a call for the circuit breaker.
    pub fn record_call_result(&self, error: Option<&Error>, now: Millis) -> BreakerChange {
        let failed = error.is_some_and(|error| {
            matches!(
                error.reason(),
                Reason::Unavailable
                    | Reason::DeadlineExceeded
                    | Reason::Internal
                    | Reason::RateLimited
                    | Reason::Overloaded
            )
        });
        let mut inner = self.inner.lock();
        let suspended = inner.suspended_until > 0;
        if failed {
            inner.failures = inner.failures.saturating_add(1);
            inner.probing = false;
            if inner.failures >= BREAKER_FAILURES {
                let failures = inner.failures - BREAKER_FAILURES;
                let wait = back_off(BREAKER_FIRST, BREAKER_MOST, failures);
                let wait = error
                    .and_then(Error::retry_after)
                    .map_or(wait, drover_core::millis)
                    .min(BREAKER_MOST);
                inner.suspended_until = now + wait;
            }
            return BreakerChange::Same;
        }
        inner.failures = 0;
        inner.probing = false;
        inner.suspended_until = 0;
        if suspended {
            BreakerChange::Changed
        } else {
            BreakerChange::Same
        }
    }

    /// Ends an expired suspension, so that one call may probe the platform.
    pub fn end_suspension(&self, now: Millis) -> bool {
        let mut inner = self.inner.lock();
        if inner.suspended_until > 0 && inner.suspended_until <= now {
            // One more failure suspends the platform again, for longer.
            inner.suspended_until = 0;
            return true;
        }
        false
    }

    /// Records a shortage of a pool in this failure domain, or in all domains if that is empty.
    pub fn out_of(&self, pool: &Sym, domain: &str, now: Millis, after: Option<Duration>) -> Millis {
        let mut inner = self.inner.lock();
        if inner.capacity.len() >= MAX_SHORTAGES {
            // Expired shortages no longer matter.
            inner.capacity.retain(|_, (_, until)| *until > now);
        }
        let key = (pool.clone(), domain.into());
        let (times, until) = inner.capacity.entry(key).or_insert((0, 0));
        if *until <= now {
            let wait = back_off(CAPACITY_FIRST, CAPACITY_MOST, *times);
            *until =
                now + after.map_or(wait, |after| drover_core::millis(after).min(CAPACITY_MOST));
            *times += 1;
        }
        *until
    }

    /// Records that a pool had capacity in these failure domains.
    pub fn has_again<'a>(&self, pool: &Sym, domains: impl IntoIterator<Item = &'a str>) -> bool {
        let mut inner = self.inner.lock();
        if inner.capacity.is_empty() {
            return false;
        }
        let before = inner.capacity.len();
        inner.capacity.remove(&(pool.clone(), Sym::default()));
        for domain in domains {
            inner.capacity.remove(&(pool.clone(), domain.into()));
        }
        inner.capacity.len() < before
    }
}
