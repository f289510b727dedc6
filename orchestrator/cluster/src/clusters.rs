//! All clusters, by uid and by name.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::Arc,
};

use drover_core::{Error, Result};
use parking_lot::RwLock;
use uuid::Uuid;

use crate::Cluster;

/// All clusters of this store that have a record.
#[derive(Debug, Default)]
pub struct Clusters {
    by_uid: RwLock<HashMap<Uuid, Arc<Cluster>>>,
    names: RwLock<BTreeMap<Arc<str>, Uuid>>,
}

impl Clusters {
    /// The cluster with this uid.
    #[must_use]
    pub fn get(&self, uid: Uuid) -> Option<Arc<Cluster>> {
        self.by_uid.read().get(&uid).cloned()
    }

    /// The cluster with this name.
    ///
    /// # Errors
    /// `NotFound`, with the name.
    pub fn find(&self, name: &str) -> Result<Arc<Cluster>> {
        let uid = self.names.read().get(name).copied();
        uid.and_then(|uid| self.get(uid))
            .ok_or_else(|| Error::not_found("cluster", name))
    }

    /// Adds a cluster. An existing entry is kept, because others hold references to it.
    pub fn add(&self, cluster: Cluster) -> Arc<Cluster> {
        let cluster = self
            .by_uid
            .write()
            .entry(cluster.uid())
            .or_insert_with(|| Arc::new(cluster))
            .clone();
        (self.names.write()).insert(cluster.name().clone(), cluster.uid());
        cluster
    }

    /// Forgets a cluster whose record was deleted.
    pub fn remove(&self, cluster: &Cluster) {
        self.by_uid.write().remove(&cluster.uid());
        let mut names = self.names.write();
        if names.get(cluster.name()) == Some(&cluster.uid()) {
            names.remove(cluster.name());
        }
    }

    /// All clusters, in no order.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Cluster>> {
        self.by_uid.read().values().cloned().collect()
    }

    /// All clusters, by name.
    #[must_use]
    pub fn by_name(&self) -> Vec<Arc<Cluster>> {
        let names = self.names.read();
        let clusters = self.by_uid.read();
        let uids = names.values();
        uids.filter_map(|uid| clusters.get(uid).cloned()).collect()
    }

    /// At most `most` clusters after this name, in order of their names, and the name to continue after. `None` if
    /// these are the last.
    #[must_use]
    pub fn after(&self, name: Option<&str>, most: usize) -> (Vec<Arc<Cluster>>, Option<Arc<str>>) {
        let begin = name.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.names.read();
        let next: Vec<_> = names
            .range::<str, _>((begin, Bound::Unbounded))
            .take(most)
            .collect();
        let last = next.last().filter(|_| next.len() == most);
        let last = last.map(|(name, _)| Arc::clone(name));
        let clusters = self.by_uid.read();
        let found = next
            .into_iter()
            .filter_map(|(_, uid)| clusters.get(uid).cloned());
        (found.collect(), last)
    }

    /// Clusters that have nodes or resources on a platform, or may have.
    #[must_use]
    pub fn users(&self, platform: &str) -> Vec<Arc<Cluster>> {
        let mut all = self.all();
        all.retain(|cluster| cluster.lock().uses(platform));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn clusters() -> Clusters {
        let clusters = Clusters::default();
        for (uid, name) in [(1, "b"), (2, "a"), (3, "c")] {
            clusters.add(fixture::cluster(Uuid::from_u128(uid), name));
        }
        clusters
    }

    fn names(clusters: &[Arc<Cluster>]) -> Vec<&str> {
        clusters.iter().map(|cluster| &**cluster.name()).collect()
    }

    #[test]
    fn pages_are_in_order_of_names_and_end_with_the_last_one() {
        let clusters = clusters();
        let (first, next) = clusters.after(None, 2);
        assert_eq!(names(&first), ["a", "b"]);
        let (last, end) = clusters.after(next.as_deref(), 2);
        assert_eq!((names(&last), end), (vec!["c"], None));
    }

    #[test]
    fn a_name_that_was_given_again_is_not_taken_from_its_new_owner() {
        let clusters = clusters();
        let old = clusters.find("a").unwrap();
        let new = clusters.add(fixture::cluster(Uuid::from_u128(4), "a"));
        clusters.remove(&old);
        assert_eq!(clusters.find("a").unwrap().uid(), new.uid());
        assert!(clusters.get(old.uid()).is_none());
        clusters.remove(&new);
        assert!(clusters.find("a").is_err());
    }

    #[test]
    fn a_cluster_that_is_there_is_not_replaced() {
        let clusters = clusters();
        let first = clusters.find("a").unwrap();
        let again = clusters.add(fixture::cluster(first.uid(), "a"));
        assert!(Arc::ptr_eq(&first, &again));
    }
}
