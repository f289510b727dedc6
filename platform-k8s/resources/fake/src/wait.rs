//! Waits: what is wanted, looked at again whenever something has changed.

use std::sync::Arc;

use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1::{self as api, PodPhase, PodWaitCondition, RestartPolicy};
use drover_resources::parts::Answers;
use futures::{StreamExt, stream};

use crate::{
    State,
    selector::selects,
    store::{Object, Store, key, uid},
};

/// Objects that a progress names.
const MAX_PENDING: usize = 100;

/// Reports progress at once and at every change, until it is done or fails.
pub(crate) fn progress(
    state: Arc<State>,
    mut look: impl FnMut(&mut Store) -> Result<api::WaitProgress> + Send + 'static,
) -> Result<Answers<api::WaitProgress>> {
    let changed = state.changed.subscribe();
    let first = look(&mut state.store.lock())?;
    let begin = (Some(first.clone()), first, changed);
    let all = stream::unfold(
        (Some(begin), state, look),
        |(at, state, mut look)| async move {
            let (next, last, mut changed) = at?;
            let answer = match next {
                Some(first) => Ok(first),
                None if last.done => return None,
                None => loop {
                    if changed.changed().await.is_err() {
                        return None;
                    }
                    match look(&mut state.store.lock()) {
                        Ok(now) if now == last => {}
                        answer => break answer,
                    }
                },
            };
            let at = answer.as_ref().ok().map(|now| (None, now.clone(), changed));
            Some((answer, (at, state, look)))
        },
    );
    Ok(all.boxed())
}

fn pending(object: &impl Object, (reason, message): (&str, &str)) -> api::WaitPending {
    let (namespace, name) = key(object);
    api::WaitPending {
        namespace,
        name,
        reason: reason.to_owned(),
        message: message.to_owned(),
        uid: uid(object),
    }
}

fn missing(namespace: &str, name: &str) -> api::WaitPending {
    api::WaitPending {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        reason: "NotFound".to_owned(),
        ..api::WaitPending::default()
    }
}

/// Counts what is as wanted. `least`: how many must match.
fn report(matched: usize, mut others: Vec<api::WaitPending>, least: u32) -> api::WaitProgress {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let missing = others.iter().filter(|one| one.reason == "NotFound").count();
    let met = matched - (others.len() - missing).min(matched);
    let done = others.is_empty() && number(matched) >= least;
    others.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    others.truncate(MAX_PENDING);
    api::WaitProgress {
        matched: number(matched),
        met: number(met),
        pending: others,
        done,
    }
}

fn nothing(what: &str) -> Error {
    Error::new(Reason::NothingMatches, format!("no {what} matches"))
}

