//! Creates nodes: validation, and the objects of each slot in order.
//!
//! An object is created by a call that fails if the name is taken, so a retry cannot create anything twice. An existing
//! object with the same identity is completed by server-side apply. A set that cannot be completed is removed again; a
//! set whose outcome is unknown is left for a retry, which finds it by its names.

mod cleanup;
mod dry_run;
mod existing;

use std::{collections::HashSet, sync::Arc};

use drover_core::{Class, Error, Reason, Result};
use drover_platform::{
    driver::{Batch, Outcome},
    identity::Identity,
};
use drover_proto::platform::v1::{Node, Slot};
use futures::{StreamExt as _, stream};
use kube::core::ObjectMeta;
use parking_lot::Mutex;
use serde::Deserialize as _;
use serde_json::Value;

use existing::Incomplete;

use crate::{
    client::{Api, Kind, Meta as _, Object},
    delete::{Item, Remover},
    discover, labels,
    objects::{self, Plan},
    owner::Owners,
    pod::{self, Pod},
    selected,
    settings::Settings,
    storage,
};

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

    /// Creates the nodes of a batch. Returns one outcome per slot, in their order.
    pub async fn create(&self, batch: &Batch) -> Vec<Outcome> {
        let plan = match self.plan(batch).await {
            Ok(plan) => plan,
            Err(error) => return batch.slots().map(|_| ended(error.clone())).collect(),
        };
        let owners = Owners::new(&self.api, plan.namespace());
        let mut slots = Vec::with_capacity(batch.slots().len());
        for slot in batch.slots() {
            slots.push(self.slot(batch, &plan, slot, &owners));
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

    async fn slot(
        &self,
        batch: &Batch,
        plan: &Plan<'_>,
        slot: &Slot,
        owners: &Owners<'_>,
    ) -> Outcome {
        let identity = batch.identity(slot);
        let mut steps = match self.steps(batch, plan, slot, &identity).await {
            Ok(steps) => steps,
            Err(error) => return ended(error),
        };
        if let Err(error) = own(&mut steps, owners).await {
            return ended(error);
        }
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
}

/// Not with a claim that goes with the node, of which `kubectl drain` knows nothing: evicted is its pod only by force.
async fn own(steps: &mut [Step], owners: &Owners<'_>) -> Result<()> {
    let mut claims = steps.iter();
    if claims.any(|step| storage::will_go(&step.kind, &step.body)) {
        return Ok(());
    }
    for step in steps {
        owners
            .own(&step.kind, &step.namespace, &mut step.body)
            .await?;
    }
    Ok(())
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

#[cfg(test)]
mod tests;
