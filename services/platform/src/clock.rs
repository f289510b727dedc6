//! Wall-clock times that follow tokio's clock, so that they never run backwards and stand still with a paused clock.

use std::time::SystemTime;

use prost_types::Timestamp;
use tokio::time::Instant;

/// The wall clock at the start, continued by tokio's clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    wall: SystemTime,
    start: Instant,
}

impl Clock {
    /// Begins with the wall clock's time.
    #[must_use]
    pub fn start() -> Self {
        Self {
            wall: SystemTime::now(),
            start: Instant::now(),
        }
    }

    /// The time now.
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

/// A time as it travels.
#[must_use]
pub fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::from(time)
}
