//! A cluster as all parts of the orchestrator share it.

use std::sync::Arc;

use drover_core::Result;
use drover_store::{ClusterRow, Desired, DigestKey, Versioned};
use parking_lot::{Mutex, MutexGuard};
use uuid::Uuid;

use crate::{ClusterState, FormerGroup, Interner, Resolved};

/// A cluster in memory. The lock is never held across an await.
#[derive(Debug)]
pub struct Cluster {
    uid: Uuid,
    name: Arc<str>,
    state: Mutex<ClusterState>,
    /// Groups of the retained former specs, cached for the desired generation that they precede.
    former: Mutex<Option<(u64, Arc<Vec<FormerGroup>>)>>,
}

impl Cluster {
    /// Loads the state from the store. Requests are numbered from at least `first`, above those that a lost store may
    /// have issued.
    ///
    /// # Errors
    /// `Internal` if a row is damaged, or of a newer version.
    pub fn load(
        row: ClusterRow,
        first: u64,
        interner: &Interner,
        digests: &DigestKey,
    ) -> Result<Self> {
        let uid = row.uid;
        ClusterState::load(row, first, interner, digests).map(|state| Self::of(uid, state))
    }

    /// Numbers requests from at least `first` on, if it was loaded before that was known.
    pub fn count_from(&self, first: u64) {
        self.lock().count_from(first);
    }

    /// Creates the state of a new cluster.
    #[must_use]
    pub fn create(uid: Uuid, desired: Versioned<Desired>, spec: Arc<Resolved>) -> Self {
        Self::of(uid, ClusterState::create(uid, desired, spec))
    }

    fn of(uid: Uuid, state: ClusterState) -> Self {
        Self {
            uid,
            name: state.desired.value.name.as_str().into(),
            state: Mutex::new(state),
            former: Mutex::default(),
        }
    }

    /// Its uid, which no other cluster ever has.
    #[must_use]
    pub fn uid(&self) -> Uuid {
        self.uid
    }

    /// Its name, which a later cluster may have again.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its state, for as long as the guard lives.
    pub fn lock(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock()
    }

    /// The groups of its retained former specs, if they are known for this generation.
    #[must_use]
    pub fn former(&self, generation: u64) -> Option<Arc<Vec<FormerGroup>>> {
        let former = self.former.lock();
        let current = former.as_ref().filter(|(of, _)| *of == generation);
        current.map(|(_, groups)| groups.clone())
    }

    /// Keeps the groups of the retained former specs that precede this generation.
    pub fn keep_former(&self, generation: u64, groups: Arc<Vec<FormerGroup>>) {
        *self.former.lock() = Some((generation, groups));
    }
}
