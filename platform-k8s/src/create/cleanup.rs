//! A set that cannot be completed is removed again.

use std::time::Duration;

use drover_convert::error::reason_name;
use drover_core::{Error, Result};
use drover_platform::{driver::Outcome, identity::Identity};
use kube::api::{DeleteParams, Preconditions};
use tracing::warn;

use super::{Creator, Progress, is_final, is_of};
use crate::{client::Meta as _, delete::Item, storage};

/// How long to wait until a set that cannot be completed is gone.
const CLEANUP: Duration = Duration::from_secs(10);
/// Interval between checks of a cleanup.
const CLEANUP_STEP: Duration = Duration::from_millis(50);

impl Creator {
    /// The outcome of a slot whose set cannot be completed.
    pub(super) async fn give_up(
        &self,
        error: Error,
        identity: &Identity,
        progress: Progress,
    ) -> Outcome {
        if !is_final(&error) {
            return Outcome::Unknown(error);
        }
        if progress.items.is_empty() {
            return Outcome::Failed(error);
        }
        let removal = tokio::time::timeout(CLEANUP, self.remove(identity, progress)).await;
        let left = match removal {
            Ok(Ok(())) => return Outcome::Failed(error),
            Ok(Err(left)) => left,
            Err(_) => Error::unavailable("it is still being deleted"),
        };
        let (reason, removal) = (reason_name(error.reason()), reason_name(left.reason()));
        warn!(
            node = identity.id,
            reason, removal, "a set that cannot be completed is not removed yet"
        );
        Outcome::Unknown(Error::unavailable(format!(
            "{}; a part of the node was made and is not removed yet: {}",
            error.message(),
            left.message()
        )))
    }

    /// Deletes the existing objects of a set, and waits until they are gone.
    async fn remove(&self, identity: &Identity, progress: Progress) -> Result<()> {
        let mut items = progress.items;
        if progress.resumed {
            // An earlier attempt may have created more.
            let all = self
                .remover
                .read(&identity.cluster_id, &identity.id)
                .await?;
            items = all
                .into_iter()
                .filter(|item| is_of(&item.meta, identity))
                .collect();
        } else {
            items.reverse();
        }
        if progress.resumed {
            // Retained storage is retained again. So is storage of an earlier attempt, which may have been retained
            // before.
            let (kept, left): (Vec<Item>, Vec<Item>) = items
                .into_iter()
                .partition(|item| storage::can_be_kept(&item.kind, &item.meta));
            for item in &kept {
                storage::keep(&self.api, &item.kind, &item.meta, &self.settings.labels).await?;
            }
            items = left;
        }
        for item in &items {
            let options = DeleteParams::default().preconditions(Preconditions {
                uid: Some(item.meta.uid().to_owned()),
                resource_version: None,
            });
            let (namespace, name) = (item.meta.namespace(), item.meta.name());
            self.api
                .delete(&item.kind, namespace, name, &options)
                .await?;
        }
        for item in &items {
            while self.exists(item).await? {
                tokio::time::sleep(CLEANUP_STEP).await;
            }
        }
        Ok(())
    }

    async fn exists(&self, item: &Item) -> Result<bool> {
        let (namespace, name) = (item.meta.namespace(), item.meta.name());
        let there = self.api.get_meta(&item.kind, namespace, name).await?;
        Ok(there.is_some_and(|meta| meta.uid() == item.meta.uid()))
    }
}
