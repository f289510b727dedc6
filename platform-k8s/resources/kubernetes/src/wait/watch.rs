//! The changes of the objects of a selector: a list, a watch, and both again when the watch cannot go on.

use std::{fmt::Debug, time::Duration};

use drover_core::{Error, Reason, Result, back_off_for};
use futures::{StreamExt as _, stream, stream::BoxStream};
use kube::{
    Api, Resource,
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;

use super::Change;
use crate::{client::Call, errors};

/// Pauses after a failed watch. An API server that restarts is back within seconds, and has to serve all its other
/// clients then.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// Refusals of the credentials in a row that are waited for: new ones may be on their way to the disk.
const MAX_REFUSALS: u32 = 5;

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

struct Follower<K, F> {
    open: F,
    config: watcher::Config,
    call: Call,
    /// `None`: to be opened, with a list.
    events: Option<Events<K>>,
    /// A list was complete: failures from now on are waited for.
    begun: bool,
    failures: u32,
    refusals: u32,
}

/// The changes of what `open` reaches and the selector selects, beginning with a list. Ends with an error only, if the
/// first list fails or no further one can succeed.
pub(crate) fn follow<K, F>(
    open: F,
    config: watcher::Config,
    call: Call,
) -> BoxStream<'static, Result<Change<K>>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    F: Fn() -> Api<K> + Send + 'static,
{
    let follower = Follower {
        open,
        config,
        call,
        events: None,
        begun: false,
        failures: 0,
        refusals: 0,
    };
    stream::unfold(Some(follower), |follower| async {
        let mut follower = follower?;
        match follower.next().await {
            Ok(change) => Some((Ok(change), Some(follower))),
            Err(error) => Some((Err(error), None)),
        }
    })
    .boxed()
}

impl<K, F> Follower<K, F>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    F: Fn() -> Api<K> + Send + 'static,
{
    async fn next(&mut self) -> Result<Change<K>> {
        loop {
            let events = self.events.get_or_insert_with(|| {
                watcher::watcher((self.open)(), self.config.clone()).boxed()
            });
            let event = match events.next().await {
                Some(Ok(event)) => event,
                Some(Err(error)) => {
                    self.failed(error).await?;
                    continue;
                }
                None => {
                    self.events = None;
                    continue;
                }
            };
            if proves(&event) {
                (self.failures, self.refusals) = (0, 0);
            }
            return Ok(match event {
                Event::Init => Change::Listing,
                Event::InitApply(object) => Change::Listed(object),
                Event::InitDone => {
                    self.begun = true;
                    Change::Complete
                }
                Event::Apply(object) => Change::Changed(object),
                Event::Delete(object) => Change::Gone(object),
            });
        }
    }

    /// Waits where the failure may pass.
    async fn failed(&mut self, error: watcher::Error) -> Result<()> {
        let error = told(&self.call, error);
        match error.reason() {
            // The watcher itself would go on from where nobody can any more.
            Reason::PageTokenExpired => self.events = None,
            Reason::CredentialsRefused if self.begun && self.refusals < MAX_REFUSALS => {
                self.refusals += 1;
                // To be opened with new credentials.
                self.events = None;
            }
            _ if self.begun && may_pass(&error) => {}
            _ => return Err(error),
        }
        self.failures += 1;
        back_off(self.failures).await;
        Ok(())
    }
}

async fn back_off(failures: u32) {
    tokio::time::sleep(back_off_for(FIRST_PAUSE, LAST_PAUSE, failures)).await;
}

/// Waits after a call that failed, beside a watch that has begun, where the failure may pass.
pub(super) async fn pause(error: Error, failures: u32) -> Result<()> {
    if !may_pass(&error) {
        return Err(error);
    }
    back_off(failures).await;
    Ok(())
}

fn may_pass(error: &Error) -> bool {
    matches!(
        error.reason(),
        Reason::Unavailable | Reason::RateLimited | Reason::DeadlineExceeded | Reason::Internal
    )
}

/// Whether an event tells that list and watch work. An object of a list does not: the next page may fail every time.
fn proves<K>(event: &Event<K>) -> bool {
    matches!(event, Event::InitDone | Event::Apply(_) | Event::Delete(_))
}

fn told(call: &Call, error: watcher::Error) -> Error {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => errors::of(call, error),
        watcher::Error::WatchError(status) => errors::of_status(call, &status, None),
        watcher::Error::NoResourceVersion => {
            Error::unavailable(format!("{call}: the answer has no resourceVersion"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_a_list_that_is_not_complete_ends_no_back_off() {
        assert!(!proves(&Event::InitApply(())));
        assert!(!proves(&Event::<()>::Init));
        assert!(proves(&Event::<()>::InitDone));
        assert!(proves(&Event::Apply(())) && proves(&Event::Delete(())));
    }
}
