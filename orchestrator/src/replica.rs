//! Several orchestrators over one store, of which one leads and the others stand by.
//!
//! The lead is all shards of the store, under one lease in etcd. Who has it loads everything anew, tells the platforms its
//! epoch, and goes on with what was begun, as after a restart; what a former leader still writes or asks for is refused
//! by etcd and by the platforms. Whoever stands by forwards calls to it.

mod fitness;
mod forward;
mod gone;
mod lead;
mod list;
mod routing;
mod sight;
mod successor;
mod vacancy;

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result};
use drover_store::{Me, Owned, ReplicaRow, Shards, Store, Vacant};
use drover_store_etcd::EtcdBackend;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};

pub(crate) use self::list::alone;
pub use self::routing::Routing;
use self::{fitness::Senses, vacancy::Vacancy};
use crate::{
    Orchestrator, Preparation, Settings, VERSION,
    load::{self, Shelf},
    space::Room,
};

/// How old a standby's word about who leads may be.
const LOOK: Duration = Duration::from_secs(1);
/// How long changes that callers wait for may take to their answer before another replica leads.
const HAND_OVER: Duration = Duration::from_millis(200);
/// How long etcd may take to note that nobody leads.
const RELEASE: Duration = Duration::from_secs(2);
/// How long the next leader is waited for, and how often it is looked for without being told.
const NEXT: Duration = Duration::from_secs(3);
const FOLLOWS: Duration = Duration::from_millis(50);
/// Delay before a store that does not answer is asked again.
const AGAIN: Duration = Duration::from_millis(100);

/// What an orchestrator is called among those on the same etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReplicaSettings {
    /// Name, which each has for itself and keeps over a restart. Default: the name of the machine.
    pub name: Option<String>,
    /// URL at which clients reach it, which the other replicas tell them. Default: where it listens.
    pub address: Option<String>,
}

impl ReplicaSettings {
    pub(crate) fn me(&self) -> Result<Me> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => host_name(),
        };
        if name.is_empty() || name.len() > 253 || name.chars().any(|c| !c.is_ascii_graphic()) {
            return Err(Error::invalid(
                "replica.name",
                format!("{name:?} must be 1 to 253 letters, digits or signs, without spaces"),
            ));
        }
        let address = self.address.clone().unwrap_or_default();
        if !address.is_empty() {
            let target: Result<drover_client::Target> = address.parse();
            target.map_err(|error| Error::invalid("replica.address", error.message()))?;
        }
        Ok(Me {
            address,
            version: VERSION.to_owned(),
            ..Me::named(name)
        })
    }
}

/// Name of this machine. It is asked of the kernel and not read of `/proc`, of which a confined unit sees only processes.
#[must_use]
pub fn host_name() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

/// An orchestrator on etcd that does not lead (yet).
#[derive(Debug)]
pub struct Standby {
    store: Arc<Store>,
    room: Room,
    preparation: Preparation,
    routing: Routing,
    shelf: Shelf,
    look: AbortHandle,
    ahead: AbortHandle,
    judge: AbortHandle,
}

impl Standby {
    /// Opens the store in etcd, as one of its replicas.
    ///
    /// # Errors
    /// A setting is invalid or a file unusable, as for [`Orchestrator::open`]; no member of etcd answers; another
    /// process has the replica's name.
    // A future that is not boxed is compiled anew by every crate that awaits it.
    pub fn open<'a>(settings: &'a Settings, routing: &'a Routing) -> BoxFuture<'a, Result<Self>> {
        Box::pin(Self::join(settings, routing))
    }

