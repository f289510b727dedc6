//! Calls about infrastructure: exactly what a plan says. What they answer is taken in by the next pass.

use std::{sync::Arc, time::Duration};

use drover_core::{
    Error, Result,
    infrastructure::{Asked, InfrastructureAnswer, Observed},
    node::Call as Attempt,
};
use drover_planner::BackendKey;
use drover_proto::platform::v1 as wire;
use drover_telemetry::span;
use prost::Message;

use crate::{
    calls::{judged, not_sent, retry_later, turn_at},
    cluster::Cluster,
    hooks::Point,
    queue::Urgency,
    shared::Shared,
    trace,
    witness::Subject,
};

/// Deadline of a read.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// A call that could not begin this long before its deadline is not made.
const LEAST: Duration = Duration::from_millis(500);

/// What a call needs of the record.
struct Ask {
    key: BackendKey,
    asked: Asked,
    sequence: u64,
    body: Arc<[u8]>,
    left: Duration,
}

/// Makes a call about infrastructure.
pub(crate) async fn call(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    key: BackendKey,
    asked: Asked,
    urgency: Urgency,
) -> Option<Urgency> {
    let ask = {
        let inner = cluster.inner.lock();
        let record = inner.state.infrastructure.get(&key)?;
        Ask {
            asked,
            sequence: record.sequence,
            body: Arc::clone(&record.body),
            left: match asked {
                Asked::Read => READ_TIMEOUT,
                Asked::Ensure | Asked::Release => shared.clock.until(record.deadline),
            },
            key,
        }
    };
    if asked != Asked::Read {
        shared.leaks.used(&ask.key.0);
    }
    let began = shared.now();
    let traced = trace::call("infrastructure", &ask.key.0);
    let outcome = span::within(traced.as_ref(), send(shared, cluster, &ask, urgency)).await;
    trace::called(traced, outcome.as_ref().err());
    let now = shared.now();
    let mut inner = cluster.inner.lock();
    if asked != Asked::Read
        && let Some(witness) = &inner.witness
    {
        let subject = Subject::Infrastructure(ask.sequence);
        witness.answered(subject, outcome.as_ref().err());
    }
    let record = inner.state.infrastructure.get_mut(&ask.key)?;
    record.call.in_flight = false;
    match (asked, outcome) {
        (Asked::Read, Err(error)) => {
            tracing::debug!(cluster = %cluster.name, platform = %ask.key.0, %error, "infrastructure could not be read");
            retry_later(&mut record.call, &error, now);
        }
        (asked, outcome) => {
            record.call = Attempt::default();
            record.answer = Some(InfrastructureAnswer {
                asked,
                began,
                at: now,
                outcome,
            });
        }
    }
    Some(urgency)
}

async fn send(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    ask: &Ask,
    urgency: Urgency,
) -> Result<Observed> {
    let (platform, uid) = &ask.key;
    let sent_by = tokio::time::Instant::now() + ask.left;
    let (registered, client, permit) = turn_at(shared, platform, uid, urgency).await?;
    let left = sent_by.saturating_duration_since(tokio::time::Instant::now());
    if left < LEAST {
        return Err(not_sent(platform));
    }
    let expected_platform_uid = uid.to_string();
    let expected_instance_id = registered.platform.identity().1;
    let fence = Some(shared.fence(cluster.uid));
    let (cluster_id, owner) = (cluster.name.to_string(), cluster.uid.to_string());
    let answer = match ask.asked {
        Asked::Ensure => {
            let message = wire::EnsureInfrastructureRequest {
                expected_platform_uid,
                expected_instance_id,
                fence,
                cluster_id,
                owner,
                sequence: ask.sequence,
                spec: Some(decode(&ask.body)?),
                validate_only: false,
            };
            shared.hooks.reach(Point::BeforeEnsure).await;
            let answer = client.ensure_infrastructure(message, left).await;
            answer.map(|answer| (answer.state, answer.poll_after))
        }
        Asked::Release => {
            let message = wire::ReleaseInfrastructureRequest {
                expected_platform_uid,
                expected_instance_id,
                fence,
                cluster_id,
                owner,
            };
            shared.hooks.reach(Point::BeforeRelease).await;
            let answer = client.release_infrastructure(message, left).await;
            answer.map(|answer| (answer.state, answer.poll_after))
        }
        Asked::Read => {
            let message = wire::GetInfrastructureRequest {
                expected_platform_uid,
                expected_instance_id,
                cluster_id,
                owner,
            };
            let answer = client.get_infrastructure(message, left).await;
            answer.map(|state| (Some(state), None))
        }
    };
    drop(permit);
    judged(shared, &registered, answer.as_ref().err());
    match ask.asked {
        Asked::Ensure => shared.hooks.reach(Point::AfterEnsure).await,
        Asked::Release => shared.hooks.reach(Point::AfterRelease).await,
        Asked::Read => {}
    }
    let (state, poll_after) = answer?;
    drover_convert::infrastructure::observed(platform, state, poll_after.as_ref())
}

fn decode(body: &[u8]) -> Result<wire::InfrastructureSpec> {
    wire::InfrastructureSpec::decode(body)
        .map_err(|_| Error::internal("the stored infrastructure cannot be read"))
}

/// What a stored spec asks for, for people: `network, endpoint`.
pub(super) fn parts(body: &[u8]) -> String {
    let spec = decode(body).unwrap_or_default();
    let parts: Vec<&str> = [
        ("network", spec.network.is_some()),
        ("endpoint", spec.endpoint.is_some()),
        ("firewall", spec.firewall.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, wanted)| wanted.then_some(name))
    .collect();
    if parts.is_empty() {
        "nothing but properties".to_owned()
    } else {
        parts.join(", ")
    }
}
