//! Bounds of a paginated read. A platform is third-party software: its list may be circular or endless.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
};

use drover_core::{Error, Reason, Result};
use prost::Message;
use tokio::time::Instant;

/// Maximum number of pages per read.
const MAX_PAGES: usize = 10_000;
/// Maximum number of items per read, including unreadable ones: twenty times the largest cluster.
pub const MAX_ITEMS: usize = 200_000;
/// Maximum number of bytes per read, as encoded on the wire, where a node takes about 350. In memory it is a few times
/// as much.
const MAX_BYTES: usize = 128 << 20;

/// Number of times that a read is restarted because its page token expired.
const RESTARTS: u32 = 1;

/// Reads all pages, and once more from the first one if a page token expires.
pub(crate) async fn restarting<T, F>(read: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut restarts = 0;
    loop {
        match read().await {
            Err(error) if error.reason() == Reason::PageTokenExpired && restarts < RESTARTS => {
                restarts += 1;
            }
            outcome => return outcome,
        }
    }
}

/// A paginated read. It fails when it exceeds its bounds: the unread part is unknown, and a truncated list would look
/// as if the rest did not exist.
#[derive(Debug)]
pub(crate) struct Pages {
    call: &'static str,
    /// Deadline of the whole read. Responses that arrive immediately would meet any deadline of a single call.
    end: Instant,
    /// Hashes of the page tokens seen so far, because a token may be as long as a message.
    tokens: HashSet<u64>,
    hasher: RandomState,
    items: usize,
    bytes: usize,
}

impl Pages {
    /// Starts a read.
    pub(crate) fn of(call: &'static str, end: Instant) -> Self {
        Self {
            call,
            end,
            tokens: HashSet::new(),
            hasher: RandomState::new(),
            items: 0,
            bytes: 0,
        }
    }

    /// Records a page with this many items. Returns whether there is another one.
    pub(crate) fn take(&mut self, page: &impl Message, items: usize, next: &str) -> Result<bool> {
        self.items = self.items.saturating_add(items);
        self.bytes = self.bytes.saturating_add(page.encoded_len());
        if self.items > MAX_ITEMS {
            return Err(self.fails(&format!("more than {MAX_ITEMS} things")));
        }
        if self.bytes > MAX_BYTES {
            return Err(self.fails(&format!("more than {} MiB", MAX_BYTES >> 20)));
        }
        if next.is_empty() {
            return Ok(false);
        }
        if !self.tokens.insert(self.hasher.hash_one(next)) {
            return Err(self.fails("the same page token twice"));
        }
        if self.tokens.len() >= MAX_PAGES {
            return Err(self.fails(&format!("more than {MAX_PAGES} pages")));
        }
        if Instant::now() >= self.end {
            let message = format!("{} was not at its last page in time", self.call);
            return Err(Error::new(Reason::DeadlineExceeded, message));
        }
        Ok(true)
    }

    fn fails(&self, what: &str) -> Error {
        Error::internal(format!(
            "{} answered {what}; nothing of it is taken in",
            self.call
        ))
    }
}
