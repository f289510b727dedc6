//! Several orchestrators over one store, of which one leads and the others stand by.
//!
//! The lead is all shards of the store, under one lease in etcd. Who has it loads everything anew, tells the platforms its
//! epoch, and goes on with what was begun, as after a restart; what a former leader still writes or asks for is refused
//! by etcd and by the platforms.

mod gone;

use std::{convert::Infallible, marker::PhantomData, sync::Arc, task, time::Duration};

use drover_convert::error::to_status;
use drover_core::{Error, Reason, Result};
use drover_proto::orchestrator::v1::{
    self as pb,
    cluster_service_server::ClusterServiceServer,
    platform_registry_service_server::PlatformRegistryServiceServer,
    replica_service_server::{ReplicaService, ReplicaServiceServer},
    secret_service_server::SecretServiceServer,
};
use drover_server::{Readiness, Service};
use drover_store::{Me, ReplicaRow, Store};
use drover_store_etcd::EtcdBackend;
use futures::future::{Ready, ready};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{sleep, timeout},
};
use tonic::{Request, Response, Status, body::Body, server::NamedService};

use crate::{
    Orchestrator, Preparation, Settings, VERSION,
    api::Api,
    gauges,
    shared::Shared,
    space::{self, Room},
    watchdog,
};

/// How old a standby's word about who leads may be.
const LOOK: Duration = Duration::from_secs(1);
/// Delay before a store that does not answer is asked again.
const AGAIN: Duration = Duration::from_millis(500);
/// How often a leader checks that it has not lost touch with the store.
const TOUCH: Duration = Duration::from_millis(200);
/// How often values that were replaced are discarded. They are kept for as long as a watch may be away, [`KEPT`] times
/// this.
const COMPACT: Duration = Duration::from_secs(60);
const KEPT: usize = 5;

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
            name,
            address,
            version: VERSION.to_owned(),
        })
    }
}

/// Name of this machine.
#[must_use]
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// An orchestrator on etcd that does not lead (yet).
#[derive(Debug)]
pub struct Standby {
    store: Arc<Store>,
    room: Room,
    preparation: Preparation,
    leader: Arc<Mutex<Option<ReplicaRow>>>,
    readiness: watch::Sender<Readiness>,
    look: AbortHandle,
}

impl Standby {
    /// Opens the store in etcd, as one of its replicas.
    ///
    /// # Errors
    /// A setting is invalid or a file unusable, as for [`Orchestrator::open`]; no member of etcd answers; another
    /// process has the replica's name.
    pub async fn open(settings: &Settings) -> Result<Self> {
        let me = settings.replica.me()?;
        let preparation = Preparation::of(settings, |connector| connector)?;
        let backend = Arc::new(EtcdBackend::open(&settings.etcd).await?);
        let store = Arc::new(Store::open_as(backend.clone(), me).await?);
        store.read_ahead();
        let leader = Arc::new(Mutex::new(store.leader().await?));
        let (readiness, _) = watch::channel(Readiness::NotReady(stands_by(leader.lock().as_ref())));
        let looking = tokio::spawn({
            let (store, leader, readiness) = (store.clone(), leader.clone(), readiness.clone());
            async move {
                tokio::join!(
                    look(&store, &leader, readiness),
                    gone::watch(&store, &leader)
                )
            }
        });
        Ok(Self {
            store,
            room: Room::new(backend, settings.etcd.quota),
            preparation,
            leader,
            readiness,
            look: looking.abort_handle(),
        })
    }

    /// The services of a replica that does not lead: all but the list of replicas refuse.
    #[must_use]
    pub fn service(&self) -> Service {
        let replicas = Replicas(self.store.clone());
        Service::new("drover-orchestrator", VERSION)
            .add(self.refuses::<ClusterServiceServer<Api>>())
            .add(self.refuses::<PlatformRegistryServiceServer<Api>>())
            .add(self.refuses::<SecretServiceServer<Api>>())
            .add(ReplicaServiceServer::new(replicas))
            .readiness(self.readiness.subscribe())
            .metrics(|out| gauges::leads(out, false))
    }

    fn refuses<S>(&self) -> Refuses<S> {
        Refuses {
            leader: self.leader.clone(),
            of: PhantomData,
        }
    }

    /// Waits until nobody leads any more. While etcd does not answer nobody can take the lead, so that is waited for,
    /// too. `FENCED` if this replica's own lease ended meanwhile.
    ///
    /// # Errors
    /// The lease of this replica has ended: it is to be opened anew.
    pub async fn vacancy(&self) -> Result<()> {
        let lost = self.store.lost();
        loop {
            let vacancy = tokio::select! {
                () = lost.cancelled() => {
                    return Err(Error::new(Reason::Fenced, "the lease of this replica has ended"));
                }
                vacancy = self.store.vacancy() => vacancy,
            };
            match vacancy {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::warn!(%error, "the store does not answer");
                    sleep(AGAIN).await;
                }
            }
        }
    }

    /// Takes the lead, and begins to reconcile. `None` if another replica was quicker: this one goes on standing by.
    ///
    /// # Errors
    /// As for [`Orchestrator::open`]. This replica has given up what it had taken, and is to be opened anew.
    pub async fn lead(&self) -> Result<Option<Orchestrator>> {
        let shards = match self.store.take_all().await {
            Ok(shards) => shards,
            Err(error) if error.reason() == Reason::NotLeader => return Ok(None),
            Err(error) => return Err(self.without_lead(error).await),
        };
        self.look.abort();
        *self.leader.lock() = None;
        let takes = "this replica takes the lead".to_owned();
        self.readiness.send_replace(Readiness::NotReady(takes));
        let begun = self
            .preparation
            .clone()
            .begin_with(self.store.clone(), shards);
        match begun.await {
            Ok(orchestrator) => {
                orchestrator.keep_the_lead(self.room.clone());
                Ok(Some(orchestrator))
            }
            Err(error) => Err(self.without_lead(error).await),
        }
    }

    /// Half a lead is none: the others need not wait for its end.
    async fn without_lead(&self, error: Error) -> Error {
        self.leave().await;
        error
    }

    /// Leaves the replicas.
    pub async fn leave(&self) {
        if let Err(error) = self.store.resign().await {
            tracing::debug!(%error, "the lease ends by itself");
        }
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.look.abort();
    }
}

