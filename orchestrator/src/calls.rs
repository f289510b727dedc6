//! Calls to platforms: exactly what a plan says, each as a task of its own. What they answer is taken in by the next
//! pass; nothing is decided here.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drover_client::PlatformClient;
use drover_core::{
    Class, Error, Millis, Node, Reason, Result, Sym,
    node::{Answer, Call as Attempt, Outcome, Request},
    storage::Retention,
};
use drover_planner::Call;
use drover_proto::platform::v1 as wire;
use drover_telemetry::{context, current, span};
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use crate::{
    clock,
    cluster::{Cluster, Inner},
    exec,
    heard::Heard,
    hooks::Point,
    infrastructure, intake, order,
    platform::Verdict,
    queue::Urgency,
    request, secrets,
    shared::{Registered, Shared},
    template, trace, turn,
    witness::Subject,
};

/// Metadata of a NO_CAPACITY error that names the one failure domain that has none.
const FAILURE_DOMAIN: &str = "failure_domain";
/// Deadline of a Deprovision call: the platform answers when it has begun, not when it is done.
const DEPROVISION_TIMEOUT: Duration = Duration::from_secs(30);
/// A removal that was accepted is asked for again after its grace and this much more.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(30);
/// First wait after a removal failed; it doubles.
const RETRY_FIRST: Millis = 500;
/// Longest wait after a removal or a read failed.
const RETRY_MOST: Millis = 60_000;

mod adopt;
mod confirm;

/// Makes a call, as a task of its own.
pub(crate) fn start(shared: &Arc<Shared>, cluster: &Arc<Cluster>, call: &Call, urgency: Urgency) {
    let (shared, cluster, call) = (shared.clone(), cluster.clone(), call.clone());
    let owner = shared.clone();
    owner.spawn(context::scope(current(), async move {
        let next = match call {
            Call::Provision { request, deadline } => {
                provision(&shared, &cluster, request, deadline, urgency).await
            }
            Call::Deprovision { slot } => deprovision(&shared, &cluster, slot, urgency).await,
            Call::Turn { slot } => turn::turn(&shared, &cluster, slot).await,
            Call::Drain { slot, until } => drain(&shared, &cluster, slot, until).await,
            Call::Adopt { slot } => adopt::adopt(&shared, &cluster, slot, urgency).await,
            Call::Confirm { platform } => confirm::confirm(&shared, &cluster, &platform).await,
            Call::Infrastructure {
                platform,
                uid,
                asked,
            } => infrastructure::call(&shared, &cluster, (platform, uid), asked, urgency).await,
        };
        if let Some(urgency) = next {
            shared.queue.push(cluster.uid, urgency);
        }
    }));
}

/// The platform behind a name, if it is the backend that is meant.
pub(crate) fn reach(
    shared: &Shared,
    name: &str,
    uid: &str,
) -> Result<(Arc<Registered>, PlatformClient)> {
    let registered = shared.require_platform(name)?;
    if registered.platform.identity().0 != uid {
        return Err(Error::new(
            Reason::PlatformRestarted,
            format!("{name} is another backend now"),
        ));
    }
    let client = registered.platform.client().ok_or_else(|| not_sent(name))?;
    Ok((registered, client))
}

/// The same once it is its turn to be called. The permit is its place among the calls; it ends with it.
pub(crate) async fn turn_at(
    shared: &Shared,
    name: &str,
    uid: &str,
    urgency: Urgency,
) -> Result<(Arc<Registered>, PlatformClient, OwnedSemaphorePermit)> {
    let (registered, client) = reach(shared, name, uid)?;
    let permit = registered.platform.permit(urgency, || shared.now()).await;
    let permit = permit.ok_or_else(|| not_sent(name))?;
    Ok((registered, client, permit))
}

/// A call that was never made: it made nothing, and may be repeated as it is.
pub(crate) fn not_sent(platform: &str) -> Error {
    Error::new(
        Reason::PlatformRestarted,
        format!("{platform} could not be called in time"),
    )
}

