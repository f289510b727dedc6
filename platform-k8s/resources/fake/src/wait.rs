//! Waits: what is wanted, looked at again whenever something has changed.

use std::sync::Arc;

use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1::{self as api, PodPhase, PodWaitCondition};
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
    }
}

fn missing(namespace: &str, name: &str) -> api::WaitPending {
    api::WaitPending {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        reason: "NotFound".to_owned(),
        message: String::new(),
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
                let why = found.map_or(("NoCondition", ""), |one| (&*one.reason, &*one.message));
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

/// Why a pod meets none of the conditions. `None`: it meets one. An error if it never will.
fn unmet(pod: &api::Pod, conditions: &[i32]) -> Result<Option<api::WaitPending>> {
    let status = pod.status.clone().unwrap_or_default();
    let phase = status.phase();
    let over = matches!(phase, PodPhase::Succeeded | PodPhase::Failed);
    let mut possible = false;
    for condition in conditions {
        let condition = PodWaitCondition::try_from(*condition).unwrap_or_default();
        let (met, can) = match condition {
            PodWaitCondition::Ready => (status.ready, !over),
            PodWaitCondition::Succeeded => (phase == PodPhase::Succeeded, !over),
            PodWaitCondition::Failed => (phase == PodPhase::Failed, !over),
            PodWaitCondition::HasIp => (!status.ip.is_empty(), !over),
            PodWaitCondition::Gone => (false, true),
            PodWaitCondition::Unspecified => (false, false),
        };
        if met {
            return Ok(None);
        }
        possible |= can;
    }
    let (namespace, name) = key(pod);
    if !possible {
        let phase = if phase == PodPhase::Failed {
            "failed"
        } else {
            "succeeded"
        };
        let message = format!(
            "the pod {namespace}/{name} has {phase}: what is waited for cannot come any more"
        );
        let error = Error::new(Reason::WaitImpossible, message);
        return Err(error.with_resource("pod", format!("{namespace}/{name}")));
    }
    let deleted = pod
        .metadata
        .as_ref()
        .is_some_and(|one| one.delete_time.is_some());
    let why = match (&*status.reason, deleted) {
        (_, true) => "Terminating",
        ("", false) if phase == PodPhase::Pending => "Pending",
        ("", false) => "NotReady",
        (reason, false) => reason,
    };
    Ok(Some(pending(pod, (why, &status.message))))
}
