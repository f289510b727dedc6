//! `StorageService` over a [`Platform`]: lists and deletes retained storage.

use std::sync::Arc;

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{
    Capability, DeleteStorageRequest, DeleteStorageResponse, KeptStorage, ListStorageRequest,
    ListStorageResponse, storage_service_server::StorageService,
};
use tonic::{Request, Response, Status};

use crate::{
    check::{self, Checker, need},
    platform::Platform,
    service::{Service, answer},
};

#[tonic::async_trait]
impl StorageService for Service {
    async fn list_storage(
        &self,
        request: Request<ListStorageRequest>,
    ) -> std::result::Result<Response<ListStorageResponse>, Status> {
        answer(self.0.list_storage(request.into_inner()).await)
    }

    async fn delete_storage(
        &self,
        request: Request<DeleteStorageRequest>,
    ) -> std::result::Result<Response<DeleteStorageResponse>, Status> {
        answer(self.0.delete_storage(request.into_inner()).await)
    }
}

impl Platform {
    async fn list_storage(&self, request: ListStorageRequest) -> Result<ListStorageResponse> {
        self.meant(
            &request.expected_platform_uid,
            false,
            &request.expected_instance_id,
        )?;
        let mut check = Checker::default();
        let size = check::page(&mut check, request.page_size, &request.cluster_id);
        check.finish()?;
        need(&self.description(), Capability::RetainStorage)?;
        let mut storage = self.driver.kept_storage().await?;
        storage.retain(|one| {
            (request.cluster_id.is_empty() || one.cluster_id == request.cluster_id)
                && one.id > request.page_token
        });
        storage.sort_by(|a, b| a.id.cmp(&b.id));
        let more = storage.len() > size;
        storage.truncate(size);
        let next_page_token = match storage.last() {
            Some(last) if more => last.id.clone(),
            _ => String::new(),
        };
        Ok(ListStorageResponse {
            storage,
            next_page_token,
        })
    }

    async fn delete_storage(
        self: &Arc<Self>,
        request: DeleteStorageRequest,
    ) -> Result<DeleteStorageResponse> {
        self.meant(
            &request.expected_platform_uid,
            true,
            &request.expected_instance_id,
        )?;
        let mut check = Checker::default();
        check.required("id", &request.id);
        check.uuid("owner", &request.owner);
        check.cluster("cluster_id", &request.cluster_id);
        check.required("group", &request.group);
        if request.ordinal.is_none() {
            check.wrong("ordinal", "is required");
        }
        check.finish()?;
        need(&self.description(), Capability::RetainStorage)?;
        let fence = check::fence(request.fence.as_ref())?;
        let meant = KeptStorage {
            id: request.id,
            owner: request.owner,
            cluster_id: request.cluster_id,
            group: request.group,
            ordinal: request.ordinal.unwrap_or_default(),
            ..KeptStorage::default()
        };
        let this = Arc::clone(self);
        self.changing(&fence, async move {
            let state = this.driver.delete_storage(&meant).await?;
            Ok(DeleteStorageResponse {
                state: state.into(),
            })
        })
        .await
    }
}

/// Checks that storage is the intended one.
///
/// # Errors
///
/// [`Reason::NodeNotInCluster`] if it has another owner, cluster, group or ordinal.
pub fn is_meant(meant: &KeptStorage, found: &KeptStorage) -> Result<()> {
    let of = |one: &KeptStorage| {
        let (owner, cluster) = (one.owner.clone(), one.cluster_id.clone());
        (owner, cluster, one.group.clone(), one.ordinal)
    };
    if of(meant) == of(found) {
        return Ok(());
    }
    Err(Error::new(
        Reason::NodeNotInCluster,
        format!(
            "storage {:?} is of another owner, cluster, group or ordinal; it was left alone",
            meant.id
        ),
    ))
}

/// The error for storage that a node uses.
#[must_use]
pub fn in_use(id: &str, node: &str) -> Error {
    Error::new(
        Reason::Precondition,
        format!("storage {id:?} is still in use by node {node}"),
    )
}
