//! Visibility: the state that lists and watches show, including while they are frozen.

use std::{
    collections::{BTreeSet, HashMap},
    sync::atomic::Ordering,
    time::{Duration, UNIX_EPOCH},
};

use drover_proto::{
    common::v1::{Address, AddressType},
    platform::v1::{self as wire, HostState, Node, RemovalEvidence},
};

use drover_platform::{
    clock::timestamp,
    driver::{Changes, Found},
    placement::hosts::Availability,
};

use super::node::{SimNode, node_id, number};
use super::{Host, World};

/// The frozen state and the changes that it hides.
pub(super) struct Frozen {
    pub(super) nodes: HashMap<u32, SimNode>,
    changed: BTreeSet<u32>,
    removed: Vec<(String, u32, RemovalEvidence)>,
}

impl World {
    /// Converts a node to its wire form.
    pub(in crate::drivers::simulated) fn node(&self, number: u32, node: &SimNode) -> Node {
        let shared = &*node.shared;
        let foreign = shared.owner.is_empty();
        let [_, b, c, d] = number.to_be_bytes();
        let host = node.host().and_then(|at| self.hosts.get(at));
        Node {
            id: node.id.to_string(),
            name: node.name.to_string(),
            ordinal: (!foreign).then_some(node.ordinal),
            role: i32::from(node.role),
            slot: (!foreign).then(|| drover_proto::platform::v1::SlotKey {
                index: Some(node.index),
                ..shared.key()
            }),
            phase: node.phase.into(),
            ready: Some(node.ready),
            provider_id: format!("sim:///{}", node_id(number)),
            failure_domain: node
                .domain()
                .and_then(|at| self.domains.get(at))
                .map_or_else(String::new, |room| room.name.clone()),
            create_time: Some(timestamp(UNIX_EPOCH + Duration::from_millis(node.created))),
            message: node.message.as_deref().unwrap_or_default().to_owned(),
            host_id: host.map(|host| host.id.clone()),
            addresses: match host.map_or_else(Vec::new, Host::addresses) {
                none if none.is_empty() => vec![Address {
                    r#type: AddressType::InternalIp.into(),
                    value: format!("10.{b}.{c}.{d}"),
                    interface: String::new(),
                }],
                of_host => of_host,
            },
            ..shared.node(node_id(number))
        }
    }

    /// All hosts, whoever has claimed them.
    pub(in crate::drivers::simulated) fn inventory(&self) -> Vec<wire::Host> {
        let show = |host: &Host| {
            let node = self.node_on(host);
            let availability = self.availability(host);
            let message = match (node, availability) {
                (None, Availability::Claimed) => format!("claimed by {}", host.claimed_by),
                (None, Availability::Unusable(reason)) => reason.to_owned(),
                _ => String::new(),
            };
            let state = match availability {
                Availability::Free => HostState::Free,
                Availability::Claimed => HostState::Claimed,
                Availability::Unusable(_) => HostState::Unavailable,
            };
            let shared = node.map(|(_, node)| &node.shared);
            wire::Host {
                id: host.id.clone(),
                labels: host
                    .labels
                    .iter()
                    .chain(node.iter().flat_map(|_| &host.lent))
                    .map(|(key, text)| (key.clone(), text.clone()))
                    .collect(),
                failure_domain: host
                    .domain
                    .and_then(|at| self.domains.get(at))
                    .map_or_else(String::new, |room| room.name.clone()),
                state: state.into(),
                cluster_id: shared.map_or_else(String::new, |it| it.cluster_id.clone()),
                owner: shared.map_or_else(String::new, |it| it.owner.clone()),
                node_id: node.map_or_else(String::new, |(number, _)| node_id(number)),
                addresses: host.addresses(),
                message,
                ..wire::Host::default()
            }
        };
        self.hosts.iter().map(show).collect()
    }

    fn found(&self, number: u32, node: &SimNode) -> Found {
        Found {
            node: self.node(number, node),
            fingerprint: node.shared.fingerprint.clone(),
        }
    }

    /// A node as lists and watches show it.
    pub(in crate::drivers::simulated) fn visible(&self, number: u32) -> Option<&SimNode> {
        match &self.frozen {
            Some(frozen) => frozen.nodes.get(&number),
            None => self.nodes.get(&number).filter(|node| !node.hidden),
        }
    }

