//! Lists of nodes.

use std::{collections::HashSet, sync::Arc};

use drover_core::Result;
use drover_proto::platform::v1::{DiscoverRequest, DiscoverResponse, Node};

use crate::{
    check::{self, Checker},
    clock::timestamp,
    observer::Reading,
    pages::{Page, Read, concerns},
    platform::Platform,
};

impl Platform {
    /// Handles a Discover call.
    pub(crate) async fn discover(
        self: &Arc<Self>,
        request: DiscoverRequest,
    ) -> Result<DiscoverResponse> {
        self.meant(
            &request.expected_platform_uid,
            false,
            &request.expected_instance_id,
        )?;
        let size = page_size(&request)?;
        let mut query = vec!["Discover".to_owned(), request.cluster_id.clone()];
        query.extend(request.node_ids.iter().cloned());
        if !request.page_token.is_empty() {
            let page = self.pages.next(&request.page_token, &query, size)?;
            return Ok(response(page));
        }
        let etag = self.etag();
        let reading = self.reading(&request.cluster_id).await?;
        let ids: HashSet<&str> = request.node_ids.iter().map(String::as_str).collect();
        let wanted = |node: &&Node| {
            (request.cluster_id.is_empty() || node.cluster_id == request.cluster_id)
                && (ids.is_empty() || ids.contains(node.node_id.as_str()))
        };
        let mut nodes: Vec<&Node> = reading
            .listing
            .nodes
            .iter()
            .map(|found| &found.node)
            .filter(wanted)
            .collect();
        nodes
            .sort_unstable_by(|a, b| (&a.cluster_id, &a.node_id).cmp(&(&b.cluster_id, &b.node_id)));
        let warnings = reading.listing.warnings.iter();
        let read = Read {
            query,
            warnings: warnings
                .filter(|warning| concerns(warning, &request.cluster_id))
                .cloned()
                .collect(),
            observe_time: reading.observe_time,
            etag,
        };
        Ok(response(self.pages.first(read, &nodes, size)))
    }

    /// Reads from the backend: one cluster, or everything if the id is empty. A read of one cluster may include nodes
    /// of others.
    ///
    /// # Errors
    ///
    /// Those of the driver if it cannot read completely.
    pub async fn reading(&self, cluster_id: &str) -> Result<Arc<Reading>> {
        if cluster_id.is_empty() {
            self.observer.read().await
        } else {
            self.observer.read_cluster(cluster_id).await
        }
    }
}

fn page_size(request: &DiscoverRequest) -> Result<usize> {
    let mut check = Checker::default();
    let size = check::page(&mut check, request.page_size, &request.cluster_id);
    if request.cluster_id.is_empty() && !request.node_ids.is_empty() {
        check.wrong("node_ids", "needs cluster_id");
    }
    check.finish()?;
    Ok(size)
}

fn response(page: Page<Node>) -> DiscoverResponse {
    DiscoverResponse {
        nodes: page.items,
        warnings: page.read.warnings,
        next_page_token: page.next_page_token,
        observe_time: Some(timestamp(page.read.observe_time)),
        platform_etag: page.read.etag,
    }
}
