//! Groups objects into nodes: objects with the same cluster and node id are one node.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use drover_platform::driver::Found;
use drover_proto::platform::v1::{Node, NodePhase, Warning};
use prost::Message as _;

use crate::{client::Kind, discover::Seen};

/// Maximum number of objects that a message names.
const MAX_NAMED: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) cluster: Arc<str>,
    pub(crate) node: Box<str>,
}

pub(crate) struct Member {
    /// Changes when the object is recreated.
    pub(crate) uid: u128,
    /// Index of its kind in the list of kinds that are read.
    pub(crate) kind: u16,
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Box<str>,
    pub(crate) deleting: bool,
    /// Finalizers that delay its deletion.
    pub(crate) kept_by: Option<Box<str>>,
    /// Whether it was created last.
    pub(crate) anchor: bool,
    /// Set if it is a pod.
    pub(crate) pod: Option<Box<PodPart>>,
    /// Set if a part of it is unreadable.
    pub(crate) warning: Option<Box<Warning>>,
}

/// The data of a pod that are kept.
#[derive(Clone)]
pub(crate) struct PodPart {
    /// Creation time, in seconds since 1970.
    pub(crate) created: i64,
    /// Kubernetes node that it was assigned to.
    pub(crate) host: Option<Arc<str>>,
    /// Whether it has an identity, and so is not foreign.
    pub(crate) ours: bool,
    /// Whether the scheduler found no Kubernetes node for it.
    pub(crate) unschedulable: bool,
    /// Whether its cluster label was removed.
    pub(crate) lost: bool,
    /// Whether all its containers have ended for good.
    pub(crate) ended: bool,
    /// `None` if the pod does not ask for its peers.
    pub(crate) told: Option<Box<Told>>,
    /// The node as the pod describes it.
    pub(crate) found: Packed,
}

/// The peer data of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// The list of peers that it has, as a [`uid`].
    pub(crate) peers: u128,
    /// Whether a label says that clients may be led to it, or may when it has been promoted.
    pub(crate) says_active: bool,
    /// Name of the service for the active nodes. `None` if its template asks for none.
    pub(crate) service: Option<Box<str>>,
    /// Name of the service for all nodes. `None` if its template asks for none.
    pub(crate) read_service: Option<Box<str>>,
    /// How many pods of its group may be evicted at the same time. `None` if its template does not limit it.
    pub(crate) budget: Option<u32>,
    /// The Secrets of its group, as JSON. `None` if its template asks for none.
    pub(crate) secrets: Option<Box<str>>,
}

/// A node in encoded form to save memory: it is rarely read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    node: Box<[u8]>,
    fingerprint: Box<str>,
}

impl From<Found> for Packed {
    fn from(found: Found) -> Self {
        Self {
            node: found.node.encode_to_vec().into_boxed_slice(),
            fingerprint: found.fingerprint.into_boxed_str(),
        }
    }
}

impl Packed {
    fn unpack(&self) -> Found {
        Found {
            // Always valid: the encoding is our own.
            node: Node::decode(&*self.node).unwrap_or_default(),
            fingerprint: self.fingerprint.to_string(),
        }
    }
}

/// The properties of a node that can change while it runs.
#[derive(Debug, PartialEq, Eq)]
struct Standing {
    role: i32,
    labels: BTreeMap<String, String>,
}

impl Standing {
    fn of(node: &Node) -> Self {
        Self {
            role: node.role,
            labels: node.labels.clone(),
        }
    }
}

#[derive(Default)]
pub(crate) struct Group {
    members: Vec<Member>,
    /// Identity of a node without pods. `None` if a pod provides it, or if the node is foreign.
    identity: Option<Packed>,
    /// Whether there has been a pod.
    had_pod: bool,
    /// The request that created the node, as a [`uid`]. 0 if unknown.
    request: u128,
    /// Role and labels on the workload that stands for the node. `None` if there is no workload.
    stands: Option<Box<Standing>>,
    /// Identity of an adopted node, which overrides that of its pods. `None` if it was not adopted.
    adopted: Option<Box<Packed>>,
}

