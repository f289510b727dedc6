//! Requests the nodes of a provision request from a platform.

use std::{collections::BTreeMap, time::Duration};

use drover_cluster::{CallEnd, Cluster, ClusterState, request, template};
use drover_core::{
    Class, Error, Millis, Result, Sym, Urgency,
    node::{Outcome, Request},
};
use drover_platforms::Registered;
use drover_proto::platform::v1 as wire;
use uuid::Uuid;

use super::envelope::{Envelope, Kind, LEAST, Turn, not_sent};
use crate::{Ended, Executor, Shown};

/// Metadata key of a `NO_CAPACITY` error that names the single failure domain that is short.
const FAILURE_DOMAIN: &str = "failure_domain";

pub(super) async fn provision(
    executor: &Executor,
    cluster: &Cluster,
    (id, deadline): (Uuid, Millis),
    urgency: Urgency,
    turn: Option<Turn>,
) -> Option<Ended> {
    let (platform, uid, pool, body, count) = {
        let inner = cluster.lock();
        let request = inner.state().requests.get(&id)?;
        let count = inner
            .state()
            .nodes
            .iter()
            .filter(|node| node.request == id)
            .count();
        let body = inner.body(&id).cloned().unwrap_or_default();
        (
            request.platform.clone(),
            request.platform_uid.clone(),
            pool_of(&inner, request),
            body,
            count,
        )
    };
    let began = executor.clock.now();
    let envelope = Envelope {
        executor,
        kind: Kind::Provision,
        platform: &platform,
        uid: &uid,
        owner: cluster.uid(),
        urgency,
        turn,
    };
    let answer = envelope
        .send(async |open| {
            let (mut message, reference) = request::decode(&body)?;
            if let Some(bootstrap) = &mut message.bootstrap {
                let data = executor.vault.user_data(cluster.uid(), &reference).await?;
                *bootstrap = request::bootstrap(&data, bootstrap.render);
            }
            message.secrets = executor.vault.template_secrets(&reference).await?;
            message.fence = Some(open.fence.clone());
            message.expected_instance_id.clone_from(&open.instance);
            // After the reads: nothing may arrive after the deadline, from which on the request counts as settled.
            let left = executor.clock.until(deadline);
            if left < LEAST {
                return Err(not_sent(&platform));
            }
            let registered = open.registered.clone();
            let hidden = request::hidden(&message, reference.is_secret());
            let answer = open
                .call(async |client| match client.provision(message, left).await {
                    Ok(answer) => Ok(drover_convert::secrecy::clean(&hidden, answer)),
                    Err(error) => Err(hidden.error(error)),
                })
                .await;
            answer.map(|answer| (registered, answer))
        })
        .await;
    let now = executor.clock.now();
    let mut nodes = Vec::new();
    let mut rendered = None;
    let outcome = match answer {
        Ok((registered, answer)) => {
            let domains = answer.nodes.iter().map(|n| n.failure_domain.as_str());
            if !answer.nodes.is_empty() {
                registered.platform.has_again(&pool, domains);
            }
            nodes.clone_from(&answer.nodes);
            rendered = said(executor, &registered, cluster, id, &answer.template_digest).await;
            outcomes(answer, count, (cluster.uid(), id))
        }
        Err(error) => Err(error),
    };
    let nodes = executor.vault.hear(&executor.clusters, nodes).await;
    note_capacity(executor, &platform, &pool, &outcome, now);
    let end = CallEnd::Provision {
        request: id,
        outcome,
        rendered,
    };
    let shown = Shown::by_answer(platform, &uid, began, nodes);
    Some(Ended::new(end, now, urgency).showing(shown))
}

/// Which template to record for the nodes of a request, given what their platform reports. `None` if the recorded one
/// is right.
async fn said(
    executor: &Executor,
    registered: &Registered,
    cluster: &Cluster,
    request: Uuid,
    digest: &str,
) -> Option<Sym> {
    if digest.is_empty() {
        return None;
    }
    let lists = |digest: &str| {
        let handshake = registered.platform.handshake();
        handshake.is_some_and(|handshake| template::lists(&handshake, digest))
    };
    if !lists(digest) {
        // The template changed a moment ago, and the change has not been reported yet.
        let client = registered.platform.client()?;
        if let Err(error) = executor.platforms.refresh(registered, &client).await {
            tracing::debug!(platform = %registered.platform.name, %error, "what it has now could not be read");
        }
    }
    let recorded = cluster.lock().template_of(request)?;
    let known = template::known_as(&recorded, digest, lists);
    (*recorded != *known).then(|| executor.interner.get(known))
}

/// The capacity pool that a request draws from.
fn pool_of(inner: &ClusterState, request: &Request) -> Sym {
    let group = inner.spec().groups.iter().find(|g| g.path == request.group);
    let choice = group.and_then(|group| {
        let mut choices = group.choices.iter();
        choices.find(|choice| choice.is_hash(&request.spec_hash))
    });
    choice.map_or_else(|| request.class.clone(), |choice| choice.pool.clone())
}

/// The result of each index. An index that is missing, duplicated, or of another request is unknown: such a response
/// proves nothing about it.
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
        // A node of another request is not a result of this one, whatever its index.
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

/// Records a capacity shortage, so that all clusters back off from the platform.
fn note_capacity(
    executor: &Executor,
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
    // Many nodes of a request may fail because of the same shortage.
    let short: BTreeMap<&str, Option<Duration>> = short
        .map(|error| {
            let domain = error.metadata().get(FAILURE_DOMAIN);
            (domain.map_or("", String::as_str), error.retry_after())
        })
        .collect();
    if let Some(registered) = executor.platforms.get(platform) {
        for (domain, after) in short {
            registered.platform.out_of(pool, domain, now, after);
        }
    }
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
