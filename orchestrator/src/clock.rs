//! One time axis: wall clock at the start, monotonic from then on.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drover_core::Millis;
use tokio::time::Instant;

/// The clock of this process. Durable times survive a restart, and nothing runs backwards while it is up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    wall: Millis,
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            wall: wall(),
            start: Instant::now(),
        }
    }

    /// Milliseconds since the Unix epoch.
    pub(crate) fn now(&self) -> Millis {
        self.wall + millis(self.start.elapsed())
    }

    /// When this process began.
    pub(crate) fn start(&self) -> Millis {
        self.wall
    }

    /// The instant of a time.
    pub(crate) fn instant(&self, at: Millis) -> Instant {
        self.start + Duration::from_millis(at.saturating_sub(self.wall))
    }

    /// How much longer it is until a time.
    pub(crate) fn until(&self, at: Millis) -> Duration {
        Duration::from_millis(at.saturating_sub(self.now()))
    }
}

/// What the clock on the wall shows, in milliseconds since the Unix epoch.
#[cfg(not(feature = "crash-points"))]
pub(crate) fn wall() -> Millis {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, millis)
}

/// The same under a clock that a test may pause: all starts of a test live in the same time, and it never jumps.
#[cfg(feature = "crash-points")]
pub(crate) fn wall() -> Millis {
    static FIRST: std::sync::OnceLock<(Millis, Instant)> = std::sync::OnceLock::new();
    let now = Instant::now();
    let (wall, first) = *FIRST.get_or_init(|| {
        (
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, millis),
            now,
        )
    });
    // Each runtime has a clock of its own, which may be behind that of the first.
    wall + millis(now.saturating_duration_since(first))
        - millis(first.saturating_duration_since(now))
}

pub(crate) fn millis(span: Duration) -> Millis {
    Millis::try_from(span.as_millis()).unwrap_or(Millis::MAX / 4)
}