/// Looks who leads.
async fn look(
    store: &Store,
    leader: &Mutex<Option<ReplicaRow>>,
    readiness: watch::Sender<Readiness>,
) {
    loop {
        // Whoever has just begun to lead can be lost as well.
        let _ = timeout(LOOK, store.lead_changed()).await;
        // What is not known now may be wrong a second later: nobody is named then.
        let found = store.leader().await.ok().flatten();
        readiness.send_replace(Readiness::NotReady(stands_by(found.as_ref())));
        *leader.lock() = found;
    }
}

fn stands_by(leader: Option<&ReplicaRow>) -> String {
    match leader {
        Some(leader) if !leader.address.is_empty() => {
            format!(
                "this replica stands by: {} leads, at {}",
                leader.name, leader.address
            )
        }
        Some(leader) => format!("this replica stands by: {} leads", leader.name),
        None => "this replica stands by, and nobody is known to lead".to_owned(),
    }
}

/// A service that refuses every call, since another replica leads.
struct Refuses<S> {
    leader: Arc<Mutex<Option<ReplicaRow>>>,
    of: PhantomData<fn() -> S>,
}

impl<S> Clone for Refuses<S> {
    fn clone(&self) -> Self {
        Self {
            leader: self.leader.clone(),
            of: PhantomData,
        }
    }
}

impl<S: NamedService> NamedService for Refuses<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> tower::Service<http::Request<Body>> for Refuses<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<std::result::Result<Self::Response, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut task::Context<'_>,
    ) -> task::Poll<std::result::Result<(), Infallible>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        let leader = self.leader.lock();
        let mut error = Error::new(Reason::NotLeader, stands_by(leader.as_ref()));
        if let Some(leader) = leader.as_ref().filter(|leader| !leader.address.is_empty()) {
            error = error.with_metadata("leader", &leader.address);
        }
        ready(Ok(to_status(&error).into_http()))
    }
}

/// The list of replicas.
#[derive(Clone, Debug)]
pub(crate) struct Replicas(pub(crate) Arc<Store>);

#[tonic::async_trait]
impl ReplicaService for Replicas {
    async fn list_replicas(
        &self,
        _: Request<pb::ListReplicasRequest>,
    ) -> std::result::Result<Response<pb::ListReplicasResponse>, Status> {
        let replicas = self.0.replicas().await.map_err(|error| to_status(&error))?;
        Ok(Response::new(pb::ListReplicasResponse {
            replicas: replicas.into_iter().map(shown).collect(),
            store: self.0.info().kind.to_owned(),
        }))
    }
}

fn shown(replica: ReplicaRow) -> pb::Replica {
    pb::Replica {
        start_time: Some(drover_convert::value::to_timestamp(replica.since_ms)),
        epoch: if replica.leads { replica.epoch } else { 0 },
        leads: replica.leads,
        answers: replica.is_this,
        name: replica.name,
        address: replica.address,
        version: replica.version,
    }
}

impl Orchestrator {
    /// Ends with the lease, says whether the store is in touch and has room, and discards what was replaced in it.
    fn keep_the_lead(&self, room: Room) {
        let shared = &self.shared;
        watchdog::start(shared);
        let (lost, stop) = (shared.store.lost(), shared.stop.clone());
        self.while_it_leads(async move {
            lost.cancelled().await;
            stop.cancel();
        });
        self.while_it_leads(space::run(shared.clone(), room));
        self.while_it_leads(touch(shared.clone()));
        self.while_it_leads(compact(shared.clone()));
    }

    fn while_it_leads(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.shared.stop.clone();
        self.shared.spawn(async move {
            stop.run_until_cancelled(task).await;
        });
    }
}

async fn touch(shared: Arc<Shared>) {
    loop {
        let now = match shared.store.in_touch() {
            Ok(()) => Readiness::Ready,
            Err(error) => Readiness::NotReady(error.message().to_owned()),
        };
        shared.readiness.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
        sleep(TOUCH).await;
    }
}

async fn compact(shared: Arc<Shared>) {
    let store = &shared.store;
    let mut seen = std::collections::VecDeque::new();
    loop {
        sleep(COMPACT).await;
        seen.push_back(store.revision());
        if seen.len() <= KEPT {
            continue;
        }
        if let Some(revision) = seen.pop_front()
            && let Err(error) = store.compact(revision).await
        {
            tracing::warn!(%error, "what was replaced in the store cannot be discarded; unless etcd does so itself (--auto-compaction-retention), it goes on growing");
        }
    }
}
