//! Pagination of lists, where all pages come from the same read.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime},
};

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::Warning;
use parking_lot::Mutex;
use prost::Message;
use tokio::time::Instant;

use crate::limits::MAX_PAGE_BYTES;

/// How long the pages of a read are kept after the last page request.
const PAGES_TTL: Duration = Duration::from_secs(60);
/// Maximum number of reads whose pages are kept. Items are kept encoded; a node takes about 350 B.
const MAX_READS: usize = 16;

/// The reads that are still being paged through, most recently used last.
#[derive(Default)]
pub(crate) struct Pages(Mutex<VecDeque<Arc<Kept>>>);

/// What every page of a read repeats.
#[derive(Clone)]
pub(crate) struct Read {
    /// The call and its filters, which must be the same for every page.
    pub(crate) query: Vec<String>,
    pub(crate) warnings: Vec<Warning>,
    pub(crate) observe_time: SystemTime,
    /// `Platform.etag` at that time, if the list shows it.
    pub(crate) etag: String,
}

/// One page.
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    pub(crate) read: Read,
    pub(crate) next_page_token: String,
}

struct Kept {
    id: u64,
    read: Read,
    items: Vec<Box<[u8]>>,
    used: Mutex<Instant>,
}

impl Pages {
    /// Returns the first page of at most `size` of the items, and keeps the others.
    pub(crate) fn first<T: Message + Clone>(
        &self,
        read: Read,
        items: &[&T],
        size: usize,
    ) -> Page<T> {
        let end = page_end(items.iter().map(|item| item.encoded_len()), size);
        let mut next_page_token = String::new();
        if end < items.len() {
            let encoded = items.iter().map(|item| item.encode_to_vec());
            let kept = Kept {
                id: fastrand::u64(..),
                read: read.clone(),
                items: encoded.map(Vec::into_boxed_slice).collect(),
                used: Mutex::new(Instant::now()),
            };
            next_page_token = token(kept.id, end);
            self.keep(kept);
        }
        Page {
            items: items[..end].iter().map(|item| (*item).clone()).collect(),
            read,
            next_page_token,
        }
    }

    /// Returns the page of a token.
    pub(crate) fn next<T: Message + Default>(
        &self,
        page_token: &str,
        query: &[String],
        size: usize,
    ) -> Result<Page<T>> {
        let (id, offset) = parse_token(page_token)?;
        let kept = self.get(id)?;
        if kept.read.query != query {
            return Err(Error::invalid(
                "page_token",
                "belongs to a request whose other fields were not the same",
            ));
        }
        kept.page(offset, size)
    }

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

impl Kept {
    fn page<T: Message + Default>(&self, offset: usize, size: usize) -> Result<Page<T>> {
        let rest = self.items.get(offset..).ok_or_else(not_ours)?;
        let count = page_end(rest.iter().map(|item| item.len()), size);
        let items = rest[..count]
            .iter()
            .map(|bytes| T::decode(&**bytes))
            .collect::<Result<_, _>>()
            .map_err(|_| Error::internal("a kept item cannot be read"))?;
        let end = offset + count;
        Ok(Page {
            items,
            read: self.read.clone(),
            next_page_token: if end < self.items.len() {
                token(self.id, end)
            } else {
                String::new()
            },
        })
    }
}

fn forget(pages: &mut VecDeque<Arc<Kept>>) {
    pages.retain(|kept| kept.used.lock().elapsed() < PAGES_TTL);
}

/// Returns how many of these items fit into a page. At least one, to guarantee progress.
fn page_end(sizes: impl Iterator<Item = usize>, max: usize) -> usize {
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

/// Whether a warning belongs in a list of this cluster, or of all (empty).
pub(crate) fn concerns(warning: &Warning, cluster_id: &str) -> bool {
    let cluster = warning.cluster_id.as_ref();
    cluster_id.is_empty() || cluster.is_none_or(|cluster| cluster == cluster_id)
}

fn token(id: u64, offset: usize) -> String {
    format!("{id:016x}-{offset}")
}

fn parse_token(token: &str) -> Result<(u64, usize)> {
    token
        .split_once('-')
        .and_then(|(id, offset)| Some((u64::from_str_radix(id, 16).ok()?, offset.parse().ok()?)))
        .ok_or_else(not_ours)
}

/// The error for a token that no list has given out.
fn not_ours() -> Error {
    Error::invalid("page_token", "was not made by this platform")
}
