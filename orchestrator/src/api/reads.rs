//! Reads of clusters and nodes.

use std::sync::Arc;

use drover_cluster::{Resolved, stored_spec};
use drover_convert::value::to_timestamp;
use drover_core::Result;
use drover_proto::orchestrator::v1 as pb;

use super::{
    access::{Access, per_call},
    clusters::{Selector, find_node, is_full},
    nodes::Filter,
    paging::{self, Page},
    revisions::Revisions,
    rollout,
};
use crate::{
    records::Records,
    status::{self, Viewer},
};

/// Answers reads from memory.
#[derive(Clone)]
pub(crate) struct Reads {
    pub(crate) access: Access,
    pub(crate) records: Arc<Records>,
    pub(crate) viewer: Viewer,
    pub(crate) revisions: Revisions,
}

per_call!(Reads: access);

impl Reads {
    pub(super) async fn get(
        &self,
        request: pb::GetClusterRequest,
    ) -> Result<pb::GetClusterResponse> {
        self.records.reach(request.min_revision).await?;
        let cluster = self.access.find(&request.name)?;
        let visible = self.viewer.visible();
        let revision = self.records.revision();
        let inner = cluster.lock();
        Ok(pb::GetClusterResponse {
            cluster: Some(status::cluster(&cluster, &inner, &visible, true)),
            revision,
        })
    }

    pub(super) async fn list(
        &self,
        request: pb::ListClustersRequest,
    ) -> Result<pb::ListClustersResponse> {
        self.records.reach(request.min_revision).await?;
        let full = is_full(request.view)?;
        let selector = Selector::new(request.selector)?;
        let after = paging::start(&request.page_token)?;
        let mut page = Page::new(request.page_size)?;
        let visible = self.viewer.visible();
        let revision = self.records.revision();
        for cluster in self.records.clusters().by_name() {
            if after
                .as_deref()
                .is_some_and(|after| &**cluster.name() <= after)
            {
                continue;
            }
            let inner = cluster.lock();
            if self.access.sees(&cluster, &inner)
                && selector.selects(&inner.desired().value.labels)
                && !page.push(
                    &**cluster.name(),
                    status::cluster(&cluster, &inner, &visible, full),
                )
            {
                break;
            }
        }
        Ok(pb::ListClustersResponse {
            clusters: page.rows,
            next_page_token: page.next,
            revision,
        })
    }

    pub(super) async fn node(&self, request: pb::GetNodeRequest) -> Result<pb::GetNodeResponse> {
        self.records.reach(request.min_revision).await?;
        let cluster = self.access.find(&request.cluster)?;
        let visible = self.viewer.visible();
        let revision = self.records.revision();
        let inner = cluster.lock();
        let node = find_node(&cluster, &inner, &request.id)?;
        Ok(pb::GetNodeResponse {
            node: Some(status::node(&cluster, &inner, &visible, node)),
            revision,
        })
    }

    pub(super) async fn nodes(
        &self,
        request: pb::ListNodesRequest,
    ) -> Result<pb::ListNodesResponse> {
        self.records.reach(request.min_revision).await?;
        let filter = Filter::new(&self.access, request.cluster, request.group)?;
        let after = paging::start(&request.page_token)?;
        let mut page = Page::new(request.page_size)?;
        let visible = self.viewer.visible();
        let revision = self.records.revision();
        let clusters = match &filter.found {
            Some(cluster) => vec![cluster.clone()],
            None => self.records.clusters().by_name(),
        };
        'clusters: for cluster in clusters {
            let inner = cluster.lock();
            if !self.access.sees(&cluster, &inner) {
                continue;
            }
            for node in &inner.state().nodes {
                // Slots only grow, so page tokens stay valid while nodes come and go.
                let key = paging::key(&[cluster.name(), &format!("{:020}", node.slot)]);
                let before = after.as_deref().is_some_and(|after| key.as_str() <= after);
                let platform = request
                    .platform
                    .as_deref()
                    .is_none_or(|platform| *node.platform == *platform);
                if before || !platform || !filter.has(&node.group) {
                    continue;
                }
                if !page.push(key, status::node(&cluster, &inner, &visible, node)) {
                    break 'clusters;
                }
            }
        }
        Ok(pb::ListNodesResponse {
            nodes: page.rows,
            next_page_token: page.next,
            revision,
        })
    }

    pub(super) async fn revisions(
        &self,
        request: pb::ListRevisionsRequest,
    ) -> Result<pb::ListRevisionsResponse> {
        self.records.reach(request.min_revision).await?;
        let cluster = self.access.find(&request.cluster)?;
        let kept = self.revisions.kept(&cluster).await?;
        let digests = self.viewer.digests.of_cluster(cluster.uid());
        let specs: Vec<Resolved> = kept
            .iter()
            .map(|(_, row)| Resolved::from_stored(&row.spec, &digests))
            .collect::<Result<_>>()?;
        let mut revisions = Vec::new();
        for (at, (generation, row)) in kept.iter().enumerate() {
            let before = at.checked_sub(1).map(|before| &specs[before]);
            let changes =
                before.map_or_else(Vec::new, |before| rollout::changes(before, &specs[at]));
            revisions.push(pb::ClusterRevision {
                generation: *generation,
                apply_time: Some(to_timestamp(u64::try_from(row.apply_time_ms).unwrap_or(0))),
                spec: Some(status::shown(stored_spec(&row.spec)?, &digests)),
                changes,
                author: row.author.clone(),
            });
        }
        revisions.reverse();
        Ok(pb::ListRevisionsResponse {
            revisions,
            revision: self.records.revision(),
        })
    }
}
