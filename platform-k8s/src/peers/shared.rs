//! Objects that belong to a group, not to one of its nodes: what marks them, and which of them are there.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::Node;
use kube::{
    api::{DeleteParams, Preconditions},
    core::ObjectMeta,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Sizes;
use crate::{
    client::{Api, Kind, ListQuery, Meta as _, Object, Shape},
    discover, errors,
    labels::{self, LabelKeys},
    storage,
    watch::NodeCache,
};

const SECRETS: &str = "secrets";
/// Whether storage still waits for nodes of a group that has none is looked at so many times less often than its nodes.
const KEPT: u32 = 10;

/// The labels of a group on what belongs to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupLabels {
    pub(crate) cluster: String,
    pub(crate) group: String,
    pub(crate) owner: String,
}

impl GroupLabels {
    pub(crate) fn of(owner: &str, cluster: &str, group: &str) -> Self {
        Self {
            cluster: labels::value(cluster),
            group: labels::value(group),
            owner: labels::value(owner),
        }
    }

    /// The labels of an object that belongs to a group. `None` if it belongs to a node, or to nothing of ours.
    pub(crate) fn read(meta: &ObjectMeta, keys: &LabelKeys) -> Option<Self> {
        let labels = meta.labels();
        if labels.contains_key(&keys.node) {
            return None;
        }
        let text = |key: &str| labels.get(key).cloned();
        Some(Self {
            cluster: text(&keys.cluster)?,
            group: text(labels::GROUP)?,
            owner: text(labels::OWNER)?,
        })
    }

    /// Whether a node belongs to the group; its cluster is known to be the right one.
    pub(crate) fn is_of(&self, node: &Node) -> bool {
        let owner = node.slot.as_ref().map(|slot| slot.owner.as_str());
        owner.is_some_and(|owner| labels::value(owner) == self.owner)
            && labels::value(&node.group) == self.group
    }

    /// The labels that select the pods of the group.
    pub(super) fn selector(&self, keys: &LabelKeys) -> BTreeMap<String, String> {
        let labels = [
            (keys.cluster.as_str(), &self.cluster),
            (labels::GROUP, &self.group),
            (labels::OWNER, &self.owner),
        ];
        labels
            .map(|(key, text)| (key.to_owned(), text.clone()))
            .into()
    }

    /// Metadata of an object of the group. It has no owner: it outlives each of the nodes.
    pub(super) fn metadata(&self, namespace: &str, name: &str, keys: &LabelKeys) -> ObjectMeta {
        let mut labels = self.selector(keys);
        labels.insert(labels::MANAGED_BY.to_owned(), labels::MANAGER.to_owned());
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels),
            annotations: Some([(labels::SHARED.to_owned(), name.to_owned())].into()),
            owner_references: Some(Vec::new()),
            ..ObjectMeta::default()
        }
    }

    /// Whether an object is the group's, or was a former owner's whose nodes were adopted or are gone.
    ///
    /// # Errors
    /// `Precondition` if it is neither.
    pub(super) fn check(
        &self,
        kind: &Kind,
        meta: &ObjectMeta,
        keys: &LabelKeys,
        cache: &NodeCache,
    ) -> Result<()> {
        let theirs = Self::read(meta, keys);
        let is_it = theirs.is_some_and(|theirs| {
            let former = Self {
                owner: self.owner.clone(),
                ..theirs.clone()
            };
            theirs == *self || former == *self && is_managed(meta) && !cache.has_nodes_of(&theirs)
        });
        if is_it {
            return Ok(());
        }
        Err(Error::new(
            Reason::Precondition,
            format!(
                "{} in namespace {:?} is somebody else's; there is none for group {:?}",
                kind.object(meta.name()),
                meta.namespace(),
                self.group
            ),
        ))
    }
}

fn is_managed(meta: &ObjectMeta) -> bool {
    let manager = meta.labels().get(labels::MANAGED_BY);
    manager.is_some_and(|manager| manager == labels::MANAGER)
}

/// Whether an object says that the platform has made it under this name. Labels alone do not: `kubectl expose` copies
/// them.
pub(super) fn is_marked(meta: &ObjectMeta) -> bool {
    let made = meta.annotations().get(labels::SHARED);
    made.is_some_and(|name| name == meta.name())
}

