//! What the lists of an idle platform may take of the account's hourly quota, which all of its tokens share.

use std::time::Duration;

/// Part of the quota up to which nothing is held back, so that a small account is polled as the settings say.
const FREE: f64 = 0.25;
/// Part of the hourly quota that lists may use at most, once more than [`FREE`] is used.
const LISTS: f64 = 0.5;
/// The quota is per hour (<https://docs.digitalocean.com/reference/api/reference/#rate-limit>).
const HOUR: f64 = 3600.0;
/// Granularity of the interval, so that it does not change with every list.
const STEP: f64 = 5.0;
/// Longest time between two lists. Beyond, deaths would be noticed too late to be of use.
const LONGEST: f64 = 300.0;

/// Calls of the sliding hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) limit: u64,
    pub(super) remaining: u64,
}

impl Quota {
    /// Whether so much is left that nothing needs to be saved.
    pub(super) fn is_ample(self) -> bool {
        self.share() >= 1.0 - FREE
    }

    fn share(self) -> f64 {
        self.remaining as f64 / self.limit.max(1) as f64
    }

    /// Minimum time between two lists of this many calls.
    pub(super) fn pause(self, calls: usize) -> Duration {
        if self.is_ample() {
            return Duration::ZERO;
        }
        let an_hour = self.limit as f64 * LISTS * self.share() / (1.0 - FREE);
        let pause = calls as f64 * HOUR / an_hour.max(1.0);
        Duration::from_secs_f64(((pause / STEP).ceil() * STEP).min(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 5_000;

    /// Calls in an hour of lists of this many pages at most every ten seconds, after some hours of nothing else.
    fn an_hour(pages: usize) -> u64 {
        let (mut calls, mut at) = (std::collections::VecDeque::new(), 0.0);
        while at < 5.0 * HOUR {
            while calls.front().is_some_and(|call| *call <= at - HOUR) {
                calls.pop_front();
            }
            let remaining = LIMIT.saturating_sub(calls.len() as u64);
            let pause = Quota {
                limit: LIMIT,
                remaining,
            }
            .pause(pages);
            calls.extend(std::iter::repeat_n(at, pages));
            at += pause.as_secs_f64().max(10.0);
        }
        calls.len() as u64
    }

    #[test]
    fn an_idle_platform_leaves_half_of_the_hour_to_others() {
        assert_eq!(an_hour(1), 360, "as the settings say");
        // 50 pages are 10,000 droplets.
        for pages in [2, 5, 10, 14, 30, 50] {
            let calls = an_hour(pages);
            assert!(
                calls <= LIMIT / 2,
                "{calls} calls an hour for {pages} pages"
            );
        }
    }

    #[test]
    fn a_list_is_never_put_off_for_long() {
        for remaining in [0, 1, 100] {
            let quota = Quota {
                limit: LIMIT,
                remaining,
            };
            assert_eq!(quota.pause(50), Duration::from_secs(300));
        }
    }
}
