//! What an earlier process of this platform may have asked for: the cloud may still make it, in a failure domain that only
//! that process knew, since the choice depends on which ones were full or silent then.

use std::time::{Duration, SystemTime};

use drover_core::Error;
use tokio::time::Instant;
use uuid::Uuid;

/// Requests from before this process, and until when they may come to something.
pub(super) struct Earlier {
    /// In milliseconds since the Unix epoch, as request ids have it.
    began: u128,
    settled: Instant,
}

impl Earlier {
    /// `longest`: how long a call may take. One that was under way when the earlier process ended has ended by then.
    pub(super) fn until_now(longest: Duration) -> Self {
        let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            began: began.unwrap_or_default().as_millis(),
            settled: Instant::now() + longest,
        }
    }

    /// The error for a request that an earlier process may have begun. Its id says when it was made, if it is a UUID of
    /// version 7, as those of orchestrators are.
    pub(super) fn may_make(&self, request_id: &str) -> Option<Error> {
        let left = self.settled.checked_duration_since(Instant::now())?;
        let made = Uuid::parse_str(request_id).ok()?.get_timestamp()?.to_unix();
        let made = Duration::new(made.0, made.1).as_millis();
        (made < self.began && !left.is_zero()).then(|| {
            let message = "the platform server was started again since this was asked for, and what it asked for before may \
                           still come";
            Error::unavailable(message).with_retry_after(left)
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;
    use uuid::{NoContext, Timestamp};

    use super::*;

    /// The id of a request that was made so long after the epoch.
    fn made(at: Duration) -> String {
        let at = Timestamp::from_unix(NoContext, at.as_secs(), at.subsec_nanos());
        Uuid::new_v7(at).to_string()
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_was_asked_for_before_waits_and_only_for_so_long() {
        let now = SystemTime::now();
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let (before, after) = (
            made(now - Duration::from_secs(1)),
            made(now + Duration::from_secs(1)),
        );
        let earlier = Earlier::until_now(Duration::from_secs(30));
        assert!(earlier.may_make(&after).is_none());
        assert!(earlier.may_make(&Uuid::new_v4().to_string()).is_none());
        advance(Duration::from_secs(20)).await;
        let error = earlier.may_make(&before).unwrap();
        assert_eq!(error.retry_after(), Some(Duration::from_secs(10)));
        advance(Duration::from_secs(10)).await;
        assert!(earlier.may_make(&before).is_none());
    }
}