    async fn join(settings: &Settings, routing: &Routing) -> Result<Self> {
        let me = routing.introduce(settings.replica.me()?);
        let preparation = Preparation::of(settings, |connector| connector)?;
        let backend = Arc::new(EtcdBackend::open(&settings.etcd).await?);
        let store = Arc::new(Store::open_as(backend.clone(), me).await?);
        let keys = preparation.keyring()?;
        if let Err(error) = store.check_keys(keys.as_ref()).await {
            // Nobody need wait for its lease.
            let _ = timeout(RELEASE, store.resign()).await;
            return Err(error);
        }
        store.read_ahead();
        let found = store.leader().await?;
        routing.joined(store.clone());
        routing.found(found.as_ref());
        let shelf = Shelf::default();
        let keys = preparation.keys.clone();
        let looking = tokio::spawn({
            let (store, routing) = (store.clone(), routing.clone());
            let leader = Mutex::new(found);
            async move {
                tokio::join!(
                    look(&store, &leader, &routing),
                    gone::watch(&store, &leader)
                )
            }
        });
        let following = tokio::spawn(load::follow(store.clone(), keys, shelf.clone()));
        let hooks = preparation.hooks.clone();
        let has_read = {
            let (store, shelf) = (store.clone(), shelf.clone());
            move || load::has_caught_up(&shelf, &store)
        };
        let senses = Senses::new(preparation.keys.clone(), move || hooks.wall(), has_read);
        let judging = tokio::spawn({
            let (store, fitness) = (store.clone(), routing.fitness().clone());
            async move { fitness.follow(&store, senses).await }
        });
        Ok(Self {
            store,
            room: Room::new(backend, settings.etcd.quota),
            preparation,
            routing: routing.clone(),
            shelf,
            look: looking.abort_handle(),
            ahead: following.abort_handle(),
            judge: judging.abort_handle(),
        })
    }

    /// Waits until nobody leads any more, and nobody who had better takes the lead, or the lead is handed to this replica. While
    /// etcd does not answer nobody can take it, so that is waited for, too. `FENCED` if this replica's own lease ended meanwhile.
    ///
    /// # Errors
    /// The lease of this replica has ended: it is to be opened anew.
    pub async fn vacancy(&self) -> Result<()> {
        let vacancy = Vacancy {
            store: &self.store,
            fitness: self.routing.fitness(),
            shelf: &self.shelf,
        };
        if let Vacant::Given { epoch } = vacancy.begins().await? {
            // Calls come here from now on.
            self.routing.begins(epoch);
        }
        Ok(())
    }

