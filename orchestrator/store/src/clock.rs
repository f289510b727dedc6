//! A single time axis: the wall clock at startup, monotonic from then on.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use drover_core::{Millis, millis};
use tokio::time::Instant;

/// The clock of this process. Recorded times stay comparable across restarts, and time never runs backwards: after
/// startup it is independent of the wall clock, and it starts no earlier than the latest time in the store.
#[derive(Debug)]
pub struct Clock {
    wall: AtomicU64,
    /// The part of it that the machine's clock was behind the store.
    behind: AtomicU64,
    start: Instant,
}

impl Clock {
    /// Starts the clock at this time.
    #[must_use]
    pub fn new(wall: Millis) -> Self {
        Self {
            wall: AtomicU64::new(wall),
            behind: AtomicU64::new(0),
            start: Instant::now(),
        }
    }

    /// Advances the clock to at least this time, which an earlier process has recorded. Returns by how much the
    /// machine's clock is behind. Must be called before anything else happens.
    pub fn not_before(&self, latest: Millis) -> Millis {
        let behind = latest.saturating_sub(self.now());
        self.wall.fetch_add(behind, Ordering::Relaxed);
        self.behind.fetch_add(behind, Ordering::Relaxed);
        behind
    }

    /// What it would be without what the store had recorded: the machine's clock at startup, and the time since then.
    #[must_use]
    pub fn of_machine(&self) -> Millis {
        self.now()
            .saturating_sub(self.behind.load(Ordering::Relaxed))
    }

    fn wall(&self) -> Millis {
        self.wall.load(Ordering::Relaxed)
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub fn now(&self) -> Millis {
        self.wall() + millis(self.start.elapsed())
    }

    /// Start time of this process.
    #[must_use]
    pub fn start(&self) -> Millis {
        self.wall()
    }

    /// Converts a time to an `Instant`.
    #[must_use]
    pub fn instant(&self, at: Millis) -> Instant {
        self.start + Duration::from_millis(at.saturating_sub(self.wall()))
    }

    /// The remaining duration until a time.
    #[must_use]
    pub fn until(&self, at: Millis) -> Duration {
        Duration::from_millis(at.saturating_sub(self.now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_goes_on_from_what_is_recorded_where_the_clock_of_the_machine_is_behind() {
        let clock = Clock::new(1_700_000_000_000);
        let recorded = clock.now() + 3_600_000;
        let behind = clock.not_before(recorded);
        assert!(behind <= 3_600_000 && behind > 3_590_000, "{behind}");
        assert_eq!((clock.now(), clock.start()), (recorded, recorded));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(clock.now(), recorded + 5_000);
        assert_eq!(clock.until(recorded + 6_000), Duration::from_secs(1));
        assert_eq!(clock.not_before(recorded), 0, "it is later already");
    }
}
