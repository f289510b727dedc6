//! Platform registrations: storing, starting and refusing them.

use std::{sync::Arc, time::Duration};

use drover_cluster::{Interner, NodeCounts};
use drover_core::{Error, Reason, Result, Sym, Urgency};
use drover_platforms::{Listener, Platforms, Registered, Registration, connect, follow};
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Clock, PlatformRow, Revision, Store, Versioned};

use crate::{
    doubt, fenced::of_a_part, intake::Intake, queue::Queue, rebind::Rebinder, records::Records,
    resources::Leaks, tasks::Tasks, tombstones::Tombstones,
};

/// The registrations, durable and followed.
pub(crate) struct Registry {
    pub(crate) store: Arc<Store>,
    pub(crate) records: Arc<Records>,
    pub(crate) platforms: Arc<Platforms>,
    /// Is told what the platforms show.
    pub(crate) intake: Arc<Intake>,
    pub(crate) rebinder: Rebinder,
    pub(crate) tombstones: Arc<Tombstones>,
    pub(crate) leaks: Arc<Leaks>,
    pub(crate) interner: Arc<Interner>,
    pub(crate) queue: Queue,
    pub(crate) tasks: Tasks,
    pub(crate) clock: Arc<Clock>,
}

impl Registry {
    /// Follows the stored registrations at startup, with the numbers of nodes that clusters have on them. The intake is told
    /// what their platforms show from then on.
    pub(crate) fn load(
        self: &Arc<Self>,
        rows: Vec<Versioned<PlatformRow>>,
        counts: &NodeCounts,
    ) -> Result<()> {
        let intake: Arc<dyn Listener> = self.intake.clone();
        self.platforms.listen(Arc::downgrade(&intake));
        for row in rows {
            let registration = Registration::load(&row.value)?;
            self.start_with(counts, &row.value.name, registration, row.revision);
        }
        Ok(())
    }

    /// The numbers of nodes that clusters have on each platform.
    fn counts(&self) -> NodeCounts {
        let mut counts = NodeCounts::default();
        for cluster in self.records.clusters().all() {
            counts.change(&cluster.lock().counts());
        }
        counts
    }

    fn start(
        self: &Arc<Self>,
        name: &str,
        registration: Registration,
        revision: Revision,
    ) -> Arc<Registered> {
        // Recounted, because the task that counted before is gone.
        self.start_with(&self.counts(), name, registration, revision)
    }

    fn start_with(
        self: &Arc<Self>,
        counts: &NodeCounts,
        name: &str,
        registration: Registration,
        revision: Revision,
    ) -> Arc<Registered> {
        crate::gauges::platform(name);
        let counts = counts.on(name);
        let name: Sym = self.interner.get(name);
        let registered = self.platforms.add(name, registration, revision, counts);
        self.tasks.spawn(self.clone().followed(registered.clone()));
        registered
    }

    async fn followed(self: Arc<Self>, registered: Arc<Registered>) {
        let (platforms, stop) = (self.platforms.clone(), self.tasks.stop().clone());
        follow(platforms, registered.clone(), stop).await;
        let name = &registered.platform.name;
        if self.platforms.get(name).is_none() {
            // The platform may have reported nodes while it was being unregistered.
            self.forget(name);
        }
    }

    /// Registers a platform, or changes its registration.
    pub(crate) async fn register(
        self: &Arc<Self>,
        name: &str,
        spec: pb::PlatformSpec,
        rebind: Option<String>,
    ) -> Result<(pb::ApplyOutcome, Arc<Registered>)> {
        let _registering = self.platforms.registering().await;
        let Some(registered) = self.platforms.get(name) else {
            let registration = Registration {
                spec,
                generation: 1,
                uid: String::new(),
                create_time: self.clock.now(),
            };
            let stored = self.store.put_platform(registration.row(name), Some(0));
            let revision = stored.await.inspect_err(|error| self.doubts(name, error))?;
            let registered = self.start(name, registration, revision);
            self.records.wrote(revision);
            return Ok((pb::ApplyOutcome::Created, registered));
        };
        let before = registered.platform.registration();
        let uid = rebind.clone().unwrap_or_else(|| before.uid.clone());
        let mut moved = false;
        if rebind.is_some() {
            self.platforms.refuse_taken(name, &uid)?;
            // The registration is changed last: until it has the new uid, both moved and remaining records count as
            // unknown.
            moved = self.rebinder.move_all(name, &before.uid, &uid).await?;
        }
        if before.spec == spec && before.uid == uid {
            if !moved {
                return Ok((pb::ApplyOutcome::Unchanged, registered));
            }
            // Observations under the new uid were not believed so far, so the platform is read anew.
            let registered = self.start_anew(name, &registered);
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
        let stored = self.store.put_platform(row, Some(expected)).await;
        let stored = stored.inspect_err(|error| self.doubts(name, error));
        let revision = stored.map_err(|error| if moved { of_a_part(error) } else { error })?;
        registered.stop();
        let registered = self.start(name, registration, revision);
        self.records.wrote(revision);
        Ok((pb::ApplyOutcome::Configured, registered))
    }

    /// Reconnects the platforms that refer to a secret, after it was changed.
    pub(crate) async fn secret_changed(self: &Arc<Self>, secret: &str) {
        let _registering = self.platforms.registering().await;
        let named: Vec<_> = self
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
            self.start_anew(&name, &registered);
        }
    }