/// Waits for nodes.
pub(crate) fn nodes(
    state: Arc<State>,
    request: api::WaitNodesRequest,
) -> Result<Answers<api::WaitProgress>> {
    let mut first = true;
    progress(state, move |store| {
        let matches = |node: &&api::Node| {
            let (_, name) = key(*node);
            let labels = node
                .metadata
                .as_ref()
                .map(|one| one.labels.clone())
                .unwrap_or_default();
            (request.names.is_empty() || request.names.contains(&name))
                && selects(request.selector.as_ref(), &labels)
        };
        let matched: Vec<&api::Node> = store.nodes.all().filter(matches).collect();
        if std::mem::take(&mut first) && matched.is_empty() && request.fail_if_none {
            return Err(nothing("node"));
        }
        let wrong = |node: &&&api::Node| {
            let found = node
                .conditions
                .iter()
                .find(|one| one.r#type == request.condition);
            found.and_then(|one| one.status) != request.status
        };
        let mut others: Vec<_> = matched
            .iter()
            .filter(wrong)
            .map(|node| {
                let found = node
                    .conditions
                    .iter()
                    .find(|one| one.r#type == request.condition);
                let why = match found {
                    None => ("ConditionMissing", ""),
                    Some(one) if one.r#type == "Ready" && request.status != Some(false) => {
                        ("NotReady", &*one.message)
                    }
                    Some(one) => (&*one.reason, &*one.message),
                };
                pending(*node, why)
            })
            .collect();
        let known = |name: &String| store.nodes.get(&(String::new(), name.clone())).is_some();
        let unknown = request.names.iter().filter(|name| !known(name));
        others.extend(unknown.map(|name| missing("", name)));
        Ok(report(matched.len(), others, request.min_count))
    })
}

/// Waits for pods.
pub(crate) fn pods(
    state: Arc<State>,
    request: api::WaitPodsRequest,
) -> Result<Answers<api::WaitProgress>> {
    let gone = request
        .conditions
        .contains(&(PodWaitCondition::Gone as i32));
    let mut at_first: Option<Vec<(String, String)>> = None;
    progress(state, move |store| {
        let matches = |pod: &&api::Pod| {
            let (namespace, name) = key(*pod);
            let labels = pod
                .metadata
                .as_ref()
                .map(|one| one.labels.clone())
                .unwrap_or_default();
            namespace == request.namespace
                && (request.names.is_empty() || request.names.contains(&name))
                && (request.uids.is_empty() || request.uids.contains(&uid(*pod)))
                && selects(request.selector.as_ref(), &labels)
        };
        let matched: Vec<&api::Pod> = store.pods.all().filter(matches).collect();
        if at_first.is_none() && matched.is_empty() && request.fail_if_none {
            return Err(nothing("pod"));
        }
        let begun = at_first
            .get_or_insert_with(|| matched.iter().map(|pod| (uid(*pod), key(*pod).1)).collect());
        if gone {
            return gone_of(store, &request, begun);
        }
        let mut others = Vec::new();
        for pod in &matched {
            if let Some(why) = unmet(pod, &request.conditions)? {
                others.push(why);
            }
        }
        let has = |name: &String| matched.iter().any(|pod| key(*pod).1 == *name);
        let unknown = request.names.iter().filter(|name| !has(name));
        others.extend(unknown.map(|name| missing(&request.namespace, name)));
        Ok(report(matched.len(), others, request.min_count))
    })
}

/// What is left of the pods that matched at first.
fn gone_of(
    store: &Store,
    request: &api::WaitPodsRequest,
    begun: &[(String, String)],
) -> Result<api::WaitProgress> {
    let mut others = Vec::new();
    for (uid_then, name) in begun {
        let pod = store.pods.get(&(request.namespace.clone(), name.clone()));
        let Some(pod) = pod.filter(|pod| uid(*pod) == *uid_then) else {
            continue;
        };
        if let Some(why) = unmet(pod, &request.conditions)? {
            others.push(why);
        }
    }
    Ok(report(begun.len(), others, 0))
}

/// Whether a pod has ended for good.
pub(crate) fn is_over(pod: &api::Pod) -> bool {
    let phase = pod.status.as_ref().map(api::PodStatus::phase);
    matches!(phase, Some(PodPhase::Succeeded | PodPhase::Failed))
}

/// Why a pod meets none of the conditions. `None`: it meets one. An error if it never will.
fn unmet(pod: &api::Pod, conditions: &[i32]) -> Result<Option<api::WaitPending>> {
    let status = pod.status.clone().unwrap_or_default();
    let phase = status.phase();
    let metadata = pod.metadata.as_ref();
    let leaving = metadata.is_some_and(|one| one.delete_time.is_some());
    let ends = Ends::of(pod, &status);
    let ready = [PodWaitCondition::Ready as i32];
    let conditions = if conditions.is_empty() {
        &ready
    } else {
        conditions
    };
    // Whoever deletes a pod may put another one in its place.
    let mut possible = leaving;
    for condition in conditions {
        let condition = PodWaitCondition::try_from(*condition).unwrap_or_default();
        let (met, can) = match condition {
            PodWaitCondition::Ready => (status.ready && !leaving, !ends.unready),
            PodWaitCondition::Succeeded => (phase == PodPhase::Succeeded, !ends.unsuccessful),
            PodWaitCondition::Failed => (phase == PodPhase::Failed, true),
            PodWaitCondition::HasIp => (!status.ip.is_empty(), true),
            PodWaitCondition::Gone => (false, true),
            PodWaitCondition::Unspecified => (false, false),
        };
        if met {
            return Ok(None);
        }
        possible |= can && (condition == PodWaitCondition::Gone || !is_over(pod));
    }
    if !possible {
        return Err(never(pod, phase));
    }
    let why = match (&*status.reason, leaving) {
        (_, true) => "Terminating",
        ("", false) if phase == PodPhase::Pending => "Pending",
        ("", false) => "NotReady",
        (reason, false) => reason,
    };
    Ok(Some(pending(pod, (why, &status.message))))
}

fn never(pod: &api::Pod, phase: PodPhase) -> Error {
    let why = match (phase, policy(pod)) {
        (PodPhase::Failed, _) => "it has failed",
        (PodPhase::Succeeded, _) => "it has succeeded",
        (_, RestartPolicy::Always | RestartPolicy::Unspecified) => {
            "a pod whose containers are always started again does not succeed"
        }
        _ => "a container has ended for good",
    };
    let (namespace, name) = key(pod);
    let message = format!("pod \"{namespace}/{name}\" will never be as wanted: {why}");
    let error = Error::new(Reason::WaitImpossible, message);
    error.with_resource("pod", format!("{namespace}/{name}"))
}

/// What containers that have ended for good leave impossible.
struct Ends {
    unready: bool,
    unsuccessful: bool,
}

impl Ends {
    fn of(pod: &api::Pod, status: &api::PodStatus) -> Self {
        let code = |one: &api::ContainerStatus| {
            let ended = one.state() == api::ContainerState::Terminated;
            ended.then(|| one.exit_code.unwrap_or_default())
        };
        let main: Vec<i32> = status.containers.iter().filter_map(code).collect();
        let mut init = status.init_containers.iter().filter_map(code);
        match policy(pod) {
            RestartPolicy::Never => {
                let failed = main.iter().any(|code| *code != 0) || init.any(|code| code != 0);
                Self {
                    unready: failed || !main.is_empty(),
                    unsuccessful: failed,
                }
            }
            RestartPolicy::OnFailure => Self {
                unready: main.contains(&0),
                unsuccessful: false,
            },
            RestartPolicy::Always | RestartPolicy::Unspecified => Self {
                unready: false,
                unsuccessful: true,
            },
        }
    }
}

fn policy(pod: &api::Pod) -> RestartPolicy {
    let policy = pod.spec.as_ref().map(api::PodSpec::restart_policy);
    policy.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(phase: PodPhase, policy: RestartPolicy, leaving: bool) -> api::Pod {
        api::Pod {
            metadata: Some(api::Metadata {
                delete_time: leaving.then(crate::store::now),
                ..api::Metadata::default()
            }),
            spec: Some(api::PodSpec {
                restart_policy: policy as i32,
                ..api::PodSpec::default()
            }),
            status: Some(api::PodStatus {
                phase: phase as i32,
                ready: phase == PodPhase::Running,
                ..api::PodStatus::default()
            }),
        }
    }

    #[test]
    fn a_pod_that_is_being_deleted_is_neither_ready_nor_impossible() {
        let ready = [PodWaitCondition::Ready as i32];
        for phase in [PodPhase::Running, PodPhase::Failed] {
            let leaving = pod(phase, RestartPolicy::Never, true);
            let why = unmet(&leaving, &ready).unwrap().unwrap();
            assert_eq!(why.reason, "Terminating");
        }
        let here = pod(PodPhase::Running, RestartPolicy::Never, false);
        assert!(unmet(&here, &ready).unwrap().is_none());
        let failed = pod(PodPhase::Failed, RestartPolicy::Never, false);
        assert!(unmet(&failed, &ready).is_err());
    }

    #[test]
    fn a_pod_that_is_always_started_again_never_succeeds() {
        let succeeded = [PodWaitCondition::Succeeded as i32];
        for policy in [RestartPolicy::Always, RestartPolicy::Unspecified] {
            let error = unmet(&pod(PodPhase::Running, policy, false), &succeeded).unwrap_err();
            assert_eq!(error.reason(), Reason::WaitImpossible);
        }
        let once = pod(PodPhase::Running, RestartPolicy::OnFailure, false);
        assert!(unmet(&once, &succeeded).unwrap().is_some());
    }
}
