//! Waits and drains that survive lost connections.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1::{self as api, PodWaitCondition, WaitProgress};
use futures::{
    FutureExt, Stream, StreamExt, TryStreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use tokio::time::Instant;

use super::KubernetesClient;
use crate::{
    call::{request, to_error, within},
    is_unreachable,
    retry::{Policy, is_transient},
};

/// An update of a wait or a drain.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// How far it is. The last one is `done`.
    Progress(WaitProgress),
    /// The connection was lost and is being re-established.
    Reconnecting(Error),
}

/// A wait or a drain. It ends after `done`, or after an error; dropping it cancels the call.
///
/// A lost connection, a restarted server and any other transient failure is survived until the deadline, with the
/// back-off of [`Policy`]. A server that was never reached is given up earlier ([`Policy::unreachable`]).
/// `NothingMatches` is an error of the first call only: what vanishes later is waited for. A wait for `GONE` goes on
/// with the pods that were left, by name and uid, as far as the last progress lists them all, so that pods made in the
/// meantime do not count, not even under the same name; its numbers then begin anew.
///
/// Errors: those of the call; `DeadlineExceeded`, with what was missing.
pub struct Wait(BoxStream<'static, Result<Update>>);

impl Wait {
    /// Waits until the end, and returns the last progress.
    pub async fn done(mut self) -> Result<WaitProgress> {
        let mut last = WaitProgress::default();
        while let Some(update) = self.0.try_next().await? {
            match update {
                Update::Progress(progress) => last = progress,
                Update::Reconnecting(error) => tracing::debug!(%error, "waiting again"),
            }
        }
        Ok(last)
    }
}

impl Stream for Wait {
    type Item = Result<Update>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").finish_non_exhaustive()
    }
}

type Messages = BoxStream<'static, Result<WaitProgress>>;
/// Opens the call again, after the last progress and with this deadline.
type Open = Box<dyn FnMut(Option<&WaitProgress>, Duration) -> Opening + Send>;
type Opening = BoxFuture<'static, Result<Messages>>;

macro_rules! opened {
    ($client:expr, $call:ident($message:expr), $left:expr) => {{
        let (mut client, message, left) = ($client.clone(), $message, $left);
        async move {
            let answers = within(left, client.$call(request(message, left))).await?;
            let progress = answers.filter_map(async |answer| {
                answer
                    .map(|answer| answer.progress)
                    .map_err(|status| to_error(&status))
                    .transpose()
            });
            Ok(progress.boxed())
        }
        .boxed()
    }};
}

impl KubernetesClient {
    /// Waits for nodes, as `WaitNodes` of the protos documents it.
    #[must_use]
    pub fn wait_nodes(&self, mut message: api::WaitNodesRequest, deadline: Duration) -> Wait {
        let client = self.nodes.clone();
        self.wait(deadline, move |last, left| {
            message.fail_if_none &= last.is_none();
            opened!(client, wait_nodes(message.clone()), left)
        })
    }

    /// Waits for pods, as `WaitPods` of the protos documents it.
    #[must_use]
    pub fn wait_pods(&self, mut message: api::WaitPodsRequest, deadline: Duration) -> Wait {
        let client = self.pods.clone();
        self.wait(deadline, move |last, left| {
            if let Some(last) = last {
                go_on(&mut message, last);
            }
            opened!(client, wait_pods(message.clone()), left)
        })
    }

    /// Drains a node, as `DrainNode` of the protos documents it. After a lost connection the drain begins again: pods
    /// that have been evicted are gone by then.
    #[must_use]
    pub fn drain(&self, message: api::DrainNodeRequest, deadline: Duration) -> Wait {
        let client = self.nodes.clone();
        self.wait(deadline, move |_, left| {
            opened!(client, drain_node(message.clone()), left)
        })
    }

