//! Which run of a container comes after another one.

use std::{ops::ControlFlow, time::Duration};

use drover_core::{Error, Result};
use drover_proto::kubernetes::v1 as api;
use futures::{StreamExt as _, stream::BoxStream};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use tokio::time::Instant;

use crate::{convert, place::Place, wait::Change};

/// How much later than its log the status of a container tells its end.
const LAG: Duration = Duration::from_secs(10);

/// What a kubelet writes before the id of a container whose log it cannot read.
const LOST: &[u8] = b"unable to retrieve container logs for ";

/// One run of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Container runtimes do not always tell it.
    id: Option<String>,
    /// Id of the run before it.
    before: Option<String>,
    restarts: i32,
}

impl Run {
    pub(super) fn of(status: &ContainerStatus) -> Self {
        let before = status
            .last_state
            .as_ref()
            .and_then(|it| it.terminated.as_ref());
        let told = |id: &Option<String>| id.clone().filter(|id| !id.is_empty());
        Self {
            id: told(&status.container_id),
            before: before.and_then(|it| told(&it.container_id)),
            restarts: status.restart_count,
        }
    }

    /// Whether a kubelet says with this that the log can no longer be read. Once it has sent a part of the log, it puts
    /// its errors behind that part, without a line end.
    pub(super) fn is_lost(&self, last: &[u8]) -> bool {
        let ids = [&self.id, &self.before];
        last.strip_prefix(LOST)
            .is_some_and(|id| ids.into_iter().flatten().any(|own| own.as_bytes() == id))
    }

    fn is_another(&self, than: &Self) -> bool {
        let ids = self.id.as_ref().zip(than.id.as_ref());
        self.restarts != than.restarts || ids.is_some_and(|(one, other)| one != other)
    }
}

/// The runs of a container of one pod.
pub(super) struct Runs {
    pub(super) place: Place,
    uid: Option<String>,
    /// The one whose log was read last.
    pub(super) last: Option<Run>,
}

impl Runs {
    pub(super) fn new(place: Place, pod: &Pod) -> Self {
        Self {
            place,
            uid: pod.metadata.uid.clone(),
            last: None,
        }
    }

    /// The run that has begun after the last one, as the pod tells.
    pub(super) fn after_last(&self, pod: &Pod) -> Option<Run> {
        let status = self.place.status(pod).filter(|it| has_started(it))?;
        let run = Run::of(status);
        let begun = self.last.as_ref().is_some_and(|last| run.is_another(last));
        (begun && pod.metadata.uid == self.uid).then_some(run)
    }

    /// Whether there was another run between the last one and this.
    pub(super) fn is_passed_over(&self, next: &Run) -> bool {
        let Some(last) = &self.last else {
            return false;
        };
        let ids = last.id.as_ref().zip(next.before.as_ref());
        next.restarts > last.restarts.saturating_add(1)
            || ids.is_some_and(|(last, before)| last != before)
    }

    /// The pod once another run has begun than the last one, which becomes the last. `None` if there will be none.
    pub(super) async fn until_started(
        &mut self,
        mut changes: BoxStream<'static, Result<Change<Pod>>>,
    ) -> Result<Option<Pod>> {
        let mut listed = None;
        // When the last run, whose log has ended, must have ended, too.
        let mut until: Option<Instant> = None;
        loop {
            let change = match until {
                None => changes.next().await,
                Some(at) => tokio::time::timeout_at(at, changes.next())
                    .await
                    .map_err(|_| Error::unavailable("the log was cut off"))?,
            };
            let Some(change) = change else {
                return Ok(None);
            };
            let pod = match change? {
                Change::Listing => {
                    listed = None;
                    continue;
                }
                Change::Listed(pod) => {
                    listed = Some(pod);
                    continue;
                }
                Change::Complete => listed.take(),
                Change::Changed(pod) => Some(pod),
                Change::Gone(_) => None,
            };
            let Some(pod) = pod.filter(|pod| pod.metadata.uid == self.uid) else {
                return Ok(None);
            };
            match self.decide(&pod) {
                ControlFlow::Break(None) => return Ok(None),
                ControlFlow::Break(next) => {
                    self.last = next;
                    return Ok(Some(pod));
                }
                ControlFlow::Continue(()) if self.runs(&pod) => {
                    until.get_or_insert_with(|| Instant::now() + LAG);
                }
                ControlFlow::Continue(()) => until = None,
            }
        }
    }

    /// Whether the last run goes on, as the pod tells.
    fn runs(&self, pod: &Pod) -> bool {
        let state = self.place.status(pod).and_then(|it| it.state.as_ref());
        state.is_some_and(|it| it.running.is_some())
    }

    /// Whether another run has begun, or none will.
    fn decide(&self, pod: &Pod) -> ControlFlow<Option<Run>> {
        let status = self.place.status(pod);
        let state = status.and_then(|it| it.state.as_ref());
        let run = status.map(Run::of);
        let started = status.is_some_and(has_started);
        let last = self.last.as_ref();
        if started
            && let Some(run) = run
            && last.is_none_or(|last| run.is_another(last))
        {
            return ControlFlow::Break(Some(run));
        }
        let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
        let over = matches!(
            convert::phase(phase),
            api::PodPhase::Succeeded | api::PodPhase::Failed
        );
        let policy = pod
            .spec
            .as_ref()
            .and_then(|it| it.restart_policy.as_deref());
        let ended = state.and_then(|it| it.terminated.as_ref());
        let stays = ended.is_some_and(|ended| match policy {
            Some("Never") => true,
            Some("OnFailure") => ended.exit_code == 0,
            _ => false,
        });
        // A container that runs while its pod is being deleted still writes.
        let leaving = pod.metadata.deletion_timestamp.is_some() && !self.runs(pod);
        if over || stays || leaving {
            return ControlFlow::Break(None);
        }
        ControlFlow::Continue(())
    }
}

