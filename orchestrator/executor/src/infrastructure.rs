//! Infrastructure calls, exactly as planned. The next pass takes in the results.

use std::{sync::Arc, time::Duration};

use drover_client::PlatformClient;
use drover_cluster::{CallEnd, Cluster, infrastructure};
use drover_core::{
    Result, Urgency,
    infrastructure::{Asked, Observed},
};
use drover_planner::BackendKey;
use drover_proto::platform::v1 as wire;

use super::envelope::{Envelope, Kind, LEAST, Open, not_sent};
use crate::{Ended, Executor};

/// Deadline of a read.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The fields of the record that a call needs.
struct Ask {
    key: BackendKey,
    asked: Asked,
    sequence: u64,
    body: Arc<[u8]>,
    left: Duration,
}

/// Makes an infrastructure call.
pub(super) async fn call(
    executor: &Executor,
    cluster: &Cluster,
    key: BackendKey,
    asked: Asked,
    urgency: Urgency,
) -> Option<Ended> {
    let ask = {
        let inner = cluster.lock();
        let record = inner.state().infrastructure.get(&key)?;
        Ask {
            asked,
            sequence: record.sequence,
            body: Arc::clone(&record.body),
            left: match asked {
                Asked::Read => READ_TIMEOUT,
                Asked::Ensure | Asked::Release => executor.clock.until(record.deadline),
            },
            key,
        }
    };
    let began = executor.clock.now();
    let answer = send(executor, cluster, &ask, urgency).await;
    if let (Asked::Read, Err(error)) = (asked, &answer) {
        tracing::debug!(cluster = %cluster.name(), platform = %ask.key.0, %error, "infrastructure could not be read");
    }
    let end = CallEnd::Infrastructure {
        backend: ask.key,
        sequence: ask.sequence,
        asked,
        began,
        answer,
    };
    Some(Ended::new(end, executor.clock.now(), urgency))
}

async fn send(
    executor: &Executor,
    cluster: &Cluster,
    ask: &Ask,
    urgency: Urgency,
) -> Result<Observed> {
    let (platform, uid) = &ask.key;
    let sent_by = tokio::time::Instant::now() + ask.left;
    let envelope = Envelope {
        executor,
        kind: match ask.asked {
            Asked::Ensure => Kind::Ensure,
            Asked::Release => Kind::Release,
            Asked::Read => Kind::Read,
        },
        platform,
        uid,
        owner: cluster.uid(),
        urgency,
    };
    let sent = envelope.send(async |open| {
        let left = sent_by.saturating_duration_since(tokio::time::Instant::now());
        if left < LEAST {
            return Err(not_sent(platform));
        }
        ask_for(cluster, ask, open, left).await
    });
    let (state, poll_after) = sent.await?;
    drover_convert::infrastructure::observed(platform, state, poll_after.as_ref())
}

/// The platform's report on infrastructure, and when to ask again.
type Said = (
    Option<wire::InfrastructureState>,
    Option<prost_types::Duration>,
);

async fn ask_for(cluster: &Cluster, ask: &Ask, open: Open<'_>, left: Duration) -> Result<Said> {
    let expected_platform_uid = ask.key.1.to_string();
    let expected_instance_id = open.instance.clone();
    let fence = Some(open.fence.clone());
    let (cluster_id, owner) = (cluster.name().to_string(), cluster.uid().to_string());
    match ask.asked {
        Asked::Ensure => {
            let message = wire::EnsureInfrastructureRequest {
                expected_platform_uid,
                expected_instance_id,
                fence,
                cluster_id,
                owner,
                sequence: ask.sequence,
                spec: Some(infrastructure::decode(&ask.body)?),
                validate_only: false,
            };
            let call =
                async |client: PlatformClient| client.ensure_infrastructure(message, left).await;
            let answer = open.call(call).await?;
            Ok((answer.state, answer.poll_after))
        }
        Asked::Release => {
            let message = wire::ReleaseInfrastructureRequest {
                expected_platform_uid,
                expected_instance_id,
                fence,
                cluster_id,
                owner,
            };
            let call =
                async |client: PlatformClient| client.release_infrastructure(message, left).await;
            let answer = open.call(call).await?;
            Ok((answer.state, answer.poll_after))
        }
        Asked::Read => {
            let message = wire::GetInfrastructureRequest {
                expected_platform_uid,
                expected_instance_id,
                cluster_id,
                owner,
            };
            let call =
                async |client: PlatformClient| client.get_infrastructure(message, left).await;
            Ok((Some(open.call(call).await?), None))
        }
    }
}
