//! Waiting for conditions in tests, never for a fixed time.
#![allow(
    clippy::panic,
    reason = "a test whose condition never holds fails with its name"
)]

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Timeout that is sufficient even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Poll interval, at first and later.
const LOOKS: (Duration, Duration) = (Duration::from_millis(3), Duration::from_millis(20));
/// Waits that take longer are reported, so that the log of a test that is killed ends with what it waited for.
const LONG: Duration = Duration::from_secs(5);

/// A wait for one condition.
#[derive(Debug)]
pub struct Wait<'a> {
    what: &'a str,
    patience: Duration,
    began: Instant,
    look: Duration,
    said: bool,
}

impl<'a> Wait<'a> {
    /// Starts a wait for the condition that `what` describes.
    #[must_use]
    pub fn new(what: &'a str, patience: Duration) -> Self {
        Self {
            what,
            patience,
            began: Instant::now(),
            look: LOOKS.0,
            said: false,
        }
    }

    /// Waits for a moment. Returns whether to continue.
    pub async fn goes_on(&mut self) -> bool {
        let waited = self.began.elapsed();
        if waited > LONG && !self.said {
            self.said = true;
            eprintln!("waiting: {}", self.what);
        }
        sleep(self.look).await;
        self.look = (self.look * 5 / 4).min(LOOKS.1);
        waited < self.patience
    }

    /// Fails the test.
    ///
    /// # Panics
    ///
    /// Always.
    pub fn fail(&self) -> ! {
        panic!("not within {:?}: {}", self.patience, self.what)
    }
}

/// Waits until the condition returns a value.
///
/// # Panics
///
/// If it returns none within [`PATIENCE`], with its description.
pub async fn until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let mut wait = Wait::new(what, PATIENCE);
    loop {
        if let Some(answer) = condition().await {
            return answer;
        }
        if !wait.goes_on().await {
            wait.fail()
        }
    }
}

/// Measures something that takes less than `limit`. Best of three, since other load on the machine may delay one of them.
///
/// # Panics
///
/// If none takes less.
pub async fn best_of_three(limit: Duration, mut measure: impl AsyncFnMut() -> Duration) {
    let mut best = Duration::MAX;
    for _ in 0..3 {
        best = best.min(measure().await);
        if best < limit {
            return;
        }
    }
    panic!("the best of three took {best:?}, not less than {limit:?}")
}

/// Waits until a condition holds.
///
/// # Panics
///
/// If it does not within [`PATIENCE`], with its description.
pub async fn holds(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    until(what, async || condition().await.then_some(())).await;
}
