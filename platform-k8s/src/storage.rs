//! Storage that outlives its node: claims that lose the marks of their node and keep those of their owner.
//!
//! A claim of declared storage has a name of its own, the same for every node of one owner, cluster, group and ordinal,
//! and names its owner in [`STORAGE`]. When it is kept, it belongs to no node; the successor finds it by its name and
//! takes it over. Both changes are conditional on the resourceVersion of the claim, so that of two concurrent ones only
//! one succeeds.

mod claim;

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use drover_core::{Class, Error, Reason, Result, storage::quantity};
use drover_platform::{
    clock::timestamp,
    identity::{Identity, digest},
    storage::{in_use, is_meant},
};
use drover_proto::platform::v1::{DeprovisionState, KeptStorage, Storage};
use kube::{
    api::{DeleteParams, Preconditions},
    core::ObjectMeta,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    client::{Api, Kind, ListQuery, Meta as _, Object, Shape},
    delete::Item,
    labels::{self, LabelKeys},
    objects::dns_name,
    peers::GroupLabels,
    settings::Settings,
};

use claim::{Claim, bytes};

/// Annotation: owner of the storage in a claim, as JSON.
pub const STORAGE: &str = "drover.dev/storage";
/// Label: `"true"` on a claim that belongs to no node.
pub const KEPT: &str = "drover.dev/kept";
/// Annotation: when it ceased to belong to a node, in seconds of Unix time.
pub const KEPT_SINCE: &str = "drover.dev/kept-since";
/// Label: `"true"` on a claim that belonged to another owner before its node was adopted.
pub const INHERITED: &str = "drover.dev/inherited";
const CLAIMS: &str = "persistentvolumeclaims";

/// Owner of the storage in a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Whose {
    owner: String,
    cluster: String,
    group: String,
    ordinal: u32,
    store: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    class: String,
    /// Replaces the name of the node in the names of claims, if the node was adopted: they are named after the former
    /// owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base: Option<String>,
}

impl Whose {
    /// The owner of the storage of a node.
    #[must_use]
    pub fn of(identity: &Identity, storage: &Storage) -> Self {
        Self {
            owner: identity.owner.clone(),
            cluster: identity.cluster_id.clone(),
            group: identity.group.clone(),
            ordinal: identity.ordinal,
            store: identity.store_id.clone(),
            size: storage.size_bytes,
            class: storage.class.clone(),
            base: None,
        }
    }

    /// The same storage, owned by a node with another identity.
    #[must_use]
    pub fn handed_to(self, identity: &Identity) -> Self {
        let base = self
            .base
            .unwrap_or_else(|| stable_base(&self.owner, &self.cluster, &self.group, self.ordinal));
        Self {
            owner: identity.owner.clone(),
            cluster: identity.cluster_id.clone(),
            group: identity.group.clone(),
            ordinal: identity.ordinal,
            store: identity.store_id.clone(),
            base: Some(base),
            ..self
        }
    }

    /// Reads the owner from a claim. `None` if its storage cannot be kept.
    #[must_use]
    pub fn read(meta: &ObjectMeta) -> Option<Self> {
        serde_json::from_str(meta.annotations().get(STORAGE)?).ok()
    }

