//! Platform registrations: storing, starting and refusing them.

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result, Sym, name};
use drover_proto::orchestrator::v1 as pb;
use drover_store::{PlatformRow, Revision};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    connect,
    platform::{Platform, Registration},
    platform_watch,
    queue::Urgency,
    rebind,
    shared::{Registered, Shared},
};

/// Maximum length of an endpoint: more than a scheme, the longest host name and a port.
const MAX_ENDPOINT: usize = 512;

/// Loads the stored registrations at startup.
pub(crate) async fn load(shared: &Arc<Shared>) -> Result<()> {
    for row in shared.store.platforms().await? {
        let spec = pb::PlatformSpec::decode(row.value.spec.clone())
            .map_err(|_| Error::internal("a stored registration cannot be read"))?;
        let registration = Registration {
            spec,
            generation: row.value.generation,
            uid: row.value.uid.clone(),
            create_time: u64::try_from(row.value.create_time_ms).unwrap_or(0),
        };
        start(shared, &row.value.name, registration, row.revision);
    }
    Ok(())
}

fn start(
    shared: &Arc<Shared>,
    name: &str,
    registration: Registration,
    revision: Revision,
) -> Arc<Registered> {
    crate::gauges::platform(name);
    let name: Sym = shared.interner.get(name);
    let registered = Arc::new(Registered {
        platform: Platform::new(name.clone(), registration, shared.now()),
        stop: CancellationToken::new(),
        retry: Notify::new(),
        revision: Mutex::new(revision),
    });
    // Recounted, because the task that counted before is gone.
    let (mut total, mut sick) = (0, 0);
    for cluster in shared.all() {
        for node in cluster
            .inner
            .lock()
            .state
            .nodes
            .iter()
            .filter(|node| node.platform == name)
        {
            total += 1;
            sick += i64::from(drover_planner::is_troubled(node));
        }
    }
    registered.platform.count(total, sick, shared.now());
    if let Some(before) = shared.platform(&name) {
        registered.platform.take_over(&before.platform);
    }
    shared.platforms.write().insert(name, registered.clone());
    shared.spawn(followed(shared.clone(), registered.clone()));
    registered
}

async fn followed(shared: Arc<Shared>, registered: Arc<Registered>) {
    platform_watch::run(shared.clone(), registered.clone()).await;
    let name = &registered.platform.name;
    if shared.platform(name).is_none() {
        // The platform may have reported nodes while it was being unregistered.
        forget(&shared, name);
    }
}

/// Makes a changed registration durable.
pub(crate) async fn store(
    shared: &Shared,
    registered: &Registered,
    registration: Registration,
) -> Result<()> {
    let row = row(&registered.platform.name, &registration);
    let expected = *registered.revision.lock();
    let revision = shared.store.put_platform(row, Some(expected)).await?;
    *registered.revision.lock() = revision;
    registered.platform.set_registration(registration);
    shared.wrote(revision);
    Ok(())
}

fn row(name: &str, registration: &Registration) -> PlatformRow {
    PlatformRow {
        name: name.to_owned(),
        spec: registration.spec.encode_to_vec().into(),
        generation: registration.generation,
        uid: registration.uid.clone(),
        create_time_ms: i64::try_from(registration.create_time).unwrap_or(0),
        ..PlatformRow::default()
    }
}

/// Refuses a backend that is registered under another name.
pub(crate) fn refuse_taken(shared: &Shared, name: &str, uid: &str) -> Result<()> {
    let platforms = shared.platforms.read();
    let taken = platforms
        .iter()
        .find(|(other, p)| ***other != *name && p.platform.registration().uid == uid);
    taken.map_or(Ok(()), |(other, _)| {
        let message = format!("it is the same backend as {other}, which is registered already");
        Err(Error::new(Reason::PlatformUidTaken, message).with_metadata("platform", other))
    })
}

/// Validates the spec of a registration.
pub(crate) fn check(name: &str, spec: Option<&pb::PlatformSpec>) -> Result<pb::PlatformSpec> {
    name::check_name(name).map_err(|why| Error::invalid("platform.name", why))?;
    let spec = spec.cloned().unwrap_or_default();
    if !spec.token_secret.is_empty() {
        name::check_name(&spec.token_secret)
            .map_err(|why| Error::invalid("platform.spec.token_secret", why))?;
    }
    if spec.endpoint.len() > MAX_ENDPOINT {
        return Err(Error::invalid(
            "platform.spec.endpoint",
            format!("is longer than {MAX_ENDPOINT} bytes"),
        ));
    }
    if spec.endpoint.is_empty() {
        return Err(Error::invalid(
            "platform.spec.endpoint",
            "is empty; expected http://HOST:PORT or https://HOST:PORT",
        ));
    }
    connect::check(&spec)?;
    Ok(spec)
}

