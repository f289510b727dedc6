//! Waits: one list and one watch of the objects that a wait is about, and a decision after every change.

mod goal;
pub(crate) mod judge;
pub(crate) mod watch;

use std::{
    collections::{BTreeSet, VecDeque},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::Answers;
use futures::{
    FutureExt as _, StreamExt as _,
    future::{self, BoxFuture},
    stream,
    stream::BoxStream,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Resource, runtime::watcher};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

pub(crate) use self::goal::{Change, Goal, Seen, Verdict, Wait, count};
use self::goal::{Key, Subject};
use self::judge::{PodConditions, node_verdict, pod_verdict, seen};
use crate::{
    client::{ApiClient, Call, escape},
    convert::selector_text,
    nodes,
    objects::Objects,
    pods,
};

/// Pause after which objects that no watch tells of are looked at again.
const STRAYS: Duration = Duration::from_secs(5);

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
        // Only what is to be gone is looked at again.
        |_| future::ready(Ok(None)).boxed(),
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
        uids: request.uids.into_iter().collect(),
        confirm: conditions.gone && !labels.is_empty(),
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
        uids: uid.into_iter().collect(),
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
    let objects = Objects::<Pod>::new(client.clone(), &pods::KIND);
    let look = move |(namespace, name): Key| {
        let objects = objects.clone();
        async move {
            match objects.get(&namespace, &name).await {
                Ok(pod) => Ok(Some(pod)),
                Err(error) if error.reason() == Reason::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        }
        .boxed()
    };
    let changes = watch::follow(pods, config, call);
    run(changes, Wait::new(goal), judge, look)
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

type Look<K> = dyn Fn(Key) -> BoxFuture<'static, Result<Option<K>>> + Send + Sync;

struct Run<K> {
    changes: BoxStream<'static, Result<Change<K>>>,
    wait: Wait,
    judge: Arc<dyn Fn(&K) -> Seen + Send + Sync>,
    /// Reads an object by its name.
    look: Arc<Look<K>>,
    /// Subjects that do not match any more and are still there. Nothing tells when they will be gone.
    strays: BTreeSet<Subject>,
    /// When the strays are looked at.
    due: Instant,
    answers: VecDeque<Result<api::WaitProgress>>,
    ended: bool,
}

/// The progress of a wait, from the first list until it is done, impossible or dropped.
fn run<K>(
    changes: BoxStream<'static, Result<Change<K>>>,
    wait: Wait,
    judge: impl Fn(&K) -> Seen + Send + Sync + 'static,
    look: impl Fn(Key) -> BoxFuture<'static, Result<Option<K>>> + Send + Sync + 'static,
) -> Answers<api::WaitProgress>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let run = Run {
        changes,
        wait,
        judge: Arc::new(judge),
        look: Arc::new(look),
        strays: BTreeSet::new(),
        due: Instant::now(),
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
            if let Err(error) = run.step().await {
                run.fail(error);
            }
        }
    })
    .boxed()
}

impl<K: 'static> Run<K> {
    async fn step(&mut self) -> Result<()> {
        let again = async {
            if self.strays.is_empty() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep_until(self.due).await;
        };
        let change = tokio::select! {
            change = self.changes.next() => Some(change),
            () = again => None,
        };
        match change {
            Some(Some(change)) => {
                let change = change?.map(|object| (self.judge)(&object));
                let step = self.wait.apply(change);
                self.take(step);
            }
            Some(None) => self.ended = true,
            None => {
                for stray in std::mem::take(&mut self.strays) {
                    self.confirm(stray).await?;
                }
            }
        }
        for lost in self.wait.unconfirmed() {
            self.confirm(lost).await?;
        }
        Ok(())
    }

    async fn confirm(&mut self, subject: Subject) -> Result<()> {
        let mut failures = 0;
        let found = loop {
            match (self.look)(subject.0.clone()).await {
                Ok(found) => break found.map(|object| (self.judge)(&object)),
                Err(error) => {
                    failures += 1;
                    watch::pause(error, failures).await?;
                }
            }
        };
        if found.as_ref().is_some_and(|seen| *seen.uid == *subject.1) {
            if self.strays.is_empty() {
                self.due = Instant::now() + STRAYS;
            }
            self.strays.insert(subject.clone());
        }
        let step = self.wait.confirm(subject, found);
        self.take(step);
        Ok(())
    }

    fn take(&mut self, step: goal::Step) {
        if let Some(progress) = step.progress {
            self.ended |= progress.done;
            self.answers.push_back(Ok(progress));
        }
        if let Some(error) = step.failed {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: Error) {
        self.ended = true;
        self.answers.push_back(Err(error));
    }
}

#[cfg(test)]
mod tests;