    /// The value of the annotation [`STORAGE`].
    #[must_use]
    pub fn annotation(&self) -> String {
        // Serialising strings and numbers cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The group of the nodes that it waits for.
    pub(crate) fn group(&self) -> GroupLabels {
        GroupLabels::of(&self.owner, &self.cluster, &self.group)
    }

    fn is_of(&self, identity: &Identity) -> bool {
        self.owner == identity.owner
            && self.cluster == identity.cluster_id
            && self.group == identity.group
            && self.ordinal == identity.ordinal
    }
}

/// Whether an object is a claim whose storage can be kept.
#[must_use]
pub fn can_be_kept(kind: &Kind, meta: &ObjectMeta) -> bool {
    is_claim(kind) && Whose::read(meta).is_some()
}

/// Whether none of a node's claims goes with it, as one does of a template for nodes without declared storage.
pub(crate) fn all_last(items: &[Item]) -> bool {
    let mut claims = items.iter().filter(|item| is_claim(&item.kind));
    claims.all(|claim| claim.meta.annotations().contains_key(STORAGE))
}

/// Whether an object that is to be made is a claim that goes with its node.
pub(crate) fn will_go(kind: &Kind, body: &Value) -> bool {
    is_claim(kind) && body["metadata"]["annotations"][STORAGE].is_null()
}

pub(crate) fn is_claim(kind: &Kind) -> bool {
    kind.resource.group.is_empty() && kind.resource.plural == CLAIMS
}

/// Whether an object is storage of nodes like this one, kept or not.
#[must_use]
pub fn is_storage_of(meta: &ObjectMeta, identity: &Identity) -> bool {
    Whose::read(meta).is_some_and(|whose| whose.is_of(identity))
}

/// Whether an object is storage kept for nodes like this one.
#[must_use]
pub fn waits_for(meta: &ObjectMeta, identity: &Identity) -> bool {
    is_kept(meta) && is_storage_of(meta, identity)
}

fn is_kept(meta: &ObjectMeta) -> bool {
    meta.labels().get(KEPT).is_some_and(|it| it == "true")
}

/// Backend id of a claim.
fn id(meta: &ObjectMeta) -> String {
    format!("{}/{}", meta.namespace(), meta.name())
}

/// Replaces the name of a node in the names of its claims: the same for every node of one owner, cluster, group and
/// ordinal.
#[must_use]
pub fn stable_base(owner: &str, cluster: &str, group: &str, ordinal: u32) -> String {
    let number = ordinal.to_string();
    let hash = digest([owner, cluster, group, &number], 5);
    let group = group.replace('/', "-");
    dns_name(&format!("{group}-{ordinal}-{hash}"))
}

/// Removes the marks of its node from a claim, so that it stays when that node goes. Returns its id.
///
/// # Errors
/// [`Reason::Conflict`] if the claim changes meanwhile; otherwise as in [`crate::errors`].
pub async fn keep(api: &Api, kind: &Kind, meta: &ObjectMeta, keys: &LabelKeys) -> Result<String> {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let mut marks = Map::new();
    for key in [&*keys.cluster, &*keys.node, labels::REQUEST] {
        marks.insert(key.to_owned(), Value::Null);
    }
    marks.insert(KEPT.to_owned(), "true".into());
    let patch = json!({"metadata": {
        "uid": meta.uid(),
        "resourceVersion": meta.version(),
        "labels": marks,
        "annotations": {
            labels::IDENTITY: null,
            labels::ANCHOR: null,
            labels::NODE_ID: null,
            KEPT_SINCE: since.as_secs().to_string(),
        },
    }});
    api.patch(kind, meta.namespace(), meta.name(), &patch)
        .await?;
    Ok(id(meta))
}

/// The replacements of node names in the names of claims that the owner took over with adopted nodes, by ordinal. Empty
/// if there are none.
///
/// # Errors
/// See [`crate::errors`].
pub async fn inherited(
    api: &Api,
    namespace: &str,
    identity: &Identity,
) -> Result<BTreeMap<u32, String>> {
    let kind = claims(api).await?;
    let labels = format!(
        "{INHERITED}=true,{}={},{}={}",
        labels::OWNER,
        labels::value(&identity.owner),
        labels::GROUP,
        labels::value(&identity.group)
    );
    let query = ListQuery {
        kind: &kind,
        namespace,
        labels: &labels,
        fields: "",
        shape: Shape::Metadata,
    };
    let found = api.list_all::<Object>(&query).await?;
    let ours = found
        .iter()
        .filter_map(|object| Whose::read(&object.metadata))
        .filter(|whose| {
            (&whose.owner, &whose.cluster, &whose.group)
                == (&identity.owner, &identity.cluster_id, &identity.group)
        });
    Ok(ours
        .filter_map(|whose| Some((whose.ordinal, whose.base?)))
        .collect())
}

/// Hands a kept claim to the node of `body`, which is the claim as that node would create it. It grows to the size
/// there if it has a volume; it never shrinks, and its class stays.
///
/// # Errors
/// [`Reason::Precondition`] if it cannot grow, [`Reason::Conflict`] if the claim changes meanwhile; otherwise as in
/// [`crate::errors`].
pub async fn hand_on(api: &Api, kind: &Kind, meta: &ObjectMeta, body: &Value) -> Result<Object> {
    let part = |key: &str| {
        let part = body.pointer(&format!("/metadata/{key}"));
        part.and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let (mut labels, mut annotations) = (part("labels"), part("annotations"));
    // The name is derived from the first owner, and the next node has to find it too.
    if let Some(whose) = Whose::read(meta).filter(|whose| whose.base.is_some()) {
        annotations.insert(STORAGE.to_owned(), whose.annotation().into());
    }
    labels.insert(KEPT.to_owned(), Value::Null);
    annotations.insert(KEPT_SINCE.to_owned(), Value::Null);
    let mut patch = json!({"metadata": {
        "uid": meta.uid(),
        "resourceVersion": meta.version(),
        "labels": labels,
        "annotations": annotations,
    }});
    let grown = growth(api, kind, meta, body).await?;
    if let Some((_, larger)) = &grown {
        patch["spec"] = json!({"resources": {"requests": {"storage": larger}}});
    }
    let handed = api.patch(kind, meta.namespace(), meta.name(), &patch).await;
    match grown {
        Some((before, larger)) => {
            handed.map_err(|error| cannot_grow(error, meta, &before, &larger))
        }
        None => handed,
    }
}

/// Has the declared storage of a node grow to a size in bytes. Claims that ask for as much or more stay as they are, and
/// those of a template, which go with the node.
///
/// # Errors
/// [`Reason::Precondition`] if one cannot grow, or there is none; `Unavailable` if one has no volume yet;
/// [`Reason::Conflict`] if one changes meanwhile; otherwise as in [`crate::errors`].
pub(crate) async fn grow(api: &Api, items: &[Item], size: u64) -> Result<()> {
    let claims = items.iter().filter(|item| is_claim(&item.kind));
    let claims = claims.filter_map(|item| Some((item, Whose::read(&item.meta)?)));
    let claims: Vec<_> = claims
        .filter(|(item, _)| !item.meta.is_deleting())
        .collect();
    let (alone, mut found) = (claims.len() == 1, false);
    for (item, whose) in claims {
        found |= grow_claim(api, item, whose, size, alone).await?;
    }
    if found {
        return Ok(());
    }
    let why = "the node has no claim of declared storage that could grow";
    Err(Error::new(Reason::Precondition, why))
}

/// Whether it is a claim that grows.
async fn grow_claim(api: &Api, item: &Item, whose: Whose, size: u64, alone: bool) -> Result<bool> {
    let (kind, meta) = (&item.kind, &item.meta);
    let there = api
        .get::<Claim>(kind, meta.namespace(), meta.name())
        .await?;
    let Some(there) = there.filter(|there| there.metadata.uid == meta.uid) else {
        return Err(Error::unavailable(format!("claim {:?} is gone", id(meta))));
    };
    let before = there.asked().unwrap_or_default();
    // A template may give other claims of the node sizes of their own.
    if !alone && bytes(&before) != whose.size {
        return Ok(false);
    }
    let grows = bytes(&before) < Some(size);
    if grows && !there.is_bound() {
        let why = format!("claim {:?} has no volume yet", id(meta));
        return Err(Error::unavailable(why));
    }
    if !grows && whose.size >= Some(size) {
        return Ok(true);
    }
    let larger = quantity(size);
    let size = whose.size.max(Some(size));
    let mut patch = json!({"metadata": {
        "uid": meta.uid(),
        // As it was when it was found to be the node's.
        "resourceVersion": meta.version(),
        "annotations": {STORAGE: Whose { size, ..whose }.annotation()},
    }});
    if grows {
        patch["spec"] = json!({"resources": {"requests": {"storage": larger}}});
    }
    let patched = api.patch(kind, meta.namespace(), meta.name(), &patch).await;
    patched
        .map(|_| true)
        .map_err(|error| cannot_grow(error, meta, &before, &larger))
}

/// The sizes that a claim has and should get, if that is larger.
async fn growth(
    api: &Api,
    kind: &Kind,
    meta: &ObjectMeta,
    body: &Value,
) -> Result<Option<(String, String)>> {
    let wanted = body.pointer("/spec/resources/requests/storage");
    let Some(wanted) = wanted.and_then(Value::as_str) else {
        return Ok(None);
    };
    let there = api.get::<Claim>(kind, meta.namespace(), meta.name());
    // Without a volume it has no data, and Kubernetes lets nobody change its size.
    let there = there.await?.filter(Claim::is_bound);
    let Some(before) = there.and_then(|claim| claim.asked()) else {
        return Ok(None);
    };
    let grows = bytes(wanted) > bytes(&before);
    Ok(grows.then(|| (before, wanted.to_owned())))
}

fn cannot_grow(error: Error, meta: &ObjectMeta, before: &str, larger: &str) -> Error {
    let words = format!(
        "claim {:?} has {before} and cannot grow to {larger}; leave storage.size as it was, or let its StorageClass expand \
         volumes (allowVolumeExpansion): {}",
        id(meta),
        error.message()
    );
    match error.class() {
        Class::Cannot if error.reason() != Reason::NotFound => {
            Error::new(Reason::Precondition, words)
        }
        _ => error,
    }
}

/// Lists all kept storage.
///
/// # Errors
/// See [`crate::errors`].
pub async fn list(api: &Api, settings: &Settings) -> Result<Vec<KeptStorage>> {
    let kind = claims(api).await?;
    let mut all = Vec::new();
    let labels = format!("{KEPT}=true");
    for scope in settings.scopes() {
        let query = ListQuery {
            kind: &kind,
            namespace: scope.unwrap_or_default(),
            labels: &labels,
            fields: "",
            shape: Shape::Full,
        };
        for claim in api.list_all::<Claim>(&query).await? {
            let meta = &claim.metadata;
            // A claim that is being deleted belongs to nobody any more.
            if !meta.is_deleting()
                && let Some(whose) = Whose::read(meta)
            {
                let size = claim.size().or(whose.size);
                all.push(shown(meta, Whose { size, ..whose }));
            }
        }
    }
    Ok(all)
}

/// Deletes a kept claim.
///
/// # Errors
/// As the platform documents them for DeleteStorage; otherwise as in [`crate::errors`].
pub async fn delete(
    api: &Api,
    settings: &Settings,
    meant: &KeptStorage,
) -> Result<DeprovisionState> {
    let Some((namespace, name)) = meant.id.split_once('/') else {
        return Ok(DeprovisionState::Gone);
    };
    if !settings.serves(namespace) || !crate::objects::is_path_segment(name) {
        return Ok(DeprovisionState::Gone);
    }
    let kind = claims(api).await?;
    let Some(meta) = api.get_meta(&kind, namespace, name).await? else {
        return Ok(DeprovisionState::Gone);
    };
    let Some(whose) = Whose::read(&meta) else {
        return Err(Error::new(
            Reason::NodeNotInCluster,
            format!(
                "claim {:?} is not a storage of a node; it was left alone",
                meant.id
            ),
        ));
    };
    is_meant(meant, &shown(&meta, whose))?;
    if !is_kept(&meta) {
        let node = labels::read(&meta, &settings.labels).and_then(|mark| mark.node);
        return Err(in_use(&meant.id, &node.unwrap_or_default()));
    }
    let options = DeleteParams::default().preconditions(Preconditions {
        uid: Some(meta.uid().to_owned()),
        // A node that takes it over meanwhile keeps it.
        resource_version: Some(meta.version().to_owned()),
    });
    api.delete(&kind, namespace, name, &options).await?;
    // A failed precondition is also reported as gone: read again.
    Ok(match api.get_meta(&kind, namespace, name).await? {
        None => DeprovisionState::Gone,
        Some(now) if now.uid != meta.uid => DeprovisionState::Gone,
        Some(now) if now.is_deleting() => DeprovisionState::Deprovisioning,
        Some(_) => {
            return Err(Error::unavailable(format!(
                "claim {:?} changed while it was to be deleted; ask again",
                meant.id
            )));
        }
    })
}

async fn claims(api: &Api) -> Result<Arc<Kind>> {
    api.kind_of("v1", "PersistentVolumeClaim").await
}

fn shown(meta: &ObjectMeta, whose: Whose) -> KeptStorage {
    let since = meta
        .annotations()
        .get(KEPT_SINCE)
        .and_then(|seconds| seconds.parse().ok())
        .map(|seconds| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds));
    KeptStorage {
        id: id(meta),
        owner: whose.owner,
        cluster_id: whose.cluster,
        group: whose.group,
        ordinal: whose.ordinal,
        storage: Some(Storage {
            size_bytes: whose.size,
            class: whose.class,
        }),
        kept_time: since.map(timestamp),
        store_id: whose.store,
    }
}
