//! The list of replicas.

use std::sync::Arc;

use drover_convert::error::to_status;
use drover_core::Result;
use drover_proto::orchestrator::v1::{
    self as pb,
    replica_service_server::{ReplicaService, ReplicaServiceServer},
};
use drover_store::{ReplicaRow, Store};
use tonic::{Request, Response, Status};

use super::Routing;

/// Where the list comes from.
#[derive(Clone, Debug)]
enum Source {
    Store(Arc<Store>),
    /// The store of the present turn.
    Turn(Routing),
}

#[derive(Clone, Debug)]
pub(crate) struct Replicas(Source);

/// The service of a replica that is alone.
pub(crate) fn alone(store: &Arc<Store>) -> ReplicaServiceServer<Replicas> {
    ReplicaServiceServer::new(Replicas(Source::Store(store.clone())))
}

/// The service of one of several.
pub(super) fn of(routing: &Routing) -> ReplicaServiceServer<Replicas> {
    ReplicaServiceServer::new(Replicas(Source::Turn(routing.clone())))
}

impl Replicas {
    async fn list(&self) -> Result<pb::ListReplicasResponse> {
        let store = match &self.0 {
            Source::Store(store) => store.clone(),
            Source::Turn(routing) => routing.store()?,
        };
        let replicas = store.replicas().await?;
        Ok(pb::ListReplicasResponse {
            replicas: replicas.into_iter().map(shown).collect(),
            store: store.info().kind.to_owned(),
        })
    }
}

#[tonic::async_trait]
impl ReplicaService for Replicas {
    async fn list_replicas(
        &self,
        _: Request<pb::ListReplicasRequest>,
    ) -> std::result::Result<Response<pb::ListReplicasResponse>, Status> {
        let list = self.list().await;
        list.map(Response::new).map_err(|error| to_status(&error))
    }
}

fn shown(replica: ReplicaRow) -> pb::Replica {
    let report = replica.report.unwrap_or_default();
    pb::Replica {
        platforms: report.platforms,
        unfit: report.unfit,
        takes_over: report.takes.filter(|_| !replica.leads),
        start_time: Some(drover_convert::value::to_timestamp(replica.since_ms)),
        epoch: if replica.leads { replica.epoch } else { 0 },
        leads: replica.leads,
        answers: replica.is_this,
        name: replica.name,
        address: replica.address,
        version: replica.version,
    }
}
