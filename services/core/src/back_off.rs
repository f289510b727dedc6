//! Spans of time: exponential backoff, without jitter. Callers of which many wait at the same time add jitter themselves.

use std::time::Duration;

use crate::Millis;

/// Returns the backoff after a number of consecutive failures: `first` after the first failure (`failures` is 0 then),
/// twice as long after each further one, and at most `most`.
#[must_use]
pub fn back_off(first: Millis, most: Millis, failures: impl Into<u32>) -> Millis {
    first.saturating_mul(1 << failures.into().min(63)).min(most)
}

/// Like [`back_off`], for spans that are not recorded.
#[must_use]
pub fn back_off_for(first: Duration, most: Duration, failures: impl Into<u32>) -> Duration {
    first.saturating_mul(1 << failures.into().min(31)).min(most)
}

/// A span in milliseconds. Spans that are too long for that are the longest that can still be added to a time.
#[must_use]
pub fn millis(span: Duration) -> Millis {
    Millis::try_from(span.as_millis()).unwrap_or(Millis::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_until_the_longest_one() {
        let waits: Vec<Millis> = (0..5_u32)
            .map(|failures| back_off(500, 3_000, failures))
            .collect();
        assert_eq!(waits, [500, 1_000, 2_000, 3_000, 3_000]);
    }

    #[test]
    fn no_number_of_failures_is_too_large() {
        for failures in [31_u32, 32, 63, 64, u32::MAX] {
            assert_eq!(back_off(1_000, 60_000, failures), 60_000);
        }
        assert_eq!(back_off(0, 60_000, u32::MAX), 0);
        let (first, most) = (Duration::from_millis(1), Duration::from_secs(60));
        assert_eq!(back_off_for(first, most, 3_u32), Duration::from_millis(8));
        for failures in [31_u32, 32, 63, 64, u32::MAX] {
            assert_eq!(back_off_for(first, most, failures), most);
        }
    }
}