/// Operations of this process on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnderWay {
    pub(crate) creating: bool,
    pub(crate) removing: bool,
}

#[derive(Default)]
pub(crate) struct Groups {
    map: HashMap<Arc<Key>, Group>,
    /// Interned names, which many objects share.
    names: HashSet<Arc<str>>,
}

impl Groups {
    /// Adds an object, replacing an earlier state of it. Returns the node that it belongs to.
    pub(crate) fn insert(&mut self, seen: Seen) -> Arc<Key> {
        let Seen {
            cluster,
            node,
            mut member,
            identity,
            request,
            adopted,
            version: _,
        } = seen;
        member.namespace = self.name(&member.namespace);
        if let Some(pod) = &mut member.pod {
            pod.host = pod.host.take().map(|host| self.name(&host));
        }
        let key = Key {
            cluster: self.name(&cluster),
            node: node.into(),
        };
        let key = match self.map.get_key_value(&key) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::new(key),
        };
        let group = self.map.entry(Arc::clone(&key)).or_default();
        if let Some(adopted) = adopted {
            group.adopted = Some(Box::new(adopted.into()));
            group.request = request;
        } else if request != 0 && group.adopted.is_none() {
            group.request = request;
        }
        if let Some(found) = identity.as_ref().filter(|_| member.anchor) {
            group.stands = Some(Box::new(Standing::of(&found.node)));
        }
        match &member.pod {
            Some(pod) => {
                group.had_pod = true;
                if pod.ours {
                    group.identity = None;
                }
            }
            None => {
                if group.identity.is_none() && !group.pods().any(|(_, pod)| pod.ours) {
                    group.identity = identity.map(Packed::from);
                }
            }
        }
        match group.members.iter_mut().find(|it| it.uid == member.uid) {
            Some(known) => *known = member,
            None => group.members.push(member),
        }
        key
    }

    /// Removes an object. Returns whether its node has others.
    pub(crate) fn remove(&mut self, key: &Key, uid: u128) -> bool {
        let Some(group) = self.map.get_mut(key) else {
            return false;
        };
        if let Some(at) = group.members.iter().position(|it| it.uid == uid) {
            let member = group.members.swap_remove(at);
            if let Some(pod) = &member.pod
                && pod.ours
                && !group.pods().any(|(_, pod)| pod.ours)
            {
                group.identity = Some(bare(&pod.found).into());
            }
        }
        let some = !group.members.is_empty();
        if !some {
            self.map.remove(key);
        }
        some
    }

    /// Changes a pod. Does nothing if it is unknown.
    pub(crate) fn edit(&mut self, key: &Key, uid: u128, change: impl FnOnce(&mut PodPart)) {
        let members = self.map.get_mut(key).map(|group| &mut group.members);
        if let Some(pod) = members
            .and_then(|members| members.iter_mut().find(|it| it.uid == uid))
            .and_then(|member| member.pod.as_mut())
        {
            change(pod);
        }
    }

    pub(crate) fn get(&self, cluster: &str, node: &str) -> Option<&Group> {
        let key = Key {
            cluster: cluster.into(),
            node: node.into(),
        };
        self.map.get(&key)
    }

    /// Whether the role or labels of a node's pod differ from those of its workload.
    pub(crate) fn has_stray(&self, key: &Key) -> bool {
        let group = self.map.get(key);
        group.is_some_and(|group| group.stray().is_some())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<Key>, &Group)> {
        self.map.iter()
    }

    fn name(&mut self, name: &str) -> Arc<str> {
        match self.names.get(name) {
            Some(known) => Arc::clone(known),
            None => {
                let name: Arc<str> = name.into();
                self.names.insert(Arc::clone(&name));
                name
            }
        }
    }

    /// Drops interned names that are no longer in use.
    pub(crate) fn tidy(&mut self) {
        self.names.retain(|name| Arc::strong_count(name) > 1);
    }
}

impl Group {
    /// Whether all its objects were created: the anchor, which is created last, exists.
    pub(crate) fn is_whole(&self) -> bool {
        self.members.iter().any(|it| it.anchor)
    }

    /// Whether this request created it.
    pub(crate) fn is_of(&self, request: u128) -> bool {
        self.request == request
    }