pub(crate) fn judged(shared: &Arc<Shared>, registered: &Registered, error: Option<&Error>) {
    if registered.platform.judge(error, shared.now()) == Verdict::Changed {
        shared.wake_users(&registered.platform.name, Urgency::Bulk);
    }
    if error.is_some_and(|error| error.reason() == Reason::PlatformRestarted) {
        registered.retry.notify_one();
    }
}

async fn provision(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    id: Uuid,
    deadline: Millis,
    urgency: Urgency,
) -> Option<Urgency> {
    let (platform, uid, pool, body, count) = {
        let inner = cluster.inner.lock();
        let request = inner.state.requests.get(&id)?;
        let count = inner
            .state
            .nodes
            .iter()
            .filter(|node| node.request == id)
            .count();
        let body = inner.bodies.get(&id).cloned().unwrap_or_default();
        (
            request.platform.clone(),
            request.platform_uid.clone(),
            pool_of(&inner, request),
            body,
            count,
        )
    };
    let began = shared.now();
    let traced = trace::call("provision", &platform);
    let answer = span::within(traced.as_ref(), async {
        let (registered, client, permit) = turn_at(shared, &platform, &uid, urgency).await?;
        let left = shared.clock.until(deadline);
        if left < Duration::from_millis(500) {
            return Err(not_sent(&platform));
        }
        let (mut message, reference) = request::decode(&body)?;
        if let Some(bootstrap) = &mut message.bootstrap {
            let data = request::user_data(shared, cluster.uid, &reference).await?;
            *bootstrap = request::bootstrap(&data, bootstrap.render);
        }
        message.secrets = request::template_secrets(shared, &reference).await?;
        message.fence = Some(shared.fence(cluster.uid));
        message.expected_instance_id = registered.platform.identity().1;
        shared.hooks.reach(Point::BeforeProvision).await;
        let hidden = request::hidden(&message, reference.is_secret());
        let answer = client.provision(message, left).await;
        let answer = match answer {
            Ok(answer) => Ok(drover_convert::secrecy::clean(&hidden, answer)),
            Err(error) => Err(hidden.error(error)),
        };
        drop(permit);
        judged(shared, &registered, answer.as_ref().err());
        shared.hooks.reach(Point::AfterProvision).await;
        answer.map(|answer| (registered, answer))
    })
    .await;
    trace::called(traced, answer.as_ref().err());
    let now = shared.now();
    let mut shown = Vec::new();
    let mut rendered = None;
    let outcome = match answer {
        Ok((registered, answer)) => {
            let domains = answer.nodes.iter().map(|n| n.failure_domain.as_str());
            if !answer.nodes.is_empty() {
                registered.platform.has_again(&pool, domains);
            }
            shown.clone_from(&answer.nodes);
            rendered =
                template::said(shared, &registered, cluster, id, &answer.template_digest).await;
            outcomes(answer, count, (cluster.uid, id))
        }
        Err(error) => Err(error),
    };
    let shown = Heard::of(shared, shown).await;
    note_capacity(shared, &platform, &pool, &outcome, now);
    let mut inner = cluster.inner.lock();
    if let Some(witness) = &inner.witness {
        witness.answered(Subject::Request(id), failure(&outcome));
    }
    let request = inner.state.requests.get_mut(&id)?;
    request.call.in_flight = false;
    request.answer = Some(Answer {
        at: now,
        taken: false,
        outcome,
    });
    request.rendered = rendered;
    for node in &shown {
        intake::show(
            shared,
            cluster,
            &mut inner,
            intake::Source {
                platform: &platform,
                uid: &uid,
            },
            node,
            (began, now),
            false,
        );
    }
    Some(urgency)
}

/// What capacity a request takes.
fn pool_of(inner: &Inner, request: &Request) -> Sym {
    let group = inner.spec.groups.iter().find(|g| g.path == request.group);
    let choice = group.and_then(|group| {
        let mut choices = group.choices.iter();
        choices.find(|choice| choice.is_hash(&request.spec_hash))
    });
    choice.map_or_else(|| request.class.clone(), |choice| choice.pool.clone())
}

/// User data that is referred to and not there.
pub(crate) fn digest_not_stored(digest: &str) -> Error {
    Error::new(
        Reason::DigestNotStored,
        format!("no user data with digest {digest} is stored; apply the data itself"),
    )
    .with_metadata("sha256", digest)
}