/// Whether the platform makes objects of this kind for groups.
pub(super) fn is_kind(kind: &Kind) -> bool {
    let it = &kind.resource;
    let kinds = [
        ("", "services"),
        ("", SECRETS),
        ("policy", "poddisruptionbudgets"),
    ];
    kinds.contains(&(&it.group, &it.plural))
}

/// An object that the platform has made for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shared {
    kind: Arc<Kind>,
    namespace: String,
    name: String,
    of: GroupLabels,
}

impl Shared {
    /// An object of a group. `None` if it is anything else.
    pub(crate) fn read(kind: &Arc<Kind>, meta: &ObjectMeta, keys: &LabelKeys) -> Option<Self> {
        if !is_kind(kind) || !is_managed(meta) || !is_marked(meta) || meta.is_deleting() {
            return None;
        }
        Some(Self {
            kind: Arc::clone(kind),
            namespace: meta.namespace().to_owned(),
            name: meta.name().to_owned(),
            of: GroupLabels::read(meta, keys)?,
        })
    }

    /// The label of its cluster.
    pub(crate) fn cluster(&self) -> &str {
        &self.of.cluster
    }

    pub(super) fn place(&self) -> Place {
        let plural = self.kind.resource.plural.clone();
        (plural, self.namespace.clone(), self.name.clone())
    }

    /// Whether its group is among those of a cluster that have nodes.
    pub(super) fn is_counted(&self, cluster: &str, sizes: &Sizes) -> bool {
        let of = &self.of;
        labels::value(cluster) == of.cluster
            && sizes.keys().any(|(owner, group)| {
                labels::value(owner) == of.owner && labels::value(group) == of.group
            })
    }

    /// Deletes it if its group has had no node for long enough. Returns when to look again, if that is not yet so.
    pub(super) async fn tidy(
        &self,
        api: &Api,
        keys: &LabelKeys,
        cache: &NodeCache,
        patience: &Patience,
    ) -> Result<Option<Instant>> {
        if cache.has_nodes_of(&self.of) {
            patience.forget(&self.place());
            return Ok(None);
        }
        if let Some(at) = patience.until(self.place(), 0) {
            return Ok(Some(at));
        }
        // Whoever comes back to its data is let in as before.
        if is_secret(&self.place()) && self.has_kept_storage(api, cache).await? {
            return Ok(Some(Instant::now() + KEPT * patience.longest));
        }
        let there = api
            .get_meta(&self.kind, &self.namespace, &self.name)
            .await?;
        // Other labels may say by now whose it is, and another platform's nodes are seen only when they are read.
        let own = there.filter(|meta| Self::read(&self.kind, meta, keys).as_ref() == Some(self));
        if let Some(meta) = own
            && !self.is_used(api, keys, cache).await?
        {
            let options = DeleteParams::default().preconditions(Preconditions {
                uid: Some(meta.uid().to_owned()),
                resource_version: Some(meta.version().to_owned()),
            });
            api.delete(&self.kind, &self.namespace, &self.name, &options)
                .await?;
        }
        patience.forget(&self.place());
        cache.peer_notifier().forget_shared(self);
        Ok(None)
    }

    /// Whether storage waits for nodes of the group.
    async fn has_kept_storage(&self, api: &Api, cache: &NodeCache) -> Result<bool> {
        let mut kinds = cache.kinds().iter();
        let Some(claims) = kinds.find(|kind| storage::is_claim(kind)) else {
            return Ok(false);
        };
        let query = ListQuery {
            kind: claims,
            namespace: &self.namespace,
            labels: &format!("{}=true", storage::KEPT),
            fields: "",
            shape: Shape::Metadata,
        };
        let found = api.list_all::<Object>(&query).await?;
        let mut whose = found
            .iter()
            .filter_map(|it| storage::Whose::read(&it.metadata));
        Ok(whose.any(|whose| whose.group() == self.of))
    }

