//! Retries: which failures are retried, with what backoff, and until when.

use std::{future::Future, time::Duration};

use drover_core::{Class, Error, Reason, Result, back_off_for};
use tokio::time::Instant;

use crate::{call, turn::After};

/// Retry policy. Only for idempotent calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Upper bound of the first backoff. Default 100 ms.
    pub first: Duration,
    /// Upper bound of every backoff. Default 5 s.
    pub longest: Duration,
    /// Deadline of a single attempt. Default 30 s.
    pub attempt: Duration,
    /// How long to retry a server that cannot be reached at all, or several of which none can be. Default 3 s.
    pub unreachable: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(5),
            attempt: Duration::from_secs(30),
            unreachable: Duration::from_secs(3),
        }
    }
}

impl Policy {
    /// Returns the backoff after this many consecutive failures (the first is 0). It is random between zero and a bound
    /// that doubles, so that clients that failed together do not retry together. A delay requested by the server takes
    /// precedence and is jittered too.
    #[must_use]
    pub fn wait(&self, attempts: u32, error: &Error) -> Duration {
        let bound = back_off_for(self.first, self.longest, attempts);
        error.retry_after().unwrap_or_default() + bound.mul_f64(fastrand::f64())
    }

    /// Returns the backoff after a failure and counts it, unless there are several servers and it is short: none while
    /// one is left to try, and that of a first failure while they elect a leader.
    pub(crate) fn wait_after(&self, attempts: &mut u32, error: &Error) -> Duration {
        match call::after(error) {
            After::Next => Duration::ZERO,
            After::Soon => self.wait(0, error),
            After::Unreachable | After::Usual => {
                let wait = self.wait(*attempts, error);
                *attempts = attempts.saturating_add(1);
                wait
            }
        }
    }

    /// Retries a call until it succeeds, fails permanently, or `deadline` (relative to now) passes. `call` receives the
    /// deadline of its attempt. Returns the last error, which is more specific than a timeout.
    pub async fn run<T, F>(
        &self,
        deadline: Duration,
        mut call: impl FnMut(Duration) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let start = Instant::now();
        let mut attempts = 0;
        loop {
            let left = deadline.saturating_sub(start.elapsed());
            let error = match call(left.min(self.attempt)).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let wait = self.wait_after(&mut attempts, &error);
            let limit = if call::after(&error) == After::Unreachable {
                self.unreachable.min(deadline)
            } else {
                deadline
            };
            if !is_transient(&error) || start.elapsed() + wait >= limit {
                return Err(error);
            }
            tracing::debug!(%error, ?wait, "trying again");
            tokio::time::sleep(wait).await;
        }
    }
}

/// Whether the next attempt follows so soon that nobody needs to hear of this one.
pub(crate) fn is_brief(error: &Error) -> bool {
    matches!(call::after(error), After::Next | After::Soon)
}

/// Whether the same call may succeed later without any intervention.
#[must_use]
pub fn is_transient(error: &Error) -> bool {
    match error.class() {
        Class::Cannot | Class::NoCapacity | Class::Credentials | Class::Stale | Class::Reused => {
            false
        }
        Class::Unknown => match error.reason() {
            // Requires a different request, or human intervention.
            Reason::AlreadyExists
            | Reason::Conflict
            | Reason::OutOfRange
            | Reason::PageTokenExpired
            | Reason::GenerationMismatch
            | Reason::PlatformUidTaken
            | Reason::EventsTrimmed
            | Reason::RevisionMismatch
            | Reason::StorageFull
            | Reason::StoreRestored
            | Reason::Internal => false,
            _ => true,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::TransportError;

    async fn attempts(reason: Reason, deadline: Duration) -> (Result<()>, u32) {
        let count = AtomicU32::new(0);
        let outcome = Policy::default()
            .run(deadline, |_| {
                count.fetch_add(1, Ordering::Relaxed);
                async { Err::<(), _>(Error::new(reason, "x")) }
            })
            .await;
        (outcome, count.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn a_transient_failure_is_repeated_until_the_deadline() {
        let start = Instant::now();
        let (outcome, count) = attempts(Reason::Unavailable, Duration::from_secs(60)).await;
        assert_eq!(outcome.unwrap_err().reason(), Reason::Unavailable);
        assert!(count > 10, "{count}");
        assert!(start.elapsed() <= Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_work_is_called_once() {
        for reason in [
            Reason::Invalid,
            Reason::NotFound,
            Reason::GenerationMismatch,
            Reason::Internal,
            Reason::Fenced,
        ] {
            assert_eq!(
                attempts(reason, Duration::from_secs(60)).await.1,
                1,
                "{reason:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn success_ends_it_and_attempts_have_their_own_deadline() {
        let mut left = vec![Duration::from_secs(30), Duration::from_secs(30)];
        let outcome = Policy::default()
            .run(Duration::from_secs(600), |attempt| {
                let expected = left.pop();
                async move {
                    assert_eq!(Some(attempt), expected);
                    Err::<(), _>(Error::new(Reason::Invalid, "enough"))
                }
            })
            .await;
        assert_eq!(outcome.unwrap_err().reason(), Reason::Invalid);
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_that_the_other_side_asks_for_is_honoured() {
        let start = Instant::now();
        let mut first = true;
        let outcome = Policy::default()
            .run(Duration::from_secs(60), |_| {
                let answer = if std::mem::take(&mut first) {
                    Err(Error::new(Reason::RateLimited, "x")
                        .with_retry_after(Duration::from_secs(20)))
                } else {
                    Ok(())
                };
                async { answer }
            })
            .await;
        assert_eq!(outcome, Ok(()));
        assert!(start.elapsed() >= Duration::from_secs(20));
    }

    /// The error of a call over several servers.
    fn several(after: After) -> Error {
        let failure = TransportError::of(Error::unavailable("x")).and(after);
        crate::to_error(&tonic::Status::from_error(Box::new(failure)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_not_tried_yet_is_tried_at_once_and_an_election_is_waited_for() {
        let policy = Policy {
            unreachable: Duration::ZERO,
            ..Policy::default()
        };
        let patience = Duration::from_secs(60);
        let (start, elected) = (Instant::now(), Duration::from_secs(20));
        let mut afters = [After::Next, After::Next, After::Soon].into_iter().cycle();
        let outcome = policy.run(patience, |_| {
            let after = afters.next().unwrap();
            let answer = if start.elapsed() < elected {
                Err(several(after))
            } else {
                Ok(())
            };
            std::future::ready(answer)
        });
        assert_eq!(outcome.await, Ok(()));
        assert!(start.elapsed() <= elected + policy.first);

        // And once none can be reached, that is said.
        let start = Instant::now();
        let mut afters = [After::Next, After::Next, After::Unreachable].into_iter();
        let outcome = policy.run(patience, |_| {
            std::future::ready(Err::<(), _>(several(afters.next().unwrap())))
        });
        assert!(crate::is_unreachable(&outcome.await.unwrap_err()));
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[test]
    fn waits_grow_and_stay_bounded() {
        let policy = Policy::default();
        let error = Error::unavailable("x");
        for attempts in [0, 1, 5, 40, u32::MAX] {
            for _ in 0..100 {
                let bound = policy
                    .first
                    .saturating_mul(2_u32.saturating_pow(attempts))
                    .min(policy.longest);
                assert!(policy.wait(attempts, &error) <= bound);
            }
        }
    }
}
