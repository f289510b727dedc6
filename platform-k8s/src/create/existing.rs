//! Objects that are there already: completed if they belong to the node, refused if not.

use drover_convert::error::reason_name;
use drover_core::{Error, Reason, Result};
use drover_platform::identity::Identity;
use kube::core::ObjectMeta;
use serde_json::Value;
use tracing::warn;

use super::{Creator, Made, Step, is_final, is_of};
use crate::{client::Meta as _, labels, owner, storage};

/// Why an existing object is not the requested one.
pub(super) enum Incomplete {
    /// It belongs to somebody else, or cannot be changed.
    Taken(Error),
    /// Unknown.
    Unsure(Error),
}

impl From<Error> for Incomplete {
    fn from(error: Error) -> Self {
        Self::Unsure(error)
    }
}

impl Creator {
    /// Completes an existing object, if it belongs to this node.
    pub(super) async fn complete(
        &self,
        step: &Step,
        identity: &Identity,
    ) -> Result<Made, Incomplete> {
        let meta = self
            .api
            .get_meta(&step.kind, &step.namespace, &step.name)
            .await?
            .ok_or_else(|| moved(step))?;
        if storage::waits_for(&meta, identity) && !meta.is_deleting() {
            let claim = storage::hand_on(&self.api, &step.kind, &meta, &step.body).await;
            let claim = claim.map_err(|error| {
                // One that has gone meanwhile is made at the next attempt.
                if is_final(&error) && error.reason() != Reason::NotFound {
                    Incomplete::Taken(error)
                } else {
                    Incomplete::Unsure(error)
                }
            })?;
            return Ok(Made::new(claim, step));
        }
        if !is_of(&meta, identity) {
            return Err(Incomplete::Taken(self.taken(step, &meta)));
        }
        if meta.is_deleting() {
            return Err(Incomplete::Unsure(Error::unavailable(format!(
                "{} in namespace {:?} is still being deleted",
                step.label, step.namespace
            ))));
        }
        let problem = labels::read(&meta, &self.settings.labels)
            .map_or(Some("it has lost its labels".to_owned()), |it| it.problem);
        let mut body = step.body.clone();
        // With the uid, apply does not recreate the object if it is deleted meanwhile.
        body["metadata"]["uid"] = meta.uid().into();
        owner::yield_to(&meta, &mut body);
        let applied = self.api.apply(&step.kind, &step.namespace, &body).await;
        let error = match applied {
            Ok(object) => return Ok(Made::before(&object, step)),
            Err(error) => error,
        };
        if let Some(problem) = problem {
            // Without its labels nobody would find it.
            let what = format!("{} in namespace {:?}", step.label, step.namespace);
            return Err(Incomplete::Unsure(
                error.context(format!("{what}: {problem}")),
            ));
        }
        if !is_final(&error) && error.reason() != Reason::Conflict {
            return Err(Incomplete::Unsure(error));
        }
        // It exists and is ours; fields that are immutable, or that somebody else changed, stay as they are. The error
        // message may quote rendered template output.
        let reason = reason_name(error.reason());
        warn!(
            object = step.label,
            node = identity.id,
            reason,
            "an object that is there is left as it is"
        );
        let there = self
            .api
            .get::<Value>(&step.kind, &step.namespace, &step.name)
            .await?;
        // In its place there may be somebody else's by now.
        let there = there
            .map(|object| Made::before(&object, step))
            .filter(|made| made.meta.uid() == meta.uid());
        there.ok_or_else(|| Incomplete::Unsure(moved(step)))
    }

    pub(super) fn taken(&self, step: &Step, meta: &ObjectMeta) -> Error {
        let whose = match labels::read(meta, &self.settings.labels) {
            None => "it belongs to no node".to_owned(),
            Some(mark) => {
                let node = mark.node.as_deref().unwrap_or(meta.name());
                let problem = mark.problem.map(|it| format!("; {it}")).unwrap_or_default();
                format!(
                    "it belongs to node {node:?} of cluster {:?}{problem}",
                    mark.cluster
                )
            }
        };
        Error::new(
            Reason::Precondition,
            format!(
                "{} in namespace {:?} is there already: {whose}",
                step.label, step.namespace
            ),
        )
        .with_resource(step.kind.to_string(), &step.name)
    }
}

fn moved(step: &Step) -> Error {
    Error::unavailable(format!(
        "{} in namespace {:?} was there and went away meanwhile",
        step.label, step.namespace
    ))
}