    pub(crate) fn pods(&self) -> impl Iterator<Item = (&Member, &PodPart)> {
        self.members
            .iter()
            .filter_map(|member| Some((member, member.pod.as_deref()?)))
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// The pod that represents the node: the newest that is not being deleted, otherwise the newest. Of those created
    /// in the same second, one that has not ended.
    pub(crate) fn pod(&self) -> Option<(&Member, &PodPart)> {
        self.pods()
            .max_by_key(|(member, pod)| (!member.deleting, pod.created, !pod.ended, member.uid))
    }

    /// A pod whose role or labels differ from those of the workload, and that workload.
    pub(crate) fn stray(&self) -> Option<(&Member, &Member)> {
        let stands = self.stands.as_deref()?;
        let (member, pod) = self.pod().filter(|(member, _)| !member.deleting)?;
        if !pod.ours || pod.lost || Standing::of(&pod.found.unpack().node) == *stands {
            return None;
        }
        Some((member, self.workload()?))
    }

    /// The object that stands for the node, if it is not a pod.
    fn workload(&self) -> Option<&Member> {
        let mut members = self.members.iter();
        members.find(|it| it.anchor && it.pod.is_none() && !it.deleting)
    }

    /// The node. `None` if the objects form neither a node of ours nor a foreign one.
    pub(crate) fn node(&self, kinds: &[Arc<Kind>], under_way: UnderWay) -> Option<Found> {
        let workload = self.workload();
        match (self.pod(), workload) {
            (Some((member, _)), Some(_)) if member.deleting && under_way.removing => self.shown(),
            (Some((member, _)), Some(workload)) if member.deleting => {
                self.awaited("its pod is being replaced", workload, kinds)
            }
            // If the node were reported as failed, it would get a successor beside the pod that is replaced.
            (Some((_, pod)), Some(workload))
                if pod.ended && !pod.lost && !under_way.removing && restarts(workload, kinds) =>
            {
                let mut found =
                    self.awaited("its pod has ended and is replaced", workload, kinds)?;
                let why = pod.found.unpack().node.message;
                if !why.is_empty() {
                    found.node.message.push_str(&format!("; {why}"));
                }
                Some(found)
            }
            (Some(_), _) => self.shown(),
            (None, workload) => self.without_pods(workload, kinds, under_way),
        }
    }

    /// The node while its workload creates another pod for it.
    fn awaited(&self, why: &str, workload: &Member, kinds: &[Arc<Kind>]) -> Option<Found> {
        let mut found = self.shown()?;
        let node = &mut found.node;
        node.set_phase(NodePhase::Pending);
        node.ready = Some(false);
        node.agent_address = None;
        node.endpoints.clear();
        node.message = format!("{why} by {}", show(workload, kinds));
        Some(found)
    }

    fn shown(&self) -> Option<Found> {
        let (_, pod) = self.pod()?;
        let mut found = pod.found.unpack();
        self.own(&mut found);
        if let Some(stands) = self.stands.as_ref().filter(|_| pod.ours) {
            // The pod template of the workload may still have the role and labels that the node was created with.
            (found.node.role, found.node.labels) = (stands.role, stands.labels.clone());
        }
        if pod.ended && self.pods().any(|(_, other)| !other.ended) {
            // One that may still run hides the end of the others.
            found.node.set_phase(NodePhase::Deprovisioning);
            found.node.message = format!("another pod of it may still run; {}", found.node.message);
        }
        if pod.lost {
            found.node.set_phase(NodePhase::Unknown);
            found.node.ready = Some(false);
            found.node.message = "its cluster label was taken away: it is followed no more, and nothing of it is touched until the label is back".to_owned();
        }
        Some(found)
    }

    /// Overrides the identity of a node that was adopted.
    fn own(&self, found: &mut Found) {
        let Some(adopted) = &self.adopted else {
            return;
        };
        let from = adopted.unpack().node;
        found.fingerprint.clear();
        let node = &mut found.node;
        (node.id, node.name, node.ordinal) = (from.id, from.name, from.ordinal);
        (node.group, node.slot, node.role) = (from.group, from.slot, from.role);
        (node.store_id, node.sequence) = (from.store_id, from.sequence);
        (node.spec_hash, node.version) = (from.spec_hash, from.version);
        (node.node_class, node.labels) = (from.node_class, from.labels);
    }

    fn without_pods(
        &self,
        workload: Option<&Member>,
        kinds: &[Arc<Kind>],
        under_way: UnderWay,
    ) -> Option<Found> {
        let adopted = self.adopted.as_deref();
        let mut found = self.identity.as_ref().or(adopted)?.unpack();
        self.own(&mut found);
        let node = &mut found.node;
        node.ready = Some(false);
        let leaving = self.members.iter().all(|it| it.deleting)
            || self.members.iter().any(|it| it.anchor && it.deleting);
        let remain = self.remain(kinds);
        let (phase, message) = match workload {
            _ if leaving || under_way.removing => (
                NodePhase::Deprovisioning,
                format!("is being deleted; {remain}"),
            ),
            Some(workload) => (
                NodePhase::Pending,
                format!("{} has no pod yet", show(workload, kinds)),
            ),
            None if under_way.creating => {
                (NodePhase::Pending, "its objects are being made".to_owned())
            }
            None if self.had_pod => (NodePhase::Failed, format!("its pod is gone; {remain}")),
            None => (
                NodePhase::Failed,
                format!("it was only made or removed in part, and has no pod; {remain}"),
            ),
        };
        node.set_phase(phase);
        node.message = message;
        Some(found)
    }

    fn remain(&self, kinds: &[Arc<Kind>]) -> String {
        let mut names: Vec<_> = self.members.iter().map(|it| show(it, kinds)).collect();
        names.sort();
        let more = names.len().saturating_sub(MAX_NAMED);
        names.truncate(MAX_NAMED);
        let verb = if names.len() == 1 {
            "remains"
        } else {
            "remain"
        };
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let mut text = format!("{}{more} {verb}", names.join(", "));
        let kept = self
            .members
            .iter()
            .filter_map(|it| Some((it, it.kept_by.as_ref()?)));
        for (member, finalizers) in kept.take(MAX_NAMED) {
            text.push_str(&format!(
                "; {} waits for its finalizers: {finalizers}",
                show(member, kinds)
            ));
        }
        text
    }
}

/// Only the properties of a node that follow from its identity.
fn bare(packed: &Packed) -> Found {
    let found = packed.unpack();
    let from = found.node;
    Found {
        node: Node {
            cluster_id: from.cluster_id,
            node_id: from.node_id,
            id: from.id,
            name: from.name,
            ordinal: from.ordinal,
            role: from.role,
            group: from.group,
            slot: from.slot,
            store_id: from.store_id,
            sequence: from.sequence,
            spec_hash: from.spec_hash,
            version: from.version,
            node_class: from.node_class,
            labels: from.labels,
            create_time: from.create_time,
            provider_id: from.provider_id,
            ..Node::default()
        },
        fingerprint: found.fingerprint,
    }
}

/// Whether the workload replaces a pod that has ended; batch workloads, which run once, do not.
fn restarts(workload: &Member, kinds: &[Arc<Kind>]) -> bool {
    let kind = kinds.get(usize::from(workload.kind));
    kind.is_some_and(|kind| kind.resource.group != "batch")
}

fn show(member: &Member, kinds: &[Arc<Kind>]) -> String {
    match kinds.get(usize::from(member.kind)) {
        Some(kind) => kind.object(&member.name),
        None => member.name.to_string(),
    }
}

/// A uid in 128 bits to save memory. Anything but a UUID is hashed.
#[must_use]
pub(crate) fn uid(text: &str) -> u128 {
    use sha2::{Digest as _, Sha256};
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    match u128::from_str_radix(&digits, 16) {
        Ok(uid) if digits.len() == 32 => uid,
        _ => {
            let hash = Sha256::digest(text.as_bytes());
            hash[..16]
                .iter()
                .fold(0, |uid, byte| uid << 8 | u128::from(*byte))
        }
    }
}

#[cfg(test)]
mod tests;
