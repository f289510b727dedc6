//! Platform registrations: storing, starting and refusing them.

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result, Sym, Urgency};
use drover_platforms::{Registered, Registration, connect, follow};
use drover_proto::orchestrator::v1 as pb;
use drover_store::Revision;

use crate::{api::refusal::of_a_part, rebind, shared::Shared};

/// Loads the stored registrations at startup.
pub(crate) async fn load(shared: &Arc<Shared>) -> Result<()> {
    for row in shared.store.platforms().await? {
        let registration = Registration::load(&row.value)?;
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
    // Recounted, because the task that counted before is gone.
    let mut counts = (0, 0);
    for cluster in shared.clusters.all() {
        let (total, sick) = cluster.lock().count_on(&name);
        counts.0 += total;
        counts.1 += sick;
    }
    let registered = shared.platforms.add(name, registration, revision, counts);
    shared.spawn(followed(shared.clone(), registered.clone()));
    registered
}

async fn followed(shared: Arc<Shared>, registered: Arc<Registered>) {
    let (platforms, stop) = (shared.platforms.clone(), shared.stop.clone());
    follow(platforms, registered.clone(), stop).await;
    let name = &registered.platform.name;
    if shared.platform(name).is_none() {
        // The platform may have reported nodes while it was being unregistered.
        forget(&shared, name);
    }
}

/// Registers a platform, or changes its registration.
pub(crate) async fn register(
    shared: &Arc<Shared>,
    name: &str,
    spec: pb::PlatformSpec,
    rebind: Option<String>,
) -> Result<(pb::ApplyOutcome, Arc<Registered>)> {
    let _registering = shared.platforms.registering().await;
    let Some(registered) = shared.platform(name) else {
        let registration = Registration {
            spec,
            generation: 1,
            uid: String::new(),
            create_time: shared.now(),
        };
        let revision = shared
            .store
            .put_platform(registration.row(name), Some(0))
            .await?;
        let registered = start(shared, name, registration, revision);
        shared.wrote(revision);
        return Ok((pb::ApplyOutcome::Created, registered));
    };
    let before = registered.platform.registration();
    let uid = rebind.clone().unwrap_or_else(|| before.uid.clone());
    let mut moved = false;
    if rebind.is_some() {
        shared.platforms.refuse_taken(name, &uid)?;
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
    let row = registration.row(name);
    let expected = registered.revision();
    let stored = shared.store.put_platform(row, Some(expected)).await;
    let revision = stored.map_err(|error| if moved { of_a_part(error) } else { error })?;
    registered.stop();
    let registered = start(shared, name, registration, revision);
    shared.wrote(revision);
    Ok((pb::ApplyOutcome::Configured, registered))
}

/// Reconnects the platforms that refer to a secret, after it was changed.
pub(crate) async fn secret_changed(shared: &Arc<Shared>, secret: &str) {
    let _registering = shared.platforms.registering().await;
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
    registered.stop();
    let revision = registered.revision();
    start(shared, name, registered.platform.registration(), revision)
}

/// Removes a registration that is no longer needed.
pub(crate) async fn unregister(shared: &Shared, name: &str) -> Result<Revision> {
    let _registering = shared.platforms.registering().await;
    let registered = shared.platforms.require(name)?;
    let mut users = Vec::new();
    for cluster in shared.clusters.by_name() {
        let inner = cluster.lock();
        if inner.names(name) || inner.is_on(name) {
            users.push(cluster.name().to_string());
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
    let expected = registered.revision();
    let revision = shared.store.delete_platform(name, Some(expected)).await?;
    registered.stop();
    shared.platforms.remove(name);
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
    for cluster in shared.clusters.all() {
        let mut inner = cluster.lock();
        if inner.forget_foreign(name) {
            shared.changed(&cluster, &mut inner);
            drop(inner);
            shared.queue.push(cluster.uid(), Urgency::Bulk);
        }
    }
}
