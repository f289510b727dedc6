//! Drains: evictions within disruption budgets, and the watch of the pods that they are about.

mod plan;

use std::time::Duration;

use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1 as api;
use drover_resources::parts::Answers;
use futures::{StreamExt as _, stream, stream::BoxStream};
use k8s_openapi::{
    api::{core::v1::Pod, policy::v1::Eviction},
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions},
};
use kube::{
    Api,
    api::{ListParams, PostParams},
    core::Status,
    runtime::watcher,
};
use tokio::time::Instant;

use self::plan::{Plan, Target};
use crate::{
    client::{ApiClient, Call, escape},
    convert::{self, Why},
    errors, pods,
    wait::{Change, watch},
};

/// Time after which a pod that a budget protects is tried again: nothing tells when a budget allows it.
const RETRY: Duration = Duration::from_secs(5);
/// Pods that are read at once. A node has some hundred.
const PAGE: u32 = 250;

/// Fails if one of the pods of a node must not be evicted.
pub(crate) async fn check(client: &ApiClient, request: &api::DrainNodeRequest) -> Result<()> {
    let call = Call::new("list", pods::KIND.plural, "", "");
    let pods: Api<Pod> = Api::all(client.kube());
    let mut plan = Plan::new(
        request.name.clone(),
        request.force,
        request.delete_empty_dir_data,
    );
    let fields = format!("spec.nodeName={}", request.name);
    let mut parameters = ListParams::default().fields(&fields).limit(PAGE);
    loop {
        let page = pods.list(&parameters).await;
        let page = page.map_err(|error| pods::KIND.failed(&call, error))?;
        for pod in page.items {
            plan.apply(Change::Listed(pod))?;
        }
        parameters.continue_token = page.metadata.continue_.filter(|it| !it.is_empty());
        if parameters.continue_token.is_none() {
            return plan.apply(Change::Complete);
        }
    }
}

/// Evicts the pods of a node that is cordoned.
pub(crate) async fn drain(
    client: &ApiClient,
    request: api::DrainNodeRequest,
) -> Result<Answers<api::WaitProgress>> {
    let grace = request.grace_period.as_ref();
    let grace = grace.map(|it| convert::seconds("grace_period", it));
    let grace = grace.transpose()?.map(i64::from);
    let config = watcher::Config::default().fields(&format!("spec.nodeName={}", request.name));
    let call = Call::new("watch", pods::KIND.plural, "", "");
    let drain = Drain {
        client: client.clone(),
        changes: watch::follow(crate::wait::pod_api(client, ""), config, call),
        plan: Plan::new(request.name, request.force, request.delete_empty_dir_data),
        grace,
        told: None,
        ended: false,
    };
    Ok(stream::unfold(drain, |mut drain| async move {
        if drain.ended {
            return None;
        }
        let step = drain.step().await;
        drain.ended = step.as_ref().map_or(true, |progress| progress.done);
        Some((step, drain))
    })
    .boxed())
}

struct Drain {
    client: ApiClient,
    changes: BoxStream<'static, Result<Change<Pod>>>,
    plan: Plan,
    grace: Option<i64>,
    told: Option<api::WaitProgress>,
    ended: bool,
}

impl Drain {
    /// The next progress.
    async fn step(&mut self) -> Result<api::WaitProgress> {
        loop {
            if let Some(progress) = self.plan.progress()
                && self.told.as_ref() != Some(&progress)
            {
                self.told = Some(progress.clone());
                return Ok(progress);
            }
            if let Some(target) = self.plan.due(Instant::now()) {
                let outcome = self.evict(&target).await?;
                self.plan.tried(&target, outcome, Instant::now());
                continue;
            }
            let next = self.plan.next_attempt();
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                change = self.changes.next() => match change {
                    Some(change) => self.plan.apply(change?)?,
                    None => return Err(Error::unavailable("the watch of the pods has ended")),
                },
                () = due => {}
            }
        }
    }

    async fn evict(&mut self, target: &Target) -> Result<Outcome> {
        // The eviction of kube loses its options: it writes their field as `delete_options`.
        let eviction = Eviction {
            metadata: ObjectMeta {
                namespace: Some(target.namespace.clone()),
                name: Some(target.name.clone()),
                ..ObjectMeta::default()
            },
            delete_options: Some(DeleteOptions {
                grace_period_seconds: self.grace,
                preconditions: Some(Preconditions {
                    uid: Some(target.uid.clone()),
                    resource_version: None,
                }),
                ..DeleteOptions::default()
            }),
        };
        let pods: Api<Pod> = Api::namespaced(self.client.kube(), &escape(&target.namespace));
        let name = escape(&target.name);
        let how = PostParams::default();
        let sent = pods.create_subresource::<_, Status>("eviction", &name, &how, &eviction);
        let Err(error) = sent.await else {
            return Ok(Outcome::Evicted);
        };
        let kind = "pods/eviction";
        let call = Call::new("create", kind, &target.namespace, &target.name);
        outcome(&call, error)
    }
}

/// What came of an eviction.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Evicted,
    Gone,
    /// To be tried again after a while.
    Later(Why, Duration),
}

fn outcome(call: &Call, error: kube::Error) -> Result<Outcome> {
    if let kube::Error::Api(status) = &error {
        match status.code {
            404 => return Ok(Outcome::Gone),
            // Another pod has the name, which the watch tells; or this one was changed at the same time.
            409 => {
                let why = Why::new("Conflict", status.message.clone());
                return Ok(Outcome::Later(why, RETRY));
            }
            429 => return Ok(Outcome::Later(budget(status), wait(status))),
            _ => {}
        }
    }
    let error = errors::of(call, &error);
    match error.reason() {
        // The precondition makes a repetition harmless.
        Reason::Unavailable | Reason::DeadlineExceeded | Reason::Internal => Ok(Outcome::Later(
            Why::new("Unavailable", error.message().to_owned()),
            RETRY,
        )),
        // The namespace is being deleted, and its pods with it; or an admission refuses for now.
        Reason::Precondition => Ok(Outcome::Later(
            Why::new("Refused", error.message().to_owned()),
            RETRY,
        )),
        _ => Err(error),
    }
}

/// The budget that does not allow an eviction.
fn budget(status: &Status) -> Why {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut causes = causes.filter(|cause| cause.reason == "DisruptionBudget");
    match causes.next() {
        Some(cause) => Why::new("DisruptionBudget", cause.message.clone()),
        None if status.message.contains("disruption budget") => {
            Why::new("DisruptionBudget", status.message.clone())
        }
        None => Why::new("Throttled", status.message.clone()),
    }
}

fn wait(status: &Status) -> Duration {
    let asked = status
        .details
        .as_ref()
        .map_or(0, |it| it.retry_after_seconds);
    // A budget asks for 10 s however long it will take.
    if asked == 0 {
        RETRY
    } else {
        Duration::from_secs(asked.into()).min(RETRY)
    }
}

#[cfg(test)]
mod tests;