    /// Takes the lead, and begins to reconcile. `None` if another replica was quicker: this one goes on standing by.
    ///
    /// # Errors
    /// As for [`Orchestrator::open`]. This replica has given up what it had taken, and is to be opened anew.
    pub fn lead(&self) -> BoxFuture<'_, Result<Option<Orchestrator>>> {
        Box::pin(self.take_the_lead())
    }

    async fn take_the_lead(&self) -> Result<Option<Orchestrator>> {
        let began = Instant::now();
        let shards = match self.store.take_all().await {
            Ok(shards) => shards,
            Err(error) if error.reason() == Reason::NotLeader => return Ok(None),
            Err(error) => return Err(self.without_lead(error).await),
        };
        let claimed = began.elapsed();
        self.ahead.abort();
        let first = shards.all().first();
        self.routing.begins(first.map_or(0, Owned::epoch));
        let begun = self.preparation.clone().begin_with(
            self.store.clone(),
            shards,
            self.shelf.lock().take(),
        );
        match begun.await {
            Ok(orchestrator) => {
                let (clusters, loaded) =
                    (orchestrator.records.clusters().all().len(), began.elapsed());
                orchestrator.keep_the_lead(self.room.clone(), &self.routing);
                tracing::info!(clusters, ?claimed, ?loaded, "this replica leads");
                Ok(Some(orchestrator))
            }
            Err(error) => Err(self.without_lead(error).await),
        }
    }

    /// Waits until this lead should end. Returns why.
    pub async fn outdone(&self) -> String {
        self.routing.fitness().until_outdone(&self.store).await
    }

    /// Lets another replica lead, and forwards calls to it from then on. What is under way goes on, and its outcome is
    /// the next leader's business: it repeats every call whose answer is not in the store. `false` if the store does not
    /// answer, or takes a part of it only: nothing that is under way can be written down any more, and this replica has left
    /// the others, so that they need not wait for what it had.
    pub async fn hand_over(&self, orchestrator: &Orchestrator) -> bool {
        // What it has said as a standby may be the last that the others know.
        let declines = timeout(successor::WITHIN, self.store.declines());
        let (next, _) = tokio::join!(successor::find(&self.store), declines);
        let began = Instant::now();
        // Calls wait from here on, and go to the next one.
        self.routing.resigns();
        orchestrator.tasks.answer(HAND_OVER).await;
        let answered = began.elapsed();
        let given = timeout(RELEASE, self.give(orchestrator.records.shards(), next)).await;
        match given {
            Ok(Ok(Some(next))) => {
                self.routing.gave(&next);
                tracing::info!(to = next.name, ?answered, given = ?began.elapsed(), "the lead was handed over");
            }
            Ok(Ok(None)) => self.follow_the_next().await,
            Ok(Err(error)) => return self.ends(&error).await,
            Err(_) => {
                let error = Error::unavailable("the store does not answer");
                return self.ends(&error).await;
            }
        }
        true
    }

    async fn ends(&self, error: &Error) -> bool {
        tracing::warn!(%error, "the lead could not be handed over");
        self.leave().await;
        false
    }

    /// Gives the lead to that replica. `None` if it was left to whoever takes it first.
    async fn give(&self, shards: &Shards, next: Option<ReplicaRow>) -> Result<Option<ReplicaRow>> {
        if let Some(next) = next
            && let Some(lease) = next.lease
            && let Some(epoch) = self.store.hand_over(shards, &next.name, lease).await?
        {
            return Ok(Some(ReplicaRow { epoch, ..next }));
        }
        self.store.release_all(shards).await?;
        Ok(None)
    }

    async fn follow_the_next(&self) {
        let next = async {
            loop {
                if let Ok(replicas) = self.store.replicas().await {
                    let leader = replicas.iter().find(|it| it.leads && !it.is_this);
                    let is_alone = replicas.iter().all(|it| it.is_this);
                    if is_alone || leader.is_some() {
                        return self.routing.found(leader);
                    }
                }
                let _ = timeout(FOLLOWS, self.store.lead_changed()).await;
            }
        };
        if timeout(NEXT, next).await.is_err() {
            tracing::debug!("no other replica has taken the lead yet");
        }
    }

    /// For a replica that ends: the lead is not to be handed to it any more, and one that was meanwhile is given up. Goes on as
    /// long as it is awaited.
    pub async fn declines(&self) {
        self.judge.abort();
        while !matches!(timeout(RELEASE, self.store.declines()).await, Ok(Ok(()))) {
            sleep(AGAIN).await;
        }
        loop {
            if let Ok(Vacant::Given { .. }) = self.store.vacancy().await {
                let given_up = async {
                    let shards = self.store.take_all().await?;
                    self.store.release_all(&shards).await
                };
                if !matches!(timeout(RELEASE, given_up).await, Ok(Ok(()))) {
                    self.leave().await;
                }
            }
            sleep(AGAIN).await;
        }
    }

    /// Half a lead is none: the others need not wait for its end.
    async fn without_lead(&self, error: Error) -> Error {
        self.leave().await;
        error
    }

    /// Leaves the replicas.
    pub async fn leave(&self) {
        match timeout(RELEASE, self.store.resign()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the lease ends by itself"),
            Err(_) => tracing::debug!("the lease ends by itself: etcd does not answer"),
        }
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.look.abort();
        self.ahead.abort();
        self.judge.abort();
        self.routing.left();
    }
}

/// Looks who leads.
async fn look(store: &Store, leader: &Mutex<Option<ReplicaRow>>, routing: &Routing) {
    loop {
        // Whoever has just begun to lead can be lost as well.
        let _ = timeout(LOOK, store.lead_changed()).await;
        // What is not known now may be wrong a second later: nobody is named then.
        let found = store.leader().await.ok().flatten();
        routing.found(found.as_ref());
        *leader.lock() = found;
    }
}
