//! Follows one platform in a loop: handshake, fencing, then watch or poll.

use std::{sync::Arc, time::Duration};

use drover_client::PlatformClient;
use drover_core::{Error, Millis, Reason, Result, Urgency, back_off};
use drover_proto::platform::v1::{self as wire, watch_nodes_response::Event};
use drover_store::Owned;
use futures::StreamExt;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::{Foreign, Platforms, Registered, Registration, has};

pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Deadline of a Fence call: the platform responds within 10 s.
const FENCE_TIMEOUT: Duration = Duration::from_secs(12);
/// Deadline of a complete read of a platform that does not support watches.
const DISCOVER_TIMEOUT: Duration = Duration::from_secs(60);
/// Initial reconnect backoff; doubles with each attempt, with full jitter.
const RETRY_FIRST: Millis = 100;
/// Maximum reconnect backoff.
const RETRY_MOST: Millis = 10_000;
/// Maximum number of distinct errors logged per outage, which typically changes from connection refused to timeouts to
/// failing name resolution.
const MOST_SAID: usize = 4;
/// Requested heartbeat interval.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Maximum interval between checks of conditions that only depend on time: freshness and suspensions.
const TICK: Duration = Duration::from_secs(1);

/// Follows a platform until it is unregistered or the orchestrator stops.
pub async fn follow(
    platforms: Arc<Platforms>,
    registered: Arc<Registered>,
    stop: CancellationToken,
) {
    let platform = registered.platform.name.clone();
    let mut failures = 0_u32;
    let mut said: Vec<String> = Vec::new();
    loop {
        let began = Instant::now();
        let ended = tokio::select! {
            () = registered.stop.cancelled() => return,
            () = stop.cancelled() => return,
            ended = connection(&platforms, &registered) => ended,
        };
        let Err(error) = ended else { continue };
        let begins = registered
            .platform
            .lost(&error, &format!("cannot be followed: {error}"));
        if begins {
            said.clear();
            platforms.changed(&platform, Urgency::Bulk);
        }
        // Each distinct error is logged once per outage, not once per attempt.
        if said.len() < MOST_SAID && !said.iter().any(|before| before == error.message()) {
            tracing::warn!(%platform, %error, "platform cannot be followed; tried again");
            said.push(error.message().to_owned());
        }
        failures = if began.elapsed() > Duration::from_millis(RETRY_MOST) {
            0
        } else {
            failures + 1
        };
        let most = Duration::from_millis(back_off(RETRY_FIRST, RETRY_MOST, failures));
        let wait = error
            .retry_after()
            .unwrap_or_else(|| most.mul_f64(fastrand::f64()));
        tokio::select! {
            () = registered.stop.cancelled() => return,
            () = stop.cancelled() => return,
            () = registered.retried() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Runs one connection, from its handshake until it breaks.
async fn connection(platforms: &Arc<Platforms>, registered: &Arc<Registered>) -> Result<()> {
    let registration = registered.platform.registration();
    let channel = platforms.connect(&registration.spec).await?;
    let channel = channel.to_platform(&registered.platform.name);
    let client = PlatformClient::new(channel);
    let handshake = client.get_platform(HANDSHAKE_TIMEOUT).await?;
    accept(platforms, registered, &registration, &handshake).await?;
    let watches = has(&handshake, wire::Capability::Watch);
    let fenced = has(&handshake, wire::Capability::Fence);
    let instance = handshake.instance_id.clone();
    let uid = handshake.uid.clone();
    // A server that was started again knows of no lead and believes whoever asks first, so it is only asked by whoever has
    // the lead since that start.
    platforms.store.confirm(&platforms.shards).await?;
    registered.platform.connected(client.clone(), handshake);
    if fenced && !registered.platform.is_fenced() {
        fence(platforms, &client, &uid, &instance).await?;
        registered.platform.fenced();
    }
    tracing::info!(platform = %registered.platform.name, endpoint = %registration.spec.endpoint, "platform connected");
    if watches {
        watch(platforms, registered, &client, &uid, &instance).await
    } else {
        poll(platforms, registered, &client, &uid, &instance).await
    }
}

/// Checks that the platform is the backend that the records refer to, and stores its uid on first contact.
async fn accept(
    platforms: &Arc<Platforms>,
    registered: &Arc<Registered>,
    registration: &Registration,
    handshake: &wire::Platform,
) -> Result<()> {
    let name = &registered.platform.name;
    if handshake.uid.is_empty() {
        return Err(Error::internal("it answers no uid"));
    }
    if registration.uid == handshake.uid {
        return Ok(());
    }
    if !registration.uid.is_empty() {
        let message = format!(
            "it is another backend than before ({} instead of {}); put that back, or: drover rebind {name} {} if it is \
             the same one, drover abandon CLUSTER --platform {name} if the old one is gone",
            handshake.uid, registration.uid, handshake.uid
        );
        return Err(Error::new(Reason::PlatformMismatch, message));
    }
    let _registering = platforms.registering().await;
    platforms.refuse_taken(name, &handshake.uid)?;
    let registration = Registration {
        uid: handshake.uid.clone(),
        ..registered.platform.registration()
    };
    platforms.store(registered, registration).await
}

/// Fences off earlier owners of our clusters, so that none of their calls is still in progress on the platform.
async fn fence(
    platforms: &Platforms,
    client: &PlatformClient,
    uid: &str,
    instance: &str,
) -> Result<()> {
    let fences = platforms.shards.all().iter().map(|owned| {
        let message = wire::FenceRequest {
            expected_platform_uid: uid.to_owned(),
            expected_instance_id: instance.to_owned(),
            fence: Some(wire::Fence {
                store_id: platforms.store.id().to_string(),
                shard: u32::from(owned.shard()),
                epoch: owned.epoch(),
            }),
        };
        client.fence(message, FENCE_TIMEOUT)
    });
    let answers = futures::future::try_join_all(fences).await;
    answers.map(drop).map_err(|error| {
        let epochs = platforms.shards.all().iter().map(Owned::epoch);
        said_of_a_fence(error, epochs.max().unwrap_or_default())
    })
}

/// Explains to a fenced-off process who fenced it off and what to do. An epoch is the start time of its owner, unless
/// its clock was behind.
fn said_of_a_fence(error: Error, own: u64) -> Error {
    let later = error.metadata().get("epoch").and_then(|it| it.parse().ok());
    let (Reason::Fenced, Some(later)) = (error.reason(), later) else {
        return error;
    };
    let [began, here] = [later, own].map(drover_convert::value::to_timestamp);
    let message = format!(
        "another orchestrator with this store has called it, which started at {began}, and this one at {here}: stop that \
         one, if it still runs; where the store was restored and the clock of this machine is behind, set the clock and \
         start again"
    );
    Error::new(Reason::Fenced, message).with_metadata("epoch", later)
}

async fn watch(
    platforms: &Arc<Platforms>,
    registered: &Arc<Registered>,
    client: &PlatformClient,
    uid: &str,
    instance: &str,
) -> Result<()> {
    let began = platforms.now();
    if let Some(listener) = platforms.listener() {
        listener.watch_begun(registered);
    }
    let message = wire::WatchNodesRequest {
        expected_platform_uid: uid.to_owned(),
        expected_instance_id: instance.to_owned(),
        cluster_id: String::new(),
        heartbeat_interval: Some(drover_convert::value::to_duration(HEARTBEAT)),
    };
    let mut watch = client.watch_nodes(message, HANDSHAKE_TIMEOUT).await?;
    let mut state = Following {
        foreign: Foreign::new(),
        began,
        complete: false,
        visible: false,
    };
    loop {
        let event = timeout(TICK, watch.next()).await;
        match event {
            Ok(Some(event)) => take(platforms, registered, client, event?, &mut state).await?,
            Ok(None) => return Err(Error::unavailable("the watch ended")),
            Err(_) => {}
        }
        notice_time(platforms, registered, &mut state.visible);
    }
}

struct Following {
    foreign: Foreign,
    began: Millis,
    complete: bool,
    visible: bool,
}

async fn take(
    platforms: &Arc<Platforms>,
    registered: &Arc<Registered>,
    client: &PlatformClient,
    event: Event,
    state: &mut Following,
) -> Result<()> {
    match event {
        Event::Started(_) => {}
        Event::Upserts(upserts) => {
            shown(platforms, registered, upserts.nodes, &mut state.foreign).await?;
            if state.complete {
                // The platform has these clusters by now, and a watch may last for months.
                state.foreign.clear();
            }
        }
        Event::Removals(removals) => {
            if let Some(listener) = platforms.listener() {
                listener.removed(registered, &removals.nodes);
            }
        }
        Event::SnapshotComplete(mark) => {
            if !state.complete {
                state.complete = true;
                registered
                    .platform
                    .snapshot_complete(platforms.now(), mark.observe_time);
                let foreign = std::mem::take(&mut state.foreign);
                complete(platforms, registered, state.began, foreign);
            }
        }
        Event::Heartbeat(mark) => {
            registered
                .platform
                .heartbeat(platforms.now(), mark.observe_time);
            let etag = registered
                .platform
                .handshake()
                .map(|h| h.etag.clone())
                .unwrap_or_default();
            if !mark.platform_etag.is_empty() && mark.platform_etag != etag {
                platforms.refresh(registered, client).await?;
            }
        }
        Event::Warnings(warnings) => registered.platform.set_warnings(warnings.warnings),
    }
    Ok(())
}

async fn shown(
    platforms: &Platforms,
    registered: &Registered,
    nodes: Vec<wire::Node>,
    foreign: &mut Foreign,
) -> Result<()> {
    match platforms.listener() {
        Some(listener) => listener.shown(registered, nodes, foreign).await,
        None => Ok(()),
    }
}

fn complete(platforms: &Platforms, registered: &Arc<Registered>, began: Millis, foreign: Foreign) {
    if let Some(listener) = platforms.listener() {
        listener.snapshot_complete(registered, began, foreign);
    }
}

/// Schedules the users of a platform when it becomes visible or invisible, and when a suspension ends.
fn notice_time(platforms: &Arc<Platforms>, registered: &Arc<Registered>, visible: &mut bool) {
    let now = platforms.now();
    let was = std::mem::replace(visible, registered.platform.is_visible(now));
    let ended = registered.platform.end_suspension(now);
    if was != *visible || ended {
        platforms.changed(&registered.platform.name, Urgency::Bulk);
    }
}

/// Polls a platform that does not support watches.
async fn poll(
    platforms: &Arc<Platforms>,
    registered: &Arc<Registered>,
    client: &PlatformClient,
    uid: &str,
    instance: &str,
) -> Result<()> {
    let interval = registered
        .platform
        .handshake()
        .and_then(|h| h.limits?.min_poll_interval)
        .and_then(|interval| drover_convert::value::duration("", &interval).ok())
        .unwrap_or(Duration::from_secs(10))
        .max(Duration::from_millis(50));
    let mut visible = false;
    loop {
        let began = platforms.now();
        let message = wire::DiscoverRequest {
            expected_platform_uid: uid.to_owned(),
            expected_instance_id: instance.to_owned(),
            ..wire::DiscoverRequest::default()
        };
        let read = client.discover_all(message, DISCOVER_TIMEOUT).await?;
        let mut foreign = Foreign::new();
        shown(platforms, registered, read.nodes, &mut foreign).await?;
        registered.platform.set_warnings(read.warnings);
        registered
            .platform
            .snapshot_complete(platforms.now(), read.observe_time);
        complete(platforms, registered, began, foreign);
        let etag = registered
            .platform
            .handshake()
            .map(|h| h.etag.clone())
            .unwrap_or_default();
        if !read.platform_etag.is_empty() && read.platform_etag != etag {
            platforms.refresh(registered, client).await?;
        }
        let end = Instant::now() + interval;
        while Instant::now() < end {
            notice_time(platforms, registered, &mut visible);
            tokio::time::sleep((end - Instant::now()).min(TICK)).await;
        }
    }
}

#[cfg(test)]
mod tests;
