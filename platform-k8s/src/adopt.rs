//! Gives a node a new owner and slot, regardless of who created it.
//!
//! One object speaks for the node: its anchor, or its pod. It is written first, conditional on the resourceVersion that
//! was read, so that of two concurrent adoptions only one succeeds, and with the slots that the node had before. From
//! then on every object that still names one of those slots belongs to the node, so an interruption at any point loses
//! nothing and never splits the node between two owners. The other objects are written afterwards, now or when the node
//! is next changed or removed.

use drover_core::{Error, Reason, Result};
use drover_platform::{driver::Target, identity::Identity};
use kube::core::ObjectMeta;
use serde_json::{Map, Value, json};
use tracing::warn;

use crate::{
    client::{Api, Meta as _},
    delete::{Item, Remover, controller},
    discover::is_pod,
    labels::{
        self, FormerSlot, LabelKeys, Mark,
        declared::{self, Plain},
    },
    owner,
    storage::{self, Whose},
    update::Updater,
};

/// How often the object that speaks for a node is read again after a concurrent change. A kubelet updates the status of
/// a starting pod a few times.
const ATTEMPTS: usize = 10;
/// Maximum number of labels taken over from a foreign node.
const MAX_LABELS: usize = 64;

pub(crate) struct Adopter<'a> {
    pub(crate) api: &'a Api,
    pub(crate) keys: &'a LabelKeys,
    pub(crate) remover: &'a Remover,
    pub(crate) updater: &'a Updater,
}

pub(crate) struct Adopted {
    pub(crate) identity: Identity,
    /// The object that speaks for the node, after the write.
    pub(crate) speaker: Item,
}

