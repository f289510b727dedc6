//! The content of the cache, by object and by node.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use drover_core::Error;
use drover_platform::driver::{Changes, Found};
use drover_proto::platform::v1::{NodePhase, RemovalEvidence};
use tokio::time::Instant;

use crate::{
    client::Kind,
    group::{Group, Groups, Key, UnderWay},
    machine::{self, Known},
    watch::unscheduled::Unscheduled,
};

/// The content of the cache, behind one lock.
#[derive(Default)]
pub(super) struct CacheState {
    pub(super) groups: Groups,
    pub(super) objects: HashMap<u128, Indexed>,
    pub(super) deleted: VecDeque<u128>,
    /// The Kubernetes nodes.
    pub(super) hosts: HashMap<Arc<str>, Known>,
    pub(super) watches: Vec<Watch>,
    pub(super) under_way: HashMap<(Box<str>, Box<str>), (usize, usize)>,
    pub(super) changes: Option<Changes>,
    pub(super) unscheduled: Unscheduled,
    /// Clusters with a pod that asks for its peers.
    pub(super) listeners: HashSet<Arc<str>>,
}

/// Where the groups hold an object.
pub(super) struct Indexed {
    pub(super) key: Arc<Key>,
    pub(super) watch: u16,
    /// The list of that watch which contained it last.
    pub(super) generation: u32,
    /// Of its state. 0 if unknown.
    pub(super) version: u64,
    /// Whether its state is the answer to a change of this server, which its watch may not have told yet.
    pub(super) changed: bool,
}

/// A watch and its state.
pub(super) struct Watch {
    /// Index of the kind. `None` for Kubernetes nodes.
    pub(super) kind: Option<u16>,
    pub(super) name: String,
    pub(super) generation: u32,
    /// When it last showed signs of life. `None` if it is not running.
    pub(super) heard: Option<Instant>,
    /// Whether its first list is complete.
    pub(super) complete: bool,
    /// Why it is not running.
    pub(super) error: Option<Error>,
}

impl CacheState {
    pub(super) fn under_way(&self, cluster: &str, node: &str) -> UnderWay {
        if self.under_way.is_empty() {
            return UnderWay::default();
        }
        let counts = self.under_way.get(&(cluster.into(), node.into()));
        counts.map_or_else(UnderWay::default, |counts| UnderWay {
            creating: counts.0 > 0,
            removing: counts.1 > 0,
        })
    }

    pub(super) fn shown(
        &self,
        kinds: &[Arc<Kind>],
        cluster: &str,
        node: &str,
    ) -> Option<(Found, Option<Arc<str>>)> {
        let group = self.groups.get(cluster, node)?;
        let found = group.node(kinds, self.under_way(cluster, node))?;
        let host = group.pod().and_then(|(_, pod)| pod.host.clone());
        Some((found, host))
    }

    pub(super) fn is_lost(&self, key: &Key, uid: u128) -> bool {
        self.groups
            .get(&key.cluster, &key.node)
            .is_some_and(|group| group.pods().any(|(it, pod)| it.uid == uid && pod.lost))
    }

    /// Whether all Kubernetes nodes are known, so that one that is not among them is gone.
    fn knows_hosts(&self) -> bool {
        let mut watches = self.watches.iter();
        watches.any(|it| it.kind.is_none() && it.complete && it.heard.is_some())
    }

    /// Tells the nodes on the Kubernetes nodes that are selected by name.
    pub(super) fn tell_on(&self, selected: impl Fn(&str) -> bool) {
        for (key, group) in self.groups.iter() {
            let host = group.pod().and_then(|(_, pod)| pod.host.as_deref());
            if host.is_some_and(&selected) {
                self.tell(&key.cluster, &key.node);
            }
        }
    }

    /// Adds its failure domain and its host, and the failure of a pod that was given up.
    pub(super) fn placed(&self, mut found: Found, group: &Group) -> Found {
        let host = group.pod().and_then(|(_, pod)| pod.host.as_ref());
        if let Some(host) = host.filter(|_| self.knows_hosts()) {
            found.node.host = Some(machine::host(host, self.hosts.get(host)));
        }
        let known = host.and_then(|host| self.hosts.get(host));
        if let Some(zone) = known.and_then(|known| known.zone.as_ref()) {
            found.node.failure_domain = zone.to_string();
        }
        if group
            .pod()
            .is_some_and(|(member, _)| self.unscheduled.is_over(member.uid))
        {
            found.node.set_phase(NodePhase::Failed);
            found.node.message = format!("waited too long for a place; {}", found.node.message);
        }
        found
    }

    pub(super) fn compare<T: PartialEq>(
        &self,
        key: &Key,
        before: Option<&T>,
        after: Option<&T>,
        evidence: RemovalEvidence,
    ) {
        match (before, after) {
            (Some(_), None) => {
                if let Some(changes) = &self.changes {
                    changes.removed(&key.cluster, &key.node, evidence);
                }
            }
            (before, Some(after)) if before != Some(after) => self.tell(&key.cluster, &key.node),
            _ => {}
        }
    }

    pub(super) fn tell(&self, cluster: &str, node: &str) {
        if let Some(changes) = &self.changes {
            changes.changed(cluster, node);
        }
    }
}
