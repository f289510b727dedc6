//! Waits: one list and one watch of the objects that a wait is about, and a decision after every change.

mod goal;
pub(crate) mod judge;
pub(crate) mod watch;

use std::{collections::VecDeque, fmt::Debug, sync::Arc};

use drover_core::{Error, Result};
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::Answers;
use futures::{StreamExt as _, stream, stream::BoxStream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Resource, runtime::watcher};
use serde::de::DeserializeOwned;

pub(crate) use self::goal::{Change, Goal, Seen, Verdict, Wait, count};
use self::judge::{PodConditions, node_verdict, pod_verdict, seen};
use crate::{
    client::{ApiClient, Call, escape},
    convert::selector_text,
    nodes, pods,
};

/// Waits for nodes.
pub(crate) async fn nodes(
    client: &ApiClient,
    request: api::WaitNodesRequest,
) -> Result<Answers<api::WaitProgress>> {
    let config = config(
        &selector_text("selector", request.selector.as_ref())?,
        &request.names,
    );
    let condition = match request.condition.as_str() {
        "" => "Ready".to_owned(),
        condition => condition.to_owned(),
    };
    let wanted = request.status.unwrap_or(true);
    let goal = Goal {
        kind: nodes::KIND.name,
        names: request.names.into_iter().collect(),
        min_count: request.min_count.max(1),
        fail_if_none: request.fail_if_none,
        ..Goal::default()
    };
    let judge = move |node: &Node| seen(node, node_verdict(node, &condition, wanted));
    let client = client.clone();
    let api = move || Api::<Node>::all(client.kube());
    let call = Call::new("watch", nodes::KIND.plural, "", "");
    Ok(run(
        watch::follow(api, config, call),
        Wait::new(goal),
        judge,
    ))
}

/// Waits for pods.
pub(crate) async fn pods(
    client: &ApiClient,
    request: api::WaitPodsRequest,
) -> Result<Answers<api::WaitProgress>> {
    let labels = selector_text("selector", request.selector.as_ref())?;
    let config = config(&labels, &request.names);
    let conditions = PodConditions::of(&request.conditions)?;
    let goal = Goal {
        kind: pods::KIND.name,
        namespace: request.namespace.clone(),
        names: request.names.into_iter().collect(),
        min_count: request.min_count.max(1),
        fail_if_none: request.fail_if_none,
        gone: conditions.gone,
        uid: None,
    };
    Ok(of_pods(
        client,
        &request.namespace,
        config,
        goal,
        conditions,
    ))
}

/// Waits until the pod that had a uid is gone.
pub(crate) async fn gone(
    client: &ApiClient,
    namespace: &str,
    name: &str,
    uid: Option<String>,
) -> Result<()> {
    let conditions = PodConditions {
        gone: true,
        ..PodConditions::default()
    };
    let goal = Goal {
        kind: pods::KIND.name,
        namespace: namespace.to_owned(),
        names: [name.to_owned()].into(),
        gone: true,
        uid,
        ..Goal::default()
    };
    let config = config("", &[name.to_owned()]);
    let mut progress = of_pods(client, namespace, config, goal, conditions);
    while let Some(step) = progress.next().await {
        if step?.done {
            return Ok(());
        }
    }
    Err(Error::unavailable("the watch of the pod has ended"))
}

fn of_pods(
    client: &ApiClient,
    namespace: &str,
    config: watcher::Config,
    goal: Goal,
    conditions: PodConditions,
) -> Answers<api::WaitProgress> {
    let call = Call::new("watch", pods::KIND.plural, namespace, "");
    let pods = pod_api(client, namespace);
    let judge = move |pod: &Pod| seen(pod, pod_verdict(pod, conditions));
    run(watch::follow(pods, config, call), Wait::new(goal), judge)
}

/// The pods of a namespace, with the credentials of the moment.
pub(crate) fn pod_api(
    client: &ApiClient,
    namespace: &str,
) -> impl Fn() -> Api<Pod> + Send + Sync + 'static {
    let (client, namespace) = (client.clone(), escape(namespace));
    move || match namespace.as_str() {
        "" => Api::all(client.kube()),
        namespace => Api::namespaced(client.kube(), namespace),
    }
}

/// The watch of what has these labels, and, where there is one only, this name.
pub(crate) fn config(labels: &str, names: &[String]) -> watcher::Config {
    let mut config = watcher::Config::default();
    if !labels.is_empty() {
        config = config.labels(labels);
    }
    if let [name] = names {
        config = config.fields(&format!("metadata.name={name}"));
    }
    config
}

struct Run<K> {
    changes: BoxStream<'static, Result<Change<K>>>,
    wait: Wait,
    judge: Arc<dyn Fn(&K) -> Seen + Send + Sync>,
    answers: VecDeque<Result<api::WaitProgress>>,
    ended: bool,
}

/// The progress of a wait, from the first list until it is done, impossible or dropped.
fn run<K>(
    changes: BoxStream<'static, Result<Change<K>>>,
    wait: Wait,
    judge: impl Fn(&K) -> Seen + Send + Sync + 'static,
) -> Answers<api::WaitProgress>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let run = Run {
        changes,
        wait,
        judge: Arc::new(judge),
        answers: VecDeque::new(),
        ended: false,
    };
    stream::unfold(run, |mut run| async move {
        loop {
            if let Some(answer) = run.answers.pop_front() {
                return Some((answer, run));
            }
            if run.ended {
                return None;
            }
            let change = match run.changes.next().await {
                Some(Ok(change)) => change.map(|object| (run.judge)(&object)),
                Some(Err(error)) => {
                    run.ended = true;
                    return Some((Err(error), run));
                }
                None => return None,
            };
            let step = run.wait.apply(change);
            if let Some(progress) = step.progress {
                run.ended |= progress.done;
                run.answers.push_back(Ok(progress));
            }
            if let Some(error) = step.failed {
                run.ended = true;
                run.answers.push_back(Err(error));
            }
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests;