/// Registers a platform, or changes its registration.
pub(crate) async fn register(
    shared: &Arc<Shared>,
    name: &str,
    spec: pb::PlatformSpec,
    rebind: Option<String>,
) -> Result<(pb::ApplyOutcome, Arc<Registered>)> {
    let _registering = shared.registering.lock().await;
    let Some(registered) = shared.platform(name) else {
        let registration = Registration {
            spec,
            generation: 1,
            uid: String::new(),
            create_time: shared.now(),
        };
        let revision = shared
            .store
            .put_platform(row(name, &registration), Some(0))
            .await?;
        let registered = start(shared, name, registration, revision);
        shared.wrote(revision);
        return Ok((pb::ApplyOutcome::Created, registered));
    };
    let before = registered.platform.registration();
    let uid = rebind.clone().unwrap_or_else(|| before.uid.clone());
    let mut moved = false;
    if rebind.is_some() {
        refuse_taken(shared, name, &uid)?;
        // The registration is changed last: until it has the new uid, both moved and remaining records count as
        // unknown.
        moved = rebind::all(shared, name, &before.uid, &uid).await?;
    }
    if before.spec == spec && before.uid == uid {
        if !moved {
            return Ok((pb::ApplyOutcome::Unchanged, registered));
        }
        // Observations under the new uid were not believed so far, so the platform is read anew.
        let registered = start_anew(shared, name, &registered);
        return Ok((pb::ApplyOutcome::Configured, registered));
    }
    let registration = Registration {
        spec,
        generation: before.generation + 1,
        uid,
        ..before
    };
    let row = row(name, &registration);
    let expected = *registered.revision.lock();
    let revision = shared.store.put_platform(row, Some(expected)).await?;
    registered.stop.cancel();
    let registered = start(shared, name, registration, revision);
    shared.wrote(revision);
    Ok((pb::ApplyOutcome::Configured, registered))
}

/// Reconnects the platforms that refer to a secret, after it was changed.
pub(crate) async fn secret_changed(shared: &Arc<Shared>, secret: &str) {
    let _registering = shared.registering.lock().await;
    let named: Vec<_> = shared
        .platforms
        .read()
        .iter()
        .filter(|(_, registered)| {
            let spec = registered.platform.registration().spec;
            connect::secrets(&spec).iter().any(|of| of.name == secret)
        })
        .map(|(name, registered)| (name.clone(), registered.clone()))
        .collect();
    for (name, registered) in named {
        start_anew(shared, &name, &registered);
    }
}

fn start_anew(shared: &Arc<Shared>, name: &str, registered: &Registered) -> Arc<Registered> {
    registered.stop.cancel();
    let revision = *registered.revision.lock();
    start(shared, name, registered.platform.registration(), revision)
}

/// Removes a registration that is no longer needed.
pub(crate) async fn unregister(shared: &Shared, name: &str) -> Result<Revision> {
    let _registering = shared.registering.lock().await;
    let registered = shared.require_platform(name)?;
    let mut users = Vec::new();
    for cluster in shared.by_name() {
        let inner = cluster.inner.lock();
        let named = inner
            .spec
            .groups
            .iter()
            .any(|g| g.choices.iter().any(|c| *c.platform == *name));
        let recorded = inner.state.nodes.iter().any(|node| *node.platform == *name)
            || inner
                .state
                .requests
                .values()
                .any(|request| *request.platform == *name)
            || inner
                .state
                .infrastructure
                .keys()
                .any(|(platform, _)| **platform == *name)
            || (inner.state.orphans.keys()).any(|(platform, _)| **platform == *name);
        let named = named
            || inner
                .spec
                .infrastructure
                .iter()
                .any(|one| *one.platform == *name);
        if named || recorded {
            users.push(cluster.name.to_string());
        }
    }
    if let Some(first) = users.first() {
        let message = match users.len() {
            1 => format!("cluster {first} needs {name}"),
            many => format!("{many} clusters need {name}, the first of them {first}"),
        };
        return Err(Error::new(Reason::PlatformInUse, message)
            .with_metadata("clusters", users[..users.len().min(10)].join(",")));
    }
    refuse_leftovers(shared, name, &registered)?;
    let expected = *registered.revision.lock();
    let revision = shared.store.delete_platform(name, Some(expected)).await?;
    registered.stop.cancel();
    shared.platforms.write().remove(name);
    forget(shared, name);
    shared.wrote(revision);
    Ok(revision)
}

/// Refuses to unregister a platform that shows leftovers of a deleted cluster, unless the platform has been unreachable
/// for long enough to be given up: in that case nobody can remove anything there.
fn refuse_leftovers(shared: &Shared, name: &str, registered: &Registered) -> Result<()> {
    let left = shared
        .leaks
        .user(name)
        .and_then(|owner| shared.tombstones.name(owner));
    let Some(cluster) = shared.tombstones.user(name).or(left) else {
        return Ok(());
    };
    let (unseen, wait) = registered.platform.unseen(shared.now());
    if unseen >= wait {
        tracing::warn!(platform = %name, %cluster, "what a platform showed of a deleted cluster when it went away is left there");
        return Ok(());
    }
    let message = if registered.platform.is_visible(shared.now()) {
        format!(
            "{name} still shows something of {cluster}, which is deleted; it is about to be removed"
        )
    } else {
        format!(
            "{name} showed something of {cluster}, which is deleted, before it went away; it can be unregistered in {} s",
            (wait - unseen).div_ceil(1000)
        )
    };
    let error = Error::new(Reason::PlatformInUse, message).with_metadata("clusters", cluster);
    Err(error.with_retry_after(Duration::from_millis(wait - unseen)))
}

/// Forgets everything that only this platform showed.
fn forget(shared: &Shared, name: &str) {
    shared.tombstones.forget(name);
    shared.leaks.forget(name);
    for cluster in shared.all() {
        let mut inner = cluster.inner.lock();
        let before = inner.state.foreign.len();
        inner
            .state
            .foreign
            .retain(|(platform, _), _| **platform != *name);
        if inner.state.foreign.len() < before {
            shared.changed(&cluster, &mut inner);
            drop(inner);
            shared.queue.push(cluster.uid, Urgency::Bulk);
        }
    }
}