impl Adopter<'_> {
    /// Makes `heir` the identity of a node. Its objects are listed, not taken from the cache: the cache may lack one
    /// that was created a moment ago, which would stay with the former owner.
    ///
    /// # Errors
    /// `NotFound`; as [`Target::matches`] if another adoption was faster; `Precondition` for an object that cannot be
    /// given away alone; otherwise as in [`crate::errors`].
    pub(crate) async fn adopt(&self, target: &Target, heir: &Identity) -> Result<Adopted> {
        let mut items = match self.find(target).await {
            Ok(items) => items,
            Err(error) => return self.already(target, heir).await?.ok_or(error),
        };
        items.retain(|item| !item.meta.is_deleting());
        if items.is_empty() {
            let gone = Error::not_found("node", &target.node_id);
            return self.already(target, heir).await?.ok_or(gone);
        }
        let at = self.speaker(&items, target)?;
        self.may_move(&items, target, heir)?;
        let template = self.updater.template(&items[at]).await?.is_some();
        let (identity, meta) = self.win(&items[at], target, heir, template).await?;
        items[at].meta = meta;
        owner::give(self.api, &items[at], storage::all_last(&items)).await;
        let speaker = items[at].clone();
        if let Err(error) = settle(self.api, self.keys, &mut items).await {
            // The node is adopted; the rest follows with its next change. The error message may quote rendered template
            // output.
            let reason = drover_convert::error::reason_name(error.reason());
            warn!(
                node = target.node_id,
                reason, "not everything of an adopted node says so yet"
            );
        }
        Ok(Adopted { identity, speaker })
    }

    async fn find(&self, target: &Target) -> Result<Vec<Item>> {
        let items = self.remover.find(target, &[]).await?;
        if items.is_empty() && target.slot.is_none() {
            return self.remover.unlabelled(target).await;
        }
        Ok(items)
    }

    /// The node, if an earlier attempt of the same call adopted it and its response was lost.
    async fn already(&self, target: &Target, heir: &Identity) -> Result<Option<Adopted>> {
        let now = Target {
            cluster_id: heir.cluster_id.clone(),
            slot: Some(heir.key()),
            node_id: target.node_id.clone(),
        };
        let items = match self.remover.find(&now, &[]).await {
            // Any other error says nothing about whose it is, and who hears that it is somebody else's forgets it.
            Err(error) if is_of_another(&error) => return Ok(None),
            found => found?,
        };
        Ok(items.into_iter().find_map(|speaker| {
            let mark = labels::read(&speaker.meta, self.keys)?;
            let identity = mark.identity.filter(|_| mark.former.is_some())?;
            (identity.id == heir.id).then_some(Adopted { identity, speaker })
        }))
    }

    /// Index of the object that speaks for a node.
    fn speaker(&self, items: &[Item], target: &Target) -> Result<usize> {
        let marks: Vec<Option<Mark>> = items
            .iter()
            .map(|item| labels::read(&item.meta, self.keys))
            .collect();
        let find =
            |is: &dyn Fn(&Mark) -> bool| marks.iter().position(|it| it.as_ref().is_some_and(is));
        if let Some(at) = find(&|mark| mark.former.is_some()).or_else(|| find(&|it| it.anchor)) {
            return Ok(at);
        }
        let unclear = |what: String| {
            Error::new(
                Reason::Precondition,
                format!("node {:?} cannot be adopted: {what}", target.node_id),
            )
        };
        if let Some(problem) = marks.iter().flatten().find_map(|mark| mark.problem.clone()) {
            return Err(unclear(format!(
                "{problem}; put it right, or take the annotation away"
            )));
        }
        let pods: Vec<usize> = (0..items.len())
            .filter(|&at| is_pod(&items[at].kind))
            .collect();
        let mut at = match pods[..] {
            [] => 0,
            [only] => only,
            _ if target.slot.is_some() => pods[0],
            [..] => {
                return Err(unclear(format!(
                    "{} pods go by that name; a node is one",
                    pods.len()
                )));
            }
        };
        // The controller that would recreate the pod stands for the node, if it is marked as part of it.
        while let Some(uid) = controller(&items[at].meta) {
            let above = items.iter().position(|item| item.meta.uid() == uid);
            at = above.ok_or_else(|| unclear(controlled(&items[at].meta, self.keys)))?;
        }
        Ok(at)
    }

    /// A node with more than a pod cannot move to another cluster: selectors contain the cluster id and are immutable.
    fn may_move(&self, items: &[Item], target: &Target, heir: &Identity) -> Result<()> {
        let alone = matches!(items, [only] if is_pod(&only.kind));
        if heir.cluster_id == target.cluster_id || alone {
            return Ok(());
        }
        Err(Error::new(
            Reason::Precondition,
            format!(
                "node {:?} is more than a pod, and its objects find each other by cluster {:?}; it can only be adopted into a cluster of that id",
                target.node_id, target.cluster_id
            ),
        ))
    }

    /// Writes the object that speaks for the node if it still belongs to its former owner. Returns its identity and
    /// metadata.
    async fn win(
        &self,
        item: &Item,
        target: &Target,
        heir: &Identity,
        template: bool,
    ) -> Result<(Identity, ObjectMeta)> {
        let gone = || Error::not_found("node", &target.node_id);
        let (namespace, name) = (item.meta.namespace(), item.meta.name());
        let mut meta = item.meta.clone();
        for attempt in 1.. {
            let mark = labels::read(&meta, self.keys).ok_or_else(gone)?;
            if mark.identity.as_ref().map(Identity::key) == Some(heir.key()) {
                return Ok((mark.identity.unwrap_or_default(), meta));
            }
            let now = mark.identity.clone().unwrap_or_else(|| Identity {
                cluster_id: mark.cluster.clone(),
                ..Identity::default()
            });
            let mut node = now.node(&target.node_id);
            if mark.identity.is_none() {
                node.slot = None;
            }
            target.matches(&node)?;
            let identity = inherit(heir, &mark, &meta, self.keys);
            let body = self.body(&meta, &mark, &identity, target, template);
            let patched = self.api.patch(&item.kind, namespace, name, &body);
            match patched.await {
                Ok(object) => return Ok((identity, object.metadata)),
                Err(error) if error.reason() == Reason::NotFound => return Err(gone()),
                Err(error) if error.reason() != Reason::Conflict || attempt == ATTEMPTS => {
                    return Err(error);
                }
                Err(_) => {}
            }
            let now = self.api.get_meta(&item.kind, namespace, name).await?;
            meta = now
                .filter(|now| now.uid() == meta.uid() && !now.is_deleting())
                .ok_or_else(gone)?;
        }
        Err(gone())
    }

    fn body(
        &self,
        meta: &ObjectMeta,
        mark: &Mark,
        identity: &Identity,
        target: &Target,
        template: bool,
    ) -> Value {
        let mut former = mark.former.clone().unwrap_or_default();
        former.extend(mark.identity.as_ref().map(FormerSlot::of));
        let marks = marks(identity, &target.node_id, self.keys);
        let mut own = marks.clone();
        own["uid"] = meta.uid().into();
        own["resourceVersion"] = meta.version().into();
        own["annotations"][labels::FORMER] = json!(former).to_string().into();
        if meta.labels().contains_key(labels::ACTIVE) {
            // Whether it has been promoted is no matter of its owner.
            own["labels"][labels::ACTIVE] = meta.labels()[labels::ACTIVE].as_str().into();
        }
        if mark.identity.is_none() {
            // A foreign pod is the only object of its node, and therefore its anchor.
            own["annotations"][labels::ANCHOR] = "true".into();
        }
        let mut body = json!({"metadata": own});
        if template {
            body["spec"] = json!({"template": {"metadata": marks}});
        }
        body
    }
}

