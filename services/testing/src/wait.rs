//! Waiting for what a test expects: for a condition, never for a time.
#![allow(
    clippy::panic,
    reason = "a test whose condition never holds fails with its name"
)]

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long anything may take on a machine that does a lot besides.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Time between two looks, at first and after a while.
const LOOKS: (Duration, Duration) = (Duration::from_millis(3), Duration::from_millis(20));
/// From here on it is said what is waited for, so that the log of a test that is ended ends with it.
const LONG: Duration = Duration::from_secs(5);

/// One wait.
#[derive(Debug)]
pub struct Wait<'a> {
    what: &'a str,
    patience: Duration,
    began: Instant,
    look: Duration,
    said: bool,
}

impl<'a> Wait<'a> {
    /// A wait for what these words say, from now on.
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

    /// Waits a moment. Answers whether to go on.
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
    /// Always.
    pub fn fail(&self) -> ! {
        panic!("not within {:?}: {}", self.patience, self.what)
    }
}

/// Waits until there is an answer.
///
/// # Panics
/// If there is none within [`PATIENCE`], with what was waited for.
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

/// Waits until a condition holds.
///
/// # Panics
/// If it does not within [`PATIENCE`], with its name.
pub async fn holds(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    until(what, async || condition().await.then_some(())).await;
}