/// Whether the container of a status runs or has run.
pub(super) fn has_started(status: &ContainerStatus) -> bool {
    let state = status.state.as_ref();
    state.is_some_and(|it| it.running.is_some() || it.terminated.is_some())
}

#[cfg(test)]
mod tests {
    use drover_core::Reason;
    use futures::stream;
    use serde_json::{Value, json};

    use super::*;

    fn pod(uid: &str, id: Option<&str>, restarts: i32, state: &Value) -> Pod {
        let status = json!({
            "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": restarts,
            "state": state, "containerID": id,
        });
        let pod = json!({
            "metadata": {"name": "p", "uid": uid},
            "spec": {"containers": []},
            "status": {"phase": "Running", "containerStatuses": [status]},
        });
        serde_json::from_value(pod).unwrap()
    }

    fn running() -> Value {
        json!({"running": {}})
    }

    fn ended() -> Value {
        json!({"terminated": {"exitCode": 1}})
    }

    /// What is found after the log of a run of `first` has ended, and after what time.
    async fn found(first: &Pod, later: Vec<(u64, Pod)>) -> (Result<Option<Pod>>, Duration) {
        let place = Place {
            namespace: "n".to_owned(),
            pod: "p".to_owned(),
            container: "c".to_owned(),
        };
        let mut runs = Runs::new(place, first);
        runs.last = runs.place.status(first).map(Run::of);
        let list = [
            Change::Listing,
            Change::Listed(first.clone()),
            Change::Complete,
        ];
        let later = stream::iter(later).then(|(pause, pod)| async move {
            tokio::time::sleep(Duration::from_secs(pause)).await;
            Change::Changed(pod)
        });
        let changes = stream::iter(list).chain(later).chain(stream::pending());
        let begin = Instant::now();
        let changes = changes.map(Ok).boxed();
        let far = Duration::from_secs(3600);
        let found = tokio::time::timeout(far, runs.until_started(changes)).await;
        let silent = Err(Error::internal("nothing within an hour"));
        (found.unwrap_or(silent), begin.elapsed())
    }

    #[test]
    fn the_error_of_a_kubelet_is_not_taken_for_a_line_of_the_log() {
        let mut pod = pod("u", Some("containerd://a"), 1, &running());
        let statuses = pod.status.as_mut().unwrap().container_statuses.as_mut();
        let status = &mut statuses.unwrap()[0];
        let before = json!({"terminated": {"exitCode": 1, "containerID": "containerd://b"}});
        status.last_state = Some(serde_json::from_value(before).unwrap());
        let run = Run::of(status);
        let lost = |last: &str| run.is_lost(last.as_bytes());
        assert!(lost("unable to retrieve container logs for containerd://a"));
        assert!(lost("unable to retrieve container logs for containerd://b"));
        for line in [
            "unable to retrieve container logs for containerd://c",
            "unable to retrieve container logs for containerd://a, it says",
            "unable to retrieve container logs for ",
            "it is unable to retrieve container logs for containerd://a",
        ] {
            assert!(!lost(line), "{line}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_that_ends_while_its_container_runs_was_cut_off() {
        let (cut, after) = found(&pod("u", Some("a"), 0, &running()), vec![]).await;
        let error = cut.unwrap_err();
        assert_eq!(error.reason(), Reason::Unavailable, "{error}");
        assert_eq!(after, LAG);
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_that_is_cut_off_while_its_pod_is_being_deleted_ends_with_an_error() {
        let leaving = |state: &Value| {
            let mut pod = pod("u", Some("a"), 0, state);
            let now = k8s_openapi::jiff::Timestamp::from_second(1).unwrap();
            let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now);
            pod.metadata.deletion_timestamp = Some(time);
            pod
        };
        let (cut, after) = found(&leaving(&running()), vec![]).await;
        let error = cut.unwrap_err();
        assert_eq!(error.reason(), Reason::Unavailable, "{error}");
        assert_eq!(after, LAG);
        // The container ends because of the deletion, and its status tells so a little later.
        let later = vec![(3, leaving(&ended()))];
        let (end, after) = found(&leaving(&running()), later).await;
        assert!(end.unwrap().is_none());
        assert_eq!(after, Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn the_status_of_a_container_that_has_ended_may_be_late_and_the_next_one_later() {
        let first = pod("u", Some("a"), 0, &running());
        let later = vec![
            (8, pod("u", Some("a"), 0, &ended())),
            (300, pod("u", Some("b"), 1, &running())),
        ];
        let (next, after) = found(&first, later).await;
        assert!(next.unwrap().is_some());
        assert_eq!(after, Duration::from_secs(308));
    }

    #[tokio::test(start_paused = true)]
    async fn a_container_without_an_id_is_not_its_own_successor() {
        let first = pod("u", None, 0, &ended());
        let later = vec![
            (20, pod("u", Some("a"), 0, &ended())),
            (20, pod("u", None, 1, &running())),
        ];
        let (next, after) = found(&first, later).await;
        assert!(next.unwrap().is_some());
        assert_eq!(after, Duration::from_secs(40));
    }

    #[tokio::test(start_paused = true)]
    async fn another_pod_of_the_name_ends_the_log() {
        let first = pod("u", Some("a"), 0, &ended());
        let later = vec![(1, pod("other", Some("b"), 0, &running()))];
        let (next, _) = found(&first, later).await;
        assert!(next.unwrap().is_none());
    }
}
