//! Removes a node with all its objects, if they are still the intended ones.
//!
//! First every object with both labels is read, over all kinds and namespaces. Objects with another identity are not
//! touched. What was found goes in the order of the settings, claims last and controlled objects with their controllers.
//! `Gone` is returned only when nothing was found any more.

use std::{collections::HashSet, sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result};
use drover_platform::driver::{Deleted, Deletion as Options, Target};
use drover_proto::platform::v1::{DeprovisionState, Node};
use futures::{StreamExt as _, stream};
use kube::{
    api::{DeleteParams, Preconditions},
    core::ObjectMeta,
};

use crate::{
    adopt,
    client::{Api, Deletion, Kind, ListQuery, Meta as _, Object, Shape},
    errors,
    labels::{self, FormerSlot, Mark},
    objects,
    settings::Settings,
    storage,
};

/// Concurrent lists of one read, within the permits of the client.
const READS: usize = 8;
/// Minimum grace period: with 0 the API server forgets a pod before its containers have ended.
const MIN_GRACE: Duration = Duration::from_secs(1);

/// An object of a node, as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Kind of the object.
    pub kind: Arc<Kind>,
    /// Metadata of the object.
    pub meta: ObjectMeta,
}

/// Location of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Kind of the object.
    pub kind: Arc<Kind>,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

/// Removes nodes with all their objects.
pub struct Remover {
    api: Api,
    settings: Arc<Settings>,
    kinds: Vec<Arc<Kind>>,
}

impl Remover {
    /// Handles objects of these kinds, in their order.
    #[must_use]
    pub fn new(api: Api, settings: Arc<Settings>, kinds: Vec<Arc<Kind>>) -> Self {
        Self {
            api,
            settings,
            kinds,
        }
    }

    /// Whether the removal of a node finds objects of a kind.
    #[must_use]
    pub fn removes(&self, kind: &Kind) -> bool {
        self.kinds.iter().any(|it| {
            it.resource.group == kind.resource.group && it.resource.plural == kind.resource.plural
        })
    }

    /// Starts or continues the removal of a node. `known` are the locations of its objects, if these are known: then
    /// only they are read. A full read always confirms that the node is gone.
    ///
    /// # Errors
    /// As [`Target::matches`] if another node was found; `CredentialsRefused`, which names the kinds; otherwise as in
    /// [`crate::errors`].
    pub async fn delete(
        &self,
        target: &Target,
        options: &Options,
        known: &[Place],
    ) -> Result<Deleted> {
        let mut items = Vec::new();
        if !options.retain_storage {
            items = self.look(target, known).await?;
        }
        // Storage to retain must not be overlooked.
        if items.is_empty() {
            items = self.read(&target.cluster_id, &target.node_id).await?;
        }
        let mut items = self.meant(target, items)?;
        if items.is_empty() {
            return Ok(deleted(DeprovisionState::Gone));
        }
        // Once the object that speaks for an adopted node is gone, nothing else tells who owns its other objects.
        adopt::settle(&self.api, &self.settings.labels, &mut items).await?;
        let mut retained = Vec::new();
        if options.retain_storage {
            (retained, items) = self.keep(items).await?;
        }
        self.remove(items, options.grace_period).await?;
        Ok(Deleted {
            retained_storage: retained,
            ..deleted(DeprovisionState::Deprovisioning)
        })
    }

    /// Detaches the storage of a node before anything else of it is deleted: an interruption at any point keeps the
    /// data. Returns the storage ids and the remaining objects.
    async fn keep(&self, items: Vec<Item>) -> Result<(Vec<String>, Vec<Item>)> {
        let (kept, left): (Vec<Item>, Vec<Item>) = items
            .into_iter()
            .partition(|item| storage::can_be_kept(&item.kind, &item.meta));
        let mut ids = Vec::with_capacity(kept.len());
        for Item { kind, meta } in &kept {
            if meta.is_deleting() {
                return Err(Error::new(
                    Reason::Precondition,
                    format!(
                        "claim {:?} in namespace {:?} is being deleted by somebody else and cannot be kept",
                        meta.name(),
                        meta.namespace()
                    ),
                ));
            }
            ids.push(storage::keep(&self.api, kind, meta, &self.settings.labels).await?);
        }
        Ok((ids, left))
    }

    /// The current objects of a node. `known` are their locations, if these are known.
    pub(crate) async fn find(&self, target: &Target, known: &[Place]) -> Result<Vec<Item>> {
        let mut items = self.look(target, known).await?;
        if items.is_empty() {
            items = self.read(&target.cluster_id, &target.node_id).await?;
        }
        let mut items = self.meant(target, items)?;
        adopt::settle(&self.api, &self.settings.labels, &mut items).await?;
        Ok(items)
    }

