//! Waits for a lead that nobody has, and leaves it to whoever had better have it, or for one that is given to this replica.

use std::time::Duration;

use drover_core::{Error, Reason, Result};
use drover_store::{Store, Vacant};
use tokio::time::{sleep, timeout};

use super::fitness::Fitness;
use crate::load::{self, Shelf};

/// Delay before a store that does not answer is asked again.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a lead that nobody has is left to replicas that are fitter than this one.
const GIVES_WAY: Duration = Duration::from_secs(2);
/// The same for those that have read all clusters already, and how often it is looked whether one has taken it.
const READS: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(20);

pub(super) struct Vacancy<'a> {
    pub(super) store: &'a Store,
    pub(super) fitness: &'a Fitness,
    pub(super) shelf: &'a Shelf,
}

impl Vacancy<'_> {
    /// Waits until this replica should take the lead. While etcd does not answer nobody can take it, so that is waited for,
    /// too.
    ///
    /// # Errors
    /// `FENCED`: the lease of this replica has ended.
    pub(super) async fn begins(&self) -> Result<Vacant> {
        let lost = self.store.lost();
        let (mut gave_way, mut waited) = (false, false);
        loop {
            let vacancy = tokio::select! {
                () = lost.cancelled() => {
                    return Err(Error::new(Reason::Fenced, "the lease of this replica has ended"));
                }
                vacancy = self.store.vacancy() => vacancy,
            };
            match vacancy {
                Ok(given @ Vacant::Given { .. }) => return Ok(given),
                Ok(Vacant::Free) if !gave_way && self.is_outdone().await => {
                    gave_way = true;
                    sleep(GIVES_WAY).await;
                }
                Ok(Vacant::Free) if !waited && !self.has_caught_up() => {
                    // Whoever has taken it may lose it again.
                    waited = !self.is_taken().await;
                }
                Ok(Vacant::Free) => return Ok(Vacant::Free),
                Err(error) => {
                    tracing::warn!(%error, "the store does not answer");
                    sleep(AGAIN).await;
                }
            }
        }
    }

    async fn is_outdone(&self) -> bool {
        self.fitness.outdone_now(self.store).await.is_some()
    }

    fn has_caught_up(&self) -> bool {
        load::has_caught_up(self.shelf, self.store)
    }

    async fn is_alone(&self) -> bool {
        let replicas = self.store.replicas().await;
        replicas.is_ok_and(|replicas| replicas.iter().all(|it| it.is_this))
    }

    /// Waits until another replica leads, if there is one, this one has caught up, or it has taken long enough. Returns whether
    /// one leads.
    async fn is_taken(&self) -> bool {
        let taken = async {
            if self.is_alone().await {
                return false;
            }
            while !self.has_caught_up() {
                if matches!(self.store.leader().await, Ok(Some(_))) {
                    return true;
                }
                sleep(LOOK).await;
            }
            false
        };
        timeout(READS, taken).await.unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use drover_store::{Backend, Me, Shards};
    use drover_testing::store::MemoryBackend;
    use tokio::time::Instant;

    use super::*;

    struct Site {
        store: Arc<Store>,
        fitness: Fitness,
        shelf: Shelf,
    }

    async fn site(backend: &Arc<MemoryBackend>, name: &str) -> Site {
        let backend: Arc<dyn Backend> = backend.clone();
        Site {
            store: Arc::new(Store::open_as(backend, Me::named(name)).await.unwrap()),
            fitness: Fitness::default(),
            shelf: Shelf::default(),
        }
    }

    impl Site {
        async fn begins(&self) -> Result<Vacant> {
            let vacancy = Vacancy {
                store: &self.store,
                fitness: &self.fitness,
                shelf: &self.shelf,
            };
            vacancy.begins().await
        }

        async fn catches_up(&self) {
            self.store.digest_key().await.unwrap();
            self.store.read_ahead();
            let caught_up = async {
                let is_read = |ahead: &load::Ahead| ahead.has_caught_up(&self.store);
                while !self.shelf.lock().as_ref().is_some_and(is_read) {
                    sleep(LOOK).await;
                }
            };
            tokio::select! {
                () = load::follow(self.store.clone(), None, self.shelf.clone()) => {}
                () = caught_up => {}
            }
        }

        async fn leads(&self) -> Shards {
            self.store.take_all().await.unwrap()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_yet_to_read_leaves_the_lead_to_others_for_a_moment() {
        let backend = Arc::new(MemoryBackend::new());
        let (a, b) = (site(&backend, "a").await, site(&backend, "b").await);
        let began = Instant::now();
        a.begins().await.unwrap();
        assert!(began.elapsed() >= READS && began.elapsed() < READS * 2);
        a.catches_up().await;
        let began = Instant::now();
        a.begins().await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO, "it has read everything");

        // The other one takes it first, and is awaited.
        let (shards, stands_by) = (b.leads().await, site(&backend, "c").await);
        let next = async {
            sleep(LOOK).await;
            b.store.release_all(&shards).await.unwrap();
            sleep(LOOK).await;
            let shards = a.leads().await;
            sleep(READS * 10).await;
            a.store.release_all(&shards).await.unwrap();
            Instant::now()
        };
        let (began, (free, begun)) = (
            Instant::now(),
            tokio::join!(next, async {
                stands_by.begins().await.unwrap();
                Instant::now()
            }),
        );
        assert!(begun >= free && begun - began >= READS * 10, "somebody led");
    }

    /// Nobody else can have it meanwhile.
    #[tokio::test(start_paused = true)]
    async fn who_is_given_the_lead_waits_for_nobody_though_it_has_yet_to_read() {
        let backend = Arc::new(MemoryBackend::new());
        let (a, b) = (site(&backend, "a").await, site(&backend, "b").await);
        let _stands_by = site(&backend, "c").await;
        let shards = a.leads().await;
        let rows = b.store.replicas().await.unwrap();
        let lease = rows.iter().find(|it| it.is_this).unwrap().lease.unwrap();
        let began = Instant::now();
        let (begins, given) = tokio::join!(b.begins(), a.store.hand_over(&shards, "b", lease));
        let epoch = given.unwrap().expect("b lives");
        assert_eq!(begins.unwrap(), Vacant::Given { epoch });
        assert_eq!(began.elapsed(), Duration::ZERO);
        b.store.confirm(&b.leads().await).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_alone_waits_for_nobody() {
        let a = site(&Arc::new(MemoryBackend::new()), "a").await;
        let began = Instant::now();
        a.begins().await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
