//! Pods that are left of an addon whose workloads are gone: somebody has deleted these without them.

use std::{collections::HashSet, sync::Arc};

use drover_core::{Error, Reason, Result};
use kube::core::ObjectMeta;

use super::{
    Backend,
    read::{Slot, Things},
};
use crate::{
    client::{Kind, Meta as _},
    delete::Item,
    errors,
};

/// How many controllers are above one another, at most.
const MAX_LEVELS: usize = 5;

/// What keeps a pod.
enum Keeper {
    /// It, or what controls it, is gone or going, and the garbage collector ends the pod.
    Going,
    There(Box<Item>),
    /// It may not be read, or its kind is not served any more; why, for people.
    Unknown(String),
}

impl Backend {
    /// Deletes pods that nothing of the addon keeps any more, or what keeps them if it is of the addon. Answers what stays,
    /// and why, for people.
    ///
    /// # Errors
    /// Those of the calls, but for rights that are lacking: these are named in the answer.
    pub(super) async fn delete_leftovers(
        &self,
        slot: &Slot,
        things: &Things,
    ) -> Result<Vec<String>> {
        // Workloads take their pods with them.
        if !things.workloads.is_empty() {
            return Ok(Vec::new());
        }
        let mut stays = Vec::new();
        let mut seen = HashSet::new();
        let left = things.pods.iter().map(|pod| &pod.metadata);
        for pod in left.filter(|pod| !pod.is_deleting()) {
            let pod = Item {
                kind: Arc::clone(&self.pods),
                meta: pod.clone(),
            };
            let owner = pod.meta.controller().map(|owner| owner.uid.clone());
            if owner.is_some_and(|uid| !seen.insert(uid)) {
                continue;
            }
            let why = match self.keeper(&pod.meta).await? {
                None => self.end(&pod).await?,
                Some(Keeper::Going) => None,
                Some(Keeper::There(top)) if slot.has(&top.meta) => self.end(&top).await?,
                Some(Keeper::There(top)) => Some(format!("{} keeps it", top.label())),
                Some(Keeper::Unknown(why)) => Some(why),
            };
            stays.extend(why.map(|why| format!("{} stays: {why}", pod.label())));
        }
        Ok(stays)
    }

    /// Deletes an object. Answers why it cannot be, if the right is lacking.
    async fn end(&self, item: &Item) -> Result<Option<String>> {
        lacking(self.delete(std::iter::once(item)).await.map(|()| None))
    }

    /// The uppermost of the controllers of a pod. `None` if it has none.
    async fn keeper(&self, pod: &ObjectMeta) -> Result<Option<Keeper>> {
        let mut top: Option<Box<Item>> = None;
        for _ in 0..MAX_LEVELS {
            let meta = top.as_ref().map_or(pod, |item| &item.meta);
            let Some(owner) = meta.controller() else {
                break;
            };
            let read = async {
                let kind = self.api.kind_of(&owner.api_version, &owner.kind).await?;
                let name = &owner.name;
                let meta = self.api.get_meta(&kind, &self.namespace, name).await?;
                Ok::<(Arc<Kind>, Option<ObjectMeta>), Error>((kind, meta))
            };
            let (kind, meta) = match read.await {
                Err(error)
                    if errors::is_forbidden(&error) || error.reason() == Reason::Precondition =>
                {
                    return Ok(Some(Keeper::Unknown(error.message().to_owned())));
                }
                read => read?,
            };
            match meta.filter(|meta| meta.uid() == owner.uid && !meta.is_deleting()) {
                Some(meta) => top = Some(Box::new(Item { kind, meta })),
                None => return Ok(Some(Keeper::Going)),
            }
        }
        Ok(top.map(Keeper::There))
    }
}

/// A right that is lacking is no error: what it was for stays, and the message says so.
fn lacking(outcome: Result<Option<String>>) -> Result<Option<String>> {
    match outcome {
        Err(error) if errors::is_forbidden(&error) => Ok(Some(error.message().to_owned())),
        outcome => outcome,
    }
}
