//! A map and a set for few entries: one sorted vector, which allocates nothing while it is empty.
//!
//! A cluster has a handful of conditions and mostly no open request. A B-tree map keeps room for eleven of each as soon
//! as there was one, which over many clusters takes more memory than all their nodes.

use std::{borrow::Borrow, mem};

/// A sorted map of few entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> SmallMap<K, V> {
    /// Creates an empty map.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(own, _)| own.borrow().cmp(key))
    }

    /// Returns the value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    /// Returns the value of a key, for changes.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.find(key).ok().map(|at| &mut self.0[at].1)
    }

    /// Whether the key is present.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    fn insert_at(&mut self, at: usize, key: K, value: V) {
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact(1 + self.0.len() / 2);
        }
        self.0.insert(at, (key, value));
    }

    /// Sets the value of a key, and returns the previous one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.insert_at(at, key, value);
                None
            }
        }
    }

    /// Removes a key, and returns its value. Frees the memory with the last key.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        let (_, value) = self.0.remove(at);
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
        Some(value)
    }

    /// Returns the value of a key, after inserting this one if the key is absent.
    pub fn or_insert(&mut self, key: K, value: V) -> &mut V {
        let at = match self.find(&key) {
            Ok(at) => at,
            Err(at) => {
                self.insert_at(at, key, value);
                at
            }
        };
        &mut self.0[at].1
    }

    /// Returns the value of a key, after inserting the default if the key is absent.
    pub fn or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.or_insert(key, V::default())
    }

    /// Keeps only the entries for which `keep` returns true. Frees the memory if there are none.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain_mut(|(key, value)| keep(key, value));
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
    }

    /// Removes all entries, and frees the memory.
    pub fn clear(&mut self) {
        self.0 = Vec::new();
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Entries in key order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Keys in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    /// Values in key order.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    /// Values in key order, for changes.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SmallMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(iter: I) -> Self {
        let mut map = Self::new();
        map.extend(iter);
        map
    }
}

impl<K, V> IntoIterator for SmallMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<K: Ord, V> Extend<(K, V)> for SmallMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, iter: I) {
        for (key, value) in iter {
            self.insert(key, value);
        }
    }
}

impl<K: Ord + Borrow<Q>, Q: Ord + ?Sized, V> std::ops::Index<&Q> for SmallMap<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        match self.find(key) {
            Ok(at) => &self.0[at].1,
            #[expect(clippy::panic, reason = "as of every map that is indexed")]
            Err(_) => panic!("no entry for the key"),
        }
    }
}

/// A sorted set of few entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallSet<T>(SmallMap<T, ()>);

impl<T> Default for SmallSet<T> {
    fn default() -> Self {
        Self(SmallMap::default())
    }
}

impl<T: Ord> SmallSet<T> {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the entry is present.
    #[must_use]
    pub fn contains(&self, entry: &T) -> bool {
        self.0.contains_key(entry)
    }

    /// Adds an entry. Returns whether it was absent.
    pub fn insert(&mut self, entry: T) -> bool {
        self.0.insert(entry, ()).is_none()
    }

    /// Removes an entry. Returns whether it was present. Frees the memory with the last entry.
    pub fn remove(&mut self, entry: &T) -> bool {
        self.0.remove(entry).is_some()
    }

    /// Keeps only the entries for which `keep` returns true. Frees the memory if there are none.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.0.retain(|entry, ()| keep(entry));
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Entries in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.0.keys()
    }
}

impl<T: Ord> FromIterator<T> for SmallSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(iter: I) -> Self {
        let entries = iter.into_iter();
        Self(entries.map(|entry| (entry, ())).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn it_does_what_a_tree_map_does() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut small, mut tree) = (SmallMap::new(), BTreeMap::new());
        for _ in 0..10_000 {
            let (key, value) = (random.u8(..20), random.u8(..));
            if random.bool() {
                assert_eq!(small.insert(key, value), tree.insert(key, value));
            } else {
                assert_eq!(small.remove(&key), tree.remove(&key));
            }
            assert!(small.iter().eq(tree.iter()));
            assert_eq!(small.get(&key), tree.get(&key));
        }
    }

    #[test]
    fn what_is_inserted_if_it_is_absent_replaces_nothing() {
        let mut small = SmallMap::new();
        assert_eq!(*small.or_insert(2, 'a'), 'a');
        assert_eq!(*small.or_insert(2, 'b'), 'a');
        small.or_insert(1, 'c');
        assert!(small.iter().eq([(&1, &'c'), (&2, &'a')]));
    }

    #[test]
    fn a_set_does_what_a_tree_set_does() {
        let mut random = fastrand::Rng::with_seed(8);
        let (mut small, mut tree) = (SmallSet::new(), BTreeSet::new());
        for _ in 0..10_000 {
            let entry = random.u8(..20);
            match random.u8(..20) {
                0 => {
                    small.retain(|one| *one > entry);
                    tree.retain(|one| *one > entry);
                }
                1..=9 => assert_eq!(small.remove(&entry), tree.remove(&entry)),
                _ => assert_eq!(small.insert(entry), tree.insert(entry)),
            }
            assert!(small.iter().eq(&tree));
            assert_eq!(small.contains(&entry), tree.contains(&entry));
            assert_eq!(small.is_empty(), tree.is_empty());
            assert_eq!(small, tree.iter().rev().copied().collect::<SmallSet<u8>>());
        }
    }
}
