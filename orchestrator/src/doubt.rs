//! Changes of which it is unknown whether the store has made them, or will.

use std::time::Duration;

use drover_core::{Error, Reason};
use tokio::time::sleep;

/// Delay before a store is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Waits until the store can be asked again what became of a change. `false` if it never will say.
pub(crate) async fn may_end(kind: &'static str, name: &str, error: &Error) -> bool {
    tracing::warn!(kind, name, %error, "what became of a change is not known yet");
    let may_pass = matches!(
        error.reason(),
        Reason::Unavailable | Reason::Overloaded | Reason::StorageFull | Reason::RevisionMismatch
    );
    if may_pass {
        sleep(AGAIN).await;
    }
    may_pass
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_store_is_asked_again_a_moment_later_unless_it_will_never_say() {
        let waited = async |error: Error| {
            let began = Instant::now();
            (may_end("cluster", "a", &error).await, began.elapsed())
        };
        assert_eq!(waited(Error::unavailable("")).await, (true, AGAIN));
        let full = Error::new(Reason::StorageFull, "");
        assert_eq!(waited(full).await, (true, AGAIN));
        let damaged = waited(Error::internal("damaged")).await;
        assert_eq!(damaged, (false, Duration::ZERO));
    }
}
