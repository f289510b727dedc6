//! Lists that are put together from pages.

use std::{collections::HashSet, hash::Hash};

/// Each item once, as the last page shows it that does: what moves between two reads may be on both pages. Items without a
/// key all stay.
pub fn each_once<T, K: Eq + Hash>(items: Vec<T>, key: impl Fn(&T) -> Option<K>) -> Vec<T> {
    let mut seen = HashSet::new();
    let mut once: Vec<T> = items
        .into_iter()
        .rev()
        .filter(|item| key(item).is_none_or(|key| seen.insert(key)))
        .collect();
    once.reverse();
    once
}
