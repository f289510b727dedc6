//! Owners of what a cluster needs besides its nodes, and the order of the calls for each of them.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use drover_core::Result;
use parking_lot::Mutex;

use crate::check::Checker;

/// Owner of infrastructure and addons.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Cluster id.
    pub cluster_id: String,
    /// UUID of the cluster record.
    pub owner: String,
}

/// Validates the owner of a request.
pub(crate) fn owner(cluster_id: &str, owner: &str) -> Result<Owner> {
    let mut check = Checker::default();
    check.cluster("cluster_id", cluster_id);
    check.uuid("owner", owner);
    check.finish()?;
    Ok(Owner {
        cluster_id: cluster_id.to_owned(),
        owner: owner.to_owned(),
    })
}

/// Serializes the changes of each owner.
#[derive(Default)]
pub(crate) struct Working(Mutex<HashMap<Owner, Weak<tokio::sync::Mutex<()>>>>);

impl Working {
    pub(crate) fn lock(&self, owner: &Owner) -> Arc<tokio::sync::Mutex<()>> {
        let mut working = self.0.lock();
        working.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = working.get(owner).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        working.insert(owner.clone(), Arc::downgrade(&lock));
        lock
    }
}
