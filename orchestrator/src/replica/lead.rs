//! What a replica does besides while it leads.

use std::{sync::Arc, time::Duration};

use drover_server::Readiness;
use drover_store::Store;
use tokio::time::sleep;

use super::Routing;
use crate::{
    Orchestrator,
    readiness::ReadinessReporter,
    services::Services,
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
        routing.leads(&self.services);
        routing.fitness().leads(self.clock.clone());
        watchdog::start(&self.tasks, &self.store, self.queue.clone());
        let (lost, stop) = (self.store.lost(), self.tasks.stop().clone());
        self.tasks.spawn_until_stop(async move {
            lost.cancelled().await;
            stop.cancel();
        });
        let tasks = &self.tasks;
        tasks.spawn_until_stop(space::run(self.space.clone(), room));
        tasks.spawn_until_stop(touch(
            self.services.clone(),
            self.readiness.clone(),
            routing.clone(),
        ));
        tasks.spawn_until_stop(compact(self.store.clone()));
    }
}

async fn touch(services: Arc<Services>, readiness: ReadinessReporter, routing: Routing) {
    loop {
        let now = match services.store.in_touch() {
            Ok(()) => Readiness::Ready,
            Err(error) => Readiness::NotReady(error.message().to_owned()),
        };
        readiness.report(&now);
        routing.touched(&services, now);
        sleep(TOUCH).await;
    }
}

async fn compact(store: Arc<Store>) {
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
