//! Creates nodes: validation, and the objects of each slot in order.
//!
//! An object is created by a call that fails if the name is taken, so a retry cannot create anything twice. An existing
//! object with the same identity is completed by server-side apply. A set that cannot be completed is removed again; a
//! set whose outcome is unknown is left for a retry, which finds it by its names.

use std::{collections::HashSet, sync::Arc, time::Duration};

use drover_convert::error::reason_name;
use drover_core::{Class, Error, Reason, Result};
use drover_platform::{
    driver::{Batch, Outcome},
    identity::Identity,
};
use drover_proto::platform::v1::{Node, Slot};
use futures::{StreamExt as _, stream};
use kube::{
    api::{DeleteParams, Preconditions},
    core::ObjectMeta,
};
use parking_lot::Mutex;
use serde::Deserialize as _;
use serde_json::Value;
use tracing::warn;

use crate::{
    client::{Api, Kind, Meta as _, Object},
    delete::{Item, Remover},
    discover, labels,
    objects::{self, Plan},
    pod::{self, Pod},
    selected,
    settings::Settings,
    storage,
};

/// Maximum number of specs remembered as validated. Forgetting one costs a dry run.
const MAX_TRIED: usize = 4096;
/// How long to wait until a set that cannot be completed is gone.
const CLEANUP: Duration = Duration::from_secs(10);
/// Interval between checks of a cleanup.
const CLEANUP_STEP: Duration = Duration::from_millis(50);

/// Receives created nodes on behalf of the rest of the driver.
pub trait Nodes: Send + Sync {
    /// Marks a node as being created until the guard is dropped: meanwhile, missing objects are not a failure.
    fn making(&self, cluster_id: &str, node_id: &str) -> Box<dyn Send + Sync>;

    /// Reports a complete set. Its objects are in the order of their creation; `pod` is the last one, if that is a pod.
    /// Returns the node.
    fn made(&self, identity: &Identity, items: &[Item], pod: Option<&Pod>) -> Node;
}

/// Creates nodes from templates.
pub struct Creator {
    api: Api,
    settings: Arc<Settings>,
    remover: Arc<Remover>,
    nodes: Arc<dyn Nodes>,
    tried: Mutex<HashSet<(String, String, String)>>,
}

/// An object to create, and where.
struct Step {
    kind: Arc<Kind>,
    namespace: String,
    name: String,
    label: String,
    body: Value,
}

/// The existing objects of a set.
#[derive(Default)]
struct Progress {
    items: Vec<Item>,
    /// Whether an earlier attempt had created something.
    resumed: bool,
}

impl Creator {
    /// `remover` knows the kinds of objects that a node may have.
    #[must_use]
    pub fn new(
        api: Api,
        settings: Arc<Settings>,
        remover: Arc<Remover>,
        nodes: Arc<dyn Nodes>,
    ) -> Self {
        Self {
            api,
            settings,
            remover,
            nodes,
            tried: Mutex::default(),
        }
    }

    /// Validates without creating anything: the request, the rendered template of its first slot, and that by a dry
    /// run. The dry run is skipped for a spec that has passed it before, unless validation is all that was asked for.
    ///
    /// # Errors
    /// See [`crate::errors`] and [`Plan`].
    pub async fn check(&self, batch: &Batch) -> Result<()> {
        let plan = self.plan(batch).await?;
        let Some(slot) = batch.slots().next() else {
            return Ok(());
        };
        let identity = batch.identity(slot);
        let steps = self.steps(batch, &plan, slot, &identity).await?;
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

    /// Creates the nodes of a batch. Returns one outcome per slot, in their order.
    pub async fn create(&self, batch: &Batch) -> Vec<Outcome> {
        let plan = match self.plan(batch).await {
            Ok(plan) => plan,
            Err(error) => return batch.slots().map(|_| ended(error.clone())).collect(),
        };
        let mut slots = Vec::with_capacity(batch.slots().len());
        for slot in batch.slots() {
            slots.push(self.slot(batch, &plan, slot));
        }
        stream::iter(slots)
            .buffered(self.settings.max_concurrent_calls.max(1))
            .collect()
            .await
    }

    async fn plan(&self, batch: &Batch) -> Result<Plan<'_>> {
        let default = match self.settings.namespaces.first() {
            Some(first) => first.clone(),
            None => self.api.default_namespace(),
        };
        let declared = batch.request.cluster.as_ref();
        let declared = declared.into_iter().flat_map(|it| it.labels.keys());
        let plain = selected::plain(&self.api, &self.settings, declared).await?;
        let plan = Plan::of(&batch.request, &self.settings, &default)?.with_plain(plain);
        let Some(slot) = batch
            .slots()
            .next()
            .filter(|_| batch.request.storage.is_some())
        else {
            return Ok(plan);
        };
        let identity = batch.identity(slot);
        let inherited = storage::inherited(&self.api, plan.namespace(), &identity).await?;
        Ok(plan.inheriting(inherited))
    }

    /// The objects to create for a slot, in order.
    async fn steps(
        &self,
        batch: &Batch,
        plan: &Plan<'_>,
        slot: &Slot,
        identity: &Identity,
    ) -> Result<Vec<Step>> {
        let rendered = batch.render(slot, plan.place(identity)).await?;
        let objects = plan.objects(&rendered, identity)?;
        drop(rendered);
        let mut steps = Vec::with_capacity(objects.len());
        for object in objects {
            let kind = self.kind(&object).await?;
            let label = object.label();
            steps.push(Step {
                kind,
                namespace: object.namespace,
                name: object.name,
                label,
                body: Value::Object(object.body),
            });
        }
        Ok(steps)
    }