fn is_of_another(error: &Error) -> bool {
    matches!(
        error.reason(),
        Reason::NodeNotInCluster | Reason::SlotMismatch
    )
}

/// Why a controlled pod cannot be adopted alone, and how to proceed.
fn controlled(meta: &ObjectMeta, keys: &LabelKeys) -> String {
    let owner = meta.controller();
    let (kind, name) = owner.map_or(("something", ""), |owner| (&owner.kind, &owner.name));
    format!(
        "pod {:?} is controlled by {kind} {name:?}, which would make another one in its place; take it away from that (kubectl -n {} delete {} {name} --cascade=orphan), or give the {kind} and its pod the labels {} and {}",
        meta.name(),
        meta.namespace(),
        kind.to_lowercase(),
        keys.cluster,
        keys.node
    )
}

/// The identity of the heir with the version, class and labels that the node keeps.
fn inherit(heir: &Identity, mark: &Mark, meta: &ObjectMeta, keys: &LabelKeys) -> Identity {
    let mut identity = heir.clone();
    match &mark.identity {
        Some(before) => {
            identity.version.clone_from(&before.version);
            identity.node_class.clone_from(&before.node_class);
            identity.labels.clone_from(&before.labels);
        }
        None => {
            identity.labels = declared::shown(meta.labels(), keys, MAX_LABELS);
        }
    }
    identity.fingerprint.clear();
    identity
}

/// Metadata with the labels and annotations of every object of an adopted node. Other keys of the objects stay as they
/// are.
fn marks(identity: &Identity, node_id: &str, keys: &LabelKeys) -> Value {
    let stamp = labels::stamp(identity, keys, &Plain::default());
    let mut labels: Map<String, Value> = stamp
        .labels
        .into_iter()
        .map(|(key, text)| (key, text.into()))
        .collect();
    labels.insert(keys.node.clone(), labels::value(node_id).into());
    let mut annotations = json!(stamp.annotations);
    annotations[labels::NODE_ID] = node_id.into();
    json!({"labels": labels, "annotations": annotations})
}