    /// Whether the API server has any object of a node of the group.
    async fn is_used(&self, api: &Api, keys: &LabelKeys, cache: &NodeCache) -> Result<bool> {
        let of = &self.of;
        let labels = format!(
            "{}={},{}={},{}={},{}",
            keys.cluster,
            of.cluster,
            labels::GROUP,
            of.group,
            labels::OWNER,
            of.owner,
            keys.node
        );
        for kind in cache.kinds() {
            let query = ListQuery {
                kind,
                namespace: &self.namespace,
                labels: &labels,
                fields: "",
                shape: Shape::Metadata,
            };
            match api.list_all::<Object>(&query).await {
                Ok(found) if found.is_empty() => {}
                Ok(_) => return Ok(true),
                // Such a kind is not read otherwise either.
                Err(error) if errors::is_forbidden(&error) && !discover::is_pod(kind) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// Plural, namespace and name.
pub(super) type Place = (String, String, String);

pub(super) fn is_secret((plural, ..): &Place) -> bool {
    plural == SECRETS
}

pub(super) fn place(kind: &Kind, meta: &ObjectMeta) -> Place {
    let (namespace, name) = (meta.namespace().to_owned(), meta.name().to_owned());
    (kind.resource.plural.clone(), namespace, name)
}

/// The list of a watch that had an object, or that was the last before it: the watch, and a number.
pub(crate) type ListOf = (u16, u32);

struct Known {
    shared: Shared,
    /// Of Secrets, whose content people may change; otherwise empty.
    version: String,
    list: ListOf,
}

/// The objects of groups, by the cluster label.
#[derive(Default)]
pub(super) struct AllShared(Mutex<BTreeMap<String, BTreeMap<Place, Known>>>);

impl AllShared {
    /// Returns whether anything is new.
    pub(super) fn add(&self, shared: Shared, version: &str, list: ListOf) -> bool {
        let place = shared.place();
        let version = if is_secret(&place) { version } else { "" }.to_owned();
        let mut all = self.0.lock();
        let of_cluster = all.entry(shared.of.cluster.clone()).or_default();
        let before = of_cluster.get(&place);
        let is_new = before.is_none_or(|it| it.shared != shared || it.version != version);
        let known = Known {
            shared,
            version,
            list,
        };
        of_cluster.insert(place, known);
        is_new
    }

    /// Takes out what the last list of a watch did not have.
    pub(super) fn take_unlisted(&self, (watch, number): ListOf) -> Vec<Shared> {
        let mut taken = Vec::new();
        self.retain(|_, known| {
            let (of, last) = known.list;
            let is_gone = of == watch && last != number;
            taken.extend(is_gone.then(|| known.shared.clone()));
            !is_gone
        });
        taken
    }

    pub(super) fn remove(&self, shared: &Shared) {
        self.retain(|_, it| it.shared != *shared);
    }

    pub(super) fn remove_at(&self, place: &Place) {
        self.retain(|at, _| at != place);
    }

    fn retain(&self, mut keep: impl FnMut(&Place, &Known) -> bool) {
        self.0.lock().retain(|_, of_cluster| {
            of_cluster.retain(|place, known| keep(place, known));
            !of_cluster.is_empty()
        });
    }

    pub(super) fn has(&self, cluster: &str) -> bool {
        let all = self.0.lock();
        !all.is_empty() && all.contains_key(&labels::value(cluster))
    }

    /// Those of a cluster, by its id or its label.
    pub(super) fn of_cluster(&self, cluster: &str) -> Vec<Shared> {
        let all = self.0.lock();
        let found = all
            .get(&labels::value(cluster))
            .or_else(|| all.get(cluster));
        found
            .into_iter()
            .flat_map(|it| it.values().map(|known| known.shared.clone()))
            .collect()
    }
}

/// How long fewer nodes have to last before they count: one that is being replaced is away for a moment.
pub(super) struct Patience {
    longest: Duration,
    since: Mutex<HashMap<Place, (u32, Instant)>>,
}

impl Patience {
    pub(super) fn new(longest: Duration) -> Self {
        Self {
            longest,
            since: Mutex::default(),
        }
    }

    /// When so few have lasted long enough. `None` if they have.
    pub(super) fn until(&self, place: Place, few: u32) -> Option<Instant> {
        let now = Instant::now();
        let mut since = self.since.lock();
        let entry = since.entry(place).or_insert((few, now));
        if few < entry.0 {
            *entry = (few, now);
        }
        let at = entry.1 + self.longest;
        (at > now).then_some(at)
    }

    pub(super) fn forget(&self, place: &Place) {
        self.since.lock().remove(place);
    }
}