    async fn kind(&self, object: &objects::Object) -> Result<Arc<Kind>> {
        let found = self.api.kind_of(&object.api_version, &object.kind).await;
        let kind = found.map_err(|error| match error.class() {
            Class::Cannot => object.wrong(error.message()),
            _ => error,
        })?;
        if !kind.namespaced {
            return Err(object.wrong(
                "is in no namespace; what belongs to the whole Kubernetes cluster cannot belong to a node",
            ));
        }
        if !self.remover.removes(&kind) {
            return Err(object.wrong(format_args!(
                "{kind} are not among the kinds in the platform's settings, so it would be left behind"
            )));
        }
        Ok(kind)
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

    async fn slot(&self, batch: &Batch, plan: &Plan<'_>, slot: &Slot) -> Outcome {
        let identity = batch.identity(slot);
        let steps = match self.steps(batch, plan, slot, &identity).await {
            Ok(steps) => steps,
            Err(error) => return ended(error),
        };
        let _making = self.nodes.making(&identity.cluster_id, &identity.id);
        let mut progress = Progress::default();
        let mut anchor = None;
        for step in &steps {
            let permit = self.api.permit().await;
            // Once begun, a set is finished.
            if progress.items.is_empty() && !batch.may_start() {
                return Outcome::NotStarted;
            }
            let made = self
                .api
                .create_now(permit, &step.kind, &step.namespace, &step.body)
                .await;
            let made = match made {
                Ok(object) => Ok(Made::new(object, step)),
                Err(error) if error.reason() == Reason::AlreadyExists => {
                    match self.complete(step, &identity).await {
                        Ok(made) => {
                            progress.resumed = true;
                            Ok(made)
                        }
                        Err(Incomplete::Taken(error)) => Err(error),
                        Err(Incomplete::Unsure(error)) => return Outcome::Unknown(error),
                    }
                }
                Err(error) => Err(error),
            };
            match made {
                Ok(made) => {
                    progress.items.push(Item {
                        kind: Arc::clone(&step.kind),
                        meta: made.meta,
                    });
                    anchor = made.pod;
                }
                Err(error) => return self.give_up(error, &identity, progress).await,
            }
        }
        let node = self.nodes.made(&identity, &progress.items, anchor.as_ref());
        Outcome::Made(Box::new(node))
    }

    /// Completes an existing object, if it belongs to this node.
    async fn complete(&self, step: &Step, identity: &Identity) -> Result<Made, Incomplete> {
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
        let there = there.map(|object| Made::before(&object, step));
        there.ok_or_else(|| Incomplete::Unsure(moved(step)))
    }

    /// The outcome of a slot whose set cannot be completed.
    async fn give_up(&self, error: Error, identity: &Identity, progress: Progress) -> Outcome {
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

    fn taken(&self, step: &Step, meta: &ObjectMeta) -> Error {
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

/// Why an existing object is not the requested one.
enum Incomplete {
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

/// Whether an object was created for exactly this slot, regardless of its current labels.
fn is_of(meta: &ObjectMeta, identity: &Identity) -> bool {
    meta.annotations()
        .get(labels::IDENTITY)
        .and_then(|it| serde_json::from_str::<Identity>(it).ok())
        .is_some_and(|it| {
            it.key() == identity.key()
                && it.cluster_id == identity.cluster_id
                && it.id == identity.id
        })
}

/// The outcome of a slot of which nothing was created.
fn ended(error: Error) -> Outcome {
    if error.reason() == Reason::Cancelled {
        // The caller has stopped waiting.
        Outcome::NotStarted
    } else if is_final(&error) {
        Outcome::Failed(error)
    } else {
        Outcome::Unknown(error)
    }
}

/// Whether an error rules out that the request was carried out.
fn is_final(error: &Error) -> bool {
    matches!(
        error.class(),
        Class::Cannot | Class::NoCapacity | Class::Credentials
    )
}

fn moved(step: &Step) -> Error {
    Error::unavailable(format!(
        "{} in namespace {:?} was there and went away meanwhile",
        step.label, step.namespace
    ))
}

/// An existing object.
struct Made {
    meta: ObjectMeta,
    /// The whole object, if it is a pod.
    pod: Option<Pod>,
}

impl Made {
    /// A new object, whose state is therefore known: a pod is pending, and is as it was sent.
    fn new(object: Object, step: &Step) -> Self {
        let meta = named(object.metadata, step);
        let pod = discover::is_pod(&step.kind).then(|| {
            let sent = Pod::deserialize(&step.body).unwrap_or_default();
            Pod {
                metadata: meta.clone(),
                status: pod::Status {
                    phase: "Pending".to_owned(),
                    ..pod::Status::default()
                },
                ..sent
            }
        });
        Self { meta, pod }
    }

    /// An object that existed before.
    fn before(object: &Value, step: &Step) -> Self {
        let meta = object
            .get("metadata")
            .and_then(|it| ObjectMeta::deserialize(it).ok());
        let pod = discover::is_pod(&step.kind).then(|| Pod::deserialize(object).ok());
        Self {
            meta: named(meta.unwrap_or_default(), step),
            pod: pod.flatten(),
        }
    }
}

fn named(meta: ObjectMeta, step: &Step) -> ObjectMeta {
    ObjectMeta {
        name: Some(step.name.clone()),
        namespace: Some(step.namespace.clone()),
        ..meta
    }
}

/// An object for a dry run without the others of its set. `None` if that is impossible.
fn alone(step: &Step, all: &[Step]) -> Option<Value> {
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

#[cfg(test)]
mod tests;