/// What became of each index. One that is missing, stands there twice, or is of another request, is unknown: such an
/// answer proves nothing.
fn outcomes(
    answer: wire::ProvisionResponse,
    count: usize,
    (owner, request): (Uuid, Uuid),
) -> Result<Vec<Outcome>> {
    let silent = || Error::internal("the platform did not say what became of it");
    let mut outcomes: Vec<Option<Outcome>> = vec![None; count];
    let mut put = |index: usize, outcome: Outcome| {
        if let Some(slot) = outcomes.get_mut(index) {
            *slot = Some(if slot.is_some() {
                Outcome::Unknown(silent())
            } else {
                outcome
            });
        }
    };
    for node in answer.nodes {
        // One of another request is not what was asked for here, whatever its index.
        if let Some((of, made_by, index)) = drover_convert::node::slot(&node)
            && (of, made_by) == (owner, request)
            && !node.node_id.is_empty()
        {
            put(index as usize, Outcome::Made(node.node_id.into()));
        }
    }
    let error = |status: Option<tonic_types::pb::Status>| {
        status.map_or_else(silent, |status| {
            drover_convert::error::from_rpc_status(&status)
        })
    };
    for failure in answer.failures {
        put(
            failure.index as usize,
            Outcome::Failed(error(failure.error)),
        );
    }
    for unknown in answer.unknown {
        put(
            unknown.index as usize,
            Outcome::Unknown(error(unknown.error)),
        );
    }
    Ok(outcomes
        .into_iter()
        .map(|outcome| outcome.unwrap_or_else(|| Outcome::Unknown(silent())))
        .collect())
}

/// Why one of the nodes was not made.
fn failure(outcome: &Result<Vec<Outcome>>) -> Option<&Error> {
    match outcome {
        Err(error) => Some(error),
        Ok(outcomes) => outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Failed(error) | Outcome::Unknown(error) => Some(error),
            Outcome::Made(_) => None,
        }),
    }
}

/// A platform without capacity is left alone by all clusters for a while.
fn note_capacity(
    shared: &Shared,
    platform: &Sym,
    pool: &Sym,
    outcome: &Result<Vec<Outcome>>,
    now: Millis,
) {
    let errors: Vec<&Error> = match outcome {
        Err(error) => vec![error],
        Ok(outcomes) => outcomes
            .iter()
            .filter_map(|outcome| match outcome {
                Outcome::Failed(error) => Some(error),
                Outcome::Made(_) | Outcome::Unknown(_) => None,
            })
            .collect(),
    };
    let short = errors
        .into_iter()
        .filter(|error| error.class() == Class::NoCapacity);
    // Many nodes of a request may fail for the same want.
    let short: BTreeMap<&str, Option<Duration>> = short
        .map(|error| {
            let domain = error.metadata().get(FAILURE_DOMAIN);
            (domain.map_or("", String::as_str), error.retry_after())
        })
        .collect();
    if let Some(registered) = shared.platform(platform) {
        for (domain, after) in short {
            registered.platform.out_of(pool, domain, now, after);
        }
    }
}

