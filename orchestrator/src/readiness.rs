//! Whether what this process shows may be believed.

use drover_server::Readiness;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Reports readiness, and ends what depends on it.
#[derive(Clone, Debug)]
pub(crate) struct ReadinessReporter {
    now: watch::Sender<Readiness>,
    stop: CancellationToken,
}

impl ReadinessReporter {
    /// `stop` is cancelled when the process stops.
    pub(crate) fn new(stop: CancellationToken) -> Self {
        Self {
            now: watch::Sender::new(Readiness::Ready),
            stop,
        }
    }

    pub(crate) fn report(&self, now: &Readiness) {
        self.now.send_if_modified(|known| {
            let changed = known != now;
            known.clone_from(now);
            changed
        });
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Readiness> {
        self.now.subscribe()
    }

    /// Waits until streams must end: the process stops, or what it shows may be of the past.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let (stop, mut readiness) = (self.stop.clone(), self.now.subscribe());
        async move {
            let out_of_touch = readiness.wait_for(|now| *now != Readiness::Ready);
            tokio::select! {
                () = stop.cancelled() => {}
                _ = out_of_touch => {}
            }
        }
    }
}