    fn wait(
        &self,
        deadline: Duration,
        open: impl FnMut(Option<&WaitProgress>, Duration) -> Opening + Send + 'static,
    ) -> Wait {
        let now = Instant::now();
        let waiting = Waiting {
            open: Box::new(open),
            policy: self.policy,
            began: now,
            deadline,
            messages: None,
            last: None,
            failures: 0,
            pause: None,
            over: false,
        };
        let updates = stream::unfold(waiting, |mut waiting| async move {
            let update = waiting.next().await?;
            Some((update, waiting))
        });
        Wait(updates.boxed())
    }
}

/// Changes the request of a wait that has begun to one that continues it.
fn go_on(message: &mut api::WaitPodsRequest, last: &WaitProgress) {
    message.fail_if_none = false;
    let gone = PodWaitCondition::Gone as i32;
    let missing = last.matched.saturating_sub(last.met);
    let all_named = usize::try_from(missing).is_ok_and(|missing| missing == last.pending.len());
    // Without names every pod counts, which for a wait of which nothing is left would be the wrong ones.
    if message.conditions.contains(&gone) && all_named && missing > 0 {
        message.names = last.pending.iter().map(|pod| pod.name.clone()).collect();
        // A server of an earlier version tells no uids.
        if last.pending.iter().all(|pod| !pod.uid.is_empty()) {
            message.uids = last.pending.iter().map(|pod| pod.uid.clone()).collect();
        }
    }
}

struct Waiting {
    open: Open,
    policy: Policy,
    began: Instant,
    deadline: Duration,
    messages: Option<Messages>,
    last: Option<WaitProgress>,
    /// Consecutive ones.
    failures: u32,
    /// Before the next attempt.
    pause: Option<Duration>,
    over: bool,
}

impl Waiting {
    async fn next(&mut self) -> Option<Result<Update>> {
        if self.over {
            return None;
        }
        let left = self.deadline.saturating_sub(self.began.elapsed());
        let message = tokio::time::timeout(left, self.message()).await;
        Some(match message {
            Ok(Ok(progress)) => {
                self.failures = 0;
                self.over = progress.done;
                self.last = Some(progress.clone());
                Ok(Update::Progress(progress))
            }
            Ok(Err(error)) => self.failed(error),
            Err(_) => {
                self.over = true;
                Err(self.late())
            }
        })
    }

    async fn message(&mut self) -> Result<WaitProgress> {
        if let Some(pause) = self.pause.take() {
            tokio::time::sleep(pause).await;
        }
        if self.messages.is_none() {
            let left = self.deadline.saturating_sub(self.began.elapsed());
            self.messages = Some((self.open)(self.last.as_ref(), left).await?);
        }
        let next = match &mut self.messages {
            Some(messages) => messages.next().await,
            None => None,
        };
        next.unwrap_or_else(|| Err(Error::unavailable("the server ended the wait")))
    }

    fn failed(&mut self, error: Error) -> Result<Update> {
        self.messages = None;
        let elapsed = self.began.elapsed();
        if error.reason() == Reason::DeadlineExceeded && elapsed >= self.deadline {
            self.over = true;
            return Err(self.late());
        }
        let wait = self.policy.wait(self.failures, &error);
        let limit = if self.last.is_none() && is_unreachable(&error) {
            self.policy.unreachable.min(self.deadline)
        } else {
            self.deadline
        };
        if !is_transient(&error) || elapsed + wait >= limit {
            self.over = true;
            return Err(error);
        }
        self.failures = self.failures.saturating_add(1);
        self.pause = Some(wait);
        Ok(Update::Reconnecting(error))
    }

    fn late(&self) -> Error {
        let mut message = format!("not done within {:?}", self.deadline);
        if let Some(last) = &self.last {
            message += &format!(": {} of {}", last.met, last.matched);
            if let Some(first) = last.pending.first() {
                message += &format!("; {} is {}", first.name, first.reason);
            }
        }
        Error::new(Reason::DeadlineExceeded, message)
    }
}
