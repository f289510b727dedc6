//! Ends a leader that lives and does no work. Its lease would be renewed for ever, and no other replica take its place.

use std::{sync::Weak, thread, time::Duration};

use crate::shared::Shared;

/// Longer than a round of a pass takes with a store that answers late: a commit may be sent nine times, wait four seconds
/// for each answer and five for each look whether it was done, and twice as long for its place.
const LONGEST: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_secs(5);

/// Looks from a thread of its own, which no task can hold up.
pub(crate) fn start(shared: Weak<Shared>) {
    let looking = move || {
        // Whoever was stopped as a whole finds everything old when it goes on, and needs a moment.
        let mut before = None;
        loop {
            thread::sleep(LOOK);
            let Some(shared) = shared.upgrade() else {
                return;
            };
            if shared.stop.is_cancelled() {
                return;
            }
            // Whoever has lost touch is not to do anything.
            let stuck = shared.queue.stuck(LONGEST).filter(|_| shared.store.holds());
            if stuck.is_some() && stuck == before {
                tracing::error!(
                    why = stuck,
                    "the queue of this process is stuck; it ends, so that another replica leads"
                );
                // What is stuck cannot be waited for.
                std::process::abort();
            }
            before = stuck;
        }
    };
    let started = thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(looking);
    if let Err(error) = started {
        tracing::warn!(%error, "nobody looks whether this process does its work");
    }
}
