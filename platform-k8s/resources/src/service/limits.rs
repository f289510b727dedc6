//! How many waits and streams are open, of all callers and of each.

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result};
use drover_server::{Share, Shares};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// When a caller may try again whose wait or stream was one too many: others end at any time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A limit of what is open at once.
pub(super) struct Limit {
    /// The setting.
    name: &'static str,
    places: Arc<Semaphore>,
    shares: Shares,
}

/// A place, given back when dropped.
pub(super) struct Permit {
    _place: OwnedSemaphorePermit,
    _share: Share,
}

impl Limit {
    /// `each`: how many of them one caller may have. `None`: three quarters.
    pub(super) fn new(name: &'static str, places: usize, each: Option<usize>) -> Self {
        let places = places.min(Semaphore::MAX_PERMITS);
        Self {
            name,
            places: Arc::new(Semaphore::new(places)),
            shares: each.map_or_else(|| Shares::of(places), Shares::new),
        }
    }

    /// # Errors
    /// `Overloaded` with the limit that is reached.
    pub(super) fn take(&self, caller: &Arc<str>) -> Result<Permit> {
        let Some(share) = self.shares.take(caller, 1) else {
            let name = format!("{}_per_caller", self.name);
            return Err(reached(&name, "this caller has too many open already"));
        };
        match self.places.clone().try_acquire_owned() {
            Ok(place) => Ok(Permit {
                _place: place,
                _share: share,
            }),
            Err(_) => Err(reached(self.name, "this server has too many open already")),
        }
    }
}

fn reached(limit: &str, what: &str) -> Error {
    let message = format!("{what} (resources.{limit})");
    Error::new(Reason::Overloaded, message)
        .with_metadata("limit", limit)
        .with_retry_after(RETRY_AFTER)
}
