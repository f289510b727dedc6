//! Pagination (AIP-158), limited by number and by size.

use drover_core::{Error, Reason, Result};
use prost::Message;

/// Default page size in rows.
const DEFAULT_SIZE: usize = 500;
/// Maximum page size in rows.
const MAX_SIZE: usize = 1_000;
/// Maximum page size in bytes: well below the maximum message size.
const MAX_BYTES: usize = 1024 * 1024;

/// The effective page size of a request.
pub(super) fn size(page_size: i32) -> Result<usize> {
    match usize::try_from(page_size) {
        Ok(0) => Ok(DEFAULT_SIZE),
        Ok(size) => Ok(size.min(MAX_SIZE)),
        Err(_) => Err(Error::invalid(
            "page_size",
            "is negative; expected 0 to 1000",
        )),
    }
}

/// The key after which a page begins. Tokens are the last key of the previous page, with a prefix so that no other text
/// is mistaken for one.
pub(super) fn start(token: &str) -> Result<Option<String>> {
    if token.is_empty() {
        return Ok(None);
    }
    let expired = || {
        Error::new(
            Reason::PageTokenExpired,
            "the page token is none of ours; list again from the first page",
        )
    };
    token
        .strip_prefix("after:")
        .map(|key| Some(key.to_owned()))
        .ok_or_else(expired)
}

/// Builds a composite key. Keys sort part by part, because the separator is below every character that names may
/// contain.
pub(super) fn key(parts: &[&str]) -> String {
    parts.join("\u{1}")
}

pub(super) struct Page<T> {
    size: usize,
    bytes: usize,
    last: String,
    pub(super) rows: Vec<T>,
    pub(super) next: String,
}

impl<T: Message> Page<T> {
    pub(super) fn new(page_size: i32) -> Result<Self> {
        Ok(Self {
            size: size(page_size)?,
            bytes: 0,
            last: String::new(),
            rows: Vec::new(),
            next: String::new(),
        })
    }

    /// Adds a row. Returns `false` if the page is full, so that the row belongs to the next one.
    pub(super) fn push(&mut self, key: impl Into<String>, row: T) -> bool {
        let bytes = row.encoded_len() + 8;
        if self.rows.len() >= self.size || (!self.rows.is_empty() && self.bytes + bytes > MAX_BYTES)
        {
            self.next = format!("after:{}", self.last);
            return false;
        }
        self.bytes += bytes;
        self.last = key.into();
        self.rows.push(row);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_part_by_part() {
        for (a, b) in [
            (["a", "9"], ["a-b", "1"]),
            (["a", "9"], ["a.b", "1"]),
            (["a", "1"], ["a", "2"]),
        ] {
            assert!(key(&a) < key(&b), "{a:?} {b:?}");
        }
    }

    #[test]
    fn a_page_ends_at_its_size_and_at_its_bytes_and_says_where_the_next_begins() {
        let mut page = Page::<String>::new(2).unwrap();
        assert!(page.push("a", String::new()) && page.push("b", String::new()));
        assert!(!page.push("c", String::new()));
        assert_eq!(start(&page.next).unwrap().as_deref(), Some("b"));

        let mut page = Page::<String>::new(0).unwrap();
        let big = "x".repeat(MAX_BYTES);
        assert!(page.push("a", big.clone()), "one row always fits");
        assert!(!page.push("b", big));
        assert_eq!(
            (size(0).unwrap(), size(5000).unwrap()),
            (DEFAULT_SIZE, MAX_SIZE)
        );
        assert!(size(-1).is_err());
        assert_eq!(start("b").unwrap_err().reason(), Reason::PageTokenExpired);
    }
}