/// Writes the new identity onto the objects of an adopted node that carry another one. Objects that are deleted
/// meanwhile are ignored. Does nothing for a node that was not adopted.
///
/// # Errors
/// See [`crate::errors`]; the call can be repeated.
pub(crate) async fn settle(api: &Api, keys: &LabelKeys, items: &mut [Item]) -> Result<()> {
    let speaker = items.iter().find_map(|item| {
        let mark = labels::read(&item.meta, keys)?;
        let identity = mark.identity.filter(|_| mark.former.is_some())?;
        Some((item.meta.uid().to_owned(), identity, mark.node?))
    });
    let Some((uid, identity, node_id)) = speaker else {
        return Ok(());
    };
    let marks = marks(&identity, &node_id, keys);
    for item in items {
        let settled = labels::read(&item.meta, keys).is_some_and(|mark| {
            mark.problem.is_none() && mark.identity.is_some_and(|it| it.key() == identity.key())
        });
        if item.meta.uid() == uid || settled || item.meta.is_deleting() {
            continue;
        }
        let mut own = marks.clone();
        own["uid"] = item.meta.uid().into();
        if storage::can_be_kept(&item.kind, &item.meta)
            && let Some(whose) = Whose::read(&item.meta)
        {
            let whose = whose.handed_to(&identity);
            own["annotations"][storage::STORAGE] = whose.annotation().into();
            own["labels"][storage::INHERITED] = "true".into();
        }
        let (namespace, name) = (item.meta.namespace(), item.meta.name());
        let body = json!({"metadata": own});
        match api.patch(&item.kind, namespace, name, &body).await {
            Ok(object) => item.meta = object.metadata,
            Err(error) if error.reason() == Reason::NotFound => {}
            Err(error) if error.reason() == Reason::Conflict => {
                // Another object has its name by now, or too many write this one.
                let now = api.get_meta(&item.kind, namespace, name).await?;
                if now.is_some_and(|now| now.uid() == item.meta.uid()) {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    use super::*;

    fn heir() -> Identity {
        Identity {
            owner: "new".to_owned(),
            cluster_id: "c".to_owned(),
            group: "db".to_owned(),
            request_id: "r2".to_owned(),
            id: "db-7-abcde".to_owned(),
            name: "db-7".to_owned(),
            ordinal: 7,
            ..Identity::default()
        }
    }

    #[test]
    fn a_node_keeps_its_id_version_class_and_labels() {
        let keys = LabelKeys::default();
        let before = Identity {
            owner: "old".to_owned(),
            cluster_id: "c".to_owned(),
            request_id: "r1".to_owned(),
            id: "db-0-zzzzz".to_owned(),
            version: "16".to_owned(),
            node_class: "large".to_owned(),
            labels: BTreeMap::from([("team".to_owned(), "a".to_owned())]),
            ..Identity::default()
        };
        let stamp = labels::stamp(&before, &keys, &Plain::default());
        let mut meta = ObjectMeta {
            labels: Some(stamp.labels),
            annotations: Some(stamp.annotations),
            ..ObjectMeta::default()
        };
        let mark = labels::read(&meta, &keys).unwrap();
        let identity = inherit(&heir(), &mark, &meta, &keys);
        assert_eq!((&*identity.version, &*identity.node_class), ("16", "large"));
        let Value::Object(written) = marks(&identity, "db-0-zzzzz", &keys) else {
            unreachable!()
        };
        for (part, into) in [
            ("labels", &mut meta.labels),
            ("annotations", &mut meta.annotations),
        ] {
            for (key, text) in written[part].as_object().unwrap() {
                into.get_or_insert_default()
                    .insert(key.clone(), text.as_str().unwrap().to_owned());
            }
        }
        let mark = labels::read(&meta, &keys).unwrap();
        assert_eq!((mark.problem, mark.former), (None, None));
        assert_eq!(mark.node.as_deref(), Some("db-0-zzzzz"));
        assert_eq!(mark.identity.unwrap(), identity);
        assert_eq!(identity.labels["team"], "a");
    }

    #[test]
    fn what_is_controlled_is_named_with_the_way_out() {
        let meta = ObjectMeta {
            name: Some("web-0".to_owned()),
            namespace: Some("prod".to_owned()),
            owner_references: Some(vec![OwnerReference {
                kind: "StatefulSet".to_owned(),
                name: "web".to_owned(),
                controller: Some(true),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        };
        let said = controlled(&meta, &LabelKeys::default());
        assert!(said.contains("StatefulSet \"web\""), "{said}");
        let out = "kubectl -n prod delete statefulset web --cascade=orphan";
        assert!(said.contains(out), "{said}");
    }
}