    fn start_anew(self: &Arc<Self>, name: &str, registered: &Registered) -> Arc<Registered> {
        registered.stop();
        let revision = registered.revision();
        self.start(name, registered.platform.registration(), revision)
    }

    /// Removes a registration that is no longer needed.
    pub(crate) async fn unregister(self: &Arc<Self>, name: &str) -> Result<Revision> {
        let _registering = self.platforms.registering().await;
        let registered = self.platforms.require(name)?;
        let mut users = Vec::new();
        for cluster in self.records.clusters().by_name() {
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
        self.refuse_leftovers(name, &registered)?;
        let expected = registered.revision();
        let deleted = self.store.delete_platform(name, Some(expected)).await;
        let revision = deleted.inspect_err(|error| self.doubts(name, error))?;
        self.ended(name, &registered);
        self.records.wrote(revision);
        Ok(revision)
    }

    fn ended(&self, name: &str, registered: &Registered) {
        registered.stop();
        self.platforms.remove(name);
        self.forget(name);
    }

    /// Has memory show what became of a change of unknown outcome, as soon as the store says so.
    fn doubts(self: &Arc<Self>, name: &str, error: &Error) {
        if !matches!(
            error.reason(),
            Reason::Unavailable | Reason::RevisionMismatch
        ) {
            return;
        }
        let (this, name) = (self.clone(), name.to_owned());
        self.tasks.spawn_until_stop(async move {
            while let Err(error) = this.settle(&name).await {
                if !doubt::may_end("platform", &name, &error).await {
                    return;
                }
            }
        });
    }

    async fn settle(self: &Arc<Self>, name: &str) -> Result<()> {
        let _registering = self.platforms.registering().await;
        let known = self.platforms.get(name);
        if let Some(known) = &known
            && self.platforms.settle(known).await?
        {
            return Ok(());
        }
        match (self.store.settled_platform(name).await?, known) {
            (Some(row), known) => {
                let registration = Registration::load(&row.value)?;
                if let Some(known) = known {
                    known.stop();
                }
                self.start(name, registration, row.revision);
                self.records.wrote(row.revision);
            }
            (None, Some(known)) => self.ended(name, &known),
            (None, None) => {}
        }
        Ok(())
    }

    /// Refuses to unregister a platform that shows leftovers of a deleted cluster, unless the platform has been unreachable
    /// for long enough to be given up: in that case nobody can remove anything there.
    fn refuse_leftovers(&self, name: &str, registered: &Registered) -> Result<()> {
        let left = self
            .leaks
            .user(name)
            .and_then(|owner| self.tombstones.name(owner));
        let Some(cluster) = self.tombstones.user(name).or(left) else {
            return Ok(());
        };
        let (unseen, wait) = registered.platform.unseen(self.clock.now());
        if unseen >= wait {
            tracing::warn!(platform = %name, %cluster, "what a platform showed of a deleted cluster when it went away is left there");
            return Ok(());
        }
        let message = if registered.platform.is_visible(self.clock.now()) {
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
    fn forget(&self, name: &str) {
        self.tombstones.forget(name);
        self.leaks.forget(name);
        for cluster in self.records.clusters().all() {
            let mut inner = cluster.lock();
            if inner.forget_foreign(name) {
                self.records.changed(&cluster, &mut inner);
                drop(inner);
                self.queue.push(cluster.uid(), Urgency::Bulk);
            }
        }
    }
}

#[cfg(test)]
mod tests;
