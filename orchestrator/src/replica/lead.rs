//! What a replica does besides while it leads.

use std::{sync::Arc, time::Duration};

use drover_server::Readiness;
use tokio::time::sleep;

use super::Routing;
use crate::{
    Orchestrator,
    shared::Shared,
    space::{self, Room},
    watchdog,
};

/// How often a leader checks that it has not lost touch with the store.
const TOUCH: Duration = Duration::from_millis(200);
/// How often values that were replaced are discarded. They are kept for as long as a watch may be away, [`KEPT`] times
/// this.
const COMPACT: Duration = Duration::from_secs(60);
const KEPT: usize = 5;

impl Orchestrator {
    /// Answers calls, ends with the lease, says whether the store is in touch and has room, and discards what was replaced in it.
    pub(super) fn keep_the_lead(&self, room: Room, routing: &Routing) {
        let shared = &self.shared;
        routing.leads(shared);
        watchdog::start(shared);
        let (lost, stop) = (shared.store.lost(), shared.stop.clone());
        self.while_it_leads(async move {
            lost.cancelled().await;
            stop.cancel();
        });
        self.while_it_leads(space::run(shared.clone(), room));
        self.while_it_leads(touch(shared.clone(), routing.clone()));
        self.while_it_leads(compact(shared.clone()));
    }

    fn while_it_leads(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.shared.stop.clone();
        self.shared.spawn(async move {
            stop.run_until_cancelled(task).await;
        });
    }
}

async fn touch(shared: Arc<Shared>, routing: Routing) {
    loop {
        let now = match shared.store.in_touch() {
            Ok(()) => Readiness::Ready,
            Err(error) => Readiness::NotReady(error.message().to_owned()),
        };
        shared.readiness.send_if_modified(|known| {
            let changed = *known != now;
            known.clone_from(&now);
            changed
        });
        routing.touched(&shared, now);
        sleep(TOUCH).await;
    }
}

async fn compact(shared: Arc<Shared>) {
    let store = &shared.store;
    let mut seen = std::collections::VecDeque::new();
    loop {
        sleep(COMPACT).await;
        seen.push_back(store.revision());
        if seen.len() <= KEPT {
            continue;
        }
        if let Some(revision) = seen.pop_front()
            && let Err(error) = store.compact(revision).await
        {
            tracing::warn!(%error, "what was replaced in the store cannot be discarded; unless etcd does so itself (--auto-compaction-retention), it goes on growing");
        }
    }
}
