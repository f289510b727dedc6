//! The tasks of an orchestrator, and how they end.

use std::time::Duration;

use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Tasks that the end of the orchestrator waits for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
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
        match self.tracker.spawn(task).await {
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
        self.stop.cancel();
        self.tracker.close();
        let _ = tokio::time::timeout(grace, self.tracker.wait()).await;
    }

    /// Aborts what is under way.
    pub(crate) async fn kill(&self) {
        self.stop.cancel();
        self.kill.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tracker.is_empty()
    }
}