    pub(in crate::drivers::simulated) fn list(&self, cluster: Option<&str>) -> Vec<Found> {
        let turn = self.lists.fetch_add(1, Ordering::Relaxed);
        let flickers = |number: u32| self.flickering && (turn + number).is_multiple_of(2);
        let shown = |number: &u32| {
            let node = match &self.frozen {
                None if flickers(*number) => self.nodes.get(number),
                _ => self.visible(*number),
            };
            node.map(|node| self.found(*number, node))
        };
        match (cluster, &self.frozen) {
            (Some(cluster), None) => self
                .by_cluster
                .get(cluster)
                .into_iter()
                .flatten()
                .filter_map(shown)
                .collect(),
            (None, None) => self.nodes.keys().filter_map(shown).collect(),
            (cluster, Some(frozen)) => {
                let all = frozen.nodes.keys().filter_map(shown);
                all.filter(|found| cluster.is_none_or(|cluster| found.node.cluster_id == cluster))
                    .collect()
            }
        }
    }

    /// The nodes of a request without visibility delay.
    pub(in crate::drivers::simulated) fn of_request(&self, request_id: &str) -> Vec<Found> {
        let numbers = self.by_request.get(request_id).into_iter().flatten();
        numbers
            .filter_map(|number| Some(self.found(*number, self.nodes.get(number)?)))
            .collect()
    }

    /// A node without visibility delay.
    pub(in crate::drivers::simulated) fn by_node_id(&self, node_id: &str) -> Option<Found> {
        let number = number(node_id)?;
        Some(self.found(number, self.nodes.get(&number)?))
    }

    pub(in crate::drivers::simulated) fn in_cluster(
        &self,
        cluster: &str,
    ) -> impl Iterator<Item = &SimNode> {
        self.by_cluster
            .get(cluster)
            .into_iter()
            .flatten()
            .filter_map(|number| self.nodes.get(number))
    }

    pub(in crate::drivers::simulated) fn all(&self) -> Vec<Node> {
        self.nodes
            .iter()
            .map(|(number, node)| self.node(*number, node))
            .collect()
    }

    pub(super) fn tell(&mut self, number: u32) {
        if let Some(frozen) = &mut self.frozen {
            frozen.changed.insert(number);
        } else if let (Some(changes), Some(node)) = (&self.changes, self.visible(number)) {
            changes.changed(&node.shared.cluster_id, &node_id(number));
        }
    }

    pub(super) fn tell_removed(&mut self, number: u32, node: &SimNode, evidence: RemovalEvidence) {
        if let Some(frozen) = &mut self.frozen {
            frozen
                .removed
                .push((node.shared.cluster_id.clone(), number, evidence));
        } else if let Some(changes) = &self.changes {
            changes.removed(&node.shared.cluster_id, &node_id(number), evidence);
        }
    }

    pub(in crate::drivers::simulated) fn connect(&mut self, changes: Changes) {
        // What lists show: what the past hides is told when it ends.
        let shown = self.frozen.as_ref().map_or(&self.nodes, |it| &it.nodes);
        for number in shown.keys() {
            if let Some(node) = self.visible(*number) {
                changes.changed(&node.shared.cluster_id, &node_id(*number));
            }
        }
        self.changes = Some(changes);
    }

    /// Makes lists and watches show the current state until [`World::thaw`].
    pub(in crate::drivers::simulated) fn freeze(&mut self) {
        if self.frozen.is_none() {
            let shown =
                |(number, node): (&u32, &SimNode)| (!node.hidden).then(|| (*number, node.clone()));
            let nodes = self.nodes.iter().filter_map(shown).collect();
            self.frozen = Some(Frozen {
                nodes,
                changed: BTreeSet::new(),
                removed: Vec::new(),
            });
        }
    }

    pub(in crate::drivers::simulated) fn thaw(&mut self) {
        let Some(frozen) = self.frozen.take() else {
            return;
        };
        if let Some(changes) = &self.changes {
            for (cluster, number, evidence) in &frozen.removed {
                changes.removed(cluster, &node_id(*number), *evidence);
            }
        }
        frozen
            .changed
            .into_iter()
            .for_each(|number| self.tell(number));
    }
}

impl Host {
    pub(in crate::drivers::simulated) fn addresses(&self) -> Vec<Address> {
        let address = |(interface, value): (&String, &String)| Address {
            r#type: AddressType::InternalIp.into(),
            value: value.clone(),
            interface: interface.clone(),
        };
        self.addresses.iter().map(address).collect()
    }
}
