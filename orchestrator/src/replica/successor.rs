//! Who is to lead next.

use std::{cmp::Reverse, time::Duration};

use drover_core::Result;
use drover_store::{ReplicaRow, Store};
use tokio::time::timeout;

use super::fitness::may_lead;

/// How long it may take to find one. Without one the lead is left to whoever takes it first.
pub(super) const WITHIN: Duration = Duration::from_secs(1);

/// The replica that the lead is handed to: one that lives, has read all clusters, and has nothing against itself. Of several
/// the one that reaches the most platforms, then the one that was started last: in an upgrade that has the new version already.
pub(super) async fn find(store: &Store) -> Option<ReplicaRow> {
    match timeout(WITHIN, best(store)).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => {
            tracing::debug!(%error, "the others are not seen");
            None
        }
        Err(_) => None,
    }
}

async fn best(store: &Store) -> Result<Option<ReplicaRow>> {
    let sealed_with = store.sealed_with().await?;
    let mut others = store.replicas().await?;
    others.retain(|it| !it.is_this && takes(it) && may_lead(it, &sealed_with));
    others.sort_by_key(|it| Reverse((reached(it), it.since_ms)));
    for other in others {
        // One that was killed a moment ago would have the lead until its lease ends.
        if store.lives(&other.name).await? {
            return Ok(Some(other));
        }
    }
    Ok(None)
}

fn takes(replica: &ReplicaRow) -> bool {
    let report = replica.report.as_ref();
    replica.lease.is_some() && report.is_some_and(|report| report.takes == Some(true))
}

fn reached(replica: &ReplicaRow) -> usize {
    let report = replica.report.as_ref();
    report.map_or(0, |report| report.platforms.len())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use drover_store::{Backend, Me, ReplicaReport};
    use drover_testing::store::MemoryBackend;

    use super::*;

    async fn replica(backend: &Arc<MemoryBackend>, name: &str) -> Store {
        let backend: Arc<dyn Backend> = backend.clone();
        Store::open_as(backend, Me::named(name)).await.unwrap()
    }

    fn fit(platforms: &[&str]) -> ReplicaReport {
        ReplicaReport {
            platforms: platforms.iter().map(ToString::to_string).collect(),
            takes: Some(true),
            ..ReplicaReport::default()
        }
    }

    async fn name(store: &Store) -> Option<String> {
        find(store).await.map(|found| found.name)
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_one_lives_has_read_everything_and_reaches_the_most() {
        let backend = Arc::new(MemoryBackend::new());
        let this = replica(&backend, "this").await;
        this.report(fit(&["kind", "cloud"])).await.unwrap();
        let (one, two) = (
            replica(&backend, "one").await,
            replica(&backend, "two").await,
        );
        assert_eq!(name(&this).await, None, "nobody has said anything");
        one.report(fit(&["kind"])).await.unwrap();
        two.report(fit(&["kind", "cloud"])).await.unwrap();
        assert_eq!(name(&this).await.as_deref(), Some("two"));
        let unfit = ReplicaReport {
            unfit: "its clock is wrong".to_owned(),
            ..fit(&["kind", "cloud"])
        };
        two.report(unfit).await.unwrap();
        assert_eq!(name(&this).await.as_deref(), Some("one"));
        one.declines().await.unwrap();
        assert_eq!(name(&this).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_whose_process_has_ended_is_not_the_next_one() {
        let backend = Arc::new(MemoryBackend::new());
        let this = replica(&backend, "this").await;
        let (one, two) = (
            replica(&backend, "one").await,
            replica(&backend, "two").await,
        );
        one.report(fit(&["kind"])).await.unwrap();
        two.report(fit(&["kind", "cloud"])).await.unwrap();
        // Its lease goes on for a while.
        drop(two);
        assert_eq!(name(&this).await.as_deref(), Some("one"));
    }
}
