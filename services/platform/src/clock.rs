//! Wall-clock time derived from tokio's clock, so that it never runs backwards and stops with a paused clock.

use std::time::SystemTime;

use prost_types::Timestamp;
use tokio::time::Instant;

/// Wall-clock time at the start, advanced by tokio's clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    wall: SystemTime,
    start: Instant,
}

impl Clock {
    /// Starts at the current wall-clock time.
    #[must_use]
    pub fn start() -> Self {
        Self {
            wall: SystemTime::now(),
            start: Instant::now(),
        }
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.at(Instant::now())
    }

    /// The time at an instant.
    #[must_use]
    pub fn at(&self, instant: Instant) -> SystemTime {
        self.wall + instant.saturating_duration_since(self.start)
    }
}

/// Converts a time to its wire form.
#[must_use]
pub fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::from(time)
}
