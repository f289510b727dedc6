//! The tasks of an orchestrator, and how they end.

use std::time::Duration;

use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Tasks that the end of the orchestrator waits for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
    /// Those of them whose outcome somebody waits for.
    awaited: TaskTracker,
    stop: CancellationToken,
    kill: CancellationToken,
}

impl Tasks {
    /// Starts a task that the shutdown waits for, and aborts at the end of the grace period.
    ///
    /// What a task holds is moved into place several times until it runs, so it is boxed first.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let (kill, task) = (self.kill.clone(), Box::pin(task));
        self.tracker.spawn(async move {
            kill.run_until_cancelled_owned(task).await;
        });
    }

    /// Starts a task that ends as soon as the orchestrator stops.
    pub(crate) fn spawn_until_stop(&self, task: impl Future<Output = ()> + Send + 'static) {
        let (stop, task) = (self.stop.clone(), Box::pin(task));
        self.spawn(async move {
            stop.run_until_cancelled(task).await;
        });
    }

    /// Carries a task through, even if nobody waits for it any more. `None` if it was aborted.
    pub(crate) async fn complete<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let task = (self.kill.clone()).run_until_cancelled_owned(Box::pin(task));
        match self.awaited.spawn(task).await {
            Ok(done) => done,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => None,
        }
    }

    /// Cancelled when tasks are to end.
    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// The tasks, for parts that start some by themselves.
    pub(crate) fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    /// Begins nothing more, and waits for so long for what is under way.
    pub(crate) async fn pause(&self, grace: Duration) {
        let _ = tokio::time::timeout(grace, self.end()).await;
    }

    /// Begins nothing more, and waits for so long for what somebody waits for. The rest goes on.
    pub(crate) async fn answer(&self, grace: Duration) {
        self.stop.cancel();
        self.awaited.close();
        let _ = tokio::time::timeout(grace, self.awaited.wait()).await;
    }

    async fn end(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.awaited.close();
        // One may have begun another.
        while !self.is_empty() {
            self.awaited.wait().await;
            self.tracker.wait().await;
        }
    }

    /// Aborts what is under way.
    pub(crate) async fn kill(&self) {
        self.kill.cancel();
        self.end().await;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tracker.is_empty() && self.awaited.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_waited_for_and_a_call_that_nobody_waits_for_goes_on() {
        let tasks = Tasks::default();
        tasks.spawn(sleep(LONG * 2));
        let began = Instant::now();
        let (answer, ()) = tokio::join!(
            tasks.complete(async {
                sleep(LONG).await;
                7
            }),
            async {
                tokio::task::yield_now().await;
                tasks.answer(LONG * 3).await;
                assert_eq!(began.elapsed(), LONG);
            }
        );
        assert_eq!(answer, Some(7));
        assert!(!tasks.is_empty());
        tasks.pause(LONG * 3).await;
        assert_eq!(began.elapsed(), LONG * 2);
        assert!(tasks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_begins_at_its_end_is_waited_for_too() {
        let tasks = Tasks::default();
        let began = Instant::now();
        let later = tasks.clone();
        tasks.spawn(async move {
            sleep(LONG).await;
            later.spawn(sleep(LONG));
        });
        tasks.pause(LONG * 3).await;
        assert_eq!(began.elapsed(), LONG * 2);
    }
}
