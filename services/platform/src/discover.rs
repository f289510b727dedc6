//! Pagination of nodes, where all pages come from the same read.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime},
};

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{DiscoverRequest, DiscoverResponse, Node, Warning};
use parking_lot::Mutex;
use prost::Message;
use tokio::time::Instant;

use crate::{
    check::{self, Checker},
    clock::timestamp,
    limits::MAX_PAGE_BYTES,
    observer::Reading,
    platform::Platform,
};

/// How long the pages of a read are kept after the last page request.
const PAGES_TTL: Duration = Duration::from_secs(60);
/// Maximum number of reads whose pages are kept. Nodes are kept encoded, at about 350 B each.
const MAX_READS: usize = 16;

/// The reads that are still being paged through, most recently used last.
#[derive(Default)]
pub(crate) struct Pages(Mutex<VecDeque<Arc<Kept>>>);

struct Kept {
    id: u64,
    cluster_id: String,
    node_ids: Vec<String>,
    nodes: Vec<Box<[u8]>>,
    warnings: Vec<Warning>,
    observe_time: SystemTime,
    etag: String,
    used: Mutex<Instant>,
}

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
        if !request.page_token.is_empty() {
            let (id, offset) = parse_token(&request.page_token)?;
            let kept = self.pages.get(id)?;
            if kept.cluster_id != request.cluster_id || kept.node_ids != request.node_ids {
                return Err(Error::invalid(
                    "page_token",
                    "belongs to a request with another cluster_id or node_ids",
                ));
            }
            return kept.page(offset, size);
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
        let in_cluster = |warning: &&Warning| {
            request.cluster_id.is_empty()
                || warning
                    .cluster_id
                    .as_ref()
                    .is_none_or(|cluster| *cluster == request.cluster_id)
        };
        let warnings: Vec<Warning> = reading
            .listing
            .warnings
            .iter()
            .filter(in_cluster)
            .cloned()
            .collect();
        let first = page_end(nodes.iter().map(|node| node.encoded_len()), size);
        let mut response = DiscoverResponse {
            nodes: nodes[..first].iter().map(|node| (*node).clone()).collect(),
            warnings: warnings.clone(),
            next_page_token: String::new(),
            observe_time: Some(timestamp(reading.observe_time)),
            platform_etag: etag.clone(),
        };
        if first < nodes.len() {
            let kept = Kept {
                id: fastrand::u64(..),
                nodes: nodes
                    .iter()
                    .map(|node| node.encode_to_vec().into_boxed_slice())
                    .collect(),
                cluster_id: request.cluster_id.clone(),
                node_ids: request.node_ids.clone(),
                warnings,
                observe_time: reading.observe_time,
                etag,
                used: Mutex::new(Instant::now()),
            };
            response.next_page_token = token(kept.id, first);
            self.pages.keep(kept);
        }
        Ok(response)
    }
}

impl Platform {
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

/// Returns how many of these items fit into a page. At least one, to guarantee progress.
pub(crate) fn page_end(sizes: impl Iterator<Item = usize>, max: usize) -> usize {
    let mut bytes = 0;
    sizes
        .take(max)
        .enumerate()
        .take_while(|(at, size)| {
            bytes += size;
            *at == 0 || bytes <= MAX_PAGE_BYTES
        })
        .count()
}

fn token(id: u64, offset: usize) -> String {
    format!("{id:016x}-{offset}")
}

fn parse_token(token: &str) -> Result<(u64, usize)> {
    token
        .split_once('-')
        .and_then(|(id, offset)| Some((u64::from_str_radix(id, 16).ok()?, offset.parse().ok()?)))
        .ok_or_else(|| Error::invalid("page_token", "was not made by this platform"))
}

impl Kept {
    fn page(&self, offset: usize, size: usize) -> Result<DiscoverResponse> {
        let Some(rest) = self.nodes.get(offset..) else {
            return Err(Error::invalid(
                "page_token",
                "was not made by this platform",
            ));
        };
        let count = page_end(rest.iter().map(|node| node.len()), size);
        let nodes = rest[..count]
            .iter()
            .map(|bytes| Node::decode(&**bytes))
            .collect::<Result<_, _>>()
            .map_err(|_| Error::internal("a kept node cannot be read"))?;
        let end = offset + count;
        let next_page_token = if end < self.nodes.len() {
            token(self.id, end)
        } else {
            String::new()
        };
        Ok(DiscoverResponse {
            nodes,
            warnings: self.warnings.clone(),
            next_page_token,
            observe_time: Some(timestamp(self.observe_time)),
            platform_etag: self.etag.clone(),
        })
    }
}

impl Pages {
    fn keep(&self, kept: Kept) {
        let mut pages = self.0.lock();
        forget(&mut pages);
        if pages.len() == MAX_READS {
            pages.pop_front();
        }
        pages.push_back(Arc::new(kept));
    }

    fn get(&self, id: u64) -> Result<Arc<Kept>> {
        let mut pages = self.0.lock();
        forget(&mut pages);
        let expired = || {
            Error::new(
                Reason::PageTokenExpired,
                "the page token has expired; list again from the first page",
            )
        };
        let at = pages
            .iter()
            .position(|kept| kept.id == id)
            .ok_or_else(expired)?;
        let kept = pages.remove(at).ok_or_else(expired)?;
        *kept.used.lock() = Instant::now();
        pages.push_back(Arc::clone(&kept));
        Ok(kept)
    }
}

fn forget(pages: &mut VecDeque<Arc<Kept>>) {
    pages.retain(|kept| kept.used.lock().elapsed() < PAGES_TTL);
}
