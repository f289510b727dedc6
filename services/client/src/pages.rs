//! What one read of a list may take. A platform is somebody else's program: its list may lead in a circle, or never end.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
};

use drover_core::{Error, Reason, Result};
use prost::Message;
use tokio::time::Instant;

/// Most pages of one read.
const MAX_PAGES: usize = 10_000;
/// Most things of one read, what could not be read included: twenty times the largest cluster.
pub const MAX_ITEMS: usize = 200_000;
/// Most bytes of one read as they are sent, of which a node takes some 350. In memory it is a few times as much.
const MAX_BYTES: usize = 128 << 20;

/// One read of a list, page by page. What goes beyond its bounds makes the read fail: what was not read is unknown, and
/// half a list looks like one that lacks the other half.
#[derive(Debug)]
pub(crate) struct Pages {
    call: &'static str,
    /// When the read has to be whole. Answers that come at once pass every deadline of a single call.
    end: Instant,
    /// Hashes of the page tokens that were answered, which may be as long as a message.
    tokens: HashSet<u64>,
    hasher: RandomState,
    items: usize,
    bytes: usize,
}

impl Pages {
    /// None was read yet.
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

    /// Takes in a page with so many things. Answers whether there is another one.
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
