//! Validation without creating anything.

use drover_core::{Reason, Result};
use drover_platform::{driver::Batch, identity::Identity};
use serde_json::Value;

use super::{Creator, Step, is_of, own};
use crate::{owner::Owners, storage};

/// Maximum number of specs remembered as validated. Forgetting one costs a dry run.
const MAX_TRIED: usize = 4096;

impl Creator {
    /// Validates without creating anything: the request, the rendered template of its first slot, and that by a dry
    /// run. The dry run is skipped for a spec that has passed it before, unless validation is all that was asked for.
    ///
    /// # Errors
    /// See [`crate::errors`] and [`Plan`](crate::objects::Plan).
    pub async fn check(&self, batch: &Batch) -> Result<()> {
        let plan = self.plan(batch).await?;
        let Some(slot) = batch.slots().next() else {
            return Ok(());
        };
        let identity = batch.identity(slot);
        let mut steps = self.steps(batch, &plan, slot, &identity).await?;
        let request = &batch.request;
        let key = (
            request.owner.clone(),
            identity.group.clone(),
            request.spec_hash.clone(),
        );
        let only_asked = request.validate_only;
        if !only_asked && self.tried.lock().contains(&key) {
            return Ok(());
        }
        let owners = Owners::new(&self.api, plan.namespace());
        own(&mut steps, &owners).await?;
        for step in &steps {
            self.try_out(step, &steps, &identity, only_asked).await?;
        }
        let mut tried = self.tried.lock();
        if tried.len() >= MAX_TRIED {
            tried.clear();
        }
        tried.insert(key);
        Ok(())
    }

    /// Dry run of one object.
    async fn try_out(
        &self,
        step: &Step,
        all: &[Step],
        identity: &Identity,
        only_asked: bool,
    ) -> Result<()> {
        let Some(body) = alone(step, all) else {
            return Ok(());
        };
        let answer = self
            .api
            .try_create(&step.kind, &step.namespace, &body)
            .await;
        match answer {
            Ok(()) => Ok(()),
            Err(error) if error.message().contains("does not support dry run") => Ok(()),
            Err(error) if error.reason() == Reason::AlreadyExists => {
                // The creation itself reports the conflict, for the one node that it concerns.
                if !only_asked {
                    return Ok(());
                }
                let there = self
                    .api
                    .get_meta(&step.kind, &step.namespace, &step.name)
                    .await?;
                match there {
                    Some(meta)
                        if !is_of(&meta, identity) && !storage::is_storage_of(&meta, identity) =>
                    {
                        Err(self.taken(step, &meta))
                    }
                    _ => Ok(()),
                }
            }
            Err(error) => Err(error),
        }
    }
}

/// An object for a dry run without the others of its set. `None` if that is impossible.
pub(super) fn alone(step: &Step, all: &[Step]) -> Option<Value> {
    let made = |kind: &str, name: Option<&Value>| {
        all.iter().any(|other| {
            other.kind.resource.kind == kind
                && other.namespace == step.namespace
                && name.and_then(Value::as_str) == Some(&other.name)
        })
    };
    let mut body = step.body.clone();
    match step.kind.resource.kind.as_str() {
        // The API server looks up the role, which a dry run has not created.
        "RoleBinding" if made("Role", body.pointer("/roleRef/name")) => None,
        // Likewise the service account of a pod.
        "Pod" if made("ServiceAccount", body.pointer("/spec/serviceAccountName")) => {
            body["spec"]["serviceAccountName"] = "default".into();
            Some(body)
        }
        _ => Some(body),
    }
}
