//! Calls about infrastructure and addons, exactly as planned. The next pass takes in the results.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drover_client::PlatformClient;
use drover_cluster::{CallEnd, Cluster, resources};
use drover_convert::addon;
use drover_core::{
    Error, Reason, Result, Urgency,
    addon::AddonTarget,
    resource::{Asked, Observed, ResourceKey, ResourceKind},
    secrecy::Hidden,
};
use drover_proto::platform::v1 as wire;

use super::envelope::{Envelope, Kind, LEAST, Open, not_sent};
use crate::{Ended, Executor};

/// Deadline of a read.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The fields of the record that a call needs.
struct Ask {
    key: ResourceKey,
    asked: Asked,
    sequence: u64,
    body: Arc<[u8]>,
    targets: Arc<[AddonTarget]>,
    left: Duration,
}

/// Makes a call about infrastructure or an addon.
pub(super) async fn call(
    executor: &Executor,
    cluster: &Cluster,
    key: ResourceKey,
    asked: Asked,
    urgency: Urgency,
) -> Option<Ended> {
    let ask = {
        let inner = cluster.lock();
        let record = inner.state().resources.get(&key)?;
        Ask {
            asked,
            sequence: record.sequence,
            body: Arc::clone(&record.body),
            targets: Arc::clone(&record.in_flight.targets),
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
        tracing::debug!(cluster = %cluster.name(), platform = %ask.key.platform, %error, "infrastructure could not be read");
    }
    let end = CallEnd::Resource {
        key: ask.key,
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
    let platform = &ask.key.platform;
    // Read first, so that no place among the calls is held meanwhile.
    let (secrets, unread) = secrets(executor, ask).await?;
    let hidden = drover_secrets::of_addon(&secrets);
    let sent_by = tokio::time::Instant::now() + ask.left;
    let envelope = Envelope {
        executor,
        kind: match (&ask.key.kind, ask.asked) {
            (ResourceKind::Infrastructure, Asked::Ensure) => Kind::Ensure,
            (ResourceKind::Infrastructure, Asked::Release) => Kind::Release,
            (ResourceKind::Infrastructure, Asked::Read) => Kind::Read,
            (ResourceKind::Addon(_), Asked::Ensure) => Kind::EnsureAddon,
            (ResourceKind::Addon(_), Asked::Release) => Kind::RemoveAddon,
            (ResourceKind::Addon(_), Asked::Read) => Kind::ReadAddons,
        },
        platform,
        uid: &ask.key.uid,
        owner: cluster.uid(),
        urgency,
        turn: None,
    };
    let sent = envelope.send(async |open| {
        let left = sent_by.saturating_duration_since(tokio::time::Instant::now());
        if left < LEAST {
            return Err(not_sent(platform));
        }
        match &ask.key.kind {
            ResourceKind::Infrastructure => ask_for(cluster, ask, open, left).await,
            ResourceKind::Addon(name) => {
                ask_for_addon(cluster, name, ask, secrets, &hidden, open, left).await
            }
        }
    });
    // Platforms may repeat what they were sent.
    match sent.await {
        Ok(observed) if unread => Ok(without_texts(observed)),
        Err(error) if unread => Err(Error::new(error.reason(), UNSAID)),
        answer => answer.map_err(|error| hidden.error(error)),
    }
}

/// In place of the platform's words, if what they must not repeat is not known.
const UNSAID: &str =
    "what the platform says is left out, since a secret of the addon cannot be read";

fn without_texts(mut observed: Observed) -> Observed {
    let leave_out = |text: &mut Box<str>| {
        if !text.is_empty() {
            *text = UNSAID.into();
        }
    };
    leave_out(&mut observed.message);
    for resource in &mut observed.resources {
        leave_out(&mut resource.message);
    }
    observed
}

/// The secrets that an addon is given, and whether one that it may have been given cannot be read. Only who makes an addon
/// needs them: it must be possible to remove one whose secrets are lost.
async fn secrets(
    executor: &Executor,
    ask: &Ask,
) -> Result<(BTreeMap<String, wire::AddonSecret>, bool)> {
    let mut all = BTreeMap::new();
    if !ask.key.is_addon() {
        return Ok((all, false));
    }
    let makes = ask.asked == Asked::Ensure;
    let spec = match addon::decode(&ask.body) {
        Err(error) if makes => return Err(error),
        Err(_) => return Ok((all, true)),
        Ok(spec) => spec,
    };
    let mut unread = false;
    for name in addon::secret_names(&spec) {
        match executor.vault.addon_secret(&name).await {
            Ok(secret) => {
                all.insert(name, secret);
            }
            Err(error) if makes => return Err(error),
            Err(error) => unread |= error.reason() != Reason::SecretNotFound,
        }
    }
    Ok((all, unread))
}

fn hide(state: &mut wire::AddonState, hidden: &Hidden) {
    state.message = hidden.text(&state.message).into_owned();
    for one in &mut state.resources {
        one.message = hidden.text(&one.message).into_owned();
    }
}

async fn ask_for(cluster: &Cluster, ask: &Ask, open: Open<'_>, left: Duration) -> Result<Observed> {
    let expected_platform_uid = ask.key.uid.to_string();
    let expected_instance_id = open.instance.clone();
    let fence = Some(open.fence.clone());
    let (cluster_id, owner) = (cluster.name().to_string(), cluster.uid().to_string());
    let (state, poll_after) = match ask.asked {
        Asked::Ensure => {
            let message = wire::EnsureInfrastructureRequest {
                expected_platform_uid,
                expected_instance_id,
                fence,
                cluster_id,
                owner,
                sequence: ask.sequence,
                spec: Some(resources::decode(&ask.body)?),
                validate_only: false,
            };
            let call =
                async |client: PlatformClient| client.ensure_infrastructure(message, left).await;
            let answer = open.call(call).await?;
            (answer.state, answer.poll_after)
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
            (answer.state, answer.poll_after)
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
            (Some(open.call(call).await?), None)
        }
    };
    drover_convert::infrastructure::observed(&ask.key.platform, state, poll_after.as_ref())
}

async fn ask_for_addon(
    cluster: &Cluster,
    name: &str,
    ask: &Ask,
    secrets: BTreeMap<String, wire::AddonSecret>,
    hidden: &Hidden,
    open: Open<'_>,
    left: Duration,
) -> Result<Observed> {
    let expected_platform_uid = ask.key.uid.to_string();
    let expected_instance_id = open.instance.clone();
    let fence = Some(open.fence.clone());
    let (cluster_id, owner) = (cluster.name().to_string(), cluster.uid().to_string());
    let (mut state, poll_after) = match ask.asked {
        Asked::Ensure => {
            let message = wire::EnsureAddonRequest {
                expected_platform_uid,
                expected_instance_id,
                fence,
                cluster_id,
                owner,
                sequence: ask.sequence,
                spec: Some(addon::decode(&ask.body)?),
                targets: ask.targets.iter().map(addon::to_target).collect(),
                validate_only: false,
                secrets,
            };
            let call = async |client: PlatformClient| client.ensure_addon(message, left).await;
            let answer = open.call(call).await?;
            (answer.state, answer.poll_after)
        }
        Asked::Release => {
            let message = wire::RemoveAddonRequest {
                expected_platform_uid,
                expected_instance_id,
                fence,
                cluster_id,
                owner,
                name: name.to_owned(),
            };
            let call = async |client: PlatformClient| client.remove_addon(message, left).await;
            let answer = open.call(call).await?;
            (answer.state, answer.poll_after)
        }
        Asked::Read => {
            let message = wire::ListAddonsRequest {
                expected_platform_uid,
                expected_instance_id,
                cluster_id,
                ..wire::ListAddonsRequest::default()
            };
            let call = async |client: PlatformClient| client.list_addons(message, left).await;
            let listed = open.call(call).await?;
            let mut own = listed.addons.into_iter();
            let own = own.find(|one| one.owner == owner && one.name == name);
            // What could not be read may be this one.
            let explains = |warning: &wire::Warning| {
                let cluster_id = warning.cluster_id.as_deref();
                cluster_id.is_none_or(|id| id == &**cluster.name())
                    && warning.name.as_deref().is_none_or(|it| it == name)
            };
            if own.is_none() && listed.warnings.iter().any(explains) {
                let why = format!("it is not known whether addon {name} is there");
                return Err(drover_core::Error::unavailable(why));
            }
            let gone = || wire::AddonState {
                phase: wire::ResourcePhase::Gone.into(),
                ..wire::AddonState::default()
            };
            (Some(own.unwrap_or_else(gone)), None)
        }
    };
    if let Some(state) = &mut state {
        hide(state, hidden);
    }
    addon::observed(state, poll_after.as_ref())
}
