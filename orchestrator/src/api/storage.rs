//! The storage API: retained storage is listed over all platforms, and deleted by name.

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result, Sym, words};
use drover_platforms::{Platforms, Registered};
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};
use drover_store::Store;
use futures::StreamExt;
use uuid::Uuid;

use super::{
    access::{Access, per_call},
    paging::{self, Page},
};
use crate::records::Records;

/// Deadline for a platform to list or delete retained storage.
const ASK_TIMEOUT: Duration = Duration::from_secs(20);
/// Deadline for a platform to list retained storage of earlier clusters of a name: short, because it only adds a
/// warning to another response.
const WARN_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum concurrent calls to platforms.
const ASK_AT_ONCE: usize = 8;

/// What platforms keep of nodes that are gone.
#[derive(Clone)]
pub(crate) struct Storage {
    pub(crate) access: Access,
    pub(crate) records: Arc<Records>,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) store: Arc<Store>,
}

per_call!(Storage: access);

impl Storage {
    pub(super) async fn list_storage(
        &self,
        request: pb::ListStorageRequest,
    ) -> Result<pb::ListStorageResponse> {
        let after = paging::start(&request.page_token)?;
        let mut page = Page::new(request.page_size)?;
        let cluster = request.cluster.unwrap_or_default();
        let (found, unreachable) = self
            .kept_storage(request.platform.as_deref(), &cluster)
            .await?;
        for (name, storage) in found {
            let key = paging::key(&[&name, &storage.id]);
            if after.as_deref().is_some_and(|after| key.as_str() <= after)
                || !self.sees_storage(&storage)
            {
                continue;
            }
            let row = pb::KeptStorage {
                platform: name.to_string(),
                claim: self.claim(&storage).into(),
                storage: Some(storage),
            };
            if !page.push(key, row) {
                break;
            }
        }
        Ok(pb::ListStorageResponse {
            storage: page.rows,
            next_page_token: page.next,
            unreachable_platforms: unreachable,
        })
    }

    /// Whether the caller sees the retained storage of a cluster.
    fn sees_storage(&self, storage: &wire::KeptStorage) -> bool {
        let labels = self.access.labels_of(&storage.cluster_id, &storage.owner);
        self.access
            .caller
            .sees(&storage.cluster_id, labels.as_ref())
    }

    /// Retained storage on all platforms, by name and id, and the platforms that did not respond.
    async fn kept_storage(
        &self,
        platform: Option<&str>,
        cluster: &str,
    ) -> Result<(Vec<(Sym, wire::KeptStorage)>, Vec<String>)> {
        let asked: Vec<(Sym, Arc<Registered>)> = match platform {
            Some(name) => vec![(name.into(), self.access.find_platform(name)?)],
            None => {
                let platforms = self.platforms.read();
                platforms
                    .iter()
                    .filter(|(name, _)| self.access.caller.sees_platform(name))
                    .map(|(name, registered)| (name.clone(), registered.clone()))
                    .collect()
            }
        };
        // A platform that has never responded may have retained storage as well.
        let keeps = |registered: &Registered| {
            registered.platform.handshake().is_none()
                || registered.platform.has(wire::Capability::RetainStorage)
        };
        let asked = asked
            .into_iter()
            .filter(|(_, registered)| keeps(registered))
            .map(|(name, registered)| async move {
                let listed = list(&registered, cluster, ASK_TIMEOUT).await;
                (name, listed)
            });
        let answers: Vec<_> = futures::stream::iter(asked)
            .buffered(ASK_AT_ONCE)
            .collect()
            .await;
        let (mut found, mut unreachable) = (Vec::new(), Vec::new());
        for (name, listed) in answers {
            match listed {
                Ok(listed) => found.extend(listed.into_iter().map(|one| (name.clone(), one))),
                Err(error) => {
                    tracing::debug!(platform = %name, %error, "kept storage cannot be listed");
                    unreachable.push(name.to_string());
                }
            }
        }
        Ok((found, unreachable))
    }

