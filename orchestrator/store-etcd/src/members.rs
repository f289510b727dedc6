//! The members of etcd, and which of them is asked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use drover_client::{Channel, Target, connect};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Request, Status};

/// A member that is cut off or stands still is given up after two of these.
const PING: Duration = Duration::from_secs(1);
/// Delay before a read is repeated after every member failed.
const PAUSE: Duration = Duration::from_millis(50);

/// Members of one etcd. One of them is asked until it fails, then the next.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    channels: Arc<[Channel]>,
    at: Arc<AtomicUsize>,
}

impl Members {
    /// `first` is the member to begin with, so that commits, watches and leases do not all fail with one.
    pub(crate) fn new(targets: &[Target], first: usize) -> Self {
        let channels: Arc<[Channel]> = targets
            .iter()
            .cloned()
            .map(|mut target| {
                target.keep_alive_interval = PING;
                target.keep_alive_timeout = PING;
                target.connect_timeout = PING;
                connect(&target)
            })
            .collect();
        Self {
            at: Arc::new(AtomicUsize::new(first % channels.len().max(1))),
            channels,
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Channel> {
        self.channels.iter().cloned()
    }

    /// The member to ask, and its number for [`Members::failed`].
    pub(crate) fn present(&self) -> (Channel, usize) {
        let at = self.at.load(Ordering::Acquire);
        (self.channels[at].clone(), at)
    }

    /// Goes on with the next member, once for all calls that failed at this one.
    pub(crate) fn failed(&self, at: usize) {
        let next = (at + 1) % self.channels.len();
        let _ = self
            .at
            .compare_exchange(at, next, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Makes one call at the present member.
    pub(crate) async fn once<T, F>(
        &self,
        within: Duration,
        call: impl FnOnce(Channel) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let (channel, at) = self.present();
        let outcome = timeout_at(Instant::now() + within, call(channel))
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("etcd did not answer in time")));
        if outcome.as_ref().is_err_and(is_of_member) {
            self.failed(at);
        }
        outcome
    }

    /// Makes a call that changes nothing, at one member after another.
    pub(crate) async fn repeated<T, F>(
        &self,
        within: Duration,
        call: impl Fn(Channel) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let end = Instant::now() + within;
        // Each member is given its share of the time, or one that stands still would use up all of it.
        let share = within / u32::try_from(self.channels.len() + 1).unwrap_or(u32::MAX);
        let mut tries = 0;
        loop {
            let outcome = self.once(share, &call).await;
            tries += 1;
            match outcome {
                Err(status) if is_of_member(&status) && Instant::now() < end => {
                    if tries % self.channels.len() == 0 {
                        sleep(PAUSE).await;
                    }
                }
                outcome => return outcome,
            }
        }
    }
}

/// Whether another member may do better, as opposed to an answer of etcd as a whole.
pub(crate) fn is_of_member(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Unknown
            | Code::Internal
            | Code::Cancelled
            | Code::Aborted
    )
}

/// A request of a stream that ends when its member has lost the others, instead of standing still.
pub(crate) fn with_leader<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    metadata.insert(
        "hasleader",
        tonic::metadata::MetadataValue::from_static("true"),
    );
    request
}
