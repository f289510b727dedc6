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
use tonic::{Code, Request, Status, service::interceptor::InterceptedService};

use crate::login::{Login, Pass, is_unknown};

/// A member that is cut off or stands still is given up after two of these.
const PING: Duration = Duration::from_secs(1);
/// Delay before a read is repeated after every member failed.
const PAUSE: Duration = Duration::from_millis(50);

/// What calls are made over: a channel to a member, with what shows who calls.
pub(crate) type Connection = InterceptedService<Channel, Pass>;

/// The way to a member, and who logs in there: nobody if a certificate says who calls.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    channel: Channel,
    login: Option<Login>,
}

impl Way {
    pub(crate) fn new(target: &Target, login: Option<&Login>) -> Self {
        Self {
            channel: connect(target),
            login: login.cloned(),
        }
    }

    /// Makes a call, and once more after a new login if the member does not know who calls: it has done nothing then.
    pub(crate) async fn call<T, F>(&self, call: impl Fn(Connection) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let with = |pass| InterceptedService::new(self.channel.clone(), pass);
        let Some(login) = &self.login else {
            return call(with(Pass::default())).await;
        };
        let pass = login.pass(&self.channel).await?;
        match call(with(pass.clone())).await {
            Err(status) if is_unknown(&status) => {
                let pass = login.renewed(&pass, &self.channel).await?;
                call(with(pass)).await
            }
            outcome => outcome,
        }
    }

    /// Logs in, if somebody is to log in and has not.
    pub(crate) async fn log_in(&self) -> Result<(), Status> {
        match &self.login {
            Some(login) => login.pass(&self.channel).await.map(drop),
            None => Ok(()),
        }
    }
}

/// Members of one etcd. One of them is asked until it fails, then the next.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    ways: Arc<[Way]>,
    at: Arc<AtomicUsize>,
}

impl Members {
    /// `first` is the member to begin with, so that commits, watches and leases do not all fail with one.
    pub(crate) fn new(targets: &[Target], login: Option<&Login>, first: usize) -> Self {
        let ways: Arc<[Way]> = targets
            .iter()
            .cloned()
            .map(|mut target| {
                target.keep_alive_interval = PING;
                target.keep_alive_timeout = PING;
                target.connect_timeout = PING;
                Way::new(&target, login)
            })
            .collect();
        Self {
            at: Arc::new(AtomicUsize::new(first % ways.len().max(1))),
            ways,
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Way> {
        self.ways.iter().cloned()
    }

    /// The number of the member to ask, for [`Members::failed`].
    pub(crate) fn present(&self) -> usize {
        self.at.load(Ordering::Acquire)
    }

    /// Goes on with the next member, once for all calls that failed at this one.
    pub(crate) fn failed(&self, at: usize) {
        let next = (at + 1) % self.ways.len();
        let _ = self
            .at
            .compare_exchange(at, next, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Makes a call at the present member, which carries it out at most once.
    pub(crate) async fn once<T, F>(
        &self,
        within: Duration,
        call: impl Fn(Connection) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let at = self.present();
        let outcome = timeout_at(Instant::now() + within, self.ways[at].call(call))
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
        call: impl Fn(Connection) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let end = Instant::now() + within;
        // Each member is given its share of the time, or one that stands still would use up all of it.
        let share = within / u32::try_from(self.ways.len() + 1).unwrap_or(u32::MAX);
        let mut tries = 0;
        loop {
            let outcome = self.once(share, &call).await;
            tries += 1;
            match outcome {
                Err(status) if is_of_member(&status) && Instant::now() < end => {
                    if tries % self.ways.len() == 0 {
                        sleep(PAUSE).await;
                    }
                }
                Err(status) => {
                    if is_of_member(&status) {
                        self.forget_logins();
                    }
                    return Err(status);
                }
                outcome => return outcome,
            }
        }
    }

    /// Has the next call log in: one that no member answers may show what etcd, put back to an earlier state, does not know
    /// yet.
    fn forget_logins(&self) {
        for login in self.ways.iter().filter_map(|way| way.login.as_ref()) {
            login.forget();
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