    /// The pods without a node label that have this name, which is their node id.
    pub(crate) async fn unlabelled(&self, target: &Target) -> Result<Vec<Item>> {
        let keys = &self.settings.labels;
        let labels = format!("{},!{}", keys.of_cluster(&target.cluster_id), keys.node);
        let pods = self.kinds.iter().find(|kind| is_pod(kind));
        let Some(kind) = pods.filter(|_| objects::is_path_segment(&target.node_id)) else {
            return Ok(Vec::new());
        };
        let fields = format!("metadata.name={}", target.node_id);
        let mut items = Vec::new();
        for scope in self.settings.scopes() {
            let query = ListQuery {
                kind,
                namespace: scope.unwrap_or_default(),
                labels: &labels,
                fields: &fields,
                shape: Shape::Metadata,
            };
            let objects = self.api.list_all::<Object>(&query).await?;
            items.extend(objects.into_iter().map(|object| Item {
                kind: Arc::clone(kind),
                meta: object.metadata,
            }));
        }
        self.meant(target, items)
    }

    /// Reads these objects, except those that are missing or lack one of the labels.
    async fn look(&self, target: &Target, known: &[Place]) -> Result<Vec<Item>> {
        let keys = &self.settings.labels;
        let has = |meta: &ObjectMeta, key: &str, text: &str| {
            meta.labels().get(key) == Some(&labels::value(text))
        };
        let mut reads = Vec::with_capacity(known.len());
        for place in known {
            reads.push(async {
                let meta = self
                    .api
                    .get_meta(&place.kind, &place.namespace, &place.name)
                    .await?;
                let meta = meta.filter(|meta| {
                    has(meta, &keys.cluster, &target.cluster_id)
                        && has(meta, &keys.node, &target.node_id)
                });
                let kind = Arc::clone(&place.kind);
                Ok(meta.map(|meta| Item { kind, meta }))
            });
        }
        let read: Vec<_> = stream::iter(reads).buffered(READS).collect().await;
        let items = together(read)?.into_iter().flatten().collect();
        Ok(self.in_order(items))
    }

    fn in_order(&self, mut items: Vec<Item>) -> Vec<Item> {
        items.sort_by_key(|item| self.kinds.iter().position(|kind| *kind == item.kind));
        items
    }

    /// Reads every object with both labels, in the order of the kinds.
    ///
    /// # Errors
    /// `CredentialsRefused`, which names the kinds; otherwise as in [`crate::errors`].
    pub async fn read(&self, cluster_id: &str, node_id: &str) -> Result<Vec<Item>> {
        self.select(&self.settings.labels.of_node(cluster_id, node_id))
            .await
    }

    /// Reads every object that a label selector matches, in the order of the kinds.
    ///
    /// # Errors
    /// See [`Remover::read`].
    pub async fn select(&self, labels: &str) -> Result<Vec<Item>> {
        let mut reads = Vec::new();
        for kind in self.kinds.iter().filter(|kind| kind.can("list")) {
            for scope in self.settings.scopes() {
                reads.push(self.read_kind(kind, scope.unwrap_or_default(), labels));
            }
        }
        let read: Vec<_> = stream::iter(reads).buffered(READS).collect().await;
        together(read).map(|items| items.into_iter().flatten().collect())
    }

