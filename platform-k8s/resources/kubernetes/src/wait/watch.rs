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
use crate::{
    client::{Call, limits},
    errors,
};

/// Pauses after a failed watch. An API server that restarts is back within seconds, and has to serve all its other
/// clients then.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// Refusals of the credentials in a row that are waited for: new ones may be on their way to the disk.
const MAX_REFUSALS: u32 = 5;
/// Objects in one answer of a list, unless they are so large that it is not read. Many waits begin at once after an
/// outage, and each holds an answer in memory, decoded: 10 kB an object.
const PAGE: u32 = 25;

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

struct Follower<K, F> {
    open: F,
    config: watcher::Config,
    page_size: u32,
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
        page_size: PAGE,
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
                let config = self.config.clone().page_size(self.page_size);
                watcher::watcher((self.open)(), config).boxed()
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
        if let watcher::Error::InitialListFailed(error) = &error
            && limits::is_too_large(error)
            && self.page_size > 1
        {
            self.page_size /= 2;
            self.events = None;
            return Ok(());
        }
        let error = told(&self.call, error);
        match error.reason() {
            // The watcher itself would go on from where nobody can any more.
            Reason::PageTokenExpired => self.events = None,
            // New credentials may be on their way; a right that they lack is not.
            Reason::CredentialsRefused
                if self.begun && !errors::is_forbidden(&error) && self.refusals < MAX_REFUSALS =>
            {
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
        // The right that is missing is another one.
        watcher::Error::InitialListFailed(error) => {
            let list = Call {
                verb: "list",
                ..call.clone()
            };
            errors::of(&list, &error)
        }
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
            errors::of(call, &error)
        }
        watcher::Error::WatchError(status) => errors::of_status(call, &status, None),
        watcher::Error::NoResourceVersion => {
            Error::unavailable(format!("{call}: the answer has no resourceVersion"))
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Pod;
    use kube::{Client, client::Body};
    use serde_json::json;

    use super::*;
    use crate::client::limits::LimitError;

    #[test]
    fn an_object_of_a_list_that_is_not_complete_ends_no_back_off() {
        assert!(!proves(&Event::InitApply(())));
        assert!(!proves(&Event::<()>::Init));
        assert!(proves(&Event::<()>::InitDone));
        assert!(proves(&Event::Apply(())) && proves(&Event::Delete(())));
    }

    /// An API server with 300 pods, of which at most 30 fit into an answer that is read.
    async fn large(request: Request<Body>) -> std::result::Result<Response<Body>, tower::BoxError> {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let field = |name: &str| {
            let fields = query.split('&').filter_map(|it| it.split_once('='));
            let mut found = fields
                .filter(|(key, _)| *key == name)
                .map(|(_, value)| value);
            found.next().and_then(|value| value.parse::<usize>().ok())
        };
        let limit = field("limit").unwrap_or(usize::MAX);
        if limit > 30 {
            return Err(LimitError::TooLarge.into());
        }
        let begin = field("continue").unwrap_or_default();
        let end = (begin + limit).min(300);
        let pod = |n: usize| json!({"metadata": {"name": format!("p{n}"), "namespace": "n"}});
        let next = if end < 300 {
            end.to_string()
        } else {
            String::new()
        };
        let list = json!({
            "apiVersion": "v1", "kind": "PodList",
            "metadata": {"resourceVersion": "1", "continue": next},
            "items": (begin..end).map(pod).collect::<Vec<_>>(),
        });
        Ok(Response::new(Body::from(serde_json::to_vec(&list)?)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_whose_pages_are_too_large_is_read_in_smaller_ones() {
        let client = Client::new(tower::service_fn(large), "n");
        let open = move || Api::<Pod>::namespaced(client.clone(), "n");
        let call = Call::new("watch", "pods", "n", "");
        let mut changes = follow(open, watcher::Config::default(), call);
        let mut pods = 0;
        loop {
            match changes.next().await.unwrap().unwrap() {
                Change::Listing => pods = 0,
                Change::Listed(_) => pods += 1,
                Change::Complete => break,
                Change::Changed(_) | Change::Gone(_) => panic!("the list is not complete"),
            }
        }
        assert_eq!(pods, 300);
    }
}