async fn deprovision(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    slot: u64,
    urgency: Urgency,
) -> Option<Urgency> {
    let (platform, uid, grace, mut message) = {
        let inner = cluster.inner.lock();
        let node = inner.state.node(slot)?;
        let grace = order::grace(&inner, &node.group);
        let message = wire::DeprovisionRequest {
            expected_platform_uid: node.platform_uid.to_string(),
            request_id: Uuid::now_v7().to_string(),
            owner: cluster.uid.to_string(),
            cluster_id: cluster.name.to_string(),
            node_request_id: node.request.to_string(),
            index: Some(node.index),
            node_id: node.node_id.as_ref()?.to_string(),
            reason: node
                .removal
                .map_or("", |removal| removal.reason.as_str())
                .to_owned(),
            retain_storage: node.fate_of_storage() == Some(Retention::Retain),
            ..wire::DeprovisionRequest::default()
        };
        (
            node.platform.clone(),
            node.platform_uid.clone(),
            grace,
            message,
        )
    };
    let traced = trace::call("deprovision", &platform);
    let answer = span::within(traced.as_ref(), async {
        let (registered, client, permit) = turn_at(shared, &platform, &uid, urgency).await?;
        message.fence = Some(shared.fence(cluster.uid));
        message.expected_instance_id = registered.platform.identity().1;
        if registered.platform.has(wire::Capability::GracePeriod) {
            message.grace_period = grace.map(drover_convert::value::to_duration);
        }
        shared.hooks.reach(Point::BeforeDeprovision).await;
        let answer = client.deprovision(message, DEPROVISION_TIMEOUT).await;
        let answer = secrets::hide(shared, cluster, slot, answer).await;
        drop(permit);
        judged(shared, &registered, answer.as_ref().err());
        shared.hooks.reach(Point::AfterDeprovision).await;
        answer
    })
    .await;
    trace::called(traced, answer.as_ref().err());
    let now = shared.now();
    let mut inner = cluster.inner.lock();
    let node = heard(&mut inner, slot, answer.as_ref().err())?;
    match answer {
        Ok(_) => {
            let patience = REMOVAL_PATIENCE + grace.unwrap_or_default();
            node.call = Attempt {
                in_flight: false,
                failures: 0,
                next: now + clock::millis(patience),
            };
        }
        Err(error) => {
            if error.class() != Class::Stale {
                tracing::debug!(cluster = %cluster.name, slot, %platform, %error, "removal failed");
                node.seen.message = error.message().into();
            }
            retry_later(&mut node.call, &error, now);
        }
    }
    Some(urgency)
}

/// The node that a call was about, which has ended.
fn heard<'a>(inner: &'a mut Inner, slot: u64, error: Option<&Error>) -> Option<&'a mut Node> {
    if let Some(witness) = &inner.witness {
        witness.answered(Subject::Slot(slot), error);
    }
    let node = inner.state.node_mut(slot)?;
    node.call.in_flight = false;
    Some(node)
}

/// Runs the hook in a node before its removal.
async fn drain(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    slot: u64,
    until: Millis,
) -> Option<Urgency> {
    let hook = order::pre_stop(&cluster.inner.lock(), slot);
    let ran = match &hook {
        None => Ok(()),
        Some(hook) => exec::run_hook(shared, cluster, slot, hook, shared.clock.until(until)).await,
    };
    let now = shared.now();
    let mut inner = cluster.inner.lock();
    let node = inner.state.node_mut(slot)?;
    node.call.in_flight = false;
    match ran {
        Err(error) if exec::is_open(&error) => retry_later(&mut node.call, &error, now),
        // A template may suggest what another platform cannot do; what a user says was refused then.
        Err(error) if error.reason() == Reason::CapabilityMissing => {
            node.hook = Some(Box::new(Ok(())));
        }
        ran => node.hook = Some(Box::new(ran.map_err(|error| error.message().into()))),
    }
    Some(Urgency::Urgent)
}

pub(crate) fn retry_later(call: &mut Attempt, error: &Error, now: Millis) {
    let most = (RETRY_FIRST << call.failures.min(16)).min(RETRY_MOST);
    let wait = error
        .retry_after()
        .map_or_else(|| fastrand::u64(most / 2..=most), clock::millis);
    call.failures = call.failures.saturating_add(1);
    call.next = now + wait.min(RETRY_MOST);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_another_request_is_no_answer_to_this_one() {
        let (owner, request) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let node = |owner: Uuid, request: Uuid, index| wire::Node {
            node_id: format!("i-{index}"),
            slot: Some(wire::SlotKey {
                owner: owner.to_string(),
                request_id: request.to_string(),
                index: Some(index),
            }),
            ..wire::Node::default()
        };
        let answer = wire::ProvisionResponse {
            nodes: vec![
                node(owner, request, 0),
                node(owner, Uuid::from_u128(3), 1),
                node(Uuid::from_u128(3), request, 2),
            ],
            ..wire::ProvisionResponse::default()
        };
        let found = outcomes(answer, 3, (owner, request)).unwrap();
        assert!(
            matches!(&found[0], Outcome::Made(id) if **id == *"i-0"),
            "{found:?}"
        );
        for other in &found[1..] {
            assert!(matches!(other, Outcome::Unknown(_)), "{other:?}");
        }
    }
}