    async fn read_kind(
        &self,
        kind: &Arc<Kind>,
        namespace: &str,
        labels: &str,
    ) -> Result<Vec<Item>> {
        let query = ListQuery {
            kind,
            namespace,
            labels,
            fields: "",
            shape: Shape::Metadata,
        };
        match self.api.list_all::<Object>(&query).await {
            Ok(objects) => Ok(objects
                .into_iter()
                .map(|object| Item {
                    kind: Arc::clone(kind),
                    meta: object.metadata,
                })
                .collect()),
            // The kind is no longer served, so it has no objects.
            Err(error) if error.reason() == Reason::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Filters the objects that belong to the target.
    fn meant(&self, target: &Target, items: Vec<Item>) -> Result<Vec<Item>> {
        let keys = &self.settings.labels;
        let marked: Vec<(Item, Mark)> = items
            .into_iter()
            .filter_map(|item| labels::read(&item.meta, keys).map(|mark| (item, mark)))
            .collect();
        if marked.is_empty() {
            return Ok(Vec::new());
        }
        let verdict = |mark: &Mark| {
            mark.identity
                .as_ref()
                .map(|it| target.matches(&it.node(&it.id)))
        };
        let ours = |mark: &Mark| matches!(verdict(mark), Some(Ok(())));
        // The object that speaks for an adopted node decides, whatever the others still say.
        let mut marks = marked.iter().map(|(_, mark)| mark);
        let speaker = marks.find(|mark| mark.former.is_some());
        if let Some(Err(error)) = speaker.and_then(verdict) {
            return Err(error);
        }
        let former = speaker.and_then(|mark| mark.former.clone());
        let former = former.unwrap_or_default();
        if !marked.iter().any(|(_, mark)| ours(mark)) {
            // The anchor decides first.
            let mut verdicts: Vec<_> = marked
                .iter()
                .map(|(_, mark)| (!mark.anchor, mark))
                .collect();
            verdicts.sort_by_key(|(no_anchor, _)| *no_anchor);
            for (_, mark) in &verdicts {
                if let Some(Err(error)) = verdict(mark) {
                    return Err(error);
                }
            }
            // Without an identity the node is foreign, which is an error unless the caller asked for that.
            let foreign = Node {
                cluster_id: target.cluster_id.clone(),
                ..Node::default()
            };
            target.matches(&foreign)?;
        }
        // An object with both labels and no identity was created by an object of the template.
        let belongs = |item: &Item, mark: &Mark| match verdict(mark) {
            Some(verdict) => verdict.is_ok() || was(mark, &former),
            None => self.says_the_same(&item.meta, target),
        };
        Ok(marked
            .into_iter()
            .filter(|(item, mark)| belongs(item, mark))
            .map(|(item, _)| item)
            .collect())
    }

    /// Whether the labels of an object without a readable identity do not contradict the target.
    fn says_the_same(&self, meta: &ObjectMeta, target: &Target) -> bool {
        let slot = target.slot.clone().unwrap_or_default();
        let same = |key: &str, text: &str| {
            meta.labels()
                .get(key)
                .is_none_or(|label| *label == labels::value(text))
        };
        same(labels::OWNER, &slot.owner) && same(labels::REQUEST, &slot.request_id)
    }

    async fn remove(&self, mut items: Vec<Item>, grace: Option<Duration>) -> Result<()> {
        // A controller that is not being deleted yet would recreate what it controls, and data go when nothing else was refused.
        items.sort_by_key(|item| {
            let controlled = controller(&item.meta).is_some();
            (controlled, storage::is_claim(&item.kind))
        });
        // Objects that are being deleted, or will be from now on.
        let ending: HashSet<String> = items
            .iter()
            .filter(|item| item.meta.is_deleting() || controller(&item.meta).is_none())
            .map(|item| item.meta.uid().to_owned())
            .collect();
        let mut outcomes = Vec::with_capacity(items.len());
        for item in &items {
            let Some(grace) = deletes(item, &ending, grace) else {
                continue;
            };
            let outcome = self.delete_one(item, grace).await;
            if is_anchor(&item.meta) {
                // A node that keeps running needs its other objects.
                outcome?;
            } else {
                outcomes.push(outcome);
            }
        }
        together(outcomes).map(|_| ())
    }

    async fn delete_one(&self, item: &Item, grace: Option<Duration>) -> Result<Deletion> {
        let seconds = |grace: Duration| u32::try_from(grace.as_secs()).unwrap_or(u32::MAX);
        let options = DeleteParams {
            grace_period_seconds: grace.map(seconds),
            ..DeleteParams::foreground().preconditions(Preconditions {
                uid: Some(item.meta.uid().to_owned()),
                resource_version: None,
            })
        };
        let (namespace, name) = (item.meta.namespace(), item.meta.name());
        self.api.delete(&item.kind, namespace, name, &options).await
    }
}

/// Whether the identity of an object is one of these slots.
fn was(mark: &Mark, former: &[FormerSlot]) -> bool {
    let identity = mark.identity.as_ref();
    identity.is_some_and(|identity| former.contains(&FormerSlot::of(identity)))
}

/// Whether to delete an object now, and with which grace period.
fn deletes(
    item: &Item,
    ending: &HashSet<String>,
    grace: Option<Duration>,
) -> Option<Option<Duration>> {
    let grace = grace
        .filter(|_| is_pod(&item.kind))
        .map(|it| it.max(MIN_GRACE));
    match controller(&item.meta) {
        // Its controller would recreate it. If the controller goes too, the deletion passes on the grace period.
        Some(uid) => (ending.contains(uid) && grace.is_some()).then_some(grace),
        // A repeated deletion may shorten the grace period.
        None => (!item.meta.is_deleting() || grace.is_some()).then_some(grace),
    }
}

/// Uid of the controller of an object.
pub(crate) fn controller(meta: &ObjectMeta) -> Option<&str> {
    meta.controller().map(|owner| owner.uid.as_str())
}

/// Whether the object stands for its node.
pub(crate) fn is_anchor(meta: &ObjectMeta) -> bool {
    meta.annotations()
        .get(labels::ANCHOR)
        .is_some_and(|it| it == "true")
        && controller(meta).is_none()
}

fn is_pod(kind: &Kind) -> bool {
    kind.resource.group.is_empty() && kind.resource.plural == "pods"
}

fn deleted(state: DeprovisionState) -> Deleted {
    Deleted {
        state,
        retained_storage: Vec::new(),
    }
}

/// All values, or one error: permission errors are merged so that they name every kind, any other error takes
/// precedence.
fn together<T>(outcomes: Vec<Result<T>>) -> Result<Vec<T>> {
    let mut all = Vec::with_capacity(outcomes.len());
    let mut denied: Vec<Error> = Vec::new();
    for outcome in outcomes {
        match outcome {
            Ok(one) => all.push(one),
            Err(error) if errors::is_forbidden(&error) => denied.push(error),
            Err(error) => return Err(error),
        }
    }
    let mut messages: Vec<&str> = denied.iter().map(Error::message).collect();
    messages.dedup();
    match denied.first() {
        None => Ok(all),
        Some(_) if messages.len() == 1 => Err(denied.swap_remove(0)),
        Some(_) => Err(Error::new(Reason::CredentialsRefused, messages.join("; "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::Call;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};

    fn item(plural: &str, uid: &str, controller: Option<&str>, deleting: bool) -> Item {
        let owner = |uid: &str| OwnerReference {
            uid: uid.to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        Item {
            kind: Kind::core(plural.trim_end_matches('s'), plural),
            meta: ObjectMeta {
                name: Some(uid.to_owned()),
                uid: Some(uid.to_owned()),
                owner_references: controller.map(|uid| vec![owner(uid)]),
                deletion_timestamp: deleting.then_some(Time(jiff::Timestamp::UNIX_EPOCH)),
                ..ObjectMeta::default()
            },
        }
    }

    #[test]
    fn what_others_control_goes_with_them_and_is_only_told_its_grace() {
        let ending = HashSet::from(["set".to_owned()]);
        let grace = Some(Duration::from_secs(5));
        let pod = |controller, deleting| item("pods", "p", controller, deleting);
        let cases = [
            (pod(None, false), None, Some(None)),
            (pod(None, false), grace, Some(grace)),
            (pod(None, true), None, None),
            (pod(None, true), grace, Some(grace)),
            (pod(Some("set"), false), None, None),
            (pod(Some("set"), false), grace, Some(grace)),
            (pod(Some("other"), false), grace, None),
            (item("services", "s", None, false), grace, Some(None)),
            (item("services", "s", None, true), grace, None),
        ];
        for (item, grace, expected) in cases {
            assert_eq!(
                deletes(&item, &ending, grace),
                expected,
                "{item:?} {grace:?}"
            );
        }
        let none_at_all = deletes(&pod(None, false), &ending, Some(Duration::ZERO));
        assert_eq!(none_at_all, Some(Some(MIN_GRACE)));
    }

    #[test]
    fn a_pod_that_its_namespace_owns_is_deleted_like_one_that_nothing_controls() {
        let mut pod = item("pods", "p", Some("n"), false);
        let owner = &mut pod.meta.owner_references.get_or_insert_default()[0];
        "v1".clone_into(&mut owner.api_version);
        "Namespace".clone_into(&mut owner.kind);
        let anchor = [(labels::ANCHOR.to_owned(), "true".to_owned())];
        pod.meta.annotations = Some(anchor.into());
        assert_eq!(controller(&pod.meta), None);
        assert!(is_anchor(&pod.meta));
        assert_eq!(deletes(&pod, &HashSet::new(), None), Some(None));
    }

    #[test]
    fn an_anchor_that_a_controller_copied_is_none() {
        let mut set = item("replicasets", "r", None, false);
        set.meta
            .annotations
            .get_or_insert_default()
            .insert(labels::ANCHOR.to_owned(), "true".to_owned());
        assert!(is_anchor(&set.meta));
        set.meta.owner_references = item("x", "x", Some("deployment"), false)
            .meta
            .owner_references;
        assert!(!is_anchor(&set.meta));
    }

    #[test]
    fn every_kind_that_is_refused_is_named_and_other_errors_come_first() {
        let denied = |kind: &str| {
            let call = Call::new("list", kind, "", "");
            Err::<(), _>(errors::lacks_right(&call, format!("may not list {kind}")))
        };
        let error = together(vec![denied("a"), Ok(()), denied("b")]).unwrap_err();
        assert_eq!(error.reason(), Reason::CredentialsRefused);
        assert_eq!(error.message(), "may not list a; may not list b");
        let away = Err(Error::unavailable("away"));
        let error = together(vec![denied("a"), away]).unwrap_err();
        assert_eq!(error.reason(), Reason::Unavailable);
        assert_eq!(together(vec![Ok(1), Ok(2)]).unwrap(), [1, 2]);
    }
}