    pub(super) async fn delete_storage(
        &self,
        request: pb::DeleteStorageRequest,
    ) -> Result<pb::DeleteStorageResponse> {
        if request.cluster.is_empty() {
            return Err(Error::invalid("cluster", "is required"));
        }
        self.access.caller.about("cluster", &request.cluster);
        let labels = self.access.labels_of(&request.cluster, &request.owner);
        self.access.may_change(&request.cluster, labels.as_ref())?;
        self.access
            .may_change_on(&request.platform, &request.cluster, labels.as_ref())?;
        let owner: Uuid = request
            .owner
            .parse()
            .map_err(|_| Error::invalid("owner", "is not a UUID"))?;
        let registered = self.platforms.require(&request.platform)?;
        let cluster = self.records.clusters().get(owner);
        if let Some(cluster) = &cluster {
            refuse_in_use(&cluster.lock(), &request)?;
        }
        let unreachable =
            || Error::unavailable(format!("platform {} does not answer", request.platform));
        let client = registered.platform.client().ok_or_else(unreachable)?;
        let listed = list(&registered, &request.cluster, ASK_TIMEOUT).await?;
        let Some(found) = listed.iter().find(|one| one.id == request.id) else {
            return Ok(pb::DeleteStorageResponse { gone: true });
        };
        if self.claim(found) == pb::StorageClaim::Foreign {
            return Err(Error::new(
                Reason::NodeNotInCluster,
                format!(
                    "storage {:?} was made by another orchestrator; it was left alone",
                    request.id
                ),
            ));
        }
        // After the list, during which the lead may have been lost.
        self.store.in_touch()?;
        let (uid, instance) = registered.platform.identity();
        let message = wire::DeleteStorageRequest {
            expected_platform_uid: uid,
            expected_instance_id: instance,
            fence: Some(self.platforms.fence(owner)),
            id: request.id,
            owner: request.owner,
            cluster_id: request.cluster,
            group: request.group,
            ordinal: request.ordinal,
        };
        let answer = client.delete_storage(message, ASK_TIMEOUT).await?;
        Ok(pb::DeleteStorageResponse {
            gone: answer.state() == wire::DeprovisionState::Gone,
        })
    }

    /// Warns about retained storage of earlier clusters of this name: it belongs to another owner and stays where it
    /// is.
    pub(super) async fn warn_of_kept(&self, name: &str, platforms: &[Sym]) -> Vec<String> {
        let mut warnings = Vec::new();
        for platform in platforms {
            let Some(registered) = self.platforms.get(platform) else {
                continue;
            };
            if !registered.platform.has(wire::Capability::RetainStorage) {
                continue;
            }
            let listed = list(&registered, name, WARN_TIMEOUT)
                .await
                .unwrap_or_default();
            let living = self
                .records
                .clusters()
                .find(name)
                .ok()
                .map(|it| it.uid().to_string());
            let others = listed
                .iter()
                .filter(|one| Some(&one.owner) != living.as_ref())
                .count();
            if others > 0 {
                warnings.push(format!(
                    "{platform} keeps storage of {} of an earlier cluster {name}; it is not attached to this one \
                     (`drover get storage` shows it, `drover delete storage` deletes it)",
                    words::count(others, "node")
                ));
            }
        }
        warnings
    }

    /// Who may claim the storage.
    fn claim(&self, storage: &wire::KeptStorage) -> pb::StorageClaim {
        let owner: Option<Uuid> = storage.owner.parse().ok();
        if owner.is_some_and(|owner| self.records.clusters().get(owner).is_some()) {
            pb::StorageClaim::Cluster
        } else if storage.store_id.is_empty() || storage.store_id == self.store.id().to_string() {
            pb::StorageClaim::None
        } else {
            pb::StorageClaim::Foreign
        }
    }
}

async fn list(
    registered: &Registered,
    cluster: &str,
    wait: Duration,
) -> Result<Vec<wire::KeptStorage>> {
    let name = &registered.platform.name;
    let client = registered
        .platform
        .client()
        .ok_or_else(|| Error::unavailable(format!("platform {name} does not answer")))?;
    let message = wire::ListStorageRequest {
        expected_platform_uid: registered.platform.identity().0,
        cluster_id: cluster.to_owned(),
        ..wire::ListStorageRequest::default()
    };
    client.list_storage(message, wait).await
}

/// Refuses storage of a node that exists, is being created, or is being removed.
fn refuse_in_use(
    inner: &drover_cluster::ClusterState,
    request: &pb::DeleteStorageRequest,
) -> Result<()> {
    let node = inner.state().nodes.iter().find(|node| {
        *node.platform == *request.platform
            && *node.group == *request.group
            && Some(node.ordinal) == request.ordinal
    });
    match node {
        Some(node) => Err(Error::new(
            Reason::Precondition,
            format!(
                "storage {:?} is that of {}, which is {}",
                request.id,
                node.name(),
                if node.removal.is_some() {
                    "not proven absent yet"
                } else {
                    "there"
                }
            ),
        )),
        None => Ok(()),
    }
}
